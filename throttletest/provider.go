// Package throttletest provides a strict API provider for tests, like net/http/httptest. It counts
// requests by its tiers, refuses the excess with status 429, and records all requests.
//
//	api := throttletest.NewProvider(algorithms.PerSecond(5), algorithms.PerHour(10000))
//	defer api.Close()
//	... send through the client under test to api.URL ...
//	if n := api.Summary().Refused; n != 0 { t.Errorf("the provider refused %d", n) }
//
// [NewProvider] listens on a local socket. [New] returns the same provider in memory, as an
// [http.RoundTripper]. Inside testing/synctest a run of hours then takes milliseconds, and is the
// same to the microsecond each time. [Counter] is the counting alone, without time or HTTP.
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

// A Provider is an API with limits. A [Counter] with the Provider's tiers counts each request at
// one instant. The answer to an accepted request is status 200 and {"ok":true}. The answer to a
// refused request is Status, a JSON error and the headers that Header sets. A refusal is charged to
// no tier.
//
// Create a Provider with [NewProvider] or [New], and set the fields before the first request. Its
// clock starts at the wall time of its creation and never runs backward. Create a Provider for a
// synctest bubble inside the bubble. Requests block for Delay and Hold, but no longer than their
// context allows. A Provider is safe for concurrent use.
type Provider struct {
	// URL is the base URL of the server of NewProvider, such as "http://127.0.0.1:41001". It is
	// empty after New.
	URL string

	// Status is the status of a refusal. If zero, 429.
	Status int
	// Header sets in h how long the client must wait. If nil, RetryAfterSeconds.
	Header func(h http.Header, r Refusal)
	// Penalty is the Wait of each Refusal. If zero, the actual wait.
	Penalty time.Duration
	// Delay returns how long a request takes to reach the counter. It is called concurrently. If
	// nil, no time.
	Delay func() time.Duration
	// Hold returns the time between counting a request and answering it. It is called concurrently.
	// If nil, no time.
	Hold func() time.Duration
	// Cost returns the units of a request by name: see Counter. It may read the body. It is called
	// concurrently. If nil, one request.
	Cost func(*http.Request) map[string]int64

	server *httptest.Server // nil after New
	start  time.Time        // origin of the clock: wall time and monotonic reading

	// mu guards the fields below. It also makes the order of the clock the order of the counter.
	mu       sync.Mutex
	counter  *Counter
	arrivals []Arrival
}

var (
	_ http.Handler      = (*Provider)(nil)
	_ http.RoundTripper = (*Provider)(nil)
)

// An Arrival is a request that reached the counter.
type Arrival struct {
	// At is when the request was counted, in whole microseconds.
	At time.Time
	// Cost is the result of Provider.Cost. Do not modify it.
	Cost     map[string]int64
	Accepted bool
	// Tier is the index of the first tier that refused the request, or -1.
	Tier int
	// Path is the path of the request's URL.
	Path string
}

// A Refusal describes a refused request to a Header function.
type Refusal struct {
	// At is when the request was counted.
	At time.Time
	// Tier is the index of the first tier that refused the request.
	Tier int
	// Wait is the time until the counter would admit the request, or Penalty. It is zero if waiting
	// does not help, because too many units are in flight or the cost exceeds a limit.
	Wait time.Duration
}

// A Summary counts the requests that reached the counter.
type Summary struct {
	// Sent is Accepted + Refused.
	Sent     int64
	Accepted int64
	Refused  int64
	// WorstSecond is the most units of "requests" accepted within any second.
	WorstSecond int64
}

// New returns a Provider without a server, for use as an [http.RoundTripper] or [http.Handler]. It
// panics if a tier is invalid.
func New(tiers ...algorithms.Tier) *Provider {
	c, err := NewCounter(tiers...)
	if err != nil {
		panic(err.Error())
	}
	return &Provider{counter: c, start: time.Now()}
}

// NewProvider returns a Provider that listens on a local socket, at its URL. Call Close when done.
// NewProvider panics if a tier is invalid or no socket is available.
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

// Client returns a client for requests to the Provider, without a limiter. After New, each of its
// requests goes to the Provider, whatever its URL.
func (p *Provider) Client() *http.Client {
	if p.server != nil {
		return p.server.Client()
	}
	return &http.Client{Transport: p}
}

// Arrivals returns all requests that reached the counter, in the order in which they were counted.
func (p *Provider) Arrivals() []Arrival {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.arrivals)
}

// Summary returns the counts so far.
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

// ServeHTTP answers r after Delay and Hold. It releases Concurrency before it sends the first byte
// of the answer. A client that has the answer may therefore send its next request. If the client
// goes away before the answer, ServeHTTP aborts as [http.ErrAbortHandler] does.
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

// RoundTrip answers r in memory after Delay and Hold. It reads the request's body to the end and
// closes it. It releases Concurrency when the response's body is read to the end or closed. The
// error is the error of the context or of reading the body. A request that is canceled before it
// was counted is not in Arrivals.
func (p *Provider) RoundTrip(r *http.Request) (*http.Response, error) {
	a, err := p.serve(r)
	if err != nil {
		return nil, err
	}
	return httpmem.Response(r, a.status, a.header, a.body, a.release), nil
}

type answer struct {
	status int
	header http.Header
	body   string
	// release releases the cost in Concurrency tiers, at the first call.
	release func()
}

// serve processes a request from its receipt to its answer, for ServeHTTP and RoundTrip.
func (p *Provider) serve(r *http.Request) (*answer, error) {
	var cost map[string]int64
	if p.Cost != nil {
		cost = maps.Clone(p.Cost(r))
	}
	if err := drain(r.Body); err != nil {
		return nil, err
	}
	if err := httpmem.Sleep(r.Context(), p.Delay); err != nil {
		return nil, err // the request was not counted
	}
	a := p.count(r.URL.Path, cost)
	if err := httpmem.Sleep(r.Context(), p.Hold); err != nil {
		a.release() // the request stays counted, but is no longer in flight
		return nil, err
	}
	return a, nil
}

// count counts a request and decides about it.
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

// RetryAfterSeconds sets Retry-After to whole seconds, rounded up, as most providers do. This
// function and the following ones are values for Provider.Header. They set no Retry-After if the
// Refusal has no Wait.
func RetryAfterSeconds(h http.Header, r Refusal) {
	if r.Wait > 0 {
		h.Set("Retry-After", strconv.FormatInt(roundUp(r.Wait, time.Second), 10))
	}
}

// RetryAfterDecimal sets Retry-After to seconds with three decimals, rounded up, such as "1.250".
// RFC 9110 does not allow this, but some providers do it.
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

// NoRetryAfter sets no header.
func NoRetryAfter(http.Header, Refusal) {}

// roundUp returns d in units, rounded up.
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
