// Package storetest tests that a store keeps the contract of package store. Run it on your own
// store before a limiter relies on it:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Config{
//			Open: func(t testing.TB) store.Store { return mystore.New() },
//		})
//	}
//
// Each part of the contract is a subtest. A part that is about an optional interface, such as
// [store.Lifecycle] or [store.Reserver], runs if the store's quotas implement the interface. The
// test's log lists the optional parts that ran, and those that did not.
package storetest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A Config describes the store to test.
type Config struct {
	// Open returns an empty store. Each part of the suite calls it once. Functions registered with
	// t.Cleanup run when that part ends.
	Open func(t testing.TB) store.Store

	// RealTime runs the suite by the machine's clock, for a store that talks to a process outside
	// of the test. The suite then asserts only what holds under any scheduling: an event is never
	// too early and happens within 20 s. The parts run in parallel and take half a minute together.
	// If zero, each part runs in a bubble of testing/synctest and asserts times in both directions.
	RealTime bool

	// Lag is how long after a call returns its effect may take to show, and how much later than
	// possible a request may be admitted. If zero, effects show at once.
	Lag time.Duration

	// Without lists the algorithms that the store does not keep. Open must refuse their tiers. If
	// empty, the store keeps all algorithms.
	Without []algorithms.Algorithm

	// NoEstimates reports that the store does not keep Estimated tiers. Open must refuse them. If
	// zero, the store keeps them.
	NoEstimates bool

	// LandsWithGuard reports that a request stays in flight until its guard interval has passed,
	// even if its response is in. A store may do this to save a call. If zero, Arrived lands the
	// request.
	LandsWithGuard bool

	// ReservedStays reports that a reservation keeps its time when a request ahead of it is
	// returned. A store that charges reservations in their order may already have counted the
	// returned request as landed, with other reservations behind it. If zero, the next request goes
	// at once.
	ReservedStays bool

	// Breaks names the parts of the suite that the store is known to fail, each with the reason. In
	// a bubble these parts run like the others, and the suite fails if one of them passes. In real
	// time they do not run, because their result may depend on scheduling. If nil, the store keeps
	// the whole contract.
	Breaks map[string]string
}

// A part is one part of the contract. It runs if the store has what it needs.
type part struct {
	name string
	// needs is what a store must have for the part, such as the name of an interface. If empty, the
	// part runs for all stores.
	needs string
	test  func(c *check)
}

var parts = []part{
	{"Open", "", open},
	{"Refuse", "tiers that it refuses", refuse},
	{"TryAcquire", "", tryAcquire},
	{"Refusal", "", refusal},
	{"DryRun", "", dryRun},
	{"Headroom", "", headroom},
	{"Budget", "", budget},
	{"Arrived", "", arrived},
	{"Unanswered", "", unanswered},
	{"Guard", "", guard},
	{"Return", "", returned},
	{"ReturnLate", "", returnedLate},
	{"Release", "Concurrency", release},
	{"Settle", "estimates", settle},
	{"SettleUnanswered", "estimates", settleUnanswered},
	{"Pause", "", pause},
	{"PauseLongest", "", pauseLongest},
	{"Ban", "", ban},
	{"Once", "", once},
	{"BackOff", "", backOff},
	{"Probe", "", probe},
	{"ProbeOnce", "", probeAtOnce},
	{"ProbeHandedOn", "", probeHandedOn},
	{"ProbeUnheld", "", probeUnheld},
	{"ProbeSilent", "virtual time", probeSilent},
	{"ProbeOvertaken", "", probeOvertaken},
	{"Resume", "", resume},
	{"Watch", "", watch},
	{"WakeReturned", "returns that wake, or virtual time", wakeReturned},
	{"WakeReleased", "Concurrency", wakeReleased},
	{"Close", "", closed},
	{"Concurrent", "", concurrent},
	{"Change", "Lifecycle", change},
	{"ChangePaused", "Lifecycle", changePaused},
	{"ChangeInUse", "Lifecycle", changeInUse},
	{"ChangeEstimates", "Lifecycle and estimates", changeEstimates},
	{"Forecast", "forecasts", forecast},
	{"ForecastFrees", "forecasts", forecastFrees},
	{"Observe", "Feedback", observe},
	{"Idle", "Lifecycle", idle},
	{"Learned", "Feedback", learned},
	{"Reserve", "Reserver", reserve},
	{"ReserveBehind", "Reserver", reserveBehind},
	{"ReserveLate", "Reserver", reserveLate},
	{"Cancel", "Reserver", cancel},
	{"Expired", "Reserver", expired},
	{"ReserveMoved", "Reserver and Lifecycle", reserveMoved},
}

// Run tests a store, each part of the contract in a subtest of t.
func Run(t *testing.T, c Config) {
	t.Helper()
	has := c.features(t)
	for _, p := range parts {
		reason, broken := c.Breaks[p.name]
		switch {
		case p.needs != "" && !has[p.needs]:
		case broken && c.RealTime:
			t.Logf("%s is not tested: %s", p.name, reason)
		case broken:
			t.Run(p.name, func(t *testing.T) { c.runBroken(t, p, reason) })
		default:
			t.Run(p.name, func(t *testing.T) {
				if c.RealTime {
					t.Parallel()
				}
				c.run(t, p.test)
			})
		}
	}
}

// features returns which optional features the store has, and logs them.
func (c Config) features(t *testing.T) map[string]bool {
	t.Helper()
	has := make(map[string]bool)
	c.run(t, func(c *check) {
		q := c.open("features", c.plan(0, perHour(1)))
		_, has["Lifecycle"] = q.(store.Lifecycle)
		_, has["Feedback"] = q.(store.Feedback)
		has["forecasts"] = q.Forecast() != nil
		_, has["Reserver"] = q.(store.Reserver)
		has["Concurrency"] = c.keeps(algorithms.Concurrency)
		has["estimates"] = !c.NoEstimates
		has["tiers that it refuses"] = c.NoEstimates || len(c.Without) > 0
		has["virtual time"] = !c.RealTime
		has["returns that wake, or virtual time"] = !c.ReservedStays || !c.RealTime
		has["Lifecycle and estimates"] = has["Lifecycle"] && has["estimates"]
		has["Reserver and Lifecycle"] = has["Reserver"] && has["Lifecycle"]
	})
	for _, p := range parts {
		if p.needs != "" && !has[p.needs] {
			t.Logf("the store has no %s: %s is not tested", p.needs, p.name)
		} else if p.needs != "" {
			t.Logf("the store has %s: %s is tested", p.needs, p.name)
		}
	}
	return has
}

// runBroken runs a part that must fail.
func (c Config) runBroken(t *testing.T, p part, reason string) {
	t.Helper()
	c.run(t, func(ok *check) {
		r := &recorder{TB: ok.TB}
		ok.TB = r
		done := make(chan struct{})
		go func() { // FailNow ends this goroutine
			defer close(done)
			p.test(ok)
		}()
		<-done
		ok.TB = r.TB
		if len(r.failures) == 0 {
			ok.Errorf("the store keeps this part of the contract: remove it from Breaks, where the reason is %q", reason)
		}
		ok.Logf("the store breaks this part of the contract: %s: %s", reason, strings.Join(r.failures, "; "))
	})
}

// A recorder collects failures instead of reporting them to a test.
type recorder struct {
	testing.TB

	mu       sync.Mutex // guards failures
	failures []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

func (c Config) run(t *testing.T, test func(c *check)) {
	t.Helper()
	run := func(t *testing.T) { test(&check{TB: t, Config: c, store: c.Open(t)}) }
	if c.RealTime {
		run(t)
	} else {
		synctest.Test(t, run)
	}
}

func (c Config) keeps(a algorithms.Algorithm) bool { return !slices.Contains(c.Without, a) }

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
func (c *check) ask(q store.Quota, r store.Request) store.Decision {
	c.Helper()
	reserver, ok := q.(store.Reserver)
	if !ok {
		return c.try(q, r)
	}
	return c.reserve(reserver, nil, waiting(r))[0]
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
