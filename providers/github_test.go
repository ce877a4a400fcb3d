package providers_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

const github = "https://api.github.com"

// githubQuery returns a GraphQL query that costs this many points.
func githubQuery(t *testing.T, cost int) *http.Request {
	t.Helper()
	return postJSON(t, github+"/graphql", fmt.Sprintf(`{"query":"{ viewer { login } rateLimit { cost } }","variables":{"cost":%d}}`, cost))
}

// gitHub returns a stand-in with most requests and points an hour, which begins at the 17th minute.
func gitHub(most int64) *fakeapi.Server {
	return standIn("github", fmt.Sprintf("core=%d/h;algo=fixed_window;phase=17m", most), fmt.Sprintf("graphql=%d/h;algo=fixed_window;phase=17m", most),
		"search=30/m;algo=fixed_window", "code=9/m;algo=fixed_window")
}

// The windows of an hour begin at 17 minutes past, by a clock that is 17 seconds ahead.
func TestGitHub(t *testing.T) {
	windows := soak.Times(1) // windows that end in the run
	hours := time.Duration(windows-1) * time.Hour
	reads := scaled(5_000, 2)
	for _, load := range []struct {
		name    string
		most    int64 // in an hour
		next    func(*testing.T, int) *http.Request
		workers int
		hold    time.Duration
		d       time.Duration
		want    float64
	}{
		{"reading", reads, func(t *testing.T, _ int) *http.Request { return get(t, github+"/users/a") }, 16, 0, hours + 18*time.Minute, float64(windows*int(reads) + 2*900)},
		{"hours of reading", 300, func(t *testing.T, _ int) *http.Request { return get(t, github+"/users/a") }, 16, 0, hours + 78*time.Minute, float64((windows + 2) * 300)},
		{"writing", 5_000, func(t *testing.T, _ int) *http.Request {
			return postJSON(t, github+"/repos/a/b/issues", `{"title":"a"}`)
		}, 16, 0, 10 * time.Minute, 500},
		{"changing", 5_000, func(t *testing.T, _ int) *http.Request {
			req := postJSON(t, github+"/repos/a/b/issues/1", `{"title":"b"}`)
			req.Method = http.MethodPatch
			return req
		}, 16, 0, 4 * time.Minute, 4 * 900 / 5},
		{"slow answers", 5_000, func(t *testing.T, _ int) *http.Request { return get(t, github+"/users/a") }, 120, 20 * time.Second, 3 * time.Minute, 9 * 100},
		{"searching", 5_000, func(t *testing.T, i int) *http.Request {
			return get(t, github+[]string{"/search/issues", "/search/code"}[i%2])
		}, 16, 0, 10 * time.Minute, 9 * (30 + 9)}, // each minute loses seconds to the resolution of Date
		{"GraphQL", 2_200, func(t *testing.T, _ int) *http.Request { return githubQuery(t, 1) }, 16, 0, hours + 18*time.Minute, float64(windows*2_200 + 2_000)},
	} {
		t.Run(load.name, func(t *testing.T) {
			soak.Sample(t, 7)
			synctest.Test(t, func(t *testing.T) {
				api := gitHub(load.most)
				api.Skew = 17 * time.Second
				api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
				api.Hold = fakeapi.Between(load.hold+20*time.Millisecond, load.hold+200*time.Millisecond)
				p := providers.GitHub()
				if load.most < 5_000 { // Enterprise Cloud has other limits
					p.Scope("core").Policy.Tiers[0].Limit, p.Scope("graphql").Policy.Tiers[0].Limit = load.most, load.most
				}
				saturate(t, over(t, p, api), load.workers, load.d, func(w int) *http.Request { return load.next(t, w) })
				checkServed(t, api, 0.9*load.want)
			})
		})
	}
}

// Queries cost more than their estimate. Responses report the points left, so only queries in
// flight can exceed the limit.
func TestGitHubQueriesCostMoreThanEstimated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		points := scaled(5_000, 3)
		api := gitHub(points)
		api.Hold = fakeapi.Between(20*time.Millisecond, 200*time.Millisecond)
		p := providers.GitHub()
		p.Scope("graphql").Policy.Tiers[0].Limit = points
		const workers, windows = 8, 3
		saturate(t, over(t, p, api), workers, 2*time.Hour, func(w int) *http.Request { return githubQuery(t, 1+w) })
		if n := api.Refused()["graphql"]; n > workers*windows || float64(api.Served()) < 0.9*windows*float64(points)/4.5 {
			t.Errorf("%d served, %d refused", api.Served(), n)
		}
	})
}

func TestGitHubRefusals(t *testing.T) {
	header := func(more ...string) map[string]string {
		h := map[string]string{"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "946685820", "X-RateLimit-Resource": "core"} // 00:17
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = more[i+1]
		}
		return h
	}
	const secondary = `{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}`
	read, search, graphql := github+"/user", github+"/search/issues", github+"/graphql"
	for _, test := range []struct {
		name     string
		first    string
		reply    fakeapi.Reply
		next     string
		min, max time.Duration
	}{
		{"403 with remaining 0 pauses until the reset", read, fakeapi.Reply{Status: 403, Header: header(), Body: `{"message":"API rate limit exceeded"}`}, read, 17 * time.Minute, 17*time.Minute + 2*time.Second},
		{"429 with remaining 0 too", read, fakeapi.Reply{Status: 429, Header: header()}, read, 17 * time.Minute, 17*time.Minute + 2*time.Second},
		{"the reset of a resource leaves the others alone", read, fakeapi.Reply{Status: 403, Header: header()}, search, 0, 0},
		{"secondary limit has no headers", read, fakeapi.Reply{Status: 403, Body: secondary}, search, time.Minute, time.Minute},
		{"secondary limit with Retry-After", read, fakeapi.Reply{Status: 403, Header: header("Retry-After", "90"), Body: secondary}, search, 90 * time.Second, 90 * time.Second},
		{"secondary limit as 429", read, fakeapi.Reply{Status: 429, Header: header("X-RateLimit-Remaining", "17")}, search, time.Minute, time.Minute},
		{"a 403 for missing permissions is not a limit", read, fakeapi.Reply{Status: 403, Header: header("X-RateLimit-Remaining", "17"), Body: `{"message":"Resource not accessible by integration"}`}, read, 0, 0},
		{"GraphQL 200 RATE_LIMITED", graphql, fakeapi.Reply{Header: header("X-RateLimit-Resource", "graphql"), Body: `{"errors":[{"type":"RATE_LIMITED"}]}`}, graphql, 17 * time.Minute, 17*time.Minute + 2*time.Second},
		{"GraphQL 200 of a secondary limit", graphql, fakeapi.Reply{Header: header("X-RateLimit-Remaining", "9", "X-RateLimit-Resource", "graphql"), Body: `{"errors":[{"message":"You have exceeded a secondary rate limit."}]}`}, read, time.Minute, time.Minute},
		{"a file with the words of GraphQL", read, fakeapi.Reply{Header: header("X-RateLimit-Remaining", "9", "Content-Type", "application/vnd.github.raw+json"), Body: `{"errors":[{"type":"RATE_LIMITED"}]}`}, read, 0, 0},
		{"a branch with the words of a secondary limit", read, fakeapi.Reply{Status: 403, Header: header("X-RateLimit-Remaining", "9"), Body: `{"message":"Branch secondary rate limit is protected"}`}, read, 0, 0},
		{"/rate_limit is free", read, fakeapi.Reply{Status: 403, Header: header()}, github + "/rate_limit", 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := gitHub(5_000)
				rt := over(t, providers.GitHub(), api)
				request := func(url string) *http.Request {
					if url == graphql {
						return githubQuery(t, 1)
					}
					return get(t, url)
				}
				api.Trap(test.reply)
				send(t, rt, request(test.first))
				if status, _, took := send(t, rt, request(test.next)); status != 200 || took < test.min || took > test.max {
					t.Errorf("%d after %v, want 200 after %v to %v", status, took, test.min, test.max)
				}
			})
		})
	}
}

// Responses report the use of the user's other programs.
func TestGitHubUsedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := gitHub(100)
		p := providers.GitHub()
		p.Scope("core").Policy.Tiers[0].Limit = 100
		rt := over(t, p, api)
		for range 60 {
			send(t, api, get(t, github+"/user"))
		}
		saturate(t, rt, 1, 10*time.Minute, func(int) *http.Request { return get(t, github+"/user") })
		checkServed(t, api, 100)
	})
}

// A resource of its own, such as SBOMs, has a limit of its own. What a response reports of it changes
// nothing for other requests.
func TestGitHubOtherResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := gitHub(5_000)
		rt := over(t, providers.GitHub(), api)
		sbom := github + "/repos/a/b/dependency-graph/sbom"
		for _, left := range []string{"99", "0"} {
			api.Trap(fakeapi.Reply{Header: map[string]string{
				"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": left, "X-RateLimit-Used": "1",
				"X-RateLimit-Reset": "946685820", "X-RateLimit-Resource": "dependency_sbom", // 00:17
			}})
			send(t, rt, get(t, sbom))
			for range 200 {
				if status, _, took := send(t, rt, get(t, github+"/user")); status != 200 || took > time.Second {
					t.Fatalf("%s left of the other resource: %d after %v", left, status, took)
				}
			}
		}
		if status, _, took := send(t, rt, get(t, sbom)); status != 200 || took < 16*time.Minute {
			t.Errorf("the resource itself, without any left: %d after %v, want a wait until the reset", status, took)
		}
	})
}

// A 304 costs nothing of the hour, and a point of the minute. Any other response costs 1 of the hour,
// and a 404 too.
func TestGitHubNotModified(t *testing.T) {
	for _, test := range []struct{ status, want int }{{304, 900}, {200, 100}, {404, 100}, {500, 100}} {
		synctest.Test(t, func(t *testing.T) {
			p := providers.GitHub()
			p.Scope("core").Policy.Tiers[0].Limit = 100
			rt := over(t, p, &replying{Status: test.status})
			n := 0
			for ; n < 1_000; n++ {
				if _, _, took := send(t, rt, get(t, github+"/user")); took > 0 {
					break
				}
			}
			if n != test.want {
				t.Errorf("%d: %d at once, want %d", test.status, n, test.want)
			}
		})
	}
}

// A path counts in the resource that go-github's GetRateLimitCategory names, also on an Enterprise
// Server, and each resource has a quota of its own.
func TestGitHubResources(t *testing.T) {
	for _, test := range []struct {
		method, url, resource string
	}{
		{"GET", github + "/repos/a/import", "core"}, // a repository with this name
		{"GET", github + "/repos/a/b/import", "core"},
		{"PUT", github + "/repos/a/b/import", "source_import"},
		{"GET", github + "/search/code?q=a", "code_search"},
		{"GET", github + "/search/issues", "search"},
		{"POST", github + "/graphql", "graphql"},
		{"POST", github + "/app-manifests/a/conversions", "integration_manifest"},
		{"POST", github + "/repos/a/b/code-scanning/sarifs", "code_scanning_upload"},
		{"GET", github + "/scim/v2/organizations/a/Users", "scim"},
		{"POST", github + "/repos/a/b/dependency-graph/snapshots", "dependency_snapshots"},
		{"GET", github + "/orgs/a/audit-log", "audit_log"},
		{"GET", github + "/repos/a/b/dependency-graph/sbom", "dependency_sbom"},
		{"POST", github + "/actions/runner-registration", "actions_runner_registration"},
		{"POST", github + "/orgs/a/actions/runners/registration-token", "core"}, // https://github.com/actions/runner/issues/1386
		{"GET", "https://ghe.example.com/api/v3/search/code", "code_search"},
		{"POST", "https://ghe.example.com/api/graphql", "graphql"},
		{"GET", "https://api.acme.ghe.com/search/issues", "search"},
		{"POST", "https://uploads.github.com/repos/a/b/releases/1/assets", "core"},
	} {
		t.Run(test.method+" "+test.url, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := providers.GitHub()
				p.Hosts = append(p.Hosts, "ghe.example.com")
				server := replying{Header: map[string]string{
					"X-RateLimit-Limit": "50", "X-RateLimit-Remaining": "0", "X-RateLimit-Used": "50",
					"X-RateLimit-Reset": "946684860", "X-RateLimit-Resource": test.resource, // 00:01
				}}
				rt := over(t, p, &server)
				request := func() *http.Request { return to(t, test.method, test.url)() }
				send(t, rt, request())
				server = replying{}
				if test.resource != "core" {
					if _, _, took := send(t, rt, get(t, github+"/user")); took != 0 {
						t.Errorf("another request waited %v", took)
					}
				}
				if _, _, took := send(t, rt, request()); took < time.Minute {
					t.Errorf("waited %v, want until the reset at 00:01", took)
				}
			})
		})
	}
}

// Each installation of an app has limits of its own.
func ExampleProvider_account() {
	type installation struct{} // the key of a context's installation id

	p := providers.GitHub()
	p.Scope("core").Policy.Tiers[0].Limit = 1 // instead of 5,000, for the example
	p.Account = func(req *http.Request) string {
		id, _ := req.Context().Value(installation{}).(string)
		return id
	}
	client, err := p.Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, gitHub(5_000)) // instead of the network

	for _, id := range []string{"1001", "1002"} {
		ctx := context.WithValue(context.Background(), installation{}, id)
		req, err := http.NewRequestWithContext(ctx, "GET", "https://api.github.com/installation/repositories", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp, err := client.Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(id, resp.Status)
	}
	// Output:
	// 1001 200 OK
	// 1002 200 OK
}

// Only what notifies people creates content: 80 a minute. Other writes have 900 points a minute, 5 each.
func TestGitHubContent(t *testing.T) {
	const repo = github + "/repos/octocat/hello-world"
	for _, test := range []struct {
		method, url string
		content     bool
	}{
		{"POST", repo + "/issues", true},
		{"POST", repo + "/issues/7/comments", true},
		{"POST", repo + "/pulls/7/comments/8/replies", true},
		{"PUT", repo + "/pulls/7/merge", true},
		{"POST", repo + "/releases", true},
		{"POST", github + "/repositories/1296269/issues", true},
		{"POST", "https://uploads.github.com/repos/a/b/releases/1/assets", false},
		{"POST", repo + "/statuses/6dcb09b", false},
		{"POST", repo + "/check-runs", false},
		{"POST", repo + "/git/blobs", false},
		{"POST", repo + "/dispatches", false},
		{"POST", repo + "/issues/7/labels", false},
		{"POST", github + "/app/installations/1/access_tokens", false},
		{"POST", github + "/markdown", false},
	} {
		want := 180
		if test.content {
			want = 80
		}
		checkBurst(t, providers.GitHub, test.method+" "+test.url, want, to(t, test.method, test.url, "{}"))
	}
	checkBurst(t, func() providers.Provider {
		p := providers.GitHub()
		p.Hosts = append(p.Hosts, "github.example.com")
		return p
	}, "Enterprise Server", 80, to(t, "POST", "https://github.example.com/api/v3/repos/a/b/issues", "{}"))
	checkBurst(t, providers.GitHub, "reads", 900, to(t, "GET", repo+"/issues"))
}

// An Enterprise Server without limits can be left without those of github.com.
func TestGitHubServerWithoutLimits(t *testing.T) {
	checkUnlimited(t, func() providers.Provider {
		p := providers.GitHub()
		p.Hosts = []string{"github.example.com"}
		p.Scopes, p.Cost = []providers.Scope{*p.Scope("user")}, nil
		return p
	}, "issues", to(t, "POST", "https://github.example.com/api/v3/repos/a/b/issues", "{}"))
}

func ExampleGitHub() {
	client, err := providers.GitHub().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, gitHub(5_000)) // instead of the network

	resp, err := client.Get("https://api.github.com/users/octocat")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.Status, "with", resp.Header.Get("X-RateLimit-Remaining"), "of", resp.Header.Get("X-RateLimit-Limit"), "left")
	// Output: 200 OK with 4999 of 5000 left
}

// postJSON returns a request with a JSON body.
func postJSON(t *testing.T, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return req
}
