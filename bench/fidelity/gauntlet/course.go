package gauntlet

import (
	"cmp"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
)

var (
	providers = []string{"fixed", "rolling", "weighted", "bucket", "bucket-100", "spacing", "rolling+concurrency", "concurrency"}
	delays    = []string{"none", "uniform", "heavy", "slow"}
	policies  = []string{"5/s", twoTiers, "60/m", "100000/m;unit=tokens + 60/m", hourly, onlyConcurrency}
)

const (
	twoTiers        = "5/s + 60/20s"
	hourly          = "10000/h"
	onlyConcurrency = "12;algo=concurrency"
)

// Virtual runs are so many of the longest window, but at least so long. Those over
// Redis take a second for an hour, and those that poll it a minute.
const (
	windows, leastVirtual = 180, 10 * time.Minute
	quickFleet, quickOne  = 6, 2 // times shorter, if it has to be quick
	polls                 = 3    // times shorter, where a fleet polls
	realLength            = time.Minute
)

// InVirtualTime are the runs for virtual time: every client on every course. If they have to
// be quick, fleets have shorter ones, and fewer.
func InVirtualTime(quick bool, seed uint64) (runs []Run) {
	each(seed, func(r Run) {
		r.Length = r.virtualLength(quick)
		c, _ := r.client()
		if !quick || !c.redis || r.isQuick() {
			runs = append(runs, r)
		}
	})
	return runs
}

// InRealTime are the runs for real time: few enough that two cores are never late.
func InRealTime(seed uint64) (runs []Run) {
	each(seed, func(r Run) {
		r.Length = realLength
		c, _ := r.client()
		short := r.Policy == "5/s" && r.Provider == "rolling"
		long := r.Policy == twoTiers && r.Delay == "uniform" && r.Provider != "rolling+concurrency" && !c.restarts
		if short || long {
			runs = append(runs, r)
		}
	})
	return runs
}

// each calls do with every client on every course that makes sense.
func each(seed uint64, do func(Run)) {
	for _, policy := range policies {
		for _, provider := range providers {
			for _, delay := range delays {
				for _, c := range clients {
					r := Run{Client: c.name, Provider: provider, Delay: delay, Policy: policy, Seed: seed}
					if r.makesSense() {
						do(r)
					}
				}
			}
		}
	}
}

func (r Run) makesSense() bool {
	c, _ := r.client()
	isPeer, isDefault := c.guard == nil, r.Client == "throttle-default"
	switch {
	case c.restarts:
		return r.Policy == twoTiers && r.Delay == "uniform" && (r.Provider == "fixed" || r.Provider == "rolling")
	case r.Policy == hourly: // to be spread, or not
		return r.Delay == "uniform" && (r.Provider == "bucket-100" || r.Provider == "spacing") && !c.redis
	case r.Client == "throttle-spread", r.Provider == "bucket-100":
		return false
	case r.countsTokens() && r.Client == "uber": // which knows no cost
		return false
	case (r.Provider == "concurrency") != (r.Policy == onlyConcurrency):
		return false
	case r.Provider == "concurrency": // it bounds nothing where answers come at once, and peers have none
		return r.Delay == "slow" && !isPeer && !isDefault
	case r.Provider == "rolling+concurrency": // a limit of concurrency has to be declared
		return (r.Delay == "uniform" || r.Delay == "slow") && !isDefault
	}
	return true
}

// isQuick reports whether a run over Redis is made where it has to be quick. The others
// take minutes altogether, most of all where the fleet has to be told what is released.
func (r Run) isQuick() bool {
	switch {
	case r.concurrent():
		return r.Provider == "concurrency" || r.Delay == "uniform" && !r.countsTokens()
	case r.Delay == "heavy":
		return r.Client != "redis_rate" && r.Policy != "60/m"
	}
	return r.Delay == "uniform"
}

func (r Run) virtualLength(quick bool) time.Duration {
	c, _ := r.client()
	switch {
	case c.restarts:
		return 12 * aLife
	case r.Policy == hourly:
		return 3 * time.Hour
	}
	shorter := time.Duration(1)
	switch {
	case quick && c.redis:
		shorter = quickFleet
	case quick:
		shorter = quickOne
	}
	if c.redis && c.guard == nil {
		shorter *= polls
	}
	longest := slices.MaxFunc(r.asDocumented(), func(a, b throttle.Tier) int { return cmp.Compare(a.Window, b.Window) })
	return max(leastVirtual, windows*longest.Window) / shorter
}
