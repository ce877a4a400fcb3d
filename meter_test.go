package throttle_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
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

// A trPipe is the body of a 101 response: a connection.
type trPipe struct {
	io.Reader
	bytes.Buffer
	closed int
}

func (p *trPipe) Read(b []byte) (int, error) { return p.Reader.Read(b) }

func (p *trPipe) Close() error {
	p.closed++
	return nil
}

func TestTransportUpgrade(t *testing.T) {
	for name, tr := range map[string]*throttle.Transport{
		"not limited":    {},
		"limited":        {Limiter: trLimiter(t, throttle.Policy{Tiers: trTier(1, time.Hour)})},
		"concurrency":    {Limiter: trLimiter(t, trAtOnce(1))},
		"AttemptTimeout": {AttemptTimeout: time.Hour},
		"profile of bodies": {Limiter: trLimiter(t, throttle.Policy{Tiers: trTier(1, time.Hour)}),
			Profile: &answers.Profile{Quotas: []answers.Quota{{Remaining: answers.Field{Path: "left"}}}}},
	} {
		pipe := &trPipe{Reader: strings.NewReader("from the server")}
		tr.Base = trNewBase(func(int, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: pipe}, nil
		})
		resp, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
		if err != nil {
			t.Fatal(err)
		}
		conn, ok := resp.Body.(io.ReadWriteCloser)
		if !ok {
			t.Fatalf("%s: the body is a %T, want a writer too", name, resp.Body)
		}
		if _, err := io.WriteString(conn, "to the server"); err != nil || pipe.String() != "to the server" {
			t.Errorf("%s: wrote %q, %v; want to the server", name, pipe.String(), err)
		}
		if text, err := io.ReadAll(conn); string(text) != "from the server" || err != nil {
			t.Errorf("%s: read %q, %v; want from the server", name, text, err)
		}
		if err := conn.Close(); err != nil || pipe.closed != 1 {
			t.Errorf("%s: closed %d times, %v; want once", name, pipe.closed, err)
		}
	}
}

var totalTokens = &answers.Profile{Charges: []answers.Charge{{Unit: "tokens", Field: answers.Field{Path: "usage.total_tokens"}}}}

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
			want, receives := int64(500), throttle.Cost{}
			if name == "unsent" {
				want, receives = 0, throttle.Cost{"tokens": 0}
			}
			if len(reported) != 1 || reported[0] == nil || !maps.Equal(reported[0], receives) {
				t.Errorf("received %v, want %v once", reported, receives)
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

// readsBodies is a profile for which the Transport reads the beginning of each body.
var readsBodies = &answers.Profile{Quotas: []answers.Quota{{Remaining: answers.Field{Path: "left"}}}}

// A trickle is an endless body that returns one byte per interval.
type trickle struct {
	every  time.Duration
	closed chan struct{}
}

func (b trickle) Read(p []byte) (int, error) {
	select {
	case <-time.After(b.every):
		return copy(p, " "), nil
	case <-b.closed:
		return 0, io.ErrClosedPipe
	}
}

func (b trickle) Close() error { close(b.closed); return nil }

// TestPeekIsBounded checks that reading the beginning of a body takes a bounded time, however slow
// the server is, and that the caller reads all of the body.
func TestPeekIsBounded(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, 300 * time.Millisecond, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(5)}}, nil)
			tr := &throttle.Transport{Limiter: l, Profile: readsBodies, Base: roundTripper(func(*http.Request) (*http.Response, error) {
				resp := trAnswer(200, "Content-Type", "application/json")
				resp.Body = trickle{every, make(chan struct{})}
				return resp, nil
			})}
			began := time.Now()
			resp, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
			if took := time.Since(began); err != nil || took > 2*time.Second {
				t.Errorf("a byte every %v: RoundTrip: %v after %v, want nil by 2s", every, err, took)
			}
			if n, err := io.ReadFull(resp.Body, make([]byte, 100)); n != 100 || err != nil {
				t.Errorf("a byte every %v: read %d bytes, %v; want 100", every, n, err)
			}
			if took := time.Since(began); took > 100*every+2*time.Second {
				t.Errorf("a byte every %v: 100 bytes were read after %v", every, took)
			}
			resp.Body.Close()
		})
	}
}

// A panicBody panics when it is read.
type panicBody struct{ closed *int }

func (panicBody) Read([]byte) (int, error) { panic("body") }
func (b panicBody) Close() error           { *b.closed++; return nil }

// TestPeekOfABodyThatPanics checks that the panic of a body occurs in the goroutine of RoundTrip or
// of the reader, which can recover it.
func TestPeekOfABodyThatPanics(t *testing.T) {
	l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}}, nil)
	closed := 0
	tr := &throttle.Transport{Limiter: l, Profile: readsBodies, Base: roundTripper(func(*http.Request) (*http.Response, error) {
		resp := trAnswer(200, "Content-Type", "application/json")
		resp.Body = panicBody{&closed}
		return resp, nil
	})}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic, want one")
			}
		}()
		resp, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		_, _ = io.ReadAll(resp.Body)
	}()
	if got := used(t, l)[0]; got != 0 {
		t.Errorf("%d requests are open, want 0", got)
	}
}

// TestPanics checks that a panic of a Transport's function leaves nothing open or charged, and that
// other requests are still admitted.
func TestPanics(t *testing.T) {
	boom := func() { panic("boom") }
	for name, make := range map[string]func(*throttle.Transport){
		"Cost":   func(tr *throttle.Transport) { tr.Cost = func(*http.Request) throttle.Cost { boom(); return nil } },
		"Route":  func(tr *throttle.Transport) { tr.Route = func(*http.Request) *throttle.Limiter { boom(); return nil } },
		"SendBy": func(tr *throttle.Transport) { tr.SendBy = func(*http.Request) time.Time { boom(); return time.Time{} } },
		"Meter":  func(tr *throttle.Transport) { tr.Meter = func(*http.Response) throttle.Meter { boom(); return nil } },
		"Base": func(tr *throttle.Transport) {
			tr.Base = roundTripper(func(r *http.Request) (*http.Response, error) { r.Body.Close(); boom(); return nil, nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{
					{Limit: 1, Algorithm: throttle.Concurrency},
					{Limit: 1000, Window: time.Hour, Unit: "tokens", Estimated: true},
				}}
				l := mustNew(t, policy, nil)
				answered := &trBody{Reader: strings.NewReader("answer")}
				tr := &throttle.Transport{Limiter: l, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
					r.Body.Close()
					resp := trAnswer(200)
					resp.Body = answered
					return resp, nil
				})}
				make(tr)
				body := &trBody{Reader: strings.NewReader("question")}
				req, _ := http.NewRequest("POST", trURL, body)
				func() {
					defer func() {
						if recover() == nil {
							t.Error("no panic, want one")
						}
					}()
					_, _ = tr.RoundTrip(req)
				}()
				if n := body.closed.Load(); n != 1 {
					t.Errorf("the request's body was closed %d times, want 1", n)
				}
				if n := answered.closed.Load(); name == "Meter" && n != 1 {
					t.Errorf("the response's body was closed %d times, want 1", n)
				}
				acquire(t, l, nil).Release()
			})
		})
	}
}

// TestAlertPanics checks that a panic of Alert sends and charges nothing, also if the Alert is an
// outer scope's, and that other callers are still admitted.
func TestAlertPanics(t *testing.T) {
	for _, nested := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := throttle.Policy{
				Name: "money", Tiers: []throttle.Tier{throttle.PerSecond(1), throttle.Budget(10, "cents", throttle.Month), {Limit: 1, Algorithm: throttle.Concurrency}},
				AlertAt: []int{30}, Alert: func(throttle.Alert) { panic("alert") },
			}
			l := mustNew(t, p, nil)
			if nested {
				l = mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil).Within(l)
			}
			panics := 0
			for range 6 {
				func() {
					defer func() {
						if recover() != nil {
							panics++
						}
					}()
					p, err := l.Acquire(t.Context(), throttle.Cost{"cents": 1})
					if err != nil {
						t.Errorf("nested: %v: Acquire: %v", nested, err)
					}
					p.Arrived()
					p.Release()
				}()
			}
			if panics != 1 {
				t.Errorf("nested: %v: %d panics, want 1", nested, panics)
			}
			s := status(t, l)
			if n := len(s.Tiers); s.Tiers[n-2].Used != 5 || s.Tiers[n-1].Used != 0 || s.Waiting != 0 {
				t.Errorf("nested: %v: status %v, want 5 cents used, none open, none waiting", nested, s)
			}
		})
	}
}

// TestUpgradeKeepsHalfClose checks that the body of a 101 response is still a connection whose
// writing side can be closed.
func TestUpgradeKeepsHalfClose(t *testing.T) {
	for name, p := range map[string]throttle.Policy{
		"plain":       {Tiers: []throttle.Tier{throttle.PerSecond(100)}},
		"concurrency": {Tiers: []throttle.Tier{{Limit: 5, Algorithm: throttle.Concurrency}}},
		"estimated":   {Tiers: []throttle.Tier{{Limit: 5, Window: time.Hour, Unit: "tokens", Estimated: true}, throttle.PerSecond(100)}},
	} {
		t.Run(name, func(t *testing.T) {
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, rw, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				all, err := io.ReadAll(rw) // until the half-close
				_, _ = conn.Write(bytes.ToUpper(all))
				if err != nil {
					t.Errorf("the backend reads %q, %v", all, err)
				}
			}))
			defer backend.Close()
			target, _ := url.Parse(backend.URL)
			base := new(http.Transport)
			defer base.CloseIdleConnections()
			proxy := httptest.NewServer(&httputil.ReverseProxy{
				Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
				Transport: &throttle.Transport{Limiter: mustNew(t, p, nil), Base: base, AttemptTimeout: time.Minute},
			})
			defer proxy.Close()
			conn, err := net.Dial("tcp", proxy.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, nil)
			if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
				t.Fatal(resp, err)
			}
			_, _ = io.WriteString(conn, "hello")
			_ = conn.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(r); string(got) != "HELLO" || err != nil {
				t.Errorf("after the half-close: %q, %v; want HELLO", got, err)
			}
		})
	}
}

// TestCostOfTheEmptyUnit checks that the unit "" of a Cost is requests, as in a Tier.
func TestCostOfTheEmptyUnit(t *testing.T) {
	l := mustNew(t, exact(throttle.PerHour(5)), nil)
	p, err := l.Acquire(context.Background(), throttle.Cost{"requests": 3})
	if err != nil {
		t.Fatal(err)
	}
	p.Release()
	if got := used(t, l)[0]; got != 3 {
		t.Errorf("%d used, want 3", got)
	}
	if _, err := l.Acquire(context.Background(), throttle.Cost{"requests": 6}); !errors.Is(err, throttle.ErrExceedsCapacity) {
		t.Error(err)
	}
}

// TestBodyOfEndedContext checks that a body that nobody closes ends its attempt when the context of the
// request or AttemptTimeout ends, once, and that an upgraded connection lasts until it is closed.
func TestBodyOfEndedContext(t *testing.T) {
	const step = 100 * time.Millisecond
	for _, c := range []struct {
		name    string
		timeout time.Duration // AttemptTimeout
		ends    time.Duration // of the context
		client  time.Duration // Timeout of an http.Client
		status  int
		reads   bool
		want    time.Duration // when the place is free; zero for never
	}{
		{name: "the context ends", ends: time.Second, status: 200, want: time.Second},
		{name: "AttemptTimeout", timeout: time.Second, status: 200, want: time.Second},
		{name: "both", timeout: 2 * time.Second, ends: time.Second, status: 200, want: time.Second},
		{name: "Client.Timeout", client: time.Second, status: 200, want: time.Second},
		{name: "neither", status: 200},
		{name: "an upgrade", timeout: time.Second, ends: time.Second, status: 101},
		{name: "a body that was read", ends: time.Second, status: 200, reads: true, want: step},
	} {
		synctest.Test(t, func(t *testing.T) {
			var settled []throttle.SettledInfo
			l := mustNew(t, throttle.Policy{
				Tiers: []throttle.Tier{
					{Limit: 1, Algorithm: throttle.Concurrency},
					{Limit: 100, Window: time.Hour, Unit: "tokens", Estimated: true},
				},
				Observer: &throttle.Observer{Settled: func(i throttle.SettledInfo) { settled = append(settled, i) }},
			}, nil)
			base := roundTripper(func(*http.Request) (*http.Response, error) { return trAnswer(c.status), nil })
			tr := &throttle.Transport{
				Base: base, Limiter: l, AttemptTimeout: c.timeout,
				Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 5} },
			}
			ctx := context.Background()
			if c.ends > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.ends)
				defer cancel()
			}
			req, _ := http.NewRequestWithContext(ctx, "GET", trURL, nil)
			resp, err := (&http.Client{Transport: tr, Timeout: c.client}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if c.reads {
				_, _ = io.Copy(io.Discard, resp.Body)
			}
			began, free := time.Now(), time.Duration(0)
			for free == 0 && time.Since(began) < 10*time.Minute {
				time.Sleep(step)
				synctest.Wait()
				if s := status(t, l); s.Tiers[0].Used == 0 && s.Tiers[1].InFlight == 0 {
					free = time.Since(began)
				}
			}
			if free != c.want {
				t.Errorf("%s: the place and the estimate were held for %v, want %v", c.name, free, c.want)
			}
			resp.Body.Close()
			if s := status(t, l); s.Tiers[0].Used != 0 || s.Tiers[1].Used != 5 || len(settled) != 1 {
				t.Errorf("%s: after Close: %v, settled %v; want the estimate settled once", c.name, s, settled)
			}
		})
	}
}

// TestUpgradeOutlivesContext checks that a connection that net/http has upgraded works, and occupies its
// place, until it is closed, although the context of its request has ended.
func TestUpgradeOutlivesContext(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, conn)
	}))
	defer server.Close()
	l := mustNew(t, trAtOnce(1), nil)
	base := new(http.Transport)
	defer base.CloseIdleConnections()
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := (&throttle.Transport{Base: base, Limiter: l, AttemptTimeout: time.Hour}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for range 5 {
		b := make([]byte, 5)
		if _, err := resp.Body.(io.Writer).Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "hello" {
			t.Fatalf("read %q, %v", b, err)
		}
		if got := used(t, l); !slices.Equal(got, []int64{1}) {
			t.Errorf("%v used while the connection is open, want 1", got)
		}
	}
	resp.Body.Close()
	if got := used(t, l); !slices.Equal(got, []int64{0}) {
		t.Errorf("%v used after Close, want 0", got)
	}
}

// TestBodyEndsOnce checks that the end of a context, a Read and a Close at one moment end the attempt
// once, and that no callback is called under a lock: each closes the body itself.
func TestBodyEndsOnce(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			var resp *http.Response
			settled, costs := make(chan struct{}, 9), make(chan struct{}, 9)
			l := mustNew(t, throttle.Policy{
				Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}, {Limit: 100, Window: time.Hour, Unit: "tokens", Estimated: true}},
				Observer: &throttle.Observer{Settled: func(throttle.SettledInfo) {
					resp.Body.Close()
					settled <- struct{}{}
				}},
			}, nil)
			tr := &throttle.Transport{
				Base: trNewBase(nil), Limiter: l,
				Cost:  func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 5} },
				Meter: func(*http.Response) throttle.Meter { return new(length) },
				Settle: func(*http.Request) func(throttle.Cost) throttle.Cost {
					return func(c throttle.Cost) throttle.Cost {
						resp.Body.Close()
						costs <- struct{}{}
						return c
					}
				},
			}
			ctx, cancel := context.WithCancel(context.Background())
			req, _ := http.NewRequestWithContext(ctx, "GET", trURL, nil)
			var err error
			if resp, err = tr.RoundTrip(req); err != nil {
				t.Fatal(err)
			}
			go cancel()
			go func() { _, _ = io.Copy(io.Discard, resp.Body) }()
			go resp.Body.Close()
			synctest.Wait()
			if s := status(t, l); s.Tiers[0].Used != 0 || s.Tiers[1].InFlight != 0 || len(settled) != 1 || len(costs) != 1 {
				t.Errorf("%v, %d settlements, %d costs", s, len(settled), len(costs))
			}
		})
	}
}

// TestPeekedBodyAfterClose checks that a body whose beginning was read ahead has no more data once it is
// closed.
func TestPeekedBodyAfterClose(t *testing.T) {
	tr := &throttle.Transport{Limiter: mustNew(t, trAtOnce(1), nil), Profile: readsBodies,
		Base: roundTripper(func(*http.Request) (*http.Response, error) {
			resp := trAnswer(200, "Content-Type", "application/json")
			resp.Body = &closableBody{Reader: strings.NewReader("answer")}
			return resp, nil
		})}
	req, _ := http.NewRequest("GET", trURL, nil)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2)
	if n, err := resp.Body.Read(b); n != 2 || err != nil {
		t.Fatalf("Read: %d, %v", n, err)
	}
	resp.Body.Close()
	if n, err := resp.Body.Read(b); n != 0 || err != errBodyClosed {
		t.Errorf("Read after Close: %d bytes, %v; want %v", n, err, errBodyClosed)
	}
}

var errBodyClosed = errors.New("the body is closed")

// A closableBody fails once it is closed.
type closableBody struct {
	io.Reader
	closed bool
}

func (b *closableBody) Read(p []byte) (int, error) {
	if b.closed {
		return 0, errBodyClosed
	}
	return b.Reader.Read(p)
}

func (b *closableBody) Close() error { b.closed = true; return nil }
