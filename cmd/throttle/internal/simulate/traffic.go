package simulate

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/throttletest"
)

// An Arrival is a request of a log.
type Arrival struct {
	At      int64         // when it was sent, in nanoseconds since the Unix epoch
	Answers time.Duration // how long its response took
	Cost    []int64       // in the units that NewTraffic names
}

// A Fate is what becomes of a request under a policy.
type Fate uint8

// The fates. Late would wait for longer than MaxWait, Full meets a queue of MaxQueue requests,
// Exhausted a used-up budget, and TooLarge is a cost that no tier ever admits.
const (
	Admitted Fate = iota
	Late
	Full
	Exhausted
	TooLarge
	fates
)

// A Traffic is what a policy does to requests that arrive by themselves. Requests leave the queue in
// the order in which they join it, and none has an effect on those ahead of it. So each is played to
// its end when it arrives. A Traffic keeps when the waiting requests will go, what is in flight, and
// eight bytes of each request that had to wait.
type Traffic struct {
	*quota
	units             []string
	usual             []int64 // the cost of one request
	maxWait, maxQueue int64
	told              func(arrived int64, f Fate, wait time.Duration)

	now     int64
	leave   []int64 // when the requests that wait leave the queue, from first on
	first   int
	by      int // the tier that a request has last waited for
	pending agenda[response]

	provider *throttletest.Counter
	arriving map[string]int64
	open     agenda[map[string]int64] // the ends of the requests that the provider has accepted

	// Fates is how many requests had which fate.
	Fates [fates]int64
	// Waits are the waits, in nanoseconds, of the requests that were admitted later than they arrived.
	Waits []int64
	// ByTier is how many of them waited for each declared tier at last.
	ByTier []int64
	// Longest is the largest number of requests in the queue, and LongestAt when it was reached.
	Longest   int
	LongestAt time.Time
	// Provider is how many requests a strict provider refuses if they are sent as they arrive, by the
	// first declared tier that refuses.
	Provider []int64
	// End is when the last response is in.
	End time.Time
}

// A response is the response to an admitted request, and what the request was charged.
type response struct {
	admitted int64
	flight   algorithms.Flight
	cost     []int64
}

// An agenda is a heap of what is to come, the first one first.
type agenda[T any] []timed[T]

type timed[T any] struct {
	at   int64
	what T
}

func (a agenda[T]) Len() int           { return len(a) }
func (a agenda[T]) Less(i, j int) bool { return a[i].at < a[j].at }
func (a agenda[T]) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *agenda[T]) Push(x any)        { *a = append(*a, x.(timed[T])) }
func (a *agenda[T]) Pop() any {
	n := len(*a) - 1
	last := (*a)[n]
	*a = (*a)[:n]
	return last
}

// NewTraffic returns the traffic of a policy from an instant on. Each request has a cost; if nil, one
// request. The units are those of the costs of arrivals, which replace its amounts. If told is not nil, it receives what becomes
// of each request, in the order in which that is decided.
func NewTraffic(p throttle.Policy, cost throttle.Cost, start time.Time, units []string, told func(arrived int64, f Fate, wait time.Duration)) (*Traffic, error) {
	q, err := newQuota(p, start)
	if err != nil {
		return nil, err
	}
	provider, err := throttletest.NewCounter(p.Tiers...)
	if err != nil {
		return nil, err
	}
	t := &Traffic{
		quota: q, units: units, usual: q.amounts(cost),
		maxWait: int64(p.MaxWait), maxQueue: int64(p.MaxQueue), told: told,
		now:      start.UnixNano(),
		provider: provider, ByTier: make([]int64, len(p.Tiers)), Provider: make([]int64, len(p.Tiers)),
	}
	if len(cost) > 0 || len(units) > 0 {
		t.arriving = map[string]int64{}
	}
	for unit, n := range cost {
		t.arriving[cmp.Or(unit, algorithms.Requests)] = n
	}
	return t, nil
}

// Arrive plays an arrival. Arrivals are in the order of time. The error is that of a policy that will
// never admit the request, although its cost is not too large.
func (t *Traffic) Arrive(a Arrival) error {
	t.arriveUnlimited(a)
	cost := t.costOf(a)
	switch {
	case t.plan.TooLarge(cost) >= 0:
		t.settle(a, a.At, TooLarge)
		return nil
	case !t.plan.Estimates() && !slices.ContainsFunc(cost, func(n int64) bool { return n != 0 }):
		t.settle(a, a.At, Admitted)
		return nil
	}
	for t.first < len(t.leave) && t.leave[t.first] <= a.At {
		t.first++
	}
	if t.first > len(t.leave)/2 {
		t.leave, t.first = append(t.leave[:0], t.leave[t.first:]...), 0
	}
	waiting := len(t.leave) - t.first
	if waiting == 0 {
		t.by = -1
	}
	if t.maxQueue > 0 && int64(waiting) >= t.maxQueue {
		t.settle(a, a.At, Full)
		return nil
	}
	fate, err := t.admit(a, cost)
	if err != nil {
		return err
	}
	if t.settle(a, t.now, fate); fate != Late && t.now > a.At {
		t.leave = append(t.leave, t.now)
		if waiting++; waiting > t.Longest {
			t.Longest, t.LongestAt = waiting, time.Unix(0, a.At)
		}
	}
	return nil
}

// admit plays until a request leaves the queue.
func (t *Traffic) admit(a Arrival, cost []int64) (Fate, error) {
	t.playUntil(a.At)
	for {
		f, again, by := t.take(t.now, cost)
		switch {
		case by < 0:
			heap.Push(&t.pending, timed[response]{later(t.now, a.Answers), response{t.now, f, cost}})
			return Admitted, nil
		case t.plan.Exhausted(by):
			return Exhausted, nil
		}
		t.by = by
		if t.maxWait > 0 {
			if again = min(again, a.At+t.maxWait); t.now >= again {
				return Late, nil
			}
		}
		if len(t.pending) > 0 {
			again = min(again, t.pending[0].at)
		}
		if again == never {
			return Late, errStuck
		}
		t.playUntil(again)
	}
}

// playUntil reports the responses that are in by an instant, which is then the present one.
func (t *Traffic) playUntil(until int64) {
	t.now = max(t.now, until)
	for len(t.pending) > 0 && t.pending[0].at <= t.now {
		r := heap.Pop(&t.pending).(timed[response])
		t.answered(r.at, r.what.admitted, r.what.flight, r.what.cost, 1)
	}
}

// settle records what becomes of a request at an instant.
func (t *Traffic) settle(a Arrival, at int64, f Fate) {
	wait := at - a.At
	t.Fates[f]++
	if f == Admitted {
		if wait > 0 {
			t.Waits = append(t.Waits, wait)
			t.ByTier[t.plan.Declared(max(0, t.by))]++
		}
		if e := time.Unix(0, later(at, a.Answers)); e.After(t.End) {
			t.End = e
		}
	}
	if t.told != nil {
		t.told(a.At, f, time.Duration(wait))
	}
}

// costOf returns the cost of an arrival in the units of the plan.
func (t *Traffic) costOf(a Arrival) []int64 {
	if len(t.units) == 0 {
		return t.usual
	}
	cost := slices.Clone(t.usual)
	for u, unit := range t.plan.Units() {
		if i := slices.Index(t.units, unit); i >= 0 {
			cost[u] = a.Cost[i]
		}
		cost[u] = t.estimated(u, cost[u])
	}
	return cost
}

// arriveUnlimited lets the request arrive at the strict provider as it is.
func (t *Traffic) arriveUnlimited(a Arrival) {
	for len(t.open) > 0 && t.open[0].at <= a.At {
		t.provider.Release(heap.Pop(&t.open).(timed[map[string]int64]).what)
	}
	for i, unit := range t.units {
		t.arriving[cmp.Or(unit, algorithms.Requests)] = a.Cost[i]
	}
	at := floorMicro(a.At)
	if tier := t.provider.Admits(at, t.arriving); tier >= 0 {
		t.Provider[tier]++
		return
	}
	t.provider.Arrive(at, t.arriving)
	if t.plan.Concurrent() {
		heap.Push(&t.open, timed[map[string]int64]{later(a.At, a.Answers), maps.Clone(t.arriving)})
	}
}
