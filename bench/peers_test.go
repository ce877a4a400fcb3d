package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/soak"
)

// The tests in this file check what README.md says about other libraries, in virtual time. go test -v
// writes the figures.

// TestPeersCanceledCallers measures how long the next caller of 10/s waits after 100 callers were
// canceled.
func TestPeersCanceledCallers(t *testing.T) {
	for _, test := range []struct {
		name        string
		wait        func(context.Context) error
		least, most time.Duration
	}{
		{"throttle", limited(t, "10/s;algo=gcra;burst=1").Wait, 0, 100 * time.Millisecond},
		{"x/time/rate", rate.NewLimiter(10, 1).Wait, 5 * time.Second, 11 * time.Second},
		{"failsafe-go", ratelimiter.NewSmooth[any](10, time.Second).AcquirePermit, 9 * time.Second, 11 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_ = test.wait(t.Context())
				ctx, cancel := context.WithCancel(t.Context())
				for range 100 {
					go func() { _ = test.wait(ctx) }()
				}
				time.Sleep(50 * time.Millisecond)
				cancel()
				synctest.Wait()
				start := time.Now()
				err := test.wait(t.Context())
				d := time.Since(start)
				if t.Logf("the next caller waits %v", d); err != nil || d < test.least || d > test.most {
					t.Errorf("%v after %v, want nil after %v to %v", err, d, test.least, test.most)
				}
			})
		})
	}
}

// TestPeersTwoLimits counts what remains of 1,000 a day after 500 requests that 1/min refuses. The other
// libraries have a limiter for each limit, which the caller asks one after the other.
func TestPeersTwoLimits(t *testing.T) {
	t.Run("throttle", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			both := limited(t, "1000/d + 1/min")
			for range 501 {
				both.Allow()
			}
			s, err := both.Status(t.Context())
			if err != nil || s.Tiers[0].Remaining != 999 {
				t.Fatalf("%v, %v: want room for 999", s, err)
			}
			t.Logf("%d of 1,000 remain", s.Tiers[0].Remaining)
		})
	})
	t.Run("x/time/rate", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			day, minute := rate.NewLimiter(rate.Every(24*time.Hour/1000), 1000), rate.NewLimiter(rate.Every(time.Minute), 1)
			for range 501 {
				_ = day.Allow() && minute.Allow()
			}
			n := day.Tokens()
			if n != 499 {
				t.Errorf("%v remain, want 499", n)
			}
			t.Logf("%v of 1,000 remain", n)
		})
	})
	t.Run("failsafe-go", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			day, minute := ratelimiter.NewBursty[any](1000, 24*time.Hour), ratelimiter.NewBursty[any](1, time.Minute)
			for range 501 {
				_ = day.TryAcquirePermit() && minute.TryAcquirePermit()
			}
			if !day.TryAcquirePermits(499) || day.TryAcquirePermit() {
				t.Fatal("want room for 499")
			}
			t.Log("499 of 1,000 remain")
		})
	})
	t.Run("redis_rate", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			limiter := redis_rate.NewLimiter(newCounted(t).dial(t))
			day := redis_rate.Limit{Rate: 1000, Burst: 1000, Period: 24 * time.Hour}
			for range 501 {
				if r, err := limiter.Allow(t.Context(), "day", day); err == nil && r.Allowed > 0 {
					_, _ = limiter.Allow(t.Context(), "minute", redis_rate.PerMinute(1))
				}
			}
			r, err := limiter.AllowN(t.Context(), "day", day, 0)
			if err != nil || r.Remaining != 499 {
				t.Fatalf("%+v, %v: want 499 remaining", r, err)
			}
			t.Logf("%d of 1,000 remain", r.Remaining)
		})
	})
}

// TestPeersCallsOfRedis counts the calls of Redis for each request of 100 callers in five processes that
// share 20/s, each a millisecond away. With redis_rate a refused caller sleeps for RetryAfter and asks
// again.
func TestPeersCallsOfRedis(t *testing.T) {
	soak.Long(t, "plays thousands of calls of a script")
	const processes, callers, requests = 5, 20, 4
	for _, test := range []struct {
		name        string
		open        func(t *testing.T, rdb *redis.Client) func(context.Context) error
		least, most float64
	}{
		{"throttle", func(t *testing.T, rdb *redis.Client) func(context.Context) error {
			p, err := throttle.ParsePolicy("api", "20/s;algo=gcra | guard=none")
			if err != nil {
				t.Fatal(err)
			}
			l, err := throttle.New(p, distributed.New(rdb, distributed.Options{}))
			if err != nil {
				t.Fatal(err)
			}
			return l.Wait
		}, 0, 1},
		{"redis_rate", func(_ *testing.T, rdb *redis.Client) func(context.Context) error {
			l := redis_rate.NewLimiter(rdb)
			return func(ctx context.Context) error {
				for {
					r, err := l.Allow(ctx, "api", redis_rate.PerSecond(20))
					if err != nil || r.Allowed > 0 {
						return err
					}
					time.Sleep(r.RetryAfter)
				}
			}
		}, 20, 100},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newCounted(t)
				var wg sync.WaitGroup
				for range processes {
					wait := test.open(t, server.dial(t))
					for range callers {
						wg.Go(func() {
							for range requests {
								if err := wait(t.Context()); err != nil {
									t.Error(err)
								}
							}
						})
					}
				}
				wg.Wait()
				n := float64(server.calls.Load()) / (processes * callers * requests)
				if t.Logf("%.1f calls for each request", n); n < test.least || n > test.most {
					t.Errorf("%.1f calls for each request, want %v to %v", n, test.least, test.most)
				}
			})
		})
	}
}

// counted is a Redis in memory that counts the calls of scripts.
type counted struct {
	*miniredis.Miniredis
	calls atomic.Int64
}

func newCounted(t *testing.T) *counted {
	c := &counted{Miniredis: redismem.New()}
	t.Cleanup(c.Close)
	redismem.Hook(c.Miniredis, func(_ *server.Peer, name string, _ ...string) bool {
		if name == "EVALSHA" || name == "EVAL" {
			c.calls.Add(1)
		}
		return false
	})
	return c
}

func (c *counted) dial(t *testing.T) *redis.Client {
	rdb := redismem.Dial(c.Miniredis, func() time.Duration { return time.Millisecond })
	t.Cleanup(func() { rdb.Close() })
	return rdb
}
