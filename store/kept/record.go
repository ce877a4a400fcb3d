package kept

import (
	"context"
	"errors"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// record keeps the result of the i-th part of a transaction, and tells the watchers what is new.
func (q *quota) record(p *part, x *transaction, i int) {
	if q.store.options.Ahead {
		bounds, _ := q.clock.Update(timing.Reading{Now: p.now.At, Wall: x.view.Wall, Generation: p.birth, Sent: x.view.Sent, Got: x.view.Got})
		x.bounds = append(x.bounds, bounds)
	}
	if !q.store.options.Ahead || q.plan.Learns() {
		q.see(p)
	}
	changes := q.recordState(p, x.sent)
	if q.lease != nil {
		q.lease.confirm(x.reported[i])
	}
	q.keepCrossed(x.crossed[i])
	for _, c := range changes {
		q.notify(c.change, c.left)
	}
	if p.lost {
		go q.reportLoss()
	}
	if left := q.pausedFor(); left > 0 {
		q.store.news.want(q)
	}
}

// see keeps what forecasts need.
func (q *quota) see(p *part) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seen = seen{*p.ledger(), p.pause, p.now, time.Now()}
}

// A change is what watchers receive.
type change struct {
	change store.Change
	left   time.Duration
}

// recordState keeps what a transaction sent at an instant has found. It returns what has changed since the
// last one.
func (e *entry) recordState(p *part, sent time.Time) (changes []change) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = time.Now()
	was := e.known
	if was.birth == p.birth && was.at > p.now.At { // another transaction of this process is ahead
		return nil
	}
	if p.ends == 0 && (was.birth != p.birth || was.revision != p.revision) {
		p.ends = p.expires()
	}
	e.known = known{at: p.now.At, offset: p.offset, birth: p.birth, revision: p.revision, expires: was.expires, pause: p.pause, level: p.level}
	if p.ends != 0 {
		e.known.expires = p.ends - p.offset
	}
	if len(e.pending) == 0 {
		e.alone = time.Time{}
	}
	e.paused = e.alone
	left := max(0, p.now.Until(p.pause.Until))
	if left > 0 {
		e.paused = later(e.paused, time.Now().Add(left))
	}
	if p.lost {
		e.voided = sent
		changes = append(changes, change{store.Lost, 0})
	}
	switch {
	case p.pause.Epoch != was.pause.Epoch && was.at == 0 && left == 0: // it was over before
	case p.pause.Epoch != was.pause.Epoch && left > 0:
		e.voided = sent
		c, left := p.pause.Change(p.now)
		changes = append(changes, change{c, left})
	case p.pause.Epoch != was.pause.Epoch:
		e.voided = sent
		changes = append(changes, change{store.Eased, 0})
	case p.pause.Until >= was.pause.Until || was.pause.Until <= p.now.At:
	case was.pause.Probing: // the response to a probe is in
		changes = append(changes, change{store.Freed, 0})
	default:
		e.voided = sent
		changes = append(changes, change{store.Eased, 0})
	}
	return changes
}

// later returns the later one of two instants.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// pausedFor returns how long this process knows that the quota is paused.
func (e *entry) pausedFor() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Until(e.paused)
}

// keepCrossed keeps crossings for the next caller, or for the function of the last settlement.
func (e *entry) keepCrossed(crossed []algorithms.Crossing) {
	if len(crossed) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.crossed = append(e.crossed, crossed...)
}

// tellCrossed passes the crossings that no caller has received to the function of the last settlement. That calls functions
// of the user, which may end their goroutine.
func (e *entry) tellCrossed() {
	if e.lease == nil {
		return
	}
	e.lease.mu.Lock()
	f := e.lease.crossed
	e.lease.mu.Unlock()
	if f == nil {
		return
	}
	if crossed := e.takeCrossed(); crossed != nil {
		go f(crossed)
	}
}

// takeCrossed returns the crossings that no caller has received.
func (e *entry) takeCrossed() (crossed []algorithms.Crossing) {
	e.mu.Lock()
	defer e.mu.Unlock()
	crossed, e.crossed = e.crossed, nil
	return crossed
}

// reportLoss calls functions of the user. They may call the limiter, or end their goroutine.
func (q *quota) reportLoss() {
	o := &q.store.options
	if o.Log != nil {
		o.Log.Warn(o.Name+": the state of a quota was lost, or is an older one: the quota has started anew", "name", q.name)
	}
	if o.OnLost != nil {
		o.OnLost(q.name)
	}
}

// renewLater renews the lease in time after a transaction, as long as it must not end. After an error that may pass it
// tries again soon, and after another one for a lease at most.
func (q *quota) renewLater(err error) {
	q.entry.mu.Lock()
	defer q.entry.mu.Unlock()
	e, length := q.entry, q.store.options.Lease
	switch now := time.Now(); {
	case err == nil:
		e.failing = time.Time{}
	case errors.Is(err, store.ErrUnavailable):
		e.failing = time.Time{}
		length = min(length, 4*time.Second)
	case e.failing.IsZero():
		e.failing = now
	case now.Sub(e.failing) > length:
		return
	}
	if e.renewing || !q.lease.renews(time.Now()) {
		return
	}
	e.renewing = true
	time.AfterFunc(length/4, func() {
		e.mu.Lock()
		e.renewing = false
		e.mu.Unlock()
		if q.lease.renews(time.Now()) {
			_ = q.transact(context.Background(), nil)
		}
	})
}

// Flush sends the keeper everything that this process still has to report, and returns when that is done. It
// returns the context's error, or the error of the first transaction that failed. Flush blocks for some
// transactions, and for up to Policy.Guard behind an estimated request that failed.
func (s *Store) Flush(ctx context.Context) error {
	for range deepest {
		if err := s.reports.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// deepest is the length of the longest chain of reports that follow from each other.
const deepest = 3
