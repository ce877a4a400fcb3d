//go:build unix

package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A deployment is an API that keeps what reaches it.
type deployment struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string // of each request: the request line, the headers and the body
}

// startDeployment starts a deployment. If answer is nil, its responses are empty.
func startDeployment(t *testing.T, answer http.HandlerFunc) *deployment {
	t.Helper()
	d := new(deployment)
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var text bytes.Buffer
		fmt.Fprintf(&text, "%s %s\nHost: %s\n", r.Method, r.URL.RequestURI(), r.Host)
		_ = r.Header.Write(&text)
		text.WriteString("\n" + string(body))
		d.mu.Lock()
		d.seen = append(d.seen, text.String())
		d.mu.Unlock()
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(d.Close)
	return d
}

func (d *deployment) requests() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.seen)
}

// member returns a member of a pool in a file, with a key of its own.
func member(name, url, settings string) string {
	return fmt.Sprintf("{name: %s, to: %q, set: {Api-Key: key-of-%s}, %s}", name, url, name, settings)
}

// poolFile returns a file with a pool at /api.
func poolFile(settings string, members ...string) string {
	return fmt.Sprintf("routes:\n  /api:\n    %s\n    pool: [%s]\n", settings, strings.Join(members, ", "))
}

// TestPoolUsesBothMembers checks that two strict APIs behind one route serve clients at the rates of both, and
// that each receives its own key alone.
func TestPoolUsesBothMembers(t *testing.T) {
	slow, fast := throttletest.New(throttle.PerSecond(5)), throttletest.New(throttle.PerSecond(20))
	east, west := startDeployment(t, slow.ServeHTTP), startDeployment(t, fast.ServeHTTP)
	p := startProxy(t, poolFile("max_wait: 1h", member("east", east.URL+"/v1", "policy: 5/s | guard=1s"), member("west", west.URL, "policy: 20/s | guard=1s")), "--access-log")
	s := p.storm(60, "/api/x?access_token=canary&a=b", bearer("canary"), "Cookie: canary", "Api-Key: canary")
	served := make(map[string]int)
	for range 60 {
		a := s.next(t)
		if a.status != 200 {
			t.Fatalf("%+v", a)
		}
		served[a.header.Get("X-Throttle-Member")]++
	}
	if slow.Summary().Refused+fast.Summary().Refused != 0 || served["east"] == 0 || served["west"] <= served["east"] || served["east"]+served["west"] != 60 {
		t.Errorf("%v served, %+v, %+v", served, slow.Summary(), fast.Summary())
	}
	for name, d := range map[string]*deployment{"east": east, "west": west} {
		for _, request := range d.requests() {
			path := map[string]string{"east": "/v1/x?a=b", "west": "/x?a=b"}[name]
			if strings.Contains(request, "canary") || !strings.Contains(request, "\r\nApi-Key: key-of-"+name+"\r\n") && !strings.Contains(request, "\nApi-Key: key-of-"+name+"\r\n") || !strings.HasPrefix(request, "GET "+path+"\n") ||
				!strings.Contains(request, "Host: "+strings.TrimPrefix(d.URL, "http://")+"\n") {
				t.Errorf("%s received\n%s", name, request)
			}
		}
	}
	p.logged("member=west")
	if strings.Contains(p.log.String(), "canary") || strings.Contains(p.log.String(), "key-of") {
		t.Errorf("the log shows a key: %s", p.log)
	}
}

// TestPoolSendsRefusedRequestsAgain checks that what one member refuses another serves, with its whole body,
// and that clients see the response of the other alone.
func TestPoolSendsRefusedRequestsAgain(t *testing.T) {
	east := startDeployment(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(429)
	})
	west := startDeployment(t, nil)
	p := startProxy(t, poolFile("max_wait: 1h", member("east", east.URL, "policy: 1000/s"), member("west", west.URL, "policy: 1000/s, rank: 1")))
	resp, err := http.Post(p.url+"/api/x", "text/plain", strings.NewReader("the whole body"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("status %d", resp.StatusCode)
	}
	if got := west.requests(); len(got) != 1 || !strings.HasSuffix(got[0], "\r\n\nthe whole body") || !strings.Contains(got[0], "Api-Key: key-of-west") {
		t.Errorf("west received %q", got)
	}
	for _, request := range east.requests() {
		if strings.Contains(request, "key-of-west") {
			t.Errorf("east received %s", request)
		}
	}
}

// TestPoolLeavesMembersThatAreDown checks that requests go to another member while one cannot be reached.
func TestPoolLeavesMembersThatAreDown(t *testing.T) {
	west := startDeployment(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	p := startProxy(t, poolFile("max_wait: 1h", member("east", "http://"+l.Addr().String(), "policy: 1000/s"), member("west", west.URL, "policy: 1000/s, rank: 1")))
	for range 3 {
		if a := p.must("/api/x"); a.status != 200 || a.header.Get("X-Throttle-Member") != "west" {
			t.Errorf("%+v", a)
		}
	}
	if n := len(west.requests()); n != 3 {
		t.Errorf("%d requests", n)
	}
}

// TestPoolAllDown checks the problem of a request that reaches no member.
func TestPoolAllDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	p := startProxy(t, poolFile("max_wait: 500ms", member("east", "http://"+l.Addr().String(), "policy: 1000/s")))
	if a := p.must("/api/x"); a.status != 502 || a.Reason != "unreachable" {
		t.Errorf("%+v", a)
	}
	p.logged("member=east")
}

// TestPoolCredentialsNeverCross checks that no member receives what the client or another member has as a
// credential, whatever its name.
func TestPoolCredentialsNeverCross(t *testing.T) {
	east, west := startDeployment(t, nil), startDeployment(t, nil)
	p := startProxy(t, fmt.Sprintf(`routes:
  /api:
    remove: [X-Trace]
    pool:
      - {name: east, to: %q, policy: 1000/s, set: {X-Odd: east-key-east, Authorization: Bearer east-key-east}}
      - {name: west, to: %q, policy: 1000/s, query: {token: west-key-west}}
`, east.URL, west.URL))
	for range 20 {
		a := p.must("/api/x?token=canary&tok%65n=canary&api_key=canary&keep=1", bearer("canary"), "X-Odd: canary", "X-Api-Key: canary", "X-Trace: canary", "Cookie: a=canary", "Keep: 1")
		if a.status != 200 {
			t.Fatalf("%+v", a)
		}
	}
	for name, d := range map[string]*deployment{"east": east, "west": west} {
		got := d.requests()
		if len(got) == 0 {
			t.Errorf("%s received nothing", name)
		}
		other := map[string]string{"east": "west", "west": "east"}[name]
		for _, request := range got {
			if strings.Contains(request, "canary") || strings.Contains(request, other+"-key") || !strings.Contains(request, name+"-key") || !strings.Contains(request, "Keep: 1") || !strings.Contains(request, "keep=1") {
				t.Errorf("%s received\n%s", name, request)
			}
		}
	}
}

// TestPoolReloads checks that requests that wait for a pool go to a member that is added, and stay in the
// queues of the others when one is removed.
func TestPoolReloads(t *testing.T) {
	east, west := startDeployment(t, nil), startDeployment(t, nil)
	old := member("east", east.URL, "policy: 1/h")
	p := startProxy(t, poolFile("max_wait: 9h", old))
	if a := p.must("/api/x"); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	s := p.storm(3, "/api/x")
	p.waiting("api", 3)
	p.write(poolFile("max_wait: 9h", old, member("west", west.URL, "policy: 3/h")))
	p.reload(1)
	for range 3 {
		if a := s.next(t); a.status != 200 || a.header.Get("X-Throttle-Member") != "west" {
			t.Errorf("%+v", a)
		}
	}
	s = p.storm(2, "/api/x")
	p.waiting("api", 2)
	p.write(poolFile("max_wait: 9h", old))
	p.reload(2)
	p.waiting("api", 2)
	p.write(poolFile("max_wait: 9h", member("east", east.URL, "policy: 3/h")))
	p.reload(3)
	for range 2 {
		if a := s.next(t); a.status != 200 || a.header.Get("X-Throttle-Member") != "east" {
			t.Errorf("%+v", a)
		}
	}
	if a := p.must("/api/x", "X-Throttle-Max-Wait: 1s"); a.Reason != "deadline" {
		t.Errorf("what is charged is lost: %+v", a)
	}
}

// TestPoolReloadsWhileBusy reads files with other members again and again while clients send requests. No
// request fails, and no API refuses one.
func TestPoolReloadsWhileBusy(t *testing.T) {
	var apis [3]*throttletest.Provider
	var members [3]string
	for i := range apis {
		apis[i] = throttletest.NewProvider(throttle.PerSecond(100))
		defer apis[i].Close()
		members[i] = member(string(rune('a'+i)), apis[i].URL, "policy: 100/s | guard=1s")
	}
	file := func(i int) string {
		settings := []string{"max_wait: 1h", "max_wait: 1h\n    spill: 1s", "max_wait: 1h\n    budget: 1000000/day;budget=true"}
		return poolFile(settings[i/4%len(settings)], slices.Concat(members[i%3:], members[:i%3])[:2]...)
	}
	p := startProxy(t, file(0))
	var done atomic.Bool
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for !done.Load() {
				if a, err := p.get(t.Context(), "/api/x"); err != nil || a.status != 200 {
					t.Errorf("%+v, %v", a, err)
					return
				}
			}
		})
	}
	for i := range 12 {
		p.write(file(i + 1))
		p.reload(i + 1)
		p.must("/api/x")
	}
	done.Store(true)
	clients.Wait()
	for i, api := range apis {
		if s := api.Summary(); s.Refused != 0 || s.Accepted == 0 {
			t.Errorf("%d: %+v", i, s)
		}
	}
}

// TestPoolRefusals checks that a refusal says what each member waits for.
func TestPoolRefusals(t *testing.T) {
	east, west := startDeployment(t, nil), startDeployment(t, nil)
	p := startProxy(t, poolFile("max_wait: 1m", member("east", east.URL, "policy: 1/h"), member("west", west.URL, "policy: 1/2h, quota: west-quota"))+"observability: {control_token: 0123456789abcdef}\n")
	for range 2 {
		if a := p.must("/api/x"); a.status != 200 {
			t.Fatalf("%+v", a)
		}
	}
	a := p.must("/api/x")
	var problem struct {
		Members []struct {
			Name, Policy, Tier string
			Wait               float64 `json:"wait_seconds"`
		}
	}
	if err := json.Unmarshal([]byte(a.body), &problem); err != nil || a.status != 429 || a.Reason != "deadline" || len(problem.Members) != 2 {
		t.Fatalf("%+v, %v", a, err)
	}
	for i, want := range []struct {
		name, policy, tier string
		most               float64
	}{{"east", "api/east", "1/h", 3601}, {"west", "west-quota", "1/2h0m0s", 7201}} {
		if m := problem.Members[i]; m.Name != want.name || m.Policy != want.policy || m.Tier != want.tier || m.Wait > want.most || m.Wait < want.most-600 {
			t.Errorf("member %d is %+v", i, m)
		}
	}
	metrics := p.must("/_throttle/metrics").body
	for _, want := range []string{
		`throttle_requests_total{policy="api",class="normal",result="admitted",member="east"} 1`,
		`throttle_tier_usage{policy="api",tier="1/2h0m0s",unit="requests",tier_policy="west-quota",member="west"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics lack %s:\n%s", want, metrics)
		}
	}
	if state := p.must("/_throttle/state.json").body; !strings.Contains(state, `"name":"east"`) || !strings.Contains(state, `"name":"west"`) {
		t.Errorf("the page lacks the members: %s", state)
	}
}

// TestPoolPauses checks that a pause of a member by its name leaves the other ones.
func TestPoolPauses(t *testing.T) {
	east, west := startDeployment(t, nil), startDeployment(t, nil)
	p := startProxy(t, poolFile("max_wait: 1m", member("east", east.URL, "policy: 1000/s"), member("west", west.URL, "policy: 1000/s, rank: 1"))+"observability: {control_token: 0123456789abcdef}\n")
	pause := func(name string) answer {
		req, err := http.NewRequest("POST", p.url+"/_throttle/pause", strings.NewReader(fmt.Sprintf(`{"name": %q, "for": "10m"}`, name)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer 0123456789abcdef")
		resp, err := direct.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer{status: resp.StatusCode, body: string(body)}
	}
	if a := pause("api"); a.status != 409 || !strings.Contains(a.body, "such as api/east") {
		t.Errorf("the pool: %+v", a)
	}
	if a := pause("api/north"); a.status != 404 || !strings.Contains(a.body, "api, api/east, api/west") {
		t.Errorf("no member: %+v", a)
	}
	if a := pause("api/east"); a.status != 200 {
		t.Errorf("a member: %+v", a)
	}
	for range 3 {
		if a := p.must("/api/x"); a.status != 200 || a.header.Get("X-Throttle-Member") != "west" {
			t.Errorf("%+v", a)
		}
	}
}

// TestPoolWithinBudgetAndClients checks that the budget of a route and the limits of a client count requests
// whichever member serves them.
func TestPoolWithinBudgetAndClients(t *testing.T) {
	east, west := startDeployment(t, nil), startDeployment(t, nil)
	p := startProxy(t, poolFile("budget: 5000/day;budget=true;unit=usd\n    cost: {usd: 1000}", member("east", east.URL, "policy: 1000/s"), member("west", west.URL, "policy: 1000/s"))+
		"clients:\n  web: {token: web-web-web-web-web, policy: 3/h, max_wait: 1s}\n  job: {token: job-job-job-job-job}\n")
	for range 3 {
		if a := p.must("/api/x", webToken); a.status != 200 {
			t.Errorf("%+v", a)
		}
	}
	if a := p.must("/api/x", webToken); a.Reason != "deadline" || a.Policy != "client:web" {
		t.Errorf("%+v", a)
	}
	for range 2 {
		if a := p.must("/api/x", jobToken); a.status != 200 {
			t.Errorf("%+v", a)
		}
	}
	if a := p.must("/api/x", jobToken); a.Reason != "exhausted" || a.Policy != "api:budget" {
		t.Errorf("%+v", a)
	}
	if n := len(east.requests()) + len(west.requests()); n != 5 {
		t.Errorf("%d requests were sent", n)
	}
}

// TestPoolOfPresets checks that a preset with a quota for each model has one for each at each member.
func TestPoolOfPresets(t *testing.T) {
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}`)
	}
	east, west := startDeployment(t, answer), startDeployment(t, answer)
	const preset = "preset: openai, any_host: true, with: {requests: 1, tokens: 10000}"
	p := startProxy(t, poolFile("max_wait: 1s", member("east", east.URL+"/v1", preset), member("west", west.URL+"/v1", preset)))
	ask := func(model string) *http.Response {
		resp, err := http.Post(p.url+"/api/chat/completions", "application/json", strings.NewReader(`{"model": "`+model+`", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp
	}
	for _, model := range []string{"gpt-4o", "gpt-4.1"} {
		served := make(map[string]bool)
		for range 2 {
			resp := ask(model)
			served[resp.Header.Get("X-Throttle-Member")] = resp.StatusCode == 200
		}
		if !served["east"] || !served["west"] {
			t.Errorf("%s: %v served", model, served)
		}
		if resp := ask(model); resp.StatusCode != 429 {
			t.Errorf("%s: a third request has status %d", model, resp.StatusCode)
		}
	}
	if a := p.must("/api/models"); a.status != 200 {
		t.Errorf("what no preset counts: %+v", a)
	}
}

// TestPoolSticks checks that requests with one key go to one member, and others to all.
func TestPoolSticks(t *testing.T) {
	for _, sticky := range []string{"{body: metadata.user}", "{header: X-Session}"} {
		east, west := startDeployment(t, nil), startDeployment(t, nil)
		p := startProxy(t, poolFile("spill: 1s\n    sticky: "+sticky, member("east", east.URL, "policy: 1000/s"), member("west", west.URL, "policy: 1000/s")))
		members := make(map[string]bool)
		for i := range 40 {
			of := make(map[string]bool)
			for range 3 {
				req, err := http.NewRequest("POST", p.url+"/api/x", strings.NewReader(fmt.Sprintf(`{"metadata": {"user": "u%d"}}`, i)))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("X-Session", fmt.Sprint(i))
				resp, err := direct.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				of[resp.Header.Get("X-Throttle-Member")] = true
				members[resp.Header.Get("X-Throttle-Member")] = true
			}
			if len(of) != 1 {
				t.Errorf("%s: key %d went to %v", sticky, i, of)
			}
		}
		if len(members) != 2 {
			t.Errorf("%s: all keys went to %v", sticky, members)
		}
	}
}

// TestPoolPassesBodiesAndLinks checks long bodies, streams, links to the member, and upgrades.
func TestPoolPassesBodiesAndLinks(t *testing.T) {
	next := make(chan bool)
	var east *deployment
	east = startDeployment(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/stream":
			_, _ = io.WriteString(w, "first\n")
			w.(http.Flusher).Flush()
			<-next
			_, _ = io.WriteString(w, "second\n")
		case "/v1/operation":
			w.Header().Set("Operation-Location", east.URL+"/v1/operations/5?a=b")
		case "/v1/socket":
			conn, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
			_ = rw.Flush()
			line, _ := rw.ReadString('\n')
			_, _ = rw.WriteString("echo " + line)
			_ = rw.Flush()
		}
	})
	p := startProxy(t, poolFile("max_wait: 1h", member("east", east.URL+"/v1", "policy: 1000/s")))

	long := strings.Repeat("0123456789", 100_000)
	resp, err := http.Post(p.url+"/api/long", "text/plain", strings.NewReader(long))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := east.requests(); resp.StatusCode != 200 || len(got) != 1 || !strings.HasSuffix(got[0], "\n"+long) {
		t.Errorf("a long body: status %d, %d requests", resp.StatusCode, len(got))
	}

	resp, err = http.Get(p.url + "/api/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); line != "first\n" || err != nil {
		t.Errorf("a stream begins with %q, %v", line, err)
	}
	next <- true
	if line, err := lines.ReadString('\n'); line != "second\n" || err != nil {
		t.Errorf("a stream goes on with %q, %v", line, err)
	}

	if got := p.must("/api/operation").header.Get("Operation-Location"); got != p.url+"/api/operations/5?a=b" {
		t.Errorf("a link leads to %s", got)
	}

	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /api/socket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
	in := bufio.NewReader(conn)
	upgraded, err := http.ReadResponse(in, nil)
	if err != nil || upgraded.StatusCode != 101 {
		t.Fatalf("%v, %v", upgraded, err)
	}
	fmt.Fprintf(conn, "hello\n")
	if line, err := in.ReadString('\n'); line != "echo hello\n" || err != nil {
		t.Errorf("an upgraded connection has %q, %v", line, err)
	}
}
