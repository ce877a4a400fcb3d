package integration_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/answers/profiles"
	"github.com/apithrottle/throttle/internal/fixtures"
	"github.com/apithrottle/throttle/providers"
)

// TestNamedReadNoLessThanPresets checks that the profile of an API by name reads in each response what the
// preset of the API reads: the refusal, its wait, what is left, and the reported cost. Wide, Unit and
// Charge.ByStatus are about the scopes of a preset.
func TestNamedReadNoLessThanPresets(t *testing.T) {
	for _, c := range []struct {
		name, page string
		only, not  string // the beginnings of the names of responses
		preset     providers.Provider
		except     []string // responses that the named profile reads in another way, see the comments
	}{
		{name: "Airtable", page: "airtable", preset: providers.Airtable()},
		{name: "Alchemy", page: "alchemy", preset: providers.Alchemy(), except: []string{"WebSocket"}}, // it reads more
		{name: "Anthropic", page: "anthropic", preset: providers.Anthropic(1, 1, 1)},
		{name: "AWS", page: "aws", preset: providers.Provider{Profile: providers.AWSProfile()}},
		{name: "Azure OpenAI", page: "azureopenai", preset: providers.AzureOpenAI(1, 1)},
		{name: "Binance Spot", page: "binance", preset: providers.Binance()},
		{name: "Cloudflare API", page: "cloudflare", preset: providers.Cloudflare()},
		{name: "Discord", page: "discord", preset: providers.Discord(), except: []string{"webhook gone"}},        // it closes the webhook's route
		{name: "Etherscan", page: "etherscan", preset: providers.Etherscan(), except: []string{"without a key"}}, // it reads a longer wait
		{name: "GitHub GraphQL", page: "github", only: "GraphQL", preset: providers.GitHub()},
		{name: "GitHub REST", page: "github", not: "GraphQL", preset: providers.GitHub()},
		{name: "GitLab", page: "gitlab", preset: providers.GitLab()},
		{name: "Google Gemini API", page: "gemini", preset: providers.Gemini(1, 1, 1)},
		{name: "HubSpot", page: "hubspot", preset: providers.HubSpot("UTC")},
		{name: "Infura", page: "infura", preset: providers.Infura(1, 1)},
		{name: "Jira Cloud", page: "jira", preset: providers.Atlassian()},
		{name: "Kraken Spot REST", page: "kraken", preset: providers.Kraken()},
		{name: "Microsoft Graph", page: "microsoftgraph", preset: providers.MicrosoftGraph()},
		{name: "Notion", page: "notion", preset: providers.Notion()},
		{name: "Okta", page: "okta", preset: providers.Okta()},
		{name: "OpenAI", page: "openai", preset: providers.OpenAI(1, 1)},
		{name: "Reddit", page: "reddit", preset: providers.Reddit()},
		{name: "Salesforce", page: "salesforce", preset: providers.Salesforce(1), except: []string{"Marketing Cloud blocked"}}, // it reads the ban
		{name: "Shopify GraphQL Admin", page: "shopify", only: "GraphQL", preset: providers.ShopifyGraphQL()},
		{name: "Shopify REST Admin", page: "shopify", only: "REST", preset: providers.ShopifyREST()},
		{name: "Slack", page: "slack", preset: providers.Slack()},
		{name: "Spotify", page: "spotify", preset: providers.Spotify(1), except: []string{"refusal, quota of the developer"}}, // it closes the quota
		{name: "Stripe", page: "stripe", preset: providers.Stripe()},
		{name: "Twilio", page: "twilio", preset: providers.Twilio(1)},
		{name: "X", page: "x", preset: providers.X()},
		{name: "Zendesk", page: "zendesk", preset: providers.Zendesk(700)},
	} {
		entry, err := profiles.Named(c.name)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range fixtures.Read(t, "../../providers/testdata/fixtures/"+c.page+".json").Responses {
			if !strings.HasPrefix(f.Name, c.only) || c.not != "" && strings.HasPrefix(f.Name, c.not) {
				continue
			}
			n++
			less := readsLess(entry.Profile, c.preset.Profile, f)
			if except := slices.Contains(c.except, f.Name); less != "" && !except {
				t.Errorf("%s: %q, status %d: %s", c.name, f.Name, f.Status, less)
			} else if less == "" && except {
				t.Errorf("%s: %q is no exception", c.name, f.Name)
			}
		}
		if n < 2 {
			t.Errorf("%s: %d responses", c.name, n)
		}
	}
}

// readsLess returns what the preset reads in a response and the named profile does not, or "".
func readsLess(named, preset answers.Profile, f fixtures.Response) string {
	r := f.Answer(time.Date(2026, time.May, 4, 12, 0, 0, 0, time.UTC))
	if r.Method = f.Request.Method; r.Method == "" {
		r.Method = http.MethodPost
	}
	got, want := fixtures.ReadAll(named, r), fixtures.ReadAll(preset, r)
	for _, reading := range want.Readings {
		if !slices.ContainsFunc(got.Readings, func(g answers.Reading) bool { return contains(g, reading) }) {
			return "it has no reading like " + reading.Unit
		}
	}
	switch {
	case got.Kind != want.Kind:
		return "its kind is another"
	case want.Known && (!got.Known || got.Delay != want.Delay):
		return "it waits for " + got.Delay.String() + ", and the preset for " + want.Delay.String()
	case reported(named, r) < reported(preset, r):
		return "it reads fewer costs"
	}
	return ""
}

// contains reports whether a reading has the facts of another one.
func contains(g, want answers.Reading) bool {
	return g.Has&want.Has == want.Has && (want.Limit == 0 || g.Limit == want.Limit) && (want.Window == 0 || g.Window == 0 || g.Window == want.Window) &&
		(want.Has&answers.HasRemaining == 0 || g.Remaining == want.Remaining) && (want.Has&answers.HasUsed == 0 || g.Used == want.Used) &&
		(want.Has&answers.HasReset == 0 || g.Reset == want.Reset) && (want.Has&answers.HasShare == 0 || g.Share == want.Share)
}

// reported returns how many costs that a response reports the profile reads.
func reported(p answers.Profile, r answers.Response) int {
	p.Rules = nil // a rule may have a cost
	p.Charges = slices.DeleteFunc(slices.Clone(p.Charges), func(c answers.Charge) bool {
		return len(c.ByStatus) > 0 || c.Field.Format == answers.Elements || c.Field.Format == answers.Hash // no cost that a response names
	})
	n := len(p.Read(r).Charged)
	if m := p.Meter(r); m != nil {
		_, _ = m.Write(r.Body)
		n += len(m.Charged())
	}
	return n
}
