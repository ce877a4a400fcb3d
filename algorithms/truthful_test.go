package algorithms_test

import (
	"math/rand/v2"
	"sort"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// TestTruthCostsNothing checks that responses which report what remains admit no fewer requests than
// responses which report nothing, if all use is the caller's own. Responses come in any order, and
// later than the guard.
func TestTruthCostsNothing(t *testing.T) {
	const ms = time.Millisecond
	for _, a := range all {
		if a == Concurrency || a == Calendar { // nothing is read, and a day is long
			continue
		}
		for seed := range uint64(soak.Times(12)) {
			r := rand.New(rand.NewPCG(uint64(a), seed))
			limit := pick[int64](r, 10, 100, 300)
			c := crew{
				tier:    Tier{Limit: limit, Window: pick(r, 300*ms, time.Second, 3*time.Second), Algorithm: a},
				guard:   pick(r, 50*ms, 500*ms),
				workers: pick(r, 10, 50),
				there:   [2]time.Duration{2 * ms, pick(r, 3*ms, 50*ms)},
				back:    [2]time.Duration{3 * ms, pick(r, 20*ms, 403*ms, 2*time.Second)},
			}
			if seed == 0 { // busy, and most responses come later than the guard
				c.tier.Limit, c.tier.Window, c.guard, c.workers, c.back[1] = 100, time.Second, 50*ms, 50, 403*ms
			}
			silent := c
			silent.work(t, seed, 12*time.Second)
			c.reads = true
			c.work(t, seed, 12*time.Second)
			if c.admitted < silent.admitted || c.refused+silent.refused > 0 {
				t.Errorf("%v, guard %v, %d workers, responses within %v: with reports %d admitted and %d refused, want %d and 0",
					c.tier, c.guard, c.workers, c.back[1], c.admitted, c.refused, silent.admitted)
			}
		}
	}
}

// TestForeignUseIsCharged checks that reports make a quota share its limit with others, who use 30 %
// of it: most refusals end.
func TestForeignUseIsCharged(t *testing.T) {
	const ms = time.Millisecond
	for _, a := range []Algorithm{SlidingLog, SlidingWindow, FixedWindow, AnchoredWindow} {
		for seed := range uint64(3) {
			c := crew{
				tier: Tier{Limit: 1000, Window: 10 * time.Second, Algorithm: a}, guard: 50 * ms, workers: 50,
				there: [2]time.Duration{2 * ms, 20 * ms}, back: [2]time.Duration{3 * ms, 403 * ms}, others: 30,
			}
			silent := c
			silent.work(t, seed, 60*time.Second)
			c.reads = true
			c.work(t, seed, 60*time.Second)
			if 10*c.refused > silent.refused || silent.refused == 0 {
				t.Errorf("%v, seed %d: %d refused, want at most a tenth of the %d without reports", c.tier, seed, c.refused, silent.refused)
			}
		}
	}
}

// A reporting provider counts strictly, and each response reports the units that remain.
type reporting struct {
	*throttletest.Counter
	limit int64
}

// used returns the units that do not remain at an instant.
func (p *reporting) used(at int64) int64 {
	return p.limit - int64(sort.Search(int(p.limit), func(n int) bool {
		return p.Admits(at, map[string]int64{Requests: int64(n) + 1}) >= 0
	}))
}

// A crew is workers that each send one request after the other to a reporting provider.
type crew struct {
	tier        Tier
	guard       time.Duration
	workers     int
	there, back [2]time.Duration // bounds of how long requests and responses take
	reads       bool             // the reports of responses
	others      int64            // what others send, in percent of the limit

	admitted, refused int
}

type onTheWay struct {
	Flight
	sent, arrives, answered, used int64
	counted, refused              bool
}

// work lets the crew work for a time, in steps of one millisecond.
func (c *crew) work(t *testing.T, seed uint64, d time.Duration) {
	t.Helper()
	r, foreign := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
	counter, err := throttletest.NewCounter(c.tier)
	if err != nil {
		t.Fatal(err)
	}
	p := &reporting{counter, c.tier.Capacity()}
	l, one := ledger(t, c.guard, c.tier), []int64{1}
	between := func(b [2]time.Duration) int64 {
		return (b[0] + time.Duration(r.Int64N(int64(b[1]-b[0])+1))).Microseconds()
	}
	var open []*onTheWay
	for now := time.Duration(0); now < d; now += time.Millisecond {
		m := at(now)
		if foreign.Int64N(100*c.tier.Window.Milliseconds()) < c.others*c.tier.Limit {
			p.Arrive(m.At, nil)
		}
		for i := 0; i < len(open); i++ {
			q := open[i]
			if !q.counted && m.At >= q.arrives {
				q.counted, q.refused = true, !p.Arrive(m.At, nil)
				q.used = p.used(m.At)
				if q.refused {
					c.refused++
				}
			}
			if m.At >= q.answered {
				l.Arrived(m, q.Flight, one)
				if c.reads {
					l.Observe(m, Observation{Used: q.used, Since: q.sent, Cost: 1, Refused: q.refused})
				}
				open = append(open[:i], open[i+1:]...)
				i--
			}
		}
		for len(open) < c.workers {
			f, _, tier := l.Take(m, Request{Cost: one, Held: true})
			if tier >= 0 {
				break
			}
			q := &onTheWay{Flight: f, sent: m.At, arrives: m.At + between(c.there)}
			q.answered = q.arrives + between(c.back)
			open = append(open, q)
			c.admitted++
		}
	}
}
