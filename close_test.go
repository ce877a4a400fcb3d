package throttle_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
)

// TestClose checks that Close refuses waiting callers and then every call, and that permits and
// other Limiters of the quota keep working.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := local.New()
		policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{
			{Limit: 2, Algorithm: throttle.Concurrency},
			{Limit: 100, Window: time.Hour, Unit: "tokens", Estimated: true},
		}}
		l, other := mustNew(t, policy, s), mustNew(t, policy, s)
		a, b := acquire(t, l, throttle.Cost{"tokens": 40}), acquire(t, l, throttle.Cost{"tokens": 40})
		var wg sync.WaitGroup
		began := time.Now()
		for range 10 {
			wg.Go(func() {
				_, err := l.Acquire(t.Context(), nil)
				var e *throttle.WaitError
				if !errors.Is(err, throttle.ErrClosed) || !errors.As(err, &e) || e.Policy != "api" || time.Since(began) != time.Second {
					t.Errorf("a waiting caller: %v after %v, want ErrClosed of policy api after 1s", err, time.Since(began))
				}
			})
		}
		var third *throttle.Permit
		wg.Go(func() {
			var err error
			if third, err = other.Acquire(t.Context(), throttle.Cost{"tokens": 1}); err != nil {
				t.Errorf("another Limiter's caller: %v", err)
			}
		})
		time.Sleep(time.Second)
		l.Close()
		l.Close()
		synctest.Wait()
		_, acquired := l.Acquire(t.Context(), nil)
		_, tried := l.TryAcquire(t.Context(), nil)
		_, forecast := l.Forecast(t.Context(), nil)
		_, sent := trSend(t.Context(), &throttle.Transport{Limiter: l, Base: trNewBase(nil)})
		for name, err := range map[string]error{
			"Wait": l.Wait(t.Context()), "WaitN": l.WaitN(t.Context(), 2), "Acquire": acquired, "TryAcquire": tried,
			"Forecast": forecast, "Transport": sent,
		} {
			if !errors.Is(err, throttle.ErrClosed) {
				t.Errorf("%s: %v, want ErrClosed", name, err)
			}
		}
		if l.Allow() || l.AllowN(2) {
			t.Error("Allow or AllowN of a closed Limiter is true")
		}
		if err := a.Settle(throttle.Cost{"tokens": 5}); err != nil {
			t.Error(err)
		}
		a.Release()
		if err := b.Cancel(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		third.Release()
		if got := used(t, other); got[0] != 0 || got[1] != 6 {
			t.Errorf("used %v, want 0 open and 5 + 1 tokens", got)
		}
		if p, err := other.TryAcquire(t.Context(), nil); err != nil {
			t.Errorf("another Limiter of the quota: %v", err)
		} else {
			p.Release()
		}
	})
}

// TestCloseRaces closes Limiters while callers use them. Each caller must get an admission or an
// error, none may wait forever, and none may be admitted afterwards.
func TestCloseRaces(t *testing.T) {
	for range soak.Times(60) {
		policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{{Limit: 2, Window: 10 * time.Microsecond}}, Guard: throttle.NoGuard}
		inner, outer := mustNew(t, policy, nil), mustNew(t, throttle.Policy{Tiers: policy.Tiers, Guard: throttle.NoGuard}, nil)
		nested := inner.Within(outer)
		var wg sync.WaitGroup
		for i := range 8 {
			l := []*throttle.Limiter{inner, nested, outer}[i%3]
			wg.Go(func() {
				for {
					if err := l.Wait(context.Background()); errors.Is(err, throttle.ErrClosed) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		time.Sleep(50 * time.Microsecond)
		wg.Go(inner.Close)
		wg.Go(outer.Close)
		wg.Wait()
		for _, l := range []*throttle.Limiter{inner, nested, outer} {
			if l.Allow() {
				t.Fatal("Allow of a closed Limiter is true")
			}
		}
	}
}

// TestCloseOuter checks that closing an outer Limiter refuses the callers of Limiters inside it at
// once, also if they wait for the inner quota.
func TestCloseOuter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, outer := within(t,
			throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}},
			throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(100)}})
		acquire(t, l, nil).Arrived()
		began := time.Now()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrClosed) || time.Since(began) != time.Minute {
					t.Errorf("%v after %v, want ErrClosed after 1m", err, time.Since(began))
				}
			})
		}
		time.Sleep(time.Minute)
		outer.Close()
		wg.Wait()
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrClosed) {
			t.Errorf("a later caller: %v, want ErrClosed", err)
		}
	})
}

// TestResume checks that Resume ends a pause, a ban and the wait for a probe, for all callers that
// share the quota, and that the tiers still hold.
func TestResume(t *testing.T) {
	for name, answer := range map[string]string{"pause": "60", "ban": "7200", "probe": "1"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := local.New()
				policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerMinute(4)}, Guard: throttle.NoGuard}
				l, other := mustNew(t, policy, s), mustNew(t, policy, s)
				base := trNewBase(func(n int, _ *http.Request) (*http.Response, error) {
					if n == 0 {
						return trAnswer(429, "Retry-After", answer), nil
					}
					time.Sleep(time.Hour) // the probe hangs
					return trAnswer(200), nil
				})
				tr := &throttle.Transport{Limiter: l, Base: base}
				_, _ = trSend(t.Context(), tr)
				var wg sync.WaitGroup
				defer wg.Wait()
				want := 3
				if name == "probe" {
					time.Sleep(2 * time.Second)
					wg.Go(func() { _, _ = trSend(t.Context(), tr) })
					synctest.Wait()
					want = 2
				}
				if other.Allow() {
					t.Error("Allow is true before Resume")
				}
				if err := l.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
				n := 0
				for other.Allow() {
					n++
				}
				if s := status(t, other); n != want || s.Paused != 0 || s.Closed != 0 {
					t.Errorf("%d requests are admitted, want %d; status %v", n, want, s)
				}
			})
		})
	}
	t.Run("waiting callers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, outer := within(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}})
			_ = outer.Pause(t.Context(), time.Hour)
			began := time.Now()
			var wg sync.WaitGroup
			for _, l := range []*throttle.Limiter{l, l, outer, outer} {
				wg.Go(func() {
					if err := l.Wait(t.Context()); err != nil || time.Since(began) != time.Minute {
						t.Errorf("%v after %v, want nil after 1m", err, time.Since(began))
					}
				})
			}
			time.Sleep(time.Minute)
			_ = outer.Resume(t.Context())
			wg.Wait()
		})
	})
	t.Run("back-off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
			tr := &throttle.Transport{Limiter: l, Base: trNewBase(func(int, *http.Request) (*http.Response, error) { return trAnswer(429), nil })}
			for range 5 {
				_, _ = trSend(t.Context(), tr)
				if err := l.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = trSend(t.Context(), tr)
			if s := status(t, l); s.Paused < time.Second || s.Paused > 2*time.Second {
				t.Errorf("the pause is %v, want 1s to 2s, as after a first refusal", s.Paused)
			}
		})
	})
}

// TestPauseOfTheLongestTime checks that the longest Duration does not overflow, neither in Pause
// nor in MaxPause.
func TestPauseOfTheLongestTime(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
	if err := l.Pause(t.Context(), longest); err != nil {
		t.Fatal(err)
	}
	if l.Allow() {
		t.Error("Allow is true in a pause of the longest time")
	}
	m := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5)}, MaxPause: longest}, nil)
	_, _ = trSend(t.Context(), &throttle.Transport{Limiter: m, Base: answering("429\nRetry-After: 7200")})
	if s := status(t, m); s.Closed != 0 || s.Paused < time.Hour {
		t.Errorf("after a refusal for two hours: %v, want a pause", s)
	}
}
