package kept_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/keptmem"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store/kept"
	"github.com/apithrottle/throttle/throttletest"
)

// A fleet is some processes that share a quota.
type fleet struct {
	server *keptmem.Server
	stores []*kept.Store
	// flight is the longest time from an admission to the arrival at the provider.
	flight time.Duration
}

func newFleet(t testing.TB, ways ...time.Duration) *fleet {
	f := &fleet{server: keptmem.New(), flight: 10 * time.Millisecond}
	for _, way := range ways {
		f.stores = append(f.stores, kept.New(f.server.Client(way), kept.Options{Name: "kept", Ahead: true}))
	}
	t.Cleanup(func() {
		f.server.Close()
		time.Sleep(2 * time.Minute)
	})
	return f
}

// run lets callers of each process wait again and again, and returns when their requests arrived at the
// provider, up to 10 ms after they were admitted, by process.
func (f *fleet) run(t testing.TB, p throttle.Policy, callers int, length time.Duration) (arrived [][]time.Time) {
	arrived = make([][]time.Time, len(f.stores))
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, s := range f.stores {
		l, err := throttle.New(p, s)
		if err != nil {
			t.Fatal(err)
		}
		for range callers {
			wg.Go(func() {
				time.Sleep(rand.N(time.Second))
				for l.Wait(ctx) == nil {
					time.Sleep(rand.N(f.flight))
					mu.Lock()
					arrived[i] = append(arrived[i], time.Now())
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	return arrived
}

// refused returns how many requests a strict provider refuses, which counts the requests that it has accepted
// within each window before an arrival.
func refused(t testing.TB, arrivals []time.Time, tiers ...throttle.Tier) (n int) {
	for i := range tiers {
		tiers[i].Algorithm = throttle.SlidingLog
	}
	provider, err := throttletest.NewCounter(tiers...)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(arrivals, time.Time.Compare)
	for _, at := range arrivals {
		if !provider.Arrive(at.UnixMicro(), nil) {
			n++
		}
	}
	return n
}

// TestFleetSharesQuota compares three processes, one of them near the server and one of them far away, with
// one process that has all callers. They start within a second.
func TestFleetSharesQuota(t *testing.T) {
	policy := throttle.Policy{
		Name: "shared", Guard: 50 * time.Millisecond,
		Tiers: []throttle.Tier{throttle.PerSecond(5), {Limit: 60, Window: 20 * time.Second}},
	}
	var alone int
	synctest.Test(t, func(t *testing.T) {
		alone = len(newFleet(t, 100*time.Microsecond).run(t, policy, 24, time.Minute)[0])
	})
	all := make([]int, 3)
	for range soak.Times(10) {
		synctest.Test(t, func(t *testing.T) {
			arrived := newFleet(t, 100*time.Microsecond, time.Millisecond, 20*time.Millisecond).run(t, policy, 8, time.Minute)
			requests, counts := slices.Concat(arrived...), make([]int, 3)
			for i, a := range arrived {
				counts[i] = len(a)
				all[i] += len(a)
			}
			t.Logf("%d alone, %v together", alone, counts)
			if len(requests)*100 < alone*97 {
				t.Errorf("%d requests, want 0.97 of %d", len(requests), alone)
			}
			if slices.Min(counts)*100 < slices.Max(counts)*75 {
				t.Errorf("requests by process: %v", counts)
			}
			if n := refused(t, requests, slices.Clone(policy.Tiers)...); n > 0 {
				t.Errorf("the provider refuses %d of %d requests", n, len(requests))
			}
		})
	}
	if slices.Min(all)*100 < slices.Max(all)*85 {
		t.Errorf("requests by process: %v", all)
	}
}

// TestBusyFleetNeedsFewTransactions has as many callers in one process and in several.
func TestBusyFleetNeedsFewTransactions(t *testing.T) {
	soak.Slow(t, "a fleet of many callers plays")
	for _, c := range []struct{ processes, callers, most int }{{1, 64, 60}, {16, 4, 300}} {
		for _, a := range []throttle.Algorithm{throttle.GCRA, throttle.TokenBucket} {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, slices.Repeat([]time.Duration{250 * time.Microsecond}, c.processes)...)
				f.flight = 100 * time.Microsecond
				policy := throttle.Policy{Name: "busy", Guard: throttle.NoGuard, Tiers: []throttle.Tier{{Limit: 1000, Window: time.Second, Algorithm: a}}}
				f.run(t, policy, c.callers, 3*time.Second) // uses the burst
				before, _, _ := f.server.Count()
				const seconds = 10
				n := len(slices.Concat(f.run(t, policy, c.callers, seconds*time.Second)...))
				updates, _, _ := f.server.Count()
				updates -= before
				t.Logf("%v, %d processes: %d requests/s, %d transactions/s", a, c.processes, n/seconds, updates/seconds)
				if updates > c.most*seconds || n < 970*seconds {
					t.Errorf("%v, %d processes: %d transactions for %d requests in %d s", a, c.processes, updates, n, seconds)
				}
			})
		}
	}
}

// mostWithin returns the largest number of times within any window.
func mostWithin(all []time.Time, window time.Duration) (most int) {
	slices.SortFunc(all, time.Time.Compare)
	for i, first := 0, 0; i < len(all); i++ {
		for all[i].Sub(all[first]) >= window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
