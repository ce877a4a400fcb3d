package algorithms

// A reset is when the provider's count of a tier ends, as a response has told. It ends what
// was charged for others, and reopens the windows of a FixedWindow, an AnchoredWindow and a
// Calendar. It never makes a request wait longer.
//
// How depends on what the tier remembers. In a log and in groups of stamps others lie apart.
// Of a bucket and of a WeightedWindow the ledger also keeps what they would remember without
// the others. A window forgets all that had landed when its reset was told.
type reset struct {
	until  int64 // when the count ends at the latest; zero if that has passed or is not told
	others int64 // charged until then, apart from what the rule counts
	landed int64 // units that have landed since it was told, in a window that reopens
	opened int64 // when the window last reopened

	alone bool // the rule counts others, and own is what it would remember without them
	own   [ownWords]int64
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

// reopened is when the window of a tier was last reopened by a reset.
func (l *Ledger) reopened(tier int) int64 {
	if l.told == nil {
		return 0
	}
	return (*l.told)[tier].opened
}

// leavesView is when a unit that lands now leaves a log or a group of stamps.
func (l *Ledger) leavesView(tier int, now Moment) (at int64, ok bool) {
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
	told, end := &(*l.told)[o.Tier], now.At+o.Reset
	switch leaves, stamps := l.leavesView(o.Tier, now); {
	case o.Reset == 0 || l.reopens(o.Tier):
		l.land(o.Tier, now, n)
		return
	case stamps && end >= leaves:
		l.land(o.Tier, now, n)
		return
	case stamps:
		told.others = l.apart(o.Tier, now) + n
	default:
		if !told.alone {
			words, _ := l.plan.rules[o.Tier].words()
			copy(told.own[:], l.words(o.Tier)[:words])
			told.alone = true
		}
		l.plan.rules[o.Tier].land(l, now, n)
	}
	told.until = told.sooner(now, o)
}

// tellReset has a window reopen at the reset that a report told, if all that has landed was
// counted before it.
func (l *Ledger) tellReset(now Moment, o Observation) {
	if !l.reopens(o.Tier) || o.Reset <= o.Slack || 2*o.Slack >= l.shortest(o.Tier) {
		return
	}
	told := &(*l.told)[o.Tier]
	told.until, told.landed = told.sooner(now, o), 0
}

// sooner is when a count ends that may be the one of which an earlier response has told.
func (r *reset) sooner(now Moment, o Observation) int64 {
	end := now.At + o.Reset
	if r.until > now.At && r.until >= end-o.Slack {
		return min(r.until, end)
	}
	return end
}

// shortest is the length of a tier's shortest window.
func (l *Ledger) shortest(tier int) int64 {
	if _, ok := l.plan.rules[tier].(*calendar); ok {
		return shortestDay
	}
	return Micros(l.plan.tiers[tier].Window)
}

// land tells a tier of n units that have been counted, with and without others.
func (l *Ledger) land(tier int, at Moment, n int64) {
	r := l.plan.rules[tier]
	r.land(l, at, n)
	if l.told == nil {
		return
	}
	told := &(*l.told)[tier]
	told.landed += n
	if told.alone {
		l.withoutOthers(tier, func() { r.land(l, at, n) })
	}
}

// forget makes a tier count no more than some units that have landed, those of others too.
func (l *Ledger) forget(tier int, now Moment, keep int64) {
	r, told := l.plan.rules[tier], &(*l.told)[tier]
	r.forget(l, now, keep)
	if told.alone {
		l.withoutOthers(tier, func() { r.forget(l, now, keep) })
	}
	told.others = max(0, min(told.others, keep-r.used(l, now)))
}

// withoutOthers calls f while a tier remembers what it would without others.
func (l *Ledger) withoutOthers(tier int, f func()) {
	words, own := l.words(tier), &(*l.told)[tier].own
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
func (l *Ledger) passResets(now Moment) {
	for i := range *l.told {
		told := &(*l.told)[i]
		if told.until == 0 || told.until > now.At {
			continue
		}
		if told.alone {
			copy(l.words(i), told.own[:])
		}
		if l.reopens(i) {
			l.plan.rules[i].forget(l, now, told.landed)
			told.opened = told.until
		}
		told.until, told.others, told.landed, told.alone = 0, 0, 0, false
		told.own = [ownWords]int64{}
	}
}

// apart is what a tier counts of others until a reset, beside what its rule counts.
func (l *Ledger) apart(tier int, now Moment) int64 {
	if l.told == nil || (*l.told)[tier].until <= now.At {
		return 0
	}
	return (*l.told)[tier].others
}

// used is what a tier counts that has landed, with others until a reset.
func (l *Ledger) used(tier int, now Moment) int64 {
	return l.plan.rules[tier].used(l, now) + l.apart(tier, now)
}

// admits is the first instant from now on at which a tier admits n units.
func (l *Ledger) admits(tier int, now Moment, n int64) int64 {
	at := l.plan.rules[tier].earliest(l, now, n)
	if l.told == nil || (*l.told)[tier].until <= now.At {
		return at
	}
	return l.admitsBeside(tier, now, n, at)
}

// admitsBeside is admits where a reset is to come, and the rule admits at an instant.
func (l *Ledger) admitsBeside(tier int, now Moment, n, at int64) int64 {
	r, told := l.plan.rules[tier], &(*l.told)[tier]
	capacity := l.plan.tiers[tier].Capacity()
	switch {
	case told.alone:
		own := at
		l.withoutOthers(tier, func() { own = r.earliest(l, now, n) })
		return min(at, max(told.until, own))
	case l.reopens(tier):
		if told.landed+l.aloft(l.plan.unit[tier])+n <= capacity {
			at = min(at, told.until)
		}
	case told.others > 0:
		at = max(at, told.until)
		if n+told.others <= capacity {
			at = min(at, r.earliest(l, now, n+told.others))
		}
	}
	return at
}
