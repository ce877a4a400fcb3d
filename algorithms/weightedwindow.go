package algorithms

var weightedWindowCounter = counter{
	name:    "weighted_window",
	newRule: func(t Tier, s site) rule { return &weightedWindow{s, newAligned(t)} },
	rate:    func(limit, window, _, _ float64) float64 { return limit / window },
	phase:   true,
	aligned: true,
}

// weightedWindow admits a request while current + previous × the part of the previous window still
// in view ≤ limit, in windows of the clock. For example, 100 a minute with 80 in the last minute
// leave 100 − 80×¾ = 40 for the first quarter of this one. A request in flight counts in full.
//
// Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains"
// (2017).
//
// Memory: four words.
type weightedWindow struct {
	site
	aligned
}

// The words are the counts of the window of the last landing.
func (*weightedWindow) words() (words, rings int) { return 4, 0 }

// counts are the number of a window, the units that landed in it and in the window before it, and
// the instant of the last landing.
type counts struct{ index, current, previous, last int64 }

// roll returns the counts at a moment.
func (r *weightedWindow) roll(c counts, m Moment) counts {
	if n := r.index(m.on(c.last)); n < c.index && m.At >= c.last+r.window {
		// The clock was set back, so the units landed in another window.
		c = counts{n, c.current + c.previous, 0, c.last}
	}
	switch index := max(c.index, r.index(m)); index {
	case c.index:
		return c
	case c.index + 1:
		return counts{index, 0, c.current, c.last}
	default:
		return counts{index, 0, 0, c.last}
	}
}

// nextRoll returns the instant at which the counts of a moment change, if nothing lands before.
func (r *weightedWindow) nextRoll(c counts, m Moment) int64 {
	end, over := r.end(m, c.index), c.last+r.window
	if m.At < over && r.index(m.on(c.last)) < c.index {
		end = min(end, over)
	}
	return end
}

func (r *weightedWindow) counts(s *state, m Moment) counts {
	w := s.word[r.word:]
	return r.roll(counts{w[0], w[1], w[2], w[3]}, m)
}

func (r *weightedWindow) set(s *state, c counts) {
	copy(s.word[r.word:], []int64{c.index, c.current, c.previous, c.last})
}

// correct counts the previous units as current ones, too, because a wrong date tells nothing about
// them.
func (r *weightedWindow) correct(s *state, now Moment) {
	w := s.word[r.word:]
	if r.misdated(now, w[0], w[3]) {
		r.set(s, counts{r.index(now.on(w[3])), w[1] + w[2], 0, w[3]})
	}
}

func (r *weightedWindow) earliest(s *state, now Moment, n int64) int64 {
	c, inFlight := r.counts(s, now), s.inFlight(r.unit)
	for slot := 0; ; {
		end := r.nextRoll(c, now)
		lands := int64(Never) // the first landing after end
		for ; slot < s.slots(); slot++ {
			at, carried := s.landing(slot, r.unit)
			if at >= end {
				lands = at
				break
			}
			if carried > 0 {
				c.current, c.last = c.current+carried, at
				inFlight -= carried
				end = r.nextRoll(c, now)
			}
		}
		if free := r.limit - c.current - inFlight - n; free >= 0 {
			if at := r.leaves(c, now, free); at < end {
				return at
			}
		}
		if inFlight+n > r.limit { // n units must wait for a landing
			end = lands
		}
		if end == Never {
			return Never // estimates
		}
		now = now.on(end)
		c = r.roll(c, now)
	}
}

// earliestTotal counts whole windows only. At most limit units pass in each.
func (r *weightedWindow) earliestTotal(s *state, now Moment, n int64) int64 {
	c := r.counts(s, now)
	if n -= r.limit - c.current; n <= 0 {
		return now.At
	}
	full, _ := rounds(n, r.limit)
	return after(r.end(now, c.index), full, r.window)
}

// leaves returns the first instant from now on at which the units of the previous window weigh at
// most free.
func (r *weightedWindow) leaves(c counts, now Moment, free int64) int64 {
	if c.previous <= free {
		return now.At
	}
	view, _ := mulDiv(free, r.window, c.previous)
	return max(now.At, r.end(now, c.index)-view)
}

func (r *weightedWindow) land(s *state, at Moment, n int64) {
	c := r.counts(s, at)
	c.current, c.last = c.current+n, at.At
	r.set(s, c)
}

func (r *weightedWindow) used(s *state, now Moment) int64 {
	c := r.counts(s, now)
	return c.current + ceilMulDiv(c.previous, min(r.window, r.end(now, c.index)-now.At), r.window)
}

func (r *weightedWindow) forget(s *state, now Moment, keep int64) {
	for r.used(s, now) > keep {
		c := r.counts(s, now)
		if c.previous > 0 {
			c.previous = 0
		} else {
			c.current = keep
		}
		r.set(s, c)
	}
}

func (r *weightedWindow) refund(s *state, now Moment, from, n int64) {
	w := s.word[r.word:]
	switch r.index(now.on(from)) {
	case w[0]:
		w[1] -= min(n, w[1])
	case w[0] - 1:
		w[2] -= min(n, w[2])
	}
}

func (r *weightedWindow) fresh(s *state, now Moment) int64 {
	c := r.counts(s, now)
	for c.current > 0 || c.previous > 0 {
		now = now.on(r.nextRoll(c, now))
		c = r.roll(c, now)
	}
	return now.At
}

func (r *weightedWindow) sound(s *state) bool {
	return r.aligned.sound(s.word[r.word : r.word+4])
}

func (r *weightedWindow) recurs(s, o *state, by int64) bool {
	return r.aligned.recurs(s.word[r.word:r.word+4], o.word[r.word:r.word+4], by)
}
