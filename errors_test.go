package throttle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
)

// TestWaitErrorText checks the texts of errors: each names the policy, the reason, the tier that
// decides, how many callers are ahead, and "until" once.
func TestWaitErrorText(t *testing.T) {
	until := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for want, e := range map[string]*throttle.WaitError{
		`throttle: policy "mail": the wait would outlast the deadline: 12s for tier 5/s, 60 callers ahead`: {Policy: "mail", Tier: "5/s", Wait: 12 * time.Second, Ahead: 60, Err: throttle.ErrDeadline},
		`throttle: policy "mail": the wait would outlast the deadline: 250ms, 1 caller ahead`:              {Policy: "mail", Wait: 250 * time.Millisecond, Ahead: 1, Err: throttle.ErrDeadline},
		`throttle: the wait would outlast the context's deadline: 2s`:                                      {Wait: 2 * time.Second, Err: throttle.ErrDeadline, Bound: "context"},
		`throttle: the wait would outlast MaxWait: 2s for tier 5/s`:                                        {Tier: "5/s", Wait: 2 * time.Second, Err: throttle.ErrDeadline, Bound: "MaxWait"},
		`throttle: policy "usd": budget is used up until 2026-12-01T00:00:00Z: tier 100/month;budget=true`: {Policy: "usd", Tier: "100/month;budget=true", Wait: time.Hour, Until: until, Err: throttle.ErrExhausted},
		`throttle: policy "github": the provider closed the quota until 2026-12-01T00:00:00Z`:              {Policy: "github", Wait: time.Hour, Until: until, Err: throttle.ErrBanned},
		`throttle: queue is full: 9 callers ahead`:                                                         {Ahead: 9, Err: throttle.ErrQueueFull},
		`throttle: policy "maps": store is unavailable: connection refused`:                                {Policy: "maps", Err: throttle.ErrUnavailable, Cause: errors.New("connection refused")},
		`throttle: policy "maps": concurrency is limited: use Acquire and release the permit`:              {Policy: "maps", Err: throttle.ErrNeedsPermit},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
