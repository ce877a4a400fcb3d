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
	nestedQueues map[*waitQueue]struct{} // the queues of nested Limiters whose callers wait for this quota
	paused       pauseCause              // the last pause by this process
	reported     time.Time               // when a report last asked for the state; zero if none has
}

// rareState returns the rare state. The caller holds s.mu.
func (s *scope) rareState() *rareState {
	if s.rare == nil {
		s.rare = &rareState{nestedQueues: make(map[*waitQueue]struct{})}
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
}

func newRevision(c *compiledPolicy, q store.Quota, closed bool) *revision {
	rev := &revision{compiledPolicy: c, quota: q, closed: closed}
	if c.fastPath && c.batchSpec == nil && c.plan.Quick() {
		rev.fast, _ = q.(store.FastQuota)
	}
	if r, ok := q.(store.Reporter); ok {
		r.Report(c.called)
	}
	return rev
}

var inProcess local.Store

// openScope opens the quota of a key. Without a store the quota is in this process and belongs to the
// scope alone.
func openScope(c *compiledPolicy, key string) (*scope, error) {
	s := c.store
	if s == nil {
		s, key = &inProcess, ""
	}
	q, err := s.Open(key, c.plan)
	if err != nil {
		return nil, fmt.Errorf("throttle: policy %q: %w", c.policy.Name, err)
	}
	_, reserves := q.(store.Reserver) // the same for all quotas of a store
	scope := new(scope)
	scope.current.Store(newRevision(c.forStore(reserves), q, false))
	return scope, nil
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
	bound      bound     // what sets giveUp
	outerBound bound     // in an outer scope, what sets the deadline of the context
	since      time.Time // when the caller first asked, for its place in a queue; zero for now

	observed *observation // nil if nobody observes the request

	recost func() Cost // returns the cost as it is estimated now; nil if it stays the same

	giveUp time.Time // when the request is no longer worth waiting for, as giveUpAt found

	*pairing // of a request that needs the same time in several scopes; nil for any other
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
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.pairing == nil {
		if _, err := s.tryNow(ctx, rev, d, c); err != nil || c.scope != nil {
			return err
		}
	}
	return s.wait(ctx, rev, d, c)
}

// wait admits a request through the queue.
func (s *scope) wait(ctx context.Context, rev *revision, d *demand, c *charge) error {
	giveUp, err := s.giveUpAt(rev, d)
	if err != nil {
		return err
	}
	*c, err = s.queue.wait(ctx, s, waitRequest{demand: *d, giveUpAt: giveUp, config: s.queueConfig, explain: (*revision).explain})
	return d.withBound(ctx, err)
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
// none. MaxWait begins now. It records that time in the demand, and what sets it.
func (s *scope) giveUpAt(rev *revision, d *demand) (time.Time, error) {
	d.giveUp, d.bound = time.Time{}, unbound
	if rev.policy.MaxWait > 0 {
		d.giveUp, d.bound = time.Now().Add(rev.policy.MaxWait), byMaxWait
	}
	if d.sendBy.IsZero() {
		return d.giveUp, nil
	}
	last := d.sendBy.Add(-s.longestDelay(rev))
	if left := time.Until(last); left < 0 {
		return d.giveUp, rev.tooLate()
	}
	if d.giveUp.IsZero() || last.Before(d.giveUp) {
		d.giveUp, d.bound = last, bySendBy
	}
	return d.giveUp, nil
}

// tooLate returns the refusal of a request whose SendBy is too near.
func (c *compiledPolicy) tooLate() *WaitError {
	e := c.refusal(&queue.Refusal{Reason: queue.Late, Tier: -1})
	e.Bound = bounds[bySendBy]
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
	mu       sync.Mutex // guards all below
	revision *revision  // that the queue is configured for
	version  int        // the version of the queue's configuration
}

func (wq *waitQueue) len() int {
	if q := wq.made.Load(); q != nil {
		return q.Len()
	}
	return 0
}

// lock returns the queue, configured for the revision in force. The caller unlocks it.
func (wq *waitQueue) lock(s *scope, config func(*revision) queue.Config) *configuredQueue {
	if wq.made.Load() == nil {
		wq.made.CompareAndSwap(nil, new(configuredQueue))
	}
	q := wq.made.Load()
	q.mu.Lock()
	rev := s.current.Load()
	if q.revision != rev && (q.version == 0 || !rev.closed) {
		q.version = q.Replace(config(rev))
	}
	q.revision = rev
	return q
}

// configure configures the queue for the revision in force. It returns the queue, the revision and
// the version of the configuration.
func (wq *waitQueue) configure(s *scope, config func(*revision) queue.Config) (*queue.Queue, *revision, int) {
	q := wq.lock(s, config)
	defer q.mu.Unlock()
	return &q.Queue, q.revision, q.version
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

// A waitRequest is a demand that waits in a queue, with the functions that depend on its Limiter.
type waitRequest struct {
	demand   demand
	giveUpAt time.Time
	config   func(*revision) queue.Config
	// explain returns the caller's error for an error of the queue.
	explain func(*revision, error) error
	// costOf returns the cost of the request. If nil, its cost under the revision.
	costOf func(*revision) ([]int64, error)
	// ask asks for the request under the revision that its cost was computed for. If nil, the
	// revision's quota.TryAcquire is used.
	ask func(context.Context, *revision, store.Request) (store.Decision, error)
}

// wait waits in the queue until the demand is admitted. If the policy changes, it queues again in
// the same place.
func (wq *waitQueue) wait(ctx context.Context, s *scope, w waitRequest) (charge, error) {
	ticket := queue.Ticket{Class: queue.Class(classOf(ctx)), GiveUp: w.giveUpAt}
	ticket.Place.Since = w.demand.since
	join, rejoins := (*queue.Queue).Wait, false
	for {
		q, rev, version := wq.configure(s, w.config)
		var cost []int64
		var err error
		if w.costOf != nil {
			cost, err = w.costOf(rev)
		} else {
			cost, err = rev.costOf(&w.demand)
		}
		if rev.closed {
			err = rev.refuse(ErrClosed, -1, 0)
		} else if rev.concurrent && !w.demand.held {
			err = rev.refuse(ErrNeedsPermit, -1, 0)
		}
		if err != nil {
			if rejoins {
				q.Leave()
			}
			return charge{}, err
		}
		ticket.Request = store.Request{Cost: cost, Held: w.demand.held, Guard: s.guardFor(&w.demand, rev)}
		w.demand.hold(rev, &ticket)
		if ticket.Recost = nil; w.demand.recost != nil && w.ask == nil && rev.estimates && !rev.reserves {
			ticket.Recost = func() []int64 {
				now := demand{n: 1, cost: w.demand.recost()}
				if c, err := rev.costOf(&now); err == nil && slices.Min(c) >= 0 {
					cost = c
				}
				return cost
			}
		}
		if w.ask != nil {
			ticket.Ask = func(ctx context.Context, r store.Request) (store.Decision, error) { return w.ask(ctx, rev, r) }
		}
		ticket.Version, ticket.Free = version, rev.isFree(cost)
		if o := w.demand.observed; o != nil {
			ticket.Joined = func(ahead int) { o.join(ctx, ahead) }
		}
		decision, err := join(q, ctx, ticket)
		switch reason := reasonOf(err); {
		case err == nil:
			if o := w.demand.observed; o != nil && o.tier == "" && decision.Tier >= 0 {
				o.decidedBy(w.explain(rev, waitFor(decision.Tier)))
			}
			return charge{s, rev, decision, cost}, nil
		case reason == queue.Moved:
			join, rejoins = (*queue.Queue).Rejoin, true
			ticket.Place = placeOf(err)
			s.adoptSuccessor()
		case reason != queue.Stale:
			return charge{}, w.explain(rev, err)
		}
	}
}

// queueConfig returns the configuration of the queue for this scope alone.
func (s *scope) queueConfig(rev *revision) queue.Config {
	c := queue.Config{
		Quota:    rev.quota,
		MaxQueue: rev.policy.MaxQueue,
		Aging:    rev.policy.aging(),
		Headroom: rev.policy.Headroom,
	}
	if rev.autoGuard {
		c.Guard = func() time.Duration { return s.guard(rev) }
	}
	return c
}

// adoptSuccessor returns the revision in force. It first replaces the revision if another handle on
// the quota has changed the plan.
func (s *scope) adoptSuccessor() *revision {
	s.mu.Lock()
	defer s.mu.Unlock()
	rev := s.current.Load()
	if q, ok := rev.quota.(store.Changer); ok {
		if next, plan := q.Successor(); plan != rev.plan {
			rev = newRevision(rev.withPlan(plan), next, rev.closed)
			s.current.Store(rev)
		}
	}
	return rev
}

// setPolicy replaces the policy. Waiting callers queue again under the new one.
func (s *scope) setPolicy(ctx context.Context, c *compiledPolicy) error {
	old := s.current.Load()
	changer, ok := old.quota.(store.Changer)
	if !ok {
		return old.errorf("SetPolicy: the store cannot change the policy of a %T: make another Limiter", old.quota)
	}
	if err := changer.Change(ctx, c.plan); err != nil {
		return old.errorf("SetPolicy: %w", err)
	}
	s.mu.Lock()
	rev := s.current.Load()
	next, plan := rev.quota.(store.Changer).Successor()
	if plan != c.plan { // another handle has changed it since
		c = c.withPlan(plan)
	}
	rev = newRevision(c, next, rev.closed)
	s.current.Store(rev)
	s.mu.Unlock()
	if s.queue.made.Load() != nil {
		s.queue.configure(s, s.queueConfig)
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
	nested := slices.Collect(maps.Keys(s.rareState().nestedQueues))
	s.mu.Unlock()
	if was {
		return
	}
	s.queue.close()
	for _, wq := range nested {
		wq.made.Load().Pause(time.Now(), true, rev.refuse(ErrClosed, -1, 0))
	}
	rev.quota.Close()
}

// track records the queue of a nested Limiter, whose callers are refused when the scope is closed.
// untrack ends that.
func (s *scope) track(wq *waitQueue) (untrack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	queues := s.rareState().nestedQueues
	queues[wq] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(queues, wq)
	}
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
	if guard == 0 && rev.plan.Guard() == 0 && d.refundable && !rev.reserves {
		return refundable
	}
	return guard
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

// An outlook is a Forecast of one scope.
type outlook struct {
	Forecast
	ahead    [3]int         // by class
	decision store.Decision // of the dry run
	decided  bool           // it refuses, or makes the request wait
}

// forecast returns how long a request would wait if it arrived now.
func (s *scope) forecast(ctx context.Context, d demand) (f outlook, err error) {
	rev, decision, err := s.tryDry(ctx, &d, store.WaitSpec{})
	f.decision, f.decided = decision, err == nil && decision.Verdict != store.Ready
	switch {
	case err != nil:
		return f, rev.explain(err)
	case decision.Verdict == store.Closed || decision.Verdict == store.Exhausted:
		return f, rev.refused(decision)
	case decision.Verdict != store.Ready:
		f.Wait, f.Tier = decision.Wait, rev.tierName(decision.Tier)
	}
	if spec := rev.initialWaitSpec(ctx); spec != nil { // a Batch request leaves headroom until it has aged
		rev, decision, err := s.tryDry(ctx, &d, *spec)
		if err != nil {
			return f, rev.explain(err)
		}
		if wait := min(decision.Wait, spec.YieldFor); wait > f.Wait {
			f.Wait, f.Tier = wait, rev.tierName(decision.Tier)
		}
	}
	if s.waiting() == 0 {
		return f, nil
	}
	late, ahead, err := s.lateRefusal(ctx, &d)
	if err != nil {
		return f, err
	}
	if f.ahead = ahead; late.Wait > f.Wait {
		f.Wait, f.Tier = late.Wait, late.Tier
	}
	return f, nil
}

// tryDry asks the quota, under the newest plan, whether it would admit a request.
func (s *scope) tryDry(ctx context.Context, d *demand, spec store.WaitSpec) (*revision, store.Decision, error) {
	spec.DryRun = true
	for rev := s.current.Load(); ; rev = s.adoptSuccessor() {
		cost, err := rev.costOf(d)
		if err != nil {
			return rev, store.Decision{}, &queue.Final{Err: err}
		}
		dry := store.Request{Cost: cost, Held: true, Guard: s.guard(rev), WaitSpec: &spec}
		decision, err := rev.quota.TryAcquire(ctx, dry)
		if err != nil || decision.Verdict != store.Moved {
			return rev, decision, err
		}
	}
}

// lateRefusal returns the refusal of a request that arrives now and has no time to wait, and how
// many callers of each class are ahead of it.
func (s *scope) lateRefusal(ctx context.Context, d *demand) (*WaitError, [3]int, error) {
	return s.queue.lateRefusal(ctx, s, d, s.queueConfig, (*revision).explain)
}

func (wq *waitQueue) lateRefusal(ctx context.Context, s *scope, d *demand, config func(*revision) queue.Config,
	explain func(*revision, error) error) (late *WaitError, ahead [3]int, err error) {
	q := wq.lock(s, config) // keeps the policy the same for the cost and the forecast
	defer q.mu.Unlock()
	rev := q.revision
	if rev.closed { // the queue may be configured for an earlier revision
		return nil, ahead, rev.refuse(ErrClosed, -1, 0)
	}
	cost, err := rev.costOf(d)
	if err != nil {
		return nil, ahead, err
	}
	r := store.Request{Cost: cost, Held: true, Guard: s.guard(rev)}
	wait, tier, ahead := q.Forecast(r, queue.Class(classOf(ctx)))
	err = explain(rev, &queue.Refusal{Reason: queue.Late, Tier: tier, Wait: wait, Ahead: ahead[0] + ahead[1] + ahead[2]})
	errors.As(err, &late)
	return late, ahead, nil
}
