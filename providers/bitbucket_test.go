package providers_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

const bitbucket = "https://api.bitbucket.org/2.0/"

// basic returns the requests with the password of a user.
func basic(of func() *http.Request, user, password string) func() *http.Request {
	return func() *http.Request {
		req := of()
		req.SetBasicAuth(user, password)
		return req
	}
}

func TestBitbucketScopes(t *testing.T) {
	const repo = bitbucket + "repositories/acme/app"
	by := func(method, url string) func() *http.Request { return basic(to(t, method, url), "ann", "secret") }
	one, user := by("GET", repo+"/commits"), by("GET", bitbucket+"user")
	token := func(url, token string) func() *http.Request {
		return withHeader(to(t, "GET", url), "Authorization", "Bearer "+token)
	}
	checkAtOnce(t, providers.Bitbucket, []atOnceTest{
		{"a user", 1_000, []func() *http.Request{one, user}},
		{"two passwords of a user", 1_000, []func() *http.Request{one, basic(to(t, "GET", repo), "ann", "another")}},
		{"two users", 2_000, []func() *http.Request{one, basic(to(t, "GET", repo), "bob", "secret")}},
		{"two access tokens", 2_000, []func() *http.Request{token(repo, "ATCTTone"), token(repo, "ATCTTtwo")}},
		{"an access token twice", 1_000, []func() *http.Request{token(repo, "ATCTTone"), basic(to(t, "GET", repo), "x-token-auth", "ATCTTone")}},
		{"two access tokens as passwords", 2_000, []func() *http.Request{basic(to(t, "GET", repo), "x-token-auth", "a"), basic(to(t, "GET", repo), "x-token-auth", "b")}},
		{"tokens of OAuth", 1_000, []func() *http.Request{token(repo, "one"), token(repo, "two")}},
		{"source files", 1_000, []func() *http.Request{by("GET", repo+"/src/main/go.mod"), by("GET", repo+"/downloads"), by("DELETE", repo+"/downloads/a.zip")}},
		{"webhooks", 1_000, []func() *http.Request{by("GET", repo+"/hooks"), by("POST", bitbucket+"workspaces/acme/hooks")}},
		{"webhooks and others", 2_000, []func() *http.Request{one, by("GET", bitbucket+"workspaces/acme/hooks")}},
		{"webhooks of repositories and others", 1_000, []func() *http.Request{one, by("GET", repo+"/hooks/1")}},
		{"properties", 2_000, []func() *http.Request{by("GET", repo+"/properties/a/b"), by("PUT", repo+"/commit/1/properties/a/b"), by("GET", bitbucket+"users/ann/properties/a/b")}},
		{"files", 5_000, []func() *http.Request{by("GET", repo+"/downloads/a.zip"), by("GET", "https://bitbucket.org/acme/app/raw/main/go.mod"), by("GET", "https://bitbucket.org/acme/app/downloads/a.zip")}},
		{"archives", 1_500, []func() *http.Request{by("GET", "https://bitbucket.org/acme/app/get/main.zip")}},
		{"invitations", 100, []func() *http.Request{by("PUT", "https://api.bitbucket.org/1.0/users/acme/invitations"), by("POST", "https://api.bitbucket.org/1.0/invitations/acme/app")}},
		{"no credentials", 60, []func() *http.Request{to(t, "GET", repo), to(t, "GET", repo+"/hooks"), to(t, "GET", bitbucket+"users/ann")}},
	})
	git := func() providers.Provider {
		p := providers.Bitbucket()
		p.Scope("git").Policy.Tiers[0].Limit /= 6_000
		return p
	}
	const clone = "https://bitbucket.org/acme/app"
	checkBurst(t, git, "Git", 10, alternate(by("GET", clone+".git/info/refs"), by("GET", clone+"/info/refs"), by("POST", clone+"/git-upload-pack"), by("POST", clone+"/git-receive-pack")))
	checkUnlimited(t, providers.Bitbucket, "pages", by("GET", "https://bitbucket.org/acme/app/src/main/go.mod"))
	checkUnlimited(t, providers.Bitbucket, "pages without credentials", to(t, "GET", "https://bitbucket.org/acme/app/downloads/"))
}

// Clients at one address share what it has without credentials, whatever their accounts.
func TestBitbucketAddress(t *testing.T) {
	p := providers.Bitbucket()
	if per := p.Scope("anonymous").Per; per != providers.PerAddress {
		t.Errorf("requests without credentials count per %v", per)
	}
}

func TestBitbucketWindows(t *testing.T) {
	for _, test := range []struct {
		scope, url string
		want       time.Duration
	}{
		{"api", bitbucket + "user", time.Hour}, {"webhooks", bitbucket + "workspaces/acme/hooks", time.Hour},
		{"invitations", "https://api.bitbucket.org/1.0/invitations/acme/app", time.Minute}, {"anonymous", bitbucket + "user", time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := providers.Bitbucket()
			p.Scope(test.scope).Policy.Tiers[0].Limit = 1
			rt := over(t, p, accepting{})
			for i, want := range []time.Duration{0, test.want} {
				req := get(t, test.url)
				if test.scope != "anonymous" {
					req.SetBasicAuth("ann", "secret")
				}
				if _, _, took := send(t, rt, req); took < want || took > want+1100*time.Millisecond { // and the guard
					t.Errorf("%s: request %d waited %v, want %v", test.scope, i, took, want)
				}
			}
		})
	}
}

func TestBitbucketRefusals(t *testing.T) {
	const repo = bitbucket + "repositories/acme/app"
	const refused = "Rate limit for this resource has been exceeded"
	user, unknown := basic(to(t, "GET", repo), "ann", "secret"), to(t, "GET", repo)
	hooks, commits := basic(to(t, "GET", bitbucket+"workspaces/acme/hooks"), "ann", "secret"), basic(to(t, "GET", repo+"/commits"), "ann", "secret")
	state := func(left string) map[string]string {
		return map[string]string{"X-RateLimit-Limit": "60, 60;w=3600", "X-RateLimit-Remaining": left, "X-RateLimit-Reset": "745"}
	}
	checkRefusals(t, providers.Bitbucket, []refusalTest{
		{name: "no wait named", first: user, next: commits, reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Content-Type": "text/plain"}, Body: refused}, want: time.Minute},
		{name: "Retry-After", next: commits, reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "30"}}, want: 30 * time.Second},
		{name: "another kind goes on", next: hooks, reply: fakeapi.Reply{Status: 429, Body: refused}},
		{name: "webhooks", first: basic(to(t, "GET", repo+"/hooks"), "ann", "secret"), next: hooks, reply: fakeapi.Reply{Status: 429, Body: refused}, want: time.Minute},
		{name: "webhooks alone", next: commits, reply: fakeapi.Reply{Status: 429, Body: refused}},
		{name: "another user goes on", first: user, next: basic(to(t, "GET", repo), "bob", "secret"), reply: fakeapi.Reply{Status: 429, Body: refused}},
		{name: "a user's reset", next: commits, reply: fakeapi.Reply{Status: 429, Header: state("0")}, want: 745 * time.Second},
		{name: "no credentials", first: unknown, next: to(t, "GET", bitbucket+"users/bob"), reply: fakeapi.Reply{Status: 429, Header: state("0")}, want: 745 * time.Second},
		{name: "a reset alone", first: user, next: commits, reply: fakeapi.Reply{Status: 429, Header: map[string]string{"X-RateLimit-Reset": "156"}}, want: 156 * time.Second},
		{name: "files without credentials", first: to(t, "GET", "https://bitbucket.org/acme/app/downloads/a.zip"), reply: fakeapi.Reply{Status: 429, Body: refused}, want: time.Minute},
		{name: "files of a consumer", next: withHeader(to(t, "GET", "https://bitbucket.org/acme/app/downloads/a.zip"), "Authorization", "Bearer a"), reply: fakeapi.Reply{Status: 429, Body: refused}},
		{name: "most of an hour", first: unknown, reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "3500"}}, want: 3500 * time.Second},
		{name: "none left", reply: fakeapi.Reply{Header: state("0")}, want: 745 * time.Second},
		{name: "no permission", first: user, reply: fakeapi.Reply{Status: 403, Body: `{"type":"error","error":{"message":"Forbidden"}}`}},
	})
}

// Responses to requests without credentials report what is left for the address.
func TestBitbucketReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &replying{Header: map[string]string{"X-RateLimit-Limit": "60, 60;w=3600", "X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "745"}}
		rt := over(t, providers.Bitbucket(), server)
		for i, want := range []time.Duration{0, 0, 0, 745 * time.Second} {
			if _, _, took := send(t, rt, get(t, bitbucket+"user")); took < want || took > want+2*time.Second {
				t.Errorf("request %d waited %v, want %v", i, took, want)
			}
			server.Header = nil
		}
	})
	h := http.Header{"X-Ratelimit-Limit": {"60, 60;w=3600"}, "X-Ratelimit-Remaining": {"59"}, "X-Ratelimit-Reset": {"745"}}
	for _, r := range providers.Bitbucket().Profile.Read(answers.Response{Status: 404, Header: h}).Readings {
		if r.Limit != 60 || r.Remaining != 59 || r.Reset != 745*time.Second {
			t.Errorf("%+v", r)
		}
	}
}

// Responses to an access token name the limit of its workspace.
func TestBitbucketFollows(t *testing.T) {
	soak.Long(t, "it plays hours at the full rate")
	for _, test := range []struct {
		limit, resource string
		want            int
	}{{"2500", "api", 2_498}, {"20000", "api", 9_998}, {"500", "api", 498}, {"2500", "", 2_498}, {"2500", "other", 998}} {
		synctest.Test(t, func(t *testing.T) {
			server := replying{Header: map[string]string{"X-RateLimit-Limit": test.limit, "X-RateLimit-Resource": test.resource, "X-RateLimit-NearLimit": "false"}}
			if test.resource == "" {
				delete(server.Header, "X-RateLimit-Resource")
			}
			rt := over(t, providers.Bitbucket(), &server)
			next := func() *http.Request {
				req := get(t, bitbucket+"repositories/acme/app")
				req.Header.Set("Authorization", "Bearer ATCTTone")
				return req
			}
			for range 2 { // a higher limit holds when two responses name it
				send(t, rt, next())
			}
			server.Header = nil
			n := 0
			for ; n <= test.want; n++ {
				if _, _, took := send(t, rt, next()); took > 0 {
					break
				}
			}
			if n != test.want {
				t.Errorf("limit %s of %q: %d more at once, want %d", test.limit, test.resource, n, test.want)
			}
		})
	}
}

func ExampleBitbucket() {
	client, err := providers.Bitbucket().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://api.bitbucket.org/2.0/repositories/acme/app/commits")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
