package bench

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
)

// BenchmarkGroupIdle reports what a key costs that nobody waits for, but that
// has been used and therefore can't be forgotten: the heap that a million of
// them take, their keys included.
func BenchmarkGroupIdle(b *testing.B) {
	const quotas = 1_000_000
	policy := throttle.Policy{Name: "bench", Tiers: []throttle.Tier{
		{Limit: 5, Window: time.Second, Algorithm: throttle.GCRA},
		{Limit: 10, Window: 24 * time.Hour, Algorithm: throttle.GCRA}, // one request lasts for hours
	}}
	for b.Loop() {
		before := heap()
		g, err := throttle.NewGroup(policy, nil)
		if err != nil {
			b.Fatal(err)
		}
		g.MaxKeys = quotas
		for i := range quotas {
			if !g.For(fmt.Sprintf("key-%d", i)).Allow() {
				b.Fatal(errRefused)
			}
		}
		if n := g.Len(); n != quotas {
			b.Fatalf("the group keeps %d quotas, want %d", n, quotas)
		}
		b.ReportMetric(float64(heap()-before)/quotas, "B/quota")
		runtime.KeepAlive(g)
	}
}

// heap returns the bytes in use. It collects twice, since what a finalizer or a
// pool holds on to is only free after the second time.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
