package main

import (
	"fmt"
	"math"
	"time"

	"github.com/apithrottle/throttle"
)

const (
	ms     = time.Millisecond
	second = time.Second
	guard  = 50 * ms // the default of Policy.Guard
)

// A scenario is a fleet with its work, a disturbance, and bounds on the results.
type scenario struct {
	name, about string

	processes int
	waiters   int  // callers of each process
	real      bool // the processes are separate processes of the operating system

	tiers []throttle.Tier
	limit int64   // requests per second, of all keys
	full  float64 // highest possible rate, of all keys

	// roundTrips to the server are assigned to the processes in turn. If nil, there is no proxy.
	roundTrips []time.Duration
	// keys have a quota each, and are assigned to the callers in turn. If zero, there is one.
	keys int
	// inner is the limit per second of each key's own quota. If positive, tiers are those of one quota
	// around all keys.
	inner int64
	// every is the interval between the requests of a caller. If zero, a caller makes each
	// request as soon as the one before is admitted.
	every time.Duration
	// requests is the number of requests of each caller. If zero, callers continue to the end.
	requests int

	warmUp, length time.Duration // before the measurement, and of it

	disturbance disturbance
	from        time.Duration // start of the disturbance
	duration    time.Duration // of the disturbance
	// drain is how long reservations may take to be used before charges are compared.
	drain time.Duration

	bounds bounds
}

// A disturbance is a fault during a scenario.
type disturbance int

const (
	none disturbance = iota
	stopServer
	addDelay    // addedDelay in each direction
	loseReplies // a share of lossRate
)

const (
	addedDelay = 100 * ms
	lossRate   = 0.05
)

// The bounds of a scenario limit its results. If zero, a field sets no bound. Refusals and
// errors are never allowed.
type bounds struct {
	served   int           // admissions, at least
	full     float64       // share of the full rate, at least
	calls    float64       // for each admission, at most
	callRate float64       // calls per second, at most
	recovery time.Duration // at most
	unused   float64       // units charged but not used, as a share of the last tier, at most
}

func perSecond(limit int64) throttle.Tier { return throttle.PerSecond(limit) }

// fullRate returns the highest rate under a limit per second.
func fullRate(limit int64, roundTrip time.Duration) float64 {
	return float64(limit) / (second + guard + roundTrip).Seconds()
}

func scenarios() []scenario {
	var all []scenario
	for _, n := range []int{2000, 20000} {
		all = append(all, scenario{
			name: fmt.Sprintf("keys/at-once/%d", n), about: "one request of each key, all at the same instant",
			processes: 1, waiters: n, keys: n, requests: 1, tiers: []throttle.Tier{perSecond(5)}, limit: int64(n), full: float64(n),
			length: 30 * second, bounds: bounds{served: n, calls: 2},
		})
	}
	all = append(all, scenario{
		name: "keys/steady/3000", about: "one request of each key every 2 s, and the server is stopped for 0.5 s",
		processes: 1, waiters: 3000, keys: 3000, every: 2 * second, tiers: []throttle.Tier{perSecond(5)}, limit: 1500, full: 1500,
		warmUp: 4 * second, length: 12 * second, disturbance: stopServer, from: 6 * second, duration: 500 * ms,
		bounds: bounds{full: 0.95, calls: 2, recovery: 2 * second},
	}, scenario{
		name: "keys/rest/1500", about: "one caller of each key waits for an hour",
		processes: 1, waiters: 1500, keys: 1500, tiers: []throttle.Tier{throttle.PerHour(1)}, limit: 1, full: 1,
		warmUp: 5 * second, length: 20 * second, bounds: bounds{callRate: 1},
	})
	for _, n := range []int{10, 100, 300, 1000} {
		for _, waiters := range []int{1, 8} {
			for _, limit := range []int64{50, 5000} {
				all = append(all, scenario{
					name: fmt.Sprintf("processes/%dx%d/%d", n, waiters, limit), about: "processes of the operating system",
					processes: n, waiters: waiters, real: true, tiers: []throttle.Tier{perSecond(limit)}, limit: limit, full: fullRate(limit, 0),
					warmUp: 3 * second, length: 10 * second, bounds: bounds{calls: 1.5},
				})
			}
		}
	}
	for _, n := range []int{100, 1000} {
		for _, waiters := range []int{1, 8} {
			for _, limit := range []int64{50, 5000} {
				all = append(all, scenario{
					name: fmt.Sprintf("nested/%dx%d/%d", n, waiters, limit), about: "eight keys inside one quota, with a third of its limit each",
					processes: n, waiters: waiters, real: n <= 100, keys: 8, inner: limit / 3, tiers: []throttle.Tier{perSecond(limit)}, limit: limit, full: fullRate(limit, 0),
					warmUp: 3 * second, length: 10 * second, bounds: bounds{calls: 3},
				})
			}
		}
	}
	for _, roundTrip := range []time.Duration{1 * ms, 20 * ms, 80 * ms, 200 * ms, 400 * ms} {
		for _, limit := range []int64{5, 50, 1000} {
			all = append(all, scenario{
				name: fmt.Sprintf("far/%v/%d", roundTrip, limit), about: "round trips to the server take this long",
				processes: 4, waiters: max(8, int(math.Ceil(2*float64(limit)*roundTrip.Seconds()/4))),
				tiers: []throttle.Tier{perSecond(limit)}, limit: limit, full: fullRate(limit, roundTrip), roundTrips: []time.Duration{roundTrip},
				warmUp: 5 * second, length: 20 * second, bounds: bounds{full: 0.97},
			})
		}
	}
	for _, limit := range []int64{50, 1000} {
		all = append(all, scenario{
			name: fmt.Sprintf("mixed/80ms/%d", limit), about: "the server is far from four processes and near four others",
			processes: 8, waiters: 40, tiers: []throttle.Tier{perSecond(limit)}, limit: limit, full: fullRate(limit, 80*ms),
			roundTrips: []time.Duration{0, 80 * ms}, warmUp: 5 * second, length: 20 * second, bounds: bounds{full: 0.97},
		})
	}
	add := func(name, about string, d disturbance, duration time.Duration, hour bool, b bounds) {
		s := scenario{
			name: name, about: about, processes: 8, waiters: 60, tiers: []throttle.Tier{perSecond(100)}, limit: 100, full: fullRate(100, 0),
			roundTrips: []time.Duration{ms}, warmUp: 3 * second, length: 9*second + duration, disturbance: d, from: 5 * second, duration: duration, bounds: b,
		}
		if hour {
			s.name, s.drain = name+"/hour", 12*second
			s.tiers = append(s.tiers, throttle.PerHour(10000))
		}
		all = append(all, s)
	}
	add("spike/none", "", none, 5*second, true, bounds{full: 0.95, unused: 0.02})
	for _, duration := range []time.Duration{5 * second, 10 * second} {
		add(fmt.Sprintf("spike/%v", duration), "100 ms more each way", addDelay, duration, false, bounds{recovery: 2 * second})
		add(fmt.Sprintf("spike/%v", duration), "100 ms more each way", addDelay, duration, true, bounds{recovery: 2 * second, unused: 0.02})
	}
	add("lost/5%", "this share of the replies is lost", loseReplies, 20*second, true, bounds{recovery: 2 * second})
	return all
}

// policy returns the policy of a key.
func (s scenario) policy(key int) throttle.Policy {
	p := throttle.Policy{Name: fmt.Sprintf("key %d", key), Tiers: s.tiers}
	if s.inner > 0 {
		p.Tiers = []throttle.Tier{perSecond(s.inner)}
	}
	return p
}
