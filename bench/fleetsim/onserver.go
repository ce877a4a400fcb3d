package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
)

// onServer returns the scenarios in real time.
func onServer() (all []scenario) {
	for _, n := range []int{2000, 20000} {
		s := inRealTime(fmt.Sprintf("keys/at-once/%d", n), "one request of each key, all at the same instant", 1, n, 5)
		s.keys, s.requests = n, 1
		s = s.measured(0, 10*second)
		s.full = float64(n) / s.length.Seconds()
		s.bounds = bounds{goodput: 1, calls: 2}
		all = append(all, s)
	}
	steady := inRealTime("keys/steady/3000", "one request of each key every 2 s, and the server is stopped for 0.5 s", 1, 3000, 5)
	steady.keys, steady.rest, steady.full = 3000, 2*second, 1500
	steady.faults = []fault{{kind: stall, at: 6 * second, lasts: 500 * ms}}
	steady.bounds = bounds{goodput: 0.95, calls: 2, recovery: 2 * second}
	waits := inRealTime("keys/rest/1500", "one caller of each key waits for an hour", 1, 1500, 1)
	waits.keys, waits.tiers, waits.full = 1500, []throttle.Tier{throttle.PerHour(1)}, 1
	waits.bounds = bounds{calls: 20} // after the warm-up, in all
	all = append(all, steady.measured(4*second, 12*second), waits.measured(5*second, 20*second))
	for _, roundTrip := range []time.Duration{ms, 20 * ms, 80 * ms, 200 * ms, 400 * ms} {
		for _, limit := range []int64{5, 50, 1000} {
			s := inRealTime(fmt.Sprintf("far/%v/%d", roundTrip, limit), "round trips to the server take this long", 4, 0, limit)
			s.ways, s.full = []way{constant(roundTrip / 2)}, rolling(limit, roundTrip)
			s.waiters = max(8, far(roundTrip, limit, throttle.SlidingLog).waiters)
			s.bounds = bounds{goodput: 0.97}
			all = append(all, s.measured(5*second, 20*second))
		}
	}
	for _, limit := range []int64{50, 1000} {
		s := inRealTime(fmt.Sprintf("mixed/80ms/%d", limit), "the server is far from four processes and near four others", 8, 40, limit)
		s.ways, s.full = []way{constant(0), constant(40 * ms)}, rolling(limit, 80*ms)
		s.bounds = bounds{goodput: 0.97}
		all = append(all, s.measured(5*second, 20*second))
	}
	return slices.Concat(all, separate(), disturbed(), overloads())
}

// separate returns scenarios with many processes, most of which are processes of the operating
// system.
func separate() (all []scenario) {
	for _, n := range []int{10, 100, 300, 1000} {
		for _, waiters := range []int{1, 8} {
			for _, limit := range []int64{50, 5000} {
				s := inRealTime(fmt.Sprintf("processes/%dx%d/%d", n, waiters, limit), "processes of the operating system", n, waiters, limit)
				s.separate, s.bounds = true, bounds{calls: 1.5}
				all = append(all, s)
			}
		}
	}
	for _, n := range []int{100, 1000} {
		for _, waiters := range []int{1, 8} {
			for _, limit := range []int64{50, 5000} {
				s := inRealTime(fmt.Sprintf("nested/%dx%d/%d", n, waiters, limit), "eight keys inside one quota, with a third of its limit each", n, waiters, limit)
				s.keys, s.tiers, s.around = 8, []throttle.Tier{throttle.PerSecond(limit / 3)}, s.tiers
				s.separate, s.bounds = n <= 100, bounds{calls: 3}
				all = append(all, s)
			}
		}
	}
	return all
}

// overloads returns scenarios of a limiter of 1,000/s in memory, while far more callers wait than it
// may admit. They show how soon it refuses a request whose deadline is too near.
func overloads() (all []scenario) {
	const limit = 1000
	for _, mix := range []struct {
		name           string
		waiting        int // units, which can all be admitted before their deadlines
		costs, classes bool
	}{
		{"27000", 27_000, false, false},
		{"200000", 200_000, false, false},
		{"27000/costs", 27_000, true, false},
		{"27000/classes", 27_000, false, true},
		{"27000/costs+classes", 27_000, true, true},
		{"200000/classes", 200_000, false, true},
	} {
		s := inRealTime("overload/"+mix.name, "2,000 newcomers a second", 1, mix.waiting, limit)
		s.alone, s.requests, s.newcomers, s.classes = true, 1, 2000, mix.classes
		s.deadline = time.Duration(mix.waiting) * second / limit * 10 / 9
		s.guard, s.provided, s.full = throttle.NoGuard, []throttle.Tier{throttle.PerSecond(1_000_000_000)}, limit
		if mix.costs {
			s.about += " of 1, 2 and 5 units"
			s.costs, s.waiters = []int64{1, 2, 5}, mix.waiting*3/8
		}
		if mix.classes {
			s.about += ", of all classes; one in five cancels"
			s.cancels, s.cancelWithin = 0.2, s.deadline
		}
		all = append(all, s.measured(4*second+time.Duration(mix.waiting)*50*time.Microsecond, 10*second))
	}
	return all
}

// inRealTime returns a fleet beside the server whose callers ask for more than the limit a second.
func inRealTime(name, about string, processes, waiters int, limit int64) scenario {
	s := perSecond(name, about, processes, waiters, limit)
	s.real, s.ways, s.delay = true, nil, way{}
	return s.measured(3*second, 10*second)
}

// disturbed returns scenarios in which the network is slow or loses replies for some seconds.
func disturbed() (all []scenario) {
	add := func(name, about string, hour bool, b bounds, f fault) {
		f.at = 5 * second
		s := inRealTime(name, about, 8, 60, 100)
		s.ways, s.bounds = []way{constant(ms / 2)}, b
		if hour {
			s.name, s.drain = name+"/hour", 12*second
			s.tiers = append(s.tiers, throttle.PerHour(10000))
		}
		if f.lasts > 0 {
			s.faults = []fault{f}
		}
		all = append(all, s.measured(3*second, 9*second+f.lasts))
	}
	add("spike/none", "", true, bounds{goodput: 0.95, lost: 0.02}, fault{})
	for _, lasts := range []time.Duration{5 * second, 10 * second} {
		f := fault{kind: slow, lasts: lasts, by: 100 * ms}
		add(fmt.Sprintf("spike/%v", lasts), "100 ms more each way", false, bounds{recovery: 2 * second}, f)
		add(fmt.Sprintf("spike/%v", lasts), "100 ms more each way", true, bounds{recovery: 2 * second, lost: 0.02}, f)
	}
	add("lost/5%", "this share of the replies is lost", true, bounds{recovery: 2 * second}, fault{kind: lose, lasts: 20 * second, share: 0.05})
	return all
}
