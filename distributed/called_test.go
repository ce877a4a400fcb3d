package distributed_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/internal/soak"
)

// A callLog contains the calls that policies were told.
type callLog struct {
	mu  sync.Mutex
	all []throttle.CalledInfo
}

func (c *callLog) observer() *throttle.Observer {
	return &throttle.Observer{Called: func(i throttle.CalledInfo) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all = append(c.all, i)
	}}
}

// take returns the calls since the last take.
func (c *callLog) take() []throttle.CalledInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.all
	c.all = nil
	return all
}

// sent returns how many of the calls were made, and how many requests they decided.
func sent(all []throttle.CalledInfo) (calls, requests int) {
	for _, i := range all {
		if !i.Unsent {
			calls++
		}
		requests += i.Requests
	}
	return calls, requests
}

// storm uses a limiter in every way that calls Redis, and returns how many requests were admitted.
func storm(ctx context.Context, l *throttle.Limiter, requests int, longest time.Duration) int {
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			time.Sleep(rand.N(longest))
			ctx, cancel := context.WithTimeout(ctx, longest)
			defer cancel()
			switch {
			case i%40 == 1:
				_ = l.Pause(ctx, rand.N(longest/20))
			case i%40 == 2:
				_, _ = l.Status(ctx)
			case i%7 == 0:
				time.AfterFunc(rand.N(longest/20), cancel)
			}
			p, err := l.Acquire(ctx, nil)
			if err != nil {
				return
			}
			admitted.Add(1)
			if i%5 == 0 {
				_ = p.Cancel(context.Background())
			} else {
				p.Arrived()
			}
			p.Release()
		})
	}
	wg.Wait()
	return int(admitted.Load())
}

// TestCalledOnce checks that each call of Redis is told once, as the client counts them, and that the
// calls decide all requests.
func TestCalledOnce(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	for name, tiers := range map[string][]throttle.Tier{
		"windows": {per(sec, 20, throttle.SlidingLog), throttle.PerHour(10_000)},
		"leases":  {per(sec, 20, throttle.GCRA), {Limit: 5, Algorithm: throttle.Concurrency}},
		"budget":  {per(sec, 20, throttle.GCRA), throttle.Budget(200, "", throttle.Month)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				var log callLog
				rdb, asked := near(t, s), new(calls.Counter)
				rdb.AddHook(asked)
				redis := distributed.New(rdb, distributed.Options{})
				l := limiter(t, throttle.Policy{Name: "told", Tiers: tiers, Observer: log.observer()}, redis)
				if _, err := l.Status(t.Context()); err != nil { // loads the script
					t.Fatal(err)
				}
				synctest.Wait()
				log.take()
				before := asked.Count()
				admitted := storm(t.Context(), l, 300, 10*sec)
				time.Sleep(20 * sec)
				if err := redis.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				all := log.take()
				told, requests := sent(all)
				if n := int(asked.Count() - before); told != n || told != len(all) || told == 0 {
					t.Errorf("%d calls told, %d of them made, want %d", len(all), told, n)
				}
				if requests < admitted || admitted == 0 {
					t.Errorf("%d requests decided, want the %d admitted at least", requests, admitted)
				}
				for _, i := range all {
					if i.Policy != "told" || i.Err != nil || i.Duration < ms/2 || i.Requests > 64 {
						t.Errorf("%+v", i)
					}
				}
			})
		})
	}
}

// scriptRuns returns how often a server has run scripts and functions. A call of one that it does not have
// runs nothing.
func scriptRuns(t *testing.T, rdb *redis.Client) (runs int) {
	t.Helper()
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(stats) {
		var n, failed int
		name, fields, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "cmdstat_eval", "cmdstat_evalsha", "cmdstat_fcall":
			for field := range strings.SplitSeq(fields, ",") {
				_, _ = fmt.Sscanf(field, "calls=%d", &n)
				_, _ = fmt.Sscanf(field, "failed_calls=%d", &failed)
			}
			runs += n - failed
		}
	}
	return runs
}

// TestCalledOnceByServer is TestCalledOnce as a real server counts the runs, also if it forgets scripts.
func TestCalledOnceByServer(t *testing.T) {
	soak.Long(t, "TestCalledOnce plays it in memory")
	t.Parallel()
	var log callLog
	rdb := redistest.Start(t).PatientClient()
	store := distributed.New(rdb, distributed.Options{Timeout: slow})
	l := limiter(t, throttle.Policy{Name: "told", Tiers: []throttle.Tier{throttle.PerSecond(500), {Limit: 50, Algorithm: throttle.Concurrency}}, Observer: log.observer()}, store)
	if _, err := l.Status(t.Context()); err != nil { // loads the function
		t.Fatal(err)
	}
	before := scriptRuns(t, rdb)
	waitUntil(t, "the first call is told", func() bool { return len(log.take()) > 0 })
	time.AfterFunc(sec, func() { rdb.ScriptFlush(context.Background()) }) // calls that did not run are repeated
	admitted := storm(t.Context(), l, 1000, 3*sec)
	if err := store.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all []throttle.CalledInfo
	n := 0
	waitUntil(t, "all calls are told", func() bool {
		all = append(all, log.take()...)
		n = scriptRuns(t, rdb) - before
		return len(all) >= n
	})
	told, requests := sent(all)
	if told != n || requests < admitted {
		t.Errorf("%d calls told and %d requests decided, want %d and %d at least", told, requests, n, admitted)
	}
	for _, i := range all {
		if i.Err != nil || i.Duration <= 0 {
			t.Errorf("%+v", i)
		}
	}
}

// TestCalledOfForgetfulServer is TestCalledOnce beside messages while the server forgets each script at once.
func TestCalledOfForgetfulServer(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var log callLog
		rdb := near(t, s)
		rdb.AddHook(forgetful{near(t, s)})
		l := limiter(t, throttle.Policy{Name: "told", Tiers: []throttle.Tier{throttle.PerSecond(5)}, Observer: log.observer()}, distributed.New(rdb, distributed.Options{}))
		if err := l.Pause(t.Context(), 5*sec); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			if err := l.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(sec)
		log.take()
		s.Publish(onlyKey(t, rdb), "resume 4000000000")
		time.Sleep(2 * sec)
		told := log.take()
		if len(told) == 0 {
			t.Error("got no call after a message")
		}
		for _, i := range told {
			if i.Err != nil {
				t.Errorf("%+v", i)
			}
		}
		all.Wait()
	})
}

// forgetful makes the server forget all scripts before each pipeline.
type forgetful struct{ rdb *redis.Client }

func (forgetful) DialHook(next redis.DialHook) redis.DialHook { return next }

func (forgetful) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (f forgetful) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := f.rdb.ScriptFlush(ctx).Err(); err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

// TestCalledFailures checks the duration of calls, and what is told while Redis fails, is away, or
// answers too late.
func TestCalledFailures(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var log callLog
		reply := breakable(s)
		var far atomic.Int64
		far.Store(int64(80 * ms))
		rdb, asked := distant(t, s, func() time.Duration { return time.Duration(far.Load()) }), new(calls.Counter)
		rdb.AddHook(asked)
		l := limiter(t, throttle.Policy{Name: "told", Tiers: []throttle.Tier{throttle.PerSecond(50)}, Observer: log.observer()}, distributed.New(rdb, distributed.Options{}))
		try := func(after time.Duration) []throttle.CalledInfo {
			_ = l.Allow()
			time.Sleep(after)
			synctest.Wait()
			return log.take()
		}
		try(0) // connects
		before := asked.Count()
		if all := try(0); fmt.Sprint(all) != "[{told 80ms 1 false <nil>}]" {
			t.Errorf("a call that takes 80 ms: %+v", all)
		}
		reply(loading)
		failed := try(0)
		if len(failed) != 1 || failed[0].Unsent || failed[0].Requests != 0 || !errors.Is(failed[0].Err, throttle.ErrUnavailable) {
			t.Errorf("a call that fails: %+v", failed)
		}
		refused := try(0)
		if len(refused) != 1 || !refused[0].Unsent || refused[0].Duration != 0 || !errors.Is(refused[0].Err, throttle.ErrUnavailable) {
			t.Errorf("a call while Redis is away: %+v", refused)
		}
		reply("ERR broken")
		time.Sleep(sec)
		if broken := try(0); len(broken) != 1 || broken[0].Err == nil || errors.Is(broken[0].Err, throttle.ErrUnavailable) {
			t.Errorf("a call with an error that stays: %+v", broken)
		}
		reply("")
		far.Store(int64(1500 * ms))
		late := try(5 * sec) // the reply comes meanwhile, and is not told
		if len(late) != 1 || late[0].Duration != sec || !errors.Is(late[0].Err, throttle.ErrUnavailable) || !errors.Is(late[0].Err, context.DeadlineExceeded) {
			t.Errorf("a call with a late answer: %+v", late)
		}
		if n := asked.Count() - before; n != 4 {
			t.Errorf("%d calls made, want 4", n)
		}
	})
}

// TestCalledNested checks that a call for several quotas is told once, by the innermost policy, and that
// other calls are told by the policy whose quota made them.
func TestCalledNested(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprintf("together=%v", together), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				var log callLog
				rdb, asked := near(t, s), new(calls.Counter)
				rdb.AddHook(asked)
				if !together {
					rdb.AddHook(crossSlot{})
				}
				redis := distributed.New(rdb, distributed.Options{})
				open := func(name string, tiers ...throttle.Tier) *throttle.Limiter {
					return limiter(t, throttle.Policy{Name: name, Tiers: tiers, Observer: log.observer()}, redis)
				}
				around := open("outer", throttle.PerSecond(8))
				l := open("inner", throttle.PerSecond(10)).Within(around)
				if _, err := around.Status(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				log.take()
				before := asked.Count()
				for range 40 {
					p, err := l.Acquire(t.Context(), nil)
					if err != nil {
						t.Fatal(err)
					}
					p.Release()
				}
				time.Sleep(5 * sec)
				synctest.Wait()
				all, by := log.take(), make(map[string]int)
				for _, i := range all {
					by[i.Policy] += i.Requests
				}
				if n := int(asked.Count() - before); len(all) != n {
					t.Errorf("%d calls told, want %d", len(all), n)
				}
				if by["inner"] < 40 || (by["outer"] > 0) == together {
					t.Errorf("requests decided: %v", by)
				}
			})
		})
	}
}

// TestCalledCallsBack checks that Called may use the Limiter, also while a lease is renewed and callers
// wait.
func TestCalledCallsBack(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var l *throttle.Limiter
		var n, back atomic.Int64
		policy := throttle.Policy{Name: "told", Tiers: []throttle.Tier{throttle.PerSecond(20), {Limit: 5, Algorithm: throttle.Concurrency}}}
		policy.Observer = &throttle.Observer{Called: func(throttle.CalledInfo) {
			k := n.Add(1)
			if k > 200 {
				return
			}
			_, _ = l.Status(context.Background())
			if p, err := l.TryAcquire(t.Context(), nil); err == nil {
				p.Release()
			}
			if k%50 == 0 {
				_ = l.SetPolicy(context.Background(), policy)
			}
			if p, err := l.Acquire(context.Background(), nil); err == nil {
				p.Release()
			}
			back.Add(1)
		}}
		l = limiter(t, policy, distributed.New(near(t, s), distributed.Options{}))
		storm(t.Context(), l, 200, 10*sec)
		time.Sleep(hour)
		if back.Load() != 200 {
			t.Errorf("%d of 200 calls of Called returned", back.Load())
		}
		l.Close()
	})
}

// TestCalledBlocks checks that no request waits for a Called that does not return.
func TestCalledBlocks(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		block := make(chan struct{})
		defer close(block)
		o := &throttle.Observer{Called: func(throttle.CalledInfo) { <-block }}
		l := limiter(t, throttle.Policy{Name: "told", Tiers: []throttle.Tier{throttle.PerSecond(20)}, Observer: o}, distributed.New(near(t, s), distributed.Options{}))
		for range 200 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestCalledHandles checks that each Limiter tells the Observer of its own policy: of two that were
// opened apart, of a Group's keys, and after SetPolicy.
func TestCalledHandles(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		redis := distributed.New(near(t, s), distributed.Options{})
		var a, b, c, keys callLog
		p := throttle.Policy{Name: "told", Tiers: []throttle.Tier{throttle.PerSecond(20)}}
		observedBy := func(log *callLog) throttle.Policy {
			p := p
			p.Observer = log.observer()
			return p
		}
		la, lb, lc := limiter(t, observedBy(&a), redis), limiter(t, observedBy(&b), redis), limiter(t, p, redis)
		g, err := throttle.NewGroup(observedBy(&keys), redis, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		told := func(step string, use func(), want ...int) {
			t.Helper()
			use()
			synctest.Wait()
			for i, log := range []*callLog{&a, &b, &c, &keys} {
				if n := len(log.take()); n != want[i] {
					t.Errorf("%s: observer %d was told %d calls, want %d", step, i, n, want[i])
				}
			}
		}
		told("the first", func() { la.Allow(); la.Allow() }, 3, 0, 0, 0) // and the measured trip
		told("another", func() { lb.Allow() }, 0, 1, 0, 0)
		told("one without an Observer", func() { lc.Allow() }, 0, 0, 0, 0)
		told("keys", func() { g.For("k").Allow(); g.For("l").Allow() }, 0, 0, 0, 2)
		told("another observer", func() { _ = la.SetPolicy(t.Context(), observedBy(&c)); la.Allow() }, 0, 0, 1, 0)
		told("the others after SetPolicy", func() { lb.Allow(); lc.Allow() }, 0, 1, 0, 0)
		told("no observer", func() { _ = la.SetPolicy(t.Context(), p); la.Allow() }, 0, 0, 0, 0)
		told("keys after SetPolicy", func() { _ = g.SetPolicy(t.Context(), observedBy(&a)); g.For("k").Allow(); g.For("m").Allow() }, 2, 0, 0, 0)
		told("deleted", func() { g.Delete("k"); g.For("k").Allow() }, 1, 0, 0, 0)
	})
}
