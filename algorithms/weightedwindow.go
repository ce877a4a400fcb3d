package algorithms

// weightedWindow admits while current + previous × the part of the previous
// window still in view ≤ limit, in windows of the clock: 100 a minute of which 80
// fell into the last minute leave 100 − 80×¾ = 40 for the first quarter of this
// one. A request on its way counts in full. It remembers three words.
//
// Source: Cloudflare, "How we built rate limiting capable of scaling to millions
// of domains" (2017).
type weightedWindow struct {
	site
	aligned
}

// The number of the current window, its units, and those of the one before.
func (*weightedWindow) words() (words, rings int) { return 3, 0 }

// counts are the units of the window of that index and of the one before it.
type counts struct{ index, current, previous int64 }

func (c counts) roll(index int64) counts {
	switch {
	case index <= c.index:
		return c
	case index == c.index+1:
		return counts{index, 0, c.current}
	default:
		return counts{index, 0, 0}
	}
}

func (r *weightedWindow) counts(l *Ledger, m Moment) counts {
	w := l.word[r.word:]
	return counts{w[0], w[1], w[2]}.roll(r.index(m, w[0]))
}

func (r *weightedWindow) earliest(l *Ledger, now Moment, n int64) int64 {
	c, aloft := r.counts(l, now), l.aloft(r.unit)
	for t, slot := now.At, 0; ; {
		end := r.start(now, c.index+1)
		if free := r.limit - c.current - aloft - n; free >= 0 {
			if at := max(t, end-r.inView(free, c.previous)); at < end {
				return at
			}
		}
		next := c.index + 1
		if slot == l.slots() && aloft+n > r.limit {
			return Never // estimates
		}
		for ; slot < l.slots(); slot++ {
			at, carried := l.landing(slot, r.unit)
			if at >= end {
				if aloft+n > r.limit { // nothing can pass before it lands
					next = max(next, r.index(now.on(at), c.index))
				}
				break
			}
			c.current += carried
			aloft -= carried
		}
		c = c.roll(next)
		t = r.start(now, c.index)
	}
}

// inView is how much of the previous window may still be in view for its units
// to weigh no more than free.
func (r *weightedWindow) inView(free, previous int64) int64 {
	if previous <= free {
		return r.window
	}
	view, _ := mulDiv(free, r.window, previous)
	return view
}

func (r *weightedWindow) land(l *Ledger, at Moment, n int64) {
	c := r.counts(l, at)
	copy(l.word[r.word:], []int64{c.index, c.current + n, c.previous})
}

func (r *weightedWindow) used(l *Ledger, now Moment) int64 {
	c := r.counts(l, now)
	return c.current + ceilMulDiv(c.previous, min(r.window, r.start(now, c.index+1)-now.At), r.window)
}

func (r *weightedWindow) forget(l *Ledger, now Moment, keep int64) {
	for r.used(l, now) > keep {
		c := r.counts(l, now)
		if c.previous > 0 {
			c.previous = 0
		} else {
			c.current = keep
		}
		copy(l.word[r.word:], []int64{c.index, c.current, c.previous})
	}
}

func (r *weightedWindow) fresh(l *Ledger, now Moment) int64 {
	switch c := r.counts(l, now); {
	case c.current > 0:
		return r.start(now, c.index+2)
	case c.previous > 0:
		return r.start(now, c.index+1)
	default:
		return now.At
	}
}
