package local_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

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
	p.counted = append(p.counted, time.Now())
}

// arrive counts a request of the caller.
func (p *rollingAPI) arrive() (used int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.count(now) < p.limit {
		p.accepted, p.counted = append(p.accepted, now), append(p.counted, now)
		return len(p.counted)
	}
	p.refused = append(p.refused, now)
	return p.limit
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

// wait returns when the quota has admitted a request, or until an instant.
func (q *queue) wait(until time.Time) (d store.Decision, ok bool) {
	q.first <- struct{}{}
	defer func() { <-q.first }()
	for time.Now().Before(until) {
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
				d, ok := q.wait(until)
				if !ok {
					return
				}
				there, back := 10*ms, 20*ms
				if seed > 0 {
					there, back = time.Duration(r.IntN(30_000))*time.Microsecond, time.Duration(r.IntN(30_000))*time.Microsecond
				}
				time.Sleep(there)
				seen := p.told
				seen.Used = int64(p.arrive())
				time.Sleep(back)
				q.Arrived(d, one)
				q.Quota.(store.Observer).Observe(d, one, []store.Observation{seen})
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

// Where another program uses 30 % of a quota steadily, nearly all of the rest is used. After the
// first window nothing is refused of requests that go evenly. Of bursts no more are refused than
// others have come: a whole window of them comes between the reports of two bursts.
func TestSharedWithOthers(t *testing.T) {
	for _, n := range []int{1, 10, 50, 100} {
		for _, spread := range []int64{0, 1} {
			for seed := range uint64(soak.Times(4)) {
				t.Run(fmt.Sprintf("%d workers, spread %d, seed %d", n, spread, seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { shareWithOthers(t, n, spread, seed) })
				})
			}
		}
	}
}

func shareWithOthers(t *testing.T, n int, spread int64, seed uint64) {
	const minutes = 16
	tier := algorithms.PerMinute(100)
	tier.Spread = spread
	q := newQueue(open(t, local.New(), "", plan(t, 50*ms, tier)))
	p := &rollingAPI{limit: 100, window: time.Minute}
	began := time.Now()
	until := began.Add(minutes * time.Minute)
	var wg sync.WaitGroup
	wg.Go(func() {
		for time.Now().Before(until) {
			p.other()
			time.Sleep(2 * time.Second)
		}
	})
	p.work(n, seed, q, until)
	wg.Wait()
	first := began.Add(time.Minute)
	accepted, refused := since(p.accepted, first), since(p.refused, first)
	if want := 70 * (minutes - 1) * 97 / 100; accepted < want {
		t.Errorf("%d accepted, want 97 %% of the rest, %d", accepted, want)
	}
	most := 0
	if spread == 0 {
		most = 30 * (minutes - 1) // others
	}
	if refused > most {
		t.Errorf("%d refused, want at most %d", refused, most)
	}
}
