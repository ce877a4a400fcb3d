package distributed_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// TestReportOfCallThatIsGivenUp checks that a call whose caller gives up still reports once what it
// carries, and that no later call is sent before it ends.
func TestReportOfCallThatIsGivenUp(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var way atomic.Int64
		way.Store(int64(80 * ms))
		var log callLog
		l := limiter(t, throttle.Policy{Name: "q", Observer: log.observer(), Tiers: []throttle.Tier{
			{Limit: 10_000, Window: time.Hour, Unit: "tokens", Estimated: true},
		}}, distributed.New(distant(t, s, func() time.Duration { return time.Duration(way.Load()) }), distributed.Options{}))
		for range 5 {
			p, err := l.Acquire(t.Context(), throttle.Cost{"tokens": 500})
			if err != nil {
				t.Fatal(err)
			}
			for range 3 { // the first carries the report of those before
				_ = p.Settle(throttle.Cost{"tokens": 700})
				ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
				_, _ = l.Status(ctx)
				cancel()
				way.Store(int64(20*ms) + way.Load()%int64(100*ms))
			}
			p.Release()
		}
		time.Sleep(2 * sec)
		status, err := l.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if used := status.Tiers[0].Used; used != 5*700 {
			t.Errorf("got %d used, want %d", used, 5*700)
		}
		for _, call := range log.take() {
			if call.Err != nil {
				t.Error(call.Err)
			}
		}
	})
}
