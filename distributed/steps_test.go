package distributed_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// However the server's clock steps, the last requests count no longer than the longest window of
// the provider in which they may have arrived. If the clock steps by whole windows, the provider,
// whose clock does not step, refuses at most one limit for each step forward.
//
// The quota's clock stands still from the last call before a step back to the first call after it.
// The test therefore makes a call right before each step.
func TestSteppedServerNeverStalls(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		tier  throttle.Tier
		unit  time.Duration // of the steps
		bound time.Duration
	}{
		{throttle.Tier{Limit: 5, Window: time.Minute, Algorithm: throttle.FixedWindow, Phase: 7 * sec}, time.Minute, time.Minute},
		{throttle.Tier{Limit: 5, Window: time.Minute, Algorithm: throttle.WeightedWindow}, time.Minute, 2 * time.Minute},
		{throttle.Tier{Limit: 5, Algorithm: throttle.Calendar, Period: throttle.Day}, 24 * hour, throttle.Day.Longest()},
	} {
		for i := range soak.Times(2) {
			t.Run(tc.tier.Algorithm.String()+strconv.Itoa(i), func(t *testing.T) {
				bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
					playSteps(t, s, tc.tier, tc.unit, tc.bound, rand.New(rand.NewPCG(5, uint64(i))), i%2 == 0)
				})
			})
		}
	}
}

func playSteps(t *testing.T, s *miniredis.Miniredis, tier throttle.Tier, unit, bound time.Duration, r *rand.Rand, whole bool) {
	clock := newSteps(t, s)
	guard := time.Duration(1+r.IntN(20)) * sec
	l := limiter(t, throttle.Policy{Name: "steps", Guard: guard, Tiers: []throttle.Tier{tier}}, distributed.New(near(t, s), distributed.Options{}))
	provider, err := throttletest.NewCounter(tier)
	if err != nil {
		t.Fatal(err)
	}
	within := guard + bound + sec // a part of which is for the round trips
	calendar := tier.Algorithm == throttle.Calendar
	next := func(n int64) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		if !calendar {
			return l.WaitN(ctx, n)
		}
		// A caller that waits would ask twice a second while the periods are unknown.
		for ; ctx.Err() == nil; time.Sleep(bound / 100) {
			if l.AllowN(n) {
				return nil
			}
		}
		return ctx.Err()
	}
	refused, most, requests := int64(0), int64(0), 40
	if calendar {
		requests = 8
	}
	for range requests {
		n := int64(1)
		if r.IntN(4) == 0 {
			n = tier.Limit
		}
		if err := next(n); err != nil {
			t.Fatalf("guard %v, %d at once: got %v, want them admitted", guard, n, err)
		}
		if !provider.Arrive(time.Now().UnixMicro(), map[string]int64{"requests": n}) {
			refused += n
		}
		time.Sleep(time.Duration(r.Int64N(int64(bound / 10))))
		if r.IntN(8) > 0 {
			continue
		}
		step := time.Duration(r.IntN(20)-10) * unit
		if !whole {
			step += time.Duration(r.Int64N(int64(unit))) - unit/2
		}
		if calendar { // the process's clock must be within a period of the server's
			step = min(max(step, -unit-clock.get()), unit-clock.get())
		}
		if step > 0 {
			most += tier.Limit
		}
		if _, err := l.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
		clock.Add(int64(step))
	}
	if whole && refused > most {
		t.Errorf("guard %v: the provider refused %d, want %d at most", guard, refused, most)
	}
}

// A steps holds how far the clock of a server was set.
type steps struct{ atomic.Int64 }

func (c *steps) get() time.Duration { return time.Duration(c.Load()) }

func newSteps(t *testing.T, s *miniredis.Miniredis) *steps {
	t.Helper()
	c := new(steps)
	rdb := near(t, s)
	if err := rdb.Ping(t.Context()).Err(); err != nil { // starts the server
		t.Fatal(err)
	}
	redismem.Hook(s, func(p *server.Peer, cmd string, _ ...string) bool {
		if cmd != "TIME" {
			return false
		}
		now := time.Now().Add(c.get()).UnixMicro()
		p.WriteStrings([]string{strconv.FormatInt(now/1e6, 10), strconv.FormatInt(now%1e6, 10)})
		return true
	})
	return c
}
