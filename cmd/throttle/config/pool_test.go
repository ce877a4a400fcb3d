package config_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/cmd/throttle/config"
)

// poolOf returns a file with a pool at /x.
func poolOf(members ...string) string { return poolWith("", members...) }

func poolWith(settings string, members ...string) string {
	return "routes: {/x: {" + settings + "pool: [{" + strings.Join(members, "}, {") + "}]}}"
}

const east = "name: east, to: https://east.example/v1, policy: 5/s, set: {Api-Key: east-key}"

// TestProblemsOfPools checks that each problem of a pool is reported alone, with its field and the fix.
func TestProblemsOfPools(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = strings.ReplaceAll(east, "east", "m"+strings.Repeat("x", i))
	}
	for _, c := range []struct{ text, want string }{
		{"routes: {/x: {pool: []}}", "routes./x.pool is empty: name its members, or remove the field"},
		{"routes: {/x: {pool: {}}}", "routes./x.pool is a mapping: it must be a list"},
		{"routes: {/x: {pool: [east]}}", "routes./x.pool[0] is a text: it must be a mapping of any_host, models, name,"},
		{poolOf(many...), "routes./x.pool has 65 members: it must have at most 64"},
		{poolWith("to: https://a.b, ", east), "routes./x.to is there beside pool: move it into a member, or remove pool"},
		{poolWith("policy: 5/s, ", east), "routes./x.policy is there beside pool: move it into a member, or remove pool"},
		{poolWith("preset: github, ", east), "routes./x.preset is there beside pool: move it into a member"},
		{poolWith("any_host: true, ", east), "routes./x.any_host is there beside pool: move it into a member"},
		{poolWith("key: {header: A}, ", east), "routes./x.key is there beside pool, whose members have credentials of their own instead of those of clients: remove one"},
		{poolWith("set: {Authorization: a}, ", east), "routes./x.set.Authorization is a credential, which each member of a pool has for itself: move it into the members"},
		{poolWith("query: {key: a}, ", east), "routes./x.query.key is a credential, which each member of a pool has for itself"},
		{poolWith("spill: 0s, ", east), `routes./x.spill is "0s": it must be a length of time above zero`},
		{poolWith("max_queue: -1, ", east), "routes./x.max_queue is -1: it must be at least 1"},
		{poolWith("sticky: {}, ", east), "routes./x.sticky lacks its key: add header: NAME, or body: FIELD, such as body: prompt_cache_key"},
		{`routes: {/x: {pool: [{name: east, to: https://east.example/v1, policy: 5/s, set: {Api-Key: ""}}]}}`, `routes./x.pool[0].set.Api-Key is empty, but it is the member's credential: write its value, such as ${env:NAME}`},
		{poolWith("sticky: {header: A, body: b}, ", east), "routes./x.sticky has both header and body: remove one"},
		{poolWith("sticky: {header: a/b}, ", east), `routes./x.sticky.header is "a/b", which is not the name of a header that clients may choose: use one such as X-Session-Id`},
		{poolWith("sticky: {body: a..b}, ", east), `routes./x.sticky.body is "a..b": it must be the name of a field, such as prompt_cache_key`},
		{poolWith("sticky: {cookie: a}, ", east), "routes./x.sticky.cookie is not a field: the fields are body and header"},
		{minimalWith("spill: 1s"), "routes./x.spill belongs to a pool: remove it, or add pool"},
		{minimalWith("sticky: {header: A}"), "routes./x.sticky belongs to a pool: remove it, or add pool"},

		{poolOf(strings.Replace(east, "name: east, ", "", 1)), "routes./x.pool[0] lacks its name: add name: NAME"},
		{poolOf(strings.Replace(east, "name: east", "name: a/b", 1)), `routes./x.pool[0].name is "a/b": it must have 1 to 100 letters, digits, hyphens, points and underscores`},
		{poolOf(east, strings.Replace(east, "key", "other", 1)), `routes./x.pool[1].name is "east", the name of pool[0], too: give each member its own`},
		{poolOf(east+", quota: q", strings.ReplaceAll(east, "east", "west")+", quota: q"), `routes./x.pool[1].quota is "q", the quota of pool[0], too: one quota does not add up: give each member its own, or remove one`},
		{poolOf(east, strings.Replace(east, "name: east", "name: west", 1)), "routes./x.pool[1] has the address and the credentials of pool[0]: the limits of one account do not add up: remove one, or use the credentials of another account"},
		{poolOf(east + ", quota: a:budget"), `routes./x.pool[0].quota is "a:budget": it must have at most 200 characters`},
		{poolOf(east + ", rank: -1"), "routes./x.pool[0].rank is -1: it must be from 0, the first choice, to 1000"},
		{poolOf(east + ", weight: 0"), "routes./x.pool[0].weight is 0: it must be from 1 to 1000000"},
		{poolOf(east + ", weight: -2"), "routes./x.pool[0].weight is -2: it must be from 1 to 1000000"},
		{poolOf(strings.Replace(east, ", set: {Api-Key: east-key}", "", 1)), `routes./x.pool[0] lacks its credentials: those of clients reach no member: add set: {Authorization: "Bearer ${env:NAME}"}, or no_credentials: true if its API needs none`},
		{poolOf(strings.Replace(east, "Api-Key", "Accept", 1)), "routes./x.pool[0] lacks its credentials"},
		{poolOf(east + ", no_credentials: true"), "routes./x.pool[0].no_credentials is true, but the member has credentials: remove one"},
		{poolOf(strings.Replace(east, "to: https://east.example/v1, ", "", 1)), "routes./x.pool[0] lacks its address: add to: https://HOST"},
		{poolOf(strings.Replace(east, "https://east.example/v1", "east.example", 1)), `routes./x.pool[0].to is "east.example": it must begin with https:// or http://`},
		{poolOf(strings.Replace(east, "policy: 5/s, ", "", 1)), "routes./x.pool[0] lacks its limits: add preset: NAME, or a policy"},
		{poolOf(strings.Replace(east, "5/s", "5/x", 1)), `routes./x.pool[0].policy is "5/x": window: "x" is not a length of time`},
		{poolOf(strings.Replace(east, "5/s", "5/s;unit=tokens", 1)), "routes./x.pool[0].policy is \"5/s;unit=tokens\": no request costs tokens"},
		{poolOf(strings.Replace(east, "policy: 5/s", "preset: github", 1)), `routes./x.pool[0].to is "https://east.example/v1": preset github is for api.github.com`},
		{poolOf(strings.Replace(east, "policy: 5/s", "preset: openai, any_host: true, with: {requests: 5}", 1)), "routes./x.pool[0].with.tokens is missing"},
		{poolOf(strings.Replace(east, "Api-Key", "Host", 1) + ", query: {key: a}"), "routes./x.pool[0].set.Host is a header of the connection"},
		{poolOf(strings.Replace(east, "east-key", `"${env:}"`, 1)), "routes./x.pool[0].set.Api-Key refers to a variable whose name"},
		{strings.Replace(poolOf(east), "routes: {", "routes: {/y: {to: https://a.b, policy: 6/s, name: x/east}, ", 1), `routes./y.name is "x/east", the quota of routes./x.pool[0], which has other limits`},
		{poolWith("cost: {usd: 5}, ", east), "routes./x.cost.usd is a unit that nothing limits"},
	} {
		got := problems(t, c.text)
		if len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s\nhas  %q\nwant %q", c.text, got, c.want)
		}
		_, err := loader().Parse([]byte(c.text), "t.yaml")
		if err == nil || strings.Contains(err.Error(), "east-key") {
			t.Errorf("%s: the error shows a key: %v", c.text, err)
		}
	}
}

func minimalWith(settings string) string {
	return "routes: {/x: {to: https://api.example.com, policy: 5/s, " + settings + "}}"
}

// upstreams are the APIs of a pool. They are called one after the other.
type upstreams struct {
	seen   []string // of each request: the URL, the key and the body
	answer func(req *http.Request) (status int, header http.Header)
}

func (u *upstreams) RoundTrip(req *http.Request) (*http.Response, error) {
	body := []byte{}
	if req.Body != nil {
		body, _ = io.ReadAll(req.Body)
		req.Body.Close()
	}
	u.seen = append(u.seen, req.URL.String()+" "+req.Header.Get("Api-Key")+" "+string(body))
	resp := &http.Response{StatusCode: 200, Header: make(http.Header), Body: http.NoBody, Request: req, ProtoMajor: 1, ProtoMinor: 1}
	if u.answer != nil {
		if resp.StatusCode, resp.Header = u.answer(req); resp.Header == nil {
			resp.Header = make(http.Header)
		}
	}
	return resp, nil
}

// transport returns the transport of a file's pool to upstreams.
func (u *upstreams) transport(t *testing.T, file string) http.RoundTripper {
	t.Helper()
	c, err := loader().Parse([]byte(file), "t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	transport, err := c.Transport("/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport.Base.(*config.Pool).Base = u
	return transport
}

// TestPoolOfAProgram checks that a program's requests to the first member go to all members, at the sum of
// their rates, with the members' credentials.
func TestPoolOfAProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := new(upstreams)
		client := &http.Client{Transport: u.transport(t, poolOf(east, "name: west, to: https://west.example, policy: 20/s, query: {key: west-key}"))}
		begin := time.Now()
		for range 250 {
			req, err := http.NewRequestWithContext(context.Background(), "POST", "https://east.example/v1/a%2Fb?c=d&key=canary", strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "canary")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		if took := time.Since(begin); took < 8*time.Second || took > 10*time.Second+500*time.Millisecond {
			t.Errorf("250 requests at 25/s took %v", took)
		}
		counts := make(map[string]int)
		for _, s := range u.seen {
			counts[s]++
		}
		const toEast, toWest = "https://east.example/v1/a%2Fb?c=d east-key body", "https://west.example/a%2Fb?c=d&key=west-key  body"
		if len(counts) != 2 || counts[toEast] < 45 || counts[toWest] < 180 {
			t.Errorf("requests were %v", counts)
		}
		if _, err := client.Get("https://elsewhere.example/other"); err == nil || !strings.Contains(err.Error(), "not below the address of the first member") {
			t.Errorf("another address: %v", err)
		}
	})
}

// TestPoolRetriesAtOnce checks that what one member refuses another serves without a wait, that a ban of one
// leaves the others, and that the last refusal is the caller's if all refuse.
func TestPoolRetriesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := map[string]bool{"east.example": true}
		u := &upstreams{answer: func(req *http.Request) (int, http.Header) {
			if down[req.URL.Host] {
				return 429, http.Header{"Retry-After": {"60"}}
			}
			return 200, nil
		}}
		client := &http.Client{Transport: u.transport(t, poolWith("max_wait: 1s, ", east, "name: west, to: https://west.example, policy: 20/s, rank: 1, set: {Api-Key: west-key}"))}
		begin := time.Now()
		post := func() int {
			resp, err := client.Post("https://east.example/v1/x", "text/plain", strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return resp.StatusCode
		}
		if status, took := post(), time.Since(begin); status != 200 || took > 0 {
			t.Errorf("status %d after %v", status, took)
		}
		if want := []string{"https://east.example/v1/x east-key body", "https://west.example/x west-key body"}; strings.Join(u.seen, "\n") != strings.Join(want, "\n") {
			t.Errorf("the requests were %q", u.seen)
		}
		down["west.example"] = true
		if status := post(); status != 429 || len(u.seen) != 3 {
			t.Errorf("status %d, %d requests", status, len(u.seen))
		}
	})
}

// TestPoolChanges checks what a reload reports of pools.
func TestPoolChanges(t *testing.T) {
	parse := func(text string) *config.Config {
		c, err := loader().Parse([]byte(text), "t.yaml")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	old := parse(poolOf(east))
	for text, want := range map[string]string{
		poolOf(east): "nothing changed",
		poolOf(strings.Replace(east, "east-key", "other-key", 1)):     "other settings for /x",
		poolOf(strings.Replace(east, "east.example", "a.example", 1)): "other settings for /x",
		poolOf(strings.Replace(east, "5/s", "6/s", 1)):                "other limits for /x",
		poolOf(east + ", rank: 1"):                                    "other limits for /x",
		poolOf(east, strings.ReplaceAll(east, "east", "west")):        "other limits for /x",
		poolWith("spill: 1s, ", east):                                 "other limits for /x",
		poolWith("sticky: {header: A}, ", east):                       "other settings for /x",
		"routes: {/x: {to: https://east.example/v1, policy: 5/s}}":    "other limits for /x",
	} {
		if got := parse(text).Since(old).String(); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestPoolReloadsOtherKindsOfMembers checks that requests go to all members when a member gets a preset with
// quotas for each model, and when it loses it, and that what was charged stays charged.
func TestPoolReloadsOtherKindsOfMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			hourly = "name: east, to: https://east.example, policy: 4/h, set: {Api-Key: east-key}"
			west   = "name: west, to: https://west.example, policy: 2/h, set: {Api-Key: west-key}"
			keyed  = "name: north, to: https://north.example, preset: openai, any_host: true, with: {requests: 1, tokens: 1000000}, set: {Api-Key: north-key}"
		)
		parse := func(text string) *config.Config {
			c, err := loader().Parse([]byte(text), "t.yaml")
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		transports, err := parse(poolWith("max_wait: 10m, ", hourly)).Transports(nil)
		if err != nil {
			t.Fatal(err)
		}
		u := new(upstreams)
		send := func() error {
			transport := transports.Of("/x")
			transport.Base.(*config.Pool).Base = u
			resp, err := (&http.Client{Transport: transport}).Post("https://east.example/v1/chat/completions", "application/json", strings.NewReader(`{"model": "gpt-4o", "max_tokens": 1}`))
			if err == nil {
				resp.Body.Close()
			}
			return err
		}
		reload := func(members ...string) {
			t.Helper()
			if transports, err = transports.Reload(t.Context(), parse(poolWith("max_wait: 10m, ", members...))); err != nil {
				t.Fatal(err)
			}
		}
		check := func(fixed bool, more int) {
			t.Helper()
			if is := transports.PoolOf("/x") != nil; is != fixed {
				t.Errorf("one pool for all requests: %v", is)
			}
			for range more {
				if err := send(); err != nil {
					t.Error(err)
				}
			}
		}
		check(true, 2)
		reload(hourly, keyed) // 1 of 1/m
		check(false, 3)
		reload(hourly, west)
		check(true, 2)
		if err := send(); err == nil {
			t.Errorf("more than 4 and 2 an hour: %q", u.seen)
		}
	})
}
