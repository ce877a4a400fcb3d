package providers_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
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
	const edge = `<html><title>Access denied</title><body>error code: 1015</body></html>`
	html := map[string]string{"Content-Type": "text/html; charset=UTF-8"}
	for _, test := range []struct {
		name, next string
		reply      fakeapi.Reply
		closed     time.Duration
	}{
		{"a block closes every route", two, fakeapi.Reply{Body: `{"message":"You are being blocked from accessing our API temporarily due to exceeding our rate limits frequently."}`}, time.Hour},
		{"a block closes every path", discord + "/users/@me", fakeapi.Reply{Body: `{"message":"You are being blocked from accessing our API temporarily"}`}, time.Hour},
		{"a block by Cloudflare closes the route", one, fakeapi.Reply{Header: html, Body: edge}, time.Hour},
		{"other channels go on", two, fakeapi.Reply{Header: html, Body: edge}, 0},
		{"for as long as it asks", one, fakeapi.Reply{Header: map[string]string{"Content-Type": "text/plain", "Retry-After": "600"}, Body: "error code: 1015"}, 10 * time.Minute},
		{"other paths go on", discord + "/channels/1", fakeapi.Reply{Header: html, Body: edge}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("discord")
				rt := over(t, providers.Discord(), api)
				test.reply.Status = 429
				api.Trap(test.reply)
				send(t, rt, get(t, one))
				if test.closed > 0 {
					_, err := rt.RoundTrip(get(t, test.next))
					var e *throttle.WaitError
					if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || time.Until(e.Until) != test.closed {
						t.Errorf("%v, want ErrBanned for %v", err, test.closed)
					}
					time.Sleep(test.closed)
				}
				if status, _, took := send(t, rt, get(t, test.next)); status != 200 || took != 0 {
					t.Errorf("%v later: %d after %v", test.closed, status, took)
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

// A sharingServer has one bucket of 5 in 5 seconds for all routes of a channel.
type sharingServer struct {
	mu      sync.Mutex
	opened  map[string]time.Time // by channel
	used    map[string]int
	refused int
	served  int
}

func (s *sharingServer) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(20 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	const limit, window = 5, 5 * time.Second
	channel := strings.Split(req.URL.Path, "/")[4]
	if now := time.Now(); s.opened[channel].IsZero() || now.Sub(s.opened[channel]) >= window {
		s.opened[channel], s.used[channel] = now, 0
	}
	reset := fmt.Sprint((window - time.Since(s.opened[channel])).Seconds())
	reply := replying{Status: 200, Header: map[string]string{
		"X-RateLimit-Bucket": "80c17d2f203122d936070c88c8d10f33", "X-RateLimit-Limit": "5", "X-RateLimit-Reset-After": reset,
	}}
	if s.used[channel]++; s.used[channel] > limit {
		s.refused++
		reply.Status, reply.Header["Retry-After"], reply.Header["X-RateLimit-Scope"] = 429, reset, "user"
	} else {
		s.served++
	}
	reply.Header["X-RateLimit-Remaining"] = fmt.Sprint(max(0, limit-s.used[channel]))
	return reply.RoundTrip(req)
}

// Routes whose responses name one bucket share its quota, in channels that were not asked before as
// well. The quota of another channel is another.
func TestDiscordRoutesShareABucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &sharingServer{opened: map[string]time.Time{}, used: map[string]int{}}
		rt, ends := over(t, providers.Discord(), api), []string{"messages", "pins", "webhooks"}
		for _, end := range ends {
			send(t, rt, get(t, discord+"/channels/1/"+end))
		}
		d := 2 * time.Minute
		saturate(t, rt, 12, d, func(w int) *http.Request {
			return get(t, fmt.Sprintf("%s/channels/%d/%s", discord, w%2+2, ends[w/2%3]))
		})
		if want := int(0.9 * 2 * d.Seconds()); api.refused > 0 || api.served < want {
			t.Errorf("%d refused and %d served, want none and at least %d", api.refused, api.served, want)
		}
	})
}

// A bucket joins the routes of one bot. Paths that Discord doesn't have don't fill the memory.
func TestDiscordBucketsAreOfABot(t *testing.T) {
	p := providers.Discord()
	request := func(bot, path string) *http.Request {
		req := get(t, discord+path)
		req.Header.Set("Authorization", bot)
		return req
	}
	key := func(bot, path string) string {
		k, _ := p.Scope("route").Key(request(bot, path))
		return k
	}
	learn := func(bot, path string) {
		p.Settle(request(bot, path))(throttle.Cost{"bucket": 7})
	}
	learn("a", "/channels/1/messages")
	learn("a", "/channels/1/pins")
	learn("a", "/users/@me")
	if a, b := key("a", "/channels/2/messages"), key("a", "/channels/2/pins"); a != b {
		t.Errorf("%q and %q of one bucket", a, b)
	}
	if a, b := key("a", "/channels/2/pins"), key("a", "/channels/3/pins"); a == b {
		t.Errorf("two channels have the key %q", a)
	}
	if a, b := key("b", "/channels/2/messages"), key("b", "/channels/2/pins"); a == b {
		t.Errorf("another bot has the key %q for two routes", a)
	}
	old, recent := "/channels/1/messages/175928847299117063", fmt.Sprintf("/channels/1/messages/%d", (time.Now().UnixMilli()-1_420_070_400_000)<<22)
	remove := func(path string) string {
		req := request("a", path)
		req.Method = http.MethodDelete
		k, _ := p.Scope("route").Key(req)
		return k
	}
	if a, b := remove(old), remove(recent); a == b {
		t.Errorf("old and recent messages have the key %q", a)
	}
	for i := range 5_000 {
		p.Settle(request("a", fmt.Sprintf("/%s", strings.Repeat("x", i%250)+string(rune('a'+i/250)))))(throttle.Cost{"bucket": int64(i + 10)})
	}
	if a, b := key("a", "/channels/2/messages"), key("a", "/channels/2/pins"); a == b {
		t.Error("5,000 other paths, and nothing was forgotten")
	}
	if settled := p.Settle(request("a", "/users/@me"))(throttle.Cost{"bucket": 7, "invalid": 1}); len(settled) != 1 || settled["invalid"] != 1 {
		t.Errorf("settled %v, want 1 invalid", settled)
	}
}

// A webhook that Discord doesn't know is not used again, and other webhooks go on.
func TestDiscordUnknownWebhook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{}
		rt := over(t, providers.Discord(), api)
		hook := func(token string) *http.Request { return postJSON(t, discord+"/webhooks/1/"+token, `{"content":"a"}`) }
		api.refuse(404, `{"message":"Unknown Webhook","code":10015}`)
		send(t, rt, hook("a"))
		if _, err := rt.RoundTrip(hook("a")); !errors.Is(err, throttle.ErrBanned) {
			t.Errorf("%v, want ErrBanned", err)
		}
		api.refuse(404, `{"message":"Unknown Message","code":10008}`)
		send(t, rt, hook("b"))
		if status, _, took := send(t, rt, hook("b")); status != 200 || took != 0 {
			t.Errorf("another webhook: %d after %v", status, took)
		}
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
	soak.Long(t, "it sends 10,000 requests")
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
