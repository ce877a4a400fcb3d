package throttle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/local"
)

// refuse makes a call that is refused as late at once.
func refuse(t *testing.T, l *throttle.Limiter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), ms)
	defer cancel()
	began := time.Now()
	if err := l.Wait(ctx); !errors.Is(err, throttle.ErrDeadline) || time.Since(began) > 0 {
		t.Errorf("%v after %v, want ErrDeadline at once", err, time.Since(began))
	}
}

// TestStaleForecastRefusesNobody checks that a refusal during a pause refuses nobody after the pause,
// whether the refused caller found a queue or not, in one quota and in nested ones.
func TestStaleForecastRefusesNobody(t *testing.T) {
	for _, nested := range []bool{false, true} {
		for _, queue := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				paused := mustNew(t, exact(throttle.PerSecond(2)), nil)
				l := paused
				if nested {
					l = mustNew(t, exact(throttle.PerSecond(2)), nil).Within(paused)
				}
				wait := func() chan struct{} {
					done := make(chan struct{})
					go func() {
						defer close(done)
						if err := l.Wait(t.Context()); err != nil {
							t.Error(err)
						}
					}()
					synctest.Wait()
					return done
				}
				for range 2 {
					if !l.Allow() {
						t.Fatal("Allow is false, although the quota is unused")
					}
				}
				time.Sleep(sec / 2)
				var before chan struct{}
				if queue {
					before = wait()
				}
				_ = paused.Pause(t.Context(), time.Hour)
				refuse(t, l)
				if f, err := l.Forecast(t.Context(), nil); err != nil || f.Wait < time.Hour {
					t.Errorf("in the pause: %+v, %v", f, err)
				}
				_ = paused.Resume(t.Context())
				after := wait()
				ctx, cancel := context.WithTimeout(t.Context(), 10*sec)
				defer cancel()
				if err := l.Wait(ctx); err != nil {
					t.Errorf("nested %v, a queue %v: a caller with 10s: %v", nested, queue, err)
				}
				<-after
				if before != nil {
					<-before
				}
			})
		}
	}
}

// TestSetPolicyAfterRefusal checks that callers wait under a policy with other units after a caller was
// refused under the old one, in one quota, for another Limiter of the quota, and in nested quotas.
func TestSetPolicyAfterRefusal(t *testing.T) {
	tokens := throttle.Tier{Limit: 1000, Window: time.Minute, Unit: "tokens"}
	old, units := exact(throttle.PerSecond(1)), exact(tokens, throttle.PerSecond(1))
	for name, limiters := range map[string]func(t *testing.T) (l, changed *throttle.Limiter){
		"alone": func(t *testing.T) (l, changed *throttle.Limiter) {
			l = mustNew(t, old, nil)
			return l, l
		},
		"another Limiter": func(t *testing.T) (l, changed *throttle.Limiter) {
			s := local.New()
			return mustNew(t, old, s), mustNew(t, old, s)
		},
		"inner": func(t *testing.T) (l, changed *throttle.Limiter) {
			changed = mustNew(t, old, nil)
			return changed.Within(mustNew(t, old, nil)), changed
		},
		"outer": func(t *testing.T) (l, changed *throttle.Limiter) {
			changed = mustNew(t, old, nil)
			return mustNew(t, old, nil).Within(changed), changed
		},
	} {
		for _, next := range []throttle.Policy{units, exact(throttle.PerSecond(1), throttle.PerMinute(60))} {
			synctest.Test(t, func(t *testing.T) {
				l, changed := limiters(t)
				if !l.Allow() {
					t.Fatal("Allow is false, although the quota is unused")
				}
				refuse(t, l)
				if err := changed.SetPolicy(t.Context(), next); err != nil {
					t.Fatal(err)
				}
				soon, cancel := context.WithTimeout(t.Context(), 10*sec)
				defer cancel()
				for _, ctx := range []context.Context{t.Context(), soon} {
					if err := l.Wait(ctx); err != nil {
						t.Errorf("%s, %v: %v", name, next.Tiers, err)
					}
				}
			})
		}
	}
}

// TestChangedByAnotherLimiter checks that a caller is not refused under a policy that another Limiter of
// the quota has replaced.
func TestChangedByAnotherLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := local.New()
		l, other := mustNew(t, exact(throttle.PerHour(1)), s), mustNew(t, exact(throttle.PerHour(1)), s)
		if !l.Allow() {
			t.Fatal("Allow is false, although the quota is unused")
		}
		if err := other.SetPolicy(t.Context(), exact(throttle.PerHour(1000))); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), sec)
		defer cancel()
		if err := l.Wait(ctx); err != nil {
			t.Errorf("under 1000/h, which another Limiter has set: %v", err)
		}
	})
}

// TestForecastCountsHeadOnce checks that the caller at the head of a nested Limiter's queue, which waits
// in the outer queue too, is ahead once.
func TestForecastCountsHeadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := mustNew(t, exact(throttle.PerMinute(1)), nil)
		l := mustNew(t, exact(throttle.PerSecond(100)), nil).Within(outer)
		if !l.Allow() {
			t.Fatal("Allow is false, although the quota is unused")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for want := range 4 {
			f, err := l.Forecast(ctx, nil)
			e, _ := l.Explain(ctx, nil)
			if err != nil || f.Ahead != want || e.Normal != want {
				t.Errorf("%+v, %d normal, %v, while %d callers wait", f, e.Normal, err, want)
			}
			go l.Wait(ctx)
			synctest.Wait()
		}
		go outer.Wait(ctx)
		synctest.Wait()
		if f, err := l.Forecast(ctx, nil); err != nil || f.Ahead != 5 {
			t.Errorf("%+v, %v, while 4 callers and one of the outer Limiter wait", f, err)
		}
	})
}
