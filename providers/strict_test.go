package providers_test

import (
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/throttletest"
)

// Providers that count as their documentation describes refuse nothing, and their limits are used,
// although requests take up to 50 ms to arrive. These count otherwise, or for longer, than the rule
// files that internal/fakeapi plays.
func TestPresetsOnStrictProviders(t *testing.T) {
	type tier = throttle.Tier
	fixed := func(limit int64, window time.Duration) tier { // windows that begin at a second unknown to the preset
		return tier{Limit: limit, Window: window, Algorithm: throttle.FixedWindow, Phase: 17 * time.Second % window}
	}
	// "make test" plays a tenth of the largest limits, of the preset and of the provider alike.
	const of = 10
	limited := func(p providers.Provider, limit int64, scopes ...string) providers.Provider {
		for _, scope := range scopes {
			p.Scope(scope).Policy.Tiers[0].Limit = limit
		}
		return p
	}
	mailbox, salesforces := scaled(10_000, of), scaled(5_000, of)
	for _, test := range []struct {
		preset providers.Provider
		tiers  []tier
		next   func(worker int) *http.Request
		d      time.Duration
		want   float64 // requests in d
	}{
		{providers.AzureOpenAI(600, 1e9), []tier{fixed(600, time.Minute), fixed(100, 10*time.Second), {Limit: 10, Window: time.Second, Algorithm: throttle.TokenBucket, Burst: 10}},
			func(int) *http.Request { return deployed(t, "gpt", 10, 10) }, 2 * time.Minute, 1_200},
		{providers.Gemini(100, 1e9, 300), []tier{fixed(100, time.Minute), {Limit: 300, Algorithm: throttle.Calendar, Period: throttle.Day, Zone: "America/Los_Angeles"}},
			func(int) *http.Request { return generate(t, "gemini-2.5-flash", 10) }, 5 * time.Minute, 300},
		{providers.OpenAICompatible("api.x.ai", 480, 0), []tier{fixed(480, time.Minute), {Limit: 8, Window: time.Second, Algorithm: throttle.FixedWindow, Phase: 300 * time.Millisecond}},
			func(int) *http.Request { return ask(t, "api.x.ai", "grok-4.5", 10, 10) }, 2 * time.Minute, 960},
		{providers.Cloudflare(), []tier{{Limit: 1_200, Window: 5 * time.Minute}, throttle.PerSecond(200)},
			func(int) *http.Request { return to(t, "GET", "https://api.cloudflare.com/client/v4/zones")() }, 10 * time.Minute, 2_400},
		{providers.Meta(200), []tier{{Limit: 60, Window: 5 * time.Minute}}, func(int) *http.Request { return to(t, "GET", metaGraph+"act_1/ads")() }, time.Hour, 720},
		{limited(providers.MicrosoftGraph(), mailbox, "mailbox"), []tier{{Limit: mailbox, Window: 10 * time.Minute}, {Limit: 4, Algorithm: throttle.Concurrency}},
			func(int) *http.Request { return to(t, "GET", msGraph+"users/a/messages")() }, 20 * time.Minute, float64(2 * mailbox)},
		{providers.Okta(), []tier{fixed(600, time.Minute), {Limit: 75, Algorithm: throttle.Concurrency}},
			func(int) *http.Request { return to(t, "GET", "https://acme.okta.com/api/v1/users")() }, 2 * time.Minute, 1_200},
		{providers.Salesforce(salesforces), []tier{throttle.PerDay(salesforces), {Limit: 25, Algorithm: throttle.Concurrency}},
			func(int) *http.Request { return to(t, "GET", salesforce)() }, 48 * time.Hour, float64(2 * salesforces)},
	} {
		t.Run(test.preset.Name, func(t *testing.T) {
			soak.Sample(t, 3)
			synctest.Test(t, func(t *testing.T) {
				api := throttletest.New(test.tiers...)
				api.Delay = func() time.Duration { return rand.N(50 * time.Millisecond) }
				saturate(t, over(t, test.preset, api), 80, test.d, test.next)
				if s := api.Summary(); s.Refused > 0 || float64(s.Accepted) < 0.9*test.want {
					t.Errorf("%d accepted, want at least %.0f; %d refused", s.Accepted, 0.9*test.want, s.Refused)
				}
			})
		})
	}
}
