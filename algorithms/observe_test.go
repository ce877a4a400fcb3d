package algorithms_test

import (
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
)

// TestObserveInFlight checks that units of a report that requests in flight may explain are charged
// for others once the responses to these requests show that they were counted later.
func TestObserveInFlight(t *testing.T) {
	const ms = time.Millisecond
	for _, a := range all {
		switch a {
		case Concurrency:
			continue // a report has no effect
		case TokenBucket, LeakyBucket, GCRA:
			continue // units that have drained since the request left explain a part of a unit
		}
		tier := byCalendar(Tier{Limit: 100, Window: time.Hour, Algorithm: a})
		l := ledger(t, 50*ms, tier)
		one := []int64{1}
		var flights [5]Flight
		for i := range flights {
			flights[i] = l.Charge(at(time.Duration(i)*ms), Request{Cost: one, Held: true})
		}
		// answer reports the response to a request, and checks how many units are used then.
		answer := func(i int, reported, want int64) {
			t.Helper()
			now := at(time.Duration(20+i) * ms)
			l.Arrived(now, flights[i], one)
			l.Observe(now, Observation{Used: reported, Since: at(time.Duration(i) * ms).At, Cost: 1})
			if got := l.Usage(now)[0].Used; got != want {
				t.Errorf("%v: %d used after response %d, want %d", a, got, i, want)
			}
		}
		answer(0, 4, 5) // the request and 3 of others, or 3 in flight
		answer(1, 5, 5) // it was counted later, so 3 in flight are left to explain the 3
		answer(2, 6, 6) // 2 are left, so others used 1
		answer(3, 7, 7) // 1 is left, so others used another
	}
}

// TestObserveRefused checks that units of refused requests are charged for others. They hide no use
// of others a window later, and the tier still counts everything that was reported.
func TestObserveRefused(t *testing.T) {
	const ms = time.Millisecond
	for _, tier := range []Tier{
		{Limit: 10, Window: time.Minute}, {Limit: 10, Window: time.Minute, Algorithm: SlidingWindow, Precision: time.Second},
	} {
		l := ledger(t, 50*ms, tier)
		one := []int64{1}
		send := func(from time.Duration, reported int64, refused bool, want int64) {
			t.Helper()
			f := l.Charge(at(from), Request{Cost: one, Held: true})
			now := at(from + 20*ms)
			l.Arrived(now, f, one)
			l.Observe(now, Observation{Used: reported, Since: at(from).At, Cost: 1, Refused: refused})
			if got := l.Usage(now)[0].Used; got != want {
				t.Errorf("%v: %d used after a report of %d at %v, want %d", tier, got, reported, from, want)
			}
		}
		for i := range int64(6) {
			send(time.Duration(i)*30*ms, i+1, false, i+1)
		}
		for i := range 4 { // others have used 4 since
			send(30*time.Second+time.Duration(i)*30*ms, 10, true, 10)
		}
		send(62*time.Second, 9, false, 9) // others used 8
		if got := l.Usage(at(100 * time.Second))[0].Used; got < 9 {
			t.Errorf("%v: %d used when the refused requests have left, want at least 9", tier, got)
		}
	}
}

// TestObserveLeaving checks that units that left the window before a response came are not charged
// for others.
func TestObserveLeaving(t *testing.T) {
	const ms = time.Millisecond
	for _, tier := range []Tier{
		{Limit: 100, Window: time.Second}, {Limit: 100, Window: time.Second, Algorithm: SlidingWindow, Precision: 100 * ms},
	} {
		l := ledger(t, 0, tier)
		l.Charge(at(0), Request{Cost: []int64{60}})
		l.Charge(at(150*ms), Request{Cost: []int64{20}})
		sent := at(960 * ms)
		l.Charge(sent, Request{Cost: []int64{1}})
		now := at(1010 * ms) // the request was counted when all 81 units were in the window
		l.Observe(now, Observation{Used: 81, Since: sent.At, Cost: 1})
		if got := l.Usage(now)[0].Used; got != 21 {
			t.Errorf("%v: %d used, want 21", tier, got)
		}
	}
}

// TestObserveReset checks that a reported reset never lengthens a wait. At the reset, what was
// charged for others ends, and so does the count of a window.
func TestObserveReset(t *testing.T) {
	for _, a := range all {
		if a == Concurrency {
			continue
		}
		sooner := 0
		for seed := range uint64(300) {
			g := newGame(t, rand.New(rand.NewPCG(uint64(a), seed)), a)
			for range g.rand.IntN(30) {
				g.step()
			}
			tier := g.rand.IntN(len(g.plan.Tiers()))
			window := g.plan.Tiers()[tier].Window.Microseconds()
			reset := 1 + g.rand.Int64N(max(1, window))
			o := Observation{Tier: tier, Used: g.rand.Int64N(g.plan.Tiers()[tier].Capacity() + 1), Since: g.now.At, Cost: 1}
			without, with, none := g.l.Clone(), g.l.Clone(), g.l.Clone()
			inFlight := none.InFlight(g.plan.UnitOf(tier))
			without.Observe(g.now, o)
			o.Reset, o.Probe = reset, g.rand.IntN(2) == 0
			with.Observe(g.now, o)
			encode(t, &with)
			cost := g.cost()
			for _, at := range []int64{g.now.At, g.now.At + reset/2, g.now.At + reset - 1, g.now.At + reset} {
				if at == g.now.At+reset && inFlight > 0 && g.plan.Tiers()[tier].Algorithm == AnchoredWindow {
					continue // requests in flight may open the next window
				}
				now := g.now.Later(at)
				late, _ := without.Earliest(now, Request{Cost: cost})
				early, _ := with.Earliest(now, Request{Cost: cost})
				// What a window of unknown phase counts is not from before it. So others may have used
				// more of it than is known without the reset.
				unlike := g.plan.Tiers()[tier].Phase == UnknownPhase && with.Usage(now)[tier].Used > without.Usage(now)[tier].Used
				if early > late && !unlike {
					g.name = a.String()
					g.fatalf("%+v: %v may go at %d, want at most %d as without a reset", o, cost, early, late)
				}
				if early < late {
					sooner++
				}
			}
			// At the reset, everything that was charged for others has ended, and a window counts
			// only what is in flight.
			end := g.now.Later(g.now.At + reset)
			u, w := with.Usage(end)[tier].Used, none.Usage(end)[tier].Used
			switch g.plan.Tiers()[tier].Algorithm {
			case FixedWindow, AnchoredWindow, Calendar:
				w = min(w, inFlight)
			}
			if u > w {
				g.fatalf("%+v: %d used at the reset, want at most %d", o, u, w)
			}
		}
		if sooner == 0 {
			t.Errorf("%v: resets shortened no wait, want some", a)
		}
	}
}

// A resettingProvider counts in windows, which open by the clock or with the first request. Each
// response reports how many requests it has counted, and in how many seconds the window ends.
type resettingProvider struct {
	limit, window, end, used int64
	aligned                  bool
}

func (p *resettingProvider) count(now int64) (used, reset int64, ok bool) {
	if now >= p.end {
		p.end, p.used = now+p.window, 0
		if p.aligned {
			p.end -= now % p.window
		}
	}
	p.used++
	return p.used, (p.end-now)/1_000_000*1_000_000 + 1_000_000, p.used <= p.limit
}

// TestReportedResetInFlight checks that a provider refuses no request after a reported reset. A
// request in flight at the end of a window may count in that window or in the next one, which it
// may open. The anchored window of the test was open before the first request, as the response to
// that request reports.
func TestReportedResetInFlight(t *testing.T) {
	for _, a := range []Algorithm{AnchoredWindow, FixedWindow} {
		for seed := range uint64(10_000) {
			playReportedResets(t, a, seed)
		}
	}
}

func playReportedResets(t *testing.T, a Algorithm, seed uint64) {
	const guard, window = 2 * time.Second, 20 * time.Second
	r := rand.New(rand.NewPCG(9, seed))
	within := func(d time.Duration) int64 { return r.Int64N(d.Microseconds()) }
	tier, one, now := Tier{Limit: 1 + r.Int64N(6), Window: window, Algorithm: a}, []int64{1}, at(0)
	l := ledger(t, guard, tier)
	p := &resettingProvider{limit: tier.Limit, window: window.Microseconds(), aligned: a == FixedWindow}
	p.end = now.At + p.window
	if a == AnchoredWindow {
		p.end -= within(window - 2*guard)
	}
	type request struct {
		Flight
		arrives, answered int64
		Observation       // set at its arrival
	}
	var open []*request
	sends, busy := now.At, r.IntN(2) == 0
	for first := true; sends < at(4*window).At; {
		earliest, _ := l.Earliest(now, Request{Cost: one})
		next, event := max(earliest, sends), -1 // an event of open[event], or of a new request if -1
		for i, q := range open {
			due := q.arrives
			if q.Used > 0 {
				due = q.answered
			}
			if due < next {
				next, event = due, i
			}
		}
		now = now.Later(next)
		if event < 0 {
			f, _, refused := l.Take(now, Request{Cost: one, Held: true})
			if refused >= 0 {
				t.Fatalf("%v, seed %d: no request is admitted at %d, want one at %d", a, seed, now.At, earliest)
			}
			q := &request{Flight: f, arrives: now.At, answered: now.At, Observation: Observation{Since: now.At, Cost: 1, Slack: 1_000_000}}
			if !first {
				q.arrives += within(guard)
				q.answered = q.arrives + pick(r, 1, within(guard), within(window))
			}
			open, first, sends = append(open, q), false, now.At+1
			if !busy {
				sends += within(window / 4)
			}
			continue
		}
		if q := open[event]; q.Used == 0 {
			var ok bool
			if q.Used, q.Reset, ok = p.count(now.At); !ok {
				t.Fatalf("%v, seed %d: the request sent at %d is refused at %d: %d of %d are used until %d", a, seed, q.Since, now.At, q.Used, p.limit, p.end)
			}
		} else {
			l.Arrived(now, q.Flight, one)
			l.Observe(now, q.Observation)
			open = append(open[:event], open[event+1:]...)
		}
	}
}

// TestObserveBusy checks that the use of others is known once the requests that were in flight at a
// report have landed, although new requests leave all the time, and that none is charged if there
// is none.
func TestObserveBusy(t *testing.T) {
	const guard, latency = time.Second, 200 * time.Millisecond
	for _, a := range []Algorithm{SlidingLog, SlidingWindow, FixedWindow, AnchoredWindow, Calendar} {
		for seed := range uint64(200) {
			r := rand.New(rand.NewPCG(3, seed))
			type request struct {
				Flight
				sent, counted, answered, used int64
			}
			var open []*request
			l, one := ledger(t, guard, byCalendar(Tier{Limit: 10_000, Window: time.Hour, Algorithm: a})), []int64{1}
			others := r.Int64N(2) * r.Int64N(1_000)
			provider, workers, sent := others, 2+r.IntN(20), int64(0)
			for now := int64(0); now < (4 * latency).Microseconds(); now += 1000 {
				for i := 0; i < len(open); i++ {
					q, m := open[i], at(time.Duration(now)*time.Microsecond)
					if q.used == 0 && now >= q.counted {
						provider++
						q.used = provider
					}
					if now >= q.answered {
						l.Arrived(m, q.Flight, one)
						l.Observe(m, Observation{Used: q.used, Since: q.sent, Cost: 1})
						open = append(open[:i], open[i+1:]...)
						i--
					}
				}
				for len(open) < workers {
					m := at(time.Duration(now) * time.Microsecond)
					q := &request{Flight: l.Charge(m, Request{Cost: one, Held: true}), sent: m.At, counted: now + 1000 + r.Int64N(latency.Microseconds()/2)}
					q.answered = q.counted + r.Int64N(latency.Microseconds()/2)
					open, sent = append(open, q), sent+1
				}
			}
			got := l.Usage(at(4 * time.Second))[0].Used - sent // when no more others are expected
			if got < others || got > others+bit(others > 0) {  // one more while others keep sending
				t.Fatalf("%v, seed %d, %d workers: %d charged for others, want %d", a, seed, workers, got, others)
			}
		}
	}
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// TestObserveNextWindow checks that a report about a window of unknown phase concerns nothing from
// before that window, which opened at the earliest a window before its reported end.
func TestObserveNextWindow(t *testing.T) {
	const s = time.Second
	for _, limit := range []int64{100, MaxLog + 1} { // as a log, and in groups
		tier := Tier{Limit: limit, Window: time.Minute, Algorithm: FixedWindow, Phase: UnknownPhase}
		l := ledger(t, s, tier)
		charge := func(n int64, from time.Duration) Flight {
			return l.Charge(at(from), Request{Cost: []int64{n}, Held: true})
		}
		// answer reports the response to a request of n units, of a window that ends at a time.
		answer := func(f Flight, n int64, sent, received time.Duration, used int64, ends time.Duration) {
			l.Arrived(at(received), f, []int64{n})
			l.Observe(at(received), Observation{Used: used, Since: at(sent).At, Cost: n, Reset: (ends - received + s).Microseconds(), Slack: s.Microseconds(), Probe: true})
		}
		check := func(step string, now time.Duration, want int64) {
			t.Helper()
			if got := l.Usage(at(now))[0].Used; got != want {
				t.Errorf("%v, %s: %d used, want %d", tier, step, got, want)
			}
		}
		// A window ends at 60 s. Others use 10 of it, and the caller 31.
		answer(charge(30, 40*s), 30, 40*s, 40*s, 40, 60*s)
		check("others in the first window", 41*s, 40)
		late := charge(1, 59*s)
		// Others use 20 of the next window. One of the 20 may be the unit in flight, but none is of
		// the 30.
		answer(charge(1, 60*s), 1, 60*s, 60*s, 21, 120*s)
		check("others in the second window", 60*s, 31+1+19)
		answer(late, 1, 59*s, 60*s, 41, 60*s)
		check("a late report about the first window", 60*s, 31+1+19)
		check("after the requests of the first window have left", 119*s+s/2, 1+20)
		answer(charge(1, 122*s), 1, 122*s, 122*s, 1, 180*s)
		check("the third window", 122*s, 1)
	}
}
