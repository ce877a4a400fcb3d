package providers_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

func TestQuickBooks(t *testing.T) {
	const host, sandbox = "https://quickbooks.api.intuit.com/v3/company/", "https://sandbox-quickbooks.api.intuit.com/v3/company/"
	invoice, query := to(t, "POST", host+"1/invoice", `{"Line":[]}`), to(t, "GET", host+"1/query?query=select+*+from+Customer")
	batch, report := to(t, "POST", host+"1/batch", `{"BatchItemRequest":[]}`), to(t, "GET", host+"1/reports/ProfitAndLoss")
	email := to(t, "POST", sandbox+"2/invoice/7/send?sendTo=a%40example.com")
	checkAtOnce(t, providers.QuickBooks, []atOnceTest{
		{"a second", 10, []func() *http.Request{invoice, query, batch, report}},
		{"each company", 20, []func() *http.Request{query, to(t, "GET", host+"3/companyinfo/3")}},
		{"the sandbox", 10, []func() *http.Request{to(t, "GET", sandbox+"2/companyinfo/2")}},
	})
	checkUnlimited(t, providers.QuickBooks, "another path", to(t, "GET", "https://quickbooks.api.intuit.com/v3/other"))

	// Without the limits of a second.
	slow := func() providers.Provider {
		p := providers.QuickBooks()
		company := &p.Scope("company").Policy
		company.Tiers = append(company.Tiers[:1:1], company.Tiers[2])
		return p
	}
	checkAtOnce(t, slow, []atOnceTest{
		{"a minute", 500, []func() *http.Request{invoice}},
		{"batches", 40, []func() *http.Request{batch}},
		{"reports", 200, []func() *http.Request{report}},
		{"a report and others", 400, []func() *http.Request{report, query}},
		{"emails of the sandbox", 40, []func() *http.Request{email}},
		{"emails", 500, []func() *http.Request{to(t, "POST", host+"1/invoice/7/send")}},
	})
	if got := providers.QuickBooks().Scope("emails").Policy.Tiers[0]; got != throttle.PerDay(40) {
		t.Errorf("emails: %v", got)
	}
	if company, counts := providers.QuickBooks().Scope("batches").Key(postJSON(t, host+"1/batch/", "{}")); company != "1" || !counts {
		t.Errorf("a batch with a slash behind it: %q, %v", company, counts)
	}
	synctest.Test(t, func(t *testing.T) {
		p := providers.QuickBooks()
		company := &p.Scope("company").Policy
		company.Tiers = company.Tiers[2:]
		company.Tiers = append(company.Tiers, throttle.PerMinute(500))
		if n := atATime(t, p, 30, query); n != 10 {
			t.Errorf("%d at a time, want 10", n)
		}
	})
}

func TestQuickBooksRefusals(t *testing.T) {
	const host = "https://quickbooks.api.intuit.com/v3/company/"
	query, other, batch := to(t, "GET", host+"1/query?query=select"), to(t, "GET", host+"2/query?query=select"), to(t, "POST", host+"1/batch", "{}")
	const xml = `<?xml version="1.0" encoding="UTF-8" standalone="yes"?><IntuitResponse xmlns="http://schema.intuit.com/finance/v3"><Fault type="SERVICE"><Error code="3001">` +
		`<Message>message=ThrottleExceeded; errorCode=003001; statusCode=403</Message><Detail>The request limit was reached.  Try again later</Detail></Error></Fault></IntuitResponse>`
	const json = `{"Fault":{"Error":[{"Message":"message=ThrottleExceeded; errorCode=003001; statusCode=403","code":"3001"}],"type":"SERVICE"}}`
	const forbidden = `{"Fault":{"Error":[{"Message":"message=ApplicationAuthorizationFailed; errorCode=003100; statusCode=403","code":"3100"}],"type":"AUTHORIZATION"}}`
	typed := func(kind string) map[string]string { return map[string]string{"Content-Type": kind} }
	checkRefusals(t, providers.QuickBooks, []refusalTest{
		{name: "429", first: query, reply: fakeapi.Reply{Status: 429}, want: time.Minute},
		{name: "a wait of its own", reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "7"}}, want: 7 * time.Second},
		{name: "other companies go on", next: other, reply: fakeapi.Reply{Status: 429}},
		{name: "403 in XML", reply: fakeapi.Reply{Status: 403, Header: typed("application/xml"), Body: xml}, want: time.Minute},
		{name: "403 in JSON", reply: fakeapi.Reply{Status: 403, Header: typed("application/json"), Body: json}, want: time.Minute},
		{name: "another 403", reply: fakeapi.Reply{Status: 403, Header: typed("application/json"), Body: forbidden}},
		{name: "batches wait", first: batch, reply: fakeapi.Reply{Status: 429}, want: time.Minute},
		{name: "others go on", next: query, reply: fakeapi.Reply{Status: 429}},
	})
	r := answers.Response{Method: "GET", Status: 403, Header: http.Header{"Content-Type": {"application/xml"}}, Body: []byte(xml), Got: time.Now()}
	if got := providers.QuickBooks().Profile.Read(r).Refusal; got.Kind != answers.Limited || got.Reason != "ThrottleExceeded" {
		t.Errorf("403 in XML: %v, reason %q", got.Kind, got.Reason)
	}
}
