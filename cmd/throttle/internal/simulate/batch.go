package simulate

import (
	"context"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
)

// A Batch is a number of equal requests that workers send one after the other, as soon as the policy
// admits them.
type Batch struct {
	Policy throttle.Policy

	// Count is the number of requests.
	Count int64

	// Cost is the cost of each request. If nil, one request. Units that the policy does not count
	// are left out.
	Cost throttle.Cost

	// Workers is how many requests are sent at the same time at most. If zero, any number.
	Workers int64

	// Answers is how long the response to a request takes.
	Answers time.Duration

	// Start is when the batch begins.
	Start time.Time

	until time.Duration // after which nothing is played; zero for no bound
}

// The reasons for which requests wait, beside the tiers of a policy.
const (
	Done    = -1 // nothing: the batch has ended
	Workers = -2 // all workers wait for responses
)

// A group are requests that were admitted together.
type group struct {
	at     int64
	flight algorithms.Flight
	n      int64
}

// A batch is a Batch that is being played.
type batch struct {
	*quota
	Batch
	cost     []int64
	many     []int64 // the cost of many requests
	capacity int64   // the most requests that the tiers can admit at once
	burst    int64   // requests that were admitted at the last instant
	now      int64
	free     int64
	pending  []group // responses that are to come, the first one first
	total    int64
	run      *Run

	// What recurs is not played again, if skip is set. The ledger does not see the time that is skipped,
	// since it would decide alike.
	skip     bool
	skipped  int64
	saved    *saved
	turns    int // since saved
	patience int // turns after which another state is saved
}

// A saved is an earlier state of a batch.
type saved struct {
	ledger  algorithms.Ledger
	pending []group
	now     int64
	total   int64
	step    int // the next one
}

// Play plays the batch until its end, or until a budget refuses a request. It returns the error of a
// policy or a cost that is not valid, or that of the context.
func (b Batch) Play(ctx context.Context) (*Run, error) { return b.play(ctx, true) }

// play is Play. If skip is false, it plays every request.
func (b Batch) play(ctx context.Context, skip bool) (*Run, error) {
	q, err := newQuota(b.Policy, b.Start)
	if err != nil {
		return nil, err
	}
	cost, err := q.cost(b.Cost)
	if err != nil {
		return nil, err
	}
	if b.Workers == 0 {
		b.Workers = max(1, b.Count)
	}
	p := &batch{quota: q, Batch: b, cost: cost, many: slices.Clone(cost), capacity: b.Count, now: b.Start.UnixNano(), free: b.Workers, run: &Run{batch: b, quota: q}, skip: skip && !q.auto}
	for u, most := range q.most {
		if cost[u] > 0 {
			p.capacity = min(p.capacity, most/cost[u])
		}
	}
	return p.run, p.play(ctx)
}

func (p *batch) play(ctx context.Context) error {
	start := p.now
	elapsed := func() int64 { return p.now - start + p.skipped }
	for turn := 0; p.total < p.Count; turn++ {
		if turn%(1<<14) == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		before := p.total
		again, by := p.admit()
		if by >= 0 && p.plan.Exhausted(by) {
			p.run.Refused = &Refusal{Request: p.total + 1, Tier: p.plan.Declared(by), At: time.Duration(elapsed())}
			p.run.Refused.Until = time.Unix(0, p.room(again)).In(p.Start.Location()).Add(time.Duration(p.skipped))
			break
		}
		if p.total == p.Count {
			break
		}
		if p.skip && p.total > before { // then the present step is a new one
			p.recur()
		}
		p.run.note(elapsed(), p.total, by)
		next := again
		if len(p.pending) > 0 {
			next = min(next, later(p.pending[0].at, p.Answers))
		}
		if next == never {
			return errStuck
		}
		if p.until > 0 && next-p.now > int64(p.until)-elapsed() {
			break
		}
		if next-p.now > int64(mostLength)-elapsed() {
			return errLong
		}
		p.now = next
		p.answer()
	}
	p.run.note(elapsed(), p.total, Done)
	p.run.length = elapsed()
	if n := len(p.pending); n > 0 {
		p.run.length = p.pending[n-1].at + int64(p.Answers) - start + p.skipped
	}
	return nil
}

// room returns when a budget has room again that has refused a request until an instant. If all that it has
// is in flight, estimated, that is known when the responses are in.
func (p *batch) room(again int64) int64 {
	for again == never && len(p.pending) > 0 {
		p.now = later(p.pending[0].at, p.Answers)
		p.answer()
		again, _ = p.earliest(p.now, p.cost)
	}
	return again
}

// recur looks for an earlier state that is the present one but for the time. If there is one, all that
// has happened since then will happen again and again, and recur skips it, up to the last time. It
// compares with one state, which it replaces after 1, 2, 4 and so on turns (Brent's algorithm).
func (p *batch) recur() {
	if s := p.saved; s != nil && p.recurs(s) {
		count, period := p.total-s.total, p.now-s.now
		if times := min((p.Count-p.total-1)/count, (never-p.now)/2/period); times > 0 {
			p.run.repeat = repeat{first: s.step, next: len(p.run.steps), times: times, period: period, count: count}
			p.skipped, p.total = times*period, p.total+times*count
		}
		p.skip, p.saved = false, nil
		return
	}
	if p.turns++; p.turns > p.patience {
		p.saved = &saved{p.ledger.Clone(), slices.Clone(p.pending), p.now, p.total, len(p.run.steps)}
		p.turns, p.patience = 0, max(1, 2*p.patience)
	}
}

// recurs reports whether the present state is an earlier one, but for the time.
func (p *batch) recurs(s *saved) bool {
	by := p.now - s.now
	if by%1000 != 0 || p.total == s.total || len(p.pending) != len(s.pending) {
		return false
	}
	for i, g := range p.pending {
		if before := s.pending[i]; g.n != before.n || g.at-before.at != by {
			return false
		}
	}
	return p.ledger.Recurs(&s.ledger, by/1000)
}

// admit admits as many requests as the tiers and the workers allow now. It returns when to ask
// again, and what the next request waits for.
func (p *batch) admit() (again int64, by int) {
	if n := min(p.burst, p.free, p.Count-p.total); n > 0 && p.charge(n) { // as many as the last time
		p.burst = n
	} else {
		p.burst = 0
	}
	for {
		if p.total == p.Count {
			return never, Done
		}
		again, by = p.earliest(p.now, p.cost)
		switch {
		case by >= 0 && p.free == 0 && !p.plan.Exhausted(by):
			return never, by // a worker would not help
		case by >= 0:
			return again, by
		case p.free == 0:
			return never, Workers
		}
		n := p.most(min(p.free, p.Count-p.total, p.capacity))
		p.charge(n)
		p.burst += n
	}
}

// charge admits n requests together, if the tiers do.
func (p *batch) charge(n int64) bool {
	f, _, by := p.take(p.now, p.times(n))
	if by >= 0 {
		return false
	}
	p.free -= n
	p.total += n
	if last := len(p.pending) - 1; last >= 0 && p.pending[last].at == p.now && p.pending[last].flight == f {
		p.pending[last].n += n
	} else {
		p.pending = append(p.pending, group{p.now, f, n})
	}
	return true
}

// times returns the cost of n requests, until the next call.
func (p *batch) times(n int64) []int64 {
	for u, c := range p.cost {
		p.many[u] = c * n
	}
	return p.many
}

// most returns how many requests the tiers admit now, from 1 to limit.
func (p *batch) most(limit int64) int64 {
	fits := func(n int64) bool {
		cost := p.times(n)
		_, by := p.earliest(p.now, cost)
		return by < 0 && p.plan.TooLarge(cost) < 0
	}
	low, high := int64(1), limit+1 // low fits, high does not
	for n := int64(2); n < high; n *= 2 {
		if !fits(n) {
			high = n
			break
		}
		low = n
	}
	for high-low > 1 {
		if mid := low + (high-low)/2; fits(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// answer reports the responses that are in.
func (p *batch) answer() {
	for len(p.pending) > 0 && p.pending[0].at+int64(p.Answers) <= p.now {
		g := p.pending[0]
		p.pending = p.pending[1:]
		if !p.auto {
			p.answered(p.now, g.at, g.flight, p.times(g.n), g.n)
			p.free += g.n
			continue
		}
		for range g.n { // a worker goes on before the guard learns from the next response
			p.answered(p.now, g.at, g.flight, p.cost, 1)
			if p.free++; p.free == 1 {
				p.admit()
			}
		}
	}
}

// mostSteps is the largest number of recorded steps of a run that Enough repeats with other workers.
const mostSteps = 300_000

// Enough returns the least number of workers with which the batch ends as early as with any number,
// to within one in a thousand, and how long it then takes. It returns 0 if more workers do not help, if
// the run is so long that a search would take seconds, or if the context ends.
func (b Batch) Enough(ctx context.Context, run *Run) (workers int64, length time.Duration) {
	ends := func(n int64) time.Duration {
		b.Workers = n
		if r, err := b.Play(ctx); err == nil {
			return r.Length()
		}
		return -1
	}
	if len(run.steps) > mostSteps {
		return 0, 0
	}
	few := b.Workers
	best := ends(0)
	good := best + best/1000
	if best < 0 || run.Length() <= good {
		return 0, 0
	}
	many := 2 * few
	for ; many < b.Count; many *= 2 {
		if length = ends(many); length <= good {
			break
		}
		few = many
	}
	many = min(many, b.Count)
	for many-few > 1 {
		if mid := few + (many-few)/2; ends(mid) <= good {
			many = mid
		} else {
			few = mid
		}
	}
	if length = ends(many); length < 0 {
		return 0, 0
	}
	return many, length
}
