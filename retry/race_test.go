package retry_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/httpmem"
	"github.com/apithrottle/throttle/retry"
	"github.com/apithrottle/throttle/throttletest"
)

// get sends a GET and returns the status and the body of its response, or the error.
func get(ctx context.Context, client *http.Client, url string) string {
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err.Error()
	}
	resp, err := client.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(resp.StatusCode, " ", string(text))
}

// pooled returns a Transport with a Pool of Limiters, whose names are the hosts of their members.
func pooled(t *testing.T, base http.RoundTripper, members ...*throttle.Limiter) *throttle.Transport {
	t.Helper()
	pool := new(throttle.Pool)
	for i, l := range members {
		if err := pool.Add(throttle.Member{Name: l.Name(), Limiter: l, Rank: i}); err != nil {
			t.Fatal(err)
		}
	}
	return &throttle.Transport{Base: base, Pool: pool, Rewrite: func(req *http.Request, member string) error {
		req.URL.Host = member
		return nil
	}}
}

// While a caller waits, no request is hedged, although there is room for the hedge and none for the caller.
func TestNoHedgeWhileACallerWaits(t *testing.T) {
	ten := func(t *testing.T, name string) *throttle.Limiter {
		return newLimiter(t, throttle.Policy{Name: name, Tiers: []throttle.Tier{{Limit: 10, Window: 20 * time.Second, Algorithm: throttle.FixedWindow}}})
	}
	wide := func(t *testing.T) *throttle.Limiter {
		return newLimiter(t, throttle.Policy{Name: "wide", Tiers: []throttle.Tier{{Limit: 1000, Window: time.Minute}}})
	}
	for name, transport := range map[string]func(*testing.T, *api) *throttle.Transport{
		"alone": func(t *testing.T, a *api) *throttle.Transport {
			return &throttle.Transport{Base: a, Limiter: ten(t, "ten")}
		},
		"inner": func(t *testing.T, a *api) *throttle.Transport {
			return &throttle.Transport{Base: a, Limiter: ten(t, "ten").Within(wide(t))}
		},
		"outer": func(t *testing.T, a *api) *throttle.Transport {
			return &throttle.Transport{Base: a, Limiter: wide(t).Within(ten(t, "ten"))}
		},
		"pool of one": func(t *testing.T, a *api) *throttle.Transport { return pooled(t, a, ten(t, "ten")) },
		"pool of two": func(t *testing.T, a *api) *throttle.Transport {
			other := ten(t, "other")
			other.AllowN(5)
			return pooled(t, a, ten(t, "ten"), other)
		},
	} {
		for _, waits := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%s, waits %t", name, waits), func(t *testing.T) {
				a, h := newAPI("5000 200"), afterASecond()
				tr := transport(t, a)
				tr.Cost = func(r *http.Request) throttle.Cost {
					if r.URL.Path == "/large" {
						return throttle.Cost{"requests": 8}
					}
					return throttle.Cost{"requests": 3}
				}
				client := retry.Config{Transport: tr, Hedge: h}.Client()
				var wg sync.WaitGroup
				wg.Go(func() { get(t.Context(), client, "http://api.example/small") })
				if waits {
					synctest.Wait()
					wg.Go(func() { get(t.Context(), client, "http://api.example/large") })
				}
				wg.Wait()
				if hedged := slices.Contains(a.sent(), 1000); hedged == waits {
					t.Errorf("sent at %v ms", a.sent())
				}
			})
		}
	}
}

// Under a load that changes, no hedge overtakes a request, and a provider that counts as the limiter does refuses none.
func TestHedgesOvertakeNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked, came, hedges := map[string]time.Duration{}, map[string]time.Duration{}, []time.Duration(nil)
		start := time.Now()
		p := throttletest.New(throttle.PerSecond(10))
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			if _, again := came[r.URL.Path]; again {
				hedges = append(hedges, time.Since(start))
			} else {
				came[r.URL.Path] = time.Since(start)
			}
			slow := strings.HasSuffix(r.URL.Path, "0")
			mu.Unlock()
			if err := httpmem.Sleep(r.Context(), func() time.Duration {
				if slow {
					return 800 * time.Millisecond
				}
				return 70 * time.Millisecond
			}); err != nil {
				return nil, err
			}
			return p.RoundTrip(r)
		})
		h := &retry.Hedge{After: 100 * time.Millisecond, Share: 0.05}
		tr := &throttle.Transport{Base: base, Limiter: newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(10)}, Guard: time.Second})}
		client := retry.Config{Transport: tr, Hedge: h}.Client()
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() {
				path := fmt.Sprint("/", i)
				mu.Lock()
				asked[path] = time.Since(start)
				mu.Unlock()
				if got := get(t.Context(), client, "http://api.example"+path); !strings.HasPrefix(got, "200") {
					t.Errorf("%s: %s", path, got)
				}
			})
			if i%400 >= 150 { // 150 at once, and then a request each 250 ms
				time.Sleep(250 * time.Millisecond)
			}
		}
		wg.Wait()
		for _, at := range hedges {
			for path, began := range asked {
				if began < at && came[path] > at {
					t.Errorf("a hedge was sent after %v while %s waited from %v to %v", at, path, began, came[path])
				}
			}
		}
		sent, _ := h.Counts()
		if int(sent) != len(hedges) || sent == 0 || sent > 100 {
			t.Errorf("%d hedges of 2000 requests were counted and %d sent, want some and 100 at most", sent, len(hedges))
		}
		if s := p.Summary(); s.Refused != 0 {
			t.Errorf("the provider refused %d of %d", s.Refused, s.Sent)
		}
	})
}

// While the quota is paused or banned, no request is hedged. The refusal of a hedge pauses it, too.
func TestHedgesAndPauses(t *testing.T) {
	for _, c := range []struct {
		name     string
		maxPause time.Duration
		script   []string
		sent     []int
		second   string
	}{
		{"paused by another request", time.Minute, []string{"5000 200", "100 429", "100 200"}, []int{0, 500, 30600}, "200 answer 3"},
		{"banned", time.Second, []string{"5000 200", "100 429", "100 200"}, []int{0, 500}, "429 answer 2"},
		{"paused by the hedge", time.Minute, []string{"5000 200", "5000 200", "100 429", "100 200"}, []int{0, 500, 1000}, "200 answer 2"},
	} {
		bubble(t, c.name, func(t *testing.T) {
			a, h := newAPI(c.script...), afterASecond()
			l := newLimiter(t, throttle.Policy{MaxPause: c.maxPause, Tiers: []throttle.Tier{{Limit: 1000, Window: time.Minute}}})
			client := retry.Config{Transport: &throttle.Transport{Base: a, Limiter: l}, Hedge: h}.Client()
			var wg sync.WaitGroup
			wg.Go(func() {
				if got := get(t.Context(), client, target); got != "200 answer 1" || time.Since(a.start) != 5*time.Second {
					t.Errorf("the first request got %q after %v", got, time.Since(a.start))
				}
			})
			wg.Go(func() {
				time.Sleep(500 * time.Millisecond)
				if got := get(t.Context(), client, target); got != c.second {
					t.Errorf("the second request got %q, want %q", got, c.second)
				}
			})
			wg.Wait()
			if got := a.sent(); !slices.Equal(got, c.sent) {
				t.Errorf("sent at %v ms, want %v", got, c.sent)
			}
		})
	}
}

// pauseOf returns how long a Limiter still pauses.
func pauseOf(t *testing.T, l *throttle.Limiter) time.Duration {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Error(err)
	}
	return s.Paused
}

// An object that pauses is not hedged, although the quota does not pause.
func TestNoHedgeOfAnObjectThatPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(50)}})
		var own []time.Duration
		start, slow, paused := time.Now(), time.Duration(0), time.Duration(-1)
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			header, status, took := http.Header{}, 200, time.Millisecond
			if r.URL.Path == "/own" {
				own = append(own, time.Since(start))
				if status = 429; slow > 0 {
					status, took, slow = 200, slow, 0
					time.AfterFunc(3*time.Second, func() { paused = pauseOf(t, l) })
				}
				header.Set("Retry-After", "9")
			}
			if err := httpmem.Sleep(r.Context(), func() time.Duration { return took }); err != nil {
				return nil, err
			}
			return httpmem.Response(r, status, header, "", func() {}), nil
		})
		h := &retry.Hedge{After: 3 * time.Second, Share: 1}
		client := retry.Config{Transport: &throttle.Transport{Base: base, Limiter: l}, Hedge: h, Max: -1}.Client()
		for range 30 {
			get(t.Context(), client, "http://api.example/")
			time.Sleep(time.Second)
			get(t.Context(), client, "http://api.example/own")
			time.Sleep(time.Second)
		}
		slow = 20 * time.Second
		before := len(own)
		get(t.Context(), client, "http://api.example/own")
		synctest.Wait()
		if sent := own[before:]; len(sent) != 1 {
			t.Errorf("the object was sent at %v, want once", sent)
		}
		if paused != 0 {
			t.Errorf("the quota paused for %v", paused)
		}
	})
}

// A hedged request whose context ends leaves at once, and both attempts give back their places.
func TestHedgedRequestIsCanceled(t *testing.T) {
	const canceled = `Get "http://api.example/orders": context canceled`
	for _, c := range []struct{ script, want string }{
		{"9000 200", canceled},
		{"1500 503|9000 200", "503 answer 1"},
		{"9000 200|500 429|9000 200", canceled},
	} {
		bubble(t, c.script, func(t *testing.T) {
			a := newAPI(strings.Split(c.script, "|")...)
			l := newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 5, Algorithm: throttle.Concurrency}}})
			client := retry.Config{Transport: &throttle.Transport{Base: a, Limiter: l}, Hedge: afterASecond()}.Client()
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(2*time.Second, cancel)
			got := get(ctx, client, target)
			if took := time.Since(a.start); got != c.want || took != 2*time.Second {
				t.Errorf("got %q after %v, want %q after 2 s", got, took, c.want)
			}
			a.checkEnded(t, 2)
			if n := used(t, l); n != 0 || len(a.calls) != 2 {
				t.Errorf("%d places are in use after %d requests, want 0 after 2", n, len(a.calls))
			}
		})
	}
}

// The loser gives back its place in a Concurrency tier when the winner has a response.
func TestLoserLeavesItsPlace(t *testing.T) {
	for _, script := range [][]string{{"9000 200", "100 200"}, {"1100 200", "9000 200"}, {"1100 200", "100 429"}, {"1100 429", "500 200"}} {
		bubble(t, strings.Join(script, ", "), func(t *testing.T) {
			a := newAPI(script...)
			l := newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 2, Algorithm: throttle.Concurrency}}})
			client := retry.Config{Transport: &throttle.Transport{Base: a, Limiter: l}, Hedge: afterASecond()}.Client()
			resp, err := client.Do(request(t, "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := used(t, l); n != 1 {
				t.Errorf("%d places are in use while the response is open, want 1", n)
			}
			finish(t, resp)
			if n := used(t, l); n != 0 {
				t.Errorf("%d places are in use after the response, want 0", n)
			}
			a.checkEnded(t, 2)
		})
	}
	bubble(t, "no room", func(t *testing.T) {
		a, h := newAPI("5000 200"), afterASecond()
		l := newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}})
		get(t.Context(), retry.Config{Transport: &throttle.Transport{Base: a, Limiter: l}, Hedge: h}.Client(), target)
		wantCounts(t, h, 0, 0)
	})
}

// A first attempt that has failed gives back its place while the hedge goes on. The caller receives the whole of its
// response if the hedge fails, and it is closed if the hedge wins, however long it is.
func TestFailedFirstAttemptIsKept(t *testing.T) {
	for _, length := range []int{0, 10, 64 << 10, 100_000} {
		for _, status := range []int{200, 503} { // of the hedge
			bubble(t, fmt.Sprint(length, " bytes, ", status), func(t *testing.T) {
				var n, open atomic.Int64
				base := roundTripper(func(r *http.Request) (*http.Response, error) {
					took, status, text := 5*time.Second, status, "hedge"
					if n.Add(1) == 1 {
						took, status, text = 1500*time.Millisecond, 502, strings.Repeat("f", length)
					}
					if err := httpmem.Sleep(r.Context(), func() time.Duration { return took }); err != nil {
						return nil, err
					}
					open.Add(1)
					return httpmem.Response(r, status, http.Header{}, text, sync.OnceFunc(func() { open.Add(-1) })), nil
				})
				l := newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 2, Algorithm: throttle.Concurrency}}})
				client := retry.Config{Transport: &throttle.Transport{Base: base, Limiter: l}, Hedge: afterASecond(), Max: -1}.Client()
				time.AfterFunc(2*time.Second, func() {
					if n := used(t, l); (n == 1) != (length < 64<<10) {
						t.Errorf("%d places are in use while the hedge goes on", n)
					}
				})
				want := fmt.Sprint("502 ", strings.Repeat("f", length))
				if status == 200 {
					want = "200 hedge"
				}
				if got := get(t.Context(), client, target); got != want {
					t.Errorf("got %.30q with %d bytes, want %.30q with %d", got, len(got), want, len(want))
				}
				synctest.Wait()
				if n := used(t, l); n != 0 || open.Load() != 0 {
					t.Errorf("%d places are in use, and %d responses are open", n, open.Load())
				}
			})
		}
	}
}

// The caller leaves when its context ends, although a hedge does not.
func TestCallerDoesNotWaitForAHedgeThatStays(t *testing.T) {
	bubble(t, "a Base that ignores the context", func(t *testing.T) {
		a := newAPI("1500 503")
		var n atomic.Int64
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			if n.Add(1) == 2 {
				time.Sleep(9 * time.Second)
			}
			return a.RoundTrip(r)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		got := get(ctx, retry.Config{Transport: &throttle.Transport{Base: base}, Hedge: afterASecond()}.Client(), target)
		if took := time.Since(a.start); got != "503 answer 1" || took != 2*time.Second {
			t.Errorf("got %q after %v, want the response of the first attempt after 2 s", got, took)
		}
		time.Sleep(10 * time.Second) // until the hedge has ended
	})
}

// A loser of which nothing was written is refunded. One that was sent is not, as any request without a response.
func TestLoserIsRefundedUnlessSent(t *testing.T) {
	for _, connects := range []bool{false, true} {
		bubble(t, fmt.Sprintf("connects %t", connects), func(t *testing.T) {
			p := newProvider(t, "hang", "200")
			if !connects {
				p.script = []string{"200"}
			}
			var dials atomic.Int64
			dial := p.transport.DialContext
			p.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) == 1 && !connects {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return dial(ctx, network, addr)
			}
			h := afterASecond()
			tr := limited(t, p.transport)
			tr.Limiter = newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 1000, Window: time.Hour}}, Guard: time.Minute})
			resp, err := retry.Config{Transport: tr, Hedge: h}.Client().Do(request(t, "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			finish(t, resp)
			wantCounts(t, h, 1, 1)
			want := int64(1)
			if connects {
				want = 2
			}
			if n := used(t, tr.Limiter); n != want {
				t.Errorf("%d units are used, want %d", n, want)
			}
		})
	}
}

// The winner's body is read to its end after the race, as it comes.
func TestWinnerStreams(t *testing.T) {
	for _, winner := range []int64{1, 2} {
		bubble(t, fmt.Sprintf("request %d", winner), func(t *testing.T) {
			var n atomic.Int64
			p := &provider{start: time.Now(), conns: make(chan net.Conn), script: []string{"200"}}
			p.transport = &http.Transport{DialContext: p.dial, DisableKeepAlives: true}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				took := 9 * time.Second
				if n.Add(1) == winner {
					took = 1500 * time.Millisecond
				}
				if httpmem.Sleep(r.Context(), func() time.Duration { return took }) != nil {
					return
				}
				for i := range 3 {
					fmt.Fprintf(w, "event %d, ", i)
					w.(http.Flusher).Flush()
					time.Sleep(20 * time.Second)
				}
			})}
			go server.Serve(p)
			defer server.Close()
			defer p.transport.CloseIdleConnections()
			tr := limited(t, p.transport)
			tr.Limiter = newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 2, Algorithm: throttle.Concurrency}}})
			client := retry.Config{Transport: tr, Hedge: afterASecond()}.Client()
			if got := get(t.Context(), client, target); got != "200 event 0, event 1, event 2, " || n.Load() != 2 {
				t.Errorf("got %q of %d requests", got, n.Load())
			}
			if n := used(t, tr.Limiter); n != 0 {
				t.Errorf("%d places are in use", n)
			}
		})
	}
}

// A panic of the Base reaches the caller, from the first attempt and from the hedge, and nothing stays behind.
func TestHedgesAndPanics(t *testing.T) {
	for _, c := range []struct {
		name     string
		script   []string
		panicked any
		took     int
	}{
		{"first", []string{"1500 boom", "9000 200"}, "boom", 1500},
		{"first, when the hedge has won", []string{"5000 boom", "100 200"}, "boom", 1100},
		{"first, before the hedge", []string{"500 boom"}, "boom", 500},
		{"hedge", []string{"5000 200", "100 boom"}, "boom", 1100},
		{"hedge, when the first has won", []string{"1500 200", "9000 boom"}, nil, 1500},
	} {
		bubble(t, c.name, func(t *testing.T) {
			var log bytes.Buffer
			a := newAPI(c.script...)
			l := newLimiter(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 5, Algorithm: throttle.Concurrency}}})
			client := retry.Config{Transport: &throttle.Transport{Base: a, Limiter: l}, Hedge: afterASecond(), Log: slog.New(slog.NewTextHandler(&log, nil))}.Client()
			func() {
				defer func() {
					if got := recover(); got != c.panicked {
						t.Errorf("panicked with %v, want %v", got, c.panicked)
					}
				}()
				get(t.Context(), client, target)
			}()
			if took := time.Since(a.start); took != time.Duration(c.took)*time.Millisecond {
				t.Errorf("took %v, want %d ms", took, c.took)
			}
			synctest.Wait()
			a.checkEnded(t, len(a.calls))
			if n := used(t, l); n != 0 {
				t.Errorf("%d places are in use", n)
			}
			if logged := strings.Contains(log.String(), "panic=boom"); logged != (c.panicked == nil) {
				t.Errorf("log: %s", &log)
			}
		})
	}
	bubble(t, "the hedge calls runtime.Goexit", func(t *testing.T) {
		var n atomic.Int64
		client := retry.Config{Hedge: afterASecond(), Transport: &throttle.Transport{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			if n.Add(1) == 2 {
				runtime.Goexit()
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}}.Client()
		done := make(chan bool, 1)
		go func() {
			returned := false
			defer func() { done <- returned }()
			get(t.Context(), client, target)
			returned = true
		}()
		if <-done {
			t.Error("the request has returned, want that its goroutine ends as that of the hedge")
		}
	})
}

// The hedge of a request to a Pool goes to the member that has room, with the credentials and the host of that one.
func TestHedgeGoesThroughThePool(t *testing.T) {
	for _, c := range []struct {
		room bool // of the second member
		sent string
		text string
	}{{true, "a b", "200 answer 2"}, {false, "a", "200 answer 1"}} {
		bubble(t, c.sent, func(t *testing.T) {
			a, h := newAPI("5000 200", "100 200"), afterASecond()
			one := func(name string) *throttle.Limiter {
				return newLimiter(t, throttle.Policy{Name: name, Tiers: []throttle.Tier{{Limit: 1, Window: time.Minute}}})
			}
			second := one("b")
			if !c.room {
				second.Allow()
			}
			client := retry.Config{Transport: pooled(t, a, one("a"), second), Hedge: h}.Client()
			if got := get(t.Context(), client, "http://api.example"); got != c.text {
				t.Errorf("got %q, want %q", got, c.text)
			}
			synctest.Wait()
			var hosts []string
			for _, sent := range a.calls {
				hosts = append(hosts, sent.path)
			}
			if got := strings.Join(hosts, " "); got != c.sent {
				t.Errorf("sent to %q, want %q", got, c.sent)
			}
		})
	}
}

// Both attempts of a race have headers of their own, for a Base that changes them.
func TestHedgeHasItsOwnHeader(t *testing.T) {
	bubble(t, "signed", func(t *testing.T) {
		a := newAPI("1500 200", "1000 200")
		client := retry.Config{Hedge: afterASecond(), Transport: &throttle.Transport{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Signature") != "" {
				t.Error("the hedge has the signature of the first attempt")
			}
			r.Header.Set("Signature", "s")
			return a.RoundTrip(r)
		})}}.Client()
		if got := get(t.Context(), client, target); got != "200 answer 1" {
			t.Errorf("got %q", got)
		}
	})
}

// A redirect is followed with the hedge of each hop.
func TestRedirectsAreHedged(t *testing.T) {
	bubble(t, "two hops", func(t *testing.T) {
		var paths []string
		var mu sync.Mutex
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			again := slices.Contains(paths, r.URL.Path)
			paths = append(paths, r.URL.Path)
			mu.Unlock()
			if err := httpmem.Sleep(r.Context(), func() time.Duration {
				if again {
					return 100 * time.Millisecond
				}
				return 5 * time.Second
			}); err != nil {
				return nil, err
			}
			if r.URL.Path == "/orders" {
				return httpmem.Response(r, 307, http.Header{"Location": {"/elsewhere"}}, "", func() {}), nil
			}
			return httpmem.Response(r, 200, http.Header{}, "here", func() {}), nil
		})
		h := afterASecond()
		if got := get(t.Context(), retry.Config{Transport: limited(t, base), Hedge: h}.Client(), target); got != "200 here" {
			t.Errorf("got %q", got)
		}
		synctest.Wait()
		if want := []string{"/orders", "/orders", "/elsewhere", "/elsewhere"}; !slices.Equal(paths, want) {
			t.Errorf("sent %q, want %q", paths, want)
		}
		wantCounts(t, h, 2, 2)
	})
}

// The refusal of a hedge by a Profile is no answer either.
func TestHedgeRefusedByProfile(t *testing.T) {
	for _, kind := range []answers.Kind{answers.Limited, answers.Banned, answers.Other} {
		bubble(t, fmt.Sprint(kind), func(t *testing.T) {
			a := newAPI("5000 200", "100 418")
			tr := limited(t, a)
			tr.Profile = &answers.Profile{Rules: []answers.Rule{{Status: 418, Kind: kind}}}
			if got := get(t.Context(), retry.Config{Transport: tr, Hedge: afterASecond()}.Client(), target); got != "200 answer 1" {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestHedgeIsLogged(t *testing.T) {
	bubble(t, "won", func(t *testing.T) {
		var log bytes.Buffer
		client := retry.Config{Transport: limited(t, newAPI("5000 200", "100 200")), Hedge: afterASecond(), Log: slog.New(slog.NewTextHandler(&log, nil))}.Client()
		get(t.Context(), client, "http://user:hunter2@api.example/bot-token?key=s3cr3t")
		synctest.Wait()
		_, line, _ := strings.Cut(log.String(), " ")
		if want := "level=INFO msg=\"retry: hedged\" after=1s won=true method=GET host=api.example\n"; line != want {
			t.Errorf("log %q, want %q", line, want)
		}
	})
}
