package algorithms

import (
	"slices"
	"sort"
)

var slidingLogCounter = counter{
	name:    "sliding_log",
	newRule: func(t Tier, s site) rule { return newSlidingLog(t, s) },
	rate:    rollingRate,
	steady:  true,
}

// rollingRate returns the rate of a counter in which each unit counts for the guard and a window.
func rollingRate(limit, window, _, guard float64) float64 { return limit / (window + guard) }

// slidingLog admits at most limit units in every half-open interval of one window, the exact
// rolling window: 60 a minute is 60 in any minute, and never 119 around a full one.
//
// It keeps the last limit stamps in a ring. The stamp that a new one would overwrite must have
// left the window. A decision therefore reads one word, whatever the limit, and nothing is ever
// trimmed.
//
// Source: the sliding window log of Redis' and many providers' guides, kept as a ring instead of a
// sorted set; bsm, "Rate limiting with sorted sets".
//
// Memory: 8 bytes a unit, up to the limit: 80 KB for 10,000 an hour. After a change of policy, the
// ring keeps the size of a larger old limit while the old policy may come back.
type slidingLog struct {
	site
	view
	limit int64
}

func newSlidingLog(t Tier, s site) *slidingLog {
	return &slidingLog{s, newView(t, s.word+1), t.Limit}
}

func (r *slidingLog) words() (words, rings int) { return 1 + r.stateWords(), 1 }

// stamp returns the k-th oldest of the last limit stamps, if the ring has it.
func (r *slidingLog) stamp(s *state, k int64) (int64, bool) {
	ring, oldest := *s.ring(r.site), s.word[r.word]
	k -= r.limit - int64(len(ring)) // a ring that still grows lacks the oldest stamps
	if k <= 0 {
		return 0, false
	}
	return ring[(oldest+k-1)%int64(len(ring))], true
}

func (r *slidingLog) earliest(s *state, now Moment, n int64) int64 {
	// The unit that must have left the window is the k-th oldest of those landed. If k exceeds
	// them, it is one in flight, which leaves a window after it lands.
	k := s.inFlight(r.unit) + n
	if k <= r.limit {
		if at, ok := r.stamp(s, k); ok {
			return max(now.At, r.leaves(s, at))
		}
		return now.At
	}
	return r.leaves(s, s.nthLanding(r.unit, k-r.limit))
}

// earliestTotal is exact: the n-th unit goes a window after the (n−limit)-th.
func (r *slidingLog) earliestTotal(s *state, now Moment, n int64) int64 {
	full, rest := rounds(n, r.limit)
	return after(r.earliest(s, now, rest), full, r.least(s))
}

func (r *slidingLog) land(s *state, at Moment, n int64) {
	ring, oldest := s.ring(r.site), &s.word[r.word]
	room := max(r.limit, int64(len(*ring)))
	n = min(n, room)
	grow := min(n, room-int64(len(*ring)))
	if need := len(*ring) + int(grow); need > cap(*ring) {
		bigger := make([]int64, len(*ring), min(r.limit, int64(max(need, 2*cap(*ring), 4))))
		copy(bigger, *ring)
		*ring = bigger
	}
	for range grow {
		*ring = append(*ring, at.At)
	}
	for range n - grow {
		(*ring)[*oldest] = at.At
		*oldest = (*oldest + 1) % room
	}
}

func (r *slidingLog) used(s *state, now Moment) int64 {
	ring, oldest := *s.ring(r.site), int(s.word[r.word])
	older, newer := ring[oldest:], ring[:oldest]
	return r.inside(s, older, now) + r.inside(s, newer, now)
}

func (r *slidingLog) inside(s *state, stamps []int64, now Moment) int64 {
	gone := sort.Search(len(stamps), func(i int) bool { return r.leaves(s, stamps[i]) > now.At })
	return int64(len(stamps) - gone)
}

// forget keeps the newest stamps.
func (r *slidingLog) forget(s *state, now Moment, keep int64) {
	if r.used(s, now) <= keep {
		return
	}
	newest := r.stamps(s)
	*s.ring(r.site), s.word[r.word] = newest[int64(len(newest))-keep:], 0
}

func (r *slidingLog) retract(s *state, from, n int64) (taken int64) {
	kept := r.stamps(s)
	first, _ := slices.BinarySearch(kept, from)
	taken = min(n, int64(len(kept)-first))
	*s.ring(r.site), s.word[r.word] = kept[:len(kept)-int(taken)], 0
	return taken
}

// refund removes the oldest of the stamps from an instant on. Units that have yet to land, in a slot of a
// longer guard, leave later than the stamps before that instant, which are then removed instead. A full log
// keeps its stamps until the oldest one has left the window: older ones that count may have made room for
// counted units.
func (r *slidingLog) refund(s *state, now Moment, from, n int64) {
	kept := r.stamps(s)
	if isFull := int64(len(kept)) >= r.limit; r.leaves(s, from) <= now.At || isFull && r.leaves(s, kept[0]) > now.At {
		return
	}
	first, _ := slices.BinarySearch(kept, from)
	n = min(n, int64(len(kept)))
	first = min(first, len(kept)-int(n))
	*s.ring(r.site), s.word[r.word] = slices.Delete(kept, first, first+int(n)), 0
}

// stamps returns a copy of all stamps, the oldest first.
func (r *slidingLog) stamps(s *state) []int64 {
	ring, oldest := *s.ring(r.site), s.word[r.word]
	return slices.Concat(ring[oldest:], ring[:oldest])
}

func (r *slidingLog) fresh(s *state, now Moment) int64 {
	if at, ok := r.stamp(s, r.limit); ok {
		return r.leaves(s, at)
	}
	return now.At
}

// sound reports whether the stamps are in order, from the oldest on.
func (r *slidingLog) sound(s *state) bool {
	ring, oldest := *s.ring(r.site), s.word[r.word]
	length := int64(len(ring))
	switch {
	case oldest < 0, oldest > 0 && oldest >= length, oldest > 0 && length < r.limit:
		return false
	case !r.view.sound(s):
		return false
	case length == 0:
		return true
	}
	return slices.IsSorted(ring[oldest:]) && slices.IsSorted(ring[:oldest]) && stored(ring[0], ring[length-1]) &&
		(oldest == 0 || ring[length-1] <= ring[0] && stored(ring[oldest-1], ring[oldest]))
}

func (r *slidingLog) recurs(s, o *state, by int64) bool {
	ring, before := *s.ring(r.site), *o.ring(r.site)
	n := len(ring)
	if n != len(before) || r.isKnown(s) || r.isKnown(o) {
		return false
	}
	i, j := int(s.word[r.word]), int(o.word[r.word]) // the oldest
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
