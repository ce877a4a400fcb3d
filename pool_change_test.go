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
)

// At the instant at which windows open, callers that were admitted just now must not count twice.
func TestPoolForecastsDoNotCountAdmittedCallersTwice(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			p := newPool(t,
				throttle.Member{Limiter: parsed(t, "100/s;algo=fixed_window | guard=none")},
				throttle.Member{Limiter: parsed(t, "100/s;algo=fixed_window | guard=none")})
			var wg sync.WaitGroup
			ask := func(within time.Duration) {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), within)
					defer cancel()
					if err := p.Wait(ctx); err != nil {
						t.Errorf("within %v: %v", within, err)
					}
				})
			}
			for range 200 {
				if _, err := p.TryAcquire(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(500 * time.Millisecond)
			for range 150 {
				ask(time.Minute)
			}
			time.Sleep(500 * time.Millisecond)
			for range 50 {
				ask(900 * time.Millisecond)
			}
			wg.Wait()
		})
	}
}

// A deadline at which a request would be admitted is no reason to refuse it, whatever the costs of others.
func TestPoolRefusesNoRequestThatWouldBeInTime(t *testing.T) {
	for seed := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			open := func() (*throttle.Pool, []*throttle.Limiter) {
				l := []*throttle.Limiter{parsed(t, "97/s;unit=tokens | guard=none"), parsed(t, "231/s;unit=tokens;algo=gcra | guard=none"), parsed(t, "53/s;unit=tokens;algo=token_bucket")}
				return newPool(t, throttle.Member{Limiter: l[0]}, throttle.Member{Limiter: l[1]}, throttle.Member{Limiter: l[2], Rank: 1}), l
			}
			ends := make([][]time.Duration, 2)
			probe := make([]error, 2)
			for run := range 2 { // the second time the probe has a deadline just after its admission
				r := rand.New(rand.NewPCG(seed, 9))
				p, l := open()
				ends[run] = make([]time.Duration, 120)
				start := time.Now()
				var wg sync.WaitGroup
				for i := range ends[run] {
					time.Sleep(time.Duration(1 + r.IntN(100_000_000)))
					ctx, cancel := context.WithCancel(t.Context())
					if i == 80 && run == 1 {
						ctx, cancel = context.WithTimeout(ctx, ends[0][80]-time.Since(start)+time.Millisecond)
					}
					if r.IntN(3) == 0 && i != 80 {
						time.AfterFunc(time.Duration(r.IntN(2_000_000_000)), cancel)
					}
					if r.IntN(4) == 0 {
						ctx = throttle.WithClass(ctx, throttle.Interactive)
					}
					admit, cost := p.Acquire, throttle.Cost{"tokens": 1 + r.Int64N(50)}
					if n := r.IntN(8); n < 3 && i != 80 {
						admit = l[n].Acquire
					}
					wg.Go(func() {
						defer cancel()
						_, err := admit(ctx, cost)
						ends[run][i] = time.Since(start)
						if i == 80 {
							probe[run] = err
						}
					})
					synctest.Wait()
				}
				wg.Wait()
			}
			if probe[0] != nil || probe[1] != nil {
				t.Errorf("seed %d: %v and %v after %v", seed, probe[0], probe[1], ends[1][80]-ends[0][80])
			}
		})
	}
}

func TestPoolCallersDelayNoForecastOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, fast := parsed(t, "1/s;algo=fixed_window | guard=none"), parsed(t, "100/s;algo=fixed_window | guard=none")
		p := newPool(t, throttle.Member{Limiter: slow}, throttle.Member{Limiter: fast})
		for range 101 {
			if err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(500 * time.Millisecond)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := p.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 1700*time.Millisecond)
		defer cancel()
		if err := slow.Wait(ctx); err != nil {
			t.Errorf("a direct caller behind those of the pool: %v", err)
		}
		wg.Wait()
	})
}

func TestPoolMemberGetsConcurrencyWhileCallersWait(t *testing.T) {
	for _, both := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := []*throttle.Limiter{parsed(t, "1/s;algo=fixed_window | guard=none"), parsed(t, "1/s;algo=fixed_window | guard=none ")}
			p := newPool(t, throttle.Member{Limiter: l[0]}, throttle.Member{Limiter: l[1]})
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					if err := p.Wait(t.Context()); err != nil && (!both || !errors.Is(err, throttle.ErrNeedsPermit)) {
						t.Errorf("caller %d: %v", i, err)
					} else if time.Since(bubbleStart) > 2*time.Second && both && err == nil {
						t.Error("admitted without a permit")
					}
				})
			}
			time.Sleep(1500 * time.Millisecond)
			for _, l := range l[:map[bool]int{false: 1, true: 2}[both]] {
				next := exact(per(time.Second, 1, throttle.FixedWindow), throttle.Tier{Limit: 5, Algorithm: throttle.Concurrency})
				next.Name = l.Name()
				if err := l.SetPolicy(t.Context(), next); err != nil {
					t.Fatal(err)
				}
			}
			wg.Wait()
			if _, err := p.Acquire(t.Context(), nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPoolPolicyChangesWhileCallersWait(t *testing.T) {
	change := func(t *testing.T, l *throttle.Limiter, text string) {
		next, err := throttle.ParsePolicy(l.Name(), text)
		if err == nil {
			err = l.SetPolicy(t.Context(), next)
		}
		if err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		what, policy, other string // of one member and the other one, after a second
		by                  string // the member that admits a request of 50 tokens
		err                 error
		after               time.Duration
	}{
		{what: "smaller", policy: "10/s;unit=tokens", by: "1", after: time.Minute},
		{what: "both smaller", policy: "10/s;unit=tokens", other: "10/s;unit=tokens", err: throttle.ErrExceedsCapacity, after: time.Second},
		{what: "larger", policy: "1000/s;unit=tokens;algo=token_bucket", by: "0", after: 2 * time.Second},
		{what: "another unit", policy: "100/s;unit=images", by: "0", after: time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := []*throttle.Limiter{parsed(t, "100/2m;unit=tokens;algo=fixed_window | guard=none"), parsed(t, "100/m;unit=tokens;algo=fixed_window | guard=none")}
			p := newPool(t, throttle.Member{Limiter: l[0]}, throttle.Member{Limiter: l[1]})
			for range 2 {
				if _, err := p.Acquire(t.Context(), throttle.Cost{"tokens": 100}); err != nil {
					t.Fatal(err)
				}
			}
			time.AfterFunc(time.Second, func() {
				change(t, l[0], c.policy)
				if c.other != "" {
					change(t, l[1], c.other)
				}
			})
			start := time.Now()
			permit, err := p.Acquire(t.Context(), throttle.Cost{"tokens": 50})
			switch took := time.Since(start); {
			case !errors.Is(err, c.err) || took > c.after:
				t.Errorf("%s: %v after %v, want %v after %v", c.what, err, took, c.err, c.after)
			case err == nil && permit.Member() != c.by:
				t.Errorf("%s: admitted by %s, want %s", c.what, permit.Member(), c.by)
			}
		})
	}
}

// spillPool returns a Pool of members of the ranks 0, 0, 1 and 2, which are used up until second, plus what
// they admit in each second.
func spillPool(t *testing.T, spill time.Duration) *throttle.Pool {
	var members []throttle.Member
	for i, text := range []string{"1/10s;algo=fixed_window | guard=none", "1/20s;algo=fixed_window | guard=none", "1/4s;algo=fixed_window | guard=none", "100/s | guard=none"} {
		l := parsed(t, text)
		if i < 3 {
			l.Allow()
		}
		members = append(members, throttle.Member{Limiter: l, Rank: []int{0, 0, 1, 2}[i]})
	}
	p := newPool(t, members...)
	p.Spill = spill
	return p
}

func TestPoolSpillsByRank(t *testing.T) {
	for _, c := range []struct {
		spill, within time.Duration
		sticky        bool
		want          string
		after         time.Duration
	}{
		{0, 0, false, "3", 0},
		{0, time.Millisecond, true, "3", 0},
		{5 * time.Second, 0, false, "2", 4 * time.Second},
		{3 * time.Second, 0, false, "3", 0},
		{5 * time.Second, time.Second, false, "3", 0},
		{15 * time.Second, 0, false, "0", 10 * time.Second},
		{15 * time.Second, 5 * time.Second, false, "2", 4 * time.Second},
		{30 * time.Second, 0, true, "1", 20 * time.Second},
		{15 * time.Second, 0, true, "0", 10 * time.Second},
		{5 * time.Second, 0, true, "2", 4 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := spillPool(t, c.spill)
			ctx, cancel := context.WithCancel(t.Context())
			if c.within > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), c.within)
			}
			defer cancel()
			for i := 0; c.sticky; i++ { // a key that prefers member 1
				ctx = throttle.WithStickyKey(ctx, fmt.Sprint(i))
				idle := newPool(t, throttle.Member{Limiter: parsed(t, "1/s")}, throttle.Member{Limiter: parsed(t, "1/s")})
				if permit, err := idle.Acquire(ctx, nil); err != nil || permit.Member() == "1" {
					break
				}
			}
			start := time.Now()
			permit, err := p.Acquire(ctx, nil)
			if err != nil || permit.Member() != c.want || time.Since(start) != c.after {
				t.Errorf("%+v: %v after %v", c, err, time.Since(start))
				if err == nil {
					t.Error(permit.Member())
				}
			}
			if permit, err = spillPool(t, c.spill).TryAcquire(ctx, nil); err != nil || permit.Member() != "3" {
				t.Errorf("%+v: TryAcquire: %v", c, err)
			}
		})
	}
}
