package distributed_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestCanceledCallersLeaveNothing checks that a quota admits soon after all callers of a fleet were
// canceled.
func TestCanceledCallersLeaveNothing(t *testing.T) {
	t.Parallel()
	minute := throttle.Tier{Limit: 10, Window: time.Minute}
	fast := throttle.Tier{Limit: 50, Window: sec, Algorithm: throttle.GCRA}
	bucket := throttle.Tier{Limit: 1, Window: sec, Algorithm: throttle.GCRA}
	for _, test := range []struct {
		name         string
		tiers, outer []throttle.Tier
		class        throttle.Class
		processes    int
		quiet        time.Duration // since they were canceled
		want         int           // admitted in the next ten seconds
	}{
		{"Batch", []throttle.Tier{bucket}, nil, throttle.Batch, 100, 2 * sec, 9},
		{"Batch of a few", []throttle.Tier{bucket}, nil, throttle.Batch, 5, 2 * sec, 9},
		{"Batch in an account", []throttle.Tier{bucket}, []throttle.Tier{throttle.PerSecond(1000)}, throttle.Batch, 100, 2 * sec, 9},
		{"in an account", []throttle.Tier{minute, throttle.PerHour(10_000)}, []throttle.Tier{throttle.PerMinute(1000)}, throttle.Normal, 20, 75 * sec, 10},
		{"in an account of many", []throttle.Tier{minute, throttle.PerHour(10_000)}, []throttle.Tier{throttle.PerMinute(1000)}, throttle.Normal, 100, 75 * sec, 10},
		{"a bucket", []throttle.Tier{fast}, nil, throttle.Normal, 8, 2 * sec, 490},
		{"a bucket of many", []throttle.Tier{fast}, nil, throttle.Normal, 100, 2 * sec, 490},
		{"a log of many", []throttle.Tier{throttle.PerSecond(50)}, nil, throttle.Normal, 100, 2 * sec, 450},
		{"a minute", []throttle.Tier{minute}, nil, throttle.Normal, 20, 75 * sec, 10},
		{"a minute of many", []throttle.Tier{minute}, nil, throttle.Normal, 100, 75 * sec, 10},
		{"a slow bucket of many", []throttle.Tier{bucket}, nil, throttle.Normal, 100, 2 * sec, 9},
		{"places", []throttle.Tier{{Limit: 5, Algorithm: throttle.Concurrency}, throttle.PerSecond(50)}, nil, throttle.Normal, 100, 2 * sec, 150},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 8)
			virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
				open := func() *throttle.Limiter {
					redis := distributed.New(process(ms/2, ms/2), distributed.Options{})
					l := limiter(t, throttle.Policy{Name: "{q}", Tiers: test.tiers, Guard: 50 * ms, Aging: time.Hour}, redis)
					if test.outer != nil {
						l = l.Within(limiter(t, throttle.Policy{Name: "{q}outer", Tiers: test.outer, Guard: 50 * ms, Aging: time.Hour}, redis))
					}
					return l
				}
				acquire := func(ctx context.Context, l *throttle.Limiter, n int) (admitted int) {
					var all sync.WaitGroup
					var mu sync.Mutex
					for range n {
						all.Go(func() {
							for ctx.Err() == nil {
								var cost throttle.Cost
								if test.name == "places" { // unlike costs
									cost = throttle.Cost{"requests": 1 + rand.Int64N(4)}
								}
								p, err := l.Acquire(throttle.WithClass(ctx, test.class), cost)
								if err != nil {
									<-ctx.Done()
									return
								}
								p.Release()
								mu.Lock()
								admitted++
								mu.Unlock()
							}
						})
					}
					all.Wait()
					return admitted
				}
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(5*sec, cancel)
				var fleet sync.WaitGroup
				for range test.processes {
					l := open()
					fleet.Go(func() { acquire(ctx, l, 20) })
				}
				fleet.Wait()
				time.Sleep(test.quiet)
				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(10*sec, cancel)
				if got := acquire(ctx, open(), 20); got < test.want {
					t.Errorf("got %d admitted in ten seconds, want %d", got, test.want)
				}
			})
		})
	}
}
