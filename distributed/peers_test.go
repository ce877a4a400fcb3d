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
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/redistest"
)

// The tests here are named after failures of other limiters that were reproduced,
// one by one, as those of the root package are. Each comment says what happened there.

// exact is a policy whose requests arrive when they are admitted.
func exact(tiers ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Name: "exact", Tiers: tiers, Guard: throttle.NoGuard}
}

// bubble runs a test in virtual time beside a server in memory, from which a reply takes
// half a millisecond whatever the scheduler does.
func bubble(t *testing.T, test func(*testing.T, *miniredis.Miniredis)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := redismem.New()
		t.Cleanup(s.Close)
		test(t, s)
	})
}

// near is a client of the server in a bubble, half a millisecond away.
func near(t *testing.T, s *miniredis.Miniredis) *redis.Client {
	t.Helper()
	return distant(t, s, func() time.Duration { return ms / 2 })
}

// distant is a client of the server in a bubble whose commands take so long to get there.
func distant(t *testing.T, s *miniredis.Miniredis, delay func() time.Duration) *redis.Client {
	t.Helper()
	rdb := redismem.Dial(s, delay)
	t.Cleanup(func() {
		time.Sleep(6 * sec) // a listener lingers for five
		rdb.Close()
	})
	return rdb
}

// inMemory runs a test in virtual time with a limiter, whose server has the clock that set sets.
func inMemory(t *testing.T, p throttle.Policy, test func(t *testing.T, l *throttle.Limiter, set func(time.Time))) {
	t.Helper()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		s.SetTime(beginning)
		test(t, limiter(t, p, distributed.New(near(t, s), distributed.Options{})), s.SetTime)
	})
}

// beginning is when a window of any whole second begins.
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

// redis_rate names a time to retry for a cost above the burst, again and again.
func TestPeersRow07NeverIsAnError(t *testing.T) {
	tier := throttle.Tier{Limit: 10, Window: sec, Algorithm: throttle.GCRA, Burst: 20}
	inMemory(t, exact(tier), func(t *testing.T, l *throttle.Limiter, _ func(time.Time)) {
		refused(t, l.WaitN(context.Background(), 200), throttle.ErrExceedsCapacity, 0)
		if l.AllowN(200) {
			t.Error("AllowN(200) is true")
		}
		if !l.AllowN(20) {
			t.Error("the refusals were charged")
		}
	})
}

// redis_rate is a bucket whose burst is the limit: of "20 per 2 s" it admitted 39 in
// the first 1.99 s.
func TestPeersRow08AWindowIsAWindow(t *testing.T) {
	t.Parallel()
	inMemory(t, exact(per(2*sec, 20, throttle.SlidingLog)), func(t *testing.T, l *throttle.Limiter, set func(time.Time)) {
		admitted := 0
		for d := time.Duration(0); d < 1990*ms; d += 10 * ms {
			set(beginning.Add(d))
			if l.Allow() {
				admitted++
			}
		}
		if admitted != 20 {
			t.Errorf("%d in 1.99 s, want 20", admitted)
		}
		if set(beginning.Add(2 * sec)); !l.Allow() {
			t.Error("none after two seconds")
		}
	})
}

// redis_rate tells callers to come again: 100 of them at 20 a second made 49.8 calls
// for each admission, and were admitted in any order.
func TestPeersRow09CallsPerAdmission(t *testing.T) {
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
			e := event{Came: time.Now().UnixMicro(), Cost: 1}
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
			t.Errorf("%d calls for %d admissions", n, callers)
		}
	})
}

// throttled compares and sets from the client: of 1,000 calls from 200 goroutines
// with quota to spare 536 failed.
func TestPeersRow10NoErrorsInACrowd(t *testing.T) {
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
	if s := tierStatus(t, l, 0); s.Used < 1000 { // more if this machine was slower than the guard
		t.Errorf("%d are charged, want 1000", s.Used)
	}
}

// go-redisstore rounds the life of its keys to seconds: a window of half a second
// became none, the key was deleted and all of 1,000 calls were admitted.
func TestPeersRow11HalfASecond(t *testing.T) {
	t.Parallel()
	for _, a := range append(rolling, throttle.SlidingWindow) {
		inMemory(t, exact(per(500*ms, 5, a)), func(t *testing.T, l *throttle.Limiter, _ func(time.Time)) {
			admitted := 0
			for range 30 {
				if l.Allow() {
					admitted++
				}
			}
			if admitted != 5 {
				t.Errorf("%v: %d of 30 are admitted at once", a, admitted)
			}
		})
	}
}

// The script of gofr rounds what was gained since the last call down to nothing and
// starts counting anew: polled faster than it refills, it never did. Here polling,
// refused or not, and reading the status change nothing: every poll gets the answer
// that the definition of the algorithm gives.
func TestPeersRow12PolledFasterThanItRefills(t *testing.T) {
	t.Parallel()
	for _, a := range rolling {
		tier := per(sec, 7, a)
		inMemory(t, exact(tier), func(t *testing.T, l *throttle.Limiter, set func(time.Time)) {
			provider, admitted := counter(t, tier), 0
			for d := time.Duration(0); d < 2*sec; d += 41_777 * time.Microsecond {
				now := beginning.Add(d)
				set(now)
				tierStatus(t, l, 0)
				got, want := l.Allow(), provider.Arrive(now.UnixMicro(), nil)
				if got != want {
					t.Fatalf("%v: Allow() = %v after %v, want %v", a, got, d, want)
				}
				if got {
					admitted++
				}
			}
			if admitted < 11 || admitted > 21 {
				t.Errorf("%v: %d in two seconds", a, admitted)
			}
		})
	}
}

// valkeylimiter counts denials, and takes the time from its clients: one whose clock
// was 61 s ahead reset the window for all.
func TestPeersRow13DenialsAndClientClocks(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		s.SetTime(beginning)
		p := exact(throttle.PerMinute(5))
		l := limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
		if !l.AllowN(5) {
			t.Fatal("a fresh quota refuses")
		}
		s.SetTime(beginning.Add(59 * sec))
		denied := func(who string, l *throttle.Limiter) {
			for range 100 {
				if l.Allow() {
					t.Errorf("%s is admitted", who)
				}
			}
		}
		denied("one more", l)
		time.Sleep(61 * sec) // of the client's clock
		denied("a client whose clock is ahead", l)
		denied("another", limiter(t, p, distributed.New(near(t, s), distributed.Options{})))
		if s.SetTime(beginning.Add(60 * sec)); !l.AllowN(5) || l.Allow() {
			t.Error("not 5 after a minute")
		}
	})
}

// httpthrottle asks one limiter after the other: nearly 1,000 tokens of the first
// were gone for refusals by the second.
func TestPeersRow14RefusalsBurnNothing(t *testing.T) {
	for _, strict := range []int{0, 1} {
		tiers := []throttle.Tier{per(24*hour, 1000, throttle.TokenBucket), per(24*hour, 1000, throttle.TokenBucket)}
		tiers[strict] = throttle.PerMinute(1)
		inMemory(t, exact(tiers...), func(t *testing.T, l *throttle.Limiter, _ func(time.Time)) {
			if !l.Allow() {
				t.Fatal("the first is refused")
			}
			var wg sync.WaitGroup
			var admitted atomic.Int64
			for range 10 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), sec)
					defer cancel()
					if err := l.Wait(ctx); !errors.Is(err, throttle.ErrDeadline) {
						t.Errorf("%v, want ErrDeadline", err)
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
				t.Errorf("%d more within a minute", n)
			}
			if s := tierStatus(t, l, 1-strict); s.Used != 1 {
				t.Errorf("the other tier (%v) has lost %d, want 1", s.Tier, s.Used)
			}
		})
	}
}
