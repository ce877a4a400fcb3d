package gauntlet

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

// The peers limit by one tier each, so that a policy is a chain of them. Whoever uses
// them has to choose an order. Here the longest window comes first: the limiter asked
// last is then the one of the shortest, and what it lets pass is sent at once. It makes a
// difference to failsafeBursty alone, which is refused more the other way round.
//
// None has a limit of concurrency; there a semaphore is put before the chain, which
// holds a place until the answer is read, as a careful user would do.

// A limiter blocks until n units may be sent.
type limiter func(ctx context.Context, n int64) error

// A peer limits by one tier.
type peer func(name string, t throttle.Tier, rdb *redis.Client) limiter

// chain opens a peer for all tiers of the policy.
func chain(one peer) opener {
	return func(s seat) (http.RoundTripper, error) {
		tiers := s.asDocumented()
		slices.SortStableFunc(tiers, func(a, b throttle.Tier) int { return cmp.Compare(b.Window, a.Window) })
		c := &chained{base: s.base}
		for _, t := range tiers {
			if t.Algorithm == throttle.Concurrency {
				places := t.Limit
				if s.rdb != nil {
					places /= fleet // each process has its share
				}
				c.places = make(chan struct{}, places)
				continue
			}
			c.units = append(c.units, t.Unit)
			c.limiters = append(c.limiters, one(fmt.Sprint(s, "/", t), t, s.rdb))
		}
		return c, nil
	}
}

// A chained transport waits for a place and for every limiter, and sends.
type chained struct {
	base     http.RoundTripper
	places   chan struct{} // nil where concurrency has no limit
	limiters []limiter
	units    []string // that each of them counts
}

func (c *chained) RoundTrip(req *http.Request) (*http.Response, error) {
	leave, err := c.enter(req.Context())
	if err != nil {
		return nil, err
	}
	for i, wait := range c.limiters {
		n := int64(1)
		if c.units[i] == tokens {
			n = cost(req)
		}
		if err := wait(req.Context(), n); err != nil {
			leave()
			return nil, err
		}
	}
	resp, err := c.base.RoundTrip(req)
	if err != nil {
		leave()
		return nil, err
	}
	resp.Body = &place{resp.Body, leave}
	return resp, nil
}

func (c *chained) enter(ctx context.Context) (leave func(), err error) {
	if c.places == nil {
		return func() {}, nil
	}
	select {
	case c.places <- struct{}{}:
		return sync.OnceFunc(func() { <-c.places }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A place is held until the body is closed.
type place struct {
	body
	leave func()
}

type body interface {
	Read([]byte) (int, error)
	Close() error
}

func (p *place) Close() error {
	defer p.leave()
	return p.body.Close()
}

// xtimeBurst is golang.org/x/time/rate as most set it: the limit is the burst too.
func xtimeBurst(_ string, t throttle.Tier, _ *redis.Client) limiter {
	return xtime(t, t.Limit)
}

// xtimeOne is golang.org/x/time/rate with the least burst that there is, which spaces
// requests evenly. It refuses what is above the burst, so for tokens it is that of one
// request.
func xtimeOne(_ string, t throttle.Tier, _ *redis.Client) limiter {
	if t.Unit == tokens {
		return xtime(t, mostToken)
	}
	return xtime(t, 1)
}

func xtime(t throttle.Tier, burst int64) limiter {
	l := rate.NewLimiter(rate.Limit(float64(t.Limit)/t.Window.Seconds()), int(burst))
	return func(ctx context.Context, n int64) error { return l.WaitN(ctx, int(n)) }
}

// uber is go.uber.org/ratelimit without the slack that would let it send ten more at
// once after a rest. It knows no cost but one, and no context: at the end of a run it
// is waited for.
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

// failsafeBursty has the limit in each of its periods.
func failsafeBursty(_ string, t throttle.Tier, _ *redis.Client) limiter {
	return failsafe(ratelimiter.NewBursty[any](uint(t.Limit), t.Window))
}

func failsafe(l ratelimiter.RateLimiter[any]) limiter {
	return func(ctx context.Context, n int64) error { return l.AcquirePermits(ctx, uint(n)) }
}

// redisRate is github.com/go-redis/redis_rate, which doesn't wait: the caller sleeps
// for as long as it says, and asks again. Its burst is the limit, as in its own
// PerSecond and PerMinute.
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
