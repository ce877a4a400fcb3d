package distributed_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/internal/soak"
)

// An outage is a time during which no process can reach the server in a bubble. It is the hook of
// their clients, too.
type outage struct {
	server *miniredis.Miniredis
	kind   string
	over   atomic.Pointer[chan struct{}] // closed at the end; nil while there is no outage
	end    func()                        // what happens to the state at the end
}

var kindsOfOutages = []string{"refused", "loading", "stopped", "restarts empty", "loses the leases", "comes back for an instant", "fails over to an older state"}

func newOutage(s *miniredis.Miniredis, kind string) *outage {
	o := &outage{server: s, kind: kind, end: func() {}}
	switch kind {
	case "restarts empty":
		o.end = s.FlushAll
	case "loses the leases":
		o.end = func() {
			for _, key := range s.Keys() {
				if s.Type(key) == "hash" {
					s.Del(key)
				}
			}
		}
	case "fails over to an older state":
		o.end = snapshot(s)
	}
	redismem.Hook(s, func(p *server.Peer, _ string, _ ...string) bool {
		loads := kind == "loading" && o.over.Load() != nil
		if loads {
			p.WriteError(loading)
		}
		return loads
	})
	return o
}

// client returns the client of another process.
func (o *outage) client(t *testing.T) *redis.Client {
	rdb := near(t, o.server)
	rdb.AddHook(o)
	return rdb
}

func (o *outage) DialHook(next redis.DialHook) redis.DialHook { return next }

func (o *outage) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := o.refused(); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (o *outage) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := o.refused(); err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

// refused returns the error of a command that is not sent. A server that is stopped runs the command
// when it goes on.
func (o *outage) refused() error {
	over := o.over.Load()
	switch {
	case over == nil || o.kind == "loading":
		return nil
	case o.kind == "stopped":
		<-*over
		return nil
	}
	return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

// last makes the server unusable for a time. Its keys get older meanwhile.
func (o *outage) last(length time.Duration) {
	times := 1
	if o.kind == "comes back for an instant" {
		times = 2
	}
	for i := range times {
		time.Sleep(time.Duration(i) * 300 * ms)
		over := make(chan struct{})
		o.over.Store(&over)
		part := length / time.Duration(times)
		time.Sleep(part)
		o.server.FastForward(part)
		o.end()
		o.over.Store(nil)
		close(over)
	}
}

// snapshot returns a function that returns a server to the state that it has a second from now.
func snapshot(s *miniredis.Miniredis) (restore func()) {
	var mu sync.Mutex
	var restores []func()
	time.AfterFunc(sec, func() {
		mu.Lock()
		defer mu.Unlock()
		for _, key := range s.Keys() {
			switch s.Type(key) {
			case "string":
				value, _ := s.Get(key)
				restores = append(restores, func() { _ = s.Set(key, value) })
			case "hash":
				fields, _ := s.HKeys(key)
				for _, f := range fields {
					value := s.HGet(key, f)
					restores = append(restores, func() { s.HSet(key, f, value) })
				}
			case "zset":
				members, _ := s.ZMembers(key)
				for _, m := range members {
					score, _ := s.ZScore(key, m)
					restores = append(restores, func() { _, _ = s.ZAdd(key, score, m) })
				}
			}
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		s.FlushAll()
		for _, restore := range restores {
			restore()
		}
	}
}

// eachOutage runs a test in a bubble for each kind and length of an outage.
func eachOutage(t *testing.T, test func(t *testing.T, o *outage, length time.Duration)) {
	for _, length := range []time.Duration{0, 5 * sec, 9 * sec, 12 * sec, 30 * sec, 100 * sec} {
		for _, kind := range kindsOfOutages {
			t.Run(fmt.Sprint(kind, " ", length), func(t *testing.T) {
				t.Parallel()
				bubble(t, func(t *testing.T, s *miniredis.Miniredis) { test(t, newOutage(s, kind), length) })
			})
		}
	}
}

// However long Redis is away, the requests in flight of all processes are no more than the limit of
// a Concurrency tier, and when they have ended, others have the places.
func TestOutageKeepsPlaces(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	eachOutage(t, func(t *testing.T, o *outage, length time.Duration) {
		const limit = 4
		var open, most, served atomic.Int64
		work := func(l *throttle.Limiter, takes time.Duration) {
			permit, err := l.Acquire(t.Context(), nil)
			if err != nil {
				return
			}
			now := open.Add(1)
			for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
			}
			time.Sleep(takes)
			open.Add(-1)
			permit.Release()
			served.Add(1)
		}
		var limiters []*throttle.Limiter
		for range 4 {
			tier := throttle.Tier{Limit: limit, Algorithm: throttle.Concurrency}
			limiters = append(limiters, limiter(t, named(tier), distributed.New(o.client(t), distributed.Options{})))
		}
		for i := range limit { // of two processes without waiters, one after the other
			go work(limiters[i/2], length+20*sec)
			time.Sleep(700 * ms)
		}
		for i := range 6 { // of processes that hold nothing
			go work(limiters[2+i%2], sec)
		}
		time.Sleep(200 * ms)
		for _, key := range o.server.Keys() {
			if ttl := o.server.TTL(key); ttl < 2*time.Minute {
				t.Errorf("got %s to live for %v, want two minutes at least", key, ttl)
			}
		}
		o.last(length)
		go work(limiters[2], sec) // which asks at once
		time.Sleep(15 * sec)
		if n := most.Load(); n > limit {
			t.Errorf("got %d requests in flight, want %d at most", n, limit)
		}
		time.Sleep(15 * sec)
		synctest.Wait()
		if n := served.Load(); n != limit+7 {
			t.Errorf("got %d requests served, want %d", n, limit+7)
		}
	})
}

// An outage charges no estimate beside its actual cost.
func TestOutageChargesEstimatesOnce(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	eachOutage(t, func(t *testing.T, o *outage, length time.Duration) {
		const requests, estimate, actual, limit = 10, 8000, 500, 90_000
		open := func() *throttle.Limiter {
			tier := throttle.Tier{Limit: limit, Window: time.Hour, Unit: "tokens", Estimated: true}
			return limiter(t, named(tier), distributed.New(o.client(t), distributed.Options{}))
		}
		l, other := open(), open()
		var permits []*throttle.Permit
		for range requests {
			permit, err := l.Acquire(t.Context(), throttle.Cost{"tokens": estimate})
			if err != nil {
				t.Fatal(err)
			}
			permits = append(permits, permit)
		}
		if _, err := other.Status(t.Context()); err != nil { // it knows the state
			t.Fatal(err)
		}
		time.Sleep(2500 * ms)
		o.last(length)
		began := time.Now()
		permit, err := other.Acquire(t.Context(), throttle.Cost{"tokens": estimate})
		if err != nil {
			t.Fatal(err)
		}
		used := func() int64 {
			status, err := other.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return status.Tiers[0].Used
		}
		if n := used(); n != (1+requests)*estimate {
			t.Errorf("%v after the outage: got %d tokens used, want %d in flight", time.Since(began), n, (1+requests)*estimate)
		}
		for _, p := range append(permits, permit) {
			if err := p.Settle(throttle.Cost{"tokens": actual}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(sec)
		if n := used(); n != (1+requests)*actual {
			t.Errorf("got %d tokens used, want %d", n, (1+requests)*actual)
		}
	})
}

// A quota that no process has used, or not for a long time, admits at once.
func TestNewStateAdmitsAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		tier := throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}
		l := limiter(t, named(tier), distributed.New(near(t, s), distributed.Options{}))
		for _, since := range []time.Duration{0, sec, 20 * sec, 5 * time.Minute} {
			time.Sleep(since)
			s.FastForward(since)
			began := time.Now()
			permit, err := l.Acquire(t.Context(), nil)
			if took := time.Since(began); err != nil || took > 100*ms {
				t.Errorf("%v after the last request: got admitted after %v, %v, want at once", since, took, err)
			}
			permit.Release()
			time.Sleep(100 * ms)
		}
	})
}

// A state that was lost is reported once, also if the next one has expired since.
func TestLossIsReportedOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var lost atomic.Int64
		o := distributed.Options{OnLost: func(string) { lost.Add(1) }}
		l := limiter(t, named(throttle.PerHour(5)), distributed.New(near(t, s), o))
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.FlushAll()
		for range 2 {
			if _, err := l.Status(t.Context()); err != nil { // begins an empty state, which lives for a second
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			s.FastForward(time.Minute)
		}
		if n := lost.Load(); n != 1 {
			t.Errorf("got %d losses reported, want 1", n)
		}
	})
}

// The place of a process that has died becomes free with its lease, for a process that waits alone.
// A process that only tries now and then gets it with the third try after the end of the lease, or
// with the first one after twelve leases.
func TestDeadProcessLosesItsPlace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		every time.Duration // of the tries; zero: it waits
		most  time.Duration
	}{
		"waits":                  {0, 15 * sec},
		"tries every second":     {sec, 12 * sec},
		"tries every 20 seconds": {20 * sec, 61 * sec},
		"tries every 3 minutes":  {3 * time.Minute, 181 * sec},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				open := func() (*throttle.Limiter, *redis.Client) {
					rdb := near(t, s)
					// The second tier keeps the state for a day.
					tiers := []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}, throttle.PerDay(100)}
					return limiter(t, named(tiers...), distributed.New(rdb, distributed.Options{})), rdb
				}
				dead, rdb := open()
				if _, err := dead.Acquire(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				rdb.Close()
				began := time.Now()
				l, _ := open()
				var permit *throttle.Permit
				var err error
				for permit == nil && time.Since(began) < test.most {
					time.Sleep(test.every)
					if test.every > 0 {
						permit, err = l.TryAcquire(t.Context(), nil)
					} else {
						permit, err = l.Acquire(t.Context(), nil)
					}
				}
				if took := time.Since(began); permit == nil || took > test.most || took < 9*sec {
					t.Fatalf("got the place after %v, %v, want after 10s to %v", took, err, test.most)
				}
				permit.Release()
			})
		})
	}
}

// A stop of a real server for longer than a lease, and a restart without its state.
func TestServerOutageKeepsPlaces(t *testing.T) {
	t.Parallel()
	const waiters, lease, longer = 6, 6 * sec, 7 * sec
	for name, away := range map[string]func(*redistest.Server){
		"stopped":                 func(s *redistest.Server) { s.Stop(); time.Sleep(longer); s.Resume() },
		"restarts with its state": func(s *redistest.Server) { s.Kill(); time.Sleep(longer); s.Restart() },
		"restarts empty":          func(s *redistest.Server) { s.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			soak.Long(t, realSeconds)
			s := redistest.Start(t, "--appendonly", map[bool]string{true: "no", false: "yes"}[name == "restarts empty"])
			open := func() *throttle.Limiter {
				tier := throttle.Tier{Limit: 2, Algorithm: throttle.Concurrency}
				return limiter(t, named(tier), distributed.New(s.Client(), distributed.Options{Lease: lease}))
			}
			holder := open()
			var held []*throttle.Permit
			for range 2 {
				permit, err := holder.Acquire(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, permit)
			}
			got := make(chan error, waiters)
			for range waiters { // which call more often than the holder
				waiter := open()
				go func() {
					permit, err := waiter.Acquire(t.Context(), nil)
					if err == nil {
						defer permit.Release()
					}
					got <- err
				}()
			}
			time.Sleep(500 * ms) // until they are in the queue
			away(s)
			select {
			case err := <-got:
				t.Fatalf("got a third request in flight, %v, want two", err)
			case <-time.After(3 * sec):
			}
			held[0].Release()
			held[1].Release()
			for range waiters {
				if err := <-got; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestLostRepliesChargeEstimatesOnce checks that a server that runs calls, but whose replies are lost,
// so that their callers report again, charges what each request has cost once.
func TestLostRepliesChargeEstimatesOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		const requests, estimate, actual = 20, 8000, 500
		rdb, lost := near(t, s), new(loses)
		rdb.AddHook(lost)
		tier := throttle.Tier{Limit: 200_000, Window: time.Hour, Unit: "tokens", Estimated: true}
		l := limiter(t, named(tier), distributed.New(rdb, distributed.Options{}))
		var permits []*throttle.Permit
		for range requests {
			permit, err := l.Acquire(t.Context(), throttle.Cost{"tokens": estimate})
			if err != nil {
				t.Fatal(err)
			}
			permits = append(permits, permit)
		}
		for i, p := range permits {
			lost.on.Store(i%5 > 1)
			if err := p.Settle(throttle.Cost{"tokens": actual}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * ms)
		}
		lost.on.Store(false)
		time.Sleep(20 * sec)
		status, err := l.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := status.Tiers[0].Used; n != requests*actual {
			t.Errorf("got %d tokens used, want %d", n, requests*actual)
		}
	})
}

// TestPolicyChangeKeepsUnansweredCosts checks that what a request has cost is charged although a call
// with it had no answer and the policy changed before the next one.
func TestPolicyChangeKeepsUnansweredCosts(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		const actual = 500
		o := newOutage(s, "refused")
		st := distributed.New(o.client(t), distributed.Options{})
		tier := throttle.Tier{Limit: 200_000, Window: time.Hour, Unit: "tokens", Estimated: true}
		l, another := limiter(t, named(tier), st), limiter(t, named(tier), st)
		permit, err := l.Acquire(t.Context(), throttle.Cost{"tokens": 8000})
		if err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{})
		o.over.Store(&over)
		if err := permit.Settle(throttle.Cost{"tokens": actual}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * ms)
		tier.Limit *= 2
		if err := another.SetPolicy(t.Context(), named(tier)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), sec)
		defer cancel()
		if permit, err := l.Acquire(ctx, throttle.Cost{"tokens": 1}); err == nil {
			t.Errorf("got %v without Redis, want an error", permit)
		}
		o.over.Store(nil)
		time.Sleep(5 * sec)
		status, err := l.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := status.Tiers[0].Used; n != actual {
			t.Errorf("got %d tokens used, want %d", n, actual)
		}
	})
}

// A loses is a hook that loses the replies to commands.
type loses struct{ on atomic.Bool }

func (l *loses) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *loses) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if l.on.Load() {
			err = os.ErrDeadlineExceeded
			cmd.SetErr(err)
		}
		return err
	}
}

func (l *loses) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if l.on.Load() {
			err = os.ErrDeadlineExceeded
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}
