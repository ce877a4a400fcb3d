package algorithms

// A view is how long the provider counts a landed unit: for one window or, if a boundary of the
// provider's windows is known, until the next boundary.
type view struct {
	window int64
	known  int // index of the three words of the known boundary; 0 if the view keeps none
}

// A viewer is a rule whose view may be narrowed by a known boundary.
type viewer interface{ boundaries() *view }

func (v *view) boundaries() *view { return v }

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

// drift returns how far two clocks diverge at most in a time: by 2^-14 of it, 61 millionths.
func drift(t int64) int64 { return max(0, t) >> 14 }

// leaves returns the instant from which a stamp no longer counts.
func (v *view) leaves(l *Ledger, stamp int64) int64 {
	if stamp == Never {
		return Never
	}
	if v.known == 0 || l.word[v.known+1] == 0 {
		return stamp + v.window
	}
	from, to, asOf := l.word[v.known], l.word[v.known+1], l.word[v.known+2]
	from, to = from-drift(stamp-asOf), to+drift(stamp-asOf)
	next := floorDiv(stamp-from, v.window) + 1 // the stamp came before this boundary
	return min(stamp+v.window, to+next*v.window)
}

// learnBoundary records that a window of the provider ends between two instants. If that
// contradicts the known boundary, the boundary is unknown again.
func (v *view) learnBoundary(l *Ledger, now Moment, from, to int64) {
	w := l.word[v.known:]
	known, since := w[1] != 0, drift(now.At-w[2])
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

// Learned reports whether a boundary of the windows of a tier is known precisely enough to be of
// use.
func (l *Ledger) Learned(now Moment) bool {
	for i := range l.plan.rules {
		if v := l.plan.phased(i); v != nil && l.word[v.known+1] != 0 {
			vague := l.word[v.known+1] - l.word[v.known] + 2*drift(now.At-l.word[v.known+2])
			if vague < v.window {
				return true
			}
		}
	}
	return false
}

// phased returns the view of a tier of UnknownPhase, or nil if the tier has another phase.
func (p *Plan) phased(tier int) *view {
	if v, ok := p.rules[tier].(viewer); ok && v.boundaries().known > 0 {
		return v.boundaries()
	}
	return nil
}

// knowsBoundary reports whether a boundary of the windows of a tier of UnknownPhase is known.
func (l *Ledger) knowsBoundary(tier int) bool {
	v := l.plan.phased(tier)
	return v != nil && l.word[v.known+1] != 0
}

// Boundary records that a window of a tier of UnknownPhase ends between two instants. For another
// tier it changes nothing.
func (l *Ledger) Boundary(now Moment, tier int, from, to int64) {
	if v := l.plan.phased(tier); v != nil {
		v.learnBoundary(l, l.advance(now), from, to)
	}
}

// least returns the shortest time for which a stamp counts. It is zero if a boundary is known.
func (v *view) least(l *Ledger) int64 {
	if v.known == 0 || l.word[v.known+1] == 0 {
		return v.window
	}
	return 0
}
