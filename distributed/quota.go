package distributed

import (
	"cmp"
	"context"
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
	"github.com/apithrottle/throttle/store"
)

const (
	mostACall   = 64                     // callers that share one call of the script
	leastCalls  = 4                      // calls that share a round trip, where so many wait
	mostCalls   = 64                     // the same, where a trip takes long
	firstTrip   = 50 * time.Millisecond  // how long a trip is taken to take before there was one
	leastTries  = 3                      // late answers in a row before Redis is too far away
	takesTurn   = 50 * time.Microsecond  // how long a call takes the server, where others wait behind it
	unguarded   = 50 * time.Millisecond  // how long what is reserved with NoGuard is good, at least
	wakeUp      = 10 * time.Millisecond  // how late a process wakes up that has slept until its time, at least
	mostSpare   = 250 * time.Millisecond // see spareOf
	latestWake  = time.Second            // later than that only what was stopped wakes up
	tellAgain   = 100 * time.Millisecond // what the provider counts is told so often
	wellAhead   = 10 * time.Millisecond  // beyond a round trip, how far ahead what yields is booked at most
	nextTrip    = time.Millisecond       // what is given back waits so long for a trip of its key
	mostAhead   = time.Second            // how long after a call a request is sent at the earliest, at most; the script's MOST_AHEAD
	worthWaking = 5 * time.Millisecond   // who sleeps for less is not told of a pause
	beforeEnd   = 125 * time.Millisecond // how long before a pause ends it is asked again at most; less than the script's SOON
	never       = -1                     // an instant in a reply, a bound in a call
	dryRun      = time.Duration(-1)      // the bound of a request that is not to be booked
	askOnly     = -2                     // the same in a call
	lastInstant = 1<<53 - 1              // the last that a script can tell from the next
)

// A quota is what one limiter sees of a key: to the fleet each is a process of its
// own.
type quota struct {
	store    *Store
	key      string // its name in Redis
	plan     *algorithms.Plan
	text     string // of the plan, as the script is told it
	budgets  []any  // its tiers that are, from 1
	ahead    int    // how many of one trip may be booked for later
	node     *node
	clock    *clock        // shared with the successor
	spare    time.Duration // what coordination may take without a cost that matters
	bound    time.Duration // what it may take at most: a second, or half of the shortest window if that is more
	leases   *leases       // nil unless a tier limits concurrency or a unit is estimated; shared with the successor
	fallback *fallback     // nil if Options.Fallback is zero

	line    *lineage.Line
	version int64        // of the plan, in the line
	turn    atomic.Int64 // when Redis was last told to be asked for requests that yield, by its clock; or 0

	mu       sync.Mutex // guards all below
	next     *quota     // under a plan that replaced its own; nil while nobody needed it
	state    state
	observed time.Time             // when Redis was last told what the provider counts
	untold   []algorithms.Crossing // that callers were to be told who were not admitted after all
	watchers map[*watcher]struct{}
}

type watcher struct {
	changed func(store.Change, time.Duration)
}

// A state is what this process last learned of the one in Redis.
type state struct {
	generation int64
	setbacks   int64     // how often the state was one from before what was known of it
	written    int64     // by the last call that is known, on Redis's clock
	asOf       time.Time // when it was learned
	sent       time.Time // when that was asked
	expires    time.Time // until then the generation can't change
	epoch      int64
	until      time.Time // the pause or ban ends
	shut       bool      // it is a ban
	level      uint8     // back-offs in a row
	pause      int64     // the epoch that began with it, or neverTold
	alone      bool      // Redis does not know of it
	restoring  bool      // a goroutine or a timer sees to it that Redis does
}

// neverTold is the epoch of a pause of which Redis was never told. It is later than any other.
const neverTold = math.MaxInt64

// of names a state of Redis: what was reserved in another one is void.
func (s *state) of(generation int64) int64 { return generation + s.setbacks }

var (
	_ store.Quota      = (*quota)(nil)
	_ store.Joiner     = (*quota)(nil)
	_ store.Bundler    = (*quota)(nil)
	_ store.Forecaster = (*quota)(nil)
	_ store.Observer   = (*quota)(nil)
	_ store.Idler      = (*quota)(nil)
	_ store.Changer    = (*quota)(nil)
)

func (s *Store) newQuota(name string, plan *algorithms.Plan, line *lineage.Line, version int64) *quota {
	shortest := shortestWindow(plan)
	q := &quota{
		store:    s,
		key:      name,
		plan:     plan,
		line:     line,
		version:  version,
		text:     planText(plan),
		ahead:    bookedAhead(plan, s.options.Horizon),
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

// shortestWindow returns that of a plan's tiers, zero if none has one.
func shortestWindow(p *algorithms.Plan) (shortest time.Duration) {
	for _, t := range p.Tiers() {
		if t.Window > 0 && (shortest == 0 || t.Window < shortest) {
			shortest = t.Window
		}
	}
	return shortest
}

// spareOf returns for how long more than needed a time may be good without a cost that
// matters: 1/500 of the shortest window up to a quarter of a second, and 1/14400 of it up to
// two seconds.
func spareOf(shortest time.Duration) time.Duration {
	return max(min(shortest/500, mostSpare), min(shortest/14400, 8*mostSpare))
}

// trip is how long a trip to Redis usually takes.
func (q *quota) trip() time.Duration {
	usual, _ := q.node.trip.get()
	return usual
}

// aim sets how long what the trip reserves is good and counts, when the trip is sent and so many
// calls are in flight with it. What it reserves is sent at the latest when its
// time has surely come, by a clock that is known as well as its width tells, or when the reply is
// in, as late as that was of late, and the caller has woken up. Until then, and for its way to
// the provider, it counts.
func (q *quota) aim(t *trip, way time.Duration, calls int) {
	t.good, t.reply = q.terms(way, calls)
	t.guard = q.guard(way, t.good)
	shows := q.clock.shows(time.Now())
	for _, c := range t.calls {
		c.args[t.at], c.args[t.at+1], c.args[t.at+2] = micros(t.guard), micros(t.reply), shows
	}
}

// terms returns for how long what is reserved is good, and how long the reply takes.
func (q *quota) terms(way time.Duration, calls int) (good, reply time.Duration) {
	usual, worst := q.node.trip.get()
	_, late := q.node.wake.get()
	takes := cmp.Or(max(usual, worst), firstTrip) + time.Duration(calls)*takesTurn
	width := q.clock.width(takes)
	good = min(q.bound, roundUp(width+max(wakeUp, late, q.spare)))
	reply = min(q.bound-good, roundUp(takes-width))
	if cmp.Or(way, q.plan.Guard()) == 0 {
		good = max(good, unguarded)
	}
	return good, reply
}

// guard returns for how long what is good for so long counts; zero with NoGuard.
func (q *quota) guard(way, good time.Duration) time.Duration {
	if way = cmp.Or(way, q.plan.Guard()); way > 0 {
		return max(way+good, microseconds(1<<q.plan.Resolution()))
	}
	return 0
}

// roundUp returns one of few durations, so that what is given back lands with others.
func roundUp(d time.Duration) time.Duration {
	step := time.Duration(1) << max(0, bits.Len64(uint64(d))-6)
	return (d + step - 1) / step * step
}

// meet makes a first trip to the server, which reserves nothing, so that it is known how long
// one takes.
func (q *quota) meet() {
	if q.node.meeting.CompareAndSwap(false, true) {
		_, _, _, _ = q.ask(context.Background(), "q", func(_ *quota, args []any) []any { return args })
		close(q.node.met)
	}
	<-q.node.met
}

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// begin begins the arguments of an operation. For a plan with leases it must be the
// lessee's turn.
func (q *quota) begin(op string, more int) []any {
	args := make([]any, 0, 4+len(q.plan.Units())+more)
	args = appendCost(append(args, op, q.text), q.plan.PeriodStarts(time.Now().UnixMicro()))
	if q.leases != nil {
		args = q.leases.append(args)
	}
	return args
}

// beginReserve begins a reservation: with the tiers for which nobody waits, if there are any.
func (q *quota) beginReserve(more int) []any {
	if len(q.budgets) == 0 {
		return q.begin("r", more)
	}
	args := append(q.begin("b", 1+len(q.budgets)+more), len(q.budgets))
	return append(args, q.budgets...)
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
		done(got, err)
		p.end(nil)
	}, 0)
}

// reserve asks again when the answer came so late that nothing of it is of use, for one
// request only: the more the processes that do so, the longer it waits before.
func (q *quota) reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error), tries int) {
	if b, held := q.held(); held {
		done(slices.Repeat([]store.Decision{b}, len(requests)), nil)
		return
	}
	_ = q.repay()
	q.meet()
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
			if err := q.tooFar(tries); err != nil {
				done(nil, err)
				return
			}
			time.AfterFunc(q.backOff(t, tries), func() { q.reserve(behind, requests[:1], done, tries+1) })
		case q.overtaken(got):
			q.Cancel(got)
			go q.reserve(behind, requests, done, tries)
		default:
			q.probed(got, requests)
			q.listen(got)
			done(got, err)
			if q.overtaken(got) { // its watchers were told before they had these
				q.tellAgain()
			}
		}
	}
	t.late = func() {
		got, _ := q.read(t, requests)
		q.giveBack(got, true)
	}
	q.node.make(t)
}

// conclude returns what a trip decided, or what this process decides in Redis's place if the trip
// is lost, and ends the turn of the leases. err is what the callers get, and lost why Redis
// did not decide.
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

// isLate reports whether nothing of what the trip reserved can be used any more.
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

// tooFar returns an error if answers usually take so long that none can be in time, and after
// so many tries that this is no accident.
func (q *quota) tooFar(tries int) error {
	took := q.trip()
	q.store.journal.report(redisLate, "key", q.key, "took", took.Round(time.Millisecond))
	if tries < leastTries || took+wakeUp <= q.bound {
		return nil
	}
	return fmt.Errorf("distributed: key %q: Redis usually answers after %v, and what is reserved under this policy is good for %v at most: use a Redis that is nearer, or longer windows",
		q.key, took.Round(time.Millisecond), q.bound)
}

// backOff returns how long to wait before asking again.
func (q *quota) backOff(t *trip, tries int) time.Duration {
	return rand.N(min(q.bound, q.node.timeout, t.got.Sub(t.sent)<<min(tries, 10)))
}

// overtaken reports whether any of the decisions was made before a pause, or the end of
// one, that this process knows by now, in a state that is lost, or under a plan that was
// replaced: then it is void.
func (q *quota) overtaken(got []store.Decision) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.state
	void := !q.isNewest() || s.alone && time.Now().Before(s.until)
	return slices.ContainsFunc(got, func(b store.Decision) bool {
		if b.Verdict != store.Admitted || void {
			return b.Verdict == store.Admitted
		}
		return b.Reservation.State != inFallback && (b.Epoch != s.epoch || b.Reservation.State != s.of(s.generation))
	})
}

// tellAgain tells the watchers what they were told last.
func (q *quota) tellAgain() {
	q.mu.Lock()
	switch left := time.Until(q.state.until); {
	case !q.isNewest():
		q.unlockAndTell(store.Replanned, 0)
	case left > 0:
		q.unlockAndTell(q.state.change(), left)
	default:
		q.unlockAndTell(store.Eased, 0)
	}
}

// bookedAhead is how many times the fastest tier admits within the horizon. A count
// is fair between processes where a time is not: of a burst that is one for all, the
// first to ask would have the rest.
func bookedAhead(p *algorithms.Plan, horizon time.Duration) int {
	ahead := 1.0
	for _, t := range p.Tiers() {
		if t.Window > 0 {
			ahead = max(ahead, math.Floor(float64(t.Limit)*float64(horizon)/float64(t.Window)))
		}
	}
	return int(min(ahead, mostACall*mostCalls))
}

// callsATrip returns how many calls travel together: as many as make the trip no longer.
func (q *quota) callsATrip() int {
	if q.leases != nil {
		return 1 // each says what is held, and the next must know what this one is granted
	}
	return int(min(mostCalls, max(leastCalls, q.trip()/time.Millisecond)))
}

// reserveTrip asks for as many as may travel at once.
func (q *quota) reserveTrip(behind *store.Reservation, requests []store.Request) *trip {
	calls, way := q.callsATrip(), time.Duration(0)
	for _, r := range requests {
		way = max(way, cmp.Or(r.Guard, q.plan.Guard()))
	}
	var floor int64
	if behind != nil {
		floor = behind.At
	}
	t := new(trip)
	within, ahead := store.Forever, min(q.ahead, mostACall*calls)
	for i := 0; i < calls && len(requests) > 0; i++ {
		n := min(mostACall, len(requests))
		if i > 0 {
			// Only the first of all may be booked any time ahead, and none of these
			// before those that travel with it.
			within, floor = q.store.options.Horizon, lastInstant
		}
		args := append(q.beginReserve(4+n*(4+len(q.plan.Units()))), max(0, ahead), floor)
		args = t.aimed(args, func(calls int) { q.aim(t, way, calls) })
		t.calls = append(t.calls, q.newCall(q.appendRequests(t, args, requests[:n], within)))
		requests, ahead = requests[n:], ahead-n
	}
	return t
}

// soon is how far ahead what yields is booked: so little that nobody minds, and enough
// for the next to be asked for in time.
func (q *quota) soon() time.Duration { return 2*q.trip() + wellAhead }

// Trip is how long one to Redis usually takes.
func (q *quota) Trip(ctx context.Context) time.Duration {
	if !q.node.meeting.Load() {
		go q.meet()
	}
	select {
	case <-q.node.met:
	case <-ctx.Done():
	}
	return q.trip()
}

// IsVoid reports whether the reservation is overtaken.
func (q *quota) IsVoid(d store.Decision) bool { return q.overtaken([]store.Decision{d}) }

// notBefore returns what the quota's clock shows when the request is sent at the earliest, zero
// if that does not matter or the clock is not known.
func (q *quota) notBefore(r store.Request) int64 {
	if r.NotBefore.IsZero() {
		return 0
	}
	return q.clock.shows(r.NotBefore)
}

// appendRequests writes equal requests once, and how those yield that do.
func (q *quota) appendRequests(t *trip, args []any, requests []store.Request, most time.Duration) []any {
	last := int64(0)
	for i := 0; i < len(requests); {
		r, n := requests[i], 1
		within := min(r.MaxWait, most)
		yields := r.YieldFor > 0
		for i+n < len(requests) && requests[i+n].NotBefore.Equal(r.NotBefore) &&
			min(requests[i+n].MaxWait, most) == within && (requests[i+n].YieldFor > 0) == yields && slices.Equal(requests[i+n].Cost, r.Cost) {
			n++
		}
		if before := q.notBefore(r); before != last {
			args, last = append(args, 0, before), before
		}
		if last != 0 {
			if t.notBefore == nil {
				t.notBefore = make(map[*store.WaitSpec]int64)
			}
			for _, r := range requests[i : i+n] {
				t.notBefore[r.WaitSpec] = last
			}
		}
		if yields {
			args = append(args, -n)
		} else {
			args = append(args, n)
		}
		switch within {
		case store.Forever:
			args = append(args, never)
		case dryRun:
			args = append(args, askOnly)
		default:
			args = append(args, micros(within))
		}
		if yields {
			args = append(args, r.Headroom, micros(q.soon()), q.turn.Load())
		}
		args = appendCost(args, r.Cost)
		i += n
	}
	return args
}

// A header is what every reply begins with. shut is one of the next.
type header struct {
	now, generation, ttl, epoch, until, shut, wall, written int64

	level uint8 // back-offs in a row
	saved int64 // by the call, as the next one will be told in written
	state int64 // what reservations of this reply are in
}

// What is in force until header.until.
const (
	isPause = iota
	isBan
	isProbe // the wait for the response to the probe that this call has reserved
)

const headerLen = 8

func parseHeader(reply []int64) header {
	return header{
		now: reply[0], generation: reply[1], ttl: reply[2], epoch: reply[3], until: reply[4], shut: reply[5] % 4, level: uint8(reply[5] / 4),
		wall: reply[6], written: reply[7], saved: reply[0],
	}
}

func (h header) left() time.Duration { return microseconds(max(0, h.until-h.now)) }

// setBack is how far TIME was set back since the state began.
func (h header) setBack() int64 { return h.generation + h.now - h.wall }

// read turns replies into the verdicts on the first of the requests, and what
// else was booked after the first that was not.
func (q *quota) read(t *trip, requests []store.Request) (got []store.Decision, err error) {
	got = make([]store.Decision, 0, min(len(requests), mostACall*len(t.calls)))
	stopped := false
	for _, c := range t.calls {
		h := parseHeader(c.reply)
		var known bounds
		h.state, known = q.learn(h, t)
		n := min(mostACall, len(requests))
		if h.shut == isBan && h.left() > 0 {
			closed := store.Decision{Verdict: store.Closed, Tier: -1, Wait: h.left(), Epoch: h.epoch}
			return append(got, slices.Repeat([]store.Decision{closed}, len(requests))...), nil
		}
		runs, crossed := q.crossed(c.reply[headerLen:])
		decided, ok := eachOf(runs, n, len(q.plan.Tiers()))
		if !ok || len(decided) == 0 {
			return got, &unavailableError{fmt.Errorf("the server replied to %d requests with %d, which the script does not", n, c.reply)}
		}
		ahead := make([]store.Reservation, len(decided)/2)
		for i := range ahead {
			b := q.decided(decided[2*i], decided[2*i+1], h, known, t, requests[i], &ahead[i])
			if b.Verdict == store.Admitted {
				b.Crossed, crossed = append(q.takeCrossed(), crossed...), nil
			} else if b.Verdict == store.Exhausted {
				b.Crossed = q.takeCrossed()
			}
			if !stopped || b.Verdict == store.Admitted {
				got = append(got, b)
			}
			stopped = stopped || b.Verdict == store.Later
		}
		stopped = stopped || len(ahead) < n
		requests = requests[n:]
	}
	return got, nil
}

// eachOf turns runs of what, time and count into what and time of each request: those of a run
// are booked one after the other at the same time, or have the same answer. It reports whether
// they may be what the script replies to so many requests of a plan with so many tiers.
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

// appendEven appends what and time of requests that are booked evenly. Instants are a number of
// µs and parts, of which limit are one, rounded up. The first is at and a part, and the time
// between two a step and a rest.
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

// takeCrossed returns what callers were to be told who were not admitted after all.
func (q *quota) takeCrossed() []algorithms.Crossing {
	q.mu.Lock()
	defer q.mu.Unlock()
	untold := q.untold
	q.untold = nil
	return untold
}

// crossed parts what was decided from what is told of calendar tiers.
func (q *quota) crossed(own []int64) (decided []int64, crossed []algorithms.Crossing) {
	at := len(own)
	for i := len(q.plan.Tiers()) - 1; i >= 0; i-- {
		if q.plan.Tiers()[i].Algorithm != algorithms.Calendar {
			continue
		}
		if at -= 4; at < 0 { // the script replies with more
			return own, nil
		}
		if c := own[at:]; c[1] > 0 {
			crossed = append(crossed, algorithms.Crossing{Tier: i, From: int(c[0]), To: int(c[1]), Used: c[2], Until: time.UnixMicro(c[3])})
		}
	}
	return own[:at], crossed
}

// lead is how long before a time that was waited for the next ones are asked for:
// soon enough for the answer; and, since the first to ask gets the best of them, in
// the order in which the processes have their times: who has waited longer asks
// earlier, and of those who wait for the same instant, who was there before.
func (q *quota) lead(waited time.Duration, nth int64) time.Duration {
	answer := max(2*q.trip()+time.Millisecond, min(waited/16, 10*time.Millisecond))
	turn := min(waited/64, time.Second)
	return answer + turn + turn/8*time.Duration(max(0, 8-nth))
}

// decided is the booking that two numbers of a reply stand for: that it was booked,
// or which tier decided, and the time.
func (q *quota) decided(what, at int64, h header, known bounds, t *trip, r store.Request, a *store.Reservation) store.Decision {
	b := store.Decision{Tier: -1, Wait: store.Forever, Epoch: h.epoch, Level: h.level}
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
		*a = store.Reservation{Told: t.got, Start: to, End: from.Add(t.good), At: at, Clock: h.setBack(), Cost: r.Cost, Guard: t.guard, State: h.state}
		before := min(t.notBefore[r.WaitSpec], h.now+micros(mostAhead))
		if early := max(h.now+micros(t.reply), before) - at; early > 0 {
			a.End = a.End.Add(microseconds(early))
			if a.Guard > 0 {
				a.Guard += microseconds(early)
			}
		}
		a.Again = a.Start.Add(-q.lead(b.Wait, -1-what))
		b.Verdict, b.Flight, b.At, b.Reservation = store.Admitted, algorithms.Flight(at), at, a
		if r.YieldFor > 0 {
			q.turn.Store(0) // it was taken
		}
		b.Probe = h.shut == isProbe // nothing else is reserved by that call
	case q.plan.Exhausted(b.Tier):
		b.Verdict = store.Exhausted
	case at != never && b.Wait > r.MaxWait: // else a release may help in time
		b.Verdict = store.Late
	case what == -1 && at == h.until: // the end of the pause is told
		b.Wait -= min(q.lead(b.Wait, 8), beforeEnd, b.Wait/2)
	default:
		switch soon := q.soon(); {
		case r.YieldFor > 0 && at != never:
			q.turn.Store(at)
			if b.Wait > soon {
				b.Wait -= soon / 2
			}
			b.Wait = min(b.Wait, longestStand)
		case at == never && q.leases != nil:
			b.Wait = q.leases.askAgain() // a message may be lost
		default:
			b.Wait = min(b.Wait, q.store.options.Horizon)
		}
	}
	return b
}
