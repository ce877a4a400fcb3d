package queue

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/internal/alarm"
)

// An action is what a waiter does next: ask the quota, or sleep.
type action struct {
	ask bool
	// generation is the generation of the request to the quota.
	generation int
	wait       time.Duration
	// asks reports that the waiter asks when it wakes. If that is late, all behind it are late too,
	// by the sum of what each of them is late.
	asks bool
}

const (
	alarmBelow = 50 * time.Millisecond // in longer waits a late timer costs little of the quota
	alarmLate  = time.Millisecond      // by more, a timer may be better
)

// timers are what the waiters of a queue sleep on.
type timers struct {
	// late reports that the last timer fired late, so that an alarm may be better. Timers are exact
	// in package synctest, where a goroutine must not sleep on anything else.
	late atomic.Bool
}

// sleep is the only function that sleeps. It ends after do.wait, when the waiter is woken, or with
// the context.
// The waiters are those of one caller.
func (t *timers) sleep(ctx context.Context, do action, waiters ...*waiter) {
	wake := waiters[0].wake
	if do.asks && do.wait > 0 && do.wait < alarmBelow && t.late.Load() {
		if a := alarm.Get(); a != nil {
			t.sleepOn(ctx, wake, do.wait, a, waiters)
			return
		}
	}
	var rings <-chan time.Time
	var start time.Time
	if do.wait < forever {
		start = time.Now()
		timer := time.NewTimer(do.wait)
		defer timer.Stop()
		rings = timer.C
	}
	select {
	case <-rings:
		t.late.Store(time.Since(start) > max(0, do.wait))
	case <-wake:
	case <-ctx.Done():
	}
}

// SleepUntil sleeps until a time, for a caller that has left its queue before. It ends with the context.
func SleepUntil(ctx context.Context, at time.Time) error {
	left := time.Until(at)
	if left <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sleepOn sleeps on an alarm, and returns it. If the alarm is not on time either, the next waiter
// uses a timer.
func (t *timers) sleepOn(ctx context.Context, wake <-chan struct{}, d time.Duration, a *alarm.Alarm, waiters []*waiter) {
	defer a.Put()
	start := time.Now()
	a.Start()
	setAlarm(waiters, a)
	defer setAlarm(waiters, nil)
	defer context.AfterFunc(ctx, a.Stop)()
	if len(wake) == 0 && ctx.Err() == nil {
		a.Sleep(d)
	}
	select {
	case <-wake:
	default:
		if late := time.Since(start) - d; ctx.Err() == nil && (late < 0 || late > alarmLate) {
			t.late.Store(false)
		}
	}
}

func setAlarm(waiters []*waiter, a *alarm.Alarm) {
	for _, w := range waiters {
		w.alarm.Store(a)
	}
}

// wakeUp wakes the waiter, which then decides anew what to do.
func (w *waiter) wakeUp() {
	if !w.woken.Load() {
		w.woken.Store(true)
	}
	ring(w.wake)
	if a := w.alarm.Load(); a != nil {
		a.Stop()
	}
}

func ring(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
