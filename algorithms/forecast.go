package algorithms

// EarliestTotal returns a lower bound of the instant at which the tiers admit a cost with a
// headroom, behind an amount of other requests. It also returns the tier that decides, or -1 if
// that instant is now. The amount ahead may be far above the capacity of every tier. The bound is
// exact for one tier and requests of one unit whose responses come at once. It leaves out budgets,
// because a request does not wait for them, and estimates, because they may settle at zero.
func (l *Ledger) EarliestTotal(now Moment, ahead, cost []int64, headroom int64) (at int64, tier int) {
	now = l.advance(now)
	at, tier = now.At, -1
	for i, r := range l.plan.rules {
		unit := l.plan.unit[i]
		if cost[unit] <= 0 || l.plan.tiers[i].Budget || l.plan.estimated[unit] {
			continue
		}
		n := ahead[unit] + l.withHeadroom(i, cost[unit], headroom)
		e := r.earliestTotal(l, now, n)
		if l.readings != nil {
			e = min(e, l.nextReset(i, now))
		}
		if e > at {
			at, tier = e, i
		}
	}
	return at, tier
}

// rounds returns how many times the limit fits into n before the last unit, and the rest of n.
func rounds(n, limit int64) (full, rest int64) {
	full = (n - 1) / limit
	return full, n - full*limit
}

// after returns the instant that many windows later, or Never if that is after Latest.
func after(at, windows, window int64) int64 {
	switch {
	case windows == 0 || window == 0:
		return at
	case at >= Latest || windows > (Latest-at)/window:
		return Never
	}
	return at + windows*window
}

// earliestTotal is exact: the n-th unit goes a window after the (n−limit)-th.
func (r *slidingLog) earliestTotal(l *Ledger, now Moment, n int64) int64 {
	full, rest := rounds(n, r.limit)
	return after(r.earliest(l, now, rest), full, r.least(l))
}

func (r *slidingWindow) earliestTotal(l *Ledger, now Moment, n int64) int64 {
	full, rest := rounds(n, r.limit)
	return after(r.earliest(l, now, rest), full, r.least(l))
}

// least returns the shortest time for which a stamp counts. It is zero if a boundary is known.
func (v *view) least(l *Ledger) int64 {
	if v.known == 0 || l.word[v.known+1] == 0 {
		return v.window
	}
	return 0
}

// earliestTotal allows for limit units at the end of a window and limit more at the beginning of
// the next.
func (r *anchoredWindow) earliestTotal(l *Ledger, now Moment, n int64) int64 {
	full, _ := rounds(n, r.limit)
	return after(r.earliest(l, now, min(n, r.limit)), max(0, full-1), r.window)
}

func (r *fixedWindow) earliestTotal(l *Ledger, now Moment, n int64) int64 {
	full, _ := rounds(n, r.limit)
	return after(r.earliest(l, now, min(n, r.limit)), max(0, full-1), r.window)
}

// earliestTotal counts whole windows only. At most limit units pass in each.
func (r *weightedWindow) earliestTotal(l *Ledger, now Moment, n int64) int64 {
	c := r.counts(l, now)
	if n -= r.limit - c.current; n <= 0 {
		return now.At
	}
	full, _ := rounds(n, r.limit)
	return after(r.start(now, c.index+1), full, r.window)
}

func (r *calendar) earliestTotal(l *Ledger, now Moment, n int64) int64 {
	full, _ := rounds(n, r.limit)
	return after(r.earliest(l, now, min(n, r.limit)), max(0, full-1), shortestDay)
}

// shortestDay is less than any day in microseconds, also of a day on which clocks are set forward.
const shortestDay = 22 * 60 * 60 * 1_000_000

// earliestTotal is exact except for what is in flight, which counts as landed.
func (r *bucket) earliestTotal(l *Ledger, now Moment, n int64) int64 {
	t := r.tat(l)
	if t.at < now.At {
		t = tat{now.At, 0}
	}
	if n += l.inFlight(r.unit); n <= r.burst {
		return r.admits(now.At, t, r.burst-n)
	}
	step, rest := mulDiv(n-r.burst, r.window, r.limit)
	if step >= Latest-t.at {
		return Never
	}
	if t.at += step; t.part+rest > 0 {
		t.at += (t.part + rest + r.limit - 1) / r.limit
	}
	return t.at
}

// earliestTotal assumes that every place is free.
func (*concurrency) earliestTotal(_ *Ledger, now Moment, _ int64) int64 { return now.At }
