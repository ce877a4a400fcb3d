package throttle_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// A countingAPI accepts at most 100 requests in any minute, and reports in each response how many
// are left.
type countingAPI struct {
	mu       sync.Mutex // guards all below
	counted  []time.Time
	accepted int
	refused  int
}

var countingProfile = &answers.Profile{Quotas: []answers.Quota{{
	Window: time.Minute, Limit: field("X-RateLimit-Limit", answers.Number), Remaining: field("X-RateLimit-Remaining", answers.Number),
}}}

// count counts a request of the caller or of another program. It returns how many are left, or -1
// if the request is refused.
func (p *countingAPI) count(own bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for len(p.counted) > 0 && !p.counted[0].After(now.Add(-time.Minute)) {
		p.counted = p.counted[1:]
	}
	if own && len(p.counted) >= 100 {
		p.refused++
		return -1
	}
	p.counted = append(p.counted, now)
	if own {
		p.accepted++
	}
	return 100 - len(p.counted)
}

// read returns how many requests of the caller were accepted and refused.
func (p *countingAPI) read() (accepted, refused int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted, p.refused
}

func (p *countingAPI) RoundTrip(*http.Request) (*http.Response, error) {
	time.Sleep(10 * time.Millisecond)
	left := p.count(true)
	time.Sleep(15 * time.Millisecond)
	status := 200
	if left < 0 {
		status = 429
	}
	return trAnswer(status, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", strconv.Itoa(max(0, left))), nil
}

// load sends requests through a Transport with some workers for a length of time.
func (p *countingAPI) load(t *testing.T, workers int, tier throttle.Tier, length time.Duration) *sync.WaitGroup {
	lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{tier}}, nil)
	tr := &throttle.Transport{Limiter: lim, Base: p, Profile: countingProfile}
	until, wg := time.Now().Add(length), new(sync.WaitGroup)
	for range workers {
		wg.Go(func() {
			for time.Now().Before(until) {
				_, _ = tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
			}
		})
	}
	return wg
}

// TestReportsCostNothing checks that reports that agree with what was sent do not lower the
// throughput, however many requests are in flight.
func TestReportsCostNothing(t *testing.T) {
	for _, workers := range []int{1, 10, 50, 100} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p countingAPI
				wg := p.load(t, workers, throttle.PerMinute(100), 20*time.Minute)
				time.Sleep(20 * time.Minute)
				if accepted, refused := p.read(); accepted < 1980 || refused > 0 {
					t.Errorf("%d accepted and %d refused, want 1,980 of 2,000 and none", accepted, refused)
				}
				wg.Wait()
			})
		})
	}
}

// TestReportsOfOthers checks that, if another program uses 30 % of the quota, paced requests use
// the rest and are not refused.
func TestReportsOfOthers(t *testing.T) {
	for _, workers := range []int{1, 10} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p countingAPI
				tier := throttle.PerMinute(100)
				tier.PaceBurst = 1
				wg := p.load(t, workers, tier, 24*time.Minute)
				wg.Go(func() {
					for range 24 * 30 {
						p.count(false)
						time.Sleep(2 * time.Second)
					}
				})
				time.Sleep(4 * time.Minute)
				acceptedBefore, refusedBefore := p.read()
				time.Sleep(20 * time.Minute)
				accepted, refused := p.read()
				if accepted, refused = accepted-acceptedBefore, refused-refusedBefore; accepted < 1358 || refused > 0 {
					t.Errorf("%d accepted and %d refused, want 97 %% of 1,400 and none", accepted, refused)
				}
				wg.Wait()
			})
		})
	}
}

// TestReportedReset checks that the reported use of others ends at the reported reset, not a window
// after the report. The quota is used up and has room 30 seconds later, when windows are empty.
func TestReportedReset(t *testing.T) {
	const limit = 20_000
	for _, tier := range []throttle.Tier{
		throttle.PerHour(100),
		{Limit: limit, Window: time.Hour},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.SlidingWindow},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.WeightedWindow},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.FixedWindow},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.AnchoredWindow},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.TokenBucket},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.LeakyBucket},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.GCRA},
	} {
		t.Run(tier.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{tier}}, nil)
				text := fmt.Sprintf("200\nX-Limit: %d\nX-Remaining: 0\nX-Reset: 30", tier.Limit)
				tr := &throttle.Transport{Limiter: lim, Profile: github, Base: answering(text)}
				if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				if got := used(t, lim)[0]; got != tier.Limit {
					t.Errorf("%d used, want %d", got, tier.Limit)
				}
				if err := lim.WaitN(t.Context(), tier.Limit-1); err != nil || time.Since(began) != 31*time.Second {
					t.Errorf("%v after %v, want 31s", err, time.Since(began))
				}
			})
		})
	}
}

// TestReportedResetRoundedUp checks that a window may end a second before its reported end, because
// the provider rounded that up. A request in this second has opened the next window.
func TestReportedResetRoundedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		profile := &answers.Profile{Quotas: []answers.Quota{{
			Window: 10 * time.Second, Remaining: field("X-Remaining", answers.Number), Reset: field("X-Reset", answers.Seconds),
		}}}
		tier := throttle.Tier{Limit: 2, Window: 10 * time.Second, Algorithm: throttle.AnchoredWindow}
		tr := &throttle.Transport{
			Limiter: mustNew(t, throttle.Policy{Tiers: []throttle.Tier{tier}}, nil), Profile: profile,
			Base: answering("200\nX-Remaining: 1\nX-Reset: 10", "200\nX-Remaining: 0\nX-Reset: 10", "200"),
		}
		start := time.Now()
		send := func(at, want time.Duration) {
			t.Helper()
			time.Sleep(time.Until(start.Add(at)))
			if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil || time.Since(start) != want {
				t.Errorf("sent at %v, %v; want %v", time.Since(start), err, want)
			}
		}
		send(0, 0)
		send(500*ms, 500*ms) // the window ends in 9.5 s
		send(10_200*ms, 10_200*ms)
		send(11_100*ms, 11_100*ms)
		send(11_200*ms, 20_200*ms)
	})
}
