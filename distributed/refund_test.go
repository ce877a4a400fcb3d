package distributed_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// A nesting opens a Limiter inside another one, of which at least one is on a server. They are not charged
// in one call.
type nesting struct {
	name         string
	inner, outer bool // on a server
}

var nestings = []nesting{{"two stores", true, true}, {"inside a local quota", true, false}, {"around a local quota", false, true}}

func (n nesting) open(t *testing.T, s *miniredis.Miniredis, trip time.Duration, inner, outer throttle.Policy) (l, o *throttle.Limiter) {
	store := func(shared bool) throttle.Store {
		if !shared {
			return nil
		}
		return distributed.New(distant(t, s, func() time.Duration { return trip }), distributed.Options{})
	}
	inner.Name, outer.Name = "inner", "outer"
	o = limiter(t, outer, store(n.outer))
	return limiter(t, inner, store(n.inner)).Within(o), o
}

// TestConflictsLoseNothing checks that quotas that are charged one after the other count what was sent
// and nothing else, after many conflicts and after callers that were canceled or refused for MaxWait.
func TestConflictsLoseNothing(t *testing.T) {
	t.Parallel()
	for _, n := range nestings {
		for name, guard := range map[string]time.Duration{"the usual guard": 0, "NoGuard": throttle.NoGuard, "AutoGuard": throttle.AutoGuard} {
			algorithms := []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.FixedWindow, throttle.WeightedWindow, throttle.AnchoredWindow}
			if testing.Short() {
				algorithms = algorithms[:1]
			}
			for _, a := range algorithms {
				t.Run(fmt.Sprintf("%s, %s, %v", n.name, name, a), func(t *testing.T) {
					t.Parallel()
					bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
						playConflicts(t, s, n, guard, per(24*hour, 10_000, a))
					})
				})
			}
		}
	}
}

func playConflicts(t *testing.T, s *miniredis.Miniredis, n nesting, guard time.Duration, day throttle.Tier) {
	inner := throttle.Policy{Guard: guard, Tiers: []throttle.Tier{throttle.PerSecond(10), day, throttle.Budget(1_000_000, "tokens", throttle.Day)}, MaxWait: 3 * sec}
	outer := throttle.Policy{Guard: guard, Tiers: []throttle.Tier{per(10*sec, 60, throttle.SlidingLog), day, throttle.Budget(1_000_000, "tokens", throttle.Day)}, MaxQueue: 6}
	l, o := n.open(t, s, 5*ms, inner, outer)
	var fleet []*throttle.Limiter
	fleet = append(fleet, l)
	if n.inner && n.outer {
		other, _ := n.open(t, s, 20*ms, inner, outer)
		fleet = append(fleet, other)
	}
	ctx, stop := context.WithTimeout(t.Context(), 40*sec)
	defer stop()
	var sent, tokens, around atomic.Int64
	var all sync.WaitGroup
	for i := range 24 {
		l := fleet[i%len(fleet)]
		all.Go(func() {
			for ctx.Err() == nil {
				cost := throttle.Cost{"requests": 1 + int64(i%3)/2, "tokens": 1 + rand.Int64N(50)}
				limited, cancel := ctx, func() {}
				if i%4 == 0 {
					limited, cancel = context.WithCancel(ctx)
					time.AfterFunc(rand.N(2*sec), cancel)
				}
				if p, err := l.Acquire(limited, cost); err == nil {
					sent.Add(cost["requests"])
					tokens.Add(cost["tokens"])
					p.Release()
				} else {
					time.Sleep(100 * ms)
				}
				cancel()
			}
		})
	}
	all.Go(func() { // others use the outer quota alone
		for o.Wait(ctx) == nil {
			around.Add(1)
			time.Sleep(rand.N(sec))
		}
	})
	all.Wait()
	time.Sleep(15 * sec) // returned times count until they have passed
	status, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests and %d tokens sent, and %d more outside; %+v", sent.Load(), tokens.Load(), around.Load(), usedOf(status))
	used := usedOf(status)
	if used[1] != sent.Load() || used[2] != tokens.Load() {
		t.Errorf("inner: got %d requests and %d tokens used, want %d and %d", used[1], used[2], sent.Load(), tokens.Load())
	}
	if used[4] != sent.Load()+around.Load() || used[5] != tokens.Load() {
		t.Errorf("outer: got %d requests and %d tokens used, want %d and %d", used[4], used[5], sent.Load()+around.Load(), tokens.Load())
	}
}

func usedOf(s throttle.Status) (used []int64) {
	for _, tier := range s.Tiers {
		used = append(used, tier.Used)
	}
	return used
}
