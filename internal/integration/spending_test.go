package integration_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/outcome"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/retry"
)

// A request that is sent again costs what each attempt costs: nothing if it was refused.
func TestRetriesCostTheirAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy, err := throttle.ParsePolicy("spending", "$1/month")
		if err != nil {
			t.Fatal(err)
		}
		budget, err := throttle.New(policy, nil)
		if err != nil {
			t.Fatal(err)
		}
		rt, err := providers.OpenAI(1_000, 1_000_000).Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		price := providers.Price{API: "openai", Model: "*", Input: 1_000, Output: 5_000} // one nanodollar, and five
		if err := (&providers.Spending{Limiter: budget, Prices: providers.PriceList{price}}).Limit(rt, "openai"); err != nil {
			t.Fatal(err)
		}
		sent := 0
		rt.Base = responding(func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: []int{429, 503, 200}[sent], Header: http.Header{"Content-Type": {"application/json"}}, Request: req}
			resp.Header.Set("Retry-After", "1")
			resp.Body = io.NopCloser(strings.NewReader(`{}`))
			if sent++; sent == 3 {
				resp.Body = io.NopCloser(strings.NewReader(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}}`))
			}
			return resp, nil
		})
		var reported int64
		ctx := outcome.Spending(t.Context(), func(n int64) { reported += n })
		req, err := http.NewRequestWithContext(ctx, "POST", "https://api.openai.com/v1/chat/completions", strings.NewReader(`{"model":"gpt-4o","max_tokens":10,"messages":[]}`))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := retry.Config{Transport: rt, Max: 5}.Client().Transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		status, err := budget.Status(t.Context())
		if err != nil || sent != 3 || reported != 1_100 || status.Tiers[0].Used != 1_100 {
			t.Errorf("%d attempts cost %d nanodollars, and the budget is %v, %v; want 3 and 1100", sent, reported, status, err)
		}
	})
}

// The copy of a hedged request that loses costs its estimate once, because the API may have answered it.
func TestLosingHedgeCostsItsEstimate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy, err := throttle.ParsePolicy("spending", "$1/month")
		if err != nil {
			t.Fatal(err)
		}
		budget, err := throttle.New(policy, nil)
		if err != nil {
			t.Fatal(err)
		}
		var sent, reported atomic.Int64
		rt := &throttle.Transport{Base: responding(func(req *http.Request) (*http.Response, error) {
			if sent.Add(1) == 1 { // the first copy has no answer
				<-req.Context().Done()
				return nil, req.Context().Err()
			}
			return &http.Response{
				StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
				Body: io.NopCloser(strings.NewReader(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}}`)),
			}, nil
		})}
		price := providers.Price{API: "openai", Model: "*", Input: 1_000, Output: 5_000}
		s := &providers.Spending{Limiter: budget, Prices: providers.PriceList{price}}
		if err := s.Limit(rt, "openai"); err != nil {
			t.Fatal(err)
		}
		ctx := outcome.Spending(t.Context(), func(n int64) { reported.Add(n) })
		const body = `{"model":"gpt-4o","max_tokens":10,"messages":[]}`
		req, err := http.NewRequestWithContext(ctx, "POST", "https://api.openai.com/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		estimate := rt.Cost(req)[throttle.Nanodollars]
		req.Header.Set("Idempotency-Key", "one")
		resp, err := retry.Config{Transport: rt, Hedge: &retry.Hedge{After: time.Second, Share: 1}}.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		synctest.Wait()
		status, err := budget.Status(t.Context())
		if want := 1_100 + estimate; err != nil || sent.Load() != 2 || estimate < 50 || reported.Load() != want || status.Tiers[0].Used != want {
			t.Errorf("%d copies cost %d nanodollars, and the budget is %v, %v; want 2 and %d", sent.Load(), reported.Load(), status, err, want)
		}
	})
}

type responding func(*http.Request) (*http.Response, error)

func (f responding) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
