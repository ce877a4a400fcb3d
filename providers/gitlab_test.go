package providers_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

func TestGitLab(t *testing.T) {
	const api = "https://gitlab.com/api/v4/"
	project, issue := to(t, "GET", api+"projects/1"), to(t, "POST", api+"projects/1/issues", `{"title":"a"}`)
	pkg := to(t, "GET", api+"projects/1/packages/npm/x")
	checkAtOnce(t, providers.GitLab, []atOnceTest{
		{"a user", 2_000, []func() *http.Request{issue, pkg, to(t, "POST", "https://gitlab.com/api/graphql", `{"query":"{a}"}`)}},
		{"projects, by number and by name", 400, []func() *http.Request{project, to(t, "GET", api+"projects/group%2Fname"), to(t, "GET", api+"projects/2?license=true")}},
		{"projects of users", 300, []func() *http.Request{to(t, "GET", api+"users/1/projects"), to(t, "GET", api+"users/ann/projects")}},
		{"stars", 100, []func() *http.Request{to(t, "GET", api+"users/1/starred_projects")}},
		{"groups", 200, []func() *http.Request{to(t, "GET", api+"groups?owned=true")}},
		{"jobs", 600, []func() *http.Request{to(t, "GET", api+"projects/1/jobs")}},
		{"archives of a project", 5, []func() *http.Request{to(t, "GET", api+"projects/1/repository/archive.zip"), to(t, "GET", api+"projects/1/repository/archive")}},
		{"archives of two projects", 10, []func() *http.Request{to(t, "GET", api+"projects/1/repository/archive"), to(t, "GET", api+"projects/2/repository/archive")}},
		{"a schedule", 1, []func() *http.Request{to(t, "POST", api+"projects/1/pipeline_schedules/7/play")}},
		{"pages of the site", 2_500, []func() *http.Request{to(t, "GET", "https://gitlab.com/gitlab-org/gitlab")}},
	})
	state := func(name, left string) map[string]string { // until 00:00:20
		return map[string]string{
			"RateLimit-Name": name, "RateLimit-Limit": "2000", "RateLimit-Observed": "301", "RateLimit-Remaining": left, "RateLimit-Reset": "946684820",
			"Date": "Sat, 01 Jan 2000 00:00:00 GMT", "Content-Type": "application/json",
		}
	}
	retry := func(h map[string]string) map[string]string {
		h["Retry-After"], h["Content-Type"] = "20", "text/plain"
		return h
	}
	const user, packages = "throttle_authenticated_api", "throttle_authenticated_packages_api"
	often := `{"message":{"error":"This endpoint has been requested too many times. Try again later."}}`
	checkRefusals(t, providers.GitLab, []refusalTest{
		{name: "the user waits", first: issue, next: project, reply: fakeapi.Reply{Status: 429, Header: retry(state(user, "0")), Body: "Retry later"}, want: 21 * time.Second},
		{name: "no header but Retry-After", next: project, reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "20"}, Body: "Retry later"}, want: 20 * time.Second},
		{name: "used elsewhere", next: project, reply: fakeapi.Reply{Header: state(user, "0")}, want: 21 * time.Second},
		{name: "another limit leaves the user alone", first: pkg, next: project, reply: fakeapi.Reply{Header: state(packages, "0")}},
		{name: "another limit", next: to(t, "PUT", api+"projects/2/packages/npm/y"), reply: fakeapi.Reply{Status: 429, Header: retry(state(packages, "0")), Body: "Retry later"}, want: 20 * time.Second},
		{name: "the limit of an endpoint", first: issue, next: to(t, "POST", api+"projects/2/issues"), reply: fakeapi.Reply{Status: 429, Header: state(user, "1699"), Body: often}, want: time.Minute},
		{name: "other endpoints go on", next: project, reply: fakeapi.Reply{Status: 429, Header: state(user, "1699"), Body: often}},
		{name: "GraphQL", first: to(t, "POST", "https://gitlab.com/api/graphql", `{"query":"mutation {a}"}`), want: time.Minute,
			reply: fakeapi.Reply{Header: state(user, "1699"), Body: `{"errors":[{"message":"This endpoint has been requested too many times. Try again later."}]}`}},
		{name: "a job's file with the words of GraphQL", first: to(t, "GET", api+"projects/1/jobs/7/artifacts/report.json"),
			reply: fakeapi.Reply{Header: state(user, "1699"), Body: `{"errors":[{"message":"This endpoint has been requested too many times. Try again later."}]}`}},
	})
}

// The limit that an instance reports is that of a minute, though its window is an hour.
func TestGitLabInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := providers.GitLab()
		p.Hosts = []string{"git.example.com"}
		p.Scope("user").Policy.Tiers[0].Limit, p.Scope("user").Policy.Tiers[0].Window = 7_200, time.Hour
		server := &replying{Header: map[string]string{
			"RateLimit-Name": "throttle_authenticated_api", "RateLimit-Limit": "120", "RateLimit-Observed": "7195", "RateLimit-Remaining": "5", "RateLimit-Reset": "946688400", // 01:00
		}}
		rt := over(t, p, server)
		request := func() *http.Request { return get(t, "https://git.example.com/gitlab/api/v4/version") }
		send(t, rt, request())
		*server = replying{}
		for range 5 {
			if _, _, took := send(t, rt, request()); took != 0 {
				t.Fatalf("waited %v with requests left", took)
			}
		}
		if _, _, took := send(t, rt, request()); took < time.Hour || took > time.Hour+5*time.Second {
			t.Errorf("waited %v, want until 01:00", took)
		}
	})
}

func ExampleGitLab() {
	client, err := providers.GitLab().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://gitlab.com/api/v4/projects/278964")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
