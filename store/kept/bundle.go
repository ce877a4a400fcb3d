package kept

import (
	"slices"
	"time"

	"github.com/apithrottle/throttle/store"
)

// Bundle returns nil if a quota is of another store, or the same as another.
func (q *reserving) Bundle(around []store.Quota, headroom []int) store.Bundle {
	b := &bundle{[]*reserving{q}, headroom}
	for _, o := range around {
		r, ok := o.(*reserving)
		if !ok || r.store != q.store || slices.ContainsFunc(b.quotas, func(q *reserving) bool { return string(q.name) == string(r.name) }) {
			return nil
		}
		b.quotas = append(b.quotas, r)
	}
	return b
}

// A bundle is a quota and the quotas around it. One transaction charges all of them.
type bundle struct {
	quotas []*reserving
	// headroom are the percentages that requests which yield leave in them.
	headroom []int
}

// Reserve makes a trip, in a goroutine that ends with it.
func (b *bundle) Reserve(guards []time.Duration, requests []store.Request, done func([]store.Decision, error)) {
	reserveBy(func(requests []store.Request) *trip {
		return &trip{quotas: b.quotas, guards: guards, headroom: b.headroom, requests: requests}
	}, requests, done)
}

// Cancel returns the reservations to each quota.
func (b *bundle) Cancel(reserved []store.Decision) {
	for i, q := range b.quotas {
		q.Cancel(partsOf(reserved, i))
	}
}

// Leave is like the method of a Reserver.
func (b *bundle) Leave() {
	for _, q := range b.quotas {
		q.Leave()
	}
}

// partsOf returns the decisions of one of the quotas.
func partsOf(got []store.Decision, i int) []store.Decision {
	parts := make([]store.Decision, len(got))
	for j, d := range got {
		if d.Verdict == store.Admitted {
			parts[j] = d.Reservation.Parts[i]
		}
	}
	return parts
}
