package distributed_test

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/store"
)

// fleetPlan returns a plan with a tier of each kind. If requests is odd, the tiers stand in another
// order.
func fleetPlan(t *testing.T, requests, tokens, open int64) *algorithms.Plan {
	t.Helper()
	tiers := []throttle.Tier{
		{Limit: requests, Window: time.Minute},
		{Limit: tokens, Window: time.Minute, Unit: "tokens", Estimated: true},
		{Limit: open, Algorithm: throttle.Concurrency, Unit: "calls"},
	}
	if requests%2 == 1 {
		tiers[0], tiers[1], tiers[2] = tiers[2], tiers[0], tiers[1]
	}
	return plan(t, 50*ms, tiers...)
}

// costOf returns the amounts in the order of the plan's units.
func costOf(p *algorithms.Plan, requests, tokens, calls int64) (cost []int64) {
	for _, u := range p.Units() {
		cost = append(cost, map[string]int64{"requests": requests, "tokens": tokens, "calls": calls}[u])
	}
	return cost
}

func used(t *testing.T, q store.Quota) map[string]int64 {
	t.Helper()
	s, err := q.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	amounts := make(map[string]int64)
	for _, tier := range s.Tiers {
		amounts[tier.Tier.Unit] = tier.Used
	}
	return amounts
}

func successor(q store.Quota) store.Quota {
	next, _ := q.(store.Lifecycle).Successor()
	return next
}

func acquire(t *testing.T, q store.Quota, cost []int64, want store.Verdict) store.Decision {
	t.Helper()
	b, err := q.TryAcquire(t.Context(), store.Request{Cost: cost, Held: true})
	if err != nil || b.Verdict != want {
		t.Fatalf("got %+v, %v, want %v", b, err, want)
	}
	return b
}

// A change of the plan keeps what is charged and held. It applies to all quotas of the key in this
// process, and to no other process. Requests that were admitted under the old plan are released and
// settled under the new one.
func TestChange(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		before, after := fleetPlan(t, 10, 1000, 4), fleetPlan(t, 9, 900, 3)
		s := distributed.New(process(0, 5*ms), distributed.Options{Lease: sec})
		here, beside := quota(t, s, "changed", before), quota(t, s, "changed", before)
		there := quota(t, distributed.New(process(0, 5*ms), distributed.Options{}), "changed", before)
		cost := costOf(before, 2, 100, 1)
		first, second := acquire(t, here, cost, store.Admitted), acquire(t, here, cost, store.Admitted)
		third := acquire(t, beside, cost, store.Admitted)
		var changes []store.Change
		defer beside.Watch(func(c store.Change, _ time.Duration) { changes = append(changes, c) })()
		if err := here.(store.Lifecycle).Change(t.Context(), after); err != nil {
			t.Fatal(err)
		}
		if len(changes) != 1 || changes[0] != store.Replanned {
			t.Errorf("got changes %v, want one Replanned", changes)
		}
		acquire(t, here, cost, store.Moved)
		acquire(t, beside, cost, store.Moved)
		if next, p := there.(store.Lifecycle).Successor(); next != there || p != before {
			t.Error("got another plan in the other process, want it unchanged")
		}
		check := func(requests, tokens, calls int64) {
			t.Helper()
			time.Sleep(100 * ms)
			got := used(t, successor(here))
			if got["requests"] != requests || got["tokens"] != tokens || got["calls"] != calls {
				t.Errorf("got %v used, want %d requests, %d tokens and %d calls", got, requests, tokens, calls)
			}
		}
		check(6, 300, 3)
		time.Sleep(5 * sec) // longer than a lease
		check(6, 300, 3)
		acquire(t, successor(beside), costOf(after, 1, 1, 1), store.Later)
		here.Settle(first, cost, costOf(before, 0, 150, 0), nil)
		here.Release(first, cost)
		check(6, 350, 2)
		beside.Settle(third, cost, costOf(before, 0, 50, 0), nil)
		beside.Release(third, cost)
		check(6, 300, 1)
		here.Unanswered(second, cost)
		here.Release(second, cost)
		check(6, 300, 0)
		acquire(t, successor(beside), costOf(after, 3, 600, 3), store.Admitted)
		acquire(t, successor(here), costOf(after, 1, 0, 0), store.Later)
		check(9, 900, 3)
		for _, q := range []store.Quota{here, beside, there} {
			successor(q).Close()
		}
	})
}

// A reservation that is held, or in flight to Redis, when the plan changes is returned.
func TestChangeVoidsReservations(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		tier := throttle.Tier{Limit: 10, Window: 30 * sec}
		s := distributed.New(process(20*ms, 20*ms), distributed.Options{})
		q := quota(t, s, "changed", plan(t, 100*ms, tier))
		r := store.Request{Cost: []int64{1}, WaitSpec: &store.WaitSpec{MaxWait: hour}}
		var answers []store.Decision
		reserve := func() {
			q.(store.Reserver).Reserve(nil, []store.Request{r, r}, func(got []store.Decision, err error) {
				if err != nil {
					t.Error(err)
				}
				answers = append(answers, got...)
			})
		}
		used(t, q) // connects to the server
		reserve()
		time.Sleep(10 * ms) // the call is in flight
		tier.Limit = 5
		if err := q.(store.Lifecycle).Change(t.Context(), plan(t, 100*ms, tier)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(90 * ms)
		synctest.Wait()
		if len(answers) != 2 || answers[0].Verdict != store.Moved || answers[1].Verdict != store.Moved {
			t.Fatalf("got decisions %+v, want two Moved", answers)
		}
		if got := used(t, successor(q)); got["requests"] != 0 {
			t.Errorf("got %v charged, want no requests", got)
		}
		q = successor(q)
		time.Sleep(10 * sec) // until then, other processes may have the plan from before
		acquire(t, q, []int64{5}, store.Admitted)
		answers = nil
		time.Sleep(29 * sec) // nothing is reserved further ahead
		reserve()            // for the next window
		time.Sleep(100 * ms)
		synctest.Wait()
		if len(answers) == 0 || answers[0].Verdict != store.Admitted || answers[0].Reservation == nil {
			t.Fatalf("got decisions %+v, want a reservation", answers)
		}
		tier.Limit = 20
		if err := q.(store.Lifecycle).Change(t.Context(), plan(t, 100*ms, tier)); err != nil {
			t.Fatal(err)
		}
		if got := used(t, successor(q)); got["requests"] == 0 { // at the reserved time, in the next window
			t.Error("got no requests charged, want the reserved ones")
		}
		q.(store.Reserver).Cancel(answers)
		time.Sleep(100 * ms)
		if got := used(t, successor(q)); got["requests"] != 5 {
			t.Errorf("got %v charged, want the five requests of this window", got)
		}
		time.Sleep(2 * sec)
		if got := used(t, successor(q)); got["requests"] != 0 {
			t.Errorf("got %v charged in the next window, want no requests", got)
		}
	})
}

// A change of the plan has callers that wait ask again under the new plan.
func TestChangeReplansWaiters(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		hourly := func(limit int64) throttle.Tier { return throttle.Tier{Limit: limit, Window: hour} }
		s := distributed.New(process(0, 5*ms), distributed.Options{})
		q := quota(t, s, "changed", plan(t, 50*ms, hourly(3)))
		acquire(t, q, []int64{3}, store.Admitted)
		var changes []store.Change
		defer q.Watch(func(c store.Change, _ time.Duration) { changes = append(changes, c) })()
		acquire(t, q, []int64{1}, store.Later)
		if err := q.(store.Lifecycle).Change(t.Context(), plan(t, 50*ms, hourly(5))); err != nil {
			t.Fatal(err)
		}
		if len(changes) != 1 || changes[0] != store.Replanned {
			t.Fatalf("got changes %v, want one Replanned", changes)
		}
		acquire(t, q, []int64{1}, store.Moved)
		acquire(t, successor(q), []int64{2}, store.Admitted)
		acquire(t, successor(q), []int64{1}, store.Later)
	})
}

// Requests that were sent without Redis count after a change of the plan, too.
func TestChangeWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, closing := away()
		defer closing()
		q := quota(t, distributed.New(rdb, distributed.Options{Fallback: distributed.Fallback{Workers: 1}}), "changed",
			fleetPlan(t, 10, 1000, 4))
		cost := []int64{1, 100, 1}
		b := acquire(t, q, cost, store.Admitted)
		after := fleetPlan(t, 3, 1000, 4)
		if err := q.(store.Lifecycle).Change(t.Context(), after); err != nil {
			t.Fatal(err)
		}
		q.Settle(b, cost, cost, nil)
		q.Release(b, cost)
		if successor(q).(store.Lifecycle).Idle() {
			t.Error("got an idle quota, want it to remember what was sent")
		}
		next := successor(q)
		acquire(t, next, costOf(after, 2, 100, 1), store.Admitted)
		acquire(t, next, costOf(after, 1, 100, 1), store.Later)
	})
}

// SetPolicy keeps what Redis has charged, also if the algorithm and the window change.
func TestSetPolicyKeepsTheCharge(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		policy := func(limit int64, window time.Duration, a throttle.Algorithm) throttle.Policy {
			return throttle.Policy{Name: "changed", Tiers: []throttle.Tier{{Limit: limit, Window: window, Algorithm: a}}}
		}
		l, err := throttle.New(policy(50, hour, throttle.SlidingLog), distributed.New(process(0, 5*ms), distributed.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		charged := int64(40)
		if !l.AllowN(charged) {
			t.Fatal("got a refusal by a new quota")
		}
		for i, p := range []throttle.Policy{
			policy(60, 2*hour, throttle.GCRA), policy(100, 24*hour, throttle.SlidingWindow), policy(120, 12*hour, throttle.SlidingLog),
			policy(20_000, hour, throttle.SlidingLog), policy(20_100, 30*time.Minute, throttle.AnchoredWindow),
		} {
			time.Sleep(sec)
			if err := l.SetPolicy(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			left := p.Tiers[0].Limit - charged
			if l.AllowN(left + 1) {
				t.Errorf("policy %d: admitted %d units after %d, want a refusal", i, left+1, charged)
			}
			if !l.AllowN(left) {
				t.Errorf("policy %d: refused %d units after %d, want them admitted", i, left, charged)
			}
			charged += left
		}
	})
}

// After a change of the tier, Redis charges costs that were settled before the change and not yet
// reported, and open estimates.
func TestChangeKeepsEstimates(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		tokens := throttle.Tier{Limit: 1000, Window: time.Minute, Unit: "tokens", Estimated: true}
		s := distributed.New(process(20*ms, 20*ms), distributed.Options{Lease: sec})
		q := quota(t, s, "changed", plan(t, 50*ms, tokens))
		cost := []int64{100}
		settled := acquire(t, q, cost, store.Admitted)
		open := acquire(t, q, cost, store.Admitted)
		early := acquire(t, q, cost, store.Admitted)
		q.Settle(early, cost, []int64{70}, nil)
		time.Sleep(5 * sec)
		q.Settle(settled, cost, []int64{250}, nil)
		tokens.Limit, tokens.Window, tokens.Algorithm = 2000, hour, throttle.GCRA
		if err := q.(store.Lifecycle).Change(t.Context(), plan(t, 50*ms, tokens)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * sec)
		if got := used(t, successor(q))["tokens"]; got < 410 || got > 420 { // 5 s drain 2.8
			t.Errorf("got %d tokens used, want 70 + 250 + 100, less what has drained", got)
		}
		q.Settle(open, cost, []int64{0}, nil)
		time.Sleep(sec)
		if got := used(t, successor(q))["tokens"]; got < 310 || got > 320 {
			t.Errorf("got %d tokens used, want 70 + 250, less what has drained", got)
		}
		successor(q).Close()
	})
}

// An estimate that is open while its unit is not estimated for a while becomes the cost of its
// request, also if Redis never receives a call under the plan between.
func TestChangeEstimatesBetween(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		tokens := throttle.Tier{Limit: 1000, Window: time.Minute, Unit: "tokens", Estimated: true}
		calls := throttle.Tier{Limit: 10, Algorithm: throttle.Concurrency, Unit: "calls"}
		with := plan(t, 50*ms, tokens, calls)
		tokens.Estimated = false
		without := plan(t, 50*ms, tokens, calls)
		for _, called := range []bool{false, true} {
			s := distributed.New(process(0, 5*ms), distributed.Options{Lease: sec})
			first := quota(t, s, "between "+strconv.FormatBool(called), with)
			cost := costOf(with, 0, 100, 1)
			open := acquire(t, first, cost, store.Admitted)
			for _, p := range []*algorithms.Plan{without, with} {
				if err := first.(store.Lifecycle).Change(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				if successor(first); called {
					used(t, first)
				}
			}
			check := func(tokens, calls int64) {
				t.Helper()
				if got := used(t, successor(first)); got["tokens"] != tokens || got["calls"] != calls {
					t.Errorf("called %v: got %v used, want %d tokens and %d calls", called, got, tokens, calls)
				}
			}
			check(100, 1)
			other := acquire(t, successor(first), costOf(with, 0, 300, 1), store.Admitted)
			first.Settle(open, cost, costOf(with, 0, 70, 0), nil)
			first.Release(open, cost)
			time.Sleep(5 * sec) // longer than a lease
			check(400, 1)
			time.Sleep(time.Minute)
			check(300, 1) // the request in flight still counts
			next := successor(first)
			next.Settle(other, costOf(with, 0, 300, 1), costOf(with, 0, 200, 0), nil)
			next.Release(other, costOf(with, 0, 300, 1))
			time.Sleep(sec)
			check(200, 0)
			time.Sleep(time.Minute)
			check(0, 0)
			next.Close()
		}
	})
}

// Two releases, of which one estimates a unit, count what is in flight of both. A process that
// ceases to estimate it counts its open estimates until they have landed.
func TestReleasesCountEstimates(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		tokens := throttle.Tier{Limit: 1000, Window: time.Minute, Unit: "tokens"}
		without := plan(t, 50*ms, tokens)
		tokens.Estimated = true
		with := plan(t, 50*ms, tokens)
		here := quota(t, distributed.New(process(0, 5*ms), distributed.Options{Lease: sec}), "both", without)
		there := quota(t, distributed.New(process(0, 5*ms), distributed.Options{Lease: sec}), "both", with)
		check := func(want int64) {
			t.Helper()
			for _, q := range []store.Quota{here, there, here} {
				if got := used(t, q)["tokens"]; got != want {
					t.Errorf("got %d tokens used, want %d", got, want)
				}
			}
		}
		acquire(t, here, []int64{100}, store.Admitted)
		first, second := acquire(t, there, []int64{300}, store.Admitted), acquire(t, there, []int64{400}, store.Admitted)
		check(800)
		acquire(t, here, []int64{201}, store.Later)
		time.Sleep(70 * sec)
		check(700)
		there.Settle(first, []int64{300}, []int64{50}, nil)
		time.Sleep(100 * ms)
		check(450)
		if err := there.(store.Lifecycle).Change(t.Context(), without); err != nil {
			t.Fatal(err)
		}
		next := successor(there)
		there.Settle(second, []int64{400}, []int64{0}, nil)
		if got := used(t, next)["tokens"]; got != 450 {
			t.Errorf("got %d tokens used, want 450", got)
		}
		time.Sleep(50 * sec)
		if got := used(t, next)["tokens"]; got != 450 {
			t.Errorf("got %d tokens used, want 450", got)
		}
		time.Sleep(70 * sec)
		if got := used(t, next)["tokens"]; got != 0 {
			t.Errorf("got %d tokens used, want none", got)
		}
		next.Close()
	})
}

// A caller that asks Redis while the policy changes keeps its place before those who come later.
func TestChangeBeforeTheReply(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		jobs := throttle.Policy{Name: "changed", Tiers: []throttle.Tier{{Limit: 1, Window: sec, Unit: "jobs"}}}
		l := limiter(t, jobs, distributed.New(near(t, s), distributed.Options{}))
		var admitted []int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() { // the first costs nothing yet, so it asks by itself
				p, err := l.Acquire(t.Context(), throttle.Cost{"requests": 1})
				if err != nil {
					t.Error(err)
				}
				p.Release()
				mu.Lock()
				defer mu.Unlock()
				admitted = append(admitted, i)
			})
			if time.Sleep(time.Microsecond); i == 0 {
				requests := jobs
				requests.Tiers = append(requests.Tiers[:1:1], per(sec, 1, throttle.SlidingLog))
				if err := l.SetPolicy(t.Context(), requests); err != nil {
					t.Fatal(err)
				}
			}
		}
		wg.Wait()
		if !slices.Equal(admitted, []int{0, 1}) {
			t.Errorf("admitted in the order %v, want 0 and 1", admitted)
		}
	})
}

// TestWaitsShareCallsAfterChange checks that callers that wait together share calls, also after another
// Limiter of the quota has changed the policy.
func TestWaitsShareCallsAfterChange(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		rdb, counter := near(t, s), new(calls.Counter)
		rdb.AddHook(counter)
		redis := distributed.New(rdb, distributed.Options{})
		p := throttle.Policy{Name: "x", Tiers: []throttle.Tier{per(sec, 1000, throttle.SlidingLog)}}
		l, other := limiter(t, p, redis), limiter(t, p, redis)
		p.Tiers[0].Limit = 2000
		if err := other.SetPolicy(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := l.Wait(t.Context()); err != nil { // it adopts the policy
			t.Fatal(err)
		}
		before := counter.Count()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if err := l.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := counter.Count() - before; n > 10 {
			t.Errorf("100 callers make %d calls, want 10 at most", n)
		}
	})
}
