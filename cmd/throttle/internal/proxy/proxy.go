// Package proxy is the sidecar of the command throttle: a reverse proxy whose requests wait in the
// queue of a quota instead of being refused.
//
// A [Handler] has routes. A route leads from a prefix of the path to an API, through a
// throttle.Transport. Everything else is net/http/httputil's ReverseProxy. A [Server] serves the
// Handler and ends without losing an admitted request.
//
// # What a request may reach
//
// A request reaches only the upstream of its route, below the path of its address. The Host of a
// request and addresses in its request line choose nothing. Paths with dots alone, also encoded,
// are refused.
//
// # What is read of a body
//
// A body of at most Route.MaxBody is read before the request joins the queue. Presets estimate its
// cost, and net/http notices a client that hangs up only after the body. A longer body, and one of
// unknown length whose client expects 100-continue, is not read before the admission.
//
// # What is written to logs
//
// Logs have the prefix of the route, the method, the status and times. They never have paths,
// queries, bodies, headers or tokens, nor texts that a client or an upstream has sent.
//
// # Speed
//
// The throughput is compared with that of a ReverseProxy with the same transport by
//
//	go test -run NONE -bench Proxy -benchtime 100000x ./internal/proxy
package proxy

import (
	"cmp"
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
)

// flushInterval is how long a part of a response of known length may wait for more. ReverseProxy
// writes streams at once. Below zero, it would write each header in a goroutine of its own.
const flushInterval = 5 * time.Millisecond

// PagesPrefix is the prefix of the proxy's own pages.
const PagesPrefix = "/_throttle"

// Options are settings of a Handler that a reload does not change.
type Options struct {
	// Stats is what the pages show. If nil, the proxy has no pages but health.
	Stats *observe.Stats

	// Page and Metrics serve the live page at /_throttle/ and metrics at /_throttle/metrics.
	Page, Metrics bool

	// PublicPages serves the pages to every address. If false, only to this host.
	PublicPages bool

	// LocalHosts refuses requests whose Host is not a name or an address of this host, as a web page
	// sends them whose name leads to 127.0.0.1. Set it if the proxy listens on a loopback address.
	LocalHosts bool

	// Log receives what goes wrong. If nil, nothing is logged.
	Log *slog.Logger

	// AccessLog logs each request.
	AccessLog bool
}

// A Route leads from a prefix to an API.
type Route struct {
	// Prefix is the prefix of the paths, such as "/github", or "/" for all others.
	Prefix string

	// Upstream is the address of the API. Its path precedes what follows the prefix.
	Upstream *url.URL

	// Transport limits and sends the requests. Set its Base. Its policies need the Observer of the
	// Handler, or responses do not say how long a request waited.
	Transport *throttle.Transport

	// Class is the class of requests that come without one.
	Class throttle.Class

	// Set are headers of the requests to the API, and Remove names headers that do not reach it.
	Set    map[string]string
	Remove []string

	// MaxBody is how many bytes of a body are read before the request is admitted. If zero, none.
	MaxBody int64

	// ReadsResponses asks the API for responses that are not compressed, because the limits are
	// adjusted to what their bodies report.
	ReadsResponses bool

	// Allows reports whether a client may use the route. If nil, every client may.
	Allows func(client string) bool
}

// A Client is a program that may use the proxy.
type Client struct {
	Name, Token string

	// Class is the class of the client's requests, if HasClass. A request may ask for a lower one.
	Class    throttle.Class
	HasClass bool
}

// A Table has what a reload changes.
type Table struct {
	Routes []Route

	// Clients may use the proxy. If empty, everyone may, without a token.
	Clients []Client
}

// A Handler is the proxy. New makes one. Its methods are safe for concurrent use.
type Handler struct {
	opts    Options
	reverse *httputil.ReverseProxy
	pages   map[string]http.Handler
	table   atomic.Pointer[table]
	access  *slog.Logger // nil without an access log

	open     atomic.Int64 // requests to upstreams that have not ended
	ending   context.Context
	end      context.CancelFunc // ends the viewers of the page
	mu       sync.Mutex         // guards all below
	draining bool
	waiting  map[*trip]struct{} // in a queue
}

// New returns a Handler without routes.
func New(opts Options) *Handler {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	h := &Handler{opts: opts, pages: make(map[string]http.Handler), waiting: make(map[*trip]struct{})}
	h.ending, h.end = context.WithCancel(context.Background())
	h.table.Store(new(table))
	h.reverse = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      roundTripper{},
		FlushInterval:  flushInterval,
		BufferPool:     new(bufferPool),
		ModifyResponse: h.modifyResponse,
		ErrorHandler:   h.serveError,
		ErrorLog:       log.New(io.Discard, "", 0), // its lines have texts of upstreams
	}
	if opts.AccessLog {
		h.access = opts.Log
	}
	h.addPages()
	return h
}

// addPages adds the proxy's own pages.
func (h *Handler) addPages() {
	h.pages["live"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	})
	if h.opts.Stats == nil {
		h.pages["health"] = h.pages["live"]
		return
	}
	live := page.New(page.Options{Stats: h.opts.Stats})
	h.pages["health"] = live
	if h.opts.Metrics {
		h.pages["metrics"] = h.opts.Stats.Metrics()
	}
	if h.opts.Page {
		for _, name := range []string{"", "events", "state.json", "app.js", "style.css"} {
			h.pages[name] = live
		}
	}
}

// A table is a Table that requests are looked up in.
type table struct {
	routes  map[string]*route // by prefix
	longest int               // prefix, in bytes
	clients map[[32]byte]*Client
}

// A route is a Route with what requests need.
type route struct {
	Route
	set     http.Header
	watched atomic.Bool
	logged  atomic.Int64 // the second of the last line about the upstream
}

// SetTable replaces the routes and clients. Requests that have begun keep theirs.
func (h *Handler) SetTable(t Table) {
	next := &table{routes: make(map[string]*route), clients: make(map[[32]byte]*Client)}
	for _, r := range t.Routes {
		own := &route{Route: r, set: make(http.Header)}
		for name, value := range r.Set {
			own.set.Set(name, value)
		}
		own.Transport = h.watched(own, r.Transport)
		next.routes[r.Prefix] = own
		next.longest = max(next.longest, len(r.Prefix))
	}
	for _, c := range t.Clients {
		next.clients[hash(c.Token)] = &c
	}
	old := h.table.Swap(next)
	if h.opts.Stats == nil {
		return
	}
	for prefix := range old.routes {
		if next.routes[prefix] == nil {
			_ = h.opts.Stats.Watch(watchName(prefix), nil)
		}
	}
}

// watched returns a copy of a transport that tells the trip of a request when nothing limits it, and
// the Stats of the first limiter.
func (h *Handler) watched(r *route, t *throttle.Transport) *throttle.Transport {
	copied := *t
	limiter := t.Route
	if limiter == nil {
		limiter = func(*http.Request) *throttle.Limiter { return t.Limiter }
	}
	copied.Route = func(req *http.Request) *throttle.Limiter {
		l := limiter(req)
		if l == nil {
			tripOf(req.Context()).admit()
		} else if h.opts.Stats != nil && !r.watched.Load() && r.watched.CompareAndSwap(false, true) {
			_ = h.opts.Stats.Watch(watchName(r.Prefix), l) // fails beyond 200
		}
		return l
	}
	return &copied
}

// watchName returns the name of a route on the page.
func watchName(prefix string) string { return cmp.Or(strings.TrimPrefix(prefix, "/"), "/") }

// Observer returns the Observer that the policies of all routes need.
func (h *Handler) Observer() *throttle.Observer {
	return &throttle.Observer{
		Queued: func(ctx context.Context, _ throttle.QueuedInfo) {
			if t := tripOf(ctx); t != nil {
				h.enqueue(t)
			}
		},
		Admitted: func(ctx context.Context, i throttle.AdmittedInfo) {
			if t := tripOf(ctx); t != nil {
				t.waited, t.policy, t.tier = i.Waited, cmp.Or(i.By, i.Policy), i.Tier
				t.admit()
				if i.Queued {
					h.leave(t)
				}
			}
		},
		Refused: func(ctx context.Context, i throttle.RefusedInfo) {
			if t := tripOf(ctx); t != nil {
				t.waited = i.Waited
				t.policy = i.Policy
				if i.Queued {
					h.leave(t)
				}
			}
		},
	}
}

func (h *Handler) enqueue(t *trip) {
	h.mu.Lock()
	h.waiting[t] = struct{}{}
	draining := h.draining
	h.mu.Unlock()
	if draining {
		t.stop(stoppedDraining)
	}
}

func (h *Handler) leave(t *trip) {
	h.mu.Lock()
	delete(h.waiting, t)
	h.mu.Unlock()
}

// Drain refuses the requests that wait, and every later one. Admitted requests go on.
func (h *Handler) Drain() {
	h.mu.Lock()
	h.draining = true
	waiting := make([]*trip, 0, len(h.waiting))
	for t := range h.waiting {
		waiting = append(waiting, t)
	}
	h.mu.Unlock()
	for _, t := range waiting {
		t.stop(stoppedDraining)
	}
	h.end()
}

// isDraining reports whether Drain was called.
func (h *Handler) isDraining() bool { return h.ending.Err() != nil }

// Open returns how many requests to upstreams have not ended.
func (h *Handler) Open() int { return int(h.open.Load()) }

// ServeHTTP serves a request to an upstream, or a page of the proxy.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t := &trip{handler: h}
	defer h.recover(w, t)
	if h.access != nil {
		begin := time.Now()
		defer func() { h.logAccess(r, t, time.Since(begin)) }()
	}
	if p := h.serve(w, r, t); p != nil {
		t.status = p.Status
		p.write(w)
	}
}

// recover ends a request whose handling panicked.
func (h *Handler) recover(w http.ResponseWriter, t *trip) {
	switch p := recover(); p {
	case nil:
	case http.ErrAbortHandler:
		panic(p)
	default: // its text may have anything
		h.opts.Log.Error("a request panicked", "route", t.prefix(), "type", typeName(p), "stack", string(debug.Stack()))
		panic(http.ErrAbortHandler)
	}
}

// serve serves a request. It returns a problem if the request is not for an upstream or a page.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, t *trip) *problem {
	if p := checkTarget(r); p != nil {
		return p
	}
	if h.opts.LocalHosts && !isLocalHost(r.Host) {
		return badRequest(http.StatusMisdirectedRequest, "host", "This proxy serves this host alone: call it as 127.0.0.1 or localhost.")
	}
	path := r.URL.EscapedPath()
	if rest, own := strings.CutPrefix(path, PagesPrefix); own && (rest == "" || rest[0] == '/') {
		t.page = true
		return h.servePages(w, r)
	}
	tab := h.table.Load()
	client, p := tab.identify(r)
	if p != nil {
		return p
	}
	route, rest := tab.find(path)
	if route == nil {
		return badRequest(http.StatusNotFound, "route", "No route of this proxy has this path. A path begins with the prefix of a route, such as /github/user at the prefix /github.")
	}
	if p := checkRest(rest); p != nil {
		return p
	}
	if client != nil && route.Allows != nil && !route.Allows(client.Name) {
		return badRequest(http.StatusForbidden, "client", "This client may not use this route.")
	}
	return h.serveRoute(w, r, t, route, rest, client)
}

// find returns the route with the longest prefix of a path, and what follows the prefix.
func (tab *table) find(path string) (r *route, rest string) {
	end := min(len(path), tab.longest)
	for ; end > 1; end-- {
		if end < len(path) && path[end] != '/' {
			continue
		}
		if r = tab.routes[path[:end]]; r != nil {
			return r, path[end:]
		}
	}
	return tab.routes["/"], path
}

// serveRoute sends a request to the upstream of a route.
func (h *Handler) serveRoute(w http.ResponseWriter, r *http.Request, t *trip, route *route, rest string, client *Client) *problem {
	class, maxWait, p := route.wishes(r.Header, client)
	if p != nil {
		return p
	}
	h.open.Add(1)
	defer h.open.Add(-1)
	if h.isDraining() {
		return draining()
	}
	t.route, t.client, t.rest = route, client, rest
	parent := r.Context()
	if class != throttle.Normal {
		parent = throttle.WithClass(parent, class)
	}
	if client != nil {
		parent = config.WithClient(parent, client.Name)
	}
	t.begin(parent, maxWait)
	defer t.finish()
	req := r.WithContext(t)
	if p := buffer(w, req, route.MaxBody); p != nil {
		return p
	}
	t.incoming = r
	h.reverse.ServeHTTP(w, req)
	return nil
}

// roundTripper sends each request through the transport of its route.
type roundTripper struct{}

func (roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	return tripOf(req.Context()).route.Transport.RoundTrip(req)
}

// rewrite makes the request to the upstream.
func rewrite(pr *httputil.ProxyRequest) {
	t := tripOf(pr.In.Context())
	out, to := pr.Out, t.route.Upstream
	out.URL = t.route.url(t.rest, pr.In.URL.RawQuery, pr.In.URL.ForceQuery)
	out.Host = to.Host
	out.Trailer = nil // it could say what the headers must not
	for name := range out.Header {
		if strings.HasPrefix(name, "X-Throttle-") || strings.HasPrefix(name, "X-Forwarded-") {
			delete(out.Header, name)
		}
	}
	if tunnelsHTTP(out.Header) {
		delete(out.Header, "Connection")
		delete(out.Header, "Upgrade")
	}
	if pr.In.GetBody != nil {
		delete(out.Header, "Expect") // the body is here
	}
	if t.client != nil {
		removeToken(out.Header, t.client.Token)
	}
	if t.route.ReadsResponses {
		out.Header.Set("Accept-Encoding", "identity")
	}
	for _, name := range t.route.Remove {
		out.Header.Del(name)
	}
	for name, values := range t.route.set {
		out.Header[name] = values
	}
}

// modifyResponse adds the proxy's own headers to a response of an upstream.
func (h *Handler) modifyResponse(resp *http.Response) error {
	t := tripOf(resp.Request.Context())
	t.status = resp.StatusCode
	t.describe(resp.Header)
	delete(resp.Header, "Alt-Svc") // of the upstream, not of the proxy
	t.leadBack(resp.Header)
	return nil
}

// logAccess writes a line of the access log. Requests for pages have none.
func (h *Handler) logAccess(r *http.Request, t *trip, took time.Duration) {
	if t.page {
		return
	}
	method := r.Method
	if !slices.Contains(methods, method) {
		method = "OTHER" // a method may be any word
	}
	h.access.Info("request", "method", method, "route", t.prefix(), "status", t.status,
		"waited", seconds(t.waited), "duration", seconds(took))
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"}

// servePages serves a page of the proxy.
func (h *Handler) servePages(w http.ResponseWriter, r *http.Request) *problem {
	if !h.opts.PublicPages && (!isLocal(r.RemoteAddr) || !isLocalHost(r.Host) || isForwarded(r.Header)) {
		return badRequest(http.StatusForbidden, "pages", "The proxy shows its pages to its own host alone.")
	}
	name, slash := strings.CutPrefix(strings.TrimPrefix(r.URL.EscapedPath(), PagesPrefix), "/")
	if !slash {
		w.Header().Set("Location", "."+PagesPrefix+"/")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return nil
	}
	handler := h.pages[name]
	if handler == nil {
		return badRequest(http.StatusNotFound, "route", "The proxy has no such page.")
	}
	if name == "health" && h.isDraining() {
		return draining()
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.ending, cancel)()
	handler.ServeHTTP(w, r.WithContext(ctx))
	return nil
}

// A bufferPool has the buffers through which bodies are copied.
type bufferPool struct{ pool sync.Pool }

const bufferSize = 32 << 10

func (p *bufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[bufferSize]byte); ok {
		return b[:]
	}
	return make([]byte, bufferSize)
}

func (p *bufferPool) Put(b []byte) { p.pool.Put((*[bufferSize]byte)(b)) }
