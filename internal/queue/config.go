package queue

import (
	"context"
	"reflect"
	"time"

	"github.com/apithrottle/throttle/internal/order"
	"github.com/apithrottle/throttle/store"
)

// A Class determines the order of waiters: see Config.Aging.
type Class uint8

// The classes.
const (
	Normal Class = iota
	Interactive
	Batch
)

// A Config configures a Queue. It must not be changed.
type Config struct {
	// Owner is what the owner of the queue knows the configuration by. The queue passes it to the
	// functions of a Ticket, and a Result contains the Owner of the deciding configuration.
	Owner any
	// Replanned is called, without a lock, when the quota has a successor. It calls Replace with a
	// configuration of the successor. If nil, nothing is called.
	Replanned func()
	// Quota decides. The queue watches it while callers wait. If nil, the queue admits nobody: it keeps the
	// places of callers that other queues admit, and refuses those that are late by its Outlook.
	Quota Quota
	// Outlook is what the queue watches and forecasts by if Quota is nil.
	Outlook Outlook
	// Reserver reserves times in the quota. If nil, the quota reserves none.
	Reserver store.Reserver
	// Fast is the quota if it does not block. If nil, it may block.
	Fast store.FastQuota
	// Order is the order of this queue and others of the same quota. If nil, the quota has no other
	// queues, or it reserves times.
	Order *order.Order
	// MaxQueue is the largest number of waiting callers. If zero, any number.
	MaxQueue int
	// Aging is how much later a Normal request counts than an Interactive one, and a Batch request
	// than a Normal one. If zero, all classes count alike.
	Aging time.Duration
	// Headroom is the percentage of every tier that a Batch request leaves to others until it has
	// waited for Aging. If zero, it leaves none.
	Headroom int
	// Guard returns the guard of a request that asks now, or zero for the plan's guard. If nil, the
	// plan's guard.
	Guard func() time.Duration
}

// A Quota is what a queue asks: a store.Quota, or several together.
type Quota interface {
	TryAcquire(context.Context, store.Request) (store.Decision, error)
	Outlook
}

// An Outlook tells what a quota will admit.
type Outlook interface {
	Watch(changed func(store.Change, time.Duration)) (stop func())
	Forecast() store.Forecast
	Soonest(cost []int64, headroom int64) (wait time.Duration, tier int)
}

// Same is implemented by a quota that may reserve in the same quotas as another one.
type Same interface {
	// ReservesAs reports whether reservations of the other quota are as good as its own.
	ReservesAs(Quota) bool
}

// outlook returns what the queue watches and forecasts by.
func (c *Config) outlook() Outlook {
	if c.Quota == nil {
		return c.Outlook
	}
	return c.Quota
}

// rank returns the rank of a waiter without regard to reserved times.
func (c *Config) rank(w *newcomer) time.Time {
	if w.free && c.Reserver == nil {
		return time.Time{}
	}
	return w.Since.Add(c.Aging * time.Duration([...]int{Interactive: 0, Normal: 1, Batch: 2}[w.Class]))
}

// specify sets what a waiter's request asks for from now on. A Batch request yields until it has
// waited for Aging.
func (c *Config) specify(w *waiter, now time.Time) {
	if c.Guard != nil {
		w.Request.Guard = c.Guard() + w.Longer
	}
	s := &store.WaitSpec{MaxWait: max(0, w.timeLeft(now)), Hold: w.Hold}
	if old := w.Since.Add(c.Aging); w.Class == Batch && old.After(now) {
		s.YieldFor, s.Headroom = old.Sub(now), int64(c.Headroom)
	}
	w.Request.WaitSpec, w.Request.Queued = s, true
}

// reservesAs reports whether times that were reserved under another configuration hold under this one.
func (c *Config) reservesAs(was *Config) bool {
	if was.Reserver == nil {
		return false
	}
	same, ok := c.Quota.(Same)
	return ok && same.ReservesAs(was.Quota) || reflect.ValueOf(c.Quota).Comparable() && c.Quota == was.Quota
}

// soonest returns a lower bound of the wait of a request that finds no queue, and the tier that
// decides. The queue does not watch the quota then, so the bound is never kept.
func (c *Config) soonest(w *newcomer, now time.Time) (wait time.Duration, tier int) {
	wait, tier = c.outlook().Soonest(w.Request.Cost, 0)
	return c.yielding(w, now, wait, tier, func(headroom int64) (time.Duration, int) {
		return c.outlook().Soonest(w.Request.Cost, headroom)
	})
}

// yielding returns a lower bound of the wait of a request, counted from now, and the tier that decides.
// They are wait and tier, unless the request leaves headroom until it has aged.
func (c *Config) yielding(w *newcomer, now time.Time, wait time.Duration, tier int, leaving func(headroom int64) (time.Duration, int)) (time.Duration, int) {
	if old := w.Since.Add(c.Aging).Sub(now); w.Class == Batch && c.Headroom > 0 && wait < old {
		if longer, decides := leaving(int64(c.Headroom)); longer > wait {
			wait, tier = min(longer, old), decides
		}
	}
	if wait == forever {
		return 0, tier // only a release helps, which may come at once
	}
	return wait, tier
}
