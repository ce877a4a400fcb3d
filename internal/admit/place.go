package admit

import (
	"context"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// A place is that of an option in the queue of a plain member. The caller's own goroutine waits there, in the
// queues of all plain members at once.
type place struct {
	*queue.Place
	scope *Scope
	// giveUp is when the caller leaves the queue, and bound what sets that.
	giveUp time.Time
	bound  string
}

// isPlain reports whether callers need no goroutine of their own to wait for the member: one quota decides,
// which neither blocks nor reserves.
func (m *Member) isPlain() bool {
	if !m.isNear() || m.Path.outer != nil {
		return false
	}
	rev := m.Path.revision()
	return !rev.reserves && fastOf(rev.quota) != nil
}

// stand takes a place in the queue of a plain member.
func (o *option) stand(ctx context.Context) {
	s, err := o.member.Path.Enter()
	if err == nil {
		o.place = &place{scope: s}
		if err = o.standIn(ctx, s); err == nil {
			if o.place.Ended() {
				o.end(ctx, context.Canceled)
			}
			return
		}
		s.Leave()
	}
	o.caller.answer(o, err, true)
}

func (o *option) standIn(ctx context.Context, s *Scope) error {
	c, p := o.caller, o.place
	d := c.demand
	rev, err := o.member.Path.revisionFor(s, &d)
	if err != nil {
		return err
	}
	if p.giveUp, err = s.giveUpAt(rev, &d); err != nil {
		return err
	}
	p.bound = d.bound
	q, rev := s.queue.configure(s, nil)
	if rev.closed {
		return rev.refuse(queue.Closed, -1, 0)
	}
	var r queue.Result
	p.Place, r, err = c.stands.Join(ctx, q, queue.Ticket{
		Class: ClassOf(ctx), GiveUp: p.giveUp, Since: c.since, Option: &o.ticket,
		Renew: func(owner any) (store.Request, bool, error) { return s.renew(owner.(payer), &c.demand) },
	})
	if err != nil {
		err = o.explain(ctx, r, err)
	}
	return err
}

// explain returns the caller's error for an error of the queue.
func (o *option) explain(ctx context.Context, r queue.Result, err error) error {
	d := o.caller.demand
	d.giveUp, d.bound = o.place.giveUp, o.place.bound
	return d.withBound(ctx, r.Owner.(*Revision).explain(err))
}

// end ends the wait in a place, because of an error unless the queue has admitted or refused the caller.
func (o *option) end(ctx context.Context, err error) {
	s := o.place.scope
	r, err := o.caller.stands.Leave(o.place.Place, err)
	if err != nil {
		s.Leave()
		err = o.explain(ctx, r, err)
	} else {
		o.admission = &Admission{Charge: s.charged(r)}
		if late, ok := r.Owner.(*Revision).explain(&queue.Refusal{Reason: queue.Late, Tier: r.Tier}).(*Refusal); ok && r.Tier >= 0 {
			o.decider.Decided(late.Policy, late.Tier)
		}
	}
	o.caller.answer(o, err, true)
}

// endAll ends the waits in places of members for which it is true. The caller does not hold the lock.
func (c *caller) endAll(ctx context.Context, of func(*option) bool) {
	c.mu.Lock()
	var ends []*option
	for _, o := range c.options {
		if o.place != nil && of(o) {
			o.stopped = true
			ends = append(ends, o)
		}
	}
	c.mu.Unlock()
	for _, o := range ends {
		o.end(ctx, context.Canceled)
	}
}

// at returns the option whose place is p, or nil.
func (c *caller) at(p *queue.Place) *option {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.options {
		if p != nil && o.place != nil && o.place.Place == p {
			return o
		}
	}
	return nil
}
