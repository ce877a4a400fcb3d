package local_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

func counter(t *testing.T, tier algorithms.Tier) *throttletest.Counter {
	t.Helper()
	c, err := throttletest.NewCounter(tier)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A policy whose limit alternates never admits more than the larger limit. After a change it admits
// no more than the new limit.
func TestChangeKeepsBothLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(200) {
			g := rand.New(rand.NewPCG(seed, 1))
			var tiers [2]algorithms.Tier
			var plans [2]*algorithms.Plan
			guard := time.Duration(seed%3) * 20 * time.Millisecond
			for i := range tiers {
				tiers[i] = algorithms.Tier{Limit: 1 + g.Int64N(20), Window: time.Second, Algorithm: algorithms.Algorithm(seed % uint64(algorithms.Concurrency))}
				p, err := algorithms.NewPlan(tiers[i:i+1], guard)
				if err != nil {
					t.Fatal(err)
				}
				plans[i] = p
			}
			larger := tiers[0]
			larger.Limit = max(larger.Limit, tiers[1].Limit)
			all, since := counter(t, larger), counter(t, tiers[0])
			q, err := local.New().Open("", plans[0], nil)
			if err != nil {
				t.Fatal(err)
			}
			for range 300 {
				if i := g.IntN(20); i < 2 {
					if err := q.(store.Lifecycle).Change(t.Context(), plans[i]); err != nil {
						t.Fatal(err)
					}
					q, _ = q.(store.Lifecycle).Successor()
					since = counter(t, tiers[i])
				}
				r := store.Request{Cost: []int64{1}, Held: true}
				b, err := q.TryAcquire(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				if b.Verdict == store.Admitted {
					if g.IntN(2) == 0 {
						q.Arrived(b, r.Cost)
					}
					// An anchored window that is open at the change stays open.
					anchored := larger.Algorithm == algorithms.AnchoredWindow
					if now := time.Now().UnixMicro(); !all.Arrive(now, nil) || !since.Arrive(now, nil) && !anchored {
						t.Fatalf("seed %d: %v, limits %d and %d: the provider refuses", seed, larger.Algorithm, tiers[0].Limit, tiers[1].Limit)
					}
				}
				time.Sleep(time.Duration(g.Int64N(60_000)) * time.Microsecond)
			}
		}
	})
}

// A policy that begins or ceases to estimate a unit never admits more than the limit. Requests may
// be in flight across changes, and at last nothing is.
func TestChangeEstimates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(200) {
			g := rand.New(rand.NewPCG(seed, 1))
			checkChangeEstimates(t, g, algorithms.Tier{
				Limit: 1 + g.Int64N(8), Window: time.Second, Unit: "tokens", Algorithm: algorithms.Algorithm(seed % uint64(algorithms.Concurrency)),
			})
		}
	})
}

func checkChangeEstimates(t *testing.T, g *rand.Rand, tier algorithms.Tier) {
	const guard = 50 * time.Millisecond
	var plans [2]*algorithms.Plan
	for i := range plans {
		tier.Estimated = i == 1
		p, err := algorithms.NewPlan([]algorithms.Tier{tier}, guard)
		if err != nil {
			t.Fatal(err)
		}
		plans[i] = p
	}
	provider := counter(t, tier)
	first, err := local.New().Open("", plans[g.IntN(2)], nil)
	if err != nil {
		t.Fatal(err)
	}
	q, plan := first.(store.Lifecycle).Successor()
	type request struct {
		quota     store.Quota
		decision  store.Decision
		estimated bool
		latest    time.Time // of its arrival, if it is not estimated
		arrived   bool
	}
	var open []*request
	arrive := func(r *request) {
		if r.arrived {
			return
		}
		r.arrived = true
		if !provider.Arrive(time.Now().UnixMicro(), map[string]int64{"tokens": 1}) {
			t.Fatalf("%v: the provider refuses", tier)
		}
	}
	end := func(r *request) {
		cost := []int64{1}
		switch g.IntN(4) {
		case 0:
			if !r.arrived {
				if err := r.quota.Return(t.Context(), r.decision, cost); err != nil {
					t.Fatal(err)
				}
				return
			}
			fallthrough
		case 1:
			arrive(r)
			r.quota.Unanswered(r.decision, cost)
		default:
			arrive(r)
			r.quota.Arrived(r.decision, cost)
			if r.estimated {
				r.quota.Settle(r.decision, cost, cost, nil)
			}
		}
	}
	for range 300 {
		switch i := g.IntN(20); {
		case i == 0:
			next := plans[g.IntN(2)]
			if err := q.(store.Lifecycle).Change(t.Context(), next); err != nil {
				t.Fatal(err)
			}
			q, plan = q.(store.Lifecycle).Successor()
			for _, r := range open {
				if !plan.Estimated(0) && r.latest.IsZero() {
					r.latest = time.Now().Add(guard)
				}
			}
		case i < 8 && len(open) > 0:
			n := g.IntN(len(open))
			end(open[n])
			open = append(open[:n], open[n+1:]...)
		default:
			d, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{1}, Held: true})
			if err != nil {
				t.Fatal(err)
			}
			if d.Verdict == store.Admitted {
				r := &request{quota: q, decision: d, estimated: plan.Estimated(0)}
				if !r.estimated {
					r.latest = time.Now().Add(guard)
				}
				open = append(open, r)
			}
		}
		step := time.Duration(g.Int64N(60_000)) * time.Microsecond
		for range 4 { // requests arrive meanwhile
			time.Sleep(step / 4)
			for _, r := range open {
				if !r.latest.IsZero() && time.Until(r.latest) <= step/4 || g.IntN(20) == 0 {
					arrive(r)
				}
			}
		}
	}
	for _, r := range open {
		end(r)
	}
	time.Sleep(3 * time.Second)
	s, err := q.Status(t.Context())
	if err != nil || s.Tiers[0].Used != 0 {
		t.Fatalf("%v: got %+v, %v at last, want nothing used", tier, s.Tiers, err)
	}
}

// A request that was admitted before its unit had a Concurrency tier frees no place of others.
func TestChangeToConcurrency(t *testing.T) {
	perHour := algorithms.Tier{Limit: 10, Window: time.Hour, Unit: "calls"}
	before, err := algorithms.NewPlan([]algorithms.Tier{perHour}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	after, err := algorithms.NewPlan([]algorithms.Tier{perHour, {Limit: 1, Unit: "calls", Algorithm: algorithms.Concurrency}}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	q, err := local.New().Open("", before, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := store.Request{Cost: []int64{1}, Held: true}
	old, err := q.TryAcquire(t.Context(), r)
	if err != nil || old.Verdict != store.Admitted {
		t.Fatalf("got %+v, %v, want it admitted", old, err)
	}
	if err := q.(store.Lifecycle).Change(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	next, _ := q.(store.Lifecycle).Successor()
	if d, err := next.TryAcquire(t.Context(), r); err != nil || d.Verdict != store.Admitted {
		t.Fatalf("got %+v, %v, want it admitted", d, err)
	}
	if err := q.Return(t.Context(), old, r.Cost); err != nil {
		t.Fatal(err)
	}
	if d, err := next.TryAcquire(t.Context(), r); err != nil || d.Verdict != store.Later {
		t.Fatalf("got %+v, %v while the only place is taken, want Later", d, err)
	}
}

// A Store with Replan lets the next opener of a key bring another plan, for all openers. What is
// charged stays charged.
func TestReplan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := func(limit int64) *algorithms.Plan {
			p, err := algorithms.NewPlan([]algorithms.Tier{algorithms.PerHour(limit)}, 0)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		admitted := func(q store.Quota) (n int) {
			for ; ; n++ {
				d, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{1}})
				if err != nil {
					t.Fatal(err)
				}
				if d.Verdict != store.Admitted {
					return n
				}
			}
		}
		quotas := &local.Store{Replan: true}
		first, err := quotas.Open("key", plan(5), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := admitted(first); n != 5 {
			t.Errorf("%d of 5 admitted", n)
		}
		var changes []store.Change
		defer first.Watch(func(c store.Change, _ time.Duration) {
			first.(store.Lifecycle).Successor() // as a limiter does: no lock is held
			changes = append(changes, c)
		})()
		second, err := quotas.Open("key", plan(8), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(changes) != 1 || changes[0] != store.Replanned {
			t.Errorf("the first opener's watcher received %v", changes)
		}
		if n := admitted(second); n != 3 {
			t.Errorf("%d admitted after the change from 5 to 8, want 3", n)
		}
		if newest, p := first.(store.Lifecycle).Successor(); newest != second || !p.Equal(plan(8)) {
			t.Error("the first opener's successor is not the second's quota")
		}
		third, err := quotas.Open("key", plan(6), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := admitted(third); n != 0 {
			t.Errorf("%d admitted after the change from 8 to 6, want none", n)
		}
	})
}
