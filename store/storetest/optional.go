package storetest

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A waiting request goes as soon as another one is returned.
func wakeReturned(c *check) {
	most := window
	if c.ReservedStays {
		most = time.Hour + 2*wakeGuard // no later than without the return
	}
	c.checkWakes(most, perHour(2), func(q store.Quota, d store.Decision) { c.refund(q, d, 2) })
}

// A waiting request goes as soon as another one has ended.
func wakeReleased(c *check) {
	c.checkWakes(window, algorithms.Tier{Limit: 2, Algorithm: algorithms.Concurrency},
		func(q store.Quota, d store.Decision) { q.Release(d, []int64{2}) })
}

// wakeGuard is longer than any request of these parts takes.
const wakeGuard = time.Minute

func (c *check) checkWakes(most time.Duration, tier algorithms.Tier, end func(q store.Quota, d store.Decision)) {
	c.Helper()
	q := c.open("wakes", c.plan(wakeGuard, tier))
	d := c.admit(q, held(2))
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		time.Sleep(window)
		end(q, d)
	}()
	defer func() { <-ended }()
	c.checkNext(q, began, window, most)
}

// A store does not forget a quota that is closed while it is charged or paused.
func closed(c *check) {
	p := c.plan(c.shortest(), perHour(5))
	mustOpen := func(key string) store.Quota {
		q, err := c.store.Open(key, p, nil)
		if err != nil {
			c.Fatalf("Open(%q): %v", key, err)
		}
		return q
	}
	first, second := mustOpen("charged"), mustOpen("charged")
	c.admit(first, held(2))
	first.Close()
	c.admit(second, held(1))
	second.Close()
	third := mustOpen("charged")
	c.eventuallyUsed(third, "opened again", 3)
	third.Close()

	first = mustOpen("paused")
	c.applyPause(first, store.Pause{For: time.Hour, Close: true}, true)
	first.Close()
	second = mustOpen("paused")
	c.refuse(second, held(1), store.Closed)
	second.Close()
}

// A store may forget an idle quota without a loss. A quota becomes idle when all its requests have
// ended.
func idle(c *check) {
	p := c.plan(c.shortest(), perHour(1))
	first := c.open("idle", p)
	if !first.(store.Lifecycle).Idle() {
		c.Error("a fresh quota is not idle")
	}
	c.admit(first, held(1))
	if first.(store.Lifecycle).Idle() {
		q, err := c.store.Open("idle", p, nil)
		if err != nil {
			c.Fatal(err)
		}
		c.refuse(q, held(1), store.Later)
		q.Close()
	}
	q := c.open("ends", c.plan(window, algorithms.Tier{Limit: 5, Window: window}))
	d := c.admit(q, held(2))
	c.refund(q, d, 2)
	c.eventually(q.(store.Lifecycle).Idle, func() { c.Error("a quota is not idle after all its requests were returned") })
	if c.keeps(algorithms.Concurrency) {
		q := c.open("held", c.plan(c.shortest(), algorithms.Tier{Limit: 5, Algorithm: algorithms.Concurrency}))
		d := c.admit(q, held(2))
		if q.(store.Lifecycle).Idle() {
			c.Error("a quota with a held permit is idle")
		}
		q.Release(d, []int64{2})
		c.eventually(q.(store.Lifecycle).Idle, func() { c.Error("a quota without held permits is not idle") })
	}
}

// A quota that has received no response has learned nothing.
func learned(c *check) {
	q := c.open("learned", c.plan(c.shortest(), perHour(5)))
	c.admit(q, held(1))
	if q.(store.Feedback).Learned() {
		c.Error("a quota has learned without a response")
	}
}

// A provider's report raises the quota's count. Only an exact report lowers it.
func observe(c *check) {
	q := c.open("observe", c.plan(c.shortest(), perHour(10)))
	observer := q.(store.Feedback)
	report := func(used int64, exact bool) {
		d := c.admit(q, held(1))
		q.Arrived(d, []int64{1})
		time.Sleep(c.shortest() * 9 / 8) // the request has landed, whether or not its response lands it
		observer.Observe(d, []int64{1}, []store.Observation{{Tier: 0, Used: used, Exact: exact}})
		q.Release(d, []int64{1})
		c.waitLag()
	}
	report(1, false)
	c.eventuallyUsed(q, "after a report that agrees", 1)
	report(6, false)
	c.eventuallyUsed(q, "after a report of more", 6)
	report(2, false)
	c.eventuallyUsed(q, "after a report of less", 7)
	c.refuse(q, held(4), store.Later)
	report(2, true)
	c.eventuallyUsed(q, "after an exact report of less", 2)
	c.admit(q, held(8))
}

// A forecast is never later than the admission, and the bound of Total is never later than the time
// of Next.
func forecast(c *check) {
	tiers := []algorithms.Tier{{Limit: 4, Window: window}, {Limit: 6, Window: 2 * window, Unit: "requests"}}
	seeds := uint64(3)
	if c.RealTime {
		seeds = 1
	}
	for seed := range seeds {
		for _, paused := range []bool{false, true} {
			r := rand.New(rand.NewPCG(seed, 1))
			q := c.open([]string{"f", "g", "h"}[seed]+map[bool]string{true: " paused"}[paused], c.plan(c.shortest(), tiers...))
			for range r.IntN(5) {
				c.try(q, held(1+r.Int64N(3)))
			}
			if paused {
				c.applyPause(q, store.Pause{For: window / 2}, true)
			}
			c.checkForecast(q, r)
		}
	}
}

// checkForecast compares a forecast of a queue with the admissions of its requests.
func (c *check) checkForecast(q store.Quota, r *rand.Rand) {
	c.Helper()
	queue := make([]store.Request, 6)
	times := make([]time.Duration, len(queue))
	began := time.Now()
	f := q.Forecast()
	soonest, _ := q.Soonest([]int64{1}, 0)
	ahead := []int64{0}
	for i := range queue {
		queue[i] = held(1 + r.Int64N(3))
		earliest, _ := f.Total(slices.Clone(ahead), queue[i].Cost, 0)
		times[i], _ = f.Next(queue[i])
		if earliest > times[i] {
			c.Errorf("request %d waits %v by Next, and at least %v by Total", i, times[i], earliest)
		}
		ahead[0] += queue[i].Cost[0]
	}
	for i, request := range queue {
		d := c.await(q, request, time.Minute)
		if d.Verdict != store.Admitted {
			c.Fatalf("request %d: %+v", i, d)
		}
		took := time.Since(began)
		if c.RealTime {
			took += took / 100
		}
		if i == 0 && soonest > took+c.Lag {
			c.Errorf("request 0 was admitted after %v, and Soonest returned %v", took, soonest)
		}
		if times[i] > took+c.Lag {
			c.Errorf("request %d was admitted after %v, the forecast was %v", i, took, times[i])
		}
		q.Arrived(d, request.Cost)
	}
}

// A forecast assumes that all held requests have arrived and been released. It does not change the
// quota.
func forecastFrees(c *check) {
	q := c.open("frees", c.plan(time.Minute, c.withConcurrency(2, algorithms.Tier{Limit: 2, Window: window})...))
	c.admit(q, held(2))
	f := q.Forecast()
	for i := range 3 {
		if at, tier := f.Next(held(1)); at > time.Duration(1+i/2)*window {
			c.Errorf("request %d waits %v for tier %d", i, at, tier)
		}
	}
	c.refuse(q, held(1), store.Later)
}

// A new plan keeps the charges and applies to all openers of the key.
func change(c *check) {
	tokens := algorithms.Tier{Limit: 1000, Window: time.Hour, Unit: "tokens"}
	before := c.plan(time.Minute, perHour(10), tokens)
	q, other := c.open("change", before), c.open("change", before)
	if next, p := q.(store.Lifecycle).Successor(); next != q || !p.Equal(before) {
		c.Errorf("the successor before a change is %v under %v, want the quota itself", next, p.Tiers())
	}
	for range 4 {
		c.admit(q, held(1, 100))
		c.admit(other, held(1, 10))
	}
	here, there := c.watch(q), c.watch(other)
	tokens.Limit = 900
	after := c.plan(time.Minute, perHour(9), tokens)
	c.changeTo(q, after)
	here.eventually("a new plan", store.Replanned)
	there.eventually("a new plan of the same key", store.Replanned)
	for _, old := range []store.Quota{q, other} {
		c.refuseMoved(old)
		next, p := old.(store.Lifecycle).Successor()
		if next == old || !p.Equal(after) {
			c.Fatalf("the successor is under %v, want %v", p.Tiers(), after.Tiers())
		}
		if same, _ := next.(store.Lifecycle).Successor(); same != next {
			c.Error("the newest quota has a successor")
		}
		c.eventuallyUsed(next, "under the new plan", 8, 440)
	}
	next, _ := q.(store.Lifecycle).Successor()
	c.admit(next, held(1, 1))
	c.refuse(next, held(1, 1), store.Later)
	c.eventuallyUsed(other, "as the quota that has a successor reports", 9, 441)

	last := c.plan(time.Minute, perHour(20), tokens)
	c.changeTo(q, last)
	for _, old := range []store.Quota{q, next} {
		c.refuseMoved(old)
		if _, p := old.(store.Lifecycle).Successor(); !p.Equal(last) {
			c.Errorf("the successor is under %v, want %v", p.Tiers(), last.Tiers())
		}
	}
	newest, _ := other.(store.Lifecycle).Successor()
	c.admit(newest, held(11, 0))
	c.refuse(newest, held(1, 0), store.Later)
}

func (c *check) changeTo(q store.Quota, p *algorithms.Plan) {
	c.Helper()
	if err := q.(store.Lifecycle).Change(c.Context(), p); err != nil {
		c.Fatalf("Change: %v", err)
	}
}

func (c *check) refuseMoved(q store.Quota) {
	c.Helper()
	if d := c.try(q, held(1, 1)); d.Verdict != store.Moved {
		c.Errorf("%+v of a quota that has a successor, want Moved", d)
	}
}

// A change of the plan does not end a pause or a ban. A pause of the old quota applies to the new
// one.
func changePaused(c *check) {
	q := c.free("paused")
	c.applyPause(q, store.Pause{For: time.Hour, Close: true}, true)
	c.changeTo(q, c.plan(c.shortest(), perHour(100)))
	next, _ := q.(store.Lifecycle).Successor()
	c.refuse(next, held(1), store.Closed)
	c.resume(q)
	c.eventuallyAdmit(next, held(1), "after Resume of the old quota", false)
	c.applyPause(q, store.Pause{For: time.Hour}, true)
	c.refuse(next, held(1), store.Later)
	if s := c.status(q); s.Paused < 59*time.Minute {
		c.Errorf("Status of the old quota has paused %v", s.Paused)
	}
}

// The outcome of a request that was admitted under the old plan may be reported to the old quota.
func changeInUse(c *check) {
	tiers := c.withConcurrency(4, perHour(10))
	q := c.open("in use", c.plan(time.Minute, tiers...))
	some := []store.Decision{c.admit(q, held(1)), c.admit(q, held(1)), c.admit(q, held(1)), c.admit(q, held(1))}
	tiers[0].Limit = 12
	c.changeTo(q, c.plan(time.Minute, tiers...))
	next, _ := q.(store.Lifecycle).Successor()
	if c.keeps(algorithms.Concurrency) {
		c.refuse(next, held(1), store.Later)
	}
	arrive(q, some[0], 1)
	lose(q, some[1], 1)
	c.refund(q, some[2], 1)
	arrive(q, some[3], 1)
	c.waitLag()
	if c.keeps(algorithms.Concurrency) {
		c.eventually(func() bool { return c.used(next)[1] == 0 }, func() { c.Errorf("%d permits are open at the end", c.used(next)[1]) })
	}
	if used := c.used(next)[0]; used < 3 || used > 4 {
		c.Errorf("%d units are charged, want the three that were sent, and no more than four", used)
	}
}

// A request that was admitted before its unit was estimated takes nothing from estimates.
func changeEstimates(c *check) {
	tokens := algorithms.Tier{Limit: 100, Window: time.Hour, Unit: "tokens"}
	inFlight, resolution := c.inFlight()
	q := c.open("begins to estimate", c.plan(inFlight, tokens))
	before := c.admit(q, held(60))
	tokens.Estimated = true
	c.changeTo(q, c.plan(inFlight, tokens))
	next, _ := q.(store.Lifecycle).Successor()
	after := c.admit(next, held(30))
	lose(q, before, 60)
	c.waitLag()
	c.refuse(next, held(11), store.Later)
	c.eventuallyUsed(next, "without a response", 90)
	time.Sleep(inFlight + resolution)
	next.Settle(after, []int64{30}, []int64{10}, nil)
	next.Release(after, []int64{30})
	c.eventuallyUsed(next, "when the estimate is settled", 70)
}
