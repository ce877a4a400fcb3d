package providers_test

import (
	"fmt"
	"go/format"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/throttletest"
)

// The code of docs/unlisted.md.

func alpaca() providers.Provider {
	reset := answers.Field{Header: "X-Ratelimit-Reset", Format: answers.EpochSeconds}
	return providers.Provider{
		Name: "alpaca",
		Scopes: []providers.Scope{{
			Name: "account",
			Policy: throttle.Policy{
				Tiers: []throttle.Tier{{Limit: 200, Window: time.Minute, Algorithm: throttle.FixedWindow, Phase: throttle.UnknownPhase}},
				Guard: throttle.AutoGuard, // learns how late requests reach the API
			},
		}},
		Profile: answers.Profile{
			Quotas: []answers.Quota{{
				Limit:     answers.Field{Header: "X-Ratelimit-Limit"},
				Remaining: answers.Field{Header: "X-Ratelimit-Remaining"},
				Reset:     reset,
			}},
			Rules: []answers.Rule{{Status: 429, Kind: answers.Limited, Delay: []answers.Field{reset}}},
		},
		Hosts: []string{"api.alpaca.markets"},
	}
}

func TestAlpaca(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.New(throttle.Tier{Limit: 200, Window: time.Minute, Algorithm: throttle.FixedWindow, Phase: 17 * time.Second})
		api.Delay = func() time.Duration { return rand.N(50 * time.Millisecond) }
		api.Header = func(h http.Header, r throttletest.Refusal) {
			h.Set("X-Ratelimit-Remaining", "0")
			h.Set("X-Ratelimit-Reset", strconv.FormatInt(r.At.Add(r.Wait).Unix(), 10))
		}
		if err := alpaca().Profile.Validate(); err != nil {
			t.Fatal(err)
		}
		transport, err := alpaca().Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = api
		ours, others := &http.Client{Transport: transport}, api.Client() // others share the account
		start := time.Now()
		for range 1_000 {
			account(t, ours)
		}
		if s, took := api.Summary(), time.Since(start); s.Refused > 0 || took > 5*time.Minute {
			t.Errorf("%d refused; 1,000 requests took %v", s.Refused, took)
		}
		for account(t, others) != http.StatusTooManyRequests {
		}
		account(t, ours) // is refused, and reports the reset
		if status := account(t, ours); status != http.StatusOK || time.Now().Second() > 18 {
			t.Errorf("%d at second %d, want 200 as soon as the window begins", status, time.Now().Second())
		}
	})
}

func TestAlpacaHeaders(t *testing.T) {
	now := time.Unix(1679411600, 0)
	got := alpaca().Profile.Read(answers.Response{Status: 200, Got: now, Header: http.Header{
		"X-Ratelimit-Limit": {"200"}, "X-Ratelimit-Remaining": {"195"}, "X-Ratelimit-Reset": {"1679411617"},
	}})
	if r := got.Readings[0]; r.Limit != 200 || r.Remaining != 195 || r.Reset != 17*time.Second {
		t.Errorf("read as %+v", r)
	}
}

func linear() providers.Provider {
	return providers.Provider{
		Name: "linear",
		Scopes: []providers.Scope{{
			Name: "user",
			Policy: throttle.Policy{Tiers: []throttle.Tier{
				{Limit: 2_500, Window: time.Hour, Algorithm: throttle.LeakyBucket, Burst: 2_500},
				{Limit: 3_000_000, Window: time.Hour, Algorithm: throttle.LeakyBucket, Burst: 3_000_000, Unit: "complexity", Estimated: true},
			}},
		}},
		Cost:    func(*http.Request) throttle.Cost { return throttle.Cost{"complexity": 10_000} }, // the most that one query may cost
		Profile: answers.Profile{Charges: []answers.Charge{{Unit: "complexity", Field: answers.Field{Header: "X-Complexity"}}}},
		Hosts:   []string{"api.linear.app"},
	}
}

// An API that has no preset: docs/unlisted.md has the constructor and its tests.
func ExampleProvider() {
	api := throttletest.New(throttle.PerMinute(200)) // instead of the network
	client, err := alpaca().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = api

	resp, err := client.Get("https://api.alpaca.markets/v2/account")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}

// account sends a request and returns the status of the response.
func account(t *testing.T, client *http.Client) int {
	resp, err := client.Get("https://api.alpaca.markets/v2/account")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// A reported reset is used also when none is left after a success, as the page says.
func TestAlpacaReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &replying{Header: map[string]string{"X-Ratelimit-Limit": "200", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "946684821"}} // 00:00:21
		rt := over(t, alpaca(), server)
		send(t, rt, get(t, "https://api.alpaca.markets/v2/account"))
		*server = replying{}
		if _, _, took := send(t, rt, get(t, "https://api.alpaca.markets/v2/account")); took != 22*time.Second {
			t.Errorf("waited %v, want 22 s", took)
		}
	})
}

// The difference between an estimate and the real cost returns when the response's body ends.
func TestUnlistedCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := over(t, linear(), &replying{Header: map[string]string{"X-Complexity": "40"}, Body: "{}"})
		for range 2_500 {
			if _, _, took := send(t, rt, postJSON(t, "https://api.linear.app/graphql", "{}")); took != 0 {
				t.Fatalf("waited %v", took)
			}
		}
		if _, _, took := send(t, rt, postJSON(t, "https://api.linear.app/graphql", "{}")); took == 0 {
			t.Error("2,501 requests at once")
		}
	})
}

// An API that refuses inside a stream.
func streaming() answers.Profile {
	return answers.Profile{Rules: []answers.Rule{{
		Method: "POST", Event: "error", Path: "error.type", Text: "rate_limit_error", Kind: answers.Limited,
		Delay: []answers.Field{{Path: "error.message", After: "try again in ", Format: answers.Duration}},
	}}}
}

func TestUnlistedStream(t *testing.T) {
	const body = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"Please try again in 2.512s.\"}}\n\n"
	if got := streamRefusal(providers.Provider{Profile: streaming()}, body); got.Kind != answers.Limited || got.Delay != 2512*time.Millisecond {
		t.Errorf("read as %+v", got)
	}
}

func followed() throttle.Tier {
	return throttle.Tier{
		Limit: 200, Window: time.Minute, Algorithm: throttle.FixedWindow, Phase: throttle.UnknownPhase,
		Follow: throttle.Follow{Most: 1_000}, // of the largest plan
	}
}

// The API of docs/unlisted.md has given the account 1,000 requests a minute.
func TestUnlistedFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := alpaca()
		p.Scopes[0].Policy.Tiers = []throttle.Tier{followed()}
		transport, err := p.Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = &plan{[]string{"X-Ratelimit-Limit: 1000", "X-Ratelimit-Remaining: 900"}}
		request := func() *http.Request { return get(t, "https://api.alpaca.markets/v2/account") }
		for range 2 {
			send(t, transport, request())
		}
		if got := limitsOf(t, transport.Route(request())); got[0] != 1_000 {
			t.Errorf("the limit is %d, want 1,000", got)
		}
	})
}

func hidden() providers.Provider {
	p := providers.Unknown("api.acme.example")
	p.Scope("host").Policy.Tiers[0].Limit = 20 // a second, which are known to pass
	return p
}

// A hidden limit is found from any start.
func TestUnlistedLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, err := hidden().Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = accepting{}
		request := func() *http.Request { return get(t, "https://api.acme.example/") }
		for range 2_000 {
			send(t, transport, request())
		}
		s, err := transport.Route(request()).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if l := s.Tiers[0].Learned; l == nil || l.Rate < 100 {
			t.Errorf("after 2,000 requests without a refusal the tier has learned %+v", l)
		}
	})
}

// TestUnlisted checks that each Go block of docs/unlisted.md is in this file.
func TestUnlisted(t *testing.T) {
	page, err := os.ReadFile("../docs/unlisted.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("unlisted_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) != 7 {
		t.Errorf("the page has %d Go blocks, want 7", len(blocks))
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if formatted, err := format.Source([]byte(code)); err != nil || !strings.Contains(string(source), string(formatted)) {
			t.Errorf("this block is not in unlisted_test.go: %v\n%s", err, code)
		}
	}
}
