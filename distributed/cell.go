package distributed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/reporter"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// A CellStore keeps quotas with CL.THROTTLE, the command of Dragonfly and of the module redis-cell.
// It is for servers on which scripts are not wanted; elsewhere prefer [New], whose Store keeps
// everything in the list below. A CellStore is safe for concurrent use. It starts nothing before
// the first request and needs no closing; the caller closes the client.
//
// A policy has one tier of GCRA, TokenBucket or LeakyBucket, which decide alike here, and NoGuard.
// Its Window is whole seconds, and its Limit is at most 1000 a second. Open refuses other policies.
// The command does not support:
//
//   - Several tiers, the other algorithms, Concurrency.
//   - Policy.Guard: a request that is late may reach the provider together with the next one,
//     and the provider may refuse it. Leave some of the provider's limit unused.
//   - Reservations: a caller that must wait asks again when a unit may be free. A request costs
//     two calls. Processes have no order, so a busy process may delay another. Within a process
//     callers are admitted in their order.
//   - Shared pauses: a 429 pauses the limiters of this CellStore, and each other process of the
//     fleet only when it receives its own.
//   - Policy.Headroom across processes: a Batch request leaves headroom to the callers of its own
//     process, which go ahead of it, and not to those of other processes.
//   - SetPolicy with another tier: the server does not keep what is charged.
//   - Refunds: a canceled request stays charged, and so does a request whose call got no answer.
//
// While the server is away, callers wait for it until their context ends. A user with restricted
// rights needs ~throttle:cell:* and +cl.throttle.
//
// The servers compute with an interval of whole nanoseconds, rounded down, and with a clock that
// may be set. The module redis-cell may forget the last millisecond of a quota. Dragonfly before
// 1.33 rounds down to milliseconds, which turns 600 a second into 1000:
// https://github.com/dragonflydb/dragonfly/pull/5719 (read 2026-11-21).
type CellStore struct {
	rdb    redis.UniversalClient
	pauses local.Store // keeps pauses and their watchers, and no charges
	names  Store       // for the names of keys
}

var _ store.Store = (*CellStore)(nil)

const (
	cellPrefix  = "throttle:cell:" // of every key; the rest is the hash that a Store uses
	fastest     = time.Millisecond // the shortest interval; keys expire after whole milliseconds
	cellReplies = 5
)

// Cell returns a CellStore on a client. It sends nothing. If the server has no CL.THROTTLE, the
// first request fails.
func Cell(rdb redis.UniversalClient) *CellStore {
	return &CellStore{rdb: rdb, names: Store{options: Options{Prefix: cellPrefix}}}
}

// Open returns the quota of a key. The error of an unsupported plan lists everything in it that
// CL.THROTTLE can't do. A key that is open with another tier is an error. Open does not block.
func (s *CellStore) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	if err := s.validate(key, plan); err != nil {
		return nil, err
	}
	here, err := s.pauses.Open(key, plan, nil)
	if err != nil {
		return nil, fmt.Errorf("distributed: Cell: %w", err)
	}
	return &cell{pauses: here.(pauses), calls: report, rdb: s.rdb, key: s.names.name(key), plan: plan, tier: plan.Tiers()[0]}, nil
}

func (s *CellStore) validate(key string, plan *algorithms.Plan) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("distributed: Cell: "+format, args...))
	}
	if isNil(s.rdb) {
		bad("the client is nil: pass Cell a redis.UniversalClient")
	}
	if key == "" {
		bad("the key is empty: give the policy a Name, by which the quota is kept")
	}
	if g := plan.Guard(); g != 0 {
		bad("Guard is %v: CL.THROTTLE can't count requests in flight, so set NoGuard, or use distributed.New", g)
	}
	if n := len(plan.Tiers()); n != 1 {
		bad("Tiers are %d: CL.THROTTLE counts one, so use distributed.New", n)
		return errors.Join(errs...)
	}
	t := plan.Tiers()[0]
	switch t.Algorithm {
	case algorithms.GCRA, algorithms.TokenBucket, algorithms.LeakyBucket:
	default:
		bad("tier %q: Algorithm is %v: CL.THROTTLE is gcra, so name that if it is how the provider counts, or use distributed.New", t, t.Algorithm)
		return errors.Join(errs...)
	}
	if t.Window%time.Second != 0 {
		bad("tier %q: Window is %v: CL.THROTTLE takes whole seconds, so write the rate over some, with the same Burst, or use distributed.New", t, t.Window)
	}
	if t.Window/fastest < time.Duration(t.Limit) {
		bad("tier %q: Limit is %d: CL.THROTTLE keeps at most %d per %v, so use distributed.New", t, t.Limit, t.Window/fastest, t.Window)
	}
	return errors.Join(errs...)
}

// A cell is the quota that one limiter uses. Pause, Watch, Forecast, Idle and Close are methods of a
// local quota that is never charged. Its forecast assumes that the rest of the fleet sends nothing.
type cell struct {
	pauses
	calls   reporter.Calls
	rdb     redis.UniversalClient
	key     string // its name on the server
	plan    *algorithms.Plan
	tier    algorithms.Tier // the plan's
	circuit circuit
}

type pauses interface {
	store.Quota
	store.Lifecycle
}

var (
	_ store.Quota     = (*cell)(nil)
	_ store.Lifecycle = (*cell)(nil)
)

// Change returns an error. The server keeps the time until the quota is full again, which is another
// number of units under another plan.
func (q *cell) Change(context.Context, *algorithms.Plan) error {
	return errors.New("distributed: Cell: CL.THROTTLE does not keep what is charged when the tier changes: make another Limiter, or use distributed.New")
}

// Successor returns the quota itself.
func (q *cell) Successor() (store.Quota, *algorithms.Plan) { return q, q.plan }

// TryAcquire asks the server once.
func (q *cell) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	b, err := q.paused(ctx)
	if err != nil || b.Verdict != store.Admitted || r.Cost[0] == 0 {
		return b, err
	}
	got, err := q.throttle(ctx, r.Cost[0])
	if err != nil {
		return store.Decision{}, err
	}
	// If a pause has begun meanwhile, the charge is lost.
	if b, err = q.paused(ctx); err != nil || b.Verdict != store.Admitted || !got.limited {
		return b, err
	}
	b.Verdict, b.Tier, b.Wait = store.Later, 0, store.Forever
	if got.retryAfter >= 0 {
		b.Wait = max(fastest, q.atMost(max(1, r.Cost[0]-got.remaining), got.retryAfter))
	}
	if q.tier.Budget {
		b.Verdict = store.Exhausted
	}
	return b, nil
}

// paused admits a request without a cost, unless there is a pause or a ban.
func (q *cell) paused(ctx context.Context) (store.Decision, error) {
	return q.pauses.TryAcquire(ctx, store.Request{Cost: []int64{0}})
}

// atMost returns the longest time until a number of units are free, if the server replies that it
// takes a number of seconds, which the server rounds up.
//
// At ten a second, a refusal replies 1 s, but one unit is free after 100 ms at most, since a bucket
// is never more than full. To ask after 100 ms wastes no call. It is exact for the process that
// emptied the bucket, and late by less than the interval of one unit for others; the bucket keeps
// the units of that time, unless its Burst is one. At one a minute, a refusal that replies 20 s is
// exact within a second. The reply is never more than a second too long. If it is longer than the
// units take by more than that, the tier has become smaller or the server's clock was set, and the
// reply decides.
func (q *cell) atMost(units, seconds int64) time.Duration {
	reply := time.Duration(seconds) * time.Second
	return min(reply, max(reply-time.Second, time.Duration(units)*q.interval()))
}

// interval returns the time of one unit, rounded up.
func (q *cell) interval() time.Duration {
	limit := time.Duration(q.tier.Limit)
	return (q.tier.Window + limit - 1) / limit
}

// Status asks the server without a charge. The server answers in whole seconds, so the times are
// upper bounds.
func (q *cell) Status(ctx context.Context) (store.Status, error) {
	got, err := q.throttle(ctx, 0)
	if err != nil {
		return store.Status{Shared: "Redis"}, err
	}
	s, err := q.pauses.Status(ctx)
	if err != nil {
		return store.Status{}, err
	}
	capacity := q.tier.Capacity()
	left := min(max(0, got.remaining), capacity)
	t := store.TierStatus{
		Tier:       q.tier,
		Limited:    left == 0,
		Limit:      capacity,
		Used:       capacity - left,
		Remaining:  left,
		ResetAfter: q.atMost(capacity-left, got.resetAfter),
	}
	if t.Limited { // the first of the used units is free this long before the last
		t.RetryAfter = max(fastest, t.ResetAfter-time.Duration(capacity-1)*q.interval())
		t.ResetAfter = max(t.ResetAfter, t.RetryAfter)
	}
	s.Tiers, s.Shared, s.At = []store.TierStatus{t}, "Redis", 0
	return s, nil
}

// Arrived does nothing: the server counts a request when it is admitted, and makes no refunds.
func (q *cell) Arrived(store.Decision, []int64) {}

// Release does nothing.
func (q *cell) Release(store.Decision, []int64) {}

// Unanswered does nothing.
func (q *cell) Unanswered(store.Decision, []int64) {}

// Return does nothing.
func (q *cell) Return(context.Context, store.Decision, []int64) error { return nil }

// A throttled is a reply to CL.THROTTLE.
type throttled struct {
	limited                bool
	remaining              int64
	retryAfter, resetAfter int64 // seconds; retryAfter is -1 for never
	err                    error
}

// throttle runs CL.THROTTLE at most once. A caller whose context ends does not wait for the reply,
// and the cost stays charged.
func (q *cell) throttle(ctx context.Context, cost int64) (throttled, error) {
	if err := ctx.Err(); err != nil {
		return throttled{}, err
	}
	if err := q.circuit.allow(); err != nil {
		q.calls.Made(store.Call{Unsent: true, Err: err})
		return throttled{}, err
	}
	done := make(chan throttled, 1)
	go func() {
		began := q.calls.Begin()
		got := q.send(cost)
		q.circuit.report(got.err)
		done <- got
		q.calls.End(began, int(min(cost, 1)), got.err) // perhaps long after the timeout
	}()
	late := time.NewTimer(defaultTimeout)
	defer late.Stop()
	select {
	case got := <-done:
		return got, got.err
	case <-late.C:
		err := &unavailableError{fmt.Errorf("no answer within %v: %w", defaultTimeout, context.DeadlineExceeded)}
		q.circuit.report(err)
		return throttled{}, err
	case <-ctx.Done():
		if away := q.circuit.why(); away != nil {
			return throttled{}, away
		}
		return throttled{}, ctx.Err()
	}
}

// why returns the last error of a server that is away, nil if the server is not away.
func (c *circuit) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (q *cell) send(cost int64) throttled {
	ctx := context.Background()
	cmd := once{redis.NewIntSliceCmd(ctx, "cl.throttle", q.key,
		q.tier.Capacity()-1, q.tier.Limit, int64(q.tier.Window/time.Second), cost)}
	cmd.SetFirstKeyPos(1)
	if err := q.rdb.Process(ctx, cmd); err != nil {
		if strings.Contains(err.Error(), "unknown command") {
			return throttled{err: fmt.Errorf("distributed: Cell: %w (the server has no CL.THROTTLE: it must be Dragonfly or have the module redis-cell; or use distributed.New)", err)}
		}
		return throttled{err: explain(q.key, err)}
	}
	n, err := cmd.Result()
	if err != nil || len(n) != cellReplies {
		return throttled{err: fmt.Errorf("distributed: Cell: key %q: CL.THROTTLE answered %v, not five integers", q.key, cmd.Val())}
	}
	return throttled{limited: n[0] != 0, remaining: n[2], retryAfter: n[3], resetAfter: n[4]}
}
