package distributed_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// Requests that cost nothing in the inner quota are charged in the outer one, at its pace. They hold up
// nobody in the inner quota, but its pause holds them up.
func TestFreeInTheInnerQuota(t *testing.T) {
	for name, inner := range map[string][]throttle.Tier{
		"one slot":        {{Limit: 10, Window: sec, Unit: "jobs"}},
		"with leases":     {{Limit: 10, Window: sec, Unit: "jobs"}, {Limit: 10, Unit: "jobs", Algorithm: throttle.Concurrency}},
		"outermost alone": {{Limit: 10, Window: sec, Unit: "jobs"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				const guard = 20 * ms
				store := distributed.New(near(t, s), distributed.Options{})
				open := func(name string, tiers ...throttle.Tier) *throttle.Limiter {
					return limiter(t, throttle.Policy{Name: name, Tiers: tiers, Guard: guard}, store)
				}
				outer := open("outer", per(sec, 4, throttle.SlidingLog))
				if name == "outermost alone" {
					outer = open("middle", throttle.Tier{Limit: 7, Window: sec, Unit: "tokens"}).Within(outer)
				}
				alone := open("inner", inner...)
				l := alone.Within(outer)

				var mu sync.Mutex
				var sent []time.Time
				var wg sync.WaitGroup
				for i := range 12 {
					wg.Go(func() {
						cost := throttle.Cost{"requests": 1 + int64(i%2)}
						p, err := l.Acquire(t.Context(), cost)
						if err != nil {
							t.Error(err)
							return
						}
						defer p.Release()
						mu.Lock()
						defer mu.Unlock()
						for range cost["requests"] {
							sent = append(sent, time.Now())
						}
					})
				}
				time.Sleep(100 * ms)
				began := time.Now()
				p, err := alone.Acquire(t.Context(), throttle.Cost{"jobs": 10})
				if err != nil {
					t.Fatal(err)
				}
				p.Release()
				if waited := time.Since(began); waited > 10*ms {
					t.Errorf("a caller of the inner quota waited for %v behind callers that cost nothing there", waited)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 300*ms)
				defer cancel()
				if _, err := l.Acquire(ctx, throttle.Cost{"requests": 1}); !errors.Is(err, throttle.ErrDeadline) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("behind the others for 300 ms: got %v, want a deadline", err)
				}
				wg.Wait()
				if slices.SortFunc(sent, time.Time.Compare); len(sent) != 18 {
					t.Fatalf("%d requests, want 18", len(sent))
				}
				for i := range sent[4:] {
					if within := sent[4+i].Sub(sent[i]); within < sec {
						t.Errorf("5 requests within %v, want 4 in a second", within)
					}
				}
				if took := sent[17].Sub(sent[0]); took > 6*sec {
					t.Errorf("18 requests of 4/s took %v", took)
				}

				time.Sleep(5 * sec)
				if err := alone.Pause(t.Context(), sec); err != nil {
					t.Fatal(err)
				}
				began = time.Now()
				if p, err = l.Acquire(t.Context(), throttle.Cost{"requests": 1}); err != nil {
					t.Fatal(err)
				}
				p.Release()
				if waited := time.Since(began); waited < 999*ms || waited > 2*sec {
					t.Errorf("during a pause of the inner quota of a second, a request waited for %v", waited)
				}
			})
		})
	}
}
