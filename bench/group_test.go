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
		g, err := throttle.NewGroup(policy, nil, throttle.GroupOptions{MaxKeys: quotas})
		if err != nil {
			b.Fatal(err)
		}
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

// BenchmarkGroupKey reports the time of For and Allow for a key of a Group: a new one, one whose
// quota is open, and one whose quota the Group has parked since its last use.
func BenchmarkGroupKey(b *testing.B) {
	const keys = 100_000
	policy := throttle.Policy{Name: "bench", Tiers: []throttle.Tier{{Limit: 5, Window: 24 * time.Hour, Algorithm: throttle.GCRA}}}
	names := make([]string, 2*keys)
	for i := range names {
		names[i] = fmt.Sprintf("key-%d", i)
	}
	use := func(b *testing.B, g *throttle.Group, names []string) {
		for _, name := range names {
			if !g.For(name).Allow() {
				b.Fatal(errRefused)
			}
		}
	}
	for _, c := range []struct {
		name          string
		before, timed []string
	}{
		{"new", names[:keys], names[keys:]},
		{"open", names[:keys], names[keys-keys/10 : keys]},
		{"parked", names, names[:keys]}, // the new keys had the Group look at all others
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				g, err := throttle.NewGroup(policy, nil, throttle.GroupOptions{})
				if err != nil {
					b.Fatal(err)
				}
				use(b, g, c.before)
				runtime.GC()
				b.StartTimer()
				use(b, g, c.timed)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(c.timed)), "ns/key")
			b.ReportMetric(0, "ns/op")
		})
	}
}
