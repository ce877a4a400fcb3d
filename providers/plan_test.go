package providers_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/throttletest"
)

// planLoad sends requests with several workers until the time is over.
func planLoad(t *testing.T, rt http.RoundTripper, workers int, d time.Duration, next func() *http.Request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				resp, err := rt.RoundTrip(next().WithContext(ctx))
				if err != nil {
					return // the rest of the time is too short for its wait
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
}

// servedBetween returns how many requests an API accepted in an interval, and how many it refused.
func servedBetween(api *fakeapi.Server, from, to time.Time) (served, refused int) {
	for _, a := range api.Arrivals() {
		switch {
		case a.At.Before(from) || !a.At.Before(to):
		case a.Refused == nil:
			served++
		default:
			refused++
		}
	}
	return served, refused
}

// An organization moves to Enterprise Cloud and then to the limit of a workflow's token: 5,000 an hour, 15,000
// and 1,000, or a tenth of each. Each window is used, and nothing is refused.
func TestGitHubFollowsThePlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plans := []int64{scaled(5_000, 10), scaled(15_000, 10), scaled(1_000, 10), scaled(1_000, 10)}
		api := gitHub(plans[0])
		api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
		api.Hold = fakeapi.Between(20*time.Millisecond, 200*time.Millisecond)
		p := providers.GitHub()
		if core := &p.Scope("core").Policy.Tiers[0]; core.Limit != plans[0] {
			core.Limit, core.Follow = plans[0], throttle.Follow{Least: 6, Most: plans[1]}
		}
		hour := time.Now().Add(17 * time.Minute) // begins
		for i, plan := range plans[1:3] {
			time.AfterFunc(time.Until(hour.Add(time.Duration(i)*time.Hour+2*time.Second)), func() {
				api.Change(fmt.Sprintf("core=%d/h;algo=fixed_window;phase=17m", plan))
			})
		}
		const workers = 8
		planLoad(t, over(t, p, api), workers, 3*time.Hour+16*time.Minute, func() *http.Request { return get(t, github+"/users/a") })
		for i, want := range plans {
			served, refused := servedBetween(api, hour.Add(time.Duration(i-1)*time.Hour), hour.Add(time.Duration(i)*time.Hour))
			if t.Logf("hour %d: %d served", i, served); served > int(want) || served < int(want)-2*workers || refused > 0 {
				t.Errorf("hour %d: %d served and %d refused, want %d and 0", i, served, refused, want)
			}
		}
	})
}

// A shop moves to Shopify Plus, and back: its bucket holds 40, 400 and 40, and leaks a twentieth of it a second.
// What the large bucket held leaks as from the small one, which takes three minutes.
func TestShopifyFollowsThePlan(t *testing.T) {
	soak.Long(t, "it plays an hour at the full rate")
	synctest.Test(t, func(t *testing.T) {
		api := standIn("shopifyrest")
		api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
		start := time.Now()
		id := fakeapiLimit(t, "shopifyrest")
		time.AfterFunc(4*time.Minute, func() { api.Change(id + "=20/s;algo=leaky_bucket;burst=400") })
		time.AfterFunc(8*time.Minute, func() { api.Change(id + "=2/s;algo=leaky_bucket;burst=40") })
		planLoad(t, over(t, providers.ShopifyREST(), api), 8, 15*time.Minute, func() *http.Request {
			return get(t, "https://acme.myshopify.com/admin/api/2024-01/products.json")
		})
		for _, phase := range []struct {
			from time.Duration
			rate int
		}{{time.Minute, 2}, {5 * time.Minute, 20}, {12 * time.Minute, 2}} {
			served, refused := servedBetween(api, start.Add(phase.from), start.Add(phase.from+3*time.Minute))
			if want := phase.rate * 3 * 60; served > want*11/10 || served < want*9/10 || refused > 0 {
				t.Errorf("%d served and %d refused in 3 minutes, want %d and 0", served, refused, want)
			}
		}
	})
}

// fakeapiLimit returns the id of the first limit of a rule file.
func fakeapiLimit(t *testing.T, name string) string {
	t.Helper()
	a, err := fakeapi.Load("testdata", name)
	if err != nil {
		t.Fatal(err)
	}
	return a.Limits[0].ID
}

// OpenAI names the limit of a day in the headers of the minute, as recorded on 2024-10-24. It is no limit of a
// minute.
func TestOpenAIDayIsNoMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := providers.OpenAI(500, 30_000)
		model := p.Scope("model")
		model.Policy.Tiers = append(model.Policy.Tiers, throttle.PerDay(5_000))
		model.Policy.Tiers[2].Follow.Most = 50_000
		transport, err := p.Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = &plan{[]string{
			"x-ratelimit-limit-requests: 10000", "x-ratelimit-remaining-requests: 9999", "x-ratelimit-reset-requests: 8.64s",
			"x-ratelimit-limit-tokens: 200000", "x-ratelimit-remaining-tokens: 199938", "x-ratelimit-reset-tokens: 18ms",
		}}
		request := func() *http.Request {
			return postJSON(t, "https://api.openai.com/v1/chat/completions", `{"model":"gpt-4o-mini","max_completion_tokens":62}`)
		}
		for range 3 {
			send(t, transport, request())
		}
		if got, want := limitsOf(t, transport.Route(request())), []int64{500, 200_000, 10_000}; !slices.Equal(got, want) {
			t.Errorf("the limits are %d, want %d", got, want)
		}
	})
}

// A tier keeps a limit that the caller has set, unless the caller has set its Follow, too.
func TestCallersLimitHolds(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*throttle.Tier)
		want   int64
	}{
		{"the preset's", func(*throttle.Tier) {}, 15_000},
		{"a share of the quota", func(tier *throttle.Tier) { tier.Limit = 2_000 }, 2_000},
		{"more than any plan", func(tier *throttle.Tier) { tier.Limit = 20_000 }, 20_000},
		{"another start", func(tier *throttle.Tier) { tier.Limit, tier.Follow.Most = 2_000, 16_000 }, 15_000},
		{"nothing to follow", func(tier *throttle.Tier) { tier.Follow = throttle.Follow{} }, 5_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := providers.GitHub()
				test.change(&p.Scope("core").Policy.Tiers[0])
				transport, err := p.Transport(nil)
				if err != nil {
					t.Fatal(err)
				}
				transport.Base = &plan{[]string{"X-RateLimit-Limit: 15000", "X-RateLimit-Remaining: 14000", "X-RateLimit-Resource: core"}}
				request := func() *http.Request { return get(t, github+"/users/a") }
				for range 2 {
					send(t, transport, request())
				}
				limits := limitsOf(t, transport.Route(request()))
				if got := slices.Max(limits); !slices.Contains(limits, test.want) || got != test.want {
					t.Errorf("the limits are %d, want %d among them as the highest", limits, test.want)
				}
			})
		})
	}
}

// Models.Most is a ceiling of what responses name, too.
func TestMostOfModelsBoundsNamedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiers := func(requests int64) []throttle.Tier {
			return providers.OpenAI(requests, 1_000_000).Scope("model").Policy.Tiers
		}
		p := providers.OpenAI(500, 1_000_000)
		models := providers.NewModels(map[string][]throttle.Tier{"gpt-4o": tiers(500)})
		models.Most = map[string][]throttle.Tier{"gpt-4o": tiers(800)}
		p.Scope("model").Models = models
		transport, err := p.Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = &plan{[]string{"x-ratelimit-limit-requests: 10000", "x-ratelimit-remaining-requests: 9999", "x-ratelimit-reset-requests: 6ms"}}
		request := func() *http.Request {
			return postJSON(t, "https://api.openai.com/v1/chat/completions", `{"model":"gpt-4o"}`)
		}
		for range 3 {
			send(t, transport, request())
		}
		if got := limitsOf(t, transport.Route(request())); got[0] != 800 {
			t.Errorf("the limits are %d, want at most 800 requests", got)
		}
	})
}

// Unknown finds the hidden limit of a host, whatever its kind. About one request in a hundred is refused, and a few
// more in the first minutes.
func TestUnknownFindsHiddenLimits(t *testing.T) {
	soak.Long(t, "long hours are played, and the tests of package algorithms learn, too")
	for _, tier := range []throttle.Tier{
		{Limit: 20, Window: time.Second},
		{Limit: 3, Window: time.Second, Algorithm: throttle.TokenBucket, Burst: 10},
		{Limit: 600, Window: time.Minute, Algorithm: throttle.FixedWindow},
	} {
		t.Run(tier.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := throttletest.New(tier)
				api.Delay = func() time.Duration { return 20 * time.Millisecond }
				planLoad(t, over(t, providers.Unknown(), api), 64, 10*time.Minute, func() *http.Request { return get(t, "https://hidden.test/") })
				s := api.Summary()
				served, refused := int(s.Accepted), int(s.Refused)
				most := int(10 * time.Minute.Seconds() * float64(tier.Limit) / tier.Window.Seconds())
				t.Logf("%d of %d served, %d refused", served, most, refused)
				if served < most*8/10 || refused*33 > served {
					t.Errorf("%d of %d served, %d refused: want 80 %% and at most 3 %%", served, most, refused)
				}
			})
		})
	}
}

// Each host has a quota of its own, which starts slowly. In Auto it is for the hosts of no API.
func TestUnknownHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := auto(t, providers.Auto{Providers: []providers.Provider{providers.Unknown()}}, nil, accepting{})
		for _, step := range []struct {
			url  string
			wait time.Duration
		}{
			{"https://one.test/", 0}, {"https://one.test/", 200 * time.Millisecond}, {"https://two.test/", 0},
			{"https://api.notion.com/v1/pages", 0}, {"https://api.notion.com/v1/pages", 0},
		} {
			if _, _, took := send(t, rt, get(t, step.url)); took > step.wait || took < step.wait*8/10 {
				t.Errorf("%s waited %v, want %v", step.url, took, step.wait)
			}
		}
		plain := auto(t, providers.Auto{}, nil, accepting{})
		for range 100 {
			if _, _, took := send(t, plain, get(t, "https://one.test/")); took > 0 {
				t.Fatalf("a host of no API waited %v", took)
			}
		}
		if hosts := providers.Unknown("api.a.test", "*.b.test").Hosts; !slices.Equal(hosts, []string{"api.a.test", "*.b.test"}) {
			t.Error(hosts)
		}
	})
}

// A plan answers every request at once, with the headers or the body of a plan of an API.
type plan struct{ headers []string }

func (p *plan) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(time.Millisecond)
	resp := &http.Response{StatusCode: http.StatusOK, Header: make(http.Header), Body: http.NoBody, Request: req}
	for _, line := range p.headers {
		if strings.HasPrefix(line, "{") {
			resp.Body = io.NopCloser(strings.NewReader(line))
			resp.Header.Set("Content-Type", "application/json")
			continue
		}
		name, value, _ := strings.Cut(line, ": ")
		resp.Header.Set(name, value)
	}
	return resp, nil
}

// limitsOf returns the limits of a limiter's tiers.
func limitsOf(t *testing.T, l *throttle.Limiter) (limits []int64) {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range s.Tiers {
		limits = append(limits, tier.Limit)
	}
	return limits
}
