package main

import (
	"time"

	"github.com/apithrottle/throttle"
)

const (
	ms     = time.Millisecond
	second = time.Second
	guard  = 50 * ms // the default
)

// near is the way to a server in the same datacenter.
var near = uniform(200*time.Microsecond, 800*time.Microsecond)

// rolling is the rate of a limit a second that counts over any second: a request counts for its
// guard, and for the second after.
func rolling(limit float64, roundTrip time.Duration) float64 {
	return limit / (second + guard + roundTrip).Seconds()
}

func perSecond(n int64) []throttle.Tier { return []throttle.Tier{throttle.PerSecond(n)} }

// crowd is a fleet that wants more than the limit a second.
func crowd(name string, processes, waiters int, limit int64) scenario {
	return scenario{
		name: name, processes: processes, waiters: waiters, tiers: perSecond(limit),
		ways: []way{near}, delay: uniform(ms, 10*ms),
		warm: 3 * second, length: 24 * second, full: rolling(float64(limit), 0),
	}
}

func scenarios() []scenario {
	var all []scenario
	for _, s := range []scenario{
		crowd("crowd/10x1/50", 10, 1, 50),
		crowd("crowd/10x8/50", 10, 8, 50),
		crowd("crowd/10x8/5000", 10, 8, 5000),
		crowd("crowd/10x100/5000", 10, 100, 5000),
		crowd("crowd/1000x1/50", 1000, 1, 50),
		crowd("crowd/1000x8/5000", 1000, 8, 5000),
		crowd("crowd/10000x1/50", 10000, 1, 50),
		crowd("crowd/10000x1/5000", 10000, 1, 5000),
	} {
		s.bounds = bounds{goodput: 0.9, calls: 2}
		all = append(all, s)
	}
	return all
}
