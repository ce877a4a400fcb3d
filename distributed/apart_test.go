package distributed_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestHigherLimitsApplyAtOnce checks that a release with higher limits does not wait until a spent day
// of the former release ends, for which callers of that wait.
func TestHigherLimitsApplyAtOnce(t *testing.T) {
	for name, limits := range map[string]struct{ old, new string }{
		"24 hours": {"100/24h", "100/s + 100000/24h"},
		"a day":    {"100/day", "100/s + 100000/day"},
	} {
		for _, nested := range []bool{false, true} {
			for _, end := range []string{"waits", "killed", "canceled"} {
				if nested && name == "a day" {
					continue // calendars are not bundled
				}
				t.Run(fmt.Sprintf("%s, nested %t, the caller %s", name, nested, end), func(t *testing.T) {
					soak.Sample(t, 3)
					bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
						process := func(spec string) (*throttle.Limiter, func()) {
							p, err := throttle.ParsePolicy("{fleet}", spec)
							if err != nil {
								t.Fatal(err)
							}
							rdb := near(t, s)
							shared := distributed.New(rdb, distributed.Options{})
							l := limiter(t, p, shared)
							if nested {
								p, err := throttle.ParsePolicy("{fleet} inside", "1000/s")
								if err != nil {
									t.Fatal(err)
								}
								l = limiter(t, p, shared).Within(l)
							}
							return l, func() { _ = rdb.Close() }
						}
						former, kill := process(limits.old)
						later, _ := process(limits.new)
						for range 100 {
							if err := former.Wait(t.Context()); err != nil {
								t.Fatal(err)
							}
						}
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						ended := make(chan error, 1)
						go func() { ended <- former.Wait(ctx) }()
						time.Sleep(2 * time.Second)
						switch end {
						case "killed":
							kill()
						case "canceled":
							cancel()
							<-ended
							time.Sleep(2 * time.Second)
						}
						began := time.Now()
						for range 10 {
							if err := later.Wait(t.Context()); err != nil {
								t.Fatal(err)
							}
						}
						if took := time.Since(began); took > 2*time.Second {
							t.Errorf("10 requests with the higher limits took %v, want 2s at most", took)
						}
						cancel()
					})
				})
			}
		}
	}
}

// TestWaitsForAnotherDay checks that callers are told at once, and admitted in time, who wait for so
// long that nothing is reserved for them.
func TestWaitsForAnotherDay(t *testing.T) {
	soak.Long(t, "a day of four processes")
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		began := time.Now()
		var admitted [4]time.Duration
		done := make(chan error, len(admitted))
		spent := 0
		for i := range admitted {
			policy := throttle.Policy{Name: "day", Tiers: []throttle.Tier{{Limit: 10, Window: 24 * hour}}}
			shared := distributed.New(near(t, s), distributed.Options{})
			l := limiter(t, policy, shared)
			for spent < 10 {
				if err := l.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				spent++
			}
			go func() {
				err := l.Wait(t.Context())
				admitted[i] = time.Since(began)
				done <- err
			}()
			time.Sleep(100 * ms)
			asked := time.Now()
			var late *throttle.WaitError
			ctx, cancel := context.WithDeadline(t.Context(), asked.Add(hour))
			err := l.Wait(ctx)
			cancel()
			if !errors.As(err, &late) || time.Since(asked) > sec {
				t.Errorf("got %v after %v, want a refusal at once", err, time.Since(asked))
			}
		}
		for range admitted {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		for i, at := range admitted {
			if at < 24*hour || at > 24*hour+5*sec {
				t.Errorf("process %d: admitted after %v, want a day, and 5s more at most", i, at)
			}
		}
	})
}
