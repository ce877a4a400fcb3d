package distributed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// A CellStore keeps quotas with CL.THROTTLE, the command of Dragonfly and of the
// module redis-cell, where no scripts are wanted. It is safe for concurrent use,
// starts nothing before the first request and needs no closing; the client is the
// caller's to close. Where scripts may run, [New] does more and does it better.
//
// A policy has one tier of GCRA, TokenBucket or LeakyBucket, which decide alike, and
// NoGuard; its Window is whole seconds, and its Limit at most 1000 a second. Open
// refuses every other one. The command doesn't keep:
//
//   - Several tiers, the other algorithms, Concurrency.
//   - Policy.Guard: a request that is late on its way may meet the one behind it,
//     and the provider refuse that. Leave some of the provider's limit unused.
//   - Bookings. Who must wait asks again when a unit may be free: two calls a
//     request, and no order among processes, so that a busy one may keep another
//     waiting. Within each process callers are admitted as they came.
//   - Pauses: a 429 pauses the limiters of this CellStore and nobody else in the
//     fleet, each process until it gets one of its own.
//   - Policy.Headroom: a Batch request leaves nothing to the others of other processes;
//     those of its own go ahead of it.
//   - What is given back: a request that is canceled stays charged, and so does one
//     whose call got no answer.
//
// While the server is away callers wait for it until their context ends. A user with
// restricted rights needs ~throttle:cell:* and +cl.throttle.
//
// The servers reckon with an interval of whole nanoseconds, rounded down, by a clock
// that may be set; redis-cell may forget the last millisecond of a quota. Dragonfly
// before 1.33 rounds down to milliseconds, so that 600 a second are 1000 there:
// https://github.com/dragonflydb/dragonfly/pull/5719 (read 2026-11-21).
type CellStore struct {
	rdb    redis.UniversalClient
	pauses local.Store // keeps no charges: only the pauses, and who is to be told of them
	names  Store       // for the names of keys
}

var _ store.Store = (*CellStore)(nil)

const (
	cellPrefix  = "throttle:cell:" // of every key; what follows is the same hash that a Store makes
	fastest     = time.Millisecond // the shortest interval; keys expire by whole ones
	cellReplies = 5
)

// Cell returns a CellStore on a client. Nothing is sent before the first request;
// that the server has no CL.THROTTLE is the error of that request.
func Cell(rdb redis.UniversalClient) *CellStore {
	return &CellStore{rdb: rdb, names: Store{options: Options{Prefix: cellPrefix}}}
}

// Open returns the quota of a key, or says all that CL.THROTTLE can't do for the
// plan. A key that is open with another tier is an error. It does not block.
func (s *CellStore) Open(key string, plan *algorithms.Plan) (store.Quota, error) {
	if err := s.validate(key, plan); err != nil {
		return nil, err
	}
	here, err := s.pauses.Open(key, plan)
	if err != nil {
		return nil, fmt.Errorf("distributed: Cell: %w", err)
	}
	return &cell{pauses: here.(pauses), rdb: s.rdb, key: s.names.name(key), tier: plan.Tiers()[0]}, nil
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
		bad("the key is empty: quotas are kept by name, so give the policy a Name")
	}
	if g := plan.Guard(); g != 0 {
		bad("Guard is %v: CL.THROTTLE can't keep what is on its way, so set NoGuard, or use distributed.New", g)
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

// A cell is what one limiter sees of a key. Pause, Watch, Forecast and Close are
// those of the quota in this process, which is charged nothing: it forecasts what
// would be if the rest of the fleet sent nothing.
type cell struct {
	pauses
	rdb     redis.UniversalClient
	key     string // its name on the server
	tier    algorithms.Tier
	circuit circuit
}

type pauses interface {
	store.Quota
	store.Forecaster
	store.Idler
}

var (
	_ store.Quota      = (*cell)(nil)
	_ store.Forecaster = (*cell)(nil)
	_ store.Idler      = (*cell)(nil)
)

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
	// A pause may have begun meanwhile: then what was charged is lost.
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

// paused admits what costs nothing, unless there is a pause or a ban.
func (q *cell) paused(ctx context.Context) (store.Decision, error) {
	return q.pauses.TryAcquire(ctx, store.Request{Cost: []int64{0}})
}

// atMost is the longest that it can take until so many units are free, if the server
// says that it takes so many seconds, which it rounds up.
//
// Ten a second: a refusal says 1 s, but one unit is free in 100 ms at most, since a
// bucket is never more than full. To ask then, and not before, wastes no call, is
// right for whoever emptied the bucket, and for others late by less than the interval
// of one unit; the bucket keeps what accrues meanwhile, unless its Burst is one. One a
// minute: a refusal that says 20 s is right within a second. What the server says is
// never more than a second too much: where that is still longer than the units take,
// the tier has become smaller or the server's clock was set, and the server is right.
func (q *cell) atMost(units, seconds int64) time.Duration {
	said := time.Duration(seconds) * time.Second
	return min(said, max(said-time.Second, time.Duration(units)*q.interval()))
}

// interval is the time of one unit, rounded up.
func (q *cell) interval() time.Duration {
	limit := time.Duration(q.tier.Limit)
	return (q.tier.Window + limit - 1) / limit
}

// Status peeks: it asks for nothing. The server answers in whole seconds, so that the
// times are those at most.
func (q *cell) Status(ctx context.Context) (store.Status, error) {
	got, err := q.throttle(ctx, 0)
	if err != nil {
		return store.Status{}, err
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
	if t.Limited { // the first of all that is used is free so long before the last
		t.RetryAfter = max(fastest, t.ResetAfter-time.Duration(capacity-1)*q.interval())
		t.ResetAfter = max(t.ResetAfter, t.RetryAfter)
	}
	s.Tiers = []store.TierStatus{t}
	return s, nil
}

// Arrived, Release and Return do nothing: the server counts a request when it is
// admitted, and takes nothing back.
func (q *cell) Arrived(store.Decision, []int64) {}

// Release does nothing.
func (q *cell) Release(store.Decision, []int64) {}

// Unanswered does nothing.
func (q *cell) Unanswered(store.Decision, []int64) {}

// Return does nothing.
func (q *cell) Return(context.Context, store.Decision, []int64) error { return nil }

// A throttled is the server's reply.
type throttled struct {
	limited                bool
	remaining              int64
	retryAfter, resetAfter int64 // seconds; retryAfter is -1 for never
	err                    error
}

// throttle runs CL.THROTTLE, at most once: a caller whose context ends does not wait
// for it, and loses what it may have charged.
func (q *cell) throttle(ctx context.Context, cost int64) (throttled, error) {
	if err := ctx.Err(); err != nil {
		return throttled{}, err
	}
	if err := q.circuit.allow(); err != nil {
		return throttled{}, err
	}
	done := make(chan throttled, 1)
	go func() {
		got := q.send(cost)
		q.circuit.report(got.err)
		done <- got
	}()
	late := time.NewTimer(defaultTimeout)
	defer late.Stop()
	select {
	case got := <-done:
		return got, got.err
	case <-late.C:
		err := &outage{fmt.Errorf("no answer within %v: %w", defaultTimeout, context.DeadlineExceeded)}
		q.circuit.report(err)
		return throttled{}, err
	case <-ctx.Done():
		if away := q.circuit.why(); away != nil {
			return throttled{}, away
		}
		return throttled{}, ctx.Err()
	}
}

// why is the last thing that is known of a server that is away.
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
