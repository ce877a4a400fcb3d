package distributed_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// A windowed provider counts requests in windows of a minute. Each response reports how many
// requests are left and in how many seconds the window ends. The provider refuses requests beyond
// the limit.
type windowed struct {
	limit int
	// ends is when some window ends.
	ends time.Time
	// rolling is how long a request counts. If zero, until its window ends.
	rolling time.Duration

	mu       sync.Mutex // guards all below
	number   int64      // of the current window
	used     int
	accepted []time.Time
	refused  []time.Time
}

func (p *windowed) RoundTrip(*http.Request) (*http.Response, error) {
	time.Sleep(10 * ms)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	past := now.Sub(p.ends) + 1000*time.Minute
	if number := int64(past / time.Minute); number != p.number {
		p.number, p.used = number, 0
	}
	if p.rolling > 0 {
		for p.used = 0; p.used < len(p.accepted) && now.Sub(p.accepted[len(p.accepted)-1-p.used]) < p.rolling; {
			p.used++
		}
	}
	resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}
	if p.used++; p.used <= p.limit {
		p.accepted = append(p.accepted, now)
	} else {
		p.used = p.limit
		p.refused = append(p.refused, now)
		resp.StatusCode = 429
	}
	left := time.Minute - past%time.Minute
	resp.Header.Set("X-Limit", strconv.Itoa(p.limit))
	resp.Header.Set("X-Remaining", strconv.Itoa(p.limit-p.used))
	resp.Header.Set("X-Reset", strconv.Itoa(int(left/sec)))
	switch {
	case resp.StatusCode == 429 && p.rolling > 0:
		resp.Header.Set("Retry-After", "1")
	case resp.StatusCode == 429:
		resp.Header.Set("Retry-After", strconv.Itoa(int(left/sec)+1))
	}
	return resp, nil
}

var minutely = &answers.Profile{Quotas: []answers.Quota{{
	Limit: answers.Field{Header: "X-Limit"}, Remaining: answers.Field{Header: "X-Remaining"},
	Reset: answers.Field{Header: "X-Reset", Format: answers.Seconds},
}}}

// sendFor runs processes for a while whose callers send one request after the other.
func sendFor(t *testing.T, p http.RoundTripper, tier throttle.Tier, processes int, length time.Duration, process func(least, most time.Duration) *redis.Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range processes {
		l := limiter(t, throttle.Policy{Name: "reported", Tiers: []throttle.Tier{tier}}, distributed.New(process(ms, 3*ms), distributed.Options{}))
		client := &http.Client{Transport: &throttle.Transport{Base: p, Limiter: l, Profile: minutely}}
		for range 3 {
			wg.Go(func() {
				for ctx.Err() == nil {
					req, _ := http.NewRequestWithContext(ctx, "GET", "http://provider", nil)
					if resp, err := client.Do(req); err == nil {
						resp.Body.Close()
					}
				}
			})
		}
	}
	time.Sleep(length)
	cancel()
	wg.Wait()
}

// If the provider's windows are not those of the tier, a reported reset is when they end. With a
// tier of rolling windows one request of the fleet probes then, and its response decides. An
// anchored window opens anew. A bucket sends before enough has drained, and is refused once in a
// window.
func TestFleetToldReset(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	minutes := soak.Times(3)
	for algorithm, refused := range map[throttle.Algorithm]int{
		throttle.SlidingLog: 0, throttle.SlidingWindow: 0, throttle.AnchoredWindow: 0, throttle.WeightedWindow: minutes + 2, throttle.TokenBucket: minutes + 2,
	} {
		fleets := []int{4, 1}
		if soak.Times(1) == 1 {
			fleets = fleets[:1]
		}
		for _, processes := range fleets {
			t.Run(fmt.Sprintf("%v, %d processes", algorithm, processes), func(t *testing.T) {
				virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
					began := time.Now()
					p := &windowed{limit: 100, ends: began.Add(33*sec + 500*ms)}
					sendFor(t, p, per(time.Minute, 100, algorithm), processes, time.Duration(minutes)*time.Minute, process)
					if upperBound := 100 * (minutes + 1); len(p.accepted) < upperBound*98/100 || len(p.refused) > refused {
						t.Errorf("got %d accepted and %d refused, want 98 %% of %d and at most %d", len(p.accepted), len(p.refused), upperBound, refused)
					}
				})
			})
		}
	}
}

// If a provider reports windows but does not count in them, one request of the fleet goes too early
// in each reported window, and no more.
func TestFleetWrongReset(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	for _, processes := range []int{1, 4} {
		virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
			p := &windowed{limit: 100, ends: time.Now().Add(33*sec + 500*ms), rolling: 10 * time.Minute}
			sendFor(t, p, per(10*time.Minute, 100, throttle.SlidingLog), processes, 30*time.Minute, process)
			if len(p.accepted) < 290 || len(p.refused) > 31 {
				t.Errorf("%d processes: got %d accepted and %d refused, want 290 at least and 31 at most", processes, len(p.accepted), len(p.refused))
			}
		})
	}
}
