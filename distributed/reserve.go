package distributed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// TryAcquire asks Redis once and does not reserve ahead. If the context ends, it returns at once
// and refunds the grant later.
func (q *quota) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	if !q.isNewest() {
		return moved, nil
	}
	type result struct {
		store.Decision
		err error
	}
	done := make(chan result, 1)
	go func() {
		d, err := q.tryAcquire(ctx, r, 0)
		done <- result{d, err}
	}()
	select {
	case a := <-done:
		return a.Decision, a.err
	case <-ctx.Done():
		q.store.reports.Background(func() error {
			q.Cancel([]store.Decision{(<-done).Decision})
			return nil
		})
		return store.Decision{}, ctx.Err()
	}
}

func (q *quota) tryAcquire(ctx context.Context, r store.Request, tries int) (store.Decision, error) {
	if d, paused := q.record.pausedAlone(); paused {
		return d, nil
	}
	spec := store.WaitSpec{} // with no wait
	if r.WaitSpec != nil {
		spec.YieldFor, spec.Headroom, spec.Hold = r.YieldFor, r.Headroom, r.Hold
		if r.DryRun {
			spec.MaxWait = dryRun
		}
	}
	q.measureTrip()
	if isNewest, _ := q.lock(context.Background()); !isNewest {
		return moved, nil
	}
	requests := []store.Request{{Cost: r.Cost, Held: r.Held, Guard: r.Guard, WaitSpec: &spec}}
	a, own := &attempt{quota: q, requests: requests, way: cmp.Or(r.Guard, q.plan.Guard()), hold: spec.Hold, lined: true, asks: true}, (*place)(nil)
	if r.IsDryRun() { // else the request would go in the turn of the callers that wait
		own = q.turns.place.Load()
	}
	args := a.appendTerms(append(q.beginReserve(12), 0, 0, 0))
	_, err := q.call(&a.trip, a.appendRequests(append(args, own.args()...), requests, 0))
	got, lost, err := a.conclude(err)
	switch {
	case err == errFollowed:
		return moved, nil
	case err != nil:
		return store.Decision{}, err
	case lost == nil && a.isLate(got):
		q.Cancel(got)
		delay, err := q.retryAfter(&a.trip, tries)
		if err != nil {
			return store.Decision{}, err
		}
		select {
		case <-time.After(delay):
			return q.tryAcquire(ctx, r, tries+1)
		case <-ctx.Done():
			return store.Decision{}, ctx.Err()
		}
	case q.overtaken(got):
		q.Cancel(got)
		return q.tryAcquire(ctx, r, tries)
	}
	q.trackProbes(got, []store.Request{r})
	d := got[0]
	switch {
	case r.IsDryRun() && d.Tier < 0 && d.Wait == 0:
		d.Verdict = store.Ready
	case d.Verdict == store.Late:
		d.Verdict = store.Later
	}
	return d, nil
}

// Reserve asks Redis, in a goroutine that ends with the call.
func (q *quota) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	p := q.store.reports.Begin()
	go q.reserve(behind, requests, func(got []store.Decision, err error) {
		q.leave(leaveDelay) // the callers may have left before they had a turn or a place in the queue
		done(got, err)
		p.End(nil)
	}, 0)
}

// reserve reserves and calls done. If the answer comes too late for all of its reservations, it
// asks again after a back-off, for one request only.
func (q *quota) reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error), tries int) {
	if d, refused := q.record.refuses(requests); refused {
		done(slices.Repeat([]store.Decision{d}, len(requests)), nil)
		return
	}
	_ = q.repay()
	q.measureTrip()
	if isNewest, _ := q.lock(context.Background()); !isNewest {
		done(slices.Repeat([]store.Decision{moved}, len(requests)), nil)
		return
	}
	a := newAttempt(q, behind, requests)
	a.done = func(err error) {
		got, lost, err := a.conclude(err)
		switch {
		case err == errFollowed:
			q.refund(a.readMade(), true)
			done(slices.Repeat([]store.Decision{moved}, len(requests)), nil)
		case lost == nil && a.isLate(got):
			q.Cancel(got)
			delay, err := q.retryAfter(&a.trip, tries)
			if err != nil {
				done(nil, err)
				return
			}
			time.AfterFunc(delay, func() { q.reserve(behind, requests[:1], done, tries+1) })
		case q.overtaken(got):
			q.Cancel(got)
			go q.reserve(behind, requests, done, tries)
		default:
			q.trackProbes(got, requests)
			q.store.listener.wantFor(q, got)
			done(got, err)
			if q.overtaken(got) { // the watchers were called before they had these decisions
				q.notifyAgain()
			}
		}
	}
	a.late = func() {
		got, _ := a.read()
		q.refund(got, true)
	}
	q.node.make(&a.trip)
}

// retryAfter returns a random delay before the next try after an answer that came too late, or an
// error if answers usually take too long to be usable.
func (q *quota) retryAfter(late *trip, tries int) (time.Duration, error) {
	took := q.UsualTrip().Round(time.Millisecond)
	q.store.journal.report(redisLate, "key", q.key, "took", took)
	delay, ok := q.RetryAfter(late.got.Sub(late.sent), q.node.timeout, tries)
	if !ok {
		return 0, fmt.Errorf("distributed: key %q: Redis usually answers after %v, and a reservation under this policy is valid for %v at most: use a Redis that is nearer, or longer windows",
			q.key, took, q.Bound)
	}
	return delay, nil
}

// overtaken reports whether any of the decisions is void: made before a pause, or the end of one,
// that this process has seen since, in a state that is lost, or under a plan that was replaced.
func (q *quota) overtaken(got []store.Decision) bool {
	return q.record.voids(got) || !q.isNewest() && slices.ContainsFunc(got, func(d store.Decision) bool { return d.Verdict == store.Admitted })
}

// IsVoid reports whether the reservation is overtaken.
func (q *quota) IsVoid(d store.Decision) bool { return q.overtaken([]store.Decision{d}) }

// beginReserve returns the first arguments of a reservation, with the budget tiers if there are
// any.
func (q *quota) beginReserve(more int) []any {
	if len(q.budgets) == 0 {
		return q.begin(opReserve, more)
	}
	return q.appendBudgets(q.begin(opBudget, 1+len(q.budgets)+more))
}

// appendBudgets appends the number of budget tiers and these.
func (q *quota) appendBudgets(args []any) []any {
	return append(append(args, len(q.budgets)), q.budgets...)
}

// turnLength returns for how long behind the first time to come a process reserves. A returned time is lost to
// a request that costs more, so a process whose requests have unlike costs reserves for a shorter time.
func (q *quota) turnLength(requests []store.Request) time.Duration {
	unlike := func(r store.Request) bool { return !slices.Equal(r.Cost, requests[0].Cost) }
	if slices.ContainsFunc(requests, unlike) {
		return q.store.options.Horizon / 3
	}
	return q.store.options.Horizon
}

// Trip returns the usual duration of a round trip to Redis.
func (q *quota) Trip(ctx context.Context) time.Duration {
	if !q.node.measuring.Load() {
		go q.measureTrip()
	}
	select {
	case <-q.node.measured:
	case <-ctx.Done():
	}
	return q.UsualTrip()
}

// measureTrip measures the first round trip to the server, with a call that reserves nothing.
func (q *quota) measureTrip() {
	if q.node.measuring.CompareAndSwap(false, true) {
		_, _, _, _ = q.ask(context.Background(), opStatus)
		close(q.node.measured)
	}
	<-q.node.measured
}

// Cancel returns reservations that will not be used: their permits and their times. An expired
// reservation is a sample of how late callers wake up.
func (q *quota) Cancel(reserved []store.Decision) { q.cancel(reserved, true) }

// cancel is Cancel. If lends is true, other requests may take over future times.
func (q *quota) cancel(reserved []store.Decision, lends bool) {
	now := time.Now()
	for _, b := range reserved {
		if b.Verdict == store.Admitted {
			if b.Crossed != nil {
				q.crossings.add(b.Crossed)
			}
			if b.Reservation.State != inFallback {
				q.AddWake(b.Reservation, now)
			}
			q.releaseUnsent(b, b.Reservation.Cost)
			q.endProbe(b, unsent)
		}
	}
	if q.newest().leases == nil { // the newest quota makes the call
		q.refund(reserved, lends) // before the next call
	} else {
		q.store.reports.Background(func() error { // calls take turns
			q.refund(reserved, lends)
			return nil
		})
	}
}

// releaseUnsent releases the permits and estimates of a request that was not sent.
func (q *quota) releaseUnsent(b store.Decision, cost []int64) {
	q = q.newestWith(&cost)
	if b.Reservation.State == inFallback {
		q.fallback.cancel(b, cost)
	} else if !wasLate(b) {
		q.fallback.release(cost)
	}
	q.leases.release(q.plan, cost)
	q.leases.settle(q.plan, cost, nil, nil)
}

// refund returns times to Redis. If lends is true, the next request that fits takes over a future
// time. Any other request is refunded, also if Redis has landed it because other requests are reserved
// further ahead. A failed call is not repeated, because Redis would hand out twice what was returned
// twice. With leases, refund blocks for the turn.
func (q *quota) refund(reserved []store.Decision, lends bool) {
	now := time.Now()
	newest := q.newest()
	state := newest.record.get()
	back := make(map[refundable][]store.Decision)
	for _, b := range reserved {
		if a := b.Reservation; a != nil && a.State == state.id() && timing.RefundableUntil(a, lends).After(now) {
			of := refundable{a.Guard, a.Clock, state.generation}
			back[of] = append(back[of], b)
		}
	}
	for of, all := range back {
		for some := range slices.Chunk(all, mostACall) {
			q.refundAlike(of, some, lends)
		}
	}
}

// A refundable is what reservations have in common that a call refunds.
type refundable struct {
	guard             time.Duration
	clock, generation int64
}

// refundAlike makes a call of refund.
func (q *quota) refundAlike(of refundable, some []store.Decision, lends bool) {
	n, _ := q.lockNewest(context.Background())
	op := opCancel
	if n != q {
		op = opRefundOld
	} else if !lends {
		op = opRefund
	}
	args := append(n.begin(op, 3+len(some)*(1+len(n.plan.Units()))), of.generation, of.clock, micros(of.guard))
	for _, b := range some {
		args = appendCost(append(args, b.Reservation.At), n.plan.Translate(q.plan, b.Reservation.Cost))
	}
	p := q.store.reports.Begin()
	n.node.enter(&trip{calls: []*call{newCall(n, args)}, refunds: true, done: func(err error) {
		n.leases.unlock(err)
		if err == errFollowed { // nothing was refunded
			q.store.reports.Background(func() error {
				q.refund(some, lends)
				return nil
			})
		}
		p.End(unlessFollowed(err))
	}})
	time.AfterFunc(refundDelay, n.node.run)
}

// Return refunds a request that was not sent. A future start time is so near that no other request
// could use it, so it is not lent.
func (q *quota) Return(_ context.Context, b store.Decision, cost []int64) error {
	q.cancel([]store.Decision{b}, false)
	return nil
}

// Leave does nothing: the quota leaves when its last watcher stops.
func (q *quota) Leave() {}

// leave gives back what Redis keeps for the waiting callers of this process: the turn of requests that
// yield, and the place in the queue for permits or the permit that is kept. It does so after a delay,
// or in Flush, unless a caller waits by then.
func (q *quota) leave(delay time.Duration) {
	if q.watchers.any() || q.turns.next.Load() == 0 && q.turns.place.Load() == nil && !q.leases.queued() {
		return
	}
	q.store.reports.Later(delay, func() error {
		if q.watchers.any() {
			return nil
		}
		err := q.giveBack(q.turns.next.Swap(0), 0)
		if p := q.turns.place.Swap(nil); p != nil {
			err = errors.Join(err, q.giveBack(p.at, -p.length))
		}
		q.leases.leave()
		return err
	})
}

// giveBack gives back a turn if it is not 0, for a number of requests, or for requests that yield if
// that is 0. Without a call, the turn ends by itself.
func (q *quota) giveBack(turn, requests int64) error {
	if turn <= 0 {
		return nil
	}
	_, _, _, err := q.ask(context.Background(), opLeave, turn, requests)
	return err
}

// repay charges in Redis what this process has sent without it.
func (q *quota) repay() error {
	if q.fallback == nil {
		return nil
	}
	if q.node.circuit.isBroken() && q.fallback.isInDebt() { // a charge that had no answer may be made nevertheless, so it waits for one
		if _, _, _, err := q.ask(context.Background(), opStatus); err != nil {
			return err
		}
	}
	q.store.debtors.Delete(q)
	owed, amounts := q.fallback.takeOwed()
	if owed == nil {
		return nil
	}
	_, _, _, err := q.askWith(context.Background(), opCount, func(n *quota, args []any) []any {
		if n != q { // under other tiers: charge each tier with the whole amount of its unit
			amounts = tierAmounts(n.plan, n.plan.Translate(q.plan, owed))
		}
		return appendCost(args, amounts)
	})
	if err != nil {
		n := q.newest()
		n.fallback.owe(n.plan.Translate(q.plan, owed))
		n.store.debtors.Store(n, nil)
	}
	return err
}

// Bundle returns nil if a quota is of another store or in another slot.
func (q *quota) Bundle(around []store.Quota, headroom []int) store.Bundle {
	if b := newBundle(q, around, headroom); b != nil {
		return b
	}
	return nil
}
