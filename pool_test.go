package throttle_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// poolOf returns a Pool whose members have policies, and their indexes as names.
func poolOf(t *testing.T, policies ...string) (*throttle.Pool, []*throttle.Limiter) {
	t.Helper()
	var members []throttle.Member
	var limiters []*throttle.Limiter
	for i, text := range policies {
		policy, err := throttle.ParsePolicy(fmt.Sprint("policy ", i), text)
		if err != nil {
			t.Fatal(err)
		}
		l := mustNew(t, policy, nil)
		limiters = append(limiters, l)
		members = append(members, throttle.Member{Name: fmt.Sprint(i), Limiter: l})
	}
	p, err := throttle.NewPool(members...)
	if err != nil {
		t.Fatal(err)
	}
	return p, limiters
}

func TestPoolUsesAllOfItsMembers(t *testing.T) {
	for _, policies := range [][]string{
		{"5/s | guard=none", "20/s | guard=none"},
		{"5/s", "20/s"},
		{"5/s + 8;algo=concurrency", "20/s + 8;algo=concurrency"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, _ := poolOf(t, policies...)
			var order [][2]time.Time
			var mu sync.Mutex
			var wg sync.WaitGroup
			counts := map[string]int{}
			start := time.Now()
			for i := range 100 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(1, uint64(i)))
					for time.Since(start) < time.Minute {
						time.Sleep(time.Duration(1 + r.IntN(1000)))
						asked := time.Now()
						permit, err := p.Acquire(t.Context(), nil)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						order = append(order, [2]time.Time{asked, time.Now()})
						counts[permit.Member()]++
						mu.Unlock()
						time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
						permit.Arrived()
						permit.Release()
					}
				})
			}
			wg.Wait()
			slices.SortFunc(order, func(a, b [2]time.Time) int { // callers of one instant are in no order
				return cmp.Or(a[0].Compare(b[0]), a[1].Compare(b[1]))
			})
			n, last := 0, time.Time{}
			for _, o := range order {
				if o[1].Before(last) {
					t.Errorf("the caller of %v was admitted after %v, before an earlier one %v", o[0].Sub(start), o[1].Sub(start), last.Sub(start))
				}
				last = o[1]
				if o[1].Sub(start) < time.Minute {
					n++
				}
			}
			t.Log(n, counts)
			if n < 25*60*98/100 {
				t.Errorf("%d admissions in a minute, want 1470", n)
			}
		})
	}
}
