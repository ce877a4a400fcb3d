package kept_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

// Processes that adapt their limits decide by a plan each. The value has room for few of them, and the quota goes on.
func TestManyPlansShareOneValue(t *testing.T) {
	soak.Slow(t, "many plans take turns")
	for name, tiers := range map[string]func(n int64) []throttle.Tier{
		"small": func(n int64) []throttle.Tier { return []throttle.Tier{{Limit: 400 + n, Window: time.Hour}} },
		"logs": func(n int64) []throttle.Tier {
			return []throttle.Tier{{Limit: 400 + n, Window: time.Hour, Algorithm: throttle.SlidingLog}}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			const processes = 40
			f := newFleet(t, slices.Repeat([]time.Duration{time.Millisecond}, processes)...)
			for round := range 10 {
				for i, s := range f.stores {
					l, err := throttle.New(throttle.Policy{Name: "plans", Tiers: tiers(int64(i)), Guard: time.Second}, s)
					if err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					if err := l.Wait(ctx); err != nil {
						t.Errorf("%s: round %d, process %d: %v", name, round, i, err)
					}
					cancel()
					time.Sleep(time.Second)
				}
			}
			if n := len(f.server.Value(kept.Name("plans"))); n > kept.MostBytes*3/4 {
				t.Errorf("%s: the value has %d bytes", name, n)
			}
			time.Sleep(time.Hour)
			l, err := throttle.New(throttle.Policy{Name: "plans", Tiers: tiers(0), Guard: time.Second}, f.stores[0])
			if err != nil {
				t.Fatal(err)
			}
			n := int64(0)
			for ; l.Allow(); n++ {
			}
			if want := tiers(0)[0].Limit; n != want {
				t.Errorf("%s: %d of %d admitted after a quiet hour", name, n, want)
			}
		})
	}
}

// A quota whose plan is replaced again and again keeps none of the plans in between.
func TestReplacedPlansAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := func(limit int64) *algorithms.Plan {
			p, err := algorithms.NewPlan([]algorithms.Tier{{Limit: limit, Window: time.Second}}, 0)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		f := newFleet(t, time.Millisecond)
		first, err := f.stores[0].Open("replaced", plan(1), func(store.Call) {})
		if err != nil {
			t.Fatal(err)
		}
		q := first
		for i := range int64(100) {
			if err := q.(store.Lifecycle).Change(t.Context(), plan(i+2)); err != nil {
				t.Fatal(err)
			}
			q, _ = first.(store.Lifecycle).Successor()
		}
		if n := kept.Successors(first); n > 1 {
			t.Errorf("the first quota keeps %d successors, want 1", n)
		}
	})
}

// An asked keeper calls a function before each transaction.
type asked struct {
	kept.Keeper
	before func()
}

func (k *asked) Update(ctx context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	k.before()
	return k.Keeper.Update(ctx, names, change)
}

// Callers learn of a new plan at once. Those inside a quota that has a successor would otherwise ask it again and again, for as
// long as the transaction takes.
func TestReplannedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := func(limit int64) *algorithms.Plan {
			p, err := algorithms.NewPlan([]algorithms.Tier{{Limit: limit, Window: time.Second}}, 0)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		k := &asked{Keeper: newFleet(t).server.Client(time.Millisecond), before: func() {}}
		q, err := kept.New(k, kept.Options{Name: "kept", Ahead: true}).Open("replanned", plan(1), nil)
		if err != nil {
			t.Fatal(err)
		}
		told := false
		defer q.Watch(func(c store.Change, _ time.Duration) { told = told || c == store.Replanned })()
		k.before = func() {
			if next, _ := q.(store.Lifecycle).Successor(); next != q && !told {
				t.Error("a transaction under the new plan came before the watchers were told")
			}
		}
		if err := q.(store.Lifecycle).Change(t.Context(), plan(2)); err != nil {
			t.Fatal(err)
		}
		if !told {
			t.Error("the watchers were not told")
		}
	})
}
