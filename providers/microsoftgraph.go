package providers

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var microsoftGraphPreset = Preset{Name: "microsoft-graph", Constructor: "MicrosoftGraph()", kind: "Clouds and office", New: MicrosoftGraph}

// MicrosoftGraph is the API of Microsoft 365 (Graph and SharePoint), with the limits of one app in
// one tenant. Each service has limits of its own, and the path of a request names the service:
//
//   - A mailbox has 10,000 requests in 10 minutes, 4 at once, and 150 MB of uploads in 5 minutes.
//   - Users, groups and the rest of the directory have 3,500 units in 10 seconds (5,000 in a tenant of
//     50 users and 8,000 of 500), and 3,000 writes in 150 seconds.
//   - Files, lists and sites have 1,200 units a minute and 1,200,000 a day (5 times as many in a tenant
//     of 50,000 licenses). Where responses name another limit of the minute, it holds. All of SharePoint's own APIs count here, and each of their requests counts 2
//     units, because their costs are not published.
//   - Teams has 30 requests a second, 4 for each team, and 3,000 messages a day for each channel.
//   - OneNote has 120 requests a minute, 400 an hour, and 5 at once.
//   - Presence has 1,500 requests in 30 seconds, reports of sign-ins and audits 5 in 10 seconds, and
//     identity protection and conditional access 1 a second.
//   - All of them together have 130,000 in 10 seconds.
//
// Other services have limits that are not included. Each entry of a $batch counts, if all are of
// one service. A batch for several services counts in none of them: split it. The id of the user in
// a path names the mailbox. Below /me it is the user to whom the access token was issued, whose id is
// read from the token but not verified: a wrong one could only choose another quota of this client. The
// id in /me and /users/{id} is one mailbox; a user's name is another. A token that can't be read, such as
// that of a personal account, stands for its user as a hash. Such tokens change about every hour, and a
// new one begins a new quota, so a mailbox may then get twice its requests.
//
// A refusal, with status 429 or 503, pauses its service for the Retry-After, because earlier
// requests count and prolong it. A batch with refused entries has status 200 and pauses nothing.
func MicrosoftGraph() Provider {
	const page = "https://learn.microsoft.com/graph/throttling-limits"
	const sharepoint = "https://learn.microsoft.com/sharepoint/dev/general-development/how-to-avoid-getting-throttled-or-blocked-in-sharepoint-online"
	units := bucket(3_500, 10*time.Second, 3_500)
	units.Unit, units.Estimated = "identity", true
	writes := bucket(3_000, 150*time.Second, 3_000)
	writes.Unit = "writes"
	return Provider{
		Name: "microsoft-graph",
		Scopes: []Scope{
			some("mailbox", page, graphService("mailbox"), throttle.Tier{Limit: 10_000, Window: 10 * time.Minute},
				throttle.Tier{Limit: 4, Algorithm: throttle.Concurrency, Unit: "concurrent"}, throttle.Tier{Limit: 150_000_000, Window: 5 * time.Minute, Unit: "bytes"}),
			some("channel", page, graphChannel, throttle.Tier{Limit: 3_000, Window: 24 * time.Hour}),
			some("team", page, graphTeam, throttle.PerSecond(4)),
			some("teams", page, graphService("teams"), throttle.PerSecond(30)),
			some("notes", page, graphService("notes"), throttle.PerMinute(120), throttle.PerHour(400), throttle.Tier{Limit: 5, Algorithm: throttle.Concurrency, Unit: "concurrent"}),
			some("presence", page, graphService("presence"), throttle.Tier{Limit: 1_500, Window: 30 * time.Second}),
			some("reports", page, graphService("reports"), throttle.Tier{Limit: 5, Window: 10 * time.Second}),
			some("protection", page, graphService("protection"), throttle.PerSecond(1)),
			some("files", sharepoint, graphService("files"), follows(0, 6_000, minute(1_200, "files")), throttle.Tier{Limit: 1_200_000, Window: 24 * time.Hour, Unit: "files"}),
			some("identity", page, graphService("identity"), units, writes),
			every("app", page, throttle.Tier{Limit: 130_000, Window: 10 * time.Second}),
		},
		Cost: graphCost,
		Profile: answers.Profile{
			Quotas: []answers.Quota{
				within(time.Minute, inHeaders("files", "Ratelimit-Limit", "Ratelimit-Remaining", answers.Field{Header: "Ratelimit-Reset", Format: answers.Seconds})),
				{Unit: "identity", NameIn: "X-Ms-Throttle-Scope", Share: answers.Field{Header: "X-Ms-Throttle-Limit-Percentage"}},
			},
			Charges: []answers.Charge{{Unit: "identity", Field: answers.Field{Header: "X-Ms-Resource-Unit"}}},
			Reasons: []answers.Field{{Header: "X-Ms-Throttle-Information"}},
			Rules:   []answers.Rule{{Status: http.StatusServiceUnavailable, Header: "Retry-After", Kind: answers.Limited, Reason: "busy"}},
		},
		Hosts: []string{"graph.microsoft.com", "graph.microsoft.us", "dod-graph.microsoft.us", "microsoftgraph.chinacloudapi.cn", "*.sharepoint.com"},
	}
}

const sharePoint = "sharepoint" // the path of calls of SharePoint's own APIs

// A graphCall is a request, or an entry of a $batch.
type graphCall struct {
	method string
	path   []string // without the version
	query  url.Values
	bytes  int64
	user   func() string // the user of the request
}

// graphCalls returns the calls of a request. There is at least one.
func graphCalls(req *http.Request) (calls []graphCall) {
	user := sync.OnceValue(func() string { return graphUser(req) })
	if strings.HasSuffix(req.URL.Path, "/$batch") {
		var b struct {
			Requests []struct{ Method, URL string }
		}
		decode(req, &b)
		for _, r := range b.Requests[:min(len(b.Requests), graphBatch)] {
			if u, err := url.Parse(r.URL); err == nil {
				calls = append(calls, graphCall{strings.ToUpper(r.Method), strings.Split(strings.Trim(u.Path, "/"), "/"), u.Query(), 0, user})
			}
		}
		if len(calls) > 0 {
			calls[0].bytes = max(req.ContentLength, 0)
			return calls
		}
	}
	_, path, _ := strings.Cut(strings.Trim(req.URL.Path, "/"), "/")
	c := graphCall{req.Method, strings.Split(path, "/"), req.URL.Query(), 0, user}
	if strings.HasSuffix(hostOf(req), ".sharepoint.com") {
		c.path = []string{sharePoint}
	}
	if req.Method != http.MethodGet {
		c.bytes = max(req.ContentLength, 0)
	}
	return []graphCall{c}
}

// graphUser returns the id of the user to whom the request's token was issued: the claim oid of
// https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference, read on 2026-11-28.
// If there is none, it returns a name for the claim sub, or for the token.
func graphUser(req *http.Request) string {
	token := req.Header.Get("Authorization")
	var claims struct{ Oid, Sub string }
	if parts := strings.Split(token, "."); len(parts) == 3 && len(token) <= graphToken {
		if text, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil {
			_ = json.Unmarshal(text, &claims)
		}
	}
	if len(claims.Oid) == graphID && strings.Trim(claims.Oid, "0123456789abcdef-") == "" {
		return claims.Oid
	}
	return anonymous(cmp.Or(claims.Sub, token))
}

// graphBatch is how many calls Graph accepts in a batch, see
// https://learn.microsoft.com/en-us/graph/json-batching, read on 2026-11-28.
const graphBatch = 20

const graphToken = 16 << 10 // bytes of a token that is read

const graphID = 36 // bytes of an id such as 00aa00aa-bb11-cc22-dd33-44ee44ee44ee

// mailboxes, identity and drives are the first segments of paths of a service, after /me/ or
// /users/{id}/ too.
var (
	mailboxes = strings.Fields("messages mailFolders sendMail events calendar calendars calendarGroups calendarView contacts contactFolders outlook todo inferenceClassification findMeetingTimes getSchedule reminderView people insights")
	drives    = strings.Fields("drive drives sites shares followedSites " + sharePoint)
	identity  = strings.Fields("users groups me directory directoryObjects directoryRoles directoryRoleTemplates applications servicePrincipals devices domains contracts organization oauth2PermissionGrants subscribedSkus groupSettings groupSettingTemplates administrativeUnits getObjectsById isMemberOf invitations roleManagement policies orgContact contacts")
)

// service returns the service of a call, and the mailbox or site whose quota it is.
func (c graphCall) service() (name, key string) {
	first, rest := c.path[0], c.path
	switch {
	case (first == "users" || first == "groups") && len(rest) > 2:
		key, rest = rest[1], rest[2:]
	case first == "me" && len(rest) > 1:
		key, rest = c.user(), rest[1:]
	}
	switch at := rest[0]; {
	case first == "teams", first == "chats", first == "teamwork", at == "joinedTeams", at == "chats", at == "team":
		return "teams", ""
	case at == "onenote":
		return "notes", key
	case key != "" && slices.Contains(mailboxes, at):
		return "mailbox", key
	case slices.Contains(drives, at):
		return "files", ""
	case at == "presence", first == "communications":
		return "presence", ""
	case first == "auditLogs":
		return "reports", ""
	case first == "identityProtection", first == "identity" && len(rest) > 1 && rest[1] == "conditionalAccess":
		return "protection", ""
	case slices.Contains(identity, first):
		return "identity", ""
	}
	return "", ""
}

// graphServiceOf returns the service of all calls of a request, or "" if there is none.
func graphServiceOf(req *http.Request) (name, key string) {
	for i, c := range graphCalls(req) {
		n, k := c.service()
		if i > 0 && (n != name || k != key) {
			return "", ""
		}
		name, key = n, k
	}
	return name, key
}

// graphService returns the Key of a service.
func graphService(service string) func(*http.Request) (string, bool) {
	return func(req *http.Request) (string, bool) {
		name, key := graphServiceOf(req)
		return key, name == service
	}
}

// graphTeam returns the team of a request, or the chat.
func graphTeam(req *http.Request) (team string, counts bool) {
	calls := graphCalls(req)
	for _, c := range calls {
		if len(c.path) < 2 || c.path[0] != "teams" && c.path[0] != "chats" || team != "" && team != c.path[1] {
			return "", false
		}
		team = c.path[1]
	}
	return team, true
}

// graphChannel returns the channel of a message, if each call sends one to it.
func graphChannel(req *http.Request) (channel string, counts bool) {
	for _, c := range graphCalls(req) {
		path := strings.Join(c.path, "/")
		if c.method != http.MethodPost || c.path[0] != "teams" || !strings.HasSuffix(path, "/messages") || channel != "" && channel != path {
			return "", false
		}
		channel = path
	}
	return channel, true
}

// graphCost returns what the calls of a request cost in their service.
func graphCost(req *http.Request) throttle.Cost {
	calls := graphCalls(req)
	cost := throttle.Cost{"requests": int64(len(calls))}
	switch service, _ := graphServiceOf(req); service {
	case "mailbox":
		cost["concurrent"] = min(int64(len(calls)), 4)
		for _, c := range calls {
			cost["bytes"] += c.bytes
		}
	case "notes":
		cost["concurrent"] = min(int64(len(calls)), 5)
	case "files":
		for _, c := range calls {
			cost["files"] += c.files()
		}
	case "identity":
		for _, c := range calls {
			units, writes := c.identity()
			cost["identity"] += units
			cost["writes"] += writes
		}
	}
	return cost
}

// files returns the units of a call for files, lists and sites.
func (c graphCall) files() int64 {
	last := c.path[len(c.path)-1]
	switch {
	case slices.Contains(c.path, "permissions") || strings.Contains(c.query.Get("$expand"), "permissions"):
		return 5
	case last == sharePoint || c.method != http.MethodGet:
		return 2
	case last == "content", strings.HasPrefix(last, "delta") && (c.query.Has("token") || strings.Contains(last, "token=")):
		return 1
	case slices.Contains([]string{"children", "items", "lists", "drives", "sites", "versions", "columns", "contentTypes", "subscriptions", "thumbnails", "delta", "recent", "sharedWithMe", "following"}, last) || strings.HasPrefix(last, "search("):
		return 2
	}
	return 1
}

// graphUnits are the base costs of identity requests other than 1, which write nothing. A * stands
// for an id, and "me" also for users/*.
var graphUnits = map[string]int64{
	"GET applications": 2, "GET applications/*/extensionProperties": 2, "GET contracts": 3, "POST directoryObjects/getByIds": 3,
	"GET domains/*/domainNameReferences": 4, "POST getObjectsById": 3, "GET groups/*/members": 3, "GET groups/*/transitiveMembers": 5,
	"POST isMemberOf": 4, "POST me/checkMemberGroups": 4, "POST me/checkMemberObjects": 4, "POST me/getMemberGroups": 2, "POST me/getMemberObjects": 2,
	"GET me/licenseDetails": 2, "GET me/memberOf": 2, "GET me/ownedObjects": 2, "GET me/transitiveMemberOf": 2,
	"GET oauth2PermissionGrants": 2, "GET oauth2PermissionGrants/*": 2, "GET servicePrincipals/*/appRoleAssignments": 2, "GET subscribedSkus": 3, "GET users": 2,
}

// identity returns the units and writes of a call for the directory.
func (c graphCall) identity() (units, writes int64) {
	path := slices.Clone(c.path)
	if path[0] == "users" && len(path) > 2 {
		path = append([]string{"me"}, path[2:]...)
	} else if len(path) > 1 && path[0] != "me" && path[1] != "getByIds" {
		path[1] = "*"
	}
	units, listed := graphUnits[c.method+" "+strings.Join(path, "/")]
	if !listed {
		units = 1
		if c.method != http.MethodGet {
			writes = 1
		}
	}
	if c.query.Has("$select") {
		units--
	}
	if c.query.Has("$expand") {
		units++
	}
	if top, err := strconv.Atoi(c.query.Get("$top")); err == nil && top < 20 {
		units--
	}
	return max(units, 1), writes
}
