package providers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const metaGraph = "https://graph.facebook.com/v25.0/"

func TestMetaScopes(t *testing.T) {
	preset := func() providers.Provider { return providers.Meta(200) }
	page, account, other := to(t, "GET", metaGraph+"1/feed"), to(t, "GET", metaGraph+"act_1/insights"), to(t, "GET", metaGraph+"act_2/insights")
	checkBurst(t, preset, "app", 200, alternate(page, to(t, "GET", "https://graph.instagram.com/v25.0/me/media")))
	checkBurst(t, preset, "several ids", 66, to(t, "GET", metaGraph+"?ids=1,2,3"))
	checkBurst(t, preset, "a batch", 100, to(t, "POST", metaGraph, `{"batch":[{"method":"GET","relative_url":"me"},{"method":"GET","relative_url":"1"}]}`))
	checkBurst(t, preset, "an ad account", 60, account)
	checkBurst(t, preset, "two ad accounts", 120, alternate(account, other))
	checkBurst(t, preset, "writing to an ad account", 20, to(t, "POST", metaGraph+"act_1/campaigns", "{}"))
	checkBurst(t, preset, "Instagram's messages", 100, to(t, "POST", "https://graph.instagram.com/v25.0/1/messages", "{}"))
}

func TestMetaRefusals(t *testing.T) {
	page, account, other := to(t, "GET", metaGraph+"1/feed"), to(t, "GET", metaGraph+"act_1/insights"), to(t, "GET", metaGraph+"act_2/insights")
	refused := func(code string, header ...string) fakeapi.Reply {
		r := fakeapi.Reply{Status: 400, Header: map[string]string{"Content-Type": "text/javascript; charset=UTF-8"}, Body: `{"error":{"message":"m","type":"OAuthException","code":` + code + `}}`}
		r.Header["Content-Type"] = "application/json"
		for i := 1; i < len(header); i += 2 {
			r.Header[header[i-1]] = header[i]
		}
		return r
	}
	minutes := []string{"X-Business-Use-Case-Usage", `{"2":[{"type":"ads_insights","call_count":1,"estimated_time_to_regain_access":0}],"1":[{"type":"ads_insights","call_count":100,"estimated_time_to_regain_access":7}]}`}
	checkRefusals(t, func() providers.Provider { return providers.Meta(200) }, []refusalTest{
		{name: "app", reply: refused("4"), first: page, want: backoff},
		{name: "app, other status", reply: func() fakeapi.Reply { r := refused("4"); r.Status = 403; return r }(), want: backoff},
		{name: "user", reply: refused("17"), want: backoff},
		{name: "page", reply: refused("32"), want: backoff},
		{name: "page's business use case", reply: refused("80001"), want: backoff},
		{name: "WhatsApp", reply: refused("80008"), want: backoff},
		{name: "catalog", reply: refused("80014"), want: backoff},
		{name: "minutes", reply: refused("80000", minutes...), first: account, want: 7 * time.Minute},
		{name: "another account goes on", reply: refused("80000", minutes...), first: account, next: other},
		{name: "the app goes on", reply: refused("80000", minutes...), next: page},
		{name: "seconds", reply: refused(`613,"error_subcode":1487742`, "X-Ad-Account-Usage", `{"acc_id_util_pct":100,"reset_time_duration":100}`), want: 100 * time.Second},
		{name: "the score is spent", reply: refused(`613,"error_subcode":1487742`), want: 5 * time.Minute},
		{name: "too fast", reply: refused(`368,"error_subcode":1390008`), want: closed},
		{name: "absurd minutes", reply: refused("80000", "X-Business-Use-Case-Usage", `{"1":[{"estimated_time_to_regain_access":600}]}`), want: closed},
		{name: "the budget of an ad set", reply: refused(`613,"error_subcode":1487632`)},
		{name: "the spending limit", reply: refused(`17,"error_subcode":1885172`)},
		{name: "a token has ended", reply: refused("190")},
		{name: "abuse of content", reply: refused("368")},
		{name: "too much data", reply: func() fakeapi.Reply { r := refused("1"); r.Status = 500; return r }()},
		{name: "a percentage corrects nothing", reply: fakeapi.Reply{Header: map[string]string{"X-App-Usage": `{"call_count":100}`}}},
	})
}

func ExampleMeta() {
	client, err := providers.Meta(200).Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://graph.facebook.com/v25.0/me")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
