package corpus_test

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/answers/ietf"
	shipped "github.com/apithrottle/throttle/answers/profiles"
	"github.com/apithrottle/throttle/internal/fixtures"
)

func at(header string, f Format) Field { return Field{Header: header, Format: f} }
func in(path string, f Format) Field   { return Field{Path: path, Format: f} }
func num(header string) Field          { return Field{Header: header} }

// profiles are the profiles of the providers in testdata/headers.json, by name.
var profiles = func() map[string]Profile {
	all := map[string]Profile{
		"IETF draft-10 (and master 2025-09)":                       ietf.Profile(),
		"IETF draft-07":                                            ietf.Profile(),
		"IETF draft-06 triple (e.g. Resend)":                       ietf.Profile(),
		"IETF draft-01..03 (RateLimit-Limit with policies inside)": ietf.Profile(),
	}
	for _, name := range shipped.Names() {
		entry, _ := shipped.Named(name)
		all[name] = entry.Profile
	}
	return all
}()

// Each profile that ships has a source and examples, and belongs to its caller.
func TestShippedProfiles(t *testing.T) {
	var known []string
	for _, p := range providers(t) {
		known = append(known, p.Provider)
	}
	for _, name := range shipped.Names() {
		entry, err := shipped.Named(name)
		if err != nil {
			t.Error(err)
		}
		if _, err := time.Parse(time.DateOnly, entry.Read); err != nil || !strings.HasPrefix(entry.Page, "https://") {
			t.Errorf("%s: read on %q, page %q", name, entry.Read, entry.Page)
		}
		if !slices.Contains(known, name) {
			t.Errorf("%s has no entry in testdata/headers.json", name)
		}
		for _, header := range headersOf(reflect.ValueOf(entry.Profile)) {
			if header = strings.TrimSuffix(header, "*"); header != http.CanonicalHeaderKey(header) {
				t.Errorf("%s: reading %s allocates: write %s", name, header, http.CanonicalHeaderKey(header))
			}
		}
		again, _ := shipped.Named(name)
		for i := range entry.Profile.Rules {
			entry.Profile.Rules[i] = Rule{}
		}
		if third, _ := shipped.Named(name); len(again.Profile.Rules) > 0 && !reflect.DeepEqual(again.Profile.Rules, third.Profile.Rules) {
			t.Errorf("%s: two calls share a slice", name)
		}
	}
	if _, err := shipped.Named("gitlab"); err == nil || err.Error() != `profiles: the name is "gitlab": it must be one of Names` {
		t.Error(err)
	}
}

// headersOf returns the names of headers in a profile.
func headersOf(v reflect.Value) (headers []string) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			headers = append(headers, headersOf(v.Index(i))...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			switch name := v.Type().Field(i).Name; name {
			case "Header", "NameIn", "UnitIn":
				headers = append(headers, v.Field(i).String())
			default:
				headers = append(headers, headersOf(v.Field(i))...)
			}
		}
	}
	return headers
}

// fixturesOf are the pages of fixtures that a profile describes, and the beginning of the names of
// its responses.
var fixturesOf = map[string][2]string{
	"Binance Spot": {"binance"}, "Kraken Spot REST": {"kraken"}, "OpenAI": {"openai"}, "Anthropic": {"anthropic"}, "Google Gemini API": {"gemini"},
	"Azure OpenAI": {"azureopenai"}, "GitHub REST": {"github"}, "GitLab": {"gitlab"}, "Shopify REST Admin": {"shopify", "REST"}, "Shopify GraphQL Admin": {"shopify", "GraphQL"},
	"Stripe": {"stripe"}, "Twilio": {"twilio"}, "Slack": {"slack"}, "Discord": {"discord"}, "Notion": {"notion"}, "Airtable": {"airtable"}, "HubSpot": {"hubspot"},
	"Salesforce": {"salesforce"}, "Zendesk": {"zendesk"}, "Jira Cloud": {"jira"}, "X": {"x"}, "Reddit": {"reddit"}, "Spotify": {"spotify"}, "Cloudflare API": {"cloudflare"},
	"AWS": {"aws"}, "Microsoft Graph": {"microsoftgraph"}, "Okta": {"okta"}, "Etherscan": {"etherscan"}, "Infura": {"infura"}, "Alchemy": {"alchemy"},
}

// except are responses that profiles read otherwise.
var except = map[string]bool{
	// Others in the same request were served, and a client that paused would not see it.
	"Microsoft Graph: $batch with refusals inside, 200":                       true,
	"Binance Spot: cancel-replace: canceled, new order refused for its count": true, "OpenAI: batch queue full": true,
	// Their Retry-After is for everybody.
	"Notion: overload": true, "Jira Cloud: unavailable with Retry-After": true, "Microsoft Graph: 503, SharePoint busy": true,
	"HubSpot: migration runs": true,
	// Its wait stands in one of several texts at the same place.
	"Reddit: 200 that is a refusal, seconds": true,
	// They look like other responses: an outage, a refusal.
	"Salesforce: Chatter limit": true, "Spotify: refusal that has grown": true,
}

// TestProfilesFixtures checks the profiles against what is known of the providers' responses.
func TestProfilesFixtures(t *testing.T) {
	for name, page := range fixturesOf {
		for _, f := range fixtures.Read(t, "../../providers/testdata/fixtures/"+page[0]+".json").Responses {
			if !strings.HasPrefix(f.Name, page[1]) {
				continue
			}
			got := read(profiles[name], f.Answer(monday))
			why := contradicts(got, Profile{}.Read(f.Answer(monday)), f)
			switch {
			case why == "whose wait is another" && (f.Means.Wait == nil || f.Means.Wait == "" || f.Means.Wait == "0"): // the profile's own wait
				why = ""
			case why != "" || f.Means.Of == "object":
			case got.Kind == Passed && isRate(f):
				why = "which is a refusal"
			case got.Kind == Limited && !isRate(f):
				why = "which is no refusal for lack of quota"
			}
			if except[name+": "+f.Name] {
				if why == "" {
					t.Errorf("%s: %q is no exception", name, f.Name)
				}
				continue
			}
			if why != "" {
				t.Errorf("%s: %q, status %d, %+v: read %s, %s", name, f.Name, f.Status, f.Means, format(got), why)
			}
		}
	}
}
