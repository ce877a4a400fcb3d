package distributed

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// alone is the State of bookings that Redis knows nothing of.
const alone = -1

// A share is what this process may send while Redis is away. It is charged with
// all that the process sends, so that it knows what it has sent already when the
// outage begins. The methods of a nil share do nothing.
type share struct {
	mu     sync.Mutex // guards all below
	ledger algorithms.Ledger
	owed   []int64   // sent alone and not yet charged in Redis, by unit
	from   time.Time // nothing is sent alone before; zero until something is asked for in an outage

	longest time.Duration // window that is longer than the tier's is; zero if none is
}

func newShare(p *algorithms.Plan, workers int) *share {
	tiers, longest := make([]algorithms.Tier, len(p.Tiers())), time.Duration(0)
	for i, t := range p.Tiers() {
		if tiers[i] = part(t, int64(workers)); tiers[i].Window > t.Window {
			longest = max(longest, tiers[i].Window)
		}
	}
	plan, err := algorithms.NewPlan(tiers, p.Guard())
	if err != nil {
		return nil // a window would be longer than any that is allowed
	}
	return &share{ledger: plan.NewLedger(), owed: make([]int64, len(plan.Units())), longest: longest}
}

// adopt goes on where the share under the plan before was. One of the two may be nil.
func (s *share) adopt(old *share) *share {
	if s == nil || old == nil {
		return s
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	s.owed, s.from = s.ledger.Plan().Translate(old.ledger.Plan(), old.owed), old.from
	s.ledger = s.ledger.Plan().Convert(old.ledger, moment(time.Now()))
	return s
}

// part is one of n equal parts of a tier. Where that is less than one unit, the
// window is longer instead; where there is none to be longer nobody has a part.
func part(t algorithms.Tier, n int64) algorithms.Tier {
	if t.Burst > 0 {
		t.Burst = max(1, t.Burst/n)
	}
	if t.Limit >= n || t.Window == 0 {
		t.Limit /= n
		return t
	}
	t.Window *= time.Duration((n + t.Limit - 1) / t.Limit)
	t.Limit, t.Precision = 1, 0
	return t
}

// beginning is the Unix epoch on the process's monotonic clock, before any instant of a
// testing/synctest bubble.
var beginning = func(now time.Time) time.Time { return now.Add(-time.Duration(now.UnixNano())) }(time.Now())

func moment(t time.Time) algorithms.Moment {
	return algorithms.Moment{At: micros(t.Sub(beginning)), Wall: t.UnixMicro()}
}

// bookAlone decides on requests in Redis's place, if that is away and the process has a share, under
// the pauses and bans that the process knows.
func (q *quota) bookAlone(requests []store.Request, err error) ([]store.Decision, error) {
	if b, paused := q.paused(); paused && q.share != nil && errors.Is(err, store.ErrUnavailable) {
		return slices.Repeat([]store.Decision{b}, len(requests)), nil
	}
	got, err := q.share.book(requests, err)
	if len(got) > 0 {
		q.store.debtors.Store(q, nil)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range got { // a refusal pauses unless a pause is newer
		got[i].Epoch, got[i].Level = q.state.epoch, q.state.level
	}
	return got, err
}

// book decides on requests in Redis's place, if that is away.
func (s *share) book(requests []store.Request, err error) ([]store.Decision, error) {
	if s == nil || !errors.Is(err, store.ErrUnavailable) {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	m := moment(now)
	from := s.begins(now)
	var got []store.Decision
	for _, r := range requests {
		at, tier := s.ledger.Earliest(m, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves()})
		at = max(at, from)
		b := store.Decision{Tier: tier, Wait: m.Until(at)}
		switch {
		case at <= m.At && r.MaxWait == onlyAsked: // nobody is charged
		case at <= m.At:
			b.Flight = s.ledger.Charge(m, algorithms.Request{Cost: r.Cost, Held: r.Held})
			for u, n := range r.Cost {
				s.owed[u] += n
			}
			b.Verdict = store.Admitted
			b.Reservation = &store.Reservation{
				Start: now, End: now.Add(unguarded), Again: now, Cost: r.Cost, Guard: cmp.Or(r.Guard, s.ledger.Plan().Guard()), State: alone,
			}
		case b.Wait > r.MaxWait:
			b.Verdict = store.Late
		default:
			b.Wait = min(b.Wait, lastTry) // Redis may be back
			return append(got, b), nil
		}
		got = append(got, b)
	}
	return got, nil
}

// begins returns the instant from which on the process sends alone. Where a window is longer than
// the tier's, all would begin one at once and again together: a process that has sent nothing
// for so long begins at random within it. It needs mu.
func (s *share) begins(now time.Time) int64 {
	if s.from.IsZero() {
		if s.from = now; s.longest > 0 && s.ledger.Fresh(moment(now)) {
			s.from = now.Add(rand.N(s.longest))
		}
	}
	return moment(s.from).At
}

// charge takes note of what Redis admitted.
func (s *share) charge(got []store.Decision) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from = time.Time{}
	for _, b := range got {
		if b.Verdict == store.Admitted {
			s.ledger.Charge(moment(b.Reservation.Start), algorithms.Request{Cost: b.Reservation.Cost})
		}
	}
}

// cancel takes back what was not sent.
func (s *share) cancel(b store.Decision, cost []int64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	inTime := s.ledger.Cancel(moment(time.Now()), b.Flight, cost)
	for u, n := range cost {
		if inTime || s.ledger.Plan().Estimated(u) {
			s.owed[u] = max(0, s.owed[u]-n)
		}
	}
}

// settle says what was really sent of an estimate; actual is nil where it was nothing.
func (s *share) settle(b store.Decision, cost, actual []int64) {
	if s == nil || b.Reservation.State != alone {
		return
	}
	if actual == nil {
		actual = make([]int64, len(cost))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Settle(moment(time.Now()), cost, actual)
	for u := range cost {
		if s.ledger.Plan().Estimated(u) {
			s.owed[u] = max(0, s.owed[u]+actual[u]-cost[u])
		}
	}
}

func (s *share) isIdle() bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	return s.ledger.Fresh(moment(now)) && !s.owes() && !s.from.After(now)
}

// owes reports whether anything has to be charged in Redis. It needs mu.
func (s *share) owes() bool {
	return slices.ContainsFunc(s.owed, func(n int64) bool { return n != 0 })
}

func (s *share) release(cost []int64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Release(cost)
}

// repay charges in Redis what was sent without it, as far as the tiers have it still
// in view: each at most with this process's part.
func (q *quota) repay() error {
	s := q.share
	if s == nil {
		return nil
	}
	q.store.debtors.Delete(q)
	s.mu.Lock()
	if !s.owes() {
		s.mu.Unlock()
		return nil
	}
	owed, used := slices.Clone(s.owed), s.ledger.Usage(moment(time.Now()))
	clear(s.owed)
	s.mu.Unlock()
	amounts := make([]int64, len(used))
	for i, t := range q.plan.Tiers() {
		amounts[i] = min(used[i].Used, owed[slices.Index(q.plan.Units(), t.Unit)])
	}
	_, _, _, err := q.ask(context.Background(), "c", func(n *quota, args []any) []any {
		if n != q { // its tiers are others: let the most of each unit count in all
			amounts = n.tierAmounts(n.plan.Translate(q.plan, owed))
		}
		return appendCost(args, amounts)
	})
	if err != nil {
		n := q.newest()
		n.share.owe(n.plan.Translate(q.plan, owed))
		n.store.debtors.Store(n, nil)
	}
	return err
}

// tierAmounts is what of each unit every tier is charged.
func (q *quota) tierAmounts(amounts []int64) (tiers []int64) {
	for _, t := range q.plan.Tiers() {
		tiers = append(tiers, min(t.Capacity(), amounts[slices.Index(q.plan.Units(), t.Unit)]))
	}
	return tiers
}

func (s *share) owe(amounts []int64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for u, n := range amounts {
		s.owed[u] += n
	}
}
