//go:build unix

package cli

import (
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/page"
	"github.com/apithrottle/throttle/throttletest"

	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
)

// silentServer accepts connections and never answers. It returns its address.
func silentServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(io.Discard, conn)
			})
		}
	})
	t.Cleanup(func() { l.Close() }) // the proxy ends before, and with it its connections
	return l.Addr().String()
}

// fetch returns the status and the body of a page.
func fetch(t *testing.T, url string) (status int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestProxySilentStore checks that the first requests to a proxy whose Redis accepts connections and
// does not answer are refused because of the store, not because of a limit.
func TestProxySilentStore(t *testing.T) {
	t.Parallel()
	p := startProxy(t, fmt.Sprintf("store: {redis: \"redis://%s\"}\nroutes:\n  /a: {to: \"http://127.0.0.1:1\", policy: 1000/s, max_wait: 300ms}\n", silentServer(t)))
	var wg sync.WaitGroup
	var mu sync.Mutex
	reasons := make(map[string]int)
	for range 20 {
		wg.Go(func() {
			status, body := fetch(t, p.url+"/a/x")
			var problem struct{ Reason string }
			if err := json.Unmarshal([]byte(body), &problem); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			reasons[fmt.Sprint(status, " ", problem.Reason)]++
		})
	}
	wg.Wait()
	if reasons["503 unavailable"] != 20 {
		t.Errorf("got %v, want 20 of 503 unavailable", reasons)
	}
}

// stateOf returns the state that the page of a proxy shows.
func stateOf(t *testing.T, url string) (s page.State) {
	t.Helper()
	if _, body := fetch(t, url+"/_throttle/state.json"); json.Unmarshal([]byte(body), &s) != nil {
		t.Fatal(body)
	}
	return s
}

// policyOf returns a policy of a state.
func policyOf(s page.State, name string) page.Policy {
	for _, p := range s.Policies {
		if p.Name == name {
			return p
		}
	}
	return page.Policy{Name: "no " + name}
}

// TestProxyHealthBeforeRequests checks that health reports a Redis that does not answer before the first
// request, with the routes that are known, and also if no route is.
func TestProxyHealthBeforeRequests(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ routes, want string }{
		"policy":       {`/a: {to: "https://a.example", policy: 5/s}`, `"watched":1,"store":"Redis at ADDR","problems":[{"policy":"a","problem":"unavailable"}]`},
		"whole preset": {`/n: {to: "https://api.notion.com", preset: notion}`, `"watched":1,"store":"Redis at ADDR","problems":[{"policy":"n","problem":"unavailable"}]`},
		"outer scope":  {`/g: {to: "https://api.github.com", preset: github}`, `"watched":1,"store":"Redis at ADDR","problems":[{"policy":"g","problem":"unavailable"}]`},
		"only keys":    {`/o: {to: "https://api.openai.com", preset: openai, with: {requests: 1, tokens: 1}}`, `"watched":0,"store":"Redis at ADDR","problems":[{"policy":"","problem":"unavailable"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := silentServer(t)
			p := startProxy(t, fmt.Sprintf("store: {redis: \"redis://user:canary@%s\"}\nroutes:\n  %s\n", addr, test.routes))
			status, body := fetch(t, p.url+"/_throttle/health")
			if want := strings.ReplaceAll(test.want, "ADDR", addr); status != 503 || !strings.Contains(body, want) {
				t.Errorf("got %d %s, want 503 with %s", status, body, want)
			}
			if shown := stateOf(t, p.url); len(shown.Policies) != 1 || strings.Contains(fmt.Sprint(shown), "canary") {
				t.Errorf("the page shows %+v", shown)
			}
		})
	}
}

// TestProxyKnowsBeforeRequests checks that a proxy that has just begun shows what an earlier one has used
// of its routes and of its clients' budgets, and that a reload adds and removes routes.
func TestProxyKnowsBeforeRequests(t *testing.T) {
	t.Parallel()
	api := throttletest.NewProvider(throttle.PerSecond(200))
	defer api.Close()
	file := func(routes string) string {
		return fmt.Sprintf("store: {file: %q}\nroutes:\n%s\nclients: {c: {token: \"${env:TOKEN}\", budget: \"3/day;budget=true\"}}\n",
			filepath.Join(t.TempDir(), "q.db"), strings.ReplaceAll(routes, "API", api.URL))
	}
	text := file(`  /a: {to: "API", policy: "5/s", name: shared, budget: "3/month;budget=true"}
  /n: {to: "API", preset: notion, any_host: true, budget: "9/day;budget=true"}
  /m: {to: "API", preset: airtable, any_host: true}`)
	first := startProxy(t, text)
	for _, path := range []string{"/a/x", "/n/x", "/m/v0/base/table"} {
		req, err := http.NewRequest("GET", first.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Throttle-Token", "canary-canary-canary")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
	}
	awaitPolicy(t, first.url, "m")
	if tiers := policyOf(stateOf(t, first.url), "m").Tiers; slices.ContainsFunc(tiers, func(t page.Tier) bool { return t.Policy != "m/user" && t.Policy != "m/base" }) {
		t.Errorf("the route shows the limits of a client: %+v", tiers)
	}
	first.stop()
	if code := <-first.code; code != exitOK {
		t.Fatal(code)
	}
	first.code <- exitOK
	p := startProxy(t, text)
	check := func(name, want string) {
		t.Helper()
		var used []string
		found := policyOf(stateOf(t, p.url), name)
		for _, tier := range found.Tiers {
			if !strings.HasSuffix(tier.Tier, "/s") { // after a second it is unused
				used = append(used, fmt.Sprintf("%s %d", tier.Tier, tier.Used))
			}
		}
		if got := strings.Join(used, ", "); got != want {
			t.Errorf("%s shows %q, want %q", name, got, want)
		}
		if note := strings.Contains(found.Note, "first request"); note != (name == "m") {
			t.Errorf("%s has the note %q", name, found.Note)
		}
	}
	check("shared", "3/month;budget=true 1")
	check("n", "180/m 1, 9/day;budget=true 1")
	check("m", "")
	check("client:c", "3/day;budget=true 3")
	_, body := fetch(t, p.url+"/_throttle/metrics")
	if !strings.Contains(body, `throttle_tier_usage{policy="shared",tier="3/month;budget=true",unit="requests",tier_policy="shared:budget"} 1`) {
		t.Error(body)
	}
	p.write(strings.ReplaceAll(strings.ReplaceAll(text, "  /n:", "  /new:"), "policy: \"5/s\"", "policy: \"4/s\""))
	p.reload(1)
	awaitPolicy(t, p.url, "new")
	check("new", "180/m 0, 9/day;budget=true 0")
	if s := stateOf(t, p.url); policyOf(s, "n").Watched || len(s.Policies) != 4 {
		t.Errorf("%d policies", len(s.Policies))
	}
}

// awaitPolicy waits until the page shows a policy: a state is kept for a second.
func awaitPolicy(t *testing.T, url, name string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); policyOf(stateOf(t, url), name).Name != name; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the page never shows %s", name)
		}
	}
}

// TestProxyTooManyRoutes checks that the log and the page say which routes are not watched.
func TestProxyTooManyRoutes(t *testing.T) {
	var b strings.Builder
	b.WriteString("routes:\n")
	for i := range 203 {
		fmt.Fprintf(&b, "  /r%03d: {to: \"https://a.example\", policy: 5/s}\n", i)
	}
	p := startProxy(t, b.String())
	if log := p.log.String(); !strings.Contains(log, "routes=3 first=r200 watched=200") {
		t.Error(log)
	}
	if s := stateOf(t, p.url); s.Note != "3 routes, such as r200, have no tiers here and in the metrics: 200 others are watched." {
		t.Errorf("%q", s.Note)
	}
}

// TestProxyPagesListen checks an address of the pages alone.
func TestProxyPagesListen(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerSecond(200))
	defer api.Close()
	p := startProxy(t, fmt.Sprintf("routes: {/a: {to: %q, policy: 5/s}, /: {to: %q, policy: 5/s, name: rest}}\nobservability: {listen: \"127.0.0.1:0\", page: false}\n", api.URL, api.URL))
	pages := "http://" + p.log.wait(1, `msg="the pages listen" address=(\S+)`)[1]
	fetch(t, p.url+"/a/x")
	for _, test := range []struct {
		url    string
		status int
		want   string
	}{
		{pages + "/_throttle/live", 200, "ok\n"},
		{pages + "/_throttle/health", 200, `"watched":2`},
		{pages + "/_throttle/metrics", 200, `throttle_upstream_responses_total{route="/a",status="2xx"} 1`},
		{pages + "/_throttle/state.json", 404, "no such page"}, // page: false
		{pages + "/a/x", 404, "the proxy's own pages alone"},
		{pages + "/", 404, "the proxy's own pages alone"},
		{p.url + "/_throttle/live", 404, "observability.listen"},
		{p.url + "/_throttle/metrics", 404, "observability.listen"},
	} {
		if status, body := fetch(t, test.url); status != test.status || !strings.Contains(body, test.want) {
			t.Errorf("%s: got %d %s, want %d with %s", test.url, status, body, test.status, test.want)
		}
	}
	for header, status := range map[string]int{"Host: evil.example": 421, "X-Forwarded-For: 192.0.2.1": 403} {
		req, err := http.NewRequest("GET", pages+"/_throttle/live", nil)
		if err != nil {
			t.Fatal(err)
		}
		name, value, _ := strings.Cut(header, ": ")
		if req.Header.Set(name, value); name == "Host" {
			req.Host = value
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != status {
			t.Errorf("with %s: status %d, want %d", header, resp.StatusCode, status)
		}
	}
}

// TestProxyPagesListenElsewhere checks an address that other machines can reach, by any name and through
// other proxies.
func TestProxyPagesListenElsewhere(t *testing.T) {
	p := startProxy(t, "routes: {/a: {to: \"https://a.example\", policy: 5/s}}\nobservability: {listen: \"0.0.0.0:0\"}\n")
	_, port, err := net.SplitHostPort(p.log.wait(1, `msg="the pages listen" address=(\S+)`)[1])
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest("GET", "http://127.0.0.1:"+port+"/_throttle/state.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "pod.example"
	req.Header.Set("X-Forwarded-For", "192.0.2.1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

// TestProxyPauses checks that requests with the token pause and resume a route, and that the page shows
// why.
func TestProxyPauses(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerSecond(200))
	defer api.Close()
	text := fmt.Sprintf(`routes:
  /a: {to: %q, policy: 100/s, name: acme, max_wait: 1s}
  /o: {to: "https://api.openai.com", preset: openai, with: {requests: 5, tokens: 5}}
observability: {control_token: "${env:TOKEN}"}
`, api.URL)
	p := startProxy(t, text)
	post := func(verb, token, kind, body string, status int, want string) {
		t.Helper()
		req, err := http.NewRequest("POST", p.url+"/_throttle/"+verb, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", kind)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, _ := io.ReadAll(resp.Body); resp.StatusCode != status || !strings.Contains(string(got), want) || strings.Contains(string(got), "canary") {
			t.Errorf("%s %s: got %d %s, want %d with %s", verb, body, resp.StatusCode, got, status, want)
		}
	}
	const token, asJSON, asForm = "canary-canary-canary", "application/json", "application/x-www-form-urlencoded"
	post("pause", "canary-canary-canarz", asJSON, `{"name":"acme","for":"1h"}`, 401, "observability.control_token")
	post("pause", token, asJSON, `{"name":"acme"}`, 400, "for is")
	post("pause", token, asJSON, `{"name":"acme","for":"0s"}`, 400, "for is")
	post("pause", token, asJSON, `{"name":"acme","for":"1h","else":1}`, 400, "neither a form nor JSON")
	post("pause", token, asForm, `name=acme&for=1h&else=1`, 400, "the form is not valid")
	post("pause", token, asForm, `{"name":"acme","for":"1h"}`, 400, "send Content-Type: application/json")
	post("pause", token, asJSON, `{"for":"1h"}`, 400, "name is missing")
	post("pause", token, asJSON, `{"name":"acm","for":"1h"}`, 404, "the names are acme, o.")
	post("pause", token, asJSON, `{"name":"o","for":"1h"}`, 409, "counts each model")
	post("resume", token, asJSON, `{"name":"acme","for":"1h"}`, 400, "leave them out")
	if status, body := fetch(t, p.url+"/_throttle/pause"); status != 405 {
		t.Error(status, body)
	}
	if status, _ := fetch(t, p.url+"/a/x"); status != 200 {
		t.Errorf("before the pause: %d", status)
	}
	post("pause", token, asJSON, `{"name":"acme","for":"1h","reason":"maintenance <b>"}`, 200, `"name":"acme","paused_seconds":3`)
	if status, body := fetch(t, p.url+"/a/x"); status != 429 {
		t.Errorf("while paused: %d %s", status, body)
	}
	var shown page.Policy
	for end := time.Now().Add(time.Minute); shown.Note == "" && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		shown = policyOf(stateOf(t, p.url), "acme") // a state is kept for a second
	}
	if shown.Condition != page.Paused || shown.Note != "Paused by request: maintenance <b>" {
		t.Errorf("the page shows %+v", shown)
	}
	post("resume", token, asForm, `name=%2Fa`, 200, `"name":"acme","paused_seconds":0,"was_paused_seconds":`)
	if status, body := fetch(t, p.url+"/a/x"); status != 200 {
		t.Errorf("after the pause: %d %s", status, body)
	}
	if log := p.log.String(); strings.Contains(log, "canary") || !strings.Contains(log, "verb=pause name=acme") {
		t.Error(log)
	}
	without := startProxy(t, fmt.Sprintf("routes: {/a: {to: %q, policy: 5/s}}\n", api.URL))
	if p.url = without.url; p.url != "" {
		post("pause", token, asJSON, `{"name":"a","for":"1h"}`, 404, "no observability.control_token")
	}
}

// TestProxyShowsFirstCounted checks that the page shows a preset from the first request on that its limits
// count, after one that counts for its client alone.
func TestProxyShowsFirstCounted(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerSecond(200))
	defer api.Close()
	p := startProxy(t, fmt.Sprintf(`routes: {/o: {to: %q, preset: openai, any_host: true, with: {requests: 500, tokens: 2000}}}
clients: {web: {token: web-web-web-web-web, policy: 100/s}}
`, api.URL))
	if a := p.must("/o/v1/models", webToken); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	req, err := http.NewRequest("POST", p.url+"/o/v1/embeddings", strings.NewReader(`{"model": "m", "input": "text"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Throttle-Token", "web-web-web-web-web")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	for end := time.Now().Add(time.Minute); len(policyOf(stateOf(t, p.url), "o").Tiers) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) { // a state is kept for a second
			t.Fatal("the page never shows the tiers")
		}
	}
}

// TestProxyPausedByVerb checks that the verbs pause and resume stop and continue a request that waits in a
// proxy, and print how long the quota is paused.
func TestProxyPausedByVerb(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerSecond(200))
	defer api.Close()
	p := startProxy(t, fmt.Sprintf("routes: {/a: {to: %q, policy: 100/s, name: acme}}\nobservability: {control_token: \"${env:TOKEN}\"}\n", api.URL))
	verb := func(want string, args ...string) {
		t.Helper()
		env := map[string]string{controlToken: "canary-canary-canary"}
		out, talk, code := runWith(t, "", env, append(args, "--page", p.url+"/_throttle/")...)
		if !strings.HasPrefix(out, want) || code != exitOK || talk != "" || strings.Contains(out, "canary") {
			t.Errorf("%q prints %q, %q, exit code %d, want %q", args, out, talk, code, want)
		}
	}
	verb("acme is paused for 2h, until ", "pause", "--name", "/a", "--for", "2h", "--reason", "incident")
	verb("acme is paused for 2h, until ", "pause", "--name", "acme", "--for", "5m") // the longer pause stays
	answered := make(chan int)
	go func() {
		a, _ := p.get(t.Context(), "/a/x")
		answered <- a.status
	}()
	p.waiting("acme", 1)
	if n := len(api.Arrivals()); n != 0 {
		t.Errorf("the API has received %d requests", n)
	}
	verb("acme goes on: its pause had ", "resume", "--name", "acme")
	verb("acme was not paused", "resume", "--name", "acme")
	if status := <-answered; status != 200 {
		t.Errorf("status %d", status)
	}
	if log := p.log.String(); strings.Contains(log, "canary") {
		t.Error(log)
	}
}

// TestProxyForgets checks that the verb forget makes a route of a proxy start again at the limits of its file,
// and that status, the page and the log show what it has learned and followed before.
func TestProxyForgets(t *testing.T) {
	var sent atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("RateLimit-Policy", `"default";q=15000;w=3600`)
		w.Header().Set("RateLimit", `"default";r=9000;t=1800`)
		if sent.Add(1) == 3 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer api.Close()
	p := startProxy(t, fmt.Sprintf(`routes:
  /a: {to: %q, policy: "5/s;algo=gcra;learn=1000 + 5000/h;follow=15000", name: acme, max_wait: 1s}
observability: {control_token: "${env:TOKEN}"}
`, api.URL))
	for i, want := range []int{200, 200, 429} {
		if status, body := fetch(t, p.url+"/a/x"); status != want {
			t.Fatalf("request %d: %d %s", i, status, body)
		}
	}
	verb := func(code int, args ...string) string {
		t.Helper()
		env := map[string]string{controlToken: "canary-canary-canary"}
		out, talk, got := runWith(t, "", env, append(args, "--page", p.url+"/_throttle/")...)
		if got != code || strings.Contains(out+talk, "canary") {
			t.Errorf("%q prints %q, %q, exit code %d", args, out, talk, got)
		}
		return strings.Join(strings.Fields(out+talk), " ")
	}
	const learned, followed = "/s is learned: refused at ", "15000/h is followed: the policy says 5000/h"
	shown := ""
	for end := time.Now().Add(time.Minute); !strings.Contains(shown, learned) && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		shown = verb(exitOK, "status", "acme") // a state is kept for a second
	}
	if !strings.Contains(shown, learned) || !strings.Contains(shown, followed) || !strings.Contains(shown, ", and 5000/h;follow=15000 by 15000/h.") {
		t.Errorf("status prints %s", shown)
	}
	if got := verb(exitOK, "forget", "--name", "/a"); !strings.HasPrefix(got, "acme has forgotten this: ") || !strings.Contains(got, learned) || !strings.HasSuffix(got, followed) {
		t.Errorf("forget prints %q", got)
	}
	if got := verb(exitOK, "forget", "--name", "acme"); got != "acme had nothing to forget" {
		t.Errorf("forget once more prints %q", got)
	}
	log := p.log.String()
	for _, want := range []string{"verb=forget name=acme", `tier="5/s;algo=gcra;learn=1000" from=`, `/s cause=refusal`, `tier="5000/h;follow=15000" from=5000/h to=15000/h cause=limit`} {
		if !strings.Contains(log, want) || strings.Contains(log, "canary") {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
}

// TestProxyForgetsPresets checks that status and forget know the quota of an unknown API before its first
// request, and that forget says so where what a preset follows has keys.
func TestProxyForgetsPresets(t *testing.T) {
	p := startProxy(t, `routes:
  /openai: {to: "https://api.openai.com", preset: openai, with: {requests: 5, tokens: 5}}
  /github: {to: "https://api.github.com", preset: github}
  /unknown: {to: "https://api.acme.example", preset: unknown}
observability: {control_token: "${env:TOKEN}"}
`)
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"forget --name openai", exitFailure, "what these have learned cannot be forgotten by request"},
		{"forget --name github", exitFailure, "what these have learned cannot be forgotten by request"},
		{"forget --name unknown", exitOK, "unknown had nothing to forget"},
		{"status unknown", exitOK, "5/s is the start: nothing is learned yet"},
	} {
		env := map[string]string{controlToken: "canary-canary-canary"}
		out, talk, code := runWith(t, "", env, append(strings.Fields(test.args), "--page", p.url+"/_throttle/")...)
		if got := strings.Join(strings.Fields(out+talk), " "); code != test.code || !strings.Contains(got, test.want) {
			t.Errorf("%s prints %q, exit code %d", test.args, got, code)
		}
	}
}

// TestProxyUpstreamMetrics checks the counts of what became of requests to upstreams.
func TestProxyUpstreamMetrics(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(status)
	}))
	defer api.Close()
	p := startProxy(t, fmt.Sprintf("routes: {/a: {to: %q, policy: 100/s}, /down: {to: \"http://127.0.0.1:1\", policy: 100/s}, /never: {to: %q, policy: \"1/h\", max_wait: 1s}}\nclients: {web: {token: \"${env:TOKEN}\", budget: \"1000/day;budget=true\"}}\n", api.URL, api.URL))
	for _, path := range []string{"/a/200", "/a/201", "/a/404", "/a/503", "/down/200", "/never/200", "/never/200"} {
		req, err := http.NewRequest("GET", p.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer canary-canary-canary")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	_, body := fetch(t, p.url+"/_throttle/metrics")
	for _, want := range []string{
		`throttle_upstream_responses_total{route="/a",status="2xx"} 2`, `throttle_upstream_responses_total{route="/a",status="4xx"} 1`,
		`throttle_upstream_responses_total{route="/a",status="5xx"} 1`, `throttle_upstream_responses_total{route="/a",status="error"} 0`,
		`throttle_upstream_responses_total{route="/down",status="error"} 1`, `throttle_upstream_responses_total{route="/never",status="2xx"} 1`,
		`throttle_upstream_responses_total{route="/never",status="error"} 0`,
		`throttle_upstream_response_seconds_count{route="/a"} 4`, `throttle_upstream_response_seconds_bucket{route="/a",le="+Inf"} 4`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("lacks %s", want)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
}
