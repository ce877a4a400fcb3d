package admit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// A waitQueue is a queue for the quota of a scope, which is made when the first caller waits. Each
// scope has one, and so has each Path inside others.
type waitQueue struct {
	made atomic.Pointer[configuredQueue]
}

// A configuredQueue is the queue of a waitQueue and its configuration.
type configuredQueue struct {
	queue.Queue
	mu         sync.Mutex // guards all below
	revision   *Revision  // that the queue is configured for; nil to configure it again
	configured bool
}

func (wq *waitQueue) len() int {
	if q := wq.made.Load(); q != nil {
		return q.Len()
	}
	return 0
}

// lock returns the queue, configured for the revision in force. The caller unlocks it. If config is
// nil, Scope.queueConfig is used.
func (wq *waitQueue) lock(s *Scope, config func(*Revision) queue.Config) *configuredQueue {
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
func (wq *waitQueue) configure(s *Scope, config func(*Revision) queue.Config) (*queue.Queue, *Revision) {
	q := wq.lock(s, config)
	defer q.mu.Unlock()
	return &q.Queue, q.revision
}

// reconfigure configures the queue again, because something else than the revision has changed. Its
// callers keep their places.
func (wq *waitQueue) reconfigure(s *Scope, config func(*Revision) queue.Config) {
	if q := wq.made.Load(); q != nil {
		q.mu.Lock()
		q.revision = nil
		q.mu.Unlock()
	}
	wq.configure(s, config)
}

// follow returns what a scope that the callers of a queue wait for is tracked with: it refuses them when that scope
// is closed, and configures the queue again after a new policy.
func (wq *waitQueue) follow(s *Scope, config func(*Revision) queue.Config) func(error) {
	return func(err error) {
		if err != nil {
			wq.made.Load().Refuse(&queue.Final{Err: err})
		} else {
			wq.reconfigure(s, config)
		}
	}
}

func (wq *waitQueue) close() {
	if q := wq.made.Load(); q != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.Close()
	}
}

// ahead returns how many callers are ahead of one that came now, by class.
func (wq *waitQueue) ahead(ctx context.Context) (n [3]int) {
	if q := wq.made.Load(); q != nil {
		n = q.Ahead(ClassOf(ctx))
	}
	return n
}

// A payer is what a queue is configured for, and charges in one scope or in several at once: a
// revision or a bundledQuota.
type payer interface {
	costOf(*Demand) ([]int64, error)
	innermost() *Revision
}

// A waitRequest is a demand that waits in a queue, with the functions that depend on its Path.
type waitRequest struct {
	demand   *Demand
	giveUpAt time.Time
	// config returns the configuration of the queue. If nil, Scope.queueConfig is used.
	config func(*Revision) queue.Config
	// explain returns the caller's error for an error of the queue.
	explain func(*Revision, error) error
	// ask asks for the request; see queue.Ticket. If nil, the revision's quota.TryAcquire is used.
	ask func(context.Context, queue.Turn) (queue.Result, error)
}

// wait waits in the queue until the demand is admitted. If the policy changes meanwhile, the demand
// keeps its place.
func (wq *waitQueue) wait(ctx context.Context, s *Scope, w *waitRequest) (queue.Result, error) {
	q, rev := wq.configure(s, w.config)
	if rev.closed {
		return queue.Result{}, rev.refuse(queue.Closed, -1, 0)
	}
	d := w.demand
	t := queue.Ticket{
		Class: ClassOf(ctx), GiveUp: w.giveUpAt, Since: d.since, Lead: d.lead, Hold: d.hold, Longer: d.longer(rev), Ask: w.ask,
		Option: d.option,
		Renew:  func(owner any) (store.Request, bool, error) { return s.renew(owner.(payer), d) },
	}
	if d.Recost != nil && w.ask == nil && !rev.reserves {
		t.Recost = func(owner any) []int64 { return owner.(*Revision).recost(d) }
	}
	if d.Record != nil || d.Queued != nil {
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
	if d.Record != nil && r.Tier >= 0 {
		if e, ok := w.explain(rev, &queue.Refusal{Reason: queue.Late, Tier: r.Tier}).(*Refusal); ok {
			d.Record.Decided(e.Policy, e.Tier)
		}
	}
	return r, nil
}

// renew returns what the queue asks for under the policies of a payer.
func (s *Scope) renew(p payer, d *Demand) (r store.Request, free bool, err error) {
	rev := p.innermost()
	if rev.concurrent && !d.Held {
		return r, false, &queue.Final{Err: rev.refuse(NeedsPermit, -1, 0)}
	}
	cost, err := p.costOf(d)
	if err != nil {
		return r, false, &queue.Final{Err: err}
	}
	r = store.Request{Cost: cost, Held: d.Held, Guard: s.guardFor(d, rev)}
	return r, !rev.reserves && rev.isFree(cost), nil
}

// queueConfig returns the configuration of the queue for this scope alone.
func (s *Scope) queueConfig(rev *Revision) queue.Config {
	c := queue.Config{
		Owner:    rev,
		Quota:    rev.quota,
		Reserver: reserverOf(rev.quota),
		Fast:     fastOf(rev.quota),
		MaxQueue: rev.MaxQueue,
		Aging:    rev.Aging,
		Headroom: rev.Headroom,
		Order:    orderOf(rev.quota),
	}
	if rev.AutoGuard {
		c.Guard = func() time.Duration { return s.guard(rev) }
	}
	return c
}

// waiting returns how many callers wait for this quota alone.
func (s *Scope) waiting() int { return s.queue.len() }

// skipsQueue reports whether a request may ask the quota without joining the queue: the queue is
// empty, or the request costs nothing in this scope, so only a pause can delay it. If the quota
// reserves ahead, waiting requests are sent together, so only a caller that does not wait may ask
// by itself.
func (s *Scope) skipsQueue(rev *Revision, wq *waitQueue, cost []int64, noWait bool) bool {
	return wq.len() == 0 && (noWait || !rev.reserves) || !rev.isOneRequest(cost) && rev.isFree(cost)
}

// admit admits a request in this scope alone. It waits if necessary.
func (s *Scope) admit(ctx context.Context, rev *Revision, d *Demand, c *Charge) error {
	if rev.reserves && d.since.IsZero() { // the policy may change while the store is asked
		d.since = time.Now()
	}
	if !d.chooses() {
		if _, err := s.tryNow(ctx, rev, d, c); err != nil || c.Scope != nil {
			return err
		}
	}
	return s.wait(ctx, rev, d, c)
}

// waitOne is admit for one request, of which nothing more is reported.
func (s *Scope) waitOne(ctx context.Context, rev *Revision) error {
	d, err := rev.quota.TryAcquire(ctx, store.Request{Cost: rev.oneRequest, WaitSpec: rev.initialWaitSpec(ctx)})
	if err == nil && d.Verdict == store.Admitted {
		return nil
	}
	if err := rev.decisionError(ctx, d, err, false); err != nil {
		return err
	}
	return s.wait(ctx, rev, &Demand{N: 1}, new(Charge))
}

// wait admits a request through the queue.
func (s *Scope) wait(ctx context.Context, rev *Revision, d *Demand, c *Charge) error {
	giveUp, err := s.giveUpAt(rev, d)
	if err != nil {
		return err
	}
	own := *d // d itself stays on the stack of calls that don't wait
	r, err := s.queue.wait(ctx, s, &waitRequest{demand: &own, giveUpAt: giveUp, explain: func(rev *Revision, err error) error { return rev.explain(err) }})
	if err != nil {
		return d.withBound(ctx, err)
	}
	*c = s.charged(r)
	return nil
}

// charged returns the charge of a request that was admitted through a queue.
func (s *Scope) charged(r queue.Result) Charge {
	return Charge{s, r.Owner.(*Revision), r.Decision, r.Cost}
}

// tryNow admits a request without waiting. If the request would have to wait, nothing is charged.
// The decision contains the reason unless other callers wait.
func (s *Scope) tryNow(ctx context.Context, rev *Revision, d *Demand, c *Charge) (store.Decision, error) {
	if !d.SendBy.IsZero() {
		if _, err := s.giveUpAt(rev, d); err != nil {
			return store.Decision{}, err
		}
	}
	cost, err := rev.costOf(d)
	if err != nil || !s.skipsQueue(rev, &s.queue, cost, d.NoWait) {
		return store.Decision{Tier: -1, Wait: store.Forever}, err
	}
	r := store.Request{Cost: cost, Held: d.Held, Guard: s.guardFor(d, rev), WaitSpec: rev.initialWaitSpec(ctx)}
	decision, err := rev.quota.TryAcquire(ctx, r)
	if err == nil && decision.Verdict == store.Admitted {
		c.Scope, c.Revision, c.Decision, c.Cost = s, rev, decision, cost
		return decision, nil
	}
	return decision, rev.decisionError(ctx, decision, err, d.NoWait)
}

// giveUpAt returns the time at which a request is no longer worth waiting for, zero if there is
// none. MaxWait begins now, but for the time that the demand has waited in this scope before. It
// records that time in the demand, and what sets it.
func (s *Scope) giveUpAt(rev *Revision, d *Demand) (time.Time, error) {
	d.giveUp, d.bound = time.Time{}, ""
	if rev.MaxWait > 0 {
		d.giveUp, d.bound = time.Now().Add(rev.MaxWait-d.waited[s]), BoundMaxWait
	}
	if d.SendBy.IsZero() {
		return d.giveUp, nil
	}
	last := d.SendBy.Add(-s.longestDelay(rev))
	if left := time.Until(last); left < 0 {
		return d.giveUp, rev.TooLate()
	}
	if d.giveUp.IsZero() || last.Before(d.giveUp) {
		d.giveUp, d.bound = last, BoundSendBy
	}
	return d.giveUp, nil
}
