package batch

import (
	"math"
	"slices"
)

// The model of the limits has amounts in items and times in seconds from now on, as fractions: the exact order of
// single requests does not matter for the time that thousands take.

// A limit is one tier.
type limit struct {
	most float64 // at once, or in a window
	rate float64 // a second in the long run
	used float64

	// window is the length of a rolling window, and stillUsed how many of used are in it after a time. If
	// zero, the limit is a bucket that is refilled at the rate, unless it has resets.
	window    float64
	stillUsed func(t float64) float64

	// reset is when all becomes unused, and nextReset returns the reset after one. If nil, there is none.
	reset     float64
	nextReset func(t float64) float64

	// retry is when the limit admits an item, as its status reports.
	retry float64

	// budget is the text of a tier that ends the job when it is used up. If empty, it does not.
	budget string

	steps int // of the window
}

// room returns how many items the limit admits at a step. charged are the sums of what the steps before have charged.
func (l *limit) room(t, step float64, k int, charged []float64) float64 {
	switch {
	case l.nextReset != nil:
		for t >= l.reset {
			l.used, l.reset = 0, l.nextReset(l.reset)
		}
	case l.steps > 0:
		return l.most - l.stillUsed(t) - (charged[k] - charged[max(0, k-l.steps+1)])
	case k > 0:
		l.used = max(0, l.used) - l.rate*step // what comes during the step is used during it
	}
	return l.most - l.used
}

// A member is a Limiter or a member of a Pool.
type member struct {
	limits []limit
	opens  float64 // when its pause or ban ends
}

// rate returns how many items a second all limits of the member admit in the long run.
func (m *member) rate() float64 {
	rate := math.Inf(1)
	for _, l := range m.limits {
		if l.rate > 0 {
			rate = min(rate, l.rate)
		}
	}
	return rate
}

// delay returns how long the member admits nothing at first.
func (m *member) delay() float64 {
	delay := m.opens
	for _, l := range m.limits {
		delay = max(delay, l.retry)
	}
	return delay
}

// A course is how a job goes on.
type course struct {
	admitted float64
	took     float64 // until all are admitted
	ends     bool    // all are admitted in a finite time
	budget   string  // what ends the job before that; empty if nothing does
}

// A rest is what remains of a job.
type rest struct {
	members []member
	items   float64
	within  float64 // no later item counts
	share   float64 // the part of what the limits admit that this job gets
	most    float64 // items a second, by what is not a limit
}

const (
	usualSteps = 1_000 // of a course
	mostSteps  = 5_000 // after which the course goes on at its mean rate
	leastSteps = 50    // of a rolling window; a shorter one is like a bucket
	unlimited  = 1e15  // items
)

// step returns the length of a step.
func (r *rest) step() float64 {
	if !math.IsInf(r.within, 1) {
		return max(r.within/usualSteps, 1e-6)
	}
	rate, delay := 0.0, 0.0
	for i := range r.members {
		rate += r.members[i].rate()
		delay = max(delay, r.members[i].delay())
	}
	return max((r.items/min(rate*r.share, r.most)+delay)/usualSteps, 1e-6)
}

// slack returns how many of the last items do not count: another window for a few would be an accident of rounding.
func (r *rest) slack() float64 {
	if math.IsInf(r.items, 1) {
		return 0
	}
	most := r.items
	for _, m := range r.members {
		for _, l := range m.limits {
			most = max(most, l.most)
		}
	}
	return min(most*0.002, r.items*0.03)
}

// play plays the rest of a job, step by step.
func (r *rest) play() course {
	step := r.step()
	players := make([]player, len(r.members))
	for i := range players {
		players[i] = newPlayer(r.members[i], step)
	}
	c, rooms, slack := course{}, make([]float64, len(players)), r.slack()
	for k := range mostSteps {
		t := float64(k) * step
		if t >= r.within {
			return c
		}
		room := 0.0
		for i := range players {
			rooms[i] = players[i].room(t, step, k, min(1, r.items-c.admitted-slack))
			room += rooms[i]
		}
		if c.budget = spent(players); c.budget != "" {
			c.took = t
			return c
		}
		own, rest := min(room*r.share, r.most*step), r.items-c.admitted
		if own >= rest-slack {
			if c.took = t; k > 0 && own > 0 {
				c.took += step * rest / own
			}
			c.admitted, c.ends = r.items, true
			return c
		}
		for i := range players {
			players[i].charge(rooms[i] * part(own, room*r.share))
		}
		c.admitted += own
		c.took = t + step
	}
	if c.ends = c.admitted > 0; c.ends {
		c.took *= r.items / c.admitted
	}
	return c
}

func part(n, of float64) float64 {
	if of <= 0 {
		return 0
	}
	return n / of
}

// A player is a member in a course.
type player struct {
	member
	charged []float64 // the sums before each step
	budget  string    // that is used up
}

func newPlayer(m member, step float64) player {
	m.limits = slices.Clone(m.limits)
	for i := range m.limits {
		l := &m.limits[i]
		if l.steps = int(math.Round(l.window / step)); l.steps < leastSteps {
			l.steps = 0
		}
	}
	return player{member: m, charged: append(make([]float64, 0, usualSteps), 0)}
}

// room returns how many items the member admits at a step. A budget that has less than need is used up.
func (p *player) room(t, step float64, k int, need float64) float64 {
	p.budget = ""
	room := unlimited
	for i := range p.limits {
		l := &p.limits[i]
		of := l.room(t, step, k, p.charged)
		if l.budget != "" && of < need {
			p.budget = l.budget
		}
		room = min(room, of)
	}
	if t < p.opens || p.budget != "" {
		return 0
	}
	return max(0, room)
}

func (p *player) charge(n float64) {
	p.charged = append(p.charged, p.charged[len(p.charged)-1]+n)
	for i := range p.limits {
		p.limits[i].used += n
	}
}

// spent returns the budget that ends the job, because no member has more.
func spent(players []player) string {
	for i := range players {
		if players[i].budget == "" {
			return ""
		}
	}
	if len(players) == 0 {
		return ""
	}
	return players[0].budget
}
