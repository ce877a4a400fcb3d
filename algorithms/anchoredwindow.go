package algorithms

var anchoredWindowCounter = counter{
	name:    "anchored_window",
	newRule: func(t Tier, s site) rule { return newAnchoredWindow(t, s) },
	rate:    rollingRate,
	reopens: true,
}

// anchoredWindow admits at most limit units in the window that opens with the first request. The
// next request after that window opens another. This is how a counter with an expiry counts.
//
// A request's response proves that it arrived, but not when. So the window closes at lo at the
// earliest, a window after its first request was admitted, and at hi at the latest, a window after
// it was certainly open. Until a response proves that it is, any request may have opened it, even
// the last one. A request that lands at lo or later may have opened another window.
//
// When every window that may be open has closed and nothing is in flight, the next request
// certainly opens one, and the whole limit is free. Otherwise the rolling bound applies. It holds
// for whatever windows the provider has opened and whatever requests were lost, and without
// responses it is the best bound there is.
//
// Source: the INCR and EXPIRE pattern of the Redis documentation of INCR.
//
// Memory: that of slidingWindow, 1 KB, and two words.
type anchoredWindow struct {
	slidingWindow     // the units that landed since a window certainly opened
	bounds        int // the index of lo, which hi follows
}

// opening is the hi of a window that may not be open yet.
const opening = Never

func newAnchoredWindow(t Tier, s site) *anchoredWindow {
	t.Precision = usualPrecision(t.Window)
	rolling := newSlidingWindow(t, s)
	words, _ := rolling.words()
	return &anchoredWindow{*rolling, s.word + words}
}

func (*anchoredWindow) words() (words, rings int) { return 3, 1 }

func (r *anchoredWindow) lohi(l *Ledger) (lo, hi *int64) {
	return &l.word[r.bounds], &l.word[r.bounds+1]
}

// closes returns when the last window that may be open has closed, if the last request lands at
// an instant.
func (r *anchoredWindow) closes(l *Ledger, last int64) int64 {
	if lo, hi := r.lohi(l); last < *lo {
		return min(*hi, last+r.window)
	}
	return last + r.window
}

// closed returns closes of the last landing, or now if nothing has landed.
func (r *anchoredWindow) closed(l *Ledger, now Moment) int64 {
	if groups := *l.ring(r.site); len(groups) > 0 {
		return r.closes(l, groups[len(groups)-2])
	}
	return now.At
}

func (r *anchoredWindow) earliest(l *Ledger, now Moment, n int64) int64 {
	if l.estimatesInFlight(r.unit) > 0 { // the instant at which they land is unknown
		return r.slidingWindow.earliest(l, now, n)
	}
	opens := max(now.At, r.closed(l, now))
	for i := range l.slots() {
		if at, carried := l.landing(i, r.unit); carried > 0 {
			opens = max(at, r.closes(l, at))
		}
	}
	return min(opens, r.slidingWindow.earliest(l, now, n))
}

// earliestTotal allows for limit units at the end of a window and limit more at the beginning of
// the next.
func (r *anchoredWindow) earliestTotal(l *Ledger, now Moment, n int64) int64 {
	full, _ := rounds(n, r.limit)
	return after(r.earliest(l, now, min(n, r.limit)), max(0, full-1), r.window)
}

func (r *anchoredWindow) send(l *Ledger, now Moment, _ int64) {
	if l.inFlight(r.unit) == 0 && r.closed(l, now) <= now.At {
		lo, hi := r.lohi(l)
		*lo, *hi = now.At+r.window, opening
		r.clear(l)
	}
}

// proveOpen records that a window was open by an instant. The response to a request that was
// admitted at since or later proves that. If since is before this window, it proves nothing here.
func (r *anchoredWindow) proveOpen(l *Ledger, since, by int64) {
	if lo, hi := r.lohi(l); since >= *lo-r.window {
		*hi = min(*hi, max(*lo, by+r.window))
	}
}

func (r *anchoredWindow) refund(l *Ledger, now Moment, from, n int64) {
	if lo, _ := r.lohi(l); from >= *lo-r.window { // else another window has opened since
		r.slidingWindow.refund(l, now, from, n)
	}
}

// doubtOpen records that it is unknown whether the window is open. The next request that lands proves
// it again.
func (r *anchoredWindow) doubtOpen(l *Ledger) {
	_, hi := r.lohi(l)
	*hi = opening
}

// proveLanded is proveOpen for a request that landed between two instants.
func (r *anchoredWindow) proveLanded(l *Ledger, first, last int64) {
	for groups := *l.ring(r.site); len(groups) > 0; groups = groups[2:] {
		if groups[0] >= first { // by then the request had landed, or another one with a response
			r.proveOpen(l, first-1, min(last, groups[0]))
			return
		}
	}
}

// reopen records that a window has ended. The next one may be opened by requests in flight, or by
// those that have landed since the report of that end.
func (r *anchoredWindow) reopen(l *Ledger) {
	lo, hi := r.lohi(l)
	*lo, *hi = Never, opening
}

// opened returns the earliest instant at which the window that is open now may have opened.
func (r *anchoredWindow) opened(l *Ledger, now Moment) int64 {
	since := now.At - r.window + 1
	if lo, _ := r.lohi(l); *lo != Never {
		since = max(since, *lo-r.window)
	}
	return since
}

func (r *anchoredWindow) used(l *Ledger, now Moment) int64 {
	if r.closed(l, now) <= now.At && l.inFlight(r.unit) == 0 {
		return 0
	}
	return r.slidingWindow.used(l, now)
}

func (r *anchoredWindow) fresh(l *Ledger, now Moment) int64 { return max(now.At, r.closed(l, now)) }

func (r *anchoredWindow) sound(l *Ledger) bool {
	lo, hi := r.lohi(l)
	return r.slidingWindow.sound(l) && (*lo == Never || stored(*lo)) && (*hi == opening || stored(*hi))
}

// later reports whether one instant is that much later than another, or both are Never.
func later(at, before, by int64) bool { return at-before == by || at == Never && before == Never }

func (r *anchoredWindow) recurs(l, o *Ledger, by int64) bool {
	lo, hi := r.lohi(l)
	loBefore, hiBefore := r.lohi(o)
	return r.slidingWindow.recurs(l, o, by) && later(*lo, *loBefore, by) && later(*hi, *hiBefore, by)
}
