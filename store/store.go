// Package store defines the contract between a limiter and the store of its quota: the memory of
// one process (package local), a file that a machine shares (package host) or a server that a fleet
// shares (package distributed, and the module postgres). The root package aliases the types that its
// users need. Package storetest has the contract as tests.
//
// A store implements [Store] and [Quota]. A Quota may implement five more interfaces. A limiter
// asks for each of them alone, and does without those that are missing:
//
//   - [Lifecycle]: without it, SetPolicy cannot change tiers or the guard, and a Group forgets a
//     quota that no call uses, whatever its state.
//   - [Feedback]: without it, what a provider reports about its own counters is ignored.
//   - [Reserver]: without it, each caller that waits costs one call or more of the store, and the
//     callers of several processes have no order.
//   - [Bundler]: without it, a request in nested quotas asks one quota after the other.
//   - [FastQuota]: without it, each admission takes a Decision.
//
// A quota that has a part of an interface implements the rest trivially, as each method's comment
// says.
//
// Before v1.0.0 the interfaces may change in any minor version: see docs/compatibility.md.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// A Store keeps quotas by key. It is safe for concurrent use.
type Store interface {
	// Open returns the quota of a key. All openers of a key of a store share one quota. If its plan has taken over
	// limits that responses have named, an opener with the base of that plan shares it.
	//
	// The quota calls report once for each call of a shared store that it has made for this opener,
	// and for each that it could not make. Its successors do so, too. A call for several quotas is
	// reported by one of them; the call of a Bundle by the first. report does not block. If nil, the
	// quota reports nothing. A quota that makes no such calls ignores report.
	Open(key string, plan *algorithms.Plan, report func(Call)) (Quota, error)
}

// A Quota decides about all tiers of a plan at once. It is safe for concurrent use.
type Quota interface {
	// TryAcquire charges the cost and admits the request, or charges nothing and reports when to
	// try again.
	TryAcquire(ctx context.Context, r Request) (Decision, error)
	// Arrived reports that the response to a held request is in. The provider has counted the
	// request, and it is no longer in flight.
	Arrived(d Decision, cost []int64)
	// Unanswered reports that a held request was sent, or may have been, and that no response will
	// come. The request stays in flight until its guard interval has passed, and then lands at its
	// estimated cost. If the request was a probe, the next request probes. The limiter calls
	// Unanswered at most once for a decision, instead of Arrived and Settle.
	Unanswered(d Decision, cost []int64)
	// Release reports that a held request has ended. It frees the request's units in concurrency
	// tiers.
	Release(d Decision, cost []int64)
	// Settle replaces the estimate of a held request by its actual cost, in the units that are
	// estimated. The limiter calls it once, before Release, if the plan has such units. If calendar
	// tiers reach a percentage with it that they had not reached before, Settle calls crossed once,
	// possibly later and from another goroutine. crossed may be nil.
	Settle(d Decision, cost, actual []int64, crossed func([]algorithms.Crossing))
	// Return refunds a held request that was never sent, if it is still in flight. If the request
	// was a probe, the next request probes.
	Return(ctx context.Context, d Decision, cost []int64) error
	// Pause stops all admissions for some time.
	Pause(ctx context.Context, p Pause) (Paused, error)
	// Passed reports that the provider accepted a request that was admitted at a Level above zero.
	// The limiter calls it before Arrived.
	Passed(d Decision)
	// Resume ends the pause or ban in force, and the wait for a probe, for all openers of the
	// quota. After an error they may stay paused.
	Resume(ctx context.Context) error
	// Status reports the state of every tier.
	Status(ctx context.Context) (Status, error)
	// Forecast returns a forecast of a queue that begins now. It is nil if the quota has a
	// successor, because costs and tiers may be others there, or if it makes no forecasts. Without a
	// forecast, a queue may refuse a late caller only at its deadline. Forecast does not block.
	Forecast() Forecast
	// Soonest returns a lower bound of the wait of a request that came now and found no queue, and
	// the tier that decides, or -1 if none does. The request leaves headroom percent of each tier's
	// capacity. Like a Forecast, the bound assumes the best case, but only for the present state of
	// the quota. It is zero if the quota has a successor or makes no forecasts, and Forever if only a
	// release could help. Soonest does not block.
	Soonest(cost []int64, headroom int64) (wait time.Duration, tier int)
	// Watch calls changed when an event other than the passing of time may have changed when a
	// waiting request can go. Calls come from any goroutine and end when stop is called. For a
	// pause or a ban, left is the time until it ends.
	Watch(changed func(c Change, left time.Duration)) (stop func())
	// Close reports that its opener will not use the quota again. A store may forget a quota
	// without openers once it decides as a fresh one would.
	Close()
}

// A FastQuota is a Quota that may admit one held or unheld request without a Decision, while no
// callers are queued. Both methods, and TryAcquire, do not block and do not call watchers. If the methods return false, they have
// changed nothing, and the caller uses TryAcquire and Arrived, which can do everything.
type FastQuota interface {
	// TryOne admits a request of one unit of algorithms.Requests, which is not a probe. The results
	// are the Flight, At and Epoch of its Decision.
	TryOne(held bool) (f algorithms.Flight, at, epoch int64, ok bool)
	// OneArrived is Arrived for a held request that TryOne has admitted.
	OneArrived(f algorithms.Flight) bool
}

// A Reserver is a Quota that reserves future times, for many callers in one round trip. Its limiter
// reserves for callers that wait, and calls TryAcquire for callers that don't.
type Reserver interface {
	// Reserve reserves times for requests, in their order, behind a reservation that the caller
	// still holds, if any. It does not block: it calls done later, from another goroutine, with the
	// decisions on the first of the requests. The caller may ask again at once for requests without
	// a decision. An error that is ErrUnavailable means that the caller should try again later.
	Reserve(behind *Reservation, requests []Request, done func([]Decision, error))
	// Cancel returns reservations that will not be used. It does not block.
	Cancel(reserved []Decision)
	// Leave reports that no caller of the queue waits any more. A Reserver that keeps places for
	// callers without a reservation gives them up; another one does nothing. It does not block.
	Leave()
	// Trip returns how long a reservation usually takes. It may block for the first round trip.
	Trip(context.Context) time.Duration
	// IsVoid reports whether a pause, or another event that voids reservations, has happened since
	// the decision.
	IsVoid(d Decision) bool
}

// A Reservation is a time that is reserved for a request.
type Reservation struct {
	// Told is when the store's answer arrived.
	Told time.Time
	// Start is the time from which on the request may be sent.
	Start time.Time
	// End is the latest time at which the request may be sent. Then the reservation expires.
	End time.Time
	// Again is when to ask for more reservations behind this one: before Start, or a little later if
	// callers are about to come back.
	Again time.Time
	// At is Start by the store's clock, in microseconds.
	At int64
	// Clock identifies the clock of the store that At is by, which changes when that is set back.
	Clock int64
	// Cost is the reserved cost.
	Cost []int64
	// Guard is the longest time that the request is in flight.
	Guard time.Duration
	// State identifies the state of the store to which the reservation is charged.
	State int64
	// Parts are the decisions of a Bundle's quotas. If nil, no Bundle made the reservation.
	Parts []Decision
}

// Expired reports whether it is too late to use the reservation. It compares wall times too,
// because the monotonic clock stops while a machine is suspended.
func (r *Reservation) Expired(now time.Time) bool {
	return now.After(r.End) || now.Round(0).After(r.End.Round(0))
}

// A Bundler is a Quota that may reserve together with others.
type Bundler interface {
	// Bundle returns a Bundle of this quota and the quotas around it, the outermost last, in each of
	// which requests that yield leave some percentage. It returns nil if the quotas cannot reserve
	// together.
	Bundle(around []Quota, headroom []int) Bundle
}

// A Bundle reserves the same times in several quotas at once: in all of them or in none.
type Bundle interface {
	// Reserve is like the method of a Reserver, but for the headroom of requests. The cost of a request contains its costs in all
	// quotas, one after the other, and the tiers of all quotas are numbered in the same way. The
	// guards are those of the quotas around the first, zero for the plan's guard. After ErrApart the
	// caller reserves in one quota after the other.
	Reserve(guards []time.Duration, requests []Request, done func([]Decision, error))
	// Cancel returns reservations to each quota. It does not block.
	Cancel(reserved []Decision)
	// Leave is like the method of a Reserver.
	Leave()
}

// ErrApart is the error of a Bundle that cannot reserve.
var ErrApart = errors.New("store: reserve in one quota after the other")

// A Lifecycle is a Quota whose plan can change while it is in use, and which a limiter may forget
// and open again.
type Lifecycle interface {
	// Change replaces the plan of the quota and keeps what is charged. The new plan applies to
	// every opener of the key in this process. From then on TryAcquire and Reserve return [Moved].
	// The other methods stay valid for requests that were admitted under the previous plan.
	// Watchers receive Replanned. A plan that has taken over limits that responses have named replaces only an
	// older plan with the same base. Change then does not wait for a shared store, and other processes have the
	// plan as soon as they hear of it. If the quota cannot keep what is charged under that plan, Change
	// returns an error and changes nothing.
	Change(ctx context.Context, plan *algorithms.Plan) error
	// Successor returns the quota under the newest plan, and that plan. If the plan has not
	// changed, it returns the quota itself. A caller that switches to a successor closes the
	// successor instead of the quota.
	Successor() (Quota, *algorithms.Plan)
	// Idle reports whether the quota decides as a fresh one would. The limiter may forget an idle
	// quota. It is true if the quota keeps no state in this process.
	Idle() bool
}

// A Call is what a Quota reports of a call of a shared store.
type Call struct {
	// Duration is how long the call took, or how long the quota waited for it.
	Duration time.Duration
	// Requests is the number of requests that the call decided.
	Requests int
	// Unsent reports that no call was made, because the store is away. Duration is then zero.
	Unsent bool
	// Err is the error of the call.
	Err error
}

// ErrUnavailable reports that a shared store did not answer. A later call may succeed.
var ErrUnavailable = errors.New("throttle: store is unavailable")

// Feedback is a Quota that accepts what the responses of the provider report. Boundaries of windows
// are separate from counts for two reasons. A quota may accept counts alone: in package distributed,
// windows of unknown phase stay rolling. And a boundary is an instant that a response may report
// without a count. It stays true if the quota applies it late, but an Observation applies to the
// moment of its response.
type Feedback interface {
	// Align reports that a window of a tier of UnknownPhase ends between two instants. Tier is its
	// index in the plan. A quota that does nothing with it admits less than the provider would.
	Align(tier int, from, to time.Time)
	// Observe applies the readings of the response to a request. The limiter calls it after
	// Arrived. It does not block. A quota that does nothing with them does not notice the use of
	// other programs.
	Observe(d Decision, cost []int64, seen []Observation)
	// Learned reports whether forgetting the quota would lose what it has learned from responses. It
	// is false if the store keeps that.
	Learned() bool
	// Forget makes the tiers that learn their rate start again at their limit.
	Forget(ctx context.Context) error
}

// An Observation is the reading of one tier in a response.
type Observation struct {
	// Tier is the index of the tier in the plan.
	Tier int
	// Used is the number of units that the provider counts.
	Used int64
	// Exact reports that the reading is authoritative: the provider counts no more than Used.
	Exact bool

	// Reset is the time from the response to the end of the provider's count, rounded up by as much
	// as the provider may have rounded down. If zero, the response does not contain it.
	Reset time.Duration
	// Slack is by how much the count may end before Reset. If zero, Reset is exact.
	Slack time.Duration
	// Full reports that Reset is when the whole limit is free again, as a bucket reports it, and
	// not the end of a window.
	Full bool
	// Refused reports that the provider refused the request. A quota may then treat the request's
	// charge as use by other programs.
	Refused bool
}

// A Forecast predicts the admissions of a quota in the best case: every response comes at once,
// every permit is free, and no other requests come. Its times count from the instant at which the
// forecast was made. It is not safe for concurrent use.
type Forecast interface {
	// Next adds a request behind the requests added before. It returns when the request is
	// admitted, and the tier that decides. tier is -1 if none does, and at is Forever if only a
	// release could help.
	Next(r Request) (at time.Duration, tier int)
	// Total returns a lower bound of the time at which a cost is admitted that leaves headroom
	// percent of each tier's capacity, behind requests of the total cost ahead. It also returns the
	// tier that decides. It ignores requests that Next added.
	Total(ahead, cost []int64, headroom int64) (at time.Duration, tier int)
}

// A Request asks a quota for an admission.
type Request struct {
	// Cost is the cost of the request, in the order of the plan's units.
	Cost []int64
	// Held reports that a call of Arrived, Unanswered, Release or Return will report the outcome of
	// the request.
	Held bool
	// Queued reports that the request is the first in the queues of this process. A quota may make
	// other requests wait while callers are queued, so that they do not overtake those.
	Queued bool
	// Guard is the longest time that the request is in flight. If zero, the plan's guard.
	Guard time.Duration
	// WaitSpec describes how the request waits. It is read-only. Requests to a Reserver have one.
	// If nil, the request does not yield.
	*WaitSpec
}

// WaitSpec describes how a request waits. It is separate from Request to keep Request small enough
// for processor registers.
type WaitSpec struct {
	// MaxWait is the longest wait that the caller accepts. Only a Reserver uses it.
	MaxWait time.Duration
	// DryRun asks whether the request would be admitted, and charges nothing. The verdict is then
	// Ready.
	DryRun bool

	// Hold is how long after the decision the request is sent at the earliest, because its caller asks
	// another quota first. Only a Reserver uses it. If zero, it may be sent at once.
	Hold time.Duration

	// YieldFor is how long the request still yields to others. Until then, a Reserver reserves only
	// some milliseconds ahead for it, and the request is admitted only where every tier can admit
	// its cost and Headroom. If zero, the request does not yield.
	YieldFor time.Duration
	// Headroom is a percentage of a tier's capacity. If zero, the request leaves no headroom.
	Headroom int64
}

// IsDryRun reports whether the request asks only for a verdict, without a charge.
func (r Request) IsDryRun() bool { return r.WaitSpec != nil && r.DryRun }

// Leaves returns the headroom that the request leaves to others, in percent.
func (r Request) Leaves() int64 {
	if r.WaitSpec == nil {
		return 0
	}
	return r.Headroom
}

// A Verdict is the result of TryAcquire or Reserve.
type Verdict uint8

// The verdicts.
const (
	Later     Verdict = iota // the caller may ask again after Wait
	Admitted                 // charged: the request may be sent now, or at the start of its Reservation
	Closed                   // the provider has closed the quota for Wait
	Late                     // the request would have to wait for Wait, which is too long: nothing charged
	Exhausted                // Tier, a budget, can't admit the request for Wait: nothing charged
	Ready                    // the request would be admitted now: nothing charged, because it was a dry run
	Moved                    // the quota has a successor, which decides instead: nothing charged
)

// A Decision is the answer to a Request.
type Decision struct {
	Verdict Verdict
	// Level is the number of consecutive back-offs at the time of the decision.
	Level uint8
	// Probe reports that the request is the first after a pause. Others wait for its response.
	Probe bool
	// Recheck reports that others may change the quota without a call of the watchers. A caller
	// that waits then asks again after RecheckInterval, even if Wait is longer.
	Recheck bool
	// Tier is the tier that decides about a request that has to wait. It is -1 for a pause, and
	// Probing while a probe is in flight.
	Tier int
	// Wait is the time until the caller may ask again. It is Forever where only a release can help.
	Wait time.Duration
	// Ready is a lower bound of the time until the quota admits a request that asks again before. If
	// zero, it is not known.
	Ready time.Duration
	// Flight identifies a held request to the store.
	Flight algorithms.Flight
	// Epoch numbers the last event that was known at the decision. Events are pauses and the early
	// ends of pauses, and each increases the number.
	Epoch int64
	// At is when the request was admitted, by the store's clock, in microseconds.
	At int64
	// Order is At by a clock that goes on when the store loses its state. If zero, it is At.
	Order int64
	// Reservation is the time that is reserved for the request. If nil, the request may be sent
	// now.
	Reservation *Reservation

	// Crossed lists the percentages that calendar tiers have reached with this charge, or with
	// other charges since the last report. The store reports each percentage to one caller, whose
	// request is admitted or Exhausted.
	Crossed []algorithms.Crossing
}

// Probing is the Tier of a Decision that has to wait for the response to a probe, which is the
// first request after a pause.
const Probing = -2

// ProbeTime is how long other requests wait for a probe that is not held. No call will report its
// response, and so the others follow after ProbeTime.
const ProbeTime = time.Second

// ProbeTimeout is how long, beyond its guard interval, other requests wait for the response to a
// held probe. Then the next request probes.
const ProbeTimeout = 30 * time.Second

// RecheckInterval is the longest time until a waiting caller asks again after a Decision with
// Recheck.
const RecheckInterval = 500 * time.Millisecond

// Forever is the Wait of a request that the passing of time alone can't admit.
const Forever time.Duration = 1<<63 - 1

// A Pause stops admissions for some time. Of two pauses, the one that ends later holds.
type Pause struct {
	For time.Duration
	// Close makes the pause a ban: the quota refuses callers, with the time at which the ban ends,
	// instead of letting them wait.
	Close bool
	// Probe lets only one request go when the pause ends. The others follow after its response.
	Probe bool

	// Most makes the pause a back-off. For is doubled once for each consecutive back-off, up to
	// Most. A request that Passed ends the sequence, unless it was admitted before the last pause.
	// Resume ends it too. If zero, the pause takes For.
	Most time.Duration
	// AtOnce makes the first back-off of a sequence take no time.
	AtOnce bool

	// Refused is the refusal that causes the pause, for tiers that learn their rate. They ignore it while
	// a back-off of this quota goes on. A pause with Most is void if such a tier decreases its rate instead,
	// or tolerates the refusal. If nil, the pause teaches nothing.
	Refused *Refused

	// Once makes the pause void unless the quota is still in Epoch. Several refusals of one moment
	// then count as one event.
	Once  bool
	Epoch int64
}

// A Refused is a refusal by the provider.
type Refused struct {
	// At is when the request was admitted, as in its Decision.
	At int64
	// Cost is the cost of the request, zero in units that the refusal is not about.
	Cost []int64
}

// MostDoubled is the highest number of consecutive back-offs that a store counts.
const MostDoubled = 15

// Length returns how long the pause takes after level consecutive back-offs.
func (p Pause) Length(level uint8) time.Duration {
	switch {
	case p.Most == 0:
		return p.For
	case p.AtOnce && level == 0:
		return 0
	case p.For > p.Most>>level:
		return p.Most
	}
	return p.For << level
}

// Next returns the number of consecutive back-offs after the pause.
func (p Pause) Next(level uint8) uint8 {
	if p.Most == 0 {
		return level
	}
	return min(level+1, MostDoubled)
}

// Paused is the result of a Pause.
type Paused struct {
	// Applied is false if the pause was void, or shorter than the one in force.
	Applied bool
	// For is how long the quota is paused, if Applied. For a back-off it contains the doublings.
	For time.Duration
	// Epoch numbers the last event. Events are pauses and the early ends of pauses, and each
	// increases the number.
	Epoch int64
}

// A Change is an event that watchers receive.
type Change uint8

// The changes.
const (
	Freed     Change = iota // a request landed, was released or was returned
	Slowed                  // a pause makes requests wait longer: reservations are void
	Shut                    // the quota was closed
	Lost                    // the store lost its state: reservations are void
	Eased                   // a pause or ban ended early, or charges became less: reservations are void
	Replanned               // the quota has a successor
)

// A Status is the state of a quota at one moment.
type Status struct {
	// Policy is the name of the limiter's policy. Stores leave it empty.
	Policy string
	Tiers  []TierStatus
	// Waiting is the number of callers that wait in this limiter's queue.
	Waiting int
	// Paused is the time until the pause ends. If zero, there is no pause.
	Paused time.Duration
	// Closed is the time until the provider's ban ends. If zero, there is no ban.
	Closed time.Duration
	// Guard is the guard interval in force, which may be learned. Stores leave it zero.
	Guard time.Duration
	// Shared is what shares the quota, such as "Redis". If empty, the quota is in this process. A
	// store sets Shared and Fallback after an error too.
	Shared string
	// Fallback is how many equal parts the store makes of the quota while it does not answer. This
	// process then decides on one of them. If zero, callers wait for the store.
	Fallback int
	// At is when the state held, by the clock of Decision.At. If zero, the store does not report it.
	// Limiters leave it zero.
	At int64
}

// A TierStatus is the state of one tier. It has the fields of a redis-cell reply, in full
// resolution.
type TierStatus struct {
	// Policy is the name of the policy that has the tier. Stores leave it empty.
	Policy string
	// Tier is the tier as the policy declares it, whatever it has followed or learned. If its Algorithm is SlidingLog, but the store keeps a
	// SlidingWindow because of its size, it is SlidingWindow.
	Tier algorithms.Tier
	// Limited reports that one more unit would have to wait.
	Limited bool
	// Limit is the capacity of the tier: Burst for the buckets and Limit for others. A PaceBurst
	// does not reduce it.
	Limit int64
	// Used is the number of units charged, including units in flight.
	Used int64
	// InFlight is how many of them are charged for requests whose response is not in. If zero, none
	// are, the tier counts units until they are released, or the store does not report it.
	InFlight int64
	// Others is how many of them were not charged for requests: the provider has reported them. If
	// zero, there are none, or the store does not report it.
	Others int64
	// Remaining is the number of units that the tier would admit now. With a PaceBurst it may be less
	// than Limit-Used.
	Remaining int64
	// RetryAfter is the time until the tier, with its pace, admits one unit. It is Forever where only
	// a release can help.
	RetryAfter time.Duration
	// ResetAfter is the time until no units are used. It is Forever while units are held.
	ResetAfter time.Duration

	// MaxRate is how many units a second the tier admits at most in the long run, if each request
	// costs one unit and no response is reported. With a small Burst and a long Guard it is less
	// than Limit per Window. If zero, the tier has no rate, or its rate is not known.
	MaxRate float64

	// Followed is the limit, in units per Window, that a tier with Follow has taken over from responses. If
	// zero, the limit is that of Tier. Stores leave it zero.
	Followed int64

	// Learned is what a tier with Learn knows of its rate. If nil, the tier does not learn.
	Learned *Learned
}

// A Learned is the state of a tier that learns its rate. Rates are in units per Window.
type Learned struct {
	// Rate is the present rate.
	Rate float64
	// Refused is a little less than the rate at which the provider last refused a request, so that the
	// rate decreased. If zero, that has not happened since the tier started, or the rate has been higher
	// since.
	Refused float64
	// Ago is how long ago that was.
	Ago time.Duration
	// Next is the rate in a minute if callers use all of it and nothing is refused.
	Next float64
	// Noise is the part of the requests that is refused at any rate, from 0 to 1, as far as it is known.
	Noise float64
}
