package kept_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
)

// totals returns how many requests were sent, by process and in all.
func totals(sent [][]time.Time) (by []int, all int) {
	for _, s := range sent {
		by, all = append(by, len(s)), all+len(s)
	}
	return by, all
}

func ways(n int, d ...time.Duration) (ways []time.Duration) {
	for i := range n {
		ways = append(ways, d[i%len(d)])
	}
	return ways
}

// A fleet sends as much as one process with as many callers, whatever the counter.
func TestUtilization(t *testing.T) {
	for _, tier := range []throttle.Tier{
		{Limit: 20, Window: time.Second, Algorithm: throttle.SlidingLog},
		{Limit: 20, Window: time.Second, Algorithm: throttle.SlidingWindow},
		{Limit: 20, Window: time.Second, Algorithm: throttle.FixedWindow},
		{Limit: 20, Window: time.Second, Algorithm: throttle.TokenBucket},
		{Limit: 20, Window: time.Second, Algorithm: throttle.TokenBucket, Burst: 3},
		{Limit: 20, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1},
		{Limit: 20, Window: time.Second, Algorithm: throttle.WeightedWindow},
		{Limit: 20, Window: time.Second, Algorithm: throttle.AnchoredWindow},
		{Limit: 1200, Window: time.Minute},
		{Limit: 100_000, Algorithm: throttle.Calendar, Period: throttle.Day},
	} {
		t.Run(tier.String(), func(t *testing.T) {
			soak.Sample(t, 6)
			policy := throttle.Policy{Name: "used", Tiers: []throttle.Tier{tier}}
			if tier.Algorithm == throttle.Calendar {
				policy.Tiers = append(policy.Tiers, throttle.PerSecond(20))
			}
			var all [3]int
			for i, processes := range []int{1, 3, 16} {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, ways(processes, time.Millisecond)...)
					_, all[i] = totals(f.run(t, policy, 48/processes, time.Minute))
				})
				if all[i]*100 < all[0]*97 {
					t.Errorf("%d processes: %d sent, want 0.97 of %d", processes, all[i], all[0])
				}
			}
		})
	}
}

// A process makes one transaction for many callers.
func TestTransactionsPerSecond(t *testing.T) {
	soak.Long(t, "TestBusyFleetNeedsFewTransactions counts them, too")
	const length = 10
	for _, test := range []struct{ processes, callers, most int }{{1, 64, 60}, {16, 4, 550}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, ways(test.processes, time.Millisecond)...)
			_, n := totals(f.run(t, throttle.Policy{Name: "quick", Tiers: []throttle.Tier{throttle.PerSecond(1000)}}, test.callers, length*time.Second))
			calls, _, _ := f.server.Count()
			if calls > test.most*length {
				t.Errorf("%d processes of %d callers: %d transactions a second, want %d at most", test.processes, test.callers, calls/length, test.most)
			}
			if n < 850*length {
				t.Errorf("%d processes of %d callers: %d a second", test.processes, test.callers, n/length)
			}
		})
	}
}

// A fleet at rest makes no transaction.
func TestRestMakesNoTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, ways(20, time.Millisecond, 20*time.Millisecond)...)
		policy := throttle.Policy{Name: "rest", Tiers: []throttle.Tier{throttle.PerSecond(50), {Limit: 10, Algorithm: throttle.Concurrency}}}
		f.run(t, policy, 2, 3*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		l, err := throttle.New(policy, f.stores[0])
		if err != nil {
			t.Fatal(err)
		}
		p, err := l.Acquire(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.Release()
		cancel()
		time.Sleep(time.Minute)
		before, _, _ := f.server.Count()
		time.Sleep(time.Hour)
		if after, _, _ := f.server.Count(); after != before {
			t.Errorf("%d transactions within an hour without callers", after-before)
		}
	})
}
