package integration_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/local"
)

// Callers of one quota come by several Limiters. They must be admitted as if all of them came by one.

// An orderEvent is a call of one of the Limiters, and its result.
type orderEvent struct {
	at     time.Duration // since the start, in ascending order
	by     int           // the index of the Limiter
	do     string        // "" for WaitN, or "allow", "try", "pause", "resume", "limit"
	n      int64         // requests, or the new limit. If zero, 1
	class  throttle.Class
	gone   time.Duration // when the context of WaitN is canceled, since the start. If zero, never
	length time.Duration // of a pause
}

type orderResult struct {
	ok  bool
	end time.Duration // when WaitN returned, since the start. If zero, it never did
}

func (e orderEvent) String() string {
	text := fmt.Sprintf("%v of %d by Limiter %d at %v", e.class, max(1, e.n), e.by, e.at)
	if e.do != "" {
		text = e.do + " " + text
	}
	return text
}

// playOrder plays the events and returns their results, at most a minute after the last one.
func playOrder(p throttle.Policy, limiters []*throttle.Limiter, events []orderEvent) []orderResult {
	results := make([]orderResult, len(events))
	ctx, cancel := context.WithCancel(context.Background())
	start := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, e := range events {
		time.Sleep(e.at - time.Since(start))
		l, n, r := limiters[e.by%len(limiters)], max(1, e.n), &results[i]
		if s, _ := l.Status(ctx); s.Policy != p.Name && strings.Contains("pause resume limit", e.do) && e.do != "" {
			l = limiters[0] // these calls act on the innermost quota
		}
		switch e.do {
		case "allow":
			r.ok = l.AllowN(n)
		case "try":
			permit, err := l.TryAcquire(ctx, throttle.Cost{"requests": n})
			permit.Release()
			r.ok = err == nil
		case "pause":
			r.ok = l.Pause(ctx, e.length) == nil
		case "resume":
			r.ok = l.Resume(ctx) == nil
		case "limit":
			next := p
			next.Tiers = slices.Clone(p.Tiers)
			next.Tiers[0].Limit = n
			r.ok = l.SetPolicy(ctx, next) == nil
		default:
			wg.Go(func() {
				ctx := throttle.WithClass(ctx, e.class)
				if e.gone > 0 {
					gone, cancel := context.WithCancel(ctx)
					defer time.AfterFunc(e.gone-e.at, cancel).Stop()
					ctx = gone
				}
				err := l.WaitN(ctx, n)
				mu.Lock()
				defer mu.Unlock()
				r.ok, r.end = err == nil, time.Since(start)
			})
		}
		synctest.Wait()
	}
	time.Sleep(time.Minute)
	mu.Lock()
	got := slices.Clone(results)
	mu.Unlock()
	cancel()
	wg.Wait()
	return got
}

// differences returns the events whose results differ, three at most.
func differences(events []orderEvent, got, want []orderResult) (list []string) {
	for i, e := range events {
		if got[i] != want[i] && len(list) < 3 {
			list = append(list, fmt.Sprintf("%v: got %v, want %v as by one Limiter", e, got[i], want[i]))
		}
	}
	return list
}

func (r orderResult) String() string {
	switch {
	case r.ok && r.end > 0:
		return fmt.Sprintf("admitted at %v", r.end)
	case r.end > 0:
		return fmt.Sprintf("canceled at %v", r.end)
	}
	return fmt.Sprint(r.ok)
}

// overtaken returns a caller that was admitted after a later one of its class.
func overtaken(events []orderEvent, got []orderResult) string {
	for i, e := range events {
		for j, later := range events[i+1:] {
			if j := i + 1 + j; e.do == "" && later.do == "" && e.gone == 0 && got[j].ok && e.class == later.class &&
				(!got[i].ok || got[j].end < got[i].end) {
				return fmt.Sprintf("%v, %v, was overtaken by %v, %v", e, got[i], later, got[j])
			}
		}
	}
	return ""
}

// ways returns Limiters of one quota in each of the ways in which callers may come by several. The
// limits around it always have room.
var ways = []struct {
	name     string
	limiters func(t *testing.T, p throttle.Policy) []*throttle.Limiter
}{
	{"alone and inside another", func(t *testing.T, p throttle.Policy) []*throttle.Limiter {
		inner := mustNew(t, p, nil)
		return []*throttle.Limiter{inner, inner.Within(roomy(t, "outer"))}
	}},
	{"inside two others", func(t *testing.T, p throttle.Policy) []*throttle.Limiter {
		inner := mustNew(t, p, nil)
		return []*throttle.Limiter{inner.Within(roomy(t, "outer")), inner.Within(roomy(t, "other"))}
	}},
	{"New twice", func(t *testing.T, p throttle.Policy) []*throttle.Limiter {
		s := local.New()
		return []*throttle.Limiter{mustNew(t, p, s), mustNew(t, p, s)}
	}},
	{"For and Within of a key", func(t *testing.T, p throttle.Policy) []*throttle.Limiter {
		g := mustGroup(t, p)
		return []*throttle.Limiter{g.For("key"), g.Within("key", roomy(t, "outer"))}
	}},
	{"Shared", func(t *testing.T, p throttle.Policy) []*throttle.Limiter {
		return sharedIn(t, p, roomy(t, "outer"), roomy(t, "other"))
	}},
	{"three levels", func(t *testing.T, p throttle.Policy) []*throttle.Limiter {
		inner, account := mustNew(t, p, nil), roomy(t, "account").Within(roomy(t, "address"))
		return []*throttle.Limiter{inner, inner.Within(account), inner.Within(roomy(t, "other").Within(account))}
	}},
	{"as the quota around others", func(t *testing.T, p throttle.Policy) []*throttle.Limiter {
		outer := mustNew(t, p, nil)
		return []*throttle.Limiter{outer, roomy(t, "endpoint").Within(outer), roomy(t, "other").Within(outer)}
	}},
}

func roomy(t *testing.T, name string) *throttle.Limiter {
	return mustNew(t, unguarded(name, throttle.PerSecond(1_000_000)), nil)
}

// stream returns one request by the Limiter every gap. The callers of all events have other
// microseconds, so that no two events coincide.
func stream(by int, from, to, gap time.Duration, n int64) (events []orderEvent) {
	for at := from; at < to; at += gap {
		events = append(events, orderEvent{at: at, by: by, n: n})
	}
	return events
}

// arranged returns the events in ascending order, at distinct microseconds.
func arranged(lists ...[]orderEvent) []orderEvent {
	events := slices.Concat(lists...)
	slices.SortStableFunc(events, func(a, b orderEvent) int { return cmp.Compare(a.at, b.at) })
	for i := range events {
		events[i].at += time.Duration(i+1) * time.Microsecond
		if events[i].gone > 0 {
			events[i].gone += time.Duration(i+500) * time.Microsecond
		}
	}
	return events
}

// orderCases are the events that all ways must serve as one Limiter does, under 10/s.
var orderCases = map[string][]orderEvent{
	"a large cost beside small ones": arranged(stream(1, 0, 4*sec, 50*ms, 1), []orderEvent{{at: 300 * ms, n: 10}}),
	"small costs beside a large one": arranged(stream(0, 0, 4*sec, 50*ms, 1), []orderEvent{{at: 300 * ms, by: 1, n: 10}}),
	"large costs beside each other":  arranged(stream(0, 0, 8*sec, 700*ms, 9), stream(1, 0, 8*sec, 900*ms, 7)),
	"equal costs":                    arranged(stream(0, 0, 2*sec, 30*ms, 1), stream(1, 0, 2*sec, 20*ms, 1)),
	"unequal costs":                  arranged(stream(0, 0, 2*sec, 120*ms, 3), stream(1, 0, 2*sec, 110*ms, 2), stream(2, 0, 2*sec, 170*ms, 5)),
	"Interactive beside Batch": arranged([]orderEvent{{n: 10}}, classed(throttle.Batch, stream(0, 10*ms, sec, 40*ms, 1)),
		classed(throttle.Interactive, stream(1, 500*ms, 3*sec, 150*ms, 1))),
	"Batch ages": arranged([]orderEvent{{n: 10}}, classed(throttle.Batch, stream(0, 10*ms, 100*ms, 40*ms, 4)),
		classed(throttle.Interactive, stream(1, 200*ms, 8*sec, 100*ms, 1))),
	"Allow behind a caller": arranged([]orderEvent{{n: 4}, {at: ms, n: 10}}, doing("allow", stream(1, 2*ms, 3*sec, 100*ms, 1))),
	"TryAcquire behind a caller": arranged([]orderEvent{{n: 4}, {at: ms, by: 1, n: 10}}, doing("try", stream(0, 2*ms, 3*sec, 100*ms, 1)),
		doing("try", stream(1, 52*ms, 3*sec, 100*ms, 1))),
	"WaitN behind a caller": arranged([]orderEvent{{n: 4}, {at: ms, n: 10}, {at: 2 * ms, by: 1, n: 1}, {at: 3 * ms, by: 2, n: 1}}),
	"canceled callers": arranged(stream(0, 0, 2*sec, 70*ms, 2), leaving(stream(1, 0, 2*sec, 90*ms, 6), 400*ms),
		stream(1, 10*ms, 2*sec, 130*ms, 3)),
	"a canceled first caller": arranged([]orderEvent{{n: 4}, {at: ms, n: 10, gone: 300 * ms}, {at: 2 * ms, by: 1, n: 5}, {at: 3 * ms, n: 2}}),
	"Pause and Resume": arranged(stream(0, 0, 3*sec, 110*ms, 2), stream(1, 0, 3*sec, 130*ms, 1), []orderEvent{
		{at: 700 * ms, do: "pause", by: 1, length: 600*ms + 700*time.Microsecond}, {at: 2 * sec, do: "pause", length: hour + 800*time.Microsecond}, {at: 2500 * ms, do: "resume", by: 1},
	}),
	"SetPolicy": arranged(stream(0, 0, 4*sec, 110*ms, 2), stream(1, 0, 4*sec, 130*ms, 3), []orderEvent{
		{at: 550 * ms, do: "limit", n: 4}, {at: 1500 * ms, do: "limit", by: 1, n: 20}, {at: 2500 * ms, do: "limit", n: 5},
	}),
}

func classed(c throttle.Class, events []orderEvent) []orderEvent {
	for i := range events {
		events[i].class = c
	}
	return events
}

func doing(do string, events []orderEvent) []orderEvent {
	for i := range events {
		events[i].do = do
	}
	return events
}

func leaving(events []orderEvent, after time.Duration) []orderEvent {
	for i := range events {
		events[i].gone = events[i].at + after
	}
	return events
}

// TestOrderAcrossLimiters checks that callers of one quota are admitted in the order of their classes
// and arrival, at the times at which one Limiter would admit them, whichever Limiter they came by.
func TestOrderAcrossLimiters(t *testing.T) {
	p := unguarded("api", throttle.PerSecond(10))
	p.Aging = 2 * sec
	for _, way := range ways {
		for name, events := range orderCases {
			t.Run(way.name+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					want := playOrder(p, []*throttle.Limiter{mustNew(t, p, nil)}, events)
					time.Sleep(hour)
					got := playOrder(p, way.limiters(t, p), events)
					for _, d := range differences(events, got, want) {
						t.Error(d)
					}
					if o := overtaken(events, got); o != "" {
						t.Error(o)
					}
				})
			})
		}
	}
}

// TestOrderWithoutCanceled checks that callers that are canceled while they wait leave the others'
// schedule as if they had never come, whichever Limiter they came by.
func TestOrderWithoutCanceled(t *testing.T) {
	p := unguarded("api", throttle.PerSecond(10))
	all := arranged([]orderEvent{{n: 10}}, stream(0, 10*ms, 900*ms, 70*ms, 2), leaving(stream(1, 0, 900*ms, 40*ms, 7), 50*ms))
	var stay []orderEvent
	for i, e := range all {
		if i == 0 || e.gone == 0 {
			stay = append(stay, e)
		}
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				want := playOrder(p, way.limiters(t, p), stay)
				time.Sleep(hour)
				var got []orderResult
				for i, r := range playOrder(p, way.limiters(t, p), all) {
					if i == 0 || all[i].gone == 0 {
						got = append(got, r)
					} else if r.ok {
						t.Errorf("%v was admitted, want canceled", all[i])
					}
				}
				for _, d := range differences(stay, got, want) {
					t.Error(d)
				}
			})
		})
	}
}

// TestSharedOrder checks that callers of a shared quota that wait for their own outer quota hold up
// nobody, and go before all who came later once it has room.
func TestSharedOrder(t *testing.T) {
	const opens = 10 * sec
	p := unguarded("shared", throttle.Tier{Limit: 1, Window: sec, Algorithm: throttle.GCRA, Burst: 3})
	alone := arranged(doing("allow", stream(1, 100*ms, sec, 300*ms, 1)), stream(1, sec, 30*sec, 800*ms, 1))
	for name, n := range map[string]int64{"equal": 1, "larger": 3} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				want := playOrder(p, []*throttle.Limiter{mustNew(t, p, nil)}, alone)
				time.Sleep(hour)
				full := mustNew(t, unguarded("full", throttle.Tier{Limit: 3, Window: opens}), nil)
				idle := mustNew(t, unguarded("idle", throttle.PerHour(1_000_000)), nil)
				if !full.AllowN(3) {
					t.Fatal("an unused quota refuses")
				}
				nested := sharedIn(t, p, full, idle)
				first := orderEvent{by: 0, n: n}
				got := playOrder(p, nested, append([]orderEvent{first}, alone...))
				var next time.Duration // the first admission of others after the outer quota has room
				for i, e := range alone {
					if r := got[1+i]; r.end <= opens && r != want[i] {
						t.Errorf("%v: %v, want %v as without a caller that waits for another quota", e, r, want[i])
					} else if r.end > opens && next == 0 {
						next = r.end
					}
				}
				// The bucket has less than one unit then, so n units take n seconds at most.
				if most := opens + time.Duration(n)*sec; !got[0].ok || got[0].end > most || got[0].end > next {
					t.Errorf("the first caller: %v, and the next one at %v, want at %v at most and before the next", got[0], next, most)
				}
			})
		})
	}
}

// TestStormOfOrder compares random calls by several Limiters of a quota with the same calls by one.
func TestStormOfOrder(t *testing.T) {
	playSeeds(t, 2_000, 100, func(s *storm) {
		p, events := randomOrder(s.Rand)
		way := pick(s.Rand, ways...)
		want := playOrder(p, []*throttle.Limiter{mustNew(s.t, p, nil)}, events)
		time.Sleep(hour - time.Since(s.start)) // windows of the clock begin as before
		s.start = time.Now()
		l := way.limiters(s.t, p)
		got := playOrder(p, l, events)
		for _, d := range differences(events, got, want) {
			s.fail("%s, %v: %s", way.name, p, d)
		}
		time.Sleep(hour)
		for _, l := range l {
			if left := leftOver(l); left != "" {
				s.fail("%s, %v: %s", way.name, p, left)
			}
		}
	})
}

// randomOrder returns a policy and calls that it overloads for a time.
func randomOrder(r *rand.Rand) (throttle.Policy, []orderEvent) {
	tier := pick(r,
		throttle.PerSecond(10),
		throttle.Tier{Limit: 10, Window: sec, Algorithm: throttle.FixedWindow},
		throttle.Tier{Limit: 10, Window: sec, Algorithm: throttle.AnchoredWindow},
		throttle.Tier{Limit: 10, Window: sec, Algorithm: throttle.TokenBucket, Burst: 10},
		throttle.Tier{Limit: 10, Window: sec, Algorithm: throttle.GCRA, Burst: 10},
	)
	p := unguarded("api", tier)
	if r.IntN(3) == 0 {
		p.Tiers = append(p.Tiers, throttle.Tier{Limit: 30, Window: 5 * sec})
	}
	p.Aging = pick(r, 0, sec, 300*ms)
	most := 1 + r.Int64N(8)
	var events []orderEvent
	for range 10 + r.IntN(50) {
		e := orderEvent{at: time.Duration(r.IntN(3000)) * ms, by: r.IntN(3), n: 1 + r.Int64N(most)}
		switch r.IntN(16) {
		case 0:
			e.do = "allow"
		case 1:
			e.do = "try"
		case 2, 3, 4:
			e.gone = e.at + time.Duration(r.IntN(2000))*ms
		case 5, 6, 7:
			e.class = throttle.Interactive
		case 8, 9, 10:
			e.class = throttle.Batch
		}
		events = append(events, e)
	}
	for range r.IntN(3) {
		e := orderEvent{at: time.Duration(r.IntN(4000)) * ms, by: r.IntN(3), do: pick(r, "pause", "resume", "limit")}
		e.length, e.n = time.Duration(r.IntN(800))*ms+700*time.Microsecond, pick[int64](r, 10, 20, 25)
		events = append(events, e)
	}
	return p, arranged(events)
}
