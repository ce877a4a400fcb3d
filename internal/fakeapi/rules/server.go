package rules

import (
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/httpmem"
)

// A Server is a stand-in of an API. It counts each request when it arrives, by the clock of the
// process, or of a synctest bubble. Create it with NewServer.
type Server struct {
	// Only is the id of the only limit that refuses. If empty, all limits do.
	Only string

	api  *API
	seed uint64
	// patient is true if refused requests are not sent: see Possible.
	patient bool

	// mu guards the fields below.
	mu     sync.Mutex
	random map[string]*rand.Rand // by worker
	meters map[string]meter
	sent   int
	seen   []Arrival
}

// An Arrival is a request that reached the API.
type Arrival struct {
	At       time.Time
	Request  string // method, host and path
	Worker   string
	Refused  *Limit           // nil if accepted
	Left     int64            // what the refusing limit had left
	Asked    int64            // what the request needed of it
	Answered string           // the body of a refusal
	Charged  map[string]int64 // by limit
}

// NewServer returns a stand-in. Seed draws its delays.
func NewServer(a *API, seed uint64) *Server {
	return &Server{
		api: a, seed: seed, random: map[string]*rand.Rand{},
		meters: map[string]meter{},
	}
}

// Worker is the header by which a test tells its workers apart.
const Worker = "X-Test-Worker"

// Delivery and processing of a request take times between these bounds.
var (
	Delivery = [2]time.Duration{20 * time.Millisecond, 200 * time.Millisecond}
	Service  = [2]time.Duration{10 * time.Millisecond, 50 * time.Millisecond}
)

// draw returns a delay. Each worker has its own sequence of delays, so that a run in a synctest
// bubble does not depend on the order in which goroutines run.
func (s *Server) draw(worker string, bounds [2]time.Duration) func() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	random, ok := s.random[worker]
	if !ok {
		n, _ := strconv.ParseUint(worker, 10, 64)
		random = rand.New(rand.NewPCG(s.seed, n))
		s.random[worker] = random
	}
	d := bounds[0] + time.Duration(random.Int64N(int64(bounds[1]-bounds[0])))
	return func() time.Duration { return d }
}

// Arrivals returns the requests so far.
func (s *Server) Arrivals() []Arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// RoundTrip answers a request in memory.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body.Close()
	}
	if err := httpmem.Sleep(r.Context(), s.draw(r.Header.Get(Worker), Delivery)); err != nil {
		return nil, err
	}
	a := s.judge(r, body, time.Now().UnixMicro())
	if a.refused == nil {
		err := httpmem.Sleep(r.Context(), s.draw(r.Header.Get(Worker), Service))
		s.settle(a, time.Now().UnixMicro())
		if err != nil {
			return nil, err
		}
	}
	status, header, text := s.respond(a)
	return httpmem.Response(r, status, header, text, func() {}), nil
}

// ServeHTTP answers a request, as RoundTrip does.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = r.Clone(r.Context())
	r.URL.Host = r.Host
	response, err := s.RoundTrip(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	io.Copy(w, response.Body)
}

// An answer is a judged request.
type answer struct {
	*request
	now     int64
	counted []counted
	refused *Limit // nil if accepted
	by      int    // index of the refusing limit in counted
	wait    time.Duration
	seen    int // index in Server.seen
}

// counted is a limit that counts a request.
type counted struct {
	*Limit
	meter
	cost    int64 // what must be free
	charged int64 // what it was charged so far
}

func (s *Server) judge(r *http.Request, body []byte, now int64) *answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	a := &answer{request: newRequest(s.api, r, body, s.sent), now: now}
	for _, l := range s.api.Limits {
		pattern, ok := l.fits(a.request)
		if !ok {
			continue
		}
		key := l.ID
		for _, selector := range l.Key {
			if selector == "route" {
				key += "\x00" + pattern
			} else {
				key += "\x00" + a.value(selector)
			}
		}
		m, ok := s.meters[key]
		if !ok {
			m = newMeter(l)
			s.meters[key] = m
		}
		a.counted = append(a.counted, counted{l, m, a.cost(l), 0})
	}
	seen := Arrival{
		At: time.UnixMicro(a.now), Request: r.Method + " " + r.URL.Host + r.URL.Path,
		Worker: r.Header.Get(Worker), Charged: map[string]int64{},
	}
	for i, c := range a.counted {
		need := c.cost
		if c.Debt {
			need = min(1, need)
		}
		if c.admits(a.now, need) || s.Only != "" && c.ID != s.Only {
			continue
		}
		a.refused, a.by, a.wait = c.Limit, i, time.Second
		if at, ok := c.earliest(a.now, need); ok {
			a.wait = time.Duration(at-a.now) * time.Microsecond
		}
		seen.Refused, seen.Left, seen.Asked = c.Limit, c.left(a.now), need
		break
	}
	if a.refused == nil {
		for i, c := range a.counted {
			if n := c.cost; n > 0 && !c.Debt {
				c.take(a.now, n)
				a.counted[i].charged = n
			}
			seen.Charged[c.ID] = a.settled(c)
		}
	}
	for _, c := range a.counted {
		if a.refused != nil && c.CountsRefused && !s.patient {
			c.take(a.now, c.cost)
		}
	}
	a.seen = len(s.seen)
	s.seen = append(s.seen, seen)
	return a
}

// settled returns what a limit charges in the end.
func (r *request) settled(c counted) int64 {
	if c.Settled != "" {
		return r.amount(c.Settled)
	}
	return c.cost
}

// settle charges what an answered request really cost, and ends it in limits of concurrency.
func (s *Server) settle(a *answer, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.now = now
	for _, c := range a.counted {
		if c.tier.Algorithm == algorithms.Concurrency {
			c.meter.settle(a.now, -c.charged)
		} else if rest := a.settled(c) - c.charged; rest != 0 {
			c.meter.settle(a.now, rest)
		}
	}
}

// respond returns the response to a request, by the present counts.
func (s *Server) respond(a *answer) (status int, header http.Header, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var r *Response
	if a.refused != nil {
		r = &a.refused.Refusal
	} else {
		for _, candidate := range s.api.Answers {
			if _, ok := candidate.fits(a.request); ok {
				r = candidate
				break
			}
		}
	}
	if r == nil {
		return http.StatusOK, http.Header{"Content-Type": {"application/json"}}, "{}"
	}
	f := s.api.Known[r.Like]
	header = http.Header{}
	for name, value := range f.Headers {
		if template, ok := r.Headers[name]; ok {
			if value, ok = a.fill(template); !ok {
				continue
			}
		} else if http.CanonicalHeaderKey(name) == "Date" {
			value = time.Now().UTC().Format(http.TimeFormat)
		}
		header.Set(name, value)
	}
	body = f.Body
	for old, template := range r.Body {
		if text, ok := a.fill(template); ok {
			body = strings.ReplaceAll(body, old, text)
		}
	}
	if a.refused != nil {
		s.seen[a.seen].Answered = body
	}
	return f.Status, header, body
}

var _ http.RoundTripper = (*Server)(nil)
var _ http.Handler = (*Server)(nil)

// Arrive judges a request that arrives now, and returns the response if it is refused.
func (s *Server) Arrive(r *http.Request) (response *http.Response, body string, refused bool) {
	var sent []byte
	if r.Body != nil {
		sent, _ = io.ReadAll(r.Body)
	}
	a := s.judge(r, sent, time.Now().UnixMicro())
	if a.refused == nil {
		return nil, "", false
	}
	status, header, body := s.respond(a)
	return httpmem.Response(r, status, header, body, func() {}), body, true
}

// AnswerOf returns the index of the answer to an accepted request, or -1.
func (s *Server) AnswerOf(r *http.Request) int {
	q := snapshot(s.api, r)
	return slices.IndexFunc(s.api.Answers, func(candidate *Response) bool {
		_, ok := candidate.fits(q)
		return ok
	})
}

// Counts reports whether a limit counts a request.
func Counts(a *API, l *Limit, r *http.Request) bool {
	q := snapshot(a, r)
	if _, ok := l.fits(q); !ok {
		return false
	}
	return q.cost(l) > 0
}

// snapshot returns a request without consuming its body.
func snapshot(a *API, r *http.Request) *request {
	var sent []byte
	if r.GetBody != nil {
		if body, err := r.GetBody(); err == nil {
			sent, _ = io.ReadAll(body)
		}
	}
	return newRequest(a, r, sent, 0)
}
