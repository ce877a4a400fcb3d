package batch

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/projection"
)

// The model of the limits has amounts in items and times in seconds from now on, as fractions: the exact order of
// single requests does not matter for the time that thousands take.

// A limit is one tier. It is a bucket, which is refilled at its rate, or it has windows.
type limit struct {
	most   float64 // at once, or in a window
	rate   float64 // a second in the long run
	used   float64
	budget bool // the member admits nothing more when the limit is used up

	window float64                 // the length of a window
	until  func(t float64) float64 // when what is charged at t is free again; nil if the limit is a bucket
	frees  []free                  // when used is free again
	steps  []float64               // what is free again at each step of a play; nil if the limit is like a bucket
}

// A free is when items no longer count in a window.
type free struct{ at, n float64 }

// A member is a Limiter or a member of a Pool.
type member struct {
	limits []limit
	opens  float64 // when its pause or ban ends: +Inf after a budget
}

// A rest is what remains of a job.
type rest struct {
	members []member
	items   float64
	share   float64 // the part of what the limits admit that this job gets
	most    float64 // items a second, by what is not a limit
}

const (
	playedSteps = 1_000
	leastSteps  = 50   // of a window; a shorter one is like a bucket
	unlimited   = 1e15 // items
	enough      = 0.99 // of the items: another window for the last ones would be an accident of rounding
)

// end returns when the last item is admitted: +Inf for never. It plays short steps first, and longer ones if the job
// takes more.
func (r *rest) end() float64 {
	for within := 1.0; within < 1e9; within *= 4 {
		if _, at, ends := r.play(within); ends {
			return at
		}
	}
	return math.Inf(1)
}

// play plays the next seconds, step by step, until all items are admitted, or budgets end the job.
func (r *rest) play(within float64) (admitted, at float64, ends bool) {
	step, rooms := within/playedSteps, make([]float64, len(r.members))
	members := make([]member, len(r.members))
	for i, m := range r.members {
		members[i] = m.begin(step)
	}
	for k := range playedSteps {
		room, opens := 0.0, math.Inf(1)
		for i := range members {
			rooms[i] = members[i].room(k, step, r.items*enough-admitted)
			room += rooms[i]
			opens = min(opens, members[i].opens)
		}
		if math.IsInf(opens, 1) {
			return admitted, opens, true
		}
		own := min(room*r.share, r.most*step)
		if admitted += own; admitted >= r.items*enough {
			return admitted, float64(k) * step * max(1, r.items/admitted), true
		}
		for i := range members {
			members[i].charge(k, step, rooms[i]*part(own, room*r.share))
		}
	}
	return admitted, within, false
}

func part(n, of float64) float64 {
	if of <= 0 {
		return 0
	}
	return n / of
}

// begin returns a copy of the member for a play.
func (m member) begin(step float64) member {
	m.limits = slices.Clone(m.limits)
	for i := range m.limits {
		l := &m.limits[i]
		if l.until == nil || l.window < leastSteps*step {
			continue
		}
		l.steps = make([]float64, playedSteps)
		for _, f := range l.frees {
			l.free(f, step)
		}
	}
	return m
}

func (l *limit) free(f free, step float64) {
	if k := math.Round(f.at / step); k < playedSteps {
		l.steps[max(0, int(k))] += f.n
	}
}

// room returns how many items the member admits at a step, if it does not admit those that are needed before.
func (m *member) room(k int, step, needed float64) float64 {
	room := unlimited
	for i := range m.limits {
		l := &m.limits[i]
		if l.steps != nil {
			l.used -= l.steps[k]
		} else if k > 0 {
			l.used = max(0, l.used) - l.rate*step // what comes during the step is used during it
		}
		if l.budget && l.most-l.used < min(1, needed) {
			m.opens = math.Inf(1)
		}
		room = min(room, l.most-l.used)
	}
	if float64(k)*step < m.opens {
		return 0
	}
	return max(0, room)
}

// charge charges items that the member admits at a step.
func (m *member) charge(k int, step, n float64) {
	for i := range m.limits {
		l := &m.limits[i]
		if l.used += n; l.steps != nil && n > 0 {
			l.free(free{l.until(float64(k) * step), n}, step)
		}
	}
}

// members returns the limits of a status, in items.
func (e *estimate) members(s *status) []member {
	members := make([]member, len(s.members))
	for i, m := range s.members {
		members[i].opens = max(m.Paused, m.Closed).Seconds()
		for _, t := range m.Tiers {
			if cost := e.cost[cmp.Or(t.Tier.Unit, requests)]; cost > 0 {
				members[i].limits = append(members[i].limits, e.limits(s, t, cost)...)
			}
		}
	}
	return members
}

// limits returns the limits that a tier has, of which an item costs so much.
func (e *estimate) limits(s *status, t throttle.TierStatus, cost float64) []limit {
	l := limit{most: float64(t.Limit) / cost, rate: t.MaxRate / cost, used: float64(t.Used) / cost, budget: t.Tier.Budget}
	switch a := t.Tier.Algorithm; {
	case a == throttle.Concurrency:
		if e.flight() == 0 {
			return nil
		}
		l.rate = l.most / e.flight()
	case a == throttle.TokenBucket, a == throttle.LeakyBucket, a == throttle.GCRA:
	case t.Tier.Phase != throttle.UnknownPhase && (a == throttle.FixedWindow || a == throttle.AnchoredWindow || a == throttle.Calendar):
		l.resets(s.time, t)
	default:
		l.rolls(e.past[:e.past.first(s.at)+1], e.share, t)
	}
	if pace := float64(t.Tier.PaceBurst) / cost; pace > 0 {
		return []limit{l, {most: pace, rate: l.rate}}
	}
	return []limit{l}
}

// rolls makes the limit a rolling window. What is used leaves it as the job's own items came, and the rest, of which
// only the first and the last are known, evenly.
func (l *limit) rolls(past history, share float64, t throttle.TierStatus) {
	l.window = part(l.most, l.rate)
	l.until = func(t float64) float64 { return t + l.window }
	scale, others, end := min(1/share, part(l.used, past.last(l.window).admitted)), l.used, past[len(past)-1].at
	for i := len(past) - 1; i > 0 && past[i].at > end-l.window; i-- {
		own := min(others, scale*(past[i].admitted-past[i-1].admitted))
		l.frees = append(l.frees, free{l.until((past[i-1].at+past[i].at)/2 - end), own})
		others -= own
	}
	first, last := t.RetryAfter.Seconds(), t.ResetAfter.Seconds()
	for i := range 20 {
		l.frees = append(l.frees, free{first + (last-first)*float64(i)/19, others / 20})
	}
}

// resets makes the limit a window that ends at certain times. One in which nothing is used begins now.
func (l *limit) resets(now time.Time, t throttle.TierStatus) {
	window := part(l.most, l.rate) // with the guard
	next := func(end float64) float64 { return end + window }
	if t.Tier.Algorithm == throttle.Calendar {
		next = func(end float64) float64 {
			p, _ := projection.PeriodOf(t.Tier, now.Add(seconds(end)+time.Millisecond)) // also if end was rounded down
			return p.End.Sub(now).Seconds()
		}
	}
	first := next(0)
	if t.Used > 0 {
		first = t.ResetAfter.Seconds()
	}
	ends := []float64{first, next(first)}
	l.window = ends[1] - ends[0]
	l.rate = part(l.most, l.window)
	l.until = func(t float64) float64 {
		for ends[len(ends)-1] <= t {
			ends = append(ends, next(ends[len(ends)-1]))
		}
		return ends[sort.Search(len(ends), func(i int) bool { return ends[i] > t })]
	}
	l.frees = []free{{first, l.used}}
}
