package local_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// A trip is a request of the caller. Its events are numbered in their order.
type trip struct {
	asked    int // before it was admitted
	counted  int // when it arrived
	answered int // after the quota had the response

	sent, got time.Time // when it was admitted, and the response came
	refused   bool
	vague     bool // more was counted than the response could report, or another may have left the window meanwhile
}

// A rollingAPI counts requests over any window, and reports with each how many there are. Of
// the caller's it refuses those beyond the limit, and counts them not.
type rollingAPI struct {
	limit  int
	window time.Duration
	told   store.Observation // what else its responses tell

	mu       sync.Mutex  // guards all below
	counted  []time.Time // in order
	accepted []time.Time // requests of the caller
	refused  []time.Time
	events   int
	others   []int   // events: requests of another program
	trips    []*trip // that have ended
}

// event numbers what happens now.
func (p *rollingAPI) event() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events++
	return p.events
}

func (p *rollingAPI) count(now time.Time) int {
	for len(p.counted) > 0 && !p.counted[0].After(now.Add(-p.window)) {
		p.counted = p.counted[1:]
	}
	return len(p.counted)
}

// other counts a request of another program.
func (p *rollingAPI) other() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events++
	p.counted, p.others = append(p.counted, time.Now()), append(p.others, p.events)
}

// arrive counts a request of the caller.
func (p *rollingAPI) arrive(t *trip) (used int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events++
	t.counted = p.events
	now := time.Now()
	if used = p.count(now); used < p.limit {
		p.accepted, p.counted = append(p.accepted, now), append(p.counted, now)
		return used + 1
	}
	t.refused, t.vague = true, used > p.limit
	p.refused = append(p.refused, now)
	return p.limit
}

// end records a trip after the quota has the response.
func (p *rollingAPI) end(t *trip) {
	t.got, t.answered = time.Now(), p.event()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trips = append(p.trips, t)
}

// since returns how many times are not before an instant.
func since(times []time.Time, from time.Time) (n int) {
	for _, t := range times {
		if !t.Before(from) {
			n++
		}
	}
	return n
}

// A queue is where callers wait: only the first asks the quota, when its wait is over or something
// has changed.
type queue struct {
	store.Quota
	first   chan struct{} // holds one while somebody is
	changed chan struct{}
}

func newQueue(q store.Quota) *queue {
	l := &queue{q, make(chan struct{}, 1), make(chan struct{}, 1)}
	q.Watch(func(store.Change, time.Duration) {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	})
	return l
}

// wait returns when the quota has admitted a request, or until an instant. It calls asks whenever
// it is about to ask the quota.
func (q *queue) wait(until time.Time, asks func()) (d store.Decision, ok bool) {
	q.first <- struct{}{}
	defer func() { <-q.first }()
	for time.Now().Before(until) {
		asks()
		d, err := q.TryAcquire(background, store.Request{Cost: one, Held: true})
		if err != nil {
			panic(err)
		}
		if d.Verdict == store.Admitted {
			return d, true
		}
		select {
		case <-q.changed:
		case <-time.After(max(time.Microsecond, min(d.Wait, time.Until(until)))):
		}
	}
	return d, false
}

// work has some workers send requests one after the other, as soon as the quota admits them,
// until an instant. Each takes some time to arrive and some more to be answered: always the same,
// or with a seed, a random one.
func (p *rollingAPI) work(n int, seed uint64, q *queue, until time.Time) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for {
				t := new(trip)
				d, ok := q.wait(until, func() { t.asked = p.event() })
				if !ok {
					return
				}
				t.sent = time.Now()
				there, back := 10*ms, 20*ms
				if seed > 0 {
					there, back = time.Duration(r.IntN(30_000))*time.Microsecond, time.Duration(r.IntN(30_000))*time.Microsecond
				}
				time.Sleep(there)
				seen := p.told
				seen.Used = int64(p.arrive(t))
				seen.Refused = t.refused
				time.Sleep(back)
				q.Arrived(d, one)
				q.Quota.(store.Observer).Observe(d, one, []store.Observation{seen})
				p.end(t)
			}
		})
	}
	wg.Wait()
}

// Reports of a provider that counts as the caller does cost nothing, however many requests
// are in flight.
func TestTruthCostsNothing(t *testing.T) {
	for _, n := range []int{1, 10, 50, 100} {
		for seed := range uint64(soak.Times(2)) {
			t.Run(fmt.Sprintf("%d workers, seed %d", n, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					q := newQueue(open(t, local.New(), "", plan(t, 50*ms, algorithms.PerMinute(100))))
					p := &rollingAPI{limit: 100, window: time.Minute}
					p.work(n, seed, q, time.Now().Add(20*time.Minute))
					if len(p.accepted) < 1980 || len(p.refused) > 0 {
						t.Errorf("%d sent and %d refused, want 1,980 of 2,000 and none", len(p.accepted), len(p.refused))
					}
				})
			})
		}
	}
}

// known is the last event of which a response in before a trip tells how much others had used.
// Where requests are in flight it does not: they may have been counted before it, or after. So it
// is one before the last instant at which nothing was in flight. And it is not one of a request
// during whose trip another left the window: that may have been counted still. The trips are in
// the order in which they were admitted.
func (p *rollingAPI) known(of *trip) (event int) {
	quiet, busy := 0, 0
	for _, t := range p.trips {
		if t.asked > of.asked {
			break
		}
		if t.asked > busy {
			quiet = t.asked
		}
		busy = max(busy, t.answered)
	}
	for _, k := range p.trips {
		if k.answered < quiet && !k.vague {
			event = max(event, k.counted)
		}
	}
	return event
}

// unexplained is how many refusals are left if each is matched with a request of others that came
// after the last of which a response could tell, and before the refusal. A request of others is
// matched once.
func (p *rollingAPI) unexplained() int {
	type span struct{ from, to int }
	var spans []span
	slices.SortFunc(p.trips, func(a, b *trip) int { return a.asked - b.asked })
	left := 0 // trips that have left the window by then
	for _, k := range p.trips {
		for ; p.trips[left].got.Add(p.window).Before(k.sent); left++ {
		}
		for _, t := range p.trips[left:] {
			if t.sent.Add(p.window).After(k.got) {
				break
			}
			k.vague = k.vague || !t.refused && t.got.Add(p.window).After(k.sent)
		}
	}
	for _, t := range p.trips {
		if t.refused {
			spans = append(spans, span{p.known(t), t.counted})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.to - b.to })
	for _, o := range p.others {
		if i := slices.IndexFunc(spans, func(s span) bool { return s.from < o && o < s.to }); i >= 0 {
			spans = slices.Delete(spans, i, i+1)
		}
	}
	return len(spans)
}

// Where another program uses 30 % of a quota, steadily or in bursts, nearly all of the rest is
// used. Of requests that go evenly nothing is refused after the first window. Of bursts no more
// are refused than requests of others have come of which no response could tell.
func TestSharedWithOthers(t *testing.T) {
	for _, others := range []int{1, 10, 30} { // at once
		for _, n := range []int{1, 10, 50, 100} {
			for _, spread := range []int64{0, 1} {
				for seed := range uint64(soak.Times(4)) {
					t.Run(fmt.Sprintf("%d others at once, %d workers, spread %d, seed %d", others, n, spread, seed), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { shareWithOthers(t, others, n, spread, seed) })
					})
				}
			}
		}
	}
}

func shareWithOthers(t *testing.T, others, n int, spread int64, seed uint64) {
	const minutes = 16
	tier := algorithms.PerMinute(100)
	tier.PaceBurst = spread
	q := newQueue(open(t, local.New(), "", plan(t, 50*ms, tier)))
	p := &rollingAPI{limit: 100, window: time.Minute}
	began := time.Now()
	until := began.Add(minutes * time.Minute)
	var wg sync.WaitGroup
	wg.Go(func() {
		for time.Now().Before(until) {
			for range others {
				p.other()
			}
			time.Sleep(time.Duration(others) * 2 * time.Second)
		}
	})
	p.work(n, seed, q, until)
	wg.Wait()
	first := began.Add(time.Minute)
	accepted, refused := since(p.accepted, first), since(p.refused, first)
	if want := 70 * (minutes - 1) * 97 / 100; accepted < want {
		t.Errorf("%d accepted, want 97 %% of the rest, %d", accepted, want)
	}
	if spread > 0 && refused > 0 {
		t.Errorf("%d refused of requests that go evenly, want none", refused)
	}
	if left := p.unexplained(); left > 0 {
		t.Errorf("%d of %d refusals are of no request of others of which no response could tell", left, len(p.refused))
	}
}
