package distributed_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/internal/soak"
)

// The tests here break something between a fleet and its Redis, or in Redis, while the fleet is at
// work. Each test is one row of a table: how many requests were admitted beyond the policy, and the
// longest time without an admission after the fault.

// A crew describes a fleet.
type crew struct {
	members int // If zero, 3
	policy  throttle.Policy
	options distributed.Options
}

// A fleet simulates several processes in one: its members share nothing but Redis. Each has a
// client, a store and a limiter of its own, and callers that send requests one after the other.
type fleet struct {
	t        *testing.T
	tiers    []throttle.Tier
	limiters []*throttle.Limiter
	end      context.CancelFunc
	working  sync.WaitGroup
	lost     atomic.Int64 // how often OnLost was called

	mu     sync.Mutex // guards all below
	events []event
	errs   []error // that callers got before the end
}

var (
	// inWindows admits ten every two seconds in steady state, the guard included.
	inWindows = guarded(per(sec, 10, throttle.SlidingLog))
	// evenly admits one every 20 ms in steady state.
	evenly = guarded(per(sec, 50, throttle.GCRA))
	// narrow is for bubbles, where no goroutine is late: a few every 250 ms.
	narrow = policy(per(200*ms, 10, throttle.SlidingLog), throttle.PerHour(10_000))
)

// guarded returns a policy for real servers. Its guard of a second exceeds any delay of the
// scheduler.
func guarded(tier throttle.Tier) throttle.Policy {
	p := policy(tier, throttle.PerHour(10_000))
	p.Guard = sec
	return p
}

const (
	callers = 12        // of three members; each has one reservation at most
	enough  = 15        // admissions after a fault with which a test ends
	usual   = 300 * ms  // in a bubble, the longest time between two admissions without a fault
	resume  = sec       // in a bubble, the longest time until a fleet admits again after a fault
	watch   = 1200 * ms // how long a test watches a fleet in a bubble
)

// startFleet starts a fleet, and returns when each of its members has been admitted.
func startFleet[C redis.UniversalClient](t *testing.T, c crew, client func() C) *fleet {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	f := &fleet{t: t, tiers: c.policy.Tiers, end: cancel}
	c.options.OnLost = func(string) { f.lost.Add(1) }
	c.policy.Name = "fleet"
	for range cmp.Or(c.members, 3) {
		f.limiters = append(f.limiters, limiter(t, c.policy, distributed.New(client(), c.options)))
	}
	began := time.Now()
	for i := range f.limiters {
		for range callers / 3 {
			f.working.Go(func() { f.work(ctx, i) })
		}
	}
	waitUntil(t, "the whole fleet is admitted", func() bool {
		busy := make(map[int]bool)
		for _, e := range f.between(began, time.Now()) {
			busy[e.Worker] = true
		}
		return len(busy) == len(f.limiters)
	})
	return f
}

func (f *fleet) work(ctx context.Context, member int) {
	for {
		came := time.Now()
		err := f.limiters[member].Wait(ctx)
		at := time.Now()
		f.mu.Lock()
		switch {
		case err == nil:
			f.events = append(f.events, event{Worker: member, Asked: came.UnixMicro(), At: at.UnixMicro(), Cost: 1})
		case ctx.Err() == nil:
			f.errs = append(f.errs, err)
		}
		f.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// between returns the admissions in [from, to).
func (f *fleet) between(from, to time.Time) (some []event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if from.UnixMicro() <= e.At && e.At < to.UnixMicro() {
			some = append(some, e)
		}
	}
	return some
}

// finish stops the fleet when enough requests were admitted after over, and logs the row of the
// table for fault. It checks that at most that many requests were admitted beyond the policy, and
// returns the longest time without an admission. Outside a bubble that time also depends on the
// machine.
func (f *fleet) finish(fault string, over time.Time, most int) (resumed time.Duration) {
	f.t.Helper()
	waitUntil(f.t, "the fleet admits again", func() bool { return len(f.between(over, time.Now())) >= enough })
	last := time.Now()
	f.end()
	f.working.Wait()
	if len(f.errs) > 0 {
		f.t.Errorf("got errors for %d callers, the first %v, want none", len(f.errs), f.errs[0])
	}
	slices.SortStableFunc(f.events, func(a, b event) int { return cmp.Compare(a.At, b.At) })

	provider, excess := counter(f.t, f.tiers...), 0
	before, gap := over.UnixMicro(), int64(0)
	for _, e := range f.events {
		if !provider.Arrive(e.At, e.cost()) {
			excess++
		}
		if e.At > before {
			before, gap = e.At, max(gap, e.At-before)
		}
	}
	resumed = time.Duration(max(gap, last.UnixMicro()-before)) * time.Microsecond
	f.t.Logf("| %s | %d | %v |", fault, excess, resumed.Round(ms))
	if excess > most {
		f.t.Errorf("got %d admitted beyond the policy, want %d at most", excess, most)
	}
	return resumed
}

// finishWithin is finish in a bubble. It checks the order of admissions too, and that the fleet
// admits again within longest.
func (f *fleet) finishWithin(fault string, over time.Time, most int, longest time.Duration) {
	f.t.Helper()
	time.Sleep(watch - time.Since(over))
	resumed := f.finish(fault, over, most)
	checkOrder(f.t, f.events)
	if resumed > longest {
		f.t.Errorf("got no admission for %v after the fault, want one within %v", resumed, longest)
	}
}

// checkReservedOnly checks that since an instant nothing was admitted but earlier reservations.
func (f *fleet) checkReservedOnly(since time.Time) {
	f.t.Helper()
	if n := len(f.between(since, time.Now())); n > callers {
		f.t.Errorf("got %d admitted, want %d at most, one reservation a caller", n, callers)
	}
}

// checkNone checks that nothing was admitted in [from, to).
func (f *fleet) checkNone(from, to time.Time) {
	f.t.Helper()
	if some := f.between(from, to); len(some) > 0 {
		last := time.UnixMicro(some[len(some)-1].At).Sub(from)
		f.t.Errorf("got %d admitted, the last after %v of %v, want none", len(some), last, to.Sub(from))
	}
}

// checkUnavailable checks that callers whose context ends during the fault get an error with the
// cause.
func (f *fleet) checkUnavailable(cause string) {
	f.t.Helper()
	for _, l := range f.limiters {
		waitUntil(f.t, "a caller whose context ends gets ErrUnavailable and "+cause, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 300*ms)
			defer cancel()
			err := l.Wait(ctx)
			return errors.Is(err, throttle.ErrUnavailable) && errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), cause)
		})
	}
}

// A spy counts the script calls and the dials of a client.
type spy struct {
	calls.Counter
	dials atomic.Int64
}

func (s *spy) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		s.dials.Add(1)
		return next(ctx, network, addr)
	}
}

// realSeconds is why -short leaves out what waits for a real server.
const realSeconds = "takes many seconds of real time"

func startForSeconds(t *testing.T) *redistest.Server {
	t.Helper()
	soak.Long(t, realSeconds)
	return redistest.Start(t)
}

func TestServerFaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"killed", func(t *testing.T) { killed(t, inWindows, 10) }},
		{"killed, GCRA", func(t *testing.T) { killed(t, evenly, 50) }},
		{"scripts flushed", scriptsFlushed},
		{"replies lost", repliesLost},
		{"far", far},
		{"half-open", halfOpen},
		{"stopped", stopped},
		{"gone", gone},
		{"out of memory", outOfMemory},
		{"demoted", demoted},
		{"no replicas", noReplicas},
		{"not saved", notSaved},
		{"failover of Sentinel", sentinelFailover},
		{"failover of Cluster", clusterFailover},
		{"slot moved", slotMoved},
		{"clock back", func(t *testing.T) { clock(t, -8*sec, inWindows, 0) }},
		{"clock back, GCRA", func(t *testing.T) { clock(t, -8*sec, evenly, 0) }},
		{"clock forward", func(t *testing.T) { clock(t, 30*sec, inWindows, 10+callers) }},
		{"clock forward, GCRA", func(t *testing.T) { clock(t, 30*sec, evenly, 50+callers) }},
		{"clock back, miniredis", func(t *testing.T) { miniredisClock(t, -8*sec, 0) }},
		{"clock forward, miniredis", func(t *testing.T) { miniredisClock(t, 30*sec, 10+callers) }},
		{"paused", paused},
		{"paused, message lost", pausedMessageLost},
		{"gone, with fallback", func(t *testing.T) { goneWithFallback(t, inWindows, 10) }},
		{"gone, with fallback, GCRA", func(t *testing.T) { goneWithFallback(t, evenly, 50) }},
		{"fallback counts earlier admissions", fallbackCountsAdmitted},
		{"fallback with permits", fallbackPermits},
		{"fallback with scopes", fallbackScopes},
		{"fallback with scopes, waiting", fallbackScopesWaiting},
		{"scopes canceled", scopesCanceled},
		{"settled while unavailable", settledWhileUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 6)
			t.Parallel()
			test.run(t)
		})
	}
}

// A server that restarts has lost everything. One capacity may be admitted again, and the
// reservations from before.
func killed(t *testing.T, p throttle.Policy, capacity int) {
	s := startForSeconds(t)
	f := startFleet(t, crew{policy: p}, s.Client)
	s.Restart()
	over := time.Now()
	waitUntil(t, "all processes have reported the loss", func() bool { return f.lost.Load() >= 3 })
	f.finish("kill -9 and restart, "+p.Tiers[0].String(), over, capacity+callers)
	if n := f.lost.Load(); n != 3 {
		t.Errorf("got %d calls of OnLost, want 3, one for each process", n)
	}
}

func scriptsFlushed(t *testing.T) {
	s := startForSeconds(t)
	f := startFleet(t, crew{policy: inWindows}, s.Client)
	began, admin := time.Now(), s.Client()
	for range 20 {
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * ms)
	}
	f.finish("SCRIPT FLUSH, 20 times a second", began, 0)
}

// A call whose reply is lost is not repeated, because it may have reserved times. Such reservations
// are lost.
func repliesLost(t *testing.T) {
	s := startForSeconds(t)
	var spies []*spy
	f := startFleet(t, crew{policy: inWindows}, func() *redis.Client {
		proxy := redistest.NewProxy(t, s.Addr())
		spy := &spy{Counter: calls.Counter{Called: func(n int64) {
			if n%3 == 0 {
				proxy.DropReplies(1)
			}
		}}}
		spies = append(spies, spy)
		client := proxy.Client()
		client.AddHook(spy)
		return client
	})
	f.finish("every 3rd reply lost", time.Now(), 0)
	ran, asked := scriptCalls(t, s), 0
	for _, spy := range spies {
		asked += int(spy.Count())
	}
	if ran > asked || ran < asked/2 { // fewer if a connection was closed meanwhile
		t.Errorf("the server ran the script %d times, want %d to %d", ran, asked/2, asked)
	}
}

func far(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		f := startFleet(t, crew{policy: narrow}, func() *redis.Client {
			return distant(t, s, func() time.Duration { return 20 * ms })
		})
		f.finishWithin("20 ms to Redis and back", time.Now(), 0, usual)
	})
}

// While Redis does not answer, Allow calls it only now and then, and otherwise returns at once.
func halfOpen(t *testing.T) {
	proxy := redistest.NewProxy(t, startForSeconds(t).Addr())
	options := distributed.Options{Timeout: 500 * ms} // less than the client's
	f := startFleet(t, crew{policy: inWindows, options: options}, proxy.Client)
	rdb, asked := proxy.Client(), new(calls.Counter)
	rdb.AddHook(asked)
	idle := limiter(t, throttle.Policy{Name: "idle", Tiers: inWindows.Tiers}, distributed.New(rdb, options))
	proxy.Hang(true)
	began := time.Now()
	for range 1000 {
		if idle.Allow() {
			t.Error("got Allow = true without an answer of Redis, want false")
		}
	}
	if n, most := asked.Count(), int64(4+10*time.Since(began).Seconds()); n > most {
		t.Errorf("got %d calls of Redis by Allow, want %d at most", n, most)
	}
	f.checkUnavailable("no answer within Options.Timeout")
	f.checkReservedOnly(began)
	proxy.Hang(false)
	f.finish("no answers, connections stay", time.Now(), 0)
}

func stopped(t *testing.T) {
	s := startForSeconds(t)
	f := startFleet(t, crew{policy: inWindows}, s.Client)
	s.Stop()
	time.Sleep(2 * sec)
	s.Resume()
	f.finish("SIGSTOP of the server for 2 s", time.Now(), 0)
}

// A Redis that is gone is dialed now and then only, however many callers wait for it.
func gone(t *testing.T) {
	proxy := redistest.NewProxy(t, startForSeconds(t).Addr())
	spy := new(spy)
	f := startFleet(t, crew{members: 1, policy: inWindows}, func() *redis.Client {
		client := proxy.Client()
		client.AddHook(spy)
		return client
	})
	proxy.Refuse(true)
	proxy.Cut()
	began, before := time.Now(), spy.dials.Load()
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	for range 1000 {
		go func() { errs <- f.limiters[0].Wait(ctx) }()
	}
	waitUntil(t, "it was dialed three times without success", func() bool { return spy.dials.Load() > before+2 })
	time.Sleep(2 * sec)
	n, most := spy.dials.Load()-before, int64(4+15*time.Since(began).Seconds())
	cancel()
	for range 1000 {
		// On a slow machine Options.Timeout passes before the last attempt to connect is refused.
		if err := <-errs; !errors.Is(err, throttle.ErrUnavailable) || !errors.Is(err, context.Canceled) ||
			!errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("canceled caller: got %v, want ErrUnavailable and the cause", err)
		}
	}
	if n > most {
		t.Errorf("got %d attempts to connect, want %d at most", n, most)
	}
	f.checkReservedOnly(began)
	proxy.Refuse(false)
	f.finish("connections refused, 1000 callers", time.Now(), 0)
}

// refusesWrites runs a fleet on a server that refuses writes from the command begin to the command
// end.
func refusesWrites(t *testing.T, s *redistest.Server, fault, cause string, begin, end []any) {
	f := startFleet(t, crew{policy: inWindows}, s.Client)
	admin := s.Client()
	do := func(command []any) time.Time {
		if err := admin.Do(t.Context(), command...).Err(); err != nil {
			t.Fatal(err)
		}
		return time.Now()
	}
	began := do(begin)
	f.checkUnavailable(cause)
	f.checkReservedOnly(began)
	f.finish(fault, do(end), 0)
}

func outOfMemory(t *testing.T) {
	limit := []any{"CONFIG", "SET", "maxmemory"}
	refusesWrites(t, startForSeconds(t), "maxmemory reached, noeviction", "OOM", append(limit, "1"), append(limit, "0"))
}

func demoted(t *testing.T) {
	refusesWrites(t, startForSeconds(t), "the server is a replica for a while", "READONLY", []any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"})
}

func noReplicas(t *testing.T) {
	s := startForSeconds(t)
	if v := s.Info("server", "redis_version"); strings.HasPrefix(v, "5.") || strings.HasPrefix(v, "6.0.") {
		t.Skip("Redis before 6.2 lets scripts write then")
	}
	least := []any{"CONFIG", "SET", "min-replicas-to-write"}
	refusesWrites(t, s, "too few replicas for min-replicas-to-write", "NOREPLICAS", append(least, "1"), append(least, "0"))
}

// The server cannot save, because its directory is gone.
func notSaved(t *testing.T) {
	s := startForSeconds(t)
	admin := s.Client()
	dir, err := admin.ConfigGet(t.Context(), "dir").Result()
	if err != nil {
		t.Fatal(err)
	}
	f := startFleet(t, crew{policy: inWindows}, s.Client)
	if err := os.RemoveAll(dir["dir"]); err != nil {
		t.Fatal(err)
	}
	set := func(name, value string) {
		t.Helper()
		if err := admin.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("save", "3600 1")
	if err := admin.BgSave(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the server has failed to save", func() bool { return s.Info("persistence", "rdb_last_bgsave_status") == "err" })
	began := time.Now()
	f.checkUnavailable("MISCONF")
	f.checkReservedOnly(began)
	set("save", "")
	f.finish("the server cannot save", time.Now(), 0)
}

// The replica that takes over may lack the last admissions.
func sentinelFailover(t *testing.T) {
	s := redistest.StartSentinel(t)
	f := startFleet(t, crew{policy: inWindows}, s.Client)
	s.KillMaster()
	waitUntil(t, "the sentinels report the new master", func() bool {
		for _, n := range s.Sentinels {
			if !strings.Contains(n.Info("sentinel", "master0"), "address="+s.Replica.Addr()) {
				return false
			}
		}
		return true
	})
	f.finish("failover by Sentinel", time.Now(), 10)
}

func clusterFailover(t *testing.T) {
	c := redistest.StartCluster(t, 3, 1)
	f := startFleet(t, crew{policy: inWindows}, c.Client)
	key := keyIn(t, c)
	old := c.Master(key)
	old.Kill()
	waitUntil(t, "a replica has taken over", func() bool { return c.Master(key) != old })
	f.finish("loss of the key's master in a Cluster", time.Now(), 10)
}

func slotMoved(t *testing.T) {
	c := redistest.StartCluster(t, 3, 0)
	f := startFleet(t, crew{policy: inWindows}, c.Client)
	began, key := time.Now(), keyIn(t, c)
	for _, to := range c.Nodes { // two of the three nodes
		if to != c.Master(key) {
			c.MoveSlot(key, to, func(bool) { time.Sleep(sec / 4) })
		}
	}
	f.finish("the key's slot moves in a Cluster, twice", began, 0)
	if n := f.lost.Load(); n != 0 {
		t.Errorf("got %d calls of OnLost, want none", n)
	}
}

// keyIn returns the fleet's key, the only key in the cluster.
func keyIn(t *testing.T, c *redistest.Cluster) (key string) {
	t.Helper()
	err := c.Client().ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		keys, err := node.Keys(ctx, "*").Result()
		if len(keys) > 0 {
			key = keys[0]
		}
		return err
	})
	if err != nil || key == "" {
		t.Fatalf("no key found: %v", err)
	}
	return key
}

// A step forward looks like idleness, so one capacity may be admitted again.
func clock(t *testing.T, d time.Duration, p throttle.Policy, most int) {
	soak.Long(t, realSeconds)
	s, step := redistest.StartWithClock(t)
	f := startFleet(t, crew{policy: p}, s.Client)
	step(d)
	f.finish("the clock steps "+d.String()+", "+p.Tiers[0].String(), time.Now(), most)
}

func miniredisClock(t *testing.T, d time.Duration, most int) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var offset atomic.Int64
		rdb := near(t, s) // starts the server
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		redismem.Hook(s, func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd != "TIME" {
				return false
			}
			now := time.Now().UnixMicro() + offset.Load()
			c.WriteStrings([]string{strconv.FormatInt(now/1e6, 10), strconv.FormatInt(now%1e6, 10)})
			return true
		})
		f := startFleet(t, crew{policy: narrow}, func() *redis.Client { return near(t, s) })
		offset.Store(d.Microseconds())
		f.finishWithin("the clock of a miniredis steps "+d.String(), time.Now(), most, resume)
	})
}

// A pause reaches callers that sleep until their time. After it, callers are admitted in the order
// in which they came.
func paused(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		f := startFleet(t, crew{policy: narrow}, func() *redis.Client { return near(t, s) })
		f.checkPause("a pause of 1 s", 50*ms)
	})
}

// A process that does not get the message learns of the pause with its next reply.
func pausedMessageLost(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		if err := near(t, s).Ping(t.Context()).Err(); err != nil { // starts the server
			t.Fatal(err)
		}
		redismem.Hook(s, func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd != "SUBSCRIBE" {
				return false
			}
			c.WriteError("NOPERM No permissions to access a channel")
			return true
		})
		f := startFleet(t, crew{policy: narrow}, func() *redis.Client { return near(t, s) })
		f.checkPause("a pause of 1 s, the message is lost", 500*ms)
	})
}

func (f *fleet) checkPause(fault string, reached time.Duration) {
	f.t.Helper()
	began := time.Now()
	if err := f.limiters[0].Pause(context.Background(), sec); err != nil {
		f.t.Fatal(err)
	}
	returned := time.Now()
	time.Sleep(time.Until(began.Add(sec)))
	f.checkNone(returned.Add(reached), began.Add(sec))
	f.finishWithin(fault, began.Add(sec), 0, usual)
}

// Without Redis each process continues with its part of the limit, and what it sends counts when
// Redis is back. Admissions by Redis just before the fault may all have gone to one process, and
// the parts do not account for that: one capacity may be admitted in excess. Another may be when
// Redis, which has lost everything, is back for the first process.
func goneWithFallback(t *testing.T, p throttle.Policy, capacity int) {
	s := redistest.Start(t)
	options := distributed.Options{Fallback: distributed.Fallback{Workers: 3}}
	f := startFleet(t, crew{policy: p, options: options}, s.Client)
	for _, l := range f.limiters { // a process that has only been admitted by its fallback would not notice the loss
		waitUntil(t, "Redis has answered all processes", func() bool {
			_, err := l.Status(context.Background())
			return err == nil
		})
	}
	s.Kill()
	began := time.Now()
	// Each caller is also admitted with its reservation from before.
	waitUntil(t, "the fleet admits without Redis", func() bool { return len(f.between(began, time.Now())) >= callers+enough })
	alone := len(f.between(began, time.Now())) - callers
	s.Restart()
	over := time.Now()
	waitUntil(t, "all processes have called Redis again", func() bool { return f.lost.Load() >= 3 })
	f.finish("kill -9 and restart, with fallback, "+p.Tiers[0].String(), over, 2*capacity)
	waitUntil(t, "what was sent without Redis is charged", func() bool {
		status, err := f.limiters[0].Status(context.Background())
		return err == nil && status.Tiers[1].Used >= int64(alone)
	})
}

// A process that continues without Redis counts what Redis has admitted before.
func fallbackCountsAdmitted(t *testing.T) {
	s := redistest.Start(t)
	p := throttle.Policy{Name: "fleet", Tiers: []throttle.Tier{throttle.PerHour(10)}, Guard: slow}
	l := limiter(t, p, distributed.New(s.Client(), distributed.Options{Timeout: slow, Fallback: distributed.Fallback{Workers: 1}}))
	for range 7 {
		if !l.Allow() {
			t.Fatal("got Allow = false within the limit, want true")
		}
	}
	s.Kill()
	alone := 0
	for range 10 {
		if l.Allow() {
			alone++
		}
	}
	if alone != 3 {
		t.Errorf("got Allow = true %d times after Redis admitted 7 of 10, want 3", alone)
	}
}

// A permit counts until it is released, whether Redis or the process admitted it.
func fallbackPermits(t *testing.T) {
	s := redistest.Start(t)
	p := throttle.Policy{Name: "fleet", Tiers: []throttle.Tier{{Limit: 2, Algorithm: throttle.Concurrency}}}
	l := limiter(t, p, distributed.New(s.Client(), distributed.Options{Fallback: distributed.Fallback{Workers: 1}}))
	acquire := func(timeout time.Duration) (*throttle.Permit, error) {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		return l.Acquire(ctx, nil)
	}
	var held []*throttle.Permit
	checkFull := func(when string) {
		t.Helper()
		for len(held) < 2 {
			permit, err := acquire(time.Minute)
			if err != nil {
				t.Fatalf("%s: got no permit with %d held: %v", when, len(held), err)
			}
			held = append(held, permit)
		}
		if _, err := acquire(300 * ms); err == nil {
			t.Fatalf("%s: got 3 permits open, want 2 at most", when)
		}
	}
	release := func() {
		held[0].Release()
		held = held[1:]
	}
	for range 3 {
		checkFull("with Redis")
		release()
	}
	s.Kill()
	checkFull("without Redis, one permit from before")
	release()
	checkFull("without Redis")
	s.Restart()
	waitUntil(t, "Redis counts the open permits", func() bool {
		status, err := l.Status(context.Background())
		return err == nil && status.Tiers[0].Used == 2
	})
	checkFull("with Redis again, both permits from before")
	release()
	release()
	checkFull("with Redis again")
	release()
	release()
}

// A process that continues without Redis asks one scope before it charges the other. Asking costs
// nothing.
func fallbackScopes(t *testing.T) {
	s := redistest.Start(t)
	store := distributed.New(s.Client(), distributed.Options{Fallback: distributed.Fallback{Workers: 1}})
	inner := limiter(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerHour(10)}, Guard: slow}, store)
	outer := limiter(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerHour(8)}, Guard: slow}, store)
	l := inner.Within(outer)
	s.Kill()
	alone := 0
	waitUntil(t, "the outer scope is used up", func() bool { // a request that is late is returned
		if l.Allow() {
			alone++
		}
		return alone == 8
	})
	for range 4 {
		if l.Allow() {
			t.Error("got Allow = true 9 times, want 8: the scopes allow 10 and 8")
		}
	}
}

// Callers that wait return what they hold in one scope while the other has no room.
func fallbackScopesWaiting(t *testing.T) {
	s := redistest.Start(t)
	store := distributed.New(s.Client(), distributed.Options{Fallback: distributed.Fallback{Workers: 1}})
	inner := limiter(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerHour(10)}, Guard: slow}, store)
	outer := limiter(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerHour(8)}, Guard: slow}, store)
	l := inner.Within(outer)
	s.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 4*sec)
	defer cancel()
	var alone atomic.Int64
	var callers sync.WaitGroup
	for range 12 {
		callers.Go(func() {
			if l.Wait(ctx) == nil {
				alone.Add(1)
			}
		})
	}
	callers.Wait()
	if n := alone.Load(); n != 8 {
		t.Errorf("got %d admitted, want 8: the scopes allow 10 and 8", n)
	}
	left := 0
	for inner.Allow() {
		left++
	}
	if left != 2 {
		t.Errorf("got %d left in the scope of 10, want 2", left)
	}
}

// A caller that is canceled while its scopes are asked one after the other is charged in none of
// them.
func scopesCanceled(t *testing.T) {
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	proxy.SetDelay(20 * ms)
	store := distributed.New(patientClient(t, proxy), distributed.Options{Timeout: slow}) // a lost reply loses its reservations
	open := func(name string) *throttle.Limiter {
		return limiter(t, throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerHour(1000)}, Guard: 60 * sec}, store)
	}
	l := open("inner").Within(open("outer"))
	var admitted atomic.Int64
	var callers sync.WaitGroup
	for i := range 30 {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(20*i)*ms)
			defer cancel()
			if l.Wait(ctx) == nil {
				admitted.Add(1)
			}
		})
	}
	callers.Wait()
	waitUntil(t, "both scopes charge what was admitted", func() bool {
		status, err := l.Status(context.Background())
		return err == nil && status.Tiers[0].Used == admitted.Load() && status.Tiers[1].Used == admitted.Load()
	})
}

// patientClient returns a client that waits for replies however busy the machine is.
func patientClient(t *testing.T, p *redistest.Proxy) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: p.Addr(), DialerRetries: 1, ReadTimeout: slow})
	t.Cleanup(func() { c.Close() })
	return c
}

// A cost that is settled while Redis is unavailable reaches it later, even if no further request is
// made. On a real server a report could come after the lease has ended, and then count beside the
// estimate.
func settledWhileUnavailable(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		p := throttle.Policy{Name: "fleet", Tiers: []throttle.Tier{{Limit: 1000, Window: time.Hour, Unit: "tokens", Estimated: true}}}
		rdb, asked := near(t, s), new(calls.Counter)
		rdb.AddHook(asked)
		l := limiter(t, p, distributed.New(rdb, distributed.Options{}))
		permit, err := l.Acquire(context.Background(), throttle.Cost{"tokens": 100})
		if err != nil {
			t.Fatal(err)
		}
		reply := breakable(s)
		reply(loading)
		before := asked.Count()
		if err := permit.Settle(throttle.Cost{"tokens": 10}); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "Redis was called twice without success", func() bool { return asked.Count() >= before+2 })
		reply("")
		another := limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
		waitUntil(t, "Redis has the settled cost", func() bool {
			status, err := another.Status(context.Background())
			return err == nil && status.Tiers[0].Used == 10
		})
	})
}
