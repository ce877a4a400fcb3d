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
	guard  = 50 * ms // the default
)

// A scenario is a fleet, what it is to do, what goes wrong, and what must hold.
type scenario struct {
	name, about        string
	processes, waiters int  // and the callers of each
	real               bool // processes are those of the system
	tiers              []throttle.Tier
	limit              int64           // of all keys, a second
	full               float64         // the best rate of all keys
	trips              []time.Duration // to the server, for the processes by turns. If nil, there is no proxy
	keys               int             // of which each has a quota of its own, for the callers by turns. If zero, one
	every              time.Duration   // when each caller asks. If zero, whenever it can
	requests           int             // of each caller. If zero, to the end
	warm, length       time.Duration   // before and while it is measured
	disturbance        disturbance
	from, lasts        time.Duration // of the disturbance, from the start
	drain              time.Duration // how long what is reserved may take to be used before charges are compared
	bounds             bounds
}

// A disturbance is what goes wrong.
type disturbance int

const (
	none  disturbance = iota
	stop              // the server is stopped
	slow              // replies and requests are later by addedDelay
	loses             // lostShare of the replies are lost
)

const (
	addedDelay = 100 * ms
	lostShare  = 0.05
)

// Bounds are what must hold. Those that are zero do not bound, but for refusals and errors.
type bounds struct {
	served   int           // requests, at least
	full     float64       // at least so much of the full rate
	calls    float64       // for each admission, at most
	rest     float64       // calls a second at most
	recovery time.Duration // at most
	unused   float64       // charged and not used of the last tier, at most
}

func perSecond(limit int64) throttle.Tier { return throttle.PerSecond(limit) }

// rolling is the rate of a limit a second at best.
func rolling(limit int64, trip time.Duration) float64 {
	return float64(limit) / (second + guard + trip).Seconds()
}

func scenarios() []scenario {
	var all []scenario
	for _, n := range []int{2000, 20000} {
		all = append(all, scenario{
			name: fmt.Sprintf("keys/at-once/%d", n), about: "each key is asked for one request at the same instant",
			processes: 1, waiters: n, keys: n, requests: 1, tiers: []throttle.Tier{perSecond(5)}, limit: int64(n), full: float64(n),
			length: 30 * second, bounds: bounds{served: n, calls: 2},
		})
	}
	all = append(all, scenario{
		name: "keys/steady/3000", about: "each key is asked every 2 s, and the server is stopped for 0.5 s",
		processes: 1, waiters: 3000, keys: 3000, every: 2 * second, tiers: []throttle.Tier{perSecond(5)}, limit: 1500, full: 1500,
		warm: 4 * second, length: 12 * second, disturbance: stop, from: 6 * second, lasts: 500 * ms,
		bounds: bounds{full: 0.95, calls: 2, recovery: 2 * second},
	}, scenario{
		name: "keys/rest/1500", about: "one caller of each key has an hour to wait",
		processes: 1, waiters: 1500, keys: 1500, tiers: []throttle.Tier{throttle.PerHour(1)}, limit: 1, full: 1,
		warm: 5 * second, length: 20 * second, bounds: bounds{rest: 1},
	})
	for _, n := range []int{10, 100, 300, 1000} {
		for _, waiters := range []int{1, 8} {
			for _, limit := range []int64{50, 5000} {
				all = append(all, scenario{
					name: fmt.Sprintf("processes/%dx%d/%d", n, waiters, limit), about: "processes of the system",
					processes: n, waiters: waiters, real: true, tiers: []throttle.Tier{perSecond(limit)}, limit: limit, full: rolling(limit, 0),
					warm: 3 * second, length: 10 * second, bounds: bounds{calls: 1.5},
				})
			}
		}
	}
	for _, trip := range []time.Duration{1 * ms, 20 * ms, 80 * ms, 200 * ms, 400 * ms} {
		for _, limit := range []int64{5, 50, 1000} {
			all = append(all, scenario{
				name: fmt.Sprintf("far/%v/%d", trip, limit), about: "the server is so far away",
				processes: 4, waiters: max(8, int(math.Ceil(2*float64(limit)*trip.Seconds()/4))),
				tiers: []throttle.Tier{perSecond(limit)}, limit: limit, full: rolling(limit, trip), trips: []time.Duration{trip},
				warm: 5 * second, length: 20 * second, bounds: bounds{full: 0.97},
			})
		}
	}
	for _, limit := range []int64{50, 1000} {
		all = append(all, scenario{
			name: fmt.Sprintf("mixed/80ms/%d", limit), about: "the server is far from four processes and near to four",
			processes: 8, waiters: 40, tiers: []throttle.Tier{perSecond(limit)}, limit: limit, full: rolling(limit, 80*ms),
			trips: []time.Duration{0, 80 * ms}, warm: 5 * second, length: 20 * second, bounds: bounds{full: 0.97},
		})
	}
	add := func(name, about string, d disturbance, lasts time.Duration, hour bool, b bounds) {
		s := scenario{
			name: name, about: about, processes: 8, waiters: 60, tiers: []throttle.Tier{perSecond(100)}, limit: 100, full: rolling(100, 0),
			trips: []time.Duration{ms}, warm: 3 * second, length: 9*second + lasts, disturbance: d, from: 5 * second, lasts: lasts, bounds: b,
		}
		if hour {
			s.name, s.drain = name+"/hour", 12*second
			s.tiers = append(s.tiers, throttle.PerHour(10000))
		}
		all = append(all, s)
	}
	add("spike/none", "", none, 5*second, true, bounds{full: 0.95, unused: 0.02})
	for _, lasts := range []time.Duration{5 * second, 10 * second} {
		add(fmt.Sprintf("spike/%v", lasts), "100 ms more each way", slow, lasts, false, bounds{recovery: 2 * second})
		add(fmt.Sprintf("spike/%v", lasts), "100 ms more each way", slow, lasts, true, bounds{recovery: 2 * second, unused: 0.02})
	}
	add("lost/5%", "of the replies are lost", loses, 20*second, true, bounds{recovery: 2 * second})
	return all
}

// policy is that of a key.
func (s scenario) policy(key int) throttle.Policy {
	return throttle.Policy{Name: fmt.Sprintf("key %d", key), Tiers: s.tiers}
}
