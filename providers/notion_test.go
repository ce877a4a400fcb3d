package providers_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const notion = "https://api.notion.com/v1/users"

func TestNotion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := long(5 * time.Minute)
		api := standIn("notion")
		api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
		saturate(t, over(t, providers.Notion(), api), 8, d, func(int) *http.Request { return get(t, notion) })
		checkServed(t, api, 0.95*d.Minutes()*180)
	})
}

func TestNotionRefusals(t *testing.T) {
	wait := map[string]string{"Retry-After": "42"}
	for _, reply := range []fakeapi.Reply{
		{Status: 429, Header: wait, Body: `{"code":"rate_limited","additional_data":{"rate_limit_reason":"workspace"}}`},
		{Status: 529, Header: wait, Body: `{"code":"service_overload"}`},
	} {
		t.Run(fmt.Sprint(reply.Status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("notion")
				rt := over(t, providers.Notion(), api)
				api.Trap(reply)
				send(t, rt, get(t, notion))
				if status, _, took := send(t, rt, get(t, notion)); status != 200 || took != 42*time.Second {
					t.Errorf("%d after %v, want 200 after 42 s", status, took)
				}
			})
		})
	}
}

// A refusal names its reason in the body.
func TestNotionReason(t *testing.T) {
	for _, f := range readPage(t, "notion").Responses {
		want := ""
		if strings.Contains(fmt.Sprint(f.Body), "rate_limit_reason") {
			want = "REASON"
		} else if f.Status == 529 {
			want = "service_overload"
		}
		p := providers.Notion().Profile
		if r := f.Answer(time.Now()); f.Status != 200 && !p.Peeks(r.Status, r.Header) || p.Read(r).Reason != want {
			t.Errorf("%s: %+v, want the reason %q", f.Name, p.Read(r).Refusal, want)
		}
	}
}

// The budget may be spent at any pace.
func TestNotionBudget(t *testing.T) {
	checkAtOnce(t, providers.Notion, []atOnceTest{{"a connection", 180, []func() *http.Request{to(t, "GET", notion)}}})
}

func ExampleNotion() {
	client, err := providers.Notion().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("notion")) // instead of the network

	resp, err := client.Get("https://api.notion.com/v1/users")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}
