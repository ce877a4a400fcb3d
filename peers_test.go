package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// The tests here are named after failures of other limiters that were reproduced,
// one by one. Each comment says what happened there.

// spaced is 10 a second, one every 100 ms.
func spaced(a throttle.Algorithm) throttle.Policy {
	return exact(throttle.Tier{Limit: 10, Window: sec, Algorithm: a, Burst: 1})
}

// queueThenCancel uses the quota up, lets 100 callers queue, cancels them all
// after 50 ms and returns when the next is admitted, after the start.
func queueThenCancel(t *testing.T, p throttle.Policy, wait func(*throttle.Limiter, context.Context) error) (next time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		l, start := limiter(t, p, nil), time.Now()
		for l.Allow() {
		}
		ctx, cancel := context.WithCancel(context.Background())
		for range 100 {
			go func() {
				if err := wait(l, ctx); err != context.Canceled {
					t.Errorf("a canceled caller got %v", err)
				}
			}()
		}
		time.Sleep(50 * ms)
		cancel()
		if err := wait(l, context.Background()); err != nil {
			t.Error(err)
		}
		next = time.Since(start)
	})
	return next
}

// x/time/rate lets waiters take tokens ahead of time. Those of 100 canceled ones
// were mostly not given back: the next caller waited for more than 6 seconds
// instead of a tenth of one.
func TestPeersRow01CanceledWaiters(t *testing.T) {
	for _, a := range []throttle.Algorithm{throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA} {
		if next := queueThenCancel(t, spaced(a), (*throttle.Limiter).Wait); next != 100*ms {
			t.Errorf("%v: the next is admitted after %v, want 100ms, as if they had never come", a, next)
		}
	}
}

// x/time/rate gives a canceled reservation back less what was reserved after it:
// of 99 nearly all were lost, in whatever order they were canceled.
func TestPeersRow02CanceledReservations(t *testing.T) {
	for _, order := range []string{"oldest first", "newest first"} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, throttle.Policy{Tiers: []throttle.Tier{per(10*sec, 100, throttle.TokenBucket)}}, nil)
			acquire(t, l, nil).Arrived()
			var permits []*throttle.Permit
			for range 99 {
				permits = append(permits, acquire(t, l, nil))
			}
			for i := range permits {
				if order == "newest first" {
					i = len(permits) - 1 - i
				}
				if err := permits[i].Cancel(context.Background()); err != nil {
					t.Error(err)
				}
			}
			if s := status(t, l).Tiers[0]; s.Remaining != 99 {
				t.Errorf("%s: %d remain, want 99", order, s.Remaining)
			}
			if !l.AllowN(99) || l.Allow() {
				t.Errorf("%s: not the 99 that were given back are admitted", order)
			}
		})
	}
}

// worst asks every 10 ms for as long as said and returns the most admissions in
// any rolling window.
func worst(t *testing.T, tier throttle.Tier, idle []time.Duration, long time.Duration) (most int64) {
	synctest.Test(t, func(t *testing.T) {
		l, seen := limiter(t, exact(tier), nil), counter(t)
		for _, d := range idle {
			time.Sleep(d)
			for start := time.Now(); time.Since(start) < long; time.Sleep(10 * ms) {
				for l.Allow() {
					seen.Arrive(time.Now().UnixMicro(), nil)
				}
			}
		}
		most = seen.WorstRolling(tier.Window)
	})
	return most
}

// "60 per minute" with a burst of 60 is a bucket to x/time/rate: it sends 60 at
// once and nearly 60 more within the same minute. Here that is a tier of its own
// name, and the default is the rolling window.
func TestPeersRow03RollingMinute(t *testing.T) {
	if most := worst(t, throttle.PerMinute(60), []time.Duration{0}, 5*time.Minute); most != 60 {
		t.Errorf("%d in one rolling minute, want 60", most)
	}
	if most := worst(t, per(time.Minute, 60, throttle.TokenBucket), []time.Duration{0}, 5*time.Minute); most != 119 {
		t.Errorf("%d of a declared bucket in one rolling minute, want 119", most)
	}
}

// x/time/rate takes the caller's time stamps as they come, and one from the past
// turns its clock back: 19 were admitted in 100 ms. Here the quota reads the clock
// itself, under its lock: a bucket of 10 gains one more in that time.
func TestPeersRow04ClockReadUnderTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, exact(per(sec, 10, throttle.TokenBucket)), nil)
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				for range 51 {
					if l.Allow() {
						admitted.Add(1)
					}
					time.Sleep(2 * ms)
				}
			})
		}
		wg.Wait()
		if n := admitted.Load(); n != 11 {
			t.Errorf("%d in 100 ms and a little, want 11", n)
		}
	})
}

// failsafe-go keeps the seats of canceled callers: after 100 of them the next
// waited for all their turns, 9.95 seconds.
func TestPeersRow05CanceledAcquires(t *testing.T) {
	next := queueThenCancel(t, spaced(throttle.GCRA), func(l *throttle.Limiter, ctx context.Context) error {
		_, err := l.Acquire(ctx, nil)
		return err
	})
	if next != 100*ms {
		t.Errorf("the next is admitted after %v, want 100ms", next)
	}
}

// failsafe-go's bursty limiter counts by aligned windows: 10 a second became 20
// around a boundary, and after an idle spell 57 in one second.
func TestPeersRow06BoundaryAndIdle(t *testing.T) {
	idle := []time.Duration{990 * ms, 7 * sec, 500 * ms, 5990 * ms, 100 * sec}
	if most := worst(t, throttle.PerSecond(10), idle, 150*ms); most != 10 {
		t.Errorf("%d within one second, want 10", most)
	}
}

// redis_rate names a time to retry for a cost above the burst, again and again.
func TestPeersRow07NeverIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, exact(throttle.Tier{Limit: 10, Window: sec, Algorithm: throttle.GCRA, Burst: 20}), nil)
		start := time.Now()
		err := l.WaitN(context.Background(), 200)
		var w *throttle.WaitError
		if !errors.Is(err, throttle.ErrExceedsCapacity) || !errors.As(err, &w) || w.Wait != 0 || time.Since(start) != 0 {
			t.Errorf("WaitN(200): %v after %v, want ErrExceedsCapacity at once, without a wait", err, time.Since(start))
		}
		if l.AllowN(200) {
			t.Error("AllowN(200) is true")
		}
		if !l.AllowN(20) {
			t.Error("the refusals were charged")
		}
	})
}

// go-redisstore rounds the life of its keys to seconds: a window of half a second
// became none, the key was deleted and all of 1,000 calls were admitted.
func TestPeersRow11HalfASecond(t *testing.T) {
	for _, a := range append(counters, throttle.SlidingWindow) {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, exact(per(500*ms, 5, a)), nil)
			admitted := 0
			for range 1000 {
				if l.Allow() {
					admitted++
				}
			}
			if admitted != 5 {
				t.Errorf("%v: %d of 1000 are admitted, want 5", a, admitted)
			}
		})
	}
}

// The script of gofr rounds what was gained since the last call down to nothing
// and starts counting anew: polled faster than it refills, it never did. Here
// polling, refused or not, and reading the status change nothing: every poll gets
// the answer that the definition of the algorithm gives.
func TestPeersRow12PolledFasterThanItRefills(t *testing.T) {
	for _, a := range counters {
		synctest.Test(t, func(t *testing.T) {
			tier := per(sec, 7, a)
			l, provider, start := limiter(t, exact(tier), nil), counter(t, tier), time.Now()
			admitted := 0
			for ; time.Since(start) < 10*sec && !t.Failed(); time.Sleep(777 * time.Microsecond) {
				status(t, l)
				got, want := l.Allow(), provider.Arrive(time.Now().UnixMicro(), nil)
				if got != want {
					t.Errorf("%v: Allow() = %v after %v, want %v", a, got, time.Since(start), want)
				}
				if got {
					admitted++
				}
			}
			if admitted < 60 || admitted > 77 {
				t.Errorf("%v: %d in ten seconds", a, admitted)
			}
		})
	}
}

// httpthrottle asks one limiter after the other: nearly 1,000 tokens of the first
// were gone for refusals by the second.
func TestPeersRow14RefusalsBurnNothing(t *testing.T) {
	for _, strict := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			tiers := []throttle.Tier{per(24*hour, 1000, throttle.TokenBucket), per(24*hour, 1000, throttle.TokenBucket)}
			tiers[strict] = throttle.PerMinute(1)
			l := limiter(t, exact(tiers...), nil)
			if !l.Allow() {
				t.Fatal("the first is refused")
			}
			for range 1000 {
				if l.Allow() {
					t.Fatal("two within a minute")
				}
			}
			if s := status(t, l).Tiers[1-strict]; s.Used != 1 {
				t.Errorf("the other tier (%v) has lost %d, want 1", s.Tier, s.Used)
			}
		})
	}
}

// hostrate drops limiters that were idle for a while, even while callers queue on
// them; the next request got a fresh one, and 10 went out where 3 were allowed.
func TestPeersRow15EvictionKeepsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := throttle.NewGroup(exact(throttle.PerHour(3)), nil)
		if err != nil {
			t.Fatal(err)
		}
		g.MaxKeys = 20
		var sent atomic.Int64
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if g.For("a").Wait(ctx) == nil {
					sent.Add(1)
				}
			})
		}
		synctest.Wait()
		if !g.For("b").Allow() { // charged, and then held by nobody
			t.Error("b is refused")
		}
		crowd := func() { // 1,000 keys that nobody keeps
			for i := range 1000 {
				g.For(fmt.Sprint("key ", i)).Status(ctx)
				if i%10 == 0 {
					runtime.GC() // so that those are known to be held by nobody
				}
			}
		}
		crowd()
		if n := g.Len(); n > g.MaxKeys {
			t.Errorf("%d keys, want %d at most", n, g.MaxKeys)
		}
		if g.For("a").Allow() || sent.Load() != 3 {
			t.Errorf("%d were sent, or more; want 3", sent.Load())
		}
		if w := status(t, g.For("a")).Waiting; w != 7 {
			t.Errorf("%d wait, want 7", w)
		}
		if s := status(t, g.For("b")).Tiers[0]; s.Used != 1 {
			t.Errorf("b has forgotten: %d used, want 1", s.Used)
		}

		time.Sleep(hour)
		synctest.Wait()
		cancel()
		wg.Wait()
		if sent.Load() != 6 {
			t.Errorf("%d were sent in an hour and the instant after, want 6", sent.Load())
		}
	})
}

// uber's ratelimit lends what was not used: New(10) sent 11 at once after two idle
// seconds. Here it is never above what the tier says.
func TestPeersRow17BurstAfterIdle(t *testing.T) {
	for _, test := range []struct {
		policy throttle.Policy
		want   int
	}{
		{exact(throttle.PerSecond(10)), 10},
		{exact(per(sec, 10, throttle.TokenBucket)), 10},
		{spaced(throttle.GCRA), 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, test.policy, nil)
			for _, idle := range []time.Duration{0, 2 * sec, hour} {
				time.Sleep(idle)
				burst := 0
				for l.Allow() {
					burst++
				}
				if burst != test.want {
					t.Errorf("%v: %d at once after %v, want %d", test.policy, burst, idle, test.want)
				}
			}
		})
	}
}

// The formula of mennanov's limiter loses most of a large product: one hour into a
// window of 30 days, 10,000 requests of the window before weighed 2,869.
//
// What is right: 719 of the 720 hours are still in view, so that they weigh
// 10,000 × 719 ÷ 720 = 9,986 1/9. That leaves 13 8/9, or 13 whole requests. The
// 14th needs a weight of 9,986, that is 9,986/10,000 of the window in view: it
// has to wait until 14/10,000 of 30 days have passed, 3,628.8 seconds.
func TestPeersRow18WeightedMonth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const month = 30 * 24 * hour
		l := limiter(t, exact(per(month, 10_000, throttle.WeightedWindow)), nil)
		if !l.AllowN(10_000) {
			t.Fatal("a fresh window refuses its limit")
		}
		begins := time.UnixMicro(0).Add(time.Since(time.UnixMicro(0)).Truncate(month) + month)
		time.Sleep(time.Until(begins.Add(hour)))
		if s := status(t, l).Tiers[0]; s.Used != 9987 || s.Remaining != 13 {
			t.Errorf("used %d, remaining %d; want 9987 (rounded up) and 13", s.Used, s.Remaining)
		}
		if !l.AllowN(13) || l.Allow() {
			t.Error("not 13 are admitted")
		}
		if err := l.Wait(context.Background()); err != nil || time.Since(begins) != 3628800*ms {
			t.Errorf("the 14th is admitted %v into the window, %v; want 3628.8s", time.Since(begins), err)
		}
	})
}

// go-limiter divides the second by the rate the wrong way round: of 100,000 a
// second it refilled 10,000.
func TestPeersRow19LargeRates(t *testing.T) {
	for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.FixedWindow, throttle.AnchoredWindow,
		throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, exact(per(sec, 100_000, a)), nil)
			for second := range 3 {
				if !l.AllowN(100_000) || l.Allow() {
					t.Errorf("%v: not 100,000 in second %d", a, second)
				}
				time.Sleep(sec)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, exact(per(sec, 100_000, throttle.TokenBucket)), nil)
		l.AllowN(100_000)
		for i := range 1000 {
			time.Sleep(10 * time.Microsecond)
			if !l.Allow() || l.Allow() {
				t.Fatalf("not one after %d × 10 µs", i+1)
			}
		}
	})
}

// x/time/rate makes a small request wait behind a large one, without saying so.
// That is the design here too, and said: nothing overtakes, or large requests
// would starve. Whoever wants classes gives each a Limiter of its own.
func TestPeersRow20FirstInFirstOut(t *testing.T) {
	p := exact(throttle.Tier{Limit: 10, Window: sec, Algorithm: throttle.TokenBucket, Burst: 100})
	play(t, p, []step{
		{do: "allow", n: 100},
		{who: "large", n: 100, end: 10 * sec},
		{who: "small", end: 10100 * ms},
		{at: 5 * sec, do: "refuse"}, // there are tokens, but they are spoken for
		{at: 5 * sec, who: "impatient", within: sec, end: 5 * sec, err: throttle.ErrDeadline, wait: 5200 * ms},
	})
}
