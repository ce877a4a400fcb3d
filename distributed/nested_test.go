package distributed_test

import (
	"context"
	"fmt"
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

// A nestedFleet describes three processes of eight callers each. Every request is made either under
// an inner and an outer quota, or under the slower tiers in one flat quota.
type nestedFleet struct {
	name         string
	inner, outer []throttle.Tier
	flat         []throttle.Tier // the slower tiers
	far          time.Duration   // additional delay to the server of one process
	length       time.Duration
}

const nestedProcesses, nestedCallers = 3, 8

// A tally is the outcome of a run.
type tally struct {
	admitted []int // by process
	all      int
	calls    int64 // script calls
	refused  int   // by providers that count arrivals
	charged  []int64
}

// everything is a tier that counts all charges.
var everything = throttle.Tier{Limit: 100_000, Window: 24 * hour, Algorithm: throttle.SlidingWindow}

func (n nestedFleet) play(t *testing.T, nested bool) (got tally) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		ctx, stop := context.WithTimeout(t.Context(), n.length)
		defer stop()
		var provider arrivals
		counter := new(calls.Counter)
		got.admitted = make([]int, nestedProcesses)
		var last *throttle.Limiter
		var wg sync.WaitGroup
		for i := range nestedProcesses {
			delay := ms / 2
			if i == nestedProcesses-1 {
				delay += n.far
			}
			rdb := distant(t, s, func() time.Duration { return delay })
			rdb.AddHook(counter)
			redis := distributed.New(rdb, distributed.Options{})
			var l *throttle.Limiter
			if nested {
				l = limiter(t, throttle.Policy{Name: "inner", Tiers: slices.Concat(n.inner, []throttle.Tier{everything})}, redis).
					Within(limiter(t, throttle.Policy{Name: "outer", Tiers: slices.Concat(n.outer, []throttle.Tier{everything})}, redis))
			} else {
				l = limiter(t, throttle.Policy{Name: "both", Tiers: slices.Concat(n.flat, []throttle.Tier{everything})}, redis)
			}
			last = l
			for range nestedCallers {
				wg.Go(func() {
					for l.Wait(ctx) == nil {
						provider.send(50 * ms)
						provider.mu.Lock()
						got.admitted[i]++
						provider.mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		got.calls = counter.Count()
		time.Sleep(sec)
		status, err := last.Status(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, tier := range status.Tiers {
			if tier.Limit == everything.Limit {
				got.charged = append(got.charged, tier.Used)
			}
		}
		for _, tier := range slices.Concat(n.inner, n.outer) {
			got.refused += provider.refused(int(tier.Limit), tier.Window)
		}
		got.all = len(provider.at)
	})
	return got
}

// Nested quotas admit what a flat quota with the slower tiers does, and each process gets its
// share. The provider refuses nothing, all charges but 2 % are used, and an admission takes at most
// twice the calls of a flat quota.
func TestNestedFleets(t *testing.T) {
	soak.Long(t, "fleets play, and TestBundleAccounts plays some")
	t.Parallel()
	slow := []throttle.Tier{throttle.PerSecond(5), per(20*sec, 60, throttle.SlidingLog)}
	fast, five, six := []throttle.Tier{throttle.PerSecond(50)}, slow[:1], []throttle.Tier{throttle.PerSecond(6)}
	fars := []time.Duration{2 * ms, 80 * ms, 0}
	if soak.Times(1) == 1 {
		fars = fars[:1]
	}
	for _, far := range fars {
		for _, n := range []nestedFleet{
			{name: "the inner is slower", inner: slow, outer: fast, flat: slow},
			{name: "the outer is slower", inner: fast, outer: slow, flat: slow},
			{name: "both are as slow", inner: slow, outer: slow, flat: slow},
			{name: "both are as fast", inner: fast, outer: fast, flat: fast},
			{name: "each is slower for a while", inner: five, outer: slow[1:], flat: slow},
			{name: "the inner is a little slower", inner: five, outer: six, flat: five},
			{name: "the outer is a little slower", inner: six, outer: five, flat: five},
		} {
			n.far, n.length = far, 40*sec
			if &n.flat[0] == &fast[0] {
				n.length /= 4 // as many admissions
			}
			t.Run(fmt.Sprintf("%s, one process %v away", n.name, far+ms/2), func(t *testing.T) {
				t.Parallel()
				flat, nested := n.play(t, false), n.play(t, true)
				t.Logf("flat %+v, nested %+v", flat, nested)
				used, least, share, waste, calls := nested.all, 0.97, 0.7, 0.02, 2.0
				if far > 50*ms { // nearer processes wait less
					least, share, calls = 0.9, 0.5, 4
				}
				if float64(used) < least*float64(flat.all) {
					t.Errorf("got %d admitted, want %.0f %% of the %d of a flat quota at least", used, 100*least, flat.all)
				}
				if few := float64(slices.Min(nested.admitted)); few < share*min(float64(used)/nestedProcesses, float64(slices.Min(flat.admitted))) {
					t.Errorf("got %v admitted by process, want each above %.0f %% of its share; with a flat quota %v", nested.admitted, 100*share, flat.admitted)
				}
				if nested.refused > 0 {
					t.Errorf("got %d refused by the provider, want none", nested.refused)
				}
				for _, charged := range nested.charged {
					if float64(charged) > (1+waste)*float64(used)+2 {
						t.Errorf("got %d charged for %d sent, want at most 2 %% more", charged, used)
					}
				}
				leaving := float64(nestedProcesses) // calls at the end
				if got, want := (float64(nested.calls)-leaving)/float64(used), float64(flat.calls)/float64(flat.all); got > calls*max(want, 0.5) {
					t.Errorf("got %.2f calls an admission, want at most %.0f times the %.2f of a flat quota, or of 0.5", got, calls, want)
				}
			})
		}
	}
}
