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
	"github.com/apithrottle/throttle/internal/redistest"
)

// The tests here are about what breaks between a fleet and its Redis, or in it, while
// the fleet is at work. Each is one row of a table: how much more than the policy was
// admitted, and the longest time without an admission once the fault was over.

// A crew is what a fleet consists of.
type crew struct {
	members int // if zero, 3
	policy  throttle.Policy
	options distributed.Options
}

// A fleet is some processes in one: members that have nothing in common but Redis,
// each with a client, a store and a limiter of its own, and with callers who ask
// again and again.
type fleet struct {
	t        *testing.T
	tiers    []throttle.Tier
	limiters []*throttle.Limiter
	end      context.CancelFunc
	working  sync.WaitGroup
	lost     atomic.Int64 // how often OnLost was called

	mu     sync.Mutex // guards all below
	events []event
	errs   []error // of callers before the end
}

var (
	// In steady state these admit ten every two seconds, the guard included, ...
	inWindows = guarded(per(sec, 10, throttle.SlidingLog))
	// ... and these one every 20 ms.
	evenly = guarded(per(sec, 50, throttle.GCRA))
	// These are for bubbles, where nobody is late: a few every 250 ms.
	narrow = policy(per(200*ms, 10, throttle.SlidingLog), throttle.PerHour(10_000))
)

// guarded is a policy for real servers: no scheduler is late by a second.
func guarded(tier throttle.Tier) throttle.Policy {
	p := policy(tier, throttle.PerHour(10_000))
	p.Guard = sec
	return p
}

const (
	callers = 12        // of three members; each has one booking at most
	enough  = 15        // so many are admitted after a fault
	usual   = 300 * ms  // in a bubble, the longest time between two admissions where nothing is wrong
	resume  = sec       // in a bubble, the longest time that a fleet may take to go on
	ahead   = 600 * ms  // in a bubble, for so long what was booked before a fault is still admitted
	known   = 1200 * ms // in a bubble, for so long a fault may have no name
	watch   = 1200 * ms // how long a fleet in a bubble is watched
)

// startFleet sets a fleet to work, and returns when all of it has been for a while.
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
	until(t, "the whole fleet is at work", func() bool {
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
			f.events = append(f.events, event{Worker: member, Came: came.UnixMicro(), At: at.UnixMicro(), Cost: 1})
		case ctx.Err() == nil:
			f.errs = append(f.errs, err)
		}
		f.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// between returns what was admitted from one instant to another.
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

// finish ends the work when enough was admitted after the fault was over, and checks the
// row of the table that it prints: so much may be admitted beyond the policy. It returns
// for how long nothing was admitted, which is only in a bubble up to the limiter.
func (f *fleet) finish(fault string, over time.Time, most int) (resumed time.Duration) {
	f.t.Helper()
	until(f.t, "the fleet goes on", func() bool { return len(f.between(over, time.Now())) >= enough })
	last := time.Now()
	f.end()
	f.working.Wait()
	if len(f.errs) > 0 {
		f.t.Errorf("%d callers got errors, the first %v", len(f.errs), f.errs[0])
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
		f.t.Errorf("%d were admitted beyond the policy, want %d at most", excess, most)
	}
	return resumed
}

// within is finish in a bubble: order holds, and the fleet goes on within a time.
func (f *fleet) within(fault string, over time.Time, most int, longest time.Duration) {
	f.t.Helper()
	time.Sleep(watch - time.Since(over))
	resumed := f.finish(fault, over, most)
	checkOrder(f.t, f.events)
	if resumed > longest {
		f.t.Errorf("nothing was admitted for %v after the fault, want %v at most", resumed, longest)
	}
}

// coasts checks that nothing but what was booked before was admitted since an instant.
func (f *fleet) coasts(since time.Time) {
	f.t.Helper()
	if n := len(f.between(since, time.Now())); n > callers {
		f.t.Errorf("%d were admitted, and %d callers have one booking each", n, callers)
	}
}

// stands checks that nothing was admitted between two instants.
func (f *fleet) stands(from, to time.Time) {
	f.t.Helper()
	if some := f.between(from, to); len(some) > 0 {
		last := time.UnixMicro(some[len(some)-1].At).Sub(from)
		f.t.Errorf("%d were admitted, the last after %v of %v, want none", len(some), last, to.Sub(from))
	}
}

// unavailable checks what callers get whose patience ends in the fault, once it has a
// name: the cause.
func (f *fleet) unavailable(cause string) {
	f.t.Helper()
	for _, l := range f.limiters {
		until(f.t, "a caller whose context ends gets ErrUnavailable and "+cause, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 300*ms)
			defer cancel()
			err := l.Wait(ctx)
			return errors.Is(err, throttle.ErrUnavailable) && errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), cause)
		})
	}
}

// A spy sees what a client does: how often it calls the script, and how often it
// dials.
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

func TestFaults(t *testing.T) {
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
		{"paused, unheard", pausedUnheard},
		{"gone, with shares", func(t *testing.T) { goneWithShares(t, inWindows, 10) }},
		{"gone, with shares, GCRA", func(t *testing.T) { goneWithShares(t, evenly, 50) }},
		{"shares know", sharesKnow},
		{"shares of permits", sharesOfPermits},
		{"shares of scopes", sharesOfScopes},
		{"shares of scopes, waited for", sharesOfScopesWaited},
		{"scopes given up", scopesGivenUp},
		{"settled while away", settledWhileAway},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}

// A server that starts again has forgotten everything: one capacity too much may
// pass, besides what was booked before.
func killed(t *testing.T, p throttle.Policy, capacity int) {
	s := redistest.Start(t)
	f := startFleet(t, crew{policy: p}, s.Client)
	s.Restart()
	over := time.Now()
	until(t, "all processes have found out", func() bool { return f.lost.Load() >= 3 })
	f.finish("kill -9 and restart, "+p.Tiers[0].String(), over, capacity+callers)
	if n := f.lost.Load(); n != 3 {
		t.Errorf("OnLost was called %d times, want 3: once in each process", n)
	}
}

func scriptsFlushed(t *testing.T) {
	s := redistest.Start(t)
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

// A call whose reply is lost is not repeated: it may have booked, and what it booked
// is then lost.
func repliesLost(t *testing.T) {
	s := redistest.Start(t)
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
	if ran > asked || ran < asked/2 { // less where a connection was closed meanwhile
		t.Errorf("the server has run the script %d times, and was asked to %d times", ran, asked)
	}
}

func far(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		f := startFleet(t, crew{policy: narrow}, func() *redis.Client {
			return distant(t, s, func() time.Duration { return 20 * ms })
		})
		f.within("20 ms to Redis and back", time.Now(), 0, usual)
	})
}

// While Redis doesn't answer, Allow asks it now and then only, and otherwise has the answer
// at once.
func halfOpen(t *testing.T) {
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	options := distributed.Options{Timeout: 500 * ms} // less than the client's
	f := startFleet(t, crew{policy: inWindows, options: options}, proxy.Client)
	rdb, asked := proxy.Client(), new(calls.Counter)
	rdb.AddHook(asked)
	idle := limiter(t, throttle.Policy{Name: "idle", Tiers: inWindows.Tiers}, distributed.New(rdb, options))
	proxy.Hang(true)
	began := time.Now()
	for range 1000 {
		if idle.Allow() {
			t.Error("Allow is true, with nobody to ask")
		}
	}
	if n, most := asked.Count(), int64(4+10*time.Since(began).Seconds()); n > most {
		t.Errorf("Allow asked Redis %d times, want %d at most", n, most)
	}
	f.unavailable("no answer within Options.Timeout")
	f.coasts(began)
	proxy.Hang(false)
	f.finish("no answers, connections stay", time.Now(), 0)
}

func stopped(t *testing.T) {
	s := redistest.Start(t)
	f := startFleet(t, crew{policy: inWindows}, s.Client)
	s.Stop()
	time.Sleep(2 * sec)
	s.Resume()
	f.finish("SIGSTOP of the server for 2 s", time.Now(), 0)
}

// However many callers wait for a Redis that is gone, it is dialed now and then.
func gone(t *testing.T) {
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
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
	until(t, "it was dialed in vain, and again", func() bool { return spy.dials.Load() > before+2 })
	time.Sleep(2 * sec)
	n, most := spy.dials.Load()-before, int64(4+15*time.Since(began).Seconds())
	cancel()
	for range 1000 {
		if err := <-errs; !errors.Is(err, throttle.ErrUnavailable) || !errors.Is(err, context.Canceled) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a caller whose context ended got %v, want ErrUnavailable and the cause", err)
		}
	}
	if n > most {
		t.Errorf("there were %d attempts to connect, want %d at most", n, most)
	}
	f.coasts(began)
	proxy.Refuse(false)
	f.finish("connections refused, 1000 callers", time.Now(), 0)
}

// A server that refuses to write may do it later.
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
	f.unavailable(cause)
	f.coasts(began)
	f.finish(fault, do(end), 0)
}

func outOfMemory(t *testing.T) {
	limit := []any{"CONFIG", "SET", "maxmemory"}
	refusesWrites(t, redistest.Start(t), "maxmemory reached, noeviction", "OOM", append(limit, "1"), append(limit, "0"))
}

func demoted(t *testing.T) {
	refusesWrites(t, redistest.Start(t), "the server is a replica for a while", "READONLY", []any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"})
}

func noReplicas(t *testing.T) {
	s := redistest.Start(t)
	if v := s.Info("server", "redis_version"); strings.HasPrefix(v, "5.") || strings.HasPrefix(v, "6.0.") {
		t.Skip("Redis before 6.2 lets scripts write then")
	}
	least := []any{"CONFIG", "SET", "min-replicas-to-write"}
	refusesWrites(t, s, "too few replicas for min-replicas-to-write", "NOREPLICAS", append(least, "1"), append(least, "0"))
}

// The server can't save, as its directory is gone.
func notSaved(t *testing.T) {
	s := redistest.Start(t)
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
	until(t, "it could not save", func() bool { return s.Info("persistence", "rdb_last_bgsave_status") == "err" })
	began := time.Now()
	f.unavailable("MISCONF")
	f.coasts(began)
	set("save", "")
	f.finish("the server can't save", time.Now(), 0)
}

// The replica that takes over may lack the last admissions.
func sentinelFailover(t *testing.T) {
	s := redistest.StartSentinel(t)
	f := startFleet(t, crew{policy: inWindows}, s.Client)
	s.KillMaster()
	until(t, "the sentinels tell where the new master is", func() bool {
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
	until(t, "a replica takes over", func() bool { return c.Master(key) != old })
	f.finish("loss of the key's master in a Cluster", time.Now(), 10)
}

func slotMoved(t *testing.T) {
	c := redistest.StartCluster(t, 3, 0)
	f := startFleet(t, crew{policy: inWindows}, c.Client)
	began, key := time.Now(), keyIn(t, c)
	for _, to := range c.Nodes { // to two of them in fact
		if to != c.Master(key) {
			c.MoveSlot(key, to, func(bool) { time.Sleep(sec / 4) })
		}
	}
	f.finish("the key's slot moves in a Cluster, twice", began, 0)
	if n := f.lost.Load(); n != 0 {
		t.Errorf("OnLost was called %d times, want none", n)
	}
}

// keyIn is the name of the fleet's key, the only one in the cluster.
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
		t.Fatalf("the key was not found: %v", err)
	}
	return key
}

// A step forward can't be told from idleness: the same may pass.
func clock(t *testing.T, d time.Duration, p throttle.Policy, most int) {
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
		s.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd != "TIME" {
				return false
			}
			now := time.Now().UnixMicro() + offset.Load()
			c.WriteStrings([]string{strconv.FormatInt(now/1e6, 10), strconv.FormatInt(now%1e6, 10)})
			return true
		})
		f := startFleet(t, crew{policy: narrow}, func() *redis.Client { return near(t, s) })
		offset.Store(d.Microseconds())
		f.within("the clock of a miniredis steps "+d.String(), time.Now(), most, resume)
	})
}

// A pause is heard by those who sleep until their time, and who came first is still
// the first after it.
func paused(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		f := startFleet(t, crew{policy: narrow}, func() *redis.Client { return near(t, s) })
		f.pause("a pause of 1 s", 50*ms)
	})
}

// Where the message doesn't come through, the next answer tells.
func pausedUnheard(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		if err := near(t, s).Ping(t.Context()).Err(); err != nil { // starts the server
			t.Fatal(err)
		}
		s.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd != "SUBSCRIBE" {
				return false
			}
			c.WriteError("NOPERM No permissions to access a channel")
			return true
		})
		f := startFleet(t, crew{policy: narrow}, func() *redis.Client { return near(t, s) })
		f.pause("a pause of 1 s, the message is lost", 500*ms)
	})
}

func (f *fleet) pause(fault string, heard time.Duration) {
	f.t.Helper()
	began := time.Now()
	if err := f.limiters[0].Pause(context.Background(), sec); err != nil {
		f.t.Fatal(err)
	}
	told := time.Now()
	time.Sleep(time.Until(began.Add(sec)))
	f.stands(told.Add(heard), began.Add(sec))
	f.within(fault, began.Add(sec), 0, usual)
}

// Without Redis each process goes on with its share, and what they sent counts when
// it is back. The shares know nothing of each other: of what Redis admitted last, one
// process may have had all and the others none; and the same once more when Redis, as
// it has forgotten everything, is back for the first of them.
func goneWithShares(t *testing.T, p throttle.Policy, capacity int) {
	s := redistest.Start(t)
	options := distributed.Options{Outage: distributed.Outage{Workers: 3}}
	f := startFleet(t, crew{policy: p, options: options}, s.Client)
	s.Kill()
	began := time.Now()
	// What was booked before is admitted, too, once for each caller.
	until(t, "the fleet goes on without Redis", func() bool { return len(f.between(began, time.Now())) >= callers+enough })
	alone := len(f.between(began, time.Now())) - callers
	s.Restart()
	over := time.Now()
	until(t, "all processes have asked Redis again", func() bool { return f.lost.Load() >= 3 })
	f.finish("kill -9 and restart, with shares, "+p.Tiers[0].String(), over, 2*capacity)
	until(t, "what was sent without Redis is charged", func() bool {
		status, err := f.limiters[0].Status(context.Background())
		return err == nil && status.Tiers[1].Used >= int64(alone)
	})
}

// Who goes on alone has sent already what Redis admitted.
func sharesKnow(t *testing.T) {
	s := redistest.Start(t)
	p := throttle.Policy{Name: "fleet", Tiers: []throttle.Tier{throttle.PerHour(10)}, Guard: slow}
	l := limiter(t, p, distributed.New(s.Client(), distributed.Options{Timeout: slow, Outage: distributed.Outage{Workers: 1}}))
	for range 7 {
		if !l.Allow() {
			t.Fatal("Allow is false, within the limit")
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
		t.Errorf("Redis admitted 7, and then Allow was true %d times, want 3 of 10 in all", alone)
	}
}

// A permit counts from whoever it came, until it is released.
func sharesOfPermits(t *testing.T) {
	s := redistest.Start(t)
	p := throttle.Policy{Name: "fleet", Tiers: []throttle.Tier{{Limit: 2, Algorithm: throttle.Concurrency}}}
	l := limiter(t, p, distributed.New(s.Client(), distributed.Options{Outage: distributed.Outage{Workers: 1}}))
	acquire := func(patience time.Duration) (*throttle.Permit, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return l.Acquire(ctx, nil)
	}
	var held []*throttle.Permit
	full := func(when string) {
		t.Helper()
		for len(held) < 2 {
			permit, err := acquire(time.Minute)
			if err != nil {
				t.Fatalf("%s: with %d held: %v", when, len(held), err)
			}
			held = append(held, permit)
		}
		if _, err := acquire(300 * ms); err == nil {
			t.Fatalf("%s: 3 are open", when)
		}
	}
	release := func() {
		held[0].Release()
		held = held[1:]
	}
	for range 3 {
		full("with Redis")
		release()
	}
	s.Kill()
	full("alone, one is from before")
	release()
	full("alone")
	s.Restart()
	until(t, "Redis knows of those that are open", func() bool {
		status, err := l.Status(context.Background())
		return err == nil && status.Tiers[0].Used == 2
	})
	full("with Redis again, both are from before")
	release()
	release()
	full("with Redis again")
	release()
	release()
}

// Who goes on alone asks in one scope before the other is charged: that costs nothing.
func sharesOfScopes(t *testing.T) {
	s := redistest.Start(t)
	store := distributed.New(s.Client(), distributed.Options{Outage: distributed.Outage{Workers: 1}})
	inner := limiter(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerHour(10)}}, store)
	outer := limiter(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerHour(8)}}, store)
	l := inner.Within(outer)
	s.Kill()
	alone := 0
	for range 12 {
		if l.Allow() {
			alone++
		}
	}
	if alone != 8 {
		t.Errorf("Allow was true %d times, want 8: 10 in one scope and 8 in the other", alone)
	}
}

// The same for callers that wait: what is held in one scope while the other has no room is
// taken back.
func sharesOfScopesWaited(t *testing.T) {
	s := redistest.Start(t)
	store := distributed.New(s.Client(), distributed.Options{Outage: distributed.Outage{Workers: 1}})
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
		t.Errorf("%d were admitted, want 8: 10 in one scope and 8 in the other", n)
	}
	left := 0
	for inner.Allow() {
		left++
	}
	if left != 2 {
		t.Errorf("the scope of 10 has %d left, want 2", left)
	}
}

// A caller that gives up while one scope after the other is asked is charged in none.
func scopesGivenUp(t *testing.T) {
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	proxy.SetDelay(20 * ms)
	store := distributed.New(proxy.Client(), distributed.Options{})
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
	until(t, "both scopes have what was admitted", func() bool {
		status, err := l.Status(context.Background())
		return err == nil && status.Tiers[0].Used == admitted.Load() && status.Tiers[1].Used == admitted.Load()
	})
}

// What is settled while Redis is away arrives there although nobody asks for more.
func settledWhileAway(t *testing.T) {
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	p := throttle.Policy{Name: "fleet", Tiers: []throttle.Tier{{Limit: 1000, Window: time.Hour, Unit: "tokens", Estimated: true}}}
	rdb, asked := proxy.Client(), new(calls.Counter)
	rdb.AddHook(asked)
	l := limiter(t, p, distributed.New(rdb, distributed.Options{Lease: 2 * sec}))
	permit, err := l.Acquire(context.Background(), throttle.Cost{"tokens": 100})
	if err != nil {
		t.Fatal(err)
	}
	proxy.Refuse(true)
	proxy.Cut()
	before := asked.Count()
	if err := permit.Settle(throttle.Cost{"tokens": 10}); err != nil {
		t.Fatal(err)
	}
	until(t, "it was told in vain, and again", func() bool { return asked.Count() >= before+2 })
	proxy.Refuse(false)
	another := limiter(t, p, distributed.New(s.Client(), distributed.Options{}))
	until(t, "it was told", func() bool {
		status, err := another.Status(context.Background())
		return err == nil && status.Tiers[0].Used == 10
	})
}
