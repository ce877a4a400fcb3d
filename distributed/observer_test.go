package distributed_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// TestPausedFor checks that Paused receives how long the quota is paused, which doubles with each
// refusal that names no time, also while the server is away.
func TestPausedFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var told []time.Duration
		l := limiter(t, throttle.Policy{
			Name: "told", Tiers: []throttle.Tier{throttle.PerSecond(100)},
			Observer: &throttle.Observer{Paused: func(i throttle.PausedInfo) { told = append(told, i.For) }},
		}, distributed.New(near(t, s), distributed.Options{}))
		for i := range 4 {
			p, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if i == 3 {
				s.SetError("LOADING")
			}
			_ = p.Refused(t.Context(), 0)
			p.Release()
			if least := time.Second << i; len(told) != i+1 || told[i] < least || told[i] > 2*least {
				t.Fatalf("pause %d: told of %v, want the last from %v to %v", i, told, least, 2*least)
			}
		}
		s.SetError("")
		l.Close()
	})
}

// TestObserverOfNestedLimits checks that each request under nested limits is admitted or refused once, and
// that each admitted one with a Permit is answered once, also if the quotas are not charged at once.
func TestObserverOfNestedLimits(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprintf("together=%v", together), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				var admitted, held, answered, refused, calls int
				o := &throttle.Observer{
					Admitted: func(_ context.Context, i throttle.AdmittedInfo) {
						admitted++
						if i.Held {
							held++
						}
					},
					Answered: func(context.Context, throttle.AnsweredInfo) { answered++ },
					Refused:  func(context.Context, throttle.RefusedInfo) { refused++ },
				}
				redis := distributed.New(near(t, s), distributed.Options{})
				outer := []throttle.Tier{throttle.PerSecond(8)}
				if !together {
					outer = append(outer, throttle.Tier{Limit: 100, Unit: "open", Algorithm: throttle.Concurrency})
				}
				l := limiter(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(10)}, Observer: o}, redis).
					Within(limiter(t, throttle.Policy{Name: "outer", Tiers: outer}, redis))
				for i := range 40 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*10*time.Millisecond)
					calls += 2
					if p, err := l.Acquire(ctx, nil); err == nil {
						p.Passed()
						p.Release()
					}
					if i%2 == 0 {
						if p, err := l.TryAcquire(ctx, nil); err == nil {
							_ = p.Cancel(ctx)
						}
					} else {
						_ = l.Wait(ctx)
					}
					cancel()
				}
				if admitted+refused != calls || held != answered || held == 0 || refused == 0 {
					t.Errorf("%d admitted and %d refused of %d calls; %d held and %d answered", admitted, refused, calls, held, answered)
				}
			})
		})
	}
}
