package distributed_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// A hidden provider refuses requests above a limit that it does not name, in any second. Responses take some time.
type hidden struct {
	mu       sync.Mutex // guards all below
	takes    time.Duration
	limit    int
	accepted []time.Time
	passed   map[string]int // by process
	refused  int
	statuses []int // of all requests, in the order of their arrival
}

func (h *hidden) RoundTrip(req *http.Request) (*http.Response, error) {
	half := h.half()
	time.Sleep(half)
	status := h.count(req.Host)
	time.Sleep(half)
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody}, nil
}

func (h *hidden) count(process string) (status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for len(h.accepted) > 0 && now.Sub(h.accepted[0]) >= sec {
		h.accepted = h.accepted[1:]
	}
	if status = 429; len(h.accepted) < h.limit {
		status = 200
		h.accepted = append(h.accepted, now)
		h.passed[process]++
	} else {
		h.refused++
	}
	h.statuses = append(h.statuses, status)
	return status
}

func (h *hidden) half() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.takes / 2
}

// setTakes sets how long responses take.
func (h *hidden) setTakes(takes time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.takes = takes
}

// restart forgets the counts, and sets the limit.
func (h *hidden) restart(limit int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limit, h.passed, h.refused, h.statuses = limit, make(map[string]int), 0, nil
}

// sum returns how many requests have passed, and how many were refused.
func (h *hidden) sum() (n, refused int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, passed := range h.passed {
		n += passed
	}
	return n, h.refused
}

// A learningFleet is processes with callers that send as much as they may.
type learningFleet struct {
	*testing.T
	provider *hidden
	limiter  func(*distributed.Store) *throttle.Limiter
	process  func(least, most time.Duration) *redis.Client
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// add starts a process with a number of callers, and returns its limiter.
func (f *learningFleet) add(name string, callers int) *throttle.Limiter {
	l := f.limiter(distributed.New(f.process(ms, 3*ms), distributed.Options{}))
	client := &http.Client{Transport: &throttle.Transport{Base: f.provider, Limiter: l}}
	ctx := f.ctx
	for range callers {
		f.wg.Go(func() {
			for ctx.Err() == nil {
				req, _ := http.NewRequestWithContext(ctx, "GET", "http://"+name, nil)
				if resp, err := client.Do(req); err == nil {
					resp.Body.Close()
				}
			}
		})
	}
	return l
}

// addAll starts eight processes, and returns the limiter of one of them.
func (f *learningFleet) addAll(callers int) (l *throttle.Limiter) {
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		l = f.add(name, callers)
	}
	return l
}

// stop ends all processes.
func (f *learningFleet) stop() {
	f.cancel()
	f.wg.Wait()
	f.ctx, f.cancel = context.WithCancel(f.Context())
}

// known returns what the first tier of a limiter knows.
func (f *learningFleet) known(l *throttle.Limiter) store.Learned {
	f.Helper()
	s, err := l.Status(f.Context())
	if err != nil || s.Tiers[0].Learned == nil {
		f.Fatalf("got %+v, %v, want a learned tier", s, err)
	}
	return *s.Tiers[0].Learned
}

// checkGoodput checks that the fleet uses 0.85 of the hidden limit for some time, and that 1 % is refused at
// most.
func (f *learningFleet) checkGoodput(limit int, measured time.Duration) {
	f.Helper()
	f.provider.restart(limit)
	time.Sleep(measured)
	sum, refused := f.provider.sum()
	most := measured.Seconds() * float64(limit)
	if float64(sum) < 0.85*most {
		f.Errorf("got %d passed in %v, want 0.85 of %.0f at least", sum, measured, most)
	}
	if refused > sum/100 {
		f.Errorf("got %d refused of %d, want 1 %% at most", refused, sum)
	}
}

// learning runs a test of a fleet, in virtual time, with a hidden limit of 40/s.
func learning(t *testing.T, limiterOf func(*testing.T, *distributed.Store) *throttle.Limiter, test func(f *learningFleet)) {
	t.Parallel()
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		f := &learningFleet{T: t, provider: &hidden{takes: 50 * ms}, process: process}
		f.limiter = func(s *distributed.Store) *throttle.Limiter { return limiterOf(t, s) }
		f.ctx, f.cancel = context.WithCancel(t.Context())
		f.provider.restart(40)
		test(f)
		f.stop()
	})
}

// learnsFromFive is a tier that starts at 5/s.
var learnsFromFive = throttle.Tier{Limit: 5, Window: sec, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Least: 1, Most: 1000}}

// alone is the limiter of a quota with that tier, and others.
func alone(others ...throttle.Tier) func(*testing.T, *distributed.Store) *throttle.Limiter {
	return func(t *testing.T, s *distributed.Store) *throttle.Limiter {
		return limiter(t, throttle.Policy{Name: "hidden", Tiers: append([]throttle.Tier{learnsFromFive}, others...)}, s)
	}
}

// A fleet of eight processes finds a hidden limit of 40/s together, and shares it.
func TestFleetLearnsHiddenLimit(t *testing.T) {
	soak.Long(t, "a fleet that learns for minutes")
	learning(t, alone(), func(f *learningFleet) {
		f.addAll(3)
		time.Sleep(5 * time.Minute)
		f.checkGoodput(40, 3*time.Minute)
		f.stop()
		sum, _ := f.provider.sum()
		mean := float64(sum) / 8
		for name, n := range f.provider.passed {
			if float64(n) < 0.9*mean || float64(n) > 1.1*mean {
				f.Errorf("process %s: got %d passed, want %.0f within 10 %%", name, n, mean)
			}
		}
	})
}

// Of twenty refusals of one moment only the first decreases the rate, whichever processes receive them. Within the
// seconds that this takes, the rate may meet the limit once more, as it does now and then.
func TestFleetDecreasesOnce(t *testing.T) {
	soak.Long(t, "a fleet learns for minutes, and TestFleetLearnsHiddenLimit plays one")
	learning(t, alone(), func(f *learningFleet) {
		f.provider.setTakes(sec)
		l := f.addAll(8)
		time.Sleep(2 * time.Minute)
		before := f.known(l)
		f.provider.restart(0)
		for refused := 0; refused < 20; _, refused = f.provider.sum() {
			time.Sleep(10 * ms)
		}
		f.provider.restart(40)
		time.Sleep(2 * sec) // all responses are in
		after := f.known(l)
		if low := 0.45 * before.Rate; after.Rate < low || after.Rate > before.Rate {
			f.Errorf("got a rate of %.1f after many refusals at %.1f, want one decrease", after.Rate, before.Rate)
		}
	})
}

// A process that joins a fleet starts with what the fleet knows.
func TestFleetTellsNewcomer(t *testing.T) {
	soak.Long(t, "a fleet learns for minutes, and TestFleetLearnsHiddenLimit plays one")
	learning(t, alone(), func(f *learningFleet) {
		f.addAll(3)
		time.Sleep(3 * time.Minute)
		f.stop()
		newcomer := f.add("newcomer", 24)
		f.checkGoodput(40, 30*sec)
		if known := f.known(newcomer); known.Rate < 25 || known.Rate > 55 {
			f.Errorf("got a rate of %.1f, want one near 40", known.Rate)
		}
	})
}

// A fleet that starts again after a rest begins at its last rate, and at 0.9 of the highest good one at most.
func TestFleetAfterRest(t *testing.T) {
	soak.Long(t, "a fleet learns for minutes, and TestFleetLearnsHiddenLimit plays one")
	learning(t, alone(), func(f *learningFleet) {
		l := f.addAll(3)
		time.Sleep(2 * time.Minute)
		before := f.known(l)
		f.stop()
		time.Sleep(time.Hour)
		f.provider.restart(1000)
		l = f.add("again", 24)
		time.Sleep(sec)
		good := max(before.Rate, before.Refused)
		if after := f.known(l); after.Rate < 0.85*before.Rate || after.Rate > 0.95*good {
			f.Errorf("got a rate of %.1f after a rest, want %.1f, but 0.9 of %.1f at most", after.Rate, before.Rate, good)
		}
		if sum, _ := f.provider.sum(); float64(sum) > 1.1*good {
			f.Errorf("got %d requests in the first second, want %.1f at most", sum, 0.9*good)
		}
	})
}

// Places that are full and a rate that is learned hold at once, and no place is lost.
func TestFleetLearnsBesidePlaces(t *testing.T) {
	soak.Long(t, "a fleet learns for minutes, and TestFleetLearnsHiddenLimit plays one")
	learning(t, alone(throttle.Tier{Limit: 6, Algorithm: throttle.Concurrency}), func(f *learningFleet) {
		l := f.addAll(3)
		time.Sleep(2 * time.Minute)
		f.checkGoodput(40, time.Minute)
		f.stop()
		time.Sleep(15 * sec)
		s, err := l.Status(f.Context())
		if err != nil || s.Tiers[1].Used != 0 {
			f.Errorf("got %+v, %v, want no place used", s, err)
		}
	})
}

// A learned quota inside another one finds the hidden limit.
func TestNestedFleetLearns(t *testing.T) {
	soak.Long(t, "a fleet learns for minutes, and TestFleetLearnsHiddenLimit plays one")
	wide := throttle.Tier{Limit: 200, Window: sec, Algorithm: throttle.GCRA}
	nested := func(t *testing.T, s *distributed.Store) *throttle.Limiter {
		inner := limiter(t, throttle.Policy{Name: "{nest}inner", Tiers: []throttle.Tier{learnsFromFive}}, s)
		return inner.Within(limiter(t, throttle.Policy{Name: "{nest}outer", Tiers: []throttle.Tier{wide}}, s))
	}
	learning(t, nested, func(f *learningFleet) {
		f.addAll(3)
		time.Sleep(2 * time.Minute)
		f.checkGoodput(40, time.Minute)
	})
}

// Forget makes a fleet start again.
func TestFleetForgets(t *testing.T) {
	soak.Long(t, "a fleet learns for minutes, and TestFleetLearnsHiddenLimit plays one")
	learning(t, alone(), func(f *learningFleet) {
		l := f.addAll(3)
		time.Sleep(2 * time.Minute)
		if known := f.known(l); known.Rate < 20 {
			f.Fatalf("got a rate of %.1f, want one near 40", known.Rate)
		}
		f.stop()
		if err := l.Forget(f.Context()); err != nil {
			f.Fatal(err)
		}
		if known := f.known(l); known != (store.Learned{Rate: 5, Next: known.Next}) {
			f.Errorf("got %+v after Forget, want the tier's limit of 5", known)
		}
	})
}
