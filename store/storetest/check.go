package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A check is one run of a part with its own store.
type check struct {
	testing.TB
	Config
	store store.Store
	// probed is when the last probe was requested.
	probed time.Time
}

// timeout bounds every wait of the suite in real time.
const timeout = 20 * time.Second

func perHour(n int64) algorithms.Tier { return algorithms.Tier{Limit: n, Window: time.Hour} }

func (c *check) plan(guard time.Duration, tiers ...algorithms.Tier) *algorithms.Plan {
	c.Helper()
	p, err := algorithms.NewPlan(tiers, guard)
	if err != nil {
		c.Fatal(err)
	}
	return p
}

// open opens a quota and closes it when the part ends.
func (c *check) open(key string, p *algorithms.Plan) store.Quota {
	c.Helper()
	q, err := c.store.Open(key, p, nil)
	if err != nil {
		c.Fatalf("Open(%q, %v): %v", key, p.Tiers(), err)
	}
	c.Cleanup(q.Close)
	return q
}

func held(cost ...int64) store.Request { return store.Request{Cost: cost, Held: true} }

func (c *check) try(q store.Quota, r store.Request) store.Decision {
	c.Helper()
	d, err := q.TryAcquire(c.Context(), r)
	if err != nil {
		c.Fatalf("TryAcquire(%v): %v", r.Cost, err)
	}
	return d
}

// admit makes a request that must be admitted.
func (c *check) admit(q store.Quota, r store.Request) store.Decision {
	c.Helper()
	d := c.try(q, r)
	if d.Verdict != store.Admitted {
		c.Fatalf("TryAcquire(%v) = %+v, want it admitted", r.Cost, d)
	}
	return d
}

// refuse makes a request that must get the verdict want.
func (c *check) refuse(q store.Quota, r store.Request, want store.Verdict) store.Decision {
	c.Helper()
	d := c.try(q, r)
	if d.Verdict != want {
		c.Fatalf("TryAcquire(%v) = %+v, want verdict %d", r.Cost, d, want)
	}
	if want == store.Later && d.Wait <= 0 {
		c.Errorf("TryAcquire(%v) = %+v, want a wait", r.Cost, d)
	}
	return d
}

func (c *check) status(q store.Quota) store.Status {
	c.Helper()
	s, err := q.Status(c.Context())
	if err != nil {
		c.Fatalf("Status: %v", err)
	}
	return s
}

// used returns the units that are charged to each tier.
func (c *check) used(q store.Quota) (used []int64) {
	c.Helper()
	for _, t := range c.status(q).Tiers {
		used = append(used, t.Used)
	}
	return used
}

// eventuallyUsed waits until the tiers have used want.
func (c *check) eventuallyUsed(q store.Quota, what string, want ...int64) {
	c.Helper()
	var got []int64
	c.eventually(func() bool {
		got = c.used(q)
		return slices.Equal(got, want)
	}, func() { c.Errorf("%s: the tiers have used %v, want %v", what, got, want) })
}

// eventually waits until ok returns true. After the lag it calls failed.
func (c *check) eventually(ok func() bool, failed func()) {
	c.Helper()
	most := c.Lag
	if c.RealTime {
		most = timeout
	}
	for began := time.Now(); !ok(); time.Sleep(most/64 + 1) {
		if time.Since(began) > most {
			failed()
			return
		}
	}
}

// waitLag waits until the effects of the previous calls show.
func (c *check) waitLag() { time.Sleep(c.Lag) }

// await requests an admission whenever a limiter would, until the verdict is not Later. If the
// request is reserved, await waits for its start.
func (c *check) await(q store.Quota, r store.Request, most time.Duration) store.Decision {
	c.Helper()
	changes := make(chan store.Change, 64)
	stop := q.Watch(func(change store.Change, _ time.Duration) {
		select {
		case changes <- change:
		default:
		}
	})
	defer stop()
	if c.RealTime {
		most = max(most, timeout)
	}
	for giveUp := time.Now().Add(most); ; {
		d := c.ask(q, r)
		left := time.Until(giveUp)
		switch {
		case d.Verdict == store.Admitted && d.Reservation != nil:
			if c.sleep(q, d, changes, giveUp) {
				return d
			}
			continue
		case d.Verdict != store.Later:
			return d
		case left <= 0:
			c.Fatalf("the decision is still %+v after %v", d, most)
		}
		select {
		case <-changes:
		case <-time.After(min(d.Wait, left)):
		}
	}
}

// sleep waits for the start of a reservation. It returns false if a change other than Freed voids
// the reservation.
func (c *check) sleep(q store.Quota, d store.Decision, changes <-chan store.Change, giveUp time.Time) bool {
	c.Helper()
	for {
		select {
		case <-time.After(time.Until(d.Reservation.Start)):
			return true
		case <-time.After(time.Until(giveUp)):
			c.Fatalf("the reservation for %v has not started", d.Reservation.Start)
		case change := <-changes:
			if change != store.Freed {
				q.(store.Reserver).Cancel([]store.Decision{d})
				return false
			}
		}
	}
}

// ask requests an admission as a limiter does for a waiting caller.
func (c *check) ask(q store.Quota, request store.Request) store.Decision {
	c.Helper()
	r, ok := q.(store.Reserver)
	if !ok {
		return c.try(q, request)
	}
	return reserver{c, r}.reserve(nil, waiting(request))[0]
}

// checkBetween checks when an event happened. In real time it may happen arbitrarily late.
func (c *check) checkBetween(what string, took, least, most time.Duration) {
	c.Helper()
	if c.RealTime {
		least -= least / 100 // the clock of a server may be a little faster
		most = time.Hour
	}
	if took < least || took > most+c.Lag {
		c.Errorf("%s after %v, want %v to %v", what, took, least, most+c.Lag)
	}
}

// applyPause pauses a quota and checks whether the pause was applied.
func (c *check) applyPause(q store.Quota, p store.Pause, applied bool) store.Paused {
	c.Helper()
	done, err := q.Pause(c.Context(), p)
	if err != nil {
		c.Fatalf("Pause(%+v): %v", p, err)
	}
	if done.Applied != applied {
		c.Fatalf("Pause(%+v) = %+v, want applied %v", p, done, applied)
	}
	return done
}

func (c *check) resume(q store.Quota) {
	c.Helper()
	if err := q.Resume(c.Context()); err != nil {
		c.Fatalf("Resume: %v", err)
	}
}

func (c *check) refund(q store.Quota, d store.Decision, cost ...int64) {
	c.Helper()
	if err := q.Return(c.Context(), d, cost); err != nil {
		c.Fatalf("Return: %v", err)
	}
}

// arrive reports the response to a request, and lose that there is none. Both end the request.
func arrive(q store.Quota, d store.Decision, cost ...int64) {
	q.Arrived(d, cost)
	q.Release(d, cost)
}

func lose(q store.Quota, d store.Decision, cost ...int64) {
	q.Unanswered(d, cost)
	q.Release(d, cost)
}

// checkNext waits until a request is admitted, and checks when that is.
func (c *check) checkNext(q store.Quota, began time.Time, least, most time.Duration) {
	c.Helper()
	d := c.await(q, held(1), most+window+c.Lag)
	c.checkBetween("the next request is admitted", time.Since(began), least, most)
	if d.Verdict != store.Admitted {
		c.Errorf("%+v", d)
	}
}

// withConcurrency returns tiers with a Concurrency tier behind them, if the store keeps it.
func (c *check) withConcurrency(limit int64, tiers ...algorithms.Tier) []algorithms.Tier {
	if c.keeps(algorithms.Concurrency) {
		tiers = append(tiers, algorithms.Tier{Limit: limit, Algorithm: algorithms.Concurrency})
	}
	return tiers
}

// tier returns a tier of an algorithm with a limit. Its window outlasts the part.
func (c *check) tier(a algorithms.Algorithm, limit int64) algorithms.Tier {
	const window = 10 * time.Hour
	t := algorithms.Tier{Limit: limit, Window: window, Algorithm: a}
	now := time.Now()
	switch a {
	case algorithms.FixedWindow, algorithms.WeightedWindow:
		t.Phase = (time.Duration(now.UnixNano())%window + window/2).Truncate(time.Microsecond) % window
	case algorithms.Concurrency:
		t.Window = 0
	case algorithms.Calendar:
		t.Window, t.Period = 0, algorithms.Month
		if now.UTC().Month() != now.UTC().Add(time.Hour).Month() {
			t.Zone = "Asia/Tokyo"
		}
	}
	return t
}

// all returns all algorithms.
func all() (algos []algorithms.Algorithm) {
	for a := algorithms.Algorithm(0); ; a++ {
		if _, err := algorithms.ParseAlgorithm(a.String()); err != nil {
			return algos
		}
		algos = append(algos, a)
	}
}

// rate returns what the first tier knows of its rate.
func (c *check) rate(q store.Quota, what string) store.Learned {
	c.Helper()
	got := c.status(q).Tiers[0].Learned
	if got == nil {
		c.Errorf("%s: the tier reports no learned rate", what)
		return store.Learned{}
	}
	if got.Ago < 0 || got.Ago > time.Hour || got.Refused == 0 && got.Ago != 0 || got.Next < got.Rate || got.Noise < 0 || got.Noise > 1 {
		c.Errorf("%s: the tier knows %+v", what, *got)
	}
	return *got
}

// checkLike checks that a tier knows what it knew before, but for what it has learned from some requests.
func (c *check) checkLike(q store.Quota, what string, before store.Learned) {
	c.Helper()
	var got store.Learned
	c.eventually(func() bool {
		got = c.rate(q, what)
		return got.Refused == before.Refused && got.Rate >= before.Rate && got.Rate < before.Rate*1.05
	}, func() { c.Errorf("%s: the tier knows %+v, want %+v", what, got, before) })
}

// checkLess checks that a refusal has decreased the rate of a tier.
func (c *check) checkLess(q store.Quota, what string, before store.Learned) (now store.Learned) {
	c.Helper()
	c.eventually(func() bool {
		now = c.rate(q, what)
		return now.Rate < before.Rate*0.95 && now.Refused > now.Rate && now.Refused < before.Rate*1.05
	}, func() { c.Errorf("%s: the tier knows %+v, and before %+v", what, now, before) })
	return now
}
