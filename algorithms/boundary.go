package algorithms

// A view is how long the provider counts a landed unit: for one window or, if a boundary of the
// provider's windows is known, until the next boundary.
type view struct {
	window int64
	known  int // index of the three words of the known boundary; 0 if the view keeps none
}

// viewOf returns the view of a rule that keeps stamps for a time alone, or nil for other rules.
func viewOf(r rule) *view {
	switch r := r.(type) {
	case *slidingLog:
		return &r.view
	case *slidingWindow:
		return &r.view
	}
	return nil
}

func newView(t Tier, word int) view {
	v := view{window: Micros(t.Window)}
	if t.Phase == UnknownPhase {
		v.known = word
	}
	return v
}

// stateWords returns how many words the view needs.
func (v *view) stateWords() int {
	if v.known == 0 {
		return 0
	}
	return 3
}

// isKnown reports whether there is a view with a known boundary.
func (v *view) isKnown(s *state) bool { return v != nil && v.known != 0 && s.word[v.known+1] != 0 }

// drift returns how far two clocks diverge at most in a time: by 2^-14 of it, 61 millionths.
func drift(t int64) int64 { return max(0, t) >> 14 }

// leaves returns the instant from which a stamp no longer counts.
func (v *view) leaves(s *state, stamp int64) int64 {
	if stamp == Never {
		return Never
	}
	if !v.isKnown(s) {
		return stamp + v.window
	}
	from, to, asOf := s.word[v.known], s.word[v.known+1], s.word[v.known+2]
	from, to = from-drift(stamp-asOf), to+drift(stamp-asOf)
	next := floorDiv(stamp-from, v.window) + 1 // the stamp came before this boundary
	return min(stamp+v.window, to+next*v.window)
}

// learnBoundary records that a window of the provider ends between two instants. If that
// contradicts the known boundary, the boundary is unknown again.
func (v *view) learnBoundary(s *state, now Moment, from, to int64) {
	w := s.word[v.known:]
	known, since := v.isKnown(s), drift(now.At-w[2])
	knownFrom, knownTo := w[0]-since, w[1]+since
	switch vague := to - from; {
	case vague >= v.window:
		return
	case known && vague+knownTo-knownFrom >= v.window: // these may be two boundaries or one
		if vague >= knownTo-knownFrom {
			return
		}
	case known:
		windows := floorDiv(from+to-knownFrom-knownTo+v.window, 2*v.window) * v.window
		from, to = max(from, knownFrom+windows), min(to, knownTo+windows)
	}
	if from > to {
		from, to = 0, 0
	}
	w[0], w[1], w[2] = from, to, now.At
}

// learned reports whether a boundary is known precisely enough to be of use.
func (v *view) learned(s *state, now Moment) bool {
	return v.isKnown(s) && s.word[v.known+1]-s.word[v.known]+2*drift(now.At-s.word[v.known+2]) < v.window
}

// least returns the shortest time for which a stamp counts. It is zero if a boundary is known.
func (v *view) least(s *state) int64 {
	if v.isKnown(s) {
		return 0
	}
	return v.window
}

// sound reports whether the words of the boundary may be those of one.
func (v *view) sound(s *state) bool {
	w := s.word[v.known : v.known+v.stateWords()]
	return stored(w...) && (len(w) == 0 || w[0] <= w[1])
}
