package local_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

func counter(t *testing.T, tier algorithms.Tier) *throttletest.Counter {
	t.Helper()
	c, err := throttletest.NewCounter(tier)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A policy whose limit alternates never admits more than the larger limit. After a change it admits
// no more than the new limit.
func TestChangeKeepsBothLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(200) {
			g := rand.New(rand.NewPCG(seed, 1))
			var tiers [2]algorithms.Tier
			var plans [2]*algorithms.Plan
			guard := time.Duration(seed%3) * 20 * time.Millisecond
			for i := range tiers {
				tiers[i] = algorithms.Tier{Limit: 1 + g.Int64N(20), Window: time.Second, Algorithm: algorithms.Algorithm(seed % uint64(algorithms.Concurrency))}
				p, err := algorithms.NewPlan(tiers[i:i+1], guard)
				if err != nil {
					t.Fatal(err)
				}
				plans[i] = p
			}
			larger := tiers[0]
			larger.Limit = max(larger.Limit, tiers[1].Limit)
			all, since := counter(t, larger), counter(t, tiers[0])
			q, err := local.New().Open("", plans[0])
			if err != nil {
				t.Fatal(err)
			}
			for range 300 {
				if i := g.IntN(20); i < 2 {
					if err := q.(store.Changer).Change(t.Context(), plans[i]); err != nil {
						t.Fatal(err)
					}
					q, _ = q.(store.Changer).Successor()
					since = counter(t, tiers[i])
				}
				r := store.Request{Cost: []int64{1}, Held: true}
				b, err := q.TryAcquire(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				if b.Verdict == store.Admitted {
					if g.IntN(2) == 0 {
						q.Arrived(b, r.Cost)
					}
					// An anchored window that is open at the change stays open.
					anchored := larger.Algorithm == algorithms.AnchoredWindow
					if now := time.Now().UnixMicro(); !all.Arrive(now, nil) || !since.Arrive(now, nil) && !anchored {
						t.Fatalf("seed %d: %v, limits %d and %d: the provider refuses", seed, larger.Algorithm, tiers[0].Limit, tiers[1].Limit)
					}
				}
				time.Sleep(time.Duration(g.Int64N(60_000)) * time.Microsecond)
			}
		}
	})
}
