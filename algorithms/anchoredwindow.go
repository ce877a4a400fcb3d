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

func (r *anchoredWindow) lohi(s *state) (lo, hi *int64) {
	return &s.word[r.bounds], &s.word[r.bounds+1]
}

// closes returns when the last window that may be open has closed, if the last request lands at
// an instant.
func (r *anchoredWindow) closes(s *state, last int64) int64 {
	if lo, hi := r.lohi(s); last < *lo {
		return min(*hi, last+r.window)
	}
	return last + r.window
}

// closed returns closes of the last landing, or now if nothing has landed.
func (r *anchoredWindow) closed(s *state, now Moment) int64 {
	if groups := *s.ring(r.site); len(groups) > 0 {
		return r.closes(s, groups[len(groups)-2])
	}
	return now.At
}

func (r *anchoredWindow) earliest(s *state, now Moment, n int64) int64 {
	if s.estimatesInFlight(r.unit) > 0 { // the instant at which they land is unknown
		return r.slidingWindow.earliest(s, now, n)
	}
	opens := max(now.At, r.closed(s, now))
	for i := range s.slots() {
		if at, carried := s.landing(i, r.unit); carried > 0 {
			opens = max(at, r.closes(s, at))
		}
	}
	return min(opens, r.slidingWindow.earliest(s, now, n))
}

// earliestTotal allows for limit units at the end of a window and limit more at the beginning of
// the next.
func (r *anchoredWindow) earliestTotal(s *state, now Moment, n int64) int64 {
	full, _ := rounds(n, r.limit)
	return after(r.earliest(s, now, min(n, r.limit)), max(0, full-1), r.window)
}

func (r *anchoredWindow) send(s *state, now Moment, _ int64) {
	if s.inFlight(r.unit) == 0 && r.closed(s, now) <= now.At {
		lo, hi := r.lohi(s)
		*lo, *hi = now.At+r.window, opening
		r.clear(s)
	}
}

// proveOpen records that a window was open by an instant. The response to a request that was
// admitted at since or later proves that. If since is before this window, it proves nothing here.
func (r *anchoredWindow) proveOpen(s *state, since, by int64) {
	if lo, hi := r.lohi(s); since >= *lo-r.window {
		*hi = min(*hi, max(*lo, by+r.window))
	}
}

func (r *anchoredWindow) refund(s *state, now Moment, from, n int64) {
	if lo, _ := r.lohi(s); from >= *lo-r.window { // else another window has opened since
		r.slidingWindow.refund(s, now, from, n)
	}
}

// doubtOpen records that it is unknown whether the window is open. The next request that lands proves
// it again.
func (r *anchoredWindow) doubtOpen(s *state) {
	_, hi := r.lohi(s)
	*hi = opening
}

// proveLanded is proveOpen for a request that landed between two instants.
func (r *anchoredWindow) proveLanded(s *state, first, last int64) {
	for groups := *s.ring(r.site); len(groups) > 0; groups = groups[2:] {
		if groups[0] >= first { // by then the request had landed, or another one with a response
			r.proveOpen(s, first-1, min(last, groups[0]))
			return
		}
	}
}

// reopen records that a window has ended. The next one may be opened by requests in flight, or by
// those that have landed since the report of that end.
func (r *anchoredWindow) reopen(s *state) {
	lo, hi := r.lohi(s)
	*lo, *hi = Never, opening
}

// opened returns the earliest instant at which the window that is open now may have opened.
func (r *anchoredWindow) opened(s *state, now Moment) int64 {
	since := now.At - r.window + 1
	if lo, _ := r.lohi(s); *lo != Never {
		since = max(since, *lo-r.window)
	}
	return since
}

func (r *anchoredWindow) used(s *state, now Moment) int64 {
	if r.closed(s, now) <= now.At && s.inFlight(r.unit) == 0 {
		return 0
	}
	return r.slidingWindow.used(s, now)
}

func (r *anchoredWindow) fresh(s *state, now Moment) int64 { return max(now.At, r.closed(s, now)) }

func (r *anchoredWindow) sound(s *state) bool {
	lo, hi := r.lohi(s)
	return r.slidingWindow.sound(s) && (*lo == Never || stored(*lo)) && (*hi == opening || stored(*hi))
}

// later reports whether one instant is that much later than another, or both are Never.
func later(at, before, by int64) bool { return at-before == by || at == Never && before == Never }

func (r *anchoredWindow) recurs(s, o *state, by int64) bool {
	lo, hi := r.lohi(s)
	loBefore, hiBefore := r.lohi(o)
	return r.slidingWindow.recurs(s, o, by) && later(*lo, *loBefore, by) && later(*hi, *hiBefore, by)
}
