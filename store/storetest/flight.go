package storetest

import (
	"math/rand/v2"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// window is the window of tiers in parts that wait for it to pass.
const window = time.Second

// inFlight returns the guard of parts that wait for it to pass, and the resolution in which a store
// may keep it. In real time the guard is longer than any call of a store takes.
func (c Config) inFlight() (guard, resolution time.Duration) {
	guard = 640 * time.Millisecond
	if c.RealTime {
		guard = 3 * time.Second
	}
	return guard, guard / 16
}

// shortest returns the guard of parts that need none. In real time a reservation must outlast the
// store's reply.
func (c Config) shortest() time.Duration {
	if c.RealTime {
		guard, _ := c.inFlight()
		return guard
	}
	return 0
}

// A request's window begins with its response, not before.
func arrived(c *check) {
	inFlight, resolution := c.inFlight()
	q := c.open("arrived", c.plan(inFlight, algorithms.Tier{Limit: 1, Window: window}))
	began := time.Now()
	d := c.admit(q, held(1))
	time.Sleep(inFlight / 2)
	response := time.Since(began)
	arrive(q, d, 1)
	least, most := response+window, response+window
	if c.LandsWithGuard {
		most = inFlight + window + resolution
	}
	if c.RealTime {
		least = window
	}
	c.checkNext(q, began, least, most)
}

// A request without a response lands when its guard interval ends, not before.
func unanswered(c *check) {
	inFlight, resolution := c.inFlight()
	q := c.open("unanswered", c.plan(inFlight, algorithms.Tier{Limit: 1, Window: window}))
	began := time.Now()
	d := c.admit(q, held(1))
	lose(q, d, 1)
	c.waitLag()
	c.eventuallyUsed(q, "without a response", 1)
	c.checkNext(q, began, inFlight+window, inFlight+window+resolution)
}

// A request that is not held lands when its guard interval ends. It may have its own guard.
func guard(c *check) {
	inFlight, resolution := c.inFlight()
	for i, own := range []time.Duration{0, 2 * inFlight} {
		q := c.open([]string{"guard", "own guard"}[i], c.plan(inFlight, algorithms.Tier{Limit: 1, Window: window}))
		began := time.Now()
		c.admit(q, store.Request{Cost: []int64{1}, Guard: own})
		g := max(own, inFlight)
		c.checkNext(q, began, g+window, g+window+resolution)
	}
}

// A request that was never sent is refunded in full. Other requests stay charged.
func returned(c *check) {
	tiers := []algorithms.Tier{perHour(10), {Limit: 100, Window: time.Hour, Unit: "tokens"}}
	for _, a := range all() {
		if c.keeps(a) && a != algorithms.Concurrency {
			tiers = append(tiers, c.tier(a, 10))
		}
	}
	q := c.open("returned", c.plan(time.Minute, tiers...))
	want := func(requests, tokens int64) (used []int64) {
		for range tiers {
			used = append(used, requests)
		}
		used[1] = tokens
		return used
	}
	a, b := c.admit(q, held(3, 30)), c.admit(q, held(7, 70))
	c.refuse(q, held(1, 1), store.Later)
	c.refund(q, a, 3, 30)
	c.eventuallyUsed(q, "after one of two requests was returned", want(7, 70)...)
	c.waitLag()
	c.eventuallyUsed(q, "some time after one of two requests was returned", want(7, 70)...)
	a = c.admit(q, held(3, 30))
	c.refuse(q, held(1, 1), store.Later)
	c.refund(q, b, 7, 70)
	c.refund(q, a, 3, 30)
	c.eventuallyUsed(q, "after all requests were returned", want(0, 0)...)
	c.admit(q, held(10, 100))
}

// A request that is returned after its guard interval stays charged. Its permits of a concurrency
// tier are freed.
func returnedLate(c *check) {
	inFlight, _ := c.inFlight()
	tiers := c.withConcurrency(3, perHour(10))
	q := c.open("late", c.plan(inFlight, tiers...))
	d := c.admit(q, held(3))
	time.Sleep(2 * inFlight)
	c.refund(q, d, 3)
	c.waitLag()
	c.eventuallyUsed(q, "after a return that came after the guard interval", []int64{3, 0}[:len(tiers)]...)
}

// All permits of a concurrency tier are freed exactly once, however a request ends.
func release(c *check) {
	const limit = 10
	q := c.open("release", c.plan(max(20*time.Millisecond, c.shortest()),
		algorithms.Tier{Limit: limit, Algorithm: algorithms.Concurrency}, algorithms.Tier{Limit: 1_000_000, Window: time.Hour}))
	type permit struct {
		store.Decision
		cost []int64
	}
	var open []permit
	var sum int64
	r := rand.New(rand.NewPCG(1, 2))
	end := func(i int) {
		p := open[i]
		open = append(open[:i], open[i+1:]...)
		sum -= p.cost[0]
		switch r.IntN(3) {
		case 0:
			arrive(q, p.Decision, p.cost...)
		case 1:
			lose(q, p.Decision, p.cost...)
		default:
			c.refund(q, p.Decision, p.cost...)
		}
	}
	for range 200 {
		if n := 1 + r.Int64N(4); sum+n <= limit {
			var d store.Decision
			c.eventually(func() bool {
				d = c.try(q, held(n))
				return d.Verdict == store.Admitted
			}, func() { c.Fatalf("%+v of a cost of %d with %d of %d permits held", d, n, sum, limit) })
			open, sum = append(open, permit{d, []int64{n}}), sum+n
		} else if d := c.try(q, held(n)); d.Verdict == store.Admitted {
			c.Fatalf("a cost of %d was admitted with %d of %d permits held", n, sum, limit)
		}
		if len(open) > 0 && r.IntN(2) == 0 {
			end(r.IntN(len(open)))
		}
		time.Sleep(time.Millisecond)
	}
	for len(open) > 0 {
		end(0)
	}
	c.eventually(func() bool { return c.used(q)[0] == 0 }, func() { c.Errorf("%d permits are held at the end", c.used(q)[0]) })
	c.admit(q, held(limit))
}

// estimates returns a tier of requests and an Estimated tier of tokens.
func estimates() []algorithms.Tier {
	return []algorithms.Tier{perHour(10), {Limit: 100, Window: time.Hour, Unit: "tokens", Estimated: true}}
}

// The actual cost of a request replaces its estimate, whether it is less or more.
func settle(c *check) {
	for i, actual := range []int64{20, 60, 0, 95} {
		q := c.open([]string{"less", "equal", "nothing", "more"}[i], c.plan(time.Minute, estimates()...))
		d := c.admit(q, held(1, 60))
		c.refuse(q, held(1, 41), store.Later)
		q.Arrived(d, []int64{1, 60})
		q.Settle(d, []int64{1, 60}, []int64{1, actual}, nil)
		q.Release(d, []int64{1, 60})
		c.eventuallyUsed(q, "when the request is settled", 1, actual)
		c.refuse(q, held(1, 101-actual), store.Later)
		if actual < 100 {
			c.admit(q, held(1, 100-actual))
		}
	}
}

// Without a response the estimate stays charged.
func settleUnanswered(c *check) {
	inFlight, resolution := c.inFlight()
	q := c.open("estimate", c.plan(inFlight, algorithms.Tier{Limit: 100, Window: window, Unit: "tokens", Estimated: true}))
	began := time.Now()
	d := c.admit(q, held(100))
	lose(q, d, 100)
	c.checkNext(q, began, inFlight+window, inFlight+window+resolution)
}
