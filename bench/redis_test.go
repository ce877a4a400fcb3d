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

// The limits are too large for a fleet on one Redis server to reach.
const (
	redisPerSecond = 1_000_000
	redisPerHour   = 1_000_000_000
	redisBurst     = 1_000_000_000
)

var redisTiers = []throttle.Tier{
	{Limit: redisPerSecond, Window: time.Second, Algorithm: throttle.GCRA, Burst: redisBurst},
	{Limit: redisPerHour, Window: time.Hour, Algorithm: throttle.GCRA, Burst: redisBurst},
}

// An opener returns the function that the callers of a benchmark call.
type opener func(*testing.B, redis.UniversalClient) (call func() error)

// BenchmarkRedis/<library>/<case>/c<callers> measures one call while each of the callers
// makes one call after the other. The package comment describes the cases.
func BenchmarkRedis(b *testing.B) {
	s := redistest.Start(b)
	for _, bm := range []struct {
		name string
		open opener
	}{
		// Ordered by case, not by library: compared benchmarks run side by side.
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
				// A connection for each caller: callers of a library that doesn't share
				// calls don't queue for connections.
				rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), PoolSize: callers})
				defer rdb.Close()
				callFrom(b, s, callers, bm.open(b, rdb))
			})
		}
	}
}

// callFrom makes b.N calls from the given number of goroutines. It also reports the processor
// time of the server.
func callFrom(b *testing.B, s *redistest.Server, callers int, call func() error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	before := processorTime(b, s)
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
	b.ReportMetric((processorTime(b, s)-before)/float64(b.N), "server-µs/op")
}

// processorTime returns the processor time of the server's main thread in microseconds.
func processorTime(b *testing.B, s *redistest.Server) float64 {
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
			// The library compares and sets, and repeats that if another caller has
			// changed the value. By default a call fails after ten attempts.
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

// The floor: the cheapest calls of a Redis server.

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

// floorIncr shares pipelines between callers. Calls that begin while a pipeline is in flight
// go into the next one.
func floorIncr(b *testing.B, rdb redis.UniversalClient) func() error {
	const maxCalls = 64
	calls := make(chan chan error, maxCalls)
	var wg sync.WaitGroup
	wg.Go(func() {
		for first := range calls {
			batch := []chan error{first}
			for len(batch) < maxCalls && len(calls) > 0 {
				batch = append(batch, <-calls)
			}
			pipe := rdb.Pipeline()
			for range batch {
				pipe.Incr(context.Background(), "incr")
			}
			_, err := pipe.Exec(context.Background())
			for _, reply := range batch {
				reply <- err
			}
		}
	})
	b.Cleanup(func() {
		close(calls)
		wg.Wait()
	})
	return func() error {
		reply := make(chan error, 1)
		calls <- reply
		return <-reply
	}
}

// BenchmarkRedisScript reports how long the server runs the script that decides about two
// tiers, when it is called for one caller and for 64.
func BenchmarkRedisScript(b *testing.B) {
	s := redistest.Start(b)
	rdb := s.Client()
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("n%d", n), func(b *testing.B) {
			plan, err := algorithms.NewPlan(redisTiers, 50*time.Millisecond) // the guard of a Policy
			if err != nil {
				b.Fatal(err)
			}
			quota, err := distributed.New(rdb, distributed.Options{}).Open("script", plan, nil)
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

// scripts returns how many scripts the server has run, and how many microseconds they took.
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

// BenchmarkRedisMemory reports the server memory of two quotas: one of two buckets, and one
// of an exact window of an hour that is full.
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
	// Without a guard no request is in flight, and none is stored as such.
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
		b.Fatalf("the keys are %q, %v, want one key", keys, err)
	}
	bytes, err := rdb.MemoryUsage(ctx, keys[0]).Result()
	if err != nil {
		b.Fatal(err)
	}
	return float64(bytes)
}
