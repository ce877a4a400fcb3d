package local_test

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/apithrottle/throttle/store"
)

// An api counts requests, and refuses those of the caller beyond the limit, which it counts not.
// Each response reports how many it has counted.
type api struct {
	limit  int
	window time.Duration
	ends   time.Time            // one of the windows; if zero, any window counts
	reset  func() time.Duration // reported as the time until the window ends; if nil, nothing is

	mu       sync.Mutex  // guards all below
	counted  []time.Time // in order
	others   int         // that no response has reported yet
	accepted []time.Time // requests of the caller
	refused  int
	unheard  int // others that the caller could not know when a request of its own arrived
}

// count forgets what counts no more.
func (p *api) count(now time.Time) int {
	since := now.Add(-p.window + 1)
	if !p.ends.IsZero() {
		since = now.Add(p.left(now) - p.window)
	}
	for len(p.counted) > 0 && p.counted[0].Before(since) {
		p.counted = p.counted[1:]
	}
	return len(p.counted)
}

// left is the time until the end of a window.
func (p *api) left(now time.Time) time.Duration {
	left := p.ends.Sub(now) % p.window
	if left <= 0 {
		left += p.window
	}
	return left
}

// other counts n requests of another program.
func (p *api) other(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.others += n
	for range n {
		p.counted = append(p.counted, time.Now())
	}
}

// arrive counts a request of the caller.
func (p *api) arrive() (seen store.Observation, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.unheard, p.others = p.unheard+p.others, 0
	if ok = p.count(now) < p.limit; ok {
		p.counted, p.accepted = append(p.counted, now), append(p.accepted, now)
	} else {
		p.refused++
	}
	seen.Used = int64(min(len(p.counted), p.limit))
	if p.reset != nil {
		seen.Reset, seen.Slack = p.reset(), time.Second+30*ms
	}
	return seen, ok
}

// read returns how many were accepted and refused, and how many others unheard of.
func (p *api) read() (accepted, refused, unheard int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.accepted), p.refused, p.unheard
}

// A crew is workers that send requests one after the other, as soon as the quota admits them,
// until an instant.
type crew struct {
	quota  store.Quota
	api    *api
	jitter bool // a request, and a response, takes up to 30 ms; else 10 and 20
	pauses bool // a refusal pauses the quota until the reset, as a Transport does
	until  time.Time

	turn    chan struct{} // full while one of them asks or waits, for the others to do so after it
	changed chan struct{} // full when what was answered may hold no more
}

// send has n of them send at once. It returns when the last is done.
func (c crew) send(n int) {
	c.turn, c.changed = make(chan struct{}, 1), make(chan struct{}, 1)
	defer c.quota.Watch(func(store.Change, time.Duration) {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	})()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { c.work(rand.New(rand.NewPCG(1, uint64(i)))) })
	}
	wg.Wait()
}

func (c crew) work(r *rand.Rand) {
	for {
		b, ok := c.admitted()
		if !ok {
			return
		}
		there, back := 10*ms, 20*ms
		if c.jitter {
			there, back = time.Duration(r.IntN(30_000))*time.Microsecond, time.Duration(r.IntN(30_000))*time.Microsecond
		}
		time.Sleep(there)
		seen, ok := c.api.arrive()
		time.Sleep(back)
		if !ok && c.pauses {
			if _, err := c.quota.Pause(background, store.Pause{For: seen.Reset, Probe: true, Once: true, Epoch: b.Epoch}); err != nil {
				panic(err)
			}
		}
		c.quota.Arrived(b, one)
		c.quota.(store.Observer).Observe(b, one, []store.Observation{seen})
	}
}

// admitted waits until a request is admitted, or the end.
func (c crew) admitted() (b store.Decision, ok bool) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	for {
		b, err := c.quota.TryAcquire(background, store.Request{Cost: one, Held: true})
		if err != nil {
			panic(err)
		}
		left := time.Until(c.until)
		if b.Verdict == store.Admitted || left <= 0 {
			return b, b.Verdict == store.Admitted
		}
		select {
		case <-c.changed:
		case <-time.After(max(time.Microsecond, min(b.Wait, left))):
		}
	}
}
