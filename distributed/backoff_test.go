package distributed_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// Many processes send a provider that refuses everything about as many requests as one process
// does.
func TestFleetIsRefusedAsOneProcess(t *testing.T) {
	t.Parallel()
	countRefusals := func(processes int) (n int) {
		virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
			base := &refuser{}
			ctx, cancel := context.WithCancel(t.Context()) // a deadline would refuse callers at once
			var wg sync.WaitGroup
			for range processes {
				l := limiter(t, tenASecond, distributed.New(process(ms, 3*ms), distributed.Options{}))
				client := &http.Client{Transport: &throttle.Transport{Base: base, Limiter: l}}
				wg.Go(func() {
					for ctx.Err() == nil {
						req, _ := http.NewRequestWithContext(ctx, "GET", "http://provider", nil)
						if resp, err := client.Do(req); err == nil {
							resp.Body.Close()
						}
					}
				})
			}
			time.Sleep(time.Minute)
			cancel()
			wg.Wait()
			n = int(base.n.Load())
		})
		return n
	}
	one, many := countRefusals(1), countRefusals(20)
	t.Logf("1 process: %d refusals; 20 processes: %d", one, many)
	if many > 2*one+10 { // the first ten are sent before the first refusal
		t.Errorf("20 processes: got %d refusals, want %d at most, because 1 process has %d", many, 2*one+10, one)
	}
}

type refuser struct{ n atomic.Int64 }

func (r *refuser) RoundTrip(*http.Request) (*http.Response, error) {
	r.n.Add(1)
	time.Sleep(20 * ms)
	return &http.Response{StatusCode: 429, Header: http.Header{}, Body: http.NoBody}, nil
}

// The processes of a fleet share one series of back-offs: each process doubles the pause of the
// others until a request of any process passes.
func TestFleetBackOff(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		base := &statusProvider{status: func(n int) int { return map[bool]int{true: 200, false: 429}[n == 4] }}
		client := func() *http.Client {
			l := limiter(t, tenASecond, distributed.New(process(ms, 3*ms), distributed.Options{}))
			return &http.Client{Transport: &throttle.Transport{Base: base, Limiter: l}}
		}
		one, two := client(), client()
		for _, c := range []*http.Client{one, two, one, two, one, two, two} {
			get(t, c)
		}
		for i, pause := range []struct{ least, most time.Duration }{
			{sec, 2 * sec}, {2 * sec, 4 * sec}, {4 * sec, 8 * sec}, {8 * sec, 16 * sec}, // refused
			{0, sec}, // not refused: the next request follows
			{sec, 2 * sec},
		} {
			if d := base.sent[i+1].Sub(base.sent[i]); d < pause.least || d > pause.most+100*ms {
				t.Errorf("request %d: the next followed after %v, want %v to %v", i, d, pause.least, pause.most)
			}
		}
	})
}

// A statusProvider answers request n, from 0, with the status that status returns.
type statusProvider struct {
	status func(n int) int
	sent   []time.Time
}

func (j *statusProvider) RoundTrip(*http.Request) (*http.Response, error) {
	j.sent = append(j.sent, time.Now())
	return &http.Response{StatusCode: j.status(len(j.sent) - 1), Header: http.Header{}, Body: http.NoBody}, nil
}
