package config_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/config"
)

// An api answers every request with 200, and counts them.
type api struct {
	sent     int
	response string
}

func (a *api) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		req.Body.Close()
	}
	a.sent++
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(a.response)), Request: req}, nil
}

func parse(t *testing.T, format string, args ...any) *config.Config {
	t.Helper()
	c, err := loader().Parse(fmt.Appendf(nil, format, args...), "t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// send sends requests of a client until one is refused. It returns how many were not, and the
// refusal.
func send(t *testing.T, rt http.RoundTripper, url, client string) (n int, refusal error) {
	t.Helper()
	for ; n < 10_000; n++ {
		req, err := http.NewRequestWithContext(config.WithClient(t.Context(), client), "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := rt.RoundTrip(req)
		if err != nil {
			return n, err
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	return n, nil
}

// A route keeps to its policy, its budget and the budgets of clients, which count over all routes.
func TestTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := parse(t, `
routes:
  /a: {to: https://a.example, policy: 10/h, budget: 100/day;unit=usd;budget=true, cost: {usd: 20}}
  /b: {to: https://b.example, policy: 50/h, clients: [web, job], max_wait: 1ms}
  /c: {to: https://api.airtable.com, preset: airtable, budget: 3/day;budget=true}
clients:
  web: {token: 0123456789abcdef, budget: 7/day;budget=true}
  job: {token: 0123456789abcdeg}
`)
		var alerts []throttle.Alert
		c.Alert = func(a throttle.Alert) { alerts = append(alerts, a) }
		store, closer, err := c.OpenStore()
		if err != nil {
			t.Fatal(err)
		}
		defer closer.Close()
		upstream := new(api)
		transports := make(map[string]http.RoundTripper)
		for prefix := range c.Routes {
			rt, err := c.Transport(prefix, store)
			if err != nil {
				t.Fatal(err)
			}
			rt.Base = upstream
			transports[prefix] = rt
		}
		for _, step := range []struct {
			route, client string
			want          int
			refusal       error
		}{
			{"/a", "web", 5, throttle.ErrExhausted}, // 100 usd at 20 each
			{"/a", "", 0, throttle.ErrExhausted},    // shared by all
			{"/b", "web", 2, throttle.ErrExhausted}, // 7 of the client's over both routes
			{"/b", "job", 48, throttle.ErrDeadline}, // the rest of the hour
			{"/c", "web", 0, throttle.ErrExhausted},
			{"/c", "", 3, throttle.ErrExhausted},
		} {
			url := c.Routes[step.route].To + "/v0/app1/x"
			if n, err := send(t, transports[step.route], url, step.client); n != step.want || !errors.Is(err, step.refusal) {
				t.Errorf("%s as %q: %d sent, then %v; want %d, then %v", step.route, step.client, n, err, step.want, step.refusal)
			}
		}
		if upstream.sent != 5+2+48+3 {
			t.Errorf("%d requests reached the API", upstream.sent)
		}
		if _, err := c.Transport("/d", store); err == nil || !strings.Contains(err.Error(), `no route has the prefix "/d": the routes are /a, /b and /c`) {
			t.Error(err)
		}
	})
}

// Each pattern of models has its limits, and a reload changes them.
func TestModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const file = `
routes:
  /openai:
    to: https://api.openai.com/v1
    preset: openai
    with: {requests: 60, tokens: 1000}
    models: {"gpt-4o*": {tokens: %d}, gpt-4o-mini: {tokens: 7000}}
    max_wait: 1ms
`
		atOnce := func(rt http.RoundTripper, model string) (n int) {
			for ; n < 100; n++ {
				req, err := http.NewRequestWithContext(t.Context(), "POST", "https://api.openai.com/v1/chat/completions",
					strings.NewReader(`{"model":"`+model+`","max_tokens":1000,"messages":[]}`))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := rt.RoundTrip(req)
				if err != nil {
					return n
				}
				resp.Body.Close()
				time.Sleep(time.Second) // the requests are paced
			}
			return n
		}
		for _, tokens := range []int{3000, 5000} {
			rt, err := parse(t, file, tokens).Transport("/openai", nil)
			if err != nil {
				t.Fatal(err)
			}
			rt.Base = new(api)
			for model, want := range map[string]int{"gpt-4o-2024-08-06": tokens / 1000, "gpt-4o-mini": 7, "o3": 1} {
				if n := atOnce(rt, model); n != want {
					t.Errorf("%s with %d tokens: %d, want %d", model, tokens, n, want)
				}
			}
		}
		if ch := parse(t, file, 5000).Since(parse(t, file, 3000)); len(ch.Limits) != 1 {
			t.Error(ch)
		}
	})
}

// A budget counts requests that the preset does not, and estimates what the preset estimates.
func TestBudgetOfPreset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := parse(t, `
routes:
  /openai: {to: https://api.openai.com, preset: openai, with: {requests: 600, tokens: 100000}, budget: 4/day;budget=true + 2000/day;unit=tokens;budget=true}
`)
		rt, err := c.Transport("/openai", nil)
		if err != nil {
			t.Fatal(err)
		}
		rt.Base = new(api)
		if n, err := send(t, rt, "https://api.openai.com/v1/models", ""); n != 4 || !errors.Is(err, throttle.ErrExhausted) {
			t.Errorf("%d requests without tokens, then %v, want 4", n, err)
		}
		time.Sleep(24 * time.Hour)
		post := func(text string) error {
			body := `{"model": "gpt-4o", "max_tokens": 10, "messages": [{"role": "user", "content": "` + text + `"}]}`
			req, err := http.NewRequestWithContext(t.Context(), "POST", "https://api.openai.com/v1/chat/completions", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := rt.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			return err
		}
		text := strings.Repeat("word after word ", 500) // about 1,500 tokens
		if err := post(text); err != nil {
			t.Error(err)
		}
		if err := post(text); !errors.Is(err, throttle.ErrExhausted) {
			t.Errorf("3,000 tokens of 2,000: %v", err)
		}
	})
}

// MaxWait and MaxQueue hold for presets and policies.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := parse(t, `
routes:
  /a: {to: https://a.example, policy: 1/h, max_wait: 30m}
  /b: {to: https://api.etherscan.io, preset: etherscan, max_wait: 1ms}
`)
		for prefix, url := range map[string]string{"/a": "https://a.example/", "/b": "https://api.etherscan.io/v2/api"} {
			rt, err := c.Transport(prefix, nil)
			if err != nil {
				t.Fatal(err)
			}
			rt.Base = new(api)
			for {
				req, _ := http.NewRequestWithContext(t.Context(), "GET", url, nil)
				begin := time.Now()
				resp, err := rt.RoundTrip(req)
				if err != nil {
					var refused *throttle.WaitError
					if !errors.As(err, &refused) || time.Since(begin) != 0 {
						t.Errorf("%s: %v after %v", prefix, err, time.Since(begin))
					}
					break
				}
				resp.Body.Close()
			}
		}
	})
}

// A program that reads its file again keeps the store, and what is charged stays charged.
func TestReload(t *testing.T) {
	for _, kind := range []string{"process", "file"} {
		t.Run(kind, func(t *testing.T) {
			file := ""
			if kind == "file" {
				file = "store: {file: " + filepath.Join(t.TempDir(), "q.db") + "}\n"
			}
			text := file + reloaded
			if kind == "file" {
				reload(t, text)
			} else {
				synctest.Test(t, func(t *testing.T) { reload(t, text) })
			}
		})
	}
}

// reloaded is a file for reload, which fills in the limits.
const reloaded = `
routes:
  /a: {to: https://a.example, policy: "%d/h | max_wait=10m"}
  /b: {to: https://graph.facebook.com, preset: meta, with: {per_hour: %d}, max_wait: 10m}
`

func reload(t *testing.T, text string) {
	first := parse(t, text, 5, 2)
	store, closer, err := first.OpenStore()
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	count := func(c *config.Config, prefix, url string) int {
		rt, err := c.Transport(prefix, store)
		if err != nil {
			t.Fatal(err)
		}
		rt.Base = new(api)
		n, _ := send(t, rt, url, "")
		return n
	}
	both := func(c *config.Config) [2]int {
		return [2]int{count(c, "/a", "https://a.example/"), count(c, "/b", "https://graph.facebook.com/v21.0/me")}
	}
	if got, want := both(first), [2]int{5, 2}; got != want {
		t.Errorf("%v sent at first, want %v", got, want)
	}
	if got, want := both(parse(t, text, 8, 3)), [2]int{3, 1}; got != want {
		t.Errorf("%v sent under higher limits, want %v", got, want)
	}
	if got, want := both(parse(t, text, 6, 2)), [2]int{0, 0}; got != want {
		t.Errorf("%v sent under lower limits, want %v", got, want)
	}
}

// A request that waits under the limits of before is admitted as soon as those of the new file allow.
func TestReloadWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := parse(t, "routes: {/a: {to: https://a.example, policy: 1/h}}")
		store, closer, err := first.OpenStore()
		if err != nil {
			t.Fatal(err)
		}
		defer closer.Close()
		begin := time.Now()
		done := make(chan time.Duration)
		get := func(c *config.Config) {
			rt, err := c.Transport("/a", store)
			if err != nil {
				t.Error(err)
				return
			}
			rt.Base = new(api)
			req, _ := http.NewRequestWithContext(t.Context(), "GET", "https://a.example/", nil)
			resp, err := rt.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			done <- time.Since(begin)
		}
		go get(first)
		<-done
		go get(first)
		time.Sleep(time.Minute)
		synctest.Wait()
		go get(parse(t, "routes: {/a: {to: https://a.example, policy: 3/h}}"))
		for range 2 {
			if after := <-done; after != time.Minute {
				t.Errorf("admitted after %v, want one minute", after)
			}
		}
	})
}

func TestSince(t *testing.T) {
	const base = `
store: {redis: "redis://localhost"}
clients: {web: {token: 0123456789abcdef, budget: 7/day;budget=true}, job: {token: 0123456789abcdeg}}
routes:
  /a: {to: https://a.example, policy: 10/h, set: {A: b}}
  /b: {to: https://b.example, policy: 50/h, clients: [job]}
`
	old := parse(t, base)
	for _, c := range []struct {
		replace, by string
		want        config.Changes
		text        string
	}{
		{"", "", config.Changes{}, "nothing changed"},
		{"10/h", "60/6h", config.Changes{Limits: []string{"/a"}}, "other limits for /a"},
		{"policy: 10/h", "policy: 10/hour", config.Changes{Settings: []string{"/a"}}, "other settings for /a"},
		{"{A: b}", "{A: c}", config.Changes{Settings: []string{"/a"}}, ""},
		{"https://a.example", "https://c.example", config.Changes{Settings: []string{"/a"}}, ""},
		{"  /b:", "  /c:", config.Changes{Added: []string{"/c"}, Removed: []string{"/b"}}, "added /c; removed /b"},
		{"7/day", "8/day", config.Changes{Limits: []string{"/a"}, Clients: true}, "other limits for /a; other clients"},
		{"0123456789abcdeg", "0123456789abcdeh", config.Changes{Clients: true}, ""},
		{"redis://localhost", "redis://elsewhere", config.Changes{Store: true}, ""},
		{"routes:", "listen: 127.0.0.1:1\nroutes:", config.Changes{Listen: true}, ""},
		{"routes:", "public_url: https://gw.example\nroutes:", config.Changes{PublicURL: true}, "other public_url"},
		{"routes:", "timeouts: {connect: 1s}\nroutes:", config.Changes{Timeouts: true}, ""},
		{"routes:", "observability: {log: warn}\nroutes:", config.Changes{Observability: true}, ""},
		{"routes:", "max_body: 1MB\nroutes:", config.Changes{Settings: []string{"/a", "/b"}}, ""},
	} {
		got := parse(t, "%s", strings.Replace(base, c.replace, c.by, 1)).Since(old)
		if !reflect.DeepEqual(got, c.want) || got.None() != reflect.DeepEqual(c.want, config.Changes{}) {
			t.Errorf("%q by %q: %+v, want %+v", c.replace, c.by, got, c.want)
		}
		if c.text != "" && got.String() != c.text {
			t.Errorf("%q by %q: %q, want %q", c.replace, c.by, got, c.text)
		}
	}
}
