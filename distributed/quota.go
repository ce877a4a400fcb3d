package distributed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/lineage"
	"github.com/apithrottle/throttle/internal/reporter"
	"github.com/apithrottle/throttle/store"
)

const (
	mostACall    = 64                     // the most requests in a call of the script
	leastCalls   = 4                      // how many calls may always share a round trip
	mostCalls    = 64                     // how many may if a trip takes long
	firstTrip    = 50 * time.Millisecond  // the assumed duration of the first trip
	leastTries   = 3                      // late answers in a row before Redis is too far away
	takesTurn    = 50 * time.Microsecond  // the server's time for a call, while others wait behind it
	unguarded    = 50 * time.Millisecond  // the shortest validity of a reservation with NoGuard
	wakeUp       = 10 * time.Millisecond  // the shortest assumed delay of a process that wakes up at its time
	leastWake    = time.Millisecond       // the same with a returned reservation that is valid for a shorter time
	mostSpare    = 250 * time.Millisecond // see spareOf
	latestWake   = time.Second            // a longer delay means that the process was stopped
	observeEvery = 100 * time.Millisecond // the shortest time between two reports of the provider's counts
	yieldAhead   = 10 * time.Millisecond  // how far ahead a request that yields is reserved, beyond two round trips
	leaveDelay   = 500 * time.Millisecond // how long a process without callers keeps its turn, since others may come at once
	refundDelay  = time.Millisecond       // how long a refund waits for a trip of its key
	worthWaking  = 5 * time.Millisecond   // callers that sleep for less receive no messages
	askBeforeEnd = 125 * time.Millisecond // how long before the end of a pause callers ask again at most; less than the script's SOON
	mostApart    = 90 * time.Second       // how far behind all others a request is reserved at least; the script's MOST_APART
	askAhead     = 750 * time.Millisecond // how long before its time a process in the line asks
	never        = -1                     // an instant in a reply, a bound in a call
	dryRun       = time.Duration(-1)      // the bound of a request that is not to be charged
	dryRunArg    = -2                     // the same in a call
	lastInstant  = 1<<53 - 1              // the last instant that a script can tell from the next
	lent         = -1 << 32               // in a reply, before how much less a returned reservation is valid; the script's -LENT
)

// A quota is the quota of one limiter. The fleet treats each quota as a process of its own.
type quota struct {
	calls    reporter.Calls
	store    *Store
	key      string // its name in Redis
	plan     *algorithms.Plan
	text     string // of the plan, for the script
	budgets  []any  // the numbers of its budget tiers, from 1
	node     *node
	clock    *clock        // shared with the successor
	spare    time.Duration // the validity that a reservation may have at no noticeable cost
	bound    time.Duration // the longest validity: a second, or half of the shortest window if that is more
	leases   *leases       // nil without Concurrency tiers and estimated units; shared with the successor
	fallback *fallback     // nil if Options.Fallback is zero

	lineage *lineage.Line
	version int64                 // of the plan, in the lineage
	place   atomic.Pointer[place] // in the line, by the last reply; nil if the process has none
	turn    atomic.Int64          // the instant by Redis's clock that the last reply set for asking for requests that have turns; or 0
	mixed   atomic.Bool           // by the last reply, releases with other plans call, too

	mu         sync.Mutex // guards all below
	next       *quota     // under the plan that replaced this one; nil until it is needed
	state      state
	returned   time.Time             // when a reservation of a time to come was last returned
	observed   time.Time             // of the last report of the provider's counts
	unreported []algorithms.Crossing // of callers that were not admitted after all; the next caller receives them
	watchers   map[*watcher]struct{}
}

// A place is a turn in the line of processes whose requests go later than soon, see line.lua.
type place struct {
	at, length int64
	since      time.Time // when the process received it
}

// askAhead returns how long before its time, which comes in wait, a process in the line asks. Of several
// with the same time the one that has waited longest asks first.
func (p *place) askAhead(now time.Time, wait, trip time.Duration) time.Duration {
	return askAhead + min((now.Sub(p.since)+wait)/64, askAhead/3) + trip
}

// args returns the arguments that tell the script the place, which may be nil.
func (p *place) args() []any {
	if p == nil {
		return []any{0, -1, 0}
	}
	return []any{0, -1 - p.at, p.length}
}

type watcher struct {
	changed func(store.Change, time.Duration)
}

// A state is this process's record of the state in Redis.
type state struct {
	generation int64
	setbacks   int64     // how often Redis has returned to an earlier state of the generation
	written    int64     // when the latest known call wrote the state, on Redis's clock
	asOf       time.Time // when the reply came
	sent       time.Time // when its call was sent
	expires    time.Time // the generation can't change before
	epoch      int64
	until      time.Time // the end of the pause or ban
	shut       bool      // it is a ban
	level      uint8     // back-offs in a row
	pause      int64     // the epoch that the pause began with, or neverRecorded
	unrecorded bool      // Redis does not have the pause
	restoring  bool      // a goroutine or a timer restores the pause in Redis
}

// neverRecorded is the epoch of a pause that Redis never had. It is later than any other.
const neverRecorded = math.MaxInt64

// of identifies a state of Redis. Reservations in another state are void.
func (s *state) of(generation int64) int64 { return generation + s.setbacks }

var (
	_ store.Quota     = (*quota)(nil)
	_ store.Reserver  = (*quota)(nil)
	_ store.Bundler   = (*quota)(nil)
	_ store.Lifecycle = (*quota)(nil)
	_ store.Feedback  = (*quota)(nil)
)

func (s *Store) newQuota(name string, plan *algorithms.Plan, line *lineage.Line, version int64, calls reporter.Calls) *quota {
	shortest := shortestWindow(plan)
	q := &quota{
		calls:    calls,
		store:    s,
		key:      name,
		plan:     plan,
		lineage:  line,
		version:  version,
		text:     planText(plan),
		node:     s.node(name),
		clock:    &clock{server: s.clock},
		spare:    spareOf(shortest),
		bound:    max(time.Second, shortest/2),
		watchers: make(map[*watcher]struct{}),
	}
	for i := range plan.Tiers() {
		if plan.Exhausted(i) {
			q.budgets = append(q.budgets, i+1)
		}
	}
	if s.options.Fallback.Workers > 0 {
		q.fallback = newFallback(plan, s.options.Fallback.Workers)
	}
	return q
}

// shortestWindow returns the shortest window of a plan's tiers, zero if no tier has a window.
func shortestWindow(p *algorithms.Plan) (shortest time.Duration) {
	for _, t := range p.Tiers() {
		if t.Window > 0 && (shortest == 0 || t.Window < shortest) {
			shortest = t.Window
		}
	}
	return shortest
}

// spareOf returns how long a reservation may be valid at no noticeable cost: 1/500 of the shortest
// window up to a quarter of a second, and 1/14400 of it up to two seconds.
func spareOf(shortest time.Duration) time.Duration {
	return max(min(shortest/500, mostSpare), min(shortest/14400, 8*mostSpare))
}

// trip returns the usual duration of a round trip to Redis.
func (q *quota) trip() time.Duration {
	usual, _ := q.node.trip.get()
	return usual
}

// setTerms sets the validity of a trip's reservations and how long they count. The trip is about to
// be sent, with a number of calls in flight. A request is sent at the latest when its start time
// has certainly come, given the uncertainty about the clock, or when the reply is in, given recent
// replies, and the caller has woken up. It counts until then and for its time in flight to the
// provider. The trip takes over returned reservations that are valid for less by slack.
func (q *quota) setTerms(t *trip, way time.Duration, calls int) {
	var slack time.Duration
	t.good, t.reply, slack = q.terms(way, t.hold, calls)
	t.guard = q.guard(way, t.good)
	shows := q.clock.shows(time.Now())
	for _, c := range t.calls {
		copy(c.args[t.at:], []any{micros(t.guard), micros(t.reply), shows, micros(slack)})
	}
}

// terms returns how long reservations are valid, how long the reply takes, and by how much less a
// usable reservation may be valid.
func (q *quota) terms(way, hold time.Duration, calls int) (good, reply, slack time.Duration) {
	usual, worst := q.node.trip.get()
	_, late := q.node.wake.get()
	takes := cmp.Or(max(usual, worst), firstTrip) + time.Duration(calls)*takesTurn
	width := q.clock.width(takes)
	good = min(q.bound, roundUp(width+max(wakeUp, late, q.spare)))
	reply = min(q.bound-good, roundUp(takes-width+hold))
	slack = max(0, good-width-max(leastWake, late))
	if cmp.Or(way, q.plan.Guard()) == 0 {
		good, slack = max(good, unguarded), 0
	}
	return good, reply, slack
}

// guard returns how long a request counts whose reservation is valid for good; zero with NoGuard.
func (q *quota) guard(way, good time.Duration) time.Duration {
	if way = cmp.Or(way, q.plan.Guard()); way > 0 {
		return max(way+good, microseconds(1<<q.plan.Resolution()))
	}
	return 0
}

// roundUp rounds up to one of few durations, so that returned reservations land with others.
func roundUp(d time.Duration) time.Duration {
	step := time.Duration(1) << max(22, bits.Len64(uint64(d))-4) // 4 ms at least
	return (d + step - 1) / step * step
}

// measureTrip measures the first round trip to the server, with a call that reserves nothing.
func (q *quota) measureTrip() {
	if q.node.measuring.CompareAndSwap(false, true) {
		_, _, _, _ = q.ask(context.Background(), opStatus, func(_ *quota, args []any) []any { return args })
		close(q.node.measured)
	}
	<-q.node.measured
}

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// begin returns the first arguments of an operation. With leases the caller must have the turn.
func (q *quota) begin(op string, more int) []any {
	return q.appendPlan(append(make([]any, 0, 4+len(q.plan.Units())+more), op))
}

// appendPlan appends what a call tells the script about the quota. With leases the caller must have
// the turn.
func (q *quota) appendPlan(args []any) []any {
	args = appendCost(append(args, q.text), q.plan.PeriodStarts(time.Now().UnixMicro()))
	if q.leases != nil {
		args = q.leases.append(args)
	}
	return args
}

// beginReserve returns the first arguments of a reservation, with the budget tiers if there are
// any.
func (q *quota) beginReserve(more int) []any {
	if len(q.budgets) == 0 {
		return q.begin(opReserve, more)
	}
	return q.appendBudgets(q.begin(opBudget, 1+len(q.budgets)+more))
}

// appendBudgets appends the number of budget tiers and these.
func (q *quota) appendBudgets(args []any) []any {
	return append(append(args, len(q.budgets)), q.budgets...)
}

func appendCost(args []any, cost []int64) []any {
	for _, n := range cost {
		args = append(args, n)
	}
	return args
}

// Reserve asks Redis, in a goroutine that ends with the call.
func (q *quota) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	p := q.store.reports.begin()
	go q.reserve(behind, requests, func(got []store.Decision, err error) {
		q.leave(leaveDelay) // the callers may have left before they had a turn or a place in the queue
		done(got, err)
		p.end(nil)
	}, 0)
}

// reserve reserves and calls done. If the answer comes too late for all of its reservations, it
// asks again after a back-off, for one request only.
func (q *quota) reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error), tries int) {
	if b, held := q.pausedLocally(); held {
		done(slices.Repeat([]store.Decision{b}, len(requests)), nil)
		return
	}
	_ = q.repay()
	q.measureTrip()
	_ = q.leases.lock(context.Background())
	if !q.isNewest() {
		q.leases.unlock(nil)
		done(slices.Repeat([]store.Decision{moved}, len(requests)), nil)
		return
	}
	q.leases.rebase(q)
	t := q.reserveTrip(behind, requests)
	t.done = func(err error) {
		got, lost, err := q.conclude(t, requests, err)
		switch {
		case lost == nil && t.isLate(got):
			q.Cancel(got)
			if err := q.distanceError(tries); err != nil {
				done(nil, err)
				return
			}
			time.AfterFunc(q.backOff(t, tries), func() { q.reserve(behind, requests[:1], done, tries+1) })
		case q.overtaken(got):
			q.Cancel(got)
			go q.reserve(behind, requests, done, tries)
		default:
			q.trackProbes(got, requests)
			q.listen(got)
			done(got, err)
			if q.overtaken(got) { // the watchers were called before they had these decisions
				q.notifyAgain()
			}
		}
	}
	t.late = func() {
		got, _ := q.read(t, requests)
		q.refund(got, true)
	}
	q.node.make(t)
}

// conclude returns the decisions of a trip, or of the fallback if the trip failed, and ends the
// turn of the leases. lost is the reason why Redis did not decide, and err the error for the
// callers.
func (q *quota) conclude(t *trip, requests []store.Request, failed error) (got []store.Decision, lost, err error) {
	if lost = failed; lost == nil {
		got, lost = q.read(t, requests)
	}
	if lost == nil {
		q.fallback.charge(got)
	} else {
		got, err = q.fallBack(requests, lost)
	}
	q.leases.grant(got)
	q.leases.unlock(lost)
	return got, lost, err
}

// isLate reports whether the trip reserved something and all of it has expired.
func (t *trip) isLate(got []store.Decision) bool {
	admitted := false
	for _, d := range got {
		if d.Verdict == store.Admitted {
			if !d.Reservation.Expired(t.got) {
				return false
			}
			admitted = true
		}
	}
	return admitted
}

// distanceError returns an error if answers usually take too long to be usable, after several
// tries.
func (q *quota) distanceError(tries int) error {
	took := q.trip()
	q.store.journal.report(redisLate, "key", q.key, "took", took.Round(time.Millisecond))
	if tries < leastTries || took+wakeUp <= q.bound {
		return nil
	}
	return fmt.Errorf("distributed: key %q: Redis usually answers after %v, and a reservation under this policy is valid for %v at most: use a Redis that is nearer, or longer windows",
		q.key, took.Round(time.Millisecond), q.bound)
}

// backOff returns a random delay before the next try. Its mean grows with the tries.
func (q *quota) backOff(t *trip, tries int) time.Duration {
	return rand.N(min(q.bound, q.node.timeout, t.got.Sub(t.sent)<<min(tries, 10)))
}

// overtaken reports whether any of the decisions is void: made before a pause, or the end of one,
// that this process has seen since, in a state that is lost, or under a plan that was replaced.
func (q *quota) overtaken(got []store.Decision) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.state
	void := !q.isNewest() || s.unrecorded && time.Now().Before(s.until)
	return slices.ContainsFunc(got, func(b store.Decision) bool {
		if b.Verdict != store.Admitted || void {
			return b.Verdict == store.Admitted
		}
		return b.Reservation.State != inFallback && (b.Epoch != s.epoch || b.Reservation.State != s.of(s.generation))
	})
}

// notifyAgain calls the watchers with the last change.
func (q *quota) notifyAgain() {
	q.mu.Lock()
	switch left := time.Until(q.state.until); {
	case !q.isNewest():
		q.unlockAndNotify(store.Replanned, 0)
	case left > 0:
		q.unlockAndNotify(q.state.change(), left)
	default:
		q.unlockAndNotify(store.Eased, 0)
	}
}

// callsATrip returns how many calls may share a round trip without making it much longer.
func (q *quota) callsATrip() int {
	if q.leases != nil {
		return 1 // each call reports the held units, which include the grants of the call before
	}
	return int(min(mostCalls, max(leastCalls, q.trip()/time.Millisecond)))
}

// reserveTrip returns a trip that reserves for the first of the requests, as many as fit in it.
func (q *quota) reserveTrip(behind *store.Reservation, requests []store.Request) *trip {
	calls, way, t := q.callsATrip(), time.Duration(0), &trip{mixed: q.mixed.Load()}
	for _, r := range requests {
		way, t.hold = max(way, cmp.Or(r.Guard, q.plan.Guard())), max(t.hold, r.Hold)
	}
	var floor int64
	if behind != nil {
		floor = behind.At
	}
	turn := micros(q.turnLength(requests))
	within := store.Forever
	for i, before := 0, 0; i < calls && len(requests) > 0; i++ {
		n := min(mostACall, len(requests))
		if i > 0 && (t.hasTurns(requests[0]) || q.place.Load() != nil) { // each call would give the process another turn
			break
		}
		if i > 0 {
			// Only the first request of the trip may be reserved any time ahead. Those of later
			// calls get no returned times, which might be before those of the earlier calls.
			within, floor = q.store.options.Horizon, lastInstant
		}
		args := append(q.beginReserve(5+n*(4+len(q.plan.Units()))), turn, before, floor)
		args = t.withTerms(args, func(calls int) { q.setTerms(t, way, calls) })
		if i == 0 {
			t.lined = true
			args = append(args, q.place.Load().args()...)
		}
		t.calls = append(t.calls, q.newCall(q.appendRequests(t, args, requests[:n], within)))
		requests, before = requests[n:], before+n
	}
	return t
}

// turnLength returns for how long behind the first time to come a process reserves. A returned time
// is lost to a request that costs more. So a process reserves for a short time if its requests have
// unlike costs and a caller gave up within the last minute.
func (q *quota) turnLength(requests []store.Request) time.Duration {
	length := q.store.options.Horizon
	unlike := func(r store.Request) bool { return !slices.Equal(r.Cost, requests[0].Cost) }
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.returned) < time.Minute && slices.ContainsFunc(requests, unlike) {
		return length / 10
	}
	return length
}

// Leave does nothing: the quota leaves when its last watcher stops.
func (q *quota) Leave() {}

// leave gives back what Redis keeps for the waiting callers of this process: the turn of requests that
// yield, and the place in the queue for permits or the permit that is kept. It does so after a delay,
// or in Flush, unless a caller waits by then.
func (q *quota) leave(delay time.Duration) {
	if q.watched() || q.turn.Load() == 0 && q.place.Load() == nil && !q.leases.queued() {
		return
	}
	q.store.reports.later(delay, func() error {
		if q.watched() {
			return nil
		}
		err := q.giveBack(q.turn.Swap(0), 0)
		if p := q.place.Swap(nil); p != nil {
			err = errors.Join(err, q.giveBack(p.at, -p.length))
		}
		q.leases.leave()
		return err
	})
}

// giveBack gives back a turn if it is not 0, for a number of requests, or for requests that yield if
// that is 0. Without a call, the turn ends by itself.
func (q *quota) giveBack(turn, requests int64) error {
	if turn <= 0 {
		return nil
	}
	_, _, _, err := q.ask(context.Background(), opLeave, func(_ *quota, args []any) []any { return append(args, turn, requests) })
	return err
}

// soon returns how far ahead a request that yields is reserved. It is short enough not to delay
// others, and long enough to ask for the next one in time.
func (q *quota) soon() time.Duration { return 2*q.trip() + yieldAhead }

// Trip returns the usual duration of a round trip to Redis.
func (q *quota) Trip(ctx context.Context) time.Duration {
	if !q.node.measuring.Load() {
		go q.measureTrip()
	}
	select {
	case <-q.node.measured:
	case <-ctx.Done():
	}
	return q.trip()
}

// IsVoid reports whether the reservation is overtaken.
func (q *quota) IsVoid(d store.Decision) bool { return q.overtaken([]store.Decision{d}) }

// hasTurns reports whether a trip reserves a request in a turn of this process: one that yields, or any
// that waits while releases with other plans call, too, since what one of them reserves ahead delays
// the others.
func (t *trip) hasTurns(r store.Request) bool { return r.YieldFor > 0 || t.mixed && r.MaxWait > 0 }

// appendRequests appends requests as groups of equal ones.
func (q *quota) appendRequests(t *trip, args []any, requests []store.Request, most time.Duration) []any {
	turn := q.turn.Load()
	if t.toldTurn {
		turn = -turn
	}
	for i := 0; i < len(requests); {
		r, n := requests[i], 1
		within := min(r.MaxWait, most)
		yields, hasTurns := r.YieldFor > 0, t.hasTurns(r)
		for i+n < len(requests) && min(requests[i+n].MaxWait, most) == within && (requests[i+n].YieldFor > 0) == yields && slices.Equal(requests[i+n].Cost, r.Cost) {
			n++
		}
		if hasTurns {
			args = append(args, -n)
		} else {
			args = append(args, n)
		}
		switch within {
		case store.Forever:
			args = append(args, never)
		case dryRun:
			args = append(args, dryRunArg)
		default:
			args = append(args, micros(within))
		}
		if hasTurns {
			soon := micros(q.soon())
			if !yields {
				soon = -soon
			}
			args = append(args, r.Headroom, soon, turn)
			if within != dryRun && turn > 0 {
				t.toldTurn, turn = true, -turn
			}
		}
		args = appendCost(args, r.Cost)
		i += n
	}
	return args
}

// A header is the beginning of every reply, see main.lua. shut is one of the constants below.
type header struct {
	now, generation, ttl, epoch, until, shut, wall, written int64

	mixed bool  // releases with other plans call, too
	level uint8 // back-offs in a row
	saved int64 // when this call wrote the state; the next reply has it in written
	state int64 // identifies the state of the reply's reservations
}

// The kinds of what is in force until header.until.
const (
	isPause = iota
	isBan
	isProbe // the wait for the response to the probe that this call has reserved
)

const headerLen = 8

func parseHeader(reply []int64) header {
	return header{
		now: reply[0], generation: reply[1], ttl: reply[2], epoch: reply[3], until: reply[4], shut: reply[5] % 4, mixed: reply[5]/4%2 == 1, level: uint8(reply[5] / 8),
		wall: reply[6], written: reply[7], saved: reply[0],
	}
}

func (h header) left() time.Duration { return microseconds(max(0, h.until-h.now)) }

// setBack returns how far TIME was set back since the state began.
func (h header) setBack() int64 { return h.generation + h.now - h.wall }

// read returns the decisions in a trip's replies: on the first of the requests up to the first that
// has to wait, and the reservations after it.
func (q *quota) read(t *trip, requests []store.Request) (got []store.Decision, err error) {
	got = make([]store.Decision, 0, min(len(requests), mostACall*len(t.calls)))
	stopped := false
	for i, c := range t.calls {
		h := parseHeader(c.reply)
		var known bounds
		h.state, known = q.recordReply(h, t)
		n := min(mostACall, len(requests))
		if h.shut == isBan && h.left() > 0 {
			closed := store.Decision{Verdict: store.Closed, Tier: -1, Wait: h.left(), Epoch: h.epoch}
			return append(got, slices.Repeat([]store.Decision{closed}, len(requests))...), nil
		}
		own := c.reply[headerLen:]
		t.place = nil
		if i == 0 && t.lined && len(own) >= 2 {
			if !t.asks {
				t.place = q.newPlace(own[0], own[1], t.got)
			}
			own = own[2:]
		}
		runs, crossed := q.crossed(own)
		decided, ok := eachOf(runs, n, len(q.plan.Tiers()))
		if !ok || len(decided) == 0 {
			return got, &unavailableError{fmt.Errorf("the server replied to %d requests with %d, which the script does not", n, c.reply)}
		}
		if c.requests == 0 { // else the caller of q.call knows it
			c.requests = len(decided) / 2
		}
		ahead := make([]store.Reservation, len(decided)/2)
		for i := range ahead {
			last := len(got) - 1
			b := q.decided(decided[2*i], decided[2*i+1], h, known, t, requests[i], &ahead[i])
			if b.Verdict == store.Admitted {
				b.Crossed, crossed = append(q.takeUnreported(), crossed...), nil
			} else if b.Verdict == store.Exhausted {
				b.Crossed = q.takeUnreported()
			}
			if !stopped || b.Verdict == store.Admitted {
				got = append(got, b)
			}
			stopped = stopped || b.Verdict == store.Later
			if b.Verdict == store.Later && t.place != nil && last >= 0 && got[last].Verdict == store.Admitted {
				a := got[last].Reservation
				if a.Again = t.got; a.Start.Before(t.got) { // the process asks for the following requests in its turn
					a.Again = a.Start
				}
			}
		}
		stopped = stopped || len(ahead) < n
		requests = requests[n:]
	}
	return got, nil
}

// newPlace stores and returns the place of a reply, nil if its length is 0.
func (q *quota) newPlace(at, length int64, now time.Time) (p *place) {
	if length > 0 {
		p = &place{at, length, now}
		if old := q.place.Load(); old != nil && old.at == at {
			p.since = old.since
		}
	}
	q.place.Store(p)
	return p
}

// eachOf expands runs of what, time and count into what and time of each request. The requests of a
// run are reserved one after the other at the same time, or refused alike. It returns false if the
// script can't have sent the runs for this number of requests and tiers.
func eachOf(runs []int64, most, tiers int) (decided []int64, ok bool) {
	for len(runs) > 0 {
		if len(runs) < 3 || runs[0] > int64(tiers) || runs[2] < 1 || runs[2] > int64(most-len(decided)/2) || runs[0] == 0 && len(runs) < 7 {
			return nil, false
		}
		what, at, count := runs[0], runs[1], runs[2]
		if what == 0 {
			decided, runs = appendEven(decided, at, count, runs[3:7]), runs[7:]
			continue
		}
		for range count {
			decided = append(decided, what, at)
			if what < -1 {
				what--
			}
		}
		runs = runs[3:]
	}
	return decided, true
}

// appendEven appends what and time of requests that are spaced evenly. Instants are in µs plus a
// fraction part/limit, rounded up. The first is at + part/limit, and the interval is
// step + rest/limit.
func appendEven(decided []int64, at, count int64, even []int64) []int64 {
	part, limit, step, rest := even[0], even[1], even[2], even[3]
	what, last := int64(-2), int64(never)
	for range count {
		t := at
		if part > 0 {
			t++
		}
		if what--; t != last {
			what, last = -2, t
		}
		decided = append(decided, what, t)
		at += step
		if part += rest; part >= limit {
			at, part = at+1, part-limit
		}
	}
	return decided
}

// takeUnreported returns the crossings of callers that were not admitted after all, and clears
// them.
func (q *quota) takeUnreported() []algorithms.Crossing {
	q.mu.Lock()
	defer q.mu.Unlock()
	unreported := q.unreported
	q.unreported = nil
	return unreported
}

// crossed splits a reply into the decisions and the crossings of calendar tiers.
func (q *quota) crossed(own []int64) (decided []int64, crossed []algorithms.Crossing) {
	at := len(own)
	for i := len(q.plan.Tiers()) - 1; i >= 0; i-- {
		if q.plan.Tiers()[i].Algorithm != algorithms.Calendar {
			continue
		}
		if at -= 4; at < 0 { // the reply is not the script's
			return own, nil
		}
		if c := own[at:]; c[1] > 0 {
			crossed = append(crossed, algorithms.Crossing{Tier: i, From: int(c[0]), To: int(c[1]), Used: c[2], Until: time.UnixMicro(c[3])})
		}
	}
	return own[:at], crossed
}

// lead returns how long before its start time a process asks for the next reservations. It leaves
// time for the answer. Because the first process to ask gets the earliest times, processes ask in
// the order of their own times: a longer wait asks earlier, and so does a lower place nth among the
// waits for one instant.
func (q *quota) lead(waited time.Duration, nth int64) time.Duration {
	answer := max(2*q.trip()+time.Millisecond, min(waited/16, 10*time.Millisecond))
	turn := min(waited/64, time.Second)
	return answer + turn + turn/8*time.Duration(max(0, 8-nth))
}

// untilReserved returns after which part of a wait a request is near enough to be reserved. It is random,
// so that processes do not ask at once.
func untilReserved(wait time.Duration) time.Duration {
	if wait > mostApart {
		wait -= mostApart/2 + rand.N(mostApart/2)
	}
	return wait
}

// isLate reports whether a wait is too long for a request. A request that soon yields no more asks
// again then.
func isLate(r store.Request, wait time.Duration) bool {
	return wait > r.MaxWait && (r.YieldFor == 0 || r.YieldFor > r.MaxWait)
}

// decided returns the decision for two numbers of a reply: what is a reservation or the tier that
// decided, and at is the time.
func (q *quota) decided(what, at int64, h header, known bounds, t *trip, r store.Request, a *store.Reservation) store.Decision {
	b := store.Decision{Tier: -1, Wait: store.Forever, Epoch: h.epoch, Level: h.level}
	shorter := microseconds(max(0, lent-what)) // by which a returned reservation is
	if shorter > 0 {
		what = -2
	}
	var from, to time.Time // the instant, by this process's clock
	if at != never {
		from, to = known.when(at, t.got)
		b.Wait = max(0, to.Sub(t.got))
	}
	if what > 0 {
		b.Tier = int(what - 1)
	}
	switch {
	case what < -1:

		*a = store.Reservation{Told: t.got, Start: to, End: from.Add(t.good - shorter), At: at, Clock: h.setBack(), Cost: r.Cost, Guard: t.guard - shorter, State: h.state}
		if early := h.now + micros(t.reply) - at; early > 0 {
			a.End = a.End.Add(microseconds(early))
			if a.Guard > 0 {
				a.Guard += microseconds(early)
			}
		}
		a.Again = a.Start.Add(-q.lead(b.Wait, -1-what))
		b.Verdict, b.Flight, b.At, b.Reservation = store.Admitted, algorithms.Flight(at), at, a
		if t.hasTurns(r) {
			q.turn.Store(0) // the turn was taken
		}
		b.Probe = h.shut == isProbe // a probe is the only reservation of its call
	case q.plan.Exhausted(b.Tier):
		b.Verdict = store.Exhausted
	case at != never && isLate(r, b.Wait): // without a time, a release may help soon enough
		b.Verdict = store.Late
	case what == -1 && at == h.until: // the time is the end of the pause
		b.Wait -= min(q.lead(b.Wait, 8), askBeforeEnd, b.Wait/2)
	default:
		switch soon := q.soon(); {
		case t.hasTurns(r) && at != never:
			if at-h.now <= micros(r.MaxWait) { // else it has no turn
				q.turn.Store(at)
			}
			if b.Wait > soon {
				b.Wait -= soon / 2
			}
			b.Wait = min(b.Wait, longestInQueue)
		case at == never && q.leases != nil:
			b.Wait = q.leases.askAgain() // a message may be lost
		case at != never && t.place != nil:
			b.Ready, b.Wait = b.Wait, max(0, b.Wait-t.place.askAhead(t.got, b.Wait, q.trip()))
		case at != never && b.Wait > mostApart:
			b.Ready, b.Wait = b.Wait, untilReserved(b.Wait)
		default:
			b.Wait = min(b.Wait, q.store.options.Horizon)
		}
	}
	return b
}
