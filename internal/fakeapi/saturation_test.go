package fakeapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/fixtures"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// A saturation runs a preset against the stand-in of its rule file.
type saturation struct {
	rules   string
	preset  func() providers.Provider
	workers int
	length  time.Duration
	floor   float64 // of what the stand-in could have accepted

	// unforeseen are limits whose refusals no client can foresee, with the reason.
	unforeseen map[string]string
	// fails are the limits that the preset breaks or leaves unused, with the reason.
	fails map[string]string
}

var saturations = []saturation{
	{rules: "anthropic", preset: func() providers.Provider { return providers.Anthropic(1000, 100_000, 20_000) }, workers: 24, length: 3 * time.Minute, floor: 0.8},
	{rules: "openai", preset: func() providers.Provider { return providers.OpenAI(60, 150_000) }, workers: 24, length: 3 * time.Minute, floor: 0.8},
	{rules: "github", preset: providers.GitHub, workers: 40, length: 130 * time.Second, floor: 0.9},
	{rules: "slack", preset: providers.Slack, workers: 42, length: 121 * time.Second, floor: 0.9},
	{rules: "twilio", preset: func() providers.Provider { return providers.Twilio(10) }, workers: 20, length: 4 * time.Second, floor: 0.9},
	{rules: "discord", preset: providers.Discord, workers: 24, length: time.Minute, floor: 0.9},
	{rules: "kraken", preset: providers.Kraken, workers: 40, length: 2 * time.Minute, floor: 0.9},
	{rules: "binance", preset: providers.Binance, workers: 64, length: 130 * time.Second, floor: 0.9},
	{rules: "binanceus", preset: providers.BinanceUS, workers: 40, length: 130 * time.Second, floor: 0.9},
	{rules: "stripe", preset: providers.Stripe, workers: 60, length: 5 * time.Second, floor: 0.9},
	{rules: "hubspot", preset: func() providers.Provider { return providers.HubSpot("UTC") }, workers: 48, length: 40 * time.Second, floor: 0.9},
	{rules: "shopifyrest", preset: providers.ShopifyREST, workers: 24, length: 3 * time.Minute, floor: 0.9},
	{rules: "shopifygraphql", preset: providers.ShopifyGraphQL, workers: 32, length: 2 * time.Minute, floor: 0.8},
	{rules: "etherscan", preset: providers.Etherscan, workers: 16, length: time.Minute, floor: 0.9},
	{rules: "coinbaseapp", preset: providers.CoinbaseApp, workers: 32, length: 2 * time.Second, floor: 0.9},
	{rules: "coinbaseexchange", preset: providers.CoinbaseExchange, workers: 60, length: 20 * time.Second, floor: 0.9},
	{rules: "notion", preset: providers.Notion, workers: 32, length: 3 * time.Minute, floor: 0.9},
	{rules: "gemini", preset: func() providers.Provider { return providers.Gemini(30, 20_000, 2000) }, workers: 16, length: 3 * time.Minute, floor: 0.9},
	{rules: "azureopenai", preset: func() providers.Provider { return providers.AzureOpenAI(60, 10_000) }, workers: 16, length: 3 * time.Minute, floor: 0.9},
	{rules: "groq", preset: func() providers.Provider { return providers.OpenAICompatible("api.groq.com", 30, 8000) }, workers: 16, length: 3 * time.Minute, floor: 0.8},
	{rules: "mistral", preset: func() providers.Provider { return providers.OpenAICompatible("api.mistral.ai", 50, 50_000) }, workers: 16, length: 3 * time.Minute, floor: 0.8},
	{rules: "openrouter", preset: func() providers.Provider { return providers.OpenAICompatible("openrouter.ai", 20, 1_000_000) }, workers: 8, length: 125 * time.Second, floor: 0.9},
	{rules: "xai", preset: func() providers.Provider { return providers.OpenAICompatible("api.x.ai", 540, 10_000_000) }, workers: 16, length: 125 * time.Second, floor: 0.9},
	{rules: "deepseek", preset: func() providers.Provider { return providers.OpenAICompatible("api.deepseek.com", 0, 0) }, workers: 600, length: 3 * time.Second, floor: 0.9},
	{rules: "telegram", preset: providers.Telegram, workers: 32, length: 15 * time.Second, floor: 0.9},
	{rules: "gitlab", preset: providers.GitLab, workers: 24, length: 121 * time.Second, floor: 0.9},
	{rules: "jira", preset: providers.Atlassian, workers: 45, length: 7 * time.Second, floor: 0.9},
	{rules: "bybit", preset: providers.Bybit, workers: 60, length: 4 * time.Second, floor: 0.9},
	{rules: "okx", preset: providers.OKX, workers: 32, length: 8 * time.Second, floor: 0.9},
	{rules: "binancefutures", preset: providers.BinanceFutures, workers: 48, length: 2 * time.Minute, floor: 0.9},
	{rules: "microsoftgraph", preset: providers.MicrosoftGraph, workers: 16, length: 21 * time.Second, floor: 0.9},
	{rules: "googleworkspace", preset: func() providers.Provider {
		return providers.GoogleWorkspace(func(r *http.Request) string { return r.Header.Get("Authorization") })
	}, workers: 36, length: 2 * time.Minute, floor: 0.9},
	{rules: "reddit", preset: providers.Reddit, workers: 16, length: 610 * time.Second, floor: 0.9},
	{rules: "x", preset: providers.X, workers: 8, length: 16 * time.Minute, floor: 0.9},
	{rules: "salesforce", preset: func() providers.Provider { return providers.Salesforce(15_000) }, workers: 16, length: 2 * time.Second, floor: 0.9},
	{rules: "meta", preset: func() providers.Provider { return providers.Meta(200) }, workers: 8, length: 2 * time.Minute, floor: 0.9},
	{rules: "amazonspapi", preset: providers.AmazonSPAPI, workers: 56, length: 25 * time.Second, floor: 0.9},
	{rules: "alchemy", preset: providers.Alchemy, workers: 48, length: 40 * time.Second, floor: 0.9},
	{rules: "infura", preset: func() providers.Provider { return providers.Infura(4000, 3_000_000) }, workers: 48, length: 20 * time.Second, floor: 0.9},
	{rules: "zendesk", preset: func() providers.Provider { return providers.Zendesk(700) }, workers: 40, length: 2 * time.Minute, floor: 0.9},
	{rules: "airtable", preset: providers.Airtable, workers: 16, length: 20 * time.Second, floor: 0.9},
	{rules: "spotify", preset: func() providers.Provider { return providers.Spotify(90) }, workers: 16, length: 2 * time.Minute, floor: 0.9},
	{rules: "cloudflare", preset: providers.Cloudflare, workers: 24, length: 310 * time.Second, floor: 0.9},
	{rules: "okta", preset: providers.Okta, workers: 24, length: 125 * time.Second, floor: 0.9},
	{rules: "bedrock", preset: func() providers.Provider { return providers.Bedrock(100, 40_000) }, workers: 16, length: 3 * time.Minute, floor: 0.8},
	{rules: "krakenfutures", preset: providers.KrakenFutures, workers: 24, length: 21 * time.Second, floor: 0.9},
	{rules: "pipedrive", preset: func() providers.Provider { return providers.Pipedrive(30_000) }, workers: 48, length: 40 * time.Second, floor: 0.9},
	{rules: "bitbucket", preset: providers.Bitbucket, workers: 48, length: 121 * time.Minute, floor: 0.9},
	{rules: "elevenlabs", preset: func() providers.Provider { return providers.ElevenLabs(5) }, workers: 64, length: 20 * time.Second, floor: 0.9},
	{rules: "xero", preset: func() providers.Provider { return providers.Xero(5_000) }, workers: 16, length: 4 * time.Minute, floor: 0.9},
	{rules: "asana", preset: func() providers.Provider { return providers.Asana(1_500) }, workers: 60, length: 4 * time.Minute, floor: 0.9},
	{rules: "intercom", preset: providers.Intercom, workers: 64, length: 40 * time.Second, floor: 0.9},
	{rules: "monday", preset: func() providers.Provider { return providers.Monday(10_000) }, workers: 48, length: 3 * time.Minute, floor: 0.9},
	{rules: "vertexai", preset: func() providers.Provider { return providers.VertexAI(25, 60_000, 6_000) }, workers: 28, length: 3 * time.Minute, floor: 0.8, unforeseen: map[string]string{
		// A client that charges max_tokens has few requests in flight, if it sets a large one: with 64,000 of
		// 150,000 a minute, two.
		"output": "Google documents an estimate that is refunded, and not whether it is max_tokens",
	}},
	{rules: "googleads", preset: func() providers.Provider { return providers.GoogleAds(15_000) }, workers: 28, length: 25 * time.Second, floor: 0.9},
	{rules: "linkedin", preset: func() providers.Provider { return linkedIn(1000, 250) }, workers: 20, length: 3 * time.Minute, floor: 0.9},
	{rules: "quickbooks", preset: providers.QuickBooks, workers: 40, length: 2 * time.Minute, floor: 0.9},
	{rules: "linear", preset: providers.Linear, workers: 32, length: 10 * time.Minute, floor: 0.9},
	{rules: "clickup", preset: func() providers.Provider { return providers.ClickUp(100) }, workers: 16, length: 5 * time.Minute, floor: 0.9},
	{rules: "datadog", preset: providers.Datadog, workers: 36, length: 11 * time.Minute, floor: 0.9},
	{rules: "klaviyo", preset: providers.Klaviyo, workers: 48, length: 5 * time.Minute, floor: 0.9},
}

// linkedIn returns the preset of LinkedIn for an app in the standard tier, whose limits hold for each endpoint.
func linkedIn(perDay, perMember int64) providers.Provider {
	p := providers.LinkedIn(0, 0)
	for scope, limit := range map[string]int64{"endpoint": perDay, "member endpoint": perMember} {
		s := p.Scope(scope)
		tier := s.Policy.Tiers[0]
		tier.Limit = limit
		limits := make(map[string][]throttle.Tier)
		for _, name := range []string{"GET /rest/organizations/*", "POST /rest/posts", "GET /rest/adAnalytics", "GET /v2/userinfo"} {
			limits[name] = []throttle.Tier{tier}
		}
		s.Models = providers.NewModels(limits)
	}
	return p
}

// A preset with many workers is never refused, and uses nearly all that its API gives.
func TestPresetsSaturateTheirAPIs(t *testing.T) {
	soak.NoRace(t, "it computes much, and other tests run its code")
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // many small runs: saves a third of the time
	for _, s := range saturations {
		t.Run(s.rules, func(t *testing.T) {
			soak.Sample(t, 8)
			problems := s.run(t)
			for id, reason := range s.fails {
				if problems[id] == "" {
					t.Errorf("%s is no longer a problem: %s", id, reason)
				}
			}
			for id, problem := range problems {
				if s.fails[id] == "" {
					t.Errorf("%s: %s", id, problem)
				} else {
					t.Logf("known: %s: %s: %s", id, s.fails[id], problem)
				}
			}
		})
	}
}

// run returns what went wrong, by limit.
func (s *saturation) run(t *testing.T) map[string]string {
	a := load(t, s.rules)
	var limited, patient outcome
	synctest.Test(t, func(t *testing.T) { limited = s.load(t, a) })
	patient.start = limited.start
	patient.seen, patient.held = fakeapi.Possible(a, s.workers, limited.start, s.length)

	problems := map[string]string{}
	if len(limited.errors) > 0 {
		problems["errors"] = strings.Join(limited.errors, "\n")
	}
	refused := map[string]int{}
	for _, r := range limited.seen {
		if r.Refused == nil || s.unforeseen[r.Refused.ID] != "" {
			continue
		}
		id := r.Refused.ID
		if refused[id]++; refused[id] == 1 {
			problems[id] = fmt.Sprintf("refused at %v: %s (%s): %d of %d needed are left",
				r.At.Sub(limited.start), r.Request, r.Refused.Tier, r.Left, r.Asked)
		}
	}
	for id, n := range refused {
		problems[id] += fmt.Sprintf(", and %d of %d requests in all", n, len(limited.seen))
	}
	var all time.Duration
	for _, d := range patient.held {
		all += d
	}
	for _, l := range a.Limits {
		if patient.held[l.ID] <= all/100 {
			continue // other limits decide
		}
		got, possible := limited.used(l, s.length), patient.used(l, s.length)
		if tier, _ := algorithms.ParseTier(l.Tier); tier.Algorithm == algorithms.Concurrency {
			possible = tier.Limit * int64(s.length/((fakeapi.Service[0]+fakeapi.Service[1])/2))
		}
		// A request may lie on either side of a window's end.
		share := float64(got+1) / (float64(possible) * foreseeable(l))
		t.Logf("%s: %d of %d, %.2f", l.ID, got, possible, share)
		if share < s.floor {
			problems[l.ID] += fmt.Sprintf(" (%s): used %d of %d that are possible: %.2f", l.Tier, got, possible, share)
		}
	}
	t.Logf("%d requests, %d possible", len(limited.seen), len(patient.seen))
	return problems
}

// An outcome is what a stand-in saw.
type outcome struct {
	start  time.Time
	seen   []fakeapi.Arrival
	held   map[string]time.Duration
	errors []string
}

// load sends requests of every kind of the traffic with as many workers each, for s.length.
func (s *saturation) load(t *testing.T, a *fakeapi.API) (o outcome) {
	time.Sleep(47*time.Hour + 1234567*time.Microsecond) // somewhere in the windows of the calendar
	server := fakeapi.NewSlowServer(a)
	transport, err := s.preset().Transport(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport.Base = server
	o.start = time.Now()
	ctx, cancel := context.WithDeadline(t.Context(), o.start.Add(s.length))
	defer cancel()
	var mu sync.Mutex
	failed := map[string]bool{}
	var workers sync.WaitGroup
	for w := range s.workers {
		workers.Go(func() {
			time.Sleep(time.Duration(w) * fakeapi.Stagger)
			kind := &a.Traffic[w%len(a.Traffic)]
			for n := w; ctx.Err() == nil; n += s.workers {
				request := kind.Build(a, w, n).WithContext(ctx)
				request.Header.Set(fakeapi.Worker, strconv.Itoa(w))
				response, err := transport.RoundTrip(request)
				if err != nil {
					if ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
						mu.Lock()
						if text := err.Error(); !failed[text] && len(failed) < 5 {
							failed[text] = true
							o.errors = append(o.errors, fmt.Sprintf("error at %v: %s: %v", time.Since(o.start), kind.Request, err))
						}
						mu.Unlock()
						return
					}
					// The client knows that this request would be late.
					select {
					case <-ctx.Done():
					case <-time.After(time.Second):
					}
					continue
				}
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
			}
		})
	}
	workers.Wait()
	o.seen = server.Arrivals()
	return o
}

// used returns the units that a limit charged in whole windows, after the first one.
func (o *outcome) used(l *fakeapi.Limit, length time.Duration) (n int64) {
	tier, err := algorithms.ParseTier(l.Tier)
	if err != nil {
		panic(err)
	}
	warm := tier.Window
	if tier.Burst > 0 {
		warm = time.Duration(float64(warm) * float64(tier.Burst) / float64(tier.Limit))
	}
	from, to := o.start, o.start.Add(length)
	if rest := length - warm; tier.Window > 0 && rest >= tier.Window {
		from = from.Add(warm)
		to = from.Add(rest / tier.Window * tier.Window)
	}
	for _, r := range o.seen {
		if r.Refused == nil && !r.At.Before(from) && r.At.Before(to) {
			n += r.Charged[l.ID]
		}
	}
	return n
}

// foreseeable returns the share of a limit that a client can use without refusals. It learns when a
// request arrived from the response, and doesn't know the provider's clock. So a window frees its
// room a round trip later for the next request, and a request is in flight from its sending on.
func foreseeable(l *fakeapi.Limit) float64 {
	tier, err := algorithms.ParseTier(l.Tier)
	if err != nil {
		panic(err)
	}
	service := fakeapi.Service[0] + fakeapi.Service[1]
	trip := service + fakeapi.Delivery[0] + fakeapi.Delivery[1]
	switch tier.Algorithm {
	case algorithms.Concurrency:
		return float64(service) / float64(trip)
	case algorithms.SlidingLog, algorithms.AnchoredWindow, algorithms.FixedWindow:
		return float64(tier.Window) / float64(tier.Window+trip/2)
	}
	return 1
}

// Every rule file has a saturation.
func TestEveryRuleFileIsRun(t *testing.T) {
	for _, name := range names(t) {
		if !slices.ContainsFunc(saturations, func(s saturation) bool { return s.rules == name }) {
			t.Errorf("%s has no saturation", name)
		}
	}
}

// withoutRules are the hosts with a preset that no rule file plays, and why.
var withoutRules = map[string]string{
	"api.cerebras.ai":   "its recorded responses have no bodies",
	"api.together.ai":   "it publishes no limits",
	"api.together.xyz":  "it publishes no limits",
	"api.eu.mistral.ai": "it is played at api.mistral.ai",
}

// Every preset, and every preset of a host with a fixture, is played by a rule file, or withoutRules says
// why not.
func TestEveryPresetIsPlayed(t *testing.T) {
	preset := func(p providers.Preset, host string) string {
		if strings.HasPrefix(p.String(), "OpenAICompatible(") {
			return host
		}
		return p.String()
	}
	played := map[string]bool{}
	for _, name := range names(t) {
		for _, kind := range load(t, name).Traffic {
			_, url, _ := strings.Cut(kind.Request, "https://")
			host, _, _ := strings.Cut(url, "/")
			for _, p := range providers.Lookup(host) {
				played[preset(p, host)] = true
			}
		}
	}
	for _, p := range providers.Presets() {
		if name := preset(p, "api.groq.com"); !played[name] && p.Name != "unknown" { // which is no API: TestUnknown plays some
			t.Errorf("no rule file plays %s", name)
		}
	}
	files, err := filepath.Glob(filepath.Join(testdata, "fixtures", "*.json"))
	if err != nil || len(files) < 40 {
		t.Fatal(len(files), err)
	}
	for _, file := range files {
		for _, host := range fixtures.Read(t, file).Hosts {
			for _, p := range providers.Lookup(strings.Replace(host, "*", "acme", 1)) {
				if name := preset(p, host); !played[name] && withoutRules[name] == "" {
					t.Errorf("no rule file plays %s at %s", name, host)
				}
			}
		}
	}
}
