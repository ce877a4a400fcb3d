package bench

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/store"
)

// Limits that no fleet on one Redis server can reach.
const (
	redisPerSecond = 1_000_000
	redisPerHour   = 1_000_000_000
	redisBurst     = 1_000_000_000
)

var redisTiers = []throttle.Tier{
	{Limit: redisPerSecond, Window: time.Second, Algorithm: throttle.GCRA, Burst: redisBurst},
	{Limit: redisPerHour, Window: time.Hour, Algorithm: throttle.GCRA, Burst: redisBurst},
}

// An opener returns what the callers of a benchmark call.
type opener func(*testing.B, redis.UniversalClient) (call func() error)

// BenchmarkRedis/<library>/<case>/c<callers> times one call while so many callers
// make one after the other. The package comment tells what the cases are.
func BenchmarkRedis(b *testing.B) {
	s := redistest.Start(b)
	for _, bm := range []struct {
		name string
		open opener
	}{
		// Case by case, not library by library: what is compared runs side by side.
		{"throttle/one", throttleRedis(1)},
		{"redisrate/one", redisRate(1)},
		{"throttled/one", throttledRedis(1)},

		{"throttle/two", throttleRedis(2)},
		{"redisrate/two", redisRate(2)},
		{"throttled/two", throttledRedis(2)},

		{"floor/ping", floorPing},
		{"floor/incr", floorIncr},
		{"floor/noop", floorNoop},
	} {
		for _, callers := range []int{1, 16, 64, 256} {
			b.Run(fmt.Sprintf("%s/c%d", bm.name, callers), func(b *testing.B) {
				b.ReportAllocs()
				// A connection for each caller, so that those whose library doesn't
				// share calls need not queue for one.
				rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), PoolSize: callers})
				defer rdb.Close()
				callFrom(b, s, callers, bm.open(b, rdb))
			})
		}
	}
}

// callFrom makes b.N calls from so many goroutines, and reports besides what they
// took of the server's processor.
func callFrom(b *testing.B, s *redistest.Server, callers int, call func() error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	before := processor(b, s)
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric((processor(b, s)-before)/float64(b.N), "server-µs/op")
}

// processor returns the microseconds that the server's main thread has run for.
func processor(b *testing.B, s *redistest.Server) float64 {
	b.Helper()
	return 1e6 * (number(b, s.Info("cpu", "used_cpu_user_main_thread")) + number(b, s.Info("cpu", "used_cpu_sys_main_thread")))
}

func number(b *testing.B, text string) float64 {
	b.Helper()
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// throttle

func throttleRedis(tiers int) opener {
	return func(b *testing.B, rdb redis.UniversalClient) func() error {
		lim := newRedisLimiter(b, rdb, throttle.Policy{Name: fmt.Sprint("bench", tiers), Tiers: redisTiers[:tiers]})
		ctx := context.Background()
		return func() error { return lim.Wait(ctx) }
	}
}

func newRedisLimiter(b *testing.B, rdb redis.UniversalClient, p throttle.Policy) *throttle.Limiter {
	b.Helper()
	lim, err := throttle.New(p, distributed.New(rdb, distributed.Options{}))
	if err != nil {
		b.Fatal(err)
	}
	return lim
}

// github.com/go-redis/redis_rate

func redisRate(tiers int) opener {
	return func(_ *testing.B, rdb redis.UniversalClient) func() error {
		lim := redis_rate.NewLimiter(rdb)
		limits := []redis_rate.Limit{
			{Rate: redisPerSecond, Period: time.Second, Burst: redisBurst},
			{Rate: redisPerHour, Period: time.Hour, Burst: redisBurst},
		}[:tiers]
		ctx := context.Background()
		return func() error {
			for i, limit := range limits {
				if r, err := lim.Allow(ctx, strconv.Itoa(i), limit); err != nil {
					return err
				} else if r.Allowed == 0 {
					return errRefused
				}
			}
			return nil
		}
	}
}

// github.com/throttled/throttled

func throttledRedis(tiers int) opener {
	return func(b *testing.B, rdb redis.UniversalClient) func() error {
		s, err := goredisstore.NewCtx(rdb, "throttled:")
		if err != nil {
			b.Fatal(err)
		}
		var lims []*throttled.GCRARateLimiterCtx
		for _, rate := range []throttled.Rate{throttled.PerSec(redisPerSecond), throttled.PerHour(redisPerHour)}[:tiers] {
			lim, err := throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{MaxRate: rate, MaxBurst: redisBurst})
			if err != nil {
				b.Fatal(err)
			}
			// It tries again when another caller came in between, by default ten
			// times, after which the call fails.
			lim.SetMaxCASAttemptsLimit(math.MaxInt)
			lims = append(lims, lim)
		}
		ctx := context.Background()
		return func() error {
			for i, lim := range lims {
				if limited, _, err := lim.RateLimitCtx(ctx, strconv.Itoa(i), 1); err != nil {
					return err
				} else if limited {
					return errRefused
				}
			}
			return nil
		}
	}
}

// the floor: the least that can be asked of a Redis server

func floorPing(_ *testing.B, rdb redis.UniversalClient) func() error {
	ctx := context.Background()
	return func() error { return rdb.Ping(ctx).Err() }
}

func floorNoop(b *testing.B, rdb redis.UniversalClient) func() error {
	ctx := context.Background()
	sha, err := rdb.ScriptLoad(ctx, "return 1").Result()
	if err != nil {
		b.Fatal(err)
	}
	return func() error { return rdb.EvalSha(ctx, sha, []string{"noop"}).Err() }
}

// floorIncr has callers share pipelines: whoever asks while one is under way goes
// with the next.
func floorIncr(b *testing.B, rdb redis.UniversalClient) func() error {
	const most = 64
	asks := make(chan chan error, most)
	var wg sync.WaitGroup
	wg.Go(func() {
		for first := range asks {
			asked := []chan error{first}
			for len(asked) < most && len(asks) > 0 {
				asked = append(asked, <-asks)
			}
			pipe := rdb.Pipeline()
			for range asked {
				pipe.Incr(context.Background(), "incr")
			}
			_, err := pipe.Exec(context.Background())
			for _, answer := range asked {
				answer <- err
			}
		}
	})
	b.Cleanup(func() {
		close(asks)
		wg.Wait()
	})
	return func() error {
		answer := make(chan error, 1)
		asks <- answer
		return <-answer
	}
}

// BenchmarkRedisScript reports how long the server runs the script that decides
// over two tiers, when it is called for one caller and for 64.
func BenchmarkRedisScript(b *testing.B) {
	s := redistest.Start(b)
	rdb := s.Client()
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("n%d", n), func(b *testing.B) {
			plan, err := algorithms.NewPlan(redisTiers, 50*time.Millisecond) // the guard of a Policy
			if err != nil {
				b.Fatal(err)
			}
			quota, err := distributed.New(rdb, distributed.Options{}).Open("script", plan)
			if err != nil {
				b.Fatal(err)
			}
			requests := make([]store.Request, n)
			for i := range requests {
				requests[i] = store.Request{Cost: []int64{1}, WaitSpec: &store.WaitSpec{MaxWait: store.Forever}}
			}
			done := make(chan error)
			reset(b, rdb)
			for b.Loop() {
				quota.(store.Reserver).Reserve(nil, requests, func(_ []store.Decision, err error) { done <- err })
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			calls, took := scripts(b, s)
			b.ReportMetric(took/calls, "server-µs/call")
		})
	}
}

// reset makes the server count commands from 0.
func reset(b *testing.B, rdb *redis.Client) {
	b.Helper()
	if err := rdb.ConfigResetStat(context.Background()).Err(); err != nil {
		b.Fatal(err)
	}
}

// scripts returns how many scripts the server has run, and for how many microseconds.
func scripts(b *testing.B, s *redistest.Server) (calls, took float64) {
	b.Helper()
	for _, command := range []string{"fcall", "evalsha", "eval"} {
		for stat := range strings.SplitSeq(s.Info("commandstats", "cmdstat_"+command), ",") {
			switch name, value, _ := strings.Cut(stat, "="); name {
			case "calls":
				calls += number(b, value)
			case "usec":
				took += number(b, value)
			}
		}
	}
	return calls, took
}

// BenchmarkRedisMemory reports what a quota takes of the server's memory: two
// buckets, and an exact window of an hour that is full.
func BenchmarkRedisMemory(b *testing.B) {
	rdb := redistest.Start(b).Client()
	for _, bm := range []struct {
		name  string
		tiers []throttle.Tier
	}{
		{"gcra2", redisTiers},
		{"window10000", []throttle.Tier{throttle.PerHour(10_000)}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			for b.Loop() {
				b.ReportMetric(memory(b, rdb, bm.tiers), "B/quota")
			}
		})
	}
}

// memory returns the bytes of a quota's key after 10,000 admissions.
func memory(b *testing.B, rdb *redis.Client, tiers []throttle.Tier) float64 {
	b.Helper()
	ctx := context.Background()
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		b.Fatal(err)
	}
	// Without a guard, so that none of them is kept as on its way.
	lim := newRedisLimiter(b, rdb, throttle.Policy{Name: "bench", Tiers: tiers, Guard: throttle.NoGuard})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range 100 {
				if err := lim.Wait(ctx); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	keys, err := rdb.Keys(ctx, "*").Result()
	if err != nil || len(keys) != 1 {
		b.Fatalf("the keys are %q, %v, want one", keys, err)
	}
	bytes, err := rdb.MemoryUsage(ctx, keys[0]).Result()
	if err != nil {
		b.Fatal(err)
	}
	return float64(bytes)
}
