package store_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// randomPlan returns a plan of one or two tiers of any algorithm except those that need a release.
func randomPlan(r *rand.Rand) *algorithms.Plan {
	kinds := []algorithms.Algorithm{
		algorithms.SlidingLog, algorithms.SlidingWindow, algorithms.WeightedWindow, algorithms.FixedWindow,
		algorithms.AnchoredWindow, algorithms.TokenBucket, algorithms.GCRA,
	}
	var tiers []algorithms.Tier
	for range 1 + r.IntN(2) {
		t := algorithms.Tier{
			Limit: 1 + r.Int64N(20), Window: time.Duration(1+r.IntN(2000)) * time.Millisecond, Algorithm: kinds[r.IntN(len(kinds))],
		}
		if t.Algorithm == algorithms.SlidingWindow {
			t.Precision = (t.Window / time.Duration(1+r.IntN(20))).Truncate(time.Microsecond)
		}
		tiers = append(tiers, t)
	}
	plan, err := algorithms.NewPlan(tiers, time.Duration(1+r.IntN(99))*time.Millisecond)
	if err != nil {
		panic(err)
	}
	return plan
}

// A queue is a sequence of requests over a ledger, with the requests that are in flight.
type queue struct {
	rand     *rand.Rand
	ledger   algorithms.Ledger
	now      algorithms.Moment
	inFlight []flight
}

type flight struct {
	algorithms.Flight
	cost []int64
}

// admit moves the time on until the next request is admitted. Some responses come in the meantime.
func (q *queue) admit(cost []int64) {
	for {
		at, _ := q.ledger.Earliest(q.now, algorithms.Request{Cost: cost})
		if at == q.now.At {
			break
		}
		if q.rand.IntN(2) == 0 {
			at = q.now.At + q.rand.Int64N(at-q.now.At)
		}
		q.now = q.now.Later(at)
		q.deliver()
	}
	q.inFlight = append(q.inFlight, flight{q.ledger.Charge(q.now, algorithms.Request{Cost: cost, Held: true}), cost})
}

// deliver delivers the response to a random request in flight.
func (q *queue) deliver() {
	if len(q.inFlight) > 0 {
		i := q.rand.IntN(len(q.inFlight))
		q.ledger.Arrived(q.now, q.inFlight[i].Flight, q.inFlight[i].cost)
		q.inFlight = append(q.inFlight[:i], q.inFlight[i+1:]...)
	}
}

// A forecast is never later than the admission. A caller that was refused because of its forecast
// would have been late.
func TestForecastIsNeverLate(t *testing.T) {
	waited := 0
	seeds := soak.Times(5000)
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(5, seed))
		plan := randomPlan(r)
		q := &queue{rand: r, ledger: plan.NewLedger(), now: algorithms.Moment{At: 1e15, Wall: 1e15}}
		most := plan.MaxCost()[0]
		cost := func() []int64 { return []int64{1 + r.Int64N(1+r.Int64N(most))} }
		for range r.IntN(20) {
			q.admit(cost())
			q.now = q.now.Later(q.now.At + r.Int64N(50_000))
			if r.IntN(2) == 0 {
				q.deliver()
			}
		}
		began := q.now
		f := store.Foretell(&q.ledger, func() algorithms.Moment { return began }, 0)
		var costs [][]int64
		ahead := make([]int64, 1)
		var forecast []int64
		var soonest time.Duration
		for range 30 {
			costs = append(costs, cost())
			own := costs[len(costs)-1]
			if len(costs) == 1 {
				if soonest, _ = store.Soonest(&q.ledger, began, 0, own, 0); soonest > 0 {
					waited++
				}
			}
			earliest, _ := f.Total(ahead, own, 0)
			wait, _ := f.Next(store.Request{Cost: own, Held: true})
			forecast = append(forecast, began.At+max(wait, earliest).Microseconds())
			ahead[0] += own[0]
		}
		for i, cost := range costs {
			if q.admit(cost); i == 0 && q.now.At < began.At+soonest.Microseconds() {
				t.Fatalf("seed %d: %v, guard %v: a request of %v was admitted %d µs after its soonest time, %v",
					seed, plan.Tiers(), plan.Guard(), cost, q.now.At-began.At, soonest)
			}
			if q.now.At < forecast[i] {
				t.Fatalf("seed %d: %v, guard %v: request %d of %v was admitted %d µs before its forecast",
					seed, plan.Tiers(), plan.Guard(), i, cost, forecast[i]-q.now.At)
			}
			if r.IntN(3) == 0 {
				q.deliver()
			}
		}
	}
	if waited < seeds/5 {
		t.Errorf("only %d of the requests had to wait", waited)
	}
}
