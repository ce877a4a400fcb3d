package storetest

import (
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// Openers of the same key share a quota. Another key has a quota of its own.
func open(c *check) {
	p := c.plan(time.Minute, perHour(5))
	a, again, b := c.open("a", p), c.open("a", p), c.open("b", p)
	c.admit(a, held(2))
	c.admit(again, held(2))
	for _, q := range []store.Quota{a, again} {
		if used := c.used(q); used[0] != 4 {
			c.Errorf("%d units are used of the key that was charged 4", used[0])
		}
	}
	if used := c.used(b); used[0] != 0 {
		c.Errorf("%d units are used of another key", used[0])
	}
	c.refuse(a, held(2), store.Later)
	c.admit(b, held(5))
}

// Open refuses tiers that the store does not keep.
func refuse(c *check) {
	var tiers []algorithms.Tier
	for _, a := range c.Without {
		tiers = append(tiers, c.tier(a, 1))
	}
	if c.NoEstimates {
		tiers = append(tiers, algorithms.Tier{Limit: 1, Window: time.Hour, Unit: "tokens", Estimated: true})
	}
	for _, t := range tiers {
		if q, err := c.store.Open("refused", c.plan(0, t), nil); err == nil || q != nil {
			c.Errorf("Open of tier %v = %v, %v, want an error", t, q, err)
		}
	}
}

// Every algorithm admits its limit, and then no more.
func tryAcquire(c *check) {
	for _, a := range all() {
		if !c.keeps(a) {
			continue
		}
		q := c.open(a.String(), c.plan(time.Minute, c.tier(a, 5)))
		for i, n := range []int64{2, 1, 1, 1} {
			d := c.admit(q, held(n))
			if d.Probe || d.Wait != 0 {
				c.Errorf("%v: request %d: %+v", a, i, d)
			}
		}
		if d := c.refuse(q, held(1), store.Later); d.Tier != 0 {
			c.Errorf("%v: %+v, want tier 0 to decide", a, d)
		}
		s := c.status(q).Tiers[0]
		if s.Used != 5 || s.Remaining != 0 || !s.Limited || s.Limit != 5 || s.RetryAfter <= 0 {
			c.Errorf("%v: %+v", a, s)
		}
		other := c.open(a.String()+" at once", c.plan(0, c.tier(a, 5)))
		c.admit(other, held(5))
		c.refuse(other, held(1), store.Later)
	}
}

// All tiers decide at once, and a refusal charges none of them.
func refusal(c *check) {
	tiers := c.withConcurrency(6, perHour(10), algorithms.Tier{Limit: 100, Window: time.Hour, Unit: "tokens"}, algorithms.Tier{Limit: 8, Window: 2 * time.Hour})
	q := c.open("refusal", c.plan(time.Minute, tiers...))
	steps := []struct {
		cost []int64
		tier int // the tier that refuses, -1 if none does
	}{
		{[]int64{2, 60}, -1},
		{[]int64{1, 41}, 1},
		{[]int64{1, 40}, -1},
		{[]int64{1, 1}, 1},
		{[]int64{1, 0}, -1},
		{[]int64{1, 0}, -1},
		{[]int64{1, 0}, -1},
		{[]int64{3, 0}, 2},
	}
	if c.keeps(algorithms.Concurrency) {
		steps[len(steps)-1].cost[0], steps[len(steps)-1].tier = 2, 3
	}
	sums := []int64{0, 0}
	for i, step := range steps {
		d := c.try(q, held(step.cost...))
		if step.tier < 0 {
			sums[0] += step.cost[0]
			sums[1] += step.cost[1]
		}
		if admitted := d.Verdict == store.Admitted; admitted != (step.tier < 0) || d.Tier != step.tier {
			c.Errorf("step %d: cost %v: %+v, want tier %d to decide", i, step.cost, d, step.tier)
		}
		c.waitLag()
		want := []int64{sums[0], sums[1], sums[0], sums[0]}[:len(tiers)]
		if got := c.used(q); !slices.Equal(got, want) {
			c.Errorf("step %d: cost %v: the tiers have used %v, want %v", i, step.cost, got, want)
		}
	}
}

// A dry run reports whether the request would be admitted, and charges nothing.
func dryRun(c *check) {
	q := c.open("dry", c.plan(time.Minute, perHour(5)))
	dry := func(n int64) store.Decision {
		return c.try(q, store.Request{Cost: []int64{n}, Held: true, WaitSpec: &store.WaitSpec{DryRun: true}})
	}
	for range 10 {
		if d := dry(5); d.Verdict != store.Ready {
			c.Fatalf("%+v of a fresh quota, want Ready", d)
		}
	}
	c.admit(q, held(3))
	if d := dry(2); d.Verdict != store.Ready {
		c.Errorf("%+v of a cost that fits, want Ready", d)
	}
	if d := dry(3); d.Verdict == store.Ready || d.Verdict == store.Admitted {
		c.Errorf("%+v of a cost that does not fit", d)
	}
	c.waitLag()
	c.eventuallyUsed(q, "after dry runs", 3)
	c.admit(q, held(2))
	c.resume(q)
	c.applyPause(q, store.Pause{For: time.Hour}, true)
	if d := dry(1); d.Verdict == store.Ready || d.Verdict == store.Admitted {
		c.Errorf("%+v in a pause", d)
	}
}

// A request that leaves headroom is admitted only where every tier can admit its cost and the
// headroom. Only its cost is charged.
func headroom(c *check) {
	q := c.open("headroom", c.plan(time.Minute, perHour(10)))
	yields := held(1)
	yields.WaitSpec = &store.WaitSpec{MaxWait: store.Forever, YieldFor: time.Hour, Headroom: 20}
	for range 8 {
		c.admit(q, yields)
	}
	c.refuse(q, yields, store.Later)
	yields.DryRun = true
	if d := c.try(q, yields); d.Verdict == store.Ready || d.Verdict == store.Admitted {
		c.Errorf("%+v of a request that leaves too little headroom", d)
	}
	c.eventuallyUsed(q, "with headroom left", 8)
	c.admit(q, held(2))
}

// A budget that is used up refuses at once, with the verdict Exhausted.
func budget(c *check) {
	b := perHour(5)
	b.Budget = true
	q := c.open("budget", c.plan(time.Minute, perHour(10), b))
	c.admit(q, held(4))
	if d := c.refuse(q, held(2), store.Exhausted); d.Tier != 1 {
		c.Errorf("%+v, want tier 1 to decide", d)
	}
	c.eventuallyUsed(q, "after the refusal", 4, 4)
	c.admit(q, held(1))
	c.refuse(q, held(1), store.Exhausted)
}

// The limit holds for concurrent requests through several openers.
func concurrent(c *check) {
	const limit = 50
	p := c.plan(time.Minute, perHour(limit))
	var mu sync.Mutex
	var admitted int64
	var wg sync.WaitGroup
	for i := range 4 {
		q := c.open("concurrent", p)
		wg.Go(func() {
			for range 40 {
				d, err := q.TryAcquire(c.Context(), held(1))
				if err != nil {
					c.Error(err)
					return
				}
				if d.Verdict != store.Admitted {
					continue
				}
				if i%2 == 0 {
					_ = q.Return(c.Context(), d, []int64{1})
					continue
				}
				mu.Lock()
				admitted++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if admitted > limit {
		c.Errorf("%d were admitted of %d", admitted, limit)
	}
	c.eventuallyUsed(c.open("concurrent", p), "when all are done", admitted)
}
