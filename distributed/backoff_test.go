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

// A provider that refuses everything gets about as many requests from many processes as from
// one.
func TestFleetIsRefusedAsOneProcess(t *testing.T) {
	refused := func(processes int) (n int) {
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
	one, many := refused(1), refused(20)
	t.Logf("%d refusals of one process, %d of 20", one, many)
	if many > 2*one+10 { // the first ten are sent before any is refused
		t.Errorf("%d refusals of one process, %d of 20", one, many)
	}
}

type refuser struct{ n atomic.Int64 }

func (r *refuser) RoundTrip(*http.Request) (*http.Response, error) {
	r.n.Add(1)
	time.Sleep(20 * ms)
	return &http.Response{StatusCode: 429, Header: http.Header{}, Body: http.NoBody}, nil
}

// The row of back-offs is the fleet's: a process doubles what others have paused for, until a
// request of any has passed.
func TestFleetBackOff(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		base := &judging{judge: func(n int) int { return map[bool]int{true: 200, false: 429}[n == 4] }}
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
			{0, sec}, // not refused: the others follow
			{sec, 2 * sec},
		} {
			if d := base.sent[i+1].Sub(base.sent[i]); d < pause.least || d > pause.most+100*ms {
				t.Errorf("%v after request %d, want %v to %v", d, i, pause.least, pause.most)
			}
		}
	})
}

// A judging provider says with what it answers each request.
type judging struct {
	judge func(n int) (status int)
	sent  []time.Time
}

func (j *judging) RoundTrip(*http.Request) (*http.Response, error) {
	j.sent = append(j.sent, time.Now())
	return &http.Response{StatusCode: j.judge(len(j.sent) - 1), Header: http.Header{}, Body: http.NoBody}, nil
}
