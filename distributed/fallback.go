package distributed

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// inFallback is the State of reservations that this process made without Redis.
const inFallback = -1

// A fallback decides in Redis's place while Redis is away, with this process's part of every tier.
// It is charged with all requests of the process at any time, and so starts with the right
// charges. The methods of a nil fallback do nothing.
type fallback struct {
	mu     sync.Mutex // guards all below
	ledger algorithms.Ledger
	owed   []int64   // by unit, the amounts that were sent without Redis and are not charged there
	from   time.Time // when requests may be sent from on; zero until the first call while Redis is away

	longest time.Duration // the longest window that is longer than its tier's; zero if there is none
}

// newFallback returns nil if NewPlan does not allow a part, for example because its window is too
// long.
func newFallback(p *algorithms.Plan, workers int) *fallback {
	tiers, longest := make([]algorithms.Tier, len(p.Tiers())), time.Duration(0)
	for i, t := range p.Tiers() {
		if tiers[i] = part(t, int64(workers)); tiers[i].Window > t.Window {
			longest = max(longest, tiers[i].Window)
		}
	}
	plan, err := algorithms.NewPlan(tiers, p.Guard())
	if err != nil {
		return nil
	}
	return &fallback{ledger: plan.NewLedger(), owed: make([]int64, len(plan.Units())), longest: longest}
}

// adopt takes over the charges and the debt of the fallback under the previous plan. Either may be nil.
func (f *fallback) adopt(old *fallback) *fallback {
	if f == nil || old == nil {
		return f
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	f.owed, f.from = f.ledger.Plan().Translate(old.ledger.Plan(), old.owed), old.from
	f.ledger = f.ledger.Plan().Convert(old.ledger, moment(time.Now()))
	clear(old.owed)
	return f
}

// part returns one of n equal parts of a tier. If that is less than one unit, the part is one unit
// in a longer window. Without a window the part is zero, which is no valid tier. A learned tier has its Limit,
// because Redis has the rate.
func part(t algorithms.Tier, n int64) algorithms.Tier {
	t.Learn = algorithms.Learn{}
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

func moment(t time.Time) algorithms.Moment {
	return algorithms.Moment{At: timing.Monotonic(t), Wall: t.UnixMicro()}
}

// reserve decides on requests in Redis's place. It returns err if there is no fallback or err is
// not ErrUnavailable.
func (f *fallback) reserve(requests []store.Request, err error) ([]store.Decision, error) {
	if f == nil || !errors.Is(err, store.ErrUnavailable) {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	m := moment(now)
	from := f.begin(now)
	var got []store.Decision
	for _, r := range requests {
		at, tier := f.ledger.Earliest(m, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves()})
		at = max(at, from)
		b := store.Decision{Tier: tier, Wait: m.Until(at)}
		switch {
		case at <= m.At && r.MaxWait == dryRun: // nothing is charged
		case at <= m.At:
			b.Flight = f.ledger.Charge(m, algorithms.Request{Cost: r.Cost, Held: r.Held})
			for u, n := range r.Cost {
				f.owed[u] += n
			}
			b.Verdict, b.Order = store.Admitted, m.Wall
			b.Reservation = &store.Reservation{
				Start: now, End: now.Add(timing.Unguarded), Again: now, Cost: r.Cost, Guard: cmp.Or(r.Guard, f.ledger.Plan().Guard()), State: inFallback,
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

// begin returns the first instant of a request in this fallback. If a window is longer than its
// tier's, the windows of all processes would begin at once and end together. So a process that has
// sent nothing for that long begins at random within the window. It needs mu.
func (f *fallback) begin(now time.Time) int64 {
	if f.from.IsZero() {
		if f.from = now; f.longest > 0 && f.ledger.Fresh(moment(now)) {
			f.from = now.Add(rand.N(f.longest))
		}
	}
	return moment(f.from).At
}

// charge charges the requests that Redis admitted, and ends the fallback. It leaves out those whose
// answer came too late: they are returned.
func (f *fallback) charge(got []store.Decision) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.from = time.Time{}
	for _, b := range got {
		if b.Verdict == store.Admitted && !wasLate(b) {
			f.ledger.Charge(moment(b.Reservation.Start), algorithms.Request{Cost: b.Reservation.Cost})
		}
	}
}

// wasLate reports whether a reservation had expired when its answer came.
func wasLate(b store.Decision) bool { return b.Reservation.Expired(b.Reservation.Told) }

// cancel refunds a request that was not sent.
func (f *fallback) cancel(b store.Decision, cost []int64) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	inTime := f.ledger.Cancel(moment(time.Now()), b.Flight, cost)
	for u, n := range cost {
		if inTime || f.ledger.Plan().Estimated(u) {
			f.owed[u] = max(0, f.owed[u]-n)
		}
	}
}

// settle replaces an estimate by the actual cost. A nil cost is zero.
func (f *fallback) settle(b store.Decision, cost, actual []int64) {
	if f == nil || b.Reservation.State != inFallback {
		return
	}
	if actual == nil {
		actual = make([]int64, len(cost))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ledger.Settle(moment(time.Now()), cost, actual)
	for u := range cost {
		if f.ledger.Plan().Estimated(u) {
			f.owed[u] = max(0, f.owed[u]+actual[u]-cost[u])
		}
	}
}

func (f *fallback) isIdle() bool {
	if f == nil {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	return f.ledger.Fresh(moment(now)) && !f.owes() && !f.from.After(now)
}

// isInDebt is owes with the lock.
func (f *fallback) isInDebt() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.owes()
}

// owes reports whether there are amounts to charge in Redis. It needs mu.
func (f *fallback) owes() bool {
	return slices.ContainsFunc(f.owed, func(n int64) bool { return n != 0 })
}

func (f *fallback) release(cost []int64) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ledger.Release(cost)
}

// takeOwed returns the amounts to charge in Redis, by unit and by tier, and clears them. They are nil if
// there are none. A tier is charged with the amounts that still count in it, at most with this
// process's part.
func (f *fallback) takeOwed() (units, tiers []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.owes() {
		return nil, nil
	}
	units = slices.Clone(f.owed)
	clear(f.owed)
	p := f.ledger.Plan()
	for i, tier := range f.ledger.Usage(moment(time.Now())) {
		tiers = append(tiers, min(tier.Used, units[slices.Index(p.Units(), p.Tiers()[i].Unit)]))
	}
	return units, tiers
}

// tierAmounts returns the amount of its unit for each tier, at most the tier's capacity.
func tierAmounts(p *algorithms.Plan, amounts []int64) (tiers []int64) {
	for _, t := range p.Tiers() {
		tiers = append(tiers, min(t.Capacity(), amounts[slices.Index(p.Units(), t.Unit)]))
	}
	return tiers
}

// owe adds amounts to charge in Redis.
func (f *fallback) owe(amounts []int64) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for u, n := range amounts {
		f.owed[u] += n
	}
}
