package kept

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// A lease is what this process holds of one quota: places in Concurrency tiers, and estimates that are not
// settled. Every transaction reports the whole amounts, so the next one corrects what a lost reply has
// granted. A nil lease holds nothing.
type lease struct {
	id int64

	mu sync.Mutex // guards all below
	// plan has the units of all amounts.
	plan *algorithms.Plan
	// held are the places and open estimates of all admitted requests, by unit.
	held []int64
	// ahead are the admitted requests that had not begun in the last transaction.
	ahead []begins
	// settled are the costs of all settled estimates, by unit, and confirmed the part that the keeper has.
	settled, confirmed []int64
	// unreported reports that less is held since the last report.
	unreported bool
	// far is when the last booking begins that has a lease.
	far time.Time
	// crossed receives the percentages that calendar tiers reach.
	crossed func([]algorithms.Crossing)
}

// A begins is an admitted request that begins at an instant of the quota's clock. Its cost is what it holds.
type begins struct {
	at   int64
	cost []int64
}

func newLease(p *algorithms.Plan) *lease {
	n := len(p.Units())
	return &lease{id: 1 + rand.Int64N(1<<48), plan: p, held: make([]int64, n), settled: make([]int64, n), confirmed: make([]int64, n)}
}

// rebase translates the amounts to another plan. Estimates of a unit that is no longer estimated become
// its cost.
func (l *lease) rebase(p *algorithms.Plan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plan == p {
		return
	}
	old, all := l.plan, p.Translate(l.plan, l.held)
	l.settled, l.confirmed = p.Translate(old, l.settled), p.Translate(old, l.confirmed)
	for u, unit := range p.Units() {
		if o := slices.Index(old.Units(), unit); o >= 0 && old.Estimated(o) && !p.Estimated(u) {
			l.settled[u] += all[u]
		}
	}
	for i := range l.ahead {
		l.ahead[i].cost = p.TranslateHeld(old, l.ahead[i].cost)
	}
	l.held, l.plan = p.TranslateHeld(old, l.held), p
}

// add adds an admitted request of the plan, which begins at an instant.
func (l *lease) add(at int64, cost []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cost = l.plan.TranslateHeld(l.plan, cost); isFree(cost) {
		return
	}
	l.ahead = append(l.ahead, begins{at, cost})
	for u, n := range cost {
		l.held[u] += n
	}
}

// end takes the places of a request that begins at an instant off the held ones, or its estimates if settled is
// set. Their actual cost is zero if nil.
func (l *lease) end(p *algorithms.Plan, at int64, cost, actual []int64, settled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	cost = l.plan.TranslateHeld(p, cost)
	if actual != nil {
		actual = l.plan.TranslateHeld(p, actual)
	}
	for u, n := range cost {
		if !l.plan.Holds(u) || l.plan.Estimated(u) != settled {
			continue
		}
		l.held[u] -= n
		if actual != nil {
			l.settled[u] += actual[u]
		}
	}
	if i := slices.IndexFunc(l.ahead, func(b begins) bool { return b.at == at && slices.Equal(b.cost, cost) }); i >= 0 && !settled {
		l.ahead = slices.Delete(l.ahead, i, i+1)
	}
	l.unreported = true
}

// isIdle reports whether nothing is held and nothing to be reported.
func (l *lease) isIdle() bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Max(l.held) <= 0 && slices.Equal(l.settled, l.confirmed)
}

// renews reports whether the lease must not end.
func (l *lease) renews(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Max(l.held) > 0 || !slices.Equal(l.settled, l.confirmed) || l.far.After(now)
}

// differs reports whether the last report is not what the process holds now.
func (l *lease) differs() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unreported || !slices.Equal(l.settled, l.confirmed)
}

// A report is what a transaction reports of a lease.
type report struct {
	held, settled, confirmed []int64
}

// report returns what the process holds of requests that have begun.
func (l *lease) report(now int64) report {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead, l.unreported = slices.DeleteFunc(l.ahead, func(b begins) bool { return b.at <= now }), false
	r := report{slices.Clone(l.held), slices.Clone(l.settled), slices.Clone(l.confirmed)}
	for _, b := range l.ahead {
		for u, n := range b.cost {
			r.held[u] -= n
		}
	}
	return r
}

// confirm records that the keeper has a report.
func (l *lease) confirm(r report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(r.settled) == len(l.confirmed) {
		l.confirmed = r.settled
	}
}

// apply makes the state as the lease reports, and extends the lease to an instant.
func (t *txn) apply(l *lease, until int64) report {
	if l == nil {
		return report{}
	}
	l.rebase(t.plan)
	r := l.report(t.now.At)
	o := t.owner(l.id)
	if o == nil {
		if slices.Max(r.held) <= 0 && slices.Equal(r.settled, r.confirmed) {
			return r
		}
		o = t.ownerOf(l)
	}
	held, settled := t.spread(r.held), t.spread(r.settled)
	less, more, actual := make([]int64, len(held)), make([]int64, len(held)), make([]int64, len(held))
	differs := false
	for u := range held {
		if !t.holds[u] {
			continue
		}
		less[u], more[u] = max(0, o.held[u]-held[u]), max(0, held[u]-o.held[u])
		actual[u] = max(0, settled[u]-o.settled[u])
		differs = differs || less[u]+more[u]+actual[u] > 0
		o.held[u], o.settled[u] = held[u], max(settled[u], o.settled[u])
	}
	switch {
	case differs:
		t.end(less, actual)
		t.each(more, func(l *algorithms.Ledger, cost []int64) { l.Hold(cost) })
	case o.isDone(t.book) && slices.Equal(r.settled, r.confirmed):
		t.owners = slices.DeleteFunc(t.owners, func(o owner) bool { return o.id == l.id })
		t.changed = true
		return r
	}
	if until > o.expires+(until-t.now.At)/4 {
		o.expires, t.changed = until, true
	}
	return r
}

// end ends places and estimates of requests in all ledgers. The actual cost of the estimates lands now.
func (t *txn) end(held, actual []int64) {
	t.each(held, func(l *algorithms.Ledger, cost []int64) { l.Release(cost) })
	for i := range t.ledgers {
		if l := &t.ledgers[i].ledger; l.Plan().Estimates() {
			l.Settle(t.now, t.of(i, held), t.of(i, actual))
		}
	}
}

// ownerOf returns the owner of a lease, which it adds if there is none.
func (t *txn) ownerOf(l *lease) *owner {
	if o := t.owner(l.id); o != nil {
		return o
	}
	n := len(t.holds)
	t.owners = append(t.owners, owner{
		id: l.id, expires: t.now.At + 1, wants: make([]int64, n), held: make([]int64, n), settled: slices.Clone(t.spread(l.report(t.now.At).confirmed)),
	})
	t.changed = true
	return &t.owners[len(t.owners)-1]
}

// hold adds the places and estimates of a request that begins now to those of the lease's owner.
func (t *txn) hold(l *lease, until int64, cost []int64) {
	if l == nil || !t.isHeld(cost) {
		return
	}
	o := t.ownerOf(l)
	o.expires = max(o.expires, until)
	for u, n := range cost {
		if t.holds[u] {
			o.held[u] += n
		}
	}
}

// isHeld reports whether a request of a cost holds places or estimates.
func (t *txn) isHeld(cost []int64) bool {
	for u, n := range cost {
		if n > 0 && t.holds[u] {
			return true
		}
	}
	return false
}

// expireOwners ends the leases of processes that do not live any more. Their places are free, their
// estimates become the cost of the requests, and others may take over their bookings.
func (t *txn) expireOwners() {
	for i := range t.owners {
		o := &t.owners[i]
		if o.expires > t.now.At {
			continue
		}
		for j := range t.book {
			if b := &t.book[j]; b.owner == o.id {
				b.free, b.owner = true, 0
			}
		}
		t.end(o.held, o.held)
		o.id = 0
	}
	n := len(t.owners)
	t.owners = slices.DeleteFunc(t.owners, func(o owner) bool { return o.id == 0 })
	if t.book = trim(t.book); len(t.owners) < n {
		t.changed, t.whole = true, nil
	}
}

// isDone reports whether an owner has nothing any more.
func (o *owner) isDone(book []booking) bool {
	return o.waits == 0 && slices.Max(o.held) <= 0 && !slices.ContainsFunc(book, func(b booking) bool { return b.owner == o.id })
}

// wantedBefore returns what processes want which have waited longer for places or estimates, or nil.
func (t *txn) wantedBefore(l *lease) (wanted []int64) {
	since := t.now.At + 1
	if l != nil {
		if o := t.owner(l.id); o != nil && o.waits > 0 {
			since = o.waits
		}
	}
	for _, o := range t.owners {
		if o.waits > 0 && o.waits < since && (l == nil || o.id != l.id) {
			if wanted == nil {
				wanted = make([]int64, len(o.wants))
			}
			wanted = sum(wanted, o.wants)
		}
	}
	return wanted
}
