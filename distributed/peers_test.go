package distributed_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/redistest"
)

// The tests here are named after failures of other limiters that were reproduced one by one, as in
// the root package. Each comment describes the failure.

// exact returns a policy without a guard: requests arrive when they are admitted.
func exact(tiers ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Name: "exact", Tiers: tiers, Guard: throttle.NoGuard}
}

// bubble runs a test in virtual time beside a server in memory. A reply takes half a millisecond,
// whatever the scheduler does.
func bubble(t *testing.T, test func(*testing.T, *miniredis.Miniredis)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := redismem.New()
		t.Cleanup(s.Close)
		test(t, s)
	})
}

// loading is the error of a server that is not ready yet.
const loading = "LOADING Redis is loading the dataset in memory"

// breakable returns a function that lets a server reply an error to every command, until its text is
// empty. The server keeps its scripts meanwhile, but not those from before.
func breakable(s *miniredis.Miniredis) (reply func(text string)) {
	var broken atomic.Value
	broken.Store("")
	redismem.Hook(s, func(c *server.Peer, _ string, _ ...string) bool {
		text := broken.Load().(string)
		if text != "" {
			c.WriteError(text)
		}
		return text != ""
	})
	return func(text string) { broken.Store(text) }
}

// near returns a client of the server in a bubble, half a millisecond away.
func near(t *testing.T, s *miniredis.Miniredis) *redis.Client {
	t.Helper()
	return distant(t, s, func() time.Duration { return ms / 2 })
}

// distant returns a client of the server in a bubble. Its commands take delay to reach the server.
func distant(t *testing.T, s *miniredis.Miniredis, delay func() time.Duration) *redis.Client {
	t.Helper()
	rdb := redismem.Dial(s, delay)
	t.Cleanup(func() {
		time.Sleep(6 * sec) // a subscription stays open for five seconds
		rdb.Close()
	})
	return rdb
}

// runInMemory runs a test in virtual time with one limiter. The function set sets the clock of the
// server.
func runInMemory(t *testing.T, p throttle.Policy, test func(t *testing.T, l *throttle.Limiter, set func(time.Time))) {
	t.Helper()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		s.SetTime(beginning)
		test(t, limiter(t, p, distributed.New(near(t, s), distributed.Options{})), s.SetTime)
	})
}

// beginning is an instant at which a window of any whole number of seconds begins.
var beginning = time.Unix(1_800_000_000, 0)

func tierStatus(t *testing.T, l *throttle.Limiter, tier int) throttle.TierStatus {
	t.Helper()
	s, err := l.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s.Tiers[tier]
}

var rolling = []throttle.Algorithm{throttle.SlidingLog, throttle.WeightedWindow, throttle.FixedWindow, throttle.AnchoredWindow,
	throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA}

// redis_rate returns a time to retry for a cost above the burst, again and again.
func TestPeersNeverIsAnError(t *testing.T) {
	tier := throttle.Tier{Limit: 10, Window: sec, Algorithm: throttle.GCRA, Burst: 20}
	runInMemory(t, exact(tier), func(t *testing.T, l *throttle.Limiter, _ func(time.Time)) {
		checkRefusal(t, l.WaitN(context.Background(), 200), throttle.ErrExceedsCapacity, 0)
		if l.AllowN(200) {
			t.Error("got AllowN(200) = true, want false")
		}
		if !l.AllowN(20) {
			t.Error("got AllowN(20) = false, want true: refusals must not be charged")
		}
	})
}

// redis_rate is a bucket whose burst is the limit. With "20 per 2 s" it admitted 39 requests in the
// first 1.99 s.
func TestPeersAWindowIsAWindow(t *testing.T) {
	t.Parallel()
	runInMemory(t, exact(per(2*sec, 20, throttle.SlidingLog)), func(t *testing.T, l *throttle.Limiter, set func(time.Time)) {
		admitted := 0
		for d := time.Duration(0); d < 1990*ms; d += 10 * ms {
			set(beginning.Add(d))
			if l.Allow() {
				admitted++
			}
		}
		if admitted != 20 {
			t.Errorf("got %d admitted in 1.99 s, want 20", admitted)
		}
		if set(beginning.Add(2 * sec)); !l.Allow() {
			t.Error("got Allow = false after two seconds, want true")
		}
	})
}

// redis_rate has callers retry. 100 callers at 20 a second made 49.8 calls for each admission, and
// were admitted in random order.
func TestPeersCallsPerAdmission(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		const callers = 100
		tier := throttle.Tier{Limit: 50, Window: sec, Algorithm: throttle.TokenBucket, Burst: 10}
		rdb, asked := near(t, s), new(calls.Counter)
		rdb.AddHook(asked)
		p := policy(tier)
		p.Name = "fleet"
		l := limiter(t, p, distributed.New(rdb, distributed.Options{}))
		var mu sync.Mutex
		var all []event
		var wg sync.WaitGroup
		for range callers {
			e := event{Asked: time.Now().UnixMicro(), Cost: 1}
			wg.Go(func() {
				if err := l.Wait(context.Background()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				e.At = time.Now().UnixMicro()
				all = append(all, e)
			})
			time.Sleep(2 * ms)
		}
		wg.Wait()
		checkBound(t, all, tier)
		checkOrder(t, all)
		if n := asked.Count(); n > 2*callers {
			t.Errorf("got %d calls for %d admissions, want %d at most", n, callers, 2*callers)
		}
	})
}

// throttled compares and sets from the client. Of 1,000 calls from 200 goroutines with quota to
// spare, 536 failed.
func TestPeersNoErrorsInACrowd(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := policy(per(hour, 10000, throttle.SlidingLog))
	p.Guard = slow
	l := open(t, s, p)
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			for range 5 {
				if err := l.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if s := tierStatus(t, l, 0); s.Used < 1000 { // more if this machine is slower than the guard
		t.Errorf("got %d charged, want 1000 at least", s.Used)
	}
}

// go-redisstore rounds the expiry of its keys to seconds. A window of half a second became zero,
// the key was deleted, and all 1,000 calls were admitted.
func TestPeersHalfASecond(t *testing.T) {
	t.Parallel()
	for _, a := range append(rolling, throttle.SlidingWindow) {
		runInMemory(t, exact(per(500*ms, 5, a)), func(t *testing.T, l *throttle.Limiter, _ func(time.Time)) {
			admitted := 0
			for range 30 {
				if l.Allow() {
					admitted++
				}
			}
			if admitted != 5 {
				t.Errorf("%v: got %d of 30 admitted at once, want 5", a, admitted)
			}
		})
	}
}

// The script of gofr rounds the refill since the last call down to zero and restarts the interval.
// A bucket that was polled faster than it refills never refilled. Here polling and reading the
// status change nothing: each poll gets the answer that the definition of the algorithm gives.
func TestPeersPolledFasterThanItRefills(t *testing.T) {
	t.Parallel()
	for _, a := range rolling {
		tier := per(sec, 7, a)
		runInMemory(t, exact(tier), func(t *testing.T, l *throttle.Limiter, set func(time.Time)) {
			provider, admitted := counter(t, tier), 0
			for d := time.Duration(0); d < 2*sec; d += 41_777 * time.Microsecond {
				now := beginning.Add(d)
				set(now)
				tierStatus(t, l, 0)
				got, want := l.Allow(), provider.Arrive(now.UnixMicro(), nil)
				if got != want {
					t.Fatalf("%v after %v: got Allow = %v, want %v", a, d, got, want)
				}
				if got {
					admitted++
				}
			}
			if admitted < 11 || admitted > 21 {
				t.Errorf("%v: got %d admitted in two seconds, want 11 to 21", a, admitted)
			}
		})
	}
}

// valkeylimiter counts denials, and takes the time from its clients. A client whose clock was 61 s
// ahead reset the window for all.
func TestPeersDenialsAndClientClocks(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		s.SetTime(beginning)
		p := exact(throttle.PerMinute(5))
		l := limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
		if !l.AllowN(5) {
			t.Fatal("got a refusal by a new quota")
		}
		s.SetTime(beginning.Add(59 * sec))
		checkDenied := func(who string, l *throttle.Limiter) {
			for range 100 {
				if l.Allow() {
					t.Errorf("%s: got Allow = true, want false", who)
				}
			}
		}
		checkDenied("the same client", l)
		time.Sleep(61 * sec) // of the client's clock
		checkDenied("a client whose clock is ahead", l)
		checkDenied("another client", limiter(t, p, distributed.New(near(t, s), distributed.Options{})))
		if s.SetTime(beginning.Add(60 * sec)); !l.AllowN(5) || l.Allow() {
			t.Error("after a minute: want exactly 5 allowed")
		}
	})
}

// httpthrottle asks one limiter after the other. Refusals by the second cost nearly 1,000 tokens of
// the first.
func TestPeersRefusalsBurnNothing(t *testing.T) {
	for _, strict := range []int{0, 1} {
		tiers := []throttle.Tier{per(24*hour, 1000, throttle.TokenBucket), per(24*hour, 1000, throttle.TokenBucket)}
		tiers[strict] = throttle.PerMinute(1)
		runInMemory(t, exact(tiers...), func(t *testing.T, l *throttle.Limiter, _ func(time.Time)) {
			if !l.Allow() {
				t.Fatal("got the first request refused")
			}
			var wg sync.WaitGroup
			var admitted atomic.Int64
			for range 10 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), sec)
					defer cancel()
					if err := l.Wait(ctx); !errors.Is(err, throttle.ErrDeadline) {
						t.Errorf("got %v, want ErrDeadline", err)
					}
					for range 50 {
						if l.Allow() {
							admitted.Add(1)
						}
					}
				})
			}
			wg.Wait()
			if n := admitted.Load(); n > 0 {
				t.Errorf("got %d more admitted within a minute, want none", n)
			}
			if s := tierStatus(t, l, 1-strict); s.Used != 1 {
				t.Errorf("other tier (%v): got %d used, want 1", s.Tier, s.Used)
			}
		})
	}
}
