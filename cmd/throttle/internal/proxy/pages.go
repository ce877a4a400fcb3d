package proxy

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/page"
)

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
	live := page.New(page.Options{
		Stats: h.opts.Stats, Title: h.opts.Title, Subtitle: h.opts.Subtitle, Store: h.opts.Store, Check: h.opts.Check, Notes: h.notes,
	})
	h.pages["health"] = live
	if h.opts.Metrics {
		metrics := h.opts.Stats.Metrics()
		h.pages["metrics"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			metrics.ServeHTTP(w, r)
			_, _ = io.WriteString(w, h.upstreams.metrics())
		})
	}
	if h.opts.Page {
		for _, name := range []string{"", "events", "state.json", "app.js", "style.css"} {
			h.pages[name] = live
		}
	}
}

// servePages serves a page of the proxy at its main address. The rest of the path follows PagesPrefix.
func (h *Handler) servePages(w http.ResponseWriter, r *http.Request, rest string) *problem {
	if !h.opts.PublicPages && (!isLocal(r.RemoteAddr) || !isLocalHost(r.Host) || isForwarded(r.Header)) {
		return badRequest(http.StatusForbidden, "pages", "The proxy shows its pages to its own host alone.")
	}
	if h.opts.PagesElsewhere {
		return badRequest(http.StatusNotFound, "route", "The proxy has its pages at another address: see observability.listen in its file.")
	}
	return h.servePage(w, r, rest)
}

// servePage serves a page of the proxy.
func (h *Handler) servePage(w http.ResponseWriter, r *http.Request, rest string) *problem {
	name, slash := strings.CutPrefix(rest, "/")
	if !slash {
		w.Header().Set("Location", "."+PagesPrefix+"/")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return nil
	}
	if name == "pause" || name == "resume" || name == "forget" {
		return h.control(w, r, name)
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

// Pages returns a handler of the pages alone, for an address of their own. If that is a loopback
// address, local is true: only this host may read them, unless Options.PublicPages is set.
func (h *Handler) Pages(local bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := &trip{handler: h, body: newIncoming(w, r, h.idle)}
		defer h.recover(t)
		if t.body.unread() {
			w.Header().Set("Connection", "close")
		}
		if p := h.serveOwn(w, r, local); p != nil {
			h.answer(w, t, p)
		}
	})
}

// serveOwn serves a request at the address of the pages.
func (h *Handler) serveOwn(w http.ResponseWriter, r *http.Request, local bool) *problem {
	if p := checkTarget(r); p != nil {
		return p
	}
	if local && !isLocalHost(r.Host) {
		return badRequest(http.StatusMisdirectedRequest, "host", "These pages are for this host alone: call them at 127.0.0.1 or localhost.")
	}
	if local && !h.opts.PublicPages && (!isLocal(r.RemoteAddr) || isForwarded(r.Header)) {
		return badRequest(http.StatusForbidden, "pages", "The proxy shows its pages to its own host alone.")
	}
	rest, own := strings.CutPrefix(r.URL.EscapedPath(), PagesPrefix)
	if !own || rest != "" && rest[0] != '/' {
		return badRequest(http.StatusNotFound, "route", "This address has the proxy's own pages alone: they begin at "+PagesPrefix+"/.")
	}
	return h.servePage(w, r, rest)
}

// name returns the name of the route's quota on pages and in metrics.
func (r *Route) name() string {
	return cmp.Or(r.Name, strings.TrimPrefix(r.Prefix, "/"), "/")
}

// clientPrefix begins the names of clients' limits on pages, and budgetSuffix ends those of budgets of pools.
const (
	clientPrefix = "client:"
	budgetSuffix = ":budget"
)

// names returns the names that pages show for a table.
func (t Table) names() []string {
	names := make([]string, 0, len(t.Routes))
	for _, r := range t.Routes {
		names = append(names, r.name())
		if len(r.Members) > 0 && r.Known != nil {
			names = append(names, r.name()+budgetSuffix)
		}
	}
	for _, c := range t.Clients {
		if c.Quota != nil {
			names = append(names, clientPrefix+c.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// watch makes the pages show the limiters of a table, instead of those of an older one.
func (h *Handler) watch(old, next *table, t Table) {
	if h.opts.Stats == nil {
		return
	}
	for _, name := range old.watched {
		if !slices.Contains(next.watched, name) {
			_ = h.opts.Stats.Watch(name, nil)
		}
	}
	for _, r := range t.Routes {
		switch was := old.routes[r.Prefix]; {
		case len(r.Members) > 0:
			h.showPool(next, r)
		case r.Known != nil && (r.Whole || was == nil || !was.used.Load()):
			h.show(next, r.name(), r.Known)
		}
	}
	for _, c := range t.Clients {
		if c.Quota != nil {
			h.show(next, clientPrefix+c.Name, c.Quota)
		}
	}
	next.mu.Lock()
	defer next.mu.Unlock()
	if n := len(next.unwatched); n > 0 {
		h.opts.Log.Warn("routes have no tiers in metrics and on the page, because so many others are watched",
			"routes", n, "first", next.unwatched[0], "watched", len(next.watched)-n)
	}
}

// showPool makes the pages show the pool of a route with its members, and its budget.
func (h *Handler) showPool(t *table, r Route) {
	t.shown(r.name(), h.opts.Stats.WatchPool(r.name(), r.Pool))
	if r.Known != nil {
		h.show(t, r.name()+budgetSuffix, r.Known)
	}
}

// show makes the pages show a limiter.
func (h *Handler) show(t *table, name string, l *throttle.Limiter) {
	t.shown(name, h.opts.Stats.Watch(name, l))
}

// shown records the error of what cannot be watched.
func (tab *table) shown(name string, err error) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	if err != nil && !slices.Contains(tab.unwatched, name) { // so many others are
		tab.unwatched = append(tab.unwatched, name)
	}
}

// use makes the pages show the limiter of a route's first request.
func (h *Handler) use(r *route, l *throttle.Limiter) {
	if h.opts.Stats != nil {
		h.show(h.table.Load(), r.name(), l)
	}
}

const (
	countsApart = "Counts several quotas, such as one for each model or account."
	noneUsed    = countsApart + " They are shown after the first request."
	someUsed    = countsApart + " Before the first request only what all of them share is shown."
	firstUsed   = countsApart + " The tiers are those of the first request."
)

// notes returns what pages say about policies.
func (h *Handler) notes(policies []page.Policy) map[string]string {
	notes, t := make(map[string]string), h.table.Load()
	for _, r := range t.routes {
		switch name := r.name(); {
		case r.Whole:
		case len(r.Members) > 0:
			notes[name] = countsApart
		case r.used.Load():
			notes[name] = firstUsed
		case r.Known != nil:
			notes[name] = someUsed
		default:
			notes[name] = noneUsed
		}
	}
	h.reasons.describe(notes, policies)
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.unwatched); n > 0 {
		notes[""] = fmt.Sprintf("%d routes, such as %s, have no tiers here and in the metrics: %d others are watched.", n, t.unwatched[0], len(t.watched)-n)
	}
	return notes
}
