//go:build unix

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A lines is a log whose lines tests wait for.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed by the next Write
}

func newLines() *lines { return &lines{more: make(chan struct{})} }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.more)
	l.more = make(chan struct{})
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// wait waits until the log has n matches of an expression, and returns the last.
func (l *lines) wait(n int, expression string) []string {
	r := regexp.MustCompile(expression)
	for {
		l.mu.Lock()
		found, more := r.FindAllStringSubmatch(l.text.String(), n), l.more
		l.mu.Unlock()
		if len(found) == n {
			return found[n-1]
		}
		<-more
	}
}

// A process is a run of the verb proxy.
type process struct {
	t    *testing.T
	log  *lines
	url  string
	file string
	stop context.CancelFunc
	code chan int
}

// startProxy starts the verb proxy with a file, at a free port.
func startProxy(t *testing.T, file string, args ...string) *process {
	t.Helper()
	p := &process{t: t, log: newLines(), file: filepath.Join(t.TempDir(), "throttle.yaml"), code: make(chan int, 1)}
	p.write(file)
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	system := System{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: p.log, Environ: os.Environ, Getenv: func(name string) string {
		return map[string]string{"TOKEN": "canary-canary-canary", "BOT_TOKEN": "123456:canary/bot", "API_KEY": "canary+key&canary"}[name]
	}}
	go func() {
		p.code <- Main(ctx, system, append([]string{"proxy", "--config", p.file, "--listen", "127.0.0.1:0"}, args...))
	}()
	p.url = "http://" + p.log.wait(1, `msg="the proxy listens" address=(\S+)`)[1]
	t.Cleanup(func() {
		stop()
		if code := <-p.code; code != exitOK {
			t.Errorf("exit code %d: %s", code, p.log)
		}
	})
	return p
}

func (p *process) write(file string) {
	p.t.Helper()
	next := p.file + ".next"
	if err := os.WriteFile(next, []byte(file), 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(next, p.file); err != nil {
		p.t.Fatal(err)
	}
}

// reload sends SIGHUP, for the n-th time, and waits until the file was read.
func (p *process) reload(n int) {
	p.t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
	p.log.wait(n, `msg="the file was read again`)
}

// TestProxyReloads reads other files again and again while clients send requests. No request fails,
// and the API refuses none.
func TestProxyReloads(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerSecond(200))
	defer api.Close()
	file := func(i int) string {
		// The guard is longer than a request may take to reach the API on a busy machine.
		policies := []string{"200/s | guard=1s", "200/s + 1000000/h | guard=1s", "150/s | max_wait=1h;guard=1s", "100/s + 200/s | guard=1s"}
		text := fmt.Sprintf("routes:\n  /api: {to: %q, policy: %q, set: {X-Reload: \"%d\"}}\n", api.URL, policies[i%len(policies)], i)
		switch i % 5 {
		case 1:
			text += fmt.Sprintf("  /else: {to: %q, policy: 1/h}\n", api.URL)
		case 2:
			text += "timeouts: {connect: 3s}\n"
		case 3:
			text = "routes: {/api: {to: canary}}\n" // is refused
		}
		return text
	}
	p := startProxy(t, file(0))
	var done atomic.Bool
	sent := make(chan struct{}, 100_000)
	failed, fail := context.WithCancel(t.Context())
	defer fail()
	var wg sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	for range 64 {
		wg.Go(func() {
			defer fail() // a client ends early only after an error
			for !done.Load() {
				resp, err := client.Post(p.url+"/api/x", "text/plain", strings.NewReader("body"))
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 {
					t.Errorf("status %d, %v: %s", resp.StatusCode, err, body)
					return
				}
				sent <- struct{}{}
			}
		})
	}
	for i := 1; i <= 40; i++ {
		for range 10 { // requests end under each file
			select {
			case <-sent:
			case <-failed.Done():
				done.Store(true)
				wg.Wait()
				t.FailNow()
			}
		}
		p.write(file(i))
		p.reload(i)
	}
	done.Store(true)
	wg.Wait()
	if n := api.Summary().Refused; n != 0 {
		t.Errorf("the API refused %d of %d", n, len(api.Arrivals()))
	}
	if log := p.log.String(); strings.Count(log, "the old one stays") != 8 || strings.Contains(log, "another address") {
		t.Error(log)
	}
}

// TestProxyReloadsRoutes checks what a reload changes: routes, clients and headers.
func TestProxyReloadsRoutes(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerSecond(200))
	defer api.Close()
	p := startProxy(t, fmt.Sprintf("routes: {/a: {to: %q, policy: 2/h}}\n", api.URL), "--access-log")
	status := func(path, token string) int {
		t.Helper()
		req, err := http.NewRequest("GET", p.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Throttle-Max-Wait", "1")
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	check := func(path, token string, want int) {
		t.Helper()
		if got := status(path, token); got != want {
			t.Errorf("%s: status %d, want %d", path, got, want)
		}
	}
	check("/a/x", "", 200)
	check("/a/x", "", 200)
	check("/a/x", "", 429)
	check("/b/x", "", 404)
	p.write(fmt.Sprintf("routes: {/b: {to: %q, policy: 3/h, name: a}}\nclients: {c: {token: \"${env:TOKEN}\", budget: \"1/day;budget=true\"}}\n", api.URL))
	p.reload(1)
	check("/a/x", "canary-canary-canary", 404)
	check("/b/x", "", 401)
	check("/b/x", "canary-canary-canary", 200) // two of three are charged
	check("/b/x", "canary-canary-canary", 429)
	p.write(fmt.Sprintf("routes: {/b: {to: %q, policy: 10/h, name: a}}\nclients: {c: {token: \"${env:TOKEN}\", budget: \"1/day;budget=true\"}}\n", api.URL))
	p.reload(2)
	check("/b/x", "canary-canary-canary", 429) // the budget of the client stays used
	p.write("store: {redis: \"redis://127.0.0.1:1\"}\n" + fmt.Sprintf("routes: {/b: {to: %q, policy: 10/h, name: a}}\n", api.URL))
	p.reload(3)
	check("/b/x", "", 401)
	if log := p.log.String(); strings.Contains(log, "canary") || !strings.Contains(log, "another store needs a new start") {
		t.Error(log)
	}
}

// TestProxyReloadKeepsOrder checks that requests which wait during a reload go before those that come
// after it.
func TestProxyReloadKeepsOrder(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerHour(100))
	defer api.Close()
	file := func(limit int) string {
		return fmt.Sprintf("routes: {/api: {to: %q, policy: %d/h}}\n", api.URL, limit)
	}
	p := startProxy(t, file(1))
	answered := make(chan string, 100)
	var wg sync.WaitGroup
	send := func(name string, waiting int) {
		wg.Go(func() {
			resp, err := http.Get(p.url + "/api/" + name)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode == 200 {
				answered <- name
			}
		})
		for waiting > 0 && !t.Failed() {
			resp, err := http.Get(p.url + "/_throttle/metrics")
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if strings.Contains(string(body), fmt.Sprintf("throttle_queued_requests{policy=\"api\",class=\"normal\"} %d\n", waiting)) {
				return
			}
		}
	}
	send("0", 0)
	if got := <-answered; got != "0" {
		t.Fatal(got)
	}
	send("1", 1)
	send("2", 2)
	send("3", 3)
	for i := 1; i <= 3; i++ {
		p.write(file(1 + i))
		p.reload(i)
		if got := <-answered; got != fmt.Sprint(i) {
			t.Errorf("request %s went after reload %d", got, i)
		}
		send(fmt.Sprint(3+i), 3)
	}
	p.stop() // refuses the others
	wg.Wait()
}

// TestProxyTerminates checks SIGTERM as main receives it.
func TestProxyTerminates(t *testing.T) {
	p := startProxy(t, "routes: {/a: {to: \"https://api.example\", policy: 5/s}}\n")
	p.stop()
	code := <-p.code
	if log := p.log.String(); code != exitOK || !strings.Contains(log, `routes="[/a → api.example]"`) || !strings.Contains(log, "the proxy has ended") {
		t.Errorf("exit code %d: %s", code, log)
	}
	p.code <- code
}

// TestProxyReloadsShutdown checks that the time in which requests must end is that of the file that was read last.
func TestProxyReloadsShutdown(t *testing.T) {
	reached := make(chan bool, 1)
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		reached <- true
		<-r.Context().Done()
	}))
	defer api.Close()
	file := func(shutdown string) string {
		return fmt.Sprintf("timeouts: {shutdown: %s}\nroutes: {/api: {to: %q, policy: 5/s}}\n", shutdown, api.URL)
	}
	p := startProxy(t, file("1h"))
	p.write(file("10ms"))
	p.reload(1)
	go func() {
		if resp, err := http.Get(p.url + "/api/x"); err == nil {
			resp.Body.Close()
		}
	}()
	<-reached
	p.stop()
	select {
	case code := <-p.code:
		if code != exitFailure {
			t.Errorf("exit code %d, want %d: %s", code, exitFailure, p.log)
		}
		p.code <- exitOK
	case <-time.After(10 * time.Second):
		t.Error("the proxy has not ended within the time of the file that it has read again")
		api.CloseClientConnections()
	}
}

// TestProxySocket checks a socket, and the place of one that a killed process has left.
func TestProxySocket(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerSecond(200))
	defer api.Close()
	dir, err := os.MkdirTemp("", "throttle") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	l, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(path); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a second listener: %v", err)
	}
	os.Remove(path + ".left")
	if err := os.Link(path, path+".left"); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if l, err = listenUnix(path + ".left"); err != nil {
		t.Fatal(err)
	}
	l.Close()
}
