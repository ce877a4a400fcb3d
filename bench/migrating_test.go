package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
)

// migrations are the rows of docs/migrating.md, by their first column.
var migrations = map[string]func(t *testing.T){
	"`rate.NewLimiter(10, 20)`": func(t *testing.T) {
		sameWaits(t, rate.NewLimiter(10, 20).Wait, limited(t, "10/s;algo=token_bucket;burst=20").Wait)
	},
	"`rate.NewLimiter(rate.Every(200*time.Millisecond), 1)`": func(t *testing.T) {
		sameWaits(t, rate.NewLimiter(rate.Every(200*time.Millisecond), 1).Wait, limited(t, "1/200ms;algo=token_bucket").Wait)
	},
	"`rate.NewLimiter(rate.Inf, 0)`": func(t *testing.T) {
		before, after := rate.NewLimiter(rate.Inf, 0), &throttle.Transport{Base: instant{}}
		sameWaits(t, before.Wait, func(context.Context) error { return send(after) })
	},
	"`lim.Wait(ctx)`, `lim.WaitN(ctx, n)`": func(t *testing.T) {
		before, after := rate.NewLimiter(10, 20), limited(t, "10/s;algo=token_bucket;burst=20")
		for n := range 20 {
			took(t, fmt.Sprintf("WaitN(%d)", n),
				func() error { return before.WaitN(t.Context(), n) }, func() error { return after.WaitN(t.Context(), int64(n)) })
		}
	},
	"`lim.Allow()`, `lim.AllowN(time.Now(), n)`": func(t *testing.T) {
		before, after := rate.NewLimiter(10, 20), limited(t, "10/s;algo=token_bucket;burst=20")
		sameAnswers(t, func(n int) bool { return before.AllowN(time.Now(), n) }, func(n int) bool { return after.AllowN(int64(n)) })
	},
	"`lim.Reserve().Delay()`, to know the wait": func(t *testing.T) {
		before, after := rate.NewLimiter(10, 2), limited(t, "10/s;algo=token_bucket;burst=2")
		for range 2 {
			before.Allow()
			after.Allow()
		}
		forecast, err := after.Forecast(t.Context(), nil)
		if delay := before.Reserve().Delay(); err != nil || forecast.Wait != delay {
			t.Errorf("Forecast is %v, %v; Delay was %v", forecast, err, delay)
		}
	},
	"`r := lim.Reserve()`, `r.Cancel()`": func(t *testing.T) {
		after, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{{Limit: 10, Window: time.Second, Algorithm: throttle.TokenBucket, Burst: 1}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		before := rate.NewLimiter(10, 1)
		before.Reserve().Cancel()
		p, err := after.Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Cancel(t.Context()); err != nil {
			t.Error(err)
		}
		if !before.Allow() || !after.Allow() {
			t.Error("what was canceled stays charged")
		}
	},
	"`lim.SetLimit(20)`": func(t *testing.T) {
		before, after := rate.NewLimiter(10, 20), limited(t, "10/s;algo=token_bucket;burst=20")
		took(t, "25 at the old rate",
			func() error { drainN(25, before.Wait); return nil }, func() error { drainN(25, after.Wait); return nil })
		before.SetLimit(20)
		p, err := throttle.ParsePolicy("", "20/s;algo=token_bucket;burst=20 | guard=none")
		if err := errors.Join(err, after.SetPolicy(t.Context(), p)); err != nil {
			t.Fatal(err)
		}
		took(t, "100 at the new rate",
			func() error { drainN(100, before.Wait); return nil }, func() error { drainN(100, after.Wait); return nil })
	},
	"`lim.Tokens()`": func(t *testing.T) {
		before, after := rate.NewLimiter(10, 20), limited(t, "10/s;algo=token_bucket;burst=20")
		for n := range 20 {
			status, err := after.Status(t.Context())
			if err != nil || float64(status.Tiers[0].Remaining) != before.Tokens() {
				t.Errorf("after %d: Remaining is %d, %v; Tokens %v", n, status.Tiers[0].Remaining, err, before.Tokens())
			}
			before.Allow()
			after.Allow()
		}
	},
	"`rate: Wait(n=1) would exceed context deadline`": func(t *testing.T) {
		before, after := rate.NewLimiter(1, 1), limited(t, "1/s;algo=token_bucket")
		before.Allow()
		after.Allow()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		was, is := before.Wait(ctx), after.Wait(ctx)
		if was == nil || was.Error() != "rate: Wait(n=1) would exceed context deadline" || !errors.Is(is, throttle.ErrDeadline) {
			t.Errorf("%v; %v", was, is)
		}
	},
	"`rate: Wait(n=30) exceeds limiter's burst 20`": func(t *testing.T) {
		was := rate.NewLimiter(10, 20).WaitN(t.Context(), 30)
		is := limited(t, "10/s;algo=token_bucket;burst=20").WaitN(t.Context(), 30)
		if was == nil || was.Error() != "rate: Wait(n=30) exceeds limiter's burst 20" || !errors.Is(is, throttle.ErrExceedsCapacity) {
			t.Errorf("%v; %v", was, is)
		}
	},

	"`ratelimit.New(100, ratelimit.WithoutSlack)`": func(t *testing.T) {
		sameWaits(t, taking(ratelimit.New(100, ratelimit.WithoutSlack)), limited(t, "100/s;algo=leaky_bucket;burst=1").Wait)
	},
	"`ratelimit.New(100)`, with its slack of 10": func(t *testing.T) {
		sameAfterIdling(t, ratelimit.New(100), limited(t, "100/s;algo=leaky_bucket;burst=11"), 11)
	},
	"`ratelimit.New(100, ratelimit.Per(time.Minute))`": func(t *testing.T) {
		sameAfterIdling(t, ratelimit.New(100, ratelimit.Per(time.Minute)), limited(t, "100/min;algo=leaky_bucket;burst=11"), 11)
	},
	"`rl.Take()`": func(t *testing.T) {
		after := limited(t, "100/s;algo=leaky_bucket;burst=1")
		sameWaits(t, taking(ratelimit.New(100, ratelimit.WithoutSlack)), after.Wait)
		after.Allow()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		if err := after.Wait(ctx); err != context.Canceled {
			t.Errorf("a canceled context: %v", err)
		}
	},

	"`ratelimiter.NewSmooth[R](10, time.Second)`": func(t *testing.T) {
		sameWaits(t, ratelimiter.NewSmooth[any](10, time.Second).AcquirePermit, limited(t, "1/100ms;algo=fixed_window").Wait)
	},
	"`ratelimiter.NewBursty[R](10, time.Second)`": func(t *testing.T) {
		sameWaits(t, ratelimiter.NewBursty[any](10, time.Second).AcquirePermit, limited(t, "10/s;algo=fixed_window").Wait)
	},
	"`limiter.AcquirePermit(ctx)`": func(t *testing.T) {
		sameWaits(t, ratelimiter.NewSmooth[any](5, time.Second).AcquirePermit, limited(t, "1/200ms;algo=fixed_window").Wait)
	},
	"`WithMaxWaitTime(time.Second)`": func(t *testing.T) {
		after := limited(t, "10/s;algo=leaky_bucket;burst=1 | max_wait=1s")
		refused := 0
		for range 20 {
			go func() {
				if errors.Is(after.Wait(t.Context()), throttle.ErrDeadline) {
					refused++
				}
			}()
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		if refused != 9 { // eleven go within a second
			t.Errorf("%d of 20 are refused, want 9", refused)
		}
	},
	"`limiter.TryAcquirePermit()`": func(t *testing.T) {
		before, after := ratelimiter.NewSmooth[any](10, time.Second), limited(t, "1/100ms;algo=fixed_window")
		sameAnswers(t, func(int) bool { return before.TryAcquirePermit() }, func(int) bool { return after.Allow() })
	},
	"`ratelimiter.ErrExceeded`": func(t *testing.T) {
		before, after := ratelimiter.NewSmooth[any](1, time.Second), limited(t, "1/s;algo=leaky_bucket | max_wait=1ms")
		before.TryAcquirePermit()
		after.Allow()
		was, is := before.AcquirePermitWithMaxWait(t.Context(), time.Millisecond), after.Wait(t.Context())
		if !errors.Is(was, ratelimiter.ErrExceeded) || !errors.Is(is, throttle.ErrDeadline) {
			t.Errorf("%v; %v", was, is)
		}
	},
	"`bulkhead.New[R](10)`": func(t *testing.T) {
		before, after := bulkhead.New[any](10), limited(t, "10;algo=concurrency")
		var permits []*throttle.Permit
		for i := range 12 {
			p, err := after.TryAcquire(t.Context(), nil)
			if was := before.TryAcquirePermit(); was != (err == nil) || was != (i < 10) {
				t.Errorf("place %d: %t, %v", i, was, err)
			}
			permits = append(permits, p)
		}
		before.ReleasePermit()
		permits[0].Release()
		if p, err := after.TryAcquire(t.Context(), nil); err != nil || !before.TryAcquirePermit() {
			t.Errorf("after a release: %v, %v", p, err)
		}
	},
	"`failsafehttp.NewRoundTripper(base, limiter)`": func(t *testing.T) {
		before := failsafehttp.NewRoundTripper(instant{}, ratelimiter.NewSmoothBuilder[*http.Response](10, time.Second).WithMaxWaitTime(time.Hour).Build())
		after := &throttle.Transport{Limiter: limited(t, "1/100ms;algo=fixed_window"), Base: instant{}}
		sameWaits(t, func(context.Context) error { return send(before) }, func(context.Context) error { return send(after) })
	},

	"`limiter.Allow(ctx, key, redis_rate.PerSecond(10))`": func(t *testing.T) {
		before, after := onRedis(t, "10/s;algo=gcra")
		sameAnswers(t, before(redis_rate.PerSecond(10), 1), func(int) bool { return after.For("key").Allow() })
	},
	"`redis_rate.Limit{Rate: 10, Burst: 20, Period: time.Minute}`": func(t *testing.T) {
		before, after := onRedis(t, "10/min;algo=gcra;burst=20")
		sameAnswers(t, before(redis_rate.Limit{Rate: 10, Burst: 20, Period: time.Minute}, 1), func(int) bool { return after.For("key").Allow() })
	},
	"`limiter.AllowN(ctx, key, limit, n)`": func(t *testing.T) {
		before, after := onRedis(t, "10/s;algo=gcra")
		sameAnswers(t, before(redis_rate.PerSecond(10), 3), func(int) bool { return after.For("key").AllowN(3) })
	},
	"`Result.RetryAfter`, to sleep and ask again": func(t *testing.T) {
		_, after := onRedis(t, "10/s;algo=gcra;burst=1")
		start := time.Now()
		for range 11 {
			if err := after.For("key").Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took < time.Second || took > 1100*time.Millisecond {
			t.Errorf("the eleventh went after %v, want one second and the way to Redis", took)
		}
	},
	"`Result.Remaining`": func(t *testing.T) {
		_, after := onRedis(t, "10/min;algo=gcra")
		after.For("key").AllowN(4)
		if status, err := after.For("key").Status(t.Context()); err != nil || status.Tiers[0].Remaining != 6 {
			t.Errorf("%+v, %v; want 6", status, err)
		}
	},
}

// TestMigrating runs each row of docs/migrating.md.
func TestMigrating(t *testing.T) {
	page, err := os.ReadFile("../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\| .* \\|$").FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, row[1])
		test := migrations[row[1]]
		if test == nil {
			t.Errorf("no test of the row %s", row[1])
			continue
		}
		t.Run(strings.Trim(row[1], "`"), func(t *testing.T) { synctest.Test(t, test) })
	}
	for row := range migrations {
		if !slices.Contains(rows, row) {
			t.Errorf("no row for the test of %s", row)
		}
	}
}

func limited(t *testing.T, policy string) *throttle.Limiter {
	if !strings.Contains(policy, "|") {
		policy += " | guard=none"
	} else {
		policy += ";guard=none"
	}
	p, err := throttle.ParsePolicy("", policy)
	if err != nil {
		t.Fatal(err)
	}
	l, err := throttle.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// instant is a provider that answers at once.
type instant struct{}

func (instant) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
}

func send(rt http.RoundTripper) error {
	req, err := http.NewRequest(http.MethodGet, "http://api.example.com/", nil)
	if err != nil {
		return err
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func taking(l ratelimit.Limiter) func(context.Context) error {
	return func(context.Context) error { l.Take(); return nil }
}

func drainN(n int, wait func(context.Context) error) {
	for range n {
		_ = wait(context.Background())
	}
}

// rounding is what the libraries round differently.
const rounding = time.Microsecond

// took compares how long two calls take.
func took(t *testing.T, name string, before, after func() error) {
	t.Helper()
	var times [2]time.Duration
	done := make(chan struct{}, 2)
	for i, call := range []func() error{before, after} {
		go func() {
			start := time.Now()
			if err := call(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			times[i] = time.Since(start)
			done <- struct{}{}
		}()
	}
	<-done
	<-done
	if d := times[1] - times[0]; d.Abs() > 100*rounding {
		t.Errorf("%s takes %v, and took %v", name, times[1], times[0])
	}
}

// sameWaits compares when two limiters admit the same 50 calls, of which some come after a pause.
func sameWaits(t *testing.T, before, after func(context.Context) error) {
	t.Helper()
	admit := func(wait func(context.Context) error) (at [50]time.Duration) {
		start := time.Now()
		for i := range at {
			if i%17 == 16 {
				time.Sleep(750 * time.Millisecond)
			}
			if err := wait(t.Context()); err != nil {
				t.Error(err)
			}
			at[i] = time.Since(start)
		}
		return at
	}
	var was, is [50]time.Duration
	done := make(chan struct{})
	go func() { was = admit(before); close(done) }()
	is = admit(after)
	<-done
	for i := range is {
		if d := is[i] - was[i]; d.Abs() > time.Duration(i+1)*rounding {
			t.Fatalf("call %d is admitted after %v, and was after %v", i, is[i], was[i])
		}
	}
}

// sameAfterIdling compares how long calls take after both limiters were idle: at once up to burst.
func sameAfterIdling(t *testing.T, before ratelimit.Limiter, after *throttle.Limiter, burst int) {
	t.Helper()
	before.Take()
	time.Sleep(time.Hour)
	took(t, "a burst",
		func() error { drainN(burst, taking(before)); return nil }, func() error { drainN(burst, after.Wait); return nil })
	took(t, "then 30",
		func() error { drainN(30, taking(before)); return nil }, func() error { drainN(30, after.Wait); return nil })
}

// sameAnswers compares what two limiters answer at 300 random instants.
func sameAnswers(t *testing.T, before, after func(n int) bool) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	admitted := 0
	for range 300 {
		time.Sleep(time.Duration(random.IntN(137_000)) * time.Microsecond) // libraries round at the exact boundary
		n := 1 + random.IntN(2)
		was, is := before(n), after(n)
		if was != is {
			t.Fatalf("%d: %t, and was %t", n, is, was)
		}
		if is {
			admitted++
		}
	}
	if admitted == 0 || admitted == 300 {
		t.Errorf("%d of 300 were admitted: nothing is compared", admitted)
	}
}

// onRedis returns both limiters on a Redis in memory.
func onRedis(t *testing.T, policy string) (before func(redis_rate.Limit, int) func(int) bool, after *throttle.Group) {
	server := redismem.New()
	dial := func() *redis.Client {
		rdb := redismem.Dial(server, func() time.Duration { return 0 })
		t.Cleanup(func() { rdb.Close() })
		return rdb
	}
	t.Cleanup(server.Close)
	p, err := throttle.ParsePolicy("api", policy+" | guard=none")
	if err != nil {
		t.Fatal(err)
	}
	after, err = throttle.NewGroup(p, distributed.New(dial(), distributed.Options{}), throttle.GroupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	limiter := redis_rate.NewLimiter(dial())
	return func(limit redis_rate.Limit, n int) func(int) bool {
		return func(int) bool {
			got, err := limiter.AllowN(t.Context(), "key", limit, n)
			return err == nil && got.Allowed > 0
		}
	}, after
}
