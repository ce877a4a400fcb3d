package bench

import (
	"context"
	"net/http"
	"time"

	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/go-redis/redis_rate/v10"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"
)

// The functions below compile the calls of other libraries in docs/migrating.md.
// TestMigratingCompiles in internal/integration expects each of them here.

func beforeClient(ctx context.Context, req *http.Request) error {
	lim := rate.NewLimiter(rate.Every(200*time.Millisecond), 5)
	if err := lim.Wait(ctx); err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func beforeTimeRate(ctx context.Context, n int) {
	lim := rate.NewLimiter(10, 20)
	_ = rate.NewLimiter(rate.Every(200*time.Millisecond), 1)
	_ = rate.NewLimiter(rate.Inf, 0)
	_ = lim.Wait(ctx)
	_ = lim.WaitN(ctx, n)
	_ = lim.Allow()
	_ = lim.AllowN(time.Now(), n)
	_ = lim.Reserve().Delay()
	r := lim.Reserve()
	r.Cancel()
	lim.SetLimit(20)
	_ = lim.Tokens()
}

func beforeUber() {
	_ = ratelimit.New(100, ratelimit.WithoutSlack)
	_ = ratelimit.New(100)
	rl := ratelimit.New(100, ratelimit.Per(time.Minute))
	rl.Take()
}

func beforeFailsafe[R any](ctx context.Context, base http.RoundTripper) {
	_ = ratelimiter.NewSmooth[R](10, time.Second)
	_ = ratelimiter.NewBursty[R](10, time.Second)
	WithMaxWaitTime := ratelimiter.NewBurstyBuilder[*http.Response](10, time.Second).WithMaxWaitTime
	limiter := WithMaxWaitTime(time.Second).Build()
	_ = limiter.AcquirePermit(ctx)
	_ = limiter.TryAcquirePermit()
	_ = ratelimiter.ErrExceeded
	_ = bulkhead.New[R](10)
	_ = failsafehttp.NewRoundTripper(base, limiter)
}

func beforeRedisRate(ctx context.Context, limiter *redis_rate.Limiter, key string, n int) {
	_, _ = limiter.Allow(ctx, key, redis_rate.PerSecond(10))
	limit := redis_rate.Limit{Rate: 10, Burst: 20, Period: time.Minute}
	_, _ = limiter.AllowN(ctx, key, limit, n)
	var Result redis_rate.Result
	_, _ = Result.RetryAfter, Result.Remaining
}

func beforePool(clients []*http.Client, i, n int) *http.Client { return clients[i%n] }

// The functions are only compiled.
var _ = []any{beforeClient, beforeTimeRate, beforeUber, beforeFailsafe[any], beforeRedisRate, beforePool}
