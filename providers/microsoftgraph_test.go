package providers_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

const msGraph = "https://graph.microsoft.com/v1.0/"

func TestMicrosoftGraphScopes(t *testing.T) {
	soak.Long(t, "it plays a day")
	preset := providers.MicrosoftGraph
	graph := func(path string) func() *http.Request { return to(t, "GET", msGraph+path) }
	// The answer to a request of the directory settles its units; these cost what is estimated.
	checkBurst(t, preset, "a user", 3_500, graph("users/1"))
	checkBurst(t, preset, "users", 1_750, graph("users"))
	checkBurst(t, preset, "users, selected", 3_500, graph("users?$select=id"))
	checkBurst(t, preset, "all members of a group", 700, graph("groups/1/transitiveMembers"))
	checkBurst(t, preset, "all members of a group, expanded and few", 700, graph("groups/1/transitiveMembers?$expand=manager&$top=5"))
	checkBurst(t, preset, "what a user belongs to", 1_750, alternate(graph("me/memberOf"), graph("users/2/memberOf")))
	checkBurst(t, preset, "writes", 3_000, to(t, "PATCH", msGraph+"groups/1", "{}"))
	checkBurst(t, preset, "a batch of the directory", 1_166, to(t, "POST", msGraph+"$batch", `{"requests":[{"id":"1","method":"GET","url":"/users"},{"id":"2","method":"GET","url":"/groups/1"}]}`))
	checkBurst(t, preset, "files", 1_200, graph("drives/1/items/2"))
	checkBurst(t, preset, "a user's files and a site's", 600, alternate(graph("me/drive/root/children"), graph("sites/1/lists")))
	checkBurst(t, preset, "permissions", 240, graph("drives/1/items/2/permissions"))
	checkBurst(t, preset, "SharePoint's own API", 600, to(t, "GET", "https://contoso.sharepoint.com/_api/web/lists"))
	checkBurst(t, preset, "a team", 4, graph("teams/1/channels"))
	checkBurst(t, preset, "two teams", 8, alternate(graph("teams/1/channels"), graph("teams/2/channels")))
	checkBurst(t, preset, "OneNote", 120, graph("me/onenote/pages"))
	checkBurst(t, preset, "presence", 1_500, alternate(graph("users/1/presence"), graph("communications/presences/1")))
	checkBurst(t, preset, "sign-ins", 5, graph("auditLogs/signIns"))
	checkBurst(t, preset, "conditional access", 1, alternate(graph("identity/conditionalAccess/policies"), graph("identityProtection/riskyUsers")))
	checkBurst(t, preset, "uploads to a mailbox", 2, to(t, "POST", msGraph+"me/messages", string(make([]byte, 60_000_000))))
}

// Below /me each user has a mailbox, whatever the token. The mailbox of an id is the same in /users/{id}.
func TestMicrosoftGraphMe(t *testing.T) {
	const ann, bob = "00aa00aa-bb11-cc22-dd33-44ee44ee44ee", "11aa00aa-bb11-cc22-dd33-44ee44ee44ee"
	token := func(claims string) string {
		return "Bearer e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2lnbmF0dXJl"
	}
	by := func(path, authorization string) func() *http.Request {
		return func() *http.Request {
			req := get(t, msGraph+path)
			req.Header.Set("Authorization", authorization)
			return req
		}
	}
	me := func(claims string) func() *http.Request { return by("me/messages", token(claims)) }
	for _, test := range []struct {
		name string
		next func() *http.Request
		want int
	}{
		{"two users", alternate(me(`{"oid":"`+ann+`"}`), me(`{"oid":"`+bob+`"}`)), 8},
		{"two tokens of a user", alternate(me(`{"oid":"`+ann+`","iat":1}`), me(`{"oid":"`+ann+`","iat":2}`)), 4},
		{"two tokens of a subject", alternate(me(`{"sub":"s","iat":1}`), me(`{"sub":"s","iat":2}`)), 4},
		{"a user's id", alternate(me(`{"oid":"`+ann+`"}`), by("users/"+ann+"/events", token(`{"oid":"`+bob+`"}`))), 4},
		{"tokens that can't be read", alternate(by("me/messages", "Bearer EwBwA8l6"), by("me/messages", "Bearer EwBwA8l7")), 8},
		{"an id that is none", alternate(me(`{"oid":"secret"}`), me(`{"oid":"secret"}`)), 4},
		{"a batch", alternate(func() *http.Request {
			req := postJSON(t, msGraph+"$batch", `{"requests":[{"method":"GET","url":"/me/messages"}]}`)
			req.Header.Set("Authorization", token(`{"oid":"`+ann+`"}`))
			return req
		}, me(`{"oid":"`+ann+`"}`)), 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if n := atATime(t, providers.MicrosoftGraph(), 20, test.next); n != test.want {
					t.Errorf("%d at once, want %d", n, test.want)
				}
			})
		})
	}
	mailbox := providers.MicrosoftGraph().Scope("mailbox").Key
	for _, authorization := range []string{"Bearer opaque-secret", token(`{"oid":"secret"}`), token(`{"sub":"secret"}`), token("secret")} {
		if key, _ := mailbox(by("me/messages", authorization)()); len(key) != 16 || strings.Contains(key, "secret") {
			t.Errorf("%s: the key is %q", authorization, key)
		}
	}
}

// A mailbox serves four requests at once, whatever their number in a batch.
func TestMicrosoftGraphMailbox(t *testing.T) {
	const batch = `{"requests":[{"method":"GET","url":"/users/a/messages"},{"method":"GET","url":"/users/a/events"},{"method":"GET","url":"/users/a/messages/1"},{"method":"GET","url":"/users/a/messages/2"},{"method":"GET","url":"/users/a/messages/3"}]}`
	mail := to(t, "GET", msGraph+"users/a/messages")
	for _, test := range []struct {
		name string
		next func() *http.Request
		want int
	}{
		{"one by one", mail, 4},
		{"batches", to(t, "POST", msGraph+"$batch", batch), 1},
		{"two mailboxes", alternate(mail, to(t, "GET", msGraph+"users/b/messages")), 8},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if n := atATime(t, providers.MicrosoftGraph(), 10, test.next); n != test.want {
					t.Errorf("%d at once, want %d", n, test.want)
				}
			})
		})
	}
}

func TestMicrosoftGraphRefusals(t *testing.T) {
	users, mail, site := to(t, "GET", msGraph+"users"), to(t, "GET", msGraph+"users/a/messages"), to(t, "GET", msGraph+"sites/root")
	after := func(status int, seconds string) fakeapi.Reply {
		return fakeapi.Reply{Status: status, Header: map[string]string{"Retry-After": seconds}, Body: `{"error":{"code":"TooManyRequests"}}`}
	}
	checkRefusals(t, providers.MicrosoftGraph, []refusalTest{
		{name: "429", reply: after(429, "10"), first: users, want: 10 * time.Second},
		{name: "429 of another service", reply: after(429, "10"), next: mail},
		{name: "429 without a wait", reply: fakeapi.Reply{Status: 429}, want: backoff},
		{name: "busy mailbox", reply: after(429, "10"), first: mail, want: 10 * time.Second},
		{name: "another mailbox goes on", reply: after(429, "10"), first: mail, next: to(t, "GET", msGraph+"users/b/messages")},
		{name: "503 of five minutes", reply: after(503, "300"), first: site, want: 5 * time.Minute},
		{name: "503 without a wait", reply: fakeapi.Reply{Status: 503}},
		{name: "minutes", reply: after(429, "315"), want: 315 * time.Second},
		{name: "an hour closes the service", reply: after(503, "3600"), want: closed},
		{name: "others used the minute up", reply: fakeapi.Reply{Header: map[string]string{"RateLimit-Limit": "1200", "RateLimit-Remaining": "0", "RateLimit-Reset": "31"}}, want: 31 * time.Second},
		{name: "forbidden", reply: fakeapi.Reply{Status: 403, Body: `{"error":{"code":"Authorization_RequestDenied"}}`}},
		{name: "a part of a batch", reply: fakeapi.Reply{Body: `{"responses":[{"id":"2","status":429,"headers":{"Retry-After":"8"}}]}`}, first: to(t, "POST", msGraph+"$batch", `{"requests":[{"method":"GET","url":"/users"}]}`)},
	})
}

// Responses report what a request of the directory cost.
func TestMicrosoftGraphCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := replying{Header: map[string]string{"x-ms-resource-unit": "1"}}
		rt := over(t, providers.MicrosoftGraph(), &server)
		n := 0
		for ; n < 4_000; n++ {
			if _, _, took := send(t, rt, get(t, msGraph+"groups/1/transitiveMembers")); took > 0 {
				break
			}
		}
		if n < 3_490 || n > 3_500 {
			t.Errorf("%d requests at 1 unit, want 3,500 less one estimate", n)
		}
	})
}

func ExampleMicrosoftGraph() {
	client, err := providers.MicrosoftGraph().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://graph.microsoft.com/v1.0/me/messages")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
