package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// An Observer receives events of the requests under a policy, as an httptrace.ClientTrace receives
// those of a connection. Set it as Policy.Observer. For each request the functions of the innermost
// scope's Observer are called. A nil function is not called.
//
// The functions are called in the goroutine of the caller, unless noted otherwise, and never under a
// lock: they may call any method of a Limiter. Under a policy with Shadow they may be called in another
// goroutine. They must not block, because the request waits for them: a Wait in Queued, for instance,
// would wait for the request that is queued. They may be called from several goroutines at once. Events
// contain neither keys of a Group nor URLs.
//
// A panic or a runtime.Goexit of a function ends the call that the function belongs to, and leaves no
// place, estimate or waiter behind. If Admitted panics, the request is not sent, and is refunded as
// Permit.Cancel refunds it.
type Observer struct {
	// Queued is called when a request takes a place in a queue. With a shared store nearly every
	// request does.
	Queued func(context.Context, QueuedInfo)

	// Admitted is called when a request is admitted, at once or after it was queued.
	Admitted func(context.Context, AdmittedInfo)

	// Refused is called when a request is not admitted: a refusal, the end of its context, or a
	// false Allow. For each request either Admitted or Refused is called, once.
	Refused func(context.Context, RefusedInfo)

	// Answered is called once for each admitted request that a Transport has sent, or that has a
	// Permit: when its response is in, or when it is known that none will come. Its context is that of
	// the request, or of Refused or Cancel. For any other end of a Permit it has the values of the
	// context of Acquire, and does not end.
	Answered func(context.Context, AnsweredInfo)

	// Settled is called when the actual cost of a request is known, for each scope and each unit
	// that is Estimated. If the context of a Transport's request ends before the response's body
	// does, it is called in a goroutine of its own.
	Settled func(SettledInfo)

	// Paused is called when a response or a call of Pause has paused or closed a quota in this
	// process. A pause that changes nothing, because a longer one holds, calls nothing.
	Paused func(PausedInfo)

	// Called is called after each call of a shared store, such as a run of a script in Redis, for the
	// quota of the policy itself, not that of the innermost scope only. It is also called for a call
	// that was not made because the store is away. It is called in a goroutine of its own, so no
	// request waits for it.
	//
	// Some calls decide nothing, such as those that return reservations or read the Status. A Called
	// that makes such calls itself is called for them, too. Limiters that were opened apart report
	// their own calls, each to the Observer of its policy when the call was begun, also after Close.
	// A call for several quotas at once is reported once: by the innermost policy for nested limits.
	Called func(CalledInfo)
}

// A QueuedInfo describes a request that has taken a place in a queue.
type QueuedInfo struct {
	Policy string // the name of the innermost policy
	Class  Class
	Ahead  int // how many callers of this process wait in the same queue
}

// An AdmittedInfo describes an admitted request.
type AdmittedInfo struct {
	Policy string // the name of the innermost policy
	Class  Class
	Cost   Cost // nil for N requests; read-only
	N      int64
	Held   bool // Answered will be called

	// Queued reports that the request was queued, and Waited is for how long.
	Queued bool
	Waited time.Duration

	// By and Tier are the policy and the tier that decided how long the request waited. The Tier is
	// as ParsePolicy reads it, and empty if no tier did: for requests that did not wait, and after
	// a pause.
	By, Tier string

	// Shadow reports that the policy has Shadow: the request went at once, and would have been
	// admitted now.
	Shadow bool
}

// A RefusedInfo describes a request that was not admitted.
type RefusedInfo struct {
	Policy string // the name of the innermost policy
	Class  Class
	Cost   Cost // nil for N requests; read-only
	N      int64

	// Queued reports that the request was queued, and Waited is for how long.
	Queued bool
	Waited time.Duration

	// Err is the error of the call: a *WaitError, the context's own, or that of a bad argument. It is
	// nil for a false Allow, except where Wait would fail at once too.
	Err error

	// Shadow reports that the policy has Shadow: the request went at once, and would have been
	// refused now. A call with bad arguments, on a closed Limiter or with a context that has ended
	// returns Err nevertheless.
	Shadow bool
}

// Result returns one word for the reason, which suits a label of a metric: "deadline", "never" (see
// ErrExceedsCapacity), "exhausted", "queue_full", "banned", "unavailable", "needs_permit", "closed",
// "too_many_keys", "canceled", "not_now" for a false Allow, or "error".
func (i RefusedInfo) Result() string {
	err := i.Err
	if err == nil {
		return "not_now"
	}
	if e, ok := err.(*WaitError); ok {
		err = e.Err // errors.Is on e would allocate
	}
	for _, r := range results {
		if errors.Is(err, r.err) {
			return r.result
		}
	}
	return "error"
}

// results are the results of refused requests. ErrUnavailable comes before the errors of a context,
// because it may match these too.
var results = [...]struct {
	err    error
	result string
}{
	{ErrDeadline, "deadline"},
	{ErrExceedsCapacity, "never"},
	{ErrExhausted, "exhausted"},
	{ErrQueueFull, "queue_full"},
	{ErrBanned, "banned"},
	{ErrUnavailable, "unavailable"},
	{ErrNeedsPermit, "needs_permit"},
	{ErrClosed, "closed"},
	{ErrTooManyKeys, "too_many_keys"},
	{context.Canceled, "canceled"},
	{context.DeadlineExceeded, "deadline"},
}

// An AnsweredInfo describes how an admitted request has ended.
type AnsweredInfo struct {
	Policy string // the name of the innermost policy

	// Kind is Passed if the provider has served the request, or if no response came.
	Kind answers.Kind

	// Status is the status of the response. If zero, none came, or a Permit reported it.
	Status int

	// Reason is the reason of a refusal, as the Profile reads it. It may be empty.
	Reason string

	// Report is what is known about a refusal of the Kind Limited or Banned. It is nil for any other.
	Report *RefusalReport

	// Lost reports that the request was sent, as far as is known, and that no response came.
	Lost bool

	// Unsent reports that the request was not sent, and was refunded.
	Unsent bool
}

// A SettledInfo describes the cost of a request in one unit.
type SettledInfo struct {
	Policy            string // the name of the policy that counts the unit
	Unit              string
	Estimated, Actual int64
}

// A PausedInfo describes a pause.
type PausedInfo struct {
	Policy string        // the name of the policy that is paused
	For    time.Duration // how long it is paused now
	Closed bool          // callers are refused with ErrBanned
	Cause  string        // "response" or, for Limiter.Pause, "call"
}

// A CalledInfo describes a call of a shared store.
type CalledInfo struct {
	Policy string // the name of the policy whose quota made the call

	// Duration is how long the call took, or the caller of the store waited until it gave up. Calls that
	// share a round trip have the same Duration.
	Duration time.Duration

	// Requests is how many requests the call decided: it admitted them, reserved times for them, or
	// made them wait. It is zero for a failed call.
	Requests int

	// Unsent reports that no call was made, because the store has not answered recently. Duration is
	// then zero.
	Unsent bool

	// Err is the error of the call, nil if it succeeded. It matches ErrUnavailable if a later call may
	// succeed. Its text may contain the address of the store.
	Err error
}

// Outcome returns one word for what became of the call, which suits a label of a metric: "ok", "timeout",
// "unavailable", "unsent", or "error" for one that somebody must act on.
func (i CalledInfo) Outcome() string {
	switch {
	case i.Unsent:
		return "unsent"
	case i.Err == nil:
		return "ok"
	case errors.Is(i.Err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(i.Err, ErrUnavailable):
		return "unavailable"
	}
	return "error"
}

// JoinObservers returns an Observer that calls the functions of all, in their order. A nil Observer is
// left out. It returns nil if there is none.
func JoinObservers(all ...*Observer) *Observer {
	var joined *Observer
	for _, o := range all {
		switch {
		case o == nil:
		case joined == nil:
			joined = o
		default:
			joined = &Observer{
				Queued:   both2(joined.Queued, o.Queued),
				Admitted: both2(joined.Admitted, o.Admitted),
				Refused:  both2(joined.Refused, o.Refused),
				Answered: both2(joined.Answered, o.Answered),
				Settled:  both(joined.Settled, o.Settled),
				Paused:   both(joined.Paused, o.Paused),
				Called:   both(joined.Called, o.Called),
			}
		}
	}
	return joined
}

func both[T any](f, g func(T)) func(T) {
	switch {
	case f == nil:
		return g
	case g == nil:
		return f
	}
	return func(info T) { f(info); g(info) }
}

func both2[T any](f, g func(context.Context, T)) func(context.Context, T) {
	switch {
	case f == nil:
		return g
	case g == nil:
		return f
	}
	return func(ctx context.Context, info T) { f(ctx, info); g(ctx, info) }
}

// reportCalls returns what a store reports the calls of a policy to, or nil if nobody observes them. A
// store may report while it decides, so each report is a goroutine.
func (o *Observer) reportCalls(policy string) func(store.Call) {
	if o == nil || o.Called == nil {
		return nil
	}
	return func(c store.Call) {
		go o.Called(CalledInfo{Policy: policy, Duration: c.Duration, Requests: c.Requests, Unsent: c.Unsent, Err: c.Err})
	}
}

// An observation follows one request until it is admitted or refused.
type observation struct {
	observer *Observer
	policy   string
	shadow   bool      // the request is sent at once, in shadow mode
	queued   time.Time // when the request was queued; zero if it was not
	by, tier string    // what decided how long it waited
	joined   func()    // is called when a shadow has joined a queue; nil for any other request
}

// observe returns the observation of a demand, or nil if nobody observes it.
func (l *Limiter) observe(d *demand) *observation {
	if d.refundable { // the inner scope observes it
		return nil
	}
	c := l.refuses
	if c == nil {
		if l.group != nil && l.scope.Load().uses.Load() < 0 { // the policy may have changed since the Group dropped it
			if s, err := l.enter(); err == nil {
				defer s.leave()
			}
		}
		c = l.revision().compiledPolicy
	}
	if c.policy.Observer == nil {
		return nil
	}
	return &observation{observer: c.policy.Observer, policy: c.policy.Name, shadow: c.policy.Shadow}
}

// errPanicked is the error of a request for which a function of the Policy or the Transport panicked.
var errPanicked = errors.New("throttle: a function of the Policy or the Transport panicked")

// errNotNow is the reason of a false Allow.
var errNotNow = errors.New("throttle: not now")

// observed calls ask, and reports whether it admits a demand.
func (l *Limiter) observed(ctx context.Context, d *demand, a *admission, ask func() error) (err error) {
	o := l.observe(d)
	if o == nil {
		return ask()
	}
	d.observed, err = o, errPanicked
	if o.shadow {
		return l.admitInShadow(ctx, d, a, ask)
	}
	defer func() { a.tell(ctx, d, err) }()
	return ask()
}

// callbacks are functions of the user that are called for one event. They wait until all quotas have
// received the event, so that a panic or a runtime.Goexit of one of them leaves nothing half done.
type callbacks []func()

func (c *callbacks) add(f func()) { *c = append(*c, f) }

// run calls them in their order, those after one that panics, too.
func (c callbacks) run() {
	if len(c) > 0 {
		defer c[1:].run()
		c[0]()
	}
}

// tell reports that a request is admitted, or refused with an error. If the Observer panics, an admitted
// request is not sent.
func (a *admission) tell(ctx context.Context, d *demand, err error) {
	if err == nil {
		a.observer = d.observed.observer
	}
	told := false
	defer func() {
		if told || err != nil {
			return
		}
		defer a.leaveScopes()
		a.refund()
		if d.held {
			a.answered(ctx, AnsweredInfo{Unsent: true})
		}
	}()
	d.observed.end(ctx, d, err)
	told = true
}

// join reports that the request has taken a place in a queue.
func (o *observation) join(ctx context.Context, ahead int) {
	if o == nil || !o.queued.IsZero() {
		return
	}
	o.queued = time.Now()
	if o.joined != nil {
		o.joined()
	}
	if o.observer.Queued != nil {
		o.observer.Queued(ctx, QueuedInfo{Policy: o.policy, Class: classOf(ctx), Ahead: ahead})
	}
}

// decidedBy records which tier decided how long the request waited, by an error that would explain a
// refusal. If it is nil, none has decided yet.
func (o *observation) decidedBy(err error) {
	if o == nil {
		return
	}
	o.by, o.tier = "", ""
	if e, ok := err.(*WaitError); ok {
		o.by, o.tier = e.Policy, e.Tier
	}
}

// waited returns how long the request has been queued.
func (o *observation) waited() time.Duration {
	if o.queued.IsZero() {
		return 0
	}
	return time.Since(o.queued)
}

// end reports the end of the request: its admission if err is nil.
func (o *observation) end(ctx context.Context, d *demand, err error) {
	switch {
	case err == nil && o.observer.Admitted != nil:
		o.observer.Admitted(ctx, AdmittedInfo{
			Policy: o.policy, Class: classOf(ctx), Cost: d.cost, N: d.n, Held: d.held,
			Queued: !o.queued.IsZero(), Waited: o.waited(), By: o.by, Tier: o.tier, Shadow: o.shadow,
		})
	case err != nil && o.observer.Refused != nil:
		if err == errNotNow {
			err = nil
		}
		o.observer.Refused(ctx, RefusedInfo{
			Policy: o.policy, Class: classOf(ctx), Cost: d.cost, N: d.n, Queued: !o.queued.IsZero(), Waited: o.waited(), Err: err, Shadow: o.shadow,
		})
	}
}

// admittedAtOnce reports a request that TryOne has admitted. If the Observer panics, the request is not
// sent, and is refunded.
func (rev *revision) admittedAtOnce(ctx context.Context, f algorithms.Flight, held bool) {
	o, told := rev.policy.Observer, false
	if o.Admitted == nil {
		return
	}
	defer func() {
		if told {
			return
		}
		_ = rev.quota.Return(context.Background(), store.Decision{Flight: f}, rev.oneRequest)
		if held && o.Answered != nil {
			o.Answered(ctx, AnsweredInfo{Policy: rev.policy.Name, Unsent: true})
		}
	}()
	o.Admitted(ctx, AdmittedInfo{Policy: rev.policy.Name, Class: classOf(ctx), N: 1, Held: held})
	told = true
}

// waitFor is a refusal that would explain a wait for a tier.
func waitFor(tier int) error { return &queue.Refusal{Reason: queue.Late, Tier: tier} }

// answered reports how the request has ended.
func (a *admission) answered(ctx context.Context, info AnsweredInfo) {
	if a.observer != nil && a.observer.Answered != nil {
		answered := a.observer.Answered
		info.Policy = a.revision.policy.Name
		if r, ok := a.revision.quota.(*shadow); ok {
			r.report(func(*admission) { answered(ctx, info) })
			return
		}
		answered(ctx, info)
	}
}

// reportAnswer reports a response, and what it contains if answer is not nil, after other callbacks.
func (a *admission) reportAnswer(ctx context.Context, status int, answer *answers.Answer, report *RefusalReport, others callbacks) {
	info := AnsweredInfo{Status: status, Report: report}
	if answer != nil {
		info.Kind, info.Reason = answer.Kind, answer.Reason
	}
	defer a.answered(ctx, info)
	others.run()
}

// observeSettled reports the actual cost in the estimated units, after the event.
func (rev *revision) observeSettled(estimate, actual []int64, after *callbacks) {
	o := rev.policy.Observer
	if o == nil || o.Settled == nil {
		return
	}
	for u, unit := range rev.plan.Units() {
		if rev.plan.Estimated(u) && estimate[u]|actual[u] != 0 {
			info := SettledInfo{Policy: rev.policy.Name, Unit: unit, Estimated: estimate[u], Actual: actual[u]}
			after.add(func() { o.Settled(info) })
		}
	}
}

// pause pauses the quota, and reports it after the event if that has changed anything.
func (s *scope) pause(ctx context.Context, rev *revision, p store.Pause, by pauseCause, after *callbacks) error {
	done, err := rev.quota.Pause(ctx, p)
	if !done.Applied && err == nil {
		return nil
	}
	by.epoch, by.known = done.Epoch, err == nil
	s.mu.Lock()
	s.rareState().paused = by
	s.mu.Unlock()
	if o := rev.policy.Observer; o != nil && o.Paused != nil {
		info := PausedInfo{Policy: rev.policy.Name, For: done.For, Closed: p.Close, Cause: by.cause}
		after.add(func() { o.Paused(info) })
	}
	return err
}
