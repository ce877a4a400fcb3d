//go:build unix

package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
	"github.com/apithrottle/throttle/observe"
)

// BenchmarkProxy compares the requests a second through the proxy with those through a ReverseProxy
// that has the same transport and a pool of buffers. The runs alternate, so that a change of the machine's speed affects both.
// The client and the upstream are in the same process: cpu-ratio has their time, too.
func BenchmarkProxy(b *testing.B) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"answer":"`+answer+`"}`)
	}))
	defer api.Close()
	for _, body := range []string{"", strings.Repeat("x", 1000)} {
		b.Run(fmt.Sprintf("body=%d", len(body)), func(b *testing.B) {
			plain := httptest.NewServer(plainProxy(b, api.URL))
			defer plain.Close()
			ours := httptest.NewServer(benchHandler(b, api.URL))
			defer ours.Close()
			const parts = 40
			var took, used [2]time.Duration
			for range parts {
				for i, url := range []string{plain.URL + "/api/x", ours.URL + "/api/x"} {
					before := cpu(b)
					took[i] += load(b, url, body, b.N/parts+1)
					used[i] += cpu(b) - before
				}
			}
			n := float64(b.N/parts+1) * parts
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(n/took[0].Seconds(), "plain/s")
			b.ReportMetric(n/took[1].Seconds(), "proxy/s")
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "ratio")
			b.ReportMetric(used[0].Seconds()/used[1].Seconds(), "cpu-ratio")
			b.ReportMetric((used[1]-used[0]).Seconds()*1e6/n, "more-cpu-µs/request")
		})
	}
}

var answer = strings.Repeat("a", 500)

func plainProxy(b *testing.B, to string) http.Handler {
	u := parseURL(b, to)
	return &httputil.ReverseProxy{
		Transport: proxy.NewBase(10*time.Second, 0), BufferPool: new(buffers),
		Rewrite: func(pr *httputil.ProxyRequest) { pr.SetURL(u) },
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

func benchHandler(b *testing.B, to string) http.Handler {
	stats := observe.NewStats()
	h := proxy.New(proxy.Options{Stats: stats, LocalHosts: true})
	p, err := throttle.ParsePolicy("bench", "1000000000/s + 1000000000/h")
	if err != nil {
		b.Fatal(err)
	}
	for i := range p.Tiers {
		p.Tiers[i].Algorithm = throttle.GCRA
	}
	p.Observer = throttle.JoinObservers(h.Observer(), stats.Observer(), observe.Log(nil, observe.LogOptions{}))
	l, err := throttle.New(p, nil)
	if err != nil {
		b.Fatal(err)
	}
	h.SetTable(proxy.Table{Routes: []proxy.Route{{
		Prefix: "/api", Upstream: parseURL(b, to), MaxBody: 64 << 10,
		Transport: &throttle.Transport{Base: proxy.NewBase(10*time.Second, 0), Limiter: l},
	}}})
	return h
}

// load sends n requests from 16 clients, and returns how long that took.
func load(b *testing.B, url, body string, n int) time.Duration {
	const clients = 16
	tr := &http.Transport{MaxIdleConnsPerHost: clients}
	defer tr.CloseIdleConnections()
	var wg sync.WaitGroup
	todo := make(chan struct{}, n)
	for range n {
		todo <- struct{}{}
	}
	close(todo)
	begin := time.Now()
	for range clients {
		wg.Go(func() {
			for range todo {
				req, err := http.NewRequest("POST", url, strings.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				resp, err := tr.RoundTrip(req)
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					b.Errorf("status %d", resp.StatusCode)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(begin)
}

// cpu returns the time that the process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
