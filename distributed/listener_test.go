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
)

// Status and Pause return with their context, also while another call has the turn of the
// leases.
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
				t.Errorf("%s returned %v after %v", what, err, took)
			}
			cancel()
		}
		if err := <-admitted; err != nil {
			t.Error(err)
		}
		delay.Store(int64(ms))
	})
}

// A wire sees the connections of a client: it can have new ones hang, and cut those that
// listen; and what the client sends over those that don't.
type wire struct {
	mu     sync.Mutex // guards all below
	hang   time.Duration
	conns  []net.Conn  // that listen
	asked  []time.Time // when commands or pipelines were sent
	atOnce int         // of them in flight
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

// A listening connection tells the wire when it subscribes to something.
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
		defer w.sent()()
		return next(ctx, cmd)
	}
}

func (w *wire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" { // no greeting
			defer w.sent()()
		}
		return next(ctx, cmds)
	}
}

func (w *wire) sent() (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, time.Now())
	w.atOnce++
	w.most = max(w.most, w.atOnce)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.atOnce--
	}
}

// trips returns how many were sent since the last call, and the most in flight.
func (w *wire) trips() (n, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, most = len(w.asked), w.most
	w.asked, w.most = nil, 0
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

// Those who have to wait are admitted at their time although the subscription for them
// takes seconds.
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
			t.Errorf("five that had a time in a second were admitted after %v", took)
		}
	})
}

// sleepers is a process whose callers sleep, each on a key of its own, for ten seconds at
// least.
func sleepers(t *testing.T, rdb redis.UniversalClient, keys int) (stop func()) {
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

// A process whose connection broke asks again for all keys on which callers sleep, in few
// trips, one after the other.
func TestReconnectAsksInFewTrips(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		const keys = 150
		rdb, w := near(t, s), new(wire)
		rdb.AddHook(w)
		stop := sleepers(t, rdb, keys)
		defer stop()
		time.Sleep(20 * sec)
		w.trips()
		w.cut()
		time.Sleep(10 * sec)
		if n, most := w.trips(); n < keys/64 || n > 2*keys/64+10 || most > 2 {
			t.Errorf("%d trips, %d at once", n, most)
		}
	})
}

// What anybody may publish neither stops a process nor lets it go: it asks Redis, now and
// then.
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
			t.Errorf("it took %v beside forged messages", took)
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
		if n, _ := w.trips(); n > 25 {
			t.Errorf("100 messages in 10 s made %d trips", n)
		}
		wg.Wait()
		if took := time.Since(began); took < 20*sec {
			t.Errorf("a forged message ended a pause after %v", took)
		}
	})
}

// Processes that hear of a pause ask at different instants, all within 50 ms.
func TestFleetHearsOfPause(t *testing.T) {
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
			t.Errorf("one went %v after the pause", last)
		}
		var first []time.Duration
		for _, w := range wires {
			w.mu.Lock()
			asked := slices.Clone(w.asked)
			w.mu.Unlock()
			if i := slices.IndexFunc(asked, func(at time.Time) bool { return at.After(pausing) }); i >= 0 {
				first = append(first, asked[i].Sub(pausing).Truncate(2*ms))
			}
		}
		slices.Sort(first)
		if n := len(slices.Compact(first)); n < 5 {
			t.Errorf("%d processes asked within %d spans of 2 ms", processes, n)
		}
		cancel()
		wg.Wait()
	})
}
