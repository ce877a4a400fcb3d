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

var classes = []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}

func TestClassNames(t *testing.T) {
	for c, want := range map[throttle.Class]string{
		throttle.Normal: "normal", throttle.Interactive: "interactive", throttle.Batch: "batch", 7: "class(7)",
	} {
		if c.String() != want {
			t.Errorf("class %d is %q, want %q", uint8(c), c, want)
		}
	}
}

// A guest waits for his turn in a class.
type guest struct {
	class   throttle.Class
	arrives time.Duration // since the start
	leaves  time.Duration // if he waits then. If zero, never
	within  time.Duration // his deadline, from his arrival on. If zero, none
	end     time.Duration // when he was admitted, refused or left
	err     error
}

// visit lets guests wait, in the order in which they stand, each admitted one asking
// for one request. It returns them as they ended.
func visit(t *testing.T, p throttle.Policy, s throttle.Store, guests []guest) []guest {
	guests = slices.Clone(guests)
	synctest.Test(t, func(t *testing.T) {
		l, start := limiter(t, p, s), time.Now()
		var wg sync.WaitGroup
		for i := range guests {
			g := &guests[i]
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
	return guests
}

// byRank is the law that visit is judged by: whenever the provider's counter takes one
// request more, it is that of the least rank among those who are there.
func byRank(t *testing.T, p throttle.Policy, guests []guest) []guest {
	guests = slices.Clone(guests)
	for i := range guests {
		guests[i].end = 0
	}
	provider, start := counter(t, p.Tiers...), bubbleStart.UnixMicro()
	rank := func(g *guest) time.Duration {
		return g.arrives + map[throttle.Class]time.Duration{throttle.Normal: p.Aging, throttle.Batch: 2 * p.Aging}[g.class]
	}
	var there []*guest
	for next := 0; next < len(guests) || len(there) > 0; {
		if len(there) == 0 {
			there = append(there, &guests[next])
			next++
		}
		from := slices.MinFunc(there, func(a, b *guest) int { return cmp.Compare(a.arrives, b.arrives) }).arrives
		micros, _ := provider.Earliest(start+from.Microseconds(), nil)
		at := time.Duration(micros-start) * time.Microsecond
		for ; next < len(guests) && guests[next].arrives <= at; next++ {
			there = append(there, &guests[next])
		}
		there = slices.DeleteFunc(there, func(g *guest) bool { return g.leaves > 0 && g.leaves <= at })
		if len(there) == 0 {
			continue
		}
		head := slices.MinFunc(there, func(a, b *guest) int { return cmp.Compare(rank(a), rank(b)) })
		if head.arrives > at {
			t.Fatalf("the model admits %+v at %v", *head, at)
		}
		provider.Arrive(micros, nil)
		head.end = at
		there = slices.DeleteFunc(there, func(g *guest) bool { return g == head })
	}
	return guests
}

// TestClassesByRank: whoever comes, of whatever class, and leaves or not: at every
// instant at which the tiers take one request more, the least rank goes.
func TestClassesByRank(t *testing.T) {
	for _, a := range counters {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			overtaken := 0
			for seed := range uint64(soak.Times(8)) {
				r := rand.New(rand.NewPCG(seed, uint64(a)))
				p, customers := randomCrowd(r, a, 200)
				p.Aging = (p.Tiers[0].Window * time.Duration(1+r.IntN(20)) / time.Duration(p.Tiers[0].Limit)).Truncate(time.Microsecond)
				guests := make([]guest, len(customers))
				for i, c := range customers {
					guests[i] = guest{class: classes[r.IntN(len(classes))], arrives: time.Duration(c.arrives) * time.Microsecond}
					if c.leaves != never && r.IntN(2) == 0 {
						guests[i].leaves = time.Duration(c.leaves) * time.Microsecond
					}
				}
				got, want := visit(t, p, nil, guests), byRank(t, p, guests)
				for i, g := range got {
					if left := want[i].end == 0; left != (g.err != nil) || !left && g.end != want[i].end || left && g.end != g.leaves {
						t.Fatalf("seed %d: guest %d %+v should have ended at %v", seed, i, g, want[i].end)
					}
					if i > 0 && g.err == nil && got[i-1].err == nil && g.end < got[i-1].end {
						overtaken++
					}
				}
			}
			if overtaken < 100 {
				t.Errorf("%d went ahead of others: this proves little", overtaken)
			}
		})
	}
}

// TestClassesDeadlinesByRank: of a crowd with deadlines a newcomer is refused at once if,
// and only if, those who are there already make it late.
func TestClassesDeadlinesByRank(t *testing.T) {
	for _, a := range counters {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			refused := 0
			for seed := range uint64(soak.Times(8)) {
				r := rand.New(rand.NewPCG(seed, 7+uint64(a)))
				p, customers := randomCrowd(r, a, 105)
				slot := p.Tiers[0].Window / time.Duration(p.Tiers[0].Limit)
				p.Aging = (slot * time.Duration(1+r.IntN(20))).Truncate(time.Microsecond)
				guests := make([]guest, len(customers))
				for i, c := range customers {
					guests[i] = guest{class: classes[r.IntN(len(classes))], arrives: time.Duration(c.arrives) * time.Microsecond,
						within: (slot * time.Duration(1+r.IntN(60))).Truncate(time.Microsecond) + 500*time.Nanosecond}
				}
				var there []guest
				for i, g := range visit(t, p, nil, guests) {
					late := g
					late.leaves = g.arrives + g.within
					there = append(there, late)
					want := byRank(t, p, there)[len(there)-1].end
					if g.err == nil || g.end > g.arrives { // it was let in
						if want == 0 {
							t.Fatalf("seed %d: guest %d %+v is late and was let in", seed, i, g)
						}
						continue
					}
					if want != 0 {
						t.Fatalf("seed %d: guest %d %+v was refused and could go at %v", seed, i, g, want)
					}
					refused++
					there = there[:len(there)-1]
				}
			}
			if refused < 100 {
				t.Errorf("%d were refused: this proves little", refused)
			}
		})
	}
}

// waits are the sorted waits of those of a class that were admitted.
func waits(guests []guest, c throttle.Class) (list []time.Duration) {
	for _, g := range guests {
		if g.class == c && g.err == nil {
			list = append(list, g.end-g.arrives)
		}
	}
	slices.Sort(list)
	return list
}

func p99(list []time.Duration) time.Duration { return list[len(list)*99/100] }

// TestClassesUnderLoad: a batch job asks for far more than there is. With classes those
// for whom somebody waits hardly notice, and the job gets the rest.
func TestClassesUnderLoad(t *testing.T) {
	var guests []guest
	for at := time.Duration(0); at < 2*time.Minute; at += 25 * ms { // 40 a second, of 10
		guests = append(guests, guest{class: throttle.Batch, arrives: at, leaves: 2 * time.Minute})
		if at%(200*ms) == 0 { // 5 a second
			guests = append(guests, guest{class: throttle.Interactive, arrives: at, leaves: 2 * time.Minute})
		}
	}
	policy := throttle.Policy{Tiers: []throttle.Tier{per(sec, 10, throttle.GCRA)}, Guard: throttle.NoGuard, Aging: time.Hour}
	with := visit(t, policy, nil, guests)
	plain := slices.Clone(guests)
	for i := range plain {
		plain[i].class = throttle.Normal
	}
	without := visit(t, policy, nil, plain)
	for i := range without {
		without[i].class = guests[i].class
	}
	fast, slow := p99(waits(with, throttle.Interactive)), p99(waits(without, throttle.Interactive))
	served := len(waits(with, throttle.Batch))
	t.Logf("99 in 100 interactive requests wait for %v with classes and for %v without; %d of the job are admitted", fast, slow, served)
	if slow < 5*fast {
		t.Errorf("classes bring little: %v and %v", fast, slow)
	}
	if all := len(waits(with, throttle.Interactive)); all != 600 {
		t.Errorf("%d of 600 interactive requests were admitted", all)
	}
	if served < 590 {
		t.Errorf("the job got %d, and 1200 less 600 were left for it", served)
	}
}

// TestAgeing: however many come for whom somebody waits, a Batch request goes ahead of
// those that come when it has waited for twice Aging, and a Normal one after once.
func TestAgeing(t *testing.T) {
	const aging = 5 * sec
	for class, most := range map[throttle.Class]time.Duration{throttle.Batch: 2 * aging, throttle.Normal: aging} {
		var guests []guest
		for at := time.Duration(0); at < 40*sec; at += 50 * ms { // 20 a second, of 10
			guests = append(guests, guest{class: throttle.Interactive, arrives: at, leaves: 40 * sec})
			if at == 3*sec {
				guests = append(guests, guest{class: class, arrives: at})
			}
		}
		got := visit(t, throttle.Policy{Tiers: []throttle.Tier{per(sec, 10, throttle.GCRA)}, Guard: throttle.NoGuard, Aging: aging}, nil, guests)
		old := waits(got, class)[0]
		queue := time.Duration(0) // then ahead of it
		for _, g := range got {
			if g.class == throttle.Interactive && g.arrives <= 3*sec+most && (g.err != nil || g.end > 3*sec+most) {
				queue += 100 * ms
			}
		}
		if old <= most || old > most+queue+100*ms {
			t.Errorf("%v waits for %v: Aging allows %v, and %v for those ahead of it then", class, old, most, queue)
		}
	}
}

// take takes as many requests as go at once.
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

// TestHeadroom: a batch job leaves a part of every tier to the others, who have it at once.
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
					t.Errorf("a batch job has %d of 100 at once", n)
				}
				if n := take(t, l, throttle.Interactive) + take(t, l, throttle.Normal); n != 20 {
					t.Errorf("the others have %d of the 20 that were left to them", n)
				}
			})
		})
	}
}

// TestHeadroomEnds: who has waited for Aging needs leave nothing, so that nobody
// starves; and a cost that is most of a tier leaves what it can.
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

// TestHeadroomDeadline: that headroom makes a request late is known when it comes, and
// so is that it will be old enough in time.
func TestHeadroomDeadline(t *testing.T) {
	p := throttle.Policy{Tiers: []throttle.Tier{per(hour, 10, throttle.SlidingLog)}, Guard: throttle.NoGuard, Headroom: 50, Aging: 7 * sec}
	guests := slices.Repeat([]guest{{class: throttle.Batch}}, 5)
	guests = append(guests,
		guest{class: throttle.Batch, arrives: sec, within: 6 * sec},
		guest{class: throttle.Batch, arrives: sec, within: 8 * sec},
		guest{class: throttle.Interactive, arrives: sec, within: sec})
	got := visit(t, p, nil, guests)[5:]
	if !errors.Is(got[0].err, throttle.ErrDeadline) || got[0].end != sec {
		t.Errorf("who can't be old enough in time: %v after %v", got[0].err, got[0].end)
	}
	if got[1].err != nil || got[1].end != 8*sec {
		t.Errorf("who can: %v after %v", got[1].err, got[1].end)
	}
	if got[2].err != nil || got[2].end != sec {
		t.Errorf("whom it was left to: %v after %v", got[2].err, got[2].end)
	}
}

// TestClassDeadlines: a newcomer is refused by what is ahead of it, not by those it
// overtakes, who keep their deadlines.
func TestClassDeadlines(t *testing.T) {
	batch := guest{class: throttle.Batch, within: 4500 * ms}
	interactive := func(within time.Duration) guest { return guest{class: throttle.Interactive, within: within} }
	guests := []guest{{}, batch, batch, batch, interactive(900 * ms), interactive(1100 * ms), interactive(1900 * ms), batch}
	got := visit(t, exact(per(sec, 1, throttle.GCRA)), nil, guests)
	for i, want := range []struct {
		end time.Duration
		err error
	}{
		{0, nil}, {2 * sec, nil}, {3 * sec, nil}, {4 * sec, nil},
		{0, throttle.ErrDeadline}, {sec, nil}, {0, throttle.ErrDeadline}, {0, throttle.ErrDeadline},
	} {
		if got[i].end != want.end || !errors.Is(got[i].err, want.err) {
			t.Errorf("guest %d ended after %v with %v, want %v and %v", i, got[i].end, got[i].err, want.end, want.err)
		}
	}
	guests = append(guests, interactive(3*sec)) // whom the third of the job has to let pass
	got = visit(t, exact(per(sec, 1, throttle.GCRA)), nil, guests)
	if got[3].end != 4500*ms || !errors.Is(got[3].err, context.DeadlineExceeded) || got[8].end != 2*sec {
		t.Errorf("overtaken: %v after %v; the other: %v after %v", got[3].err, got[3].end, got[8].err, got[8].end)
	}
}

// TestClassOfATransport: the class is that of the request's context.
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

// TestClassesForecasts: newcomers of several classes, with deadlines, do not each play the
// whole queue through, and are judged as exactly as those of one class are.
func TestClassesForecasts(t *testing.T) {
	s := new(foretelling)
	var guests []guest
	for i := range 900 { // one a second: the first at once, the last of each class after 300, 599 and 899 s
		guests = append(guests, guest{class: classes[i%3], within: hour})
	}
	for _, late := range []struct {
		class  throttle.Class
		served time.Duration // behind those of its class and of the latecomers that go before
	}{{throttle.Interactive, 301 * sec}, {throttle.Normal, 601 * sec}, {throttle.Batch, 902 * sec}} {
		guests = append(guests, guest{class: late.class, within: late.served - ms}, guest{class: late.class, within: late.served + ms})
	}
	p := exact(per(sec, 1, throttle.GCRA))
	p.Aging = hour
	got := visit(t, p, s, guests)
	if made := s.made.Load(); made > 6 {
		t.Errorf("%d forecasts were made for one crowd", made)
	}
	for i, g := range got[900:] {
		if refused := errors.Is(g.err, throttle.ErrDeadline) && g.end == 0; refused != (i%2 == 0) || !refused && (g.err != nil || g.end != g.within-ms) {
			t.Errorf("latecomer %d: %v after %v", i, g.err, g.end)
		}
	}
}

// TestClassesOvertakeBookings: where times are booked ahead of time, who goes first has
// the first of them, and the others move on; but who costs something else goes behind.
func TestClassesOvertakeBookings(t *testing.T) {
	for _, test := range []struct {
		name  string
		late  arrival
		order []int
		at    time.Duration // the latecomer ends
	}{
		{"it has the next time", arrival{}, []int{0, 1, 5, 2, 3, 4}, 200 * ms},
		{"which is in time", arrival{within: 90 * ms}, []int{0, 1, 5, 2, 3, 4}, 200 * ms},
		{"or not", arrival{within: 70 * ms}, []int{0, 1, 2, 3, 4}, 120 * ms},
		{"it leaves", arrival{cancel: 150 * ms}, []int{0, 1, 2, 3, 4}, 150 * ms},
		{"it costs two", arrival{n: 2}, []int{0, 1, 2, 3, 4, 5}, 600 * ms},
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
					t.Errorf("it ended after %v with %v, want %v", callers[5].ended, callers[5].err, test.at)
				}
			})
		})
	}
}

// TestClassesOvertakenLate: whose time moves on past its deadline is refused at once, and
// the others move up.
func TestClassesOvertakenLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		callers := []arrival{{}, {}, {}, {within: 350 * ms}, {}, {at: 120 * ms, class: throttle.Interactive}}
		order := arrive(t, limiter(t, steady(), far(0)), callers)
		if want := []int{0, 1, 5, 2, 4}; !slices.Equal(order, want) {
			t.Errorf("the order was %v, want %v", order, want)
		}
		if c := callers[3]; !errors.Is(c.err, throttle.ErrDeadline) || c.ended != 120*ms {
			t.Errorf("who is late ended after %v with %v", c.ended, c.err)
		}
	})
}

// randomArrivals are callers of all classes, some of whom leave or have deadlines.
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

// TestClassesStormAtAFarStore: callers of all classes and costs come, leave and have
// deadlines. Within a class nobody overtakes, and nobody is forgotten.
func TestClassesStormAtAFarStore(t *testing.T) {
	for seed := range uint64(soak.Times(40)) {
		r := rand.New(rand.NewPCG(seed, 2))
		callers := randomArrivals(r, 1+2*int64(seed%2)) // of one cost, or of three
		synctest.Test(t, func(t *testing.T) {
			s, p := far(time.Duration(r.IntN(30))*ms), steady()
			p.Tiers[0].Burst, p.Aging = 3, time.Duration(1+r.IntN(5))*sec
			l := limiter(t, p, s)
			order := arrive(t, l, callers)
			for _, c := range classes {
				own := slices.DeleteFunc(slices.Clone(order), func(i int) bool { return callers[i].class != c })
				if !slices.IsSorted(own) {
					t.Errorf("seed %d: of %v the order was %v", seed, c, own)
				}
			}
			for i, c := range callers {
				if c.err == nil && c.cancel > 0 && c.ended > c.cancel || c.err != nil && c.cancel == 0 && !errors.Is(c.err, context.DeadlineExceeded) {
					t.Errorf("seed %d: caller %d %+v", seed, i, c)
				}
			}
			if n := status(t, l).Waiting; n != 0 {
				t.Errorf("seed %d: %d still wait", seed, n)
			}
			if len(order) < 50 {
				t.Errorf("seed %d: %d were admitted", seed, len(order))
			}
		})
	}
}
