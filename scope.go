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
	terms   atomic.Pointer[terms]         // the policy in force
	line    line                          // of callers that wait for this quota alone
	learned atomic.Pointer[rtt.Estimator] // the estimator of the guard; nil until a guard is learned
	grouped bool                          // a Group keeps the scope
	uses    atomic.Int64                  // calls in progress; negative once the Group has dropped the scope

	mu     sync.Mutex         // guards all below
	nested map[*line]struct{} // the queues of nested Limiters whose callers wait for this quota
}

// A terms is a policy and the quota that decides under it. It is immutable: SetPolicy replaces it.
type terms struct {
	*compiled
	quota  store.Quota
	closed bool
}

var inProcess local.Store

// openScope opens the quota of a key. If s is nil, the quota is in this process and belongs to the
// scope alone.
func openScope(c *compiled, s Store, key string) (*scope, error) {
	if s == nil {
		s, key = &inProcess, ""
	}
	q, err := s.Open(key, c.plan)
	if err != nil {
		return nil, fmt.Errorf("throttle: policy %q: %w", c.policy.Name, err)
	}
	if _, ok := q.(store.Reserver); ok != c.reserves { // the same for all quotas of a store
		own := *c
		own.reserves, own.plain = ok, c.plain && !ok
		c = &own
	}
	scope := new(scope)
	scope.terms.Store(&terms{compiled: c, quota: q})
	return scope, nil
}

// waiting returns how many callers wait for this quota alone.
func (s *scope) waiting() int { return s.line.len() }

// A demand is what a caller asks to be admitted.
type demand struct {
	cost       Cost      // if nil, n requests
	n          int64     // requests, if cost is nil
	held       bool      // the caller reports the request's arrival and end
	now        bool      // the caller does not wait
	refundable bool      // this charge is one of several scopes', and may be refunded
	sendBy     time.Time // the latest time of arrival; zero if there is none
	since      time.Time // when the caller first asked, for its place in a queue; zero for now

	*pairing // of a request that needs the same time in several scopes; nil for any other
}

// A charge is what one scope charged for a request.
type charge struct {
	scope    *scope
	terms    *terms
	decision store.Decision
	cost     []int64
}

// fresh returns the WaitSpec of a request that has just arrived.
func (t *terms) fresh(ctx context.Context) *store.WaitSpec {
	if t.yields != nil && classOf(ctx) == Batch {
		return t.yields
	}
	return nil
}

// passes reports whether a request may ask the quota without joining the queue: the queue is empty,
// or the request costs nothing in this scope, so only a pause can delay it. If the quota reserves
// ahead, waiting requests are sent together, so only a caller that does not wait may ask by itself.
func (s *scope) passes(t *terms, l *line, cost []int64, now bool) bool {
	return l.len() == 0 && (now || !t.reserves) || !t.isOne(cost) && t.isFree(cost)
}

// admit admits a request in this scope alone. It waits if necessary.
func (s *scope) admit(ctx context.Context, t *terms, d *demand, c *charge) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.pairing == nil {
		if _, err := s.tryNow(ctx, t, d, c); err != nil || c.scope != nil {
			return err
		}
	}
	return s.wait(ctx, t, d, c)
}

// wait admits a request through the queue.
func (s *scope) wait(ctx context.Context, t *terms, d *demand, c *charge) error {
	giveUp, err := s.giveUp(t, d)
	if err != nil {
		return err
	}
	*c, err = s.line.wait(ctx, s, waitRequest{demand: *d, giveUp: giveUp, config: s.config, explain: (*terms).explain})
	return err
}

// tryNow admits a request without waiting. If the request would have to wait, nothing is charged.
// The decision contains the reason unless other callers wait.
func (s *scope) tryNow(ctx context.Context, t *terms, d *demand, c *charge) (store.Decision, error) {
	if !d.sendBy.IsZero() {
		if _, err := s.giveUp(t, d); err != nil {
			return store.Decision{}, err
		}
	}
	cost, err := t.compile(d)
	if err != nil || !s.passes(t, &s.line, cost, d.now) {
		return store.Decision{Tier: -1, Wait: forever}, err
	}
	r := store.Request{Cost: cost, Held: d.held, Guard: s.guardOf(d, t), WaitSpec: t.fresh(ctx)}
	decision, err := t.quota.TryAcquire(ctx, r)
	if err == nil && decision.Verdict == store.Admitted {
		c.scope, c.terms, c.decision, c.cost = s, t, decision, cost
		return decision, nil
	}
	return decision, t.judge(ctx, decision, err, d.now)
}

// judge returns the error for a quota's reply to a request that it did not admit, or nil if the
// request may wait. A caller that does not wait, or whose context has ended, gets ErrUnavailable;
// otherwise the queue waits for the store.
func (c *compiled) judge(ctx context.Context, d store.Decision, err error, now bool) error {
	var outer *queue.Final
	switch {
	case errors.As(err, &outer):
		return outer.Err
	case errors.Is(err, ErrUnavailable) && !now && ctx.Err() == nil:
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

// giveUp returns the time at which a request is no longer worth waiting for, zero if there is none.
// MaxWait begins now.
func (s *scope) giveUp(t *terms, d *demand) (at time.Time, err error) {
	if t.policy.MaxWait > 0 {
		at = time.Now().Add(t.policy.MaxWait)
	}
	if d.sendBy.IsZero() {
		return at, nil
	}
	last := d.sendBy.Add(-s.longestWay(t))
	if left := time.Until(last); left < 0 {
		return at, t.refusal(&queue.Refusal{Reason: queue.Late, Tier: -1})
	}
	if at.IsZero() || last.Before(at) {
		at = last
	}
	return at, nil
}

// A line is a queue for the quota of a scope, which is made when the first caller waits. Each scope
// has one, and so has each Limiter inside others.
type line struct {
	queue atomic.Pointer[queue.Queue]
	mu    sync.Mutex // guards all below
	terms *terms     // that the queue is configured for
	at    int        // the version of the queue's configuration
}

func (l *line) len() int {
	if q := l.queue.Load(); q != nil {
		return q.Len()
	}
	return 0
}

// under configures the queue for the terms in force. It returns the queue, the terms and the
// version of the configuration.
func (l *line) under(s *scope, config func(*terms) queue.Config) (*queue.Queue, *terms, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.underLocked(s, config)
}

// underLocked is like under but needs l.mu locked.
func (l *line) underLocked(s *scope, config func(*terms) queue.Config) (*queue.Queue, *terms, int) {
	q, t := l.queue.Load(), s.terms.Load()
	switch {
	case q == nil:
		q = queue.New(config(t))
		l.queue.Store(q)
	case l.terms != t && !t.closed:
		l.at = q.Replace(config(t))
	}
	l.terms = t
	return q, t, l.at
}

// renew configures the queue again, after a change of something else than the terms. Its callers
// keep their places.
func (l *line) renew(s *scope, config func(*terms) queue.Config) {
	l.mu.Lock()
	l.terms = nil
	l.mu.Unlock()
	l.under(s, config)
}

// A waitRequest is a demand that waits in a line, with the functions that depend on its Limiter.
type waitRequest struct {
	demand demand
	giveUp time.Time
	config func(*terms) queue.Config
	// explain returns the caller's error for an error of the queue.
	explain func(*terms, error) error
	// ask asks for the request under the terms that its cost was compiled for. If nil, their
	// quota's TryAcquire is used.
	ask func(context.Context, *terms, store.Request) (store.Decision, error)
}

// wait waits in the queue until the demand is admitted. If the policy changes, it queues again in
// the same place.
func (l *line) wait(ctx context.Context, s *scope, w waitRequest) (charge, error) {
	ticket := queue.Ticket{Class: queue.Class(classOf(ctx)), GiveUp: w.giveUp}
	ticket.Place.Since = w.demand.since
	join, rejoins := (*queue.Queue).Wait, false
	for {
		q, t, version := l.under(s, w.config)
		cost, err := t.compile(&w.demand)
		if t.closed {
			err = t.refuse(ErrClosed, -1, 0)
		} else if t.concurrent && !w.demand.held {
			err = t.refuse(ErrNeedsPermit, -1, 0)
		}
		if err != nil {
			if rejoins {
				q.Leave()
			}
			return charge{}, err
		}
		ticket.Request = store.Request{Cost: cost, Held: w.demand.held, Guard: s.guardOf(&w.demand, t)}
		w.demand.hold(t, &ticket)
		if w.ask != nil {
			ticket.Ask = func(ctx context.Context, r store.Request) (store.Decision, error) { return w.ask(ctx, t, r) }
		}
		ticket.Version, ticket.Free = version, t.isFree(cost)
		decision, err := join(q, ctx, ticket)
		switch reason := reasonOf(err); {
		case err == nil:
			return charge{s, t, decision, cost}, nil
		case reason == queue.Moved:
			join, rejoins = (*queue.Queue).Rejoin, true
			ticket.Place = placeOf(err)
			s.adopt()
		case reason != queue.Stale:
			return charge{}, w.explain(t, err)
		}
	}
}

// config returns the configuration of the queue for this scope alone.
func (s *scope) config(t *terms) queue.Config {
	c := queue.Config{
		Quota:    t.quota,
		MaxQueue: t.policy.MaxQueue,
		Aging:    t.policy.aging(),
		Headroom: t.policy.Headroom,
	}
	if t.auto {
		c.Guard = func() time.Duration { return s.guard(t) }
	}
	return c
}

// adopt returns the terms in force, after it has replaced them if another handle on the quota has
// changed the plan.
func (s *scope) adopt() *terms {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.terms.Load()
	if q, ok := t.quota.(store.Changer); ok {
		if next, plan := q.Successor(); plan != t.plan {
			t = &terms{compiled: t.under(plan), quota: next, closed: t.closed}
			s.terms.Store(t)
		}
	}
	return t
}

// setPolicy replaces the policy. Waiting callers queue again under the new one.
func (s *scope) setPolicy(ctx context.Context, c *compiled) error {
	old := s.terms.Load()
	changer, ok := old.quota.(store.Changer)
	if !ok {
		return old.errorf("SetPolicy: a quota of %T has one policy for ever", old.quota)
	}
	if err := changer.Change(ctx, c.plan); err != nil {
		return old.errorf("SetPolicy: %w", err)
	}
	s.mu.Lock()
	t := s.terms.Load()
	next, plan := t.quota.(store.Changer).Successor()
	if plan != c.plan { // another handle has changed it since
		c = c.under(plan)
	}
	t = &terms{compiled: c, quota: next, closed: t.closed}
	s.terms.Store(t)
	s.mu.Unlock()
	if s.line.queue.Load() != nil {
		s.line.under(s, s.config)
	}
	return nil
}

// close refuses all callers from now on, and cancels reservations.
func (s *scope) close() {
	s.mu.Lock()
	t := *s.terms.Load()
	was := t.closed
	closed := *t.compiled
	closed.plain = false
	t.compiled, t.closed = &closed, true
	s.terms.Store(&t)
	nested := slices.Collect(maps.Keys(s.nested))
	s.mu.Unlock()
	if was {
		return
	}
	s.line.close()
	for _, l := range nested {
		l.queue.Load().Pause(time.Now(), true, t.refuse(ErrClosed, -1, 0))
	}
	t.quota.Close()
}

// keep records the queue of a nested Limiter, whose callers are refused when the scope is closed.
// forget ends that.
func (s *scope) keep(l *line) (forget func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nested == nil {
		s.nested = make(map[*line]struct{})
	}
	s.nested[l] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.nested, l)
	}
}

func (l *line) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.queue.Load(); q != nil {
		q.Close()
	}
}

// guard returns the guard interval of a request that is admitted now, or zero for the policy's own.
func (s *scope) guard(t *terms) time.Duration {
	if !t.auto {
		return 0
	}
	return s.estimator().Estimate()
}

// guardOf returns the guard interval of the request of a demand, or zero for the policy's own.
func (s *scope) guardOf(d *demand, t *terms) time.Duration {
	guard := s.guard(t)
	if guard == 0 && t.plan.Guard() == 0 && d.refundable && !t.reserves {
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

// longestWay returns how long a request may take to reach the provider.
func (s *scope) longestWay(t *terms) time.Duration {
	return cmp.Or(s.guard(t), t.plan.Guard())
}

// forecast returns how long a request would wait if it arrived now.
func (s *scope) forecast(ctx context.Context, d demand) (f Forecast, err error) {
	t, decision, err := s.tryDry(ctx, &d)
	switch {
	case err != nil:
		return f, t.explain(err)
	case decision.Verdict == store.Closed || decision.Verdict == store.Exhausted:
		return f, t.refused(decision)
	case decision.Verdict != store.Ready:
		f.Wait, f.Tier = decision.Wait, t.tierName(decision.Tier)
	}
	if s.waiting() == 0 {
		return f, nil
	}
	late, err := s.late(ctx, &d)
	if err != nil {
		return f, err
	}
	if f.Ahead = late.Ahead; late.Wait > f.Wait {
		f.Wait, f.Tier = late.Wait, late.Tier
	}
	return f, nil
}

// tryDry asks the quota, under the newest plan, whether it would admit a request.
func (s *scope) tryDry(ctx context.Context, d *demand) (*terms, store.Decision, error) {
	for t := s.terms.Load(); ; t = s.adopt() {
		cost, err := t.compile(d)
		if err != nil {
			return t, store.Decision{}, &queue.Final{Err: err}
		}
		dry := store.Request{Cost: cost, Held: true, Guard: s.guard(t), WaitSpec: &store.WaitSpec{DryRun: true}}
		decision, err := t.quota.TryAcquire(ctx, dry)
		if err != nil || decision.Verdict != store.Moved {
			return t, decision, err
		}
	}
}

// late returns the refusal of a request that arrives now and has no time to wait.
func (s *scope) late(ctx context.Context, d *demand) (*WaitError, error) {
	s.line.mu.Lock() // keeps the policy the same for the cost and the forecast
	defer s.line.mu.Unlock()
	q, t, _ := s.line.underLocked(s, s.config)
	cost, err := t.compile(d)
	if err != nil {
		return nil, err
	}
	r := store.Request{Cost: cost, Held: true, Guard: s.guard(t)}
	wait, tier, ahead := q.Forecast(r, queue.Class(classOf(ctx)))
	return t.refusal(&queue.Refusal{Reason: queue.Late, Tier: tier, Wait: wait, Ahead: ahead}), nil
}
