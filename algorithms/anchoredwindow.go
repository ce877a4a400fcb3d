package algorithms

var anchoredWindowCounter = counter{
	name:    "anchored_window",
	newRule: func(t Tier, s site) rule { return newAnchoredWindow(t, s) },
	rate:    rollingRate,
}

// anchoredWindow admits at most limit units in the window that opens with the
// first request, and the next request after it opens another: what a counter with
// an expiry does.
//
// Nobody knows when the opening request arrived, nor whether the first that was
// admitted did: only a response proves that. So the window closes at lo at the
// earliest, a window after its first request was admitted, and at hi at the latest, a
// window after it was surely open. Until a response proves that, any request may
// have opened it, the last too. What lands from lo on may have opened another.
//
// When every window that may be open has closed and nothing is on its way, the
// next request surely opens one, and all may use all of it. Else the rolling
// bound is kept, which holds for whatever windows the provider opened, and
// whatever requests were lost: without responses it is the best bound there is.
// Memory is that of the rolling bound, 1 KB.
//
// Source: the INCR and EXPIRE pattern of the Redis documentation of INCR.
type anchoredWindow struct {
	slidingWindow     // of what landed since the window surely opened
	bounds        int // where lo and hi are
}

// opening is the hi of a window that may not be open.
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

// closes is when the last window that may be open has closed, if the last request
// lands at an instant.
func (r *anchoredWindow) closes(l *Ledger, last int64) int64 {
	if lo, hi := r.lohi(l); last < *lo {
		return min(*hi, last+r.window)
	}
	return last + r.window
}

// closed is closes of what has landed; now if that is nothing.
func (r *anchoredWindow) closed(l *Ledger, now Moment) int64 {
	if groups := *l.ring(r.site); len(groups) > 0 {
		return r.closes(l, groups[len(groups)-2])
	}
	return now.At
}

func (r *anchoredWindow) earliest(l *Ledger, now Moment, n int64) int64 {
	if l.estimatesInFlight(r.unit) > 0 { // nobody knows when it lands
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

func (r *anchoredWindow) send(l *Ledger, now Moment, _ int64) {
	if l.inFlight(r.unit) == 0 && r.closed(l, now) <= now.At {
		lo, hi := r.lohi(l)
		*lo, *hi = now.At+r.window, opening
		r.clear(l)
	}
}

// prove is told that a window was open by an instant, as the response to a request proves
// that was admitted at since or later: this one, unless that was before it.
func (r *anchoredWindow) proveOpen(l *Ledger, since, by int64) {
	if lo, hi := r.lohi(l); since >= *lo-r.window {
		*hi = min(*hi, max(*lo, by+r.window))
	}
}

// proveLanded is prove for a request that landed between two instants.
func (r *anchoredWindow) proveLanded(l *Ledger, first, last int64) {
	for groups := *l.ring(r.site); len(groups) > 0; groups = groups[2:] {
		if groups[0] >= first { // the request, or one of which a response has told, landed by then
			r.proveOpen(l, first-1, min(last, groups[0]))
			return
		}
	}
}

// reopen is told that a window has ended, and that nobody knows when the next one opens: what is
// on its way may open it, and so may what has landed since that end was told.
func (r *anchoredWindow) reopen(l *Ledger) {
	lo, hi := r.lohi(l)
	*lo, *hi = Never, opening
}

func (r *anchoredWindow) used(l *Ledger, now Moment) int64 {
	if r.closed(l, now) <= now.At && l.inFlight(r.unit) == 0 {
		return 0
	}
	return r.slidingWindow.used(l, now)
}

func (r *anchoredWindow) fresh(l *Ledger, now Moment) int64 { return max(now.At, r.closed(l, now)) }
