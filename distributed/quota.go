package distributed

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/lineage"
	"github.com/apithrottle/throttle/internal/reporter"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

const (
	mostACall     = 64                     // the most requests in a call of the script
	observeEvery  = 100 * time.Millisecond // the shortest time between two reports of the provider's counts
	leaveDelay    = 500 * time.Millisecond // how long a process without callers keeps its turn, since others may come at once
	refundDelay   = time.Millisecond       // how long a refund waits for a trip of its key
	forecastAfter = time.Second            // a pause without a reply for this long is not part of a forecast
	never         = -1                     // an instant in a reply, a bound in a call
	dryRun        = time.Duration(-1)      // the bound of a request that is not to be charged
	dryRunArg     = -2                     // the same in a call
	lastInstant   = 1<<53 - 1              // the last instant that a script can tell from the next
	learnedWords  = 7                      // the numbers that the script keeps of a learned tier
	lent          = -1 << 32               // in a reply, before how much less a returned reservation is valid; the script's -LENT
)

// A quota is the quota of one limiter. The fleet treats each quota as a process of its own.
//
// Each part has a lock of its own, which guards that part alone. Locks are taken in this order: the
// listener's, the leases', a quota's mu, then those of its parts. None is held while the quota calls
// Redis or a watcher.
type quota struct {
	timing.Timing
	node     *node
	calls    reporter.Calls
	store    *Store
	key      string // its name in Redis
	plan     *algorithms.Plan
	best     *algorithms.Plan // the plan at the highest rates, for forecasts
	text     string           // of the plan, for the script
	budgets  []any            // the numbers of its budget tiers, from 1
	leases   *leases          // nil without Concurrency tiers and estimated units; shared with the successor
	fallback *fallback        // nil if Options.Fallback is zero

	lineage *lineage.Line
	version int64 // of the plan, in the lineage

	record    record
	watchers  watchers
	turns     turns
	crossings crossings
	mixed     atomic.Bool // by the last reply, releases with other plans call, too

	mu       sync.Mutex // guards all below
	next     *quota     // under the plan that replaced this one; nil until it is needed
	observed time.Time  // of the last report of the provider's counts
}

var (
	_ store.Quota     = (*quota)(nil)
	_ store.Reserver  = (*quota)(nil)
	_ store.Bundler   = (*quota)(nil)
	_ store.Lifecycle = (*quota)(nil)
	_ store.Feedback  = (*quota)(nil)
)

func newQuota(s *Store, name string, plan *algorithms.Plan, line *lineage.Line, version int64, calls reporter.Calls) *quota {
	n := s.nodes.of(name)
	q := &quota{
		Timing:  timing.New(&n.link, &timing.Clock{Server: s.clock}, plan),
		node:    n,
		calls:   calls,
		store:   s,
		key:     name,
		plan:    plan,
		best:    atMost(plan),
		text:    planText(plan),
		lineage: line,
		version: version,
	}
	for i := range plan.Tiers() {
		if plan.Exhausted(i) {
			q.budgets = append(q.budgets, i+1)
		}
	}
	if s.options.Fallback.Workers > 0 {
		q.fallback = newFallback(plan, s.options.Fallback.Workers)
	}
	return q
}

// moved is the decision of a quota that has a successor.
var moved = store.Decision{Verdict: store.Moved, Tier: -1}

func (q *quota) isNewest() bool { return q.lineage.IsNewest(q.version) }

// Change replaces the plan for all quotas that this process has opened under the key. The script
// converts the state with the next call. For a plan that has taken over limits, a goroutine makes that
// call at once, so that the fleet has them too.
func (q *quota) Change(_ context.Context, plan *algorithms.Plan) error {
	if plan.Followed().At == 0 {
		q.lineage.Change(plan)
		return nil
	}
	for n := q.newest(); plan.Replaces(n.plan); n = n.newest() {
		if n.lineage.Replace(n.version, plan) {
			q.store.reports.Background(func() error {
				_, _, _, err := q.ask(context.Background(), opStatus)
				return err
			})
			break
		}
	}
	return nil
}

// follow takes over limits that another process has: their number, the hash of the policy and the limits
// of its tiers, see plan.lua. They may be bounded by another release of the policy. So the process takes
// over the number even if its own bounds leave the limits as they are. It reports whether the quota has a
// successor.
func (q *quota) follow(named []int64) bool {
	for n := q.newest(); ; n = n.newest() {
		was := n.plan.Followed()
		if len(named) < 2 || named[0] < was.At || named[0] == was.At && slices.Equal(named[2:], was.Limits) ||
			!n.plan.Follows() || named[1] != policyHash(n.plan.Base()) {
			return n != q
		}
		if n.lineage.Replace(n.version, n.plan.Following(algorithms.Followed{At: named[0], Limits: named[2:]})) {
			return true
		}
	}
}

// hasNews reports whether limits that another process has are later than those of the quota.
func (q *quota) hasNews(named []int64) bool {
	return len(named) > 2 && q.plan.Follows() && named[0] > q.plan.Followed().At
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
		next := newQuota(q.store, q.key, plan, q.lineage, version, q.calls)
		next.record.state, next.Clock, next.fallback = q.record.get(), q.Clock, next.fallback.adopt(q.fallback)
		next.turns.place.Store(q.turns.place.Swap(nil))
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

// lock waits for the turn to call Redis. It returns false, without the turn, if the quota has a
// successor, or with an error if the context ends before.
func (q *quota) lock(ctx context.Context) (isNewest bool, err error) {
	if err := q.leases.lock(ctx); err != nil {
		return false, err
	}
	if !q.isNewest() {
		q.leases.unlock(nil)
		return false, nil
	}
	q.leases.rebase(q)
	return true, nil
}

// lockNewest waits for the turn to call Redis, under the newest plan. It returns an error only if
// the context ends before.
func (q *quota) lockNewest(ctx context.Context) (*quota, error) {
	for {
		q = q.newest()
		if isNewest, err := q.lock(ctx); isNewest || err != nil {
			return q, err
		}
	}
}

// ask is askWith for arguments that do not depend on the plan.
func (q *quota) ask(ctx context.Context, op string, own ...any) (*quota, []int64, header, error) {
	return q.askWith(ctx, op, func(_ *quota, args []any) []any { return append(args, own...) })
}

// askWith calls Redis under the newest plan and records the header of the reply. own appends the
// arguments of the operation. askWith returns the quota that called and the operation's own reply. If the
// context ends, askWith returns at once. The call still ends its turn itself: else a later one might come
// before it, and report the same amounts.
func (q *quota) askWith(ctx context.Context, op string, own func(q *quota, args []any) []any) (*quota, []int64, header, error) {
	q, err := q.lockNewest(ctx)
	if err != nil {
		return q, nil, header{}, err
	}
	c, t := newCall(q, own(q, q.begin(op, 8))), new(trip)
	var h header
	done := make(chan error, 1)
	t.calls = []*call{c}
	t.done = func(err error) {
		q.leases.unlock(err)
		if err == nil {
			h = parseHeader(c.reply)
			q.recordReply(h, t)
		}
		done <- err
	}
	t.late = func() { q.recordReply(parseHeader(c.reply), t) }
	go q.node.make(t) // which may block for longer than the trip
	select {
	case err := <-done:
		if err == errFollowed {
			return q.askWith(ctx, op, own)
		}
		if err != nil {
			return q, nil, header{}, err
		}
		return q, c.reply[headerLen:], h, nil
	case <-ctx.Done():
		return q, nil, header{}, ctx.Err()
	}
}

// call makes a trip of one call and waits until it ends.
func (q *quota) call(t *trip, args []any) ([]int64, error) {
	c := newCall(q, args)
	if t.onSend != nil {
		c.requests = 1
	}
	t.calls = []*call{c}
	done := make(chan error, 1)
	t.done = func(err error) { done <- err }
	t.late = func() { q.recordReply(parseHeader(c.reply), t) }
	go q.node.make(t) // which may block for longer than the trip
	if err := <-done; err != nil {
		return nil, err
	}
	return c.reply, nil
}

// begin returns the first arguments of an operation. With leases the caller must have the turn.
func (q *quota) begin(op string, more int) []any {
	return q.appendPlan(append(make([]any, 0, 4+len(q.plan.Units())+more), op))
}

// appendPlan appends what a call tells the script about the quota. With leases the caller must have
// the turn.
func (q *quota) appendPlan(args []any) []any {
	args = appendCost(append(args, q.text), q.plan.PeriodStarts(time.Now().UnixMicro()))
	if q.leases != nil {
		args = q.leases.append(args)
	}
	return args
}

func appendCost(args []any, cost []int64) []any {
	for _, n := range cost {
		args = append(args, n)
	}
	return args
}

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// bit returns the script's argument for a boolean.
func bit(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Arrived reports probes only. To report each request would cost a second call, so requests are in
// flight for the whole of Policy.Guard in Redis.
func (q *quota) Arrived(b store.Decision, _ []int64) { q.endProbe(b, answered) }

// Unanswered settles the estimates at their full amount when the guard has passed, the time at
// which Redis lands the other units. Until then they are held.
func (q *quota) Unanswered(b store.Decision, cost []int64) {
	q.endProbe(b, unanswered)
	if q.plan.Estimates() {
		a, p := b.Reservation, q.store.reports.Begin()
		time.AfterFunc(time.Until(a.Start.Add(a.Guard)), func() {
			q.Settle(b, cost, cost, nil)
			p.End(nil)
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

// Align does nothing: windows of unknown phase stay rolling.
func (q *quota) Align(int, time.Time, time.Time) {}

// Learned is false: Redis keeps what the responses have reported.
func (q *quota) Learned() bool { return false }

// Forget makes the tiers that learn their rate start again.
func (q *quota) Forget(ctx context.Context) error {
	_, _, _, err := q.ask(ctx, opForget)
	return err
}

// Observe reports readings to Redis, in a goroutine that ends with the call. It skips them if the
// last report was less than observeEvery ago and units remain.
func (q *quota) Observe(b store.Decision, cost []int64, seen []store.Observation) {
	now := q.newest()
	if b.Reservation == nil || b.Reservation.State == inFallback || !now.hasTiersOf(q) || !now.worthReporting(seen) && !b.Probe {
		return
	}
	q.store.reports.Background(func() error {
		_, _, _, err := q.askWith(context.Background(), opObserve, func(n *quota, args []any) []any {
			args = append(args, micros(b.Reservation.Guard))
			if !n.hasTiersOf(q) {
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

// hasTiersOf reports whether the tiers are those of a previous quota, up to limits that responses have named.
func (q *quota) hasTiersOf(old *quota) bool { return q.plan.Base().Equal(old.plan.Base()) }

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
	q, own, h, err := q.ask(ctx, opStatus)
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
	learned := own[3*len(s.Tiers):]
	for i := range s.Tiers {
		if s.Tiers[i].Tier.Learns() {
			s.Tiers[i].SetLearned(q.plan.LearnedRate(i, learned[:learnedWords], h.now), h.now)
			learned = learned[learnedWords:]
		}
	}
	return s, nil
}

// Forecast returns a forecast that assumes no other requests in the fleet and no charges.
func (q *quota) Forecast() store.Forecast {
	if idle := q.idle(); idle != nil {
		return idle.Forecast()
	}
	return nil
}

// Soonest makes the assumptions of Forecast. During a ban it returns 0, because a request that can't wait
// for its end is refused by the ban.
func (q *quota) Soonest(cost []int64, headroom int64) (wait time.Duration, tier int) {
	if s := q.record.get(); s.shut && s.isPaused() {
		return 0, -1
	}
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
	idle, _ := local.New().Open("", q.best, nil) // a new store has no key yet
	s := q.record.get()
	left := time.Until(s.until)
	if !s.unrecorded && !s.isFresh() {
		left = 0
	}
	_, _ = idle.Pause(context.Background(), store.Pause{For: left})
	return idle
}

// atMost returns a plan that admits a request no later than p, whatever the rates of p are: each learned tier has its
// highest one.
func atMost(p *algorithms.Plan) *algorithms.Plan {
	if !p.Learns() {
		return p
	}
	tiers := slices.Clone(p.Given())
	for i := range tiers {
		if t := &tiers[i]; t.Learns() {
			t.Burst = cmp.Or(t.Burst, t.Limit)
			t.Limit, t.Learn = t.Learn.Most, algorithms.Learn{}
		}
	}
	most, err := algorithms.NewPlan(tiers, p.Guard())
	if err != nil {
		panic(err) // a bucket may refill faster
	}
	return most
}

// Idle reports whether the quota can be forgotten without a loss: no pause is in force, which Redis
// may lose, nothing is held, and nothing that was sent without Redis still counts.
func (q *quota) Idle() bool {
	q = q.newest()
	s := q.record.get()
	return !s.isPaused() && q.leases.isIdle() && q.fallback.isIdle()
}

// Close ends the quota's subscription, and gives back what Redis keeps for waiting callers. The units of
// requests in flight stay leased until the requests end.
func (q *quota) Close() {
	q.leave(0)
	q.store.listener.forget(q)
	q.lineage.Close()
}
