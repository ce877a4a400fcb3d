package integration_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/throttletest"
)

// uniform draws durations from an interval.
func uniform(from, to time.Duration) func() time.Duration {
	return func() time.Duration { return from + rand.N(to-from) }
}

// A model is an API that counts tokens. A request contains how many tokens it will use. The client
// ignores that number and uses the count in the response.
type model struct{ api *throttletest.Provider }

func newModel(tokens throttle.Tier, hold func() time.Duration) model {
	m := model{throttletest.New(tokens)}
	m.api.Hold = hold
	m.api.Delay = uniform(5*time.Millisecond, 50*time.Millisecond)
	m.api.Cost = func(r *http.Request) map[string]int64 {
		n, _ := strconv.ParseInt(r.Header.Get("X-Tokens"), 10, 64)
		return map[string]int64{"tokens": n}
	}
	return m
}

func (m model) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := m.api.RoundTrip(r)
	if err == nil && resp.StatusCode == 200 {
		resp.Body.Close()
		resp.Header.Set("Content-Type", "application/json")
		resp.Body = io.NopCloser(strings.NewReader(`{"usage": {"total_tokens": ` + r.Header.Get("X-Tokens") + `}}`))
	}
	return resp, err
}

// tokens returns the number of accepted tokens.
func (m model) tokens() (n int64) {
	for _, a := range m.api.Arrivals() {
		if a.Accepted {
			n += a.Cost["tokens"]
		}
	}
	return n
}

var totalTokens = &answers.Profile{Charges: []answers.Charge{{Unit: "tokens", Field: answers.Field{Path: "usage.total_tokens"}}}}

// overestimating returns a client whose estimates are twice the actual cost.
func overestimating(m model, lim *throttle.Limiter) *http.Client {
	return &http.Client{Transport: &throttle.Transport{
		Base: m, Limiter: lim, Profile: totalTokens,
		Cost: func(r *http.Request) throttle.Cost {
			n, _ := strconv.ParseInt(r.Header.Get("X-Tokens"), 10, 64)
			return throttle.Cost{"tokens": 2 * n}
		},
	}}
}

// complete sends requests of 50 to 2,050 tokens until the context ends.
func complete(ctx context.Context, client *http.Client, callers int) {
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				req, _ := http.NewRequestWithContext(ctx, "POST", "http://model.test/", nil)
				req.Header.Set("X-Tokens", strconv.Itoa(50+rand.IntN(2000)))
				resp, err := client.Do(req)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
}

// Estimates that are twice too high do not waste any of the limit, and the settlements never exceed
// the provider's limit.
func TestEstimatesTwiceTooHigh(t *testing.T) {
	tier := throttle.Tier{Limit: 90_000, Window: time.Minute, Algorithm: throttle.TokenBucket, Unit: "tokens"}
	for _, algorithm := range []throttle.Algorithm{throttle.TokenBucket, throttle.FixedWindow} {
		synctest.Test(t, func(t *testing.T) {
			tier := tier
			tier.Algorithm = algorithm
			m := newModel(tier, uniform(500*time.Millisecond, 3*time.Second))
			tier.Estimated = true
			lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{tier}}, nil)
			const minutes = 30
			ctx, cancel := context.WithTimeout(t.Context(), minutes*time.Minute)
			defer cancel()
			complete(ctx, overestimating(m, lim), 64)
			got, possible := m.tokens(), tier.Limit*minutes
			if algorithm == throttle.TokenBucket {
				possible += tier.Limit // the bucket begins full
			}
			t.Logf("%v: %d of %d tokens, %.3f; %d refused", algorithm, got, possible, float64(got)/float64(possible), m.api.Summary().Refused)
			if m.api.Summary().Refused > 0 || float64(got) < 0.95*float64(possible) {
				t.Errorf("%v: %d of %d tokens, %d refused", algorithm, got, possible, m.api.Summary().Refused)
			}
		})
	}
}

// In a fleet, estimates are leased and settled with later calls.
func TestEstimatesOfAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redismem.New()
		t.Cleanup(server.Close)
		tier := throttle.Tier{Limit: 20_000, Window: time.Second, Algorithm: throttle.TokenBucket, Unit: "tokens"}
		m := newModel(tier, uniform(20*time.Millisecond, 60*time.Millisecond))
		tier.Estimated = true
		const seconds = 4
		ctx, cancel := context.WithTimeout(t.Context(), seconds*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 2 {
			policy := throttle.Policy{Name: "model", Tiers: []throttle.Tier{tier}, Guard: 50 * time.Millisecond}
			client := overestimating(m, mustNew(t, policy, distributed.New(nearClient(t, server), distributed.Options{})))
			wg.Go(func() { complete(ctx, client, 16) })
		}
		wg.Wait()
		possible := tier.Limit * (1 + seconds) // the bucket begins full
		t.Logf("%d of %d tokens, %d refused", m.tokens(), possible, m.api.Summary().Refused)
		if m.api.Summary().Refused > 0 || float64(m.tokens()) < 0.8*float64(possible) {
			t.Errorf("%d of %d tokens, %d refused", m.tokens(), possible, m.api.Summary().Refused)
		}
	})
}

// TestStreamRefusedInAFleet checks that a refusal in a stream pauses the other processes, and that what the
// stream has used is charged once, as it reports.
func TestStreamRefusedInAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redismem.New()
		t.Cleanup(server.Close)
		var processes []*throttle.Limiter
		for range 2 {
			policy := throttle.Policy{Name: "model", Tiers: []throttle.Tier{
				{Limit: 1000, Window: time.Hour, Algorithm: throttle.FixedWindow, Unit: "tokens", Estimated: true},
			}}
			processes = append(processes, mustNew(t, policy, distributed.New(nearClient(t, server), distributed.Options{})))
		}
		body := "data: {\"usage\":{\"total_tokens\":120}}\n\nevent: error\ndata: {\"code\":\"limited\"}\n\n"
		tr := &throttle.Transport{
			Limiter: processes[0], Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 500} },
			Profile: &answers.Profile{Charges: totalTokens.Charges, Rules: []answers.Rule{
				{Event: "error", Path: "code", Text: "limited", Kind: answers.Limited, Wait: time.Minute},
			}},
			Base: roundTripper(func(*http.Request) (*http.Response, error) {
				resp := answer(200, "Content-Type", "text/event-stream")
				resp.Body = io.NopCloser(strings.NewReader(body))
				return resp, nil
			}),
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://model.example", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); string(got) != body || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		resp.Body.Close()
		start := time.Now()
		p, err := processes[1].Acquire(t.Context(), throttle.Cost{"tokens": 1})
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited < 59*time.Second {
			t.Errorf("the other process was admitted after %v", waited)
		}
		p.Release()
		if s, err := processes[1].Status(t.Context()); err != nil || s.Tiers[0].Used > 130 || s.Tiers[0].Used < 120 {
			t.Errorf("%+v, %v, want 121 tokens used", s.Tiers, err)
		}
	})
}
