package throttle_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

func TestClassNames(t *testing.T) {
	for c, want := range map[throttle.Class]string{
		throttle.Normal: "normal", throttle.Interactive: "interactive", throttle.Batch: "batch", 7: "class(7)",
	} {
		if c.String() != want {
			t.Errorf("class %d is %q, want %q", uint8(c), c, want)
		}
	}
}

// runClassCallers lets each caller wait for one request, in a goroutine, and returns the callers
// with their ends. They must arrive in order.
func runClassCallers(t *testing.T, p throttle.Policy, s throttle.Store, callers []classCaller) []classCaller {
	callers = slices.Clone(callers)
	synctest.Test(t, func(t *testing.T) {
		l, start := limiter(t, p, s), time.Now()
		var wg sync.WaitGroup
		for i := range callers {
			g := &callers[i]
			time.Sleep(g.arrives - time.Since(start))
			synctest.Wait()
			wg.Go(func() {
				ctx, cancel := context.WithCancel(throttle.WithClass(context.Background(), g.class))
				defer cancel()
				if g.leaves > 0 {
					left := g.leaves - time.Since(start)
					defer time.AfterFunc(left, cancel).Stop()
				}
				if g.within > 0 {
					ctx, cancel = context.WithTimeout(ctx, g.within)
					defer cancel()
				}
				g.err = l.Wait(ctx)
				g.end = time.Since(start)
			})
			synctest.Wait()
		}
		wg.Wait()
	})
	return callers
}

// referenceByRank computes the results that runClassCallers must have: whenever the provider's
// counter has room for one request, the waiting caller with the lowest rank is admitted.
func referenceByRank(t *testing.T, p throttle.Policy, callers []classCaller) []classCaller {
	callers = slices.Clone(callers)
	for i := range callers {
		callers[i].end = 0
	}
	provider, start := counter(t, p.Tiers...), bubbleStart.UnixMicro()
	rank := func(g *classCaller) time.Duration {
		return g.arrives + map[throttle.Class]time.Duration{throttle.Normal: p.Aging, throttle.Batch: 2 * p.Aging}[g.class]
	}
	var there []*classCaller
	for next := 0; next < len(callers) || len(there) > 0; {
		if len(there) == 0 {
			there = append(there, &callers[next])
			next++
		}
		from := slices.MinFunc(there, func(a, b *classCaller) int { return cmp.Compare(a.arrives, b.arrives) }).arrives
		micros, _ := provider.Earliest(start+from.Microseconds(), nil)
		at := time.Duration(micros-start) * time.Microsecond
		for ; next < len(callers) && callers[next].arrives <= at; next++ {
			there = append(there, &callers[next])
		}
		there = slices.DeleteFunc(there, func(g *classCaller) bool { return g.leaves > 0 && g.leaves <= at })
		if len(there) == 0 {
			continue
		}
		head := slices.MinFunc(there, func(a, b *classCaller) int { return cmp.Compare(rank(a), rank(b)) })
		if head.arrives > at {
			t.Fatalf("the reference admits %+v at %v, before its arrival", *head, at)
		}
		provider.Arrive(micros, nil)
		head.end = at
		there = slices.DeleteFunc(there, func(g *classCaller) bool { return g == head })
	}
	return callers
}

// TestClassesByRank checks that, whenever the tiers have room for one request, the waiting caller
// with the lowest rank is admitted, whatever the classes of the callers are and whichever are
// canceled.
func TestClassesByRank(t *testing.T) {
	for _, a := range counters {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			overtaken, seeds := 0, soak.Times(8)
			for seed := range uint64(seeds) {
				r := rand.New(rand.NewPCG(seed, uint64(a)))
				p, random := randomCallers(r, a, 200)
				p.Aging = (p.Tiers[0].Window * time.Duration(1+r.IntN(20)) / time.Duration(p.Tiers[0].Limit)).Truncate(time.Microsecond)
				callers := make([]classCaller, len(random))
				for i, c := range random {
					callers[i] = classCaller{class: classes[r.IntN(len(classes))], arrives: time.Duration(c.arrives) * time.Microsecond}
					if c.leaves != never && r.IntN(2) == 0 {
						callers[i].leaves = time.Duration(c.leaves) * time.Microsecond
					}
				}
				got, want := runClassCallers(t, p, nil, callers), referenceByRank(t, p, callers)
				for i, g := range got {
					if left := want[i].end == 0; left != (g.err != nil) || !left && g.end != want[i].end || left && g.end != g.leaves {
						t.Fatalf("seed %d: caller %d is %+v, want end %v", seed, i, g, want[i].end)
					}
					if i > 0 && g.err == nil && got[i-1].err == nil && g.end < got[i-1].end {
						overtaken++
					}
				}
			}
			if overtaken < 12*seeds {
				t.Errorf("%d callers were overtaken, want at least %d", overtaken, 12*seeds)
			}
		})
	}
}

// TestClassesDeadlinesByRank checks that a newcomer with a deadline is refused at once if, and only
// if, the callers that already wait make it late.
func TestClassesDeadlinesByRank(t *testing.T) {
	for _, a := range counters {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			refused, seeds := 0, soak.Times(8)
			for seed := range uint64(seeds) {
				r := rand.New(rand.NewPCG(seed, 7+uint64(a)))
				p, random := randomCallers(r, a, 105)
				slot := p.Tiers[0].Window / time.Duration(p.Tiers[0].Limit)
				p.Aging = (slot * time.Duration(1+r.IntN(20))).Truncate(time.Microsecond)
				callers := make([]classCaller, len(random))
				for i, c := range random {
					callers[i] = classCaller{class: classes[r.IntN(len(classes))], arrives: time.Duration(c.arrives) * time.Microsecond,
						within: (slot * time.Duration(1+r.IntN(60))).Truncate(time.Microsecond) + 500*time.Nanosecond}
				}
				var there []classCaller
				for i, g := range runClassCallers(t, p, nil, callers) {
					late := g
					late.leaves = g.arrives + g.within
					there = append(there, late)
					want := referenceByRank(t, p, there)[len(there)-1].end
					if g.err == nil || g.end > g.arrives { // not refused at once
						if want == 0 {
							t.Fatalf("seed %d: caller %d %+v is late and was not refused at once", seed, i, g)
						}
						continue
					}
					if want != 0 {
						t.Fatalf("seed %d: caller %d %+v was refused, but could be admitted at %v", seed, i, g, want)
					}
					refused++
					there = there[:len(there)-1]
				}
			}
			if refused < 12*seeds {
				t.Errorf("%d callers were refused, want at least %d", refused, 12*seeds)
			}
		})
	}
}

func p99(list []time.Duration) time.Duration { return list[len(list)*99/100] }

// TestClassesUnderLoad runs a batch job that asks for four times the quota. With classes,
// interactive requests must hardly wait, and the job must get the rest.
func TestClassesUnderLoad(t *testing.T) {
	soak.Slow(t, "it plays a batch of hours")
	var callers []classCaller
	for at := time.Duration(0); at < 2*time.Minute; at += 25 * ms { // 40 a second, of 10
		callers = append(callers, classCaller{class: throttle.Batch, arrives: at, leaves: 2 * time.Minute})
		if at%(200*ms) == 0 { // 5 a second
			callers = append(callers, classCaller{class: throttle.Interactive, arrives: at, leaves: 2 * time.Minute})
		}
	}
	policy := throttle.Policy{Tiers: []throttle.Tier{per(sec, 10, throttle.GCRA)}, Guard: throttle.NoGuard, Aging: time.Hour}
	with := runClassCallers(t, policy, nil, callers)
	plain := slices.Clone(callers)
	for i := range plain {
		plain[i].class = throttle.Normal
	}
	without := runClassCallers(t, policy, nil, plain)
	for i := range without {
		without[i].class = callers[i].class
	}
	fast, slow := p99(waits(with, throttle.Interactive)), p99(waits(without, throttle.Interactive))
	served := len(waits(with, throttle.Batch))
	t.Logf("99 %% of the interactive requests wait for at most %v with classes and %v without; %d batch requests are admitted", fast, slow, served)
	if slow < 5*fast {
		t.Errorf("p99 wait of interactive requests is %v with classes and %v without, want a fifth at most", fast, slow)
	}
	if all := len(waits(with, throttle.Interactive)); all != 600 {
		t.Errorf("%d interactive requests were admitted, want 600", all)
	}
	if served < 590 {
		t.Errorf("%d batch requests were admitted, want at least 590", served)
	}
}

// TestAging checks that a Batch request goes before newly arriving Interactive requests when it has
// waited for twice Aging, and a Normal request when it has waited for Aging.
func TestAging(t *testing.T) {
	const aging = 5 * sec
	for class, most := range map[throttle.Class]time.Duration{throttle.Batch: 2 * aging, throttle.Normal: aging} {
		var callers []classCaller
		for at := time.Duration(0); at < 40*sec; at += 50 * ms { // 20 a second, of 10
			callers = append(callers, classCaller{class: throttle.Interactive, arrives: at, leaves: 40 * sec})
			if at == 3*sec {
				callers = append(callers, classCaller{class: class, arrives: at})
			}
		}
		got := runClassCallers(t, throttle.Policy{Tiers: []throttle.Tier{per(sec, 10, throttle.GCRA)}, Guard: throttle.NoGuard, Aging: aging}, nil, callers)
		old := waits(got, class)[0]
		queue := time.Duration(0) // the time of the requests that are then ahead of it
		for _, g := range got {
			if g.class == throttle.Interactive && g.arrives <= 3*sec+most && (g.err != nil || g.end > 3*sec+most) {
				queue += 100 * ms
			}
		}
		if old <= most || old > most+queue+100*ms {
			t.Errorf("a %v request waits for %v, want at most %v plus %v for the requests ahead of it", class, old, most, queue)
		}
	}
}

// take returns how many requests are admitted at once.
func take(t *testing.T, l *throttle.Limiter, c throttle.Class) (n int) {
	t.Helper()
	for ; ; n++ {
		ctx, cancel := context.WithTimeout(throttle.WithClass(context.Background(), c), ms)
		_, err := l.Acquire(ctx, nil)
		cancel()
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			return n
		}
	}
}

// TestHeadroom checks that a batch job leaves a part of every tier to the other classes, which get
// it at once.
func TestHeadroom(t *testing.T) {
	for _, a := range append(slices.Clone(counters), throttle.SlidingWindow, throttle.Concurrency) {
		t.Run(a.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				window := hour
				if a == throttle.Concurrency {
					window = 0
				}
				l := limiter(t, throttle.Policy{Tiers: []throttle.Tier{per(window, 100, a)}, Headroom: 20}, nil)
				if n := take(t, l, throttle.Batch); n != 80 {
					t.Errorf("%d batch requests were admitted, want 80", n)
				}
				if n := take(t, l, throttle.Interactive) + take(t, l, throttle.Normal); n != 20 {
					t.Errorf("%d requests of other classes were admitted, want 20", n)
				}
			})
		})
	}
}

// TestHeadroomOfTryAcquire checks that a Batch request which does not wait leaves the headroom of all
// quotas that charge it, and that a Normal one does not.
func TestHeadroomOfTryAcquire(t *testing.T) {
	p := throttle.Policy{Tiers: []throttle.Tier{per(hour, 10, throttle.SlidingLog)}, Guard: throttle.NoGuard, Headroom: 40}
	wide := exact(throttle.PerHour(1000))
	for name, limiter := range map[string]func() *throttle.Limiter{
		"alone":  func() *throttle.Limiter { return mustNew(t, p, nil) },
		"inside": func() *throttle.Limiter { return mustNew(t, p, nil).Within(mustNew(t, wide, nil)) },
		"around": func() *throttle.Limiter { return mustNew(t, wide, nil).Within(mustNew(t, p, nil)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter()
			for _, step := range []struct {
				class throttle.Class
				want  int
			}{{throttle.Batch, 6}, {throttle.Normal, 4}} {
				n, err := 0, error(nil)
				for ctx := throttle.WithClass(t.Context(), step.class); ; n++ {
					if _, err = l.TryAcquire(ctx, nil); err != nil {
						break
					}
				}
				var e *throttle.WaitError
				if n != step.want || !errors.As(err, &e) || e.Err != throttle.ErrDeadline || e.Tier != "10/h" || e.Wait != hour {
					t.Errorf("%s, %v: %d were admitted, then %v; want %d, then a wait of an hour for tier 10/h", name, step.class, n, err, step.want)
				}
			}
		})
	}
}

// TestHeadroomEnds checks that a Batch request that has waited for Aging leaves no headroom, so it
// cannot starve, and that a cost above the rest of a tier leaves what it can.
func TestHeadroomEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Policy{Tiers: []throttle.Tier{per(hour, 10, throttle.SlidingLog)}, Guard: throttle.NoGuard, Headroom: 50, Aging: 7 * sec}
		l, start := limiter(t, p, nil), time.Now()
		batch := throttle.WithClass(context.Background(), throttle.Batch)
		for i, step := range []struct {
			n   int64
			end time.Duration
		}{{5, 0}, {3, 7 * sec}, {2, 14 * sec}, {10, 14*sec + hour}} {
			if err := l.WaitN(batch, step.n); err != nil {
				t.Errorf("step %d: %v", i, err)
			}
			if took := time.Since(start); took != step.end {
				t.Errorf("step %d: %d were admitted after %v, want %v", i, step.n, took, step.end)
			}
		}
	})
}

// TestHeadroomDeadline checks that a newcomer is refused at once if headroom makes it late, but not
// if it has aged before its deadline.
func TestHeadroomDeadline(t *testing.T) {
	p := throttle.Policy{Tiers: []throttle.Tier{per(hour, 10, throttle.SlidingLog)}, Guard: throttle.NoGuard, Headroom: 50, Aging: 7 * sec}
	callers := slices.Repeat([]classCaller{{class: throttle.Batch}}, 5)
	callers = append(callers,
		classCaller{class: throttle.Batch, arrives: sec, within: 6 * sec},
		classCaller{class: throttle.Batch, arrives: sec, within: 8 * sec},
		classCaller{class: throttle.Interactive, arrives: sec, within: sec})
	got := runClassCallers(t, p, nil, callers)[5:]
	if !errors.Is(got[0].err, throttle.ErrDeadline) || got[0].end != sec {
		t.Errorf("the request that ages too late: %v after %v, want ErrDeadline after 1s", got[0].err, got[0].end)
	}
	if got[1].err != nil || got[1].end != 8*sec {
		t.Errorf("the request that ages in time: %v after %v, want nil after 8s", got[1].err, got[1].end)
	}
	if got[2].err != nil || got[2].end != sec {
		t.Errorf("the interactive request: %v after %v, want nil after 1s", got[2].err, got[2].end)
	}
}

// TestClassDeadlines checks that only the callers ahead of a newcomer can make it late, and that
// callers that it overtakes keep their deadlines.
func TestClassDeadlines(t *testing.T) {
	batch := classCaller{class: throttle.Batch, within: 4500 * ms}
	interactive := func(within time.Duration) classCaller {
		return classCaller{class: throttle.Interactive, within: within}
	}
	callers := []classCaller{{}, batch, batch, batch, interactive(900 * ms), interactive(1100 * ms), interactive(1900 * ms), batch}
	got := runClassCallers(t, exact(per(sec, 1, throttle.GCRA)), nil, callers)
	for i, want := range []struct {
		end time.Duration
		err error
	}{
		{0, nil}, {2 * sec, nil}, {3 * sec, nil}, {4 * sec, nil},
		{0, throttle.ErrDeadline}, {sec, nil}, {0, throttle.ErrDeadline}, {0, throttle.ErrDeadline},
	} {
		if got[i].end != want.end || !errors.Is(got[i].err, want.err) {
			t.Errorf("caller %d ended after %v with %v, want %v and %v", i, got[i].end, got[i].err, want.end, want.err)
		}
	}
	callers = append(callers, interactive(3*sec)) // overtakes the third Batch request
	got = runClassCallers(t, exact(per(sec, 1, throttle.GCRA)), nil, callers)
	if got[3].end != 4500*ms || !errors.Is(got[3].err, context.DeadlineExceeded) || got[8].end != 2*sec {
		t.Errorf("the overtaken caller: %v after %v, want DeadlineExceeded after 4.5s; the other: %v after %v, want nil after 2s",
			got[3].err, got[3].end, got[8].err, got[8].end)
	}
}

// TestClassOfATransport checks that a Transport takes the class from the request's context.
func TestClassOfATransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider := throttletest.New(throttle.PerSecond(1))
		tr := &throttle.Transport{Base: provider, Limiter: limiter(t, exact(throttle.PerSecond(1)), nil)}
		var wg sync.WaitGroup
		for _, c := range []throttle.Class{throttle.Normal, throttle.Batch, throttle.Batch, throttle.Normal, 7, throttle.Interactive} {
			wg.Go(func() {
				req, err := http.NewRequestWithContext(throttle.WithClass(t.Context(), c), "GET", "http://provider/"+c.String(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := tr.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			})
			synctest.Wait()
		}
		wg.Wait()
		var order []string
		for _, a := range provider.Arrivals() {
			order = append(order, a.Path)
		}
		if want := []string{"/normal", "/interactive", "/normal", "/class(7)", "/batch", "/batch"}; !slices.Equal(order, want) {
			t.Errorf("the order was %v, want %v", order, want)
		}
	})
}

// TestClassesForecasts checks that newcomers of several classes with deadlines share a few
// forecasts, which are as exact as for one class.
func TestClassesForecasts(t *testing.T) {
	s := new(countingForecasts)
	var callers []classCaller
	for i := range 900 { // one a second; the last of each class is admitted after 300, 599 and 899 s
		callers = append(callers, classCaller{class: classes[i%3], within: hour})
	}
	for _, late := range []struct {
		class  throttle.Class
		served time.Duration // behind the callers of its class and the latecomers ahead
	}{{throttle.Interactive, 301 * sec}, {throttle.Normal, 601 * sec}, {throttle.Batch, 902 * sec}} {
		callers = append(callers, classCaller{class: late.class, within: late.served - ms}, classCaller{class: late.class, within: late.served + ms})
	}
	p := exact(per(sec, 1, throttle.GCRA))
	p.Aging = hour
	got := runClassCallers(t, p, s, callers)
	if made := s.made.Load(); made > 6 {
		t.Errorf("%d forecasts were made, want at most 6", made)
	}
	for i, g := range got[900:] {
		if refused := errors.Is(g.err, throttle.ErrDeadline) && g.end == 0; refused != (i%2 == 0) || !refused && (g.err != nil || g.end != g.within-ms) {
			t.Errorf("latecomer %d: %v after %v; want every other one refused at once", i, g.err, g.end)
		}
	}
}

// TestClassesOvertakeReservations checks that, at a store that reserves ahead, a caller of a higher
// class gets the first reserved time and the others move to later ones. A caller with another cost
// goes behind them.
func TestClassesOvertakeReservations(t *testing.T) {
	for _, test := range []struct {
		name  string
		late  arrival
		order []int
		at    time.Duration // when the latecomer ends
	}{
		{"gets the next time", arrival{}, []int{0, 1, 5, 2, 3, 4}, 200 * ms},
		{"the next time is before its deadline", arrival{within: 90 * ms}, []int{0, 1, 5, 2, 3, 4}, 200 * ms},
		{"the next time is after its deadline", arrival{within: 70 * ms}, []int{0, 1, 2, 3, 4}, 120 * ms},
		{"is canceled", arrival{cancel: 150 * ms}, []int{0, 1, 2, 3, 4}, 150 * ms},
		{"costs two", arrival{n: 2}, []int{0, 1, 2, 3, 4, 5}, 600 * ms},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := far(0), steady()
				p.Tiers[0].Burst = 2
				callers := []arrival{{n: 2}, {}, {}, {}, {}, test.late}
				callers[5].class, callers[5].at = throttle.Interactive, 120*ms
				if order := arrive(t, limiter(t, p, s), callers); !slices.Equal(order, test.order) {
					t.Errorf("the order was %v, want %v", order, test.order)
				}
				if callers[5].ended != test.at {
					t.Errorf("the latecomer ended after %v with %v, want %v", callers[5].ended, callers[5].err, test.at)
				}
			})
		})
	}
}

// TestClassesOvertakenLate checks that a caller whose reserved time moves past its deadline is
// refused at once, and that the others move up.
func TestClassesOvertakenLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		callers := []arrival{{}, {}, {}, {within: 350 * ms}, {}, {at: 120 * ms, class: throttle.Interactive}}
		order := arrive(t, limiter(t, steady(), far(0)), callers)
		if want := []int{0, 1, 5, 2, 4}; !slices.Equal(order, want) {
			t.Errorf("the order was %v, want %v", order, want)
		}
		if c := callers[3]; !errors.Is(c.err, throttle.ErrDeadline) || c.ended != 120*ms {
			t.Errorf("the late caller ended after %v with %v, want 120ms with ErrDeadline", c.ended, c.err)
		}
	})
}

// randomArrivals returns callers of all classes, some of which are canceled or have deadlines.
func randomArrivals(r *rand.Rand, most int64) []arrival {
	callers := make([]arrival, 150)
	at := time.Duration(0)
	for i := range callers {
		at += time.Duration(r.IntN(120)) * ms
		c := arrival{at: at, n: 1 + r.Int64N(most), class: classes[r.IntN(len(classes))]}
		switch r.IntN(4) {
		case 0:
			c.cancel = at + time.Duration(1+r.IntN(2000))*ms
		case 1:
			c.within = time.Duration(1+r.IntN(4000)) * ms
		}
		callers[i] = c
	}
	return callers
}

// TestClassesStormAtAFarStore runs callers of all classes and costs, some of which are canceled or
// have deadlines. Within a class the order must be that of arrival, and no caller may be left
// waiting.
func TestClassesStormAtAFarStore(t *testing.T) {
	for seed := range uint64(soak.Times(40)) {
		r := rand.New(rand.NewPCG(seed, 2))
		callers := randomArrivals(r, 1+2*int64(seed%2)) // with one cost, or with three
		synctest.Test(t, func(t *testing.T) {
			s, p := far(time.Duration(r.IntN(30))*ms), steady()
			p.Tiers[0].Burst, p.Aging = 3, time.Duration(1+r.IntN(5))*sec
			l := limiter(t, p, s)
			order := arrive(t, l, callers)
			for _, c := range classes {
				own := slices.DeleteFunc(slices.Clone(order), func(i int) bool { return callers[i].class != c })
				if !slices.IsSorted(own) {
					t.Errorf("seed %d: the order of class %v was %v, want ascending", seed, c, own)
				}
			}
			for i, c := range callers {
				if c.err == nil && c.cancel > 0 && c.ended > c.cancel || c.err != nil && c.cancel == 0 && !errors.Is(c.err, context.DeadlineExceeded) {
					t.Errorf("seed %d: caller %d is %+v; want it admitted before its cancel time, or refused as late", seed, i, c)
				}
			}
			if n := status(t, l).Waiting; n != 0 {
				t.Errorf("seed %d: %d callers still wait", seed, n)
			}
			if len(order) < 50 {
				t.Errorf("seed %d: %d callers were admitted, want at least 50", seed, len(order))
			}
		})
	}
}

// TestPoolBatchLeavesHeadroom checks that the Batch callers of a pool leave the Headroom of its members, whichever way
// they ask.
func TestPoolBatchLeavesHeadroom(t *testing.T) {
	for members := 1; members <= 2; members++ {
		for _, way := range []string{"Wait", "Acquire", "TryAcquire"} {
			synctest.Test(t, func(t *testing.T) {
				p := exact(throttle.PerMinute(10))
				p.Headroom, p.Aging = 50, time.Hour
				pool := newPool(t)
				for i := range members {
					if err := pool.Add(throttle.Member{Name: string(rune('a' + i)), Limiter: mustNew(t, p, nil)}); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(throttle.WithClass(t.Context(), throttle.Batch), sec)
				defer cancel()
				admitted := 0
				for range 30 {
					var err error
					switch way {
					case "Wait":
						err = pool.Wait(ctx)
					case "Acquire":
						err = release(pool.Acquire(ctx, nil))
					default:
						err = release(pool.TryAcquire(ctx, nil))
					}
					if err == nil {
						admitted++
					}
				}
				if admitted != 5*members {
					t.Errorf("%s: %d members have admitted %d, want %d", way, members, admitted, 5*members)
				}
			})
		}
	}
}
