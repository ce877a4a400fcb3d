package providers_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/providers"
)

// presets returns the APIs of usual accounts.
var presets = func() (all []func() providers.Provider) {
	for _, p := range providers.Presets() {
		all = append(all, func() providers.Provider { return p.Provider(p.Example()) })
	}
	return append(all, func() providers.Provider { return providers.OpenAICompatible("api.deepseek.com", 0, 0) })
}()

// A preset has the name of its constructor and the parameters that a text can have, with examples that
// are in normal form. TestPage compares constructors with the source.
func TestPresetsAreDescribed(t *testing.T) {
	kebab := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	var names []string
	for _, p := range providers.Presets() {
		names = append(names, p.Name)
		constructor, signature, _ := strings.Cut(strings.TrimSuffix(p.Constructor, ")"), "(")
		if !kebab.MatchString(p.Name) || strings.ReplaceAll(p.Name, "-", "") != strings.ToLower(constructor) {
			t.Errorf("%q is not the name of %s in lower case with hyphens", p.Name, constructor)
		}
		var got, want []string
		for param := range strings.SplitSeq(signature, ", ") {
			if name, kind, _ := strings.Cut(param, " "); name != "" && !strings.HasPrefix(kind, "func") {
				want = append(want, strings.ToLower(name))
			}
		}
		for _, param := range p.Parameters {
			got = append(got, strings.ReplaceAll(param.Name, "_", ""))
			for _, value := range []string{param.Example, param.Default} {
				if normal, err := param.Parse(value); (err != nil || normal != value) && (value != "" || !param.Required()) {
					t.Errorf("%s: %s: %q has the normal form %q: %v", p.Name, param.Name, value, normal, err)
				}
			}
			if param.About == "" || !param.Text && strings.Contains(param.About, "; 0: ") != (param.Min == 0) {
				t.Errorf("%s: %s from %d is %q: say what 0 means if it is possible", p.Name, param.Name, param.Min, param.About)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has the parameters %q, want %q", p, got, want)
		}
	}
	if !slices.IsSorted(names) {
		t.Errorf("the presets are not sorted: %q", names)
	}
}

func TestParameterParse(t *testing.T) {
	for _, test := range []struct{ preset, parameter, value, want, err string }{
		{"openai", "requests", "30_000", "30000", ""},
		{"openai", "requests", "1000000000000", "1000000000000", ""},
		{"openai", "requests", "1000000000001", "", "it must be a whole number from 1 to 1000000000000, the requests a minute of a model"},
		{"openai", "requests", "0", "", "from 1 to"},
		{"openai", "requests", "", "", "from 1 to"},
		{"openai", "requests", "1e3", "", "from 1 to"},
		{"infura", "day", "0", "0", ""},
		{"infura", "day", "-1", "", "from 0 to"},
		{"hubspot", "zone", "Europe/Berlin", "Europe/Berlin", ""},
		{"hubspot", "zone", "Mars/Olympus", "", "it must be a time zone"},
		{"openai-compatible", "host", "llm.example.com", "llm.example.com", ""},
		{"openai-compatible", "host", "https://llm.example.com", "", "without https://"},
		{"openai-compatible", "host", "", "", "it must be a host"},
	} {
		for _, p := range providers.Presets() {
			for _, param := range p.Parameters {
				if p.Name != test.preset || param.Name != test.parameter {
					continue
				}
				got, err := param.Parse(test.value)
				if test.err == "" && (err != nil || got != test.want) || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
					t.Errorf("%s: %s=%s: %q, %v, want %q, %s", p.Name, param.Name, test.value, got, err, test.want, test.err)
				}
			}
		}
	}
}

// Every preset is valid and names the source of each limit.
func TestPresets(t *testing.T) {
	names := map[string]bool{}
	for _, preset := range presets {
		p := preset()
		if p.Name == "" || names[p.Name] || len(p.Scopes) == 0 || len(p.Hosts) == 0 {
			t.Errorf("%q: the Name is empty or used twice, or Scopes or Hosts are empty", p.Name)
		}
		names[p.Name] = true
		if _, err := p.Transport(nil); err != nil {
			t.Error(err)
		}
		if err := p.Profile.Validate(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		scopes := map[string]bool{}
		for _, s := range p.Scopes {
			if s.Name == "" || scopes[s.Name] || !strings.HasPrefix(s.Page, "https://") {
				t.Errorf("%s: scope %q: page %q", p.Name, s.Name, s.Page)
			}
			if _, err := time.Parse(time.DateOnly, s.Read); err != nil {
				t.Errorf("%s: scope %q: %v", p.Name, s.Name, err)
			}
			scopes[s.Name] = true
		}
		for _, s := range p.Sockets {
			if s.Name == "" || scopes[s.Name] || s.Key != nil || s.Models != nil || !strings.HasPrefix(s.Page, "https://") || s.Policy.Name != p.Name+"/"+s.Name {
				t.Errorf("%s: socket %q of %q: page %q, or it has a key", p.Name, s.Name, s.Policy.Name, s.Page)
			}
			if _, err := throttle.New(s.Policy, nil); err != nil {
				t.Errorf("%s: socket %q: %v", p.Name, s.Name, err)
			}
			scopes[s.Name] = true
		}
		if other := preset(); &other.Scopes[0] == &p.Scopes[0] || &other.Scopes[0].Policy.Tiers[0] == &p.Scopes[0].Policy.Tiers[0] || &other.Hosts[0] == &p.Hosts[0] {
			t.Errorf("%s: two calls of the constructor share a slice", p.Name)
		}
	}
}

func TestTransportErrors(t *testing.T) {
	p := providers.Stripe()
	p.Scope("search").Policy.Tiers[0].Limit = 0
	p.Scope("account").Policy.MaxWait = -1
	_, err := p.Transport(nil)
	for _, want := range []string{`stripe: scope "search"`, "Limit is 0", `stripe: scope "account"`, "MaxWait is"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %s: %v", want, err)
		}
	}
	if _, err := p.Client(nil); err == nil {
		t.Error("Client accepted an invalid policy")
	}
	if p.Scope("no such") != nil {
		t.Error("Scope returned a scope that doesn't exist")
	}
}

// Clients with one store share one quota.
func TestSharedStore(t *testing.T) {
	d := long(20 * time.Second)
	synctest.Test(t, func(t *testing.T) {
		api, store := standIn("stripe"), new(local.Store)
		api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
		var clients [3]*throttle.Transport
		for i := range clients {
			var err error
			if clients[i], err = providers.Stripe().Transport(store); err != nil {
				t.Fatal(err)
			}
			clients[i].Base = api
		}
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				saturate(t, c, 8, d, func(int) *http.Request { return stripe(t, "GET", "customers", live) })
			})
		}
		wg.Wait()
		checkServed(t, api, 0.93*d.Seconds()*25)
	})
}

// A limit that the caller changes takes effect.
func TestOverride(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := providers.Etherscan()
		p.Scope("account").Policy.Tiers = []throttle.Tier{throttle.PerMinute(1)}
		p.Scope("account").Policy.MaxWait = time.Second
		rt := over(t, p, standIn("etherscan"))
		send(t, rt, get(t, etherscan))
		_, err := rt.RoundTrip(get(t, etherscan))
		if !errors.Is(err, throttle.ErrDeadline) || !strings.Contains(err.Error(), `policy "etherscan/account"`) {
			t.Errorf("%v, want ErrDeadline of etherscan/account", err)
		}
	})
}

func TestHosts(t *testing.T) {
	for _, test := range []struct {
		hosts   []string
		url     string
		limited bool
	}{
		{[]string{"api.example.com"}, "https://api.example.com/", true},
		{[]string{"api.example.com"}, "https://API.Example.com:8443/", true},
		{[]string{"api.example.com"}, "https://example.com/", false},
		{[]string{"*.example.com"}, "https://a.b.example.com/", true},
		{[]string{"*.example.com"}, "https://example.com/", false},
		{[]string{"*.example.com"}, "https://badexample.com/", false},
		{[]string{"api*.example.com"}, "https://api.eu.example.com/", true},
		{[]string{"api*.example.com"}, "https://api.example.com/", true},
		{[]string{"api*.example.com"}, "https://eu.api.example.com/", false},
		{[]string{"api.example*.example.com"}, "https://api.example.com/", false},
		{[]string{"api*.*.example.com"}, "https://api-1.eu.example.com/", true},
		{[]string{"api*.*.example.com"}, "https://api.example.com/", false},
		{[]string{"ex*ample.com"}, "https://ex-ample.com/", true},
		{[]string{"ex*ample.com"}, "https://exmple.com/", false},
		{[]string{"api.*"}, "https://api.example.com/", true},
		{[]string{"api.*"}, "https://example.com/", false},
		{[]string{"*"}, "https://example.com/", true},
		{[]string{"API.Example.com"}, "https://api.example.com/", true},
		{[]string{"*.Example.com"}, "https://api.example.com/", true},
		{[]string{"api.example.com"}, "https://api.example.com./", true},
		{[]string{"*.example.com"}, "https://api.example.com.:8443/", true},
		{[]string{"::1"}, "https://[::1]:8443/", true},
		{[]string{"a.example", "b.example"}, "https://b.example/", true},
		{nil, "http://127.0.0.1:8080/", true},
	} {
		p := providers.Provider{Name: "p", Hosts: test.hosts, Scopes: []providers.Scope{{Name: "s", Policy: throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}}}}}
		transport, err := p.Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := transport.Route(get(t, test.url)) != nil; got != test.limited {
			t.Errorf("%v, %s: limited %v", test.hosts, test.url, got)
		}
		transport = auto(t, providers.Auto{Providers: []providers.Provider{p}}, nil, accepting{})
		status, err := transport.Route(get(t, test.url)).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := status.Tiers[0].Tier.Unit == ""; got != test.limited {
			t.Errorf("Auto: %v, %s: limited %v", test.hosts, test.url, got)
		}
	}
}

// Each spelling of a host is the same host.
func TestSpellingsOfHosts(t *testing.T) {
	for _, preset := range presets {
		p := preset()
		if len(p.Hosts) == 0 {
			continue
		}
		host := strings.Replace(p.Hosts[0], "*", "some", 1)
		transport, err := p.Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/", "/v1/messages", "/api/v1/users", "/admin/api/graphql.json", "/v1.0/me/messages", "/services/data/v62.0/query", "/2010-04-01/Accounts", "/orders/v0/orders", "/model/anthropic.claude-opus-4-1/converse", "/openai/deployments/d/chat/completions"} {
			for _, method := range []string{"GET", "POST"} {
				of := func(host string) *throttle.Limiter {
					req := request(t, method+" https://"+host+path)
					return transport.Route(req)
				}
				for _, spelling := range []string{strings.ToUpper(host), host + ".", host + ":443"} {
					if of(spelling) != of(host) {
						t.Errorf("%s: %s %s: %s has another quota", p.Name, method, path, spelling)
					}
				}
			}
		}
	}
}

// A key of an inner scope has a separate quota in each outer quota, and a quota stays the same as
// long as a limiter of it is in use.
func TestKeys(t *testing.T) {
	synctest.Test(t, testKeys)
}

func testKeys(t *testing.T) {
	scope := func(name string, tier throttle.Tier) providers.Scope {
		return providers.Scope{
			Name: name, Policy: throttle.Policy{Tiers: []throttle.Tier{tier}, Guard: throttle.NoGuard, MaxWait: time.Nanosecond},
			Key: func(req *http.Request) (string, bool) {
				v := req.Header.Get(name)
				return v, v != ""
			},
		}
	}
	p := providers.Provider{Name: "p", Scopes: []providers.Scope{scope("Channel", throttle.PerHour(1)), scope("Team", throttle.PerMinute(2))}}
	rt := over(t, p, standIn("twilio", "account=9;algo=concurrency"))
	for i, step := range []struct {
		team, channel string
		admitted      bool
		then          time.Duration
	}{
		{"A", "x", true, 0},
		{"A", "x", false, 0}, // the channel is used up, and the team isn't charged
		{"A", "y", true, 0},
		{"A", "z", false, 0}, // the team is used up, and the channel isn't charged
		{"B", "x", true, 0},  // another team's channel with the same name
		{"", "x", true, 0},   // no team
		{"", "x", false, 0},
		{"", "", true, 0}, // counts in no scope
		{"B", "", true, 0},
		{"B", "", false, time.Minute},
		{"A", "z", true, 0},
		{"A", "x", false, 0},
	} {
		req := get(t, "https://example.com/")
		req.Header.Set("Team", step.team)
		req.Header.Set("Channel", step.channel)
		resp, err := rt.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		if (err == nil) != step.admitted || err != nil && !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("step %d: %+v: %v", i, step, err)
		}
		time.Sleep(step.then)
	}
}

// A provider reads a body only through GetBody, and leaves the body whole.
func TestBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pairs := func(body io.Reader) *http.Request {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.kraken.com/0/private/AddOrder", body)
			if err != nil {
				t.Fatal(err)
			}
			return req
		}
		key := providers.Kraken().Scope("pair").Key
		const form = "nonce=1&pair=XBTUSD"
		req := pairs(strings.NewReader(form))
		if pair, _ := key(req); pair != "XBTUSD" {
			t.Errorf("pair %q", pair)
		}
		if b, err := io.ReadAll(req.Body); string(b) != form || err != nil {
			t.Errorf("the body is %q afterwards, %v", b, err)
		}
		if pair, counts := key(pairs(io.MultiReader(strings.NewReader(form)))); pair != "" || !counts {
			t.Errorf("a body without GetBody: %q, %v", pair, counts)
		}
		if pair, _ := key(pairs(strings.NewReader(strings.Repeat("x=1&", 32<<10) + "pair=XBTUSD"))); pair != "" {
			t.Errorf("read %q after the first 64 KB", pair)
		}
		broken := pairs(strings.NewReader(form))
		broken.GetBody = func() (io.ReadCloser, error) { return nil, context.Canceled }
		if pair, counts := key(broken); pair != "" || !counts {
			t.Errorf("a broken GetBody: %q, %v", pair, counts)
		}
	})
}
