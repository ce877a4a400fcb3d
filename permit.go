package throttle

import (
	"context"
	"sync/atomic"

	"github.com/apithrottle/throttle/store"
)

// A Permit is one admitted request. Until Arrived or Cancel it counts as on its
// way to the provider, for Policy.Guard at most; on a policy with Concurrency it
// holds its place until Release or Cancel, without a bound. Only the first call of
// each method does anything, and a nil Permit's methods do nothing. It is safe for
// concurrent use.
type Permit struct {
	quota   store.Quota
	booking store.Booking
	cost    []int64
	journey journey
	state   atomic.Uint32
}

const (
	arrived  uint32 = 1 << iota // the provider has counted it
	released                    // it is over
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
		p.quota.Arrived(p.booking, p.cost)
	}
}

// Release says that the request is over: the response's body has ended.
func (p *Permit) Release() {
	p.Arrived()
	if p.first(released) {
		p.quota.Release(p.booking, p.cost)
	}
}

// Cancel says that nothing was sent, and gives back what was charged. Once Guard
// has passed it gives back only the place of a Concurrency tier: by then the
// limiter has to take the request for counted. After Arrived or Release it does
// nothing. With a shared store it blocks for one round trip at most.
func (p *Permit) Cancel(ctx context.Context) error {
	if !p.charged() || !p.state.CompareAndSwap(0, arrived|released) {
		return nil
	}
	return p.quota.Return(ctx, p.booking, p.cost)
}
