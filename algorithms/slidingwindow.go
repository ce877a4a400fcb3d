package algorithms

import "slices"

var slidingWindowCounter = counter{
	name:      "sliding_window",
	newRule:   func(t Tier, s site) rule { return newSlidingWindow(t, s) },
	rate:      rollingRate,
	precision: true,
	steady:    true,
}

// slidingWindow admits at most limit units in every half-open interval of one window, as
// slidingLog does, but keeps groups of stamps. Stamps within one precision form a group, and a
// group leaves the window with its last stamp. An admission is therefore at most one precision
// later than with slidingLog, and never earlier. A window of an hour in the usual 60 groups counts
// a unit for up to a minute too long.
//
// Source: Figma, "An alternative approach to rate limiting" (2017). Its counters are aligned to
// the clock; a group here opens with its first stamp.
//
// Memory: 16 bytes a group, whatever the limit: 1 KB for the usual 61 groups. If the provider reports
// what it counts, groups stay for up to ten seconds after they have left: 2 KB at most.
type slidingWindow struct {
	site
	view
	limit, precision int64
}

func newSlidingWindow(t Tier, s site) *slidingWindow {
	return &slidingWindow{s, newView(t, s.word+1), t.Limit, Micros(t.Precision)}
}

// The word is the units of all groups in the ring, some of which may have left the window. The
// ring is a list of pairs: the last stamp of a group, and its units.
func (r *slidingWindow) words() (words, rings int) { return 1 + r.stateWords(), 1 }

func (r *slidingWindow) earliest(s *state, now Moment, n int64) int64 {
	excess := s.word[r.word] + s.inFlight(r.unit) + n - r.limit
	if excess <= 0 {
		return now.At
	}
	groups := *s.ring(r.site)
	for ; len(groups) > 0; groups = groups[2:] {
		if excess -= groups[1]; excess <= 0 {
			return max(now.At, r.leaves(s, groups[0]))
		}
	}
	return r.leaves(s, s.nthLanding(r.unit, excess))
}

func (r *slidingWindow) earliestTotal(s *state, now Moment, n int64) int64 {
	full, rest := rounds(n, r.limit)
	return after(r.earliest(s, now, rest), full, r.least(s))
}

// lateReport is how late a report may be, in microseconds, if it is to be compared exactly.
const lateReport = 10_000_000

func (r *slidingWindow) joined(s *state, at Moment) Moment {
	groups := *s.ring(r.site)
	if last := len(groups) - 2; last >= 0 && groups[last]/r.precision == at.At/r.precision {
		return at.on(groups[last])
	}
	return at
}

func (r *slidingWindow) land(s *state, at Moment, n int64) {
	groups, total := s.ring(r.site), &s.word[r.word]
	// Groups that have left stay while a late report of the provider may count them, or the last one
	// if the provider has reported nothing yet.
	gone, left := 0, at.At
	if s.readings != nil {
		left -= min(r.window, lateReport)
	}
	for ; gone+2 < len(*groups) && r.leaves(s, (*groups)[gone+2]) <= left; gone += 2 {
		*total -= (*groups)[gone+1]
	}
	*groups = append((*groups)[:0], (*groups)[gone:]...)

	*total += n
	if last := len(*groups) - 2; last >= 0 && (*groups)[last]/r.precision == at.At/r.precision {
		(*groups)[last] = at.At
		(*groups)[last+1] += n
		return
	}
	*groups = append(*groups, at.At, n)
}

func (r *slidingWindow) used(s *state, now Moment) int64 {
	used := s.word[r.word]
	for groups := *s.ring(r.site); len(groups) > 0 && r.leaves(s, groups[0]) <= now.At; groups = groups[2:] {
		used -= groups[1]
	}
	return used
}

// forget keeps the newest units.
func (r *slidingWindow) forget(s *state, now Moment, keep int64) {
	groups, total := s.ring(r.site), &s.word[r.word]
	for r.used(s, now) > keep {
		over := min((*groups)[1], *total-keep)
		*total -= over
		if (*groups)[1] -= over; (*groups)[1] == 0 {
			*groups = append((*groups)[:0], (*groups)[2:]...)
		}
	}
}

func (r *slidingWindow) retract(s *state, from, n int64) (taken int64) {
	groups := s.ring(r.site)
	for taken < n && len(*groups) > 0 && (*groups)[len(*groups)-2] >= from {
		last := len(*groups) - 2
		less := min(n-taken, (*groups)[last+1])
		taken += less
		if (*groups)[last+1] -= less; (*groups)[last+1] == 0 {
			*groups = (*groups)[:last]
		}
	}
	s.word[r.word] -= taken
	return taken
}

// refund takes the units out of the oldest groups from an instant on, and then, as slidingLog.refund does,
// out of the groups before it.
func (r *slidingWindow) refund(s *state, now Moment, from, n int64) {
	groups, total := s.ring(r.site), &s.word[r.word]
	if r.leaves(s, from) <= now.At {
		return
	}
	for g := *groups; len(g) > 0 && n > 0; g = g[2:] {
		if g[0] >= from {
			less := min(n, g[1])
			n, g[1], *total = n-less, g[1]-less, *total-less
		}
	}
	for i := len(*groups) - 2; i >= 0 && n > 0; i -= 2 {
		less := min(n, (*groups)[i+1])
		n, (*groups)[i+1], *total = n-less, (*groups)[i+1]-less, *total-less
	}
	for last := len(*groups) - 2; last >= 0 && (*groups)[last+1] == 0; last -= 2 {
		*groups = (*groups)[:last]
	}
}

func (r *slidingWindow) fresh(s *state, now Moment) int64 {
	if groups := *s.ring(r.site); len(groups) > 0 {
		return r.leaves(s, groups[len(groups)-2])
	}
	return now.At
}

// stamps returns the stamps of the newest units, at most so many, the oldest first.
func (r *slidingWindow) stamps(s *state, most int64) (list []int64) {
	over := s.word[r.word] - most
	for groups := *s.ring(r.site); len(groups) > 0; groups = groups[2:] {
		if n := groups[1] - max(0, over); n > 0 {
			list = append(list, slices.Repeat(groups[:1], int(n))...)
		}
		over = max(0, over-groups[1])
	}
	return list
}

func (r *slidingWindow) clear(s *state) {
	s.word[r.word] = 0
	*s.ring(r.site) = (*s.ring(r.site))[:0]
}

// sound reports whether the groups are in order and add up.
func (r *slidingWindow) sound(s *state) bool {
	groups := *s.ring(r.site)
	var total, before int64
	for ; len(groups) > 1; groups = groups[2:] {
		if !stored(groups[:2]...) || groups[0] < before || !stored(total+groups[1]) {
			return false
		}
		before, total = groups[0], total+groups[1]
	}
	return len(groups) == 0 && total == s.word[r.word] && r.view.sound(s)
}

func (r *slidingWindow) recurs(s, o *state, by int64) bool {
	groups, before := *s.ring(r.site), *o.ring(r.site)
	if len(groups) != len(before) || by%r.precision != 0 || s.word[r.word] != o.word[r.word] || r.isKnown(s) || r.isKnown(o) {
		return false
	}
	for i := 0; i < len(groups); i += 2 {
		if groups[i]-before[i] != by || groups[i+1] != before[i+1] {
			return false
		}
	}
	return true
}
