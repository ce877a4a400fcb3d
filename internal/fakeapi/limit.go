package fakeapi

import (
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/throttletest"
)

// counters contains counters by key, all with the same tiers.
type counters struct {
	tiers []algorithms.Tier
	by    map[string]*throttletest.Counter
}

func newCounters(tiers ...algorithms.Tier) counters {
	return counters{tiers, map[string]*throttletest.Counter{}}
}

// of returns the counter of a key.
func (cs counters) of(key string) *throttletest.Counter {
	c, ok := cs.by[key]
	if !ok {
		var err error
		if c, err = throttletest.NewCounter(cs.tiers...); err != nil {
			panic(err.Error())
		}
		cs.by[key] = c
	}
	return c
}

// A limit is a counter and the cost of a call in it.
type limit struct {
	name    string
	counter *throttletest.Counter
	cost    map[string]int64
}

// charge counts a call in all limits if all admit it, and otherwise in none. by is the name of the
// first limit that refuses. wait is the time until it admits the call, 0 if time alone does not
// help.
func charge(now time.Time, limits ...limit) (by string, wait time.Duration) {
	at := now.UnixMicro()
	for _, l := range limits {
		if l.counter.Admits(at, l.cost) >= 0 {
			if next, ok := l.counter.Earliest(at, l.cost); ok {
				wait = time.Duration(next-at) * time.Microsecond
			}
			return l.name, wait
		}
	}
	for _, l := range limits {
		l.counter.Arrive(at, l.cost)
	}
	return "", 0
}
