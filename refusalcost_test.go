package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
)

// full are policies under which a request has to wait for minutes or longer, or is not admitted at all,
// once the quota is used up.
func full() map[string]throttle.Policy {
	counters := []throttle.Tier{
		{Limit: 1000, Window: time.Hour, Algorithm: throttle.SlidingLog},
		{Limit: 1000, Window: time.Hour, Algorithm: throttle.SlidingWindow},
		{Limit: 1000, Window: time.Hour, Algorithm: throttle.WeightedWindow},
		{Limit: 1000, Window: 3 * time.Hour, Algorithm: throttle.FixedWindow},
		{Limit: 1000, Window: time.Hour, Algorithm: throttle.AnchoredWindow},
		{Limit: 1000, Window: time.Hour * 1000, Algorithm: throttle.TokenBucket},
		{Limit: 1000, Window: time.Hour * 1000, Algorithm: throttle.LeakyBucket},
		{Limit: 1000, Window: time.Hour * 1000, Algorithm: throttle.GCRA},
		{Limit: 1000, Algorithm: throttle.Calendar, Period: throttle.Month},
		{Limit: 1000, Algorithm: throttle.Concurrency},
	}
	var many []throttle.Tier
	for i := range 20 {
		many = append(many, throttle.Tier{Limit: 1000, Window: time.Duration(i+1) * time.Hour})
	}
	return map[string]throttle.Policy{
		"a log":       {Tiers: []throttle.Tier{throttle.PerHour(10_000)}},
		"ten":         {Tiers: counters},
		"many tiers":  {Tiers: many},
		"a long burn": {Tiers: []throttle.Tier{{Limit: 1, Window: time.Hour, Algorithm: throttle.GCRA, Burst: 100}}},
		"a budget":    {Tiers: []throttle.Tier{throttle.PerHour(10_000), throttle.Budget(1000, "", throttle.Month)}},
	}
}

// A crowd is a quota that is used up and the callers that wait for it.
type crowd struct {
	policy   throttle.Policy
	nested   bool // in two more quotas
	inFlight bool // the responses are to come
	waiters  int
}

// refusals returns the ways in which a call is refused at once, until the test ends.
func (c crowd) refusals(t testing.TB) map[string]func() error {
	c.policy.Name, c.policy.Guard = "quota", throttle.NoGuard
	if c.inFlight {
		c.policy.Guard = 10 * time.Minute
	}
	maxWait := time.Minute
	if c.waiters > 0 { // they wait for longer
		maxWait = 0
	}
	if !c.nested {
		c.policy.MaxWait = maxWait
	}
	full := mustNew(t, c.policy, nil)
	l := full
	if c.nested {
		inner := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(1_000_000)}, MaxWait: maxWait}, nil)
		l = inner.Within(mustNew(t, throttle.Policy{Name: "middle", Tiers: []throttle.Tier{throttle.PerSecond(1_000_000)}}, nil).Within(full))
	}
	for {
		p, err := l.TryAcquire(t.Context(), nil)
		if err != nil {
			break
		}
		if !c.inFlight {
			p.Arrived()
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range c.waiters {
		wg.Go(func() { _, _ = l.Acquire(ctx, nil) })
	}
	for waitingFor(t, full) < c.waiters {
		time.Sleep(time.Millisecond)
	}
	soon, stop := context.WithTimeout(ctx, 50*time.Second)
	t.Cleanup(func() {
		stop()
		cancel()
		wg.Wait()
	})
	tr := &throttle.Transport{Limiter: l, Base: trNewBase(nil), SendBy: func(*http.Request) time.Time { return time.Now().Add(20 * time.Minute) }}
	req := httptest.NewRequest("GET", trURL, nil)
	ways := map[string]func() error{
		"deadline":   func() error { _, err := l.Acquire(soon, nil); return err },
		"TryAcquire": func() error { _, err := l.TryAcquire(t.Context(), nil); return err },
		"SendBy":     func() error { _, err := tr.RoundTrip(req); return err },
	}
	if maxWait > 0 {
		ways["MaxWait"] = func() error { _, err := l.Acquire(ctx, nil); return err }
	}
	return ways
}

func waitingFor(t testing.TB, l *throttle.Limiter) int {
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Waiting
}

// TestRefusalAllocs checks that a refusal allocates at most 1 KB for each scope, under any policy, with and without
// other callers that wait.
func TestRefusalAllocs(t *testing.T) {
	soak.NoRace(t, "it empties pools at random")
	for name, p := range full() {
		for _, c := range []crowd{
			{p, false, false, 0}, {p, false, true, 0}, {p, false, true, 1}, {p, false, false, 1000},
			{p, true, false, 0}, {p, true, true, 1}, {p, true, false, 1000},
		} {
			if c.waiters > 0 && slices.ContainsFunc(p.Tiers, func(t throttle.Tier) bool { return t.Budget }) {
				continue
			}
			for way, refuse := range c.refusals(t) {
				for range 20 { // until the forecast reaches the end of the queue
					if err := refuse(); !errors.Is(err, throttle.ErrDeadline) && !errors.Is(err, throttle.ErrExhausted) {
						t.Fatalf("%s, %+v, %s: %v", name, c, way, err)
					}
				}
				const runs = 20
				var each []uint64
				for range 9 { // a batch may renew the forecast
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					for range runs {
						_ = refuse()
					}
					runtime.ReadMemStats(&after)
					each = append(each, (after.TotalAlloc-before.TotalAlloc)/runs)
				}
				slices.Sort(each)
				most := uint64(1024)
				if c.nested {
					most *= 3
				}
				if median := each[len(each)/2]; median > most {
					t.Errorf("%s, nested %v, in flight %v, %d waiters, %s: %d bytes", name, c.nested, c.inFlight, c.waiters, way, median)
				}
			}
		}
	}
}

// BenchmarkRefusal reports the median time and the memory of a refusal.
func BenchmarkRefusal(b *testing.B) {
	for name, p := range full() {
		for _, nested := range []bool{false, true} {
			for _, waiters := range []int{0, 1, 1000, 1_000_000} {
				if waiters > 0 && name == "a budget" || waiters > 1000 && name != "a log" {
					continue
				}
				b.Run(fmt.Sprintf("%s/nested=%v/%d", name, nested, waiters), func(b *testing.B) {
					for way, refuse := range (crowd{p, nested, waiters == 0, waiters}).refusals(b) {
						b.Run(way, func(b *testing.B) {
							var each []time.Duration
							b.ReportAllocs()
							for b.Loop() {
								began := time.Now()
								if err := refuse(); err == nil {
									b.Fatal("a request was admitted")
								}
								each = append(each, time.Since(began))
							}
							slices.Sort(each)
							b.ReportMetric(float64(each[len(each)/2].Nanoseconds()), "median-ns")
						})
					}
				})
			}
		}
	}
}
