package kepttwin

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apithrottle/throttle/store/kept"
)

// An event is a transaction that a keeper has committed.
type event struct {
	process int
	view    kept.View
	// written reports that the value was written, and forgot that the keeper had forgotten it before.
	written, forgot bool
	// ended is when the transaction ended.
	ended time.Time
}

// A recorder is the keeper of one process of a trace. It records the transactions of all.
type recorder struct {
	kept.Keeper
	process int
	log     *log
}

// A log contains the transactions of a trace, and the values that they wrote.
type log struct {
	check func(value []byte)
	// over is closed at the end of the trace.
	over chan struct{}

	mu     sync.Mutex // guards all below
	events []event
}

func (r *recorder) Update(ctx context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	e := event{process: r.process}
	err := r.Keeper.Update(ctx, names, func(v kept.View) ([]kept.Write, error) {
		writes, err := change(v)
		e.view, e.forgot = v, v.Values[0] == nil
		if e.written = err == nil && writes[0].Value != nil; e.written && r.log.check != nil {
			r.log.check(writes[0].Value)
		}
		return writes, err
	})
	if err == nil {
		r.log.mu.Lock()
		defer r.log.mu.Unlock()
		e.ended = time.Now()
		r.log.events = append(r.log.events, e)
	}
	return err
}

// Listen implements kept.Listener. It has no news, so that the stores make no transactions to look for some. It ends with
// the trace.
func (r *recorder) Listen(ctx context.Context, changed func(name []byte)) error {
	select {
	case <-r.log.over:
	default:
		changed([]byte{})
		select {
		case <-r.log.over:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// take returns the transactions since the last call.
func (l *log) take() (events []event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	events, l.events = l.events, nil
	return events
}

// A Memory is a keeper in memory without delays, whose clock can be set. The zero Memory is empty.
type Memory struct {
	mu      sync.Mutex // guards all below
	values  map[string]kept.Write
	step    time.Duration
	after   time.Duration // by which the next transaction sets the clock when it ends
	forgets bool
	closed  bool
}

// Wall returns what the clock shows, in Unix µs.
func (m *Memory) Wall() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wall()
}

func (m *Memory) wall() int64 { return time.Now().Add(m.step).UnixMicro() }

// Step sets the clock.
func (m *Memory) Step(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.step += by
}

// StepAfter sets the clock after the next transaction.
func (m *Memory) StepAfter(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.after = by
}

// Forget makes the keeper forget each value that it may forget, from now on or no longer.
func (m *Memory) Forget(forgets bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgets = forgets
}

// close makes all transactions fail from now on.
func (m *Memory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
}

// Update implements kept.Keeper.
func (m *Memory) Update(_ context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errors.New("the keeper is closed")
	}
	now := time.Now()
	v := kept.View{Wall: m.wall(), Sent: now, Got: now}
	for _, name := range names {
		w := m.values[string(name)]
		if m.forgets && w.Expires <= v.Wall {
			w.Value = nil
			delete(m.values, string(name))
		}
		v.Values = append(v.Values, append([]byte(nil), w.Value...))
	}
	writes, err := change(v)
	if err != nil {
		return err
	}
	for i, w := range writes {
		if w.Value != nil {
			if m.values == nil {
				m.values = make(map[string]kept.Write)
			}
			m.values[string(names[i])] = w
		}
	}
	m.step, m.after = m.step+m.after, 0
	return nil
}
