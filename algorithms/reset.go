package algorithms

// A reset is the end of the provider's count of a tier, as a response reported it. It ends what was
// charged for others, and reopens the windows of FixedWindow, AnchoredWindow and Calendar. In other
// tiers, the first request from then on goes as a probe even if the tier refuses it, and the report
// of its response is authoritative. A reset never makes a request wait longer.
//
// Its effect depends on the state of the tier. A log and groups of stamps count others apart, even
// without a reported reset, and then for a window. For a bucket and a WeightedWindow, the ledger
// also keeps the state that they would have without others. A window forgets all units that landed
// before it may have ended.
type reset struct {
	until  int64 // when the count ends at the latest; zero if that has passed or was not reported
	others int64 // units charged for others until then, apart from what the rule counts
	landed int64 // units landed since the report or a probe; of a window, those landed at from or later
	opened int64 // when the window last reopened

	probeAt  int64 // when one request may go as a probe; zero if none may
	probedAt int64 // the probeAt of the probe whose response is to come; zero if there is none

	hasOwn bool // the rule counts others, and own is the state that it would have without them
	own    [ownWords]int64
}

// ownWords is the largest number of words of a rule that counts others until a reset.
const ownWords = 4

// reopens reports whether a tier counts in windows, whose units all leave at once.
func (l *Ledger) reopens(tier int) bool {
	return l.plan.tiers[tier].counter().reopens
}

// reopen records in an anchored window that the provider's window has ended.
func (l *Ledger) reopen(tier int) {
	if r, ok := l.plan.rules[tier].(*anchoredWindow); ok {
		r.reopen(l)
	}
}

// reopened returns when a reset last reopened the window of a tier.
func (l *Ledger) reopened(tier int) int64 {
	if l.readings == nil {
		return 0
	}
	return (*l.readings)[tier].opened
}

// leavesAt returns when a unit that lands now leaves a log or a group of stamps.
func (l *Ledger) leavesAt(tier int, now Moment) (at int64, ok bool) {
	switch r := l.plan.rules[tier].(type) {
	case *slidingLog:
		return r.leaves(l, now.At), true
	case *slidingWindow:
		return r.leaves(l, now.At), true
	}
	return 0, false
}

// landOthers charges units for others, until the reset if the response reported one.
func (l *Ledger) landOthers(now Moment, o Observation, n int64) {
	rd := &(*l.readings)[o.Tier]
	switch _, stamps := l.leavesAt(o.Tier, now); {
	case stamps:
		if rd.others == 0 {
			rd.from, rd.base = now.At, n
		}
		rd.others += n
		rd.until = l.endOthers(now, o)
		return
	case o.Reset == 0:
		l.land(o.Tier, now, n)
		return
	case l.reopens(o.Tier):
		l.plan.rules[o.Tier].land(l, now, n)
		return
	default:
		if !rd.hasOwn {
			words, _ := l.plan.rules[o.Tier].words()
			copy(rd.own[:], l.words(o.Tier)[:words])
			rd.hasOwn = true
		}
		l.plan.rules[o.Tier].land(l, now, n)
	}
	rd.until = earlierEnd(rd.until, now, o)
}

// endOthers returns until when a log counts the others of a report.
func (l *Ledger) endOthers(now Moment, o Observation) int64 {
	end, _ := l.leavesAt(o.Tier, now)
	if o.Reset > 0 {
		end = min(end, earlierEnd((*l.readings)[o.Tier].until, now, o))
	}
	return end
}

// noteReset records a reported reset. A window reopens at the reset, if everything that has landed
// was counted before it. If not, only what was charged for others with this report ends then. In
// other tiers a request may go as a probe at the reset, unless one already may.
func (l *Ledger) noteReset(now Moment, o Observation, others int64) {
	rd := &(*l.readings)[o.Tier]
	switch reopens := l.reopens(o.Tier); {
	case o.Reset == 0:
	case reopens && o.endsFrom(now) > now.At && 2*o.Slack < l.shortestWindow(o.Tier):
		was, end, from := rd.until, earlierEnd(rd.until, now, o), o.endsFrom(now)
		switch {
		case was <= now.At:
		case was < end: // the window of the earlier report has ended
			l.reopen(o.Tier)
		case rd.from <= end:
			from = max(from, rd.from)
		}
		rd.until, rd.from, rd.landed = end, from, 0
	case reopens && others > 0 && rd.until <= now.At:
		rd.until, rd.from, rd.landed = now.At+o.Reset, 0, l.plan.rules[o.Tier].used(l, now)-others
	case !reopens && o.Probe && !l.knowsBoundary(o.Tier) && (rd.probeAt == 0 || rd.probeAt > now.At):
		rd.probeAt = earlierEnd(rd.probeAt, now, o)
	}
	if l.tellsEnd(o) {
		rd.until = earlierEnd(rd.until, now, o)
	}
}

// tellsEnd reports whether a report contains the end of a window of unknown phase.
func (l *Ledger) tellsEnd(o Observation) bool {
	t := l.plan.tiers[o.Tier]
	window := Micros(t.Window)
	return t.Phase == UnknownPhase && o.Reset > 0 && o.Reset-o.Slack <= window && 2*o.Slack < window
}

// turnWindow ends what was charged for others in a window of unknown phase with the first report of
// a later window. It returns false if a report is about an earlier window.
func (l *Ledger) turnWindow(now Moment, o Observation) bool {
	rd := &(*l.readings)[o.Tier]
	if rd.until == 0 || !l.tellsEnd(o) {
		return true
	}
	window, later := Micros(l.plan.tiers[o.Tier].Window), now.At+o.Reset-rd.until
	if 2*later > window {
		rd.at, rd.until, rd.others = 0, 0, 0
	}
	return 2*later >= -window || o.Since >= rd.until-window
}

// endsFrom returns when the count ends at the earliest. The report may be as old as its request.
func (o Observation) endsFrom(now Moment) int64 {
	return now.At + o.Reset - o.Slack - max(0, o.by(now)-o.Since)
}

// earlierEnd returns when a reported count ends. If an earlier report, of an end at was, may be of
// the same count, the sooner end applies.
func earlierEnd(was int64, now Moment, o Observation) int64 {
	end := now.At + o.Reset
	if was > now.At && was >= end-o.Slack {
		return min(was, end)
	}
	return end
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
	if !l.probed {
		return false
	}
	l.probed = false
	return true
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

// probeDecides reports whether the request of a report was admitted when a probe was due, or later.
// Then the report is authoritative, except for the later units, which have landed since the probe.
func (l *Ledger) probeDecides(o Observation) (later int64, ok bool) {
	rd := &(*l.readings)[o.Tier]
	if rd.probedAt == 0 || o.Since < rd.probedAt {
		return 0, false
	}
	rd.probedAt = 0
	return max(0, rd.landed-o.Cost), true
}

// shortestWindow returns the length of a tier's shortest window, in microseconds.
func (l *Ledger) shortestWindow(tier int) int64 {
	if l.plan.tiers[tier].counter().period {
		return shortestDay
	}
	return Micros(l.plan.tiers[tier].Window)
}

// land counts n landed units in a tier, and in its state without others.
func (l *Ledger) land(tier int, at Moment, n int64) {
	r := l.plan.rules[tier]
	r.land(l, at, n)
	if l.readings == nil {
		return
	}
	rd := &(*l.readings)[tier]
	if at.At >= rd.from || !l.reopens(tier) {
		rd.landed += n
	}
	if rd.hasOwn {
		l.withoutOthers(tier, func() { r.land(l, at, n) })
	}
}

// forget reduces the landed units that a tier counts, including those of others, to keep at most.
func (l *Ledger) forget(tier int, now Moment, keep int64) {
	r, rd := l.plan.rules[tier], &(*l.readings)[tier]
	r.forget(l, now, keep)
	if rd.hasOwn {
		l.withoutOthers(tier, func() { r.forget(l, now, keep) })
	}
	rd.others = max(0, min(rd.others, keep-r.used(l, now)))
}

// withoutOthers calls f while the tier has its state without others.
func (l *Ledger) withoutOthers(tier int, f func()) {
	words, own := l.words(tier), &(*l.readings)[tier].own
	swap := func() {
		for i := range words {
			words[i], own[i] = own[i], words[i]
		}
	}
	swap()
	f()
	swap()
}

// words returns the words of a tier.
func (l *Ledger) words(tier int) []int64 {
	r := l.plan.rules[tier]
	start := r.place().word
	words, _ := r.words()
	return l.word[start : start+words]
}

// applyResets ends the counts whose reset has come.
func (l *Ledger) applyResets(now Moment) {
	for i := range *l.readings {
		rd := &(*l.readings)[i]
		if rd.until == 0 || rd.until > now.At {
			continue
		}
		if rd.hasOwn {
			copy(l.words(i), rd.own[:])
		}
		if l.reopens(i) {
			l.reopen(i)
			l.plan.rules[i].forget(l, now, rd.landed)
			rd.opened, rd.landed, rd.from = rd.until, 0, 0
		}
		if l.plan.tiers[i].Phase == UnknownPhase {
			rd.at = 0
		}
		rd.until, rd.others, rd.hasOwn = 0, 0, false
		rd.own = [ownWords]int64{}
	}
}

// othersUsed returns the units of others that a tier counts apart from its rule.
func (l *Ledger) othersUsed(tier int, now Moment) int64 {
	if l.readings == nil || (*l.readings)[tier].until <= now.At {
		return 0
	}
	rd := &(*l.readings)[tier]
	return rd.others + rd.expectedOthers(now, Micros(l.plan.tiers[tier].Window))
}

// used returns the landed units that a tier counts, including those of others.
func (l *Ledger) used(tier int, now Moment) int64 {
	return l.plan.rules[tier].used(l, now) + l.othersUsed(tier, now)
}

// admits returns the first instant from now on at which a tier admits n units.
func (l *Ledger) admits(tier int, now Moment, n int64) int64 {
	at := l.plan.rules[tier].earliest(l, now, n)
	if l.readings == nil {
		return at
	}
	rd := &(*l.readings)[tier]
	if rd.until > now.At {
		at = l.admitsWithReset(tier, now, n, at)
	}
	if rd.probeAt > 0 || l.forecasting && rd.probedAt > 0 {
		at = min(at, max(now.At, rd.probeAt))
	}
	return at
}

// admitsWithReset is admits with a reset to come. The rule admits the units at an instant.
func (l *Ledger) admitsWithReset(tier int, now Moment, n, at int64) int64 {
	r, rd := l.plan.rules[tier], &(*l.readings)[tier]
	capacity := l.plan.tiers[tier].Capacity()
	switch {
	case rd.hasOwn:
		own := at
		l.withoutOthers(tier, func() { own = r.earliest(l, now, n) })
		return min(at, max(rd.until, own))
	case l.reopens(tier):
		if rd.landed+l.landingFrom(l.plan.unit[tier], rd.from)+n <= capacity {
			at = min(at, rd.until)
		}
	case rd.others > 0:
		at = max(at, rd.until)
		if n += l.othersUsed(tier, now); n <= capacity {
			at = min(at, r.earliest(l, now, n))
		}
	}
	return at
}

// nextReset returns when a reported count of a tier ends, or Never if there is none.
func (l *Ledger) nextReset(tier int, now Moment) int64 {
	rd, at := &(*l.readings)[tier], int64(Never)
	if rd.until > now.At && (rd.hasOwn || l.reopens(tier)) { // others apart from stamps are left out
		at = rd.until
	}
	if rd.probeAt > 0 || rd.probedAt > 0 {
		at = min(at, max(now.At, rd.probeAt))
	}
	return at
}
