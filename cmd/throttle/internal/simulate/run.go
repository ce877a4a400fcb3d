package simulate

import (
	"slices"
	"sort"
	"time"
)

// A Run is how a Batch went.
type Run struct {
	batch  Batch
	quota  *quota
	steps  []step
	repeat repeat
	marks  [][]int64 // of every markEvery-th step, the time that was waited for each reason until then
	length int64

	// Refused is the request at which a budget ended the batch, or nil.
	Refused *Refusal
}

// A step is an instant at which requests are admitted, or from which the next one waits for something
// else.
type step struct {
	at    int64 // ns since the start
	total int64 // requests admitted until then, and then
	by    int   // what the next request waits for from then on: a tier, Workers or Done
}

// A repeat is a block of steps that happens again and again. The steps behind it have the times after
// that.
type repeat struct {
	first, next int   // the block is the steps from first to next, without that
	times       int64 // that it happens again
	period      int64 // ns
	count       int64 // requests in a period
}

// A Refusal is a request that a budget refuses.
type Refusal struct {
	Request int64 // its number, from 1
	Tier    int
	At      time.Duration // since the start
	Until   time.Time     // when the budget has room again
}

// note records what the next request waits for from an instant on. The last tier to decide is the one
// that the request has waited for.
func (r *Run) note(at, total int64, by int) {
	if n := len(r.steps); n > r.repeat.next && r.steps[n-1].total == total {
		last := &r.steps[n-1]
		if by == last.by || by >= 0 && last.by >= 0 || at == last.at {
			last.by = by
			return
		}
	}
	r.steps = append(r.steps, step{at, total, by})
}

// Length returns the time until the last response is in.
func (r *Run) Length() time.Duration { return time.Duration(r.length) }

// End returns when the last response is in.
func (r *Run) End() time.Time { return r.batch.Start.Add(r.Length()) }

// Total returns how many requests were admitted.
func (r *Run) Total() int64 { return r.steps[len(r.steps)-1].total }

// Tiers returns the texts of the tiers.
func (r *Run) Tiers() []string { return r.quota.Tiers() }

// len returns the number of steps with their repetitions.
func (r *Run) len() int { return len(r.steps) + (r.repeat.next-r.repeat.first)*int(r.repeat.times) }

// find returns which of the recorded steps the i-th step is, and how often the block has happened again
// until then.
func (r *Run) find(i int) (recorded int, again int64) {
	one := r.repeat.next - r.repeat.first
	switch j := i - r.repeat.next; {
	case j < 0:
		return i, 0
	case j < one*int(r.repeat.times):
		return r.repeat.first + j%one, int64(j/one) + 1
	}
	return i - one*int(r.repeat.times), r.repeat.times
}

// step returns the i-th step.
func (r *Run) step(i int) step {
	n, again := r.find(i)
	s := r.steps[n]
	if n < r.repeat.next {
		s.at, s.total = s.at+again*r.repeat.period, s.total+again*r.repeat.count
	}
	return s
}

// last returns the number of the last step until an instant, or -1.
func (r *Run) last(until int64) int {
	return sort.Search(r.len(), func(i int) bool { return r.step(i).at > until }) - 1
}

// Admitted returns how many requests were admitted until an instant since the start, and then.
func (r *Run) Admitted(until time.Duration) int64 {
	if i := r.last(int64(until)); i >= 0 {
		return r.step(i).total
	}
	return 0
}

// At returns when the n-th request, counted from 1, was admitted.
func (r *Run) At(n int64) time.Duration {
	i := sort.Search(r.len(), func(i int) bool { return r.step(i).total >= n })
	return time.Duration(r.step(i).at)
}

const markEvery = 1 << 10

// index is where the time that was waited for a reason is in a list: that of the workers stands first,
// then the declared tiers.
func (r *Run) index(by int) int {
	if by < 0 {
		return 0
	}
	return 1 + r.quota.plan.Declared(by)
}

// addStep adds the time that was waited from the i-th of the recorded steps on.
func (r *Run) addStep(waited []int64, i int) {
	s := r.steps[i]
	switch {
	case s.by == Done:
	case i == r.repeat.next-1:
		waited[r.index(s.by)] += r.steps[r.repeat.first].at + r.repeat.period - s.at
	case i+1 < len(r.steps):
		waited[r.index(s.by)] += r.steps[i+1].at - s.at
	}
}

// recorded returns the time that was waited before the i-th of the recorded steps.
func (r *Run) recorded(i int) []int64 {
	if r.marks == nil {
		sum := make([]int64, 1+len(r.quota.plan.Given()))
		for i := range r.steps {
			if i%markEvery == 0 {
				r.marks = append(r.marks, slices.Clone(sum))
			}
			r.addStep(sum, i)
		}
	}
	waited := slices.Clone(r.marks[i/markEvery])
	for j := i - i%markEvery; j < i; j++ {
		r.addStep(waited, j)
	}
	return waited
}

// waited returns the time that was waited for each reason until an instant; see index.
func (r *Run) waited(until int64) []int64 {
	i := r.last(until)
	if i < 0 {
		return make([]int64, 1+len(r.quota.plan.Given()))
	}
	n, again := r.find(i)
	waited := r.recorded(n)
	if again > 0 {
		add(waited, add(r.recorded(r.repeat.next), r.recorded(r.repeat.first), -1), again)
	}
	if s := r.step(i); s.by != Done {
		waited[r.index(s.by)] += until - s.at
	}
	return waited
}

// add adds a list k times to another.
func add(sum, list []int64, k int64) []int64 {
	for i, n := range list {
		sum[i] += k * n
	}
	return sum
}

// Waited returns the time between two instants that was waited for the workers, then for each tier.
func (r *Run) Waited(from, to time.Duration) []time.Duration {
	waited := add(r.waited(int64(to)), r.waited(int64(from)), -1)
	all := make([]time.Duration, len(waited))
	for i, w := range waited {
		all[i] = time.Duration(w)
	}
	return all
}

// A Segment is a time in which one reason binds.
type Segment struct {
	From, To time.Duration // since the start
	By       int           // the tier, or Workers or Done
	Requests int64         // admitted in it, those at its end included
}

// slicesOfRun is the number of slices of a run of which the reason is looked for.
const slicesOfRun = 240

// Segments returns which tier, or the workers, binds when: what requests wait for most of the time.
// A segment begins where that changes, to within 1/240 of the run if the reasons alternate quickly.
func (r *Run) Segments() (all []Segment) {
	end := r.steps[len(r.steps)-1].at // of the admissions
	slice := func(i int64) int64 { return end/slicesOfRun*i + end%slicesOfRun*i/slicesOfRun }
	before := r.waited(0)
	for i := range int64(slicesOfRun) {
		from, to := slice(i), slice(i+1)
		if from == to {
			continue
		}
		now := r.waited(to)
		by := most(add(slices.Clone(now), before, -1))
		before = now
		if n := len(all); n > 0 && all[n-1].By == by {
			all[n-1].To = time.Duration(to)
			continue
		}
		all = append(all, Segment{From: time.Duration(from), To: time.Duration(to), By: by})
	}
	for i := range all {
		if i > 0 {
			at := r.boundary(all[i-1], all[i], time.Duration(end/slicesOfRun))
			all[i-1].To, all[i].From = at, at
		}
	}
	done := int64(0)
	for i := range all {
		total := r.Admitted(all[i].To)
		all[i].Requests, done = total-done, total
	}
	return all
}

// most returns the reason that was waited for most, as Segment.By has it.
func most(waited []int64) int {
	by := 0
	for i, w := range waited {
		if w > waited[by] {
			by = i
		}
	}
	if waited[by] == 0 {
		return Done
	}
	if by == 0 {
		return Workers
	}
	return by - 1
}

// boundary returns the instant, near where two segments meet, that divides best the time waited for
// the reason of the one from the time waited for that of the other.
func (r *Run) boundary(a, b Segment, near time.Duration) time.Duration {
	best, at := int64(-1<<63), a.To
	first, last := r.last(int64(max(a.From, a.To-near))), r.last(int64(min(b.To, b.From+near)))
	if last-first > 1<<16 {
		return a.To
	}
	score := int64(0)
	for i := max(0, first); i <= last && i+1 < r.len(); i++ {
		s := r.step(i)
		if score > best && s.at >= int64(a.From) {
			best, at = score, time.Duration(s.at)
		}
		by := Workers
		if s.by >= 0 {
			by = r.quota.plan.Declared(s.by)
		}
		switch length := r.step(i+1).at - s.at; by {
		case a.By:
			score += length
		case b.By:
			score -= length
		}
	}
	if score > best {
		at = a.To
	}
	return at
}
