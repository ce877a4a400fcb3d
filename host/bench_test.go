package host_test

import (
	"testing"

	"github.com/apithrottle/throttle"
)

// BenchmarkDecision measures one admission and one refusal on a file without other users, for a
// small quota and for 5/s + 10000/h with a full log.
func BenchmarkDecision(b *testing.B) {
	second, log := throttle.PerSecond(5), throttle.PerHour(10_000)
	plenty := throttle.Tier{Limit: 1e9, Window: sec, Algorithm: throttle.TokenBucket}
	for _, bench := range []struct {
		name  string
		tiers []throttle.Tier
		sync  bool
		want  bool
	}{
		{"admit plenty", []throttle.Tier{plenty}, false, true},
		{"refuse 5 per s", []throttle.Tier{second}, false, false},
		{"admit full log", []throttle.Tier{second, log}, false, true},
		{"refuse full log", []throttle.Tier{second, log}, false, false},
		{"admit plenty Sync", []throttle.Tier{plenty}, true, true},
		{"admit full log Sync", []throttle.Tier{second, log}, true, true},
	} {
		b.Run(bench.name, func(b *testing.B) { benchmark(b, bench.tiers, bench.sync, bench.want) })
	}
}

// benchmark decides on a quota in which each window of the narrowest tier has one request. The
// clock advances as fast as that needs.
func benchmark(b *testing.B, tiers []throttle.Tier, sync, admit bool) {
	wall := int64(1.7e15)
	s := openFile(b, file(b))
	s.SetWall(func() int64 { return wall })
	l := limiter(b, exact(tiers...), s)
	for range 10_000 { // an hour of constant load
		l.Allow()
		wall += 360_001
	}
	s.Sync = sync
	if !admit {
		allowed(l, 100)
	}
	for b.Loop() {
		if l.Allow() != admit {
			b.Fatalf("admitted %v, want %v", !admit, admit)
		}
		if admit {
			wall += 360_001
		}
	}
}
