// Package kepttwin compares stores of package kept, number for number, with ledgers of package algorithms that
// are driven as the documentation of package store says.
package kepttwin

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

// A Config describes the traces of a test.
type Config struct {
	// Keeper keeps the values.
	Keeper kept.Keeper
	// Memory is the keeper, if it is one in virtual time. If nil, the keeper is a server in real time.
	Memory *Memory
	// Ahead is whether the quotas reserve ahead.
	Ahead bool
	// Window is the usual length of a window.
	Window time.Duration
	// Seed is the trace's number, and Steps its length.
	Seed  uint64
	Steps int
	// Check is called with every value that is written. It may be nil.
	Check func(value []byte)
}

// A Count is what happened in a trace.
type Count struct {
	Transactions, Admitted, Reserved, TakenOver, Refused, Changes, Forgotten, Decreased int
	// Torn reports that the trace ended early, because a call made several transactions.
	Torn bool
}

// An open request is one that was admitted and has not ended.
type open struct {
	quota   store.Quota
	plan    *algorithms.Plan
	process int
	store.Decision
	cost []int64
	// since is when it was admitted.
	since time.Time
	// stale reports that the keeper has forgotten the state that it was charged to.
	stale bool
}

// A process is one of those that share the quota.
type process struct {
	quota store.Quota
	plan  *algorithms.Plan
	// replaces is the plan that it replaced last, or nil.
	replaces *algorithms.Plan
	// known is the last instant of the quota's clock that it knows.
	known int64
	// clock is what it knows of the quota's clock, if it reserves ahead.
	clock *timing.Clock
	// ended and pending are what it has to report: places and estimates that have ended, and other changes.
	ended   []func(s *state)
	pending []func(s *state)
	// reserved are the instants to come that it has reserved for a request.
	reserved map[int64]bool
	// unwatch ends the watch of its callers that wait, or is nil if none does.
	unwatch func()
}

// A trace is a random sequence of steps.
type trace struct {
	*planner
	Config
	t         testing.TB
	ctx       context.Context
	log       log
	state     state
	processes []*process
	stores    []*kept.Store
	opens     []open
	count     Count
	step      string
	// before is the state before the last transaction, and must is whether that had to be written.
	before state
	must   bool
	// moved reports that the clock was set, and stepped that it was set back.
	moved, stepped bool
	// paused reports that there was a pause.
	paused bool
}

// Run plays a trace.
func Run(t testing.TB, c Config) Count {
	r := rand.New(rand.NewPCG(c.Seed, 1))
	x := &trace{planner: newPlanner(r, c.Window), Config: c, t: t, ctx: context.Background()}
	x.log.check, x.log.over = c.Check, make(chan struct{})
	x.state.waiters = make(map[int]waiter)
	plan := x.plan()
	for i := range 1 + r.IntN(2) {
		o := kept.Options{Name: "twin", Ahead: c.Ahead, Lease: 1e6 * time.Hour, Timeout: 20 * time.Second}
		if c.Memory != nil {
			o.Wall = c.Memory.Wall
		}
		s := kept.New(&recorder{c.Keeper, i, &x.log}, o)
		q, err := s.Open(fmt.Sprintf("twin %d", c.Seed), plan, nil)
		if err != nil {
			t.Fatal(err)
		}
		x.stores = append(x.stores, s)
		x.processes = append(x.processes, &process{quota: q, plan: plan, clock: &timing.Clock{Server: new(timing.Clock)}, reserved: make(map[int64]bool)})
	}
	for i := 0; i < c.Steps && !x.count.Torn && !t.Failed(); i++ {
		x.step = fmt.Sprintf("seed %d, step %d", c.Seed, i)
		x.one()
	}
	close(x.log.over)
	for i, s := range x.stores {
		x.unwatch(i)
		x.processes[i].quota.Close()
		_ = s.Flush(x.ctx)
	}
	if x.Memory != nil { // goroutines end by themselves
		x.Memory.close()
		time.Sleep(time.Minute)
	}
	return x.count
}

func (x *trace) errorf(format string, args ...any) {
	x.t.Helper()
	var plans []string
	for _, p := range x.processes {
		plans = append(plans, fmt.Sprint(p.plan.Tiers(), p.plan.Guard()))
	}
	x.t.Errorf("%s, plans %v: %s", x.step, plans, fmt.Sprintf(format, args...))
}

// one makes a step.
func (x *trace) one() {
	x.quiet()
	p := x.IntN(len(x.processes))
	if i := slices.IndexFunc(x.opens, func(o open) bool { return o.Probe && time.Since(o.since) > 10*store.ProbeTime }); i >= 0 {
		x.end(i)
	}
	switch n := x.IntN(100); {
	case n < 25 || n < 45 && !x.Ahead:
		x.tryAcquire(p)
	case n < 45:
		x.reserve(p)
	case n < 68 && len(x.opens) > 0:
		x.end(x.IntN(len(x.opens)))
	case n < 78:
		x.status(p)
	case n < 81:
		x.change(p)
	case n < 84:
		x.pause(p)
	case n < 86 && n&1 == 0:
		x.resume(p)
	case n < 86:
		x.forgetRates(p)
	case n < 88 && x.Memory != nil:
		x.setClock(p)
	case n < 89 && x.Memory != nil:
		x.forget(p)
	case n < 91:
		x.leave(p)
	default:
		x.pass(time.Duration(x.Int64N(int64(x.window) >> x.IntN(8))))
	}
}

// quiet waits for what the stores of a server do in the background, which may otherwise come within a call.
func (x *trace) quiet() {
	for _, s := range x.stores {
		if x.Memory == nil {
			_ = s.Flush(x.ctx)
		}
	}
	x.settle()
}

// reported ends the trace if a transaction came while a process reported, because it may have missed a part.
func (x *trace) reported() {
	x.log.mu.Lock()
	defer x.log.mu.Unlock()
	x.count.Torn = x.count.Torn || x.Memory == nil && len(x.log.events) > 0
}

// settle passes the transactions between the calls to the reference.
func (x *trace) settle() {
	for _, e := range x.log.take() {
		x.begin(e)
		x.finish(e, false)
	}
}

// begin begins the transaction of an event in the reference, with what its process has to report.
func (x *trace) begin(e event) {
	x.count.Transactions++
	p, s := x.processes[e.process], &x.state
	if e.forgot && len(s.ledgers) > 0 {
		x.count.Forgotten++
		*s = state{waiters: make(map[int]waiter)}
		for i := range x.opens {
			x.opens[i].stale = true
		}
	}
	x.before = s.clone()
	x.must = x.setNow(e)
	x.must = s.begin() || x.must
	s.use(p.plan, p.replaces)
	reports := slices.Concat(p.pending, p.ended)
	p.ended, p.pending = nil, nil
	if _, waits := s.waiters[e.process]; waits && p.unwatch == nil {
		delete(s.waiters, e.process)
		x.must = true
	}
	for _, f := range reports {
		f(s)
	}
}

// setNow sets the present moment of the reference: not before what the process knows. If the keeper's clock was set back by
// less than has passed since then, the offset changes by a microsecond. It reports whether the offset has changed.
func (x *trace) setNow(e event) (corrected bool) {
	p, s := x.processes[e.process], &x.state
	least := max(s.last, p.known, e.view.Wall+s.offset)
	if p.clock.Shows(e.view.Sent) > least {
		least++
	}
	if corrected = e.view.Wall+s.offset < least; corrected {
		s.offset = least - e.view.Wall
	}
	s.now = algorithms.Moment{At: e.view.Wall + s.offset, Wall: e.view.Wall}
	if corrected {
		s.takesFrom = s.frontier()
	}
	return corrected
}

// finish ends the transaction. The state is written if something has changed.
func (x *trace) finish(e event, changed bool) {
	p := x.processes[e.process]
	if p.known = x.state.now.At; x.Ahead {
		p.clock.Update(timing.Reading{Now: p.known, Wall: e.view.Wall, Generation: int64(x.count.Forgotten), Sent: e.view.Sent, Got: e.view.Got})
	}
	switch {
	case e.written:
		x.state.own(p.plan).ledger.Crossings(x.state.now)
		x.state.last = x.state.now.At
		for i := range x.state.ledgers { // which land what has landed by now
			x.state.ledgers[i].ledger.Usage(x.state.now)
		}
	case changed || x.must:
		x.errorf("the state was not written")
	default:
		x.state = x.before
	}
}

// request returns a random request of a process.
func (x *trace) request(p int) store.Request {
	plan := x.processes[p].plan
	r := store.Request{Cost: x.cost(plan), WaitSpec: &store.WaitSpec{MaxWait: time.Hour * 24 * 365}}
	r.Held = plan.Concurrent() || plan.Estimates() || x.IntN(2) == 0
	switch x.IntN(12) {
	case 0:
		r.DryRun = true
	case 1, 2:
		r.MaxWait = time.Duration(x.Int64N(int64(x.window))).Truncate(time.Microsecond)
	case 3:
		r.Headroom, r.YieldFor = x.Int64N(60), time.Hour*24*365
	}
	if x.guard > 0 && x.IntN(4) == 0 {
		r.Guard = x.guard/2 + time.Duration(x.Int64N(int64(x.guard))).Truncate(time.Microsecond)
	}
	if x.Memory == nil {
		r.Hold = x.window / 3
	}
	return r
}

// odd makes the instants of the steps differ from those of the store's timers.
const odd = 371 * time.Microsecond

// pass lets time pass, before or after the processes have reported.
func (x *trace) pass(d time.Duration) {
	if x.Memory == nil {
		d = min(d, 10*time.Millisecond)
	}
	time.Sleep(d.Truncate(time.Millisecond) + odd)
	x.settle()
}

// setClock sets the clock of the keeper.
func (x *trace) setClock(p int) {
	if x.status(p); x.state.pause.Probing { // its process extends the wait by its own clock
		return
	}
	by := time.Duration(x.Int64N(2*int64(x.window))) - x.window
	if x.IntN(4) == 0 {
		by *= 100
	}
	if x.count.Forgotten > 0 { // pauses that are over would not be over any more
		by = max(by, -by)
	}
	x.moved, x.stepped = true, x.stepped || by < 0
	x.Memory.Step(by.Truncate(time.Microsecond))
}

// forget makes the keeper forget the value with the next transaction, if it may.
func (x *trace) forget(p int) {
	if x.stepped {
		return
	}
	x.pass(x.window)
	for i := range x.processes { // or they take it for lost, because they know of an older state that lasts longer
		x.status(i)
	}
	x.Memory.Forget(true)
	x.status(p)
	x.Memory.Forget(false)
}

func (x *trace) status(p int) {
	var got store.Status
	var err error
	x.call(p, false, func() error { got, err = x.processes[p].quota.Status(x.ctx); return err }, func(s *state) { x.compare(s, p, got, err) })
}

// call makes a call with a transaction, and compares its result within the reference's.
func (x *trace) call(p int, changed bool, call func() error, compare func(s *state)) {
	x.settle()
	err := call()
	events := x.log.take()
	if len(events) != 1 {
		if x.Memory != nil {
			x.errorf("%d transactions, error %v", len(events), err)
		}
		x.count.Torn = true
		return
	}
	x.begin(events[0])
	compare(&x.state)
	x.finish(events[0], changed)
}

func (x *trace) compare(s *state, p int, got store.Status, err error) {
	if err != nil {
		x.errorf("status: %v", err)
		return
	}
	closed, paused := s.pause.Status(s.now)
	if got.Closed != closed || !s.pause.Probing && got.Paused != paused || got.At != s.now.At {
		x.errorf("closed %v, paused %v at %d; want %v, %v, %d", got.Closed, got.Paused, got.At, closed, paused, s.now.At)
	}
	own := s.own(x.processes[p].plan)
	rates := own.ledger.LearnedRates(s.now)
	for i, want := range s.status(x.processes[p].plan) {
		g := got.Tiers[i]
		if rates != nil && rates[i] != nil && (g.Learned == nil || g.Learned.Rate != rates[i].Rate || g.Learned.Refused != rates[i].Refused) {
			x.errorf("tier %d has learned %+v, want %+v", i, g.Learned, rates[i])
		}
		if g = (store.TierStatus{Used: g.Used, InFlight: g.InFlight, Others: g.Others, Remaining: g.Remaining, RetryAfter: g.RetryAfter, ResetAfter: g.ResetAfter}); g != want {
			type plain store.TierStatus
			x.errorf("tier %d is\n%+v, want\n%+v", i, plain(g), plain(want))
		}
	}
}

// change replaces the plan of a process.
func (x *trace) change(p int) {
	q := x.processes[p]
	x.settle()
	old, plan := q.plan, x.plan()
	if x.Memory != nil && !x.state.pause.Probing && x.IntN(2) == 0 { // what is booked comes due between the transactions
		x.moved = true
		x.Memory.StepAfter(time.Duration(x.Int64N(int64(x.window))).Truncate(time.Microsecond))
	}
	if err := q.quota.(store.Lifecycle).Change(x.ctx, plan); err != nil {
		x.errorf("change: %v", err)
	}
	events := x.log.take()
	if len(events) != 2 {
		x.count.Torn = true
		return
	}
	x.begin(events[0])
	x.finish(events[0], false)
	x.setNow(events[1])
	x.before = x.state.clone()
	x.state.begin()
	q.plan, q.replaces = plan, old
	x.state.use(plan, old)
	x.finish(events[1], true)
	q.quota, _ = q.quota.(store.Lifecycle).Successor()
	x.count.Changes++
}

func (x *trace) pause(p int) {
	w := store.Pause{For: time.Duration(x.Int64N(int64(x.window))).Truncate(time.Microsecond), Close: x.IntN(4) == 0, Probe: x.IntN(3) == 0}
	if x.Memory == nil {
		if w.For, w.Probe = w.For/100, false; x.paused {
			return
		}
	}
	x.paused = true
	of := x.refuse(p, &w)
	var got store.Paused
	x.call(p, false, func() error { got, _ = x.processes[p].quota.Pause(x.ctx, w); return nil }, func(s *state) {
		taught, decreases, void := s.teach(w, of)
		w := w
		w.For = w.Length(s.level)
		want := store.Paused{Applied: !void && s.pause.Apply(w, s.now)}
		if want.Applied {
			want.For, s.level = max(0, s.now.Until(s.pause.Until)), w.Next(s.level)
		} else if decreases {
			s.voidReserved()
		}
		if decreases {
			x.count.Decreased++
		}
		want.Epoch, x.must = s.pause.Epoch, x.must || want.Applied || taught
		if x.Ahead && x.count.Forgotten > 0 { // a process may know of earlier ones
			s.pause.Epoch, want.Epoch = got.Epoch, got.Epoch
		}
		if got != want {
			x.errorf("pause %+v: %+v, want %+v", w, got, want)
		}
	})
}

func (x *trace) resume(p int) {
	x.call(p, true, func() error { return x.processes[p].quota.Resume(x.ctx) }, func(s *state) {
		s.pause.Until, s.pause.Banned, s.pause.Probe, s.pause.Probing, s.level = 0, 0, false, false, 0
	})
}

// refuse makes a request that is open the cause of a pause, now and then, and returns its plan.
func (x *trace) refuse(p int, w *store.Pause) (of *algorithms.Plan) {
	q := x.processes[p]
	if of = q.plan; len(x.opens) == 0 || x.IntN(3) == 0 {
		return of
	}
	o := x.opens[x.IntN(len(x.opens))]
	w.Refused = &store.Refused{At: o.At, Cost: of.Translate(o.plan, o.cost)}
	if x.IntN(4) == 0 {
		clear(w.Refused.Cost[1:])
	}
	if x.IntN(2) == 0 {
		w.Once, w.Epoch = true, o.Epoch
	}
	if x.IntN(2) == 0 {
		w.Most = 2 * x.window
	}
	return of
}

// forgetRates makes all tiers learn anew.
func (x *trace) forgetRates(p int) {
	x.call(p, true, func() error { return x.processes[p].quota.(store.Feedback).Forget(x.ctx) }, func(s *state) {
		for i := range s.ledgers {
			s.ledgers[i].ledger.Usage(s.now)
			s.ledgers[i].ledger.Forget()
		}
		s.voidReserved()
	})
}

// leave gives up the place of a process that waits.
func (x *trace) leave(p int) {
	if q, ok := x.processes[p].quota.(store.Reserver); ok {
		x.unwatch(p)
		q.Leave()
		x.reported()
	}
}

// watch begins the watch of callers of a process.
func (x *trace) watch(p int) {
	if q := x.processes[p]; q.unwatch == nil && x.Ahead {
		q.unwatch = q.quota.Watch(func(store.Change, time.Duration) {})
	}
}

// unwatch ends the watch of the callers of a process, which wait no more.
func (x *trace) unwatch(p int) {
	if q := x.processes[p]; q.unwatch != nil {
		q.unwatch()
		q.unwatch = nil
	}
}

func (x *trace) tryAcquire(p int) {
	q, r := x.processes[p], x.request(p)
	var got store.Decision
	var err error
	x.call(p, false, func() error { got, err = q.quota.TryAcquire(x.ctx, r); return err }, func(s *state) {
		if err != nil {
			x.errorf("%v", err)
			return
		}
		if r.MaxWait = 0; x.Ahead {
			x.decide(s, p, r, got, 0)
		} else {
			x.take(s, p, r, got)
		}
	})
}

func (x *trace) reserve(p int) {
	q := x.processes[p]
	x.watch(p)
	like, requests := x.request(p), []store.Request(nil)
	for range 1 + x.IntN(20) {
		if requests = append(requests, like); x.IntN(4) == 0 {
			like = x.request(p)
		}
	}
	type answer struct {
		got []store.Decision
		err error
	}
	done := make(chan answer, 1)
	var a answer
	x.call(p, false, func() error {
		q.quota.(store.Reserver).Reserve(nil, requests, func(got []store.Decision, err error) { done <- answer{got, err} })
		a = <-done
		return a.err
	}, func(s *state) {
		if a.err != nil || len(a.got) == 0 {
			x.errorf("%d decisions, error %v", len(a.got), a.err)
		}
		for i, d := range a.got {
			x.decide(s, p, requests[i], d, 0)
		}
	})
}

// refundable reports whether a reservation is refunded that is returned now.
func refundable(d store.Decision, unused bool) bool {
	return timing.RefundableUntil(d.Reservation, unused).After(time.Now())
}

// Add adds what happened in another trace.
func (c *Count) Add(o Count) {
	c.Transactions += o.Transactions
	c.Admitted += o.Admitted
	c.Reserved += o.Reserved
	c.TakenOver += o.TakenOver
	c.Refused += o.Refused
	c.Changes += o.Changes
	c.Forgotten += o.Forgotten
	c.Decreased += o.Decreased
}
