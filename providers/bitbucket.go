package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var bitbucketPreset = Preset{Name: "bitbucket", Constructor: "Bitbucket()", kind: "Code and work", New: Bitbucket}

// Bitbucket is the API of Bitbucket Cloud, with the limits of each caller. A caller is a user, an
// access token of a repository, a project or a workspace, or an OAuth consumer. A caller has 1,000
// requests in any hour. Apart from them it has 1,000 for webhooks, 2,000 for properties of apps,
// 5,000 for files of the downloads and for raw files at bitbucket.org, 1,500 for archives there
// (5,000 in some copies of the page), 60,000 for Git over HTTPS, and 100 invitations a minute.
// Source files that the API returns are assumed to count among the 1,000, and so are the webhooks
// of repositories, which count twice. Requests without credentials have 60 an hour for an IP
// address, of all kinds. At bitbucket.org, where their limits aren't documented, they are assumed
// to be those of one more caller. Other pages of bitbucket.org are not limited.
//
// An access token of a workspace with more than 100 paid users has 10 requests more for each of the
// others, up to 10,000. Responses to it name the limit, and the tier of the scope "api" takes it
// over.
//
// The user is that of the header Authorization, and an access token is recognized by its first
// letters, ATCTT, or by the user x-token-auth. Other bearer tokens are taken to be those of one
// OAuth consumer, because they change every hour or two: for several, set Account.
//
// Responses to requests without credentials, and some others, report what is left and when it
// resets. A refusal pauses its kind of requests for as long as it asks or until that reset. If it
// names neither, the pause is a minute.
func Bitbucket() Provider {
	p := Provider{
		Name: "bitbucket",
		Cost: func(req *http.Request) throttle.Cost {
			if _, counts := bitbucketCounts("api")(req); !counts {
				return nil
			}
			return throttle.Cost{"api": 1}
		},
		Profile: answers.Profile{
			Quotas: []answers.Quota{bitbucketQuota(answers.Quota{UnitIn: "X-Ratelimit-Resource", Unit: "api"}), bitbucketQuota(answers.Quota{Name: "anonymous"})},
			Rules: []answers.Rule{{
				Status: http.StatusTooManyRequests, Kind: answers.Limited, Unit: "requests",
				Delay: []answers.Field{{Header: "X-Ratelimit-Reset", Format: answers.Seconds}}, Wait: time.Minute,
			}},
		},
		Hosts: []string{"api.bitbucket.org", "bitbucket.org"},
	}
	for _, l := range []struct {
		name string
		tier throttle.Tier
	}{
		{"webhooks", throttle.PerHour(1_000)},
		{"properties", throttle.PerHour(2_000)},
		{"files", throttle.PerHour(5_000)},
		{"archives", throttle.PerHour(1_500)},
		{"git", throttle.PerHour(60_000)},
		{"invitations", throttle.PerMinute(100)},
		{"api", follows(0, 10_000, throttle.Tier{Limit: 1_000, Window: time.Hour, Unit: "api"})},
	} {
		p.Scopes = append(p.Scopes, some(l.name, bitbucketPage, bitbucketCounts(l.name), l.tier))
	}
	p.Scope("webhooks").Shared = true // by those of repositories and those of workspaces
	p.Scopes = append(p.Scopes, byAddress(some("anonymous", bitbucketPage, when(bitbucketAnonymous), throttle.PerHour(60))))
	for i := range p.Scopes {
		p.Scopes[i].Policy.MaxPause = time.Hour + time.Minute
	}
	return p.readOn("2026-11-29")
}

const bitbucketPage = "https://support.atlassian.com/bitbucket-cloud/docs/api-request-limits/"

// bitbucketQuota returns a quota with its place in the headers, such as "60, 60;w=3600".
func bitbucketQuota(q answers.Quota) answers.Quota {
	q.Window = time.Hour
	q.Limit = answers.Field{Header: "X-Ratelimit-Limit", Item: 1}
	q.Remaining = answers.Field{Header: "X-Ratelimit-Remaining"}
	q.Reset = answers.Field{Header: "X-Ratelimit-Reset", Format: answers.Seconds}
	return q
}

// bitbucketCounts returns the Key of the requests of a kind, which is the caller.
func bitbucketCounts(kind string) func(*http.Request) (string, bool) {
	return func(req *http.Request) (caller string, counts bool) {
		is := bitbucketKind(req)
		counts = is == kind || kind == "api" && is == "webhooks" && strings.HasPrefix(req.URL.Path, "/2.0/repositories/")
		return bitbucketCaller(req), counts && !bitbucketAnonymous(req)
	}
}

// bitbucketAnonymous reports whether a request to the API has no credentials.
func bitbucketAnonymous(req *http.Request) bool {
	return hostOf(req) == "api.bitbucket.org" && anonymously(req)
}

// bitbucketCaller returns a name for whose requests the request counts among: those of a user, of an access
// token, of an OAuth consumer, which has no name, or those without credentials.
func bitbucketCaller(req *http.Request) string {
	const tokens = "ATCTT"
	if anonymously(req) {
		return "anonymous"
	}
	if user, password, ok := req.BasicAuth(); ok {
		if user == "x-token-auth" {
			user = password
		}
		return anonymous(user)
	}
	if token := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "); strings.HasPrefix(token, tokens) {
		return anonymous(token)
	}
	return ""
}

// bitbucketKind returns the kind of a request, or "" if it isn't limited.
func bitbucketKind(req *http.Request) string {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	at := func(i int) string {
		if i < len(parts) {
			return parts[i]
		}
		return ""
	}
	if hostOf(req) == "bitbucket.org" {
		switch page := at(2); {
		case strings.HasSuffix(at(1), ".git"), page == "info" && at(3) == "refs", page == "git-upload-pack", page == "git-receive-pack":
			return "git"
		case page == "get":
			return "archives"
		case page == "raw", page == "downloads" && at(3) != "":
			return "files"
		}
		return ""
	}
	switch version, of := at(0), at(1); {
	case version == "1.0" && (of == "invitations" || at(3) == "invitations"):
		return "invitations"
	case version != "1.0" && version != "2.0":
		return ""
	case of == "repositories" && at(4) == "hooks", of == "workspaces" && at(3) == "hooks":
		return "webhooks"
	case of == "repositories" && at(4) == "downloads" && at(5) != "" && req.Method == http.MethodGet:
		return "files"
	case of == "users" && at(3) == "properties", of == "repositories" && (at(4) == "properties" || at(6) == "properties"):
		return "properties"
	}
	return "api"
}
