// Package azurestand stands in for Azure OpenAI (Azure OpenAI in Microsoft Foundry Models) in tests.
//
// A [Server] is one Azure resource: one endpoint with its keys and its deployments. It answers chat
// completions over both paths of the API, counts calls and estimated tokens for each deployment as
// Azure documents it, refuses with Azure's bodies and headers, and reports cached tokens. It is
// strict: where the documentation and measurements differ, or where the documentation leaves a
// question open, the answer that refuses more is the default and the other one is an option.
//
// It was written from documentation and captured responses alone, all of them read on 2026-11-28.
// Comments name them by these words:
//
//   - "the quota page": https://learn.microsoft.com/azure/foundry/openai/how-to/quota, with its
//     sections "Understanding rate limits" and "Rate limit response headers" (of 2026-05-06)
//   - "the page on 429": https://learn.microsoft.com/microsoft-cloud/dev/dev-proxy/concepts/azure-openai-429-token-rate-limit
//     (of 2026-10-03)
//   - "the caching page": https://learn.microsoft.com/azure/foundry/openai/how-to/prompt-caching
//     (of 2026-03-19 and 2026-08-04)
//   - "the measurement": https://clemenssiebler.com/posts/understanding-azure-openai-x-ratelimit-remaining-tokens-x-ratelimit-remaining-requests-headers/
//     (of 2024-06-05), which logs each call to two deployments
//   - "the simulator": https://github.com/microsoft/aoai-api-simulator, its limiters.py
//
// Captured responses are named by their date, and by their apim-request-id where it is known.
package azurestand

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options describe a resource.
type Options struct {
	// Keys are the keys of the resource; Azure gives two, and either is accepted. They are sent in
	// the header Api-Key or, over the path /openai/v1 alone, as bearer tokens.
	Keys []string

	// Token is the Microsoft Entra token that the resource accepts as a bearer token. If empty, none
	// is accepted.
	Token string

	// Region is what responses name in X-Ms-Region. If empty, "East US 2".
	Region string

	// Deployments are the deployments of the resource.
	Deployments []Deployment
}

// A Deployment is a model under a name, with limits of its own.
type Deployment struct {
	// Name is the name in the path, or the model in the body of /openai/v1.
	Name string

	// Model is the model that responses name. If empty, "gpt-4o-2024-11-20".
	Model string

	// TPM is the number of estimated tokens a minute. If zero, 10,000.
	TPM int

	// RPM is the number of requests a minute. If zero, 6 for each 1,000 of TPM, the ratio of older
	// chat models on the quota page.
	RPM int

	// Period is the time over which the rate of requests is judged. If zero, 10 seconds: the quota
	// page says "typically 1 or 10 seconds", the measurement found 10, and so does the simulator.
	Period time.Duration

	// Fixed makes the counters start again at the end of each period and each minute, counted from
	// New, which is how the quota page tells it ("a running token count of all requests that is
	// reset each minute", "until the next evaluation period"). If false, each use ends a minute (or
	// a period) after it was made, which is what the measurement found and what refuses more.
	Fixed bool

	// ForgetRefused leaves refused requests uncounted, as in the measurement, where a deployment
	// that had refused many calls accepted one as soon as the first use ended. If false, they count
	// as the quota page has it: "Unsuccessful requests still count toward your per-minute rate limit."
	ForgetRefused bool

	// PeriodHeaders makes X-Ratelimit-Limit-Requests and X-Ratelimit-Remaining-Requests tell of a
	// period, as they did in captures up to March 2025 (19 left after one call to 120 a minute). If
	// false, they tell of a minute, as the quota page says and as in captures since July 2025.
	PeriodHeaders bool

	// Unbounded is the number of tokens that the estimate takes for an answer whose request has no
	// max_tokens. If zero, 16, as in the simulator.
	Unbounded int

	// CacheIdle is the time without use after which a cached prefix is gone. If zero, 5 minutes: the
	// caching page says "within 5 to 10 minutes of inactivity".
	CacheIdle time.Duration

	// NewWording makes refusals read as in captures since October 2025, with the code
	// RateLimitReached and the names of deployment, model and region. If false, they read as in
	// captures from 2023 to 2025, with the code 429.
	NewWording bool
}

// A Server is one resource. It is an [http.Handler], and an [http.RoundTripper] too, for clients in
// virtual time, which cannot use sockets. It starts no goroutine and never sleeps, and takes the
// time from [time.Now], so that it runs inside a testing/synctest bubble as it does outside. It is
// safe for concurrent use.
type Server struct {
	options Options

	mu          sync.Mutex // guards what is below
	deployments map[string]*deployment
	strangers   map[string]*Counts // by the names of deployments that don't exist
	requests    []Request
}

var (
	_ http.Handler      = (*Server)(nil)
	_ http.RoundTripper = (*Server)(nil)
)

// New returns a resource that has received nothing yet.
func New(o Options) *Server {
	if o.Region == "" {
		o.Region = "East US 2"
	}
	s := &Server{options: o, deployments: map[string]*deployment{}, strangers: map[string]*Counts{}}
	now := time.Now()
	for _, d := range o.Deployments {
		s.deployments[d.Name] = newDeployment(d, now)
	}
	return s
}

// ServeHTTP answers a request and records it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	c := route(r, body)
	if err != nil {
		c.fault = "the body ended early: " + err.Error()
	}
	a := s.answer(r, body, c)
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	for _, piece := range a.pieces {
		if _, err := io.WriteString(w, piece); err != nil {
			return
		}
		if len(a.pieces) > 1 {
			_ = http.NewResponseController(w).Flush() // a writer that cannot flush sends all at the end
		}
	}
}

// RoundTrip answers a client's request without a network. The response is whole when it returns.
func (s *Server) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	in := req.Clone(req.Context())
	if in.Body == nil {
		in.Body = http.NoBody
	}
	if in.Host == "" {
		in.Host = in.URL.Host
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, in)
	res := w.Result()
	res.Request = req
	return res, nil
}

// A call is a request as far as it could be read.
type call struct {
	known   bool   // the path is one of the API's
	v1      bool   // the path is the one without deployments in it
	name    string // the deployment
	version string // of the API
	chat    chat
	fault   string // why the body is none, or ""
}

// route finds the deployment that a request is for. The path with deployments needs an api-version;
// the path of /openai/v1 needs none and takes the deployment from the model in the body
// (https://learn.microsoft.com/azure/foundry/openai/api-version-lifecycle, read 2026-11-28).
func route(r *http.Request, body []byte) call {
	c := call{version: r.URL.Query().Get("api-version")}
	c.chat, c.fault = readChat(body)
	rest, deployments := strings.CutPrefix(r.URL.Path, "/openai/deployments/")
	name, chat := strings.CutSuffix(rest, "/chat/completions")
	switch {
	case r.Method != http.MethodPost:
	case r.URL.Path == "/openai/v1/chat/completions":
		c.known, c.v1, c.name = true, true, c.chat.Model
		if c.version == "" {
			c.version = "v1"
		}
	case deployments && chat && name != "" && !strings.Contains(name, "/"):
		c.known, c.name = c.version != "", name
	}
	return c
}

// answer decides what a request gets and records it, all at one moment.
func (s *Server) answer(r *http.Request, body []byte, c call) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	a := s.decide(r, len(body), c, now)
	s.requests = append(s.requests, record(r, body, c.name, a.status, now))
	a.header.Set("Apim-Request-Id", requestID(len(s.requests)))
	return a
}

// decide finds the answer to a request. Credentials come first, since a resource tells a stranger
// nothing about its deployments.
func (s *Server) decide(r *http.Request, size int, c call, now time.Time) answer {
	d := s.deployments[c.name]
	counts := s.counts(c.name)
	if body := s.unauthorized(r, c.v1); body != "" {
		counts.Unauthorized++
		return s.plain(http.StatusUnauthorized, body)
	}
	switch {
	case !c.known:
		counts.NotFound++
		return s.plain(http.StatusNotFound, resourceNotFound)
	case d == nil && c.v1 && c.name == "":
		counts.Invalid++
		return s.plain(http.StatusBadRequest, invalid("you must provide a model parameter"))
	case d == nil:
		counts.NotFound++
		return s.plain(http.StatusNotFound, deploymentNotFound)
	}
	cost := d.estimate(c, size)
	refusal := d.admit(now, cost)
	if refusal.wait > 0 {
		counts.Refused++
		return s.refuse(d, c, refusal, now)
	}
	// "A request that fails with a 400 can still count toward your rate limit" (the page on 429).
	if c.fault != "" {
		counts.Invalid++
		a := s.plain(http.StatusBadRequest, invalid(c.fault))
		d.tell(a.header, now)
		return a
	}
	return s.complete(d, c, now)
}

// unauthorized returns the body of the refusal of a request's credentials, or "". A request may
// carry a key and a bearer token; what Azure makes of a pair of which one is wrong isn't documented,
// and here each of them must be right, so that no foreign credential passes unseen.
func (s *Server) unauthorized(r *http.Request, v1 bool) string {
	keys, bearers := r.Header.Values("Api-Key"), r.Header.Values("Authorization")
	for _, key := range keys {
		if !slices.Contains(s.options.Keys, key) {
			return accessDenied
		}
	}
	for _, b := range bearers {
		scheme, token, _ := strings.Cut(b, " ")
		right := token != "" && token == s.options.Token || v1 && slices.Contains(s.options.Keys, token)
		if !strings.EqualFold(scheme, "Bearer") || !right {
			return tokenInvalid
		}
	}
	if len(keys)+len(bearers) == 0 {
		return tokenInvalid
	}
	return ""
}
