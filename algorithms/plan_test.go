package algorithms_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/throttletest"
)

// rate sends units one by one, each as soon as it is admitted and without a response. It returns
// how many go in a second, without those at the beginning.
func rate(l *Ledger, units int) float64 {
	now, one := at(0), []int64{1}
	var began int64
	for i := range 2*units + 1 {
		e, _ := l.Earliest(now, Request{Cost: one})
		now = now.Later(e)
		if i == units {
			began = now.At
		}
		l.Charge(now, Request{Cost: one})
	}
	return float64(units) * 1e6 / float64(now.At-began)
}

// TestMaxRates checks that no tier admits more than its maximum rate, and that tiers reach it.
// Requests that leave within 1/32 of the guard wait for each other, and so a tier may miss it by
// that much. A weighted window may miss it by a tenth.
func TestMaxRates(t *testing.T) {
	const ms = time.Millisecond
	bucket := func(limit, burst int64) Tier {
		return Tier{Limit: limit, Window: time.Second, Burst: burst, Algorithm: GCRA}
	}
	for _, tc := range []struct {
		tier  Tier
		guard time.Duration
		want  float64
	}{
		{bucket(100, 1), 50 * ms, 1 / 0.060},
		{bucket(100, 1), 0, 100},
		{bucket(100, 3), 50 * ms, 3 / 0.060},
		{bucket(100, 7), 50 * ms, 100},
		{bucket(10_000, 100), 50 * ms, 100 / 0.0501},
		{bucket(1, 1), 50 * ms, 1 / 1.050},
		{Tier{Limit: 3600, Window: time.Hour, PaceBurst: 1}, 50 * ms, 1 / 1.050},
		{Tier{Limit: 5, Window: time.Second}, 50 * ms, 5 / 1.050},
		{Tier{Limit: 5, Window: time.Second, Algorithm: SlidingWindow}, 50 * ms, 5 / 1.050},
		{Tier{Limit: 5, Window: time.Second, Algorithm: AnchoredWindow}, 50 * ms, 5 / 1.050},
		{Tier{Limit: 5, Window: time.Second, Algorithm: FixedWindow}, 50 * ms, 5},
		{Tier{Limit: 5, Window: time.Second, Algorithm: FixedWindow}, 2500 * ms, 5. / 3},
		{Tier{Limit: 100, Window: time.Second, Algorithm: WeightedWindow}, 50 * ms, 100},
	} {
		l := ledger(t, tc.guard, tc.tier)
		rates := l.Plan().MaxRates()
		most := slices.Min(rates)
		if most < tc.want*0.9999 || most > tc.want*1.0001 {
			t.Errorf("%v, guard %v: MaxRates returns %.2f, want %.2f", tc.tier, tc.guard, rates, tc.want)
		}
		least := tc.want * 32 / 33
		if tc.tier.Algorithm == WeightedWindow {
			least = tc.want * 0.9
		}
		if got := rate(l, 6000); got > tc.want*1.0001 || got < least {
			t.Errorf("%v, guard %v: %.2f units a second are admitted, want %.2f", tc.tier, tc.guard, got, tc.want)
		}
	}
	if rates := ledger(t, 0, Tier{Limit: 5, Algorithm: Concurrency}, Budget(5, "usd", Day)).Plan().MaxRates(); rates[0] != 0 || rates[1] != 0 {
		t.Errorf("MaxRates of Concurrency and Calendar returns %v, want zeros", rates)
	}
}

// TestGuardOfVariation checks that for rolling tiers and buckets the guard need only bound the
// variation of the delays. A provider that counts over any interval does not notice a delay that
// all requests have in common. 100/s with a Burst of 1 admits 66.7 a second if the delays vary by
// 5 ms, however long they are, and 16.7 with a guard of 50 ms.
func TestGuardOfVariation(t *testing.T) {
	const differ, common = 5_000, 200_000
	for _, tier := range []Tier{
		{Limit: 100, Window: time.Second, Burst: 1, Algorithm: GCRA}, {Limit: 50, Window: time.Second, Burst: 7, Algorithm: TokenBucket},
		{Limit: 20, Window: time.Second}, {Limit: 20, Window: time.Second, Algorithm: SlidingWindow},
		{Limit: 20, Window: time.Second, Algorithm: AnchoredWindow},
	} {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(7, seed))
			l := ledger(t, differ*time.Microsecond, tier)
			provider, err := throttletest.NewCounter(tier)
			if err != nil {
				t.Fatal(err)
			}
			now, one := at(0), []int64{1}
			var arrivals []int64
			for range 2000 {
				e, _ := l.Earliest(now, Request{Cost: one})
				now = now.Later(e)
				l.Charge(now, Request{Cost: one})
				arrivals = append(arrivals, now.At+common+[]int64{0, differ, r.Int64N(differ)}[r.IntN(3)])
				if r.IntN(50) == 0 {
					now = now.Later(now.At + r.Int64N(2e6))
				}
			}
			slices.Sort(arrivals)
			for i, a := range arrivals {
				if !provider.Arrive(a, nil) {
					t.Fatalf("%v, seed %d: the provider refuses arrival %d", tier, seed, i)
				}
			}
		}
	}
}
