// Package proxy is the sidecar of the command throttle: a reverse proxy whose requests wait in the
// queue of a quota instead of being refused.
//
// A [Handler] has routes. A route leads from a prefix of the path to an API, through a
// throttle.Transport. It forwards as net/http/httputil's ReverseProxy does, which itself passes
// upgraded connections on. A [Server] serves the Handler and ends without losing an admitted request.
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
// unknown length whose client expects 100-continue, is not read before the admission. A body of which
// no byte comes for 30 s ends its request, and a response to a request whose body was not read closes
// the connection.
//
// # What is written to logs
//
// Logs have the prefix of the route, the names of the member and of the client, the method, the status and times. They never have paths,
// queries, bodies, headers or tokens, nor texts that a client or an upstream has sent.
//
// # Speed
//
// A benchmark compares the processor time with that of a ReverseProxy with the same transport:
//
//	go test -run - -bench Proxy -benchtime 40x ./internal/proxy
package proxy

import (
	"cmp"
	"context"
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
)

// PagesPrefix is the prefix of the proxy's own pages.
const PagesPrefix = "/_throttle"

// Options are settings of a Handler that a reload does not change.
type Options struct {
	// Stats is what the pages show. If nil, the proxy has no pages but health.
	Stats *observe.Stats

	// Page and Metrics serve the live page at /_throttle/ and metrics at /_throttle/metrics.
	Page, Metrics bool

	// Title, Subtitle and Store are those of the page, and Check asks the store; see package page.
	Title, Subtitle, Store string
	Check                  func(context.Context) error

	// PublicPages serves the pages to every address. If false, only to this host.
	PublicPages bool

	// PagesElsewhere serves the pages by Handler.Pages alone.
	PagesElsewhere bool

	// ControlToken is what requests that pause, resume or forget must send. If empty, there are none.
	ControlToken string

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

	// Name names the quota of the route on pages and in metrics. If empty, the prefix without its
	// first slash.
	Name string

	// Known is a limiter in whose quotas every request of the route counts: with Members, that of its budget.
	// Pages show it before the first request, and a pause of the route pauses it. If nil, there is none.
	Known *throttle.Limiter

	// Whole reports that requests count in no quotas but those of Known and of clients. If false, the
	// pages show the limiter of the first request.
	Whole bool

	// Upstream is the address of the API. Its path precedes what follows the prefix.
	Upstream *url.URL

	// Members are the members of the pool that is the Base of the Transport, a *config.Pool. If empty,
	// requests go to Upstream, which is the address of the first member otherwise.
	Members []Member

	// Pool is the pool of all requests, which pages show. If nil, there is none, or there are several.
	Pool *throttle.Pool

	// Transport limits and sends the requests. Set its Base, or that of the pool. Its policies need the Observer of the
	// Handler, or responses do not say how long a request waited.
	Transport *throttle.Transport

	// Class is the class of requests that come without one.
	Class throttle.Class

	// Set are headers of the requests to the API, and Remove names headers that do not reach it.
	Set    map[string]string
	Remove []string

	// Query are parameters of the requests to the API. Those that a client sends under the same names are
	// removed.
	Query map[string]string

	// Drop names further parameters that are removed.
	Drop []string

	// Secrets are texts that headers of responses must not show.
	Secrets []string

	// Key is the header whose values are accounts. Of a header that a request has twice, the first value
	// alone reaches the API. If empty, there is none.
	Key string

	// MaxBody is how many bytes of a body are read before the request is admitted. If zero, none.
	MaxBody int64

	// ReadsResponses asks the API for responses that are not compressed, because the limits are
	// adjusted to what their bodies report.
	ReadsResponses bool

	// Allows reports whether a client may use the route. If nil, every client may.
	Allows func(client string) bool
}

// A Member is a member of the pool of a route.
type Member struct {
	Name string

	// Known is a limiter in whose quotas every request of the member counts. A pause of the member pauses it.
	// If nil, there is none.
	Known *throttle.Limiter

	// Upstream is the address of its API.
	Upstream *url.URL
}

// A Client is a program that may use the proxy.
type Client struct {
	Name, Token string

	// Class is the class of the client's requests, if HasClass. A request may ask for a lower one.
	Class    throttle.Class
	HasClass bool

	// Quota is the limiter of the client's own limits, which pages show. If nil, there is none.
	Quota *throttle.Limiter
}

// A Table has what a reload changes.
type Table struct {
	Routes []Route

	// Clients may use the proxy. If empty, everyone may, without a token.
	Clients []Client

	// PublicURL is the address at which clients reach the proxy, without a slash at its end. The links
	// of responses lead to it. If nil, to http and the Host of the request.
	PublicURL *url.URL
}

// A Handler is the proxy. New makes one. Its methods are safe for concurrent use.
type Handler struct {
	opts    Options
	upgrade *httputil.ReverseProxy // for requests that ask for an upgrade
	pages   map[string]http.Handler
	table   atomic.Pointer[table]
	access  *slog.Logger // nil without an access log

	upstreams upstreams
	reasons   reasons // of pauses
	flushes   sweep

	idle, drain time.Duration // bodyIdle and bodyDrain, except in tests

	open     atomic.Int64 // requests to upstreams that have not ended
	ending   context.Context
	end      context.CancelFunc // ends the viewers of the page
	mu       sync.Mutex         // guards all below
	draining bool
	waiting  map[*trip]struct{} // in a queue, or for a body that is read before
}

// New returns a Handler without routes.
func New(opts Options) *Handler {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	h := &Handler{opts: opts, idle: bodyIdle, drain: bodyDrain, pages: make(map[string]http.Handler), waiting: make(map[*trip]struct{})}
	h.ending, h.end = context.WithCancel(context.Background())
	h.table.Store(new(table))
	h.flushes.flushers.New = func() any { return new(flusher) }
	h.upgrade = h.upgrades()
	if opts.AccessLog {
		h.access = opts.Log
	}
	h.addPages()
	return h
}

// A table is a Table that requests are looked up in.
type table struct {
	routes  map[string]*route // by prefix
	longest int               // prefix, in bytes
	clients map[[32]byte]*Client
	tokens  *tokens  // of the clients; nil if there are none
	public  *url.URL // nil if it is the Host of a request
	watched []string // the names on pages

	mu        sync.Mutex // guards unwatched
	unwatched []string   // the names that have no tiers, because too many have
}

// SetTable replaces the routes and clients. Requests that have begun keep theirs.
func (h *Handler) SetTable(t Table) {
	next := &table{routes: make(map[string]*route), clients: make(map[[32]byte]*Client), tokens: newTokens(t.Clients), public: t.PublicURL}
	for _, r := range t.Routes {
		own := &route{Route: r, set: make(http.Header), query: encode(r.Query), replaced: make(map[string]bool)}
		for name := range r.Query {
			own.replaced[name] = true
		}
		for _, name := range r.Drop {
			own.replaced[name] = true
		}
		for name, value := range r.Set {
			own.set.Set(name, value)
		}
		own.Transport, own.counts = h.tracked(own, r.Transport), h.upstreams.of(r.Prefix)
		own.used.Store(r.Whole)
		next.routes[r.Prefix] = own
		next.longest = max(next.longest, len(r.Prefix))
	}
	for _, c := range t.Clients {
		next.clients[hash(c.Token)] = &c
	}
	next.watched = t.names()
	h.watch(h.table.Swap(next), next, t)
}

// tracked returns a copy of a transport that tells the trip of a request when nothing limits it, and
// the pages of the first limiter.
func (h *Handler) tracked(r *route, t *throttle.Transport) *throttle.Transport {
	copied := *t
	if pool, ok := t.Base.(*config.Pool); ok {
		own := *pool
		own.Base = hinted{cmp.Or(pool.Base, http.DefaultTransport)}
		copied.Base, r.pool = &own, &own
	} else {
		copied.Base = hinted{cmp.Or(t.Base, http.DefaultTransport)}
	}
	limiter := t.Route
	if limiter == nil {
		limiter = func(*http.Request) *throttle.Limiter { return t.Limiter }
	}
	copied.Route = func(req *http.Request) *throttle.Limiter {
		l := limiter(req)
		if l == nil {
			if r.pool == nil {
				tripOf(req.Context()).admit()
			}
		} else if !r.used.Load() {
			own := limiter(req.WithContext(config.WithClient(req.Context(), ""))) // without the client's own limits
			if own != nil && r.used.CompareAndSwap(false, true) {
				h.use(r, own)
			}
		}
		return l
	}
	return &copied
}

// Observer returns the Observer that the policies of all routes need.
func (h *Handler) Observer() *throttle.Observer {
	return &throttle.Observer{
		Queued: func(ctx context.Context, _ throttle.QueuedInfo) {
			if t := tripOf(ctx); t != nil {
				t.waitAgain()
				h.enqueue(t)
			}
		},
		Admitted: func(ctx context.Context, i throttle.AdmittedInfo) {
			if t := tripOf(ctx); t != nil {
				t.waited += i.Waited
				t.policy, t.tier, t.member = cmp.Or(i.By, i.Policy), i.Tier, i.Member
				t.admit()
				if i.Queued {
					h.leave(t)
				}
			}
		},
		Refused: func(ctx context.Context, i throttle.RefusedInfo) {
			if t := tripOf(ctx); t != nil {
				t.waited += i.Waited
				t.policy = i.Policy
				if i.Outcome() == "error" {
					t.unusable = i.Err
				}
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
		t.drain()
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
		t.drain()
	}
	h.end()
}

// isDraining reports whether Drain was called.
func (h *Handler) isDraining() bool { return h.ending.Err() != nil }

// Open returns how many requests to upstreams have not ended.
func (h *Handler) Open() int { return int(h.open.Load()) }

// ServeHTTP serves a request to an upstream, or a page of the proxy.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t := &trip{handler: h, body: newIncoming(w, r, h.idle)}
	defer h.recover(t)
	if h.access != nil {
		begin := time.Now()
		defer func() { h.logAccess(r, t, time.Since(begin)) }()
	}
	if p := h.serve(w, r, t); p != nil {
		h.answer(w, t, p)
	}
}

// answer answers a request by a problem. If the body was not read, net/http would read it before it
// writes the header, unless the connection closes.
func (h *Handler) answer(w http.ResponseWriter, t *trip, p *problem) {
	t.status = p.Status
	p.closes = t.body.unread()
	p.write(w)
}

// recover ends a request whose handling panicked, and bounds the time for what remains of its body.
func (h *Handler) recover(t *trip) {
	if t.body != nil {
		t.body.finish(h.drain)
	}
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
		if t.body.unread() {
			w.Header().Set("Connection", "close")
		}
		return h.servePages(w, r, rest)
	}
	tab := h.table.Load()
	client, p := tab.identify(r)
	if p != nil {
		return p
	}
	t.client = client
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
	t.table, t.route, t.rest = tab, route, rest
	return h.serveRoute(w, r, t)
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
func (h *Handler) serveRoute(w http.ResponseWriter, r *http.Request, t *trip) *problem {
	class, maxWait, p := t.route.wishes(r.Header, t.client)
	if p != nil {
		return p
	}
	h.open.Add(1)
	defer h.open.Add(-1)
	if h.isDraining() {
		return draining()
	}
	parent := r.Context()
	if class != throttle.Normal {
		parent = throttle.WithClass(parent, class)
	}
	if t.client != nil {
		parent = config.WithClient(parent, t.client.Name)
	}
	t.begin(parent, maxWait)
	defer t.finish()
	req := r.WithContext(t)
	if t.body != nil {
		h.enqueue(t)
		p := buffer(req, t.body, t.route.MaxBody)
		h.leave(t)
		if p != nil {
			return p
		}
	}
	t.incoming = r
	if len(r.Header["Upgrade"]) > 0 && !tunnelsHTTP(r.Header) {
		h.upgrade.ServeHTTP(w, req)
	} else {
		h.forward(w, req, t)
	}
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
	attrs := []any{"method", method, "route", t.prefix()}
	if len(h.table.Load().clients) > 0 {
		attrs = append(attrs, "client", t.clientName())
	}
	if t.member != "" {
		attrs = append(attrs, "member", t.member)
	}
	h.access.Info("request", append(attrs, "status", t.status, "waited", seconds(t.waited), "duration", seconds(took))...)
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"}
