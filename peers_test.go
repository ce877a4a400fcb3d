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
	"github.com/apithrottle/throttle/internal/soak"
)

// The tests in this file are named after failures of other limiters, each of which was
// reproduced. Each comment describes the failure.

// spaced returns a policy of 10 a second, one every 100 ms.
func spaced(a throttle.Algorithm) throttle.Policy {
	return exact(throttle.Tier{Limit: 10, Window: sec, Algorithm: a, Burst: 1})
}

// queueThenCancel uses up the quota, lets 100 callers queue and cancels them after 50 ms. It
// returns the time from the start until the next caller is admitted.
func queueThenCancel(t *testing.T, p throttle.Policy, wait func(*throttle.Limiter, context.Context) error) (next time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		l, start := limiter(t, p, nil), time.Now()
		for l.Allow() {
		}
		ctx, cancel := context.WithCancel(context.Background())
		for range 100 {
			go func() {
				if err := wait(l, ctx); err != context.Canceled {
					t.Errorf("a canceled caller got %v, want Canceled", err)
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

// In x/time/rate waiters take tokens ahead of time. Most tokens of 100 canceled waiters were not
// returned: the next caller waited for more than 6 seconds instead of a tenth of one.
func TestPeersCanceledWaiters(t *testing.T) {
	for _, a := range []throttle.Algorithm{throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA} {
		if next := queueThenCancel(t, spaced(a), (*throttle.Limiter).Wait); next != 100*ms {
			t.Errorf("%v: the next caller is admitted after %v, want 100ms", a, next)
		}
	}
}

// When a reservation is canceled, x/time/rate returns it less what was reserved after it. Of 99
// canceled reservations nearly all were lost, in either order.
func TestPeersCanceledReservations(t *testing.T) {
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
				t.Errorf("%s: want 99 requests admitted and no more", order)
			}
		})
	}
}

// worst asks every 10 ms, after each idle time for a length of time, and returns the most
// admissions in any rolling window.
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

// To x/time/rate "60 per minute" with a burst of 60 is a bucket: it sends 60 at once and nearly 60
// more within the same minute. Here a bucket must be declared, and the default is the rolling
// window.
func TestPeersRollingMinute(t *testing.T) {
	if most := worst(t, throttle.PerMinute(60), []time.Duration{0}, 5*time.Minute); most != 60 {
		t.Errorf("%d in one rolling minute, want 60", most)
	}
	if most := worst(t, per(time.Minute, 60, throttle.TokenBucket), []time.Duration{0}, 5*time.Minute); most != 119 {
		t.Errorf("%d of a declared bucket in one rolling minute, want 119", most)
	}
}

// x/time/rate accepts the caller's time stamps, and one from the past turns its clock back: 19
// requests were admitted in 100 ms. Here the quota reads the clock itself, under its lock: a bucket
// of 10 gains one token in that time.
func TestPeersClockReadUnderTheLock(t *testing.T) {
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
			t.Errorf("%d were admitted in about 100 ms, want 11", n)
		}
	})
}

// failsafe-go keeps the places of canceled callers: after 100 of them the next caller waited for
// all their turns, 9.95 seconds.
func TestPeersCanceledAcquires(t *testing.T) {
	next := queueThenCancel(t, spaced(throttle.GCRA), func(l *throttle.Limiter, ctx context.Context) error {
		_, err := l.Acquire(ctx, nil)
		return err
	})
	if next != 100*ms {
		t.Errorf("the next caller is admitted after %v, want 100ms", next)
	}
}

// failsafe-go's bursty limiter counts in aligned windows: 10 a second became 20 around a boundary,
// and 57 in one second after an idle time.
func TestPeersBoundaryAndIdle(t *testing.T) {
	idle := []time.Duration{990 * ms, 7 * sec, 500 * ms, 5990 * ms, 100 * sec}
	if most := worst(t, throttle.PerSecond(10), idle, 150*ms); most != 10 {
		t.Errorf("%d within one second, want 10", most)
	}
}

// redis_rate returns a time to retry for a cost above the burst, again and again.
func TestPeersNeverIsAnError(t *testing.T) {
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

// go-redisstore rounds the lifetime of its keys to seconds: a window of half a second became none,
// the key was deleted, and all of 1,000 calls were admitted.
func TestPeersHalfASecond(t *testing.T) {
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

// The script of gofr rounds the tokens gained since the last call down to zero and starts counting
// again: polled faster than it refilled, it never refilled. Here polling, refused or not, and
// reading the status change nothing: each poll gets the answer that the definition of the algorithm
// gives.
func TestPeersPolledFasterThanItRefills(t *testing.T) {
	soak.Slow(t, "it plays hours")
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
				t.Errorf("%v: %d in ten seconds, want 60 to 77", a, admitted)
			}
		})
	}
}

// httpthrottle asks one limiter after the other: refusals by the second consumed nearly 1,000
// tokens of the first.
func TestPeersRefusalsBurnNothing(t *testing.T) {
	for _, strict := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			tiers := []throttle.Tier{per(24*hour, 1000, throttle.TokenBucket), per(24*hour, 1000, throttle.TokenBucket)}
			tiers[strict] = throttle.PerMinute(1)
			l := limiter(t, exact(tiers...), nil)
			if !l.Allow() {
				t.Fatal("the first request was refused")
			}
			for range 1000 {
				if l.Allow() {
					t.Fatal("a second request was admitted within a minute")
				}
			}
			if s := status(t, l).Tiers[1-strict]; s.Used != 1 {
				t.Errorf("%d of the other tier (%v) are used, want 1", s.Used, s.Tier)
			}
		})
	}
}

// hostrate drops limiters that were idle for a while, even while callers wait in them. The next
// request got a new limiter, and 10 requests were sent where 3 were allowed.
func TestPeersEvictionKeepsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := throttle.NewGroup(exact(throttle.PerHour(3)), nil, throttle.GroupOptions{MaxKeys: 20})
		if err != nil {
			t.Fatal(err)
		}
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
		if !g.For("b").Allow() { // charged; the Limiter is not kept
			t.Error("b was refused")
		}
		useKeys := func() { // 1,000 keys whose Limiters are not kept
			for i := range 1000 {
				g.For(fmt.Sprint("key ", i)).Status(ctx)
				if i%10 == 0 {
					runtime.GC() // must not matter
				}
			}
		}
		useKeys()
		if n := g.Len(); n > 20 {
			t.Errorf("%d keys, want 20 at most", n)
		}
		if g.For("a").Allow() || sent.Load() != 3 {
			t.Errorf("%d were sent, want 3 and no more", sent.Load())
		}
		if w := status(t, g.For("a")).Waiting; w != 7 {
			t.Errorf("%d wait, want 7", w)
		}
		if s := status(t, g.For("b")).Tiers[0]; s.Used != 1 {
			t.Errorf("b: %d used, want 1", s.Used)
		}

		time.Sleep(hour)
		synctest.Wait()
		cancel()
		wg.Wait()
		if sent.Load() != 6 {
			t.Errorf("%d were sent until an hour later, want 6", sent.Load())
		}
	})
}

// uber's ratelimit carries unused requests over: New(10) sent 11 at once after two idle seconds.
// Here a burst never exceeds the tier's.
func TestPeersBurstAfterIdle(t *testing.T) {
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

// The formula of mennanov's limiter loses most of a large product: one hour into a window of 30
// days, 10,000 requests of the previous window weighed 2,869.
//
// The right value: 719 of the 720 hours are still in view, so the requests weigh 10,000 × 719 ÷ 720
// = 9,986 1/9. That leaves 13 8/9, or 13 whole requests. The 14th needs a weight of 9,986, which is
// 9,986/10,000 of the window in view. It has to wait until 14/10,000 of 30 days have passed:
// 3,628.8 seconds.
func TestPeersWeightedMonth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const month = 30 * 24 * hour
		l := limiter(t, exact(per(month, 10_000, throttle.WeightedWindow)), nil)
		if !l.AllowN(10_000) {
			t.Fatal("an unused window refuses its limit")
		}
		begins := time.UnixMicro(0).Add(time.Since(time.UnixMicro(0)).Truncate(month) + month)
		time.Sleep(time.Until(begins.Add(hour)))
		if s := status(t, l).Tiers[0]; s.Used != 9987 || s.Remaining != 13 {
			t.Errorf("used %d, remaining %d; want 9987 (rounded up) and 13", s.Used, s.Remaining)
		}
		if !l.AllowN(13) || l.Allow() {
			t.Error("want 13 requests admitted and no more")
		}
		if err := l.Wait(context.Background()); err != nil || time.Since(begins) != 3628800*ms {
			t.Errorf("the 14th is admitted %v into the window, %v; want 3628.8s", time.Since(begins), err)
		}
	})
}

// go-limiter divides the second by the rate the wrong way round: at 100,000 a second it refilled
// 10,000.
func TestPeersLargeRates(t *testing.T) {
	for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.FixedWindow, throttle.AnchoredWindow,
		throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, exact(per(sec, 100_000, a)), nil)
			for second := range 3 {
				if !l.AllowN(100_000) || l.Allow() {
					t.Errorf("%v: want 100,000 requests admitted in second %d and no more", a, second)
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
				t.Fatalf("want one request admitted after %d × 10 µs and no more", i+1)
			}
		}
	})
}

// In x/time/rate a small request waits behind a large one, which is not documented. That is the
// design here too, and documented: if small requests overtook large ones, large ones would starve.
// Only a higher Class overtakes.
func TestPeersFirstInFirstOut(t *testing.T) {
	p := exact(throttle.Tier{Limit: 10, Window: sec, Algorithm: throttle.TokenBucket, Burst: 100})
	play(t, p, []step{
		{do: "allow", n: 100},
		{caller: "large", n: 100, end: 10 * sec},
		{caller: "small", end: 10100 * ms},
		{at: 5 * sec, do: "refuse"}, // the tokens are for the waiting callers
		{at: 5 * sec, caller: "late", within: sec, end: 5 * sec, err: throttle.ErrDeadline, wait: 5200 * ms},
	})
}
