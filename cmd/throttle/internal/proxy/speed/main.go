// Command speed compares the requests a second through throttle proxy with those through a plain
// httputil.ReverseProxy that has the same transport and a pool of buffers, and through nginx if it is
// installed:
//
//	go run ./internal/proxy/speed
//
// The upstream and each proxy are processes of their own, and wrk sends the requests. In each round
// each proxy has one turn, so that a change of the machine's speed affects all. A row has the medians,
// and the median of the rounds' ratios with its least and greatest.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
)

func main() {
	log.SetFlags(0)
	role := flag.String("role", "", "for the processes that the command starts")
	addr := flag.String("addr", "", "for the processes that the command starts")
	to := flag.String("to", "", "for the processes that the command starts")
	rounds := flag.Int("rounds", 10, "how often each proxy has a turn")
	turn := flag.Duration("turn", 2*time.Second, "how long a turn lasts")
	connections := flag.String("connections", "16,64", "how many connections wrk has, one row for each")
	binary := flag.String("throttle", "", "the program throttle; if empty, it is built")
	flag.Parse()
	var err error
	switch *role {
	case "upstream":
		err = http.ListenAndServe(*addr, http.HandlerFunc(answer))
	case "plain":
		err = http.ListenAndServe(*addr, plain(*to))
	default:
		err = compare(*rounds, *turn, strings.Split(*connections, ","), *binary)
	}
	if err != nil {
		log.Fatal(err)
	}
}

var body = []byte(`{"answer":"` + strings.Repeat("a", 500) + `"}`)

// answer answers as an API does.
func answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Request-Id", "0123456789abcdef")
	_, _ = w.Write(body)
}

// plain returns the ReverseProxy that the proxy is compared with.
func plain(to string) http.Handler {
	u, err := url.Parse(to)
	if err != nil {
		log.Fatal(err)
	}
	return &httputil.ReverseProxy{
		Transport: proxy.NewBase(10*time.Second, 0), BufferPool: new(buffers),
		Rewrite: func(pr *httputil.ProxyRequest) { pr.SetURL(u) }, ErrorLog: log.New(io.Discard, "", 0),
	}
}

type buffers struct{ pool sync.Pool }

func (p *buffers) Get() []byte {
	if b, ok := p.pool.Get().(*[32 << 10]byte); ok {
		return b[:]
	}
	return make([]byte, 32<<10)
}

func (p *buffers) Put(b []byte) { p.pool.Put((*[32 << 10]byte)(b)) }

// A target is a process that wrk sends requests to, or that a proxy does.
type target struct {
	name, addr string
	cmd        *exec.Cmd
}

// cpu returns the time that the processes of a target have used, as Linux has it in hundredths of a
// second. A machine that is busy with something else changes it less than the requests a second.
func (t target) cpu() (used time.Duration) {
	pids := []string{strconv.Itoa(t.cmd.Process.Pid)}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", t.cmd.Process.Pid, t.cmd.Process.Pid))
	for _, pid := range append(pids, strings.Fields(string(children))...) {
		stat, _ := os.ReadFile("/proc/" + pid + "/stat")
		_, rest, _ := bytes.Cut(stat, []byte(") "))
		if fields := strings.Fields(string(rest)); len(fields) > 12 {
			for _, field := range fields[11:13] { // utime and stime
				ticks, _ := strconv.Atoi(field)
				used += time.Duration(ticks) * 10 * time.Millisecond
			}
		}
	}
	return used
}

func compare(rounds int, turn time.Duration, connections []string, binary string) error {
	if _, err := exec.LookPath("wrk"); err != nil {
		return fmt.Errorf("speed needs wrk: %w", err)
	}
	dir, err := os.MkdirTemp("", "speed")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	upstream, err := start("upstream", func(addr string) (*exec.Cmd, error) {
		return exec.Command(self, "-role", "upstream", "-addr", addr), nil
	})
	if err != nil {
		return err
	}
	defer upstream.stop()
	var targets []target
	for _, p := range []struct {
		name    string
		command func(addr string) (*exec.Cmd, error)
	}{
		{"ReverseProxy", func(addr string) (*exec.Cmd, error) {
			return exec.Command(self, "-role", "plain", "-addr", addr, "-to", "http://"+upstream.addr), nil
		}},
		{"throttle", func(addr string) (*exec.Cmd, error) { return throttle(dir, binary, addr, upstream.addr) }},
		{"nginx", func(addr string) (*exec.Cmd, error) { return nginx(dir, addr, upstream.addr) }},
	} {
		t, err := start(p.name, p.command)
		if err != nil && p.name == "nginx" {
			log.Printf("without nginx: %v", err)
			break
		}
		if err != nil {
			return err
		}
		defer t.stop()
		targets = append(targets, t)
	}
	return table(targets, rounds, turn, connections)
}

// table measures and prints a row for each number of connections, with keep-alive and without.
func table(targets []target, rounds int, turn time.Duration, connections []string) error {
	printHead(targets, rounds, turn)
	for _, keepAlive := range []bool{true, false} {
		for _, c := range connections {
			if err := row(targets, rounds, turn, c, keepAlive); err != nil {
				return err
			}
		}
	}
	return nil
}

func printHead(targets []target, rounds int, turn time.Duration) {
	fmt.Printf("%s, %d processors, %s; %d rounds of %v\n\n| wrk |", cpuName(), runtime.NumCPU(), runtime.Version(), rounds, turn)
	for _, t := range targets {
		fmt.Printf(" %s |", t.name)
	}
	fmt.Println(" throttle / ReverseProxy | of the processor |")
}

// row measures and prints one row: requests a second, the time of the processor that the proxy takes for
// each, and both as ratios.
func row(targets []target, rounds int, turn time.Duration, connections string, keepAlive bool) error {
	rates, costs := make([][]float64, len(targets)), make([][]float64, len(targets))
	var faster, cheaper []float64
	for n := range rounds {
		for i, t := range targets {
			before := t.cpu()
			requests, took, err := load("http://"+t.addr+"/api/x", turn, connections, keepAlive)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			rates[i] = append(rates[i], requests/took)
			costs[i] = append(costs[i], float64((t.cpu()-before).Microseconds())/requests)
		}
		faster = append(faster, rates[1][n]/rates[0][n])
		cheaper = append(cheaper, costs[0][n]/costs[1][n])
	}
	kind := "keep-alive"
	if !keepAlive {
		kind = "a connection each"
	}
	fmt.Printf("| -t1 -c%s, %s |", connections, kind)
	for i := range targets {
		fmt.Printf(" %.0f/s, %.0f µs |", median(rates[i]), median(costs[i]))
	}
	for _, ratios := range [][]float64{faster, cheaper} {
		fmt.Printf(" %.2f (%.2f to %.2f) |", median(ratios), slices.Min(ratios), slices.Max(ratios))
	}
	fmt.Println()
	return nil
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

var (
	countLine = regexp.MustCompile(`(\d+) requests in ([0-9.]+)s,`)
	errorLine = regexp.MustCompile(`Non-2xx or 3xx responses: \d+`)
)

// load returns how many requests wrk has sent, and the seconds that it took.
func load(url string, turn time.Duration, connections string, keepAlive bool) (requests, took float64, err error) {
	args := []string{"-t1", "-c" + connections, fmt.Sprintf("-d%ds", max(1, int(turn.Seconds()))), url}
	if !keepAlive {
		args = append([]string{"-H", "Connection: close"}, args...)
	}
	out, err := exec.Command("wrk", args...).CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("wrk: %w: %s", err, out)
	}
	if bad := errorLine.Find(out); bad != nil {
		return 0, 0, fmt.Errorf("wrk: %s", bad)
	}
	if found := countLine.FindSubmatch(out); found != nil {
		requests, _ = strconv.ParseFloat(string(found[1]), 64)
		took, _ = strconv.ParseFloat(string(found[2]), 64)
	}
	if requests == 0 || took == 0 {
		return 0, 0, fmt.Errorf("wrk: %s", out)
	}
	return requests, took, nil
}

const config = `listen: %s
routes:
  /api: {to: "http://%s", policy: 1000000000/s;algo=gcra + 1000000000/h;algo=gcra}
`

// throttle returns the command that runs throttle proxy.
func throttle(dir, binary, addr, upstream string) (*exec.Cmd, error) {
	if binary == "" {
		binary = filepath.Join(dir, "throttle")
		build := exec.Command("go", "build", "-o", binary, "github.com/apithrottle/throttle/cmd/throttle")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build: %w: %s", err, out)
		}
	}
	file := filepath.Join(dir, "throttle.yaml")
	return exec.Command(binary, "proxy", "--config", file), os.WriteFile(file, fmt.Appendf(nil, config, addr, upstream), 0o600)
}

const nginxConfig = `daemon off; pid %[1]s/nginx.pid; error_log %[1]s/error.log; worker_processes auto;
events {}
http {
  access_log off; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
  upstream api { server %[2]s; keepalive 1024; keepalive_requests 1000000000; }
  server { listen %[3]s; keepalive_requests 1000000000; location / { proxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection ""; } }
}
`

// nginx returns the command that runs nginx as a proxy.
func nginx(dir, addr, upstream string) (*exec.Cmd, error) {
	binary, err := exec.LookPath("nginx")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "nginx.conf")
	cmd := exec.Command(binary, "-c", file, "-e", filepath.Join(dir, "error.log"))
	return cmd, os.WriteFile(file, fmt.Appendf(nil, nginxConfig, dir, upstream, addr), 0o600)
}

// start starts a process on a free port, and waits until it listens.
func start(name string, command func(addr string) (*exec.Cmd, error)) (t target, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return t, err
	}
	l.Close()
	t = target{name: name, addr: l.Addr().String()}
	if t.cmd, err = command(t.addr); err != nil {
		return t, err
	}
	var output bytes.Buffer
	t.cmd.Stderr = &output
	if err := t.cmd.Start(); err != nil {
		return t, err
	}
	for range 100 {
		if conn, err := net.Dial("tcp", t.addr); err == nil {
			conn.Close()
			return t, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.stop()
	return t, fmt.Errorf("%s does not listen: %s", name, output.Bytes())
}

func (t target) stop() { _ = t.cmd.Process.Signal(os.Interrupt); _ = t.cmd.Wait() }

// cpuName returns the name of the processor, as Linux has it.
func cpuName() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	if _, rest, ok := bytes.Cut(text, []byte("model name")); ok {
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		return strings.Trim(string(line), " \t:")
	}
	return runtime.GOARCH
}
