package admit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/blame"
	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/internal/rtt"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// A Scope is one quota with the state that this process keeps beside it: the policy in force, the
// queue of its callers, and the guard that responses teach. Paths are handles on a scope.
type Scope struct {
	current atomic.Pointer[Revision]      // the policy in force
	queue   waitQueue                     // of callers that wait for this quota alone
	learned atomic.Pointer[rtt.Estimator] // the estimator of the guard; nil until a guard is learned
	uses    atomic.Int32                  // calls and permits in progress; negative once the Group has dropped the scope
	objects blame.Record                  // of the requests that were refused
	grouped bool                          // a Group keeps the scope
	shared  bool                          // GroupOptions.Shared
	handled bool                          // Paths other than that of its entry have the scope
	// A refusal that is not wide pauses a scope around a blameless one.
	blameless bool

	mu   sync.Mutex // guards handled and all below
	rare *rareState // nil until it is needed; see Scope.rareState
}

// rareState is the state that few scopes have.
type rareState struct {
	concerned   map[*func(error)]struct{} // what receives the error of close, or nil after setPolicy; see Scope.track
	paused      PausedBy                  // the last pause by this process
	replacement *Policy                   // the last policy that setPolicy has set; nil if none
	reported    time.Time                 // when a report last asked for the state; zero if none has
	named       []named                   // what the last response named for each given tier
	decreased   int64                     // when the last decrease of a learned rate came that was reported
	refused     float64                   // the refused rate of that decrease
}

// rareState returns the rare state. The caller holds s.mu.
func (s *Scope) rareState() *rareState {
	if s.rare == nil {
		s.rare = &rareState{concerned: make(map[*func(error)]struct{})}
	}
	return s.rare
}

// A Revision is a Policy and the quota that decides under it. It is immutable: SetPolicy
// replaces it.
type Revision struct {
	*Policy
	quota  store.Quota
	fast   store.FastQuota // the quota, if it can admit one request without a decision; else nil
	closed bool
	// foresees reports that the quota's Soonest knows its state. If not, the wait that a dry run names
	// is the best forecast.
	foresees bool
}

func newRevision(c *Policy, q store.Quota, closed bool) *Revision {
	rev := &Revision{Policy: c, quota: q, closed: closed, foresees: doesForesee(q)}
	if c.fastPath && c.batchSpec == nil && c.Plan.Quick() {
		rev.fast = fastOf(q)
	}
	return rev
}

func (rev *Revision) innermost() *Revision { return rev }

var inProcess local.Store

// openScope opens the quota of a key. Without a store the quota is in this process and belongs to the
// scope alone.
func openScope(c *Policy, key string) (*Scope, error) {
	s, scope, report := c.Store, new(Scope), (func(store.Call))(nil)
	if s == nil {
		s, key = &inProcess, ""
	} else {
		report = scope.called
	}
	q, err := s.Open(key, c.Plan, report)
	if err != nil {
		return nil, fmt.Errorf("throttle: policy %q: %w", c.Name, err)
	}
	c = c.forStore(doesReserve(q))
	scope.current.Store(newRevision(c, q, false))
	if c.Plan.Follows() { // the quota may have taken over limits
		scope.adoptSuccessor()
	}
	return scope, nil
}

// called reports a call of the store to the Events of the policy in force.
func (s *Scope) called(call store.Call) {
	if rev := s.current.Load(); rev != nil && rev.Events != nil {
		rev.Events.Called(call)
	}
}

// handOut gives the scope to a Path besides that of its entry.
func (s *Scope) handOut(l *Path) {
	s.mu.Lock()
	s.handled = true
	s.mu.Unlock()
	l.scope.Store(s)
}

// Leave ends the use of a scope that Enter has returned.
func (s *Scope) Leave() {
	if s.grouped {
		s.uses.Add(-1)
	}
}

// status returns the state of the quota, and the revision that its tiers belong to.
func (s *Scope) status(ctx context.Context) (rev *Revision, status store.Status, err error) {
	for rev = s.adoptSuccessor(); ; {
		status, err = rev.quota.Status(ctx)
		now := s.adoptSuccessor()
		if now == rev {
			return rev, status, err
		}
		rev = now
	}
}

// adoptSuccessor returns the revision in force. It first replaces the revision if another handle on
// the quota has changed the plan.
func (s *Scope) adoptSuccessor() *Revision { return s.adopt(nil) }

// adopt is adoptSuccessor with the policy that setPolicy has set. If nil, it is the one that setPolicy is
// setting, or else the policy in force.
func (s *Scope) adopt(c *Policy) *Revision {
	s.mu.Lock()
	defer s.mu.Unlock()
	rev, set := s.current.Load(), c
	if c == nil && s.rare != nil {
		c = s.rare.replacement
	}
	next, plan := lifecycleOf(rev).Successor()
	switch {
	case c != nil && c.Plan == plan:
	case set != nil && set.Plan.Continues(plan): // a response has just named limits
		c = set.withPlan(plan)
	case plan == rev.Plan:
		c = rev.Policy
	default: // another handle has changed the plan
		c = rev.withPlan(plan)
	}
	if next != rev.quota || c != rev.Policy {
		rev = newRevision(c, next, rev.closed)
		s.current.Store(rev)
	}
	return rev
}

// SetPolicy replaces the policy by one that replace returns for it.
func (s *Scope) SetPolicy(ctx context.Context, replace func(*Policy) (*Policy, error)) error {
	c, err := replace(s.current.Load().Policy)
	if err != nil {
		return err
	}
	return s.setPolicy(ctx, c)
}

// setPolicy replaces the policy. Waiting callers queue again under the new one.
func (s *Scope) setPolicy(ctx context.Context, c *Policy) error {
	old := s.current.Load()
	quota := lifecycleOf(old)
	_, plan := quota.Successor()
	c = c.forStore(old.reserves).keeping(plan)
	if s.queue.made.Load() != nil { // its callers adopt the successor as soon as there is one
		s.mu.Lock()
		s.rareState().replacement = c
		s.mu.Unlock()
	}
	if c.Plan != plan {
		if err := quota.Change(ctx, c.Plan); err != nil {
			return old.Errorf("SetPolicy: %w", err)
		}
	}
	s.adopt(c)
	if s.queue.made.Load() != nil {
		s.queue.configure(s, nil)
	}
	s.tell(nil)
	return nil
}

// Forget makes the tiers that learn their rate start again, and those that follow responses have the
// limits of the policy again.
func (s *Scope) Forget(ctx context.Context) error {
	rev := s.adoptSuccessor()
	if rev.Plan.Follows() { // others that share the quota may have taken over limits
		if _, err := rev.quota.Status(ctx); err != nil {
			return err
		}
		rev = s.adoptSuccessor()
	}
	if f := rev.Plan.Followed(); f.Limits != nil {
		if err := s.follow(ctx, rev, algorithms.Followed{At: f.At + 1}); err != nil {
			return err
		}
		rev = s.adoptSuccessor()
	}
	return feedbackOf(rev.quota).Forget(ctx)
}

// follow changes the limits of the tiers to those that responses have named.
func (s *Scope) follow(ctx context.Context, rev *Revision, f algorithms.Followed) error {
	if f.Limits == nil { // the tiers have their own limits again
		s.mu.Lock()
		s.rareState().named = nil
		s.mu.Unlock()
	}
	if plan := rev.Plan.Following(f); plan != rev.Plan {
		if err := lifecycleOf(rev).Change(ctx, plan); err != nil {
			return rev.Errorf("%w", err)
		}
	}
	s.adoptSuccessor()
	if s.queue.made.Load() != nil {
		s.queue.configure(s, nil)
	}
	return nil
}

// close refuses all callers from now on, and cancels reservations.
func (s *Scope) close() {
	s.mu.Lock()
	rev := *s.current.Load()
	was := rev.closed
	closed := *rev.Policy
	closed.fastPath = false
	rev.Policy, rev.closed = &closed, true
	s.current.Store(&rev)
	s.mu.Unlock()
	if was {
		return
	}
	s.queue.close()
	s.tell(rev.refuse(queue.Closed, -1, 0))
	rev.quota.Close()
}

// track calls changed with an error when the scope is closed, and with nil after setPolicy, until untrack is called.
func (s *Scope) track(changed func(error)) (untrack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	concerned := s.rareState().concerned
	concerned[&changed] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(concerned, &changed)
	}
}

// tell calls what tracks the scope.
func (s *Scope) tell(err error) {
	var concerned []*func(error)
	s.mu.Lock()
	if s.rare != nil {
		concerned = slices.Collect(maps.Keys(s.rare.concerned))
	}
	s.mu.Unlock()
	for _, changed := range concerned {
		(*changed)(err)
	}
}

// watch calls changed when the quota is closed, paused or banned, or its policy changes.
func (s *Scope) watch(changed func()) (stop func()) {
	untrack := s.track(func(error) { changed() })
	rev := s.current.Load()
	unwatch := rev.quota.Watch(func(c store.Change, _ time.Duration) {
		if c != store.Freed && c != store.Eased {
			changed()
		}
	})
	if rev.closed {
		changed()
	}
	return func() {
		untrack()
		unwatch()
	}
}

// watchFor calls changed when the plan of the quota changes and, with eases, when a pause or ban may have ended early.
func (s *Scope) watchFor(changed func(), eases bool) (stop func()) {
	return s.adoptSuccessor().quota.Watch(func(c store.Change, _ time.Duration) {
		if c == store.Replanned || eases && c == store.Eased {
			changed()
		}
	})
}

// A PausedBy describes the last pause of a quota by this process.
type PausedBy struct {
	Cause  string // if empty, this process has not paused the quota
	Status int    // of the response, as far as it is known
	Reason string
	// epoch is that of the pause, and known reports that the store has confirmed it.
	epoch int64
	known bool
}

// Resume ends a pause.
func (s *Scope) Resume(ctx context.Context) error { return s.current.Load().quota.Resume(ctx) }

// Revision returns the revision in force.
func (s *Scope) Revision() *Revision { return s.current.Load() }

// Pause pauses the quota, and reports it after the event if that has changed anything.
func (s *Scope) Pause(ctx context.Context, rev *Revision, p store.Pause, by PausedBy, after *Callbacks) error {
	done, err := rev.quota.Pause(ctx, p)
	if !done.Applied && err == nil {
		return nil
	}
	by.epoch, by.known = done.Epoch, err == nil
	s.mu.Lock()
	s.rareState().paused = by
	s.mu.Unlock()
	if rev.Events != nil {
		after.Add(func() { rev.Events.Paused(done.For, p.Close, by.Cause) })
	}
	return err
}

// pausedBy returns the last pause by this scope.
func (s *Scope) pausedBy() PausedBy {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rare == nil {
		return PausedBy{}
	}
	return s.rare.paused
}

// guard returns the guard interval of a request that is admitted now, or zero for the policy's own.
func (s *Scope) guard(rev *Revision) time.Duration {
	if !rev.AutoGuard {
		return 0
	}
	return s.Estimator().Estimate()
}

// refundable is how long an outer scope without a guard keeps a charge in flight, so it can be
// refunded. The charge lands when all scopes have admitted the request.
const refundable = time.Second

// guardFor returns the guard interval of the request of a demand, or zero for the policy's own.
func (s *Scope) guardFor(d *Demand, rev *Revision) time.Duration {
	guard := s.guard(rev)
	switch all := cmp.Or(guard, rev.Plan.Guard()); {
	case all == 0 && rev.reserves:
		return 0
	case all == 0 && d.refundable:
		return refundable + d.hold
	case d.longer(rev) > 0:
		return all + d.longer(rev)
	}
	return guard
}

// Estimator returns the estimator of the guard. It makes one if there is none.
func (s *Scope) Estimator() *rtt.Estimator {
	if e := s.learned.Load(); e != nil {
		return e
	}
	s.learned.CompareAndSwap(nil, rtt.New())
	return s.learned.Load()
}

// guardInForce returns the guard interval, learned or not.
func (s *Scope) guardInForce(rev *Revision) time.Duration {
	return max(s.guard(rev), rev.Plan.Guard())
}

// longestDelay returns how long a request may take to reach the provider.
func (s *Scope) longestDelay(rev *Revision) time.Duration {
	return cmp.Or(s.guard(rev), rev.Plan.Guard())
}

// hasLearned reports whether the scope has learned from responses what a new scope would have to
// learn again: the end of the provider's windows, a limit, a rate, a guard, a back-off.
func (s *Scope) hasLearned() bool {
	if e := s.learned.Load(); e != nil && e.Fresh() {
		return true
	}
	rev := s.current.Load()
	return rev.Plan.Followed().Limits != nil || feedbackOf(rev.quota).Learned()
}

// reportEvery is how often a report asks a shared store for the state of a quota at most.
const reportEvery = time.Second

// mayAsk reports whether the last report asked the store long ago.
func (s *Scope) mayAsk() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	rare, now := s.rareState(), time.Now()
	if !rare.reported.IsZero() && now.Sub(rare.reported) < reportEvery {
		return false
	}
	rare.reported = now
	return true
}
