package main

import (
	"testing"
	"time"
)

func TestUpperBound(t *testing.T) {
	start := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		provider, delay, policy string
		length                  time.Duration
		atLeast, atMost         int64
	}{
		{"rolling", "none", "5/s", 10 * time.Second, 50, 50},
		{"rolling", "uniform", "5/s", 10 * time.Second, 50, 50}, // without the delay
		{"rolling", "none", twoTiers, 60 * time.Second, 180, 180},
		{"rolling", "none", twoTiers, 61 * time.Second, 185, 185},
		{"fixed", "none", "5/s", 10 * time.Second, 55, 55}, // with knowledge of the phase
		{"fixed", "none", "60/m", 10 * time.Minute, 660, 660},
		{"bucket", "none", "60/m", 10 * time.Minute, 60 + 599, 60 + 599}, // the last is due at the end
		{"spacing", "none", "60/m", 10 * time.Minute, 600, 600},
		{"weighted", "none", "5/s", 10 * time.Second, 30, 55},
		// 12 at a time for 3 s each.
		{"concurrency", "slow", onlyConcurrency, 10 * time.Minute, 2300, 2500},
		{"rolling+concurrency", "slow", "5/s", 10 * time.Minute, 2200, 2500},
		{"rolling+concurrency", "none", "5/s", 10 * time.Second, 50, 50},
		// In each minute, all but the remainder that the next request doesn't fit into.
		{"rolling", "none", "100000/m;unit=tokens + 60/m", 10 * time.Minute, 960_000, 1_000_000},
	} {
		r := Run{Client: "throttle", Provider: test.provider, Delay: test.delay, Policy: test.policy, Seed: 1}
		got, err := r.UpperBound(start, start, start.Add(test.length))
		if err != nil || got < test.atLeast || got > test.atMost {
			t.Errorf("%v, %v: UpperBound = %d, %v, want %d to %d", r, test.length, got, err, test.atLeast, test.atMost)
		}
	}
}
