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
	"github.com/apithrottle/throttle/internal/soak"
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
	soak.Long(t, "it plays days of sliding logs")
	t.Parallel()
	for _, n := range nestings {
		for name, guard := range map[string]time.Duration{"the usual guard": 0, "NoGuard": throttle.NoGuard, "AutoGuard": throttle.AutoGuard} {
			for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.FixedWindow, throttle.WeightedWindow, throttle.AnchoredWindow} {
				t.Run(fmt.Sprintf("%s, %s, %v", n.name, name, a), func(t *testing.T) {
					soak.Sample(t, 24)
					t.Parallel()
					bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
						c := playConflicts(t, s, n, guard, per(24*hour, 10_000, a), nil)
						if c.used[1] != c.sent || c.used[2] != c.tokens {
							t.Errorf("inner: got %d requests and %d tokens used, want %d and %d", c.used[1], c.used[2], c.sent, c.tokens)
						}
						if c.used[4] != c.sent+c.around || c.used[5] != c.tokens {
							t.Errorf("outer: got %d requests and %d tokens used, want %d and %d", c.used[4], c.used[5], c.sent+c.around, c.tokens)
						}
					})
				})
			}
		}
	}
}

// TestConflictsForgetNothing checks that the quotas count at least what was sent when policies change between
// the charge and the refund, and when the server is away for some of the refunds.
func TestConflictsForgetNothing(t *testing.T) {
	t.Parallel()
	for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.FixedWindow} {
		day := per(24*hour, 10_000, a)
		for name, disturb := range map[string]func(i int64, s *miniredis.Miniredis, l *throttle.Limiter){
			"SetPolicy": func(i int64, _ *miniredis.Miniredis, l *throttle.Limiter) {
				_ = l.SetPolicy(context.Background(), throttle.Policy{Name: "inner", MaxWait: 3 * sec,
					Tiers: []throttle.Tier{throttle.PerSecond(10 + i%2), day, throttle.Budget(1_000_000, "tokens", throttle.Day)}})
			},
			"outages": func(i int64, s *miniredis.Miniredis, _ *throttle.Limiter) {
				s.SetError([]string{"", "LOADING Redis is loading the dataset in memory"}[i%2])
			},
		} {
			t.Run(fmt.Sprintf("%s, %v", name, a), func(t *testing.T) {
				soak.Sample(t, 4)
				t.Parallel()
				bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
					c := playConflicts(t, s, nestings[0], 0, day, func(ctx context.Context, l *throttle.Limiter) {
						for i := int64(0); ctx.Err() == nil || i%2 != 0; i++ {
							time.Sleep(700 * ms)
							disturb(i, s, l)
						}
						s.SetError("")
					})
					if c.used[1] < c.sent || c.used[2] < c.tokens || c.used[4] < c.sent+c.around || c.used[5] < c.tokens {
						t.Errorf("got %d used, want at least %d requests and %d tokens, and outside %d more", c.used, c.sent, c.tokens, c.around)
					}
				})
			})
		}
	}
}

// conflicts are what callers have sent, with the quotas and around them, and what each tier has used.
type conflicts struct {
	sent, tokens, around int64
	used                 []int64
}

func playConflicts(t *testing.T, s *miniredis.Miniredis, n nesting, guard time.Duration, day throttle.Tier, disturb func(context.Context, *throttle.Limiter)) conflicts {
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
	if disturb != nil {
		all.Go(func() { disturb(ctx, l) })
	}
	all.Wait()
	time.Sleep(15 * sec) // returned times count until they have passed
	status, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := conflicts{sent.Load(), tokens.Load(), around.Load(), usedOf(status)}
	t.Logf("%+v", c)
	return c
}

func usedOf(s throttle.Status) (used []int64) {
	for _, tier := range s.Tiers {
		used = append(used, tier.Used)
	}
	return used
}
