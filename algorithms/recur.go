package algorithms

import "slices"

// Recurs reports whether the ledger is as o was, but by microseconds later on both clocks: then both
// give the same answers to the same calls, at moments that far apart, for ever. So what has happened
// between the two happens again and again, if what calls the ledger recurs, too. Recurs may return
// false for ledgers that are alike: always with a Calendar, whose periods differ in length, and after
// a report of the provider.
func (l *Ledger) Recurs(o *Ledger, by int64) bool {
	p := l.plan
	units := len(p.units)
	switch {
	case p != o.plan, by <= 0, by%(1<<p.resolution) != 0, l.last-o.last != by, l.readings != nil || o.readings != nil,
		len(l.word) != len(o.word), !slices.Equal(l.word[:units], o.word[:units]):
		return false
	}
	for i := range l.slots() {
		s, before := l.slot(i), o.slot(i)
		if s[0]-before[0] != by || !slices.Equal(s[1:], before[1:]) {
			return false
		}
	}
	for _, r := range p.rules {
		if !r.recurs(l, o, by) {
			return false
		}
	}
	return true
}

// later reports whether one instant is that much later than another, or both are Never.
func later(at, before, by int64) bool { return at-before == by || at == Never && before == Never }

func (r *slidingLog) recurs(l, o *Ledger, by int64) bool {
	ring, before := *l.ring(r.site), *o.ring(r.site)
	n := len(ring)
	if n != len(before) || r.known != 0 && (l.word[r.known+1] != 0 || o.word[r.known+1] != 0) {
		return false
	}
	i, j := int(l.word[r.word]), int(o.word[r.word]) // the oldest
	for range n {
		if ring[i]-before[j] != by {
			return false
		}
		if i++; i == n {
			i = 0
		}
		if j++; j == n {
			j = 0
		}
	}
	return true
}

func (r *slidingWindow) recurs(l, o *Ledger, by int64) bool {
	groups, before := *l.ring(r.site), *o.ring(r.site)
	if len(groups) != len(before) || by%r.precision != 0 || l.word[r.word] != o.word[r.word] {
		return false
	}
	for i := 0; i < len(groups); i += 2 {
		if groups[i]-before[i] != by || groups[i+1] != before[i+1] {
			return false
		}
	}
	return true
}

func (r *anchoredWindow) recurs(l, o *Ledger, by int64) bool {
	lo, hi := r.lohi(l)
	loBefore, hiBefore := r.lohi(o)
	return r.slidingWindow.recurs(l, o, by) && later(*lo, *loBefore, by) && later(*hi, *hiBefore, by)
}

// recurs reports whether the words of a window are those of a window that much earlier: its number, its
// counts and the instant of the last landing.
func (a *aligned) recurs(words, before []int64, by int64) bool {
	last := len(words) - 1
	return a.zone == nil && by%a.window == 0 && words[0]-before[0] == by/a.window && words[last]-before[last] == by &&
		slices.Equal(words[1:last], before[1:last])
}

func (r *fixedWindow) recurs(l, o *Ledger, by int64) bool {
	return r.aligned.recurs(r.state(l), r.state(o), by)
}

func (r *weightedWindow) recurs(l, o *Ledger, by int64) bool {
	return r.aligned.recurs(l.word[r.word:r.word+4], o.word[r.word:r.word+4], by)
}

func (r *bucket) recurs(l, o *Ledger, by int64) bool {
	t, before := r.tat(l), r.tat(o)
	return t.at-before.at == by && t.part == before.part
}

func (r *concurrency) recurs(l, o *Ledger, _ int64) bool { return l.word[r.word] == o.word[r.word] }
