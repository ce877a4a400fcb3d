package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var totalTokens = &answers.Profile{Charges: []answers.Charge{{Unit: "tokens", Field: answers.Field{Path: "usage.total_tokens"}}}}

func estimating(t *testing.T, n int64) *throttle.Limiter {
	t.Helper()
	return mustNew(t, throttle.Policy{Tiers: []throttle.Tier{
		throttle.PerMinute(100), {Limit: n, Window: time.Minute, Unit: "tokens", Algorithm: throttle.TokenBucket, Estimated: true},
	}}, nil)
}

// TestStreamIsMetered checks that a stream passes through without buffering and that the last cost
// that it reports counts.
func TestStreamIsMetered(t *testing.T) {
	lim := estimating(t, 1000)
	more := make(chan string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for text := range more {
			fmt.Fprintf(w, "data: %s\n\n", text)
			w.(http.Flusher).Flush()
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: &throttle.Transport{
		Limiter: lim, Profile: totalTokens, Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 500} },
	}}
	resp, err := client.Get(server.URL) // the server has sent nothing of the body
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1000)
	for i, text := range []string{`{"choices": []}`, `{"usage": {"total_tokens": 7}}`, `{"usage": {"total_tokens": 123}}`, `[DONE]`} {
		more <- text
		if n, err := resp.Body.Read(buf); err != nil || string(buf[:n]) != "data: "+text+"\n\n" {
			t.Fatalf("%d: read %q, %v; want the data of %q", i, buf[:n], err, text)
		}
		if got := used(t, lim)[1]; got != 500 {
			t.Errorf("%d: %d tokens are used before the end, want 500", i, got)
		}
	}
	close(more)
	if _, err := resp.Body.Read(buf); err != io.EOF {
		t.Fatal(err)
	}
	if got := used(t, lim); got[1] > 123 || got[1] < 100 { // the bucket has refilled a little
		t.Errorf("used %v, want 100 to 123 tokens", got)
	}
	resp.Body.Close()
}

// TestSettle checks that the actual cost that a response reports counts, and otherwise the
// estimate.
func TestSettle(t *testing.T) {
	fixed := throttle.Tier{Limit: 1000, Window: time.Hour, Algorithm: throttle.FixedWindow, Unit: "tokens", Estimated: true}
	respond := func(status int, kind, body string) *http.Response {
		resp := trAnswer(status, "Content-Type", kind, "X-Tokens", "")
		resp.Body = io.NopCloser(strings.NewReader(body))
		return resp
	}
	for name, tt := range map[string]struct {
		resp   *http.Response
		read   int // bytes that are read before the body is closed; -1 for all
		meter  func(*http.Response) throttle.Meter
		tokens int64
	}{
		"reported":              {respond(200, "application/json", `{"usage": {"total_tokens": 123}}`), -1, nil, 123},
		"more than estimated":   {respond(200, "application/json", `{"usage": {"total_tokens": 1234}}`), -1, nil, 1234},
		"zero":                  {respond(200, "application/json", `{"usage": {"total_tokens": 0}}`), -1, nil, 0},
		"not reported":          {respond(200, "application/json", `{}`), -1, nil, 500},
		"another kind of body":  {respond(200, "text/plain", `{"usage": {"total_tokens": 123}}`), -1, nil, 500},
		"closed before the end": {respond(200, "application/json", `{"usage": {"total_tokens": 123}}`), 10, nil, 500},
		"refused":               {respond(429, "application/json", `{}`), -1, nil, 0},
		"a client error":        {respond(404, "text/plain", `no`), -1, nil, 0},
		"a server error":        {respond(500, "text/plain", `no`), -1, nil, 500},
		"a client error's cost": {respond(400, "application/json", `{"usage": {"total_tokens": 9}}`), -1, nil, 9},
		"the user's own meter":  {respond(200, "text/plain", `12345`), -1, func(*http.Response) throttle.Meter { return new(length) }, 5},
		"no meter":              {respond(200, "application/json", `{"usage": {"total_tokens": 123}}`), -1, func(*http.Response) throttle.Meter { return nil }, 500},
	} {
		t.Run(name, func(t *testing.T) {
			lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{fixed}}, nil)
			tr := &throttle.Transport{Limiter: lim, Profile: totalTokens, Meter: tt.meter,
				Base: roundTripper(func(*http.Request) (*http.Response, error) { return tt.resp, nil }),
				Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 500} },
			}
			resp, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
			if err != nil {
				t.Fatal(err)
			}
			if tt.read < 0 {
				_, _ = io.Copy(io.Discard, resp.Body)
			} else {
				_, _ = io.CopyN(io.Discard, resp.Body, int64(tt.read))
			}
			resp.Body.Close()
			if got := used(t, lim)[0]; got != tt.tokens {
				t.Errorf("%d tokens are used, want %d", got, tt.tokens)
			}
		})
	}
}

// TestTransportSettle checks what the function of Transport.Settle receives, and that what it returns
// is charged.
func TestTransportSettle(t *testing.T) {
	profile := &answers.Profile{Charges: []answers.Charge{
		{Unit: "tokens", Field: answers.Field{Path: "tokens"}}, {Unit: "cached", Field: answers.Field{Path: "cached"}},
	}}
	for name, tt := range map[string]struct {
		status   int
		body     string
		meter    func(*http.Response) throttle.Meter
		reported throttle.Cost
		tokens   int64
	}{
		"reported":             {200, `{"tokens": 100, "cached": 7}`, nil, throttle.Cost{"tokens": 100, "cached": 7}, 114},
		"not reported":         {200, `{}`, nil, throttle.Cost{}, 500},
		"refused":              {429, `{}`, nil, throttle.Cost{"tokens": 0}, 0},
		"the user's own meter": {200, `12345`, func(*http.Response) throttle.Meter { return new(length) }, throttle.Cost{"tokens": 5}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 1000, Window: time.Hour, Algorithm: throttle.FixedWindow, Unit: "tokens", Estimated: true}}}, nil)
			var reported []throttle.Cost
			tr := &throttle.Transport{Limiter: lim, Profile: profile, Meter: tt.meter,
				Base: roundTripper(func(*http.Request) (*http.Response, error) {
					resp := trAnswer(tt.status, "Content-Type", "application/json", "X-Tokens", "")
					resp.Body = io.NopCloser(strings.NewReader(tt.body))
					return resp, nil
				}),
				Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 500} },
				Settle: func(req *http.Request) func(throttle.Cost) throttle.Cost {
					if req.Method != "GET" {
						t.Errorf("Settle received a %s", req.Method)
					}
					return func(c throttle.Cost) throttle.Cost {
						reported = append(reported, maps.Clone(c))
						if c["cached"] > 0 {
							c["tokens"] += 2 * c["cached"]
						}
						return c
					}
				},
			}
			resp, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if len(reported) != 1 || !maps.Equal(reported[0], tt.reported) {
				t.Errorf("received %v, want %v once", reported, tt.reported)
			}
			if got := used(t, lim)[0]; got != tt.tokens {
				t.Errorf("%d tokens are used, want %d", got, tt.tokens)
			}
		})
	}
}

// TestTransportSettleUnread checks that the function of Transport.Settle receives an empty cost, once,
// if no response reports one.
func TestTransportSettleUnread(t *testing.T) {
	noDial := func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrClosedPipe }
	for name, tt := range map[string]struct {
		base      http.RoundTripper // if nil, it answers
		estimated bool
		meter     func(*http.Response) throttle.Meter
	}{
		"unsent":      {base: &http.Transport{DialContext: noDial}, estimated: true},
		"error":       {base: roundTripper(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }), estimated: true},
		"no response": {base: roundTripper(func(*http.Request) (*http.Response, error) { return nil, nil }), estimated: true},
		"panic":       {base: roundTripper(func(*http.Request) (*http.Response, error) { panic("a test") }), estimated: true},
		"no meter":    {estimated: true, meter: func(*http.Response) throttle.Meter { return nil }},
		"no estimate": {},
	} {
		t.Run(name, func(t *testing.T) {
			lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 1000, Window: time.Hour, Unit: "tokens", Estimated: tt.estimated}}}, nil)
			var reported []throttle.Cost
			if tt.base == nil {
				tt.base = roundTripper(func(*http.Request) (*http.Response, error) {
					resp := trAnswer(200)
					resp.Body = io.NopCloser(strings.NewReader("{}"))
					return resp, nil
				})
			}
			tr := &throttle.Transport{Limiter: lim, Base: tt.base, Meter: tt.meter,
				Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 500} },
				Settle: func(*http.Request) func(throttle.Cost) throttle.Cost {
					return func(c throttle.Cost) throttle.Cost {
						reported = append(reported, c)
						return throttle.Cost{"tokens": 1}
					}
				},
			}
			func() {
				defer func() { _ = recover() }()
				if resp, _ := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); resp != nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			if len(reported) != 1 || reported[0] == nil || len(reported[0]) > 0 {
				t.Errorf("received %v, want an empty cost once", reported)
			}
			want := int64(500)
			if name == "unsent" {
				want = 0
			}
			if got := used(t, lim)[0]; got != want {
				t.Errorf("%d tokens are used, want %d", got, want)
			}
		})
	}
}

// TestSettleChangesWaiters checks that callers that wait are charged what the first response has
// shown that they cost, and that without Settle the cost of a caller stays.
func TestSettleChangesWaiters(t *testing.T) {
	for _, learns := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var price atomic.Int64
			price.Store(1000)
			tr := &throttle.Transport{Limiter: estimating(t, 1000), Profile: totalTokens,
				Base: roundTripper(func(*http.Request) (*http.Response, error) {
					time.Sleep(time.Second)
					resp := trAnswer(200, "Content-Type", "application/json", "X-Tokens", "")
					resp.Body = io.NopCloser(strings.NewReader(`{"usage": {"total_tokens": 1}}`))
					return resp, nil
				}),
				Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": price.Load()} },
			}
			if learns {
				tr.Settle = func(*http.Request) func(throttle.Cost) throttle.Cost {
					return func(c throttle.Cost) throttle.Cost {
						price.Store(c["tokens"])
						return c
					}
				}
			}
			start := time.Now()
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					resp, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				})
			}
			wg.Wait()
			if took := time.Since(start); learns != (took < 3*time.Second) {
				t.Errorf("learns %v: 20 requests took %v", learns, took)
			}
		})
	}
}

// TestSettlePanics checks that a request for which Settle panics is refunded.
func TestSettlePanics(t *testing.T) {
	pool := throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}
	tokens := throttle.Tier{Limit: 1000, Window: time.Hour, Unit: "tokens", Estimated: true}
	outer := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{pool, tokens}}, nil)
	inner := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{pool}}, nil).Within(outer)
	tr := &throttle.Transport{
		Limiter: inner,
		Base:    roundTripper(func(*http.Request) (*http.Response, error) { return trAnswer(200), nil }),
		Cost:    func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 500} },
		Settle:  func(*http.Request) func(throttle.Cost) throttle.Cost { panic("settle") },
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
	}()
	for i, got := range append(used(t, outer), used(t, inner)...) {
		if got != 0 {
			t.Errorf("tier %d: %d used, want 0", i, got)
		}
	}
}

// A length is a Meter that counts bytes.
type length int64

func (n *length) Write(p []byte) (int, error) {
	*n += length(len(p))
	return len(p), nil
}

func (n *length) Cost() throttle.Cost { return throttle.Cost{"tokens": int64(*n)} }

// TestMeterPanics checks that the estimate becomes the cost if the Meter panics.
func TestMeterPanics(t *testing.T) {
	for _, m := range []*panicking{{inWrite: true}, {inWrite: false}} {
		pool := throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}
		tokens := throttle.Tier{Limit: 1000, Window: time.Hour, Unit: "tokens", Estimated: true}
		lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{pool, tokens}}, nil)
		resp, err := (&throttle.Transport{Limiter: lim,
			Base:  roundTripper(func(*http.Request) (*http.Response, error) { return trAnswer(200), nil }),
			Cost:  func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 500} },
			Meter: func(*http.Response) throttle.Meter { return m },
		}).RoundTrip(httptest.NewRequest("GET", trURL, nil))
		if err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() { _ = recover() }()
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
		}()
		if got := used(t, lim); !slices.Equal(got, []int64{0, 500}) {
			t.Errorf("%+v: used %v, want none open and the estimate", *m, got)
		}
	}
}

// A panicking Meter panics in Write, or else in Cost.
type panicking struct{ inWrite bool }

func (m *panicking) Write(p []byte) (int, error) {
	if m.inWrite {
		panic("meter")
	}
	return len(p), nil
}

func (m *panicking) Cost() throttle.Cost {
	if !m.inWrite {
		panic("meter")
	}
	return nil
}

// TestEstimateOfZero checks that a cost that was estimated as zero is charged in all scopes when it
// is settled.
func TestEstimateOfZero(t *testing.T) {
	budget := throttle.Budget(100, "cents", throttle.Month)
	budget.Estimated = true
	around := mustNew(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{budget}}, nil)
	for _, lim := range []*throttle.Limiter{
		around, mustNew(t, throttle.Policy{Name: "key", Tiers: []throttle.Tier{throttle.PerDay(10)}}, nil).Within(around),
	} {
		before := used(t, around)[0]
		p, err := lim.Acquire(t.Context(), throttle.Cost{"cents": 0})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Settle(throttle.Cost{"cents": 7}); err != nil {
			t.Fatal(err)
		}
		if got := used(t, around)[0] - before; got != 7 {
			t.Errorf("%d are charged, want 7", got)
		}
	}
}

// TestEstimateAboveCapacity checks that an estimate above the capacity of a tier waits until the
// tier is unused, and that the actual cost is charged in full.
func TestEstimateAboveCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := estimating(t, 600)
		first, err := lim.Acquire(t.Context(), throttle.Cost{"tokens": 300})
		if err != nil {
			t.Fatal(err)
		}
		first.Arrived()
		first.Release()
		began := time.Now()
		p, err := lim.Acquire(t.Context(), throttle.Cost{"tokens": 5000})
		if waited := time.Since(began); err != nil || waited != 30*time.Second {
			t.Fatalf("%v after %v, want nil after 30s", err, waited)
		}
		if err := p.Settle(throttle.Cost{"tokens": 1200}); err != nil {
			t.Fatal(err)
		}
		p.Release()
		began = time.Now()
		if p, err = lim.Acquire(t.Context(), throttle.Cost{"tokens": 600}); err != nil || time.Since(began) != 2*time.Minute {
			t.Errorf("%v after %v, want nil after the 2m in which 1,200 tokens refill", err, time.Since(began))
		}
		p.Release()
	})
}

// TestEstimateAboveABudget checks that an estimate above what is left of a budget is refused.
func TestEstimateAboveABudget(t *testing.T) {
	tier := throttle.Budget(600, "tokens", throttle.Day)
	tier.Estimated = true
	lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{tier}}, nil)
	for _, tt := range []struct {
		estimate, actual int64
		want             error
	}{
		{601, 0, throttle.ErrExceedsCapacity},
		{500, 100, nil},
		{501, 0, throttle.ErrExhausted},
		{500, 550, nil}, // the estimate was too low
		{1, 0, throttle.ErrExhausted},
	} {
		p, err := lim.Acquire(t.Context(), throttle.Cost{"tokens": tt.estimate})
		if !errors.Is(err, tt.want) {
			t.Errorf("%d: %v, want %v", tt.estimate, err, tt.want)
		}
		if err := p.Settle(throttle.Cost{"tokens": tt.actual}); err != nil {
			t.Error(err)
		}
	}
}

func TestPermitSettle(t *testing.T) {
	lim := estimating(t, 600)
	p, err := lim.Acquire(t.Context(), throttle.Cost{"tokens": 300})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cost throttle.Cost
		want string
	}{
		{throttle.Cost{"requests": 2}, `throttle: policy "": cost of "requests" can't be settled: set Estimated in a tier of that unit`},
		{throttle.Cost{"cats": 2}, `throttle: policy "": cost of "cats" can't be settled: set Estimated in a tier of that unit`},
		{throttle.Cost{"tokens": -1}, `throttle: policy "": cost of "tokens" is -1: it must be at least 0`},
	} {
		if err := p.Settle(tt.cost); err == nil || err.Error() != tt.want {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
	if err := p.Settle(throttle.Cost{"tokens": 0}); err != nil || used(t, lim)[1] != 0 {
		t.Errorf("settled as zero: %v, used %v; want 0 tokens", err, used(t, lim))
	}
	if err := p.Settle(throttle.Cost{"tokens": 500}); err != nil || used(t, lim)[1] != 0 {
		t.Errorf("settled twice: %v, used %v; want 0 tokens", err, used(t, lim))
	}
	p.Release()
	p, _ = lim.Acquire(t.Context(), throttle.Cost{"tokens": 300})
	if err := p.Cancel(t.Context()); err != nil || !slices.Equal(used(t, lim), []int64{1, 0}) {
		t.Errorf("canceled: %v, used %v; want 1 and 0", err, used(t, lim))
	}
}

// TestUnsent checks that a request of which nothing was sent is refunded.
func TestUnsent(t *testing.T) {
	refused := errors.New("connection refused")
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return nil, refused }
	over := make(chan struct{})
	defer close(over)
	hang := func(context.Context, string, string) (net.Conn, error) { <-over; return nil, refused }
	cut := func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			_, _ = server.Read(make([]byte, 100))
			server.Close()
		}()
		return client, nil
	}
	for name, tt := range map[string]struct {
		base    http.RoundTripper
		used    int64
		forever bool
	}{
		"no connection":               {&http.Transport{DialContext: dial}, 0, false},
		"no listener":                 {&http.Transport{}, 0, true},
		"the context ended before":    {&http.Transport{DialContext: hang}, 0, false},
		"the connection broke":        {&http.Transport{DialContext: cut}, 1, false},
		"the connection broke, again": {&http.Transport{DialContext: cut}, 1, true},
		"a base without httptrace": {roundTripper(func(*http.Request) (*http.Response, error) {
			return nil, refused
		}), 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(10)}, Guard: time.Minute}, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if tt.forever {
				ctx = context.Background()
			}
			req, _ := http.NewRequestWithContext(ctx, "POST", "http://127.0.0.1:1/", strings.NewReader("body"))
			if _, err := (&throttle.Transport{Base: tt.base, Limiter: lim}).RoundTrip(req); err == nil {
				t.Fatal("no error, want one")
			}
			if got := used(t, lim)[0]; got != tt.used {
				t.Errorf("%d used, want %d", got, tt.used)
			}
		})
	}
}
