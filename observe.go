package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/admit"
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
	// context of Acquire or TryAcquire, and does not end.
	Answered func(context.Context, AnsweredInfo)

	// Settled is called when the actual cost of a request is known, for each scope and Estimated unit: in a
	// goroutine of its own if the context of a Transport's request ends before the response's body.
	Settled func(SettledInfo)

	// Paused is called when a response or a call of Pause has paused or closed a quota in this
	// process. A pause that changes nothing, because a longer one holds, calls nothing.
	Paused func(PausedInfo)

	// Changed is called when a response to a request of this process has changed the rate of a tier with
	// Follow or Learn, except for the growth of a learned rate. Pools without Observer report no decrease.
	Changed func(ChangedInfo)

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
	Policy string // the name of the innermost policy, or of the Pool
	Class  Class
	Ahead  int // how many callers of this process wait in the same queue
}

// An AdmittedInfo describes an admitted request.
type AdmittedInfo struct {
	Policy string // the name of the innermost policy, or of the Pool
	Member string // the member of the Pool that has admitted the request; empty without one
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
	Policy string // the name of the innermost policy, or of the Pool
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

// Outcome returns one word for the reason, which suits a label of a metric: "deadline",
// "exceeds_capacity", "exhausted", "queue_full", "banned", "unavailable", "needs_permit", "closed",
// "too_many_keys", "canceled", "not_now" for a false Allow, or "error".
func (i RefusedInfo) Outcome() string {
	err := i.Err
	if err == nil {
		return "not_now"
	}
	if e, ok := err.(*WaitError); ok {
		err = e.Err // errors.Is on e would allocate
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.outcome
		}
	}
	return "error"
}

// outcomes are the outcomes of refused requests. ErrUnavailable comes before the errors of a context,
// because it may match these too.
var outcomes = [...]struct {
	err     error
	outcome string
}{
	{ErrDeadline, "deadline"},
	{ErrExceedsCapacity, "exceeds_capacity"},
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
	Policy string // the name of the innermost policy, or of the Pool
	Member string // the member of the Pool that has admitted the request; empty without one

	// Kind is Passed if the provider has served the request, or if no response came. A refusal in a
	// stream that has begun comes later, and Paused reports its pause.
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
	Cause  PauseCause    // PausedByResponse or PausedByCall
}

// A PauseCause is why a quota is paused.
type PauseCause string

// The causes of pauses.
const (
	PausedByResponse PauseCause = "response"  // a response of the provider
	PausedByCall     PauseCause = "call"      // a call of Limiter.Pause
	PausedElsewhere  PauseCause = "elsewhere" // another process or another Limiter of the quota
)

// A ChangedInfo describes a change of a tier's rate. After a refusal, From is a little less than the rate that
// was refused, as in TierStatus.Learned.
type ChangedInfo struct {
	Policy   string      // the name of the policy that has the tier
	Tier     string      // as ParsePolicy reads it, which stays the same
	From, To float64     // units per Window; of a refusal, From is a little below the refused rate
	Cause    ChangeCause // ChangedByLimit or ChangedByRefusal
}

// A ChangeCause is why the rate of a tier has changed.
type ChangeCause string

// The causes of changes.
const (
	ChangedByLimit   ChangeCause = "limit"   // a response has named another limit
	ChangedByRefusal ChangeCause = "refusal" // the provider has refused a request
)

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
				Changed:  both(joined.Changed, o.Changed),
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

// events passes what happens under a policy on to its Observer and its Alert.
type events struct {
	policy   string
	observer *Observer   // nil if there is none
	alert    func(Alert) // nil if there is none
	alertAt  []int
}

// observerOf returns the Observer of a policy, or nil.
func observerOf(p *admit.Policy) *Observer {
	if e, ok := p.Events.(*events); ok {
		return e.observer
	}
	return nil
}

func (e *events) Admitted(ctx context.Context, held bool) {
	if e.observer.Admitted != nil {
		e.observer.Admitted(ctx, AdmittedInfo{Policy: e.policy, Class: Class(admit.ClassOf(ctx)), N: 1, Held: held})
	}
}

func (e *events) Unsent(ctx context.Context) {
	e.observer.answered(ctx, AnsweredInfo{Policy: e.policy, Unsent: true})
}

func (e *events) Settled(unit string, estimated, actual int64) (report func()) {
	o := e.observer
	if o == nil || o.Settled == nil {
		return nil
	}
	return func() { o.Settled(SettledInfo{Policy: e.policy, Unit: unit, Estimated: estimated, Actual: actual}) }
}

func (e *events) Paused(length time.Duration, closed bool, cause string) {
	if o := e.observer; o != nil && o.Paused != nil {
		o.Paused(PausedInfo{Policy: e.policy, For: length, Closed: closed, Cause: PauseCause(cause)})
	}
}

func (e *events) Changed(c admit.Change) {
	if o := e.observer; o != nil && o.Changed != nil {
		o.Changed(ChangedInfo{Policy: e.policy, Tier: c.Tier, From: c.From, To: c.To, Cause: ChangeCause(c.Cause)})
	}
}

// Called reports a call of the store in a goroutine, because a store may report while it decides.
func (e *events) Called(c store.Call) {
	if o := e.observer; o != nil && o.Called != nil {
		go o.Called(CalledInfo{Policy: e.policy, Duration: c.Duration, Requests: c.Requests, Unsent: c.Unsent, Err: c.Err})
	}
}

// A record is what an Observer receives of one request until it is admitted or refused. The request
// fills it on the way.
type record struct {
	observer *Observer
	ctx      context.Context
	info     AdmittedInfo
	joinedAt time.Time // is set if the request was queued
	decided  bool      // Admitted or Refused has been called
}

// observe returns the record that receives the decision on a demand, or nil if nobody does.
func observe(ctx context.Context, d *admit.Demand, c *admit.Policy) *record {
	if d.Record != nil {
		return d.Record.(*record)
	}
	o := observerOf(c)
	if o == nil {
		return nil
	}
	r := newRecord(ctx, d, o, c.Name)
	r.info.Shadow = c.Shadow
	return r
}

// newRecord returns the record of a demand, with which the Observer receives the decision.
func newRecord(ctx context.Context, d *admit.Demand, o *Observer, policy string) *record {
	r := &record{observer: o, ctx: ctx, info: AdmittedInfo{
		Policy: policy, Class: Class(admit.ClassOf(ctx)), Cost: d.Cost, N: d.N, Held: d.Held,
	}}
	d.Record = r
	return r
}

func (r *record) Queued(ahead int) {
	if r.info.Queued {
		return
	}
	r.info.Queued, r.joinedAt = true, time.Now()
	if r.observer.Queued != nil {
		r.observer.Queued(r.ctx, QueuedInfo{Policy: r.info.Policy, Class: r.info.Class, Ahead: ahead})
	}
}

func (r *record) Decided(by *admit.Policy, tier int) {
	if r.info.Tier == "" {
		r.info.By, r.info.Tier = by.Name, by.TierName(tier)
	}
}

func (r *record) Undecided() { r.info.By, r.info.Tier = "", "" }

func (r *record) Chosen(m *admit.Member) { r.info.Member = m.Name }

// complete completes the record of a request that is admitted or refused. It returns false if it has done
// so before.
func (r *record) complete() bool {
	if r == nil || r.decided {
		return false
	}
	if r.decided = true; r.info.Queued {
		r.info.Waited = time.Since(r.joinedAt)
	}
	return true
}

func (r *record) Admitted() {
	if r.complete() && r.observer.Admitted != nil {
		r.observer.Admitted(r.ctx, r.info)
	}
}

func (r *record) Unsent() {
	if r.decided && r.info.Held {
		r.observer.answered(r.ctx, AnsweredInfo{Policy: r.info.Policy, Member: r.info.Member, Unsent: true})
	}
}

// errPanicked is the error of a request for which a function of the Policy or the Transport panicked.
var errPanicked = errors.New("throttle: a function of the Policy or the Transport panicked")

// refuse reports that the request is refused with an error.
func (r *record) refuse(err error) {
	if err == nil || !r.complete() || r.observer.Refused == nil || admit.IsHedge(r.ctx) {
		return
	}
	if err == admit.ErrNotNow {
		err = nil
	}
	i := &r.info
	r.observer.Refused(r.ctx, RefusedInfo{
		Policy: i.Policy, Class: i.Class, Cost: i.Cost, N: i.N, Queued: i.Queued, Waited: i.Waited, Err: err, Shadow: i.Shadow,
	})
}

// A listener receives what becomes of an admitted request: an Observer or a shadow.
type listener interface {
	answered(context.Context, AnsweredInfo)
	settled(actual Cost)
	ended()
}

func (o *Observer) answered(ctx context.Context, info AnsweredInfo) {
	if o.Answered != nil {
		o.Answered(ctx, info)
	}
}
func (o *Observer) settled(Cost) {} // events report it for each scope
func (o *Observer) ended()       {}
