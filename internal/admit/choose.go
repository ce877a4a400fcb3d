package admit

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// Admit admits a demand in one of the members, which it returns.
func (p *Pool) Admit(ctx context.Context, d *Demand, a *Admission) (by *Member, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.checkUnits(d.Cost); err != nil {
		return nil, err
	}
	d.anyUnit = true
	since := time.Now()
	if by, err = p.tryNow(ctx, d, a); by == nil && !d.NoWait {
		c := &caller{pool: p, demand: *d, key: stickyKeyOf(ctx), since: since}
		by, err = c.admit(ctx, a)
	}
	if err != nil {
		return nil, err
	}
	if d.Record != nil {
		d.Record.Chosen(by)
	}
	a.announce(d.Record)
	return by, nil
}

// tryNow asks members, one after the other, whether they have room now: those that decide in this process, or,
// for a request that does not wait, all. If it returns no member and the request does not wait, the error is
// that of the member that would admit it soonest.
func (p *Pool) tryNow(ctx context.Context, d *Demand, a *Admission) (by *Member, err error) {
	r := p.quick(ctx, d.NoWait)
	soonest, first := store.Decision{}, (*Member)(nil)
	var rev *Revision
	for i := r.next(); i >= 0; i = r.next() {
		m := r.members[i]
		if !d.NoWait && !m.isNear() {
			continue
		}
		decision, failed := m.try(ctx, d, a)
		switch {
		case a.Charged():
			r.took(m)
			return m, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case failed != nil:
			err = betterError(err, failed)
		case first == nil || decision.Wait < soonest.Wait:
			first, soonest, rev = m, decision, a.Revision
		}
	}
	switch {
	case first != nil && d.NoWait:
		err = first.Path.notNow(ctx, d, rev, soonest)
	case err == nil && len(r.members) == 0:
		err = errNoMembers
	}
	return nil, err
}

// try is Admit without waiting, but it returns the decision on a request that would have to wait. The demand's
// record receives nothing.
func (m *Member) try(ctx context.Context, d *Demand, a *Admission) (store.Decision, error) {
	record := d.Record
	d.Record = nil
	defer func() { d.Record = record }()
	s, err := m.Path.Enter()
	if err != nil {
		return store.Decision{}, err
	}
	return m.Path.decide(ctx, s, d, a, false)
}

// A caller is a request to a Pool that is not admitted yet.
type caller struct {
	pool   *Pool
	demand Demand
	key    string // see WithStickyKey
	since  time.Time
	stage  int // see Pool.stages
	choice queue.Choice

	ctx   context.Context // of the options; ends when the caller leaves
	asked sync.WaitGroup  // the goroutines of the options

	mu      sync.Mutex          // guards all below
	options map[*Member]*option // of the members in whose queues the caller waits
	refused map[*Member]error   // the errors of other members
	timers  []*time.Timer       // which end the refusals of members
	held    *option             // with a reserved time that fits no other caller; nil if there is none
	heldAt  time.Time           // that time
	winner  *option             // that has admitted the request; nil if none has
	failed  *option             // in which a function of the user did not return; nil if it did
	changed bool                // the members have changed, or one has refused the request
	left    bool                // no further member is asked
	wake    func(error)         // ends the wait in a room; nil if the caller is in none
}

// An option is a member in whose queue a caller waits.
type option struct {
	caller    *caller
	member    *Member
	ticket    queue.Option
	cancel    context.CancelFunc
	stopped   bool // the caller waits for other members now
	admission Admission
	decider   decider
	panicked  any // with what a function of the user panicked; nil if it called runtime.Goexit
}

// A decider is a Record that keeps which tier decided.
type decider struct {
	by   *Policy // nil if no tier did
	tier int
}

func (d *decider) Decided(by *Policy, tier int) {
	if d.by == nil {
		d.by, d.tier = by, tier
	}
}
func (d *decider) Undecided()     { d.by = nil }
func (d *decider) Queued(int)     {}
func (d *decider) Chosen(*Member) {}
func (d *decider) Admitted()      {}
func (d *decider) Unsent()        {}

// stages returns the members that may serve the request: see Pool.stages. It returns an error if none may.
func (c *caller) stages() ([][]*Member, error) {
	able, err := c.pool.able(&c.demand, c.refusals())
	if len(able) == 0 {
		return nil, err
	}
	return c.pool.stages(able, c.key), nil
}

func (c *caller) refusals() map[*Member]error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.refused)
}

// admit waits until a member admits the request.
func (c *caller) admit(ctx context.Context, a *Admission) (by *Member, err error) {
	c.options, c.refused = make(map[*Member]*option), make(map[*Member]error)
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithCancel(ctx)
	c.pool.enter(c)
	err = errPanicked
	defer func() {
		c.pool.leave(c)
		c.stopAll(cancel)
		switch won := c.winner; {
		case c.failed != nil:
			if won != nil {
				won.admission.drop()
			}
			c.failed.fail()
		case won != nil && err == errPanicked:
			won.admission.drop()
		case won != nil:
			*a, by, err = won.admission, won.member, nil
			if r := c.demand.Record; r != nil && won.decider.by != nil {
				r.Decided(won.decider.by, won.decider.tier)
			}
		}
	}()
	return nil, c.wait(ctx)
}

var errPanicked = errors.New("throttle: a function of the user panicked")

// fail ends the caller's goroutine as a function of the user has ended that of the option.
func (o *option) fail() {
	if o.panicked != nil {
		panic(o.panicked)
	}
	runtime.Goexit()
}

// stopAll leaves the queues of all members.
func (c *caller) stopAll(cancel context.CancelFunc) {
	c.mu.Lock()
	c.left = true
	for _, t := range c.timers {
		t.Stop()
	}
	c.mu.Unlock()
	cancel()
	c.asked.Wait()
}

// wait waits until a member has admitted the request, or returns an error.
func (c *caller) wait(ctx context.Context) error {
	for {
		stages, err := c.stages()
		if err != nil {
			return err
		}
		c.stage = min(c.stage, len(stages)-1)
		members, last, until := stages[c.stage], c.stage == len(stages)-1, c.demand.SendBy
		if !last {
			until = c.since.Add(c.pool.spill())
		}
		room := c.pool.room(members)
		if !last && (c.pool.spill() == 0 || room.isLate(ctx, c, until)) {
			c.stage++
			continue
		}
		c.join(members)
		err = room.wait(ctx, c, until)
		switch again, decided := c.news(); {
		case decided:
			return nil
		case again && ctx.Err() == nil:
		case err != nil && !last && ctx.Err() == nil:
			c.stage++
		default:
			return c.withOutage(err)
		}
	}
}

// news returns whether the caller chooses anew, and whether a member has decided.
func (c *caller) news() (again, decided bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	again, c.changed = c.changed, false
	return again, c.winner != nil || c.failed != nil
}

// withOutage returns the error of a wait, which is that of the members if no store answers.
func (c *caller) withOutage(err error) error {
	c.mu.Lock()
	waiting := len(c.options)
	c.left = true
	for _, o := range c.options {
		o.cancel()
	}
	c.mu.Unlock()
	c.asked.Wait()
	var outage error
	for _, failed := range c.refused {
		if r, ok := failed.(*Refusal); !ok || r.Reason != queue.Unavailable {
			return err
		}
		outage = betterError(outage, failed)
	}
	if outage == nil || len(c.refused) < waiting {
		return err
	}
	return outage
}

// join waits in the queues of members, and in no others.
func (c *caller) join(members []*Member) {
	c.mu.Lock()
	for m, o := range c.options {
		if !slices.Contains(members, m) {
			c.stop(o)
		}
	}
	c.mu.Unlock()
	var idle []*Member // that a round trip away decide, each for this caller alone
	r := round{pool: c.pool, members: members, first: -1}
	for i := r.next(); i >= 0; i = r.next() {
		if m := members[i]; !m.isNear() && m.Path.Waiting() == 0 {
			idle = append(idle, m)
		} else {
			c.ask(m)
		}
	}
	asked := 0
	if len(idle) > 0 && c.pool.isAlone() { // else callers ahead ask them first
		c.ask(idle[0])
		asked = 1
	}
	if asked < len(idle) && c.begin() {
		go c.askLater(idle, asked)
	}
}

// stop leaves the queue of an option. The caller holds the lock.
func (c *caller) stop(o *option) {
	o.stopped = true
	o.cancel()
	delete(c.options, o.member)
}

// overdue is how long after its time a reservation may be taken for lost.
const overdue = 100 * time.Millisecond

// told receives that a time was reserved which fits no other caller, so that it is lost if another member
// admits this one. Therefore the caller leaves the other queues whose quotas reserve, until the time is void.
func (o *option) told(at time.Time) {
	c := o.caller
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.left || c.winner != nil || c.options[o.member] != o:
		return
	case c.held != nil && c.held != o && !at.Before(c.heldAt):
		c.stop(o)
		return
	}
	c.held, c.heldAt = o, at
	for m, other := range c.options {
		if other != o && !m.isNear() {
			c.stop(other)
		}
	}
	c.timers = append(c.timers, time.AfterFunc(time.Until(at)+overdue, func() { c.release(o.member) }))
}

// release lets the caller ask all members again, because the time that a member has reserved is void.
func (c *caller) release(m *Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held != nil && c.held.member == m {
		c.held = nil
		c.signal(errChanged)
	}
}

// begin begins a goroutine of the caller, unless it has left.
func (c *caller) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.left {
		c.asked.Add(1)
	}
	return !c.left
}

const (
	// A caller asks the next member a round trip away if one does not admit it within so many trips.
	patientTrips = 2
	// leastPatience and mostPatience bound that time.
	leastPatience, mostPatience = 2 * time.Millisecond, 50 * time.Millisecond
)

// askLater asks the members behind the first asked, each time twice as many, while none has admitted the caller.
func (c *caller) askLater(members []*Member, asked int) {
	defer c.asked.Done()
	for n := 1; asked < len(members); n *= 2 {
		if queue.SleepUntil(c.ctx, time.Now().Add(c.pool.patience(c.ctx))) != nil {
			return
		}
		for range min(n, len(members)-asked) {
			c.ask(members[asked])
			asked++
		}
	}
}

// patience returns how long a caller waits before it asks the next member. It is the same for all callers, so
// that those ahead ask first.
func (p *Pool) patience(ctx context.Context) time.Duration {
	limited, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	most := leastPatience
	for _, m := range p.Members() {
		if m.Path.err != nil {
			continue
		}
		if q := reserverOf(m.Path.revision().quota); q != nil {
			most = max(most, patientTrips*q.Trip(limited))
		}
	}
	return min(most, mostPatience)
}

// ask waits in the queue of a member, unless the caller does already.
func (c *caller) ask(m *Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left || c.winner != nil || c.options[m] != nil || c.refused[m] != nil || c.isContent(m) {
		return
	}
	o := &option{caller: c, member: m}
	o.ticket = queue.Option{Of: &c.choice, Told: o.told}
	ctx, cancel := context.WithCancel(c.ctx)
	o.cancel = cancel
	c.options[m] = o
	c.asked.Add(1)
	go o.ask(ctx)
}

// isContent reports whether the caller does not ask a member because another one has reserved a time for it,
// soon, or because others already wait for that member.
func (c *caller) isContent(m *Member) bool {
	return c.held != nil && !m.isNear() && (m.Path.Waiting() > 0 || time.Until(c.heldAt) < mostPatience)
}

// ask admits the request in the member.
func (o *option) ask(ctx context.Context) {
	defer o.caller.asked.Done()
	defer o.cancel()
	returned, err := false, error(nil)
	defer func() {
		if !returned {
			o.panicked = recover()
		}
		o.caller.answer(o, err, returned)
	}()
	d := o.caller.demand
	d.Record, d.Queued, d.Recost = &o.decider, nil, nil
	d.since, d.option = o.caller.since, &o.ticket
	err = o.member.admit(ctx, &d, &o.admission)
	returned = true
}

// admit is Path.Admit without reporting the admission.
func (m *Member) admit(ctx context.Context, d *Demand, a *Admission) error {
	s, err := m.Path.Enter()
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done {
			s.Leave()
		}
	}()
	_, err = m.Path.charge(ctx, s, d, a, true)
	done = err == nil && a.Charged()
	return err
}

// answer receives how an option has ended. What a second member has admitted is given back.
func (c *caller) answer(o *option, err error, returned bool) {
	if surplus := c.record(o, err, returned); surplus {
		o.admission.drop()
	}
}

func (c *caller) record(o *option, err error, returned bool) (surplus bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.options[o.member] == o {
		delete(c.options, o.member)
	}
	if c.held == o {
		c.held = nil
	}
	switch {
	case !returned:
		c.failed = o
	case err != nil && o.stopped:
		return false
	case err != nil:
		c.refused[o.member] = err
		c.endRefusal(o.member, err)
	case c.winner != nil || !c.choice.Take(&o.ticket):
		return true
	default:
		c.winner = o
		c.signal(queue.ErrAdmitted)
		return false
	}
	c.signal(errChanged)
	return false
}

// errChanged is the cause of the end of a wait in a room whose caller chooses anew.
var errChanged = errors.New("admit: the caller chooses anew")

// again lets the caller choose anew.
func (c *caller) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signal(errChanged)
}

// signal wakes the caller. It holds the lock.
func (c *caller) signal(cause error) {
	if c.changed = true; c.wake != nil {
		c.wake(cause)
	}
}

// fullFor is how long a member whose queue is full is not asked again.
const fullFor = 250 * time.Millisecond

// endRefusal lets the caller ask the member again when what it was refused for has ended.
func (c *caller) endRefusal(m *Member, err error) {
	r, ok := err.(*Refusal)
	if !ok || c.left {
		return
	}
	wait := r.Wait
	switch r.Reason {
	case queue.Full:
		wait = fullFor
	case queue.Banned, queue.Exhausted:
	default:
		return
	}
	if wait <= 0 || wait >= store.Forever {
		return
	}
	c.timers = append(c.timers, time.AfterFunc(wait, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.refused, m)
		c.signal(errChanged)
	}))
}
