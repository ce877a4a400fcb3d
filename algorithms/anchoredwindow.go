package algorithms

// anchoredWindow admits at most limit units in the window that opens with the
// first request, and the next request after it opens another: what a counter with
// an expiry does.
//
// Nobody knows when the opening request arrived, so the window may close at any
// instant from lo, a window after it was admitted, to hi, a window after it was
// known to have landed. When hi has passed and nothing has landed since lo or is on
// its way, the next request surely opens a window and may use all of it. Else no
// one knows which window the provider is in, and the rolling bound is kept, which
// holds for whatever windows it opened. Memory is that of the rolling bound, 1 KB.
//
// Source: the INCR and EXPIRE pattern of the Redis documentation of INCR.
type anchoredWindow struct {
	slidingWindow     // of what landed since the window surely opened
	bounds        int // where lo and hi are
}

// opening is the hi of a window of which no request has landed yet.
const opening = Never

func newAnchoredWindow(t Tier, s site) *anchoredWindow {
	t.Algorithm = SlidingWindow
	rolling := newSlidingWindow(t.normal(), s)
	words, _ := rolling.words()
	return &anchoredWindow{*rolling, s.word + words}
}

func (*anchoredWindow) words() (words, rings int) { return 3, 1 }

func (r *anchoredWindow) lohi(l *Ledger) (lo, hi *int64) {
	return &l.word[r.bounds], &l.word[r.bounds+1]
}

// landed is what hi becomes when a request lands.
func (r *anchoredWindow) landed(lo, hi, at int64) int64 {
	if hi == opening || at >= lo {
		return at + r.window
	}
	return hi
}

func (r *anchoredWindow) earliest(l *Ledger, now Moment, n int64) int64 {
	if l.unslotted(r.unit) > 0 { // nobody knows when it lands
		return r.slidingWindow.earliest(l, now, n)
	}
	plo, phi := r.lohi(l)
	hi, opens := *phi, now.At
	for i := range l.slots() {
		if at, carried := l.landing(i, r.unit); carried > 0 {
			hi, opens = r.landed(*plo, hi, at), at
		}
	}
	if hi != opening { // else all that was sent since it opened was cancelled
		opens = max(opens, hi)
	}
	return min(opens, r.slidingWindow.earliest(l, now, n))
}

func (r *anchoredWindow) depart(l *Ledger, now Moment, _ int64) {
	lo, hi := r.lohi(l)
	if l.aloft(r.unit) == 0 && (*hi == opening || *hi <= now.At) {
		*lo, *hi = now.At+r.window, opening
		r.clear(l)
	}
}

func (r *anchoredWindow) land(l *Ledger, at Moment, n int64) {
	lo, hi := r.lohi(l)
	*hi = r.landed(*lo, *hi, at.At)
	r.slidingWindow.land(l, at, n)
}

func (r *anchoredWindow) used(l *Ledger, now Moment) int64 {
	if _, hi := r.lohi(l); *hi <= now.At && l.aloft(r.unit) == 0 {
		return 0
	}
	return r.slidingWindow.used(l, now)
}

func (r *anchoredWindow) forget(l *Ledger, now Moment, keep int64) {
	if r.slidingWindow.forget(l, now, keep); keep == 0 && l.aloft(r.unit) == 0 {
		lo, hi := r.lohi(l)
		*lo, *hi = 0, 0
	}
}

func (r *anchoredWindow) fresh(l *Ledger, now Moment) int64 {
	if _, hi := r.lohi(l); *hi != opening {
		return max(now.At, *hi)
	}
	return now.At
}
