package queue

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/alarm"
)

// TestAlarmEnds checks that a waiter on an alarm returns when it is woken and when its context ends,
// at any moment of its sleep.
func TestAlarmEnds(t *testing.T) {
	q := New(complete(Config{Quota: later(time.Hour)}))
	for i := range 200 {
		a := alarm.Get()
		if a == nil {
			t.Skip("no alarms here")
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := newWaiter()
		end := w.wakeUp
		if i%2 == 0 {
			end = cancel
		}
		var ends sync.WaitGroup
		if i < 2 { // before it sleeps
			end()
		}
		ends.Go(func() {
			time.Sleep(time.Duration(i/2) * time.Microsecond)
			end()
		})
		q.timers.sleepOn(ctx, w.wake, time.Hour, a, []*waiter{w})
		ends.Wait()
		cancel()
	}
}

// TestAlarmStopped checks that the queue returns to timers after an alarm that was not on time, such
// as one in package synctest.
func TestAlarmStopped(t *testing.T) {
	a := alarm.Get()
	if a == nil {
		t.Skip("no alarms here")
	}
	q := New(complete(Config{Quota: later(time.Hour)}))
	q.timers.late.Store(true)
	w := newWaiter()
	var stops sync.WaitGroup
	stops.Go(func() {
		for w.alarm.Load() == nil {
			time.Sleep(time.Microsecond)
		}
		a.Stop()
	})
	q.timers.sleepOn(t.Context(), w.wake, time.Hour, a, []*waiter{w})
	if stops.Wait(); q.timers.late.Load() {
		t.Error("the next waiter uses an alarm again")
	}
}

// TestTimersAreExactInVirtualTime checks that a queue in package synctest uses no alarms.
func TestTimersAreExactInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(complete(Config{Quota: every(5 * ms)}))
		var callers sync.WaitGroup
		for i := range 100 {
			callers.Go(func() {
				time.Sleep(time.Duration(i%7) * 333 * time.Microsecond)
				if _, err := q.Wait(t.Context(), ticket().of(Class(i%3))); err != nil {
					t.Error(err)
				}
				if q.timers.late.Load() {
					t.Error("a timer was late")
				}
			})
		}
		callers.Wait()
	})
}

// TestStormInRealTime has callers that come and cancel while timers are late. No more are admitted
// than the limit allows, and all of them return.
func TestStormInRealTime(t *testing.T) {
	const rate, callers, requests = 2000, 8, 60
	q := New(complete(Config{Quota: quotaOf(t, algorithms.Tier{Limit: rate, Window: sec, Algorithm: algorithms.GCRA, Burst: 1}), Aging: ms}))
	var admitted atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for i := range callers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 0))
			for range requests {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(10_000))*time.Microsecond)
				if _, err := q.Wait(ctx, ticket().of(Class(random.IntN(3)))); err == nil {
					admitted.Add(1)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if most := 1 + int64(time.Since(start)*rate/sec); admitted.Load() > most || q.Len() != 0 {
		t.Errorf("%d were admitted, want at most %d; %d wait", admitted.Load(), most, q.Len())
	}
}

func newWaiter() *waiter {
	return &waiter{newcomer: newcomer{Ticket: Ticket{wake: make(chan struct{}, 1)}}}
}
