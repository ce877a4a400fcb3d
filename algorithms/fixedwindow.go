package algorithms

import "math"

// aligned divides wall time into windows that begin at phase after the Unix epoch.
//
// A wall clock that steps back does not reopen a window. But a landed unit counts for at most one
// window, by the clock that never steps. Then the windows are those of the wall clock again. If it
// steps back by more than a window, the date was wrong, see dated.
type aligned struct {
	limit, window, phase int64
}

func newAligned(t Tier) aligned { return aligned{t.Limit, Micros(t.Window), Micros(t.Phase)} }

// number returns the number of the window that the wall clock shows.
func (a aligned) number(m Moment) int64 { return floorDiv(m.Wall-a.phase, a.window) }

// dated returns the number of the window of the last landing, which was at last, in the window
// numbered landed. If the wall clock has since stepped back to before the window before that one, it
// is the window that the clock now shows for last. Otherwise the units of all windows until the
// wrong date would count as those of one window.
func (a aligned) dated(m Moment, landed, last int64) int64 {
	if n := a.number(m.on(last)); n < landed-1 {
		return n
	}
	return landed
}

// ended reports whether the window numbered landed, of a landing at last, has ended.
func (a aligned) ended(m Moment, landed, last int64) bool {
	return a.number(m) > landed || m.At >= last+a.window
}

// index returns the number of the window in which a moment counts. The last landing was at last,
// in the window numbered landed.
func (a aligned) index(m Moment, landed, last int64) int64 {
	if a.ended(m, landed, last) {
		return a.number(m)
	}
	return landed
}

// start returns the instant at which a window opens, on the clock that never steps.
func (a aligned) start(now Moment, index int64) int64 {
	return index*a.window + a.phase - now.Wall + now.At
}

// closes returns the instant from which a landing at m, in the window with that number, no longer
// counts.
func (a aligned) closes(m Moment, index int64) int64 {
	return min(a.start(m, index+1), m.At+a.window)
}

// indexSound reports whether a window may have that number.
func (a aligned) indexSound(index int64) bool { return index >= 0 && index <= mostStored/a.window }

var fixedWindowCounter = counter{
	name:    "fixed_window",
	newRule: func(t Tier, s site) rule { return &fixedWindow{s, newAligned(t)} },
	// A unit that leaves as a window opens counts until the end of the window in which it lands.
	rate: func(limit, window, _, guard float64) float64 {
		return limit / (window * (1 + math.Floor(guard/window)))
	},
	phase:   true,
	aligned: true,
	reopens: true,
}

// fixedWindow admits at most limit units in every window of the clock. Twice the limit can pass
// around a boundary, as it can at the provider: "100 a minute" is 100 at 12:00:59 and 100 more at
// 12:01:00. A request in flight counts in every window in which it may arrive.
//
// Source: the request weights of Binance, "00:01:23 counts to the 00:01:00 minute".
//
// Memory: three words.
type fixedWindow struct {
	site
	aligned
}

// The words are the number of the window of the last landing, the units that landed in it, and the
// instant of that landing.
func (*fixedWindow) words() (words, rings int) { return 3, 0 }

func (r *fixedWindow) earliest(l *Ledger, now Moment, n int64) int64 {
	w, landed, inFlight := l.word[r.word:], r.used(l, now), l.inFlight(r.unit)
	if landed+inFlight+n <= r.limit {
		return now.At
	}
	// A boundary clears what has landed, but not what is in flight across it. After the wall clock
	// was set back, a landing before the boundary may postpone it.
	next, index, last := now.At, w[0], w[2]
	if landed > 0 {
		next = r.closes(now.on(last), index)
	}
	for i := range l.slots() {
		at, carried := l.landing(i, r.unit)
		if inFlight+n <= r.limit && at >= next {
			break
		}
		if carried > 0 {
			index, last = r.index(now.on(at), index, last), at
			next = max(next, r.closes(now.on(at), index))
		}
		inFlight -= carried
	}
	if inFlight+n > r.limit {
		return Never // estimates
	}
	return next
}

func (r *fixedWindow) earliestTotal(l *Ledger, now Moment, n int64) int64 {
	full, _ := rounds(n, r.limit)
	return after(r.earliest(l, now, min(n, r.limit)), max(0, full-1), r.window)
}

func (r *fixedWindow) land(l *Ledger, at Moment, n int64) {
	w := l.word[r.word:]
	w[0], w[1], w[2] = r.index(at, w[0], w[2]), r.used(l, at)+n, at.At
}

func (r *fixedWindow) used(l *Ledger, now Moment) int64 {
	w := l.word[r.word:]
	if r.ended(now, w[0], w[2]) {
		return 0
	}
	return w[1]
}

func (r *fixedWindow) correct(l *Ledger, now Moment) {
	w := l.word[r.word:]
	w[0] = r.dated(now, w[0], w[2])
}

func (r *fixedWindow) opened(_ *Ledger, now Moment) int64 { return r.start(now, r.number(now)) }

func (r *fixedWindow) forget(l *Ledger, now Moment, keep int64) {
	if r.used(l, now) > keep {
		l.word[r.word+1] = keep
	}
}

func (r *fixedWindow) fresh(l *Ledger, now Moment) int64 {
	if r.used(l, now) == 0 {
		return now.At
	}
	w := l.word[r.word:]
	return r.closes(now.on(w[2]), w[0])
}

func (r *fixedWindow) sound(l *Ledger) bool {
	return r.indexSound(l.word[r.word]) && stored(l.word[r.word+1:r.word+3]...)
}
