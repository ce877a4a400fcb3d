package providers

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var atlassianPreset = Preset{Name: "atlassian", Constructor: "Atlassian()", kind: "Code and work", New: Atlassian}

// Atlassian is the API of Jira Cloud and Confluence Cloud, with the limits of one app and of each
// endpoint and issue. In each site an endpoint has a bucket: 100 GETs a second, 100 POSTs, and 50
// PUTs, DELETEs or PATCHes; the customers of a service desk have 5. Some endpoints have more.
// Atlassian doesn't document the size of the buckets, so each holds one second. An issue has 20
// writes in 2 seconds and 100 in 30 seconds. An endpoint of Assets has 1,000 requests a minute, and
// a workspace 10,000 in all.
//
// A Forge, Connect or OAuth app also has 65,000 points an hour for Jira, over all its sites, and as
// many for Confluence. Hours are those of the clock. A write costs 1 point, and creating many issues
// costs 1 for each. A read costs 1, and 1 for each object or 2 for each user, group, role or permission
// that it returns. The preset assumes as many objects as the request asks for, 50 for a search that
// doesn't say, and 1 for other reads. A search for issues, and a page of other objects, is then charged
// for those that its response has, once that has been read to its end. For exact costs set Cost.
// Requests with basic authentication, by API token, cost no points. An app with a quota for each site
// has a larger limit: set Account to a function that returns the site, and the tier of the scope "app".
//
// A refusal names its limit and its wait. A request that comes earlier makes the wait longer. A
// refusal for points pauses all requests until the hour ends. Any other refusal pauses its endpoint
// or issue. Path segments that have a digit, or capital letters alone, are assumed to be ids.
func Atlassian() Provider {
	const page, reason = "https://developer.atlassian.com/cloud/jira/platform/rate-limiting/", "Ratelimit-Reason"
	const assets = "https://jira.atlassian.com/browse/JSDCLOUD-11605"
	points := answers.Quota{
		Unit: "points", Window: time.Hour,
		Remaining: answers.Field{Header: "Ratelimit", After: `"global-app-quota";r=`},
		Reset:     answers.Field{Header: "Ratelimit", After: ";t=", Format: answers.Seconds},
	}
	reset := []answers.Field{{Header: "X-Ratelimit-Reset", Format: answers.Timestamp}}
	p := Provider{
		Name: "atlassian",
		Scopes: []Scope{
			some("issue", page, atlassianIssue,
				throttle.Tier{Limit: 20, Window: 2 * time.Second, Unit: "issue"}, throttle.Tier{Limit: 100, Window: 30 * time.Second, Unit: "issue"}),
			some("asset", assets, when(func(req *http.Request) bool { return atlassianWorkspace(req) != "" }), throttle.PerMinute(1_000)), // inside the endpoint
			some("customers", page, atlassianEndpoint(5), bucket(5, time.Second, 5)),
			some("writes", page, atlassianEndpoint(50), bucket(50, time.Second, 50)),
			some("endpoint", page, atlassianEndpoint(100), bucket(100, time.Second, 100)),
			some("assets", assets, func(req *http.Request) (string, bool) { w := atlassianWorkspace(req); return w, w != "" }, throttle.PerMinute(10_000)),
			some("app", page, atlassianApp, throttle.Tier{Limit: 65_000, Window: time.Hour, Algorithm: throttle.FixedWindow, Unit: "points", Estimated: true}),
		},
		Cost:   atlassianCost,
		Settle: atlassianSettle,
		Profile: answers.Profile{
			Quotas: []answers.Quota{points},
			Charges: []answers.Charge{ // the objects of a search or page
				{Unit: "points", Field: answers.Field{Path: "issues.*.id", Format: answers.Elements}},
				{Unit: "points", Field: answers.Field{Path: "values.*.id", Format: answers.Elements}},
				{Unit: "points", Field: answers.Field{Path: "results.*.id", Format: answers.Elements}},
			},
			Reasons: []answers.Field{{Header: reason}},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Header: reason, Value: "*global-based", Kind: answers.Limited, Delay: reset, Wide: true},
				{Status: http.StatusTooManyRequests, Header: reason, Value: "*tenant-based", Kind: answers.Limited, Delay: reset, Wide: true},
				{Status: http.StatusTooManyRequests, Header: reason, Value: "*-per-issue-on-write", Kind: answers.Limited, Delay: reset, Unit: "issue"},
				{Status: http.StatusTooManyRequests, Kind: answers.Limited, Delay: reset},
			},
		},
		Hosts: []string{"api.atlassian.com", "*.atlassian.net"},
	}
	p.Scope("app").Policy.MaxPause = time.Hour + time.Minute // until the window ends
	p.Scope("issue").Shared = true                           // by the endpoints that write to an issue
	return p
}

// atlassianSite returns the site of a request, and the request's path in the site.
func atlassianSite(req *http.Request) (site, path string) {
	host := hostOf(req)
	if parts := strings.SplitN(req.URL.Path, "/", 5); host == "api.atlassian.com" && len(parts) == 5 && parts[1] == "ex" {
		return parts[3], parts[2] + "/" + parts[4] // /ex/jira/<site>/rest
	}
	if workspace := atlassianWorkspace(req); workspace != "" {
		return workspace, req.URL.Path
	}
	return host, req.URL.Path
}

// atlassianApp returns the product whose points a request costs.
func atlassianApp(req *http.Request) (product string, counts bool) {
	if _, _, basic := req.BasicAuth(); basic {
		return "", false
	}
	if _, path := atlassianSite(req); strings.Contains("/"+path, "/wiki/") || strings.HasPrefix(path, "confluence/") {
		return "confluence", true
	}
	return "jira", true
}

// atlassianEndpoint returns the Key of the endpoints with a limit.
func atlassianEndpoint(limit int64) func(*http.Request) (string, bool) {
	return func(req *http.Request) (key string, counts bool) {
		site, path := atlassianSite(req)
		own := int64(50)
		switch {
		case req.Method == http.MethodGet && strings.Contains(path, "/servicedeskapi/servicedesk/") && strings.HasSuffix(path, "/customer"):
			own = 5
		case req.Method == http.MethodGet || req.Method == http.MethodHead || req.Method == http.MethodPost:
			own = 100
		}
		return site + " " + endpoint(req.Method, path, isNumbered), own == limit
	}
}

// atlassianWorkspace returns the workspace of a request for Assets, or "" for any other.
func atlassianWorkspace(req *http.Request) string {
	_, workspace, _ := strings.Cut(req.URL.Path, "/assets/workspace/")
	workspace, _, _ = strings.Cut(workspace, "/")
	return workspace
}

// atlassianIssue returns the issue that a request changes.
func atlassianIssue(req *http.Request) (issue string, counts bool) {
	site, path := atlassianSite(req)
	_, issue, _ = strings.Cut(path, "/issue/")
	issue, _, _ = strings.Cut(issue, "/")
	return site + " " + issue, isNumbered(issue) && req.Method != http.MethodGet && req.Method != http.MethodHead
}

// atlassianReads reports whether a request reads objects, and whether they cost 2 points each.
func atlassianReads(req *http.Request) (reads, identity bool) {
	_, path := atlassianSite(req)
	for _, kind := range []string{"/user", "/group", "/role", "/permission"} {
		identity = identity || strings.Contains(path, kind)
	}
	return req.Method == http.MethodGet || req.Method == http.MethodPost && strings.Contains(path, "/search"), identity
}

// atlassianCost returns the points of a request, and its write to an issue.
func atlassianCost(req *http.Request) throttle.Cost {
	cost := throttle.Cost{}
	if _, counts := atlassianIssue(req); counts {
		cost["issue"] = 1
	}
	if _, counts := atlassianApp(req); counts {
		cost["points"] = atlassianPoints(req)
	}
	return cost
}

// atlassianPoints returns the points of a request, before its response is known.
func atlassianPoints(req *http.Request) int64 {
	reads, identity := atlassianReads(req)
	if !reads {
		return atlassianWrites(req)
	}
	var asked struct{ MaxResults int64 }
	decode(req, &asked)
	objects := asked.MaxResults
	for _, name := range []string{"maxResults", "limit"} {
		if n, err := strconv.ParseInt(req.URL.Query().Get(name), 10, 32); err == nil {
			objects = n
		}
	}
	if objects <= 0 {
		if objects = 1; strings.Contains(req.URL.Path, "/search") {
			objects = 50
		}
	}
	if objects = min(objects, 5_000); identity {
		objects *= 2
	}
	return 1 + objects
}

// atlassianWrites returns the number of writes in a request: the issues that it creates. A request for
// many issues that can't be read has as many as Jira allows.
func atlassianWrites(req *http.Request) int64 {
	const most = 50
	if !strings.HasSuffix(req.URL.Path, "/issue/bulk") {
		return 1
	}
	if n := listed(form(req), "issueUpdates"); 0 < n && n < most {
		return n
	}
	return most
}

// atlassianSettle returns a function that turns the number of objects in a response into points. A
// response without any settles only a search for issues, because other responses have other names for
// their objects. Users, groups, roles and permissions keep their estimate.
func atlassianSettle(req *http.Request) func(throttle.Cost) throttle.Cost {
	reads, identity := atlassianReads(req)
	_, path := atlassianSite(req)
	_, call, _ := strings.Cut(strings.TrimSuffix(path, "/jql"), "/rest/api/")
	issues := matches("*/search", call) // below the version
	return func(reported throttle.Cost) throttle.Cost {
		n, whole := reported["points"]
		if delete(reported, "points"); whole && reads && !identity && (n > 0 || issues) {
			reported["points"] = 1 + n
		}
		return reported
	}
}
