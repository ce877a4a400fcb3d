package providers_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

// linkedIn returns a function that makes a request of a member.
func linkedIn(t *testing.T, member, method, path string) func() *http.Request {
	next := to(t, method, "https://api.linkedin.com"+path)
	return func() *http.Request {
		req := next()
		req.Header.Set("Authorization", "Bearer "+member)
		return req
	}
}

func TestLinkedIn(t *testing.T) {
	const analytics, members, other = "/rest/adAnalytics?q=analytics", "/rest/dmpSegments/1/users", "/rest/adAccounts/5/adCampaigns"
	free := func() providers.Provider { return providers.LinkedIn(0, 0) }
	checkAtOnce(t, free, []atOnceTest{
		{"a member's posts", 150, []func() *http.Request{linkedIn(t, "a", "POST", "/v2/ugcPosts")}},
		{"a member's posts of the new API", 150, []func() *http.Request{linkedIn(t, "a", "POST", "/rest/posts")}},
		{"two members' posts", 300, []func() *http.Request{linkedIn(t, "a", "POST", "/rest/posts"), linkedIn(t, "b", "POST", "/rest/posts")}},
		{"users of all segments", 600, []func() *http.Request{linkedIn(t, "a", "POST", members), linkedIn(t, "a", "POST", "/rest/dmpSegments/2/users")}},
		{"users of segments of two members", 1_200, []func() *http.Request{linkedIn(t, "a", "POST", members), linkedIn(t, "b", "POST", members)}},
		{"companies of segments", 300, []func() *http.Request{linkedIn(t, "a", "POST", "/rest/dmpSegments/1/companies")}},
		{"conversions", 600, []func() *http.Request{linkedIn(t, "a", "POST", "/rest/conversionEvents")}},
	})
	checkUnlimited(t, free, "analytics", linkedIn(t, "a", "GET", analytics))
	checkAtOnce(t, func() providers.Provider { return providers.LinkedIn(50, 20) }, []atOnceTest{
		{"a member", 20, []func() *http.Request{linkedIn(t, "a", "GET", analytics), linkedIn(t, "a", "GET", other)}},
		{"three members", 50, []func() *http.Request{linkedIn(t, "a", "GET", analytics), linkedIn(t, "b", "GET", other), linkedIn(t, "c", "GET", other)}},
	})
	p := free()
	for scope, want := range map[string]int64{"posts": 100_000, "conversions": 300_000} {
		tiers := p.Scope(scope).Policy.Tiers
		if day := tiers[len(tiers)-1]; day.Limit != want || day.Period != throttle.Day || day.Zone != "UTC" {
			t.Errorf("%s: %v, want %d a day", scope, tiers, want)
		}
	}
	if got := p.Cost(linkedIn(t, "a", "GET", analytics)()); got["member"] != 1 || got["application"] != 1 || len(got) != 2 {
		t.Errorf("a call costs %v", got)
	}
	if p := providers.LinkedIn(1, 1); p.Scope("member") == nil || p.Scope("application") == nil {
		t.Error("one call a day is no limit")
	}
	for path, want := range map[string]string{
		"/rest/posts/urn%3Ali%3Ashare%3A7012":             "GET /rest/posts/*",
		"/v2/people/(id:abc)":                             "GET /v2/people/*",
		"/rest/adAccounts/5/adCampaigns":                  "GET /rest/adAccounts/*/adCampaigns",
		"/rest/socialActions/urn:li:activity:1/comments/": "GET /rest/socialActions/*/comments",
	} {
		if got, counts := p.Scope("endpoint").Key(get(t, "https://api.linkedin.com"+path)); got != want || !counts {
			t.Errorf("%s: %q, %v, want %q", path, got, counts, want)
		}
	}
	synctest.Test(t, func(t *testing.T) { // which starts at midnight UTC
		time.Sleep(13*time.Hour + 30*time.Minute)
		p := providers.LinkedIn(0, 1)
		rt := over(t, p, accepting{})
		next := linkedIn(t, "a", "GET", analytics)
		send(t, rt, next().WithContext(t.Context()))
		if _, _, took := send(t, rt, next().WithContext(t.Context())); took.Round(time.Minute) != 10*time.Hour+30*time.Minute {
			t.Errorf("the second waited %v, want until midnight UTC", took)
		}
	})
}

func TestLinkedInRefusals(t *testing.T) {
	const analytics = "/rest/adAnalytics?q=analytics"
	limited := func(of string) fakeapi.Reply {
		return fakeapi.Reply{Status: 429, Body: `{"status":429,"serviceErrorCode":101,"code":"TOO_MANY_REQUESTS","message":"Resource level throttle ` + of + `limit for calls to this resource is reached."}`}
	}
	patient := func() providers.Provider {
		p := providers.LinkedIn(500, 100)
		for i := range p.Scopes {
			p.Scopes[i].Policy.MaxPause = 24 * time.Hour
		}
		return p
	}
	a, other, b := linkedIn(t, "a", "GET", analytics), linkedIn(t, "a", "GET", "/rest/adAccounts/5"), linkedIn(t, "b", "GET", analytics)
	checkRefusals(t, patient, []refusalTest{
		{name: "the member's day", first: a, reply: limited("APPLICATION_AND_MEMBER DAY "), want: 24 * time.Hour},
		{name: "other members go on", next: b, reply: limited("APPLICATION_AND_MEMBER DAY ")},
		{name: "other endpoints go on", next: other, reply: limited("APPLICATION_AND_MEMBER DAY ")},
		{name: "the app's day", next: b, reply: limited("APPLICATION DAY "), want: 24 * time.Hour},
		{name: "other endpoints of the app go on", next: other, reply: limited("APPLICATION DAY ")},
		{name: "no day", reply: limited(""), want: backoff},
	})
	checkRefusals(t, func() providers.Provider { return providers.LinkedIn(0, 0) }, []refusalTest{
		{name: "an impatient caller", first: a, reply: limited("APPLICATION DAY "), want: closed},
	})
}
