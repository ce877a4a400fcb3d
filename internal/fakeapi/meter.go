package fakeapi

import (
	"time"

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
	if !l.later() {
		t := l.tier
		t.Unit = ""
		c, err := throttletest.NewCounter(t)
		if err != nil {
			panic(err)
		}
		return &counter{c, capacity(t), map[string]int64{}}
	}
	return &pool{tier: l.tier, steps: l.Steps}
}

// later reports whether the limit may charge a request after its arrival, or more than is left.
func (l *Limit) later() bool {
	for _, c := range l.Costs {
		if c.Settled != "" {
			return true
		}
	}
	return l.Settled != "" || l.Debt || l.Refused != "" || l.Steps
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
	steps bool  // a bucket gains units at steps of the clock
	level int64 // of a bucket: units times the window
	last  int64
	log   []charge
	sum   int64 // of log
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
		p.drain(t)
		return (p.level + window - 1) / window
	}
	start := t - window + 1
	if p.tier.Algorithm == algorithms.FixedWindow {
		start = p.end(t) - window
	}
	for len(p.log) > 0 && p.log[0].t < start {
		p.sum -= p.log[0].n
		p.log = p.log[1:]
	}
	return p.sum
}

// drain gives a bucket what it has gained since the last time.
func (p *pool) drain(t int64) {
	last := p.last
	if p.last = t; p.level == 0 {
		return // the first time may be long ago
	}
	if step := p.step(); p.steps {
		steps := time.UnixMicro(t).Truncate(step).Sub(time.UnixMicro(last).Truncate(step)) / step
		p.level = max(0, p.level-int64(steps)*p.tier.Window.Microseconds())
	} else if t-last > p.level/p.tier.Limit {
		p.level = 0
	} else {
		p.level = max(0, p.level-(t-last)*p.tier.Limit)
	}
}

// step returns the time between two steps of the clock at which a bucket gains a unit.
func (p *pool) step() time.Duration { return p.tier.Window / time.Duration(p.tier.Limit) }

// end returns the end of the fixed window of t.
func (p *pool) end(t int64) int64 {
	window := p.tier.Window.Microseconds()
	return t - (t-p.tier.Phase.Microseconds())%window + window
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
	p.sum += n
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
	if p.steps {
		step := p.step()
		return time.UnixMicro(t).Truncate(step).Add(time.Duration(over)*step + time.Microsecond - 1).UnixMicro(), true
	}
	if p.bucket() {
		excess := p.level + n*window - capacity(p.tier)*window
		return t + (excess+p.tier.Limit-1)/p.tier.Limit, true
	}
	if p.tier.Algorithm == algorithms.FixedWindow {
		return p.end(t), true
	}
	for _, c := range p.log {
		if over -= c.n; over <= 0 {
			return c.t + window, true
		}
	}
	return t + window, true
}
