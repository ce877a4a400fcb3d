package providers_test

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fixtures"
	"github.com/apithrottle/throttle/providers"
)

type fixture = fixtures.Response

// TestFixtures checks that each page of testdata/fixtures names its sources and the day on which
// they were read, and that each response could have been sent.
func TestFixtures(t *testing.T) {
	files, err := filepath.Glob("testdata/fixtures/*.json")
	if err != nil || len(files) < 40 {
		t.Fatal(len(files), err)
	}
	for _, file := range files {
		p := readPage(t, strings.TrimSuffix(filepath.Base(file), ".json"))
		if _, err := time.Parse(time.DateOnly, p.Read); err != nil || len(p.Sources) == 0 || len(p.Hosts) == 0 || len(p.Responses) == 0 {
			t.Errorf("%s: read %q, %d sources, %d hosts, %d responses", file, p.Read, len(p.Sources), len(p.Hosts), len(p.Responses))
		}
		for _, r := range p.Responses {
			if r.Name == "" || http.StatusText(r.Status) == "" && r.Status < 400 || r.Sure == "" {
				t.Errorf("%s: %q has status %d and is %q", file, r.Name, r.Status, r.Sure)
			}
			for _, name := range strings.FieldsFunc(r.Source, func(c rune) bool { return strings.ContainsRune("+,; ", c) }) {
				if p.Sources[name] == "" {
					t.Errorf("%s: %q names the source %q, which the page has not", file, r.Name, name)
				}
			}
			if date, ok := r.Headers["Date"].(string); ok {
				if at, err := http.ParseTime(date); err == nil && at.Weekday().String()[:3] != date[:3] {
					t.Errorf("%s: %q has the Date %s, which was a %v", file, r.Name, date, at.Weekday())
				}
			}
		}
	}
}

// readPage reads a page of testdata/fixtures.
func readPage(t *testing.T, name string) fixtures.Page {
	t.Helper()
	return fixtures.Read(t, "testdata/fixtures/"+name+".json")
}

// kinds returns what a profile may take the response for, by what the fixture says of it.
func kinds(f fixture) []answers.Kind {
	means := f.Means
	switch {
	case means.Refused != true:
		return []answers.Kind{answers.Passed}
	case means.Kind == "outage" || means.Kind == "poison" || means.Of == "nothing":
		return []answers.Kind{answers.Passed, answers.Other} // the quota is not the reason
	case means.Kind == "spend":
		return []answers.Kind{answers.Passed, answers.Other, answers.Banned} // no wait of minutes helps
	case means.Kind == "lockout":
		return []answers.Kind{answers.Banned, answers.Other}
	case means.Of == "object":
		return []answers.Kind{answers.Other, answers.Limited} // Limited if the preset has a scope for the object
	}
	return []answers.Kind{answers.Limited}
}

// TestPresetsReadFixtures checks that each preset takes the responses of its API for what they are.
func TestPresetsReadFixtures(t *testing.T) {
	for _, test := range []struct {
		page, only string // the page, and the beginning of the names of the responses that are the preset's
		preset     providers.Provider
		except     map[string]answers.Kind // responses that the preset takes for something else, see the comments
	}{
		{page: "airtable", preset: providers.Airtable()},
		{page: "alchemy", preset: providers.Alchemy()},
		{page: "amazonspapi", preset: providers.AmazonSPAPI(), except: map[string]answers.Kind{
			"batch with statuses inside, 200": answers.Passed, // the other entries were served
		}},
		{page: "anthropic", preset: providers.Anthropic(50, 1e6, 1e6)},
		{page: "aws", preset: providers.Provider{Profile: providers.AWSProfile()}, except: map[string]answers.Kind{
			// An object that anybody may have written looks the same.
			"S3 refusal inside a 200": answers.Passed,
		}},
		{page: "azureopenai", preset: providers.AzureOpenAI(600, 100_000)},
		{page: "bedrock", preset: providers.Bedrock(50, 200_000), except: map[string]answers.Kind{
			// A stream has begun, and its end pauses nothing.
			"refusal inside a 200 stream": answers.Passed,
		}},
		{page: "binance", preset: providers.Binance(), except: map[string]answers.Kind{
			// One order of two was placed: a client that paused would not see it.
			"cancel-replace: canceled, new order refused for its count": answers.Passed,
		}},
		{page: "binancefutures", preset: providers.BinanceFutures()},
		{page: "bybit", preset: providers.Bybit()},
		{page: "coinbase", only: "A", preset: providers.CoinbaseApp()}, // App and Advanced Trade
		{page: "cerebras", preset: providers.OpenAICompatible("api.cerebras.ai", 5, 30_000)},
		{page: "cloudflare", preset: providers.Cloudflare()},
		{page: "coinbase", only: "App:", preset: providers.CoinbaseApp()},
		{page: "coinbase", only: "Exchange:", preset: providers.CoinbaseExchange()},
		{page: "deepseek", preset: providers.OpenAICompatible("api.deepseek.com", 0, 0)},
		{page: "discord", preset: providers.Discord(), except: map[string]answers.Kind{
			"webhook gone": answers.Banned, // going on ends in a restriction
		}},
		{page: "etherscan", preset: providers.Etherscan()},
		{page: "gemini", preset: providers.Gemini(10, 250_000, 250)},
		{page: "github", preset: providers.GitHub()},
		{page: "groq", preset: providers.OpenAICompatible("api.groq.com", 30, 8_000)},
		{page: "gitlab", preset: providers.GitLab()},
		{page: "googleworkspace", preset: providers.GoogleWorkspace(nil), except: map[string]answers.Kind{
			"Gmail batch with a refusal inside, 200": answers.Passed, // the other parts were served
		}},
		{page: "hubspot", preset: providers.HubSpot("UTC"), except: map[string]answers.Kind{
			"migration runs": answers.Limited, // its Retry-After is for the account
		}},
		{page: "jira", preset: providers.Atlassian(), except: map[string]answers.Kind{
			"unavailable with Retry-After": answers.Limited, // its Retry-After is for everybody
		}},
		{page: "infura", preset: providers.Infura(500, 3_000_000)},
		{page: "kraken", preset: providers.Kraken(), except: map[string]answers.Kind{
			// The orders before it were placed.
			"one order of a batch refused inside a 200": answers.Passed,
		}},
		{page: "krakenfutures", preset: providers.KrakenFutures()},
		{page: "mistral", preset: providers.OpenAICompatible("api.mistral.ai", 60, 500_000)},
		{page: "meta", preset: providers.Meta(1_000), except: map[string]answers.Kind{
			"batch, refusals inside, 200": answers.Passed, // the other entries were served
		}},
		{page: "microsoftgraph", preset: providers.MicrosoftGraph(), except: map[string]answers.Kind{
			"$batch with refusals inside, 200": answers.Passed,  // the other entries were served
			"503, SharePoint busy":             answers.Limited, // its Retry-After is for the app
		}},
		{page: "notion", preset: providers.Notion(), except: map[string]answers.Kind{
			"overload": answers.Limited, // its Retry-After is for everybody
		}},
		{page: "okta", preset: providers.Okta()},
		{page: "okx", preset: providers.OKX(), except: map[string]answers.Kind{
			"WebSocket too frequent": answers.Passed, // not HTTP
		}},
		{page: "openai", preset: providers.OpenAI(500, 30_000), except: map[string]answers.Kind{
			"batch queue full": answers.Passed, // it pauses nothing
		}},
		{page: "openrouter", preset: providers.OpenAICompatible("openrouter.ai", 0, 0)},
		{page: "reddit", preset: providers.Reddit()},
		{page: "salesforce", preset: providers.Salesforce(15_000), except: map[string]answers.Kind{
			"Chatter limit":           answers.Passed,  // it looks like an outage
			"Marketing Cloud blocked": answers.Limited, // another product, whose hosts are not listed
		}},
		{page: "shopify", only: "GraphQL", preset: providers.ShopifyGraphQL()},
		{page: "shopify", only: "REST", preset: providers.ShopifyREST()},
		{page: "slack", preset: providers.Slack()},
		{page: "spotify", preset: providers.Spotify(100), except: map[string]answers.Kind{
			"refusal that has grown": answers.Limited, // a wait beyond MaxPause closes the quota like a ban
		}},
		{page: "stripe", preset: providers.Stripe()},
		{page: "together", preset: providers.OpenAICompatible("api.together.xyz", 0, 0)},
		{page: "twilio", preset: providers.Twilio(10)},
		{page: "xai", preset: providers.OpenAICompatible("api.x.ai", 480, 2_000_000)},
		{page: "telegram", preset: providers.Telegram(), except: map[string]answers.Kind{
			"server is closing": answers.Limited, // it looks like a limit
		}},
		{page: "twilio", preset: providers.Twilio(10)},
		{page: "zendesk", preset: providers.Zendesk(700)},
		{page: "x", preset: providers.X()},
		{page: "pipedrive", preset: providers.Pipedrive(30_000)},
		{page: "bitbucket", preset: providers.Bitbucket()},
		{page: "elevenlabs", preset: providers.ElevenLabs(5)},
		{page: "xero", preset: providers.Xero(5_000)},
		{page: "asana", preset: providers.Asana(1_500)},
		{page: "intercom", preset: providers.Intercom()},
		{page: "monday", preset: providers.Monday(10_000)},
		{page: "vertexai", preset: providers.VertexAI(0, 0, 0)},
		{page: "googleads", preset: providers.GoogleAds(15_000)},
		{page: "linkedin", preset: providers.LinkedIn(0, 0)},
		{page: "quickbooks", preset: providers.QuickBooks()},
		{page: "linear", preset: providers.Linear()},
		{page: "clickup", preset: providers.ClickUp(100)},
		{page: "datadog", preset: providers.Datadog()},
		{page: "klaviyo", preset: providers.Klaviyo()},
	} {
		read := 0
		for _, f := range readPage(t, test.page).Responses {
			if !strings.HasPrefix(f.Name, test.only) {
				continue
			}
			read++
			want := kinds(f)
			if kind, ok := test.except[f.Name]; ok {
				want = []answers.Kind{kind}
			}
			if got := fixtures.ReadAll(test.preset.Profile, f.Answer(time.Now())).Refusal; !slices.Contains(want, got.Kind) {
				t.Errorf("%s: %q, status %d, refused %v of %s (%s): read as %+v, want %v", test.page, f.Name, f.Status, f.Means.Refused, f.Means.Of, f.Means.Kind, got, want)
			}
		}
		if read < 2 {
			t.Errorf("%s %s: %d responses", test.page, test.only, read)
		}
	}
}
