package algorithms

// An Observation is what a response reports about the provider's counter of a tier.
type Observation struct {
	// Tier is the index of the tier in the plan.
	Tier int

	// Used is how many units the provider has counted.
	Used int64

	// Since is the instant at which the request of this response was admitted.
	Since int64

	// Cost is the cost of that request in the tier's unit.
	Cost int64

	// Exact is true if the report is authoritative: units that the ledger counts beyond it were
	// not counted by the provider.
	Exact bool

	// Reset is the time until the count ends at the latest, in microseconds. If zero, the response
	// does not report it.
	Reset int64

	// Slack is how much sooner than Reset the count may end, in microseconds.
	Slack int64

	// Probe lets one request go at Reset as a probe, even if a rolling tier or a bucket refuses it.
	Probe bool

	// Refused is true if the provider refused the request, which has landed.
	Refused bool

	// Before is the instant from which on requests that the ledger has admitted ahead of time are
	// yet to leave. The provider cannot have counted them. If zero, all have left.
	Before int64

	// Guard is how long after its departure the last of these requests lands, in microseconds. If
	// less than the plan's guard, the plan's.
	Guard int64
}

// A reading is a report on a tier, which is compared with later reports.
//
// Units that a provider counts beyond the caller's own were used by others. But a response does
// not show which of the requests in flight were counted before it. The ledger at once charges what
// the report exceeds the caller's units by, including those in flight. The responses to the
// requests in flight decide on the rest: a request whose response reports more was counted later,
// and so its units explain nothing of the earlier report. If units leave one by one, as they leave a
// log, it must report more by all that may have left meanwhile: an earlier count may be larger, too.
// Until all of them have landed, no later report takes its place.
//
// In a log, a refused request does not count as the caller's. The limit was used up when it
// arrived, and the log still counts as much as the report: others instead of the request. This
// also holds if the provider counts the requests that it refuses.
//
// While others keep sending, one of their units leaves the window some time before the next report
// contains the unit that took its place. So the ledger counts one unit more than the report, for a
// window from the second charge for others within one window. In a log, the units of others don't
// leave one by one. They are counted apart until a report of less, or for a window after the last
// report.
type reading struct {
	at        int64 // when the response came; zero if there is none
	used      int64 // the units that it reports
	excess    int64 // by how much own units that may have been counted by then exceed used
	foundAt   int64 // when units were last charged for others
	busyUntil int64 // until when others are assumed to keep sending
	from      int64 // of a log, when others appeared; of a window, the earliest end of its count
	base      int64 // the units of others at from

	reset // as reported
}

// A windowed rule counts in windows. opened returns when the current one opened at the earliest.
type windowed interface {
	opened(l *Ledger, now Moment) int64
}

// A retracter is a rule that can forget its newest units, if they landed at from or later. retract
// returns how many it forgot.
type retracter interface {
	retract(l *Ledger, from, n int64) (taken int64)
}

// Observe makes a tier count the use of others, as far as a report proves it. If the report is
// exact, the tier then counts no more than the report and what is in flight.
func (l *Ledger) Observe(now Moment, o Observation) {
	now = l.advance(now)
	l.DropCredit()
	r, unit := l.plan.rules[o.Tier], l.plan.unit[o.Tier]
	if _, ok := r.(releaser); ok {
		return // the ledger itself has the exact number of open units
	}
	if l.readings == nil {
		readings := make([]reading, len(l.plan.rules))
		l.readings = &readings
	}
	if w, ok := r.(windowed); ok && w.opened(l, now) > o.Since || l.reopened(o.Tier) > o.Since {
		return // the report is about a window that has ended
	}
	if !l.turnWindow(now, o) {
		return
	}
	o.Used = min(o.Used, l.plan.tiers[o.Tier].Capacity())
	keep := o.Used
	if l.plan.estimated[unit] {
		keep = max(0, keep-l.inFlight(unit))
	}
	more, exact := l.uncounted(now, o, l.retractRefused(o)), o.Exact
	if later, ok := l.probeDecides(o); ok {
		keep, exact = keep+later, true
	}
	switch {
	case more > 0:
		if d, ok := r.(sender); ok {
			d.send(l, now, more)
		}
		l.landOthers(now, o, more)
	case exact:
		l.forget(o.Tier, now, keep)
	}
	l.keepOthers(now, o)
	l.noteReset(now, o, more)
	if r, ok := r.(*anchoredWindow); ok && o.Used > 0 {
		r.proveOpen(l, o.Since, o.by(now))
	}
}

// by returns the instant by which the response was in.
func (o Observation) by(now Moment) int64 {
	if o.Before > 0 {
		return o.Before - 1
	}
	return now.At
}

// retractRefused makes a tier forget a request that the provider refused, and returns how many
// units it forgot. The owner of a unit matters only if others are counted apart for a window.
func (l *Ledger) retractRefused(o Observation) int64 {
	r, ok := l.plan.rules[o.Tier].(retracter)
	full := o.Used+o.Cost > l.plan.tiers[o.Tier].Capacity()
	switch {
	case !ok || !o.Refused || !full || l.plan.estimated[l.plan.unit[o.Tier]]:
		return 0
	case o.Exact || o.Reset > 0 || l.Probing(o.Tier): // others may end sooner
		return 0
	}
	return r.retract(l, o.Since, o.Cost)
}

// uncounted returns how many units of others the tier does not count, as far as the report proves
// them. taken is what the tier forgot of a refused request.
func (l *Ledger) uncounted(now Moment, o Observation, taken int64) int64 {
	// The provider may have counted units that have left their window since the request was sent.
	// But a window of unknown phase has none that leave before its end.
	at := min(o.Since, now.At)
	if l.tellsEnd(o) {
		at = max(at, o.endsFrom(now)-1)
	}
	counted := l.plan.rules[o.Tier].used(l, now.on(at))
	r, unit, guard := &(*l.readings)[o.Tier], l.plan.unit[o.Tier], max(o.Guard, l.plan.guard)
	own := min(counted, mostUsed) + r.others + l.inFlightBefore(unit, o.Before, guard)
	if o.Since < r.at && (taken > 0 || o.Used > r.used && o.Used-l.mayHaveLeft(o, counted, now.on(r.at+guard)) > r.used) {
		r.excess -= o.Cost // the request was counted later, or not at all
	}
	more := max(0, o.Used+r.spare(now)-own)
	if taken > 0 { // the tier was used up, and stays so
		gone := counted - l.plan.rules[o.Tier].used(l, now)
		more = max(more, min(taken, o.Used+r.spare(now)-own+gone))
	}
	if r.at > 0 {
		more = max(more, -r.excess)
	}
	if more > 0 {
		if window := Micros(l.plan.tiers[o.Tier].Window); now.At < r.foundAt+window {
			r.busyUntil = now.At + window
		}
		r.foundAt = now.At
	}
	r.excess += more
	if o.Since >= r.at && !l.hasInFlight(unit, r.at+guard+1<<l.plan.resolution) {
		r.at, r.used, r.excess = now.At, o.Used, own+more-o.Used
	}
	return more
}

// mayHaveLeft returns how many units of the caller may have left the tier, one by one, between the
// request of a report and an instant. The tier counted that many at the request. A response may
// report so many units more than the response to a later request.
func (l *Ledger) mayHaveLeft(o Observation, counted int64, until Moment) int64 {
	if l.reopens(o.Tier) {
		return 0
	}
	r, tier := l.plan.rules[o.Tier], l.plan.tiers[o.Tier]
	until.At += Micros(tier.Precision)
	n := counted - r.used(l, until)
	if log, ok := r.(*slidingLog); ok && counted >= log.limit {
		// Stamps of the window before the request may have been overwritten, by those since then.
		n += r.used(l, until.on(o.Since+log.window))
	}
	return n
}

// spare is one unit while others keep sending.
func (r *reading) spare(now Moment) int64 { return bit(now.At < r.busyUntil) }

// keepOthers makes a log go on counting the others that it counts apart. If none were charged for a
// window, it reduces them to what the report leaves.
func (l *Ledger) keepOthers(now Moment, o Observation) {
	_, stamps := l.leavesAt(o.Tier, now)
	r, tier := &(*l.readings)[o.Tier], l.plan.tiers[o.Tier]
	if !stamps || r.others == 0 || r.at != now.At {
		return
	}
	window := Micros(tier.Window)
	if now.At >= r.foundAt+window && o.Used < tier.Capacity() {
		// The provider may not have counted own units that landed after the request was sent. It
		// may no longer count those that landed a window ago, less the guard.
		rule, old := l.plan.rules[o.Tier], now.on(now.At+l.plan.guard+Micros(tier.Precision))
		own := rule.used(l, old) - rule.used(l, now.on(o.Since+window)) + o.Cost
		most := max(0, o.Used-own)
		if most > 0 {
			most += r.spare(now)
		}
		less := max(0, min(r.others-most, r.excess))
		r.others, r.excess = r.others-less, r.excess-less
	}
	if r.others > 0 && now.At < r.busyUntil {
		r.busyUntil = now.At + window
	}
	r.until = l.endOthers(now, o)
}

// expectedOthers returns how many units others have used since the last report, if they go on as
// they did since a log found them. They are assumed to go on for as long again at most, and at most
// until a window after they were found, when the first of their units leave.
func (r *reading) expectedOthers(now Moment, window int64) int64 {
	seen, since := r.at-r.from, min(now.At, r.from+window)-r.at
	grown := r.others - r.spare(now) - r.base
	if since <= 0 || now.At-r.at > seen || grown <= 0 {
		return 0
	}
	n, rest := mulDiv(grown, since, seen)
	return n + bit(2*rest >= seen)
}

// mostUsed is more than a tier can count.
const mostUsed = 1 << 50

// inFlightBefore returns how many units in flight left before an instant and land a guard later.
// If the instant is zero, it returns all units in flight.
func (l *Ledger) inFlightBefore(unit int, before, guard int64) int64 {
	n := l.inFlight(unit)
	if before == 0 {
		return n
	}
	for i := range l.slots() {
		if at, carried := l.landing(i, unit); at >= before+guard {
			n -= carried
		}
	}
	return n
}

// hasInFlight reports whether the first units in flight land before an instant.
func (l *Ledger) hasInFlight(unit int, before int64) bool {
	for i := range l.slots() {
		if at, carried := l.landing(i, unit); carried > 0 {
			return at < before
		}
	}
	return false
}
