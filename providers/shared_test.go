package providers_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/providers"
)

// A key of a shared scope has one quota inside all outer ones, for each account. A key of a scope
// inside it has a quota inside each of the outer ones.
func TestSharedScope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scope := func(name string, limit int64) providers.Scope {
			return providers.Scope{
				Name: name, Policy: throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(limit)}, Guard: throttle.NoGuard, MaxWait: time.Nanosecond},
				Key: func(req *http.Request) (string, bool) {
					v := req.Header.Get(name)
					return v, v != ""
				},
			}
		}
		p := providers.Provider{
			Name: "p", Scopes: []providers.Scope{scope("Object", 1), scope("Kind", 3), scope("Team", 10)},
			Account: func(req *http.Request) string { return req.Header.Get("Account") },
		}
		p.Scope("Kind").Shared = true
		rt := over(t, p, standIn("twilio", "account=9;algo=concurrency"))
		for i, step := range []struct {
			account, team, kind, object string
			admitted                    bool
		}{
			{"1", "A", "write", "", true},
			{"1", "B", "write", "x", true},
			{"1", "B", "write", "x", false}, // the object is used up
			{"1", "A", "write", "x", true},  // another team's object with the same name
			{"1", "A", "write", "", false},  // both teams have used up the kind
			{"1", "C", "write", "", false},
			{"1", "A", "", "", true},
			{"1", "A", "read", "", true},
			{"2", "A", "write", "", true},
			{"1", "", "write", "", false},
		} {
			req := get(t, "https://example.com/")
			for name, value := range map[string]string{"Account": step.account, "Team": step.team, "Kind": step.kind, "Object": step.object} {
				req.Header.Set(name, value)
			}
			resp, err := rt.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			if (err == nil) != step.admitted {
				t.Errorf("step %d: %+v: %v", i, step, err)
			}
		}
	})
}

func TestSharedScopeIsInside(t *testing.T) {
	p := providers.GitHub()
	p.Scope("user").Shared = true
	const want = `providers: github: scope "user": Shared is true, but no scope is around it: list it before those that it lies in`
	if _, err := p.Transport(nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// A request that creates content waits for that limit alone and delays no other. While REST's hour is
// used up, or REST is refused, mutations go on.
func TestGitHubContentWaitsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := providers.GitHub()
		p.Scope("content").Policy.Tiers[0].Limit = 8
		p.Scope("core").Policy.Tiers[0].Limit = 20
		refusing := &replying{}
		rt := over(t, p, refusing)
		read := func() *http.Request { return get(t, github+"/users/a") }
		create := func() *http.Request { return postJSON(t, github+"/repos/a/b/issues", `{"title":"a"}`) }
		query := func() *http.Request { return postJSON(t, github+"/graphql", `{"query":"{ viewer { login } }"}`) }
		mutate := func() *http.Request {
			return postJSON(t, github+"/graphql", `{"query":" mutation { addStar { clientMutationId } }"}`)
		}
		at := func(name string, from, to time.Duration, next func() *http.Request) {
			t.Helper()
			if _, _, took := send(t, rt, next()); took < from || took > to {
				t.Errorf("%s: after %v, want %v to %v", name, took, from, to)
			}
		}
		later := func(next func() *http.Request) {
			req := next()
			go func() {
				if resp, err := rt.RoundTrip(req); err == nil {
					resp.Body.Close()
				}
			}()
			time.Sleep(time.Millisecond)
		}
		for i := range 8 {
			at("content", 0, 0, []func() *http.Request{create, mutate}[i%2])
		}
		later(create)
		later(mutate)
		at("a read", 0, 0, read)
		at("a query", 0, 0, query)
		at("the next mutation", 58*time.Second, 62*time.Second, mutate)

		for range 14 { // to the end of REST's hour
			at("a read", 0, 0, read)
		}
		later(create)
		at("a mutation after REST's hour", 0, 0, mutate)
		at("a query", 0, 0, query)
	})
}

// A refusal of REST because its hour is used up leaves mutations alone.
func TestGitHubPrimaryRefusalOfAPost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := replying{Status: 403, Header: map[string]string{
			"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": "0", "X-RateLimit-Used": "5000",
			"X-RateLimit-Reset": "946685820", "X-RateLimit-Resource": "core", // 00:17
		}}
		rt := over(t, providers.GitHub(), &server)
		send(t, rt, postJSON(t, github+"/repos/a/b/issues", `{"title":"a"}`))
		server = replying{}
		if _, _, took := send(t, rt, postJSON(t, github+"/graphql", `{"query":"mutation { a }"}`)); took > 0 {
			t.Errorf("a mutation waited %v", took)
		}
		if _, _, took := send(t, rt, get(t, github+"/user")); took < 16*time.Minute {
			t.Errorf("a request of REST waited %v, want until 00:17", took)
		}
	})
}
