package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
)

const (
	wakeEvery = 5 * time.Millisecond // 200 a second
	wakes     = 200
)

// BenchmarkWakeLateness reports by how much a caller that had to wait returns
// too late, next to a bare timer set for as long: a machine wakes nobody on
// time, so only the difference is the limiter's own.
func BenchmarkWakeLateness(b *testing.B) {
	ctx := context.Background()
	for b.Loop() {
		lim := newMetronome(b)
		var waits, timers []time.Duration
		for range wakes {
			// Nothing has been admitted for as long as a request counts, so
			// this one passes, and the next is due wakeEvery after it.
			wait(ctx, b, lim)
			admitted := time.Now()
			wait(ctx, b, lim)
			waits = append(waits, time.Since(admitted)-wakeEvery)

			start := time.Now()
			<-time.NewTimer(wakeEvery).C
			timers = append(timers, time.Since(start)-wakeEvery)
		}
		b.ReportMetric(microseconds(median(waits)), "throttle-µs")
		b.ReportMetric(microseconds(median(timers)), "timer-µs")
		b.ReportMetric(microseconds(median(waits)-median(timers)), "added-µs")
	}
}

// BenchmarkWakeSchedule reports how much of its limit a caller gets that always
// waits: whether what one wake-up is late adds up.
func BenchmarkWakeSchedule(b *testing.B) {
	ctx := context.Background()
	for b.Loop() {
		lim := newMetronome(b)
		wait(ctx, b, lim)
		start := time.Now()
		for range wakes {
			wait(ctx, b, lim)
		}
		b.ReportMetric(100*float64(wakes*wakeEvery)/float64(time.Since(start)), "%limit")
	}
}

// newMetronome returns a limiter that admits one request every wakeEvery.
func newMetronome(b *testing.B) *throttle.Limiter {
	b.Helper()
	lim, err := throttle.New(throttle.Policy{
		Name:  "bench",
		Tiers: []throttle.Tier{{Limit: int64(time.Second / wakeEvery), Window: time.Second, Algorithm: throttle.GCRA, Burst: 1}},
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
