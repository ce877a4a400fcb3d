package fakeapi

import (
	"cmp"
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
// process, or of a synctest bubble. Create it with New or NewServer, and set its fields before the
// first request. It is safe for concurrent use.
type Server struct {
	// Latency returns how long a request takes to reach the API. It is called concurrently. If nil, no
	// time.
	Latency func(*http.Request) time.Duration
	// Hold returns the time between the arrival of a request and its answer. It is called
	// concurrently. If nil, no time.
	Hold func(*http.Request) time.Duration
	// Skew is how far the API's clock is ahead of the local clock. If not zero, every response has a
	// Date. If zero, the clocks agree.
	Skew time.Duration
	// Output returns the output tokens of an answer whose request allows most. If nil, half of them
	// on average.
	Output func(most int64) int64
	// Only is the id of the only limit that refuses. If empty, all limits do.
	Only string

	api *API
	// patient is true if refused requests are not sent: see Possible.
	patient bool

	// mu guards the fields below.
	mu       sync.Mutex
	counters map[string]*counting
	traps    []Reply
	sent     int64
	seen     []Arrival
}

// Change replaces the tiers of limits while requests run, as New does before: the account gets another
// plan. The window and the kind stay the same, and what was counted still counts. Change panics if it cannot.
func (s *Server) Change(tiers ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.api.replace(tiers); err != nil {
		panic(err)
	}
	now := s.now()
	for _, c := range s.counters {
		if most := capacity(c.of.tier); c.meter != nil && most != c.most {
			used := c.most - c.left(now)
			c.most, c.meter = most, newMeter(c.of)
			c.take(now, min(used, most))
		}
	}
}

// A Reply is an answer of an API.
type Reply struct {
	// Status is the HTTP status. If zero, 200.
	Status int
	Header map[string]string
	Body   string
}

// An Arrival is a request that reached the API.
type Arrival struct {
	At       time.Time // by the API's clock
	Request  string    // method, host and path
	Worker   string
	Refused  *Limit           // nil if accepted
	Left     int64            // what the refusing limit had left
	Asked    int64            // what the request needed of it
	Answered string           // the body of a refusal
	Charged  map[string]int64 // by limit
}

// NewServer returns a stand-in.
func NewServer(a *API) *Server {
	return &Server{api: a, counters: map[string]*counting{}}
}

// Delivery and Service are the bounds of the times that requests take to reach an API under load, and
// that it takes to answer them.
var (
	Delivery = [2]time.Duration{20 * time.Millisecond, 200 * time.Millisecond}
	Service  = [2]time.Duration{10 * time.Millisecond, 50 * time.Millisecond}
)

// NewSlowServer returns a stand-in with the delays Delivery and Service.
func NewSlowServer(a *API) *Server {
	s := NewServer(a)
	s.Latency, s.Hold = Between(Delivery[0], Delivery[1]), Between(Service[0], Service[1])
	return s
}

// Worker is the header by which a test tells its workers apart.
const Worker = "X-Test-Worker"

// Between draws durations from low to high. Each worker has its own sequence, so that a run in a
// synctest bubble does not depend on the order in which goroutines run.
func Between(low, high time.Duration) func(*http.Request) time.Duration {
	var mu sync.Mutex
	workers := map[string]*rand.Rand{}
	return func(r *http.Request) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		worker := r.Header.Get(Worker)
		random, ok := workers[worker]
		if !ok {
			n, _ := strconv.ParseUint(worker, 10, 64)
			random = rand.New(rand.NewPCG(uint64(low), n))
			workers[worker] = random
		}
		return low + time.Duration(random.Int64N(int64(high-low+1)))
	}
}

// Trap makes r the answer to the next request, regardless of the limits. That request does not arrive:
// it is neither served nor refused.
func (s *Server) Trap(r Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traps = append(s.traps, r)
}

// Arrivals returns the requests so far.
func (s *Server) Arrivals() []Arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// Served returns the number of accepted requests.
func (s *Server) Served() (n int) {
	for _, a := range s.Arrivals() {
		if a.Refused == nil {
			n++
		}
	}
	return n
}

// Refused returns the number of refused requests, by limit.
func (s *Server) Refused() map[string]int {
	refused := map[string]int{}
	for _, a := range s.Arrivals() {
		if a.Refused != nil {
			refused[a.Refused.ID]++
		}
	}
	return refused
}

// RoundTrip answers a request in memory, regardless of its host. A request is in flight until the end
// of the response's body.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, header, end, err := s.serve(r)
	if err != nil {
		return nil, err
	}
	return httpmem.Response(r, reply.Status, header, reply.Body, end), nil
}

// ServeHTTP answers a request, which is in flight until the first byte of the answer. A client that
// has the answer may therefore send its next request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = r.Clone(r.Context())
	r.URL.Host = r.Host
	reply, header, end, err := s.serve(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	end()
	for name, values := range header {
		w.Header()[name] = values
	}
	w.WriteHeader(reply.Status)
	io.WriteString(w, reply.Body)
}

// serve processes a request from its receipt to its answer. The caller calls end at the end of the
// answer.
func (s *Server) serve(r *http.Request) (reply Reply, header http.Header, end func(), err error) {
	var body []byte
	if r.Body != nil {
		defer r.Body.Close()
		if body, err = io.ReadAll(r.Body); err != nil {
			return reply, nil, nil, err
		}
	}
	if err := wait(r, s.Latency); err != nil {
		return reply, nil, nil, err // the request did not arrive
	}
	if trap, ok := s.trap(); ok {
		return trap, trap.header(s.Skew), func() {}, wait(r, s.Hold)
	}
	a := s.judge(r, body, s.now())
	if s.api.Early {
		reply.Status, header = s.head(a)
	}
	end = sync.OnceFunc(func() { s.end(a, s.now()) })
	err = wait(r, s.Hold)
	s.settle(a, s.now())
	if err != nil {
		end()
		return reply, nil, nil, err
	}
	if !s.api.Early {
		reply.Status, header = s.head(a)
	}
	reply.Body = s.body(a)
	return reply, header, end, nil
}

func wait(r *http.Request, draw func(*http.Request) time.Duration) error {
	if draw == nil {
		return r.Context().Err()
	}
	return httpmem.Sleep(r.Context(), func() time.Duration { return draw(r) })
}

// now returns the time of the API's clock.
func (s *Server) now() int64 { return time.Now().Add(s.Skew).UnixMicro() }

func (s *Server) trap() (r Reply, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.traps) == 0 {
		return r, false
	}
	r, s.traps = s.traps[0], s.traps[1:]
	r.Status = cmp.Or(r.Status, http.StatusOK)
	return r, true
}

func (r Reply) header(skew time.Duration) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	if skew != 0 {
		h.Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
	}
	for name, value := range r.Header {
		h.Set(name, value)
	}
	return h
}

// An answer is a judged request.
type answer struct {
	*request
	counted  []counted
	refused  *Limit    // nil if accepted
	by       int       // index of the refusing limit in counted
	response *Response // if nil, an empty object
	wait     time.Duration
	seen     int // index in Server.seen
}

// counted is a limit that counts a request.
type counted struct {
	*Limit
	*counting
	cost    int64 // what must be free
	settled int64 // what it is charged in the end
	charged int64 // what it was charged so far
}

// A counting is a counter of a limit.
type counting struct {
	meter // nil if the limit counts nothing
	of    *Limit
	most  int64 // capacity of the meter
	// blocked and banned are the times until which the limit refuses everything.
	blocked, banned int64
	ban             time.Duration // the length of the next ban
}

func (s *Server) newRequest(r *http.Request, body []byte, now int64) *request {
	n := s.sent
	return &request{Request: r, api: s.api, body: body, now: now, output: func(most int64) int64 {
		if s.Output != nil {
			return s.Output(most)
		}
		return max(1, most/4+n*7919%max(1, most/2))
	}}
}

// count returns the limits that count a request.
func (s *Server) count(r *request) (all []counted) {
	for _, l := range s.api.Limits {
		pattern, ok := l.fits(r)
		if !ok {
			continue
		}
		key := l.ID
		for _, selector := range l.Key {
			if selector == "route" {
				key += "\x00" + pattern
			} else {
				key += "\x00" + r.value(selector)
			}
		}
		c, ok := s.counters[key]
		if !ok {
			c = &counting{of: l, most: capacity(l.tier)}
			if l.Above == "" {
				c.meter = newMeter(l)
			}
			s.counters[key] = c
		}
		cost, settled := r.cost(l)
		all = append(all, counted{Limit: l, counting: c, cost: cost, settled: settled})
	}
	return all
}

func (s *Server) judge(r *http.Request, body []byte, now int64) *answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	a := &answer{request: s.newRequest(r, body, now)}
	a.counted = s.count(a.request)
	seen := Arrival{
		At: time.UnixMicro(now), Request: r.Method + " " + r.URL.Host + r.URL.Path,
		Worker: r.Header.Get(Worker), Charged: map[string]int64{},
	}
	for i := range a.counted {
		c := &a.counted[i]
		if s.Only != "" && c.ID != s.Only {
			continue
		}
		if response, wait, left, need := c.judge(a.request); response != nil {
			a.refused, a.by, a.response, a.wait = c.Limit, i, response, wait
			seen.Refused, seen.Left, seen.Asked = c.Limit, left, need
			break
		}
	}
	for i := range a.counted {
		c := &a.counted[i]
		if c.meter == nil {
			continue
		}
		if a.refused == nil {
			if c.cost > 0 && !c.Debt {
				c.take(now, c.cost)
				c.charged = c.cost
			}
			seen.Charged[c.ID] = c.settled
		} else if c.Limit.Refused != "" && !s.patient {
			c.take(now, a.amount(strings.ReplaceAll(c.Limit.Refused, "cost", strconv.FormatInt(c.cost, 10))))
		}
	}
	if a.refused == nil {
		if i := s.api.answerOf(a.request); i >= 0 {
			a.response = s.api.Answers[i]
		}
	}
	a.seen = len(s.seen)
	s.seen = append(s.seen, seen)
	return a
}

// judge returns the response if the limit refuses a request, and the time until it would not. A
// refusal may block the limit, and a request to a blocked one may begin a ban.
func (c *counted) judge(r *request) (response *Response, wait time.Duration, left, need int64) {
	if c.Above != "" {
		if most := r.amount(c.Above); c.cost > most {
			return &c.Refusal, 0, most, c.cost
		}
		return nil, 0, 0, 0
	}
	if c.Ban != nil && r.now < c.blocked {
		c.ban = max(c.ban, c.Ban.first)
		c.banned, c.blocked = r.now+c.ban.Microseconds(), 0
		c.ban = min(2*c.ban, c.Ban.most)
	}
	if r.now < c.banned {
		return &c.Ban.Refusal, time.Duration(c.banned-r.now) * time.Microsecond, 0, c.cost
	}
	if need = c.cost; c.Debt {
		need = min(1, need)
	}
	if c.admits(r.now, need) && r.now >= c.blocked {
		return nil, 0, 0, 0
	}
	wait = time.Second
	if at, ok := c.earliest(r.now, need); ok {
		wait = time.Duration(at-r.now) * time.Microsecond
	}
	switch {
	case c.Block == "wait":
		c.blocked = r.now + wait.Microseconds()
	case c.Block != "":
		wait = max(wait, c.block)
		c.blocked = r.now + c.block.Microseconds()
	}
	return &c.Refusal, wait, c.left(r.now), need
}

// settle charges what an answered request really cost.
func (s *Server) settle(a *answer, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.now = now
	if a.refused != nil {
		return
	}
	for i := range a.counted {
		c := &a.counted[i]
		if c.meter == nil || c.tier.Algorithm == algorithms.Concurrency {
			continue
		}
		if rest := c.settled - c.charged; rest != 0 {
			c.meter.settle(now, rest)
		}
	}
}

// end ends an answered request in limits of concurrency.
func (s *Server) end(a *answer, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range a.counted {
		if c := &a.counted[i]; c.meter != nil && c.tier.Algorithm == algorithms.Concurrency && c.charged > 0 {
			c.meter.settle(now, -c.charged)
		}
	}
}

// head returns the status and the headers of the response to a request, by the present counts.
func (s *Server) head(a *answer) (status int, header http.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.response == nil {
		r := Reply{}
		return http.StatusOK, r.header(s.Skew)
	}
	header = http.Header{}
	date := time.UnixMicro(a.now).UTC().Format(http.TimeFormat)
	if s.Skew != 0 {
		header.Set("Date", date)
	}
	for name, value := range s.api.Headers(a.response) {
		if template, ok := a.response.Headers[name]; ok {
			if value, ok = a.fill(template); !ok {
				continue
			}
		} else if http.CanonicalHeaderKey(name) == "Date" {
			value = date
		}
		header.Set(name, value)
	}
	return s.api.Known[a.response.Like].Status, header
}

// body returns the body of the response to a request, by the present counts.
func (s *Server) body(a *answer) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.response == nil {
		return "{}"
	}
	body := s.api.Known[a.response.Like].Body
	if a.response.Text != "" {
		body, _ = a.fill(a.response.Text)
	}
	for old, template := range a.response.Body {
		if text, ok := a.fill(template); ok {
			body = strings.ReplaceAll(body, old, text)
		}
	}
	if a.refused != nil {
		s.seen[a.seen].Answered = body
	}
	return body
}

// answerOf returns the index of the answer to an accepted request, or -1.
func (a *API) answerOf(r *request) int {
	return slices.IndexFunc(a.Answers, func(candidate *Response) bool {
		_, ok := candidate.fits(r)
		return ok
	})
}

var _ http.RoundTripper = (*Server)(nil)
var _ http.Handler = (*Server)(nil)
