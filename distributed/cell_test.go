package distributed_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/store"
)

// A cellServer answers CL.THROTTLE as one of the servers that implement it, after their sources. It
// computes in whole nanoseconds and rounds replies as the server does.
type cellServer struct {
	*miniredis.Miniredis
	// seconds converts a duration as the server reports it.
	seconds func(time.Duration) int64
	clock   func() time.Time

	mu    sync.Mutex // guards all below
	tat   map[string]time.Time
	calls [][]string
	// mute makes the server run commands and close the connection without an answer.
	mute bool
	// during runs while the server executes a command.
	during func()
}

// redisCell truncates to milliseconds, and then rounds up to seconds.
func redisCell(d time.Duration) int64 {
	if ms := int64(d / time.Millisecond); ms > 0 {
		return (ms + 999) / 1000
	}
	return 0
}

// dragonfly rounds up to milliseconds, and then always up to the next second.
func dragonfly(d time.Duration) int64 {
	if ms := int64((d + time.Millisecond - 1) / time.Millisecond); ms > 0 {
		return ms/1000 + 1
	}
	return 0
}

var dialects = map[string]func(time.Duration) int64{"redis-cell": redisCell, "dragonfly": dragonfly}

// newCellServer returns a server in memory, which a test can use in a bubble of synctest.
func newCellServer(t *testing.T, seconds func(time.Duration) int64) *cellServer {
	s := &cellServer{Miniredis: miniredis.NewMiniRedis(), seconds: seconds, clock: time.Now, tat: make(map[string]time.Time)}
	t.Cleanup(s.Close)
	c, err := s.Dial() // starts it
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := s.Server().Register("CL.THROTTLE", s.throttle); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *cellServer) client(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", Dialer: func(context.Context, string, string) (net.Conn, error) { return s.Dial() }})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func (s *cellServer) throttle(c *server.Peer, _ string, args []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, args)
	var n [4]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(args[1+i], 10, 64)
	}
	reply, err := s.decide(args[0], n[0]+1, n[1], time.Duration(n[2])*time.Second, n[3])
	if s.during != nil {
		s.during()
	}
	switch {
	case s.mute:
		c.Close()
	case err != "":
		c.WriteError(err)
	default:
		c.WriteLen(len(reply))
		for _, n := range reply {
			c.WriteInt(int(n))
		}
	}
}

// decide runs the generic cell rate algorithm.
func (s *cellServer) decide(key string, burst, count int64, period time.Duration, n int64) (reply [5]int64, err string) {
	interval := period / time.Duration(count)
	if interval == 0 {
		return reply, "Cell error: Zero rates are not supported"
	}
	now, full := s.clock(), interval*time.Duration(burst)
	tat := s.tat[key]
	if tat.Before(now) {
		tat = now
	}
	cost := interval * time.Duration(n)
	wait := tat.Add(cost - full).Sub(now)
	reply = [5]int64{0, burst, 0, -1, 0}
	if wait > 0 {
		reply[0] = 1
		if cost <= full {
			reply[3] = s.seconds(wait)
		}
	} else if tat = tat.Add(cost); n > 0 {
		s.tat[key] = tat
	}
	left := tat.Sub(now)
	reply[2] = max(0, int64((full-left)/interval))
	reply[4] = s.seconds(left)
	return reply, ""
}

func (s *cellServer) called() [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func gcra(limit int64, window time.Duration, burst int64) throttle.Policy {
	return throttle.Policy{Name: "api", Guard: throttle.NoGuard, Tiers: []throttle.Tier{
		{Limit: limit, Window: window, Algorithm: throttle.GCRA, Burst: burst}}}
}

func newLimiter(t *testing.T, p throttle.Policy, s throttle.Store) *throttle.Limiter {
	t.Helper()
	lim, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

func openCell(t *testing.T, s store.Store, limit int64, window time.Duration, burst int64) store.Quota {
	t.Helper()
	plan, err := algorithms.NewPlan(gcra(limit, window, burst).Tiers, 0)
	if err != nil {
		t.Fatal(err)
	}
	q, err := s.Open("api", plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// SetPolicy keeps the tier, because CL.THROTTLE does not keep what is charged under another one.
func TestCellSetPolicy(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	p := gcra(10, time.Second, 3)
	l := newLimiter(t, p, distributed.Cell(rdb))
	p.MaxQueue = 7
	if err := l.SetPolicy(t.Context(), p); err != nil {
		t.Errorf("the same tier: %v", err)
	}
	if err := l.SetPolicy(t.Context(), gcra(20, time.Second, 3)); err == nil || !strings.Contains(err.Error(), "SetPolicy: distributed: Cell: CL.THROTTLE") {
		t.Errorf("another tier: %v", err)
	}
}

// Cell opens the policies that CL.THROTTLE can enforce. For any other policy the error names each
// field that is wrong, its value and the fix.
func TestCellOpen(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	tier := func(change func(*throttle.Tier)) throttle.Policy {
		p := gcra(10, time.Second, 3)
		change(&p.Tiers[0])
		return p
	}
	two := gcra(10, time.Second, 3)
	two.Tiers = append(two.Tiers, throttle.PerHour(1000))
	guarded := gcra(10, time.Second, 3)
	guarded.Guard = 0
	for name, c := range map[string]struct {
		policy throttle.Policy
		client redis.UniversalClient
		// want lists parts of the error. If nil, New succeeds.
		want []string
	}{
		"gcra":          {gcra(10, time.Second, 3), rdb, nil},
		"token bucket":  {tier(func(t *throttle.Tier) { t.Algorithm = throttle.TokenBucket }), rdb, nil},
		"leaky bucket":  {tier(func(t *throttle.Tier) { t.Algorithm = throttle.LeakyBucket }), rdb, nil},
		"other unit":    {tier(func(t *throttle.Tier) { t.Unit = "tokens" }), rdb, nil},
		"fastest":       {gcra(1000, time.Second, 1), rdb, nil},
		"slowest":       {gcra(1, algorithms.MaxWindow, 1), rdb, nil},
		"too fast":      {gcra(1001, time.Second, 1), rdb, []string{"Limit is 1001: ", "at most 1000 per 1s", "distributed.New"}},
		"fraction":      {gcra(15, 1500*time.Millisecond, 1), rdb, []string{"Window is 1.5s: ", "whole seconds", "distributed.New"}},
		"guard":         {guarded, rdb, []string{"Guard is 50ms: ", "set NoGuard", "distributed.New"}},
		"two tiers":     {two, rdb, []string{"Tiers are 2: ", "distributed.New"}},
		"sliding log":   {throttle.Policy{Name: "api", Guard: throttle.NoGuard, Tiers: []throttle.Tier{throttle.PerSecond(5)}}, rdb, []string{"Algorithm is sliding_log: ", "gcra", "distributed.New"}},
		"concurrency":   {throttle.Policy{Name: "api", Guard: throttle.NoGuard, Tiers: []throttle.Tier{{Limit: 5, Algorithm: throttle.Concurrency}}}, rdb, []string{"Algorithm is concurrency: "}},
		"no client":     {gcra(10, time.Second, 3), nil, []string{"the client is nil"}},
		"nil client":    {gcra(10, time.Second, 3), (*redis.Client)(nil), []string{"the client is nil"}},
		"several wrong": {throttle.Policy{Name: "api", Tiers: []throttle.Tier{{Limit: 9000, Window: 1500 * time.Millisecond, Algorithm: throttle.GCRA}}}, nil, []string{"client", "Guard", "Window", "Limit"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := throttle.New(c.policy, distributed.Cell(c.client))
			if (err != nil) != (c.want != nil) {
				t.Fatalf("New: got error %v, want %q", err, c.want)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("New: got error %v, want one that contains %q", err, part)
				}
			}
		})
	}
	s := distributed.Cell(rdb)
	newLimiter(t, gcra(10, time.Second, 3), s)
	if _, err := throttle.New(gcra(20, time.Second, 3), s); err == nil {
		t.Error("New opened one name with two different tiers, want an error")
	}
}

// A request is one command with the arguments that the server takes for the tier. The key does not
// reveal the policy's name. The command is sent at most once.
func TestCellSends(t *testing.T) {
	s := newCellServer(t, redisCell)
	lim := newLimiter(t, gcra(100, time.Minute, 7), distributed.Cell(s.client(t)))
	if err := lim.WaitN(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	calls := s.called()
	if len(calls) != 1 || !reflect.DeepEqual(calls[0][1:], []string{"6", "100", "60", "3"}) {
		t.Errorf("got calls %q, want one of 6 100 60 3", calls)
	}
	if key := calls[0][0]; !strings.HasPrefix(key, "throttle:cell:") || strings.Contains(key, "api") {
		t.Errorf("got key %q, want throttle:cell: and a hash", key)
	}
	s.mu.Lock()
	s.mute = true
	s.mu.Unlock()
	q := openCell(t, distributed.Cell(s.client(t)), 100, time.Minute, 7)
	_, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{1}})
	if n := len(s.called()); !errors.Is(err, store.ErrUnavailable) || n != 2 {
		t.Errorf("lost reply: got %v after %d calls, want ErrUnavailable after 1", err, n-1)
	}
}

// A budget tier over CL.THROTTLE refuses at once, too.
func TestCellBudget(t *testing.T) {
	p := gcra(10, time.Minute, 2)
	p.Tiers[0].Budget = true
	l := newLimiter(t, p, distributed.Cell(newCellServer(t, redisCell).client(t)))
	for i, want := range []error{nil, nil, throttle.ErrExhausted} {
		if err := l.Wait(t.Context()); !errors.Is(err, want) {
			t.Errorf("request %d: got %v, want %v", i, err, want)
		}
	}
}

// The wait after a refusal is the longest that is possible, given what the server reports and what
// the tier can need.
func TestCellWait(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		limit         int64
		window        time.Duration
		burst         int64
		spent         int64
		after         time.Duration // between spending and asking
		cost          int64
		cell, dragons time.Duration // the waits with the two servers
	}{
		{10, time.Second, 1, 1, 0, 1, 100 * ms, 100 * ms},
		{10, time.Second, 1, 1, 60 * ms, 1, 100 * ms, 100 * ms},      // in fact 40 ms, which no reply reports
		{10, time.Second, 5, 5, 0, 3, 300 * ms, 300 * ms},            // three units
		{10, time.Second, 5, 3, 0, 3, 100 * ms, 100 * ms},            // one is missing
		{10, time.Second, 30, 30, 0, 30, 3 * time.Second, 3000 * ms}, // full
		{3, time.Second, 1, 1, 0, 1, 333333334, 333333334},
		{1, time.Minute, 1, 1, 0, 1, time.Minute, time.Minute},
		{1, time.Minute, 1, 1, 40200 * ms, 1, 20 * time.Second, 20 * time.Second}, // 19.8 s
		{1, time.Minute, 1, 1, 40 * time.Second, 1, 20 * time.Second, 21 * time.Second},
		{1000, time.Second, 1, 1, 0, 1, ms, ms},
		{1000, time.Second, 1, 1, 400 * time.Microsecond, 1, ms, ms}, // redis-cell reports 0
		{1, time.Minute, 1, 1, time.Minute - ms/2, 1, ms, time.Second},
	} {
		for name, want := range map[string]time.Duration{"redis-cell": c.cell, "dragonfly": c.dragons} {
			t.Run(fmt.Sprintf("%s %d per %v burst %d, %d spent %v ago", name, c.limit, c.window, c.burst, c.spent, c.after), func(t *testing.T) {
				s := newCellServer(t, dialects[name])
				start := time.Now()
				s.clock = func() time.Time { return start }
				q := openCell(t, distributed.Cell(s.client(t)), c.limit, c.window, c.burst)
				acquire := func(n int64) store.Decision {
					b, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{n}})
					if err != nil {
						t.Fatal(err)
					}
					return b
				}
				if b := acquire(c.spent); b.Verdict != store.Admitted {
					t.Fatalf("full bucket: got %+v, want Admitted", b)
				}
				s.mu.Lock()
				s.clock = func() time.Time { return start.Add(c.after) }
				s.mu.Unlock()
				if b := acquire(c.cost); b.Verdict != store.Later || b.Tier != 0 || b.Wait != want {
					t.Errorf("got %+v, want Later by tier 0 with wait %v", b, want)
				}
				if b := acquire(c.burst + 1); b.Verdict != store.Later || b.Wait != store.Forever {
					t.Errorf("above the burst: got %+v, want Later with wait Forever", b)
				}
				if b := acquire(0); b.Verdict != store.Admitted {
					t.Errorf("zero cost: got %+v, want Admitted", b)
				}
			})
		}
	}
}

// A debt that a larger tier left can be longer than any debt that the smaller tier could make
// itself.
func TestCellWaitsForADebt(t *testing.T) {
	s := newCellServer(t, redisCell)
	start := time.Now()
	s.clock = func() time.Time { return start }
	request := store.Request{Cost: []int64{1}}
	large, small := openCell(t, distributed.Cell(s.client(t)), 1, time.Second, 100), openCell(t, distributed.Cell(s.client(t)), 1, time.Second, 1)
	if _, err := large.TryAcquire(t.Context(), store.Request{Cost: []int64{100}}); err != nil {
		t.Fatal(err)
	}
	b, err := small.TryAcquire(t.Context(), request)
	if want := 99 * time.Second; err != nil || b.Wait != want {
		t.Errorf("got %+v, %v, want wait %v, a second less than the server reports", b, err, want)
	}
}

// Callers are admitted as units become free, with at most two calls a request. Two processes share
// the limit.
func TestCellLimits(t *testing.T) {
	for name, dialect := range dialects {
		for _, c := range []struct {
			limit  int64
			window time.Duration
			burst  int64
		}{{10, time.Second, 1}, {3, time.Second, 2}, {1000, time.Second, 1}, {1, time.Minute, 1}, {7, time.Minute, 5}} {
			for fleet := 1; fleet <= 2; fleet++ {
				t.Run(fmt.Sprintf("%s %d per %v burst %d, %d processes", name, c.limit, c.window, c.burst, fleet), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := newCellServer(t, dialect)
						start := time.Now()
						const each = 20
						got := make(chan time.Duration, fleet*each)
						for range fleet {
							lim := newLimiter(t, gcra(c.limit, c.window, c.burst), distributed.Cell(s.client(t)))
							for range each {
								go func() {
									if err := lim.Wait(t.Context()); err != nil {
										t.Error(err)
									}
									got <- time.Since(start)
								}()
								synctest.Wait()
							}
						}
						for i := range fleet * each {
							units := time.Duration(max(0, int64(i)+1-c.burst))
							least, most := units*(c.window/time.Duration(c.limit)), units*(c.window/time.Duration(c.limit)+1)
							if c.window > time.Second { // the server reports whole seconds
								most += units * time.Second
							}
							if at := <-got; at < least || at > most {
								t.Errorf("request %d: admitted after %v, want %v to %v", i, at, least, most)
							}
						}
						if n := len(s.called()); fleet == 1 && n > 2*each {
							t.Errorf("got %d calls for %d requests, want %d at most", n, each, 2*each)
						}
					})
				})
			}
		}
	}
}

// With real time and a real connection, no request passes early.
func TestCellOverTCP(t *testing.T) {
	s := newCellServer(t, redisCell)
	front := miniredis.NewMiniRedis()
	if err := front.Start(); err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	if err := front.Server().Register("CL.THROTTLE", s.throttle); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: front.Addr()})
	defer rdb.Close()
	lim := newLimiter(t, gcra(20, time.Second, 1), distributed.Cell(rdb))
	start := time.Now()
	for range 6 {
		if err := lim.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took < 249*time.Millisecond { // redis-cell's clock is not the monotonic one
		t.Errorf("6 requests of 20/s took %v, want 249ms at least", took)
	}
}

// A caller whose wait would exceed its deadline is refused at once.
func TestCellDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCellServer(t, redisCell)
		lim := newLimiter(t, gcra(1, time.Minute, 1), distributed.Cell(s.client(t)))
		if err := lim.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		go func() { _ = lim.Wait(t.Context()) }()
		synctest.Wait()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		err := lim.Wait(ctx)
		if took := time.Since(start); !errors.Is(err, throttle.ErrDeadline) || took != 0 {
			t.Errorf("got %v after %v, want ErrDeadline at once", err, took)
		}
	})
}

func TestCellStatus(t *testing.T) {
	const ms = time.Millisecond
	for name, dialect := range dialects {
		t.Run(name, func(t *testing.T) {
			s := newCellServer(t, dialect)
			now := time.Now()
			s.clock = func() time.Time { return now }
			lim := newLimiter(t, gcra(10, time.Second, 3), distributed.Cell(s.client(t)))
			for spent, want := range []throttle.TierStatus{
				{Limit: 3, Remaining: 3},
				{Limit: 3, Used: 1, Remaining: 2, ResetAfter: 100 * ms},
				{Limit: 3, Used: 2, Remaining: 1, ResetAfter: 200 * ms},
				{Limit: 3, Used: 3, Limited: true, RetryAfter: 100 * ms, ResetAfter: 300 * ms},
			} {
				for range 2 { // Status charges nothing
					got, err := lim.Status(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					want.Tier, want.Policy = got.Tiers[0].Tier, got.Tiers[0].Policy
					if got.Tiers[0] != want {
						t.Errorf("%d spent: got %+v, want %+v", spent, got.Tiers[0], want)
					}
				}
				if ok := lim.Allow(); ok != !want.Limited {
					t.Errorf("%d spent: got Allow = %t, want %t", spent, ok, !want.Limited)
				}
			}
		})
	}
}

// A pause applies to all limiters of the quota in this process, and to no other process.
func TestCellPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCellServer(t, redisCell)
		here, there := distributed.Cell(s.client(t)), distributed.Cell(s.client(t))
		policy := gcra(10, time.Second, 1)
		a, b, c := newLimiter(t, policy, here), newLimiter(t, policy, here), newLimiter(t, policy, there)
		start := time.Now()
		if err := b.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		waited := make(chan error)
		go func() { waited <- b.Wait(t.Context()) }()
		synctest.Wait()
		if err := a.Pause(t.Context(), 3*time.Second); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		if !c.Allow() {
			t.Error("got a pause in another process, want none")
		}
		if st, err := b.Status(t.Context()); err != nil || st.Paused != 2*time.Second {
			t.Errorf("got %+v, %v, want paused for 2s", st, err)
		}
		calls := len(s.called())
		if err := <-waited; err != nil || time.Since(start) != 3*time.Second || len(s.called()) != calls+1 {
			t.Errorf("got %v after %v and %d calls, want no error after 3s and 1 call", err, time.Since(start), len(s.called())-calls)
		}
	})
}

func TestCellBan(t *testing.T) {
	s := newCellServer(t, redisCell)
	q := openCell(t, distributed.Cell(s.client(t)), 10, time.Second, 1)
	changes := make(chan store.Change, 1)
	defer q.Watch(func(c store.Change, _ time.Duration) { changes <- c })()
	done, err := q.Pause(t.Context(), store.Pause{For: time.Hour, Close: true})
	if err != nil || !done.Applied || done.Epoch != 1 || <-changes != store.Shut {
		t.Fatalf("got %+v, %v, want the pause applied and reported as Shut", done, err)
	}
	b, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{1}})
	if err != nil || b.Verdict != store.Closed || b.Wait <= 0 || b.Epoch != 1 || len(s.called()) != 0 {
		t.Errorf("got %+v, %v after %d calls, want Closed without a call", b, err, len(s.called()))
	}
}

// A pause stops a request even if the server admits the request meanwhile. The charge stays, as it
// does for a canceled request.
func TestCellChargesOnce(t *testing.T) {
	s := newCellServer(t, redisCell)
	lim := newLimiter(t, gcra(1, time.Minute, 3), distributed.Cell(s.client(t)))
	p, err := lim.Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Cancel(t.Context()); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	s.during = func() { _ = lim.Pause(t.Context(), time.Hour) }
	s.mu.Unlock()
	if lim.Allow() {
		t.Error("got Allow = true during a pause, want false")
	}
	if st, err := lim.Status(t.Context()); err != nil || st.Tiers[0].Used != 2 {
		t.Errorf("got %+v, %v, want 2 used", st, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lim.Status(ended); err != context.Canceled || len(s.called()) != 3 {
		t.Errorf("got %v after %d calls, want the context's own error and no further call", err, len(s.called()))
	}
}

// Callers wait for an unreachable server until it is back or their context ends.
func TestCellUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCellServer(t, redisCell)
		start := time.Now()
		rdb := redis.NewClient(&redis.Options{MaxRetries: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
			if time.Since(start) < 10*time.Second {
				return nil, errors.New("no server")
			}
			return s.Dial()
		}})
		defer rdb.Close()
		lim := newLimiter(t, gcra(10, time.Second, 1), distributed.Cell(rdb))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := lim.Wait(ctx); !errors.Is(err, throttle.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("got %v after %v, want ErrUnavailable after 3s", err, time.Since(start))
		}
		if st, err := lim.Status(t.Context()); !errors.Is(err, throttle.ErrUnavailable) || st.Shared != "Redis" {
			t.Errorf("Status: shared through %q, error %v, want Redis and ErrUnavailable", st.Shared, err)
		}
		if err := lim.Wait(t.Context()); err != nil || time.Since(start) < 10*time.Second {
			t.Errorf("got %v after %v, want no error, once the server is back", err, time.Since(start))
		}
	})
}

// A server that does not answer in time counts as unavailable. A caller whose context ends sooner
// returns at once.
func TestCellSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", Dialer: func(context.Context, string, string) (net.Conn, error) {
			c, _ := net.Pipe() // without a reader
			return c, nil
		}})
		defer rdb.Close()
		q := openCell(t, distributed.Cell(rdb), 10, time.Second, 1)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := q.TryAcquire(ctx, store.Request{Cost: []int64{1}}); err != context.DeadlineExceeded || time.Since(start) != 300*time.Millisecond {
			t.Errorf("got %v after %v, want the context's own error as it ends", err, time.Since(start))
		}
		if _, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{1}}); !errors.Is(err, store.ErrUnavailable) || time.Since(start) != 1300*time.Millisecond {
			t.Errorf("got %v after %v, want ErrUnavailable after 1s", err, time.Since(start))
		}
	})
}

func TestCellMissingCommand(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	lim := newLimiter(t, gcra(10, time.Second, 1), distributed.Cell(rdb))
	err := lim.Wait(t.Context())
	if err == nil || errors.Is(err, throttle.ErrUnavailable) || !strings.Contains(err.Error(), "no CL.THROTTLE") {
		t.Errorf("got %v, want an error that the server has no CL.THROTTLE", err)
	}
}

func ExampleCell() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	policy, err := throttle.ParsePolicy("orders", "10/s;algo=gcra;burst=3 | guard=none")
	if err != nil {
		fmt.Println(err)
		return
	}
	lim, err := throttle.New(policy, distributed.Cell(rdb)) // sends nothing yet
	fmt.Println(lim != nil, err)
	// Output: true <nil>
}
