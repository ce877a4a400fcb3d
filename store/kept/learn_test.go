package kept_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A hidden provider admits what a bucket of one unit per window admits that it does not document, and says nothing of it.
type hidden struct {
	mu      sync.Mutex
	counter *throttletest.Counter
	// accepted and refused are when requests came.
	accepted, refused []time.Time
	// by is the number of accepted requests of each process.
	by map[int]int
}

func newHidden(t testing.TB, tier throttle.Tier) *hidden {
	c, err := throttletest.NewCounter(tier)
	if err != nil {
		t.Fatal(err)
	}
	return &hidden{counter: c, by: make(map[int]int)}
}

func (h *hidden) serve(process int) (ok bool) {
	time.Sleep(25 * time.Millisecond)
	h.mu.Lock()
	if ok = h.counter.Arrive(time.Now().UnixMicro(), nil); ok {
		h.accepted = append(h.accepted, time.Now())
		h.by[process]++
	} else {
		h.refused = append(h.refused, time.Now())
	}
	h.mu.Unlock()
	time.Sleep(25 * time.Millisecond)
	return ok
}

// run lets callers of a limiter send requests until the context ends.
func (h *hidden) run(ctx context.Context, wg *sync.WaitGroup, process int, l *throttle.Limiter, callers int) {
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				p, err := l.Acquire(ctx, nil)
				if err != nil { // the end of the context
					time.Sleep(10 * time.Millisecond)
					continue
				}
				if h.serve(process) {
					p.Passed()
				} else {
					_ = p.Refused(ctx, 0)
				}
				p.Release()
			}
		})
	}
}

func count(of []time.Time, from, to time.Time) (n int) {
	for _, at := range of {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}

var learns = throttle.Policy{Name: "learns", Tiers: []throttle.Tier{{
	Limit: 5, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 1000},
}}}

func learnedOf(t testing.TB, l *throttle.Limiter) *throttle.TierStatus {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Tiers[0].Learned == nil {
		t.Fatal("the status has nothing learned")
	}
	return &s.Tiers[0]
}

func TestDebugFleetLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 100*time.Microsecond, time.Millisecond, 2*time.Millisecond, 5*time.Millisecond)
		h := newHidden(t, throttle.Tier{Limit: 40, Window: time.Second})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		began := time.Now()
		all := f.limiters(t, learns)
		for i, l := range all {
			h.run(ctx, &wg, i, l, 8)
		}
		for m := range 20 {
			time.Sleep(time.Minute)
			from := began.Add(time.Duration(m) * time.Minute)
			ok, bad := count(h.accepted, from, time.Now()), count(h.refused, from, time.Now())
			s := learnedOf(t, all[0])
			u, w, b := f.server.Count()
			t.Logf("minute %d: %.3f good, %d refused, %+v, updates %d %d %d", m, float64(ok)/2400, bad, *s.Learned, u, w, b/w)
		}
		cancel()
		wg.Wait()
		t.Log(h.by)
	})
}
