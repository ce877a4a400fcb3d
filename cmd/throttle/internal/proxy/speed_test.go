//go:build unix

package proxy_test

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
	"github.com/apithrottle/throttle/observe"
)

// BenchmarkProxy compares the proxy with a plain ReverseProxy that has the same transport and a pool of
// buffers, and with an upstream without a proxy. An iteration is a turn of each, so that a change of the
// machine's speed affects all. All run in this process, whose processor time is measured: other programs
// change it little. Ratio is the time that the proxy adds to a request, divided by that of the
// ReverseProxy.
func BenchmarkProxy(b *testing.B) {
	body := []byte(`{"answer":"` + strings.Repeat("a", 500) + `"}`)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Request-Id", "0123456789abcdef")
		_, _ = w.Write(body)
	}))
	defer upstream.Close()
	to, err := url.Parse(upstream.URL)
	if err != nil {
		b.Fatal(err)
	}
	plain := httptest.NewServer(&httputil.ReverseProxy{
		Transport: proxy.NewBase(10*time.Second, 0), BufferPool: new(pool),
		Rewrite: func(pr *httputil.ProxyRequest) { pr.SetURL(to) }, ErrorLog: log.New(io.Discard, "", 0),
	})
	defer plain.Close()
	own := unlimited(b, to)

	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	const each, workers = 2000, 16 // requests of a turn
	var took [3]time.Duration
	for b.Loop() {
		for i, address := range []string{upstream.URL, plain.URL, own} {
			before := processorTime(b)
			var all sync.WaitGroup
			for range workers {
				all.Go(func() {
					for range each / workers {
						resp, err := client.Get(address + "/api/x")
						if err != nil {
							b.Error(err)
							return
						}
						if n, err := io.Copy(io.Discard, resp.Body); n != int64(len(body)) || err != nil {
							b.Errorf("%d bytes, %v", n, err)
						}
						resp.Body.Close()
					}
				})
			}
			all.Wait()
			took[i] += processorTime(b) - before
		}
	}
	for i, name := range []string{"direct-µs", "ReverseProxy-µs", "proxy-µs"} {
		b.ReportMetric(float64(took[i].Microseconds())/float64(b.N)/each, name)
	}
	b.ReportMetric(float64(took[2]-took[0])/float64(took[1]-took[0]), "ratio")
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// unlimited starts a proxy with two limits that delay nothing, and returns its address.
func unlimited(b *testing.B, to *url.URL) string {
	stats := observe.NewStats()
	handler := proxy.New(proxy.Options{Stats: stats, Page: true, Metrics: true, LocalHosts: true})
	p, err := throttle.ParsePolicy("speed", "1000000000/s;algo=gcra + 1000000000/h;algo=gcra")
	if err != nil {
		b.Fatal(err)
	}
	p.Observer = throttle.JoinObservers(handler.Observer(), stats.Observer())
	limiter, err := throttle.New(p, nil)
	if err != nil {
		b.Fatal(err)
	}
	transport := &throttle.Transport{Base: proxy.NewBase(10*time.Second, 0), Limiter: limiter}
	handler.SetTable(proxy.Table{Routes: []proxy.Route{{Prefix: "/api", Upstream: to, MaxBody: 64 << 10, Transport: transport}}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- (&proxy.Server{Handler: handler}).Serve(b.Context(), l) }()
	b.Cleanup(func() { <-ended })
	return "http://" + l.Addr().String()
}

// A pool has the buffers of the ReverseProxy.
type pool struct{ sync.Pool }

func (p *pool) Get() []byte {
	if b, ok := p.Pool.Get().(*[32 << 10]byte); ok {
		return b[:]
	}
	return make([]byte, 32<<10)
}

func (p *pool) Put(b []byte) { p.Pool.Put((*[32 << 10]byte)(b)) }
