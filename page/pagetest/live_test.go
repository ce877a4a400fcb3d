package pagetest

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	browserdomain "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	cdpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/performance"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
)

// The second event after traffic shows it, at the latest.
func TestMoves(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.limiter("api", "1000/h")
	w := open(t, serve(t, s))
	w.awaits("1000/h", 0, 1000)
	w.goOffline()
	for sent := range 3 {
		s.send(l, 1)
		s.letThrough(2, true)
		w.awaits("1000/h", float64(sent)+1, 1000)
	}
}

// marked marks the document, and returns what checks that it has not been loaded anew.
func (w *tab) marked() (check func()) {
	w.t.Helper()
	evaluate[bool](w, `window.marked = true`)
	return func() {
		w.t.Helper()
		if !evaluate[bool](w, `window.marked === true`) {
			w.t.Error("the document was loaded anew")
		}
	}
}

// away waits until the page shows that it is not connected.
func (w *tab) away() {
	w.t.Helper()
	w.until("the page shows that it is not connected", func() bool {
		return evaluate[bool](w, `/connecting|no connection|disconnected|offline/i.test(document.body.innerText)`)
	})
}

// The page finds its server again.
func TestReconnects(t *testing.T) {
	t.Parallel()
	t.Run("restarted server", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		l := s.limiter("api", "1000/h")
		first := &http.Server{Handler: s}
		start(t, first, "127.0.0.1:0")
		w := open(t, "http://"+first.Addr)
		w.awaits("1000/h", 0, 1000)
		check := w.marked()
		w.goOffline()
		first.Close()
		s.send(l, 5)
		w.away()
		start(t, &http.Server{Handler: s}, first.Addr)
		w.awaits("1000/h", 5, 1000)
		check()
		if past := w.past(); past != 5 {
			t.Errorf("the chart shows %d requests, want the 5 of the gap too", past)
		}
	})
	t.Run("restarted program", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.send(s.limiter("api", "1000/h"), 9)
		s.send(s.limiter("old", "50/h"), 9)
		first := &http.Server{Handler: s}
		start(t, first, "127.0.0.1:0")
		w := open(t, "http://"+first.Addr)
		w.awaits("50/h", 9, 50)
		s.awaitEvents(3) // later ones have small numbers again
		check := w.marked()
		w.goOffline()
		first.Close()
		w.away()
		next := newSite(t)
		l := next.limiter("api", "1000/h")
		start(t, &http.Server{Handler: next}, first.Addr)
		w.awaits("1000/h", 0, 1000)
		next.send(l, 4)
		w.awaits("1000/h", 4, 1000)
		if _, ok := w.meter("50/h"); ok {
			t.Error("a policy that is gone is still on the page")
		}
		check()
	})
	t.Run("timeouts", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		l := s.limiter("api", "1000/h")
		server := &http.Server{Handler: s, ReadTimeout: time.Second, WriteTimeout: time.Second, IdleTimeout: time.Second}
		start(t, server, "127.0.0.1:0")
		w := open(t, "http://"+server.Addr)
		w.goOffline()
		check := w.marked()
		s.awaitEvents(4)
		s.send(l, 2)
		w.awaits("1000/h", 2, 1000)
		s.awaitEvents(4)
		s.send(l, 2)
		w.awaits("1000/h", 4, 1000)
		check()
	})
	// A proxy answers 502 for a server that is away, after which an EventSource gives up.
	t.Run("proxy", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		l := s.limiter("api", "1000/h")
		upstream := &http.Server{Handler: s}
		start(t, upstream, "127.0.0.1:0")
		w := open(t, serve(t, &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: upstream.Addr}) },
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
				w.WriteHeader(http.StatusBadGateway)
			},
		}))
		w.awaits("1000/h", 0, 1000)
		check := w.marked()
		w.goOffline()
		upstream.Close()
		w.away()
		w.until("the browser gives up", func() bool {
			return evaluate[bool](w, `performance.getEntriesByType("resource").some(r => r.responseStatus === 502)`)
		})
		s.send(l, 6)
		start(t, &http.Server{Handler: s}, upstream.Addr)
		w.awaits("1000/h", 6, 1000)
		check()
	})
	t.Run("no events", func(t *testing.T) { // behind what keeps them back, the page polls
		t.Parallel()
		s := newSite(t)
		l := s.limiter("api", "1000/h")
		s.letThrough(0, false)
		w := open(t, serve(t, s))
		s.send(l, 3)
		w.awaits("1000/h", 3, 1000)
		s.send(l, 3)
		w.awaits("1000/h", 6, 1000)
	})
	t.Run("network", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		l := s.limiter("api", "1000/h")
		w := open(t, serve(t, s))
		w.awaits("1000/h", 0, 1000)
		check := w.marked()
		w.goOffline()
		conditions := func(offline bool) {
			call(w, network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{
				MatchedNetworkConditions: []*network.Conditions{{Offline: offline, DownloadThroughput: -1, UploadThroughput: -1}},
			})
		}
		conditions(true)
		s.hangUp() // the conditions are those of new connections
		s.send(l, 8)
		w.away()
		conditions(false)
		w.awaits("1000/h", 8, 1000)
		check()
	})
}

// past opens the tables and returns the sum of what they say about admitted requests.
func (w *tab) past() (sum int) {
	w.t.Helper()
	const script = `(() => {
		document.querySelectorAll("details").forEach(d => d.open = true)
		let sum = 0
		for (const table of document.querySelectorAll("table")) {
			const column = [...table.tHead.rows[0].cells].findIndex(c => /admitted/i.test(c.textContent))
			for (const row of table.tBodies[0].rows) sum += Number(row.cells[column].textContent.replaceAll(",", ""))
		}
		return sum
	})()`
	// A row is there when its seconds are over.
	before := -1
	w.until("the tables have the last ten seconds", func() bool {
		now := evaluate[int](w, script)
		settled := now == before && now > 0
		before = now
		time.Sleep(time.Second)
		return settled
	})
	return before
}

// A tab that nobody sees for minutes catches up when somebody does.
func TestHidden(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.limiter("api", "1000/h")
	w := open(t, serve(t, s))
	w.awaits("1000/h", 0, 1000)
	check := w.marked()
	w.window(browserdomain.WindowStateMinimized)
	visibility := func() string { return evaluate[string](w, `document.visibilityState`) }
	until(t, "the page is hidden", func() bool { return visibility() == "hidden" })
	evaluate[bool](w, `{ const now = performance.now.bind(performance); performance.now = () => now() + 600e3; true }`)
	until(t, "a page that nobody has seen for minutes needs no events", func() bool { return s.open() == 0 })
	s.send(l, 7)
	w.window(browserdomain.WindowStateNormal)
	until(t, "the page is visible", func() bool { return visibility() == "visible" })
	w.awaits("1000/h", 7, 1000)

	// A frozen page does nothing, and loses its connection.
	freeze := func(state cdpage.SetWebLifecycleStateState) {
		call(w, cdpage.SetWebLifecycleState, cdpage.SetWebLifecycleStateParams{State: state})
	}
	w.goOffline()
	freeze(cdpage.SetWebLifecycleStateStateFrozen)
	s.hangUp()
	s.send(l, 7)
	freeze(cdpage.SetWebLifecycleStateStateActive)
	w.awaits("1000/h", 14, 1000)
	check()
}

// window changes the state of the tab's window.
func (w *tab) window(state browserdomain.WindowState) {
	w.t.Helper()
	id := call(w, browserdomain.GetWindowForTarget, browserdomain.GetWindowForTargetParams{}).WindowID
	call(w, browserdomain.SetWindowBounds, browserdomain.SetWindowBoundsParams{WindowID: id, Bounds: &browserdomain.Bounds{WindowState: state}})
}

// An update of a page with many policies leaves the browser time for its reader.
func TestMany(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var limiters []*throttle.Limiter
	for i := range 200 {
		limiters = append(limiters, s.limiter(fmt.Sprintf("policy %d", i), fmt.Sprintf("%d/h + 100000/d", 5000+i)))
	}
	w := open(t, serve(t, s))
	const meters = `[...document.querySelectorAll("meter")].filter(m => m.value === %d).length`
	all := func(used int) {
		until(t, fmt.Sprintf("the meters show %d", used), func() bool { return evaluate[int](w, fmt.Sprintf(meters, used)) == 400 })
	}
	all(0)
	s.awaitEvents(2)
	call(w, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
	spent, nodes := w.work()
	sent := s.sent()
	const updates = 6
	for range updates {
		for _, l := range limiters {
			s.send(l, 1)
		}
		s.awaitEvents(1)
	}
	all(updates)
	more, most := w.work()
	each := (more - spent) / time.Duration(s.sent()-sent)
	t.Logf("an update of 200 policies takes %v of the tab's main thread; %d elements and texts, then %d", each, nodes, most)
	if each > time.Second/2 { // some 40 ms on a machine of 2023
		t.Errorf("an update takes %v of each second", each)
	}
	if most > nodes*2 {
		t.Errorf("the page has grown from %d to %d elements and texts", nodes, most)
	}
}

// work returns how long the main thread of the tab has been busy, and the number of nodes.
func (w *tab) work() (busy time.Duration, nodes int) {
	w.t.Helper()
	for _, m := range call(w, performance.GetMetrics, cdp.Empty{}).Metrics {
		switch m.Name {
		case "TaskDuration":
			busy = time.Duration(m.Value * float64(time.Second))
		case "Nodes":
			nodes = int(m.Value)
		}
	}
	return busy, nodes
}

// More tabs than a browser has connections to a server stay usable.
func TestManyTabs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.limiter("api", "1000/h")
	host := serve(t, s)
	p := newProfile(t)
	for range 5 {
		p.open(t, host).awaits("1000/h", 0, 1000)
	}
	s.send(l, 1)
	p.open(t, host).awaits("1000/h", 1, 1000)
}

// health asks for the health until it has a status, and returns the text.
func (s *site) health(host string, want int) (text string) {
	s.t.Helper()
	var response *http.Response
	until(s.t, fmt.Sprintf("the health has status %d", want), func() bool {
		response, text = get(s.t, host+"/health")
		return response.StatusCode == want
	}, func() string { return text })
	if response.Header.Get("Cache-Control") == "" {
		s.t.Error("a cache may keep the health")
	}
	return text
}

func TestHealth(t *testing.T) {
	t.Parallel()
	t.Run("empty", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.health(serve(t, s), http.StatusOK)
	})
	t.Run("busy", func(t *testing.T) { // a queue and a pause are no reason
		t.Parallel()
		s := newSite(t)
		l := s.limiter("api", "2/h")
		host := serve(t, s)
		s.send(l, 2)
		s.queue(l, 3, throttle.Normal)
		if err := l.Pause(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		response, text := get(t, host+"/health")
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s %s", response.Status, text)
		}
	})
	t.Run("banned", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		l := s.limiter("api", "10/h")
		s.limiter("other", "10/h")
		host := serve(t, s)
		s.health(host, http.StatusOK)
		s.ban(l)
		s.health(host, http.StatusServiceUnavailable)
		if err := l.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.health(host, http.StatusOK)
	})
	t.Run("store", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		s := newSite(t)
		s.limiter("here", "10/h")
		l := s.limiterIn(distributed.New(server.Client(), distributed.Options{}), "shared", "10/h")
		s.send(l, 1)
		host := serve(t, s)
		s.health(host, http.StatusOK)
		server.Kill()
		s.health(host, http.StatusServiceUnavailable)
		w := open(t, host)
		w.awaits("10/h", 0, 10) // that of the other policy
		server.Restart()
		s.health(host, http.StatusOK)
	})
}
