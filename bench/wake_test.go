package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/bench/internal/cpu"
)

const (
	wakeInterval = 5 * time.Millisecond
	wakes        = 200
)

// BenchmarkWakeLateness reports how late a waiting caller returns, beside a bare timer with
// the same duration. The machine wakes both late. The difference is due to the limiter.
func BenchmarkWakeLateness(b *testing.B) {
	ctx := context.Background()
	for b.Loop() {
		lim := newMetronome(b, int64(time.Second/wakeInterval))
		var waits, timers []time.Duration
		for range wakes {
			// The requests before no longer count. So this request is admitted
			// immediately, and the next one wakeInterval later.
			wait(ctx, b, lim)
			admitted := time.Now()
			wait(ctx, b, lim)
			waits = append(waits, time.Since(admitted)-wakeInterval)

			start := time.Now()
			<-time.NewTimer(wakeInterval).C
			timers = append(timers, time.Since(start)-wakeInterval)
		}
		b.ReportMetric(microseconds(median(waits)), "throttle-µs")
		b.ReportMetric(microseconds(median(timers)), "timer-µs")
		b.ReportMetric(microseconds(median(waits)-median(timers)), "added-µs")
	}
}

// BenchmarkWakeSchedule/<rate> reports the share of its limit that a caller gets if it always
// waits, and the processor time of a wait. The share shows whether the lateness of wake-ups adds up.
func BenchmarkWakeSchedule(b *testing.B) {
	for _, rate := range []int64{200, 300} {
		b.Run(fmt.Sprint(rate), func(b *testing.B) {
			ctx := context.Background()
			for b.Loop() {
				lim := newMetronome(b, rate)
				wait(ctx, b, lim)
				start, used := time.Now(), cpu.Used()
				for range wakes {
					wait(ctx, b, lim)
				}
				b.ReportMetric(100*wakes/float64(rate)/time.Since(start).Seconds(), "%limit")
				b.ReportMetric(microseconds(cpu.Used()-used)/wakes, "cpu-µs/wait")
			}
		})
	}
}

// newMetronome returns a limiter that admits one request at a time.
func newMetronome(b *testing.B, perSecond int64) *throttle.Limiter {
	b.Helper()
	lim, err := throttle.New(throttle.Policy{
		Name:  "bench",
		Tiers: []throttle.Tier{{Limit: perSecond, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1}},
		Guard: throttle.NoGuard,
	}, nil)
	if err != nil {
		b.Fatal(err)
	}
	return lim
}

func wait(ctx context.Context, b *testing.B, lim *throttle.Limiter) {
	if err := lim.Wait(ctx); err != nil {
		b.Error(err)
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// BenchmarkWakeBurst reports how long callers take to return that are admitted at the same instant,
// when a window of their limit begins: from that instant until the last one has returned, and the
// processor time of all. The floor is as many goroutines, each blocked on a channel of its own, and
// one goroutine that sends to all of them. The figures are medians of rounds that take turns, for
// each caller.
func BenchmarkWakeBurst(b *testing.B) {
	for _, p := range []struct {
		name   string
		policy throttle.Policy
	}{
		{"guard", throttle.Policy{}},
		{"noguard", throttle.Policy{Guard: throttle.NoGuard}},
		{"maxwait", throttle.Policy{MaxWait: time.Minute}},
	} {
		b.Run(p.name, func(b *testing.B) {
			var took, used, floor, floorUsed []time.Duration
			for b.Loop() {
				t, u := burstFloor()
				floor, floorUsed = append(floor, t), append(floorUsed, u)
				t, u = burst(b, p.policy)
				took, used = append(took, t), append(used, u)
			}
			perCaller := func(d []time.Duration) float64 { return float64(median(d)) / burstCallers }
			b.ReportMetric(perCaller(took), "throttle-ns")
			b.ReportMetric(perCaller(floor), "floor-ns")
			b.ReportMetric(perCaller(used), "throttle-cpu-ns")
			b.ReportMetric(perCaller(floorUsed), "floor-cpu-ns")
		})
	}
}

const burstCallers = 10_000

// burst returns how long the callers that a full window has kept waiting take to return.
func burst(b *testing.B, p throttle.Policy) (took, used time.Duration) {
	p.Name, p.Tiers = "bench", []throttle.Tier{{Limit: burstCallers, Window: time.Second, Algorithm: throttle.FixedWindow}}
	lim, err := throttle.New(p, nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	for { // until all callers join within one window
		if err := lim.WaitN(ctx, burstCallers); err != nil {
			b.Fatal(err)
		}
		begin := time.Now().Truncate(time.Second).Add(time.Second)
		var all sync.WaitGroup
		for range burstCallers {
			all.Go(func() { wait(ctx, b, lim) })
		}
		for waiting := 0; waiting < burstCallers && time.Now().Before(begin); {
			s, err := lim.Status(ctx)
			if err != nil {
				b.Fatal(err)
			}
			waiting = s.Waiting
			time.Sleep(time.Millisecond)
		}
		joined, used := time.Now(), cpu.Used()
		all.Wait()
		if joined.Before(begin) {
			return time.Since(begin), cpu.Used() - used
		}
	}
}

func burstFloor() (took, used time.Duration) {
	var all sync.WaitGroup
	wake := make([]chan struct{}, burstCallers)
	for i := range wake {
		wake[i] = make(chan struct{}, 1)
		all.Go(func() { <-wake[i] })
	}
	time.Sleep(100 * time.Millisecond) // all of them wait
	start, usedBefore := time.Now(), cpu.Used()
	for _, w := range wake {
		w <- struct{}{}
	}
	all.Wait()
	return time.Since(start), cpu.Used() - usedBefore
}
