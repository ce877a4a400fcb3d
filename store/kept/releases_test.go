package kept_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

// Two releases side by side never admit more than the larger policy, and lose little by being two.
func TestReleasesSideBySide(t *testing.T) {
	soak.Slow(t, "fleets play for minutes")
	for _, test := range []struct {
		name     string
		old, new []throttle.Tier
	}{
		{"slower", []throttle.Tier{throttle.PerSecond(20)}, []throttle.Tier{throttle.PerSecond(10)}},
		{"quicker", []throttle.Tier{throttle.PerSecond(10)}, []throttle.Tier{throttle.PerSecond(20)}},
		{"another counter", []throttle.Tier{throttle.PerSecond(20)}, []throttle.Tier{{Limit: 20, Window: time.Second, Algorithm: throttle.SlidingWindow}}},
		{"one more tier", []throttle.Tier{throttle.PerSecond(20)}, []throttle.Tier{throttle.PerSecond(20), {Limit: 300, Window: 30 * time.Second}}},
		{"one more unit", []throttle.Tier{throttle.PerSecond(20)}, []throttle.Tier{throttle.PerSecond(20), {Limit: 1000, Window: time.Second, Unit: "tokens"}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, farAndNear[:4]...)
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			var all []*throttle.Limiter
			for i, s := range f.stores {
				l, err := throttle.New(throttle.Policy{Name: "release", Tiers: [][]throttle.Tier{test.old, test.new}[i%2]}, s)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, l)
			}
			admitted, wait := ask(ctx, all, 6)
			wait()
			began := admitted.at[0]
			larger := max(test.old[0].Limit, test.new[0].Limit)
			at := slices.DeleteFunc(slices.Clone(admitted.at), func(at time.Time) bool { return at.Sub(began) < 2*time.Second })
			if most := mostWithin(at, time.Second); int64(most) > larger {
				t.Errorf("%s: %d within a second", test.name, most)
			}
			smaller := min(test.old[0].Limit, test.new[0].Limit)
			want := 50 * int(smaller) * 8 / 10
			if len(test.new) > 1 && test.new[1].Unit == "" {
				want = 300 * 9 / 5
			}
			if n := admitted.between(began.Add(5*time.Second), began.Add(55*time.Second)); n < want {
				t.Errorf("%s: %d within 50s, want %d", test.name, n, want)
			}
		})
	}
}

// A policy that changes under load holds from then on in all processes that have it, with what was charged before.
func TestPolicyChangesUnderLoad(t *testing.T) {
	for seed := range uint64(soak.Times(10)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 9))
			f := newFleet(t, farAndNear[:1+r.IntN(4)]...)
			policy := func(n int64) throttle.Policy {
				return throttle.Policy{Name: "changes", Tiers: []throttle.Tier{
					{Limit: n, Window: time.Second, Algorithm: []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.FixedWindow}[r.IntN(3)]},
					{Limit: 30 * n, Window: time.Minute},
				}}
			}
			all := f.limiters(t, policy(20))
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			admitted, wait := ask(ctx, all, 5)
			for i := range 8 {
				time.Sleep(time.Duration(500+r.IntN(2000)) * time.Millisecond)
				p := policy(1 + r.Int64N(20))
				for _, l := range all {
					if err := l.SetPolicy(ctx, p); err != nil {
						t.Errorf("seed %d, change %d: %v", seed, i, err)
					}
				}
				if _, err := all[0].Forecast(ctx, nil); err != nil && !errors.Is(err, throttle.ErrDeadline) {
					t.Errorf("seed %d, change %d: forecast: %v", seed, i, err)
				}
				if i == 4 {
					if err := all[0].Pause(ctx, time.Second); err != nil {
						t.Error(err)
					}
				}
			}
			p := policy(20)
			for _, l := range all {
				if err := l.SetPolicy(ctx, p); err != nil {
					t.Error(err)
				}
			}
			last := time.Now()
			wait()
			if most := mostWithin(admitted.at, time.Second); most > 40 { // fixed windows
				t.Errorf("seed %d: %d within a second", seed, most)
			}
			if n := admitted.between(last.Add(3*time.Second), last.Add(8*time.Second)); n < 15 {
				t.Errorf("seed %d: %d within 5s, after the last change", seed, n)
			}
		})
	}
}

// Limiters that are closed while callers wait, and quotas that are forgotten and opened again, keep the bound.
func TestClosedAndOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, farAndNear[:3]...)
		var mu sync.Mutex
		var sent []time.Time
		var wg sync.WaitGroup
		end := time.Now().Add(20 * time.Second)
		for i, s := range f.stores {
			wg.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					l, err := throttle.New(throttle.Policy{Name: "again", Tiers: []throttle.Tier{throttle.PerSecond(10)}}, s)
					if err != nil {
						t.Error(err)
						return
					}
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					for range 5 {
						wg.Go(func() {
							for {
								err := l.Wait(ctx)
								if errors.Is(err, throttle.ErrClosed) || ctx.Err() != nil {
									return
								}
								if err != nil {
									time.Sleep(time.Millisecond)
									continue
								}
								mu.Lock()
								sent = append(sent, time.Now())
								mu.Unlock()
							}
						})
					}
					time.Sleep(time.Duration(300+100*i+50*n) * time.Millisecond)
					l.Close()
					cancel()
				}
			})
		}
		wg.Wait()
		if most := mostWithin(sent, time.Second); most > 10 || len(sent) < 150 {
			t.Errorf("%d sent, %d within a second", len(sent), most)
		}
	})
}

// Many keys of a Group share a store, each with a limit of its own.
func TestGroupOfManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, time.Millisecond, 20*time.Millisecond)
		var wg sync.WaitGroup
		var mu sync.Mutex
		sent := make(map[string]int)
		for _, s := range f.stores {
			g, err := throttle.NewGroup(throttle.Policy{Name: "many", Tiers: []throttle.Tier{{Limit: 2, Window: time.Minute}}}, s, throttle.GroupOptions{MaxKeys: 50})
			if err != nil {
				t.Fatal(err)
			}
			for n := range 300 {
				key := string(rune('a'+n%26)) + string(rune('a'+n/26%26))
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					defer cancel()
					for range 3 {
						if g.For(key).Wait(ctx) == nil {
							mu.Lock()
							sent[key]++
							mu.Unlock()
						}
					}
				})
			}
		}
		wg.Wait()
		for key, n := range sent {
			if n != 2 {
				t.Errorf("%q: %d sent, want 2", key, n)
			}
		}
	})
}

// A value of a newer release is refused, and left alone. So is one that is damaged.
func TestValuesOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		value []byte
		want  error
	}{
		"newer":   {[]byte{200, 1, 2, 3, 4, 5, 6}, kept.ErrNewer},
		"damaged": {[]byte{3, 1, 2, 3, 4, 5, 6}, kept.ErrUnsound},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, time.Millisecond)
			f.server.Put(kept.Name("other"), test.value)
			l := f.limiters(t, throttle.Policy{Name: "other", Tiers: []throttle.Tier{throttle.PerSecond(5)}})[0]
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			began := time.Now()
			if err := l.Wait(ctx); !errors.Is(err, test.want) || time.Since(began) > time.Second {
				t.Errorf("%s: Wait: %v after %v, want %v", name, err, time.Since(began), test.want)
			}
			if _, err := l.Status(ctx); !errors.Is(err, test.want) {
				t.Errorf("%s: Status: %v, want %v", name, err, test.want)
			}
			if err := l.Pause(ctx, time.Second); !errors.Is(err, test.want) {
				t.Errorf("%s: Pause: %v, want %v", name, err, test.want)
			}
			if got := f.server.Value(kept.Name("other")); string(got) != string(test.value) {
				t.Errorf("%s: the value is now %v", name, got)
			}
		})
	}
}

// After the server's clock has stepped forward, at most one capacity more is admitted, besides what was reserved.
func TestClockStepsForward(t *testing.T) {
	soak.Long(t, "TestBound steps the clock, too")
	for _, tier := range []algorithms.Tier{
		{Limit: 10, Window: time.Minute}, {Limit: 10, Window: time.Minute, Algorithm: throttle.SlidingWindow},
		{Limit: 10, Window: time.Minute, Burst: 5, Algorithm: throttle.TokenBucket}, {Limit: 10, Window: time.Minute, Algorithm: throttle.AnchoredWindow},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, farAndNear[:3]...)
			all := f.limiters(t, throttle.Policy{Name: "forward", Tiers: []throttle.Tier{tier}})
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			admitted, wait := ask(ctx, all, 3)
			time.Sleep(90 * time.Second)
			f.server.Step(3 * time.Hour)
			stepped := time.Now()
			wait()
			capacity := int(max(tier.Burst, tier.Limit))
			if most := mostWithin(admitted.at, time.Minute); most > 2*capacity+9+int(tier.Limit) {
				t.Errorf("%v: %d within a minute", tier, most)
			}
			if n := admitted.between(stepped.Add(time.Minute+time.Second), stepped.Add(2*time.Minute)); n > capacity+int(tier.Limit) {
				t.Errorf("%v: %d in the minute after the next", tier, n)
			}
		})
	}
}

var _ store.Store = (*kept.Store)(nil)

// A policy that one process sets does not forget what the tiers of the other processes have counted.
func TestPolicyOfOneProcess(t *testing.T) {
	rate := throttle.Tier{Limit: 20, Window: sec, Algorithm: throttle.GCRA}
	for name, more := range map[string]throttle.Tier{
		"a unit": {Limit: 20, Window: time.Minute, Unit: "tokens"},
		"a day":  {Limit: 20, Window: 24 * time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			p := throttle.Policy{Name: "one", Guard: 20 * ms, Tiers: []throttle.Tier{rate, more}}
			changing, other := f.start(t, p, ms), f.start(t, p, ms)
			cost := throttle.Cost{more.Unit: 20}
			if more.Unit == "" {
				cost = throttle.Cost{"requests": 20}
			}
			if _, err := other.Acquire(t.Context(), cost); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * sec)
			p.Tiers = p.Tiers[:1]
			if err := changing.SetPolicy(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * sec)
			if _, err := other.TryAcquire(t.Context(), cost); err == nil {
				t.Errorf("%s: 40 admitted, want 20", name)
			}
		})
	}
}
