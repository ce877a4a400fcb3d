package distributed_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
)

// TestExplain checks the explanations of a fleet: they contain the cause of a pause that this process
// knows, take two calls for each quota, and need no answer.
func TestExplain(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{per(time.Minute, 5, throttle.SlidingLog)}, Guard: throttle.NoGuard}
		counter, rdb := new(calls.Counter), near(t, s)
		rdb.AddHook(counter)
		l := limiter(t, p, distributed.New(rdb, distributed.Options{Fallback: distributed.Fallback{Workers: 4}}))
		other := limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
		explain := func(what string, least, most time.Duration, want ...string) {
			t.Helper()
			e, err := l.Explain(t.Context(), nil)
			f, failed := l.Forecast(t.Context(), nil) // a call later
			if err != nil || failed != nil || e.Wait < least || e.Wait > most || f.Wait > e.Wait || f.Wait < e.Wait-10*ms || f.Tier != e.Tier {
				t.Errorf("%s: %+v, %v; forecast %+v, %v; want a wait of %v to %v", what, e, err, f, failed, least, most)
			}
			for _, text := range want {
				if !strings.Contains(e.String(), text) {
					t.Errorf("%s: %v; want %q", what, e, text)
				}
			}
		}
		explain("unused", 0, 0, "The request would be sent at once. 5/m has room for 5: 0 of 5 used. The quota is shared through Redis.")
		before := counter.Count()
		if _, err := l.Explain(t.Context(), nil); err != nil || counter.Count()-before > 2 {
			t.Errorf("%v after %d calls, want 2", err, counter.Count()-before)
		}
		_ = other.Pause(t.Context(), 20*sec)
		explain("a pause of another process", 19*sec, 21*sec, "for the end of a pause. ", ", by another process or Limiter. ")
		_ = l.Pause(t.Context(), 30*sec)
		explain("a pause of this process", 29*sec, 31*sec, "for the end of a pause. ", ", by a call of Pause. ")
		if err := l.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			other.Allow()
		}
		explain("used", 59*sec, 61*sec, " for tier 5/m. 5/m is full until 00:01:0", ": 5 of 5 used. The quota is shared through Redis.")
		breakable(s)(loading)
		e, err := l.Explain(t.Context(), nil)
		if err != nil || len(e.Quotas) != 1 || !errors.Is(e.Quotas[0].Unavailable, throttle.ErrUnavailable) || e.Quotas[0].Fallback != 4 || e.Quotas[0].Shared != "Redis" {
			t.Errorf("without Redis: %+v, %v", e, err)
		}
		e, err = other.Explain(t.Context(), nil)
		if want := "The request would wait until the store answers. The quota is shared through Redis. The store does not answer: callers wait for it."; err != nil || e.String() != want || !errors.Is(e.Err, throttle.ErrUnavailable) {
			t.Errorf("without Redis and fallback: %v, %v, %v; want %s", e, e.Err, err, want)
		}
	})
}

// TestExplainQueues checks that an Explanation of nested quotas that are charged at once contains the
// callers that wait, and the Forecast.
func TestExplainQueues(t *testing.T) {
	for _, how := range headrooms {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l := openHeadroom(t, s, how, time.Minute, new(calls.Counter))
			for i := range 30 {
				class := throttle.Normal
				if i%2 == 0 {
					class = throttle.Batch
				}
				go l.Wait(throttle.WithClass(ctx, class))
			}
			time.Sleep(sec)
			asks := throttle.WithClass(ctx, throttle.Batch)
			e, err := l.Explain(asks, nil)
			f, failed := l.Forecast(asks, nil)
			if err != nil || failed != nil || e.Wait < f.Wait || e.Wait > f.Wait+10*ms || e.Tier != f.Tier || e.Ahead != f.Ahead || e.Ahead != e.Interactive+e.Normal+e.Batch || e.Ahead == 0 || e.Batch == 0 || e.Err != nil {
				t.Errorf("%s: %+v, %v; forecast %+v, %v", how, e, err, f, failed)
			}
		})
	}
}
