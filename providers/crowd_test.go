package providers_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// flaky is a server that refuses one request in a hundred, and breaks the connection of another one.
type flaky struct {
	mu   sync.Mutex
	sent map[string]int // by host
}

func (f *flaky) RoundTrip(req *http.Request) (*http.Response, error) {
	n := rand.IntN(100)
	f.mu.Lock()
	f.sent[req.URL.Host]++
	f.mu.Unlock()
	defer req.Body.Close()
	select {
	case <-time.After(time.Duration(n) * time.Millisecond):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
		Body: io.NopCloser(strings.NewReader(`{"usage":{"input_tokens":5,"output_tokens":9,"total_tokens":14},"extensions":{"cost":{"requestedQueryCost":12,"actualQueryCost":10}}}`))}
	switch n {
	case 0:
		return nil, io.ErrUnexpectedEOF
	case 1:
		resp.StatusCode = http.StatusTooManyRequests
		resp.Header.Set("Retry-After", "1")
	}
	return resp, nil
}

// Many callers of ten APIs all end, although some give up, and the APIs refuse some requests and break
// off others. A day later nothing is in use: each request was sent or refunded.
func TestAutoCrowd(t *testing.T) {
	apis := []struct{ method, url, body string }{
		{"GET", "https://api.github.com/repos/a/b", ""},
		{"GET", "https://api.stripe.com/v1/customers", ""},
		{"POST", "https://slack.com/api/auth.test", "{}"},
		{"GET", "https://api.notion.com/v1/users", ""},
		{"GET", "https://discord.com/api/v10/gateway", ""},
		{"GET", "https://api.cloudflare.com/client/v4/zones", ""},
		{"POST", "https://api.telegram.org/bot1:a/sendMessage", `{"chat_id":7}`},
		{"POST", shopify("graphql.json"), `{"query":"{shop{name}}"}`},
		{"POST", "https://api.anthropic.com/v1/messages", `{"model":"claude-sonnet-4-5","max_tokens":100,"messages":[{"role":"user","content":"hello"}]}`},
		{"POST", "https://api.openai.com/v1/responses", `{"model":"gpt-5","input":"hello"}`},
	}
	callers, requests := soak.Times(100), 20
	synctest.Test(t, func(t *testing.T) {
		api := &flaky{sent: map[string]int{}}
		rt := auto(t, providers.Auto{Providers: []providers.Provider{providers.Anthropic(600, 10_000, 10_000), providers.OpenAI(600, 10_000)}}, nil, api)
		request := func(ctx context.Context, i int) *http.Request {
			to := apis[i%len(apis)]
			req, err := http.NewRequestWithContext(ctx, to.method, to.url, strings.NewReader(to.body))
			if err != nil {
				t.Error(err)
			}
			req.Header.Set("Content-Type", "application/json")
			return req
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		answered := map[string]int{}
		for caller := range callers {
			wg.Go(func() {
				for i := range requests {
					patience := 10 * time.Hour
					if rand.IntN(100) == 0 {
						patience = rand.N(10 * time.Second)
					}
					ctx, cancel := context.WithCancel(t.Context())
					timer := time.AfterFunc(patience, cancel)
					req := request(ctx, caller+i)
					switch resp, err := rt.RoundTrip(req); {
					case err == nil:
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
						fallthrough
					case errors.Is(err, io.ErrUnexpectedEOF):
						mu.Lock()
						answered[req.URL.Host]++
						mu.Unlock()
					case !errors.Is(err, context.Canceled):
						t.Error(err)
					}
					timer.Stop()
					cancel()
				}
			})
		}
		wg.Wait()
		time.Sleep(25 * time.Hour)
		for i := range apis {
			req := request(t.Context(), i)
			status, err := rt.Route(req).Status(t.Context())
			if err != nil {
				t.Error(err)
			}
			for _, tier := range status.Tiers {
				if tier.Used != 0 || status.Waiting != 0 {
					t.Errorf("%s: %v", req.URL, status)
				}
			}
			if host := req.URL.Host; api.sent[host] < answered[host] || answered[host] < 9*callers*requests/10/len(apis) {
				t.Errorf("%s: %d answers to %d requests that were sent, of %d", host, answered[host], api.sent[host], callers*requests/len(apis))
			}
		}
	})
}
