package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A poolCaller arrives at a Pool in the order of its index.
type poolCaller struct {
	arrives time.Duration // since the start
	within  time.Duration // the deadline, counted from then; zero for none
	leaves  time.Duration // when it is canceled, since the start; zero for never

	end    time.Duration
	member int
	err    error
}

// randomPool returns the policies of members without a guard, and callers that arrive about as fast as all
// members admit.
func randomPool(r *rand.Rand, deadlines bool) (policies []throttle.Policy, callers []poolCaller) {
	pace := 0.0
	for i := range 2 + r.IntN(3) {
		limit := 1 + r.Int64N(20)
		window := time.Duration(1_000+r.Int64N(2_000_000)) * time.Microsecond
		p := exact(per(window, limit, counters[r.IntN(len(counters))]))
		p.Name = fmt.Sprint(i)
		if r.IntN(3) == 0 {
			p.Tiers = append(p.Tiers, per(window*3, limit*2, counters[r.IntN(len(counters))]))
		}
		policies = append(policies, p)
		pace += float64(limit) / float64(window)
	}
	callers = make([]poolCaller, 200)
	now := time.Duration(0)
	for i := range callers {
		now += time.Microsecond + time.Duration(1.2*r.Float64()/pace).Truncate(time.Microsecond)
		callers[i].arrives = now
		switch {
		case deadlines && r.IntN(2) == 0:
			callers[i].within = time.Duration(r.Float64()*20/pace).Truncate(time.Microsecond) + 500
		case !deadlines && r.IntN(2) == 0:
			callers[i].leaves = now + time.Microsecond + time.Duration(r.Float64()*20/pace).Truncate(time.Microsecond)
		}
	}
	return policies, callers
}

// run sends the callers to a Pool.
func runPool(t *testing.T, policies []throttle.Policy, callers []poolCaller) {
	var members []throttle.Member
	for _, p := range policies {
		members = append(members, throttle.Member{Limiter: limiter(t, p, nil)})
	}
	p, start := newPool(t, members...), time.Now()
	var wg sync.WaitGroup
	for i := range callers {
		c := &callers[i]
		time.Sleep(c.arrives - time.Since(start))
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if c.within > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), c.within)
			}
			defer cancel()
			if c.leaves > 0 {
				defer time.AfterFunc(c.leaves-c.arrives, cancel).Stop()
			}
			permit, err := p.Acquire(ctx, nil)
			if c.end, c.err = time.Since(start), err; err == nil {
				fmt.Sscan(permit.Member(), &c.member)
				permit.Release()
			}
		})
		synctest.Wait()
	}
	wg.Wait()
	if n, _ := p.Status(t.Context()); n != 0 {
		t.Errorf("%d callers wait at the end", n)
	}
}

// checkPool compares what became of callers with what the providers' own counters admit. Each caller takes
// the member that it took in the Pool.
func checkPool(policies []throttle.Policy, callers []poolCaller, counters []*throttletest.Counter) error {
	start, free := bubbleStart.UnixMicro(), time.Duration(0)
	for i, c := range callers {
		head, best := max(c.arrives, free), time.Duration(1<<62)
		if c.leaves > 0 && c.leaves <= head {
			if c.err != context.Canceled || c.end != c.leaves {
				return fmt.Errorf("caller %d: %v at %v, canceled at %v", i, c.err, c.end, c.leaves)
			}
			continue
		}
		for _, m := range counters {
			at, _ := m.Earliest(start+head.Microseconds(), nil)
			best = min(best, max(head, time.Duration(at-start)*time.Microsecond))
		}
		switch {
		case c.leaves > 0 && best > c.leaves:
			if free = c.leaves; c.err != context.Canceled {
				return fmt.Errorf("caller %d: %v at %v, canceled at %v before %v", i, c.err, c.end, c.leaves, best)
			}
		case c.within > 0 && best > c.arrives+c.within:
			if !errors.Is(c.err, throttle.ErrDeadline) || c.end != c.arrives {
				return fmt.Errorf("caller %d: %v at %v, want ErrDeadline at %v: its turn is %v, its deadline %v", i, c.err, c.end, c.arrives, best, c.arrives+c.within)
			}
		case c.err != nil || c.end != best:
			return fmt.Errorf("caller %d (%+v): %v at %v, want an admission at %v", i, c, c.err, c.end, best)
		default:
			if free = best; !counters[c.member].Arrive(start+best.Microseconds(), nil) {
				return fmt.Errorf("caller %d: member %d refuses it at %v", i, c.member, best)
			}
		}
	}
	return nil
}

func TestPoolAdmitsAtTheEarliestTime(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 1))
		policies, callers := randomPool(r, seed%2 == 0)
		synctest.Test(t, func(t *testing.T) { runPool(t, policies, callers) })
		var counters []*throttletest.Counter
		for _, p := range policies {
			counters = append(counters, counter(t, p.Tiers...))
		}
		if err := checkPool(policies, callers, counters); err != nil {
			t.Errorf("seed %d: %v: %v", seed, policies, err)
		}
	}
}
