package batch_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
	"github.com/apithrottle/throttle/internal/httpmem"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// newLimiter returns a Limiter of some tiers. Requests arrive within 10 ms.
func newLimiter(t testing.TB, tiers ...throttle.Tier) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(throttle.Policy{Name: "api", Tiers: tiers, Guard: 10 * time.Millisecond}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// count yields the numbers from 0 to n-1, with themselves as keys.
func count(n int) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for i := range n {
			if !yield(i, i) {
				return
			}
		}
	}
}

// An api counts requests strictly, when they arrive, and responds after a while.
type api struct {
	response time.Duration

	mu      sync.Mutex // guards the fields below
	counter *throttletest.Counter
	begun   time.Time
	good    []int // by the second
	refused int
}

func newAPI(t testing.TB, response time.Duration, tiers ...throttle.Tier) *api {
	counter, err := throttletest.NewCounter(tiers...)
	if err != nil {
		t.Fatal(err)
	}
	return &api{response: response, counter: counter, begun: time.Now()}
}

func (a *api) RoundTrip(req *http.Request) (*http.Response, error) {
	status := a.count()
	if err := httpmem.Sleep(req.Context(), func() time.Duration { return a.response }); err != nil {
		return nil, err
	}
	return httpmem.Response(req, status, http.Header{}, "", func() {}), nil
}

func (a *api) count() (status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.counter.Arrive(time.Now().UnixMicro(), nil) {
		a.refused++
		return http.StatusTooManyRequests
	}
	second := int(time.Since(a.begun) / time.Second)
	for len(a.good) <= second {
		a.good = append(a.good, 0)
	}
	a.good[second]++
	return http.StatusOK
}

// TestFullRateFromTheStart plays responses that take 5 ms to 30 s. The limit is used from the tenth second on, although
// no response has come after ten.
func TestFullRateFromTheStart(t *testing.T) {
	for _, byTransport := range []bool{false, true} {
		for _, response := range []time.Duration{5 * time.Millisecond, 500 * time.Millisecond, 30 * time.Second} {
			t.Run(fmt.Sprintf("%v, transport %v", response, byTransport), func(t *testing.T) {
				soak.NoRace(t, "40,000 items")
				soak.Sample(t, 3)
				synctest.Test(t, func(t *testing.T) { fullRate(t, response, byTransport) })
			})
		}
	}
}

func fullRate(t *testing.T, response time.Duration, byTransport bool) {
	const rate, seconds = 2000, 20
	tier := throttle.PerSecond(rate)
	a := newAPI(t, response, tier)
	job := batch.Job[int, int, int]{Items: count(rate * seconds), AtOnce: 100_000}
	l := newLimiter(t, tier)
	client := &http.Client{Transport: a}
	if byTransport {
		job.Transport = &throttle.Transport{Limiter: l, Base: a}
		client.Transport = job.Transport
	} else {
		job.Limiter = l
	}
	job.Do = func(ctx context.Context, n int) (int, error) {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/", nil)
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return 0, errors.New(resp.Status)
		}
		return n, nil
	}
	report, err := batch.Run(t.Context(), job)
	if err != nil || report.Done != rate*seconds || a.refused > 0 {
		t.Errorf("%+v, %v, %d refused", report, err, a.refused)
	}
	t.Log(a.good, report.Bound, report.Elapsed)
	for second, n := range a.good[:seconds-1] {
		if second >= 10 && float64(n) < 0.98*rate {
			t.Errorf("%d requests in second %d, want 0.98 of %d", n, second, rate)
		}
	}
}
