package throttle_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

// TestErrDeadlineNamesTheBound checks that a refusal for lack of time names what the wait would
// outlast, before the wait and during it, in one quota and in nested ones.
func TestErrDeadlineNamesTheBound(t *testing.T) {
	within := func(d time.Duration) func(context.Context) (context.Context, context.CancelFunc) {
		return func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, d) }
	}
	for _, tt := range []struct {
		name         string
		inner, outer time.Duration // MaxWait
		timeout      time.Duration
		want         throttle.Bound
		text         string
	}{
		{"context", 0, 0, sec, "context", "the wait would outlast the context's deadline: "},
		{"MaxWait", sec, 0, 0, "MaxWait", "the wait would outlast MaxWait: "},
		{"the context is earlier", 2 * sec, 2 * sec, sec, "context", "the wait would outlast the context's deadline: "},
		{"MaxWait is earlier", sec, 0, 2 * sec, "MaxWait", "the wait would outlast MaxWait: "},
		{"MaxWait of the outer policy", 0, sec, 0, "MaxWait", "the wait would outlast MaxWait: "},
	} {
		for _, nested := range []string{"", "the inner quota is full", "the outer quota is full"} {
			for _, pauses := range []bool{false, true} {
				if tt.outer > 0 && tt.inner == 0 && nested != "the outer quota is full" {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					policy := func(name string, maxWait time.Duration, full bool) *throttle.Limiter {
						p := exact(throttle.PerMinute(1))
						p.Name, p.MaxWait = name, maxWait
						l := mustNew(t, p, nil)
						if full && !pauses {
							l.Allow()
						}
						return l
					}
					l := policy("inner", tt.inner, nested != "the outer quota is full")
					paused := l
					if nested != "" {
						outer := policy("outer", tt.outer, nested == "the outer quota is full")
						l = l.Within(outer)
						if nested == "the outer quota is full" {
							paused = outer
						}
					}
					if pauses { // during the wait
						_ = paused.Pause(t.Context(), sec/2)
						time.AfterFunc(sec/4, func() { _ = paused.Pause(t.Context(), time.Minute) })
					}
					ctx, cancel := t.Context(), func() {}
					if tt.timeout > 0 {
						ctx, cancel = within(tt.timeout)(ctx)
					}
					defer cancel()
					_, err := l.Acquire(ctx, nil)
					var e *throttle.WaitError
					if !errors.As(err, &e) || e.Err != throttle.ErrDeadline || e.Bound != tt.want || !strings.Contains(err.Error(), tt.text) {
						t.Errorf("%s, %q, pause %v: %v, bound %q; want bound %q", tt.name, nested, pauses, err, e.Bound, tt.want)
					}
				})
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(throttle.PerMinute(1)), nil)
		base := trNewBase(nil)
		tr := &throttle.Transport{Limiter: l, Base: base, SendBy: func(*http.Request) time.Time { return time.Now().Add(sec) }}
		trExpect(t, tr, 200)
		_, err := trSend(t.Context(), tr)
		var e *throttle.WaitError
		if !errors.As(err, &e) || e.Bound != "SendBy" || !strings.Contains(err.Error(), "the wait would outlast SendBy: 1m0s for tier 1/m") {
			t.Errorf("SendBy: %v", err)
		}
		if _, err = l.TryAcquire(t.Context(), nil); !errors.As(err, &e) || e.Bound != "" || !strings.Contains(err.Error(), "the wait would outlast the deadline: ") {
			t.Errorf("TryAcquire: %v", err)
		}
	})
}

// A judged limiter is one whose every admission is also counted, tier by tier, by a counter that
// shares no arithmetic with it.
type judged struct {
	*throttle.Limiter
	mu       sync.Mutex // guards all below
	counters map[string]*throttletest.Counter
	refused  int // by a counter
}

func judge(t *testing.T, l *throttle.Limiter, policies ...throttle.Policy) *judged {
	j := &judged{Limiter: l, counters: make(map[string]*throttletest.Counter)}
	for _, p := range policies {
		for _, tier := range p.Tiers {
			j.counters[p.Name+"/"+tier.String()] = counter(t, tier)
		}
	}
	return j
}

// acquire acquires a permit, whose response comes at once. It returns how long that took.
func (j *judged) acquire(ctx context.Context) (p *throttle.Permit, took time.Duration, err error) {
	began := time.Now()
	p, err = j.Acquire(ctx, nil)
	if took = time.Since(began); err == nil {
		p.Arrived()
		j.mu.Lock()
		defer j.mu.Unlock()
		for _, c := range j.counters {
			if !c.Arrive(time.Now().UnixMicro(), nil) {
				j.refused++
			}
		}
	}
	return p, took, err
}

// admits reports whether a counter admits one more unit.
func (j *judged) admits(policy string, tier throttle.Tier, now int64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.counters[policy+"/"+tier.String()].Admits(now, nil) < 0
}

func (j *judged) release(p *throttle.Permit) {
	j.mu.Lock()
	for _, c := range j.counters { // before the next request is admitted in its place
		c.Release(nil)
	}
	j.mu.Unlock()
	p.Release()
}

// TestExplainIsTrue checks random states of quotas: an Explanation contains the Forecast, the
// request then waits for that time where it is exact, and never less; a tier that is said to be full
// refuses one more unit, and one that is said to have room admits it; the classes ahead add up; and
// Acquire fails at once, with the same reason, where Err says so.
func TestExplainIsTrue(t *testing.T) {
	var waited, refused, paused, ahead, full, room int
	seeds := soak.Times(1000)
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(71, seed))
			one := func(from ...throttle.Algorithm) throttle.Algorithm { return from[rnd.IntN(len(from))] }
			policy := func(name string, isExact bool) throttle.Policy {
				from := []throttle.Algorithm{throttle.SlidingLog, throttle.FixedWindow, throttle.TokenBucket, throttle.AnchoredWindow, throttle.GCRA, throttle.LeakyBucket}
				if !isExact {
					from = append(from, throttle.WeightedWindow, throttle.SlidingWindow)
				}
				p := exact(
					per(time.Duration(1+rnd.IntN(3))*sec, 2+rnd.Int64N(5), one(from...)),
					per(time.Minute, 10+rnd.Int64N(20), one(from...)))
				if p.Name = name; !isExact {
					if rnd.IntN(3) == 0 {
						p.Tiers = append(p.Tiers, throttle.Tier{Limit: 1 + rnd.Int64N(6), Algorithm: throttle.Concurrency})
					}
					if rnd.IntN(3) == 0 {
						p.Tiers = append(p.Tiers, throttle.Budget(5+rnd.Int64N(40), "", throttle.Day))
					}
					p.Headroom, p.Aging = rnd.IntN(2)*20, time.Duration(rnd.IntN(3))*sec
				}
				if p.MaxWait = time.Duration(rnd.IntN(4)) * 20 * sec; rnd.IntN(4) == 0 {
					p.MaxQueue = 1 + rnd.IntN(30)
				}
				return p
			}
			isExact := rnd.IntN(2) == 0
			policies, sameAging := []throttle.Policy{policy("inner", isExact)}, true
			l := mustNew(t, policies[0], nil)
			if !isExact && rnd.IntN(3) == 0 {
				policies = append(policies, policy("outer", false))
				sameAging = policies[0].Aging == policies[1].Aging
				l = l.Within(mustNew(t, policies[1], nil))
			}
			j := judge(t, l, policies...)
			ctx, cancel := context.WithCancel(t.Context())
			class := func() context.Context { return ctx }
			if !isExact {
				class = func() context.Context {
					return throttle.WithClass(ctx, []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}[rnd.IntN(3)])
				}
			}
			var callers sync.WaitGroup
			var gaveUp atomic.Int32
			for range rnd.IntN(40) {
				if rnd.IntN(3) == 0 {
					time.Sleep(time.Duration(rnd.IntN(2e6)) * time.Microsecond)
				}
				hold := rnd.IntN(2) * rnd.IntN(3e6)
				ctx := class()
				callers.Go(func() {
					p, _, err := j.acquire(ctx)
					if err != nil {
						gaveUp.Add(1)
						return
					}
					_ = sleep(ctx, time.Duration(hold)*time.Microsecond)
					j.release(p)
				})
				synctest.Wait()
			}
			if rnd.IntN(6) == 0 {
				_ = l.Pause(ctx, time.Duration(rnd.IntN(5e6))*time.Microsecond)
				synctest.Wait()
			}
			asks := class()
			if rnd.IntN(4) == 0 {
				var end context.CancelFunc
				asks, end = context.WithTimeout(asks, time.Duration(rnd.IntN(9e6))*time.Microsecond)
				defer end()
			}
			status := status(t, l)
			e, err := l.Explain(asks, nil)
			f, failed := l.Forecast(asks, nil)
			if err != nil || e.Forecast != f || failed != nil && (e.Err == nil || e.Err.Error() != failed.Error()) {
				t.Fatalf("seed %d, %v: explanation %v, %v; forecast %+v, %v", seed, policies, e, err, f, failed)
			}
			if e.Interactive+e.Normal+e.Batch != e.Ahead || e.Ahead > status.Waiting && len(policies) == 1 {
				t.Errorf("seed %d: %d + %d + %d of %d are ahead, while %d wait", seed, e.Interactive, e.Normal, e.Batch, e.Ahead, status.Waiting)
			}
			now := time.Now().UnixMicro()
			for _, q := range e.Quotas {
				for _, tier := range q.Tiers {
					admits := j.admits(q.Policy, tier.Tier, now)
					if admits == tier.Limited && !(admits && tier.Tier.Algorithm == throttle.SlidingWindow) { // which counts in whole parts
						t.Errorf("seed %d: %v while the counter admits one more: %v", seed, tier, admits)
					}
					if tier.Limited {
						full++
					} else {
						room++
					}
				}
				if q.Paused > 0 {
					if paused++; q.Cause != "call" {
						t.Errorf("seed %d: paused by %q", seed, q.Cause)
					}
				}
			}
			before := gaveUp.Load()
			p, took, err := j.acquire(asks)
			leftAhead := gaveUp.Load() > before
			switch {
			case e.Err != nil:
				refused++
				var want, got *throttle.WaitError
				if !errors.As(e.Err, &want) || !errors.As(err, &got) || want.Err != got.Err || want.Bound != got.Bound || took > 0 {
					t.Errorf("seed %d, %v: Err is %v, and Acquire returned %v after %v", seed, policies, e.Err, err, took)
				}
			// See Forecast.Wait.
			case err == nil && (took < e.Wait && e.Wait < 1<<62 && !leftAhead && (sameAging || e.Ahead == 0) || isExact && took != e.Wait):
				t.Errorf("seed %d, %v: waited for %v, exact %v: %v", seed, policies, took, isExact, e)
			case isExact && err != nil:
				t.Errorf("seed %d, %v: %v after %v: %v", seed, policies, err, took, e)
			}
			if e.Wait > 0 {
				waited++
			}
			if e.Ahead > 0 {
				ahead++
			}
			if err == nil {
				j.release(p)
			}
			cancel()
			if callers.Wait(); j.refused > 0 {
				t.Errorf("seed %d, %v: the counters refuse %d", seed, policies, j.refused)
			}
		})
	}
	t.Logf("%d waited, %d behind others, %d refused, %d paused; %d tiers full, %d with room", waited, ahead, refused, paused, full, room)
	if waited < 3*seeds/10 || ahead < seeds/5 || refused < seeds/20 || paused < seeds/20 || full < 3*seeds/10 || room < 3*seeds/10 {
		t.Error("too few of some kind")
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// away is a store that does not answer.
type away struct {
	local.Store
	fallback int
}

type awayQuota struct {
	store.Quota
	fallback int
}

func (s *away) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return awayQuota{q, s.fallback}, err
}

func (q awayQuota) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	if q.fallback > 0 {
		return q.Quota.TryAcquire(ctx, r)
	}
	return store.Decision{}, store.ErrUnavailable
}

func (q awayQuota) Status(context.Context) (store.Status, error) {
	return store.Status{Shared: "Redis", Fallback: q.fallback}, store.ErrUnavailable
}

// TestExplainSentences checks the texts of typical situations.
func TestExplainSentences(t *testing.T) {
	coinbase := []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10)}
	named := func(name string, tiers ...throttle.Tier) throttle.Policy {
		p := exact(tiers...)
		p.Name = name
		return p
	}
	use := func(l *throttle.Limiter, n int) {
		for range n {
			l.Allow()
		}
	}
	refused := func(t *testing.T, l *throttle.Limiter, profile *answers.Profile, response string) {
		_, _ = trSend(t.Context(), &throttle.Transport{Limiter: l, Base: answering(response), Profile: profile})
	}
	for _, tt := range []struct {
		name string
		make func(t *testing.T, ctx context.Context) (*throttle.Limiter, throttle.Cost)
		want string
	}{
		{"at once", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			return mustNew(t, throttle.Policy{Tiers: coinbase}, nil), nil
		}, "The request would be sent at once. 5/s has room for 5: 0 of 5 used. 10/h has room for 10: 0 of 10 used. The guard interval is 50ms."},
		{"a queue", func(t *testing.T, ctx context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, throttle.Policy{Tiers: coinbase}, nil)
			use(l, 5)
			time.Sleep(time.Second + 50*time.Millisecond)
			use(l, 2)
			for range 2 {
				acquire(t, l, nil)
			}
			for i := range 7 {
				go l.Wait(throttle.WithClass(ctx, []throttle.Class{throttle.Normal, throttle.Batch}[min(i%3, 1)]))
				synctest.Wait()
			}
			return l, nil
		}, "The request would wait 1h0m0s for tier 10/h, behind 6 callers (2 normal, 4 batch). 5/s is full until 00:00:02.1Z: 5 of 5 used, 5 of them in flight. " +
			"10/h is full until 01:00:00.05Z: 10 of 10 used, 5 of them in flight. The guard interval is 50ms."},
		{"the deadline", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			p := exact(coinbase...)
			p.MaxWait = time.Minute
			l := mustNew(t, p, nil)
			use(l, 4)
			return l, throttle.Cost{"requests": 5}
		}, "The request would wait 1s for tier 5/s. 5/s has room for 1: 4 of 5 used. 10/h has room for 6: 4 of 10 used."},
		{"MaxWait", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			p := exact(throttle.PerHour(1))
			p.MaxWait = time.Minute
			l := mustNew(t, p, nil)
			use(l, 1)
			return l, nil
		}, `The request would be refused: policy "api": the wait would outlast MaxWait: 1h0m0s for tier 1/h. 1/h is full until 01:00:00Z: 1 of 1 used.`},
		{"concurrency", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(throttle.Tier{Limit: 2, Algorithm: throttle.Concurrency}), nil)
			acquire(t, l, throttle.Cost{"requests": 2})
			return l, nil
		}, "The request would wait for tier 2;algo=concurrency until another request ends. 2;algo=concurrency is full until a request ends: 2 of 2 used."},
		{"a call of Pause", func(t *testing.T, ctx context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(coinbase...), nil)
			_ = l.Pause(ctx, 28*time.Second)
			return l, nil
		}, "The request would wait 28s for the end of a pause. 5/s has room for 5: 0 of 5 used. 10/h has room for 10: 0 of 10 used. The quota is paused for 28s, by a call of Pause."},
		{"a pause by another Limiter", func(t *testing.T, ctx context.Context) (*throttle.Limiter, throttle.Cost) {
			s := local.New()
			l := mustNew(t, named("api", coinbase[0]), s)
			_ = l.Pause(ctx, time.Second)
			_ = mustNew(t, named("api", coinbase[0]), s).Pause(ctx, 28*time.Second)
			return l, nil
		}, "The request would wait 28s for the end of a pause. 5/s has room for 5: 0 of 5 used. The quota is paused for 28s, by another process or Limiter."},
		{"a refusal", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(coinbase[0]), nil)
			refused(t, l, &answers.Profile{Reasons: []answers.Field{{Header: "X-Reason"}}}, "429\nRetry-After: 30\nX-Reason: burst")
			return l, nil
		}, `The request would wait 30s for the end of a pause. 5/s has room for 4: 1 of 5 used. The quota is paused for 30s, after a response with status 429 ("burst").`},
		{"a probe", func(t *testing.T, ctx context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(coinbase[0]), nil)
			refused(t, l, nil, "429\nRetry-After: 30")
			_, _ = l.Acquire(ctx, nil)
			time.Sleep(time.Second)
			return l, nil
		}, "The request would wait for the response to another request, at most 29s. 5/s has room for 5: 0 of 5 used. " +
			"The first request after a pause is in flight, and the others wait for its response, at most 29s."},
		{"a ban", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) { return banned(t), nil },
			`The request would be refused: policy "api": the provider closed the quota until 2000-01-01T02:00:00Z. 5/s has room for 4: 1 of 5 used. ` +
				`The provider has closed the quota for 2h0m0s, after a response with status 429. The guard interval is 50ms.`},
		{"a budget", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(coinbase[0], throttle.Budget(3, "", throttle.Month)), nil)
			use(l, 3)
			return l, nil
		}, `The request would be refused: policy "api": budget is used up until 2000-02-01T00:00:00Z: tier 3/month;budget=true. 5/s has room for 2: 3 of 5 used. ` +
			"3/month;budget=true is used up until 2000-02-01T00:00:00Z: 3 of 3 used."},
		{"no wait helps", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			return mustNew(t, exact(coinbase...), nil), throttle.Cost{"requests": 11}
		}, `The request would be refused: policy "api": cost of 11 requests exceeds the capacity of tier 5/s. 5/s has room for 5: 0 of 5 used. 10/h has room for 10: 0 of 10 used.`},
		{"a nest", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			outer := mustNew(t, named("account", coinbase[1]), nil)
			use(outer, 10)
			return mustNew(t, named("orders", coinbase[0]), nil).Within(outer), nil
		}, `The request would wait 1h0m0s for tier 10/h of policy "account". Policy "orders": 5/s has room for 5: 0 of 5 used. ` +
			`Policy "account": 10/h is full until 01:00:00Z: 10 of 10 used.`},
		{"a learned guard", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			return mustNew(t, throttle.Policy{Tiers: coinbase[:1], Guard: throttle.AutoGuard}, nil), nil
		}, "The request would be sent at once. 5/s has room for 5: 0 of 5 used. The guard interval is 1s, learned from responses."},
		{"other programs", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(coinbase[1]), nil)
			profile := &answers.Profile{Quotas: []answers.Quota{{Limit: answers.Field{Header: "L"}, Remaining: answers.Field{Header: "R"}, Reset: answers.Field{Header: "S"}}}}
			refused(t, l, profile, "200\nL: 10\nR: 4\nS: 60")
			return l, nil
		}, "The request would be sent at once. 10/h has room for 4: 6 of 10 used, 5 of them by others."},
		{"the store is away", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			return mustNew(t, named("api", coinbase...), &away{}), nil
		}, "The request would wait until the store answers. The quota is shared through Redis. The store does not answer: callers wait for it."},
		{"a fallback", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			return mustNew(t, named("api", coinbase...), &away{fallback: 4}), nil
		}, "The request would be sent at once. The quota is shared through Redis. The store does not answer: this process decides on 1/4 of the quota."},
		{"closed", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, named("api", coinbase...), nil)
			l.Close()
			return l, nil
		}, `The request would be refused: policy "api": limiter is closed.`},
		{"a group", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			g, err := throttle.NewGroup(named("key", coinbase[0]), nil, throttle.GroupOptions{})
			if err != nil {
				t.Fatal(err)
			}
			use(g.For("secret"), 5)
			return g.For("secret"), nil
		}, "The request would wait 1s for tier 5/s. 5/s is full until 00:00:01Z: 5 of 5 used."},
		{"a pace", func(t *testing.T, _ context.Context) (*throttle.Limiter, throttle.Cost) {
			l := mustNew(t, exact(throttle.Tier{Limit: 60, Window: time.Minute, PaceBurst: 2}), nil)
			use(l, 2)
			time.Sleep(time.Second)
			use(l, 1)
			return l, nil
		}, "The request would wait 1s for tier 60/m;pace_burst=2. 60/m;pace_burst=2 admits one more at 00:00:02Z: 3 of 60 used."},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l, cost := tt.make(t, ctx)
			if tt.name == "a queue" {
				ctx = throttle.WithClass(ctx, throttle.Batch)
			}
			e, err := l.Explain(ctx, cost)
			if got := e.String(); err != nil || got != tt.want {
				t.Errorf("%s: %v\n%s\nwant\n%s", tt.name, err, got, tt.want)
			}
		})
	}
}

// TestExplainLongestWait checks that the quota decides for which the request would wait longest, also if
// that is paused and another quota is full.
func TestExplainLongestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
		outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, nil)
		l := inner.Within(outer)
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			pause    time.Duration
			by, tier string
		}{{0, "outer", "1/s"}, {500 * ms, "outer", "1/s"}, {5 * time.Second, "inner", ""}} {
			if err := inner.Pause(t.Context(), step.pause); err != nil {
				t.Fatal(err)
			}
			e, err := l.Explain(t.Context(), nil)
			if err != nil || e.By != step.by || e.Tier != step.tier {
				t.Errorf("paused for %v: decided by %q of %q, %v; want %q of %q", step.pause, e.Tier, e.By, err, step.tier, step.by)
			}
		}
	})
}

// TestExplainPauseOfAFullTier checks that a request that waits for the release of another is refused if a
// pause outlasts its deadline, as Acquire refuses it.
func TestExplainPauseOfAFullTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}
		l := mustNew(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{open}, MaxWait: time.Minute}, nil)
		for name, l := range map[string]*throttle.Limiter{
			"alone": l, "nested": l.Within(mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, nil)),
		} {
			p, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, pause := range []time.Duration{0, 30 * time.Second, time.Hour} {
				if err := l.Pause(t.Context(), pause); err != nil {
					t.Fatal(err)
				}
				e, err := l.Explain(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				_, err = l.Acquire(t.Context(), nil)
				if atOnce := time.Since(began) == 0; atOnce != (e.Err != nil) || atOnce && e.Err.Error() != err.Error() {
					t.Errorf("%s, paused for %v: explained %v; acquired %v after %v", name, pause, e.Err, err, time.Since(began))
				}
			}
			_ = l.Resume(t.Context())
			p.Release()
			time.Sleep(time.Second)
		}
	})
}

// TestExplainErrors checks that Explain fails only where there is nothing to explain, and charges
// nothing.
func TestExplainErrors(t *testing.T) {
	l := mustNew(t, exact(throttle.PerHour(5)), nil)
	for _, cost := range []throttle.Cost{{"cats": 1}, {"requests": -1}} {
		if e, err := l.Explain(t.Context(), cost); err == nil || e.Quotas != nil {
			t.Errorf("%v: %v, %v; want an error", cost, e, err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if e, err := l.Explain(ended, nil); err != context.Canceled || e.Quotas != nil {
		t.Errorf("%v, %v; want the error of the context", e, err)
	}
	if used := status(t, l).Tiers[0].Used; used != 0 {
		t.Errorf("%d used, want 0", used)
	}
}
