package distributed

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle/store"
)

// A bundle is a quota and the quotas around it in the same slot. One call of the script charges all
// of them.
type bundle struct {
	quotas   []*quota // the outermost last
	turns    []*quota // the same in the order of their keys, in which calls take the turns of their leases
	headroom []int    // the percentages that requests which yield leave in them

	mu       sync.Mutex // guards all below
	waiting  bool       // callers wait
	turn     int64      // the instant of the last turn, by the clock of the first quota; or 0
	promised int64      // the requests that turn is for
	asked    time.Time  // when the process last asked for that turn; zero if it has not
	frontier time.Time  // the time of the outermost quota's last reservation, as of then
}

// newBundle returns nil if a quota is of another store or in another slot.
func newBundle(q *quota, around []store.Quota, headroom []int) *bundle {
	b := &bundle{quotas: []*quota{q}, headroom: headroom}
	for _, o := range around {
		o, ok := o.(*quota)
		if !ok || o.store != q.store || len(q.store.nodes) > 1 && slot(o.key) != slot(q.key) {
			return nil
		}
		b.quotas = append(b.quotas, o)
	}
	b.turns = slices.SortedFunc(slices.Values(b.quotas), func(x, y *quota) int { return strings.Compare(x.key, y.key) })
	for i, q := range b.turns {
		if q.store.apart.Load() || i > 0 && q.key == b.turns[i-1].key {
			return nil
		}
	}
	return b
}

// lock takes the turns of the leases of all quotas. It returns false, without the turns, if a quota has
// a successor.
func (b *bundle) lock() bool {
	for _, q := range b.turns {
		_ = q.leases.lock(context.Background())
	}
	if slices.ContainsFunc(b.quotas, func(q *quota) bool { return !q.isNewest() }) {
		b.unlock(nil)
		return false
	}
	for _, q := range b.quotas {
		q.leases.rebase(q)
	}
	return true
}

func (b *bundle) unlock(err error) {
	for _, q := range b.quotas {
		q.leases.unlock(err)
	}
}

// Reserve asks Redis, in a goroutine that ends with the call.
func (b *bundle) Reserve(guards []time.Duration, requests []store.Request, done func([]store.Decision, error)) {
	b.mu.Lock()
	b.waiting = true
	b.mu.Unlock()
	p := b.quotas[0].store.reports.Begin()
	go b.reserve(guards, requests, func(got []store.Decision, err error) {
		done(got, err)
		p.End(nil)
	}, 0)
}

// reserve is the method of a quota, for all quotas of the bundle.
func (b *bundle) reserve(guards []time.Duration, requests []store.Request, done func([]store.Decision, error), tries int) {
	q := b.quotas[0]
	if q.store.apart.Load() {
		done(nil, store.ErrApart)
		return
	}
	for _, q := range b.quotas {
		if d, refused := q.record.refuses(requests); refused {
			done(slices.Repeat([]store.Decision{d}, len(requests)), nil)
			return
		}
		_ = q.repay()
	}
	q.measureTrip()
	if !b.lock() {
		done(slices.Repeat([]store.Decision{moved}, len(requests)), nil)
		return
	}
	requests = requests[:min(len(requests), mostACall)]
	a := newJointAttempt(b, guards, requests)
	a.done = func(err error) {
		got, err := a.conclude(err)
		switch {
		case err == errFollowed:
			done(slices.Repeat([]store.Decision{moved}, len(requests)), nil)
		case err != nil:
			done(nil, err)
		case a.isLate(got):
			b.Cancel(got)
			delay, err := q.retryAfter(&a.trip, tries)
			if err != nil {
				done(nil, err)
				return
			}
			time.AfterFunc(delay, func() { b.reserve(guards, requests[:1], done, tries+1) })
		case b.overtaken(got):
			b.Cancel(got)
			go b.reserve(guards, requests, done, tries)
		default:
			for i, q := range b.quotas {
				q.trackProbes(partsOf(got, i), requests)
				q.store.listener.wantFor(q, got)
			}
			done(got, nil)
			if b.overtaken(got) { // the watchers were called before they had these reservations
				for _, q := range b.quotas {
					q.notifyAgain()
				}
			}
		}
	}
	a.late = func() {
		got, _ := a.read()
		for i, q := range b.quotas {
			q.refund(partsOf(got, i), true)
		}
	}
	q.node.make(&a.trip)
}

// wait returns how long after now to ask again, for a turn that comes after turn. lead is how far
// ahead the outermost quota has reservations: a process asks that much earlier.
//
// The lead changes, so a process first waits for half of that time only. If less was reserved in the
// outermost quota since then than time passed, the instant came hardly nearer, and the process waits
// twice as long as before. So it asks a few times for a turn, however far away the turn is.
func (b *bundle) wait(turn, lead time.Duration, now time.Time) time.Duration {
	soon, frontier := b.quotas[0].Soon(), now.Add(lead)
	again, least := max(0, turn-lead), time.Duration(0)
	if again > soon {
		again -= soon / 2
	}
	b.mu.Lock()
	if passed := now.Sub(b.asked); !b.asked.IsZero() {
		least = min(passed, again)
		if frontier.Sub(b.frontier) < passed*3/4 {
			least = min(2*passed, turn-soon/2)
		}
	}
	b.asked, b.frontier = now, frontier
	b.mu.Unlock()
	if lead > soon {
		again = max(min(again, soon), again/2, least)
	}
	return min(again, max(longestInQueue, again-again/8))
}

// setTurn stores a turn, unless the reply repeats the last one. An instant of 0 removes the turn.
func (b *bundle) setTurn(at, promised int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at == 0 || promised != 0 {
		b.turn, b.promised, b.asked = at, max(0, promised), time.Time{}
	}
	if !b.waiting {
		b.leave()
	}
}

// Leave gives back the turn, unless somebody waits soon.
func (b *bundle) Leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = false
	b.leave()
}

// leave is Leave without the lock.
func (b *bundle) leave() {
	if b.promised == 0 {
		return
	}
	q := b.quotas[0]
	q.store.reports.Later(leaveDelay, func() error {
		b.mu.Lock()
		turn, promised := b.turn, b.promised
		if b.waiting {
			turn = 0
		} else {
			b.turn, b.promised, b.asked = 0, 0, time.Time{}
		}
		b.mu.Unlock()
		return q.giveBack(turn, promised)
	})
}

// decider returns the quota of a tier, and its index there, which may be -1.
func (b *bundle) decider(tier int) (*quota, int) {
	i := 0
	for tier >= len(b.quotas[i].plan.Tiers()) {
		tier -= len(b.quotas[i].plan.Tiers())
		i++
	}
	return b.quotas[i], tier
}

// overtaken reports whether a charge is void in any quota.
func (b *bundle) overtaken(got []store.Decision) bool {
	for i, q := range b.quotas {
		if q.overtaken(partsOf(got, i)) {
			return true
		}
	}
	return false
}

// partsOf returns the decisions of one of the quotas.
func partsOf(got []store.Decision, i int) []store.Decision {
	parts := make([]store.Decision, len(got))
	for j, d := range got {
		if d.Verdict == store.Admitted {
			parts[j] = d.Reservation.Parts[i]
		}
	}
	return parts
}

// Cancel returns the reservations to each quota. Later requests for all of them take these over.
func (b *bundle) Cancel(reserved []store.Decision) {
	for i, q := range b.quotas {
		q.Cancel(partsOf(reserved, i))
	}
}
