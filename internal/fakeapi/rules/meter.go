package rules

import (
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/throttletest"
)

// A meter counts the units of one limit. Instants are microseconds since the epoch.
type meter interface {
	admits(t, n int64) bool
	take(t, n int64)
	settle(t, n int64) // adds n units, which may be below 0, to what was taken
	earliest(t, n int64) (int64, bool)
	left(t int64) int64
}

func newMeter(l *Limit) meter {
	if l.Settled == "" && !l.Debt && !l.CountsRefused {
		t := l.tier
		t.Unit = ""
		c, err := throttletest.NewCounter(t)
		if err != nil {
			panic(err)
		}
		return &counter{c, capacity(t), map[string]int64{}}
	}
	return &pool{tier: l.tier}
}

// capacity returns the most units that a tier admits at once.
func capacity(t algorithms.Tier) int64 {
	if t.Burst > 0 {
		return t.Burst
	}
	return t.Limit
}

// A counter is a limit that knows a cost when the request arrives.
type counter struct {
	*throttletest.Counter
	capacity int64
	cost     map[string]int64 // reused
}

// units returns a cost of n units, which is valid until the next call.
func (c *counter) units(n int64) map[string]int64 {
	c.cost[algorithms.Requests] = n
	return c.cost
}

func (c *counter) admits(t, n int64) bool { return c.Admits(t, c.units(n)) < 0 }
func (c *counter) take(t, n int64)        { c.Arrive(t, c.units(n)) }

// settle ends n units in flight, if n is below 0.
func (c *counter) settle(_, n int64)                 { c.Release(c.units(-n)) }
func (c *counter) earliest(t, n int64) (int64, bool) { return c.Earliest(t, c.units(n)) }

func (c *counter) left(t int64) int64 {
	low, high := int64(0), c.capacity
	for low < high {
		if mid := low + (high-low+1)/2; c.admits(t, mid) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}

// A pool is a limit whose costs are known later. It may be in debt.
type pool struct {
	tier  algorithms.Tier
	level int64 // of a bucket: units times the window
	last  int64
	log   []charge
}

type charge struct{ t, n int64 }

func (p *pool) bucket() bool {
	switch p.tier.Algorithm {
	case algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA:
		return true
	}
	return false
}

// used returns the units in use, rounded up.
func (p *pool) used(t int64) int64 {
	window := p.tier.Window.Microseconds()
	if p.bucket() {
		p.level = max(0, p.level-(t-p.last)*p.tier.Limit)
		p.last = t
		return (p.level + window - 1) / window
	}
	start := t - window + 1
	if p.tier.Algorithm == algorithms.FixedWindow {
		start = t - t%window
	}
	for len(p.log) > 0 && p.log[0].t < start {
		p.log = p.log[1:]
	}
	var sum int64
	for _, c := range p.log {
		sum += c.n
	}
	return sum
}

func (p *pool) left(t int64) int64     { return max(0, capacity(p.tier)-p.used(t)) }
func (p *pool) admits(t, n int64) bool { return p.used(t)+n <= capacity(p.tier) }
func (p *pool) take(t, n int64)        { p.settle(t, n) }
func (p *pool) settle(t, n int64) {
	p.used(t)
	if p.bucket() {
		p.level = max(0, p.level+n*p.tier.Window.Microseconds())
		return
	}
	p.log = append(p.log, charge{t, n})
}

func (p *pool) earliest(t, n int64) (int64, bool) {
	if n > capacity(p.tier) {
		return 0, false
	}
	over := p.used(t) + n - capacity(p.tier)
	if over <= 0 {
		return t, true
	}
	window := p.tier.Window.Microseconds()
	if p.bucket() {
		excess := p.level + n*window - capacity(p.tier)*window
		return t + (excess+p.tier.Limit-1)/p.tier.Limit, true
	}
	if p.tier.Algorithm == algorithms.FixedWindow {
		return t - t%window + window, true
	}
	for _, c := range p.log {
		if over -= c.n; over <= 0 {
			return c.t + window, true
		}
	}
	return t + window, true
}
