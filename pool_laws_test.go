package throttle_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// parsed returns the Limiter of a policy's text, inside others if any are given.
func parsed(t *testing.T, text string, around ...*throttle.Limiter) *throttle.Limiter {
	t.Helper()
	p, err := throttle.ParsePolicy(text, text)
	if err != nil {
		t.Fatal(err)
	}
	p.MaxPause = sec // a longer one is a ban
	l := limiter(t, p, nil)
	for _, outer := range around {
		l = l.Within(outer)
	}
	return l
}

// ban bans a Limiter, which admits a request for that.
func ban(t *testing.T, l *throttle.Limiter, length time.Duration) {
	t.Helper()
	permit := acquire(t, l, nil)
	defer permit.Release()
	if err := permit.Refused(t.Context(), length); err != nil {
		t.Fatal(err)
	}
}

// newPool returns a Pool of members whose names are their indexes.
func newPool(t *testing.T, members ...throttle.Member) *throttle.Pool {
	t.Helper()
	for i := range members {
		members[i].Name = fmt.Sprint(i)
	}
	p, err := throttle.NewPool(members...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPoolPrefersTheLowRankWhateverItsPolicy(t *testing.T) {
	preferred := map[string]func() *throttle.Limiter{
		"plain":       func() *throttle.Limiter { return parsed(t, "10/s") },
		"concurrency": func() *throttle.Limiter { return parsed(t, "10/s + 100;algo=concurrency") },
		"nested":      func() *throttle.Limiter { return parsed(t, "10/s", parsed(t, "100/s")) },
		"log":         func() *throttle.Limiter { return parsed(t, "10/s;algo=sliding_log") },
		"auto guard":  func() *throttle.Limiter { return parsed(t, "10/s | guard=auto") },
	}
	for name, limiter := range preferred {
		synctest.Test(t, func(t *testing.T) {
			first, second := limiter(), parsed(t, "1000/s;algo=fixed_window")
			p := newPool(t, throttle.Member{Limiter: first}, throttle.Member{Limiter: second, Rank: 1})
			for i := range 20 {
				want := fmt.Sprint(i / 10)
				permit, err := p.TryAcquire(t.Context(), nil)
				if i%2 == 0 && err == nil {
					permit.Cancel(t.Context())
					permit, err = p.Acquire(t.Context(), nil)
				}
				if err != nil {
					t.Fatal(err)
				}
				if permit.Member() != want {
					t.Errorf("%s: request %d went to member %s, want %s", name, i, permit.Member(), want)
				}
				defer permit.Release()
			}
			if name == "concurrency" {
				return
			}
			time.Sleep(10 * time.Second)
			for range 10 {
				if err := p.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := first.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s := status(t, second); s.Tiers[0].Remaining != 1000 {
				t.Errorf("%s: Wait went to the member of rank 1: %v", name, s.Tiers)
			}
		})
	}
}

func TestPoolOfNestedMembersLosesNoCharge(t *testing.T) {
	for _, inner := range []string{"10/s;algo=fixed_window | guard=none", "10/s | guard=none", "10/s;algo=gcra | guard=none", "10/s", "10/s;algo=fixed_window + 20;algo=concurrency"} {
		for _, outer := range []string{"12/s;algo=fixed_window | guard=none", "12/s", "30/s", "30/s | guard=none"} {
			for _, shared := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					account := parsed(t, outer)
					var members []throttle.Member
					for range 2 {
						members = append(members, throttle.Member{Limiter: parsed(t, inner, account)})
						if !shared {
							account = parsed(t, outer)
						}
					}
					p := newPool(t, members...)
					got := saturatePool(t, p, 50, 20*time.Second)
					n := len(got["0"]) + len(got["1"])
					want := 2 * 10 * 20
					if shared && outer[:2] == "12" {
						want = 12 * 20
					}
					t.Log(inner, outer, shared, n, want, len(got["0"]), len(got["1"]))
					if n < want*98/100 {
						t.Errorf("%s in %s (shared: %v): %d admissions, want %d", inner, outer, shared, n, want)
					}
				})
			}
		}
	}
}

func TestPoolUsesAMemberAfterItsBan(t *testing.T) {
	for _, resume := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			slow, fast := parsed(t, "1/m;algo=gcra"), parsed(t, "100/s;algo=gcra | guard=none")
			p := newPool(t, throttle.Member{Limiter: slow}, throttle.Member{Limiter: fast})
			ban(t, fast, 10*time.Second)
			if resume {
				time.AfterFunc(5*time.Second, func() { fast.Resume(t.Context()) })
			}
			var wg sync.WaitGroup
			start := time.Now()
			var mu sync.Mutex
			order := make([]time.Duration, 30)
			for i := range 30 {
				time.Sleep(time.Millisecond)
				wg.Go(func() {
					if err := p.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					mu.Lock()
					order[i] = time.Since(start)
					mu.Unlock()
				})
			}
			time.Sleep(5*time.Second - time.Since(start))
			wg.Wait()
			if took := time.Since(start); took > 11*time.Second || resume && took > 6*time.Second {
				t.Errorf("resumed %v: took %v", resume, took)
			}
			if !slices.IsSorted(order) {
				t.Errorf("resumed %v: admitted in the order %v", resume, order)
			}
		})
	}
}

func TestPoolUsesAMemberAfterItsPolicyAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		small, slow := parsed(t, "10/s;unit=tokens | guard=none"), parsed(t, "100/m;unit=tokens;algo=fixed_window | guard=none")
		p := newPool(t, throttle.Member{Limiter: small}, throttle.Member{Limiter: slow})
		if _, err := p.Acquire(t.Context(), throttle.Cost{"tokens": 100}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.AfterFunc(5*time.Second, func() {
			larger, _ := throttle.ParsePolicy(small.Name(), "50/s;unit=tokens | guard=none")
			if err := small.SetPolicy(t.Context(), larger); err != nil {
				t.Error(err)
			}
		})
		permit, err := p.Acquire(t.Context(), throttle.Cost{"tokens": 50})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); permit.Member() != "0" || took > 6*time.Second {
			t.Errorf("member %s after %v", permit.Member(), took)
		}
	})
}

var _ = context.Background
var _ = rand.N[int]
