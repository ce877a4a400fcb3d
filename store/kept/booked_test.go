package kept_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// One process begins to count places, or to estimate a unit, while another one has reserved under the old policy. Nobody
// ends what these requests would hold under the new one, so they hold nothing there and count in full.
func TestBookedUnderAnotherPolicy(t *testing.T) {
	rate := throttle.Tier{Limit: 20, Window: sec, Algorithm: throttle.GCRA, Burst: 1}
	tokens := throttle.Tier{Limit: 20, Window: time.Minute, Unit: "tokens"}
	estimated := tokens
	estimated.Estimated = true
	for name, test := range map[string]struct {
		more throttle.Tier
		used int64
	}{
		"places":    {throttle.Tier{Limit: 5, Algorithm: throttle.Concurrency}, 1},
		"estimates": {estimated, 16},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			p := throttle.Policy{Name: "places", Guard: 20 * ms, Tiers: []throttle.Tier{rate, tokens}}
			changing, waiting := f.start(t, p, ms), f.start(t, p, ms)
			var all sync.WaitGroup
			for range 15 {
				all.Go(func() {
					if _, err := waiting.Acquire(t.Context(), throttle.Cost{"tokens": 1}); err != nil {
						t.Error(err)
					}
				})
			}
			time.Sleep(100 * ms)
			if p.Tiers[1] = test.more; name == "places" {
				p.Tiers = append(p.Tiers, tokens)
			}
			if err := changing.SetPolicy(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*sec)
			defer cancel()
			got, err := changing.Acquire(ctx, throttle.Cost{"tokens": 1})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			all.Wait()
			time.Sleep(sec)
			s, err := changing.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if of := s.Tiers[1]; of.Used != test.used || of.InFlight > 1 {
				t.Errorf("%s: %d used, %d in flight, want %d and 1", name, of.Used, of.InFlight, test.used)
			}
			got.Release()
		})
	}
}

// Requests whose estimates have become costs count once, also those that were reserved and are reserved anew.
func TestEstimatesBecomeCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := tokens(throttle.Tier{Limit: 200, Window: time.Minute})
		p.Tiers = append(p.Tiers, throttle.Tier{Limit: 20, Window: sec, Algorithm: throttle.GCRA, Burst: 1})
		process := f.start(t, p, ms)
		var all sync.WaitGroup
		for range 15 {
			all.Go(func() {
				got, err := process.Acquire(t.Context(), throttle.Cost{"tokens": 2})
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(sec)
				_ = got.Settle(throttle.Cost{"tokens": 2})
				got.Release()
			})
		}
		time.Sleep(120 * ms)
		p.Tiers = slices.Clone(p.Tiers)
		p.Tiers[0].Estimated = false
		if err := process.SetPolicy(t.Context(), p); err != nil {
			t.Error(err)
		}
		all.Wait()
		time.Sleep(sec)
		if used, inFlight := f.used(t, p); used != 30 || inFlight != 0 {
			t.Errorf("%d used, %d in flight, want 30 and 0", used, inFlight)
		}
	})
}
