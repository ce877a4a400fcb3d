package distributed

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// Leases are the units of Concurrency tiers that this process holds, and its estimates that are not
// settled. Every call reports the whole amounts, so the next call corrects a grant whose reply was
// lost. Calls take turns and are numbered, so a late call changes nothing. The methods of nil
// leases do nothing.
type leases struct {
	names []string // of the keys in Redis
	owner int64
	turn  chan struct{} // contains an element during a call

	mu         sync.Mutex                  // guards all below
	quota      *quota                      // that made the last call; its plan has the units of all amounts
	holds      []bool                      // by unit, whether it is estimated or has a Concurrency tier
	number     int64                       // of the last call; it grows by a random number, which others can't guess
	before     int64                       // of the call before the last one
	told       int64                       // of the call that the last message about a permit named
	calls      bool                        // the turn is that of a call
	waits      bool                        // the last call reported that callers wait, so this process may be in the queue
	failed     bool                        // the last call had no answer
	held       []int64                     // by unit
	settled    []int64                     // by unit, since the last call
	unanswered []settlement                // of the last call, and of those before it that had no answer
	crossed    func([]algorithms.Crossing) // receives the percentages that calendar tiers have reached
	unreported bool                        // held has become less since the last call
	reports    bool                        // a goroutine is about to report
	closed     bool                        // the client is closed, and nothing can be reported
	renewal    *time.Timer                 // nil while nothing is held and nothing unreported
}

// mostSkipped is the most numbers between two calls of a process.
const mostSkipped = 1 << 16

// longestInQueue is the longest time between two calls of a process in the queue.
const longestInQueue = 5 * time.Second

func newLeases(q *quota) *leases {
	if !q.plan.Concurrent() && !q.plan.Estimates() {
		return nil
	}
	return &leases{
		quota: q,
		names: q.store.leaseKeys(q.key),
		owner: rand.Int64N(1 << 48),
		holds: holds(q.plan),
		turn:  make(chan struct{}, 1),
		held:  make([]int64, len(q.plan.Units())),

		settled: make([]int64, len(q.plan.Units())),
	}
}

// A settlement is what a call reported as settled.
type settlement struct {
	number  int64   // of the call
	settled []int64 // by unit
}

// keys returns the names of the keys in Redis besides the quota's.
func (l *leases) keys() []string {
	if l == nil {
		return nil
	}
	return l.names
}

// channels returns the channels of a quota: that of its key, and with leases one of this process alone.
// A message on the latter means that a place is kept for the process.
func (l *leases) channels(key string) []string {
	if l == nil {
		return []string{key}
	}
	return []string{key, l.names[0] + ":" + strconv.FormatInt(l.owner, 10)}
}

// holds reports for each unit whether requests hold it.
func holds(p *algorithms.Plan) (held []bool) {
	for u := range p.Units() {
		held = append(held, p.Holds(u))
	}
	return held
}

// rebase translates the amounts to the plan of a quota, which must have the turn.
func (l *leases) rebase(q *quota) {
	if l == nil {
		return
	}
	l.mu.Lock()
	was := l.quota
	l.mu.Unlock()
	for was != q {
		next := was.successor()
		l.mu.Lock()
		l.rebaseOnce(next)
		l.mu.Unlock()
		was = next
	}
}

// rebaseOnce translates the amounts to the next plan, one plan after the other as for the requests
// that hold them. Estimates of a unit that is no longer estimated become its cost. It needs mu.
func (l *leases) rebaseOnce(next *quota) {
	old, plan := l.quota.plan, next.plan
	held, all := translateHeld(plan, old, l.held), plan.Translate(old, l.held)
	l.settled = plan.Translate(old, l.settled)
	for u, unit := range plan.Units() {
		if o := slices.Index(old.Units(), unit); o >= 0 && old.Estimated(o) && !plan.Estimated(u) {
			l.settled[u] += all[u]
		}
	}
	for i := range l.unanswered {
		l.unanswered[i].settled = plan.Translate(old, l.unanswered[i].settled)
	}
	l.holds, l.held, l.quota = holds(plan), held, next
}

// lock waits for the turn, or until the context ends.
func (l *leases) lock(ctx context.Context) error {
	if l == nil {
		return nil
	}
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unlock ends the turn. After an error it is unknown whether the call was made, so the next call
// reports its settled amounts again, with its number, and the script charges those of calls that it
// has not seen. If no other call follows, the renewal reports them, unless the client is closed.
func (l *leases) unlock(err error) {
	if l == nil {
		return
	}
	l.mu.Lock()
	if l.calls && err == nil {
		l.unanswered = nil
	}
	switch {
	case errors.Is(err, redis.ErrClosed):
		l.closed = true
	case err != nil:
		l.unreported = true
	}
	if l.calls {
		l.calls, l.failed = false, err != nil
	}
	l.renewLater(err)
	l.mu.Unlock()
	<-l.turn
}

// append appends the arguments of every call. The caller must have the turn.
func (l *leases) append(args []any) []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before, l.number = l.number, l.number+1+rand.Int64N(mostSkipped)
	l.unreported, l.calls, l.waits = false, true, l.quota.watchers.any()
	args = append(args, l.owner, l.number, micros(l.quota.store.options.Lease), bit(l.waits), l.quota.record.knownUntil(l.failed))
	args = appendCost(args, l.held)
	if !l.quota.plan.Estimates() {
		l.unanswered = nil
	} else {
		if slices.Max(l.settled) > 0 {
			l.unanswered = append(l.unanswered, settlement{l.number, slices.Clone(l.settled)})
		}
		args = append(args, len(l.unanswered))
		for _, s := range l.unanswered {
			args = appendCost(append(args, s.number), s.settled)
		}
	}
	clear(l.settled)
	return args
}

// grant adds the costs of admitted requests. The caller must have the turn of the call.
func (l *leases) grant(got []store.Decision) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range got {
		if b.Verdict == store.Admitted {
			l.add(b.Reservation.Cost)
		}
	}
}

func (l *leases) add(cost []int64) {
	for u, n := range cost {
		if l.holds[u] {
			l.held[u] += n
		}
	}
}

// release gives back permits, and settle replaces estimates by their actual cost, which is zero if
// nil. A goroutine reports to Redis and ends with the call.
func (l *leases) release(p *algorithms.Plan, cost []int64) { l.giveBack(p, cost, nil, nil, false) }

func (l *leases) settle(p *algorithms.Plan, cost, actual []int64, crossed func([]algorithms.Crossing)) {
	l.giveBack(p, cost, actual, crossed, true)
}

// giveBack takes amounts under a plan off the held ones.
func (l *leases) giveBack(p *algorithms.Plan, cost, actual []int64, crossed func([]algorithms.Crossing), estimated bool) {
	if l == nil {
		return
	}
	l.mu.Lock()
	cost, actual = translateHeld(l.quota.plan, p, cost), translateHeld(l.quota.plan, p, actual)
	if crossed != nil {
		l.crossed = crossed
	}
	for u, n := range cost {
		if !l.holds[u] || l.quota.plan.Estimated(u) != estimated {
			continue
		}
		l.held[u] -= n
		if actual != nil {
			l.settled[u] += actual[u]
		}
	}
	l.unreported = true
	l.startReport()
	l.mu.Unlock()
}

// retryReport repeats a report that failed, in a goroutine that ends with the call.
func (l *leases) retryReport() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unreported && !l.closed {
		l.startReport()
	}
}

// startReport starts a goroutine that reports, if none is about to. It needs mu.
func (l *leases) startReport() {
	if !l.reports {
		l.reports = true
		l.quota.store.reports.Background(l.report)
	}
}

// leave gives up the place of this process in the queue, or the one that is kept for it, if none of
// its callers waits any more. The next call reports it.
func (l *leases) leave() {
	if !l.queued() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.quota.watchers.any() {
		l.unreported = true
		l.startReport()
	}
}

// queued reports whether this process may be in the queue.
func (l *leases) queued() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waits
}

// isKept reports whether a message is the script's, about a permit that it keeps for this process. Such
// a message names the last call that the script has seen, and the last call may still be on its way.
// Each number counts once, because any client that may subscribe can repeat the message.
func (l *leases) isKept(message string) bool {
	number, err := strconv.ParseInt(strings.TrimPrefix(message, "freed "), 10, 64)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || number <= l.told || number != l.number && number != l.before {
		return false
	}
	l.told = number
	return true
}

// askAgain returns when a process in the queue asks again. It must not lose its place
// when its lease ends, and a message may be lost.
func (l *leases) askAgain() time.Duration {
	again := min(longestInQueue, l.quota.store.options.Lease/3)
	return again - rand.N(again/4+1)
}

// report reports the held amounts until there is nothing new.
func (l *leases) report() error {
	for {
		q := l.lockNewest()
		if q == nil {
			return nil
		}
		l.mu.Lock()
		if !l.unreported { // another call has reported it
			l.reports = false
			l.mu.Unlock()
			l.unlock(nil)
			return nil
		}
		l.mu.Unlock()
		err := l.sync(q)
		l.unlock(err)
		if err != nil && err != errFollowed {
			q.notifyFreed() // the process may go on alone
			l.mu.Lock()
			l.reports = false
			l.mu.Unlock()
			return err // the renewal reports, or the lease ends
		}
	}
}

// lockNewest takes the turn of the newest quota and returns that quota. It returns nil, without the
// turn, if the newest quota has no leases: the amounts are then obsolete.
func (l *leases) lockNewest() *quota {
	l.mu.Lock()
	q := l.quota
	l.mu.Unlock()
	q, _ = q.lockNewest(context.Background())
	if q.leases == l {
		return q
	}
	q.leases.unlock(nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.held)
	l.unreported, l.reports, l.closed = false, false, true
	l.renewLater(nil)
	return nil
}

// sync makes a call that only reports. The caller must have the turn.
func (l *leases) sync(q *quota) error {
	t := new(trip)
	reply, err := q.call(t, q.begin(opLease, 0))
	if err != nil {
		return err
	}
	q.recordReply(parseHeader(reply), t)
	l.mu.Lock()
	crossed := l.crossed
	l.mu.Unlock()
	if _, reached := splitCrossed(q.plan, reply[headerLen:]); reached != nil && crossed != nil {
		crossed(reached)
	}
	return nil
}

func (l *leases) isIdle() bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.idle()
}

// idle reports whether nothing is held and nothing unreported. It needs mu.
func (l *leases) idle() bool {
	return !l.unreported && !slices.ContainsFunc(l.held, func(n int64) bool { return n != 0 })
}

// renewLater starts the timer that renews the lease, or stops it if the leases are idle. A lease is
// renewed once in a quarter of its length. Redis waits for a third, after a call or a loss of its
// state. After an error the next call follows soon, so that Redis hears of it when it is back. It
// needs mu.
func (l *leases) renewLater(err error) {
	length := l.quota.store.options.Lease
	again := length / 4
	if err != nil {
		again = min(again, longestInQueue, max(length/32, firstTry))
	}
	idle := l.closed || l.idle()
	if l.renewal != nil && (idle || err != nil) {
		l.renewal.Stop()
		l.renewal = nil
	}
	switch {
	case idle:
		l.quota.store.lessees.Delete(l)
	case l.renewal == nil:
		l.renew(again)
	}
}

// renew renews the lease after a time. It needs mu.
func (l *leases) renew(after time.Duration) {
	var renewal *time.Timer
	renewal = time.AfterFunc(after, func() {
		q := l.lockNewest()
		if q == nil {
			return
		}
		p := q.store.reports.Begin()
		err := l.sync(q)
		defer p.End(unlessFollowed(err))
		l.mu.Lock()
		if l.renewal == renewal { // otherwise it was stopped
			l.renewal = nil
		}
		l.mu.Unlock()
		l.unlock(err) // another renewal follows
	})
	l.renewal = renewal
	l.quota.store.lessees.Store(l, nil)
}
