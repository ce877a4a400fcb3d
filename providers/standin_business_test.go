package providers_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// newKrakenEngine is the matching engine of Kraken, as docs.kraken.com/api/docs/guides/spot-ratelimits
// describes it (read 2026-11-28): each client has a counter for each pair, which goes to 60 (Starter) and
// falls by 1 a second. Adding an order counts 1 and a batch of n orders n/2, "even if the transaction
// fails validation". The counter here has halves. The pages exempt AddOrder from the key's counter
// and don't name AddOrderBatch, so no more batches are sent here than fit there. The method sign of ccxt
// sends batches, and orders with a price in percent, as JSON.
func newKrakenEngine() *pageAPI {
	return &pageAPI{
		limits: []pageLimit{{
			name: "pair", tier: tierOf("2/s;algo=token_bucket;burst=120"),
			key:     func(r arrivedRequest) (string, bool) { return r.fields()["pair"], true },
			cost:    krakenHalves,
			refusal: says(200, `{"error":["EOrder:Rate limit exceeded"],"result":null}`),
		}},
		answer: func(*pageAPI, arrivedRequest) fakeapi.Reply { return fakeapi.Reply{Body: `{"error":[],"result":{}}`} },
	}
}

// krakenHalves returns the cost of a request in halves.
func krakenHalves(r arrivedRequest) (n int64) {
	if !strings.HasSuffix(r.URL.Path, "/AddOrderBatch") {
		return 2
	}
	fields := r.fields()
	var orders []json.RawMessage
	if json.Unmarshal([]byte(fields["orders"]), &orders) == nil {
		return int64(len(orders))
	}
	for name := range fields {
		if strings.HasPrefix(name, "orders[") && strings.HasSuffix(name, "[ordertype]") {
			n++
		}
	}
	return n
}

// krakenOrders returns a request that adds n orders of a pair.
func krakenOrders(t *testing.T, asJSON bool, pair string, n int) *http.Request {
	t.Helper()
	path, contentType, body := "AddOrder", "application/x-www-form-urlencoded", "nonce=1&pair="+pair+"&ordertype=limit&type=buy&volume=1&price=%2B5%25"
	switch {
	case asJSON && n == 1:
		contentType, body = "application/json", `{"nonce":"1","pair":"`+pair+`","ordertype":"limit","type":"buy","volume":"1","price":"+5%"}`
	case asJSON:
		order := `{"ordertype":"limit","type":"buy","volume":"1","price":"27500"}`
		path, contentType = "AddOrderBatch", "application/json"
		body = `{"nonce":"1","pair":"` + pair + `","orders":[` + strings.TrimSuffix(strings.Repeat(order+",", n), ",") + `]}`
	case n > 1:
		path, body = "AddOrderBatch", "nonce=1&pair="+pair
		for i := range n {
			body += fmt.Sprintf("&orders[%d][ordertype]=limit&orders[%d][type]=buy&orders[%d][volume]=1&orders[%d][price]=27500", i, i, i, i)
		}
	}
	return withBody(t, "POST", "https://api.kraken.com/0/private/"+path, contentType, body, "API-Key: k")
}

// A batch of orders counts half of them in the matching engine.
func TestBatchOfOrdersCountsHalf(t *testing.T) {
	for _, test := range []struct {
		name      string
		asJSON    bool
		n         int
		batches   int
		tolerance float64
	}{
		{"even, JSON", true, 14, 15, 0.95},
		{"even, form", false, 14, 15, 0.95},
		{"odd, JSON", true, 15, 15, 0.85}, // 7.5 may be rounded up
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newKrakenEngine()
				took := sendAll(t, over(t, providers.Kraken(), api), test.batches, test.batches, func(int) *http.Request {
					return krakenOrders(t, test.asJSON, "XBTUSD", test.n)
				})
				checkNoneRefused(t, api)
				checkTook(t, "the batches", took, shortest(t, tierOf("2/s;algo=token_bucket;burst=120"), int64(test.n), test.batches), test.tolerance)
			})
		})
	}
}

// Orders of four pairs in JSON wait for each other no more than those in forms.
func TestOrdersOfPairsDoNotShare(t *testing.T) {
	pairs := []string{"XBTUSD", "ETHUSD", "SOLUSD", "ADAUSD"}
	for _, test := range []struct{ orders, requests int }{{1, 40}, {14, 3}} { // of the 60 points of a pair
		for _, asJSON := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d orders, JSON %v", test.orders, asJSON), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := newKrakenEngine()
					took := sendAll(t, over(t, providers.Kraken(), api), 20, len(pairs)*test.requests, func(i int) *http.Request {
						return krakenOrders(t, asJSON, pairs[i%len(pairs)], test.orders)
					})
					checkNoneRefused(t, api)
					checkTook(t, "orders of four pairs", took, time.Second, 1)
				})
			})
		}
	}
}

// newZendesk is Zendesk Support, as developer.zendesk.com/api-reference/introduction/rate-limits describes
// it (read 2026-11-28; the numbers in github.com/api-evangelist/zendesk): 700 requests a minute for an
// account (Enterprise); PUT /api/v2/tickets/{id}.json 100 a minute for the account and 30 in 10 minutes
// for a ticket; users and organizations alike, 5 a minute for one. A bulk update has an endpoint of its own,
// which the table doesn't list, and queues a job; jobs end at once here.
func newZendesk() *pageAPI {
	id := func(kind string) func(r arrivedRequest) (string, bool) {
		path := regexp.MustCompile(`^/api/v2/` + kind + `/([0-9]+)(\.json)?$`)
		return func(r arrivedRequest) (string, bool) {
			m := path.FindStringSubmatch(r.URL.Path)
			if m == nil || r.Method != http.MethodPut {
				return "", false
			}
			return m[1], true
		}
	}
	all := func(kind string) func(r arrivedRequest) (string, bool) {
		return func(r arrivedRequest) (string, bool) {
			_, counts := id(kind)(r)
			return "", counts
		}
	}
	endpoint := says(429, "", "Retry-After", "WAIT", "x-rate-limit", "700", "x-rate-limit-remaining", "512")
	return &pageAPI{
		limits: []pageLimit{
			{name: "ticket", tier: tierOf("30/10m"), key: id("tickets"), refusal: endpoint},
			{name: "tickets", tier: tierOf("100/m"), key: all("tickets"), refusal: endpoint},
			{name: "user", tier: tierOf("5/m"), key: id("users"), refusal: endpoint},
			{name: "organization", tier: tierOf("5/m"), key: id("organizations"), refusal: endpoint},
			{name: "account", tier: tierOf("700/m"), refusal: says(429, "Number of allowed API requests per minute exceeded", "Retry-After", "WAIT", "x-rate-limit", "700", "x-rate-limit-remaining", "0")},
		},
		answer: func(api *pageAPI, r arrivedRequest) fakeapi.Reply {
			left, _ := api.left("account", r)
			return fakeapi.Reply{Body: `{"job_status":{"id":"1","status":"queued"}}`, Header: map[string]string{"X-Rate-Limit": "700", "X-Rate-Limit-Remaining": fmt.Sprint(left)}}
		},
	}
}

// Bulk updates count for the account alone, and updates of one object for that object.
func TestBulkUpdatesAreNoObject(t *testing.T) {
	for _, test := range []struct {
		path    string
		n       int
		perfect time.Duration
	}{
		{"tickets/update_many.json", 90, 0},
		{"tickets/update_many", 90, 0},
		{"tickets/update_many.json?ids=1,2,3", 90, 0},
		{"users/update_many.json", 20, 0},
		{"users/update_many.json?external_ids=1,2,3", 20, 0},
		{"organizations/update_many.json", 20, 0},
		{"tickets/123.json", 40, 10 * time.Minute},
		{"organizations/123.json", 7, time.Minute},
	} {
		t.Run(strings.ReplaceAll(test.path, "/", " "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newZendesk()
				took := sendAll(t, over(t, providers.Zendesk(700), api), 10, test.n, func(int) *http.Request {
					return withBody(t, "PUT", "https://acme.zendesk.com/api/v2/"+test.path, "application/json", `{}`, "Authorization: Bearer x")
				})
				checkNoneRefused(t, api)
				checkTook(t, fmt.Sprint(test.n, " updates"), took, test.perfect+time.Second, 0.95)
			})
		})
	}
}

// newMailboxes is Outlook in Microsoft Graph, as learn.microsoft.com/graph/throttling-limits describes it
// (read 2026-11-28): for each app and mailbox 10,000 requests in 10 minutes and 4 at once. "Requests to
// one user do not impact the limit for another user": devblogs.microsoft.com/microsoft365dev/throttling-
// coming-to-outlook-api-and-microsoft-graph. The refusal is of learn.microsoft.com/answers/questions/734143.
// A user has one token here.
func newMailboxes() *pageAPI {
	token := func(r arrivedRequest) (string, bool) { return r.Header.Get("Authorization"), true }
	return &pageAPI{
		hold: 250 * time.Millisecond,
		limits: []pageLimit{
			{name: "at once", tier: tierOf("4;algo=concurrency"), key: token, refusal: says(429, `{"error": {"code": "ApplicationThrottled", "message": "Application is over its MailboxConcurrency limit."}}`, "Retry-After", "WAIT")},
			{name: "mailbox", tier: tierOf("10000/10m"), key: token, refusal: says(429, `{"error": {"code": "TooManyRequests"}}`, "Retry-After", "WAIT")},
		},
	}
}

func ownMail(t *testing.T, user int) *http.Request {
	t.Helper()
	return withBody(t, "GET", "https://graph.microsoft.com/v1.0/me/messages", "", "", fmt.Sprintf("Authorization: Bearer user-%d", user))
}

// Each user of /me has a mailbox, which is the token's.
func TestOwnMailboxesAreApart(t *testing.T) {
	for _, test := range []struct {
		name           string
		users, n, work int
		perfect        time.Duration
	}{
		{"40 users at once", 40, 40, 40, 250 * time.Millisecond},
		{"one user, 4 at once", 1, 8, 8, 500 * time.Millisecond},
		{"40 users, more than a mailbox has", 40, 12_000, 160, 300 / 4 * 250 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 3)
			synctest.Test(t, func(t *testing.T) {
				api := newMailboxes()
				took := sendAll(t, over(t, providers.MicrosoftGraph(), api), test.work, test.n, func(i int) *http.Request { return ownMail(t, i%test.users) })
				checkNoneRefused(t, api)
				checkTook(t, fmt.Sprint(test.n, " requests"), took, test.perfect, 0.85) // up to 25 ms of 250 are the way there
			})
		})
	}
}

// newJira is Jira Cloud for an OAuth app, as developer.atlassian.com/cloud/jira/platform/rate-limiting
// describes it (read 2026-11-28): 65,000 points in each hour of the clock, of which a read costs 1 and 1
// for each issue that it returns; an endpoint has 100 GETs a second in a bucket. Far from its limit a
// response doesn't say how much is left.
func newJira(issues int) *pageAPI {
	return &pageAPI{
		limits: []pageLimit{
			{name: "burst", tier: tierOf("100/s;algo=token_bucket"), refusal: says(429, "", "Retry-After", "WAIT", "X-RateLimit-Remaining", "0", "RateLimit-Reason", "jira-burst-based")},
			{name: "points", tier: tierOf("65000/h;algo=fixed_window"), cost: func(arrivedRequest) int64 { return int64(1 + issues) },
				refusal: says(429, "", "Retry-After", "WAIT", "X-RateLimit-Limit", "65000", "X-RateLimit-Remaining", "0", "RateLimit-Reason", "jira-quota-global-based")},
		},
		answer: func(*pageAPI, arrivedRequest) fakeapi.Reply {
			issue := `{"id":"10001","key":"ABC-1","fields":{}}`
			list := strings.TrimSuffix(strings.Repeat(issue+",", issues), ",")
			end := time.Now().Truncate(time.Hour).Add(time.Hour)
			return fakeapi.Reply{Body: `{"issues":[` + list + `],"isLast":true}`, Header: map[string]string{
				"RateLimit-Policy": `"global-app-quota";q=65000;w=3600`, "RateLimit": `"global-app-quota";t=` + seconds(time.Until(end))}}
		},
	}
}

// Searches are charged what they return, not what they could.
func TestSearchesAreChargedWhatTheyReturn(t *testing.T) {
	for _, test := range []struct {
		name      string
		issues, n int
		perfect   time.Duration
	}{
		{"one issue each", 1, 1_000, 9 * time.Second},
		{"a hundred each", 100, 700, time.Hour}, // 643 cost 64,943 points
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newJira(test.issues)
				took := sendAll(t, over(t, providers.Atlassian(), api), 20, test.n, func(int) *http.Request {
					return withBody(t, "GET", "https://acme.atlassian.net/rest/api/3/search/jql?jql=project%3DABC&maxResults=100", "", "", "Authorization: Bearer x")
				})
				checkNoneRefused(t, api)
				checkTook(t, fmt.Sprint(test.n, " searches"), took, test.perfect, 0.9)
			})
		})
	}
}

// newGitHubLimits has the limits of github/docs@058fa63 data/reusables/rest-api/secondary-rate-limit-rest-
// graphql.md (read 2026-11-28): 100 requests at once, 900 points a minute of which a write is 5, and 80
// requests a minute and 500 an hour that create content. GitHub doesn't say which do. Here they are the
// writes to the paths in src/generated/triggers-notification-paths.ts of github.com/octokit/
// plugin-throttling.js@2a9bd81, GitHub's own client.
func newGitHubLimits() *pageAPI {
	creates := []string{
		"/orgs/:/invitations", "/orgs/:/teams/:/discussions", "/orgs/:/teams/:/discussions/:/comments", "/repos/:/:/collaborators/:",
		"/repos/:/:/commits/:/comments", "/repos/:/:/issues", "/repos/:/:/issues/:/comments", "/repos/:/:/pulls", "/repos/:/:/pulls/:/comments",
		"/repos/:/:/pulls/:/comments/:/replies", "/repos/:/:/pulls/:/merge", "/repos/:/:/pulls/:/requested_reviewers", "/repos/:/:/pulls/:/reviews",
		"/repos/:/:/releases", "/teams/:/discussions", "/teams/:/discussions/:/comments",
	}
	path := regexp.MustCompile("^(" + strings.ReplaceAll(strings.Join(creates, "|"), ":", "[^/]+") + ")$")
	content := func(r arrivedRequest) (string, bool) {
		return "", r.Method != http.MethodGet && path.MatchString(r.URL.Path)
	}
	secondary := says(403, `{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again.","documentation_url":"https://docs.github.com/free-pro-team@latest/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"}`, "Retry-After", "60")
	created := says(403, `{"message":"You have exceeded a secondary rate limit and have been temporarily blocked from content creation. Please retry your request again later."}`)
	return &pageAPI{
		limits: []pageLimit{
			{name: "at once", tier: tierOf("100;algo=concurrency"), refusal: secondary},
			{name: "points", tier: tierOf("900/m"), refusal: secondary, cost: func(r arrivedRequest) int64 {
				if r.Method == http.MethodGet {
					return 1
				}
				return 5
			}},
			{name: "content", tier: tierOf("80/m"), key: content, refusal: created},
			{name: "content hour", tier: tierOf("500/h"), key: content, refusal: created},
			{name: "core", tier: tierOf("5000/h;algo=anchored_window"), refusal: secondary},
		},
		answer: func(api *pageAPI, r arrivedRequest) fakeapi.Reply {
			left, _ := api.left("core", r)
			_, c := api.counted("core", r)
			full, _ := c.Earliest(time.Now().UnixMicro(), map[string]int64{"requests": 5_000})
			return fakeapi.Reply{Status: 201, Body: "{}", Header: map[string]string{
				"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": fmt.Sprint(left), "X-RateLimit-Used": api.used("core", r),
				"X-RateLimit-Reset": fmt.Sprint(time.UnixMicro(full).Add(time.Second - 1).Unix()), "X-RateLimit-Resource": "core"}}
		},
	}
}

// Statuses and git objects are limited by the points of writes, and not as content. Issues, comments and
// the like are content.
func TestWhatCreatesContent(t *testing.T) {
	for _, test := range []struct {
		request string
		n       int
		tier    string
		cost    int64
	}{
		{"POST statuses/6dcb09b5b57875f334f61aebed695e2e4193db5e", 600, "900/m", 5},
		{"POST git/blobs", 600, "900/m", 5},
		{"POST git/trees", 300, "900/m", 5},
		{"POST check-runs", 300, "900/m", 5},
		{"POST dispatches", 300, "900/m", 5},
		{"POST issues", 300, "80/m", 1},
		{"POST issues/1/comments", 300, "80/m", 1},
		{"POST pulls/1/reviews", 200, "80/m", 1},
		{"PUT pulls/1/merge", 200, "80/m", 1},
		{"POST issues/2/comments", 600, "500/h", 1},
	} {
		t.Run(strings.ReplaceAll(test.request, "/", " "), func(t *testing.T) {
			soak.Sample(t, 4)
			synctest.Test(t, func(t *testing.T) {
				api := newGitHubLimits()
				method, path, _ := strings.Cut(test.request, " ")
				took := sendAll(t, over(t, providers.GitHub(), api), 20, test.n, func(int) *http.Request {
					return withBody(t, method, "https://api.github.com/repos/octocat/hello-world/"+path, "application/json", `{}`, "Authorization: Bearer x")
				})
				checkNoneRefused(t, api)
				checkTook(t, fmt.Sprint(test.n, " requests"), took, shortest(t, tierOf(test.tier), test.cost, test.n), 0.95)
			})
		})
	}
}
