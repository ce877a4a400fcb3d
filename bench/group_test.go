package bench

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
)

// BenchmarkGroupIdle reports the heap memory of one idle quota of a Group, measured on a
// million quotas and including their keys. No caller waits for the quotas, but a request
// counts in each, which prevents the Group from removing them.
func BenchmarkGroupIdle(b *testing.B) {
	const quotas = 1_000_000
	policy := throttle.Policy{Name: "bench", Tiers: []throttle.Tier{
		{Limit: 5, Window: time.Second, Algorithm: throttle.GCRA},
		{Limit: 10, Window: 24 * time.Hour, Algorithm: throttle.GCRA}, // one request counts for hours
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
			b.Fatalf("the group has %d quotas, want %d", n, quotas)
		}
		b.ReportMetric(float64(heap()-before)/quotas, "B/quota")
		runtime.KeepAlive(g)
	}
}

// heap returns the bytes in use. It collects garbage twice: the second collection frees what
// finalizers and pools still held during the first.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
