package retry_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/retry"
)

// regions are the members of a Pool, by host: how many times each refuses before it answers.
type regions struct {
	start   time.Time
	refuses map[string]int
	sent    []string
}

func (r *regions) RoundTrip(req *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(req.Body)
	r.sent = append(r.sent, time.Since(r.start).Round(time.Second).String()+" "+req.URL.Host+" "+string(body))
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}
	if r.refuses[req.URL.Host]--; r.refuses[req.URL.Host] >= 0 {
		resp.StatusCode = http.StatusTooManyRequests
		resp.Header.Set("Retry-After", map[string]string{"a": "30", "b": "40"}[req.URL.Host])
	}
	return resp, nil
}

// client returns a client whose requests go to the regions a and b.
func (r *regions) client(t *testing.T) *http.Client {
	pool := new(throttle.Pool)
	for _, name := range []string{"a", "b"} {
		l, err := throttle.New(throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerSecond(10)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := pool.Add(throttle.Member{Name: name, Limiter: l}); err != nil {
			t.Fatal(err)
		}
	}
	r.start = time.Now()
	return retry.NewClient(&throttle.Transport{
		Base: r, Pool: pool,
		Rewrite: func(req *http.Request, member string) error { req.URL.Host = member; return nil },
	})
}

// TestPoolRetriesAtAnotherMember checks that what one member refuses is sent to another at once, with its body, and
// that a request which all refuse waits for the first of them.
func TestPoolRetriesAtAnotherMember(t *testing.T) {
	for _, tt := range []struct {
		refuses map[string]int
		timeout time.Duration
		sent    string
		status  int
	}{
		{map[string]int{"a": 1}, time.Minute, "0s a order|0s b order", 200},
		{map[string]int{"a": 1}, time.Second, "0s a order|0s b order", 200},
		{map[string]int{"a": 1, "b": 1}, time.Minute, "0s a order|0s b order|30s a order", 200},
		{map[string]int{"a": 1, "b": 1}, time.Second, "0s a order|0s b order", 429},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := &regions{refuses: tt.refuses}
			ctx, cancel := context.WithTimeout(t.Context(), tt.timeout)
			defer cancel()
			client := api.client(t)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader("order"))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := strings.Join(api.sent, "|"); got != tt.sent || resp.StatusCode != tt.status {
				t.Errorf("within %v: sent %q, status %d; want %q, %d", tt.timeout, got, resp.StatusCode, tt.sent, tt.status)
			}
		})
	}
}
