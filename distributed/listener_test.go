package distributed_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// Status, Pause and Resume return when their context ends, also while another call holds the turn
// of the leases.
func TestContextEndsWhileLeased(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var delay atomic.Int64
		delay.Store(int64(ms))
		rdb := distant(t, s, func() time.Duration { return time.Duration(delay.Load()) })
		tier := throttle.Tier{Limit: 5, Algorithm: throttle.Concurrency}
		l := limiter(t, named(tier), distributed.New(rdb, distributed.Options{Timeout: time.Minute}))
		if _, err := l.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
		delay.Store(int64(2 * sec))
		admitted := make(chan error, 1)
		go func() {
			permit, err := l.Acquire(context.Background(), nil)
			if err == nil {
				permit.Release()
			}
			admitted <- err
		}()
		time.Sleep(ms)
		for what, call := range map[string]func(context.Context) error{
			"Status": func(ctx context.Context) error { _, err := l.Status(ctx); return err },
			"Pause":  func(ctx context.Context) error { return l.Pause(ctx, sec) },
			"Resume": l.Resume,
		} {
			ctx, cancel := context.WithTimeout(context.Background(), 100*ms)
			began := time.Now()
			err := call(ctx)
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 100*ms {
				t.Errorf("%s: got %v after %v, want DeadlineExceeded after 100ms", what, err, took)
			}
			cancel()
		}
		if err := <-admitted; err != nil {
			t.Error(err)
		}
		delay.Store(int64(ms))
	})
}

// A wire hooks into a client. It can delay new connections and close those that subscribe, and it
// counts what the client sends on the others.
type wire struct {
	mu     sync.Mutex // guards all below
	hang   time.Duration
	conns  []net.Conn  // with subscriptions
	sentAt []time.Time // of commands and pipelines
	atOnce int         // commands and pipelines in flight
	most   int
}

func (w *wire) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		w.mu.Lock()
		hang := w.hang
		w.mu.Unlock()
		time.Sleep(hang)
		c, err := next(ctx, network, addr)
		return &listening{c, w}, err
	}
}

// A listening is a connection that registers with its wire when it subscribes.
type listening struct {
	net.Conn
	wire *wire
}

func (l *listening) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("\r\nsubscribe\r\n")) {
		l.wire.mu.Lock()
		l.wire.conns = append(l.wire.conns, l.Conn)
		l.wire.mu.Unlock()
	}
	return l.Conn.Write(b)
}

func (w *wire) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer w.countTrip()()
		return next(ctx, cmd)
	}
}

func (w *wire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" { // not the greeting
			defer w.countTrip()()
		}
		return next(ctx, cmds)
	}
}

func (w *wire) countTrip() (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sentAt = append(w.sentAt, time.Now())
	w.atOnce++
	w.most = max(w.most, w.atOnce)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.atOnce--
	}
}

// trips returns how many round trips began since its last call, and how many were in flight at
// most.
func (w *wire) trips() (n, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, most = len(w.sentAt), w.most
	w.sentAt, w.most = nil, 0
	return n, most
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// Callers that wait are admitted at their times, although subscribing takes seconds.
func TestAdmissionDoesNotWaitForSubscription(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		rdb, w := distant(t, s, func() time.Duration { return 10 * ms }), new(wire)
		rdb.AddHook(w)
		l := limiter(t, throttle.Policy{Name: "slow", Tiers: []throttle.Tier{per(sec, 5, throttle.SlidingLog)}}, distributed.New(rdb, distributed.Options{}))
		if err := l.WaitN(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.hang = 5 * sec
		w.mu.Unlock()
		began := time.Now()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := l.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 1200*ms {
			t.Errorf("got 5 callers admitted after %v, want 1.2s at most: their time was in a second", took)
		}
	})
}

// startSleepers starts a process whose callers sleep for ten seconds at least, each on a key of its
// own.
func startSleepers(t *testing.T, rdb redis.UniversalClient, keys int) (stop func()) {
	t.Helper()
	st := distributed.New(rdb, distributed.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range keys {
		l := limiter(t, throttle.Policy{Name: fmt.Sprint("key ", i), Tiers: []throttle.Tier{per(time.Minute, 1, throttle.SlidingLog)}}, st)
		wg.Go(func() {
			for l.Wait(ctx) == nil {
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// TestForgedReleases checks that messages of a release make a process ask about once a second, and that
// a release then admits a caller without that delay.
func TestForgedReleases(t *testing.T) {
	soak.Long(t, "many releases work side by side, and TestReleasesByTurns plays some")
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		const processes = 20
		rdb := near(t, s)
		p := throttle.Policy{Name: "forged", Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}, throttle.PerHour(100_000)}}
		holder := limiter(t, p, distributed.New(rdb, distributed.Options{}))
		held, err := holder.Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		w := new(wire)
		var wg sync.WaitGroup
		for range processes {
			own := near(t, s)
			own.AddHook(w)
			l := limiter(t, p, distributed.New(own, distributed.Options{}))
			wg.Go(func() {
				permit, err := l.Acquire(t.Context(), nil)
				if err != nil {
					t.Error(err)
				}
				permit.Release()
			})
		}
		time.Sleep(3 * sec)
		var channels []string
		channels = append(channels, s.PubSubChannels("*")...)
		w.trips()
		for range 500 {
			for _, c := range channels {
				s.Publish(c, "freed")
			}
			time.Sleep(10 * ms)
		}
		if n, _ := w.trips(); n > processes*20 { // for each of two channels, 8 while the delay grows to 1.3 s
			t.Errorf("got %d trips of %d processes in 5 s, want %d at most", n, processes, processes*20)
		}
		began := time.Now()
		held.Release()
		if wg.Wait(); time.Since(began) > 3*sec {
			t.Errorf("got all admitted %v after the release, want 3s at most", time.Since(began))
		}
	})
}

// After its connection broke, a process asks again for all keys on which callers sleep. It takes
// few round trips, one after the other.
func TestReconnectAsksInFewTrips(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		const keys = 150
		rdb, w := near(t, s), new(wire)
		rdb.AddHook(w)
		stop := startSleepers(t, rdb, keys)
		defer stop()
		time.Sleep(20 * sec)
		w.trips()
		w.cut()
		time.Sleep(10 * sec)
		if n, most := w.trips(); n < keys/64 || n > 2*keys/64+10 || most > 2 {
			t.Errorf("got %d trips, %d at once, want %d to %d, 2 at once at most", n, most, keys/64, 2*keys/64+10)
		}
	})
}

// Forged messages neither stop a process nor let it continue: it asks Redis, and does so only now
// and then.
func TestForgedMessages(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		rdb, w := near(t, s), new(wire)
		l := limiter(t, throttle.Policy{Name: "forged", Tiers: []throttle.Tier{per(sec, 5, throttle.SlidingLog)}}, distributed.New(rdb, distributed.Options{}))
		var wg sync.WaitGroup
		began := time.Now()
		for range 50 {
			wg.Go(func() {
				if err := l.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(sec)
		key := onlyKey(t, rdb)
		s.Publish(key, "pause 3600000000 1 4000000000")
		s.Publish(key, "pause 3600000000 0 4000000001")
		s.Publish(key, "resume 4000000002")
		wg.Wait()
		if took := time.Since(began); took > 10*sec {
			t.Errorf("got all admitted after %v beside forged messages, want 10s at most", took)
		}
		began = time.Now()
		if err := l.Pause(t.Context(), 20*sec); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := l.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(sec)
		rdb.AddHook(w)
		for range 100 {
			s.Publish(key, "resume 4000000003")
			time.Sleep(100 * ms)
		}
		if n, _ := w.trips(); n > 40 { // 18 on average, after random delays
			t.Errorf("got %d trips for 100 messages in 10 s, want 40 at most", n)
		}
		wg.Wait()
		if took := time.Since(began); took < 20*sec {
			t.Errorf("got the pause ended after %v by forged messages, want it to last 20s", took)
		}
	})
}

// Processes that receive the message of a pause ask Redis at different instants, all within 50 ms.
func TestFleetSpreadsCallsAfterPause(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		const processes = 20
		var limiters []*throttle.Limiter
		var wires []*wire
		ctx, cancel := context.WithCancel(context.Background())
		var mu sync.Mutex
		var admitted []time.Time
		var wg sync.WaitGroup
		for range processes {
			rdb, w := process(ms, 2*ms), new(wire)
			l := limiter(t, throttle.Policy{Name: "many", Tiers: []throttle.Tier{per(sec, 100, throttle.GCRA)}}, distributed.New(rdb, distributed.Options{}))
			limiters, wires = append(limiters, l), append(wires, w)
			wg.Go(func() {
				for l.Wait(ctx) == nil {
					mu.Lock()
					admitted = append(admitted, time.Now())
					mu.Unlock()
				}
			})
			rdb.AddHook(w)
		}
		time.Sleep(sec)
		pausing := time.Now()
		if err := limiters[0].Pause(t.Context(), 2*sec); err != nil {
			t.Fatal(err)
		}
		paused := time.Now()
		time.Sleep(sec)
		mu.Lock()
		last := admitted[len(admitted)-1].Sub(paused)
		mu.Unlock()
		if last > 50*ms {
			t.Errorf("got an admission %v after the pause, want 50ms at most", last)
		}
		var delays []time.Duration
		for _, w := range wires {
			w.mu.Lock()
			sentAt := slices.Clone(w.sentAt)
			w.mu.Unlock()
			if i := slices.IndexFunc(sentAt, func(at time.Time) bool { return at.After(pausing) }); i >= 0 {
				delays = append(delays, sentAt[i].Sub(pausing).Truncate(2*ms))
			}
		}
		slices.Sort(delays)
		if n := len(slices.Compact(delays)); n < 5 {
			t.Errorf("got calls of %d processes in %d spans of 2 ms, want 5 at least", processes, n)
		}
		cancel()
		wg.Wait()
	})
}
