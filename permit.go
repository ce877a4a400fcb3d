package throttle

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/apithrottle/throttle/store"
)

// A Permit is one admitted request. Until Arrived or Cancel it counts as on its
// way to the provider, for Policy.Guard at most; on a policy with Concurrency it
// holds its place until Release or Cancel, without a bound. Only the first call of
// each method does anything, and a nil Permit's methods do nothing. It is safe for
// concurrent use.
type Permit struct {
	gate    *gate
	booking store.Decision
	cost    []int64
	journey journey
	state   atomic.Uint32
}

const (
	arrived  uint32 = 1 << iota // the provider has counted it
	released                    // it is over
	settled                     // what it cost is known
)

func (p *Permit) charged() bool { return p != nil && p.booking.Verdict == store.Admitted }

// first sets a mark and tells whether it was not set before.
func (p *Permit) first(mark uint32) bool {
	return p.charged() && p.state.Or(mark)&mark == 0
}

// Arrived says that the response is in, so that the provider has counted the
// request: its window runs from here.
func (p *Permit) Arrived() {
	if p.first(arrived) {
		p.journey.answered()
		p.gate.quota.Arrived(p.booking, p.cost)
	}
}

// Settle says what the request has really cost in the units that are Estimated; one
// that is not named cost what was estimated. It blocks for nothing. An amount of any
// other unit is an error.
func (p *Permit) Settle(actual Cost) error {
	if !p.charged() {
		return nil
	}
	if err := p.gate.settles(actual); err != nil {
		return err
	}
	p.Arrived()
	if p.gate.estimates && p.first(settled) {
		p.gate.reckon(p.booking, p.cost, p.gate.actual(p.cost, actual))
	}
	return nil
}

// settles refuses amounts that are no estimates.
func (t *terms) settles(actual Cost) error {
	for unit, n := range actual {
		u := slices.Index(t.units, unit)
		switch {
		case u < 0 || !t.estimated[u]:
			return t.errorf("cost of %q can't be settled: set Estimated in a tier of that unit", unit)
		case n < 0:
			return t.errorf("cost of %q is %d: it must be at least 0", unit, n)
		}
	}
	return nil
}

// Release says that the request is over: the response's body has ended. What was not
// settled cost what was estimated.
func (p *Permit) Release() {
	_ = p.Settle(nil)
	if p.charged() && p.gate.concurrent && p.first(released) {
		p.gate.quota.Release(p.booking, p.cost)
	}
}

// Cancel says that nothing was sent, and gives back what was charged. Once Guard
// has passed it gives back only the place of a Concurrency tier and what was Estimated:
// by then the limiter has to take the rest for counted. After Arrived, Settle or Release
// it does nothing. With a shared store it blocks for one round trip at most.
func (p *Permit) Cancel(ctx context.Context) error {
	if !p.charged() || !p.state.CompareAndSwap(0, arrived|released|settled) {
		return nil
	}
	return p.gate.quota.Return(ctx, p.booking, p.cost)
}
