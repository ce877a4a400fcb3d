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
			continue
		case first == nil || decision.Wait < soonest.Wait:
			first, soonest, rev = m, decision, a.Revision
		}
		r.full(m, decision.Wait)
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
	if d.Cost == nil && d.N == 1 && d.SendBy.IsZero() {
		if s, rev := m.Path.fastPath(); rev != nil {
			decision, err := rev.quota.TryAcquire(ctx, store.Request{Cost: rev.oneRequest, Held: d.Held, WaitSpec: rev.initialWaitSpec(ctx)})
			if err == nil && decision.Verdict == store.Admitted {
				a.Charge = Charge{s, rev, decision, rev.oneRequest}
			}
			if err == nil && (decision.Verdict == store.Admitted || decision.Verdict == store.Later) {
				a.Revision = rev
				return decision, nil
			}
		}
	}
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

	stands *queue.Caller   // in the queues of plain members and in a room
	ctx    context.Context // of the other options; ends when the caller leaves
	asked  sync.WaitGroup  // the goroutines of the other options

	mu      sync.Mutex              // guards all below
	options map[*Member]*option     // of the members in whose queues the caller waits
	refused map[*Member]error       // the errors of other members
	timers  map[*Member]*time.Timer // see caller.after
	watched map[*Member][]func()    // end the watches of caller.watchOthers
	held    *option                 // with a reserved time that fits no other caller; nil if there is none
	heldAt  time.Time               // that time
	winner  *option                 // that has admitted the request; nil if none has
	failed  *option                 // in which a function of the user did not return; nil if it did
	left    bool                    // no further member is asked
}

// An option is a member in whose queue a caller waits.
type option struct {
	caller    *caller
	member    *Member
	ticket    queue.Option
	place     *place             // in the queue of a plain member; nil if the option has a goroutine
	cancel    context.CancelFunc // of the goroutine
	stopped   bool               // the caller waits for other members now
	admission *Admission
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
	c.mu.Lock()
	refused := maps.Clone(c.refused)
	c.mu.Unlock()
	able, err := c.pool.able(&c.demand, refused)
	if err != nil {
		return nil, err
	}
	return c.pool.stages(able, c.key), nil
}

// watchOthers watches the members that cannot serve the request, or have refused it, under their policies, which may
// change. A pause that keeps them from serving it may end early. It reports whether it has begun to watch any.
func (c *caller) watchOthers(able []*Member) (begun bool) {
	for _, m := range c.pool.Members() {
		c.mu.Lock()
		known, refused := c.watched[m] != nil, c.refused[m]
		c.mu.Unlock()
		if known || slices.Contains(able, m) && refused == nil || m.Path.err != nil {
			continue
		}
		var stops []func()
		for p := m.Path; p != nil; p = p.outer {
			stops = append(stops, p.scope.Load().watchFor(func() { c.reconsider(m) }, mayEndEarly(refused)))
		}
		c.mu.Lock()
		c.watched[m] = stops
		delete(c.refused, m) // its pause may have ended just before, or its policy have changed
		c.mu.Unlock()
		begun = true
	}
	return begun
}

// mayEndEarly reports whether a member refused a request because of a pause or a ban.
func mayEndEarly(err error) bool {
	r, ok := err.(*Refusal)
	return ok && r.Wait > 0 && (r.Reason == queue.Banned || r.Reason == queue.Late && r.Tier < 0)
}

// reconsider lets the caller ask a member again.
func (c *caller) reconsider(m *Member) {
	c.mu.Lock()
	stops := c.watched[m]
	delete(c.watched, m)
	delete(c.refused, m)
	c.signal()
	c.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// isRefused reports whether all of the members have refused the request.
func (c *caller) isRefused(members []*Member) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(members, func(m *Member) bool { return c.refused[m] == nil })
}

// admit waits until a member admits the request.
func (c *caller) admit(ctx context.Context, a *Admission) (by *Member, err error) {
	c.options, c.refused, c.stands = make(map[*Member]*option), make(map[*Member]error), queue.NewCaller()
	c.timers, c.watched = make(map[*Member]*time.Timer), make(map[*Member][]func())
	c.choice.Returned = c.again
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithCancel(ctx)
	c.pool.enter(c)
	err = errPanicked
	defer func() {
		c.pool.leave(c)
		c.stopAll(ctx, cancel)
		switch won := c.winner; {
		case c.failed != nil:
			if won != nil {
				won.admission.drop()
			}
			c.failed.fail()
		case won != nil && err == errPanicked:
			won.admission.drop()
		case won != nil:
			*a, by, err = *won.admission, won.member, nil
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
func (c *caller) stopAll(ctx context.Context, cancel context.CancelFunc) {
	c.mu.Lock()
	c.left = true
	for _, t := range c.timers {
		t.Stop()
	}
	watched := slices.Concat(slices.Collect(maps.Values(c.watched))...)
	c.watched = nil
	c.mu.Unlock()
	for _, stop := range watched {
		stop()
	}
	cancel()
	c.endAll(ctx, func(*option) bool { return true })
	c.asked.Wait()
}

// wait waits until a member has admitted the request, or returns an error.
func (c *caller) wait(ctx context.Context) error {
	for {
		stages, err := c.stages()
		switch {
		case err != nil && ctx.Err() != nil:
			return c.withOutage(ctx, ctx.Err())
		case err != nil:
			return err
		}
		c.stage = min(c.stage, len(stages)-1)
		members, last := stages[c.stage], c.stage == len(stages)-1
		if c.watchOthers(stages[len(stages)-1]) {
			continue // a policy may have changed just before
		}
		room := c.pool.room(members)
		until, bound := c.since.Add(c.pool.spill()), ""
		if last {
			until, bound = room.giveUpAt(c)
		}
		if !last && (c.pool.spill() == 0 || c.isRefused(members)) {
			c.stage++
			continue
		}
		err = room.wait(ctx, c, until, bound)
		switch late := hasReason(err, queue.Late); {
		case c.isDecided():
			return nil
		case late && !last:
			c.stage++
		case late:
			return c.withOutage(ctx, c.lateBy(until, err))
		case ctx.Err() != nil:
			return c.withOutage(ctx, ctx.Err())
		}
	}
}

// isDecided reports whether a member has decided.
func (c *caller) isDecided() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.winner != nil || c.failed != nil
}

// lateBy returns the error of a caller that is late. It is that of the members if all are banned. If its time has
// come, the members give up too, or admit it at the last moment.
func (c *caller) lateBy(until time.Time, late error) error {
	if _, err := c.stages(); err != nil {
		return err
	}
	if !until.IsZero() && !time.Now().Before(until) {
		c.asked.Wait()
	}
	return late
}

// withOutage returns the error of a wait, which is that of the members if no store answers.
func (c *caller) withOutage(ctx context.Context, err error) error {
	c.mu.Lock()
	waiting := len(c.options)
	c.left = true
	for _, o := range c.options {
		if o.place == nil {
			o.cancel()
		}
	}
	c.mu.Unlock()
	c.endAll(ctx, func(*option) bool { return true })
	c.asked.Wait()
	c.mu.Lock() // a member may be reconsidered just now
	defer c.mu.Unlock()
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

// join joins the queues of members, and leaves the others.
func (c *caller) join(ctx context.Context, members []*Member) {
	left := func(o *option) bool { return !slices.Contains(members, o.member) }
	c.endAll(ctx, left)
	c.mu.Lock()
	for _, o := range c.options {
		if left(o) {
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
			c.ask(ctx, m)
		}
	}
	asked := 0
	if len(idle) > 0 && c.pool.isAlone() { // else callers ahead ask them first
		c.ask(ctx, idle[0])
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

// told is called when the member has reserved a time that fits no other caller. The time is lost if another
// member admits this one. Therefore the caller leaves the other queues whose quotas reserve, until the time is
// void.
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
	c.hold(o)
	c.heldAt = at
	for m, other := range c.options {
		if other != o && !m.isNear() {
			c.stop(other)
		}
	}
	c.after(time.Until(at)+overdue, o.member, func() { c.release(o.member) })
}

// release lets the caller ask all members again, because the time that a member has reserved is void.
func (c *caller) release(m *Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held != nil && c.held.member == m {
		c.hold(nil)
		c.signal()
	}
}

// hold sets c.held. The caller holds the lock.
func (c *caller) hold(o *option) {
	switch {
	case c.held == nil && o != nil:
		c.pool.holders.Add(1)
	case c.held != nil && o == nil:
		c.pool.holders.Add(-1)
	}
	c.held = o
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
			c.ask(c.ctx, members[asked])
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
func (c *caller) ask(ctx context.Context, m *Member) {
	if o := c.newOption(m); o != nil && o.cancel == nil {
		o.stand(ctx)
	}
}

// newOption returns a new option, or nil if the caller does not ask the member. If the member is not plain, a
// goroutine asks it.
func (c *caller) newOption(m *Member) *option {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left || c.winner != nil || c.options[m] != nil || c.refused[m] != nil || c.isContent(m) {
		return nil
	}
	o := &option{caller: c, member: m}
	o.ticket.Of = &c.choice
	if c.options[m] = o; !m.isPlain() {
		o.ticket.Told, o.admission = o.told, new(Admission)
		var ctx context.Context
		ctx, o.cancel = context.WithCancel(c.ctx)
		c.asked.Add(1)
		go o.ask(ctx)
	}
	return o
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
	err = o.member.admit(ctx, &d, o.admission)
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
	if err == queue.ErrTaken && !c.choice.IsTaken() { // the admission in the other queue was given back before
		c.again()
	}
}

func (c *caller) record(o *option, err error, returned bool) (surplus bool) {
	surplus = returned && err == nil && !c.choice.Take(&o.ticket)
	if err != nil {
		o.ticket.GiveBack() // it was refused after its queue had admitted it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.options[o.member] == o {
		delete(c.options, o.member)
	}
	if c.held == o {
		c.hold(nil)
	}
	switch {
	case !returned:
		c.failed = o
	case surplus, err == queue.ErrTaken, err != nil && o.stopped:
		return surplus
	case err == nil:
		c.winner = o
	default:
		c.refused[o.member] = err
		c.endRefusal(o.member, err)
	}
	c.signal()
	return false
}

// again lets the caller choose anew.
func (c *caller) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signal()
}

// signal lets the caller choose anew. It holds the lock.
func (c *caller) signal() { c.stands.Wake() }

// fullFor is how long a member whose queue is full is not asked again.
const fullFor = 250 * time.Millisecond

// endRefusal lets the caller ask the member again when what it was refused for has ended. The caller holds the
// lock.
func (c *caller) endRefusal(m *Member, err error) {
	r, ok := err.(*Refusal)
	switch {
	case !ok || c.left:
	case r.Reason == queue.Full:
		c.after(fullFor, m, func() {
			if most := m.Path.revision().MaxQueue; most == 0 || m.Path.Waiting() < most {
				c.reconsider(m)
				return
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.endRefusal(m, err)
		})
	case (r.Reason == queue.Banned || r.Reason == queue.Exhausted) && r.Wait > 0:
		c.after(r.Wait, m, func() { c.reconsider(m) })
	case r.Reason == queue.Late && r.Wait > 0: // for the member's MaxWait, or the context ends before
		c.after(max(r.Wait, fullFor), m, func() { c.reconsider(m) })
	}
}

// after calls f later, in place of what it was to call for the member before, unless the caller leaves. The
// caller holds the lock.
func (c *caller) after(d time.Duration, m *Member, f func()) {
	if t := c.timers[m]; t != nil {
		t.Stop()
	}
	c.timers[m] = time.AfterFunc(d, f)
}
