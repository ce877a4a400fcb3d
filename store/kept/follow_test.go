package kept_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/keptmem"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

// A naming provider refuses what is above its limit, and each response names the limit.
type naming struct {
	mu          sync.Mutex
	limit, used int64
	// sent and refused are when requests came.
	sent, refused []time.Time
}

func (n *naming) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(25 * time.Millisecond)
	n.mu.Lock()
	resp := &http.Response{StatusCode: 200, Header: make(http.Header), Body: http.NoBody, Request: req}
	if n.sent = append(n.sent, time.Now()); n.used >= n.limit {
		resp.StatusCode = 429
		n.refused = append(n.refused, time.Now())
	} else {
		n.used++
	}
	resp.Header.Set("X-RateLimit-Limit", fmt.Sprint(n.limit))
	resp.Header.Set("X-RateLimit-Remaining", fmt.Sprint(max(0, n.limit-n.used)))
	n.mu.Unlock()
	time.Sleep(25 * time.Millisecond)
	return resp, nil
}

func (n *naming) setLimit(limit int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limit = limit
}

var namesLimit = &answers.Profile{Quotas: []answers.Quota{{
	Limit: answers.Field{Header: "X-RateLimit-Limit"}, Remaining: answers.Field{Header: "X-RateLimit-Remaining"},
}}}

var follows = throttle.Policy{Name: "follows", Tiers: []throttle.Tier{{
	Limit: 5000, Window: time.Hour, Algorithm: throttle.FixedWindow, Follow: throttle.Follow{Least: 500, Most: 15000},
}}}

// run lets callers of a limiter send requests until the context ends.
func (n *naming) run(ctx context.Context, wg *sync.WaitGroup, l *throttle.Limiter, callers int) {
	client := &http.Client{Transport: &throttle.Transport{Limiter: l, Base: n, Profile: namesLimit}}
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/", nil)
				if err != nil {
					panic(err)
				}
				if resp, err := client.Do(req); err == nil {
					resp.Body.Close()
				} else {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
}

func limitOf(t testing.TB, l *throttle.Limiter) int64 {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Tiers[0].Limit
}

// One response that names a lower limit stops all processes of a fleet. Two that name a higher one let all of them go on.
func TestFleetFollowsNamedLimit(t *testing.T) {
	soak.Slow(t, "fleets play")
	for name, test := range map[string]struct {
		fleet func(t testing.TB, ways ...time.Duration) *fleet
		known time.Duration
	}{"told": {newFleet, 500 * time.Millisecond}, "looks": {deafFleet, 700 * time.Millisecond}} {
		for _, used := range []time.Duration{500 * time.Millisecond, 4 * time.Second} { // below the lower limit, and above it
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
				f := test.fleet(t, 100*time.Microsecond, time.Millisecond, 5*time.Millisecond, 20*time.Millisecond)
				api := &naming{limit: 15000}
				all := f.limiters(t, follows)
				ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
				defer cancel()
				var wg sync.WaitGroup
				for _, l := range all {
					api.run(ctx, &wg, l, 8)
				}
				time.Sleep(used)
				for i, l := range all {
					if got := limitOf(t, l); got != 15000 {
						t.Errorf("%s: process %d has limit %d, want 15000", name, i, got)
					}
				}
				api.setLimit(1000)
				changed := time.Now().Add(25 * time.Millisecond) // of the first response
				time.Sleep(10 * time.Second)
				api.mu.Lock()
				t.Logf("%s, %v: %d used, %d refused, last %v", name, used, api.used, len(api.refused), api.sent[len(api.sent)-1].Sub(changed))
				if n := count(api.refused, changed.Add(test.known+25*time.Millisecond), time.Now()); n > 0 {
					t.Errorf("%s: %d refused after the limit was named", name, n)
				}
				if api.used < 950 {
					t.Errorf("%s: %d of 1000 used", name, api.used)
				}
				api.mu.Unlock()
				for i, l := range all {
					if got := limitOf(t, l); got != 1000 {
						t.Errorf("%s: process %d has limit %d, want 1000", name, i, got)
					}
				}
				cancel()
				wg.Wait()
			})
		}
	}
}

// A higher limit that two responses name holds in all processes, and one that joins starts with it.
func TestFleetFollowsHigherLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		f := newFleet(t, farAndNear[:4]...)
		api := &naming{limit: 600}
		all := f.limiters(t, follows)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for _, l := range all[:3] {
			api.run(ctx, &wg, l, 2)
		}
		time.Sleep(2 * time.Second)
		for _, l := range all {
			if got := limitOf(t, l); got != 600 {
				t.Errorf("the limit is %d, want 600", got)
			}
		}
		api.setLimit(14_000)
		time.Sleep(500 * time.Millisecond)
		for _, l := range all {
			if got := limitOf(t, l); got != 14_000 {
				t.Errorf("the limit is %d, want 14000", got)
			}
		}
		wg.Wait()
		if n := count(api.sent, time.Now().Add(-5*time.Second), time.Now()); n < 250 || len(api.refused) > 0 {
			t.Errorf("%d sent in the last 5 s, %d refused", n, len(api.refused))
		}
	})
}

// A change that a response causes makes no transaction, and reaches the others when the keeper is back. Until then it holds
// in its process.
func TestFollowingWaitsForNoKeeper(t *testing.T) {
	for _, ahead := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			server, base := keptmem.New(), followPlan(t, algorithms.Tier{Limit: 10, Window: time.Hour, Follow: algorithms.Follow{Least: 2, Most: 20}})
			t.Cleanup(func() {
				server.Close()
				time.Sleep(2 * time.Minute)
			})
			var quotas []store.Quota
			for range 2 {
				q, err := kept.New(server.Client(50*time.Millisecond), kept.Options{Name: "kept", Ahead: ahead}).Open("away", base, func(store.Call) {})
				if err != nil {
					t.Fatal(err)
				}
				quotas = append(quotas, q)
			}
			d, err := quotas[0].TryAcquire(t.Context(), request())
			if err != nil || d.Verdict != store.Admitted {
				t.Fatalf("%+v, %v", d, err)
			}
			server.SetAway(true)
			began := time.Now()
			if err := quotas[0].(store.Lifecycle).Change(t.Context(), base.Following(algorithms.Followed{At: d.At, Limits: []int64{2}})); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 0 {
				t.Errorf("ahead %v: Change took %v", ahead, took)
			}
			if limit := planOf(quotas[0]).Tiers()[0].Limit; limit != 2 {
				t.Errorf("ahead %v: the limit is %d while the keeper is away, want 2", ahead, limit)
			}
			time.Sleep(5 * time.Second)
			server.SetAway(false)
			time.Sleep(3 * time.Second)
			for n := range 2 {
				if d, err := quotas[1].TryAcquire(t.Context(), request()); err != nil || n == 0 && d.Verdict != store.Moved {
					t.Errorf("ahead %v: %+v, %v, want Moved", ahead, d, err)
				}
				quotas[1], _ = quotas[1].(store.Lifecycle).Successor()
			}
			if d, err := quotas[1].TryAcquire(t.Context(), request()); err != nil || d.Verdict != store.Later {
				t.Errorf("ahead %v: %+v, %v of the third request, want Later", ahead, d, err)
			}
		})
	}
}

func request() store.Request {
	return store.Request{Cost: []int64{1}, Held: true, WaitSpec: &store.WaitSpec{}}
}

func followPlan(t testing.TB, tiers ...algorithms.Tier) *algorithms.Plan {
	t.Helper()
	p, err := algorithms.NewPlan(tiers, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func planOf(q store.Quota) *algorithms.Plan {
	_, p := q.(store.Lifecycle).Successor()
	return p
}

// Processes that follow different responses at random agree in the end on the last one, whatever the clock does. Those that
// keep a tier in another form agree, too.
func TestFollowedLimitsAgree(t *testing.T) {
	for seed := range uint64(soak.Times(60)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 11))
			server, ahead := keptmem.New(), seed%2 == 0
			t.Cleanup(func() {
				server.Close()
				time.Sleep(2 * time.Minute)
			})
			tier := algorithms.Tier{Limit: 60, Window: time.Minute, Follow: algorithms.Follow{Least: 5, Most: 90}}
			bases := []*algorithms.Plan{followPlan(t, tier, algorithms.Tier{Limit: 100, Window: time.Minute, Unit: "other", Follow: algorithms.Follow{Most: 200}})}
			tier.Follow.Most = 80
			bases = append(bases, followPlan(t, tier))
			var stores []*kept.Store
			var quotas []store.Quota
			for i := range 4 {
				s := kept.New(server.Client(farAndNear[i]), kept.Options{Name: "kept", Ahead: ahead, MostStamps: int64(50 + 30*(i%2))})
				q, err := s.Open("agree", bases[i/3], func(store.Call) {})
				if err != nil {
					t.Fatal(err)
				}
				stores, quotas = append(stores, s), append(quotas, q)
			}
			at := time.Now().UnixMicro()
			for range 60 {
				i := r.IntN(len(quotas))
				q := quotas[i]
				switch r.IntN(8) {
				case 0, 1:
					base := planOf(q).Base()
					limits := []int64{1 + r.Int64N(100), r.Int64N(200)}[:len(base.Given())]
					if err := q.(store.Lifecycle).Change(t.Context(), base.Following(algorithms.Followed{At: at + r.Int64N(4), Limits: limits})); err != nil {
						t.Error(err)
					}
					at += r.Int64N(3)
				case 2:
					server.Step(time.Duration(r.Int64N(int64(20*time.Second))) - 10*time.Second)
				case 3:
					server.SetLost(r.IntN(2) == 0)
				case 4:
					stopped, cancel := context.WithTimeout(t.Context(), time.Duration(r.Int64N(int64(50*time.Millisecond))))
					_, _ = q.Status(stopped)
					cancel()
				case 5:
					time.Sleep(time.Duration(r.Int64N(int64(20 * time.Second))))
				default:
					quotas[i], _ = q.(store.Lifecycle).Successor()
					cost := make([]int64, len(planOf(q).Units()))
					cost[0] = 1
					of := request()
					of.Cost = cost
					_, _ = quotas[i].TryAcquire(t.Context(), of)
				}
			}
			server.SetLost(false)
			time.Sleep(5 * time.Second)
			for range 2 {
				for _, q := range quotas {
					if _, err := q.Status(t.Context()); err != nil {
						t.Errorf("seed %d: %v", seed, err)
					}
				}
			}
			for _, q := range quotas[1:3] {
				if a, b := planOf(quotas[0]).Followed(), planOf(q).Followed(); a.At != b.At || !slices.Equal(a.Limits, b.Limits) {
					t.Errorf("seed %d: processes follow %v and %v", seed, a, b)
				}
			}
			if limit := planOf(quotas[3]).Tiers()[0].Limit; limit > 80 {
				t.Errorf("seed %d: the release with a bound of 80 follows %d", seed, limit)
			}
			joins, err := stores[3].Open("agree", bases[0], func(store.Call) {})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := joins.Status(t.Context()); err != nil {
				t.Error(err)
			}
			if a, b := planOf(quotas[0]).Followed(), planOf(joins).Followed(); a.At != b.At {
				t.Errorf("seed %d: a process that joins follows %v, want %v", seed, b, a)
			}
		})
	}
}

// A limit that was followed survives the processes for 30 days.
func TestFollowedLimitSurvivesQuietDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, time.Millisecond, time.Millisecond, time.Millisecond)
		base := followPlan(t, algorithms.Tier{Limit: 10, Window: time.Minute, Follow: algorithms.Follow{Least: 2, Most: 20}})
		for i, want := range []int64{3, 3, 10} {
			q, err := f.stores[i].Open("survives", base, func(store.Call) {})
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				err = q.(store.Lifecycle).Change(t.Context(), base.Following(algorithms.Followed{At: 1, Limits: []int64{3}}))
			}
			if _, failed := q.Status(t.Context()); err != nil || failed != nil {
				t.Error(err, failed)
			}
			if got := planOf(q).Tiers()[0].Limit; got != want {
				t.Errorf("process %d has limit %d, want %d", i, got, want)
			}
			q.Close()
			time.Sleep([]time.Duration{24 * time.Hour, 31 * 24 * time.Hour, 0}[i])
			f.server.Sweep()
		}
	})
}

// Callers that wait in other processes learn at once of a limit that was followed.
func TestFollowedLimitIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5*time.Millisecond, 5*time.Millisecond)
		base := followPlan(t, algorithms.Tier{Limit: 10, Window: time.Hour, Follow: algorithms.Follow{Least: 2, Most: 20}})
		var quotas []store.Quota
		for _, s := range f.stores {
			q, err := s.Open("told", base, func(store.Call) {})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := q.TryAcquire(t.Context(), request()); err != nil {
				t.Fatal(err)
			}
			quotas = append(quotas, q)
		}
		replanned := make(chan time.Time, 9)
		defer quotas[1].Watch(func(c store.Change, _ time.Duration) {
			if c == store.Replanned {
				replanned <- time.Now()
			}
		})()
		time.Sleep(2 * time.Second)
		began := time.Now()
		if err := quotas[0].(store.Lifecycle).Change(t.Context(), base.Following(algorithms.Followed{At: 1, Limits: []int64{20}})); err != nil {
			t.Fatal(err)
		}
		select {
		case at := <-replanned:
			if took := at.Sub(began); took > 60*time.Millisecond {
				t.Errorf("told after %v", took)
			}
		case <-time.After(10 * time.Second):
			t.Error("not told")
		}
	})
}
