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

// An apiCall is a request of the caller. Its events are numbered in their order.
type apiCall struct {
	asked    int // the event before it was admitted
	counted  int // the event of its arrival
	answered int // the event after the quota had the response

	sent, got time.Time // when it was admitted, and when the response came
	refused   bool
	// inexact reports that the response could not report the whole count, or that another request
	// may have left the window in the meantime.
	inexact bool
}

// A rollingAPI counts requests over any window, and reports the count with each response. It
// refuses the caller's requests beyond the limit and does not count those.
type rollingAPI struct {
	limit    int
	window   time.Duration
	reported store.Observation // the rest of its reports

	mu       sync.Mutex  // guards all below
	counted  []time.Time // in order
	accepted []time.Time // requests of the caller
	refused  []time.Time
	events   int
	others   []int      // events of requests of another program
	calls    []*apiCall // calls that have ended
}

// event returns the number of a new event.
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
func (p *rollingAPI) arrive(t *apiCall) (used int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events++
	t.counted = p.events
	now := time.Now()
	if used = p.count(now); used < p.limit {
		p.accepted, p.counted = append(p.accepted, now), append(p.counted, now)
		return used + 1
	}
	t.refused, t.inexact = true, used > p.limit
	p.refused = append(p.refused, now)
	return p.limit
}

// end records a call after the quota has received the response.
func (p *rollingAPI) end(t *apiCall) {
	t.got, t.answered = time.Now(), p.event()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, t)
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

// A queue lets only its first caller ask the quota, when its wait is over or a change has happened.
type queue struct {
	store.Quota
	first   chan struct{} // holds one value while a caller is first
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

// wait waits until the quota admits a request, or until an instant. It calls asks whenever it is
// about to ask the quota.
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

// work runs n workers that send requests one after the other, as soon as the quota admits them,
// until an instant. Requests take some time to arrive, and responses some time to come back. These
// times are random if seed is not zero.
func (p *rollingAPI) work(n int, seed uint64, q *queue, until time.Time) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for {
				t := new(apiCall)
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
				seen := p.reported
				seen.Used = int64(p.arrive(t))
				seen.Refused = t.refused
				time.Sleep(back)
				q.Arrived(d, one)
				q.Quota.(store.Feedback).Observe(d, one, []store.Observation{seen})
				p.end(t)
			}
		})
	}
	wg.Wait()
}

// If the provider counts as the caller does, its reports cost no capacity, however many requests
// are in flight.
func TestAgreeingReportsCostNothing(t *testing.T) {
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

// knownEvent returns the last event up to which a response before a call could report the use by
// others. The response must have come before the last instant without requests in flight, because a
// request in flight may be counted before or after it. And no other request may have left the
// window during the response's call, because the provider may still have counted that one. The
// calls are in the order in which they were admitted.
func (p *rollingAPI) knownEvent(of *apiCall) (event int) {
	quiet, busy := 0, 0
	for _, t := range p.calls {
		if t.asked > of.asked {
			break
		}
		if t.asked > busy {
			quiet = t.asked
		}
		busy = max(busy, t.answered)
	}
	for _, k := range p.calls {
		if k.answered < quiet && !k.inexact {
			event = max(event, k.counted)
		}
	}
	return event
}

// unexplained returns the number of refusals without an explanation. A request of others explains a
// refusal if it came before the refusal, and after the last event that a response could report. It
// explains only one refusal.
func (p *rollingAPI) unexplained() int {
	type span struct{ from, to int }
	var spans []span
	slices.SortFunc(p.calls, func(a, b *apiCall) int { return a.asked - b.asked })
	left := 0 // calls that have left the window by then
	for _, k := range p.calls {
		for ; p.calls[left].got.Add(p.window).Before(k.sent); left++ {
		}
		for _, t := range p.calls[left:] {
			if t.sent.Add(p.window).After(k.got) {
				break
			}
			k.inexact = k.inexact || !t.refused && t.got.Add(p.window).After(k.sent)
		}
	}
	for _, t := range p.calls {
		if t.refused {
			spans = append(spans, span{p.knownEvent(t), t.counted})
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

// If another program uses 30 % of a quota, steadily or in bursts, the caller uses nearly all of the
// rest. With evenly spaced requests, the provider refuses none after the first window. With bursts,
// it refuses no more requests than others have sent without a report.
func TestSharedWithOthers(t *testing.T) {
	for _, others := range []int{1, 10, 30} { // size of a burst
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
	const minutes = 6
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
		t.Errorf("%d were refused of evenly spaced requests, want none", refused)
	}
	if left := p.unexplained(); left > 0 {
		t.Errorf("%d of %d refusals are not explained by requests of others that no response could report", left, len(p.refused))
	}
}
