package throttle_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestStatusOfPacedTiers plays random traffic on random policies whose tiers have paces. The count of
// a tier is of the tier itself, and what may go now is what the pace allows too.
func TestStatusOfPacedTiers(t *testing.T) {
	for seed := range uint64(soak.Times(200)) {
		synctest.Test(t, func(t *testing.T) { playPaces(t, seed) })
	}
}

func playPaces(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 41))
	p := throttle.Policy{Name: "paced", Tiers: groupTiers(r), Guard: []time.Duration{throttle.NoGuard, 0}[r.IntN(2)]}
	for i := range p.Tiers {
		tier := &p.Tiers[i]
		if tier.Unit, tier.Estimated = "", false; tier.Window > 0 {
			tier.PaceBurst = 1 + r.Int64N(tier.Limit)
		}
	}
	l := mustNew(t, p, nil)
	for range 60 {
		switch r.IntN(4) {
		case 0:
			time.Sleep(time.Duration(r.IntN(100)) * []time.Duration{time.Millisecond, time.Second, time.Minute}[r.IntN(3)])
		case 1:
			if permit, err := l.TryAcquire(throttle.Cost{"": r.Int64N(4)}); err == nil {
				permit.Arrived()
				permit.Release()
			}
		}
		status, err := l.Status(t.Context())
		if err != nil || len(status.Tiers) != len(p.Tiers) {
			t.Fatalf("seed %d: Status of %v returned %v, %v", seed, p, status, err)
		}
		limited := false
		for i, s := range status.Tiers {
			unpaced := p.Tiers[i]
			unpaced.PaceBurst = 0
			if s.Limit != unpaced.Capacity() || s.Used < 0 || s.Used > s.Limit || s.Remaining < 0 || s.Remaining > s.Limit-s.Used {
				t.Fatalf("seed %d: tier %v: %d of %d used, %d remaining", seed, s.Tier, s.Used, s.Limit, s.Remaining)
			}
			if s.Used == 0 && s.ResetAfter != 0 {
				t.Fatalf("seed %d: tier %v: nothing is used, and ResetAfter is %v", seed, s.Tier, s.ResetAfter)
			}
			limited = limited || s.Limited
		}
		_, err = l.TryAcquire(nil)
		if admitted := err == nil; admitted == limited {
			t.Fatalf("seed %d: admitted is %v: %v, and the state was %v", seed, admitted, err, status)
		}
	}
}
