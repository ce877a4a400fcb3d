package algorithms_test

import (
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
)

// An exact report that was overtaken forgets nothing that landed since, although its own request landed
// the instant it was admitted, or is an estimate that has not landed.
func TestOvertakenReportForgetsNothing(t *testing.T) {
	const ms = time.Millisecond
	for _, tier := range []Tier{
		{Limit: 100, Window: time.Minute, Unit: "tokens"},
		{Limit: 100, Window: time.Minute, Unit: "tokens", Algorithm: FixedWindow, Phase: UnknownPhase},
	} {
		cost := []int64{10}
		l := ledger(t, 0, tier)
		l.Charge(at(0), Request{Cost: cost})
		l.Charge(at(5*ms), Request{Cost: cost})
		l.Observe(at(20*ms), Observation{Used: 10, Since: at(0).At, Cost: 10, Exact: true}) // of the first, before the second
		if got := l.Usage(at(20 * ms))[0].Used; got != 20 {
			t.Errorf("%v without a guard: %d used, want 20", tier, got)
		}

		tier.Estimated = true
		l = ledger(t, 50*ms, tier)
		first := l.Charge(at(0), Request{Cost: cost, Held: true})
		second := l.Charge(at(5*ms), Request{Cost: cost, Held: true})
		l.Arrived(at(10*ms), second, cost)
		l.Settle(at(10*ms), cost, cost)
		l.Arrived(at(20*ms), first, cost)
		l.Observe(at(20*ms), Observation{Used: 10, Since: at(0).At, Cost: 10, Exact: true}) // the headers of the first
		l.Settle(at(30*ms), cost, cost)
		if got := l.Usage(at(30 * ms))[0].Used; got != 20 {
			t.Errorf("%v: %d used, want 20", tier, got)
		}
	}
}
