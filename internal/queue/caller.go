package queue

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// A Caller waits in several queues at once, in one goroutine. Only Wake may be called from others.
type Caller struct {
	places []*Place
	wake   chan struct{} // of the waiters
	woken  atomic.Bool   // by Wake
}

// A Place is a Caller's place in one queue. The queue asks neither Ticket.Ask nor a Reserver for it.
type Place struct {
	queue  *Queue
	waiter *waiter
	do     action
	at     time.Time // when the waiter does that; if zero, when it is woken
}

// NewCaller returns a Caller without places.
func NewCaller() *Caller { return &Caller{wake: make(chan struct{}, 1)} }

// Join takes a place in a queue, as Queue.Wait does. If the queue refuses the caller at once, there is no
// place. The Result then has the Owner.
func (c *Caller) Join(ctx context.Context, q *Queue, t Ticket) (*Place, Result, error) {
	t.wake = c.wake
	w, do, owner, err := q.enter(ctx, t)
	if err != nil {
		return nil, Result{Owner: owner}, err
	}
	if w.joining {
		do = q.reportJoined(w)
	}
	p := &Place{queue: q, waiter: w}
	p.act(ctx, do)
	c.places = append(c.places, p)
	return p, Result{}, nil
}

// Leave gives a place up, because of an error, unless its wait has ended. It returns how it has ended.
func (c *Caller) Leave(p *Place, err error) (Result, error) {
	if i := slices.Index(c.places, p); i >= 0 {
		c.places = slices.Delete(c.places, i, i+1)
	}
	return p.queue.quit(p.waiter, err)
}

// Wake ends Wait, now or the next time.
func (c *Caller) Wake() {
	c.woken.Store(true)
	ring(c.wake)
}

// Wait waits until the wait in a place has ended, and returns that place. After Wake, and when ctx ends, it
// returns nil.
func (c *Caller) Wait(ctx context.Context) *Place {
	for !c.woken.Swap(false) {
		first, now := (*Place)(nil), time.Now()
		for _, p := range c.places {
			if p.isDue(now) {
				p.act(ctx, p.queue.step(p.waiter))
			}
			if p.Ended() {
				return p
			}
			if first == nil || !p.at.IsZero() && (first.at.IsZero() || p.at.Before(first.at)) {
				first = p
			}
		}
		if first == nil || ctx.Err() != nil {
			return nil
		}
		c.sleep(ctx, first)
	}
	return nil
}

// Ended reports whether the wait has ended, but not by the admission in another queue, unless that was given back.
func (p *Place) Ended() bool {
	w := p.waiter
	return w.out.Load() && (w.refusal != errTaken || !w.Option.Of.IsTaken())
}

// isDue reports whether the waiter has something to do.
func (p *Place) isDue(now time.Time) bool {
	return p.waiter.woken.Swap(false) || !p.at.IsZero() && !p.at.After(now)
}

// act asks while that is what the waiter does next. A queue waits for the reply.
func (p *Place) act(ctx context.Context, do action) {
	for do.ask {
		p.queue.ask(ctx, p.waiter, do.generation)
		if do = (action{wait: forever}); !p.waiter.out.Load() && ctx.Err() == nil {
			do = p.queue.step(p.waiter)
		}
	}
	p.do, p.at = do, time.Time{}
	if do.wait < forever {
		p.at = time.Now().Add(do.wait)
	}
}

// sleep sleeps until the first place has something to do.
func (c *Caller) sleep(ctx context.Context, first *Place) {
	do, waiters := first.do, make([]*waiter, 0, 32)
	if !first.at.IsZero() {
		do.wait = max(0, time.Until(first.at))
	}
	for _, p := range c.places {
		waiters = append(waiters, p.waiter)
	}
	first.queue.timers.sleep(ctx, do, waiters...)
}
