package distributed_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
)

// TestServerBundles checks that one call admits a caller in nested quotas if these are in one slot, on
// servers with functions and without, and that each quota is called if they are not.
func TestServerBundles(t *testing.T) {
	t.Parallel()
	const requests = 20
	run := func(t *testing.T, rdb redis.UniversalClient, o distributed.Options, together bool) {
		counter := new(bundleCalls)
		rdb.AddHook(counter)
		o.Timeout = slow
		s := distributed.New(rdb, o)
		l := limiter(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(50), per(sec, 50, throttle.GCRA)}}, s).
			Within(limiter(t, throttle.Policy{Name: "middle", Tiers: []throttle.Tier{throttle.PerHour(100)}}, s)).
			Within(limiter(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(60)}}, s))
		var callers sync.WaitGroup
		for range requests {
			callers.Go(func() {
				if err := l.Wait(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		status, err := l.Status(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if n := status.Tiers[2].Used; n < requests { // more if this machine was slower than the guard
			t.Errorf("got %d charged, want the %d admitted at least", n, requests)
		}
		if got := counter.calls.Load(); (got > 0) != together {
			t.Errorf("got %d calls with several keys, want some: %v", got, together)
		}
	}
	t.Run("one server", func(t *testing.T) {
		run(t, redistest.Start(t).PatientClient(), distributed.Options{Timeout: slow}, true)
	})
	t.Run("one server without functions", func(t *testing.T) {
		rdb := redistest.Start(t).PatientClient()
		rdb.AddHook(noFunctions{})
		run(t, rdb, distributed.Options{Timeout: slow}, true)
	})
	t.Run("cluster, one slot", func(t *testing.T) {
		run(t, redistest.StartCluster(t, 3, 0).PatientClient(), distributed.Options{Prefix: "{throttle}:", Timeout: slow}, true)
	})
	t.Run("cluster", func(t *testing.T) {
		run(t, redistest.StartCluster(t, 3, 0).PatientClient(), distributed.Options{Timeout: slow}, false)
	})
	t.Run("one node of several", func(t *testing.T) { // as behind a proxy
		rdb := redistest.Start(t).PatientClient()
		rdb.AddHook(crossSlot{})
		s := distributed.New(rdb, distributed.Options{Timeout: slow})
		l := limiter(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(50)}}, s).
			Within(limiter(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(50)}}, s))
		for range 3 {
			if err := l.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// bundleCalls counts the calls of the script with several keys.
type bundleCalls struct{ calls atomic.Int64 }

func (*bundleCalls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (j *bundleCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if isBundle(cmd) {
			j.calls.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (*bundleCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func isBundle(cmd redis.Cmder) bool {
	args := cmd.Args()
	n, ok := 0, len(args) > 2 && (args[0] == "fcall" || args[0] == "evalsha" || args[0] == "eval")
	if ok {
		n, ok = args[2].(int)
	}
	return ok && n > 1
}

// noFunctions refuses commands as a server without functions does.
type noFunctions struct{}

func (noFunctions) DialHook(next redis.DialHook) redis.DialHook { return next }

func (noFunctions) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "function" {
			cmd.SetErr(redisError("ERR unknown command 'function'"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func (noFunctions) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// crossSlot refuses calls with several keys, as a server with several slots does.
type crossSlot struct{}

func (crossSlot) DialHook(next redis.DialHook) redis.DialHook { return next }

func (crossSlot) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if isBundle(cmd) {
			cmd.SetErr(redisError("CROSSSLOT Keys in request don't hash to the same slot"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func (crossSlot) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

// TestBundleSlotMoves checks that callers are admitted while a slot moves, when the server refuses
// calls with keys that are new or have moved already. Each quota is then called.
func TestBundleSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	rdb := c.PatientClient()
	counter := new(bundleCalls)
	rdb.AddHook(counter)
	s := distributed.New(rdb, distributed.Options{Prefix: "{throttle}:", Timeout: slow})
	tiers := []throttle.Tier{throttle.PerMinute(100)} // reservations under short windows expire on a slow machine
	outer := limiter(t, throttle.Policy{Name: "outer", Tiers: tiers}, s)
	call := func(inner string) {
		t.Helper()
		for range 3 {
			if err := limiter(t, throttle.Policy{Name: inner, Tiers: tiers}, s).Within(outer).Wait(t.Context()); err != nil {
				t.Errorf("%s: %v", inner, err)
				return
			}
		}
	}
	call("before")
	from := c.Master("{throttle}")
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	c.MoveSlot("{throttle}", to, func(moved bool) {
		call("before")
		call(fmt.Sprint("new, moved ", moved))
	})
	before := counter.calls.Load()
	call("after")
	if counter.calls.Load() == before {
		t.Error("got no call with several keys after the move, want some")
	}
}
