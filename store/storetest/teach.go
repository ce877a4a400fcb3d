package storetest

import (
	"math"
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

// checkRate checks what a tier knows of its rate.
func (c *check) checkRate(q store.Quota, what string, rate, refused float64) {
	c.Helper()
	var got *store.Learned
	near := func(a, b float64) bool { return math.Abs(a-b) <= b/1000 }
	c.eventually(func() bool {
		got = c.status(q).Tiers[0].Learned
		return got != nil && near(got.Rate, rate) && near(got.Refused, refused)
	}, func() { c.Errorf("%s: the tier knows %+v, want rate %v and refused %v", what, got, rate, refused) })
	if got == nil {
		return
	}
	if got.Ago < 0 || got.Ago > time.Hour || refused == 0 && got.Ago != 0 || got.Next < got.Rate || got.Noise < 0 || got.Noise > 1 {
		c.Errorf("%s: the tier knows %+v", what, got)
	}
}

// A refusal decreases the rate of the tiers that learn it. The refusals of requests that were admitted before
// it are part of it, and those while a back-off goes on teach nothing.
func refused(c *check) {
	other := perHour(1000)
	other.Unit = "other"
	q := c.open("refused", c.plan(c.shortest(), learning(100, 50, time.Hour), other))
	also := c.open("refused", c.plan(c.shortest(), learning(100, 50, time.Hour), other))
	c.checkRate(q, "before a refusal", 100, 0)
	if c.status(q).Tiers[1].Learned != nil {
		c.Error("a tier that does not learn reports a learned rate")
	}
	some := []store.Decision{c.admit(q, held(1, 1)), c.admit(also, held(1, 1)), c.admit(q, held(1, 1))}
	refuse := func(d store.Decision, p store.Pause, cost ...int64) {
		c.Helper()
		time.Sleep(time.Millisecond) // the response takes some time
		p.Refused = &store.Refused{At: d.At, Cost: cost}
		c.applyPause(q, p, true)
	}
	refuse(some[0], store.Pause{For: 10 * time.Minute}, 0, 1)
	c.checkRate(q, "after the refusal of another unit", 100, 0)
	refuse(some[0], store.Pause{For: 20 * time.Minute}, 1, 0)
	c.checkRate(q, "after a refusal", 70, 100)
	c.checkRate(also, "after a refusal that another opener reported", 70, 100)
	refuse(some[1], store.Pause{For: 30 * time.Minute}, 1, 1)
	refuse(some[2], store.Pause{For: 40 * time.Minute}, 1, 0)
	c.checkRate(also, "after the refusals of requests that were admitted before", 70, 100)

	c.resume(q)
	time.Sleep(later)
	d := c.eventuallyAdmit(q, held(1, 0), "after Resume", false)
	refuse(d, store.Pause{For: time.Minute}, 1, 0)
	c.checkRate(q, "after another refusal", 49, 70)

	c.resume(q)
	time.Sleep(later)
	backsOff := store.Pause{For: time.Hour, Most: 3 * time.Hour, Probe: true, AtOnce: true}
	c.applyPause(q, backsOff, true)
	d = c.eventuallyAdmit(q, held(1, 0), "at once", true)
	refuse(d, backsOff, 1, 0)
	c.checkRate(q, "after a refusal while a back-off goes on", 49, 70)
}

// later is so long after a decrease of a rate that a refusal is not its consequence.
const later = 2 * time.Second

// A back-off is void if the tiers tolerate the refusal that causes it: they have learned that some requests are refused at
// any rate.
func tolerated(c *check) {
	q := c.open("tolerated", c.plan(c.shortest(), learning(10, 1, time.Second)))
	next := func() store.Decision {
		c.Helper()
		d := c.await(q, held(1), time.Minute)
		if d.Verdict != store.Admitted {
			c.Fatalf("%+v", d)
		}
		return d
	}
	told := store.Pause{For: window / 8}
	c.applyPause(q, refusedBy(next(), told), true)
	for range 40 { // as many as show that the rate is not the reason
		next()
	}
	c.applyPause(q, refusedBy(next(), told), true)
	time.Sleep(later)
	d := next()
	before := c.status(q).Tiers[0].Learned
	done := c.applyPause(q, refusedBy(d, store.Pause{For: time.Hour, Most: 3 * time.Hour, Probe: true, Once: true, Epoch: d.Epoch}), false)
	if done.Epoch != d.Epoch || done.For != 0 {
		c.Errorf("%+v of a pause that is void, want epoch %d", done, d.Epoch)
	}
	if after := c.status(q).Tiers[0].Learned; after.Rate < before.Rate || after.Refused != before.Refused {
		c.Errorf("after a refusal that is tolerated the tier knows %+v, want %+v", after, before)
	}
	next()
	d = next()
	c.applyPause(q, refusedBy(d, store.Pause{For: time.Hour}), true) // a pause that the provider asks for
}

// Forget makes the tiers that learn their rate start again, for all openers.
func forget(c *check) {
	p := c.plan(c.shortest(), learning(100, 50, time.Hour))
	q, also := c.open("forget", p), c.open("forget", p)
	d := c.admit(q, held(1))
	c.applyPause(q, refusedBy(d, store.Pause{For: time.Minute}), true)
	c.checkRate(q, "after a refusal", 70, 100)
	if err := also.(store.Feedback).Forget(c.Context()); err != nil {
		c.Fatalf("Forget: %v", err)
	}
	c.checkRate(q, "after Forget", 100, 0)
	if used := c.used(q)[0]; used != 1 {
		c.Errorf("after Forget the tier has used %d, want 1", used)
	}
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

	q = follows(12, d.At+1)
	c.eventuallyUsed(q, "under the higher limit", 4)
	c.admit(q, held(8))
	c.refuse(q, held(1), store.Later)
}
