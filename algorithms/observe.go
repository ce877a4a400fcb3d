package algorithms

// An Observation is what a response reports of the provider's counter of a tier.
type Observation struct {
	Tier  int   // that decides
	Used  int64 // units that the provider counted
	Since int64 // when the request was admitted whose response reports it
	Cost  int64 // what that request cost of the tier's unit
	Exact bool  // it is the truth: what the ledger counts beyond it was not counted
	Reset int64 // microseconds until the count ends at the latest, as the response tells; zero if it does not
	Slack int64 // by how many microseconds sooner than Reset the count may end
	Probe bool  // from Reset on, a request may go that a rolling tier or a bucket refuses

	// Refused reports that the response refused the request, which has landed.
	Refused bool

	// Before is the instant from which on requests that the ledger has admitted ahead of time
	// have yet to leave, so that they can't have been counted. If zero, all have left.
	Before int64
	// Guard is how many microseconds after they left the last of these land. If less than the
	// plan's guard, that is.
	Guard int64
}

// A reading is the report of a tier that is compared with later ones.
//
// What a provider counts beyond the caller's own requests is the use of others. But of the
// requests that are in flight when a response comes, the response does not tell which were
// counted before it. All that the report exceeds together with them is charged at once. As
// for the rest, the responses of those requests tell: one that reports more was counted
// later, so it explains nothing.
//
// A request that the provider refused is not counted as the caller's in a log. The limit was used
// up when it came, and the log still counts as much as is reported: instead of the request, others.
// That holds as well where the provider counts what it refuses.
//
// Where others go on, a unit of theirs leaves the window some time before the next report
// tells of the one that took its place. So one more than is reported is kept, for a window
// from when something was charged for others twice in one window. And in a log they don't leave
// one by one: they are counted apart, until a report of less or a window after the last one.
type reading struct {
	at        int64 // when it was received; zero if there is none
	used      int64 // the units that it reports
	excess    int64 // by how much own units that may have been counted by then exceed it
	foundAt   int64 // when something was last charged for others
	busyUntil int64 // until when others are taken to go on
	from      int64 // when a log found others after none; of a window, when it ends at the earliest
	base      int64 // the units that it found of them

	reset // that the report told
}

// A windowed rule knows when its current window opened.
type windowed interface {
	opened(l *Ledger, now Moment) int64
}

// A retracter is a rule that can forget the newest units, as far as they landed from an instant on.
// It returns how many it forgot.
type retracter interface {
	retract(l *Ledger, from, n int64) (taken int64)
}

// Observe makes a tier count the use of others, as far as a report proves it; and if that is
// exact, no more than it reports and what is in flight.
func (l *Ledger) Observe(now Moment, o Observation) {
	now = l.advance(now)
	r, unit := l.plan.rules[o.Tier], l.plan.unit[o.Tier]
	if _, ok := r.(releaser); ok {
		return // what is open is known better here
	}
	if w, ok := r.(windowed); ok && w.opened(l, now) > o.Since || l.reopened(o.Tier) > o.Since {
		return // it speaks of a window that has ended
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

// by is when the report was in.
func (o Observation) by(now Moment) int64 {
	if o.Before > 0 {
		return o.Before - 1
	}
	return now.At
}

// takeBack has a tier forget a request that it refused, and returns how many units it forgot. Only
// where others are counted apart, for a window, does it matter whose a unit is.
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

// others is what others have used and the tier does not count, as far as it is proved, also by what
// was taken back of a refused request.
func (l *Ledger) uncounted(now Moment, o Observation, taken int64) int64 {
	if l.readings == nil {
		readings := make([]reading, len(l.plan.rules))
		l.readings = &readings
	}
	// What has left its window since the request was sent may have been counted still.
	counted := l.plan.rules[o.Tier].used(l, now.on(min(o.Since, now.At)))
	r := &(*l.readings)[o.Tier]
	own := min(counted, mostUsed) + r.others + l.inFlightBefore(l.plan.unit[o.Tier], o.Before, max(o.Guard, l.plan.guard))
	if o.Since < r.at && (taken > 0 || o.Used > r.used) {
		r.excess -= o.Cost // it was counted later, or not at all
	}
	more := max(0, o.Used+r.spare(now)-own)
	if taken > 0 { // the tier was full, and stays so
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
	if o.Since >= r.at {
		r.at, r.used, r.excess = now.At, o.Used, own+more-o.Used
	}
	return more
}

// spare is one where others go on.
func (r *reading) spare(now Moment) int64 { return bit(now.At < r.busyUntil) }

// keepOthers makes a log go on counting the others that it counts apart, but no more than a report
// leaves if the last was charged a window ago.
func (l *Ledger) keepOthers(now Moment, o Observation) {
	_, stamps := l.leavesAt(o.Tier, now)
	r, tier := &(*l.readings)[o.Tier], l.plan.tiers[o.Tier]
	if !stamps || r.others == 0 || r.at != now.At {
		return
	}
	window := Micros(tier.Window)
	if now.At >= r.foundAt+window && o.Used < tier.Capacity() {
		// Own units that have landed since the request was sent may not have been counted, and
		// those that landed a window ago, less the guard, no more.
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

// expected is how many others have come since the last report, if they go on as they did from when
// a log found them: for as long again at most, and until a window later, when the first leave.
func (r *reading) expectedOthers(now Moment, window int64) int64 {
	seen, since := r.at-r.from, min(now.At, r.from+window)-r.at
	grown := r.others - r.spare(now) - r.base
	if since <= 0 || now.At-r.at > seen || grown <= 0 {
		return 0
	}
	n, rest := mulDiv(grown, since, seen)
	return n + bit(2*rest >= seen)
}

// mostUsed is more than any tier can hold.
const mostUsed = 1 << 50

// left is how many of a unit are in flight that left before an instant and land a guard later,
// all if the instant is zero.
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
