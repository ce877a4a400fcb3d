package distributed

import (
	"context"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// moved is the decision of a quota that has a successor.
var moved = store.Decision{Verdict: store.Moved, Tier: -1}

func (q *quota) isNewest() bool { return q.lineage.IsNewest(q.version) }

// Change replaces the plan for all quotas that this process has opened under the key. The
// script converts the state with the next call.
func (q *quota) Change(_ context.Context, plan *algorithms.Plan) error {
	q.lineage.Change(plan)
	return nil
}

// Successor returns the newest quota and its plan.
func (q *quota) Successor() (store.Quota, *algorithms.Plan) {
	q = q.newest()
	return q, q.plan
}

func (q *quota) newest() *quota {
	for !q.isNewest() {
		q = q.successor()
	}
	return q
}

// successor returns the quota under the next plan. It takes over the state and the leases.
func (q *quota) successor() *quota {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next == nil {
		plan, version := q.lineage.Newest()
		next := q.store.newQuota(q.key, plan, q.lineage, version, q.calls)
		next.state, next.clock, next.fallback = q.state, q.clock, next.fallback.adopt(q.fallback)
		next.place.Store(q.place.Swap(nil))
		if next.leases = newLeases(next); next.leases != nil && q.leases != nil {
			next.leases = q.leases // with amounts of the previous plan until the first call
		}
		q.next = next
	}
	return q.next
}

// newestWith returns the newest quota and translates costs to its plan. Only units that both plans
// hold keep their amounts.
func (q *quota) newestWith(costs ...*[]int64) *quota {
	for !q.isNewest() {
		next := q.successor()
		for _, cost := range costs {
			*cost = translateHeld(next.plan, q.plan, *cost)
		}
		q = next
	}
	return q
}

// translateHeld is Plan.TranslateHeld. It keeps nil.
func translateHeld(plan, old *algorithms.Plan, cost []int64) []int64 {
	if cost == nil || plan == old {
		return cost
	}
	return plan.TranslateHeld(old, cost)
}

// lockNewest waits for the turn to call Redis, under the newest plan. It returns an error only if
// the context ends before.
func (q *quota) lockNewest(ctx context.Context) (*quota, error) {
	for {
		q = q.newest()
		if err := q.leases.lock(ctx); err != nil {
			return q, err
		}
		if q.isNewest() {
			q.leases.rebase(q)
			return q, nil
		}
		q.leases.unlock(nil)
	}
}

// ask calls Redis under the newest plan and records the header of the reply. own appends the
// arguments of the operation. ask returns the quota that called and the operation's own reply. If the
// context ends, ask returns at once. The call still ends its turn itself: else a later one might come
// before it, and report the same amounts.
func (q *quota) ask(ctx context.Context, op string, own func(q *quota, args []any) []any) (*quota, []int64, header, error) {
	q, err := q.lockNewest(ctx)
	if err != nil {
		return q, nil, header{}, err
	}
	args := own(q, q.begin(op, 8))
	type answer struct {
		reply []int64
		header
		err error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		t := new(trip)
		a.reply, a.err = q.call(t, args)
		q.leases.unlock(a.err)
		if a.err == nil {
			a.header, a.reply = parseHeader(a.reply), a.reply[headerLen:]
			q.recordReply(a.header, t)
		}
		done <- a
	}()
	select {
	case a := <-done:
		return q, a.reply, a.header, a.err
	case <-ctx.Done():
		return q, nil, header{}, ctx.Err()
	}
}
