package local_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// A rollingAPI counts requests over any window, and reports with each how many there are. Of
// the caller's it refuses those beyond the limit, and counts them not.
type rollingAPI struct {
	limit  int
	window time.Duration

	mu       sync.Mutex  // guards all below
	counted  []time.Time // in order
	others   []time.Time // that no response has reported yet
	accepted int         // requests of the caller
	refused  int
	unheard  int // others that the caller could not know when a request of its own arrived
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
	p.counted, p.others = append(p.counted, time.Now()), append(p.others, time.Now())
}

// arrive counts a request of the caller.
func (p *rollingAPI) arrive() (used int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.unheard += len(p.others)
	p.others = p.others[:0]
	if p.count(now) >= p.limit {
		p.refused++
		return p.limit
	}
	p.accepted++
	p.counted = append(p.counted, now)
	return len(p.counted)
}

// read returns how many were accepted and refused, and how many others unheard of.
func (p *rollingAPI) read() (accepted, refused, unheard int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted, p.refused, p.unheard
}

// work sends requests one after the other, as soon as the quota admits them, until an
// instant. Each takes some time to arrive and some more to be answered.
func work(q store.Quota, p *rollingAPI, r *rand.Rand, jitter bool, until time.Time) {
	for {
		b, err := q.TryAcquire(background, store.Request{Cost: one, Held: true})
		if err != nil {
			panic(err)
		}
		if b.Verdict != store.Admitted {
			if b.Wait = max(time.Microsecond, min(b.Wait, 100*ms)); time.Now().Add(b.Wait).After(until) {
				return
			}
			time.Sleep(b.Wait)
			continue
		}
		there, back := 10*ms, 20*ms
		if jitter {
			there, back = time.Duration(r.IntN(30_000))*time.Microsecond, time.Duration(r.IntN(30_000))*time.Microsecond
		}
		time.Sleep(there)
		used := p.arrive()
		time.Sleep(back)
		q.Arrived(b, one)
		q.(store.Observer).Observe(b, one, []store.Observation{{Tier: 0, Used: int64(used)}})
	}
}

// workers has some of them send at once.
func workers(n int, jitter bool, q store.Quota, p *rollingAPI, until time.Time) *sync.WaitGroup {
	wg := new(sync.WaitGroup)
	for i := range n {
		wg.Go(func() { work(q, p, rand.New(rand.NewPCG(1, uint64(i))), jitter, until) })
	}
	return wg
}

// Reports of a provider that counts as the caller does cost nothing, however many requests
// are in flight.
func TestTruthCostsNothing(t *testing.T) {
	for _, n := range []int{1, 10, 50, 100} {
		for _, jitter := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d workers, jitter %v", n, jitter), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					q := open(t, local.New(), "", plan(t, 50*ms, algorithms.PerMinute(100)))
					p := &rollingAPI{limit: 100, window: time.Minute}
					workers(n, jitter, q, p, time.Now().Add(20*time.Minute)).Wait()
					if p.accepted < 1980 || p.refused > 0 {
						t.Errorf("%d sent and %d refused, want 1,980 of 2,000 and none", p.accepted, p.refused)
					}
				})
			})
		}
	}
}

// Where another program uses 30 % of a quota steadily, nearly all of the rest is used. As
// soon as reports cover whole windows, hardly anything is refused of requests that go evenly,
// and nothing if they take the same time. Of bursts no more are refused than requests of
// others have come unheard of.
func TestSharedWithOthers(t *testing.T) {
	for _, n := range []int{1, 10, 50, 100} {
		for _, spread := range []int64{0, 1} {
			for _, jitter := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d workers, spread %d, jitter %v", n, spread, jitter), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { shareWithOthers(t, n, spread, jitter) })
				})
			}
		}
	}
}

func shareWithOthers(t *testing.T, n int, spread int64, jitter bool) {
	tier := algorithms.PerMinute(100)
	tier.Spread = spread
	q := open(t, local.New(), "", plan(t, 50*ms, tier))
	p := &rollingAPI{limit: 100, window: time.Minute}
	began := time.Now()
	until := began.Add(24 * time.Minute)
	wg := workers(n, jitter, q, p, until)
	wg.Go(func() {
		for time.Now().Before(until) {
			p.other()
			time.Sleep(2 * time.Second)
		}
	})
	time.Sleep(4 * time.Minute)
	accepted, refused, unheard := p.read()
	wg.Wait()
	accepted, refused, unheard = p.accepted-accepted, p.refused-refused, p.unheard-unheard
	if accepted < 1358 {
		t.Errorf("%d accepted, want 97 %% of 1,400", accepted)
	}
	most := unheard
	if spread > 0 {
		most = 0
	}
	if spread > 0 && jitter {
		most = 4
	}
	if refused > most {
		t.Errorf("%d refused, with %d others unheard of", refused, unheard)
	}
}
