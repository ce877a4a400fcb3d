package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
)

const (
	wakeInterval = 5 * time.Millisecond // 200 a second
	wakes        = 200
)

// BenchmarkWakeLateness reports how late a waiting caller returns, beside a bare timer with
// the same duration. The machine wakes both late. The difference is due to the limiter.
func BenchmarkWakeLateness(b *testing.B) {
	ctx := context.Background()
	for b.Loop() {
		lim := newMetronome(b)
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

// BenchmarkWakeSchedule reports the share of its limit that a caller gets if it always
// waits. The share shows whether the lateness of wake-ups adds up.
func BenchmarkWakeSchedule(b *testing.B) {
	ctx := context.Background()
	for b.Loop() {
		lim := newMetronome(b)
		wait(ctx, b, lim)
		start := time.Now()
		for range wakes {
			wait(ctx, b, lim)
		}
		b.ReportMetric(100*float64(wakes*wakeInterval)/float64(time.Since(start)), "%limit")
	}
}

// newMetronome returns a limiter that admits one request every wakeInterval.
func newMetronome(b *testing.B) *throttle.Limiter {
	b.Helper()
	lim, err := throttle.New(throttle.Policy{
		Name:  "bench",
		Tiers: []throttle.Tier{{Limit: int64(time.Second / wakeInterval), Window: time.Second, Algorithm: throttle.GCRA, Burst: 1}},
		Guard: throttle.NoGuard,
	}, nil)
	if err != nil {
		b.Fatal(err)
	}
	return lim
}

func wait(ctx context.Context, b *testing.B, lim *throttle.Limiter) {
	if err := lim.Wait(ctx); err != nil {
		b.Fatal(err)
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
