package kept_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store/kept"
)

// Callers of a process are admitted in the order of their classes and arrival.
func TestOrderWithinProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, time.Millisecond, 20*time.Millisecond)
		policy := throttle.Policy{Name: "order", Aging: time.Hour, Tiers: []throttle.Tier{throttle.PerSecond(2)}}
		other := f.limiters(t, policy)[1]
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
				if err := other.Wait(ctx); err != nil {
					t.Error(err)
				}
			}
		}()
		time.Sleep(3 * time.Second)
		// Limiters of one name and store share a queue.
		var same []*throttle.Limiter
		for range 3 {
			same = append(same, f.limiters(t, policy)[0])
		}
		type caller struct{ class, nth int }
		var mu sync.Mutex
		var got []caller
		came := false
		var wg sync.WaitGroup
		for nth := range 12 {
			class := []throttle.Class{throttle.Batch, throttle.Normal, throttle.Interactive}[nth%3]
			wg.Go(func() {
				if err := same[nth%len(same)].Wait(throttle.WithClass(ctx, class)); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if came { // the first may go before the others come
					got = append(got, caller{2 - nth%3, nth})
				}
			})
			time.Sleep(time.Millisecond)
		}
		mu.Lock()
		came = true
		mu.Unlock()
		wg.Wait()
		inOrder := func(a, b caller) int {
			if a.class != b.class {
				return a.class - b.class
			}
			return a.nth - b.nth
		}
		if len(got) < 11 || !slices.IsSortedFunc(got[1:], inOrder) { // the first had a time already
			t.Errorf("admitted in the order %v", got)
		}
	})
}

// A wait that is too long even for an idle fleet is refused at once, without a trip. It consumes nothing.
func TestTooLateIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, farAndNear...)
		all := f.limiters(t, throttle.Policy{Name: "late", Tiers: []throttle.Tier{{Limit: 10, Window: time.Minute}}})
		for i, l := range all {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := l.WaitN(ctx, 11); !errors.Is(err, throttle.ErrExceedsCapacity) {
				t.Errorf("process %d: %v, want that the cost exceeds the capacity", i, err)
			}
			cancel()
		}
		if err := all[0].WaitN(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		for i, l := range all {
			for range 3 {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				if err := l.Wait(ctx); err == nil || time.Since(began) > time.Second {
					t.Errorf("process %d: %v after %v, want a refusal at once", i, err, time.Since(began))
				}
				cancel()
			}
		}
		time.Sleep(2 * time.Second)
		s, err := all[1].Status(t.Context())
		if err != nil || s.Tiers[0].Used != 10 {
			t.Errorf("%v, %v; want 10 used", s, err)
		}
		time.Sleep(time.Minute)
		if !all[2].AllowN(10) {
			t.Error("the refused have consumed something")
		}
	})
}

// A refusal leaves the value as it is, byte for byte.
func TestRefusalWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, farAndNear[:2]...)
		outer := f.limiters(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{{Limit: 3, Window: time.Hour}}})
		inner := f.limiters(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{{Limit: 20, Window: time.Hour}, {Limit: 2, Window: time.Second}}})
		for range 3 {
			if err := outer[0].Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := inner[0].Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		nested := inner[1].Within(outer[1])
		names := [][]byte{kept.Name("outer"), kept.Name("inner")}
		before := [][]byte{f.server.Value(names[0]), f.server.Value(names[1])}
		_, writes, _ := f.server.Count()
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := nested.Wait(ctx); err == nil {
				t.Error("admitted beyond the outer quota")
			}
			if nested.Allow() {
				t.Error("allowed beyond the outer quota")
			}
			cancel()
			time.Sleep(3 * time.Second)
		}
		for i, name := range names {
			if after := f.server.Value(name); before[i] == nil || string(after) != string(before[i]) {
				t.Errorf("a refusal has changed the value of quota %d", i)
			}
		}
		if _, after, _ := f.server.Count(); after != writes {
			t.Errorf("%d transactions of refusals wrote", after-writes)
		}
	})
}

// Nested quotas, Groups and Pools keep every limit, and use what they may.
func TestNestedFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, farAndNear[:3]...)
		outer := f.limiters(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(10)}})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		keys := []string{"a", "b", "c", "d"}
		var mu sync.Mutex
		sent, all := make(map[string][]time.Time), []time.Time(nil)
		var wg sync.WaitGroup
		for i, s := range f.stores {
			g, err := throttle.NewGroup(throttle.Policy{Name: "key", Tiers: []throttle.Tier{throttle.PerSecond(4)}}, s, throttle.GroupOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range keys {
				for range 3 {
					l := g.Within(key, outer[i])
					wg.Go(func() {
						for ctx.Err() == nil {
							if l.Wait(ctx) != nil {
								time.Sleep(10 * time.Millisecond)
								continue
							}
							mu.Lock()
							sent[key], all = append(sent[key], time.Now()), append(all, time.Now())
							mu.Unlock()
						}
					})
				}
			}
		}
		wg.Wait()
		if most := mostWithin(all, time.Second); most > 10 || len(all) < 240 {
			t.Errorf("%d sent, %d within a second", len(all), most)
		}
		var by []int
		for _, key := range keys {
			if most := mostWithin(sent[key], time.Second); most > 4 {
				t.Errorf("%q: %d within a second", key, most)
			}
			by = append(by, len(sent[key]))
		}
		if slices.Min(by)*100 < slices.Max(by)*70 {
			t.Errorf("sent by key: %v", by)
		}
	})
}

// A pool over the store uses all of its members.
func TestPoolOfFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, farAndNear[:2]...)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var mu sync.Mutex
		sent := make(map[string][]time.Time)
		total := 0
		var wg sync.WaitGroup
		for _, s := range f.stores {
			var members []throttle.Member
			for _, name := range []string{"first", "second"} {
				l, err := throttle.New(throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerSecond(5)}}, s)
				if err != nil {
					t.Fatal(err)
				}
				members = append(members, throttle.Member{Name: name, Limiter: l})
			}
			pool, err := throttle.NewPool(members...)
			if err != nil {
				t.Fatal(err)
			}
			for range 8 {
				wg.Go(func() {
					for ctx.Err() == nil {
						p, err := pool.Acquire(ctx, nil)
						if err != nil {
							time.Sleep(10 * time.Millisecond)
							continue
						}
						p.Release()
						mu.Lock()
						sent[p.Member()] = append(sent[p.Member()], time.Now())
						total++
						mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		for name, at := range sent {
			if most := mostWithin(at, time.Second); most > 5 {
				t.Errorf("%s: %d within a second", name, most)
			}
		}
		if total < 170 {
			t.Errorf("%d sent, want 190", total)
		}
	})
}

// A pool over a store that is some trips away asks it for all of its callers together, and not for each before it waits.
func TestPoolOfDistantStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 20*time.Millisecond)
		pool := new(throttle.Pool)
		for name, n := range map[string]int64{"a": 10, "b": 5} {
			l := f.limiters(t, throttle.Policy{Name: name, Guard: 20 * time.Millisecond, Tiers: []throttle.Tier{throttle.PerSecond(n)}})[0]
			if err := pool.Add(throttle.Member{Name: name, Limiter: l}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		admitted := new(admissions)
		for range 10 {
			all.Go(func() {
				for pool.Wait(ctx) == nil {
					admitted.add()
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		all.Wait()
		if n := len(admitted.at); n < 125 {
			t.Errorf("%d admitted within 10s, want 125 of 150", n)
		}
	})
}

// Processes that wait have equal turns, whatever the tiers and the costs.
func TestEqualTurns(t *testing.T) {
	soak.Slow(t, "fleets with many tiers play")
	for name, test := range map[string]struct {
		tiers []throttle.Tier
		costs []throttle.Cost
	}{
		"two tiers": {[]throttle.Tier{throttle.PerSecond(10), {Limit: 200, Window: 30 * time.Second}}, []throttle.Cost{nil}},
		"bucket":    {[]throttle.Tier{{Limit: 10, Window: time.Second, Burst: 3, Algorithm: throttle.TokenBucket}}, []throttle.Cost{nil}},
		"slow":      {[]throttle.Tier{{Limit: 30, Window: 10 * time.Second, Burst: 2, Algorithm: throttle.TokenBucket}}, []throttle.Cost{nil}},
		"two units": {[]throttle.Tier{throttle.PerSecond(50), {Limit: 1000, Window: time.Second, Unit: "tokens"}}, []throttle.Cost{{"tokens": 100}, {"tokens": 100}}},
		"gcra":      {[]throttle.Tier{{Limit: 600, Window: time.Minute, Burst: 5, Algorithm: throttle.GCRA}}, []throttle.Cost{nil}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, farAndNear...)
			all := f.limiters(t, throttle.Policy{Name: "turns", Tiers: test.tiers})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			began := time.Now()
			sent := make([]int, len(all))
			var mu sync.Mutex
			var wg sync.WaitGroup
			for i, l := range all {
				for n := range 20 {
					wg.Go(func() {
						for ctx.Err() == nil {
							p, err := l.Acquire(ctx, test.costs[n%len(test.costs)])
							if err != nil {
								time.Sleep(10 * time.Millisecond)
								continue
							}
							p.Release()
							mu.Lock()
							if time.Since(began) > time.Minute { // the first burst is for whoever comes first
								sent[i]++
							}
							mu.Unlock()
						}
					})
				}
			}
			wg.Wait()
			if slices.Min(sent)*100 < slices.Max(sent)*80 {
				t.Errorf("%s: sent by process: %v", name, sent)
			}
		})
	}
}

// A callback that panics or ends its goroutine leaves the quota as if its caller had been canceled.
func TestCallbacksThatEnd(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("of a callback") }, "Goexit": runtime.Goexit} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, farAndNear[:2]...)
			var mu sync.Mutex
			bad := 0
			now := func() bool {
				mu.Lock()
				defer mu.Unlock()
				bad++
				return bad%3 == 0
			}
			policy := throttle.Policy{
				Name: "ends", Tiers: []throttle.Tier{throttle.PerSecond(20), {Limit: 4, Algorithm: throttle.Concurrency}},
				Observer: &throttle.Observer{
					Admitted: func(context.Context, throttle.AdmittedInfo) {
						if now() {
							end()
						}
					},
					Queued: func(context.Context, throttle.QueuedInfo) {
						if now() {
							end()
						}
					},
				},
			}
			all := f.limiters(t, policy)
			var wg sync.WaitGroup
			for i := range 60 {
				wg.Go(func() {
					defer func() { _ = recover() }()
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					if p, err := all[i%2].Acquire(ctx, nil); err == nil {
						p.Release()
					}
				})
			}
			wg.Wait()
			time.Sleep(15 * time.Second) // a lease, at most
			policy.Observer = nil
			calm := f.limiters(t, policy)
			s, err := calm[0].Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.Tiers[0].Used != 0 || s.Tiers[1].Used != 0 {
				t.Errorf("%s: %v", name, s)
			}
			for range 4 {
				if p, err := calm[1].TryAcquire(t.Context(), nil); err != nil {
					t.Errorf("%s: %v", name, err)
				} else {
					defer p.Release()
				}
			}
		})
	}
}
