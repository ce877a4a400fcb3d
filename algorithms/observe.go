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
	opened(s *state, now Moment) int64
}

// A retracter is a rule that can forget its newest units, if they landed at from or later. retract
// returns how many it forgot.
type retracter interface {
	retract(s *state, from, n int64) (taken int64)
}

// Observe makes a tier count the use of others, as far as a report proves it. If the report is
// exact, the tier then counts no more than the report, what is in flight, and what landed while the
// report was.
func (l *Ledger) Observe(now Moment, o Observation) {
	now = l.advance(now)
	l.DropCredit()
	if _, ok := l.plan.rules[o.Tier].(releaser); ok {
		return // the ledger itself has the exact number of open units
	}
	if l.plan.tiers[o.Tier].Learns() {
		return // what a response reports is about another counter
	}
	if l.readings == nil {
		readings := make([]reading, len(l.plan.rules))
		l.readings = &readings
	}
	reported(&l.state, o.Tier).observe(now, o)
}

func (t reportedTier) observe(now Moment, o Observation) {
	if w, ok := t.rule().(windowed); ok && w.opened(t.s, now) > o.Since || t.opened > o.Since {
		return // the report is about a window that has ended
	}
	if !t.turnWindow(now, o) {
		return
	}
	o.Used = min(o.Used, t.tier().Capacity())
	keep := o.Used
	if t.s.plan.estimated[t.unit()] {
		keep = max(0, keep-t.s.inFlight(t.unit()))
	}
	more, exact := t.uncounted(now, o, t.retractRefused(o)), o.Exact
	if later, ok := t.probeDecides(o); ok {
		keep, exact = keep+later, true
	} else if exact {
		keep += t.landedSince(now, o)
	}
	switch {
	case more > 0:
		if d, ok := t.rule().(sender); ok {
			d.send(t.s, now, more)
		}
		t.landOthers(now, o, more)
	case exact:
		t.forget(now, keep)
	}
	t.keepOthers(now, o)
	t.noteReset(now, o, more)
	if r, ok := t.rule().(*anchoredWindow); ok && o.Used > 0 {
		r.proveOpen(t.s, o.Since, o.by(now))
	}
}

// landedSince returns how many other units landed after the request of a report was admitted. Their
// responses overtook the report, which may not contain them. It is 0 for a rule without stamps.
func (t reportedTier) landedSince(now Moment, o Observation) int64 {
	if viewOf(t.rule()) == nil {
		return 0
	}
	n := t.rule().used(t.s, now.on(o.Since+Micros(t.tier().Window)))
	if t.s.plan.guard > 0 && !t.s.plan.estimated[t.unit()] { // the request has landed since, too
		n -= o.Cost
	}
	return max(0, n)
}

// by returns the instant by which the response was in.
func (o Observation) by(now Moment) int64 {
	if o.Before > 0 {
		return o.Before - 1
	}
	return now.At
}

// retractRefused makes the tier forget a request that the provider refused, and returns how many
// units it forgot. The owner of a unit matters only if others are counted apart for a window.
func (t reportedTier) retractRefused(o Observation) int64 {
	r, ok := t.rule().(retracter)
	full := o.Used+o.Cost > t.tier().Capacity()
	switch {
	case !ok || !o.Refused || !full || t.s.plan.estimated[t.unit()]:
		return 0
	case o.Exact || o.Reset > 0 || t.probedAt > 0: // others may end sooner
		return 0
	}
	return r.retract(t.s, o.Since, o.Cost)
}

// uncounted returns how many units of others the tier does not count, as far as the report proves
// them. taken is what the tier forgot of a refused request.
func (t reportedTier) uncounted(now Moment, o Observation, taken int64) int64 {
	// The provider may have counted units that have left their window since the request was sent.
	// But a window of unknown phase has none that leave before its end.
	at := min(o.Since, now.At)
	if t.tellsEnd(o) {
		at = max(at, o.endsFrom(now)-1)
	}
	counted := t.rule().used(t.s, now.on(at))
	guard := max(o.Guard, t.s.plan.guard)
	own := min(counted, mostUsed) + t.others + t.s.inFlight(t.unit())
	if o.Before > 0 {
		own -= t.s.landingFrom(t.unit(), o.Before+guard) - t.s.estimatesInFlight(t.unit())
	}
	if o.Since < t.at && (taken > 0 || o.Used > t.used && o.Used-t.mayHaveLeft(o, counted, now.on(t.at+guard)) > t.used) {
		t.excess -= o.Cost // the request was counted later, or not at all
	}
	more := max(0, o.Used+t.spare(now)-own)
	if taken > 0 { // the tier was used up, and stays so
		gone := counted - t.rule().used(t.s, now)
		more = max(more, min(taken, o.Used+t.spare(now)-own+gone))
	}
	if t.at > 0 {
		more = max(more, -t.excess)
	}
	if more > 0 {
		if window := Micros(t.tier().Window); now.At < t.foundAt+window {
			t.busyUntil = now.At + window
		}
		t.foundAt = now.At
	}
	t.excess += more
	if o.Since >= t.at && t.s.nthLanding(t.unit(), 1) >= t.at+guard+1<<t.s.plan.resolution {
		t.at, t.used, t.excess = now.At, o.Used, own+more-o.Used
	}
	return more
}

// mayHaveLeft returns how many units of the caller may have left the tier, one by one, between the
// request of a report and an instant. The tier counted that many at the request. A response may
// report so many units more than the response to a later request.
func (t reportedTier) mayHaveLeft(o Observation, counted int64, until Moment) int64 {
	if t.reopens() {
		return 0
	}
	until.At += Micros(t.tier().Precision)
	n := counted - t.rule().used(t.s, until)
	if log, ok := t.rule().(*slidingLog); ok && counted >= log.limit {
		// Stamps of the window before the request may have been overwritten, by those since then.
		n += log.used(t.s, until.on(o.Since+log.window))
	}
	return n
}

// spare is one unit while others keep sending.
func (r *reading) spare(now Moment) int64 { return bit(now.At < r.busyUntil) }

// keepOthers makes a log go on counting the others that it counts apart. If none were charged for a
// window, it reduces them to what the report leaves.
func (t reportedTier) keepOthers(now Moment, o Observation) {
	if viewOf(t.rule()) == nil || t.others == 0 || t.at != now.At {
		return
	}
	window := Micros(t.tier().Window)
	if now.At >= t.foundAt+window && o.Used < t.tier().Capacity() {
		// The provider may not have counted own units that landed after the request was sent. It
		// may no longer count those that landed a window ago, less the guard.
		old := now.on(now.At + t.s.plan.guard + Micros(t.tier().Precision))
		own := t.rule().used(t.s, old) - t.rule().used(t.s, now.on(o.Since+window)) + o.Cost
		most := max(0, o.Used-own)
		if most > 0 {
			most += t.spare(now)
		}
		less := max(0, min(t.others-most, t.excess))
		t.others, t.excess = t.others-less, t.excess-less
	}
	if t.others > 0 && now.At < t.busyUntil {
		t.busyUntil = now.At + window
	}
	t.until = t.endOthers(now, o)
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

// land counts n landed units in a tier, and in its state without others.
func (l *Ledger) land(tier int, at Moment, n int64) {
	r, counted := l.plan.rules[tier], at
	if l.forecasting {
		if g, ok := r.(grouper); ok {
			counted = g.joined(&l.state, at)
		}
	}
	r.land(&l.state, counted, n)
	if l.readings != nil {
		reported(&l.state, tier).countLanded(at, n)
	}
}

// othersUsed returns the units of others that a tier counts apart from its rule.
func (l *Ledger) othersUsed(tier int, now Moment) int64 {
	if l.readings == nil {
		return 0
	}
	return reported(&l.state, tier).othersUsed(now)
}

// used returns the landed units that a tier counts, including those of others.
func (l *Ledger) used(tier int, now Moment) int64 {
	return l.plan.rules[tier].used(&l.state, now) + l.othersUsed(tier, now)
}

// admits returns the first instant from now on at which a tier admits n units.
func (l *Ledger) admits(tier int, now Moment, n int64) int64 {
	at := l.plan.rules[tier].earliest(&l.state, now, n)
	if l.readings == nil {
		return at
	}
	rd := &(*l.readings)[tier]
	if rd.until > now.At {
		at = reported(&l.state, tier).admits(now, n, at)
	}
	if rd.probeAt > 0 || l.forecasting && rd.probedAt > 0 {
		at = min(at, max(now.At, rd.probeAt))
	}
	return at
}

// probe makes a request that is being charged the probe of each tier where one is due.
func (l *Ledger) probe(now Moment, cost []int64) {
	for i := range *l.readings {
		rd, n := &(*l.readings)[i], cost[l.plan.unit[i]]
		if n == 0 || rd.probeAt == 0 || rd.probeAt > now.At || l.forecasting {
			continue
		}
		rd.probedAt, rd.probeAt, rd.landed = rd.probeAt, 0, 0
		l.probed = l.probed || l.admits(i, now, n) > now.At
	}
}

// Probed reports whether the last charged request is a probe that a tier would have refused. Other
// requests must wait for its response. Probed reports a probe once.
func (l *Ledger) Probed() bool {
	probed := l.probed
	l.probed = false
	return probed
}

// Probing reports whether the response to a probe is to come, which may make a tier admit more.
func (l *Ledger) Probing(tier int) bool {
	return tier >= 0 && l.readings != nil && (*l.readings)[tier].probedAt > 0
}

// ProbeAgain lets another request go as a probe, because the last probe was not sent.
func (l *Ledger) ProbeAgain() {
	if l.readings == nil {
		return
	}
	for i := range *l.readings {
		if rd := &(*l.readings)[i]; rd.probedAt > 0 {
			rd.probeAt, rd.probedAt = rd.probedAt, 0
		}
	}
}

// Boundary records that a window of a tier of UnknownPhase ends between two instants. For another
// tier it changes nothing.
func (l *Ledger) Boundary(now Moment, tier int, from, to int64) {
	if v := viewOf(l.plan.rules[tier]); v != nil && v.known != 0 {
		v.learnBoundary(&l.state, l.advance(now), from, to)
	}
}

// Learned reports whether a boundary of the windows of a tier is known precisely enough to be of
// use.
func (l *Ledger) Learned(now Moment) bool {
	for _, r := range l.plan.rules {
		if viewOf(r).learned(&l.state, now) {
			return true
		}
	}
	return false
}

// Refused records that the provider refused a request that was admitted at an instant. It teaches the
// learned tiers of the units that have an amount in cost. It reports whether callers need no pause, as
// far as these tiers know: the rate decreases, or the refusal has other reasons than the rate.
func (l *Ledger) Refused(now Moment, admitted int64, cost []int64) (done bool) {
	now = l.advance(now)
	paused := false
	for _, r := range l.plan.learned {
		if n := cost[r.unit]; n > 0 {
			done = r.refuse(&l.state, now, admitted, n)
			paused = paused || !done
		}
	}
	return done && !paused
}

// Forget makes the learned tiers start again.
func (l *Ledger) Forget() {
	for _, r := range l.plan.learned {
		w := r.state(&l.state)
		rate := r.now(&l.state)
		clear(w[badWord:])
		if ahead := w[tatWord] - l.last; ahead > 0 { // the same units take another time now
			ahead, _ = mulDiv(ahead, rate, r.limit)
			w[tatWord] = l.last + ahead
		}
	}
}

// LearnedRates returns what each tier has learned, nil for a tier that does not learn.
func (l *Ledger) LearnedRates(now Moment) []*LearnedRate {
	if l.plan.learned == nil {
		return nil
	}
	rates := make([]*LearnedRate, len(l.plan.rules))
	for _, r := range l.plan.learned {
		rates[r.tier] = r.report(r.state(&l.state), now.At)
	}
	return rates
}
