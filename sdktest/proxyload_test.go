package sdktest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// plainTarget is the variable that makes this test's binary a plain reverse proxy to an address.
const plainTarget = "SDKTEST_PLAIN_TARGET"

// servePlain serves a plain reverse proxy. It writes its address, and ends with the process. Its
// transport keeps as many connections as there are clients: with those of http.DefaultTransport, two,
// it would be slower than it can be.
func servePlain(target string) {
	u, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	p := httputil.NewSingleHostReverseProxy(u)
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 1000
	p.Transport = t
	fmt.Println(l.Addr())
	panic(http.Serve(l, p))
}

// startPlain starts a plain reverse proxy as a process, and returns its URL.
func startPlain(t testing.TB, target string) (address string, pid int) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), plainTarget+"="+target, "GOMAXPROCS=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + strings.TrimSpace(line), cmd.Process.Pid
}

// memory returns the resident memory of a process.
func memory(t testing.TB, pid int) (bytes int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("the memory of a process is in /proc, on Linux")
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmRSS:" {
			kb, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("no memory in %q, %v", text, err)
	return 0
}

// load sends n requests by 32 clients, each with a path of its own, and returns how long it took.
func load(t testing.TB, c *http.Client, base string, n int) time.Duration {
	t.Helper()
	start := time.Now()
	var next atomic.Int64
	var clients sync.WaitGroup
	for range 32 {
		clients.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				resp, err := c.Get(base + "/" + strconv.FormatInt(start.UnixNano()+i, 36) + "?q=" + strconv.FormatInt(i, 10))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("answered %d, %v", resp.StatusCode, err)
				}
				resp.Body.Close()
			}
		})
	}
	clients.Wait()
	return time.Since(start)
}

func quickAPI(t testing.TB) *httptest.Server {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"ok":true}`)
	}))
	t.Cleanup(api.Close)
	return api
}

func keepingClient(t testing.TB) *http.Client {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// The proxy answers nearly as many requests a second as a plain reverse proxy does. Both have one
// processor, and take turns.
func TestProxySpeed(t *testing.T) {
	if !*full {
		t.Parallel()
	}
	rounds, n := 1, 500
	if *full {
		rounds, n = 15, 8000
	}
	api, c := quickAPI(t), keepingClient(t)
	p := startProxyWith(t, fmt.Sprintf("routes: {/api: {to: %s, policy: 1000000/s + 1000000000/h}}", api.URL), nil, "GOMAXPROCS=1")
	plain, _ := startPlain(t, api.URL)
	load(t, c, plain, n/2)
	load(t, c, p.url+"/api", n/2)
	var rates [2][]float64
	for round := range rounds {
		for i := range rates {
			base := []string{plain, p.url + "/api"}[i^round&1]
			rates[i^round&1] = append(rates[i^round&1], float64(n)/load(t, c, base, n).Seconds())
		}
	}
	for i := range rates {
		slices.Sort(rates[i])
	}
	median := func(of []float64) float64 { return of[len(of)/2] }
	ratio := median(rates[1]) / median(rates[0])
	t.Logf("%d rounds of %d requests: %.0f/s of %.0f/s through a plain reverse proxy, %.2f", rounds, n, median(rates[1]), median(rates[0]), ratio)
	if *full && ratio < 0.85 {
		t.Errorf("the proxy answers %.2f of the requests a second that a plain reverse proxy answers, want at least 0.85", ratio)
	}
}

// The proxy's memory does not grow with the number of requests.
func TestProxyMemory(t *testing.T) {
	if !*full {
		t.Parallel()
	}
	portion := 250
	if *full {
		portion = 20_000
	}
	api, c := quickAPI(t), keepingClient(t)
	p := startProxy(t, fmt.Sprintf(`
routes:
  /api: {to: %s, policy: 1000000/s + 1000000000/h}
  /clients: {to: %[1]s, preset: github, any_host: true}
`, api.URL))
	var sizes []int64
	for range 10 {
		load(t, c, p.url+"/api", portion)
		sizes = append(sizes, memory(t, p.cmd.Process.Pid)>>20)
	}
	t.Logf("memory in MB after each %d requests: %v", portion, sizes)
	if before, after := slices.Max(sizes[1:5]), slices.Max(sizes[5:]); *full && after > before+before/10+4 {
		t.Errorf("the memory grew from %d MB to %d MB", before, after)
	}
}

// 10,000 clients that wait with bodies of 1 KB take less than 400 MB. When they hang up, the queue is
// empty, and nothing of them is sent.
func TestProxyManyWait(t *testing.T) {
	if !*full {
		t.Parallel()
	}
	n := 500
	if *full {
		n = 10_000 // with as many open files in each of the two processes
	}
	up := startUpstream(t)
	p := startProxy(t, fmt.Sprintf("routes: {/one: {to: %s, policy: 1;algo=concurrency}}", up.URL))
	idle := memory(t, p.cmd.Process.Pid)
	held := p.send(t.Context(), "/one/held")
	e := up.next(t)
	raw := "POST /one/waits HTTP/1.1\r\nHost: " + p.addr + "\r\nAuthorization: Bearer key\r\nContent-Type: application/json\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("a", 1024)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range n {
		conn, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		if _, err := io.WriteString(conn, raw); err != nil {
			t.Fatal(err)
		}
	}
	queued := func() float64 { return p.metric("throttle_queued_requests", `"one"`) }
	until(t, fmt.Sprint(n, " requests wait"), func() bool { return queued() == float64(n) })
	waiting := memory(t, p.cmd.Process.Pid)
	t.Logf("%d waiting clients take %d MB, with %d MB of the process without them: %d KB for each", n, waiting>>20, idle>>20, (waiting-idle)/int64(n)>>10)
	if waiting >= 400<<20 {
		t.Errorf("the proxy takes %d MB, want less than 400", waiting>>20)
	}
	for _, c := range conns {
		c.Close()
	}
	until(t, "nobody waits", func() bool { return queued() == 0 })
	e.answer("held")
	if r := <-held; r.body != "held" || r.err != nil {
		t.Errorf("answered %+v", r)
	}
	last := p.send(t.Context(), "/one/last")
	if e = up.next(t); e.URL.Path != "/last" {
		t.Errorf("the API received %s of a client that had hung up", e.URL.Path)
	}
	e.answer("last")
	<-last
	up.none(t)
}
