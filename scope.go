package throttle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/internal/rtt"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// A scope is one quota with the state that this process keeps beside it: the policy in force, the
// queue of its callers, and the guard that responses teach. Limiters are handles on a scope.
type scope struct {
	current atomic.Pointer[revision]      // the policy in force
	queue   waitQueue                     // of callers that wait for this quota alone
	learned atomic.Pointer[rtt.Estimator] // the estimator of the guard; nil until a guard is learned
	uses    atomic.Int32                  // calls and permits in progress; negative once the Group has dropped the scope
	grouped bool                          // a Group keeps the scope
	shared  bool                          // Group.Shared
	handled bool                          // Limiters other than that of its entry have the scope

	mu   sync.Mutex // guards handled and all below
	rare *rareState // nil until it is needed; see scope.rareState
}

// rareState is the state that few scopes have.
type rareState struct {
	concerned   map[*func(error)]struct{} // what refuses the callers of nested Limiters who wait for this quota
	paused      ownPause                  // the last pause by this process
	replacement *compiledPolicy           // the last policy that setPolicy has set; nil if none
	reported    time.Time                 // when a report last asked for the state; zero if none has
}

// rareState returns the rare state. The caller holds s.mu.
func (s *scope) rareState() *rareState {
	if s.rare == nil {
		s.rare = &rareState{concerned: make(map[*func(error)]struct{})}
	}
	return s.rare
}

// A revision is a compiled policy and the quota that decides under it. It is immutable: SetPolicy
// replaces it.
type revision struct {
	*compiledPolicy
	quota  store.Quota
	fast   store.FastQuota // the quota, if it can admit one request without a decision; else nil
	closed bool
	// foresees reports that the quota's Soonest knows its state. If not, the wait that a dry run names
	// is the best forecast.
	foresees bool
}

func newRevision(c *compiledPolicy, q store.Quota, closed bool) *revision {
	rev := &revision{compiledPolicy: c, quota: q, closed: closed, foresees: doesForesee(q)}
	if c.fastPath && c.batchSpec == nil && c.plan.Quick() {
		rev.fast = fastOf(q)
	}
	return rev
}

var inProcess local.Store

// openScope opens the quota of a key. Without a store the quota is in this process and belongs to the
// scope alone.
func openScope(c *compiledPolicy, key string) (*scope, error) {
	s, scope, report := c.store, new(scope), (func(store.Call))(nil)
	if s == nil {
		s, key = &inProcess, ""
	} else {
		report = scope.called
	}
	q, err := s.Open(key, c.plan, report)
	if err != nil {
		return nil, fmt.Errorf("throttle: policy %q: %w", c.policy.Name, err)
	}
	scope.current.Store(newRevision(c.forStore(doesReserve(q)), q, false))
	return scope, nil
}

// called reports a call of the store to the Observer of the policy in force.
func (s *scope) called(call store.Call) {
	if rev := s.current.Load(); rev != nil && rev.called != nil {
		rev.called(call)
	}
}

// handOut gives the scope to a Limiter besides that of its entry.
func (s *scope) handOut(l *Limiter) {
	s.mu.Lock()
	s.handled = true
	s.mu.Unlock()
	l.scope.Store(s)
}

// waiting returns how many callers wait for this quota alone.
func (s *scope) waiting() int { return s.queue.len() }

// A demand is what a caller asks to be admitted.
type demand struct {
	cost       Cost      // if nil, n requests
	n          int64     // requests, if cost is nil
	held       bool      // the caller reports the request's arrival and end
	noWait     bool      // the caller does not wait
	refundable bool      // this charge is one of several scopes', and may be refunded
	sendBy     time.Time // the latest time of arrival; zero if there is none
	bound      Bound     // what sets giveUp
	outerBound Bound     // in an outer scope, what sets the deadline of the context
	since      time.Time // when the caller first asked, for its place in a queue; zero for now

	observed *record // what an Observer receives; nil if nobody observes the request

	recost func() Cost              // returns the cost as it is estimated now; nil if it stays the same
	queued func()                   // in an outer scope, is called when the demand waits there; nil in the innermost
	waited map[*scope]time.Duration // in outer scopes so far, of a demand that may ask them again; nil if it is in none

	giveUp time.Time // when the request is no longer worth waiting for, as giveUpAt found
	atOnce bool      // one call charges it in all scopes, and finds out which budgets are exhausted

	// lead is how long before its time a reservation is returned, and hold how long after it was made the request is
	// sent at the earliest: the caller asks other scopes meanwhile. If zero, it does not.
	lead, hold, margin time.Duration
}

// A charge is what one scope charged for a request.
type charge struct {
	scope    *scope
	revision *revision
	decision store.Decision
	cost     []int64
}

// initialWaitSpec returns the WaitSpec of a request that has just arrived.
func (rev *revision) initialWaitSpec(ctx context.Context) *store.WaitSpec {
	if rev.batchSpec != nil && classOf(ctx) == Batch {
		return rev.batchSpec
	}
	return nil
}

// skipsQueue reports whether a request may ask the quota without joining the queue: the queue is
// empty, or the request costs nothing in this scope, so only a pause can delay it. If the quota
// reserves ahead, waiting requests are sent together, so only a caller that does not wait may ask
// by itself.
func (s *scope) skipsQueue(rev *revision, wq *waitQueue, cost []int64, noWait bool) bool {
	return wq.len() == 0 && (noWait || !rev.reserves) || !rev.isOneRequest(cost) && rev.isFree(cost)
}

// admit admits a request in this scope alone. It waits if necessary.
func (s *scope) admit(ctx context.Context, rev *revision, d *demand, c *charge) error {
	if rev.reserves && d.since.IsZero() { // the policy may change while the store is asked
		d.since = time.Now()
	}
	if _, err := s.tryNow(ctx, rev, d, c); err != nil || c.scope != nil {
		return err
	}
	return s.wait(ctx, rev, d, c)
}

// wait admits a request through the queue.
func (s *scope) wait(ctx context.Context, rev *revision, d *demand, c *charge) error {
	giveUp, err := s.giveUpAt(rev, d)
	if err != nil {
		return err
	}
	own := *d // d itself stays on the stack of calls that don't wait
	r, err := s.queue.wait(ctx, s, &waitRequest{demand: &own, giveUpAt: giveUp, explain: (*revision).explain})
	if err != nil {
		return d.withBound(ctx, err)
	}
	*c = s.charged(r)
	return nil
}

// charged returns the charge of a request that was admitted through a queue.
func (s *scope) charged(r queue.Result) charge {
	return charge{s, r.Owner.(*revision), r.Decision, r.Cost}
}

// tryNow admits a request without waiting. If the request would have to wait, nothing is charged.
// The decision contains the reason unless other callers wait.
func (s *scope) tryNow(ctx context.Context, rev *revision, d *demand, c *charge) (store.Decision, error) {
	if !d.sendBy.IsZero() {
		if _, err := s.giveUpAt(rev, d); err != nil {
			return store.Decision{}, err
		}
	}
	cost, err := rev.costOf(d)
	if err != nil || !s.skipsQueue(rev, &s.queue, cost, d.noWait) {
		return store.Decision{Tier: -1, Wait: forever}, err
	}
	r := store.Request{Cost: cost, Held: d.held, Guard: s.guardFor(d, rev), WaitSpec: rev.initialWaitSpec(ctx)}
	decision, err := rev.quota.TryAcquire(ctx, r)
	if err == nil && decision.Verdict == store.Admitted {
		c.scope, c.revision, c.decision, c.cost = s, rev, decision, cost
		return decision, nil
	}
	return decision, rev.decisionError(ctx, decision, err, d.noWait)
}

// decisionError returns the error for a quota's reply to a request that it did not admit, or nil if
// the request may wait. A caller that does not wait, or whose context has ended, gets
// ErrUnavailable; otherwise the queue waits for the store.
func (c *compiledPolicy) decisionError(ctx context.Context, d store.Decision, err error, noWait bool) error {
	var outer *queue.Final
	switch {
	case errors.As(err, &outer):
		return outer.Err
	case errors.Is(err, ErrUnavailable) && !noWait && ctx.Err() == nil:
		return nil
	case err != nil:
		return c.explain(err)
	case d.Verdict == store.Closed || d.Verdict == store.Exhausted:
		return c.refused(d)
	}
	return nil
}

// refundable is how long an outer scope without a guard keeps a charge in flight, so it can be
// refunded. The charge lands when all scopes have admitted the request.
const refundable = time.Second

// giveUpAt returns the time at which a request is no longer worth waiting for, zero if there is
// none. MaxWait begins now, but for the time that the demand has waited in this scope before. It
// records that time in the demand, and what sets it.
func (s *scope) giveUpAt(rev *revision, d *demand) (time.Time, error) {
	d.giveUp, d.bound = time.Time{}, ""
	if rev.policy.MaxWait > 0 {
		d.giveUp, d.bound = time.Now().Add(rev.policy.MaxWait-d.waited[s]), BoundMaxWait
	}
	if d.sendBy.IsZero() {
		return d.giveUp, nil
	}
	last := d.sendBy.Add(-s.longestDelay(rev))
	if left := time.Until(last); left < 0 {
		return d.giveUp, rev.tooLate()
	}
	if d.giveUp.IsZero() || last.Before(d.giveUp) {
		d.giveUp, d.bound = last, BoundSendBy
	}
	return d.giveUp, nil
}

// tooLate returns the refusal of a request whose SendBy is too near.
func (c *compiledPolicy) tooLate() *WaitError {
	e := c.refusal(&queue.Refusal{Reason: queue.Late, Tier: -1})
	e.Bound = BoundSendBy
	return e
}

// A waitQueue is a queue for the quota of a scope, which is made when the first caller waits. Each
// scope has one, and so has each Limiter inside others.
type waitQueue struct {
	made atomic.Pointer[configuredQueue]
}

// A configuredQueue is the queue of a waitQueue and its configuration.
type configuredQueue struct {
	queue.Queue
	mu         sync.Mutex // guards all below
	revision   *revision  // that the queue is configured for; nil to configure it again
	configured bool
}

func (wq *waitQueue) len() int {
	if q := wq.made.Load(); q != nil {
		return q.Len()
	}
	return 0
}

// lock returns the queue, configured for the revision in force. The caller unlocks it. If config is
// nil, scope.queueConfig is used.
func (wq *waitQueue) lock(s *scope, config func(*revision) queue.Config) *configuredQueue {
	if wq.made.Load() == nil {
		wq.made.CompareAndSwap(nil, new(configuredQueue))
	}
	q := wq.made.Load()
	q.mu.Lock()
	rev := s.current.Load()
	if q.revision != rev && (!q.configured || !rev.closed) {
		if config == nil {
			config = s.queueConfig
		}
		c := config(rev)
		c.Replanned = func() {
			s.adoptSuccessor()
			wq.configure(s, config)
		}
		q.Replace(c)
		q.configured = true
	}
	q.revision = rev
	return q
}

// configure configures the queue for the revision in force, and returns both.
func (wq *waitQueue) configure(s *scope, config func(*revision) queue.Config) (*queue.Queue, *revision) {
	q := wq.lock(s, config)
	defer q.mu.Unlock()
	return &q.Queue, q.revision
}

// reconfigure configures the queue again, because something else than the revision has changed. Its
// callers keep their places.
func (wq *waitQueue) reconfigure(s *scope, config func(*revision) queue.Config) {
	if q := wq.made.Load(); q != nil {
		q.mu.Lock()
		q.revision = nil
		q.mu.Unlock()
	}
	wq.configure(s, config)
}

// A payer is what a queue is configured for, and charges in one scope or in several at once: a
// revision or a bundledQuota.
type payer interface {
	costOf(*demand) ([]int64, error)
	innermost() *revision
}

func (rev *revision) innermost() *revision { return rev }

// A waitRequest is a demand that waits in a queue, with the functions that depend on its Limiter.
type waitRequest struct {
	demand   *demand
	giveUpAt time.Time
	// config returns the configuration of the queue. If nil, scope.queueConfig is used.
	config func(*revision) queue.Config
	// explain returns the caller's error for an error of the queue.
	explain func(*revision, error) error
	// ask asks for the request; see queue.Ticket. If nil, the revision's quota.TryAcquire is used.
	ask func(context.Context, queue.Turn) (queue.Result, error)
}

// wait waits in the queue until the demand is admitted. If the policy changes meanwhile, the demand
// keeps its place.
func (wq *waitQueue) wait(ctx context.Context, s *scope, w *waitRequest) (queue.Result, error) {
	q, rev := wq.configure(s, w.config)
	if rev.closed {
		return queue.Result{}, rev.refuse(ErrClosed, -1, 0)
	}
	d := w.demand
	t := queue.Ticket{
		Class: queue.Class(classOf(ctx)), GiveUp: w.giveUpAt, Since: d.since, Lead: d.lead, Hold: d.hold, Longer: d.longer(rev), Ask: w.ask,
		Renew: func(owner any) (store.Request, bool, error) { return s.renew(owner.(payer), d) },
	}
	if d.recost != nil && w.ask == nil && !rev.reserves {
		t.Recost = func(owner any) []int64 { return owner.(*revision).recost(d) }
	}
	if d.observed != nil || d.queued != nil {
		t.Joined = d.joined
	}
	start := time.Now()
	r, err := q.Wait(ctx, t)
	if d.waited != nil {
		d.waited[s] += time.Since(start)
	}
	rev = r.Owner.(payer).innermost()
	if err != nil {
		return r, w.explain(rev, err)
	}
	if o := d.observed; o != nil && o.info.Tier == "" && r.Tier >= 0 {
		o.decidedBy(w.explain(rev, &queue.Refusal{Reason: queue.Late, Tier: r.Tier}))
	}
	return r, nil
}

// joined reports that the demand has taken a place in a queue.
func (d *demand) joined(ahead int) {
	if d.queued != nil {
		d.queued()
	}
	d.observed.join(ahead)
}

// recost returns the cost of the demand as it is estimated now, or nil if it stays the same.
func (c *compiledPolicy) recost(d *demand) []int64 {
	if !c.estimates {
		return nil
	}
	now := demand{n: 1, cost: d.recost()}
	cost, err := c.costOf(&now)
	if err != nil || slices.Min(cost) < 0 {
		return nil
	}
	return cost
}

// renew returns what the queue asks for under the policies of a payer.
func (s *scope) renew(p payer, d *demand) (r store.Request, free bool, err error) {
	rev := p.innermost()
	if rev.concurrent && !d.held {
		return r, false, &queue.Final{Err: rev.refuse(ErrNeedsPermit, -1, 0)}
	}
	cost, err := p.costOf(d)
	if err != nil {
		return r, false, &queue.Final{Err: err}
	}
	r = store.Request{Cost: cost, Held: d.held, Guard: s.guardFor(d, rev)}
	return r, !rev.reserves && rev.isFree(cost), nil
}

// queueConfig returns the configuration of the queue for this scope alone.
func (s *scope) queueConfig(rev *revision) queue.Config {
	c := queue.Config{
		Owner:    rev,
		Quota:    rev.quota,
		Reserver: reserverOf(rev.quota),
		Fast:     fastOf(rev.quota),
		MaxQueue: rev.policy.MaxQueue,
		Aging:    rev.policy.aging(),
		Headroom: rev.policy.Headroom,
		Order:    orderOf(rev.quota),
	}
	if rev.autoGuard {
		c.Guard = func() time.Duration { return s.guard(rev) }
	}
	return c
}

// adoptSuccessor returns the revision in force. It first replaces the revision if another handle on
// the quota has changed the plan.
func (s *scope) adoptSuccessor() *revision { return s.adopt(nil) }

// adopt is adoptSuccessor with the policy that setPolicy has set. If nil, it is the one that setPolicy is
// setting, or else the policy in force.
func (s *scope) adopt(c *compiledPolicy) *revision {
	s.mu.Lock()
	defer s.mu.Unlock()
	rev := s.current.Load()
	if c == nil && s.rare != nil {
		c = s.rare.replacement
	}
	next, plan := lifecycleOf(rev).Successor()
	switch {
	case c != nil && c.plan == plan:
	case plan == rev.plan:
		c = rev.compiledPolicy
	default: // another handle has changed the plan
		c = rev.withPlan(plan)
	}
	if next != rev.quota || c != rev.compiledPolicy {
		rev = newRevision(c, next, rev.closed)
		s.current.Store(rev)
	}
	return rev
}

// setPolicy replaces the policy. Waiting callers queue again under the new one.
func (s *scope) setPolicy(ctx context.Context, c *compiledPolicy) error {
	old := s.current.Load()
	quota := lifecycleOf(old)
	_, plan := quota.Successor()
	c = c.keeping(plan)
	if s.queue.made.Load() != nil { // its callers adopt the successor as soon as there is one
		s.mu.Lock()
		s.rareState().replacement = c
		s.mu.Unlock()
	}
	if c.plan != plan {
		if err := quota.Change(ctx, c.plan); err != nil {
			return old.errorf("SetPolicy: %w", err)
		}
	}
	s.adopt(c)
	if s.queue.made.Load() != nil {
		s.queue.configure(s, nil)
	}
	return nil
}

// close refuses all callers from now on, and cancels reservations.
func (s *scope) close() {
	s.mu.Lock()
	rev := *s.current.Load()
	was := rev.closed
	closed := *rev.compiledPolicy
	closed.fastPath = false
	rev.compiledPolicy, rev.closed = &closed, true
	s.current.Store(&rev)
	concerned := slices.Collect(maps.Keys(s.rareState().concerned))
	s.mu.Unlock()
	if was {
		return
	}
	s.queue.close()
	for _, refuse := range concerned {
		(*refuse)(rev.refuse(ErrClosed, -1, 0))
	}
	rev.quota.Close()
}

// track calls refuse with an error when the scope is closed, until untrack is called.
func (s *scope) track(refuse func(error)) (untrack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	concerned := s.rareState().concerned
	concerned[&refuse] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(concerned, &refuse)
	}
}

// refuseAll refuses the callers of a queue that was made, because another scope is closed.
func (wq *waitQueue) refuseAll(err error) {
	wq.made.Load().Pause(time.Now(), true, &queue.Final{Err: err})
}

func (wq *waitQueue) close() {
	if q := wq.made.Load(); q != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.Close()
	}
}

// guard returns the guard interval of a request that is admitted now, or zero for the policy's own.
func (s *scope) guard(rev *revision) time.Duration {
	if !rev.autoGuard {
		return 0
	}
	return s.estimator().Estimate()
}

// guardFor returns the guard interval of the request of a demand, or zero for the policy's own.
func (s *scope) guardFor(d *demand, rev *revision) time.Duration {
	guard := s.guard(rev)
	switch all := cmp.Or(guard, rev.plan.Guard()); {
	case all == 0 && rev.reserves:
		return 0
	case all == 0 && d.refundable:
		return refundable + d.hold
	case d.longer(rev) > 0:
		return all + d.longer(rev)
	}
	return guard
}

// longer returns by how much longer than for its guard the request counts, because its caller asks other
// scopes meanwhile.
func (d *demand) longer(rev *revision) time.Duration {
	if rev.reserves {
		return d.margin
	}
	return d.hold
}

// estimator returns the estimator of the guard. It makes one if there is none.
func (s *scope) estimator() *rtt.Estimator {
	if e := s.learned.Load(); e != nil {
		return e
	}
	s.learned.CompareAndSwap(nil, rtt.New())
	return s.learned.Load()
}

// longestDelay returns how long a request may take to reach the provider.
func (s *scope) longestDelay(rev *revision) time.Duration {
	return cmp.Or(s.guard(rev), rev.plan.Guard())
}

// An outlook is what a request would meet that came now.
type outlook struct {
	wait     time.Duration // a lower bound
	revision *revision     // of the tier that decides
	tier     int           // that decides; -1 if none does
	ahead    [3]int        // by class
	// limiting is the tier that the dry run named, and epoch its pause.
	limiting int
	epoch    int64
	verdict  store.Verdict // of the dry run; Ready if the quota would admit the request now
}

// ask asks the quota what a request would meet. The error is that of a quota that refuses it.
func (s *scope) ask(ctx context.Context, d *demand) (o outlook, err error) {
	rev, spec := s.current.Load(), &dryRun
	yields := rev.initialWaitSpec(ctx) // a Batch request leaves headroom until it has aged
	if yields != nil {
		yields = &store.WaitSpec{DryRun: true, YieldFor: yields.YieldFor, Headroom: yields.Headroom}
	}
	if yields != nil && rev.foresees {
		spec = yields
	}
	rev, decision, err := s.tryDry(ctx, d, spec)
	o = outlook{revision: rev, tier: -1, limiting: decision.Tier, epoch: decision.Epoch, verdict: decision.Verdict}
	switch {
	case err != nil:
		o.verdict = store.Ready
		return o, rev.explain(err)
	case decision.Verdict == store.Closed || decision.Verdict == store.Exhausted:
		return o, rev.refused(decision)
	case rev.foresees || decision.Verdict == store.Ready:
	case decision.Wait < forever && decision.Tier != store.Probing:
		o.wait, o.tier = decision.Wait, decision.Tier
	}
	if yields != nil && !rev.foresees {
		rev, decision, err := s.tryDry(ctx, d, yields)
		if err != nil {
			return o, rev.explain(err)
		}
		if wait := min(decision.Wait, yields.YieldFor); wait > o.wait {
			o.wait, o.tier, o.revision = wait, decision.Tier, rev
		}
	}
	return o, nil
}

// dryRun is the WaitSpec of a dry run.
var dryRun = store.WaitSpec{DryRun: true}

// tryDry asks the quota, under the newest plan, whether it would admit a request.
func (s *scope) tryDry(ctx context.Context, d *demand, spec *store.WaitSpec) (*revision, store.Decision, error) {
	for rev := s.current.Load(); ; rev = s.adoptSuccessor() {
		cost, err := rev.costOf(d)
		if err != nil {
			return rev, store.Decision{}, &queue.Final{Err: err}
		}
		dry := store.Request{Cost: cost, Held: true, Queued: true, Guard: s.guard(rev), WaitSpec: spec}
		decision, err := rev.quota.TryAcquire(ctx, dry)
		if err != nil || decision.Verdict != store.Moved {
			return rev, decision, err
		}
	}
}

// forecast returns what a request would meet in the queue of this scope alone. The refusal is nil if
// it would join.
func (s *scope) forecast(ctx context.Context, d *demand, giveUp time.Time) (outlook, *queue.Refusal, error) {
	return s.queue.forecast(ctx, s, d, giveUp, nil)
}

// forecast returns what a request would meet in the queue if it gave up at a time, or never if that is
// zero. The refusal is nil if it would join.
func (wq *waitQueue) forecast(ctx context.Context, s *scope, d *demand, giveUp time.Time, config func(*revision) queue.Config) (o outlook, refusal *queue.Refusal, err error) {
	q := wq.lock(s, config) // keeps the policy the same for the cost and the forecast
	defer q.mu.Unlock()
	rev := q.revision
	if rev.closed { // the queue may be configured for an earlier revision
		return o, nil, rev.refuse(ErrClosed, -1, 0)
	}
	cost, err := rev.costOf(d)
	if err != nil {
		return o, nil, err
	}
	got := q.Forecast(queue.Ticket{
		Class: queue.Class(classOf(ctx)), GiveUp: giveUp,
		Renew: func(any) (store.Request, bool, error) {
			return store.Request{Cost: cost, Held: true, Guard: s.guard(rev)}, !rev.reserves && rev.isFree(cost), nil
		},
	})
	return outlook{wait: got.Wait, revision: rev, tier: got.Tier, ahead: got.Ahead}, got.Refusal, nil
}
