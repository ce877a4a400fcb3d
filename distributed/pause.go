package distributed

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// Pause pauses the fleet, or this process if Redis is away.
func (q *quota) Pause(ctx context.Context, p store.Pause) (store.Paused, error) {
	q, own, h, err := q.askWith(ctx, opPause, func(n *quota, args []any) []any {
		args = append(args, algorithms.Micros(p.For), bit(p.Close), bit(p.Once), p.Epoch, bit(p.Probe))
		if p.Most > 0 || q.teaches(p.Refused) {
			args = append(args, algorithms.Micros(p.Most), bit(p.AtOnce))
		}
		if q.teaches(p.Refused) {
			args = appendCost(append(args, p.Refused.At), n.plan.Translate(q.plan, p.Refused.Cost))
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

// teaches reports whether a refusal tells the learned tiers in Redis something. A request that was admitted in a
// fallback does not.
func (q *quota) teaches(r *store.Refused) bool {
	return r != nil && q.plan.Learns() && (q.fallback == nil || r.At > 0)
}

// pauseLocally pauses this process alone.
func (q *quota) pauseLocally(p store.Pause) store.Paused {
	paused, n := q.record.pauseAlone(p)
	q.spread(n)
	return paused
}

// Resume ends the pause or ban of the fleet, also in processes that keep one which Redis has lost.
// If Redis does not answer, it ends only a pause that this process alone keeps, and returns the
// error.
func (q *quota) Resume(ctx context.Context) error {
	q = q.newest()
	epoch, n := q.record.resume()
	q.spread(n)
	_, err := q.endPause(ctx, epoch, resumed, 0)
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
	_, own, _, err := q.ask(ctx, opEndPause, epoch, how, micros(length))
	return err == nil && own[0] == 1, err
}

// reportProbe is endPause in a goroutine that ends with the call.
func (q *quota) reportProbe(epoch int64, how int) {
	q.store.reports.Background(func() error {
		_, err := q.endPause(context.Background(), epoch, how, 0)
		return err
	})
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
	if q = q.newest(); b.Epoch == q.record.get().epoch {
		q.reportProbe(b.Epoch, how)
	}
}

// Passed reports to Redis in a goroutine that ends with the call, once for all requests of this
// process. For a probe, endProbe reports it.
func (q *quota) Passed(b store.Decision) {
	if q.store.probes.CompareAndSwap(b.Reservation, nil, passed) {
		return
	}
	if q = q.newest(); q.record.passed(b.Epoch) {
		q.reportProbe(b.Epoch, passed)
	}
}

// trackProbes reports probes that are not held, and keeps the others until their response.
func (q *quota) trackProbes(got []store.Decision, requests []store.Request) {
	for i, b := range got {
		switch {
		case !b.Probe:
		case requests[i].Held:
			a := b.Reservation
			good := cmp.Or(a.Guard, timing.Unguarded)
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

// recordReply records the header of a reply, and returns what converts its instants.
func (q *quota) recordReply(h header, t *trip) answer {
	clocks := timing.Reading{Now: h.now, Wall: h.wall, Generation: h.generation, Sent: t.sent, Got: t.got}
	known, step := q.Clock.Update(clocks)
	q.mixed.Store(h.mixed)
	if step > stepped {
		q.store.journal.report(clockStepped, "by", step.Round(time.Millisecond))
	}
	state, n := q.record.reply(h, t)
	q.spread(n)
	return answer{header: h, Answer: timing.Answer{Reading: clocks, Bounds: known}, state: state}
}

// spread passes on the news of the record. During a pause it listens for an early end, and for a broken
// connection, after which the server may be back without the pause.
func (q *quota) spread(n news) {
	if n.changed {
		q.watchers.notify(n.change, n.left)
		if n.left > linger {
			q.store.listener.want(q)
		}
	}
	if n.restore {
		time.AfterFunc(n.after, func() { q.restore(firstRestore) })
	}
	if n.lost {
		q.watchers.notify(store.Lost, 0)
		q.store.journal.report(stateLost, "key", q.key)
		if q.store.options.OnLost != nil {
			q.store.options.OnLost(q.key)
		}
	}
}

// restore sends Redis a pause that it does not have, until it has the pause or the pause ends. The
// first process to do so restores it for all. Redis refuses a pause if it has a later event.
func (q *quota) restore(again time.Duration) {
	left, args := q.newest().record.toRestore()
	if left <= 0 {
		return
	}
	if _, _, _, err := q.ask(context.Background(), opPause, args...); errors.Is(err, redis.ErrClosed) {
		return
	}
	if left, _ := q.newest().record.toRestore(); left > 0 {
		time.AfterFunc(again/2+rand.N(again), func() { q.restore(min(lastRestore, 2*again)) })
	}
}

// Watch calls changed after a change of the record, of the plan or of the free permits.
func (q *quota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	stopLine := q.lineage.Watch(func() { changed(store.Replanned, 0) })
	remove := q.watchers.add(changed)
	return func() {
		stopLine()
		remove()
		q.leave(leaveDelay)
	}
}

// notifyAgain calls the watchers with the last change.
func (q *quota) notifyAgain() {
	s := q.record.get()
	switch left := time.Until(s.until); {
	case !q.isNewest():
		q.watchers.notify(store.Replanned, 0)
	case left > 0:
		q.watchers.notify(s.change(), left)
	default:
		q.watchers.notify(store.Eased, 0)
	}
}

// notifyFreed notifies the watchers that a permit may be free.
func (q *quota) notifyFreed() { q.watchers.notify(store.Freed, 0) }
