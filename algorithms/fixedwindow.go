package algorithms

// aligned cuts wall time into windows that start at phase after the Unix epoch.
type aligned struct {
	limit, window, phase int64
}

func newAligned(t Tier) aligned { return aligned{t.Limit, Micros(t.Window), Micros(t.Phase)} }

// index is the number of the window of a moment, but never less than least: a
// wall clock that steps back does not reopen a window.
func (a aligned) index(m Moment, least int64) int64 {
	return max(least, floorDiv(m.Wall-a.phase, a.window))
}

// start is the instant at which a window opens, on the clock that never steps.
func (a aligned) start(now Moment, index int64) int64 {
	return index*a.window + a.phase - now.Wall + now.At
}

// fixedWindow admits at most limit units in every window of the clock. Twice the
// limit can pass around a boundary, as it can at the provider: "100 a minute" is
// 100 at 12:00:59 and 100 more at 12:01:00. A request on its way counts in every
// window that it may arrive in. It remembers two words.
//
// Source: the request weights of Binance, "00:01:23 counts to the 00:01:00 minute".
type fixedWindow struct {
	site
	aligned
}

// The number of the current window, and the units that landed in it.
func (*fixedWindow) words() (words, rings int) { return 2, 0 }

func (r *fixedWindow) earliest(l *Ledger, now Moment, n int64) int64 {
	w := l.word[r.word:]
	current := r.index(now, w[0])
	aloft := l.aloft(r.unit)
	if landed := r.used(l, now); landed+aloft+n <= r.limit {
		return now.At
	}
	// A boundary clears what has landed, but not what is on its way across it.
	next := current + 1
	for i := 0; aloft+n > r.limit; i++ {
		if i == l.slots() {
			return Never // estimates
		}
		at, carried := l.landing(i, r.unit)
		aloft -= carried
		next = max(next, r.index(now.on(at), current)+1)
	}
	return r.start(now, next)
}

func (r *fixedWindow) land(l *Ledger, at Moment, n int64) {
	w := l.word[r.word:]
	w[1] = r.used(l, at) + n
	w[0] = r.index(at, w[0])
}

func (r *fixedWindow) used(l *Ledger, now Moment) int64 {
	w := l.word[r.word:]
	if r.index(now, w[0]) > w[0] {
		return 0
	}
	return w[1]
}

func (r *fixedWindow) opened(l *Ledger, now Moment) int64 {
	return r.start(now, r.index(now, l.word[r.word]))
}

func (r *fixedWindow) forget(l *Ledger, now Moment, keep int64) {
	if r.used(l, now) > keep {
		l.word[r.word+1] = keep
	}
}

func (r *fixedWindow) fresh(l *Ledger, now Moment) int64 {
	if r.used(l, now) == 0 {
		return now.At
	}
	return r.start(now, l.word[r.word]+1)
}
