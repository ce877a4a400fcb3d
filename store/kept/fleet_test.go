package kept_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/keptmem"
	"github.com/apithrottle/throttle/store/kept"
)

// A fleet is some processes that share a quota.
type fleet struct {
	server *keptmem.Server
	stores []*kept.Store
}

func newFleet(t testing.TB, ways ...time.Duration) *fleet {
	f := &fleet{server: keptmem.New()}
	for _, way := range ways {
		f.stores = append(f.stores, kept.New(f.server.Client(way), kept.Options{Name: "kept", Ahead: true}))
	}
	t.Cleanup(func() {
		f.server.Close()
		time.Sleep(2 * time.Minute)
	})
	return f
}

// run lets callers of each process wait again and again, and returns when requests were sent, by process.
func (f *fleet) run(t testing.TB, p throttle.Policy, callers int, length time.Duration) (sent [][]time.Time) {
	sent = make([][]time.Time, len(f.stores))
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
				for l.Wait(ctx) == nil {
					mu.Lock()
					sent[i] = append(sent[i], time.Now())
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	return sent
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

func TestFleetSharesQuota(t *testing.T) {
	policy := throttle.Policy{
		Name: "shared", Guard: 50 * time.Millisecond,
		Tiers: []throttle.Tier{throttle.PerSecond(5), {Limit: 60, Window: 20 * time.Second}},
	}
	count := func(sent [][]time.Time) (n []int, all []time.Time) {
		for _, s := range sent {
			n, all = append(n, len(s)), append(all, s...)
		}
		return n, all
	}
	var alone int
	synctest.Test(t, func(t *testing.T) {
		_, all := count(newFleet(t, 100*time.Microsecond).run(t, policy, 24, time.Minute))
		alone = len(all)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 100*time.Microsecond, time.Millisecond, 20*time.Millisecond)
		n, all := count(f.run(t, policy, 8, time.Minute))
		updates, writes, written := f.server.Count()
		fmt.Println(alone, n, len(all), mostWithin(all, time.Second), mostWithin(all, 20*time.Second), updates, writes, written/max(1, writes))
		if len(all)*100 < alone*97 {
			t.Errorf("%d sent, want 0.97 of %d", len(all), alone)
		}
		if slices.Min(n)*100 < slices.Max(n)*85 {
			t.Errorf("sent by process: %v", n)
		}
		if mostWithin(all, time.Second) > 5 || mostWithin(all, 20*time.Second) > 60 {
			t.Errorf("%d in a second, %d in 20 seconds", mostWithin(all, time.Second), mostWithin(all, 20*time.Second))
		}
	})
}
