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
	{"Refused", "", refused},
	{"Tolerated", "virtual time", tolerated},
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
	{"Forget", "Feedback", forget},
	{"Follow", "Lifecycle", follow},
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
