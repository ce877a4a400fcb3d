package distributed_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// quietTiers are tiers of every counter, fast and slow.
var quietTiers = map[string][]throttle.Tier{
	"log":               {throttle.PerSecond(50)},
	"slow log":          {throttle.PerMinute(10)},
	"sliding window":    {{Limit: 50, Window: sec, Algorithm: throttle.SlidingWindow}},
	"slow window":       {{Limit: 10, Window: 10 * sec, Algorithm: throttle.SlidingWindow}},
	"weighted window":   {{Limit: 50, Window: sec, Algorithm: throttle.WeightedWindow}},
	"fixed window":      {{Limit: 50, Window: sec, Algorithm: throttle.FixedWindow}},
	"slow fixed window": {{Limit: 10, Window: 10 * sec, Algorithm: throttle.FixedWindow}},
	"anchored window":   {{Limit: 50, Window: sec, Algorithm: throttle.AnchoredWindow}},
	"token bucket":      {{Limit: 50, Window: sec, Algorithm: throttle.TokenBucket, Burst: 10}},
	"leaky bucket":      {{Limit: 50, Window: sec, Algorithm: throttle.LeakyBucket, Burst: 5}},
	"GCRA":              {{Limit: 50, Window: sec, Algorithm: throttle.GCRA}},
	"slow GCRA":         {{Limit: 1, Window: sec, Algorithm: throttle.GCRA}},
	"concurrency":       {{Limit: 5, Algorithm: throttle.Concurrency}, throttle.PerSecond(50)},
	"two tiers":         {throttle.PerSecond(10), throttle.PerHour(10_000)},
}

// A quietCell is a crowd of callers that are canceled.
type quietCell struct {
	tiers     string
	mixed     bool
	class     throttle.Class
	nested    bool
	processes int
}

func (c quietCell) String() string {
	return fmt.Sprintf("%s, mixed costs %v, class %v, nested %v, %d processes", c.tiers, c.mixed, c.class, c.nested, c.processes)
}

// play lets a crowd wait for five seconds and cancels it. It returns the units that three processes are
// admitted in ten seconds, two seconds later.
func (c quietCell) play(t *testing.T, processes int) (admitted int64) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		open := func() *throttle.Limiter {
			redis := distributed.New(process(ms/2, ms), distributed.Options{})
			l := limiter(t, throttle.Policy{Name: "{q}", Tiers: quietTiers[c.tiers], Guard: 50 * ms}, redis)
			if c.nested {
				l = l.Within(limiter(t, throttle.Policy{Name: "{q}outer", Tiers: []throttle.Tier{throttle.PerSecond(1000)}, Guard: 50 * ms}, redis))
			}
			return l
		}
		run := func(processes int, length time.Duration) (units int64) {
			ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), c.class))
			time.AfterFunc(length, cancel)
			var all sync.WaitGroup
			var mu sync.Mutex
			for i := range processes {
				l := open()
				for j := range 8 {
					all.Go(func() {
						r := rand.New(rand.NewPCG(uint64(i), uint64(j)))
						for ctx.Err() == nil {
							n := int64(1)
							if c.mixed {
								n += r.Int64N(4)
							}
							p, err := l.Acquire(ctx, throttle.Cost{"requests": n})
							if err != nil {
								<-ctx.Done()
								return
							}
							p.Arrived()
							p.Release()
							mu.Lock()
							units += n
							mu.Unlock()
						}
					})
				}
			}
			all.Wait()
			return units
		}
		run(processes, 5*sec)
		time.Sleep(2 * sec)
		admitted = run(3, 10*sec)
	})
	return admitted
}

// TestQuietAfterCancel checks that two seconds after a crowd was canceled a quota admits what it does after
// a few callers.
func TestQuietAfterCancel(t *testing.T) {
	soak.Long(t, "many fleets play, and TestCanceledCallersLeaveNothing plays some")
	t.Parallel()
	var cells []quietCell
	for tiers := range quietTiers {
		for _, mixed := range []bool{false, true} {
			for _, class := range []throttle.Class{throttle.Normal, throttle.Batch} {
				for _, nested := range []bool{false, true} {
					for _, processes := range []int{2, 20, 100} {
						cells = append(cells, quietCell{tiers, mixed, class, nested, processes})
					}
				}
			}
		}
	}
	rand.Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
	for _, c := range cells[:min(len(cells), soak.Times(30))] {
		want, got := c.play(t, 1), int64(0)
		isLess := func() bool { return float64(got) < 0.9*float64(want)-8 }
		for i := 0; i < 3 && isLess(); i++ { // a slow tier admits between 54 and 76 units of random costs
			got = max(got, c.play(t, c.processes))
		}
		if isLess() {
			t.Errorf("%v: got %d units admitted in ten seconds, want %d as after one process", c, got, want)
		}
	}
}
