package chart

import (
	"slices"
	"strings"
)

// A name is the name of a client, provider or delay in a chart. It has two lines.
type name struct{ key, label, note string }

// String returns the name in one line.
func (n name) String() string { return strings.TrimSpace(n.label + " " + n.note) }

func (n name) isThrottle() bool { return strings.HasPrefix(n.key, "throttle") }

var clients = []name{
	{"throttle", "throttle", "counter declared"},
	{"throttle-auto", "throttle", "declared, AutoGuard"},
	{"throttle-default", "throttle", "nothing declared"},
	{"throttle-redis", "throttle, Redis", "declared, 3 processes"},
	{"throttle-redis-auto", "throttle, Redis", "AutoGuard, 3 processes"},
	{"xtime-burst", "x/time/rate", "burst = limit"},
	{"xtime-1", "x/time/rate", "burst 1"},
	{"uber", "uber ratelimit", "even spacing"},
	{"failsafe-smooth", "failsafe-go", "smooth"},
	{"failsafe-bursty", "failsafe-go", "bursty"},
	{"redis_rate", "redis_rate", "polled, 3 processes"},
}

// selected are the clients in charts that have no room for all.
var selected = only("throttle", "throttle-auto", "throttle-redis", "xtime-burst", "failsafe-smooth", "redis_rate")

func only(keys ...string) []name {
	return slices.DeleteFunc(slices.Clone(clients), func(n name) bool { return !slices.Contains(keys, n.key) })
}

var restarts = []name{
	{"throttle-restart", "default", "starts unused"},
	{"throttle-assumeused", "AssumeUsed", "starts used up"},
	{"throttle-saved", "saved quota", "starts as it ended"},
}

var providers = []name{
	{"fixed", "fixed", "windows"},
	{"rolling", "rolling", "window"},
	{"weighted", "weighted", "windows"},
	{"bucket", "token", "bucket"},
	{"spacing", "strict", "spacing"},
	{"concurrency", "calls", "at once"},
	{"rolling+concurrency", "rolling", "+ at once"},
}

var delays = []name{
	{"none", "no", "delay"},
	{"uniform", "5–50 ms", "late"},
	{"heavy", "to 500 ms", "late"},
	{"slow", "answers", "in 1–5 s"},
}

// knownFirst returns the names of the keys: first the known names in their order, then the
// other keys.
func knownFirst(known []name, keys []string) []name {
	var names []name
	for _, n := range known {
		if slices.Contains(keys, n.key) {
			names = append(names, n)
		}
	}
	for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		if !slices.ContainsFunc(known, func(n name) bool { return n.key == key }) {
			names = append(names, name{key: key, label: key})
		}
	}
	return names
}

func isOneOf(names []name, key string) bool {
	return slices.ContainsFunc(names, func(n name) bool { return n.key == key })
}
