// Package snooze tells the workers of a job queue, such as River, asynq or Temporal, when a job comes
// back that a limiter does not admit now. The job then holds no worker while it waits.
//
//	line := &snooze.Line{Limiter: limiter, Resolution: time.Second, Waiting: 20}
//
//	permit, again, err := line.Acquire(ctx, nil, snoozed)
//	switch {
//	case err != nil:
//		return err
//	case permit == nil:
//		return river.JobSnooze(again)
//	}
//	defer permit.Release()
//	... send the request ...
//
// If the API refuses the request, call Refused of the permit before you return the error: it pauses the limiter
// for all jobs. Do not send the request through a Transport of the same limiter, which would charge it again.
//
// The Wait of a [throttle.WaitError] is not enough to bring jobs back. Jobs that are refused together receive nearly the same
// Wait and come back together, and all but a few are refused again: 1,000 jobs of a limit of 10/s would be
// tried 50,000 times, in any order. A [Line] gives each job a place of its own, as far behind the place
// before as the limit takes for one request. The job comes back a little early and waits for the rest in
// its worker, because job queues bring jobs back late, and the limit would be unused for that long.
//
// See docs/jobs.md for each job queue.
package snooze

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
)

const (
	usualResolution = time.Second
	// rateAge is how long the rates of tiers hold. Those that are learned or followed change.
	rateAge = time.Second
)

// A Line is the jobs that wait for a Limiter outside of their workers. It knows only when the last of them
// comes back, and so takes no memory for them. Jobs that are lost, or never come back, do not block it.
//
// Places are evenly spaced at the rate of the tier that refuses, whatever its windows are: after a burst that
// uses up a long window at once, the jobs behind it take one window more than they must.
//
// The order of jobs is that of their first tries, except where the job queue mixes jobs that it brings back
// at once, and while a budget is used up or a ban lasts. Jobs that are refused for that stand in a line of their own,
// and other jobs are tried, because one that costs less may fit, and the budget may be raised. A job that is refused
// when it comes back, as after a pause, goes to the end of the line.
//
// Do not change the fields after the first call. A Line is safe for concurrent use.
type Line struct {
	// Limiter admits the jobs.
	Limiter *throttle.Limiter

	// Resolution is how late the job queue may bring a job back. Jobs are asked to come back earlier by
	// that much, and wait in their workers for twice that long at most. If zero, a second.
	Resolution time.Duration

	// Waiting is how many jobs of this process may wait in their workers at once. To use all of a limit,
	// the processes together need room for the jobs that the limit admits within 1.5 times Resolution. Many
	// processes need more, because jobs come to them unevenly: 16 of them use a third of a limit of 50/s with
	// that room, and four fifths with four times as much. If zero, no job waits.
	Waiting int

	// Take appends a place to the line that several processes share. It returns how long it is until that
	// place, which is the later one of two instants: wait from now, and every behind the last place. In
	// this process it is
	//
	//	last = max(now+wait, last+every)
	//	return last - now
	//
	// Calls may be concurrent. If nil, the line is of this process alone: jobs of a fleet come back too
	// early then, and are tried twice as often in two processes, and eight times as often in 16. Jobs that a budget or
	// a ban refuses take no such place.
	Take func(ctx context.Context, wait, every time.Duration) (time.Duration, error)

	mu      sync.Mutex // guards the fields below
	waiting int
	// late is how many jobs have kept their places since lateFrom.
	late     int
	lateFrom time.Time
	last     time.Time // the last place that this process has taken
	behind   time.Time // the last place behind the end of a budget or of a ban
	closed   time.Time // that end
	tier     string    // the last tier that has refused a job, except for a budget or a ban
	rates    map[string]rate
	ratesAt  time.Time
}

// A rate is what a tier admits in the long run.
type rate struct {
	unit      string
	perSecond float64
	most      int64 // that the tier admits at once
}

// Acquire admits a job of cost c or says when it comes back. Exactly one of the three results is not zero:
//
//   - a Permit, as that of Limiter.Acquire: the job may send its request;
//   - the time after which the job queue shall bring the job back;
//   - an error for which no wait helps or none is known: those of Limiter.Acquire except ErrDeadline,
//     ErrQueueFull and, with the time at which it ends, ErrBanned and ErrExhausted; or one of Take.
//
// snoozed reports that the job has been brought back before. A job that has not joins the end of the line,
// if there is one, and does not overtake. If that is not known, pass true: jobs that are new may then
// overtake others.
//
// Acquire blocks for twice Resolution at most, and for the round trips of a shared store.
func (l *Line) Acquire(ctx context.Context, c throttle.Cost, snoozed bool) (*throttle.Permit, time.Duration, error) {
	var refused *throttle.WaitError
	if snoozed || !l.stands(c) {
		begun := time.Now()
		permit, err := l.try(ctx, c)
		if err == nil {
			l.opened()
			return permit, 0, nil
		}
		if !errors.As(err, &refused) || !later(refused) {
			return nil, 0, err
		}
		waited := time.Since(begun) >= l.resolution()
		if (snoozed || waited) && l.keeps(refused.Wait) {
			return nil, l.early(refused.Wait), nil
		}
	}
	again, err := l.join(ctx, c, refused)
	return nil, again, err
}

// later reports whether a job that was refused may be admitted later.
func later(refused *throttle.WaitError) bool {
	switch refused.Err {
	case throttle.ErrDeadline, throttle.ErrQueueFull:
		return true
	case throttle.ErrBanned, throttle.ErrExhausted:
		return !refused.Until.IsZero()
	}
	return false
}

func (l *Line) resolution() time.Duration { return cmp.Or(l.Resolution, usualResolution) }

// stands reports whether a new job of cost c has others ahead that come back. One that no tier can admit does not
// stand in the line: the place behind it would be years away.
func (l *Line) stands(c throttle.Cost) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Until(l.closed) > 0 { // a job that costs less may fit, and a budget may be raised
		return false
	}
	if l.behind.After(l.last) { // those that have waited for the end go first
		l.last = l.behind
	}
	l.behind = time.Time{}
	for _, r := range l.rates {
		if n := c[r.unit]; n < 0 || n > r.most {
			return false
		}
	}
	return time.Until(l.last) > 2*l.resolution()
}

// opened ends the line of jobs that wait for the end of a budget or of a ban, because another job was admitted
// before. Those that are new would come back behind them.
func (l *Line) opened() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Until(l.closed) > 0 {
		l.closed, l.behind = time.Time{}, time.Time{}
	}
}

// try admits a job, or refuses it if it would have to wait in its worker for too long.
func (l *Line) try(ctx context.Context, c throttle.Cost) (*throttle.Permit, error) {
	if !l.enter() {
		return l.Limiter.TryAcquire(ctx, c)
	}
	defer l.leave()
	short, cancel := context.WithTimeout(ctx, 2*l.resolution())
	defer cancel()
	permit, err := l.Limiter.Acquire(short, c)
	if err == context.DeadlineExceeded && ctx.Err() == nil { // the wait was longer than foreseen
		err = &throttle.WaitError{Policy: l.Limiter.Name(), Bound: throttle.BoundContext, Err: throttle.ErrDeadline}
	}
	return permit, err
}

// enter lets a job wait in its worker, if there is room.
func (l *Line) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting >= l.Waiting {
		return false
	}
	l.waiting++
	return true
}

func (l *Line) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
}

// join takes a place for a job and returns when it comes back. A job that was not refused, because others
// stand in the line, is behind the last of them.
func (l *Line) join(ctx context.Context, c throttle.Cost, refused *throttle.WaitError) (time.Duration, error) {
	every := l.every(ctx, c, refused)
	wait, closed := l.wait(refused, every), refused != nil && !refused.Until.IsZero()
	if l.Take != nil && !closed {
		l.mu.Lock()
		wait = max(wait, time.Until(l.last)) // further only if that is behind the end of a budget
		l.mu.Unlock()
		taken, err := l.Take(ctx, wait, every)
		if err != nil {
			return 0, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		place(&l.last, taken, 0)
		return l.early(taken), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	last := &l.last
	if closed {
		last, l.closed = &l.behind, refused.Until
	}
	return l.early(place(last, wait, every)), nil
}

// wait returns how long a refused job waits at least, if no other stands in the line.
func (l *Line) wait(refused *throttle.WaitError, every time.Duration) time.Duration {
	switch {
	case refused == nil:
		return 0
	case !refused.Until.IsZero():
		return max(refused.Wait, time.Until(refused.Until))
	case refused.Wait > 0:
		return refused.Wait
	}
	// The wait is not known, as behind callers that have no times in a shared store yet. The job returns when
	// these have gone.
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.resolution() + time.Duration(l.waiting)*every
}

// early returns when a job comes back whose place is in a time.
func (l *Line) early(place time.Duration) time.Duration {
	return max(place-l.resolution(), l.resolution()/2)
}

// keeps reports whether a job that comes back, or has waited in its worker, keeps its place because it would
// be admitted soon. Within Resolution only so many jobs do that as may wait, because those that are late
// would be more and more if the line were faster than the limit.
func (l *Line) keeps(wait time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.lateFrom) >= l.resolution() {
		l.lateFrom, l.late = now, 0
	}
	if wait > 2*l.resolution() || l.late >= l.Waiting {
		return false
	}
	l.late++
	return true
}

// place appends a place to a line of this process, as Take does. The caller holds the lock.
func place(last *time.Time, wait, every time.Duration) time.Duration {
	now := time.Now()
	at := now.Add(wait)
	if behind := last.Add(every); behind.After(at) {
		at = behind
	}
	*last = at
	return at.Sub(now)
}

// every returns the distance of a job from the one before: the time in which the tier that refused it, or
// that refused the last one, admits its cost in the long run. If no tier was named, it is the fastest one. If
// no tier has a rate, as many jobs as may wait come back within Resolution.
func (l *Line) every(ctx context.Context, c throttle.Cost, refused *throttle.WaitError) time.Duration {
	l.learn(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	tier := l.tier
	if refused != nil && refused.Tier != "" {
		tier = refused.Tier
		if refused.Until.IsZero() {
			l.tier = tier
		}
	}
	if r, ok := l.rates[tier]; ok {
		return r.timeOf(c)
	}
	var shortest time.Duration
	for _, r := range l.rates {
		if every := r.timeOf(c); shortest == 0 || every > 0 && every < shortest {
			shortest = every
		}
	}
	return cmp.Or(shortest, l.resolution()/time.Duration(max(1, l.Waiting)))
}

// timeOf returns the time in which a tier admits a cost.
func (r rate) timeOf(c throttle.Cost) time.Duration {
	amount, named := c[r.unit]
	if !named && r.unit == algorithms.Requests {
		amount = 1
	}
	return time.Duration(float64(amount) / r.perSecond * float64(time.Second))
}

// learn reads the rates of the tiers, if those that are known are old. If the store does not answer, it keeps those.
func (l *Line) learn(ctx context.Context) {
	l.mu.Lock()
	old := time.Since(l.ratesAt) > rateAge
	if old {
		l.ratesAt = time.Now() // others do not ask meanwhile
	}
	l.mu.Unlock()
	if !old {
		return
	}
	status, err := l.Limiter.Status(ctx)
	if err != nil {
		return
	}
	rates := make(map[string]rate)
	for _, t := range status.Tiers {
		if perSecond := rateOf(t, status.Shared != ""); perSecond > 0 {
			rates[t.Tier.String()] = rate{cmp.Or(t.Tier.Unit, algorithms.Requests), perSecond, max(t.Tier.Capacity(), t.Followed)}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rates = rates
}

// rateOf returns how many units a second a tier admits in the long run. A MaxRate assumes that each request
// takes as long to arrive as it may. That is so in a shared store, which reserves before the response. In one
// process most requests have their responses sooner.
func rateOf(t throttle.TierStatus, shared bool) float64 {
	units, window := float64(cmp.Or(t.Followed, t.Tier.Limit)), t.Tier.Window.Seconds()
	switch {
	case shared || window == 0:
		return t.MaxRate
	case t.Learned != nil:
		units = t.Learned.Rate
	}
	return units / window
}
