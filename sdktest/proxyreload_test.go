package sdktest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// While the file changes every 100 ms, no request fails, and what is charged stays charged: the API,
// which allows what the looser of the two policies says, refuses nothing. An open stream goes on.
func TestProxyReloadUnderLoad(t *testing.T) {
	t.Parallel()
	length := 5 * time.Second
	if *full {
		length = time.Minute
	}
	api := throttletest.NewProvider(throttle.PerSecond(20), throttle.Tier{Limit: 60, Window: 5 * time.Second})
	defer api.Close()
	up := startUpstream(t)
	// The guard is long because this machine may be slow. It costs nothing where responses are quick.
	config := func(i int) string {
		policy, other := "20/s + 60/5s | guard=5s", ""
		switch i % 4 {
		case 1:
			policy, other = "10/s + 40/5s | guard=5s", fmt.Sprintf("\n  /other: {to: %s, policy: 7/s}", up.URL)
		case 2:
			policy = "20/s + 60/5s | guard=5s;max_queue=1000, set: {X-Round: r" + strconv.Itoa(i) + "}"
		case 3:
			policy, other = "60/5s + 20/s | guard=5s;max_wait=1h, max_body: 1KB", fmt.Sprintf("\n  /other: {to: %s/b, policy: 7/m}\nmax_body: 2KB", up.URL)
		}
		return fmt.Sprintf("routes:\n  /stream: {to: %s, policy: 1000/s}\n  /api: {to: %s, policy: %s}%s\n", up.URL, api.URL, policy, other)
	}
	p := startProxy(t, config(0))

	streamed := make(chan reply, 1)
	go func() {
		status, body, h, err := p.do(context.Background(), "GET", "/stream/x", "")
		streamed <- reply{status, body, h, err}
	}()
	stream := up.next(t)
	stream.write("begin ")

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var sent, failed atomic.Int64
	var load sync.WaitGroup
	for i := range 16 {
		keepAlive := &http.Transport{DisableKeepAlives: i%2 == 0}
		defer keepAlive.CloseIdleConnections()
		load.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequest("POST", p.url+"/api/"+strconv.Itoa(i), strings.NewReader("body"))
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := keepAlive.RoundTrip(req)
				if err != nil {
					failed.Add(1)
					t.Errorf("request %d: %v", sent.Add(1), err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if sent.Add(1); resp.StatusCode != 200 || err != nil {
					failed.Add(1)
					t.Errorf("answered %d, %q, %v", resp.StatusCode, body, err)
					return
				}
			}
		})
	}
	reloads := 0
	for end := time.Now().Add(length); time.Now().Before(end); reloads++ {
		p.write(config(reloads + 1))
		p.signal(syscall.SIGHUP)
		<-time.After(100 * time.Millisecond)
	}
	stop()
	load.Wait()
	stream.write("end")
	stream.end()
	if r := receive(t, "the end of the stream", streamed); r.err != nil || r.body != "begin end" {
		t.Errorf("the stream ended with %+v", r)
	}
	s := api.Summary()
	t.Logf("%d reloads, %d requests, %d of them failed, %d refused by the API", reloads, sent.Load(), failed.Load(), s.Refused)
	if s.Refused > 0 {
		t.Errorf("the API refused %d of %d requests", s.Refused, s.Sent)
	}
	if s.Accepted != sent.Load() {
		t.Errorf("the API accepted %d requests, and the clients sent %d", s.Accepted, sent.Load())
	}
	if s.Accepted < 20 { // the burst of one second
		t.Errorf("only %d requests passed", s.Accepted)
	}

	// The last file counts.
	p.write(config(1) + "  /last: {to: " + up.URL + "/last, policy: 1000/s}\n")
	p.signal(syscall.SIGHUP)
	until(t, "the last file counts", func() bool {
		got := p.send(t.Context(), "/last/x")
		select {
		case e := <-up.arrived:
			e.answer("last")
			return (<-got).body == "last"
		case r := <-got:
			if r.status != http.StatusNotFound {
				t.Errorf("answered %+v for a route that is not there yet, want 404", r)
			}
			return false
		}
	})
}

// What waits while the file changes keeps its place, by the new policy.
func TestProxyReloadKeepsWaiting(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	config := func(policy string) string {
		return fmt.Sprintf("routes: {/api: {to: %s, policy: %s}}\n", up.URL, policy)
	}
	p := startProxy(t, config("1/h"))
	first := p.send(t.Context(), "/api/first")
	up.next(t).answer("first")
	if r := <-first; r.status != 200 {
		t.Fatalf("answered %+v", r)
	}
	second := p.send(t.Context(), "/api/second")
	until(t, "the second request waits", func() bool { return p.metric("throttle_queued_requests", `"api"`) == 1 })
	p.write(config("2/h"))
	p.signal(syscall.SIGHUP)
	e := up.next(t)
	if e.URL.Path != "/second" {
		t.Errorf("the upstream received %s", e.URL.Path)
	}
	e.answer("second")
	if r := <-second; r.status != 200 {
		t.Errorf("answered %+v", r)
	}
	// Both are charged.
	if status, body, _ := p.get("/api/third", "X-Throttle-Max-Wait", "1s"); status != 429 {
		t.Errorf("answered %d, %s for a third request of 2 an hour", status, body)
	}
	up.none(t)
}

// A file with a problem changes nothing. The proxy reports the problem, its line, and no secret.
func TestProxyReloadBroken(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	good := fmt.Sprintf("routes: {/api: {to: %s, policy: 1000/s}}\n", up.URL)
	p := startProxy(t, good)
	for _, test := range []struct{ name, config, want string }{
		{"a bad policy", good + "  \n# \nstore: {}\nmax_body: 5 apples\n", "max_body"},
		{"no YAML", "routes: {/api: [}\n", "throttle.yaml"},
		{"an unknown field", good + "rotues: {}\n", "rotues"},
		{"nothing", "", "routes"},
		{"a missing secret", strings.Replace(good, "policy:", `set: {A: "${env:NO_SUCH_VARIABLE}"}, policy:`, 1), "NO_SUCH_VARIABLE"},
		{"a bad secret", strings.Replace(good, "policy:", `set: {A: "CANARY\nX: y"}, policy:`, 1), "set"},
		{"a short token", good + "clients: {c: {token: CANARY}}\n", "token"},
		{"a bad policy", strings.Replace(good, "1000/s", "0/s", 1), "policy"},
	} {
		before := len(p.output.String())
		p.write(test.config)
		p.signal(syscall.SIGHUP)
		until(t, test.name+" is reported with "+test.want, func() bool { return strings.Contains(p.output.String()[before:], test.want) })
		got := p.send(t.Context(), "/api/x")
		up.next(t).answer("still")
		if r := <-got; r.body != "still" {
			t.Errorf("after %s: answered %+v", test.name, r)
		}
	}
	if strings.Contains(p.output.String(), "CANARY") {
		t.Error("a report of a bad file has a secret")
	}
}

// A proxy that is told to end accepts nothing more, refuses what waits with 503 and Retry-After,
// ends what is admitted, and exits with 0.
func TestProxyDrains(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t)
			p := startProxy(t, fmt.Sprintf("timeouts: {shutdown: 10m}\nroutes: {/one: {to: %s, policy: 1;algo=concurrency}}", up.URL))
			held := p.send(t.Context(), "/one/held")
			e := up.next(t)
			e.write("one ")
			queued := p.send(t.Context(), "/one/queued")
			until(t, "the second request waits", func() bool { return p.metric("throttle_queued_requests", `"one"`) == 1 })
			p.signal(s)
			if r := receive(t, "the refusal of what waits", queued); r.status != 503 || r.header.Get("Retry-After") == "" {
				t.Errorf("a request that waited was answered %+v, want 503 with Retry-After", r)
			}
			until(t, "the proxy accepts nothing", func() bool {
				status, _, _, err := p.do(t.Context(), "GET", "/one/late", "")
				return err != nil || status == 503
			})
			e.write("two")
			e.end()
			if r := receive(t, "the answer of what was admitted", held); r.status != 200 || r.body != "one two" || r.err != nil {
				t.Errorf("an admitted request was answered %+v", r)
			}
			receive(t, "the end of the proxy", p.exited)
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("the proxy exited with %d", code)
			}
			up.none(t)
		})
	}
}
