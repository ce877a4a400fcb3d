package distributed

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// Leases are what this process holds of the tiers that limit concurrency, and what it
// has estimated and not settled. Every call says how much that is, in all, so that a
// grant whose reply was lost is given back by the next one; and calls take turns and are numbered, so that one which
// arrives late changes nothing. The methods of nil leases do nothing.
type leases struct {
	names []string // of the keys in Redis
	owner int64
	turn  chan struct{} // holds one while a call is made

	mu      sync.Mutex                  // guards all below
	quota   *quota                      // that last made a call; under its plan are all amounts
	holds   []bool                      // of each unit, whether it is estimated, or limited at once
	number  int64                       // of the last call
	held    []int64                     // by unit
	settled []int64                     // by unit, since the last call
	telling []int64                     // by unit, of that, what this call tells
	crossed func([]algorithms.Crossing) // who is told where calendar tiers have come to
	untold  bool                        // held has become less since the last call
	tells   bool                        // a goroutine is about to tell
	closed  bool                        // the client is: nobody can be told any more
	renewal *time.Timer                 // nil while nothing is held and all is told
}

// longestStand is how long a process stands in the line at most and does not ask.
const longestStand = 5 * time.Second

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
		telling: make([]int64, len(q.plan.Units())),
	}
}

// keys returns the names of the keys in Redis beside that of the quota.
func (l *leases) keys() []string {
	if l == nil {
		return nil
	}
	return l.names
}

// channel is where this process alone hears that a place is kept for it.
func (l *leases) channel() string { return l.names[0] + ":" + strconv.FormatInt(l.owner, 10) }

// holds reports of each unit whether it is estimated, or limited at once.
func holds(p *algorithms.Plan) (held []bool) {
	for u, unit := range p.Units() {
		held = append(held, p.Estimated(u) || slices.ContainsFunc(p.Tiers(), func(t algorithms.Tier) bool {
			return t.Unit == unit && t.Algorithm == algorithms.Concurrency
		}))
	}
	return held
}

// rebase makes the amounts those under the plan of a quota. It must be its turn.
func (l *leases) rebase(q *quota) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.quota.plan; old != q.plan {
		l.holds = holds(q.plan)
		l.held = translateHeld(q.plan, old, l.held)
		l.settled = translateHeld(q.plan, old, l.settled)
		l.telling = make([]int64, len(l.settled))
	}
	l.quota = q
}

// lock takes the turn, unless the context ends before.
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

// unlock ends the turn. What was settled is told again if nobody knows whether the call
// was made: it may count twice, and is not lost. If no other call comes, the renewal tells;
// but not once the client is closed.
func (l *leases) unlock(err error) {
	if l == nil {
		return
	}
	l.mu.Lock()
	for u, n := range l.telling {
		if err != nil {
			l.settled[u] += n
		}
		l.telling[u] = 0
	}
	switch {
	case errors.Is(err, redis.ErrClosed):
		l.closed = true
	case err != nil:
		l.untold = true
	}
	l.renewLater()
	l.mu.Unlock()
	<-l.turn
}

// append adds what every call says. It must be its turn.
func (l *leases) append(args []any) []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	l.untold = false
	args = appendCost(append(args, l.owner, l.number, micros(l.quota.store.options.Lease), bit(l.quota.watched())), l.held)
	if l.quota.plan.Estimates() {
		args = appendCost(args, l.settled)
		copy(l.telling, l.settled)
		clear(l.settled)
	}
	return args
}

// grant adds what was admitted. It must still be its turn.
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

// release gives back places, and settle estimates: what they really cost is nil where
// that is nothing. Redis is told in a goroutine that ends with the call.
func (l *leases) release(p *algorithms.Plan, cost []int64) { l.giveBack(p, cost, nil, nil, false) }

func (l *leases) settle(p *algorithms.Plan, cost, actual []int64, crossed func([]algorithms.Crossing)) {
	l.giveBack(p, cost, actual, crossed, true)
}

// giveBack gives back amounts under a plan.
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
	l.untold = true
	l.startTelling()
	l.mu.Unlock()
}

// tellAgain says in a goroutine that ends with the call what an earlier call could not.
func (l *leases) tellAgain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.untold && !l.closed {
		l.startTelling()
	}
}

// startTelling makes sure that a goroutine tells. It needs mu.
func (l *leases) startTelling() {
	if !l.tells {
		l.tells = true
		l.quota.store.background(l.tell)
	}
}

// leave gives up the place that is kept for this process, if none of its callers waits any more:
// the next call says so.
func (q *quota) leave() {
	if l := q.leases; !q.watched() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.untold = true
		l.startTelling()
	}
}

// askAgain is when a process asks again that stands in the line: so often that it does not fall
// out of it, since a message may be lost.
func (l *leases) askAgain() time.Duration {
	again := min(longestStand, l.quota.store.options.Lease/2)
	return again - rand.N(again/4+1)
}

// tell says what is held, until there is nothing new to say.
func (l *leases) tell() error {
	for {
		q := l.lockNewest()
		if q == nil {
			return nil
		}
		l.mu.Lock()
		if !l.untold { // another call has said it meanwhile
			l.tells = false
			l.mu.Unlock()
			l.unlock(nil)
			return nil
		}
		l.mu.Unlock()
		err := l.sync(q)
		l.unlock(err)
		if err != nil {
			q.freed() // the process may go on alone
			l.mu.Lock()
			l.tells = false
			l.mu.Unlock()
			return err // the renewal tells, and else the lease ends
		}
	}
}

// lockNewest takes the turn of the newest quota, and returns that; but nil, and no turn, if
// that holds nothing: then nobody asks any more what this process holds.
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
	l.untold, l.tells, l.closed = false, false, true
	l.renewLater()
	return nil
}

func (l *leases) sync(q *quota) error {
	t := new(trip)
	reply, err := q.call(context.Background(), t, q.begin("l", 0))
	if err != nil {
		return err
	}
	q.learn(parseHeader(reply), t)
	l.mu.Lock()
	crossed := l.crossed
	l.mu.Unlock()
	if _, told := q.crossed(reply[headerLen:]); told != nil && crossed != nil {
		crossed(told)
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

// idle reports whether nothing is held and all is told. It needs mu.
func (l *leases) idle() bool {
	return !l.untold && !slices.ContainsFunc(l.held, func(n int64) bool { return n != 0 })
}

// renewLater sees to it that what is held is told again before the lease ends. It
// needs mu.
func (l *leases) renewLater() {
	switch {
	case l.closed || l.idle():
		if l.renewal != nil {
			l.renewal.Stop()
			l.renewal = nil
		}
		l.quota.store.lessees.Delete(l)
	case l.renewal == nil:
		var renewal *time.Timer
		renewal = time.AfterFunc(l.quota.store.options.Lease/3, func() {
			q := l.lockNewest()
			if q == nil {
				return
			}
			p := q.store.reports.begin()
			err := l.sync(q)
			defer p.end(err)
			l.mu.Lock()
			if l.renewal == renewal { // else it was stopped meanwhile
				l.renewal = nil
			}
			l.mu.Unlock()
			l.unlock(err) // another renewal follows
		})
		l.renewal = renewal
		l.quota.store.lessees.Store(l, nil)
	}
}
