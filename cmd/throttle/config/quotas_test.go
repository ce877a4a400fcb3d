package config_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// A picky store opens no quota of one name.
type picky struct {
	*local.Store
	refuses string
}

func (p *picky) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	if key == p.refuses {
		return nil, errors.New("no room")
	}
	return p.Store.Open(key, plan, report)
}

// A Reload that fails has changed nothing, also if it fails only at the last route.
func TestReloadIsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const file = `
routes:
  /a: {to: https://a.example, policy: %d/h, budget: %d/day;budget=true, max_wait: 1s}
  /b: {to: https://b.example, policy: 100/h, name: %s, max_wait: 1s}
  /z: {to: https://z.example, policy: 5/h, name: %s, max_wait: 1s}
clients: {web: {token: 0123456789abcdef, policy: %d/h, max_wait: 1s}}
`
		s := &picky{Store: &local.Store{Replan: true}, refuses: "bad"}
		before, err := parse(t, file, 3, 8, "b", "z", 6).Transports(s)
		if err != nil {
			t.Fatal(err)
		}
		after := parse(t, file, 50, 80, "a2", "bad", 60)
		if _, err := before.Reload(t.Context(), after); err == nil || !strings.Contains(err.Error(), "config: routes./z: throttle: policy \"bad\": no room") {
			t.Fatal(err)
		}
		count := func(prefix, url, client string) int {
			rt := before.Of(prefix)
			rt.Base = new(api)
			n, _ := send(t, rt, url, client)
			return n
		}
		if a, web := count("/a", "https://a.example/", ""), count("/b", "https://b.example/", "web"); a != 3 || web != 6 {
			t.Errorf("%d requests of the route and %d of the client were sent, want 3 and 6", a, web)
		}
		s.refuses = ""
		if before, err = before.Reload(t.Context(), after); err != nil {
			t.Fatal(err)
		}
		if a, web := count("/a", "https://a.example/", ""), count("/b", "https://b.example/", "web"); a != 47 || web != 54 {
			t.Errorf("%d requests of the route and %d of the client were sent besides, want 47 and 54", a, web)
		}
		other := parse(t, "store: {redis: \"redis://127.0.0.1:1\"}\n"+file, 50, 80, "a2", "z", 60)
		if _, err := before.Reload(t.Context(), other); err == nil || !strings.Contains(err.Error(), "another store needs a new start") {
			t.Error(err)
		}
		if before.Of("/none") != nil {
			t.Error("a route that is not there has a transport")
		}
	})
}

// A route with a key keeps ten thousand accounts in little memory, and no more.
func TestManyKeys(t *testing.T) {
	c := parse(t, "routes: {/a: {to: https://a.example, policy: 5/s + 10000/h, key: {header: Authorization}}}")
	rt, err := c.Transport("/a", nil)
	if err != nil {
		t.Fatal(err)
	}
	upstream := new(api)
	rt.Base = upstream
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, refused := heap(), 0
	for i := range 2 * config.DefaultMaxKeys {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", "https://a.example/", nil)
		req.Header.Set("Authorization", fmt.Sprint("Bearer key-", i))
		switch resp, err := rt.RoundTrip(req); {
		case err == nil:
			resp.Body.Close()
		case errors.Is(err, throttle.ErrTooManyKeys):
			refused++
		default:
			t.Fatal(err)
		}
	}
	grown := max(heap(), before) - before
	t.Logf("%d accounts take %d bytes each", upstream.sent, grown/uint64(upstream.sent))
	if upstream.sent != config.DefaultMaxKeys || refused != config.DefaultMaxKeys {
		t.Errorf("%d accounts were admitted and %d refused, want %d each", upstream.sent, refused, config.DefaultMaxKeys)
	}
	if grown > 100<<20 {
		t.Errorf("they take %d MB", grown>>20)
	}
	runtime.KeepAlive(rt)
}

// The key of an account is the same in another process, which has another Config on the same store.
func TestKeysAreStable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &local.Store{Replan: true}
		sent := 0
		for range 2 {
			c := parse(t, "routes: {/a: {to: https://a.example, policy: 5/h, max_wait: 1s, key: {header: X-Tenant}}}")
			rt, err := c.Transport("/a", s)
			if err != nil {
				t.Fatal(err)
			}
			rt.Base = new(api)
			for _, tenant := range []string{"a", "b", "a", "a", "a"} {
				req, _ := http.NewRequestWithContext(t.Context(), "GET", "https://a.example/", nil)
				req.Header.Set("X-Tenant", tenant)
				if resp, err := rt.RoundTrip(req); err == nil {
					resp.Body.Close()
					sent++
				}
			}
		}
		if sent != 7 {
			t.Errorf("%d requests were sent, want 5 of a and 2 of b", sent)
		}
	})
}

// While Redis is away, a process has its part of the limits if the file has a fallback.
func TestFallback(t *testing.T) {
	for fallback, want := range map[string]error{", fallback: {workers: 4}": nil, "": throttle.ErrUnavailable} {
		c := parse(t, `
store: {redis: "redis://127.0.0.1:1", timeout: 200ms%s}
routes: {/a: {to: https://a.example, policy: 4000/h, max_wait: 500ms}}
`, fallback)
		s, closer, err := c.OpenStore()
		if err != nil {
			t.Fatal(err)
		}
		rt, err := c.Transport("/a", s)
		if err != nil {
			t.Fatal(err)
		}
		rt.Base = new(api)
		for range 20 { // the first calls find out that Redis is away
			req, _ := http.NewRequestWithContext(t.Context(), "GET", "https://a.example/", nil)
			var resp *http.Response
			if resp, err = rt.RoundTrip(req); err == nil {
				resp.Body.Close()
				break
			}
			if want != nil && errors.Is(err, want) {
				break
			}
		}
		if !errors.Is(err, want) {
			t.Errorf("with %q: %v, want %v", fallback, err, want)
		}
		closer.Close()
	}
}

// A sending answers every request with 200, and may be used concurrently.
type sending struct{}

func (sending) RoundTrip(req *http.Request) (*http.Response, error) { return new(api).RoundTrip(req) }

// A client's requests that wait for its own limits, and those of others on the route, keep apart.
func TestClientsWaitApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := parse(t, `
routes:
  /a: {to: https://a.example, policy: 100/s, max_queue: 40}
clients:
  slow: {token: 0123456789abcdef, policy: 1/s}
  fast: {token: 0123456789abcdeg, budget: 100000/day;budget=true}
`)
		rt, err := c.Transport("/a", nil)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		last := make(map[string]time.Duration)
		rt.Base = sending{}
		begin := time.Now()
		var wg sync.WaitGroup
		for _, client := range []struct {
			name     string
			requests int
		}{{"slow", 20}, {"fast", 125}, {"", 10}} { // 35 wait in the queue of the route
			name := client.name
			for range client.requests {
				wg.Go(func() {
					req, _ := http.NewRequestWithContext(config.WithClient(t.Context(), name), "GET", "https://a.example/", nil)
					resp, err := rt.RoundTrip(req)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						resp.Body.Close()
						last[name] = max(last[name], time.Since(begin))
					} else {
						t.Error(name, err)
					}
				})
			}
			synctest.Wait() // the slow client comes first
		}
		wg.Wait()
		if last["slow"] < 18*time.Second || last["fast"] > 3*time.Second || last[""] > 3*time.Second {
			t.Errorf("the last requests were sent after %v", last)
		}
	})
}

// A budget is one for all accounts, whether a key or the preset tells them apart, and of requests that the
// preset does not count.
func TestBudgetOfAccounts(t *testing.T) {
	for name, route := range map[string]string{
		"policy": "policy: 100/s, key: {header: Authorization}",
		"preset": "preset: notion, key: {header: Authorization}",
		"keyed":  "preset: openai, any_host: true, with: {requests: 500, tokens: 2000}, key: {header: Authorization}",
	} {
		synctest.Test(t, func(t *testing.T) {
			rt, err := parse(t, `routes: {/api: {to: https://api.notion.com, %s, budget: 3/day;budget=true}}`, route).Transport("/api", nil)
			if err != nil {
				t.Fatal(err)
			}
			rt.Base = new(api)
			for i, account := range []string{"a", "b", "a", "c", "a"} {
				req := httptest.NewRequest("GET", "https://api.notion.com/v1/x", nil)
				req.Header.Set("Authorization", account)
				if _, err := rt.RoundTrip(req); (err == nil) != (i < 3) || i >= 3 && !errors.Is(err, throttle.ErrExhausted) {
					t.Errorf("%s: request %d of account %s: %v", name, i, account, err)
				}
			}
		})
	}
}

// What an API reports of its own counters says nothing about budgets and limits of clients.
func TestReportsAreNotOfBudgets(t *testing.T) {
	for name, c := range map[string]struct {
		file, client string
		want         int
	}{
		"client": {"clients: {web: {token: 0123456789abcdef, budget: 100/day;budget=true}}", "web", 100},
		"route":  {"", "", 200},
	} {
		synctest.Test(t, func(t *testing.T) {
			rt, err := parse(t, `
routes:
  /api: {to: https://api.openai.com, preset: openai, with: {requests: 500, tokens: 2000000}, budget: 200/day;budget=true}
%s`, c.file).Transport("/api", nil)
			if err != nil {
				t.Fatal(err)
			}
			rt.Base = reporting{"X-Ratelimit-Limit-Requests": {"1000"}, "X-Ratelimit-Remaining-Requests": {"10"}, "X-Ratelimit-Reset-Requests": {"30s"}}
			if n, err := send(t, rt, "https://api.openai.com/v1/models", c.client); n != c.want || !errors.Is(err, throttle.ErrExhausted) {
				t.Errorf("%s: %d requests were sent, then %v, want %d", name, n, err, c.want)
			}
		})
	}
}

// A reporting API answers with a header.
type reporting http.Header

func (r reporting) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := new(api).RoundTrip(req)
	resp.Header = http.Header(r).Clone()
	return resp, err
}
