package distributed

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// TryAcquire asks Redis once and does not reserve ahead. If the context ends, it returns at once
// and refunds the grant later.
func (q *quota) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	if !q.isNewest() {
		return moved, nil
	}
	type answer struct {
		store.Decision
		err error
	}
	done := make(chan answer, 1)
	go func() {
		b, err := q.tryAcquire(ctx, r, 0)
		done <- answer{b, err}
	}()
	select {
	case a := <-done:
		return a.Decision, a.err
	case <-ctx.Done():
		q.store.background(func() error {
			q.Cancel([]store.Decision{(<-done).Decision})
			return nil
		})
		return store.Decision{}, ctx.Err()
	}
}

func (q *quota) tryAcquire(ctx context.Context, r store.Request, tries int) (store.Decision, error) {
	if b, held := q.pausedLocally(); held {
		return b, nil
	}
	spec := store.WaitSpec{} // with no wait
	if r.WaitSpec != nil {
		spec.YieldFor, spec.Headroom, spec.Hold = r.YieldFor, r.Headroom, r.Hold
		if r.DryRun {
			spec.MaxWait = dryRun
		}
	}
	requests := []store.Request{{Cost: r.Cost, Held: r.Held, Guard: r.Guard, WaitSpec: &spec}}
	q.measureTrip()
	_ = q.leases.lock(context.Background())
	if !q.isNewest() {
		q.leases.unlock(nil)
		return moved, nil
	}
	q.leases.rebase(q)
	t, own := &trip{lined: true, asks: true, hold: spec.Hold}, (*place)(nil)
	if r.IsDryRun() { // else the request would go in the turn of the callers that wait
		own = q.place.Load()
	}
	args := t.withTerms(append(q.beginReserve(12), 0, 0, 0), func(calls int) { q.setTerms(t, r.Guard, calls) })
	_, err := q.call(t, q.appendRequests(t, append(args, own.args()...), requests, 0))
	got, lost, err := q.conclude(t, requests, err)
	switch {
	case err != nil:
		return store.Decision{}, err
	case lost == nil && t.isLate(got):
		q.Cancel(got)
		if err := q.distanceError(tries); err != nil {
			return store.Decision{}, err
		}
		select {
		case <-time.After(q.backOff(t, tries)):
			return q.tryAcquire(ctx, r, tries+1)
		case <-ctx.Done():
			return store.Decision{}, ctx.Err()
		}
	case q.overtaken(got):
		q.Cancel(got)
		return q.tryAcquire(ctx, r, tries)
	}
	q.trackProbes(got, []store.Request{r})
	b := got[0]
	switch {
	case r.IsDryRun() && b.Tier < 0 && b.Wait == 0:
		b.Verdict = store.Ready
	case b.Verdict == store.Late:
		b.Verdict = store.Later
	}
	return b, nil
}

// Pause pauses the fleet, or this process if Redis is away.
func (q *quota) Pause(ctx context.Context, p store.Pause) (store.Paused, error) {
	q, own, h, err := q.ask(ctx, opPause, func(_ *quota, args []any) []any {
		args = append(args, algorithms.Micros(p.For), bit(p.Close), bit(p.Once), p.Epoch, bit(p.Probe))
		if p.Most > 0 {
			args = append(args, algorithms.Micros(p.Most), bit(p.AtOnce))
		}
		return args
	})
	if err != nil {
		return q.pauseLocally(p), err
	}
	if own[0] == 0 {
		return store.Paused{Epoch: h.epoch}, nil
	}
	return store.Paused{Applied: true, For: h.left(), Epoch: h.epoch}, nil
}

// bit returns the script's argument for a boolean.
func bit(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Resume ends the pause or ban of the fleet, also in processes that keep one which Redis has lost.
// If Redis does not answer, it ends only a pause that this process alone keeps, and returns the
// error.
func (q *quota) Resume(ctx context.Context) error {
	q = q.newest()
	q.mu.Lock()
	s, known := &q.state, int64(0)
	if s.pause != neverRecorded {
		known = s.pause
	}
	if s.unrecorded {
		s.until, s.shut, s.unrecorded, s.pause = time.Time{}, false, false, 0
		q.unlockAndNotify(store.Eased, 0)
	} else {
		q.mu.Unlock()
	}
	_, err := q.endPause(ctx, known, resumed, 0)
	return err
}

// The ways in which a pause, or the wait for a probe, ends.
const (
	resumed    = iota // Resume ends any pause
	answered          // the response to the probe is in
	unanswered        // the probe gets no response, and the next request probes
	noReport          // no process will report the response: the others follow when the wait ends
	awaited           // the process of the probe lives, and the others wait on
	passed            // a request, or the probe if the fleet waits for it, was not refused
	unsent            // as unanswered, of a probe that was never sent
)

// endPause ends a pause, or the wait for a probe. It reports whether the fleet was waiting for the
// probe of the epoch.
func (q *quota) endPause(ctx context.Context, epoch int64, how int, length time.Duration) (waited bool, err error) {
	_, own, _, err := q.ask(ctx, opEndPause, func(_ *quota, args []any) []any { return append(args, epoch, how, micros(length)) })
	return err == nil && own[0] == 1, err
}

// endProbe reports the outcome of a probe, in a goroutine that ends with the call. It does not
// repeat a failed call, after which the next request probes.
func (q *quota) endProbe(b store.Decision, how int) {
	if !b.Probe {
		return
	}
	if pass, _ := q.store.probes.LoadAndDelete(b.Reservation); pass == passed && how == answered {
		how = passed
	}
	q = q.newest()
	q.mu.Lock()
	over := b.Epoch != q.state.epoch
	q.mu.Unlock()
	if !over {
		q.store.background(func() error {
			_, err := q.endPause(context.Background(), b.Epoch, how, 0)
			return err
		})
	}
}

// Passed reports to Redis in a goroutine that ends with the call, once for all requests of this
// process. For a probe, endProbe reports it.
func (q *quota) Passed(b store.Decision) {
	if q.store.probes.CompareAndSwap(b.Reservation, nil, passed) {
		return
	}
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := &q.state; s.level > 0 && b.Epoch == s.epoch {
		s.level = 0
		q.store.background(func() error {
			_, err := q.endPause(context.Background(), b.Epoch, passed, 0)
			return err
		})
	}
}

// trackProbes reports probes that are not held, and keeps the others until their response.
func (q *quota) trackProbes(got []store.Decision, requests []store.Request) {
	for i, b := range got {
		switch {
		case !b.Probe:
		case requests[i].Held:
			a := b.Reservation
			good := cmp.Or(a.Guard, unguarded)
			q.store.probes.Store(a, nil)
			q.extendProbe(b, a.Start.Add(good+store.ProbeTime/2), a.Start.Add(good+store.ProbeTimeout))
		default:
			q.endProbe(b, noReport)
		}
	}
}

// extendProbe makes the fleet wait for the response to a probe, a short time at each call: if this
// process dies, another one probes soon.
func (q *quota) extendProbe(b store.Decision, at, end time.Time) {
	time.AfterFunc(time.Until(at), func() {
		if _, kept := q.store.probes.Load(b.Reservation); !kept {
			return
		}
		length := min(2*store.ProbeTime, time.Until(end))
		waited, err := q.newest().endPause(context.Background(), b.Epoch, awaited, length)
		if length < 2*store.ProbeTime || err == nil && !waited {
			q.store.probes.Delete(b.Reservation)
			return
		}
		q.extendProbe(b, at.Add(store.ProbeTime), end)
	})
}

func (q *quota) pauseLocally(p store.Pause) store.Paused {
	q.mu.Lock()
	s := &q.state
	p.For = p.Length(s.level)
	end := time.Now().Add(min(p.For, longestPause))
	if !end.After(s.until) || p.Once && (p.Epoch != s.epoch || s.unrecorded && time.Now().Before(s.until)) {
		defer q.mu.Unlock()
		return store.Paused{Epoch: s.epoch}
	}
	s.until, s.shut, s.unrecorded, s.pause, s.level = end, p.Close, true, neverRecorded, p.Next(s.level)
	restore := !s.restoring
	s.restoring = true
	q.unlockAndNotify(s.change(), p.For)
	q.rememberPause(p.For)
	if restore {
		time.AfterFunc(firstRestore, func() { q.restore(firstRestore) })
	}
	return store.Paused{Applied: true, For: p.For, Epoch: p.Epoch}
}

func (s *state) change() store.Change {
	if s.shut {
		return store.Shut
	}
	return store.Slowed
}

// pausedLocally returns the decision during a pause that Redis does not have.
func (q *quota) pausedLocally() (store.Decision, bool) {
	b, held := q.paused()
	q.mu.Lock()
	defer q.mu.Unlock()
	return b, held && q.state.unrecorded
}

// paused returns the decision during a pause that this process has seen.
func (q *quota) paused() (store.Decision, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := time.Until(q.state.until)
	if left <= 0 {
		return store.Decision{}, false
	}
	b := store.Decision{Tier: -1, Wait: left, Epoch: q.state.epoch}
	if q.state.shut {
		b.Verdict = store.Closed
	}
	return b, true
}

// recordReply records the header of a reply. It returns the state of the reply's reservations, and
// the bounds of the quota's clock.
func (q *quota) recordReply(h header, t *trip) (int64, bounds) {
	known, step := q.clock.update(h, t.sent, t.got)
	q.mixed.Store(h.mixed)
	if step > stepped {
		q.store.journal.report(clockStepped, "by", step.Round(time.Millisecond))
	}
	q.mu.Lock()
	s := &q.state
	overtaken := t.sent.Before(s.asOf) // by a reply that came after this call was sent
	if overtaken && (h.generation != s.generation || h.epoch < s.epoch) {
		defer q.mu.Unlock()
		return s.of(h.generation), known
	}
	first, changed := s.generation == 0, h.epoch != s.epoch
	switch {
	case h.generation != s.generation:
		if !first && t.got.Before(s.expires) {
			defer q.reportLoss()
		}
		changed = true
		s.generation, s.written, s.expires = h.generation, 0, time.Time{}
	case h.written < s.written && !overtaken: // a replica took over that had not received all writes
		s.setbacks++
		s.written = 0
		changed = true
		defer q.reportLoss()
	}
	s.epoch, s.level, s.asOf, s.written = h.epoch, h.level, t.got, max(s.written, h.saved)
	if t.sent.After(s.sent) {
		s.sent = t.sent
	}
	if expires := t.sent.Add(time.Duration(h.ttl) * time.Millisecond); expires.After(s.expires) {
		s.expires = expires
	}
	state := s.of(h.generation)
	q.recordPause(h, t.got, changed, first)
	return state, known
}

// recordPause records the pause or ban of a reply, or that there is none, and unlocks. If the state
// in Redis is from before a pause, this process keeps the pause and restores it in Redis for the
// others.
func (q *quota) recordPause(h header, now time.Time, changed, first bool) {
	s, left := &q.state, h.left()
	paused := now.Before(s.until)
	switch {
	case paused && h.epoch < s.pause && now.Add(left).Before(s.until):
		q.keepPause()
	case !changed && !s.unrecorded:
		if left == 0 && paused { // the probe has its response
			s.until = now
		}
		q.mu.Unlock()
	case left > 0:
		s.until, s.shut, s.pause, s.unrecorded = now.Add(left), h.shut == isBan, h.epoch, false
		if h.shut == isProbe {
			s.until = now // the response may come at any time
		}
		q.unlockAndNotify(s.change(), left)
		q.rememberPause(left)
	default:
		s.unrecorded, s.shut = false, false
		if paused {
			s.until = now
		}
		if !paused && (!changed || first) {
			q.mu.Unlock()
			return
		}
		q.unlockAndNotify(store.Eased, 0)
	}
}

// keepPause keeps a pause that Redis does not have, and restores it. It unlocks.
func (q *quota) keepPause() {
	s := &q.state
	restore := !s.restoring
	s.unrecorded, s.restoring = true, true
	q.mu.Unlock()
	if restore {
		go q.restore(firstRestore)
	}
}

// recordMissing records that Redis has no state.
func (q *quota) recordMissing(t *trip) {
	q.mu.Lock()
	s := &q.state
	if s.unrecorded || t.sent.Before(s.asOf) || !t.got.Before(s.until) {
		q.mu.Unlock()
		return
	}
	q.keepPause()
}

const (
	firstRestore  = 500 * time.Millisecond // the first delay before a pause is restored in Redis
	lastRestore   = 16 * time.Second       // the longest delay
	longestPause  = 876_000 * time.Hour    // of a process alone: a century, which the script can represent
	forecastAfter = time.Second            // a pause without a reply for this long is not part of a forecast
)

// rememberPause listens until a pause ends: for its early end, and for a broken connection, after
// which the server may be back without the pause.
func (q *quota) rememberPause(left time.Duration) {
	if left > linger {
		q.store.listener.want(q)
	}
}

// restore sends Redis a pause that it does not have, until it has the pause or the pause ends. The
// first process to do so restores it for all. Redis refuses a pause if it has a later event.
func (q *quota) restore(again time.Duration) {
	q, left, args := q.toRestore()
	if left <= 0 {
		return
	}
	_, _, _, err := q.ask(context.Background(), opPause, func(_ *quota, begun []any) []any { return append(begun, args...) })
	if errors.Is(err, redis.ErrClosed) {
		return
	}
	if q, left, _ := q.toRestore(); left > 0 {
		time.AfterFunc(again/2+rand.N(again), func() { q.restore(min(lastRestore, 2*again)) })
	}
}

// toRestore returns the time left of a pause that Redis does not have, zero if there is none, and
// the arguments that restore it.
func (q *quota) toRestore() (newest *quota, left time.Duration, args []any) {
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.state
	left = time.Until(s.until)
	if s.restoring = s.unrecorded && left > 0; !s.restoring {
		return q, 0, nil
	}
	once, epoch := restoreOnce, s.pause
	if epoch == neverRecorded {
		once, epoch = 0, 0
	}
	return q, left, []any{algorithms.Micros(left) + 1, bit(s.shut), once, epoch, bit(true)}
}

// restoreOnce is the value of the script's argument once that restores a pause.
const restoreOnce = 2

// reportLoss reports that Redis has lost the state of the quota.
func (q *quota) reportLoss() {
	q.mu.Lock()
	q.unlockAndNotify(store.Lost, 0)
	q.store.journal.report(stateLost, "key", q.key)
	if q.store.options.OnLost != nil {
		q.store.options.OnLost(q.key)
	}
}

// notifyFreed notifies the watchers that a permit may be free.
func (q *quota) notifyFreed() {
	q.mu.Lock()
	q.unlockAndNotify(store.Freed, 0)
}

func (q *quota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	w := &watcher{changed}
	stopLine := q.lineage.Watch(func() { changed(store.Replanned, 0) })
	q.mu.Lock()
	defer q.mu.Unlock()
	q.watchers[w] = struct{}{}
	return func() {
		stopLine()
		q.mu.Lock()
		delete(q.watchers, w)
		q.mu.Unlock()
		q.leave(leaveDelay)
	}
}

// unlockAndNotify unlocks and then calls the watchers.
func (q *quota) unlockAndNotify(c store.Change, left time.Duration) {
	tell := make([]*watcher, 0, len(q.watchers))
	for w := range q.watchers {
		tell = append(tell, w)
	}
	q.mu.Unlock()
	for _, w := range tell {
		w.changed(c, left)
	}
}

func (q *quota) watched() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.watchers) > 0
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
				q.mu.Lock()
				q.unreported = append(q.unreported, b.Crossed...)
				q.mu.Unlock()
			}
			if a := b.Reservation; a.State != inFallback && !wasLate(b) && a.Expired(now) {
				q.node.wake.add(min(q.bound, latestWake, now.Sub(latest(a.Start, a.Told))))
			}
			q.releaseUnsent(b, b.Reservation.Cost)
			q.endProbe(b, unsent)
		}
	}
	if q.newest().leases == nil { // the newest quota makes the call
		q.refund(reserved, lends) // before the next call
	} else {
		q.store.background(func() error { // calls take turns
			q.refund(reserved, lends)
			return nil
		})
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
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

// refundableUntil returns until when a request is refunded. A caller may have sent it and report otherwise: then
// it is until its guard has passed. A reservation that no caller has used may be returned later, because
// callers wake up late.
func refundableUntil(a *store.Reservation, unused bool) time.Time {
	if unused || a.Guard == 0 {
		return a.End.Add(a.Guard + latestWake)
	}
	return a.Start.Add(a.Guard)
}

// refund returns times to Redis. If lends is true, the next request that fits takes over a future
// time. Any other request is refunded, also if Redis has landed it because other requests are reserved
// further ahead. A failed call is not repeated, because Redis would hand out twice what was returned
// twice. With leases, refund blocks for the turn.
func (q *quota) refund(reserved []store.Decision, lends bool) {
	now := time.Now()
	newest := q.newest()
	newest.mu.Lock()
	generation := newest.state.generation
	state := newest.state.of(generation)
	newest.mu.Unlock()
	type alike struct {
		guard time.Duration
		clock int64
	}
	back, future := make(map[alike][]*store.Reservation), false
	for _, b := range reserved {
		if a := b.Reservation; a != nil && a.State == state && refundableUntil(a, lends).After(now) {
			of := alike{a.Guard, a.Clock}
			back[of] = append(back[of], a)
			future = future || a.Start.After(now)
		}
	}
	if future {
		newest.mu.Lock()
		newest.returned = now
		newest.mu.Unlock()
	}
	for of, all := range back {
		for some := range slices.Chunk(all, mostACall) {
			n, _ := q.lockNewest(context.Background())
			op := opCancel
			if n != q {
				op = opRefundOld
			} else if !lends {
				op = opRefund
			}
			args := append(n.begin(op, 3+len(some)*(1+len(n.plan.Units()))), generation, of.clock, micros(of.guard))
			for _, a := range some {
				args = appendCost(append(args, a.At), n.plan.Translate(q.plan, a.Cost))
			}
			p := q.store.reports.begin()
			n.node.enter(&trip{calls: []*call{n.newCall(args)}, refunds: true, done: func(err error) {
				n.leases.unlock(err)
				p.end(err)
			}})
			time.AfterFunc(refundDelay, n.node.run)
		}
	}
}

// Arrived reports probes only. To report each request would cost a second call, so requests are in
// flight for the whole of Policy.Guard in Redis.
func (q *quota) Arrived(b store.Decision, _ []int64) { q.endProbe(b, answered) }

// Unanswered settles the estimates at their full amount when the guard has passed, the time at
// which Redis lands the other units. Until then they are held.
func (q *quota) Unanswered(b store.Decision, cost []int64) {
	q.endProbe(b, unanswered)
	if q.plan.Estimates() {
		a, p := b.Reservation, q.store.reports.begin()
		time.AfterFunc(time.Until(a.Start.Add(a.Guard)), func() {
			q.Settle(b, cost, cost, nil)
			p.end(nil)
		})
	}
}

// Release gives back the permits of a request.
func (q *quota) Release(b store.Decision, cost []int64) {
	q = q.newestWith(&cost)
	q.fallback.release(cost)
	q.leases.release(q.plan, cost)
}

// Settle reports the actual cost with the next call, or with a call of its own.
func (q *quota) Settle(b store.Decision, cost, actual []int64, crossed func([]algorithms.Crossing)) {
	q = q.newestWith(&cost, &actual)
	if b.Reservation.State == inFallback {
		q.fallback.settle(b, cost, actual)
		actual = nil // repay charges it
	}
	q.leases.settle(q.plan, cost, actual, crossed)
}

// Return refunds a request that was not sent. A future start time is so near that no other request
// could use it, so it is not lent.
func (q *quota) Return(_ context.Context, b store.Decision, cost []int64) error {
	q.cancel([]store.Decision{b}, false)
	return nil
}

// Align does nothing: windows of unknown phase stay rolling.
func (q *quota) Align(int, time.Time, time.Time) {}

// Learned is false: Redis keeps what the responses have reported.
func (q *quota) Learned() bool { return false }

// Observe reports readings to Redis, in a goroutine that ends with the call. It skips them if the
// last report was less than observeEvery ago and units remain.
func (q *quota) Observe(b store.Decision, cost []int64, seen []store.Observation) {
	if b.Reservation == nil || b.Reservation.State == inFallback || !q.isNewest() || !q.worthReporting(seen) && !b.Probe {
		return
	}
	q.store.background(func() error {
		_, _, _, err := q.ask(context.Background(), opObserve, func(n *quota, args []any) []any {
			args = append(args, micros(b.Reservation.Guard))
			if n != q { // the readings belong to tiers of the previous plan
				return args
			}
			for _, o := range seen {
				args = append(args, o.Tier+1, o.Used, b.At, cost[q.plan.UnitOf(o.Tier)], bit(o.Exact), o.Until(), algorithms.Micros(o.Slack))
			}
			return args
		})
		return err
	})
}

func (q *quota) worthReporting(seen []store.Observation) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	usedUp := slices.ContainsFunc(seen, func(o store.Observation) bool { return o.Used >= q.plan.Tiers()[o.Tier].Capacity() })
	if !usedUp && time.Since(q.observed) < observeEvery {
		return false
	}
	q.observed = time.Now()
	return true
}

// Status asks Redis, and blocks for a round trip.
func (q *quota) Status(ctx context.Context) (store.Status, error) {
	s := store.Status{Shared: "Redis"}
	if q.fallback != nil {
		s.Fallback = q.store.options.Fallback.Workers
	}
	q, own, h, err := q.ask(ctx, opStatus, func(_ *quota, args []any) []any { return args })
	if err != nil {
		return s, err
	}
	s.At = h.now
	if h.shut == isBan {
		s.Closed = h.left()
	} else {
		s.Paused = h.left()
	}
	rates := q.plan.MaxRates()
	for i, tier := range q.plan.Tiers() {
		used, next, fresh := own[3*i], own[3*i+1], own[3*i+2]
		s.Tiers = append(s.Tiers, store.TierStatus{
			Tier:       tier,
			Limited:    next == never || next > h.now,
			Limit:      tier.Capacity(),
			Used:       used,
			Remaining:  max(0, tier.Capacity()-used),
			RetryAfter: h.after(next),
			ResetAfter: h.after(fresh),
			MaxRate:    rates[i],
		})
	}
	return s, nil
}

func (h header) after(at int64) time.Duration {
	if at == never {
		return store.Forever
	}
	return algorithms.Moment{At: h.now}.Until(max(h.now, at))
}

// Forecast returns a forecast that assumes no other requests in the fleet and no charges.
func (q *quota) Forecast() store.Forecast {
	if idle := q.idle(); idle != nil {
		return idle.Forecast()
	}
	return nil
}

// Soonest makes the assumptions of Forecast.
func (q *quota) Soonest(cost []int64, headroom int64) (wait time.Duration, tier int) {
	if idle := q.idle(); idle != nil {
		return idle.Soonest(cost, headroom)
	}
	return 0, -1
}

// idle returns a quota without charges and with the pause of this one, or nil if this one has a
// successor.
func (q *quota) idle() store.Quota {
	if !q.isNewest() {
		return nil
	}
	idle, _ := local.New().Open("", q.plan, nil) // a new store has no key yet
	q.mu.Lock()
	left := time.Until(q.state.until)
	if !q.state.unrecorded && time.Since(q.state.asOf) > forecastAfter { // it may have ended early
		left = 0
	}
	q.mu.Unlock()
	_, _ = idle.Pause(context.Background(), store.Pause{For: left})
	return idle
}

// Idle reports whether the quota can be forgotten without a loss: no pause is in force, which Redis
// may lose, nothing is held, and nothing that was sent without Redis still counts.
func (q *quota) Idle() bool {
	q = q.newest()
	q.mu.Lock()
	paused := time.Now().Before(q.state.until)
	q.mu.Unlock()
	return !paused && q.leases.isIdle() && q.fallback.isIdle()
}

// Close ends the quota's subscription, and gives back what Redis keeps for waiting callers. The units of
// requests in flight stay leased until the requests end.
func (q *quota) Close() {
	q.leave(0)
	q.store.listener.forget(q)
	q.lineage.Close()
}
