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

// whatsApp returns a function that makes a message from a phone number to a recipient.
func whatsApp(t *testing.T, number, recipient string) func() *http.Request {
	return to(t, "POST", metaGraph+number+"/messages", `{"messaging_product":"whatsapp","to":"`+recipient+`","type":"text","text":{"body":"hello"}}`)
}

// WhatsApp's messages count for their number and recipient, and not for the app.
func TestMetaWhatsApp(t *testing.T) {
	preset := func() providers.Provider { return providers.Meta(10) }
	var all, two []func() *http.Request
	for i := range 200 {
		all = append(all, whatsApp(t, "106540352242922", fmt.Sprint("1650555", 1_000+i)))
		two = append(two, all[i], whatsApp(t, "206540352242922", fmt.Sprint("1650555", 1_000+i)))
	}
	read := to(t, "POST", metaGraph+"106540352242922/messages", `{"messaging_product":"whatsapp","status":"read","message_id":"wamid.a"}`)
	form := func() *http.Request {
		req := to(t, "POST", metaGraph+"1/messages", "messaging_product=whatsapp&to=42")()
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return req
	}
	checkAtOnce(t, preset, []atOnceTest{
		{"a number", 80, all},
		{"two numbers", 160, two},
		{"a recipient", 1, []func() *http.Request{whatsApp(t, "1", "+1 (650) 555-5555"), whatsApp(t, "1", "16505555555")}},
		{"a recipient of two numbers", 2, []func() *http.Request{whatsApp(t, "1", "42"), whatsApp(t, "2", "42")}},
		{"a form", 1, []func() *http.Request{form}},
		{"receipts", 80, []func() *http.Request{read}},
		{"the app's other calls", 10, []func() *http.Request{to(t, "GET", metaGraph+"106540352242922/message_templates")}},
		{"messages of a page", 10, []func() *http.Request{to(t, "POST", metaGraph+"me/messages", `{"recipient":{"id":"1"},"message":{"text":"a"}}`)}},
	})
	synctest.Test(t, func(t *testing.T) {
		rt := over(t, providers.Meta(200), accepting{})
		for range 2 {
			send(t, rt, whatsApp(t, "1", "42")())
		}
		if _, _, took := send(t, rt, whatsApp(t, "1", "42")()); took < 6*time.Second || took > 7*time.Second {
			t.Errorf("the next message to a recipient waited %v, want 6s", took)
		}
	})
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

// A refusal pauses the recipient whom it is about, or the number.
func TestMetaWhatsAppRefusals(t *testing.T) {
	refused := func(code string) fakeapi.Reply {
		return fakeapi.Reply{Status: 400, Body: `{"error":{"message":"(#` + code + `) Rate limit hit","type":"OAuthException","code":` + code + `,"error_data":{"messaging_product":"whatsapp"}}}`}
	}
	checkRefusals(t, func() providers.Provider {
		p := providers.Meta(200)
		p.Scope("recipient").Policy.Tiers[0].Limit = 45 // more than the pause allows
		return p
	}, []refusalTest{
		{name: "a recipient", first: whatsApp(t, "1", "42"), next: whatsApp(t, "1", "42"), reply: refused("131056"), want: backoff},
		{name: "other recipients go on", next: whatsApp(t, "1", "43"), reply: refused("131056")},
		{name: "throughput", reply: refused("130429"), next: whatsApp(t, "1", "43"), want: backoff},
		{name: "throughput of another number", reply: refused("130429"), next: whatsApp(t, "2", "43")},
		{name: "spam", reply: refused("131048"), next: whatsApp(t, "1", "43"), want: backoff},
		{name: "WhatsApp's business account", reply: refused("80007"), next: whatsApp(t, "1", "43"), want: backoff},
		{name: "a message that is undeliverable", reply: refused("131026"), next: whatsApp(t, "1", "43")},
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
