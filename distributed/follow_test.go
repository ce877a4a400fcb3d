package distributed_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// A namingAPI is an API that counts points when requests arrive, fifty for each, refuses those above its
// limit and names the limit in each response that is not quiet. It counts by hours of the clock, or in a
// bucket that refills in an hour.
type namingAPI struct {
	bucket  bool
	takes   func() time.Duration     // to respond
	lies    func(header http.Header) // changes what a response names
	arrives func(arrived int)        // is called with the number of requests up to this one
	leaves  func(arrived int)        // the same when a response that names the limit is there

	mu      sync.Mutex // guards all below
	limit   int64
	used    float64
	counted time.Time
	sent    []sending
}

// A sending is a request that has arrived.
type sending struct {
	at      time.Time
	refused bool
}

const points = 50 // of each request

func (a *namingAPI) RoundTrip(req *http.Request) (*http.Response, error) {
	takes := 100 * ms
	if a.takes != nil {
		takes = a.takes()
	}
	time.Sleep(min(takes/2, 50*ms))
	resp, n := a.answer()
	if a.arrives != nil {
		a.arrives(n)
	}
	time.Sleep(takes - min(takes/2, 50*ms))
	if req.Header.Get("Quiet") != "" {
		clear(resp.Header)
	} else if a.leaves != nil {
		a.leaves(n)
	}
	resp.Request = req
	return resp, nil
}

// answer counts a request and returns its response, and the number of requests so far.
func (a *namingAPI) answer() (*http.Response, int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.bucket {
		a.used = max(0, a.used-now.Sub(a.counted).Hours()*float64(a.limit))
	} else if !now.Truncate(hour).Equal(a.counted.Truncate(hour)) {
		a.used = 0
	}
	a.counted = now
	refused := a.used+points > float64(a.limit)
	if !refused {
		a.used += points
	}
	a.sent = append(a.sent, sending{now, refused})
	resp := &http.Response{StatusCode: 200, Header: make(http.Header), Body: io.NopCloser(strings.NewReader("{}"))}
	if refused {
		resp.StatusCode = 429
	}
	resp.Header.Set("X-RateLimit-Limit", fmt.Sprint(a.limit))
	resp.Header.Set("X-RateLimit-Remaining", fmt.Sprint(max(0, a.limit-int64(a.used+0.999))))
	if a.lies != nil {
		a.lies(resp.Header)
	}
	return resp, len(a.sent)
}

// A quiet API names nothing to this process.
type quiet struct{ *namingAPI }

func (q quiet) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Quiet", "yes")
	return q.namingAPI.RoundTrip(req)
}

// set changes the limit.
func (a *namingAPI) set(limit int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limit = limit
}

// since returns how many points have been used since an instant, and how many requests were refused.
func (a *namingAPI) since(at time.Time) (used, refused int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.sent {
		switch {
		case s.at.Before(at):
		case s.refused:
			refused++
		default:
			used += points
		}
	}
	return used, refused
}

var namesLimit = &answers.Profile{Quotas: []answers.Quota{{
	Limit: answers.Field{Header: "X-RateLimit-Limit"}, Remaining: answers.Field{Header: "X-RateLimit-Remaining"},
}}}

// following returns a tier of 5000 points an hour that follows from 500 to 15000.
func following(bucket bool) throttle.Tier {
	tier := throttle.Tier{Limit: 5000, Window: hour, Algorithm: throttle.FixedWindow, Follow: throttle.Follow{Least: 500, Most: 15000}}
	if bucket {
		tier.Algorithm, tier.Burst = throttle.TokenBucket, 5000
	}
	return tier
}

// A follower is a process of a fleet that follows.
type follower struct {
	*throttle.Limiter
	client *http.Client
	rdb    *redis.Client
	store  *distributed.Store
}

// A following fleet has followers that share a server and an API.
type followers struct {
	*testing.T
	server *miniredis.Miniredis
	api    *namingAPI
	all    []follower

	options distributed.Options
}

// join starts a process that sends requests under some tiers.
func (f *followers) join(tiers ...throttle.Tier) follower {
	f.Helper()
	return f.add(distant(f.T, f.server, func() time.Duration { return ms + rand.N(4*ms) }), tiers...)
}

// add is join for a process with a client.
func (f *followers) add(rdb *redis.Client, tiers ...throttle.Tier) follower {
	f.Helper()
	s := distributed.New(rdb, f.options)
	l := limiter(f.T, throttle.Policy{Name: "api", Tiers: tiers, Guard: 200 * ms}, s)
	m := follower{l, nil, rdb, s}
	m.client = &http.Client{Transport: &throttle.Transport{
		Base: f.api, Limiter: l, Profile: namesLimit, Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"requests": points} },
	}}
	f.all = append(f.all, m)
	return m
}

// quiet lets the API name its limit to no process but one.
func (f *followers) quiet(but follower) {
	for _, m := range f.all {
		if m != but {
			m.client.Transport.(*throttle.Transport).Base = quiet{f.api}
		}
	}
}

// followTogether runs a test of a fleet of so many processes under some tiers.
func followTogether(t *testing.T, processes int, api *namingAPI, test func(*followers), tiers ...throttle.Tier) {
	t.Helper()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		f := &followers{T: t, server: s, api: api}
		for range processes {
			f.join(tiers...)
		}
		test(f)
	})
}

// limit returns the limit of the first tier.
func (m follower) limit(t *testing.T) int64 {
	t.Helper()
	s, err := m.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Tiers[0].Limit
}

// checkLimit checks the limit of each process.
func (f *followers) checkLimit(want int64) {
	f.Helper()
	time.Sleep(100 * ms)
	for i, m := range f.all {
		if got := m.limit(f.T); got != want {
			f.Errorf("process %d has the limit %d, want %d", i, got, want)
		}
	}
}

// send lets callers of a process send requests, each one after the other, until the time is over or they would wait
// for longer.
func (m follower) send(ctx context.Context, all *sync.WaitGroup, callers int) {
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/", nil)
				resp, err := m.client.Do(req)
				if err != nil {
					return
				}
				resp.Body.Close()
			}
		})
	}
}

// sendFor lets callers of all processes send requests for some time.
func (f *followers) sendFor(lasts time.Duration, callers int) {
	ctx, cancel := context.WithTimeout(f.Context(), lasts)
	defer cancel()
	var all sync.WaitGroup
	for _, m := range f.all {
		m.send(ctx, &all, callers)
	}
	all.Wait()
}

// raise lets one process receive two responses, the second of which raises its limit.
func (f *followers) raise(m follower) {
	f.Helper()
	get(f.T, m.client)
	get(f.T, m.client)
	time.Sleep(100 * ms)
}

// inBoth runs a test for an API that counts by hours and for one that counts in a bucket.
func inBoth(t *testing.T, test func(t *testing.T, bucket bool)) {
	for name, bucket := range map[string]bool{"fixed window": false, "bucket": true} {
		t.Run(name, func(t *testing.T) { test(t, bucket) })
	}
}

// After two responses that name a higher limit, whichever process of a fleet receives them, all processes
// use it, and nothing is refused.
func TestFleetFollowsHigherLimit(t *testing.T) {
	t.Parallel()
	inBoth(t, func(t *testing.T, bucket bool) {
		api := &namingAPI{bucket: bucket, limit: 15000}
		followTogether(t, 8, api, func(f *followers) {
			f.quiet(f.all[3])
			f.raise(f.all[3])
			f.sendFor(5*time.Minute, 5)
			used, refused := api.since(time.Time{})
			most := int64(15000)
			if bucket {
				most += 15000 * 5 / 60 // which refills meanwhile
			}
			if used < most-points || used > most || refused > 0 {
				f.Errorf("used %d, %d requests refused, want %d and 0", used, refused, most)
			}
		}, following(bucket))
	})
}

// After one response that names a lower limit, all processes of a fleet use no more, and wait while more is
// used already.
func TestFleetFollowsLowerLimit(t *testing.T) {
	soak.Long(t, "fleets that follow for minutes")
	t.Parallel()
	for _, before := range []int64{300, 3000} {
		inBoth(t, func(t *testing.T, bucket bool) {
			api := &namingAPI{bucket: bucket, limit: 15000}
			var lowered atomic.Int64 // when the first response that names the lower limit was there
			api.arrives = func(n int) {
				if n == int(before/points) {
					api.set(1000)
				}
			}
			api.leaves = func(n int) {
				if n > int(before/points) {
					lowered.CompareAndSwap(0, time.Now().UnixMicro())
				}
			}
			followTogether(t, 8, api, func(f *followers) {
				f.quiet(f.all[3])
				f.raise(f.all[3])
				f.sendFor(170*time.Minute, 2)
				used, _ := api.since(time.Time{})
				_, refused := api.since(time.UnixMicro(lowered.Load()).Add(sec / 2))
				least := max(1000, before) + 2000 // in this hour and the next two
				if bucket {
					least = 1000 + 1000*170/60
				}
				const open = 16 * points // on its way when the limit became lower, and charged even if it was refused
				if refused > 0 || used < least-points-open || used > least+open {
					f.Errorf("used %d, %d requests refused, want %d and 0", used, refused, least)
				}
				f.checkLimit(1000)
			}, following(bucket))
		})
	}
}

// A process that only waits is admitted soon after the limit is raised. A process that joins later, in a
// fleet that has followed, starts with its limit. A process that dies with what it has followed leaves it to
// the others.
func TestFleetFollowsWhoeverWaitsJoinsOrDies(t *testing.T) {
	t.Parallel()
	api := &namingAPI{limit: 15000, takes: func() time.Duration { return 10 * sec }}
	followTogether(t, 3, api, func(f *followers) {
		first, waiting := f.all[0], f.all[2]
		var late sync.WaitGroup
		for range 2 {
			late.Go(func() { get(f.T, first.client) })
		}
		time.Sleep(sec)
		if err := f.all[1].WaitN(f.Context(), 5000-2*points); err != nil {
			f.Fatal(err)
		}
		var waited time.Duration
		began := time.Now()
		late.Go(func() {
			if err := waiting.Wait(f.Context()); err != nil {
				f.Error(err)
			}
			waited = time.Since(began)
		})
		late.Wait()
		if waited < 8*sec || waited > 9500*ms {
			f.Errorf("the process that only waits was admitted after %v, want 9 s", waited)
		}
		first.rdb.Close()
		f.all = f.all[1:]
		joined := f.join(following(false))
		if !joined.AllowN(4000) || !joined.AllowN(5000) {
			f.Error("the process that joins has not 9000 left, want more than the limit of its policy")
		}
		f.checkLimit(15000)
	}, following(false))
}

// Redis loses its state: a process that has just started has the limit of its policy, until one that
// remembers what was named calls. Then responses change the limit as before.
func TestFleetFollowsAfterLostState(t *testing.T) {
	t.Parallel()
	api := &namingAPI{limit: 15000}
	followTogether(t, 2, api, func(f *followers) {
		f.raise(f.all[0])
		f.checkLimit(15000)
		f.server.FlushAll()
		fresh := f.join(following(false))
		if got := fresh.limit(f.T); got != 5000 {
			f.Errorf("the process that starts has the limit %d, want 5000", got)
		}
		f.all[0].limit(f.T)
		f.checkLimit(15000)
		api.set(2000)
		get(f.T, fresh.client)
		f.checkLimit(2000)
	}, following(false))
}

// A response to an earlier request changes nothing after a response to a later one, in whatever process.
func TestFleetFollowsLatestRequest(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	api := &namingAPI{limit: 15000, takes: func() time.Duration {
		if slow.Load() {
			return 5 * sec
		}
		return 100 * ms
	}}
	followTogether(t, 2, api, func(f *followers) {
		var late sync.WaitGroup
		slow.Store(true)
		for range 3 {
			late.Go(func() { get(f.T, f.all[0].client) })
		}
		time.Sleep(sec)
		slow.Store(false)
		api.set(1000)
		get(f.T, f.all[1].client)
		late.Wait()
		time.Sleep(sec)
		f.checkLimit(1000)
	}, following(false))
}

// A policy that is set while a limit is followed holds, and what responses name from then on.
func TestFleetFollowsUnderNewPolicy(t *testing.T) {
	t.Parallel()
	api := &namingAPI{limit: 15000}
	followTogether(t, 3, api, func(f *followers) {
		f.raise(f.all[0])
		next := following(false)
		next.Limit = 4000
		for _, m := range f.all {
			m.client.Get("http://api.test/") // whose response comes about when the policy is set
			if err := m.SetPolicy(f.Context(), throttle.Policy{Name: "api", Tiers: []throttle.Tier{next}, Guard: 200 * ms}); err != nil {
				f.Fatal(err)
			}
		}
		time.Sleep(sec)
		f.checkLimit(4000)
		f.raise(f.all[1])
		f.checkLimit(15000)
		if err := f.all[2].Forget(f.Context()); err != nil {
			f.Fatal(err)
		}
		f.checkLimit(4000)
	}, following(false))
}

// What a response names never raises a limit above Most, nor lowers it below Least.
func TestFleetFollowsLiesWithinBounds(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var low, high atomic.Int64
	low.Store(5000)
	lies := []string{"0", "1", "-5", "499", "15001", "999999999999999999", "9223372036854775808", "NaN", "", "5000, 1", "7;w=3600"}
	api := &namingAPI{limit: 15000, lies: func(h http.Header) { h.Set("X-RateLimit-Limit", lies[random.IntN(len(lies))]) }}
	followTogether(t, 8, api, func(f *followers) {
		for i := range 100 {
			m := f.all[i%8]
			m.client.Transport.(*throttle.Transport).Cost = nil // so that the least limit is enough
			get(f.T, m.client)
			got := f.all[(i+3)%8].limit(f.T)
			low.Store(min(low.Load(), got))
			high.Store(max(high.Load(), got))
		}
		if low.Load() != 500 || high.Load() > 15000 {
			f.Errorf("limits were from %d to %d, want 500 to 15000 at most", low.Load(), high.Load())
		}
	}, following(false))
}

// Processes of two releases with other bounds each keep to theirs, and do not exchange limits without end.
func TestFleetFollowsWithinOwnBounds(t *testing.T) {
	t.Parallel()
	api := &namingAPI{limit: 15000}
	followTogether(t, 2, api, func(f *followers) {
		cautious := following(false)
		cautious.Follow.Most = 8000
		careful := f.join(cautious)
		f.raise(f.all[0])
		if got := careful.limit(f.T); got != 8000 {
			f.Errorf("got the limit %d, want 8000", got)
		}
		asked := new(calls.Counter)
		careful.rdb.AddHook(asked)
		f.all[0].rdb.AddHook(asked)
		for range 5 {
			careful.limit(f.T)
			f.all[0].limit(f.T)
		}
		if n := asked.Count(); n > 10 {
			f.Errorf("got %d calls for 10 questions, want 10", n)
		}
		api.set(700)
		get(f.T, careful.client)
		time.Sleep(100 * ms)
		f.checkLimit(700)
	}, following(false))
}

// The reading of the response that changes a limit counts: what others have used is not admitted again.
func TestFleetFollowsWithReading(t *testing.T) {
	t.Parallel()
	api := &namingAPI{limit: 5000}
	followTogether(t, 2, api, func(f *followers) {
		get(f.T, f.all[0].client)
		api.mu.Lock()
		api.limit, api.used = 1000, 900 // most of it by others
		api.mu.Unlock()
		get(f.T, f.all[0].client)
		f.checkLimit(1000)
		if other := f.all[1]; !other.AllowN(50) || other.AllowN(50) {
			f.Error("got another number of points than the 50 that are left")
		}
	}, following(false))
}

// Permits of a concurrency tier stay held while another tier of the plan follows.
func TestFleetFollowsBesideConcurrency(t *testing.T) {
	t.Parallel()
	api := &namingAPI{limit: 15000, takes: func() time.Duration { return 2 * sec }}
	open := throttle.Tier{Limit: 3, Algorithm: throttle.Concurrency, Unit: "calls"}
	followTogether(t, 2, api, func(f *followers) {
		cost := throttle.Cost{"requests": 1, "calls": 1}
		held, err := f.all[1].Acquire(f.Context(), cost)
		if err != nil {
			f.Fatal(err)
		}
		f.raise(f.all[0])
		f.checkLimit(15000)
		for i := range 2 {
			if _, err := f.all[i].Acquire(f.Context(), cost); err != nil {
				f.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(f.Context(), 30*sec) // three leases
		defer cancel()
		if _, err := f.all[0].Acquire(ctx, cost); err == nil {
			f.Error("got a fourth permit, want three at most")
		}
		held.Release()
		if _, err := f.all[0].Acquire(f.Context(), cost); err != nil {
			f.Error(err)
		}
	}, following(false), open)
}

// Nested quotas follow each for themselves, also if one call charges them together.
func TestFleetFollowsNested(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		api := &namingAPI{limit: 15000}
		var outer []*throttle.Limiter
		var clients []*http.Client
		for range 4 {
			own := distributed.New(distant(t, s, func() time.Duration { return 2 * ms }), distributed.Options{Prefix: "{t}:"})
			around := limiter(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{following(false)}, Guard: 200 * ms}, own)
			inner := limiter(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{{Limit: 100, Window: sec, Unit: "calls"}}, Guard: 200 * ms}, own)
			outer = append(outer, around)
			clients = append(clients, &http.Client{Transport: &throttle.Transport{
				Base: api, Limiter: inner.Within(around), Profile: namesLimit,
				Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"requests": points, "calls": 1} },
			}})
		}
		for range 2 {
			get(t, clients[0])
		}
		time.Sleep(100 * ms)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for _, c := range clients {
			follower{client: c}.send(ctx, &all, 4)
		}
		all.Wait()
		if used, refused := api.since(time.Time{}); used != 15000 || refused > 0 {
			t.Errorf("used %d, %d requests refused, want 15000 and 0", used, refused)
		}
		for _, l := range outer {
			if s, err := l.Status(t.Context()); err != nil || s.Tiers[0].Limit != 15000 {
				t.Errorf("got %v, %v, want the limit 15000", s, err)
			}
		}
	})
}

// A losesCalls is a hook that loses the replies to calls of scripts, and none of those that a new connection
// begins with.
type losesCalls struct{ loses }

func (l *losesCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	loses := l.loses.ProcessHook(next)
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			return loses(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

func (l *losesCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Lost replies, also those with the limits of others, delay what a fleet follows and do no harm.
func TestFleetFollowsDespiteLostReplies(t *testing.T) {
	t.Parallel()
	api := &namingAPI{limit: 15000}
	followTogether(t, 4, api, func(f *followers) {
		f.raise(f.all[0])
		var lost losesCalls
		for _, m := range f.all {
			m.rdb.AddHook(&lost)
		}
		ask := func() {
			for i := range 12 {
				for j, m := range f.all {
					lost.on.Store((i+j)%3 == 0)
					if _, err := m.Status(f.Context()); err != nil && !errors.Is(err, throttle.ErrUnavailable) {
						f.Error(err)
					}
					time.Sleep(sec)
				}
			}
		}
		ask()
		api.set(1000)
		lost.on.Store(false)
		time.AfterFunc(20*ms, func() { lost.on.Store(true) }) // the reply to the call after the response
		get(f.T, f.all[1].client)
		ask()
		lost.on.Store(false)
		f.checkLimit(1000)
	}, following(false))
}

// A history is when an API had which limit.
type history []era

// An era is the time of one limit.
type era struct {
	from  time.Time
	limit int64
	told  time.Time // when the first response of the era was there; zero if none was
}

// of returns the era of an instant.
func (h history) of(at time.Time) era {
	i := len(h) - 1
	for at.Before(h[i].from) {
		i--
	}
	return h[i]
}

// Whatever limits an API has, and whenever they change, nothing is refused that is sent half a second after
// the first response that names a limit, but for a probe after each refusal before, and nearly all of each hour
// of one limit is used where each response names it.
func TestFleetFollowsRandomly(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	for seed := range uint64(soak.Times(8)) {
		random := rand.New(rand.NewPCG(seed, 1))
		var mu sync.Mutex // guards random, eras and first
		var eras history
		first := 0 // the requests before the present era
		api := new(namingAPI)
		change := func(n int) {
			limit := 500 + points*random.Int64N(1+14500/points)
			api.set(limit)
			eras, first = append(eras, era{from: time.Now(), limit: limit}), n
		}
		api.takes = func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return 20*ms + time.Duration(random.Int64N(int64(200*ms)))
		}
		api.arrives = func(n int) {
			mu.Lock()
			defer mu.Unlock()
			// Of two responses that tell of different limits, the later one must be to the later request.
			if told := eras[len(eras)-1].told; random.IntN(80) == 0 && !told.IsZero() && time.Since(told) > sec {
				change(n)
			}
		}
		api.leaves = func(n int) {
			mu.Lock()
			defer mu.Unlock()
			if last := &eras[len(eras)-1]; n > first && last.told.IsZero() {
				last.told = time.Now()
			}
		}
		followTogether(t, 2+int(seed%4), api, func(f *followers) {
			change(0)
			if seed%2 == 1 {
				f.quiet(f.all[0])
			}
			began := time.Now()
			f.sendFor(5*hour-sec, 1+random.IntN(3))
			eras.check(f, seed, began)
		}, following(false))
	}
}

// check checks what was sent.
func (h history) check(f *followers, seed uint64, began time.Time) {
	used := make(map[time.Time]int64) // by hour
	probes := make(map[time.Time]int) // that may be refused, by the beginning of the era
	for _, s := range f.api.sent {
		if e := h.of(s.at); !s.refused {
			used[s.at.Truncate(hour)] += points
		} else if e.told.IsZero() || s.at.Sub(e.told) <= sec/2 {
			probes[e.from]++
		} else if probes[e.from]--; probes[e.from] < 0 {
			f.Errorf("seed %d: a request is refused at %v, %v after a response has named %d", seed, s.at, s.at.Sub(e.told), e.limit)
		}
	}
	for i := range 5 {
		from := began.Add(time.Duration(i) * hour)
		e := h.of(from)
		if e == h.of(from.Add(hour-1)) && seed%2 == 0 && used[from] < e.limit*9/10-points {
			f.Errorf("seed %d: %d are used in an hour of %d", seed, used[from], e.limit)
		}
	}
}

// A server with functions runs what follows, too: a process takes over a limit with its next call, and one
// that waits takes it over because of a message.
func TestServerFollows(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	api := &namingAPI{bucket: true, limit: 15000, takes: func() time.Duration { return 2 * ms }}
	f := &followers{T: t, api: api, options: distributed.Options{Timeout: slow}}
	for range 3 {
		f.add(s.PatientClient(), following(true))
	}
	waiting := f.all[2]
	if err := waiting.WaitN(t.Context(), 5000-3*points); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- waiting.WaitN(t.Context(), 1000) }()
	waitUntil(t, "the process waits", func() bool {
		s, err := waiting.Status(t.Context())
		return err == nil && s.Waiting > 0
	})
	f.raise(f.all[0])
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	f.checkLimit(15000)
	api.set(1000)
	get(t, f.all[1].client)
	f.checkLimit(1000)
}

// A quota that is opened with the policy of one that has followed has the same limits at once, and one with
// another policy has its own.
func TestFollowedQuotaOpensAgain(t *testing.T) {
	followTogether(t, 1, &namingAPI{limit: 15000}, func(f *followers) {
		f.raise(f.all[0])
		for limit, want := range map[int64]int64{5000: 15000, 4000: 4000} {
			tier := following(false)
			tier.Limit = limit
			q := quota(f.T, f.all[0].store, "api", plan(f.T, 200*ms, tier))
			if _, p := q.(store.Lifecycle).Successor(); p.Tiers()[0].Limit != want {
				f.Errorf("%v opens with the limit %d, want %d", tier, p.Tiers()[0].Limit, want)
			}
			q.Close()
		}
	}, following(false))
}
