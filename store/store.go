// Package store is the contract between a limiter and what keeps its quota: the
// memory of one process (package local) or a server that a fleet shares. The root
// package aliases what its users see of it.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// A Store keeps quotas by key. It is safe for concurrent use.
type Store interface {
	// Open returns the quota of a key. Whoever opens the same key of the same
	// store shares one quota.
	Open(key string, plan *algorithms.Plan) (Quota, error)
}

// A Quota decides over all tiers of a plan at once. It is safe for concurrent use.
type Quota interface {
	// TryAcquire charges the cost, or reports when to ask again and charges nothing.
	TryAcquire(ctx context.Context, r Request) (Decision, error)
	// Arrived reports that the response to a held request is in: the provider has
	// counted the request, and it is no longer in flight.
	Arrived(b Decision, cost []int64)
	// Unanswered reports that a held request was sent, or may have been, and that no
	// response will come. The request stays in flight until its guard has passed, and
	// lands then with what was estimated of it. If it was a probe, the next request
	// probes. It is called at most once for a decision, instead of Arrived and Settle.
	Unanswered(d Decision, cost []int64)
	// Release reports that a held request has ended, for tiers that count what is open.
	Release(b Decision, cost []int64)
	// Settle says what a held request has really cost, in those units of which its
	// cost was an estimate. It is called once, and before Release, where the plan has
	// such units. crossed, which may be nil, is told once where calendar tiers have come
	// to with it, if that is further than before, maybe later and in another goroutine.
	Settle(b Decision, cost, actual []int64, crossed func([]algorithms.Crossing))
	// Return refunds a held request that was never sent, as far as it is still in
	// flight. If it was a probe, the next request probes.
	Return(ctx context.Context, b Decision, cost []int64) error
	// Pause admits nothing for some time.
	Pause(ctx context.Context, p Pause) (Paused, error)
	// Passed reports, before Arrived, that the response to a request admitted at a Level
	// above zero was no refusal.
	Passed(d Decision)
	// Resume ends the pause or ban in force, and with it the wait for a probe, for all who
	// share the quota. After an error they may go on pausing.
	Resume(ctx context.Context) error
	// Status reports every tier.
	Status(ctx context.Context) (Status, error)
	// Watch calls changed, from any goroutine, whenever something else than time
	// may have changed when a waiting request can go; until stop is called. For a
	// pause or a ban, left is how long it still lasts.
	Watch(changed func(c Change, left time.Duration)) (stop func())
	// Close says that its opener will not use the quota again. The store may forget
	// a quota that nobody has open once it equals a fresh one.
	Close()
}

// A Reserver is a Quota that books ahead, for many callers in one round trip. Its
// limiter sends all who wait through Book, and Reserve is for who doesn't wait.
type Reserver interface {
	// Reserve asks for requests in their order, behind a booking that the caller still
	// has, if any, and does not block: done is called later, from another goroutine,
	// with the answers for the first of the requests. Those without an answer may be
	// asked for again at once. An error that is ErrUnavailable means the same later.
	Reserve(behind *Reservation, requests []Request, done func([]Decision, error))
	// Cancel gives back bookings that nobody will use. It does not block.
	Cancel(bookings []Decision)
}

// An Reservation is a time that was booked.
type Reservation struct {
	Told  time.Time     // when the answer came
	Start time.Time     // the request may be sent from here on
	End   time.Time     // and no later: then the booking is void
	Again time.Time     // when to ask for more behind it
	At    int64         // Start, as the store tells time
	Cost  []int64       // what was booked
	Guard time.Duration // how long it is on its way at most
	State int64         // which state of the store it is charged to
}

// Expired reports whether the time can't be used any more. It looks at the wall clock
// too, since the monotonic one stands still while a machine is suspended.
func (a *Reservation) Expired(now time.Time) bool {
	return now.After(a.End) || now.Round(0).After(a.End.Round(0))
}

// A Joiner is a Reserver whose reservations can be held together with those of other
// quotas, so that a request is charged in all of them at one time.
type Joiner interface {
	Reserver
	// Trip returns how long it usually takes to reserve. It may block for the first trip.
	Trip(context.Context) time.Duration
	// IsVoid reports whether a pause, or anything else that voids reservations, came since.
	IsVoid(d Decision) bool
}

// A Changer is a Quota whose plan can change while it is in use.
type Changer interface {
	// Change replaces the plan of the quota, for all in this process who have opened
	// its key, and keeps what is charged. From then on TryAcquire returns [Moved] and
	// Reserve answers with it. The other methods stay valid for what the quota admitted
	// under the plan before. Watchers receive Replanned.
	Change(ctx context.Context, plan *algorithms.Plan) error
	// Successor returns the quota under the newest plan, and that plan: the quota
	// itself if its plan has not changed. The caller who adopts a successor closes it
	// instead of the quota.
	Successor() (Quota, *algorithms.Plan)
}

// ErrUnavailable is the error of a shared store that did not answer. It may answer later.
var ErrUnavailable = errors.New("throttle: store is unavailable")

// An Aligner is a Quota that learns when the provider's windows end.
type Aligner interface {
	// Align says that a window of the first tier of UnknownPhase ends between two
	// instants.
	Align(from, to time.Time)
}

// An Observer is a Quota that accepts what the provider reports of its own counters.
type Observer interface {
	// Observe takes the readings of the response to a request, after Arrived. It does
	// not block.
	Observe(d Decision, cost []int64, seen []Observation)
}

// An Observation is what a response reports of one tier.
type Observation struct {
	Tier  int   // of the plan
	Used  int64 // units that the provider counts
	Exact bool  // the report is authoritative: the provider counts no more than Used

	// Reset is how long after the response the count is told to end, rounded up by
	// what the provider may have cut off. If zero, the response does not tell.
	Reset time.Duration
	// Slack is by how much sooner than Reset the count may end.
	Slack time.Duration
	// Full reports that Reset is when the whole limit is free again, as a bucket
	// reports it, and not the end of a window.
	Full bool
	// Refused reports that the response refused the request. A quota may then count what the
	// request was charged as the use of others.
	Refused bool
}

// A Forecaster is a Quota that can forecast how long a queue will take.
type Forecaster interface {
	Forecast() Forecast
}

// A Forecast is the future of a quota from the instant it was made, if all goes as well
// as it can: every response comes at once, every permit is free, and nobody else asks.
// Its times count from that instant. It is not safe for concurrent use.
type Forecast interface {
	// Next adds a request behind those added before. It returns when the request is
	// admitted, and the tier that decides: -1 if none does, at is Forever if only a
	// release could help.
	Next(r Request) (at time.Duration, tier int)
	// Total returns a lower bound of when a cost is admitted that leaves so many percent
	// of headroom, behind an amount of other requests, and the tier that decides. It
	// ignores what Next added.
	Total(ahead, cost []int64, headroom int64) (at time.Duration, tier int)
}

// An Idler is a Quota that can report whether it decides as a fresh one would, so
// that it may be forgotten. A Quota that is none keeps nothing in this process.
type Idler interface {
	Idle() bool
}

// A Learner is a Quota that reports whether it has learned from responses what it would
// have to learn again if it were forgotten.
type Learner interface {
	Learned() bool
}

// A Request asks for an admission.
type Request struct {
	Cost      []int64       // amounts, in the order of the plan's units
	Held      bool          // Arrived, Release or Return will tell what became of it
	Guard     time.Duration // how long it is on its way at most, if not the plan's; zero for that
	*WaitSpec               // how it waits, which nobody changes; a Reserver's have one, and nil yields to nobody
}

// WaitSpec is how a request waits. It is apart from the Request so that this stays in the
// processor's registers.
type WaitSpec struct {
	MaxWait time.Duration // for a Reserver: the longest wait that is of use
	DryRun  bool          // only report whether it would be admitted: Ready

	// NotBefore is, for a Joiner, the earliest time that is of use. If zero, any time.
	NotBefore time.Time

	// YieldFor is for how long the request still yields to others, zero if it does not.
	// Until then a Reserver reserves it some milliseconds ahead at most, and it is admitted
	// only where every tier has room for its cost and Headroom.
	YieldFor time.Duration
	Headroom int64 // percent of a tier's capacity; zero where it does not yield
}

// IsDryRun reports whether the request only asks.
func (r Request) IsDryRun() bool { return r.WaitSpec != nil && r.DryRun }

// Leaves is the headroom that the request leaves to others, in percent.
func (r Request) Leaves() int64 {
	if r.WaitSpec == nil {
		return 0
	}
	return r.Headroom
}

// A Verdict is what Reserve decided.
type Verdict uint8

// The verdicts.
const (
	Later     Verdict = iota // ask again after Wait
	Admitted                 // charged: the request may be sent now, or when it is booked for
	Closed                   // the provider has closed the quota for Wait
	Late                     // would wait for Wait, which is too long: charged nothing
	Exhausted                // Tier, a budget, has no room for Wait: charged nothing
	Ready                    // would be admitted now: charged nothing, as was asked for
	Moved                    // the quota has a successor: charged nothing, ask that
)

// A Decision is the answer to a Request.
type Decision struct {
	Verdict     Verdict
	Level       uint8             // back-offs in a row then
	Probe       bool              // it is the first after a pause, for which others wait
	Tier        int               // where Later: the tier that decides, -1 for a pause, Probing for a request that tries whether it is over
	Wait        time.Duration     // Forever where only a release can help
	Flight      algorithms.Flight // names a held request to the store
	Epoch       int64             // the last event known then, of pauses and early ends of them: it grows with each
	At          int64             // when it was admitted, as the store tells time
	Reservation *Reservation      // where it was booked for a time; nil for now

	// Crossed tells where calendar tiers have come to with this charge, or with others
	// since the last one: each percent is told to one caller of all, who is admitted or
	// Exhausted.
	Crossed []algorithms.Crossing
}

// Probing is the Tier of a Decision that waits for the first request after a pause.
const Probing = -2

// ProbeTime is how long the first request after a pause goes alone if nothing will
// report its response: then the others follow.
const ProbeTime = time.Second

// ProbeTimeout is how long, beyond its guard, a held probe goes alone if its response
// does not come: then the next request probes.
const ProbeTimeout = 30 * time.Second

// Forever is the Wait of what no passing of time brings about.
const Forever time.Duration = 1<<63 - 1

// A Pause asks that nothing be admitted for some time. Of two pauses the one that
// ends later holds.
type Pause struct {
	For   time.Duration
	Close bool // refuse callers with the time it ends, instead of letting them wait
	Probe bool // when it ends one request goes first, and the others only then

	// Most makes the pause a back-off: For is doubled once for each back-off in a row and is
	// at most Most. A request that Passed ends the row, unless it was admitted before the last
	// pause, and so does Resume. If zero, the pause takes For.
	Most time.Duration
	// AtOnce makes the first back-off of a row take no time.
	AtOnce bool

	// Once makes the pause void unless the quota is still in Epoch, so that many
	// refusals of one moment are one event.
	Once  bool
	Epoch int64
}

// MostDoubled is the most back-offs in a row that a store counts.
const MostDoubled = 15

// Length is how long the pause takes, after so many back-offs in a row.
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

// Next is how many back-offs in a row there are after the pause.
func (p Pause) Next(level uint8) uint8 {
	if p.Most == 0 {
		return level
	}
	return min(level+1, MostDoubled)
}

// Paused is the answer to a Pause.
type Paused struct {
	Applied bool  // false where it was void or shorter than one in force
	Epoch   int64 // the last event, of pauses and early ends of them: it grows with each
}

// A Change is what a watcher is told.
type Change uint8

// The changes.
const (
	Freed     Change = iota // something was landed, released or returned
	Slowed                  // a pause makes requests wait longer: what was reserved is void
	Shut                    // the quota was closed
	Lost                    // the store lost its state: what was booked is void
	Eased                   // a pause or ban ended early, or what was charged became less: what was reserved is void
	Replanned               // the quota has a successor
)

// A Status is the state of a quota at one moment.
type Status struct {
	Tiers   []TierStatus
	Waiting int           // callers in this limiter's waiting room
	Paused  time.Duration // until the pause ends, zero if there is none
	Closed  time.Duration // until the provider's ban ends, zero if there is none
}

// A TierStatus is the state of one tier. Its fields answer what redis-cell
// answers, in full resolution.
type TierStatus struct {
	Tier       algorithms.Tier
	Limited    bool          // one unit more would have to wait
	Limit      int64         // the most it admits at once, units
	Used       int64         // units charged, those on their way included
	Remaining  int64         // units that it would admit now
	RetryAfter time.Duration // until it admits one unit; Forever where only a release can help
	ResetAfter time.Duration // until nothing is used; Forever while something must be released

	// MaxRate is how many units a second the tier admits at most in the long run, if each
	// request costs one unit and no response is reported: a small Burst with a long Guard
	// admits less than Limit per Window. If zero, the tier has no rate, or it is not known.
	MaxRate float64
}
