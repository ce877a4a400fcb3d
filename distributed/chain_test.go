package distributed_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/soak"
)

// A chainCell is a fleet of processes of eight callers each, inside two quotas that no call can charge
// together.
type chainCell struct {
	// kind is "apart", on two servers; "shared", with an inner quota that is Group.Shared; or
	// "outer in process", each process with its part of the outer quota.
	kind         string
	inner, outer throttle.Tier
	trip         time.Duration
	processes    int
}

func (c chainCell) String() string {
	return fmt.Sprintf("%s, %d in %d %v, trips of %v, %d processes", c.kind, c.inner.Limit, c.outer.Limit, c.inner.Algorithm, c.trip, c.processes)
}

// limiterOf returns the Limiter of one process.
func (c chainCell) limiterOf(t *testing.T, s *miniredis.Miniredis, counter *calls.Counter) *throttle.Limiter {
	stores := func() throttle.Store {
		rdb := distant(t, s, func() time.Duration { return c.trip + rand.N(c.trip/10) })
		rdb.AddHook(counter)
		return distributed.New(rdb, distributed.Options{})
	}
	inner := throttle.Policy{Name: "inner", Tiers: []throttle.Tier{c.inner}}
	outer := throttle.Policy{Name: "outer", Tiers: []throttle.Tier{c.outer}}
	switch c.kind {
	case "shared":
		g, err := throttle.NewGroup(inner, stores(), throttle.GroupOptions{Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		return g.Within("key", limiter(t, outer, stores()))
	}
	if c.kind == "outer in process" {
		outer.Tiers[0].Limit /= int64(c.processes)
		outer.Tiers[0].Burst /= int64(c.processes)
		return limiter(t, inner, stores()).Within(limiter(t, outer, nil))
	}
	return limiter(t, inner, stores()).Within(limiter(t, outer, stores()))
}

// A chainTally is what a fleet was admitted.
type chainTally struct {
	goodput     float64 // a second
	calls       float64 // of the script, an admission
	least, most int     // admissions of a process
	refused     int     // by a provider that counts arrivals
}

func (c chainCell) play(t *testing.T, length time.Duration) (got chainTally) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		ctx, stop := context.WithTimeout(t.Context(), length)
		defer stop()
		var provider arrivals
		counter := new(calls.Counter)
		admitted := make([]int, c.processes)
		var wg sync.WaitGroup
		for i := range c.processes {
			l := c.limiterOf(t, s, counter)
			for range 8 {
				wg.Go(func() {
					for l.Wait(ctx) == nil {
						provider.send(50 * ms)
						provider.mu.Lock()
						admitted[i]++
						provider.mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		all := float64(len(provider.at))
		got = chainTally{all / length.Seconds(), float64(counter.Count()) / all, slices.Min(admitted), slices.Max(admitted), 0}
		if c.inner.Algorithm == throttle.SlidingLog && c.kind == "apart" {
			got.refused = provider.refused(int(min(c.inner.Limit, c.outer.Limit)), c.inner.Window)
		}
	})
	return got
}

// TestChain checks that quotas which no call can charge together admit nearly what the slower one does alone, with few
// calls, and all processes alike, whichever of the two is slower and however far away they are.
func TestChain(t *testing.T) {
	soak.Long(t, "fleets play for minutes, and TestBundleAccounts plays some")
	t.Parallel()
	log := func(n int64) throttle.Tier { return per(sec, n, throttle.SlidingLog) }
	bucket := func(n int64) throttle.Tier {
		return throttle.Tier{Limit: n, Window: sec, Algorithm: throttle.TokenBucket, Burst: max(5, n/5)}
	}
	for _, kind := range []string{"apart", "shared", "outer in process"} {
		for _, trip := range []time.Duration{ms, 80 * ms} {
			for _, processes := range []int{3, 20} {
				if kind == "outer in process" {
					processes = max(2, processes/4) // each with at least 2/s
				}
				if kind == "shared" && processes > 3 {
					continue // as apart
				}
				for _, tiers := range [][2]throttle.Tier{
					{log(10), log(40)}, {log(10), log(10)}, {log(40), log(10)},
					{bucket(50), bucket(200)}, {bucket(50), bucket(50)}, {bucket(200), bucket(50)},
				} {
					c := chainCell{kind, tiers[0], tiers[1], trip, processes}
					t.Run(c.String(), func(t *testing.T) {
						soak.Sample(t, 16)
						t.Parallel()
						c.check(t, c.play(t, 40*sec))
					})
				}
			}
		}
	}
}

func (c chainCell) check(t *testing.T, got chainTally) {
	t.Logf("%+v", got)
	least, calls := 0.75, 3.0
	if c.trip > 10*ms { // a request counts for two trips more, and chance decides by a tenth
		least = 0.45
	}
	if c.processes > 3 { // each of their callers learns which quota is slower
		calls = 5
	}
	if limit := float64(min(c.inner.Limit, c.outer.Limit)); got.goodput < least*limit {
		t.Errorf("got %.1f admitted a second, want %.1f at least", got.goodput, least*limit)
	}
	if got.calls > calls {
		t.Errorf("got %.1f calls an admission, want %v at most", got.calls, calls)
	}
	if mean := got.goodput * 40 / float64(c.processes); c.processes == 3 && float64(got.least) < mean/2 {
		t.Errorf("got %d to %d admissions a process, want %.0f at least", got.least, got.most, mean/2)
	}
	if got.refused > 0 {
		t.Errorf("got %d refused by the provider, want none", got.refused)
	}
}
