//go:build unix

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// An answer is what the proxy has answered.
type answer struct {
	status int
	header http.Header
	body   string

	Policy, Tier, Reason, Detail string // of a refusal
}

// direct follows no redirects.
var direct = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// get sends a request with a header such as "X-Throttle-Token: web", and returns the answer.
func (p *process) get(ctx context.Context, path string, headers ...string) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, "GET", p.url+path, nil)
	if err != nil {
		return a, err
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	resp, err := direct.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	a.status, a.header, a.body = resp.StatusCode, resp.Header, string(body)
	if resp.Header.Get("Content-Type") == "application/problem+json" && err == nil {
		err = json.Unmarshal(body, &a)
	}
	return a, err
}

// must is like get. A request without an answer ends the test.
func (p *process) must(path string, headers ...string) answer {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	a, err := p.get(ctx, path, headers...)
	if err != nil {
		p.t.Fatalf("%s has no answer: %v", path, err)
	}
	return a
}

// The tokens of clients in files of these tests.
const (
	webToken = "X-Throttle-Token: web-web-web-web-web"
	jobToken = "X-Throttle-Token: job-job-job-job-job"
)

// clientsFile returns a file with a route at /api and two clients.
func clientsFile(api, route, web string) string {
	return fmt.Sprintf("routes:\n  /api: {to: %q, %s}\nclients:\n  web: {token: web-web-web-web-web%s}\n  job: {token: job-job-job-job-job}\n", api, route, web)
}

// around are the limits around a route, which must not change its bounds.
var around = []struct{ name, route, web string }{
	{"no budget", "", ""},
	{"a budget of the route", ", budget: 1000/day;budget=true", ""},
	{"a budget of the client", "", ", budget: 1000/day;budget=true"},
	{"budgets of both", ", budget: 1000/day;budget=true", ", budget: 1000/day;budget=true"},
	{"aging, headroom and a guard", "", ", budget: \"1000/day;budget=true | aging=1m;headroom=50;guard=1s\""},
}

// TestProxyMaxWaitOfClients checks that a request which would wait longer than the max_wait of its route
// is refused, whatever budgets count it.
func TestProxyMaxWaitOfClients(t *testing.T) {
	for _, c := range around {
		t.Run(c.name, func(t *testing.T) {
			api := throttletest.NewProvider(throttle.PerHour(100))
			defer api.Close()
			p := startProxy(t, clientsFile(api.URL, "policy: 2/s, max_wait: 500ms"+c.route, c.web))
			var wg sync.WaitGroup
			var refused atomic.Int64
			for range 40 {
				wg.Go(func() {
					a, err := p.get(t.Context(), "/api/x", webToken)
					waited, _ := strconv.ParseFloat(a.header.Get("X-Throttle-Waited"), 64)
					switch {
					case err != nil || a.status != 200 && a.Reason != "deadline":
						t.Errorf("status %d, reason %q, %v", a.status, a.Reason, err)
					case waited > 8: // all 40 take 19 s
						t.Errorf("a request has waited for %v s", waited)
					case a.status == 429:
						refused.Add(1)
					}
				})
			}
			wg.Wait()
			if n := refused.Load(); n == 0 {
				t.Error("no request was refused")
			}
		})
	}
}

// TestProxyMaxQueueOfClients checks that a request behind max_queue others of its route is refused at
// once, whatever budgets count it.
func TestProxyMaxQueueOfClients(t *testing.T) {
	for _, c := range around {
		t.Run(c.name, func(t *testing.T) {
			api := throttletest.NewProvider(throttle.PerHour(100))
			defer api.Close()
			p := startProxy(t, clientsFile(api.URL, "policy: 1/h, max_queue: 3"+c.route, c.web))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			answers := make(chan answer, 10)
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					if a, err := p.get(ctx, "/api/x", webToken); err == nil {
						answers <- a
					}
				})
			}
			for i := range 7 { // one is sent and three wait
				select {
				case a := <-answers:
					if a.status != 200 && a.Reason != "queue_full" {
						t.Errorf("status %d, reason %q", a.status, a.Reason)
					}
				case <-ctx.Done():
					t.Fatalf("%d answers, want 7", i)
				}
			}
			cancel()
			wg.Wait()
		})
	}
}

// TestProxyBoundsOfRoute checks that the max_wait of a route bounds the wait for a client's own limits,
// too, and that the refusal names them.
func TestProxyBoundsOfRoute(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerHour(100))
	defer api.Close()
	p := startProxy(t, clientsFile(api.URL, "policy: 100/s, max_wait: 2s", ", policy: 1/h"))
	if a := p.must("/api/x", webToken); a.status != 200 {
		t.Error(a)
	}
	a := p.must("/api/x", webToken)
	if a.status != 429 || a.Reason != "deadline" || a.Policy != "client:web" || a.Tier != "1/h" || !strings.Contains(a.Detail, `policy "client:web": the wait would outlast MaxWait: 59m`) {
		t.Errorf("%+v", a)
	}
}

// TestProxyNamesClient checks that a spent budget of a client names the client: in the refusal, the log,
// the metrics, the page and status.
func TestProxyNamesClient(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerHour(100))
	defer api.Close()
	p := startProxy(t, clientsFile(api.URL, "policy: 1000/s", ", budget: \"1/day;budget=true | alert_at=100\""), "--access-log")
	if a := p.must("/api/x", webToken); a.status != 200 {
		t.Error(a)
	}
	if a := p.must("/api/x", webToken); a.Reason != "exhausted" || a.Policy != "client:web" || !strings.Contains(a.Detail, `policy "client:web"`) {
		t.Errorf("%+v", a)
	}
	if a := p.must("/api/x", jobToken); a.status != 200 || a.header.Get("X-Throttle-Policy") != "api" {
		t.Error(a)
	}
	if a := p.must("/api/x", "X-Throttle-Token: nobody"); a.status != 401 {
		t.Error(a)
	}
	for _, line := range []string{
		`msg=request method=GET route=/api client=web status=200`, `route=/api client=web status=429`,
		`route=/api client=job status=200`, `route="" client="" status=401`, `msg="a budget is used" policy=client:web`,
	} {
		p.logged(line)
	}
	for path, want := range map[string]string{
		"/_throttle/metrics":    `throttle_requests_total{policy="client:web",class="normal",result="exhausted"} 1`,
		"/_throttle/state.json": `"name":"client:web","condition":"spent","watched":true`,
	} {
		if a := p.must(path); !strings.Contains(a.body, want) {
			t.Errorf("%s lacks %s:\n%s", path, want, a.body)
		}
	}
	var out, errs strings.Builder
	system := System{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		Getenv: func(string) string { return "" }, Environ: func() []string { return nil },
	}
	if code := Main(t.Context(), system, []string{"status", "--page", p.url + "/_throttle/"}); code != exitOK {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	if text := out.String(); !strings.Contains(text, "client:web") || !strings.Contains(text, "api") || strings.Contains(text, "clients") {
		t.Error(text)
	}
}

// A storm is many requests whose answers are counted.
type storm struct {
	wg     sync.WaitGroup
	cancel context.CancelFunc
	// answered has the answers.
	answered chan answer
}

// storm sends n requests at once.
func (p *process) storm(n int, path string, headers ...string) *storm {
	ctx, cancel := context.WithCancel(p.t.Context())
	s := &storm{cancel: cancel, answered: make(chan answer, n)}
	for range n {
		s.wg.Go(func() {
			if a, err := p.get(ctx, path, headers...); err == nil {
				s.answered <- a
			}
		})
	}
	p.t.Cleanup(s.end)
	return s
}

// end cancels the requests that wait.
func (s *storm) end() {
	s.cancel()
	s.wg.Wait()
}

// next returns the next answer.
func (s *storm) next(t *testing.T) answer {
	t.Helper()
	select {
	case a := <-s.answered:
		return a
	case <-time.After(20 * time.Second):
		t.Fatal("no answer comes")
		return answer{}
	}
}

// logged waits until the log has a text.
func (p *process) logged(text string) {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); !strings.Contains(p.log.String(), text); runtime.Gosched() {
		if time.Now().After(end) {
			p.t.Errorf("the log lacks %s:\n%s", text, p.log)
			return
		}
	}
}

// waiting waits until n requests of a policy wait.
func (p *process) waiting(policy string, n int) {
	p.t.Helper()
	want := fmt.Sprintf("throttle_queued_requests{policy=%q,class=\"normal\"} %d\n", policy, n)
	for end := time.Now().Add(20 * time.Second); !strings.Contains(p.must("/_throttle/metrics").body, want); {
		if time.Now().After(end) {
			p.t.Fatalf("%d requests of %s do not wait", n, policy)
		}
	}
}

// TestProxyClientHoldsUpNoOther checks that requests which wait for their client's own limits take no
// place of another client's requests.
func TestProxyClientHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for _, web := range []string{", policy: 1/h", ", policy: 1/h, budget: 1000/day;budget=true", ", policy: 1;algo=concurrency"} {
		api := slowAPI(t)
		p := startProxy(t, clientsFile(api, "policy: 1000/s, max_queue: 30", web))
		s := p.storm(21, "/api/slow", webToken)
		p.waiting("client:web", 20)
		for range 40 {
			if a := p.must("/api/x", jobToken); a.status != 200 {
				t.Fatalf("%s: another client: %+v", web, a)
			}
		}
		s.end()
	}
}

// slowAPI returns the address of an API that answers requests for /slow when they are canceled.
func slowAPI(t *testing.T) string {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
		}
	}))
	t.Cleanup(api.Close)
	return api.URL
}

// TestProxyLimitsOfClient checks the limits of a client, which count over all routes.
func TestProxyLimitsOfClient(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerHour(1000))
	defer api.Close()
	p := startProxy(t, fmt.Sprintf(`
routes:
  /a: {to: %q, policy: 1000/s}
  /b: {to: %q, policy: 1000/s, max_queue: 100}
clients:
  web: {token: web-web-web-web-web, policy: 3/h, budget: "1000/day;budget=true", max_wait: 2h, max_queue: 2}
  job: {token: job-job-job-job-job, policy: 1/h, max_wait: 1s}
`, api.URL, api.URL))
	for _, path := range []string{"/a/x", "/b/x", "/a/x"} {
		if a := p.must(path, webToken); a.status != 200 {
			t.Errorf("%s: %+v", path, a)
		}
	}
	s := p.storm(6, "/b/x", webToken) // two wait
	for range 4 {
		if a := s.next(t); a.Reason != "queue_full" || a.Policy != "client:web" {
			t.Errorf("%+v", a)
		}
	}
	s.end()
	if a := p.must("/a/x", jobToken); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if a := p.must("/b/x", jobToken); a.Reason != "deadline" || a.Policy != "client:job" || a.Tier != "1/h" {
		t.Errorf("%+v", a)
	}
}

// TestProxyReloadIsWhole checks that a file with a problem changes nothing, not even the routes before
// the one with the problem.
func TestProxyReloadIsWhole(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerSecond(200))
	defer api.Close()
	p := startProxy(t, fmt.Sprintf("routes: {/a: {to: %q, policy: 2/h, max_wait: 1s}}\n", api.URL))
	for range 2 {
		if a := p.must("/a/x"); a.status != 200 {
			t.Error(a)
		}
	}
	p.write(fmt.Sprintf("routes: {/a: {to: %q, policy: 10/h, max_wait: 1s}, /b: {to: %q, policy: 5/s | shadow=true}}\n", api.URL, api.URL))
	p.reload(1)
	if a := p.must("/a/x"); a.status != 429 || a.Tier != "2/h" {
		t.Errorf("after a reload that failed: status %d, tier %q, want the limits of before", a.status, a.Tier)
	}
	if !strings.Contains(p.log.String(), "the old one stays") {
		t.Error(p.log)
	}
}

// TestProxyReloadKeepsOrderOfClients checks that requests which wait keep their places when the limits of
// a client, a budget or a route change.
func TestProxyReloadKeepsOrderOfClients(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerHour(100))
	defer api.Close()
	file := func(n int) string {
		return clientsFile(api.URL, fmt.Sprintf("policy: %d/h, budget: %d/day;budget=true", 1+n, 1000+n), fmt.Sprintf(", policy: %d/h, budget: %d/day;budget=true", 1+n, 900+n))
	}
	p := startProxy(t, file(0))
	answered := make(chan string, 10)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer p.stop()
	send := func(name string) {
		wg.Go(func() {
			if a, err := p.get(t.Context(), "/api/"+name, webToken); err == nil && a.status == 200 {
				answered <- name
			}
		})
	}
	send("0")
	if got := <-answered; got != "0" {
		t.Fatal(got)
	}
	for i := range 3 {
		send(fmt.Sprint(i + 1))
		p.waiting("client:web", i+1)
	}
	for i := range 3 {
		p.write(file(i + 1))
		p.reload(i + 1)
		if got := <-answered; got != fmt.Sprint(i+1) {
			t.Errorf("request %s went after reload %d", got, i+1)
		}
	}
}

func TestAmountsOfAlerts(t *testing.T) {
	for tier, want := range map[string]string{"$5/month": "$4.05", "5/day;budget=true": "4050000000", "no tier": "4050000000"} {
		if got := amount(tier, 4_050_000_000); got != want {
			t.Errorf("%s: %s, want %s", tier, got, want)
		}
	}
}
