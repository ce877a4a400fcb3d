package algorithms

// A reset is when the provider's count of a tier ends, as a response has told. It ends what
// was charged for others, and reopens the windows of a FixedWindow, an AnchoredWindow and a
// Calendar. In all others, the first request from then on goes even if the tier refuses it, and
// the report of its response is the truth. A reset never makes a request wait longer.
//
// How depends on what the tier remembers. In a log and in groups of stamps others lie apart, also
// where no reset is told: then for a window.
// Of a bucket and of a WeightedWindow the ledger also keeps what they would remember without
// the others. A window forgets all that had landed when its reset was told.
type reset struct {
	until  int64 // when the count ends at the latest; zero if that has passed or is not told
	others int64 // charged until then, apart from what the rule counts
	landed int64 // units that have landed since it was told, or since a request tried; of a window, which may not have been counted before its end
	opened int64 // when the window last reopened

	probeAt  int64 // from when on one request may try whether the count has ended; zero if none may
	probedAt int64 // what try was for the one that has, until a response tells; zero if none has

	hasOwn bool // the rule counts others, and own is what it would remember without them
	own    [ownWords]int64
}

// ownWords is how many words a rule needs at most that counts others until a reset.
const ownWords = 4

// reopens reports whether a tier counts in windows that end all at once.
func (l *Ledger) reopens(tier int) bool {
	switch l.plan.rules[tier].(type) {
	case *fixedWindow, *anchoredWindow, *calendar:
		return true
	}
	return false
}

// reopen tells an anchored window that the provider's has ended.
func (l *Ledger) reopen(tier int) {
	if r, ok := l.plan.rules[tier].(*anchoredWindow); ok {
		r.reopen(l)
	}
}

// reopened is when the window of a tier was last reopened by a reset.
func (l *Ledger) reopened(tier int) int64 {
	if l.readings == nil {
		return 0
	}
	return (*l.readings)[tier].opened
}

// leavesView is when a unit that lands now leaves a log or a group of stamps.
func (l *Ledger) leavesAt(tier int, now Moment) (at int64, ok bool) {
	switch r := l.plan.rules[tier].(type) {
	case *slidingLog:
		return r.leaves(l, now.At), true
	case *slidingWindow:
		return r.leaves(l, now.At), true
	}
	return 0, false
}

// landOthers charges units for others, until the reset if one was told.
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

// endOthers is until when a log counts the others of a report.
func (l *Ledger) endOthers(now Moment, o Observation) int64 {
	end, _ := l.leavesAt(o.Tier, now)
	if o.Reset > 0 {
		end = min(end, earlierEnd((*l.readings)[o.Tier].until, now, o))
	}
	return end
}

// tellReset has a window reopen at the reset that a report told, if all that has landed was
// counted before it, and else end what was charged for others with this report. It has a
// request try in any other tier, unless one still may.
func (l *Ledger) noteReset(now Moment, o Observation, others int64) {
	rd := &(*l.readings)[o.Tier]
	switch reopens := l.reopens(o.Tier); {
	case o.Reset == 0:
	case reopens && o.endsFrom(now) > now.At && 2*o.Slack < l.shortestWindow(o.Tier):
		was, end, from := rd.until, earlierEnd(rd.until, now, o), o.endsFrom(now)
		switch {
		case was <= now.At:
		case was < end: // the window of then has ended
			l.reopen(o.Tier)
		case rd.from <= end:
			from = max(from, rd.from)
		}
		rd.until, rd.from, rd.landed = end, from, 0
	case reopens && others > 0 && rd.until <= now.At:
		rd.until, rd.from, rd.landed = now.At+o.Reset, 0, l.plan.rules[o.Tier].used(l, now)-others
	case !reopens && o.Probe && (rd.probeAt == 0 || rd.probeAt > now.At):
		rd.probeAt = earlierEnd(rd.probeAt, now, o)
	}
}

// endsFrom is when the count ends at the earliest. The report may be as old as its request.
func (o Observation) endsFrom(now Moment) int64 {
	return now.At + o.Reset - o.Slack - max(0, o.by(now)-o.Since)
}

// sooner is when a count ends that may be the one of which an earlier response has told, to end
// at an instant.
func earlierEnd(was int64, now Moment, o Observation) int64 {
	end := now.At + o.Reset
	if was > now.At && was >= end-o.Slack {
		return min(was, end)
	}
	return end
}

// try notes that a request is charged which tries where that is due.
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

// Tried reports whether a tier would have refused the last request that was charged, which
// tries whether a count has ended: the others are to wait for its response.
func (l *Ledger) Probed() bool {
	if !l.probed {
		return false
	}
	l.probed = false
	return true
}

// Trying reports whether a response is to come that may make a tier admit more.
func (l *Ledger) Probing(tier int) bool {
	return tier >= 0 && l.readings != nil && (*l.readings)[tier].probedAt > 0
}

// TryAgain has another request try, because the last that did was not sent.
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

// decides reports whether a report is of a request that was admitted after one had tried. Then
// it is the truth, but for later units that have landed.
func (l *Ledger) probeDecides(o Observation) (later int64, ok bool) {
	rd := &(*l.readings)[o.Tier]
	if rd.probedAt == 0 || o.Since < rd.probedAt {
		return 0, false
	}
	rd.probedAt = 0
	return max(0, rd.landed-o.Cost), true
}

// shortest is the length of a tier's shortest window.
func (l *Ledger) shortestWindow(tier int) int64 {
	if l.plan.tiers[tier].counter().period {
		return shortestDay
	}
	return Micros(l.plan.tiers[tier].Window)
}

// land tells a tier of n units that have been counted, with and without others.
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

// forget makes a tier count no more than some units that have landed, those of others too.
func (l *Ledger) forget(tier int, now Moment, keep int64) {
	r, rd := l.plan.rules[tier], &(*l.readings)[tier]
	r.forget(l, now, keep)
	if rd.hasOwn {
		l.withoutOthers(tier, func() { r.forget(l, now, keep) })
	}
	rd.others = max(0, min(rd.others, keep-r.used(l, now)))
}

// withoutOthers calls f while a tier remembers what it would without others.
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

// words are what a tier remembers.
func (l *Ledger) words(tier int) []int64 {
	s, words, _ := l.plan.site(tier)
	return l.word[s.word : s.word+words]
}

// passResets ends the counts of which the end has come.
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
		rd.until, rd.others, rd.hasOwn = 0, 0, false
		rd.own = [ownWords]int64{}
	}
}

// apart is what a tier counts of others until a reset, beside what its rule counts.
func (l *Ledger) othersUsed(tier int, now Moment) int64 {
	if l.readings == nil || (*l.readings)[tier].until <= now.At {
		return 0
	}
	rd := &(*l.readings)[tier]
	return rd.others + rd.expectedOthers(now, Micros(l.plan.tiers[tier].Window))
}

// used is what a tier counts that has landed, with others until a reset.
func (l *Ledger) used(tier int, now Moment) int64 {
	return l.plan.rules[tier].used(l, now) + l.othersUsed(tier, now)
}

// admits is the first instant from now on at which a tier admits n units.
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

// admitsBeside is admits where a reset is to come, and the rule admits at an instant.
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

// nextReset is when the count of a tier ends that a response has told, Never if none has.
func (l *Ledger) nextReset(tier int, now Moment) int64 {
	rd, at := &(*l.readings)[tier], int64(Never)
	if rd.until > now.At && (rd.hasOwn || l.reopens(tier)) { // others beside stamps are left out
		at = rd.until
	}
	if rd.probeAt > 0 || rd.probedAt > 0 {
		at = min(at, max(now.At, rd.probeAt))
	}
	return at
}
