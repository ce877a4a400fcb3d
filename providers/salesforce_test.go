package providers_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const salesforce = "https://acme.my.salesforce.com/services/data/v62.0/query"

func TestSalesforceScopes(t *testing.T) {
	preset := func() providers.Provider { return providers.Salesforce(20) }
	query := to(t, "GET", salesforce)
	checkBurst(t, preset, "an org's day", 20, alternate(query, to(t, "POST", "https://acme.my.salesforce.com/services/Soap/u/50.0", "<x/>")))
	checkBurst(t, preset, "two hosts of one org", 20, alternate(query, to(t, "GET", "https://acme.lightning.force.com/services/data/v62.0/query")))
	checkBurst(t, preset, "two orgs", 40, alternate(query, to(t, "GET", "https://acme--dev.sandbox.my.salesforce.com/services/data/v62.0/query")))
	const composite = "https://acme.my.salesforce.com/services/data/v62.0/composite"
	checkBurst(t, preset, "batches of three calls", 6, to(t, "POST", composite+"/batch", `{"batchRequests":[{"method":"GET","url":"v62.0/limits"},{},{}]}`))
	checkBurst(t, preset, "another composite call is one", 20, to(t, "POST", composite, `{"compositeRequest":[{},{},{}]}`))
	checkBurst(t, func() providers.Provider { return providers.Salesforce(100) }, "batches that can't be read", 4, to(t, "POST", composite+"/batch", `{"batchRequests":[`))
	checkUnlimited(t, preset, "the list of versions is free", to(t, "GET", "https://acme.my.salesforce.com/services/data/"))
	checkUnlimited(t, preset, "logging in is free", to(t, "POST", "https://login.salesforce.com/services/oauth2/token", "{}"))
}

func TestSalesforceRefusals(t *testing.T) {
	query := to(t, "GET", salesforce)
	refused := func(message string) fakeapi.Reply {
		return fakeapi.Reply{Status: 403, Header: map[string]string{"Content-Type": "application/json"}, Body: `[{"message":"` + message + `","errorCode":"REQUEST_LIMIT_EXCEEDED"}]`}
	}
	used := func(value string) fakeapi.Reply {
		return fakeapi.Reply{Header: map[string]string{"Sforce-Limit-Info": value}}
	}
	checkRefusals(t, func() providers.Provider { return providers.Salesforce(15_000) }, []refusalTest{
		{name: "day", reply: refused("TotalRequests Limit exceeded."), first: query, want: backoff},
		{name: "long calls", reply: refused("ConcurrentRequests (Concurrent API Requests) Limit exceeded."), want: backoff},
		{name: "long transactions", reply: refused("ConcurrentPerOrgLongTxn Limit exceeded."), want: backoff},
		{name: "SOAP", reply: fakeapi.Reply{Status: 500, Header: map[string]string{"Content-Type": "text/xml"}, Body: "<soapenv:Fault><faultcode>sf:REQUEST_LIMIT_EXCEEDED</faultcode></soapenv:Fault>"}, want: backoff},
		{name: "a fault in a message", reply: fakeapi.Reply{Status: 500, Header: map[string]string{"Content-Type": "application/json"}, Body: `[{"errorCode":"APEX_ERROR","message":"<faultcode>sf:REQUEST_LIMIT_EXCEEDED</faultcode>"}]`}},
		{name: "another fault", reply: fakeapi.Reply{Status: 500, Body: "<faultstring>REQUEST_LIMIT_EXCEEDED</faultstring>"}},
		{name: "a locked record", reply: fakeapi.Reply{Status: 400, Body: `[{"errorCode":"UNABLE_TO_LOCK_ROW"}]`}},
		{name: "not allowed", reply: fakeapi.Reply{Status: 403, Body: `[{"errorCode":"INSUFFICIENT_ACCESS"}]`}},
		{name: "another org goes on", reply: refused("TotalRequests Limit exceeded."), next: to(t, "GET", "https://other.my.salesforce.com/services/data/v62.0/query")},
		{name: "others used the day up", reply: used("api-usage=15000/15000"), want: 24 * time.Hour / 15_000},
		{name: "others used more than there is", reply: used("api-usage=15100/15000"), want: 24 * time.Hour / 15_000},
		{name: "absurd use", reply: used("api-usage=999999999999999/15000"), want: 24 * time.Hour / 15_000},
		{name: "bursts are another quota", reply: used("api-usage=18/15000; api-bursts=749/750"), want: 0},
		{name: "the app's share is another quota", reply: used("api-usage=18/15000; per-app-api-usage=250/250(appName=a)"), want: 0},
	})
}

// Calls of a day ago make room, which the next response reports.
func TestSalesforceUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := replying{Header: map[string]string{"Sforce-Limit-Info": "api-usage=15000/15000"}}
		rt := over(t, providers.Salesforce(15_000), &server)
		send(t, rt, get(t, salesforce))
		server.Header["Sforce-Limit-Info"] = "api-usage=14000/15000"
		send(t, rt, get(t, salesforce))
		n := 0
		for ; n < 2_000; n++ {
			if _, _, took := send(t, rt, get(t, salesforce)); took > 0 {
				break
			}
			server.Header = nil
		}
		if n < 995 || n > 1_005 {
			t.Errorf("%d calls after 1,000 were free", n)
		}
	})
}

func ExampleSalesforce() {
	client, err := providers.Salesforce(100_000).Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://acme.my.salesforce.com/services/data/v62.0/query?q=SELECT+Id+FROM+Account")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
