package kept_test

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/keptmem"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store/kept"
	"github.com/apithrottle/throttle/throttletest"
)

// A hidden provider refuses what is above a limit that no response contains.
type hidden struct {
	mu      sync.Mutex
	counter *throttletest.Counter
	// accepted and refused are when requests came.
	accepted, refused []time.Time
	// by is the number of accepted requests of each process.
	by map[int]int
}

func newHidden(t testing.TB, tier throttle.Tier) *hidden {
	c, err := throttletest.NewCounter(tier)
	if err != nil {
		t.Fatal(err)
	}
	return &hidden{counter: c, by: make(map[int]int)}
}

func (h *hidden) serve(process int) (ok bool) {
	time.Sleep(25 * time.Millisecond)
	h.mu.Lock()
	if ok = h.counter.Arrive(time.Now().UnixMicro(), nil); ok {
		h.accepted = append(h.accepted, time.Now())
		h.by[process]++
	} else {
		h.refused = append(h.refused, time.Now())
	}
	h.mu.Unlock()
	time.Sleep(25 * time.Millisecond)
	return ok
}

// run lets callers of a limiter send requests until the context ends.
func (h *hidden) run(ctx context.Context, wg *sync.WaitGroup, process int, l *throttle.Limiter, callers int) {
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				p, err := l.Acquire(ctx, nil)
				if err != nil { // the end of the context
					time.Sleep(10 * time.Millisecond)
					continue
				}
				if h.serve(process) {
					p.Passed()
				} else {
					_ = p.Refused(ctx, 0)
				}
				p.Release()
			}
		})
	}
}

// shares returns how many requests of each of four processes were accepted.
func (h *hidden) shares() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return []int{h.by[0], h.by[1], h.by[2], h.by[3]}
}

// count returns how many requests were accepted and refused since an instant.
func (h *hidden) count(since time.Time) (accepted, refused int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return count(h.accepted, since, time.Now()), count(h.refused, since, time.Now())
}

func count(of []time.Time, from, to time.Time) (n int) {
	for _, at := range of {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}

var learns = throttle.Policy{Name: "learns", Tiers: []throttle.Tier{{
	Limit: 5, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 1000},
}}}

func learnedOf(t testing.TB, l *throttle.Limiter) *throttle.TierStatus {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Tiers[0].Learned == nil {
		t.Fatal("the status has nothing learned")
	}
	return &s.Tiers[0]
}

// Processes that share a tier use most of a rate that no response contains, in equal shares, and few requests are refused.
func TestFleetLearnsHiddenRate(t *testing.T) {
	soak.Slow(t, "a fleet learns for minutes")
	for name, tier := range map[string]throttle.Tier{
		"log":    {Limit: 40, Window: time.Second},
		"bucket": {Limit: 40, Window: time.Second, Algorithm: throttle.TokenBucket, Burst: 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 100*time.Microsecond, time.Millisecond, 2*time.Millisecond, 5*time.Millisecond)
			h := newHidden(t, tier)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			var wg sync.WaitGroup
			all := f.limiters(t, learns)
			for i, l := range all {
				h.run(ctx, &wg, i, l, 8)
			}
			time.Sleep(5 * time.Minute)
			from, before := time.Now(), h.shares()
			time.Sleep(5*time.Minute - time.Second)
			good, bad := h.count(from)
			var shares []int
			for i, n := range h.shares() {
				shares = append(shares, n-before[i])
			}
			t.Logf("%s: %.3f of the rate, %d of %d refused, shares %v, %+v", name, float64(good)/(40*299), bad, good+bad, shares, *learnedOf(t, all[0]).Learned)
			if good < 40*299*85/100 || bad*100 > good {
				t.Errorf("%s: %d accepted and %d refused in 5 minutes", name, good, bad)
			}
			if slices.Min(shares)*100 < slices.Max(shares)*90 {
				t.Errorf("%s: accepted by process: %v", name, shares)
			}
			for _, l := range all[1:] {
				if a, b := learnedOf(t, all[0]).Learned, learnedOf(t, l).Learned; a.Refused != b.Refused {
					t.Errorf("%s: processes know %+v and %+v", name, *a, *b)
				}
			}
			cancel()
			wg.Wait()
		})
	}
}

// Requests that were reserved before a rate decreases are not sent at the old pace after it, nor after the pause that the
// response asks for.
func TestDecreaseEndsOldPace(t *testing.T) {
	for _, told := range []time.Duration{0, 100 * time.Millisecond} {
		testDecreaseEndsOldPace(t, told)
	}
}

func testDecreaseEndsOldPace(t *testing.T, told time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 100*time.Microsecond, time.Millisecond, 2*time.Millisecond, 5*time.Millisecond)
		p := learns
		p.Tiers = []throttle.Tier{{Limit: 40, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 40}}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var sent []time.Time
		all := f.limiters(t, p)
		for _, l := range all {
			for range 8 {
				wg.Go(func() {
					for ctx.Err() == nil {
						permit, err := l.Acquire(ctx, nil)
						if err != nil {
							return
						}
						mu.Lock()
						sent = append(sent, time.Now())
						mu.Unlock()
						permit.Passed()
						permit.Release()
					}
				})
			}
		}
		time.Sleep(3 * time.Second)
		permit, err := all[0].Acquire(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = permit.Refused(ctx, told)
		permit.Release()
		time.Sleep(told + 100*time.Millisecond) // until all have heard of it
		after := time.Now()
		wg.Wait()
		sent = slices.DeleteFunc(sent, after.After)
		for i := range 20 { // the pace was 25 ms
			if gap := sent[i+1].Sub(sent[i]); gap < 30*time.Millisecond {
				t.Errorf("told %v: request %d was sent %v after the one before, want 32 ms", told, i+1, gap)
			}
		}
		if rate := float64(len(sent)) / time.Since(after).Seconds(); rate < 25 {
			t.Errorf("told %v: %.1f requests a second, want 25", told, rate)
		}
	})
}

// After a decrease, requests go on at the new rate, however long the queue ahead was.
func TestDecreaseLeavesNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, slices.Repeat([]time.Duration{time.Millisecond}, 16)...)
		p := learns
		p.Tiers = []throttle.Tier{{Limit: 20, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 20}}}
		ctx, cancel := context.WithCancel(t.Context())
		all := f.limiters(t, p)
		admitted, wait := keepAsking(ctx, all, 8) // 6 s ahead
		time.Sleep(10 * time.Second)
		permit, err := all[0].Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = permit.Refused(t.Context(), 0)
		permit.Release()
		from := time.Now()
		time.Sleep(6 * time.Second)
		if n := admitted.between(from, time.Now()); n < 6*9 || n > 6*17 { // the rate is 16
			t.Errorf("%d requests in 6 s", n)
		}
		cancel()
		wait()
	})
}

// A process that has not heard of a decrease sends what it had reserved before. If that is refused, the rate decreases no
// more.
func TestRefusalBeforeNewsDecreasesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := deafFleet(t, time.Millisecond, time.Millisecond, 0)
		p := learns
		p.Tiers = []throttle.Tier{{Limit: 40, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 40}}}
		all := f.limiters(t, p)
		refused, err := all[0].Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		permits := make(chan *throttle.Permit, 20)
		var wg sync.WaitGroup
		for range cap(permits) {
			wg.Go(func() {
				permit, err := all[1].Acquire(t.Context(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				permits <- permit
			})
		}
		time.Sleep(50 * time.Millisecond)
		_ = refused.Refused(t.Context(), 0)
		refused.Release()
		first := learnedOf(t, all[2]).Learned
		if first.Refused < 38 || first.Rate > 32 {
			t.Fatalf("after a refusal the tier knows %+v", *first)
		}
		time.Sleep(150 * time.Millisecond)
		for len(permits) > 0 {
			<-permits
		}
		permit := <-permits
		_ = permit.Refused(t.Context(), 0)
		if got := learnedOf(t, all[2]).Learned; got.Refused != first.Refused {
			t.Errorf("after a refusal of a request of before, the tier knows %+v, want %+v", *got, *first)
		}
		wg.Wait()
		for len(permits) > 0 { // the last one was reserved anew
			permit = <-permits
		}
		_ = permit.Refused(t.Context(), 0)
		if got := learnedOf(t, all[2]).Learned; got.Refused == first.Refused {
			t.Errorf("after a refusal of a request of later, the tier knows %+v", *got)
		}
	})
}

// Refusals of one moment, in several processes, decrease the rate once. A process that joins starts at that rate.
func TestRefusalsOfOneMomentDecreaseOnce(t *testing.T) {
	for _, told := range []time.Duration{0, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, farAndNear[:4]...)
			p := learns
			p.Tiers = []throttle.Tier{{Limit: 100, Window: time.Second, Algorithm: throttle.GCRA, Burst: 40, Learn: throttle.Learn{Most: 1000}}}
			var wg sync.WaitGroup
			for _, l := range f.limiters(t, p)[:3] {
				for range 7 {
					wg.Go(func() {
						permit, err := l.Acquire(t.Context(), nil)
						if err != nil {
							t.Error(err)
							return
						}
						time.Sleep(500 * time.Millisecond) // until all are sent
						if err := permit.Refused(t.Context(), told); err != nil {
							t.Error(err)
						}
						permit.Release()
					})
				}
			}
			wg.Wait()
			joins, err := throttle.New(p, f.stores[3])
			if err != nil {
				t.Fatal(err)
			}
			got := learnedOf(t, joins)
			if l := got.Learned; l.Refused < 90 || l.Refused > 102 || l.Rate < 0.6*l.Refused || math.Abs(got.MaxRate-l.Rate) > 1 {
				t.Errorf("told %v: after 21 refusals the rate is %v, and %+v", told, got.MaxRate, l)
			}
		})
	}
}

// After a day without requests and without processes, the first rate is 0.9 of the last one, with a keeper that forgets what
// it may. After a month it is that of the policy.
func TestLearnedRateSurvivesQuietDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, time.Millisecond, time.Millisecond, time.Millisecond)
		all := f.limiters(t, learns)
		permit, err := all[0].Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		_ = permit.Refused(t.Context(), time.Second)
		permit.Release()
		time.Sleep(2 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		h := newHidden(t, throttle.Tier{Limit: 20, Window: time.Second})
		var wg sync.WaitGroup
		h.run(ctx, &wg, 0, all[0], 4)
		wg.Wait()
		cancel()
		last := learnedOf(t, all[1]).Learned
		before := max(last.Rate, last.Refused)
		all[0].Close()
		all[1].Close()
		time.Sleep(24 * time.Hour)
		f.server.Sweep()
		after := learnedOf(t, all[2])
		if rate := after.Learned.Rate; rate < 10 || rate > before*0.901 {
			t.Errorf("after a day the rate is %v, before it was %v", rate, before)
		}
		time.Sleep(31 * 24 * time.Hour)
		f.server.Sweep()
		l := f.limiters(t, learns)[1]
		if got := learnedOf(t, l).Learned; got.Rate != 5 || got.Refused != 0 {
			t.Errorf("after a month the tier knows %+v", got)
		}
	})
}

// Two releases whose bounds differ learn side by side, and each keeps its bounds when one is taken over by the other.
func TestBoundsOfTwoReleases(t *testing.T) {
	soak.Slow(t, "two fleets learn for minutes")
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, time.Millisecond, 2*time.Millisecond)
		narrow := learns
		narrow.Tiers = slices.Clone(learns.Tiers)
		narrow.Tiers[0].Learn = throttle.Learn{Least: 4, Most: 10}
		wide, err := throttle.New(learns, f.stores[0])
		if err != nil {
			t.Fatal(err)
		}
		h := newHidden(t, throttle.Tier{Limit: 60, Window: time.Second})
		run := func(some ...*throttle.Limiter) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			var wg sync.WaitGroup
			for i, l := range some {
				h.run(ctx, &wg, i, l, 8)
			}
			wg.Wait()
		}
		run(wide)
		if rate := learnedOf(t, wide).Learned.Rate; rate < 20 {
			t.Errorf("the rate is %v", rate)
		}
		other, err := throttle.New(narrow, f.stores[1])
		if err != nil {
			t.Fatal(err)
		}
		run(other, wide)
		if a, b := learnedOf(t, wide).Learned.Rate, learnedOf(t, other).Learned.Rate; a < 5 || b > 10 || b < 4 {
			t.Errorf("side by side, the rates are %v and %v", a, b)
		}
		run(other)
		time.Sleep(2 * time.Minute)
		run(wide)
		if rate := learnedOf(t, wide).Learned.Rate; rate < 10 {
			t.Errorf("the rate is %v when the wider bounds are back", rate)
		}
	})
}

// No forecast is later than what a rate that others have learned allows.
func TestForecastKnowsNoHigherRate(t *testing.T) {
	soak.Long(t, "minutes at the rate of a hidden limit")
	for _, ahead := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			server := keptmem.New()
			t.Cleanup(func() {
				server.Close()
				time.Sleep(2 * time.Minute)
			})
			var all []*throttle.Limiter
			for range 2 {
				l, err := throttle.New(learns, kept.New(server.Client(time.Millisecond), kept.Options{Name: "kept", Ahead: ahead}))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, l)
			}
			if err := all[1].Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			h := newHidden(t, throttle.Tier{Limit: 10_000, Window: time.Second})
			var wg sync.WaitGroup
			h.run(ctx, &wg, 0, all[0], 20)
			wg.Wait()
			if rate := learnedOf(t, all[0]).Learned.Rate; rate < 100 {
				t.Errorf("ahead %v: the rate is %v", ahead, rate)
			}
			soon, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			for range 100 { // which takes 20 s at the rate that the process knows
				wg.Go(func() {
					if err := all[1].Wait(soon); err != nil {
						t.Errorf("ahead %v: %v", ahead, err)
					}
				})
			}
			wg.Wait()
		})
	}
}
