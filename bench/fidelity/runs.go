package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/bench/rig"
)

var (
	providers = []rig.Name{
		name("fixed", "fixed", "windows"), name("rolling", "rolling", "window"), name("weighted", "weighted", "windows"),
		name("bucket", "token", "bucket"), name("bucket-100", "bucket", "of 100"), name("spacing", "strict", "spacing"),
		name("rolling+concurrency", "rolling", "+ at once"), name("concurrency", "calls", "at once"),
	}
	delays = []rig.Name{
		name("none", "no", "delay"), name("uniform", "5–50 ms", "late"), name("heavy", "to 500 ms", "late"), name("slow", "answers", "in 1–5 s"),
	}
	policies = []string{"5/s", twoTiers, "60/m", "100000/m;unit=tokens + 60/m", hourly, onlyConcurrency}
)

const (
	twoTiers        = "5/s + 60/20s"
	hourly          = "10000/h"
	onlyConcurrency = "12;algo=concurrency"
)

// The length of a run is a number of the longest window, and at least minLength.
// For an hour of virtual time a run over Redis takes a second; one that polls Redis takes
// a minute. The divisors shorten such runs.
const (
	windows, minLength = 180, 10 * time.Minute
	fleetQuickDivisor  = 6 // of fleets in quick runs
	quickDivisor       = 2 // of other clients in quick runs
	pollDivisor        = 3 // of fleets that poll
)

// Runs returns every client in every scenario that applies to it. In quick mode the runs are shorter,
// and fleets run in fewer scenarios.
func Runs(quick bool, seed uint64) (runs []Run) {
	for _, policy := range policies {
		for _, provider := range providers {
			for _, delay := range delays {
				for _, c := range clients {
					r := Run{Client: c.Key, Provider: provider.Key, Delay: delay.Key, Policy: policy, Seed: seed}
					if r.applies() && (!quick || !c.redis || r.isQuick()) {
						r.Length = r.length(quick)
						runs = append(runs, r)
					}
				}
			}
		}
	}
	return runs
}

// applies reports whether the client takes part in the scenario.
func (r Run) applies() bool {
	c, _ := r.client()
	isPeer, isDefault := c.guard == nil, r.Client == "throttle-default"
	switch {
	case c.restarts:
		return r.Policy == twoTiers && r.Delay == "uniform" && (r.Provider == "fixed" || r.Provider == "rolling")
	case r.Policy == hourly: // compares pacing with none
		return r.Delay == "uniform" && (r.Provider == "bucket-100" || r.Provider == "spacing") && !c.redis
	case r.Client == "throttle-paced", r.Provider == "bucket-100":
		return false
	case r.countsTokens() && r.Client == "uber": // has no costs
		return false
	case (r.Provider == "concurrency") != (r.Policy == onlyConcurrency):
		return false
	case r.Provider == "concurrency": // has no effect on immediate responses, and peers don't support it
		return r.Delay == "slow" && !isPeer && !isDefault
	case r.Provider == "rolling+concurrency": // a concurrency limit must be declared
		return (r.Delay == "uniform" || r.Delay == "slow") && !isDefault
	}
	return true
}

// isQuick reports whether a run over Redis is made in quick mode. The other runs take
// minutes altogether, most of all those in which every release is reported to the fleet.
func (r Run) isQuick() bool {
	switch {
	case r.concurrent():
		return r.Provider == "concurrency" || r.Delay == "uniform" && !r.countsTokens()
	case r.Delay == "heavy":
		return r.Client != "redis_rate" && r.Policy != "60/m"
	}
	return r.Delay == "uniform"
}

func (r Run) length(quick bool) time.Duration {
	c, _ := r.client()
	switch {
	case c.restarts:
		return 12 * lifetime
	case r.Policy == hourly:
		return 3 * time.Hour
	}
	divisor := time.Duration(1)
	switch {
	case quick && c.redis:
		divisor = fleetQuickDivisor
	case quick:
		divisor = quickDivisor
	}
	if c.redis && c.guard == nil {
		divisor *= pollDivisor
	}
	longest := slices.MaxFunc(r.asDocumented(), func(a, b throttle.Tier) int { return cmp.Compare(a.Window, b.Window) })
	return max(minLength, windows*longest.Window) / divisor
}
