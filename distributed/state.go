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

// TryAcquire asks Redis once and does not book ahead. A caller whose context ends leaves at
// once; what it is granted then goes back.
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
	if b, held := q.held(); held {
		return b, nil
	}
	patience := store.WaitSpec{} // it waits for nothing
	if r.WaitSpec != nil {
		patience.YieldFor, patience.Headroom = r.YieldFor, r.Headroom
		if r.DryRun {
			patience.MaxWait = dryRun
		}
	}
	requests := []store.Request{{Cost: r.Cost, Held: r.Held, Guard: r.Guard, WaitSpec: &patience}}
	q.meet()
	_ = q.leases.lock(context.Background())
	if !q.isNewest() {
		q.leases.unlock(nil)
		return moved, nil
	}
	q.leases.rebase(q)
	t := new(trip)
	args := t.aimed(append(q.beginReserve(7), 0, 0), func(calls int) { q.aim(t, r.Guard, calls) })
	_, err := q.call(context.Background(), t, q.appendRequests(t, args, requests, 0))
	got, lost, err := q.conclude(t, requests, err)
	switch {
	case err != nil:
		return store.Decision{}, err
	case lost == nil && t.isLate(got):
		q.Cancel(got)
		if err := q.tooFar(tries); err != nil {
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
	q.probed(got, []store.Request{r})
	b := got[0]
	switch {
	case r.IsDryRun() && b.Tier < 0 && b.Wait == 0:
		b.Verdict = store.Ready
	case b.Verdict == store.Late:
		b.Verdict = store.Later
	}
	return b, nil
}

// Pause stops the fleet, and if Redis is away at least this process.
func (q *quota) Pause(ctx context.Context, p store.Pause) (store.Paused, error) {
	q, own, h, err := q.ask(ctx, "p", func(_ *quota, args []any) []any {
		args = append(args, algorithms.Micros(p.For), bit(p.Close), bit(p.Once), p.Epoch, bit(p.Probe))
		if p.Most > 0 {
			args = append(args, algorithms.Micros(p.Most), bit(p.AtOnce))
		}
		return args
	})
	if err != nil {
		return q.pauseAlone(p), err
	}
	return store.Paused{Applied: own[0] == 1, Epoch: h.epoch}, nil
}

// bit is how the script is told yes or no.
func bit(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Resume ends the pause or ban of the fleet, also in processes that know of one which Redis
// has forgotten. If Redis does not answer, it ends only the one that this process keeps alone,
// and returns the error.
func (q *quota) Resume(ctx context.Context) error {
	q = q.newest()
	q.mu.Lock()
	s, known := &q.state, int64(0)
	if s.pause != neverTold {
		known = s.pause
	}
	if s.alone {
		s.until, s.shut, s.alone, s.pause = time.Time{}, false, false, 0
		q.unlockAndTell(store.Eased, 0)
	} else {
		q.mu.Unlock()
	}
	_, err := q.end(ctx, known, resumed, 0)
	return err
}

// How a pause ends, or the wait for a probe.
const (
	resumed    = iota // whatever it is
	answered          // the response to the probe is in
	unanswered        // it will get none, and the next request is a probe
	untold            // nobody will tell: the others follow at the end of the wait
	awaited           // its process lives, and the others wait on
	passed            // the response to a request is no refusal: to the probe, if that is waited for
	unsent            // as unanswered, of one that was never sent
)

// end reports whether the probe of an epoch was waited for.
func (q *quota) end(ctx context.Context, epoch int64, how int, length time.Duration) (waited bool, err error) {
	_, own, _, err := q.ask(ctx, "e", func(_ *quota, args []any) []any { return append(args, epoch, how, micros(length)) })
	return err == nil && own[0] == 1, err
}

// endProbe tells Redis, in a goroutine that ends with the call, what became of a probe.
// It is not tried again: the next request is a probe then.
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
			_, err := q.end(context.Background(), b.Epoch, how, 0)
			return err
		})
	}
}

// Passed tells Redis in a goroutine that ends with the call, once for all requests of this
// process; of the probe when its response is in.
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
			_, err := q.end(context.Background(), b.Epoch, passed, 0)
			return err
		})
	}
}

// probed reports to Redis the probes whose response nobody will report, and keeps the others.
func (q *quota) probed(got []store.Decision, requests []store.Request) {
	for i, b := range got {
		switch {
		case !b.Probe:
		case requests[i].Held:
			a := b.Reservation
			good := cmp.Or(a.Guard, unguarded)
			q.store.probes.Store(a, nil)
			q.keepProbe(b, a.Start.Add(good+store.ProbeTime/2), a.Start.Add(good+store.ProbeTimeout))
		default:
			q.endProbe(b, untold)
		}
	}
}

// keepProbe has the fleet wait for the response to a probe, for a little at a time: if this
// process dies, another one probes soon.
func (q *quota) keepProbe(b store.Decision, at, end time.Time) {
	time.AfterFunc(time.Until(at), func() {
		if _, kept := q.store.probes.Load(b.Reservation); !kept {
			return
		}
		length := min(2*store.ProbeTime, time.Until(end))
		waited, err := q.newest().end(context.Background(), b.Epoch, awaited, length)
		if length < 2*store.ProbeTime || err == nil && !waited {
			q.store.probes.Delete(b.Reservation)
			return
		}
		q.keepProbe(b, at.Add(store.ProbeTime), end)
	})
}

func (q *quota) pauseAlone(p store.Pause) store.Paused {
	q.mu.Lock()
	s := &q.state
	p.For = p.Length(s.level)
	end := time.Now().Add(min(p.For, longestPause))
	if !end.After(s.until) || p.Once && (p.Epoch != s.epoch || s.alone && time.Now().Before(s.until)) {
		defer q.mu.Unlock()
		return store.Paused{Epoch: s.epoch}
	}
	s.until, s.shut, s.alone, s.pause, s.level = end, p.Close, true, neverTold, p.Next(s.level)
	restore := !s.restoring
	s.restoring = true
	q.unlockAndTell(s.change(), p.For)
	q.rememberPause(p.For)
	if restore {
		time.AfterFunc(firstRestore, func() { q.restore(firstRestore) })
	}
	return store.Paused{Applied: true, Epoch: p.Epoch}
}

func (s *state) change() store.Change {
	if s.shut {
		return store.Shut
	}
	return store.Slowed
}

// held is the answer while this process keeps a pause of which Redis does not know.
func (q *quota) held() (store.Decision, bool) {
	b, held := q.paused()
	q.mu.Lock()
	defer q.mu.Unlock()
	return b, held && q.state.alone
}

// paused is the answer while there is a pause that this process knows.
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

// learn takes note of what a reply says besides its answer. It returns the state that
// reservations of that are in, and how well the quota's clock is known.
func (q *quota) learn(h header, t *trip) (int64, bounds) {
	known, step := q.clock.set(h, t.sent, t.got)
	if step > stepped {
		q.store.journal.report(clockStepped, "by", step.Round(time.Millisecond))
	}
	q.mu.Lock()
	s := &q.state
	overtaken := t.sent.Before(s.asOf) // by a reply that was known when this was asked for, or later
	if overtaken && (h.generation != s.generation || h.epoch < s.epoch) {
		defer q.mu.Unlock()
		return s.of(h.generation), known
	}
	first, changed := s.generation == 0, h.epoch != s.epoch
	switch {
	case h.generation != s.generation:
		if !first && t.got.Before(s.expires) {
			defer q.lost()
		}
		changed = true
		s.generation, s.written = h.generation, 0
	case h.written < s.written && !overtaken: // a replica took over that had not received all
		s.setbacks++
		s.written = 0
		changed = true
		defer q.lost()
	}
	s.epoch, s.level, s.asOf, s.written = h.epoch, h.level, t.got, max(s.written, h.saved)
	if t.sent.After(s.sent) {
		s.sent = t.sent
	}
	if expires := t.sent.Add(time.Duration(h.ttl) * time.Millisecond); expires.After(s.expires) {
		s.expires = expires
	}
	state := s.of(h.generation)
	q.learnPause(h, t.got, changed, first)
	return state, known
}

// learnPause takes note of a pause or a ban, or that there is none, and unlocks. A pause that
// is older than the state goes on, for this process at once and for the others when Redis is
// told of it again.
func (q *quota) learnPause(h header, now time.Time, changed, first bool) {
	s, left := &q.state, h.left()
	paused := now.Before(s.until)
	switch {
	case paused && h.epoch < s.pause && now.Add(left).Before(s.until):
		q.keepPause()
	case !changed && !s.alone:
		if left == 0 && paused { // the response to the probe is in
			s.until = now
		}
		q.mu.Unlock()
	case left > 0:
		s.until, s.shut, s.pause, s.alone = now.Add(left), h.shut == isBan, h.epoch, false
		if h.shut == isProbe {
			s.until = now // the response may come at any time
		}
		q.unlockAndTell(s.change(), left)
		q.rememberPause(left)
	default:
		s.alone, s.shut = false, false
		if paused {
			s.until = now
		}
		if !paused && (!changed || first) {
			q.mu.Unlock()
			return
		}
		q.unlockAndTell(store.Eased, 0)
	}
}

// keepPause has this process keep a pause that Redis does not know, and restores it. It
// unlocks.
func (q *quota) keepPause() {
	s := &q.state
	restore := !s.restoring
	s.alone, s.restoring = true, true
	q.mu.Unlock()
	if restore {
		go q.restore(firstRestore)
	}
}

// learnGone takes note that Redis keeps no state at all.
func (q *quota) learnGone(t *trip) {
	q.mu.Lock()
	s := &q.state
	if s.alone || t.sent.Before(s.asOf) || !t.got.Before(s.until) {
		q.mu.Unlock()
		return
	}
	q.keepPause()
}

const (
	firstRestore  = 500 * time.Millisecond // until Redis is told again of a pause that it did not take
	lastRestore   = 16 * time.Second       // the same after several times
	longestPause  = 876_000 * time.Hour    // that a process keeps alone: a century, which the script can tell
	forecastAfter = time.Second            // a pause of which nothing was heard for so long is no reason to refuse anybody
)

// rememberPause listens until a pause ends, for its early end, and for connections that break:
// the server may come back without it.
func (q *quota) rememberPause(left time.Duration) {
	if left > linger {
		q.store.listener.want(q)
	}
}

// restore tells Redis of a pause that it does not know, until it has it or the pause is over.
// The first of those who know a pause restores it; and Redis refuses it if it was told anything
// later.
func (q *quota) restore(again time.Duration) {
	q, left, args := q.toRestore()
	if left <= 0 {
		return
	}
	_, _, _, err := q.ask(context.Background(), "p", func(_ *quota, begun []any) []any { return append(begun, args...) })
	if errors.Is(err, redis.ErrClosed) {
		return
	}
	if q, left, _ := q.toRestore(); left > 0 {
		time.AfterFunc(again/2+rand.N(again), func() { q.restore(min(lastRestore, 2*again)) })
	}
}

// toRestore returns how long the pause still lasts that Redis does not know, zero if there is
// none, and the arguments that tell it.
func (q *quota) toRestore() (newest *quota, left time.Duration, args []any) {
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.state
	left = time.Until(s.until)
	if s.restoring = s.alone && left > 0; !s.restoring {
		return q, 0, nil
	}
	once, epoch := restoreOnce, s.pause
	if epoch == neverTold {
		once, epoch = 0, 0
	}
	return q, left, []any{algorithms.Micros(left) + 1, bit(s.shut), once, epoch, bit(true)}
}

// restoreOnce is how the script is told that a pause is to be restored.
const restoreOnce = 2

// lost reports that the state in Redis is not the one that was charged.
func (q *quota) lost() {
	q.mu.Lock()
	q.unlockAndTell(store.Lost, 0)
	q.store.journal.report(stateLost, "key", q.key)
	if q.store.options.OnLost != nil {
		q.store.options.OnLost(q.key)
	}
}

// freed tells those who wait that a permit may be free.
func (q *quota) freed() {
	q.mu.Lock()
	q.unlockAndTell(store.Freed, 0)
}

func (q *quota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	w := &watcher{changed}
	stopLine := q.line.Watch(func() { changed(store.Replanned, 0) })
	q.mu.Lock()
	defer q.mu.Unlock()
	q.watchers[w] = struct{}{}
	return func() {
		stopLine()
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.watchers, w)
	}
}

// unlockAndTell unlocks before it calls out.
func (q *quota) unlockAndTell(c store.Change, left time.Duration) {
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

// Cancel gives back what nobody will use: the permits, and the times. What has expired shows
// how late callers wake up.
func (q *quota) Cancel(bookings []store.Decision) { q.takeBack(bookings, true) }

// takeBack is Cancel, which lends times to come.
func (q *quota) takeBack(bookings []store.Decision, lends bool) {
	now := time.Now()
	for _, b := range bookings {
		if b.Verdict == store.Admitted {
			if b.Crossed != nil {
				q.mu.Lock()
				q.untold = append(q.untold, b.Crossed...)
				q.mu.Unlock()
			}
			if a := b.Reservation; a.State != inFallback && a.End.After(a.Told) && a.Expired(now) {
				q.node.wake.add(min(q.bound, latestWake, now.Sub(latest(a.Start, a.Told))))
			}
			q.drop(b, b.Reservation.Cost)
			q.endProbe(b, unsent)
		}
	}
	if q.leases == nil {
		q.giveBack(bookings, lends) // before what is asked for next
	} else {
		q.store.background(func() error { // calls take turns
			q.giveBack(bookings, lends)
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

// drop gives back what is held of a booking that will not be used.
func (q *quota) drop(b store.Decision, cost []int64) {
	q = q.heir(&cost)
	if b.Reservation.State == inFallback {
		q.fallback.cancel(b, cost)
	} else {
		q.fallback.release(cost)
	}
	q.leases.release(q.plan, cost)
	q.leases.settle(q.plan, cost, nil, nil)
}

// giveBack gives times back: those to come for the next one who asks for as much, if they are
// lent, and any other by taking the request off its way. It is not tried again: what was
// given back twice would be handed out twice. It blocks for the turn where there are leases.
func (q *quota) giveBack(bookings []store.Decision, lends bool) {
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
	back := make(map[alike][]*store.Reservation)
	for _, b := range bookings {
		if a := b.Reservation; a != nil && a.State == state && a.Start.Add(a.Guard).After(now) {
			of := alike{a.Guard, a.Clock}
			back[of] = append(back[of], a)
		}
	}
	for of, all := range back {
		for some := range slices.Chunk(all, mostACall) {
			n, _ := q.lockNewest(context.Background())
			op := "u"
			if n != q || !lends && of.guard > 0 {
				op = "x"
			}
			args := append(n.begin(op, 3+len(some)*(1+len(n.plan.Units()))), generation, of.clock, micros(of.guard))
			for _, a := range some {
				args = appendCost(append(args, a.At), n.plan.Translate(q.plan, a.Cost))
			}
			p := q.store.reports.begin()
			n.node.enter(&trip{calls: []*call{n.newCall(args)}, givesBack: true, done: func(err error) {
				n.leases.unlock(err)
				p.end(err)
			}})
			time.AfterFunc(nextTrip, n.node.run)
		}
	}
}

// Arrived tells Redis of probes only: telling it of each request would be a second call, so
// there a request is on its way for the whole of Policy.Guard.
func (q *quota) Arrived(b store.Decision, _ []int64) { q.endProbe(b, answered) }

// Unanswered settles what was estimated when the guard has passed, as Redis lands the rest
// then. Until then it is held.
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

// Release gives back what a request held of a Concurrency tier.
func (q *quota) Release(b store.Decision, cost []int64) {
	q = q.heir(&cost)
	q.fallback.release(cost)
	q.leases.release(q.plan, cost)
}

// Settle says what was really spent with the next call, or one of its own.
func (q *quota) Settle(b store.Decision, cost, actual []int64, crossed func([]algorithms.Crossing)) {
	q = q.heir(&cost, &actual)
	if b.Reservation.State == inFallback {
		q.fallback.settle(b, cost, actual)
		actual = nil // it is charged when Redis is back
	}
	q.leases.settle(q.plan, cost, actual, crossed)
}

// Return gives back what is held, and in a goroutine that ends with the call, takes the
// request off its way, also if its time is to come: that is so near that nobody else takes it.
func (q *quota) Return(_ context.Context, b store.Decision, cost []int64) error {
	q.takeBack([]store.Decision{b}, false)
	return nil
}

// Observe tells Redis, in a goroutine that ends with the call; but not if it was told
// a moment ago and something is left.
func (q *quota) Observe(b store.Decision, cost []int64, seen []store.Observation) {
	if b.Reservation == nil || b.Reservation.State == inFallback || !q.isNewest() || !q.worthTelling(seen) && !b.Probe {
		return
	}
	q.store.background(func() error {
		_, _, _, err := q.ask(context.Background(), "o", func(n *quota, args []any) []any {
			args = append(args, micros(b.Reservation.Guard))
			if n != q { // the readings are of other tiers
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

func (q *quota) worthTelling(seen []store.Observation) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	usedUp := slices.ContainsFunc(seen, func(o store.Observation) bool { return o.Used >= q.plan.Tiers()[o.Tier].Capacity() })
	if !usedUp && time.Since(q.observed) < tellAgain {
		return false
	}
	q.observed = time.Now()
	return true
}

// Status asks Redis.
func (q *quota) Status(ctx context.Context) (store.Status, error) {
	q, own, h, err := q.ask(ctx, "q", func(_ *quota, args []any) []any { return args })
	if err != nil {
		return store.Status{}, err
	}
	var s store.Status
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

// Forecast foretells what would be if nobody else in the fleet sent anything.
func (q *quota) Forecast() store.Forecast {
	q = q.newest()
	idle, _ := local.New().Open("", q.plan) // the empty key is never taken
	q.mu.Lock()
	left := time.Until(q.state.until)
	if !q.state.alone && time.Since(q.state.asOf) > forecastAfter { // it may have ended early
		left = 0
	}
	q.mu.Unlock()
	_, _ = idle.Pause(context.Background(), store.Pause{For: left})
	return idle.(store.Forecaster).Forecast()
}

// Idle reports whether nothing is lost if the quota is forgotten: no pause, which Redis may
// forget, nothing held, and nothing that was sent without Redis.
func (q *quota) Idle() bool {
	q = q.newest()
	q.mu.Lock()
	paused := time.Now().Before(q.state.until)
	q.mu.Unlock()
	return !paused && q.leases.isIdle() && q.fallback.isIdle()
}

// Close ends what the quota has with the listener. What requests still hold of it is leased
// until they have ended.
func (q *quota) Close() {
	q.store.listener.forget(q)
	q.line.Close()
}
