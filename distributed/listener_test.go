package distributed_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// Status and Pause return with their context, also while another call has the turn of the
// leases.
func TestContextEndsWhileLeased(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var delay atomic.Int64
		delay.Store(int64(ms))
		rdb := distant(t, s, func() time.Duration { return time.Duration(delay.Load()) })
		tier := throttle.Tier{Limit: 5, Algorithm: throttle.Concurrency}
		l := limiter(t, named(tier), distributed.New(rdb, distributed.Options{Timeout: time.Minute}))
		if _, err := l.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
		delay.Store(int64(2 * sec))
		admitted := make(chan error, 1)
		go func() {
			permit, err := l.Acquire(context.Background(), nil)
			if err == nil {
				permit.Release()
			}
			admitted <- err
		}()
		time.Sleep(ms)
		for what, call := range map[string]func(context.Context) error{
			"Status": func(ctx context.Context) error { _, err := l.Status(ctx); return err },
			"Pause":  func(ctx context.Context) error { return l.Pause(ctx, sec) },
			"Resume": l.Resume,
		} {
			ctx, cancel := context.WithTimeout(context.Background(), 100*ms)
			began := time.Now()
			err := call(ctx)
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 100*ms {
				t.Errorf("%s returned %v after %v", what, err, took)
			}
			cancel()
		}
		if err := <-admitted; err != nil {
			t.Error(err)
		}
		delay.Store(int64(ms))
	})
}
