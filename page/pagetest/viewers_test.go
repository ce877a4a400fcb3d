package pagetest

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// goroutines returns how many goroutines of the page serve requests, and how many others there are.
func goroutines() (serving, others int) {
	buf := make([]byte, 16<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		switch {
		case !strings.Contains(stack, "apithrottle/throttle/page."):
		case strings.Contains(stack, "net/http.(*conn).serve("):
			serving++
		default:
			others++
		}
	}
	return serving, others
}

// nobodyLooks waits until the page has no goroutine.
func nobodyLooks(t *testing.T) {
	t.Helper()
	until(t, "the page's goroutines end", func() bool {
		serving, others := goroutines()
		return serving+others == 0
	})
}

// A counted store counts how often it is asked for the status of a quota.
type counted struct {
	*local.Store
	asked *atomic.Int64
}

type countedQuota struct {
	store.Quota
	asked *atomic.Int64
}

func (s counted) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return countedQuota{q, s.asked}, err
}

func (q countedQuota) Status(ctx context.Context) (store.Status, error) {
	q.asked.Add(1)
	return q.Quota.Status(ctx)
}

// These tests are not parallel: the goroutines are the process's. Two tabs share one goroutine, and
// none is left without a tab.
func TestGoroutines(t *testing.T) {
	s := newSite(t)
	s.limiter("api", "1000/h")
	host := serve(t, s)
	nobodyLooks(t)
	p := newProfile(t)
	var tabs []*tab
	for range 2 {
		w := p.open(t, host)
		w.awaits("1000/h", 0, 1000)
		tabs = append(tabs, w)
	}
	s.awaitEvents(4)
	if serving, others := goroutines(); serving > 2 || others > 1 {
		t.Errorf("two tabs have %d goroutines that serve and %d others, want 2 and 1", serving, others)
	}
	tabs[0].navigate("about:blank") // leaves, and may come back
	s.awaitEvents(2)
	until(t, "one viewer is left", func() bool { serving, others := goroutines(); return serving == 1 && others <= 1 })
	tabs[1].close()
	nobodyLooks(t)
}

// Viewers without a browser cost no more questions than one, and none when they are gone.
func TestViewers(t *testing.T) {
	s := newSite(t)
	var asked atomic.Int64
	l := s.limiterIn(counted{local.New(), &asked}, "api", "1000/h")
	s.send(l, 1)
	host := serve(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked.Store(0)
	const viewers, each = 50, 4
	var watching, all sync.WaitGroup
	watching.Add(viewers)
	for range viewers {
		all.Go(func() {
			defer watching.Done()
			stream := events(ctx, host)
			if stream == nil {
				t.Error("a viewer gets no stream")
				return
			}
			all.Go(func() { <-ctx.Done(); stream.Close() })
			for lines, n := bufio.NewScanner(stream), 0; n < each; {
				if !lines.Scan() {
					t.Errorf("a viewer gets %d events: %v", n, lines.Err())
					return
				}
				if strings.HasPrefix(lines.Text(), "data:") {
					n++
				}
			}
		})
	}
	watching.Wait()
	if serving, others := goroutines(); serving > viewers || others > 1 {
		t.Errorf("%d viewers have %d goroutines that serve and %d others, want one", viewers, serving, others)
	}
	if n := asked.Load(); n > viewers { // each viewer may come in its own moment
		t.Errorf("%d viewers with %d events each ask the store %d times", viewers, each, n)
	}
	cancel()
	all.Wait()
	nobodyLooks(t)
	before := asked.Load()
	if get(t, host+"/health"); asked.Load() > before+1 {
		t.Errorf("the store was asked %d times while nobody looked", asked.Load()-before)
	}
}

// events opens a stream, or returns nil.
func events(ctx context.Context, host string) io.ReadCloser {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/events", nil)
	if err != nil {
		return nil
	}
	response, err := (&http.Transport{}).RoundTrip(req) // with a connection of its own
	if err != nil || response.StatusCode != http.StatusOK {
		return nil
	}
	return response.Body
}

// A viewer that does not read holds up nobody.
func TestSlowViewer(t *testing.T) {
	s := newSite(t)
	s.limiter("api", "1000/h")
	stuck := make(chan struct{})
	host := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("slow") {
			w = slowWriter{w, stuck}
		}
		s.ServeHTTP(w, r)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	var slow sync.WaitGroup
	slow.Go(func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/events?slow", nil)
		if err != nil {
			t.Error(err)
			return
		}
		if response, err := (&http.Transport{}).RoundTrip(req); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
	})
	until(t, "the slow viewer is there", func() bool { serving, _ := goroutines(); return serving == 1 })
	w := open(t, host)
	w.awaits("1000/h", 0, 1000)
	s.awaitEvents(3)
	cancel()
	close(stuck)
	slow.Wait()
	w.close()
	nobodyLooks(t)
}

// A slowWriter does not write.
type slowWriter struct {
	http.ResponseWriter
	end chan struct{}
}

func (w slowWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w slowWriter) Write(p []byte) (int, error) {
	<-w.end
	return w.ResponseWriter.Write(p)
}

// The page is small, safe and read-only.
func TestHTTP(t *testing.T) {
	s := newSite(t)
	l := s.limiter("api", "1000/h")
	s.send(l, 1)
	host := serve(t, s)
	response, html := get(t, host+"/")
	policy := response.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the Content-Security-Policy %q lacks %s", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") || strings.Contains(policy, "*") {
		t.Errorf("the Content-Security-Policy is %q", policy)
	}
	if found := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|javascript:|<script>|https?://[^w']`).FindString(html); found != "" {
		t.Errorf("the page has %q", found)
	}
	size := len(html)
	for _, reference := range regexp.MustCompile(`(?:src|href)="([^":#]+)"`).FindAllStringSubmatch(html, -1) {
		path := strings.TrimPrefix(reference[1], ".")
		response, body := get(t, host+path)
		if response.StatusCode != http.StatusOK || response.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %s %v", path, response.Status, response.Header)
		}
		if kind := response.Header.Get("Content-Type"); strings.Contains(kind, "javascript") || strings.Contains(kind, "css") {
			size += len(body)
			if response.Header.Get("ETag") == "" {
				t.Errorf("%s has no ETag", path)
			}
		}
	}
	t.Logf("the page and its files have %d bytes", size)
	if size > 40_000 {
		t.Errorf("the page and its files have %d bytes, want 40,000 at most", size)
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		for _, path := range []string{"/", "/events", "/state.json", "/health"} {
			if response, _ := request(t, method, host+path); response.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %s", method, path, response.Status)
			}
		}
	}
	for _, path := range []string{"/nothing", "/a/nothing", "/page.go", "/assets", "/..%2fpage.go"} {
		if response, _ := get(t, host+path); response.StatusCode < 400 {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
	if status, err := l.Status(t.Context()); err != nil || status.Tiers[0].Used != 1 || throttle.Class(0) != throttle.Normal {
		t.Errorf("the page has changed the quota: %v, %v", status, err)
	}
}
