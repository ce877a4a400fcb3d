package store_test

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

func TestStatusString(t *testing.T) {
	second := store.TierStatus{Tier: algorithms.PerSecond(5), Limit: 5, Used: 3, Remaining: 2}
	hour := store.TierStatus{
		Tier: algorithms.PerHour(100), Limit: 100, Used: 103, Limited: true,
		RetryAfter: 12*time.Minute + 3*time.Second + 399_000_001,
	}
	open := store.TierStatus{
		Tier: algorithms.Tier{Limit: 20, Algorithm: algorithms.Concurrency}, Limit: 20, Used: 20,
		Limited: true, RetryAfter: store.Forever,
	}
	followed := store.TierStatus{
		Tier:  algorithms.Tier{Limit: 5000, Window: time.Hour, Follow: algorithms.Follow{Most: 15000}},
		Limit: 15000, Used: 3, Remaining: 14997, Followed: 15000,
	}
	learned := func(l store.Learned) store.TierStatus {
		t := algorithms.Tier{Limit: 5, Window: time.Second, Algorithm: algorithms.GCRA, Learn: algorithms.Learn{Most: 1000}}
		return store.TierStatus{Tier: t, Limit: 5, Remaining: 5, Learned: &l}
	}
	spent := store.TierStatus{
		Tier:  algorithms.Budget(500_000_000_000, algorithms.Nanodollars, algorithms.Month),
		Limit: 500_000_000_000, Used: 12_340_000_000, InFlight: 120_000_000, Remaining: 487_660_000_000,
	}
	spent.Tier.Estimated = true
	for _, tt := range []struct {
		status store.Status
		want   string
	}{
		{store.Status{}, ""},
		{store.Status{Tiers: []store.TierStatus{second}}, "5/s: 3 of 5 used, room for 2."},
		{store.Status{Tiers: []store.TierStatus{{Tier: second.Tier, Limit: 5, Used: 3, InFlight: 2, Remaining: 2}}}, "5/s: 3 of 5 used, 2 in flight, room for 2."},
		{store.Status{Tiers: []store.TierStatus{second, hour}, Waiting: 41},
			"5/s: 3 of 5 used, room for 2. 100/h: 103 of 100 used, one more in 12m3.4s. 41 callers wait."},
		{store.Status{Tiers: []store.TierStatus{spent}}, "$500/month: $12.34 of $500.00 used, $0.12 in flight, room for $487.66."},
		{store.Status{Tiers: []store.TierStatus{open}, Waiting: 1},
			"20;algo=concurrency: 20 of 20 used, one more when something is released. 1 caller waits."},
		{store.Status{Tiers: []store.TierStatus{second}, Paused: 1500*time.Microsecond + 1},
			"5/s: 3 of 5 used, room for 2. Paused for 1.501ms."},
		{store.Status{Tiers: []store.TierStatus{second}, Closed: time.Hour},
			"5/s: 3 of 5 used, room for 2. Banned for 1h0m0s."},
		{store.Status{Closed: store.Forever}, "Banned for 2562047h47m16.854775807s."},
		{store.Status{Tiers: []store.TierStatus{followed, second}},
			"5000/h;follow=15000: 3 of 15000 used, room for 14997. 15000/h is followed: the policy says 5000/h. 5/s: 3 of 5 used, room for 2."},
		{store.Status{Tiers: []store.TierStatus{learned(store.Learned{Rate: 5, Next: 8.25})}},
			"5/s;algo=gcra;learn=1000: 0 of 5 used, room for 5. 5/s is the start: nothing is learned yet, tries up to 8.25/s in the next minute."},
		{store.Status{Tiers: []store.TierStatus{learned(store.Learned{Rate: 10.2341, Next: 11.8, Refused: 12.4, Ago: 3*time.Minute + 59*time.Second})}},
			"5/s;algo=gcra;learn=1000: 0 of 5 used, room for 5. 10.2/s is learned: refused at 12.4/s 3m ago, tries up to 11.8/s in the next minute."},
		{store.Status{Tiers: []store.TierStatus{learned(store.Learned{Rate: 1000, Next: 1000, Noise: 0.0089})}},
			"5/s;algo=gcra;learn=1000: 0 of 5 used, room for 5. 1000/s is learned: not refused at that rate yet. 0.9% of requests seem to be refused at any rate."},
	} {
		if got := tt.status.String(); got != tt.want {
			t.Errorf("%q\nwant %q", got, tt.want)
		}
	}
}
