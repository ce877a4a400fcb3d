package pagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
)

// A site is a program with the page, and what it has sent to viewers.
type site struct {
	t     *testing.T
	stats *observe.Stats
	page  http.Handler

	mu      sync.Mutex // guards the rest
	answers []answer
	events  int            // events of all streams
	streams map[int]func() // what ends each stream that is open
	opened  int
	mute    bool // streams get no more than left events
	left    int
	deaf    bool // what is not a stream gets status 503
}

// An answer is what became of a request.
type answer struct {
	method, path string
	status       int
}

func newSite(t *testing.T) *site {
	t.Helper()
	stats := observe.NewStats()
	return &site{t: t, stats: stats, page: page.New(page.Options{Stats: stats}), streams: make(map[int]func())}
}

// serve serves a handler until the test ends, and returns its URL without a slash at the end.
func serve(t *testing.T, h http.Handler) (url string) {
	t.Helper()
	s := &http.Server{Handler: h}
	start(t, s, "127.0.0.1:0")
	return "http://" + s.Addr
}

// start makes the server listen, and sets its address.
func start(t *testing.T, s *http.Server, address string) {
	t.Helper()
	var l net.Listener
	until(t, "the port "+address+" is free", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", address)
		return err == nil
	})
	s.Addr = l.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	watched := &watchedWriter{ResponseWriter: w, site: s, status: http.StatusOK}
	if strings.HasSuffix(r.URL.Path, "events") {
		ctx, cancel := context.WithCancel(r.Context())
		defer s.keep(cancel)()
		r = r.WithContext(ctx)
	} else if s.isDeaf() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	s.page.ServeHTTP(watched, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, answer{r.Method, r.URL.Path, watched.status})
}

// keep remembers what ends a stream until it has ended.
func (s *site) keep(cancel func()) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	id := s.opened
	s.streams[id] = cancel
	return func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.streams, id)
	}
}

// hangUp ends all streams.
func (s *site) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, end := range s.streams {
		end()
	}
}

// open returns the number of streams.
func (s *site) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

func (s *site) isDeaf() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deaf
}

// letThrough lets n more events pass, counted over all streams. The others are lost. If deaf, the
// site also stops to answer what is not a stream.
func (s *site) letThrough(n int, deaf bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mute, s.left, s.deaf = true, n, deaf
}

// sent returns the number of events that were sent.
func (s *site) sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events
}

// awaitEvents waits until the site has sent n more events.
func (s *site) awaitEvents(n int) {
	s.t.Helper()
	n += s.sent()
	until(s.t, "the page gets events", func() bool { return s.sent() >= n })
}

// refusals returns the answers that are no success.
func (s *site) refusals() (bad []answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.answers {
		if a.status >= 400 {
			bad = append(bad, a)
		}
	}
	return bad
}

// A watchedWriter counts events. One of them may take several writes.
type watchedWriter struct {
	http.ResponseWriter
	site    *site
	status  int
	pending []byte // the beginning of a block
}

func (w *watchedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *watchedWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

func (w *watchedWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *watchedWriter) Write(p []byte) (int, error) {
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
		return w.ResponseWriter.Write(p)
	}
	w.pending = append(w.pending, p...)
	for {
		before, after, whole := bytes.Cut(w.pending, []byte("\n\n"))
		if !whole {
			return len(p), nil
		}
		block := bytes.Clone(w.pending[:len(before)+2])
		w.pending = bytes.Clone(after)
		isEvent := bytes.HasPrefix(block, []byte("data:")) || bytes.Contains(block, []byte("\ndata:"))
		if isEvent && !w.site.pass() {
			continue
		}
		if _, err := w.ResponseWriter.Write(block); err != nil {
			return 0, err
		}
		if isEvent {
			w.site.mu.Lock()
			w.site.events++
			w.site.mu.Unlock()
		}
	}
}

// pass reports whether one more event may be sent.
func (s *site) pass() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left--
	return !s.mute || s.left >= 0
}

// limiter returns a watched limiter of a policy.
func (s *site) limiter(name, spec string) *throttle.Limiter {
	s.t.Helper()
	return s.limiterIn(nil, name, spec)
}

// limiterIn returns a watched limiter of a policy that a store keeps.
func (s *site) limiterIn(store throttle.Store, name, spec string) *throttle.Limiter {
	s.t.Helper()
	p, err := throttle.ParsePolicy("p", spec)
	if err != nil {
		s.t.Fatal(err)
	}
	p.Name, p.Observer = name, s.stats.Observer()
	l, err := throttle.New(p, store)
	if err == nil {
		err = s.stats.Watch(name, l)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(l.Close)
	return l
}

// pool returns a watched pool, whose members are names and policies. Two of them have a rank.
func (s *site) pool(name string, members ...string) *throttle.Pool {
	s.t.Helper()
	pool, err := throttle.NewPool()
	if err != nil {
		s.t.Fatal(err)
	}
	pool.Name, pool.Observer = name, s.stats.Observer()
	for i := 0; i < len(members); i += 2 {
		p, err := throttle.ParsePolicy("p", members[i+1])
		if err != nil {
			s.t.Fatal(err)
		}
		l, err := throttle.New(p, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(l.Close)
		if err := pool.Add(throttle.Member{Name: members[i], Limiter: l, Rank: i / 4, Weight: 1 + i}); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := s.stats.WatchPool(name, pool); err != nil {
		s.t.Fatal(err)
	}
	return pool
}

// send sends n requests that need not wait.
func (s *site) send(l *throttle.Limiter, n int) {
	s.t.Helper()
	for range n {
		if err := l.Wait(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
}

// refuse sends n requests, most of which are refused.
func (s *site) refuse(l *throttle.Limiter, n int) {
	s.t.Helper()
	for range n {
		_ = l.Wait(s.t.Context())
	}
}

// queue makes n requests of a class wait until the test ends.
func (s *site) queue(l *throttle.Limiter, n int, class throttle.Class) {
	s.t.Helper()
	status, err := l.Status(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(throttle.WithClass(context.Background(), class))
	var done sync.WaitGroup
	for range n {
		done.Go(func() { _ = l.Wait(ctx) })
	}
	s.t.Cleanup(func() { cancel(); done.Wait() })
	until(s.t, "the requests wait", func() bool {
		now, err := l.Status(s.t.Context())
		return err == nil && now.Waiting == status.Waiting+n
	})
}

// ban makes the provider close the quota for hours.
func (s *site) ban(l *throttle.Limiter) {
	s.t.Helper()
	client := &http.Client{Transport: &throttle.Transport{Limiter: l, Base: refuses{}}}
	response, err := client.Get("http://provider.example/")
	if err != nil {
		s.t.Fatal(err)
	}
	response.Body.Close()
	if status, err := l.Status(s.t.Context()); err != nil || status.Closed < time.Hour {
		s.t.Fatalf("the quota is not closed: %v, %v", status, err)
	}
}

// refuses is a provider that bans.
type refuses struct{}

func (refuses) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"7200"}}, Body: http.NoBody,
		ProtoMajor: 1, ProtoMinor: 1, Request: r,
	}, nil
}

// get requests a URL without a browser.
func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	return request(t, http.MethodGet, url)
}

func request(t *testing.T, method, url string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(response.Body); err != nil {
		t.Fatal(err)
	}
	return response, body.String()
}

// meter returns the meter of a tier, by its text such as "1000/h", which the page may write as "1,000/h".
func (w *tab) meter(tier string) (node, bool) {
	w.t.Helper()
	for _, m := range w.nodes("meter") {
		if strings.Contains(ungrouped(m.name), tier) {
			return m, true
		}
	}
	return node{}, false
}

// ungrouped removes the commas of numbers.
func ungrouped(text string) string { return strings.ReplaceAll(text, ",", "") }

// shows reports whether the meter of a tier shows that so much of its limit is used.
func (w *tab) shows(tier string, used, limit float64) bool {
	w.t.Helper()
	m, ok := w.meter(tier)
	var value, most float64
	if _, err := fmt.Sscan(m.value, &value); !ok || err != nil {
		return false
	}
	if _, err := fmt.Sscan(m.max, &most); err != nil || most == 0 {
		return false
	}
	share := value / most
	return share > used/limit-1e-6 && share < used/limit+1e-6
}

// awaits waits until the meter of a tier shows that so much of its limit is used.
func (w *tab) awaits(tier string, used, limit float64) {
	w.t.Helper()
	until(w.t, fmt.Sprintf("the meter of %s shows %v of %v", tier, used, limit),
		func() bool { return w.shows(tier, used, limit) },
		func() string { return fmt.Sprintf("meters: %+v\n%s", w.nodes("meter"), w.text()) })
}
