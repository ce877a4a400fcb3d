package admit

import (
	"context"
	"fmt"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/order"
	"github.com/apithrottle/throttle/store"
)

// This file is the only one of the package that asserts what a quota implements beside store.Quota.
// For a quota that lacks an interface, a stand-in does nothing.

// A parker is a quota of this process that a Group can park: the Group keeps the bytes of its state
// instead.
type parker interface {
	Park() (state []byte, ok bool)
	Unpark(state []byte) error
	IsIdleAs(state []byte, forced bool) bool
}

// fastOf returns the quota as a FastQuota, or nil.
func fastOf(q store.Quota) store.FastQuota {
	fast, _ := q.(store.FastQuota)
	return fast
}

// reserverOf returns the quota as a Reserver, or nil.
func reserverOf(q store.Quota) store.Reserver {
	r, _ := q.(store.Reserver)
	return r
}

// doesReserve reports whether a quota reserves times. It is the same for all quotas of a store.
func doesReserve(q store.Quota) bool { return reserverOf(q) != nil }

// bundleOf returns the Bundle of a quota and the quotas around it, or nil.
func bundleOf(q store.Quota, around []store.Quota, headroom []int) store.Bundle {
	if b, ok := q.(store.Bundler); ok {
		return b.Bundle(around, headroom)
	}
	return nil
}

// orderOf returns the order of the queues of a quota, or nil.
func orderOf(q store.Quota) *order.Order {
	if o, ok := q.(order.Ordered); ok {
		return o.Order()
	}
	return nil
}

// doesForesee reports whether the quota's Soonest knows its state: the quota is in this process or on
// this host.
func doesForesee(q store.Quota) bool {
	_, ordered := q.(order.Ordered)
	return (ordered || fastOf(q) != nil) && !doesReserve(q)
}

func parkerOf(q store.Quota) parker {
	if p, ok := q.(parker); ok {
		return p
	}
	return neverParked{}
}

type neverParked struct{}

func (neverParked) Park() ([]byte, bool)       { return nil, false }
func (neverParked) Unpark([]byte) error        { return nil }
func (neverParked) IsIdleAs([]byte, bool) bool { return false }

func feedbackOf(q store.Quota) store.Feedback {
	if f, ok := q.(store.Feedback); ok {
		return f
	}
	return noFeedback{}
}

type noFeedback struct{}

func (noFeedback) Align(int, time.Time, time.Time)                      {}
func (noFeedback) Observe(store.Decision, []int64, []store.Observation) {}
func (noFeedback) Learned() bool                                        { return false }
func (noFeedback) Forget(context.Context) error                         { return nil }

func lifecycleOf(rev *Revision) store.Lifecycle {
	if l, ok := rev.quota.(store.Lifecycle); ok {
		return l
	}
	return (*onePlan)(rev)
}

// onePlan is a revision whose quota keeps its plan.
type onePlan Revision

func (p *onePlan) Change(context.Context, *algorithms.Plan) error {
	return fmt.Errorf("the store cannot change the policy of a %T: make another Limiter", p.quota)
}
func (p *onePlan) Successor() (store.Quota, *algorithms.Plan) { return p.quota, p.Plan }
func (p *onePlan) Idle() bool                                 { return true }
