package providers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/providers"
)

// limited returns the tier of n requests an hour.
func limited(n int64) []throttle.Tier { return []throttle.Tier{throttle.PerHour(n)} }

// models returns a provider whose scope "model" has a quota for each value of the header Model, of one
// request an hour.
func models(m *providers.Models) providers.Provider {
	return providers.Provider{Name: "api", Scopes: []providers.Scope{{
		Name: "model", Policy: throttle.Policy{Tiers: limited(1), Guard: throttle.NoGuard, MaxWait: time.Nanosecond}, Models: m,
		Key: func(req *http.Request) (string, bool) { return req.Header.Get("Model"), true },
	}}}
}

// sends returns how many requests of a model are sent at once.
func sends(t *testing.T, rt http.RoundTripper, model string) (n int) {
	t.Helper()
	for ; n < 100; n++ {
		req := get(t, "https://example.com/")
		req.Header.Set("Model", model)
		resp, err := rt.RoundTrip(req)
		if errors.Is(err, throttle.ErrDeadline) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	return n
}

// The most specific pattern counts, all its names share one quota, and so do all other names.
func TestModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := over(t, models(providers.NewModels(map[string][]throttle.Tier{
			"gpt-4o*": limited(10), "gpt-4o": limited(4), "gpt-4o-mini*": limited(20), "o3|o4-?": limited(5), "meta*turbo": limited(7),
		})), accepting{})
		for _, step := range []struct {
			model string
			want  int
		}{
			{"gpt-4o", 4}, {"gpt-4o-audio", 10}, {"gpt-4o-realtime", 0}, {"gpt-4o-mini", 20}, {"gpt-4o-mini-tts", 0},
			{"o3", 5}, {"o4-x", 0}, {"meta-llama/Llama-3-turbo", 7}, {"unknown", 1}, {"another", 0}, {"", 0},
		} {
			if n := sends(t, rt, step.model); n != step.want {
				t.Errorf("%s: sent %d, want %d", step.model, n, step.want)
			}
		}
	})
}

// However many names requests contain, there are as many quotas as patterns and one.
func TestModelsAreBounded(t *testing.T) {
	soak.Long(t, "it sends a request for each of many models")
	synctest.Test(t, func(t *testing.T) {
		p := models(providers.NewModels(map[string][]throttle.Tier{"a*": limited(1_000_000)}))
		p.MaxKeys = 1
		rt := over(t, p, accepting{})
		for i := range 1_000 {
			if n := sends(t, rt, fmt.Sprint("a", i, strings.Repeat("x", 1_000))); n != 100 {
				t.Fatal(i, n)
			}
		}
		if n := sends(t, rt, "b") + sends(t, rt, "c") + sends(t, rt, "d"); n != 1 {
			t.Error(n)
		}
	})
}

// Set changes the limits of requests that wait, and forgets nothing that has been used.
func TestSetModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := providers.NewModels(map[string][]throttle.Tier{"a": limited(5)})
		p := models(m)
		p.Scopes[0].Policy.MaxWait = 0
		rt := over(t, p, accepting{})
		var wg sync.WaitGroup
		var sent atomic.Int32
		for range 12 {
			wg.Go(func() {
				req := get(t, "https://example.com/")
				req.Header.Set("Model", "a")
				if resp, err := rt.RoundTrip(req); err == nil {
					resp.Body.Close()
					sent.Add(1)
				}
			})
		}
		synctest.Wait()
		if n := sent.Load(); n != 5 {
			t.Fatal("before Set:", n)
		}
		set := func(limits map[string][]throttle.Tier) {
			t.Helper()
			if err := m.Set(t.Context(), limits); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		set(map[string][]throttle.Tier{"a": limited(8)})
		if n := sent.Load(); n != 8 {
			t.Error("after a higher limit:", n)
		}
		set(map[string][]throttle.Tier{"b": limited(8)}) // those that wait keep the limits of a
		set(map[string][]throttle.Tier{"a": limited(10)})
		if n := sent.Load(); n != 10 {
			t.Error("after a was away:", n)
		}
		wg.Wait()
	})
}

// Limits that are not valid change nothing.
func TestSetModelsRefuses(t *testing.T) {
	m := providers.NewModels(map[string][]throttle.Tier{"a": limited(5), "b": limited(6)})
	if _, err := models(m).Transport(nil); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		limits map[string][]throttle.Tier
		want   string
	}{
		{map[string][]throttle.Tier{"b": limited(7), "c": limited(-1)}, `providers: Models: "c": throttle: policy "api/model": `},
		{map[string][]throttle.Tier{"b": limited(7), "c": {}}, `providers: Models: "c": throttle: policy "api/model": `},
		{map[string][]throttle.Tier{"b": limited(7), "c|": limited(1)}, `providers: Models: "c|" is not a pattern of names`},
		{map[string][]throttle.Tier{"b": limited(7), "[": limited(1)}, `providers: Models: "[" is not a pattern of names`},
	} {
		if err := m.Set(t.Context(), test.limits); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%v: %v", test.limits, err)
		}
	}
	if l := m.Limits(); len(l) != 2 || l["b"][0].Limit != 6 {
		t.Error(l)
	}
	for limits, want := range map[string]string{"[": `scope "model": Models: "["`, "a": `scope "model": Models: "a": throttle: policy`} {
		_, err := models(providers.NewModels(map[string][]throttle.Tier{limits: {}})).Transport(nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
}

// No limit that is set is above Most.
func TestModelsMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := providers.NewModels(map[string][]throttle.Tier{"a": limited(50)})
		m.Most = map[string][]throttle.Tier{"a*": limited(3), "b": {throttle.PerDay(2)}}
		rt := over(t, models(m), accepting{})
		if n := sends(t, rt, "a"); n != 3 {
			t.Error("a:", n)
		}
		if err := m.Set(context.Background(), map[string][]throttle.Tier{"a": limited(2), "a1": limited(9), "b": limited(9), "c": limited(9)}); err != nil {
			t.Fatal(err)
		}
		if a1, b, c := sends(t, rt, "a1"), sends(t, rt, "b"), sends(t, rt, "c"); a1 != 3 || b != 2 || c != 9 {
			t.Error(a1, b, c)
		}
		time.Sleep(time.Hour)
		if n := sends(t, rt, "a"); n != 2 {
			t.Error("a after Set:", n)
		}
	})
}

// One Models may serve several scopes and transports, and Set changes them together while requests come.
func TestModelsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := providers.NewModels(nil)
		one, two := over(t, models(m), accepting{}), over(t, models(m), accepting{})
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() { sends(t, one, fmt.Sprint("x", i)) })
			wg.Go(func() {
				if err := m.Set(t.Context(), map[string][]throttle.Tier{fmt.Sprint("y", i): limited(3)}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if err := m.Set(t.Context(), map[string][]throttle.Tier{"z": limited(3)}); err != nil {
			t.Fatal(err)
		}
		if a, b := sends(t, one, "z"), sends(t, two, "z"); a != 3 || b != 3 {
			t.Error(a, b)
		}
	})
}

// The scope of the models of a preset is there, and accepts limits of models.
func TestModelsOfPresets(t *testing.T) {
	n := 0
	for _, preset := range providers.Presets() {
		if preset.Models == "" {
			continue
		}
		n++
		p := preset.Provider(preset.Example())
		scope := p.Scope(preset.Models)
		if scope == nil {
			t.Errorf("%s has no scope %q", preset.Name, preset.Models)
			continue
		}
		scope.Models = providers.NewModels(map[string][]throttle.Tier{"x": scope.Policy.Tiers})
		if _, err := p.Transport(nil); err != nil {
			t.Errorf("%s: %v", preset.Name, err)
		}
	}
	if n < 5 {
		t.Errorf("%d presets have limits of models", n)
	}
}

// Models of presets match what requests name: a model, a deployment, or a region and a model.
func TestModelsMatchRequests(t *testing.T) {
	chat := func(model string) string {
		return `{"model":"` + model + `","max_tokens":10,"messages":[{"role":"user","content":"hi"}]}`
	}
	openAI := providers.OpenAI(6_000, 1_000_000)
	bedrock := providers.Bedrock(100, 1_000_000)
	for _, test := range []struct {
		preset          providers.Provider
		scope, pattern  string
		request         string
		matching, other string
	}{
		{openAI, "model", "gpt-4o", "POST https://api.openai.com/v1/chat/completions", chat("ft:gpt-4o-2024-08-06:acme::1"), chat("gpt-4o-mini")},
		{providers.Anthropic(60, 1e6, 1e6), "family", "claude-opus-4-5*", "POST https://api.anthropic.com/v1/messages", chat("claude-opus-4-5-20251101"), chat("claude-opus-4-1")},
		{providers.Anthropic(60, 1e6, 1e6), "family", "claude-opus-4-6-fast", "POST https://api.anthropic.com/v1/messages",
			`{"speed":"fast",` + chat("claude-opus-4-6")[1:], chat("claude-opus-4-6")},
		{providers.Gemini(60, 1e6, 0), "model", "gemini-*-pro", "POST https://generativelanguage.googleapis.com/v1beta/openai/chat/completions", chat("gemini-2.5-pro"), chat("gemini-2.5-flash")},
		{bedrock, "x5", "us-east-1 us.anthropic.claude-sonnet-4-5*", "POST https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1/chat/completions",
			chat("us.anthropic.claude-sonnet-4-5-20250929-v1:0"), chat("us.anthropic.claude-sonnet-4-20250514-v1:0")},
	} {
		scope := test.preset.Scope(test.scope)
		scope.Models = providers.NewModels(map[string][]throttle.Tier{test.pattern: scope.Policy.Tiers})
		k := &keys{Store: local.New()}
		transport, err := test.preset.Transport(k)
		if err != nil {
			t.Fatal(err)
		}
		key := func(body string) string {
			k.all = nil
			method, url, _ := strings.Cut(test.request, " ")
			req, err := http.NewRequest(method, url, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			transport.Route(req)
			return strings.Join(k.all, "\n")
		}
		if got, want := key(test.matching), fmt.Sprintf("%s=%q ", test.scope, test.pattern); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %s", test.pattern, got, want)
		}
		if got, want := key(test.other), test.scope+`="" `; !strings.Contains(got, want) {
			t.Errorf("not %s: %q, want %s", test.pattern, got, want)
		}
	}
}

// The presets' tiers are those of a table.
func ExampleNewModels() {
	large := providers.OpenAI(5_000, 800_000).Scope("model").Policy.Tiers
	small := providers.OpenAI(10_000, 10_000_000).Scope("model").Policy.Tiers
	p := providers.OpenAI(500, 30_000) // all other models together
	p.Scope("model").Models = providers.NewModels(map[string][]throttle.Tier{"gpt-4o*": large, "gpt-4o-mini*": small})
	if _, err := p.Client(nil); err != nil {
		fmt.Println(err)
	}
	fmt.Println(p.Scope("model").Models.Limits()["gpt-4o*"])
	// Output: [5000/m;pace_burst=83;follow=50000 800000/m;unit=tokens;follow=10000000]
}
