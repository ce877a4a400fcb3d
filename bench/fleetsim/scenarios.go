package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
)

const (
	ms     = time.Millisecond
	second = time.Second
	guard  = 50 * ms // the default
)

// near is the delay to a server in the same datacenter.
var near = uniform(200*time.Microsecond, 800*time.Microsecond)

// rolling returns the highest rate under a limit that counts over any second. A request counts for
// its guard, and for the second after.
func rolling(limit int64, roundTrip time.Duration) float64 {
	return float64(limit) / cycle(roundTrip).Seconds()
}

// cycle returns the time after which another burst can follow a burst of such a limit.
func cycle(roundTrip time.Duration) time.Duration { return second + guard + roundTrip }

// scenarios returns all scenarios: those in virtual time, and those of them that a redis-server can play.
func scenarios() []scenario {
	all := slices.Concat(crowds(), distant(), arrivals(), []scenario{canceled()}, spikes(), keys(), atOnce(), batches(), nested(), releases(), faults())
	return slices.Concat(all, onServer(all), overloads())
}

// onServer returns the scenarios that a redis-server can play in at most two minutes.
func onServer(virtual []scenario) (all []scenario) {
	possible := []kind{stall, slow, lose, kill, start}
	for _, s := range virtual {
		impossible := func(f fault) bool { return !slices.Contains(possible, f.kind) || f.kind == stall && f.at < second }
		if s.length+s.drain <= 2*time.Minute && !s.alone && s.busy == (service{}) && !slices.ContainsFunc(s.faults, impossible) {
			s.real = true
			all = append(all, s)
		}
	}
	return all
}

// distant returns scenarios in which some processes are far from the server.
func distant() (all []scenario) {
	for _, roundTrip := range []time.Duration{ms, 20 * ms, 80 * ms, 200 * ms, 400 * ms} {
		for _, limit := range []int64{5, 50, 1000} {
			for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.TokenBucket} {
				all = append(all, far(roundTrip, limit, a))
			}
		}
	}
	return append(all, mixed(6*ms, 50), mixed(80*ms, 50), mixed(80*ms, 1000))
}

// perSecond returns a fleet near the server whose callers ask for more than the limit a second.
func perSecond(name, about string, processes, waiters int, limit int64) scenario {
	s := scenario{
		name: name, about: about, processes: processes, waiters: waiters,
		tiers: []throttle.Tier{throttle.PerSecond(limit)},
		ways:  []way{near}, delay: uniform(ms, 10*ms), full: rolling(limit, 0),
	}
	return s.measured(3*second, 20*cycle(0))
}

// measured sets how long a scenario is measured, best in whole cycles, and how long it runs before.
func (s scenario) measured(warm, length time.Duration) scenario {
	s.warm, s.length = warm, warm+length
	return s
}

// crowds returns scenarios in which many processes ask at once, each for a few callers. The cost of
// an admission must not grow with their number.
func crowds() []scenario {
	var all []scenario
	for _, c := range []struct {
		processes, waiters int
		limit              int64
		large              bool
	}{
		{10, 1, 50, false},
		{10, 8, 50, false},
		{10, 8, 5000, true},
		{10, 100, 5000, true},
		{1000, 1, 50, false},
		{1000, 8, 5000, true},
		{10000, 1, 50, true},
		{10000, 1, 5000, true},
	} {
		s := perSecond(fmt.Sprintf("crowd/%dx%d/%d", c.processes, c.waiters, c.limit), "", c.processes, c.waiters, c.limit)
		s.bounds, s.large = bounds{goodput: 0.9, calls: 1.5}, c.large
		if c.processes*c.waiters == 1000 && c.limit == 50 {
			// The first replies take 60 ms, and one burst of twenty may fall after the end. Each caller waits
			// in line, and its process asks for a turn and at the turn.
			s.bounds.goodput, s.bounds.calls = 0.85, 2.4
		}
		all = append(all, s)
	}
	s := perSecond("crowd/1000x8/5000/slow-core", "a call of the script takes twice as long", 1000, 8, 5000)
	s.busy = s.service()
	s.busy.Call, s.busy.Request = 2*s.busy.Call, 2*s.busy.Request
	s.bounds, s.large = bounds{goodput: 0.9, calls: 1.5}, true
	all = append(all, s)
	late := perSecond("crowd/late/500x1/50", "500 processes start beside 10", 510, 1, 50)
	late.faults = []fault{{kind: start, at: 5 * second, affects: func(i int) bool { return i >= 10 }}}
	late.bounds = bounds{goodput: 0.9, calls: 4} // two calls of each process that starts, and two of each caller in line
	all = append(all, late)
	// Processes that one stall synchronizes may stay synchronized.
	for _, c := range []struct {
		processes, waiters int
		limit              int64
		large              bool
	}{{400, 1, 50, false}, {600, 1, 500, true}, {1000, 8, 5000, true}} {
		s := perSecond(fmt.Sprintf("crowd/stall/%dx%d/%d", c.processes, c.waiters, c.limit), "of 0.5 s", c.processes, c.waiters, c.limit)
		s.faults = []fault{{kind: stall, at: 8 * second, lasts: 500 * ms}}
		s.bounds, s.large = bounds{goodput: 0.85, calls: 2.4, recovery: 2 * second}, c.large
		all = append(all, s)
	}
	return all
}

// far returns a scenario in which four processes are far from the server. A caller may be admitted
// a round trip late.
func far(roundTrip time.Duration, limit int64, a throttle.Algorithm) scenario {
	const processes, atProvider = 4, 11 * ms // atProvider is the mean time that the provider takes
	s := perSecond(fmt.Sprintf("far/%v/%d/%v", roundTrip, limit, a), "", processes, 0, limit)
	s.tiers[0].Algorithm = a
	s.ways = []way{uniform(roundTrip/2-roundTrip/20, roundTrip/2+roundTrip/20)}
	s.waiters = max(4, int(math.Ceil(2*float64(limit)*(roundTrip+atProvider).Seconds()/processes)))
	s.full = rolling(limit, roundTrip)
	if a == throttle.TokenBucket {
		s.full = float64(limit)
	}
	s.bounds = bounds{goodput: 0.97, calls: 2}
	s.large = limit > 50
	cycles := 20
	if s.large {
		cycles = 10
	}
	// The first round trips open connections.
	return s.measured(5*second+10*roundTrip, time.Duration(cycles)*cycle(roundTrip))
}

// mixed returns a scenario in which far and near processes share a limit. There are more callers
// than a window admits. Otherwise the near callers, which come back sooner, would use the rest of a
// window before the far ones ask.
func mixed(roundTrip time.Duration, limit int64) scenario {
	s := perSecond(fmt.Sprintf("mixed/%v/%d", roundTrip, limit), "4 processes are far and 4 near", 8, max(20, int(limit)/6), limit)
	s.ways = []way{near, uniform(roundTrip/2-roundTrip/20, roundTrip/2+roundTrip/20)}
	s.full, s.large = rolling(limit, roundTrip), limit > 50
	s.bounds = bounds{goodput: 0.97, calls: 2, fair: 0.75}
	return s.measured(5*second, 40*cycle(roundTrip))
}

// arrivals returns scenarios in which requests take 5 to 500 ms to arrive, and most of them little.
// Responses that report arrivals would therefore reduce the time for which a request counts from
// the guard to the mean. The same callers in one process without a server show what there is to
// gain.
func arrivals() []scenario {
	var all []scenario
	for _, c := range []struct {
		name  string
		tier  throttle.Tier
		bound float64
	}{
		{"log", throttle.PerSecond(5), 0.9},
		{"sub-buckets", throttle.Tier{Limit: 5, Window: second, Algorithm: throttle.SlidingWindow}, 0.9},
		{"fixed", throttle.Tier{Limit: 5, Window: second, Algorithm: throttle.FixedWindow}, 0.9},
		{"spacing", throttle.Tier{Limit: 5, Window: second, Algorithm: throttle.GCRA, Burst: 1}, 0.7},
	} {
		for _, g := range []time.Duration{500 * ms, throttle.AutoGuard} {
			name := "auto"
			if g > 0 {
				name = g.String()
			}
			for _, alone := range []bool{false, true} {
				s := perSecond("arrivals/"+c.name+"/"+name, "", 4, 4, 5)
				s.tiers, s.guard, s.delay, s.full = []throttle.Tier{c.tier}, g, pareto(5*ms, 1, 500*ms), 5
				s.bounds = bounds{goodput: c.bound, calls: 5}
				if s.alone = alone; alone {
					s.name, s.processes, s.waiters = s.name+"/alone", 1, 16
				}
				all = append(all, s.measured(30*second, 120*second))
			}
		}
	}
	return all
}

// canceled returns a scenario in which costs differ, and one request in five is canceled while it
// waits. The reservations of canceled requests go to other requests, also smaller ones.
func canceled() scenario {
	const limit = 600
	return scenario{
		name: "canceled/600", about: "a minute, of 1 to 60 units; one in five is canceled", processes: 80, waiters: 1,
		tiers: []throttle.Tier{throttle.PerMinute(limit)}, ways: []way{near}, delay: uniform(ms, 10*ms),
		costs: []int64{1, 1, 2, 5, 10, 60}, cancels: 0.2, cancelWithin: 2 * time.Minute,
		full:   limit / (time.Minute + guard).Seconds(),
		bounds: bounds{goodput: 0.85}, // large costs at the head of the queue leave room unused
	}.measured(3*time.Minute, 10*(time.Minute+guard))
}

// spikes returns scenarios in which the network is slow for some seconds.
func spikes() []scenario {
	var all []scenario
	for _, lasts := range []time.Duration{5 * second, 10 * second} {
		for _, hour := range []bool{false, true} {
			s := perSecond(fmt.Sprintf("spike/%v", lasts), "100 ms each way", 8, 60, 100)
			s.faults = []fault{{kind: slow, at: 10 * second, lasts: lasts, by: 100 * ms}}
			s.bounds = bounds{recovery: 2 * second}
			if hour {
				s.name += "/hour"
				s.tiers = append(s.tiers, throttle.PerHour(10000))
				s.bounds.lost, s.drain = 0.02, 20*second
			}
			all = append(all, s.measured(3*second, 7*second+lasts+45*second))
		}
	}
	return all
}

// keys returns scenarios in which a process has many limiters, each far below its limit.
func keys() []scenario {
	var all []scenario
	for _, w := range []struct {
		name string
		way  way
	}{{"", near}, {"/5ms", uniform(2*ms, 3*ms)}} {
		once := perSecond("keys/2000-at-once"+w.name, "", 1, 2000, 5)
		once.keys, once.requests, once.ways = 2000, 1, []way{w.way}
		once = once.measured(0, 4*second)
		once.full = 2000 / once.length.Seconds()
		once.bounds = bounds{goodput: 1, calls: 1.5, longest: 2 * second}
		steady := perSecond("keys/3000-steady"+w.name, "the server stalls for 0.5 s", 1, 3000, 5)
		steady.keys, steady.rest, steady.ways = 3000, 2*second, once.ways
		steady.faults = []fault{{kind: stall, at: 3 * second, lasts: 500 * ms}}
		steady = steady.measured(2*second, 5*second)
		once.large, steady.large = w.name == "", w.name == ""
		steady.full = 3000 / 2.012
		steady.bounds = bounds{goodput: 0.9, calls: 2, recovery: 2 * second}
		all = append(all, once, steady)
	}
	rest := perSecond("keys/1500-rest", "one caller of each key waits for an hour", 1, 1500, 1)
	rest.keys, rest.tiers, rest.full = 1500, []throttle.Tier{throttle.PerHour(1)}, 1
	rest.bounds = bounds{calls: 20} // after the warm-up, in all
	return append(all, rest.measured(5*second, 20*second))
}

// faults returns scenarios in which something breaks, in a fleet of near and far processes, some of
// which have delays with a heavy tail.
func faults() []scenario {
	const at = 10 * second
	var all []scenario
	add := func(name, about string, b bounds, faults ...fault) *scenario {
		s := perSecond("fault/"+name, about, 20, 4, 50)
		s.ways = []way{near, uniform(ms, 5*ms), pareto(ms, 1.5, 200*ms), near}
		s.faults, s.bounds = faults, b
		s.bounds.calls = 3
		all = append(all, s.measured(3*second, 36*cycle(0)))
		return &all[len(all)-1]
	}
	add("none", "", bounds{goodput: 0.97, longest: 5 * second})
	add("lost", "5 % of the replies are lost", bounds{goodput: 0.9}, fault{kind: lose, lasts: time.Hour, share: 0.05})
	add("stall", "of 2 s", bounds{goodput: 0.9, recovery: 2 * second}, fault{kind: stall, at: at, lasts: 2 * second})
	add("partition", "of half of the processes, for 3 s", bounds{goodput: 0.9, recovery: 2 * second},
		fault{kind: partition, at: at, lasts: 3 * second, affects: oneIn(2)})
	add("kill", "a tenth of the processes", bounds{goodput: 0.95, recovery: 2 * second}, fault{kind: kill, at: at, affects: oneIn(10)})
	add("step-back", "the server's clock, by 8 s", bounds{goodput: 0.95, recovery: 2 * second}, fault{kind: step, at: at, by: -8 * second})
	// A step forward looks like idle time: one window and the earlier reservations may be admitted
	// in excess.
	add("step-forward", "the server's clock, by 30 s", bounds{goodput: 0.95, refused: 100, recovery: 2 * second}, fault{kind: step, at: at, by: 30 * second})
	for _, by := range []time.Duration{100 * time.Microsecond, -100 * time.Microsecond} {
		gains := fmt.Sprintf("rate%+d", by.Microseconds())
		add(gains, "ppm of the server's clock", bounds{goodput: 0.97}, fault{kind: rate, by: by})
		for _, window := range []time.Duration{time.Minute, time.Hour} {
			s := add(fmt.Sprintf("%s/1000-in-%.0f-min", gains, window.Minutes()), "ppm of the server's clock", bounds{goodput: 0.97}, fault{kind: rate, by: by})
			s.tiers = append(s.tiers, throttle.Tier{Limit: 1000, Window: window})
			s.full = 1000 / (window + guard).Seconds()
			*s = s.measured(window/2, 2*(window+guard))
		}
	}
	add("flush", "the scripts", bounds{goodput: 0.97, recovery: second}, fault{kind: flush, at: at})
	// What was charged since that state may be admitted once more, and so may earlier reservations.
	add("failover", "to a state of 0.5 s ago", bounds{goodput: 0.9, refused: 100, recovery: 2 * second}, fault{kind: failover, at: at, by: 500 * ms})
	add("failover/empty", "to none", bounds{goodput: 0.9, refused: 100, recovery: 2 * second}, fault{kind: failover, at: at, by: time.Hour})
	return all
}

// atOnce returns scenarios in which many processes share places, and each request holds one for 200
// ms.
func atOnce() []scenario {
	const limit, hold = 50, 200 * ms
	var all []scenario
	add := func(name, about string, processes, waiters int, tiers ...throttle.Tier) *scenario {
		s := perSecond("at-once/"+name, about, processes, waiters, limit)
		s.tiers = append([]throttle.Tier{{Limit: limit, Algorithm: throttle.Concurrency}}, tiers...)
		s.delay, s.full = constant(hold/2), float64(limit)/hold.Seconds()
		// A request costs one call that asks and one that reports its end, and gets one message
		// about its place.
		inTurn := time.Duration(float64(processes*waiters) / s.full * float64(second))
		s.bounds = bounds{goodput: 0.97, calls: 2.2, messages: 1.1, even: 0.8, longest: 2 * max(hold, inTurn)}
		all = append(all, s.measured(5*second, 20*second))
		return &all[len(all)-1]
	}
	add("16x8", "", 16, 8)
	add("60x1", "", 60, 1).large = true
	add("128x8", "", 128, 8)
	crowd := add("1000x1", "each also asks every five seconds", 1000, 1)
	crowd.bounds.calls, crowd.large = 3.2, true
	rest := add("rest/300x1", "there are places for half of them", 300, 1)
	rest.rest, rest.full, rest.large = 2*second, 300/2.2, true
	rest.bounds = bounds{goodput: 0.95, calls: 2.2, messages: 1.1, longest: second}
	far := add("far/16x8", "80 ms from the server", 16, 8)
	// A place changes hands with the report of the end, the message, the call and the reply.
	far.ways, far.full = []way{uniform(38*ms, 42*ms)}, float64(limit)/(hold+160*ms).Seconds()
	// Calls of one process take turns, and chance decides which are first: 0.67 to 0.8 in most runs.
	far.bounds = bounds{goodput: 0.9, calls: 2.2, messages: 1.1, even: 0.5, longest: 3 * second}
	dead := add("kill/16x8", "half of the processes, whose places come back with the end of their leases", 16, 8)
	dead.faults = []fault{{kind: kill, at: 10 * second, affects: oneIn(2)}}
	dead.bounds = bounds{calls: 2.2, messages: 1.1, recovery: 11 * second}
	return all
}

// batches returns scenarios in which many processes have requests that yield. Each process asks
// once for a turn, once at its turn, and once in five seconds.
func batches() []scenario {
	var all []scenario
	for _, n := range []int{10, 100, 300} {
		s := perSecond(fmt.Sprintf("batch/%dx1", n), "", n, 1, 50)
		s.batch = oneIn(1)
		inTurn := cycle(0) + time.Duration(float64(n)/s.full*float64(second))
		s.bounds = bounds{goodput: 0.97, calls: 3.2, even: 0.7, longest: 2 * inTurn}
		all = append(all, s)
	}
	s := perSecond("batch/100x20/1000", "", 100, 20, 1000)
	s.large = true
	s.batch = oneIn(1)
	s.bounds = bounds{goodput: 0.95, calls: 1, even: 0.6, longest: 2 * (cycle(0) + 2*second)}
	all = append(all, s)
	s = perSecond("batch/beside-users", "a tenth of 300 processes does not yield", 300, 1, 50)
	s.batch = func(i int) bool { return i%10 > 0 }
	s.bounds = bounds{goodput: 0.95, calls: 5}
	return append(all, s)
}

// releases returns scenarios in which processes of two releases ask, which know different limits.
func releases() []scenario {
	var all []scenario
	for _, c := range []struct {
		name   string
		former throttle.Tier
		of     int // processes of the former release
		least  float64
	}{
		{"one-of-50", throttle.PerSecond(50), 1, 0.9},
		{"half-of-50", throttle.PerSecond(50), 100, 0.65},
		{"one-of-10-a-minute", throttle.PerMinute(10), 1, 0.9},
		{"half-of-10-a-minute", throttle.PerMinute(10), 100, 0.6},
	} {
		s := perSecond("releases/"+c.name, "the others know 100 a second", 200, 4, 100)
		s.tiersOf = func(i int) []throttle.Tier {
			if i < c.of {
				return []throttle.Tier{c.former}
			}
			return s.tiers
		}
		s.bounds = bounds{goodput: c.least, calls: 2}
		all = append(all, s)
	}
	return all
}

// nested returns scenarios in which each caller of a process has a key of its own, with a limit of
// its own, inside one quota. The keys together admit less than that quota, about as much, or more.
// The calls for each admission must not grow with the number of processes.
func nested() []scenario {
	const limit, waiters = 50, 8
	var all []scenario
	for _, n := range []int{10, 100, 300, 1000} {
		for _, inner := range []int64{5, 7, 16} {
			s := perSecond(fmt.Sprintf("nested/%dx%d/%d-in-%d", n, waiters, inner, limit), "eight keys inside one quota", n, waiters, limit)
			s.keys, s.tiers, s.around = waiters, []throttle.Tier{throttle.PerSecond(inner)}, s.tiers
			s.full = min(s.full, waiters*rolling(inner, 0))
			// A caller asks for a turn, at its turn, and a few times between.
			s.bounds = bounds{goodput: 0.9, calls: 8}
			s.large = n > 100
			if n == 1000 {
				s.bounds.goodput = 0.8 // 8,000 callers ask at the start, and some are told too late
			}
			all = append(all, s.measured(10*second, 20*cycle(0)))
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
		s := perSecond("overload/"+mix.name, "2,000 newcomers a second", 1, mix.waiting, limit)
		s.real, s.alone, s.ways, s.delay = true, true, nil, way{}
		s.requests, s.newcomers, s.classes = 1, 2000, mix.classes
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
