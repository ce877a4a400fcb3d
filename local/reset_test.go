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

// A windowAPI counts requests in fixed windows. Each response reports the count and the seconds
// until the window ends, rounded down. It refuses requests beyond the limit.
type windowAPI struct {
	limit  int
	window time.Duration
	ends   time.Time // the end of one of the windows

	mu       sync.Mutex // guards all below
	number   int64      // number of the current window
	used     int
	accepted []time.Time
	refused  int
}

// arrive counts n requests, of the caller if own is true.
func (p *windowAPI) arrive(n int, own bool) (seen store.Observation, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	past := now.Sub(p.ends) + 1000*p.window
	if number := int64(past / p.window); number != p.number {
		p.number, p.used = number, 0
	}
	if ok = p.used+n <= p.limit; ok {
		p.used += n
	}
	switch {
	case own && ok:
		p.accepted = append(p.accepted, now)
	case own:
		p.refused++
	}
	left := p.window - past%p.window
	return store.Observation{Used: int64(p.used), Reset: left.Truncate(time.Second) + time.Second, Slack: time.Second + 30*ms}, ok
}

// send sends requests one after the other, as soon as the quota admits them, until an instant.
func (p *windowAPI) send(q store.Quota, r *rand.Rand, until time.Time) {
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
		time.Sleep(time.Duration(r.IntN(30_000)) * time.Microsecond)
		seen, ok := p.arrive(1, true)
		time.Sleep(time.Duration(r.IntN(30_000)) * time.Microsecond)
		if !ok { // as a Transport does
			if _, err := q.Pause(background, store.Pause{For: seen.Reset, Probe: true, Once: true, Epoch: b.Epoch}); err != nil {
				panic(err)
			}
		}
		q.Arrived(b, one)
		q.(store.Feedback).Observe(b, one, []store.Observation{seen})
	}
}

func resetTiers() (tiers []algorithms.Tier) {
	for a := range algorithms.Calendar {
		if a != algorithms.Concurrency {
			tiers = append(tiers, algorithms.Tier{Limit: 100, Window: time.Minute, Algorithm: a})
		}
	}
	return tiers
}

// If the provider's windows differ from the tier's, a reported reset is the end of the provider's
// window. The tier sends again at that instant, whatever its algorithm. The provider refuses few
// requests where the tier would have sent before the reset, and otherwise none.
func TestReportedReset(t *testing.T) {
	for _, tier := range resetTiers() {
		for _, others := range []int{0, 60, 99} {
			for _, workers := range []int{1, 10} {
				t.Run(fmt.Sprintf("%v, %d others, %d workers", tier, others, workers), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { sendAfterReset(t, tier, others, workers) })
				})
			}
		}
	}
}

func sendAfterReset(t *testing.T, tier algorithms.Tier, others, workers int) {
	const windows = 5
	q := open(t, local.New(), "", plan(t, 50*ms, tier))
	began := time.Now()
	p := &windowAPI{limit: 100, window: time.Minute, ends: began.Add(33*time.Second + 500*ms)}
	p.arrive(others, false)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { p.send(q, rand.New(rand.NewPCG(1, uint64(i))), began.Add((windows-1)*time.Minute)) })
	}
	wg.Wait()
	maxRefused := 0
	switch tier.Algorithm {
	case algorithms.SlidingLog, algorithms.SlidingWindow, algorithms.AnchoredWindow:
		if others > 0 { // the workers begin before the first report
			maxRefused = workers - 1
		}
	default: // the tier drains, or has another window
		maxRefused = windows * workers
	}
	if want := 100*windows - others; p.refused > maxRefused || len(p.accepted) < want*99/100 {
		t.Errorf("%d accepted and %d refused, want %d and at most %d", len(p.accepted), p.refused, want, maxRefused)
	}
	if first := p.accepted[100-others].Sub(began); first > 35*time.Second {
		t.Errorf("the tier sends again after %v, want 34s", first)
	}
}

// A provider with wrong resets makes one request too early for each reset, and no more.
func TestWrongReset(t *testing.T) {
	for _, workers := range []int{1, 10} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(open(t, local.New(), "", plan(t, 50*ms, algorithms.PerHour(100))))
			p := &rollingAPI{limit: 100, window: time.Hour, reported: store.Observation{Reset: 5 * time.Minute, Slack: time.Second}}
			p.work(workers, 0, q, time.Now().Add(10*time.Hour))
			if len(p.accepted) < 990 || len(p.refused) > 10*12 {
				t.Errorf("%d workers: %d accepted and %d refused, want 1,000 and at most one refusal in 5 minutes", workers, len(p.accepted), len(p.refused))
			}
		})
	}
}

// After a reset, one request goes alone until its response is in. If it was not sent, another one
// follows.
func TestTryAfterReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, local.New(), "", plan(t, 50*ms, algorithms.PerHour(2)))
		acquire := func(wait time.Duration) store.Decision {
			t.Helper()
			b, err := q.TryAcquire(background, store.Request{Cost: one, Held: true})
			if err != nil || b.Wait != wait || (b.Verdict == store.Admitted) != (wait == 0) {
				t.Fatalf("%+v, %v, want a wait of %v", b, err, wait)
			}
			return b
		}
		for i := range 2 {
			b := acquire(0)
			q.Arrived(b, one)
			q.(store.Feedback).Observe(b, one, []store.Observation{{Used: int64(i + 1), Reset: 30 * time.Second}})
		}
		acquire(30 * time.Second)
		time.Sleep(30 * time.Second)
		b := acquire(0)
		if !b.Probe {
			t.Error("the first request after the reset is not a probe")
		}
		if other := acquire(store.ProbeTimeout + 50*ms); other.Tier != store.Probing {
			t.Errorf("the others wait for tier %d, want Probing", other.Tier)
		}
		if err := q.Return(background, b, one); err != nil {
			t.Fatal(err)
		}
		b = acquire(0)
		q.Arrived(b, one)
		acquire(time.Hour - 30*time.Second)
		q.(store.Feedback).Observe(b, one, []store.Observation{{Used: 1, Reset: 30 * time.Minute}})
		acquire(0)
		acquire(30 * time.Minute)
	})
}
