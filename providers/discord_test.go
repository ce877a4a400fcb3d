package providers_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const discord = "https://discord.com/api/v10"

func TestDiscord(t *testing.T) {
	t.Run("quotas of routes come from responses", func(t *testing.T) {
		d := long(3 * time.Minute)
		synctest.Test(t, func(t *testing.T) {
			api := standIn("discord")
			api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
			api.Hold = fakeapi.Between(20*time.Millisecond, 100*time.Millisecond)
			saturate(t, over(t, providers.Discord(), api), 16, d, func(w int) *http.Request {
				return get(t, fmt.Sprintf("%s/channels/%d/messages/%d", discord, w%4, time.Now().UnixNano()))
			})
			checkServed(t, api, 0.95*4*d.Seconds()) // 4 routes, each with 5 in 5 seconds
		})
	})
	t.Run("50 a second in all", func(t *testing.T) {
		d := long(20 * time.Second)
		synctest.Test(t, func(t *testing.T) {
			api := standIn("discord")
			api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
			saturate(t, over(t, providers.Discord(), api), 100, d, func(w int) *http.Request {
				return get(t, fmt.Sprintf("%s/guilds/%d/members", discord, w))
			})
			checkServed(t, api, 0.9*50*d.Seconds())
		})
	})
}

func TestDiscordRefusals(t *testing.T) {
	one, two := discord+"/channels/1/messages", discord+"/channels/2/messages"
	bucket := func(more ...string) map[string]string {
		h := map[string]string{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "9", "X-RateLimit-Reset-After": "64.57", "X-RateLimit-Bucket": "abcd1234"}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = more[i+1]
		}
		return h
	}
	for _, test := range []struct {
		name  string
		reply fakeapi.Reply
		next  string
		wait  time.Duration
	}{
		{"remaining 0 pauses the route until the reset", fakeapi.Reply{Header: bucket("X-RateLimit-Remaining", "0")}, one, 64570 * time.Millisecond},
		{"remaining 0 leaves other routes alone", fakeapi.Reply{Header: bucket("X-RateLimit-Remaining", "0")}, two, 0},
		{"a 429 pauses the route", fakeapi.Reply{Status: 429, Header: bucket("X-RateLimit-Remaining", "0", "Retry-After", "65", "X-RateLimit-Scope", "user")}, one, 65 * time.Second},
		{"a 429 leaves other routes alone", fakeapi.Reply{Status: 429, Header: bucket("Retry-After", "65", "X-RateLimit-Scope", "user")}, two, 0},
		{"a shared 429 reports a longer wait than the bucket", fakeapi.Reply{Status: 429, Header: bucket("Retry-After", "337", "X-RateLimit-Scope", "shared")}, one, 337 * time.Second},
		{"a global 429 stops every route", fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "65", "X-RateLimit-Global": "true", "X-RateLimit-Scope": "global"}}, two, 65 * time.Second},
		{"a global 429 leaves interactions alone", fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "65", "X-RateLimit-Global": "true"}}, discord + "/interactions/7/secret/callback", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("discord")
				rt := over(t, providers.Discord(), api)
				api.Trap(test.reply)
				send(t, rt, get(t, one))
				if status, _, took := send(t, rt, get(t, test.next)); status != 200 || took != test.wait {
					t.Errorf("%d after %v, want 200 after %v", status, took, test.wait)
				}
			})
		})
	}
	for name, reply := range map[string]fakeapi.Reply{
		"a block closes every route": {Body: `{"message":"You are being blocked from accessing our API temporarily due to exceeding our rate limits frequently."}`},
		"a block by Cloudflare closes every route": {Header: map[string]string{"Content-Type": "text/html; charset=UTF-8"},
			Body: `<html><title>Access denied</title><body>error code: 1015</body></html>`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("discord")
				rt := over(t, providers.Discord(), api)
				reply.Status = 429
				api.Trap(reply)
				send(t, rt, get(t, one))
				for _, url := range []string{one, two} {
					_, err := rt.RoundTrip(get(t, url))
					var e *throttle.WaitError
					if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || time.Until(e.Until) != time.Hour {
						t.Errorf("%s: %v, want ErrBanned for an hour", url, err)
					}
				}
				time.Sleep(time.Hour)
				if status, _, took := send(t, rt, get(t, two)); status != 200 || took != 0 {
					t.Errorf("an hour later: %d after %v", status, took)
				}
			})
		})
	}
	t.Run("a shared 429 of 22 minutes closes the route", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("discord")
			rt := over(t, providers.Discord(), api)
			api.Trap(fakeapi.Reply{Status: 429, Header: bucket("Retry-After", "1337", "X-RateLimit-Scope", "shared")})
			send(t, rt, get(t, one))
			if _, err := rt.RoundTrip(get(t, one)); !errors.Is(err, throttle.ErrBanned) {
				t.Errorf("%v, want ErrBanned", err)
			}
		})
	})
}

// interactionToken is a token of an interaction, whose routes the global limit leaves alone.
const interactionToken = "aW50ZXJhY3Rpb246MTo" // interaction:1:

// TestDiscordInteractions checks that neither the bot's 50 requests a second nor a global 429 delay an
// interaction, and that a block of the address does.
func TestDiscordInteractions(t *testing.T) {
	followUp := discord + "/webhooks/1/" + interactionToken
	for url, own := range map[string]bool{
		discord + "/interactions/7/" + interactionToken + "/callback": true,
		followUp:                            true,
		followUp + "/messages/@original":    true,
		followUp + "/messages/7":            true,
		discord + "/webhooks/1/" + "secret": false,
		discord + "/webhooks/1":             false,
		discord + "/channels/1/messages":    false,
	} {
		t.Run(url, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &scripted{}
				rt := over(t, providers.Discord(), api)
				want := func(when string, bound time.Duration) {
					t.Helper()
					if own {
						bound = 0
					}
					if _, _, took := send(t, rt, get(t, url)); took != bound {
						t.Errorf("%s: waited %v, want %v", when, took, bound)
					}
				}
				for i := range 50 {
					send(t, rt, get(t, fmt.Sprintf("%s/guilds/%d", discord, i)))
				}
				want("the bot's second", time.Second)
				api.next = append(api.next, fixture{Status: 429, Headers: map[string]any{"Retry-After": "65", "X-RateLimit-Global": "true", "X-RateLimit-Scope": "global"}})
				time.Sleep(time.Minute)
				send(t, rt, get(t, discord+"/guilds/1"))
				want("a global 429", 65*time.Second)
				time.Sleep(2 * time.Minute)
				api.refuse(429, `{"code":0,"message":"You are being blocked from accessing our API temporarily"}`)
				send(t, rt, get(t, discord+"/guilds/1"))
				if _, err := rt.RoundTrip(get(t, url)); !errors.Is(err, throttle.ErrBanned) {
					t.Errorf("the address is blocked: %v, want ErrBanned", err)
				}
			})
		})
	}
}

// TestDiscordInvalid checks which responses count as invalid requests.
func TestDiscordInvalid(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		scope  string
		want   int64
	}{
		{"served", 200, "", 0}, {"not found", 404, "", 0}, {"a failure", 500, "", 0},
		{"not authorized", 401, "", 1}, {"forbidden", 403, "", 1},
		{"a refusal", 429, "user", 1}, {"a refusal of all", 429, "global", 1}, {"a refusal without a scope", 429, "", 1},
		{"a refusal that others caused", 429, "shared", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &scripted{}
				transport, err := providers.Discord().Transport(nil)
				if err != nil {
					t.Fatal(err)
				}
				transport.Base = api
				f := fixture{Status: test.status, Headers: map[string]any{"Retry-After": "1"}, Body: "{}"}
				if test.scope != "" {
					f.Headers["X-RateLimit-Scope"] = test.scope
				}
				api.next = append(api.next, f)
				send(t, transport, get(t, discord+"/channels/1/messages"))
				status, err := transport.Route(get(t, discord+"/interactions/7/"+interactionToken+"/callback")).Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				address := status.Tiers[len(status.Tiers)-1]
				if address.Tier.Unit != "invalid" || address.Used != test.want {
					t.Errorf("%d %s requests, want %d invalid", address.Used, address.Tier.Unit, test.want)
				}
			})
		})
	}
}

// TestDiscordInvalidLimit checks that at most 10,000 requests are invalid in 10 minutes, that requests
// then wait until the window allows more, and that valid requests are not held back before.
func TestDiscordInvalidLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{}
		rt := over(t, providers.Discord(), api)
		interaction := func() *http.Request {
			return get(t, discord+"/interactions/7/"+interactionToken+"/callback")
		}
		start := time.Now()
		for range 10_000 {
			send(t, rt, interaction()) // valid
			api.refuse(403, "{}")
			send(t, rt, interaction())
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("10,000 invalid and 10,000 valid requests took %v", took)
		}
		for _, url := range []string{discord + "/interactions/7/" + interactionToken + "/callback", discord + "/channels/1/messages"} {
			send(t, rt, get(t, url))
			if took := time.Since(start); took < 10*time.Minute || took > 10*time.Minute+time.Second {
				t.Errorf("%s was sent after %v, want 10m", url, took)
			}
		}
	})
}

func TestDiscordRoutes(t *testing.T) {
	key := providers.Discord().Scope("route").Key
	of := func(path string) string {
		k, _ := key(get(t, "https://discord.com"+path))
		return k
	}
	for path, want := range map[string]string{
		"/api/v10/channels/1/messages":                         "GET channels/1/messages",
		"/api/channels/1/messages/2":                           "GET channels/1/messages/*",
		"/api/v9/guilds/3/members/4/roles/5":                   "GET guilds/3/members/*/roles/*",
		"/api/v10/channels/1/messages/2/reactions/%F0%9F%A6/6": "GET channels/1/messages/*/reactions/*/*",
		"/api/v10/users/@me":                                   "GET users/@me",
		"/api/v10/users/7":                                     "GET users/*",
	} {
		if got := of(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if a, b := of("/api/v10/webhooks/1/tokenA"), of("/api/v10/webhooks/1/tokenB"); a == b || strings.Contains(a, "tokenA") {
		t.Errorf("webhooks with different tokens: %q, %q", a, b)
	}
}

// The hosts of the test clients have the bot's limit, too.
func TestDiscordHosts(t *testing.T) {
	for _, host := range []string{"discord.com", "discordapp.com", "canary.discord.com", "ptb.discord.com"} {
		checkBurst(t, providers.Discord, host, 50, to(t, "GET", "https://"+host+"/api/v10/users/@me"))
	}
}

func ExampleDiscord() {
	client, err := providers.Discord().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("discord")) // instead of the network

	resp, err := client.Get("https://discord.com/api/v10/channels/1/messages")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.Header.Get("X-RateLimit-Remaining"), "of", resp.Header.Get("X-RateLimit-Limit"), "left; after them the next request waits")
	// Output: 4 of 5 left; after them the next request waits
}
