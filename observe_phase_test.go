package throttle_test

import (
	"fmt"
	"math/rand/v2"
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

// A windowsAPI counts in fixed windows, and reports in each response how much of one of them is left
// and when it ends.
type windowsAPI struct {
	windows  []countedWindow
	reported int // index of the reported window

	mu       sync.Mutex // guards all below
	random   *rand.Rand
	accepted int
	refused  int
}

type countedWindow struct {
	limit        int
	length       time.Duration
	phase, opens time.Duration // after the beginning of the test
	used         int
}

func (p *windowsAPI) RoundTrip(*http.Request) (*http.Response, error) {
	time.Sleep(p.latency())
	p.mu.Lock()
	status, now := 200, time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	for i := range p.windows {
		w := &p.windows[i]
		if opens := (now + w.length - w.phase).Truncate(w.length) + w.phase - w.length; opens != w.opens {
			w.opens, w.used = opens, 0
		}
		if w.used == w.limit {
			status = 429
		}
	}
	for i := range p.windows {
		p.windows[i].used += 1 - status/429
	}
	p.accepted, p.refused = p.accepted+1-status/429, p.refused+status/429
	w := p.windows[p.reported]
	p.mu.Unlock()
	time.Sleep(p.latency())
	return trAnswer(status, "X-Limit", strconv.Itoa(w.limit), "X-Remaining", strconv.Itoa(w.limit-w.used),
		"X-Reset", fmt.Sprintf("%.3f", (w.opens+w.length-now).Seconds())), nil
}

func (p *windowsAPI) latency() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.random.IntN(30_000)) * time.Microsecond
}

// TestReportedWindows checks that the ends of windows of unknown phase, once reported, cost neither
// requests nor refusals, however many tiers the policy has and whichever of them is reported.
func TestReportedWindows(t *testing.T) {
	profile := &answers.Profile{Quotas: []answers.Quota{{
		Limit: field("X-Limit", answers.Number), Remaining: field("X-Remaining", answers.Number), Reset: field("X-Reset", answers.Seconds),
	}}}
	const minute = time.Minute
	for _, test := range []struct {
		windows  []countedWindow
		reported int
		length   time.Duration
		least    int
	}{
		{[]countedWindow{{limit: 100, length: minute, phase: 37 * time.Second}}, 0, 20 * minute, 1_980},
		{[]countedWindow{{limit: 10, length: 10 * time.Second, phase: 7300 * time.Millisecond}}, 0, 20 * minute, 1_180},
		{[]countedWindow{{limit: 20, length: minute, phase: 37 * time.Second}, {limit: 300, length: 30 * minute, phase: 11*minute + 20*time.Second}}, 1, 120 * minute, 1_180},
		{[]countedWindow{{limit: 300, length: 30 * minute, phase: 11*minute + 20*time.Second}, {limit: 20, length: minute, phase: 37 * time.Second}}, 1, 120 * minute, 1_180},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := &windowsAPI{windows: test.windows, reported: test.reported, random: rand.New(rand.NewPCG(1, 2))}
			var tiers []throttle.Tier
			for _, w := range test.windows {
				tiers = append(tiers, throttle.Tier{Limit: int64(w.limit), Window: w.length, Algorithm: throttle.FixedWindow, Phase: throttle.UnknownPhase})
			}
			tr := &throttle.Transport{Limiter: mustNew(t, throttle.Policy{Tiers: tiers}, nil), Profile: profile, Base: api}
			until := time.Now().Add(test.length)
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					for time.Now().Before(until) {
						_, _ = tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
					}
				})
			}
			time.Sleep(test.length)
			api.mu.Lock()
			if api.refused > 0 || api.accepted < test.least {
				t.Errorf("%v: %d were refused and %d accepted, want none and %d", tiers, api.refused, api.accepted, test.least)
			}
			api.mu.Unlock()
			wg.Wait()
		})
	}
}
