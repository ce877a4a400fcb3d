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

// A reportedTier is a tier with the reports on it. It counts what its rule counts, and the others that
// only the reports show.
type reportedTier struct {
	*reading
	s *state
	i int
}

// reported returns a tier of a state that has readings.
func reported(s *state, tier int) reportedTier { return reportedTier{&(*s.readings)[tier], s, tier} }

func (t reportedTier) rule() rule  { return t.s.plan.rules[t.i] }
func (t reportedTier) tier() *Tier { return &t.s.plan.tiers[t.i] }
func (t reportedTier) unit() int   { return t.s.plan.unit[t.i] }

// reopens reports whether the tier counts in windows, whose units all leave at once.
func (t reportedTier) reopens() bool { return t.tier().counter().reopens }

// reopen records in an anchored window that the provider's window has ended.
func (t reportedTier) reopen() {
	if r, ok := t.rule().(*anchoredWindow); ok {
		r.reopen(t.s)
	}
}

// landOthers charges units for others, until the reset if the response reported one.
func (t reportedTier) landOthers(now Moment, o Observation, n int64) {
	if viewOf(t.rule()) != nil {
		if t.others == 0 {
			t.from, t.base = now.At, n
		}
		t.others += n
		t.until = t.endOthers(now, o)
		return
	}
	if o.Reset > 0 && !t.reopens() {
		if !t.hasOwn {
			copy(t.own[:], t.s.words(t.rule()))
			t.hasOwn = true
		}
		t.until = earlierEnd(t.until, now, o)
	}
	t.rule().land(t.s, now, n)
	if o.Reset == 0 {
		t.countLanded(now, n)
	}
}

// endOthers returns until when a log counts the others of a report.
func (t reportedTier) endOthers(now Moment, o Observation) int64 {
	end := viewOf(t.rule()).leaves(t.s, now.At)
	if o.Reset > 0 {
		end = min(end, earlierEnd(t.until, now, o))
	}
	return end
}

// noteReset records a reported reset. A window reopens at the reset, if everything that has landed
// was counted before it. If not, only what was charged for others with this report ends then. In
// other tiers a request may go as a probe at the reset, unless one already may.
func (t reportedTier) noteReset(now Moment, o Observation, others int64) {
	shortest := Micros(t.tier().Window)
	if t.tier().counter().period {
		shortest = shortestDay
	}
	switch reopens := t.reopens(); {
	case o.Reset == 0:
	case reopens && o.endsFrom(now) > now.At && 2*o.Slack < shortest:
		was, end, from := t.until, earlierEnd(t.until, now, o), o.endsFrom(now)
		switch {
		case was <= now.At:
		case was < end: // the window of the earlier report has ended
			t.reopen()
		case t.from <= end:
			from = max(from, t.from)
		}
		t.until, t.from, t.landed = end, from, 0
	case reopens && others > 0 && t.until <= now.At:
		t.until, t.from, t.landed = now.At+o.Reset, 0, t.rule().used(t.s, now)-others
	case !reopens && o.Probe && !viewOf(t.rule()).isKnown(t.s) && (t.probeAt == 0 || t.probeAt > now.At):
		t.probeAt = earlierEnd(t.probeAt, now, o)
	}
	if t.tellsEnd(o) {
		t.until = earlierEnd(t.until, now, o)
	}
}

// tellsEnd reports whether a report contains the end of a window of unknown phase.
func (t reportedTier) tellsEnd(o Observation) bool {
	window := Micros(t.tier().Window)
	return t.tier().Phase == UnknownPhase && o.Reset > 0 && o.Reset-o.Slack <= window && 2*o.Slack < window
}

// turnWindow ends what was charged for others in a window of unknown phase with the first report of
// a later window. It returns false if a report is about an earlier window.
func (t reportedTier) turnWindow(now Moment, o Observation) bool {
	if t.until == 0 || !t.tellsEnd(o) {
		return true
	}
	window, later := Micros(t.tier().Window), now.At+o.Reset-t.until
	if 2*later > window {
		t.at, t.until, t.others = 0, 0, 0
	}
	return 2*later >= -window || o.Since >= t.until-window
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

// probeDecides reports whether the request of a report was admitted when a probe was due, or later.
// Then the report is authoritative, except for the later units, which have landed since the probe.
func (t reportedTier) probeDecides(o Observation) (later int64, ok bool) {
	if t.probedAt == 0 || o.Since < t.probedAt {
		return 0, false
	}
	t.probedAt = 0
	return max(0, t.landed-o.Cost), true
}

// withoutOthers calls f while the tier has its state without others, if there is one.
func (t reportedTier) withoutOthers(f func()) {
	if !t.hasOwn {
		return
	}
	words := t.s.words(t.rule())
	swap := func() {
		for i := range words {
			words[i], t.own[i] = t.own[i], words[i]
		}
	}
	swap()
	f()
	swap()
}

// countLanded records n units that the rule has landed, also in the state without others.
func (t reportedTier) countLanded(at Moment, n int64) {
	if at.At >= t.from || !t.reopens() {
		t.landed += n
	}
	t.withoutOthers(func() { t.rule().land(t.s, at, n) })
}

// forget reduces the landed units that the tier counts, including those of others, to keep at most.
func (t reportedTier) forget(now Moment, keep int64) {
	t.rule().forget(t.s, now, keep)
	t.withoutOthers(func() { t.rule().forget(t.s, now, keep) })
	t.others = max(0, min(t.others, keep-t.rule().used(t.s, now)))
}

// applyReset ends the count, whose reset has come.
func (t reportedTier) applyReset(now Moment) {
	if t.hasOwn {
		copy(t.s.words(t.rule()), t.own[:])
	}
	if t.reopens() {
		t.reopen()
		t.rule().forget(t.s, now, t.landed)
		t.opened, t.landed, t.from = t.until, 0, 0
	}
	if t.tier().Phase == UnknownPhase {
		t.at = 0
	}
	t.until, t.others, t.hasOwn = 0, 0, false
	t.own = [ownWords]int64{}
}

// othersUsed returns the units of others that the tier counts apart from its rule.
func (t reportedTier) othersUsed(now Moment) int64 {
	if t.until <= now.At {
		return 0
	}
	return t.others + t.expectedOthers(now, Micros(t.tier().Window))
}

// admits returns the first instant from now on at which the tier admits n units, with a reset to
// come. Its rule admits them at an instant.
func (t reportedTier) admits(now Moment, n, at int64) int64 {
	capacity := t.tier().Capacity()
	switch {
	case t.hasOwn:
		own := at
		t.withoutOthers(func() { own = t.rule().earliest(t.s, now, n) })
		return min(at, max(t.until, own))
	case t.reopens():
		if t.landed+t.s.landingFrom(t.unit(), t.from)+n <= capacity {
			at = min(at, t.until)
		}
	case t.others > 0:
		at = max(at, t.until)
		if n += t.othersUsed(now); n <= capacity {
			at = min(at, t.rule().earliest(t.s, now, n))
		}
	}
	return at
}

// nextReset returns when a reported count of the tier ends, or Never if there is none.
func (t reportedTier) nextReset(now Moment) int64 {
	at := int64(Never)
	if t.until > now.At && (t.hasOwn || t.reopens()) { // others apart from stamps are left out
		at = t.until
	}
	if t.probeAt > 0 || t.probedAt > 0 {
		at = min(at, max(now.At, t.probeAt))
	}
	return at
}

// sound reports whether only a rule that may have a state without others has one, and whether that
// state is sound.
func (t reportedTier) sound() bool {
	sound := !t.hasOwn
	if words, rings := t.rule().words(); rings == 0 && words <= ownWords && words > 0 && !t.reopens() {
		t.withoutOthers(func() { sound = t.rule().sound(t.s) })
	}
	return sound
}
