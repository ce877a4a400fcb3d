package distributed

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A call is one run of the script.
type call struct {
	args  []any
	reply []int64
	err   error
}

// A trip is some calls that travel together, in order.
type trip struct {
	calls     []*call
	guard     time.Duration // of the requests it books
	sent, got time.Time
}

// once is a command that the client must not repeat when its reply was lost: the
// script would book twice.
type once struct{ *redis.IntSliceCmd }

func (once) NoRetry() bool { return true }

// run makes the trip and blocks for as long as the client does, which may be longer
// than Options.Timeout. done is called once: when the trip is over, or by then with
// an error. late is told of a trip that ended well after that.
func (q *quota) run(t *trip, done func(error), late func()) {
	if err := q.circuit.allow(); err != nil {
		done(err)
		return
	}
	var over atomic.Bool
	finish := func(err error) bool {
		first := over.CompareAndSwap(false, true)
		if first {
			q.circuit.report(err)
			done(err)
		}
		return first
	}
	timeout := time.AfterFunc(q.store.options.Timeout, func() { finish(&outage{errTimeout}) })
	err := q.make(t)
	timeout.Stop()
	if !finish(err) && err == nil && late != nil {
		late()
	}
}

// call makes a trip of one call and waits for it, or for the context.
func (q *quota) call(ctx context.Context, args []any) ([]int64, *trip, error) {
	c := &call{args: args}
	t := &trip{calls: []*call{c}}
	done := make(chan error, 1)
	go q.run(t, func(err error) { done <- err }, nil)
	select {
	case err := <-done:
		if err != nil {
			return nil, nil, err
		}
		return c.reply, t, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// make makes the trip. Its error is that of the first call that failed.
func (q *quota) make(t *trip) error {
	ctx := context.Background()
	t.sent = time.Now()
	unknown := q.send(ctx, t.calls, "evalsha", scriptSHA)
	if len(unknown) > 0 {
		// Loaded, the script stays; merely run, newer servers may forget it.
		if q.store.rdb.ScriptLoad(ctx, scriptSource).Err() == nil {
			t.sent = time.Now()
			unknown = q.send(ctx, unknown, "evalsha", scriptSHA)
		}
		if len(unknown) > 0 {
			t.sent = time.Now()
			q.send(ctx, unknown, "eval", scriptSource)
		}
	}
	t.got = time.Now()
	q.store.trip.add(t.got.Sub(t.sent))
	for _, c := range t.calls {
		if c.err != nil {
			return explain(q.key, c.err)
		}
	}
	return nil
}

// send runs calls in one round trip and returns those whose script the server
// does not know: they did nothing.
func (q *quota) send(ctx context.Context, calls []*call, command, script string) (unknown []*call) {
	cmds := make([]once, len(calls))
	for i, c := range calls {
		cmds[i] = once{redis.NewIntSliceCmd(ctx, append([]any{command, script, 1, q.key}, c.args...)...)}
		cmds[i].SetFirstKeyPos(3)
	}
	if len(cmds) == 1 {
		_ = q.store.rdb.Process(ctx, cmds[0]) // the error is the command's too
	} else {
		pipe := q.store.rdb.Pipeline()
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd)
		}
		_, _ = pipe.Exec(ctx)
	}
	for i, c := range calls {
		if c.reply, c.err = cmds[i].Result(); redis.HasErrorPrefix(c.err, "NOSCRIPT") {
			unknown = append(unknown, c)
		}
	}
	return unknown
}

// A circuit opens when Redis is away, so that not everybody waits for a connection
// to fail: one call in a while tries.
type circuit struct {
	mu    sync.Mutex // guards all below
	err   error      // why it is open
	until time.Time  // when the next call may try
	delay time.Duration
}

const (
	firstTry = 25 * time.Millisecond
	lastTry  = 400 * time.Millisecond
)

func (c *circuit) allow() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return nil
	}
	now := time.Now()
	if now.Before(c.until) {
		return c.err
	}
	c.until = now.Add(c.delay)
	return nil
}

func (c *circuit) report(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if away, ok := err.(*outage); ok {
		c.err, c.delay = away, min(lastTry, max(firstTry, 2*c.delay))
		c.until = time.Now().Add(c.delay)
		return
	}
	c.err, c.delay = nil, 0
}

// A roundTrip is how long trips take, smoothed. It is quick to believe a shorter
// one: the first of them also made the connection.
type roundTrip struct{ nanos atomic.Int64 }

func (r *roundTrip) add(d time.Duration) {
	old := time.Duration(r.nanos.Load())
	switch {
	case old == 0:
	case d < old:
		d = (old + d) / 2
	default:
		d = (7*old + d) / 8
	}
	r.nanos.Store(int64(d))
}

func (r *roundTrip) get() time.Duration { return time.Duration(r.nanos.Load()) }
