package config_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/providers"
)

func TestProblemsOfPrices(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good.json", `[{"api":"api.example.com","model":"*","input":"1","output":"2"}]`)
	bad := file("bad.json", `[{"api":"openai","model":"m","input":"x","output":"2"}]`)
	openAI := func(settings string) string {
		return "routes: {/x: {to: https://api.openai.com, preset: openai, with: {requests: 500, tokens: 30000}, " + settings + "}}\n"
	}
	other := func(settings string) string {
		return "routes: {/x: {to: https://api.example.com, policy: 5/s, " + settings + "}}\n"
	}
	pool := func(budget string) string {
		return `routes: {/x: {` + budget + `, pool: [{name: a, to: https://api.openai.com, preset: openai, with: {requests: 500, tokens: 30000}, set: {Authorization: "Bearer a"}},
  {name: b, to: https://api.anthropic.com, preset: anthropic, with: {requests: 50, input: 30000, output: 8000}, set: {Authorization: "Bearer b"}}]}}`
	}
	for _, c := range []struct{ text, want string }{
		{openAI("budget: $5/month"), ""},
		{openAI("budget: 5/month"), `routes./x.budget is "5/month": tier 5/month is not a budget`},
		{openAI(`budget: "$5,000/month"`), `routes./x.budget is "$5,000/month": limit: "$5,000" is not an amount of dollars`},
		{openAI(`budget: $5/month, prices: {unknown_model: {input: 3, output: "15"}}`), ""},
		{openAI(`budget: $5/month, prices: {unknown_model: {input: "3"}}`), "routes./x.prices.unknown_model is not a price: output is missing"},
		{openAI(`budget: $5/month, prices: {unknown_model: {input: "3", output: "-1"}}`), `routes./x.prices.unknown_model is not a price: output "-1" is not a number of dollars`},
		{openAI(`budget: $5/month, prices: {unknown_model: {model: x, input: "3", output: "1"}}`), "routes./x.prices.unknown_model is not a price: model does not belong there: remove it"},
		{openAI(`budget: $5/month, prices: {unknown_model: {}}`), `routes./x.prices.unknown_model is empty: write {input: "3", output: "15"}`},
		{openAI(`budget: $5/month, prices: {file: /none/prices.json}`), `routes./x.prices.file is "/none/prices.json": it does not exist`},
		{openAI(`budget: $5/month, prices: {file: ` + bad + `}`), `input "x" is not a number of dollars`},
		{openAI(`prices: {unknown_model: {input: "3", output: "15"}}`), "routes./x.prices belongs to a budget in dollars: add one such as budget: $500/month"},
		{other("budget: $5/month"), `routes./x.budget is "$5/month": no prices of api.example.com are known: add prices: {file: PATH}`},
		{other("budget: $5/month, prices: {file: " + good + "}"), ""},
		{other("budget: $5/month, cost: {nanodollars: 5000000}"), ""},
		{other(`budget: $5/month, cost: {nanodollars: 5000000}, prices: {unknown_model: {request: "1"}}`), "routes./x.prices belongs to a budget in dollars: add one such as budget: $500/month, without nanodollars in cost"},
		{pool("budget: $5/month"), "routes./x.budget is \"$5/month\": the members of the pool are of several APIs, openai and anthropic, and what a request costs depends on the one that serves it"},
		{"clients: {a: {token: 0123456789abcdef, budget: $1/day}}\n" + openAI("budget: $5/month"), ""},
		{"clients: {a: {token: 0123456789abcdef, budget: $1/day}}\n" + openAI("max_wait: 1s"), `clients.a.budget is "$1/day": no request costs nanodollars`},
	} {
		all := problems(t, c.text)
		if c.want == "" && len(all) > 0 || c.want != "" && (len(all) != 1 || !strings.Contains(all[0], c.want)) {
			t.Errorf("%s:\n%q\nwant only %q", c.text, all, c.want)
		}
	}
}

// A chatting API answers with a usage of 1,000 tokens of input and 20 of output.
type chatting struct{ sent int }

func (c *chatting) RoundTrip(req *http.Request) (*http.Response, error) {
	c.sent++
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
		Body: io.NopCloser(strings.NewReader(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}}`)),
	}, nil
}

// chats sends chats of a client until one is refused, and returns how many were sent.
func chats(t *testing.T, rt *throttle.Transport, client, model string, most int) (n int, err error) {
	t.Helper()
	for n = range most {
		req := httptest.NewRequest("POST", "https://api.openai.com/v1/chat/completions", strings.NewReader(`{"model":"`+model+`","max_tokens":20,"messages":[]}`))
		text, _ := io.ReadAll(req.Body)
		req.Body = io.NopCloser(strings.NewReader(string(text)))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(string(text))), nil }
		resp, err := rt.RoundTrip(req.WithContext(config.WithClient(t.Context(), client)))
		if err != nil {
			return n, err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		synctest.Wait()
	}
	return most, nil
}

// A budget in dollars is that of all requests of a route, whether it has a preset, a policy, a key or a pool.
// Each request here costs $0.00106, and is estimated at less.
func TestBudgetInDollars(t *testing.T) {
	const prices = `budget: $0.01/month, prices: {unknown_model: {input: "1", output: "3"}}`
	const preset = "to: https://api.openai.com, preset: openai, with: {requests: 500, tokens: 30000}, "
	const member = "to: https://api.openai.com, preset: openai, with: {requests: 500, tokens: 30000}"
	for name, route := range map[string]string{
		"preset": preset + prices,
		"key":    preset + "key: {header: Authorization}, " + prices,
		"policy": "to: https://api.openai.com, policy: 100/s, " + prices,
		"pool":   `pool: [{name: a, ` + member + `, set: {Authorization: "Bearer a"}}, {name: b, ` + member + `, set: {Authorization: "Bearer b"}}], ` + prices,
	} {
		synctest.Test(t, func(t *testing.T) {
			rt, err := parse(t, "routes: {/api: {%s}}", route).Transport("/api", nil)
			if err != nil {
				t.Fatal(err)
			}
			base := new(chatting)
			if pool, is := rt.Base.(*config.Pool); is {
				pool.Base = base
			} else {
				rt.Base = base
			}
			n, err := chats(t, rt, "", "any", 20)
			if n != 10 || base.sent != 10 || !errors.Is(err, throttle.ErrExhausted) || !strings.Contains(err.Error(), ":budget") || !strings.HasSuffix(err.Error(), "tier $0.01/month") {
				t.Errorf("%s: %d requests were sent, then %v; want 10, the last one by an estimate that is too low", name, n, err)
			}
			time.Sleep(32 * 24 * time.Hour)
			if n, err := chats(t, rt, "", "any", 1); err != nil || n != 1 {
				t.Errorf("%s: in the next month %d requests were sent, %v; want 1", name, n, err)
			}
		})
	}
}

// A model without a price is refused, unless unknown_model has one. The budget of a client is in dollars, too.
func TestPricesOfARoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "prices.json")
		if err := os.WriteFile(path, []byte(`[{"api":"openai","model":"mine*","input":"1","output":"3"}]`), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := parse(t, `
clients: {web: {token: 0123456789abcdef, budget: $0.004/day}}
routes: {/api: {to: https://api.openai.com, preset: openai, with: {requests: 500, tokens: 30000}, budget: $1/month, prices: {file: %s}}}`, path).Transports(nil)
		if err != nil {
			t.Fatal(err)
		}
		base := new(chatting)
		rt := all.Of("/api")
		rt.Base = base
		if n, err := chats(t, rt, "", "theirs", 1); n != 0 || !errors.Is(err, providers.ErrNoPrice) || base.sent > 0 {
			t.Errorf("%d requests without a price were sent, %v; want ErrNoPrice", base.sent, err)
		}
		if n, err := chats(t, rt, "web", "mine-1", 10); n != 4 || !errors.Is(err, throttle.ErrExhausted) || !strings.Contains(err.Error(), "client:web") {
			t.Errorf("%d requests of the client were sent, then %v; want 4", n, err)
		}
		known, _ := all.Known("/api")
		status, err := known.Status(t.Context())
		if err != nil || status.Tiers[0].Used != 4*1_060_000 {
			t.Errorf("the budget is %v, %v; want $0.00424 used", status, err)
		}
	})
}
