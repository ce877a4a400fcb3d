package batch_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestMillion sends a million items at 2,000 a second to a strict API. It refuses none, and the job takes at most
// a fiftieth longer than the limit allows.
func TestMillion(t *testing.T) {
	soak.Long(t, "a million items")
	soak.NoRace(t, "a million items")
	synctest.Test(t, func(t *testing.T) {
		const items, rate = 1_000_000, 2000
		tier := throttle.PerSecond(rate)
		a := newAPI(t, 200*time.Millisecond, tier)
		transport := &throttle.Transport{Limiter: newLimiter(t, tier), Base: a}
		begun, most := time.Now(), uint64(0)
		report, err := batch.Run(t.Context(), batch.Job[int, int, int]{
			Items: count(items), AtOnce: 5_000, Transport: transport, Do: a.send(transport), Total: items,
			Progress: func(p batch.Progress) { most = max(most, heap()) }, Every: time.Minute,
		})
		took, least := time.Since(begun), time.Duration(items/rate)*time.Second
		t.Logf("%v, at least %v; %d MB at most", took, least, most>>20)
		if err != nil || report.Done != items || report.Bound != batch.ByLimiter || a.refused > 0 || took > least*50/49 || most > 256<<20 {
			t.Errorf("%+v, %v; %d refused in %v, want none in %v; %d MB", report, err, a.refused, took, least, most>>20)
		}
	})
}

// heap returns the bytes that are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// TestMemoryStaysFlat runs items of which a tenth fail.
func TestMemoryStaysFlat(t *testing.T) {
	soak.Long(t, "a million items")
	soak.NoRace(t, "a million items")
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // more would count garbage
	items := soak.Times(1_000_000)                    // ten million by "make soak"
	before, most := heap(), uint64(0)
	report, err := batch.Run(t.Context(), batch.Job[int, int, int]{
		Items: count(items), Limiter: newLimiter(t, throttle.PerSecond(1e12)), MaxInARow: -1,
		Do: func(_ context.Context, n int) (int, error) {
			if n%10 == 0 {
				return 0, context.DeadlineExceeded
			}
			return n, nil
		},
		Progress: func(p batch.Progress) { most = max(most, heap()) },
	})
	t.Logf("%v; %d MB before, %d MB at most", report.Elapsed, before>>20, most>>20)
	if err != nil || report.Done != int64(items*9/10) || report.Failed != int64(items/10) || most > before+64<<20 {
		t.Errorf("%d done, %d failed, %v; %d MB", report.Done, report.Failed, err, (most-before)>>20)
	}
}
