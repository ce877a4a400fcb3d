package throttle

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/store"
)

// A room is where callers wait for their turn. Only the one at the head asks the
// quota and has a timer; the others sleep until they are at the head. A place
// holds no tokens, so who leaves gives up nothing and owes nobody anything.
type room struct {
	mu       sync.Mutex     // guards all below
	queue    list.List      // of *waiter
	asking   *waiter        // the head while it asks the quota, which may have charged it already
	stop     func()         // ends the watch on the quota; nil while nobody waits
	forecast store.Forecast // with everybody in the queue booked; nil if there is none
	made     time.Time      // when the forecast was made
	late     bool           // someone who is booked in the forecast has left the queue
	backoff  backoff

	waiting atomic.Int64 // callers in the queue, for those who need not lock
}

// A waiter is one caller in the queue.
type waiter struct {
	request  store.Request
	patience time.Time     // MaxWait ends; zero for never
	deadline time.Time     // the earlier of patience and the context's; zero for never
	wake     chan struct{} // holds one: look again
	place    *list.Element // nil once it is out of the queue
	refusal  error         // set with place nil
}

// refresh is how old a forecast may grow: it does not see timers firing late.
const refresh = time.Second

// aside returns the room, which is built when somebody first needs it.
func (g *gate) aside() *room {
	if r := g.room.Load(); r != nil {
		return r
	}
	g.room.CompareAndSwap(nil, new(room))
	return g.room.Load()
}

// waiting is how many callers are in the queue.
func (g *gate) waiting() int {
	if r := g.room.Load(); r != nil {
		return int(r.waiting.Load())
	}
	return 0
}

// wait takes a place in the queue and blocks until the request is admitted, its
// context ends, or it is known to be late.
func (g *gate) wait(ctx context.Context, req store.Request) (store.Booking, error) {
	w, err := g.join(ctx, req)
	if err != nil {
		return store.Booking{}, err
	}
	for {
		head, err := g.turn(w)
		if err != nil {
			return store.Booking{}, err
		}
		next := forever
		if head {
			b, err := g.ask(ctx, w)
			if err != nil || b.Verdict == store.Admitted {
				g.leave(w, err == nil)
				return b, err
			}
			g.asked()
			next = b.Wait
			if !w.patience.IsZero() {
				next = min(next, time.Until(w.patience))
			}
		}
		if err := w.sleep(ctx, next); err != nil {
			g.leave(w, false) // it was charged nothing: the next in line moves up
			return store.Booking{}, err
		}
	}
}

// ask tries to be admitted, for the waiter at the head.
func (g *gate) ask(ctx context.Context, w *waiter) (store.Booking, error) {
	b, err := g.quota.Reserve(ctx, w.request)
	switch {
	case err != nil || b.Verdict == store.Admitted:
		return b, err
	case b.Verdict == store.Closed:
		return b, g.banned(b.Wait)
	case !w.patience.IsZero() && time.Until(w.patience) <= 0,
		b.Tier < 0 && !w.deadline.IsZero() && time.Until(w.deadline) < b.Wait: // a pause makes it late
		return b, g.refuse(ErrDeadline, b.Tier, b.Wait)
	}
	return b, nil
}

func (g *gate) banned(wait time.Duration) error {
	e := g.refuse(ErrBanned, -1, wait)
	e.Until = time.Now().Add(wait)
	return e
}

// sleep is the one place that does. It ends at the time, when the waiter is told
// to look again, or with the context.
func (w *waiter) sleep(ctx context.Context, d time.Duration) error {
	var rings <-chan time.Time
	if d < forever {
		t := time.NewTimer(d)
		defer t.Stop()
		rings = t.C
	}
	select {
	case <-rings:
	case <-w.wake:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// look tells the waiter to look again.
func (w *waiter) look() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// join takes the last place, unless the room is full or the wait would be too long.
func (g *gate) join(ctx context.Context, req store.Request) (*waiter, error) {
	w := &waiter{request: req, wake: make(chan struct{}, 1)}
	if g.policy.MaxWait > 0 {
		w.patience = time.Now().Add(g.policy.MaxWait)
		w.deadline = w.patience
	}
	if d, ok := ctx.Deadline(); ok && (w.deadline.IsZero() || d.Before(w.deadline)) {
		w.deadline = d
	}
	r := g.aside()
	r.mu.Lock()
	defer r.mu.Unlock()
	if g.policy.MaxQueue > 0 && r.queue.Len() >= g.policy.MaxQueue {
		return nil, g.refuse(ErrQueueFull, -1, 0)
	}
	if err := g.foresee(r, w); err != nil {
		return nil, err
	}
	w.place = r.queue.PushBack(w)
	r.waiting.Add(1)
	if r.stop == nil {
		r.stop = g.quota.Watch(g.changed)
	}
	return w, nil
}

// turn tells whether the waiter is at the head, or why it was refused.
func (g *gate) turn(w *waiter) (head bool, err error) {
	r := g.aside()
	r.mu.Lock()
	defer r.mu.Unlock()
	if head = w.place != nil && r.queue.Front() == w.place; head {
		r.asking = w
	}
	return head, w.refusal
}

// asked says that the waiter at the head has not been admitted.
func (g *gate) asked() {
	r := g.aside()
	r.mu.Lock()
	r.asking = nil
	r.mu.Unlock()
}

// leave gives up the place, and wakes who is at the head then.
func (g *gate) leave(w *waiter, admitted bool) {
	r := g.aside()
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.place == nil {
		return
	}
	g.remove(r, w)
	r.late = r.late || !admitted
	if next := r.queue.Front(); next != nil {
		next.Value.(*waiter).look()
	}
}

func (g *gate) remove(r *room, w *waiter) {
	r.queue.Remove(w.place)
	w.place = nil
	if r.asking == w {
		r.asking = nil
	}
	if r.waiting.Add(-1) == 0 {
		r.stop()
		r.stop, r.forecast = nil, nil
	}
}

// foresee books the waiter in the forecast behind everybody in the queue, and
// refuses it if even that is too late.
func (g *gate) foresee(r *room, w *waiter) error {
	if r.forecast != nil && time.Since(r.made) > refresh {
		r.forecast = nil
	}
	if w.deadline.IsZero() {
		if r.forecast != nil {
			r.forecast.Book(w.request, forever)
		}
		return nil
	}
	if r.forecast == nil && !g.forecast(r) {
		return nil // who is at the head learns it from the quota
	}
	within := time.Until(w.deadline)
	wait, ok := r.forecast.Book(w.request, within)
	if !ok && r.late && g.forecast(r) {
		wait, ok = r.forecast.Book(w.request, within)
	}
	if !ok {
		return g.refuse(ErrDeadline, -1, wait)
	}
	return nil
}

// forecast makes a new forecast and tells whether the quota can.
func (g *gate) forecast(r *room) bool {
	f, ok := g.quota.(store.Forecaster)
	if !ok {
		return false
	}
	r.forecast, r.made, r.late = f.Forecast(), time.Now(), false
	for e := r.queue.Front(); e != nil; e = e.Next() {
		w := e.Value.(*waiter)
		if w == r.asking {
			r.made = time.Time{} // it may be charged already, or not: the forecast is for one look
			continue
		}
		r.forecast.Book(w.request, forever)
	}
	return true
}

// changed is what the quota calls when something else than time has changed.
func (g *gate) changed(c store.Change) {
	r := g.aside()
	r.mu.Lock()
	defer r.mu.Unlock()
	if c == store.Freed {
		r.late = true
	} else {
		r.forecast = nil
	}
	if c == store.Slowed {
		g.review(r)
	}
	if head := r.queue.Front(); head != nil {
		head.Value.(*waiter).look()
	}
}

// review refuses those whom a pause makes late, from the head on, so that each
// one who goes makes room for those behind.
func (g *gate) review(r *room) {
	f, ok := g.quota.(store.Forecaster)
	if !ok {
		return
	}
	forecast := f.Forecast()
	for e := r.queue.Front(); e != nil; {
		w := e.Value.(*waiter)
		e = e.Next()
		if w == r.asking {
			continue // it may be charged already; if not, the quota tells it
		}
		within := forever
		if !w.deadline.IsZero() {
			within = time.Until(w.deadline)
		}
		if wait, ok := forecast.Book(w.request, within); !ok {
			w.refusal = g.refuse(ErrDeadline, -1, wait)
			g.remove(r, w)
			w.look()
		}
	}
}
