package distributed_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/store"
)

// slowStart is a tier that starts at a request in a minute and may learn far more.
var slowStart = throttle.Tier{Limit: 1, Window: time.Minute, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 60_000}}

// A process whose policy starts slowly refuses no caller that the fleet's rate admits in time.
func TestForecastAssumesHighestRate(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		fast := slowStart
		fast.Limit = 6000
		knows := limiter(t, throttle.Policy{Name: "forecast", Tiers: []throttle.Tier{fast}}, distributed.New(near(t, s), distributed.Options{}))
		for range 3 {
			permit, err := knows.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := permit.Refused(t.Context(), 0); err != nil { // the fleet knows a rate from now on
				t.Fatal(err)
			}
			permit.Release()
			_ = knows.Resume(t.Context())
			time.Sleep(2 * sec)
		}
		joins := limiter(t, throttle.Policy{Name: "forecast", Tiers: []throttle.Tier{slowStart}}, distributed.New(near(t, s), distributed.Options{}))
		if learned := known(t, joins); learned.Rate < 1000 {
			t.Fatalf("got %+v, want a rate of thousands in a minute", learned)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*sec)
		defer cancel()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if err := joins.Wait(ctx); err != nil {
					t.Errorf("got %v, want an admission: the fleet admits 100 in 3 s", err)
				}
			})
		}
		wg.Wait()
	})
}

func known(t *testing.T, l *throttle.Limiter) store.Learned {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil || s.Tiers[0].Learned == nil {
		t.Fatalf("got %+v, %v, want a learned tier", s, err)
	}
	return *s.Tiers[0].Learned
}

// Without Redis each process has its part of the limit, and refusals teach nothing, not even those that come
// when Redis is back.
func TestFallbackLearnsNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		tier := slowStart
		tier.Limit, tier.Window, tier.Learn = 40, sec, throttle.Learn{Least: 1, Most: 1000}
		reply := breakable(s)
		l := limiter(t, throttle.Policy{Name: "away", Tiers: []throttle.Tier{tier}, MaxPause: sec},
			distributed.New(near(t, s), distributed.Options{Fallback: distributed.Fallback{Workers: 4}}))
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := known(t, l)
		reply(loading)
		began := time.Now()
		var permits []*throttle.Permit
		for range 21 {
			permit, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			permits = append(permits, permit)
		}
		if took := time.Since(began); took < 1800*ms || took > 4*sec {
			t.Errorf("got 21 admissions in %v, want them at 10 in a second", took)
		}
		for _, p := range permits[:10] {
			_ = p.Refused(t.Context(), 100*ms)
			p.Release()
		}
		reply("")
		time.Sleep(3 * sec)
		if got := known(t, l); got.Refused != before.Refused || got.Rate < before.Rate {
			t.Errorf("got %+v after refusals without Redis, want %+v", got, before)
		}
		for _, p := range permits[10:] {
			_ = p.Refused(t.Context(), 100*ms)
			p.Release()
		}
		if got := known(t, l); got.Refused != before.Refused || got.Rate < before.Rate {
			t.Errorf("got %+v after refusals of requests that were admitted without Redis, want %+v", got, before)
		}
	})
}

// A caller that is canceled leaves nothing behind in a learned tier: its time goes to the next one.
func TestCanceledCallersTeachNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		tier := throttle.Tier{Limit: 10, Window: sec, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Least: 1, Most: 10}}
		l := limiter(t, throttle.Policy{Name: "canceled", Tiers: []throttle.Tier{tier}}, distributed.New(near(t, s), distributed.Options{}))
		_ = l.Wait(t.Context())
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 40 {
				wg.Go(func() { _ = l.Wait(ctx) })
			}
			time.Sleep(50 * ms)
			cancel()
			wg.Wait()
		}
		time.Sleep(2 * sec)
		began := time.Now()
		for range 11 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took < 900*ms || took > 1300*ms {
			t.Errorf("got 11 admissions in %v after all callers had left, want a second", took)
		}
	})
}

// A state that is lost starts at the limit, and refusals of requests that were admitted in it teach nothing.
func TestLostStateLearnsAnew(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		tier := slowStart
		tier.Limit, tier.Window, tier.Learn = 40, sec, throttle.Learn{Least: 1, Most: 1000}
		l := limiter(t, throttle.Policy{Name: "lost", Tiers: []throttle.Tier{tier}, MaxPause: sec}, distributed.New(near(t, s), distributed.Options{}))
		_ = l.Wait(t.Context())
		time.Sleep(time.Minute)
		var permits []*throttle.Permit
		for range 20 {
			permit, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			permits = append(permits, permit)
		}
		s.FlushAll()
		_ = l.Wait(t.Context())
		for _, p := range permits {
			_ = p.Refused(t.Context(), 100*ms)
			p.Release()
		}
		if got := known(t, l); got.Rate < 40 || got.Refused != 0 {
			t.Errorf("got %+v after refusals of requests of a lost state, want a rate of 40", got)
		}
	})
}

// Refusals with a Retry-After teach too, and twenty of one moment once.
func TestToldPausesTeach(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		tier := throttle.Tier{Limit: 40, Window: sec, Algorithm: throttle.GCRA, Burst: 20, Learn: throttle.Learn{Least: 1, Most: 1000}}
		l := limiter(t, throttle.Policy{Name: "told", Tiers: []throttle.Tier{tier}}, distributed.New(near(t, s), distributed.Options{}))
		_ = l.Wait(t.Context())
		client := &http.Client{Transport: &throttle.Transport{Base: &provider{takes: 300 * ms, refusals: repeat(sec, 25)}, Limiter: l}}
		var wg sync.WaitGroup
		for range 15 {
			wg.Go(func() { get(t, client) })
		}
		wg.Wait()
		if got := known(t, l); got.Refused < 40 || got.Rate < 0.699*got.Refused {
			t.Errorf("got %+v after fifteen refusals, want one decrease", got)
		}
	})
}

func repeat(d time.Duration, times int) (list []time.Duration) {
	for range times {
		list = append(list, d)
	}
	return list
}
