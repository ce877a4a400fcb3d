// Package throttletest is a strict provider to test against, like
// net/http/httptest: it counts what arrives as its tiers say, refuses the rest
// with status 429, and remembers all of it.
//
//	api := throttletest.NewProvider(algorithms.PerSecond(5), algorithms.PerHour(10000))
//	defer api.Close()
//	... send through the client under test to api.URL ...
//	if n := api.Summary().Refused; n != 0 { t.Errorf("the provider refused %d", n) }
//
// [NewProvider] listens on a local socket. [New] gives the same provider in
// memory, as an [http.RoundTripper]: inside testing/synctest a run of hours
// takes milliseconds, to the microsecond the same each time. [Counter] is the
// counting alone, without time or HTTP.
package throttletest

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/httpmem"
)

// A Provider is an API with limits. Each request is counted at one instant by a
// [Counter] with the Provider's tiers. What it accepts is answered with status
// 200 and {"ok":true}, what it refuses with Status, a JSON error and the headers
// that Header sets; a refusal is charged to no tier.
//
// Use [NewProvider] or [New], and set the fields before the first request. Its
// clock is the wall clock of its making plus the time since: it never runs
// backwards, and a Provider for a synctest bubble must be made inside it.
// Requests block for Delay and Hold, and no longer than their context allows.
// A Provider is safe for concurrent use.
type Provider struct {
	URL string // where the server of NewProvider listens, such as "http://127.0.0.1:41001"; empty after New

	Status  int                                  // of a refusal. If zero, 429
	Header  func(h http.Header, r Refusal)       // says in h how long to wait. If nil, RetryAfterSeconds
	Penalty time.Duration                        // the Wait of each Refusal. If zero, the true one
	Delay   func() time.Duration                 // how late a request reaches the counter; called concurrently. If nil, at once
	Hold    func() time.Duration                 // from counting to answering; called concurrently. If nil, none
	Cost    func(*http.Request) map[string]int64 // units by name, see Counter; may read the body; called concurrently. If nil, one request

	server *httptest.Server // nil after New
	start  time.Time        // origin of the clock: wall time and monotonic reading

	mu       sync.Mutex // guards what follows, and makes the clock's order the counter's
	counter  *Counter
	arrivals []Arrival
}

var (
	_ http.Handler      = (*Provider)(nil)
	_ http.RoundTripper = (*Provider)(nil)
)

// An Arrival is a request as the counter saw it.
type Arrival struct {
	At       time.Time        // when it was counted, in whole microseconds
	Cost     map[string]int64 // as the Cost field returned it; do not change it
	Accepted bool
	Tier     int    // index of the first tier that refused it, or -1
	Path     string // of its URL
}

// A Refusal is what a Header function knows.
type Refusal struct {
	At   time.Time     // when the request was counted
	Tier int           // index of the first tier that refused it
	Wait time.Duration // until the counter would admit it, or Penalty. Zero when waiting alone will not do: too much in flight, or a cost above the limit
}

// A Summary counts the requests that reached the counter.
type Summary struct {
	Sent        int64 // Accepted + Refused
	Accepted    int64 // requests
	Refused     int64 // requests
	WorstSecond int64 // the most units of "requests" accepted within any second
}

// New returns a Provider without a server, to be used as an [http.RoundTripper]
// or [http.Handler]. It panics when a tier is invalid.
func New(tiers ...algorithms.Tier) *Provider {
	c, err := NewCounter(tiers...)
	if err != nil {
		panic(err.Error())
	}
	return &Provider{counter: c, start: time.Now()}
}

// NewProvider returns a Provider that listens on a local socket, at its URL.
// The caller should call Close when done. It panics when a tier is invalid or
// no socket can be had.
func NewProvider(tiers ...algorithms.Tier) *Provider {
	p := New(tiers...)
	p.server = httptest.NewServer(p)
	p.URL = p.server.URL
	return p
}

// Close stops the server, if there is one, and blocks until its requests have ended.
func (p *Provider) Close() {
	if p.server != nil {
		p.server.Close()
	}
}

// Client returns a client for requests to the Provider, one without any limiter.
// After New each of its requests goes to the Provider, whatever the URL.
func (p *Provider) Client() *http.Client {
	if p.server != nil {
		return p.server.Client()
	}
	return &http.Client{Transport: p}
}

// Arrivals returns all requests that reached the counter, in the order counted.
func (p *Provider) Arrivals() []Arrival {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.arrivals)
}

// Summary returns what has been counted so far.
func (p *Provider) Summary() Summary {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Summary{Sent: int64(len(p.arrivals)), WorstSecond: p.counter.WorstRolling(time.Second)}
	for _, a := range p.arrivals {
		if a.Accepted {
			s.Accepted++
		}
	}
	s.Refused = s.Sent - s.Accepted
	return s
}

// WorstRolling returns the most units of "requests" accepted in any half-open
// interval of length window.
func (p *Provider) WorstRolling(window time.Duration) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counter.WorstRolling(window)
}

// ServeHTTP answers r after Delay and Hold. Concurrency is released before the
// first byte of the answer leaves, so whoever has the answer may send the next.
// When the client goes away first, the answer is aborted as
// [http.ErrAbortHandler] does.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, err := p.serve(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	a.release()
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	io.WriteString(w, a.body)
}

// RoundTrip answers r in memory after Delay and Hold. It reads the request's
// body to the end and closes it. Concurrency is released when the response's
// body is read to the end or closed. The error is the context's, or that of
// reading the body; a request given up before it was counted is not in Arrivals.
func (p *Provider) RoundTrip(r *http.Request) (*http.Response, error) {
	a, err := p.serve(r)
	if err != nil {
		return nil, err
	}
	return httpmem.Response(r, a.status, a.header, a.body, a.release), nil
}

type answer struct {
	status  int
	header  http.Header
	body    string
	release func() // ends what Concurrency counts; once, however often it is called
}

// serve takes a request from its receipt to its answer, for server and RoundTrip alike.
func (p *Provider) serve(r *http.Request) (*answer, error) {
	var cost map[string]int64
	if p.Cost != nil {
		cost = maps.Clone(p.Cost(r))
	}
	if err := drain(r.Body); err != nil {
		return nil, err
	}
	if err := httpmem.Sleep(r.Context(), p.Delay); err != nil {
		return nil, err // it never reached the counter
	}
	a := p.count(r.URL.Path, cost)
	if err := httpmem.Sleep(r.Context(), p.Hold); err != nil {
		a.release() // it stays counted, but its place in flight is free
		return nil, err
	}
	return a, nil
}

// count is the one place that decides.
func (p *Provider) count(path string, cost map[string]int64) *answer {
	p.mu.Lock()
	now := p.start.UnixMicro() + time.Since(p.start).Microseconds()
	at := time.UnixMicro(now)
	tier := p.counter.arrive(now, cost)
	wait := p.Penalty
	if tier >= 0 && wait == 0 {
		if next, ok := p.counter.Earliest(now, cost); ok {
			wait = time.Duration(next-now) * time.Microsecond
		}
	}
	p.arrivals = append(p.arrivals, Arrival{At: at, Cost: cost, Accepted: tier < 0, Tier: tier, Path: path})
	p.mu.Unlock()

	header := http.Header{"Content-Type": {"application/json"}}
	if tier >= 0 {
		return p.refuse(header, Refusal{At: at, Tier: tier, Wait: wait})
	}
	release := sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.counter.Release(cost)
	})
	return &answer{http.StatusOK, header, `{"ok":true}`, release}
}

func (p *Provider) refuse(header http.Header, r Refusal) *answer {
	status, style := p.Status, p.Header
	if status == 0 {
		status = http.StatusTooManyRequests
	}
	if style == nil {
		style = RetryAfterSeconds
	}
	style(header, r)
	text := fmt.Sprintf(`{"error":"too many requests","tier":%d}`, r.Tier)
	return &answer{status, header, text, func() {}}
}

// RetryAfterSeconds sets Retry-After to whole seconds, rounded up, as most
// providers do. It is for Provider.Header, as are the others; each says nothing
// when the Refusal has no Wait.
func RetryAfterSeconds(h http.Header, r Refusal) {
	if r.Wait > 0 {
		h.Set("Retry-After", strconv.FormatInt(roundUp(r.Wait, time.Second), 10))
	}
}

// RetryAfterDecimal sets Retry-After to seconds with three decimals, rounded
// up, such as "1.250": outside RFC 9110, but in use.
func RetryAfterDecimal(h http.Header, r Refusal) {
	if ms := roundUp(r.Wait, time.Millisecond); ms > 0 {
		h.Set("Retry-After", fmt.Sprintf("%d.%03d", ms/1000, ms%1000))
	}
}

// RetryAfterDate sets Retry-After to an HTTP-date, rounded up to the second,
// and Date to the provider's time.
func RetryAfterDate(h http.Header, r Refusal) {
	h.Set("Date", r.At.UTC().Format(http.TimeFormat))
	if r.Wait > 0 {
		end := r.At.Add(r.Wait + time.Second - 1).Truncate(time.Second)
		h.Set("Retry-After", end.UTC().Format(http.TimeFormat))
	}
}

// NoRetryAfter says nothing, and leaves the client to guess.
func NoRetryAfter(http.Header, Refusal) {}

// roundUp returns d in whole units.
func roundUp(d, unit time.Duration) int64 { return int64((d + unit - 1) / unit) }

// drain reads a request's body to the end and closes it.
func drain(body io.ReadCloser) error {
	if body == nil {
		return nil
	}
	defer body.Close()
	_, err := io.Copy(io.Discard, body)
	return err
}
