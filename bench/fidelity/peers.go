package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"github.com/apithrottle/throttle"
)

// The limiter of a peer has one tier. A policy with several tiers is a chain of limiters,
// whose order the user chooses. Here the longest window comes first. The last limiter then has
// the shortest window, and a request that it admits is sent immediately. The order matters
// only for failsafeBursty, which is refused more in the opposite order.
//
// The peers have no concurrency limits. In their place a semaphore comes before the chain. A
// request holds a slot of it until the response is read, as in the code of a careful user.

// A limiter blocks until n units may be sent.
type limiter func(ctx context.Context, n int64) error

// A peer opens a limiter of another library for one tier.
type peer func(name string, t throttle.Tier, rdb *redis.Client) limiter

// chain returns an opener that chains the peer's limiters for all tiers of the policy.
func chain(open peer) opener {
	return func(p process) (http.RoundTripper, error) {
		tiers := p.asDocumented()
		slices.SortStableFunc(tiers, func(a, b throttle.Tier) int { return cmp.Compare(b.Window, a.Window) })
		c := &chained{base: p.base}
		for _, t := range tiers {
			if t.Algorithm == throttle.Concurrency {
				slots := t.Limit
				if p.rdb != nil {
					slots /= fleet // the processes divide the limit
				}
				c.slots = make(chan struct{}, slots)
				continue
			}
			c.units = append(c.units, t.Unit)
			c.limiters = append(c.limiters, open(fmt.Sprint(p, "/", t), t, p.rdb))
		}
		return c, nil
	}
}

// A chained transport waits for a slot and for every limiter, and sends.
type chained struct {
	base     http.RoundTripper
	slots    chan struct{} // if nil, concurrency has no limit
	limiters []limiter
	units    []string // that the limiters count
}

func (c *chained) RoundTrip(req *http.Request) (*http.Response, error) {
	release, err := c.acquire(req.Context())
	if err != nil {
		return nil, err
	}
	for i, wait := range c.limiters {
		n := int64(1)
		if c.units[i] == tokens {
			n = cost(req)
		}
		if err := wait(req.Context(), n); err != nil {
			release()
			return nil, err
		}
	}
	resp, err := c.base.RoundTrip(req)
	if err != nil {
		release()
		return nil, err
	}
	resp.Body = &releasingBody{resp.Body, release}
	return resp, nil
}

func (c *chained) acquire(ctx context.Context) (release func(), err error) {
	if c.slots == nil {
		return func() {}, nil
	}
	select {
	case c.slots <- struct{}{}:
		return sync.OnceFunc(func() { <-c.slots }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A releasingBody releases the slot of its request when it is closed.
type releasingBody struct {
	body
	release func()
}

type body interface {
	Read([]byte) (int, error)
	Close() error
}

func (b *releasingBody) Close() error {
	defer b.release()
	return b.body.Close()
}

// xtimeBurst is golang.org/x/time/rate in its usual configuration: the burst is the limit.
func xtimeBurst(_ string, t throttle.Tier, _ *redis.Client) limiter {
	return xtime(t, t.Limit)
}

// xtimeOne is golang.org/x/time/rate with the smallest burst, which spaces requests evenly.
// The limiter refuses a request that costs more than the burst. So for tokens the burst is
// the cost of the largest request.
func xtimeOne(_ string, t throttle.Tier, _ *redis.Client) limiter {
	if t.Unit == tokens {
		return xtime(t, maxTokens)
	}
	return xtime(t, 1)
}

func xtime(t throttle.Tier, burst int64) limiter {
	l := rate.NewLimiter(rate.Limit(float64(t.Limit)/t.Window.Seconds()), int(burst))
	return func(ctx context.Context, n int64) error { return l.WaitN(ctx, int(n)) }
}

// uber is go.uber.org/ratelimit without slack. The slack would admit ten more requests at
// once after an idle period. The limiter supports neither costs nor contexts: at the end of a
// run, the process waits until Take returns.
func uber(_ string, t throttle.Tier, _ *redis.Client) limiter {
	l := ratelimit.New(int(t.Limit), ratelimit.Per(t.Window), ratelimit.WithoutSlack)
	return func(ctx context.Context, _ int64) error {
		l.Take()
		return ctx.Err()
	}
}

// failsafeSmooth spaces requests evenly.
func failsafeSmooth(_ string, t throttle.Tier, _ *redis.Client) limiter {
	return failsafe(ratelimiter.NewSmooth[any](uint(t.Limit), t.Window))
}

// failsafeBursty admits the whole limit at the beginning of each period.
func failsafeBursty(_ string, t throttle.Tier, _ *redis.Client) limiter {
	return failsafe(ratelimiter.NewBursty[any](uint(t.Limit), t.Window))
}

func failsafe(l ratelimiter.RateLimiter[any]) limiter {
	return func(ctx context.Context, n int64) error { return l.AcquirePermits(ctx, uint(n)) }
}

// redisRate is github.com/go-redis/redis_rate, which doesn't wait: the caller sleeps for
// RetryAfter and tries again. The burst is the limit, as in the library's PerSecond and
// PerMinute.
func redisRate(name string, t throttle.Tier, rdb *redis.Client) limiter {
	l := redis_rate.NewLimiter(rdb)
	limit := redis_rate.Limit{Rate: int(t.Limit), Burst: int(t.Limit), Period: t.Window}
	return func(ctx context.Context, n int64) error {
		for {
			answer, err := l.AllowN(ctx, name, limit, int(n))
			if err != nil || answer.Allowed > 0 {
				return err
			}
			select {
			case <-time.After(answer.RetryAfter):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}
