package storetest

import (
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// learning returns a tier that learns its rate, with room for a number of requests at once.
func learning(limit, burst int64, window time.Duration) algorithms.Tier {
	return algorithms.Tier{Limit: limit, Window: window, Algorithm: algorithms.GCRA, Burst: burst, Learn: algorithms.Learn{Least: 1, Most: 100 * limit}}
}

// refusedBy returns a pause because of the refusal of a request of one unit.
func refusedBy(d store.Decision, p store.Pause) store.Pause {
	p.Refused = &store.Refused{At: d.At, Cost: []int64{1}}
	return p
}

// later is so long after a decrease of a rate that a refusal is not its consequence.
const later = 2 * time.Second

// A refusal decreases the rate of the tiers that learn it. The refusals of requests that were admitted before
// it are part of it, and those while a back-off goes on teach nothing.
func refused(c *check) {
	other := perHour(1000)
	other.Unit = "other"
	p := c.plan(c.shortest(), learning(600, 50, time.Minute), other)
	q, also := c.open("refused", p), c.open("refused", p)
	first := c.rate(q, "before a refusal")
	if first.Rate != 600 || first.Refused != 0 || c.status(q).Tiers[1].Learned != nil {
		c.Errorf("before a refusal the tiers know %+v, %+v", first, c.status(q).Tiers[1].Learned)
	}
	some := []store.Decision{c.admit(q, held(1, 1)), c.admit(also, held(1, 1)), c.admit(q, held(1, 1))}
	refuse := func(d store.Decision, p store.Pause, cost ...int64) {
		c.Helper()
		time.Sleep(time.Millisecond) // the response takes some time
		p.Refused = &store.Refused{At: d.At, Cost: cost}
		c.applyPause(q, p, true)
	}
	refuse(some[0], store.Pause{For: 10 * time.Minute}, 0, 1)
	c.checkLike(q, "after the refusal of another unit", first)
	refuse(some[0], store.Pause{For: 20 * time.Minute}, 1, 0)
	less := c.checkLess(q, "after a refusal", first)
	c.checkLike(also, "after a refusal that another opener reported", less)
	refuse(some[1], store.Pause{For: 30 * time.Minute}, 1, 1)
	refuse(some[2], store.Pause{For: 40 * time.Minute}, 1, 0)
	c.checkLike(also, "after the refusals of requests that were admitted before", less)

	next := func() store.Decision {
		c.Helper()
		c.resume(q)
		time.Sleep(later)
		d := c.await(q, held(1, 0), time.Minute)
		if d.Verdict != store.Admitted {
			c.Fatalf("%+v", d)
		}
		return d
	}
	refuse(next(), store.Pause{For: time.Minute}, 1, 0)
	less = c.checkLess(q, "after another refusal", less)

	d := next()
	backsOff := store.Pause{For: time.Hour, Most: 3 * time.Hour}
	c.applyPause(q, backsOff, true)
	refuse(d, backsOff, 1, 0)
	c.checkLike(q, "after a refusal while a back-off goes on", less)
}

// A back-off is void if the tiers tolerate the refusal that causes it: they have learned that some requests are refused at
// any rate.
func tolerated(c *check) {
	q := c.open("tolerated", c.plan(c.shortest(), learning(10, 1, time.Second)))
	next := func() store.Decision {
		c.Helper()
		d := c.await(q, held(1), 10*time.Minute)
		if d.Verdict != store.Admitted {
			c.Fatalf("%+v", d)
		}
		return d
	}
	for range 50 {
		for range 40 { // as many as show that the rate is not the reason
			next()
		}
		d := next()
		time.Sleep(time.Millisecond)
		before := c.rate(q, "before a refusal")
		p := refusedBy(d, store.Pause{For: time.Hour, Most: 3 * time.Hour, Once: true, Epoch: d.Epoch})
		done, err := q.Pause(c.Context(), p)
		if err != nil {
			c.Fatalf("Pause(%+v): %v", p, err)
		}
		if after := c.rate(q, "after a refusal"); after.Refused == before.Refused && !done.Applied {
			d = next()
			c.applyPause(q, refusedBy(d, store.Pause{For: time.Hour}), true) // a pause that the provider asks for
			return
		}
		c.resume(q)
	}
	c.Error("no refusal is tolerated, although a part of the requests is refused at any rate")
}

// Forget makes the tiers that learn their rate start again, for all openers.
func forget(c *check) {
	p := c.plan(c.shortest(), learning(600, 50, time.Minute))
	q, also := c.open("forget", p), c.open("forget", p)
	first := c.rate(q, "before a refusal")
	d := c.admit(q, held(1))
	time.Sleep(time.Millisecond)
	c.applyPause(q, refusedBy(d, store.Pause{For: time.Minute}), true)
	c.checkLess(q, "after a refusal", first)
	if err := also.(store.Feedback).Forget(c.Context()); err != nil {
		c.Fatalf("Forget: %v", err)
	}
	c.checkLike(q, "after Forget", first)
	if s := c.status(also); s.Paused <= 0 {
		c.Error("Forget has ended a pause")
	}
}

// A plan that has taken over limits from responses replaces its base for all openers, and for those that come with the base.
func follow(c *check) {
	tier := perHour(10)
	tier.Follow = algorithms.Follow{Least: 2, Most: 20}
	base := c.plan(time.Minute, tier)
	q, also := c.open("follow", base), c.open("follow", base)
	d := c.admit(q, held(3))
	received := c.watch(also)
	follows := func(limit int64, at int64) store.Quota {
		c.Helper()
		c.changeTo(q, base.Following(algorithms.Followed{At: at, Limits: []int64{limit}}))
		for _, of := range []store.Quota{q, also} {
			next, p := of.(store.Lifecycle).Successor()
			if !p.Base().Equal(base) || p.Followed().At != at || p.Tiers()[0].Limit != limit {
				c.Fatalf("the successor is under %v, want limit %d", p.Tiers(), limit)
			}
			q = next
		}
		return q
	}
	first := q
	q = follows(4, d.At)
	if got := c.try(first, held(1)); got.Verdict != store.Moved {
		c.Errorf("%+v of a quota that has a successor, want Moved", got)
	}
	received.eventually("a limit that was taken over", store.Replanned)
	if !c.LandsWithGuard {
		first.Arrived(d, []int64{3})
		c.eventually(func() bool { return c.status(q).Tiers[0].InFlight == 0 }, func() { c.Error("a request stays in flight whose response came after a change of limits") })
	}
	c.eventuallyUsed(q, "under the lower limit", 3)
	c.refuse(q, held(2), store.Later)
	c.admit(q, held(1))
	third := c.open("follow", c.plan(time.Minute, tier))
	next, p := third.(store.Lifecycle).Successor()
	if p.Tiers()[0].Limit != 4 {
		c.Errorf("another opener of the base is under %v, want limit 4", p.Tiers())
	}
	c.refuse(next, held(1), store.Later)

	c.changeTo(q, base.Following(algorithms.Followed{At: d.At - 1, Limits: []int64{20}}))
	if _, p := q.(store.Lifecycle).Successor(); p.Tiers()[0].Limit != 4 {
		c.Errorf("the successor is under %v after an older response, want limit 4", p.Tiers())
	}
	q = follows(12, d.At+1)
	c.eventuallyUsed(q, "under the higher limit", 4)
	c.admit(q, held(8))
	c.refuse(q, held(1), store.Later)
}
