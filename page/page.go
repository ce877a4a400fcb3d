// Package page serves a live page that shows what the limiters of a program do, with the standard
// library alone.
//
//	stats := observe.NewStats()
//	policy.Observer = stats.Observer()
//	err := stats.Watch("coinbase", limiter)
//	http.Handle("/throttle/", page.New(page.Options{Stats: stats}))
//
// The page shows for each policy how much of each tier is used, who waits, what was admitted and
// refused in the last five minutes, pauses and bans, when a budget will be spent, and which tier
// decided how long requests waited. A throttle.Pool, which Stats.WatchPool watches, is shown with its members:
// their tiers, pauses, and shares of the admissions. It changes nothing, and has no third-party code.
//
// # Paths
//
// The last segment of a request's path names what is served, and the page refers to everything by
// relative URLs. The handler therefore works at / and under any prefix, with or without
// http.StripPrefix, and behind a proxy that changes the path. A proxy must keep the slash at the end of
// the page's address, or add it.
//
//	./             the page
//	./events       server-sent events, one a second
//	./state.json   a State
//	./health       a Health: status 200 while all stores answer and no quota is banned, else 503
//
// # Cost
//
// While somebody watches, one goroutine reads a snapshot each second and sends it to all viewers. It ends
// with the last viewer. With a shared store a snapshot costs a round trip for each watched limiter.
// Other requests are answered from a state that is at most a second old, and probes of health from one
// that is at most five seconds old. A viewer that doesn't read is
// disconnected. There are at most 100 viewers; further ones receive status 503.
//
// # Access
//
// Whoever can reach the handler sees the names, limits and use of policies. It shows neither keys
// of a Group nor URLs. It does not authenticate anyone: serve it on an internal address, or wrap it.
//
// A viewer's request ends when the viewer leaves, so http.Server.Shutdown waits for viewers. To end them,
// cancel the server's base context:
//
//	ctx, cancel := context.WithCancel(context.Background())
//	server.BaseContext = func(net.Listener) context.Context { return ctx }
//	server.RegisterOnShutdown(cancel)
package page

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/observe"
)

// Options are settings of New.
type Options struct {
	// Stats is what the page shows. It is required.
	Stats *observe.Stats

	// Title is the heading of the page. If empty, "Limits".
	Title string

	// Subtitle is a line below the heading, such as the version of the program and its address. If
	// empty, there is none.
	Subtitle string

	// Store is what keeps the quotas, such as "Redis at 10.0.0.5:6379". Health has it. If empty, it is
	// not shown.
	Store string

	// Check asks what keeps the quotas. It is called while no limiter is watched that could tell
	// whether the store answers, as often as the state is read. If nil, nothing is asked.
	Check func(context.Context) error

	// Notes returns sentences to show with policies, by name, and under "" one for the whole page. A
	// name without a limiter and without requests has a card of its own. It receives the policies of
	// each state, without their notes. If nil, there are none.
	Notes func([]Policy) map[string]string
}

//go:embed assets
var assets embed.FS

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"short": short, "sorted": byCondition, "percent": percent, "use": use, "amount": algorithms.FormatAmount,
}).ParseFS(assets, "assets/page.html"))

// short returns the beginning of a long name.
func short(name string) string {
	if runes := []rune(name); len(runes) > 120 {
		return string(runes[:100]) + "…"
	}
	return name
}

// percent returns a part of one in percent.
func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// use returns how much of a tier is used and, of a budget, how much will be.
func use(t Tier) string {
	text := algorithms.FormatUse(t.Used, t.Limit, t.Unit)
	if t.Forecast != nil {
		text += ", " + t.Forecast.Text
	}
	return text
}

// contentSecurityPolicy allows what the page loads from its own address, and nothing else.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

// New returns a handler that serves the page. It panics if Options.Stats is nil.
func New(opts Options) http.Handler {
	if opts.Stats == nil {
		panic("page: Options.Stats is nil: it must be the observe.Stats to show")
	}
	opts.Title = strings.ToValidUTF8(cmp.Or(opts.Title, "Limits"), "\uFFFD")
	opts.Subtitle = strings.ToValidUTF8(opts.Subtitle, "\uFFFD")
	src := &source{stats: opts.Stats, opts: opts, budgets: make(map[budgetKey]*spending)}
	return &handler{source: src, hub: newHub(src), scripts: map[string]asset{
		"app.js":    newAsset("app.js", "text/javascript; charset=utf-8"),
		"style.css": newAsset("style.css", "text/css; charset=utf-8"),
	}}
}

// A handler serves the page and what belongs to it.
type handler struct {
	source  *source
	hub     *hub
	scripts map[string]asset
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", contentSecurityPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "the page is read-only: use GET", http.StatusMethodNotAllowed)
		return
	}
	name := lastSegment(r.URL.Path)
	switch {
	case name == "" && r.URL.Path != "":
		h.servePage(w, r)
	case name == "events":
		h.hub.ServeHTTP(w, r)
	case name == "state.json":
		h.serveState(w, r)
	case name == "health":
		h.serveHealth(w, r)
	case h.scripts[name].content != nil:
		h.scripts[name].ServeHTTP(w, r)
	case name == "" || name == lastSegment(r.Pattern):
		h.addSlash(w, r)
	default:
		http.NotFound(w, r)
	}
}

// lastSegment returns what follows the last slash of a path.
func lastSegment(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// addSlash serves a request for the prefix of the page without the slash at its end. It redirects by a
// relative URL, because a proxy may have changed the path.
func (h *handler) addSlash(w http.ResponseWriter, r *http.Request) {
	asked := r.URL
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		asked = u // StripPrefix does not change it
	}
	segment := lastSegment(asked.EscapedPath())
	if segment == "" { // StripPrefix removed the slash, too
		h.servePage(w, r)
		return
	}
	w.Header().Set("Location", "./"+segment+"/")
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// servePage serves the page, with a table of the present state for browsers without JavaScript.
func (h *handler) servePage(w http.ResponseWriter, r *http.Request) {
	state, err := h.source.state(r.Context(), maxAge)
	if err != nil { // the client has gone
		return
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, state); err != nil {
		http.Error(w, "the page can't be made", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes())
}

func (h *handler) serveState(w http.ResponseWriter, r *http.Request) {
	if state, err := h.source.state(r.Context(), maxAge); err == nil {
		serveJSON(w, http.StatusOK, state)
	}
}

func (h *handler) serveHealth(w http.ResponseWriter, r *http.Request) {
	state, err := h.source.state(r.Context(), healthAge)
	if err != nil {
		return
	}
	status := http.StatusOK
	if !state.Health.OK {
		status = http.StatusServiceUnavailable
	}
	serveJSON(w, status, state.Health)
}

// serveJSON writes a value as JSON.
func serveJSON(w http.ResponseWriter, status int, value any) {
	body := marshal(value)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// marshal returns a State, or a part of it, as JSON.
func marshal(value any) []byte {
	b, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("page: %v", err)) // numbers of a snapshot are finite
	}
	return b
}

// An asset is a file that does not change while the program runs.
type asset struct {
	content           []byte
	contentType, etag string
}

func newAsset(name, contentType string) asset {
	content, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err)
	}
	return asset{content, contentType, fmt.Sprintf(`"%x"`, sha256.Sum256(content))[:18] + `"`}
}

func (a asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", a.contentType)
	w.Header().Set("Cache-Control", "no-cache") // ask each time whether the ETag is the same
	w.Header().Set("ETag", a.etag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.content))
}
