package providers_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const hubspot = "https://api.hubapi.com/crm/v3/objects/contacts"

func TestHubSpot(t *testing.T) {
	d := long(3 * time.Minute)
	for _, load := range []struct {
		name, url string
		want      float64 // a minute
	}{
		{"reading", hubspot, 600},
		{"searching", hubspot + "/search", 300},
	} {
		t.Run(load.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("hubspot")
				api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
				saturate(t, over(t, providers.HubSpot("UTC"), api), 16, d, func(int) *http.Request { return get(t, load.url) })
				checkServed(t, api, 0.95*d.Minutes()*load.want)
			})
		})
	}
}

// Searches are no part of an app's requests, but of the day.
func TestHubSpotSearchesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := over(t, providers.HubSpot(""), accepting{})
		for range 100 {
			send(t, rt, get(t, hubspot))
		}
		if _, _, took := send(t, rt, get(t, hubspot+"/search")); took > 0 {
			t.Errorf("a search waited %v for the requests of an app", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := providers.HubSpot("")
		p.Scope("account").Policy.Tiers[0].Limit = 2
		rt := over(t, p, accepting{})
		send(t, rt, get(t, hubspot+"/search"))
		send(t, rt, get(t, hubspot))
		if _, _, took := send(t, rt, get(t, hubspot+"/search")); took != 24*time.Hour {
			t.Errorf("the third request of a day of two waited %v", took)
		}
	})
}

// The day ends at midnight in the account's zone, which is 05:00 UTC. Responses report the use of
// other apps.
func TestHubSpotDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, err := time.LoadLocation("America/New_York")
		if err != nil {
			t.Fatal(err)
		}
		api := standIn("hubspot", "day=300/day;zone=America/New_York")
		p := providers.HubSpot(zone.String())
		p.Scope("account").Policy.Tiers[0].Limit = 300
		for range 50 {
			send(t, api, get(t, hubspot))
		}
		saturate(t, over(t, p, api), 1, 10*time.Hour, func(int) *http.Request { return get(t, hubspot) })
		checkServed(t, api, 600)
	})
}

func TestHubSpotRefusals(t *testing.T) {
	for _, test := range []struct {
		name     string
		reply    fakeapi.Reply
		min, max time.Duration
	}{
		{"daily limit until midnight in the account's zone", fakeapi.Reply{Status: 429, Body: `{"status":"error","policyName":"DAILY"}`}, 5 * time.Hour, 5*time.Hour + time.Second},
		{"ten seconds, without a wait", fakeapi.Reply{Status: 429, Body: `{"status":"error","policyName":"TEN_SECONDLY_ROLLING"}`}, time.Second, 2 * time.Second},
		{"daily limit in the body of the CRM", fakeapi.Reply{Status: 429, Body: `{"category":"RATE_LIMITS","message":"You have reached your daily limit."}`}, 5 * time.Hour, 5*time.Hour + time.Second},
		{"a record is locked, which concerns no other", fakeapi.Reply{Status: 423}, 0, 0},
		{"the account migrates", fakeapi.Reply{Status: 477, Header: map[string]string{"Retry-After": "2"}}, 2 * time.Second, 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("hubspot")
				p := providers.HubSpot("America/New_York") // midnight is at 05:00 UTC
				p.Scope("account").Policy.MaxPause = 24 * time.Hour
				rt := over(t, p, api)
				api.Trap(test.reply)
				send(t, rt, get(t, hubspot))
				if status, _, took := send(t, rt, get(t, hubspot)); status != 200 || took < test.min || took > test.max {
					t.Errorf("%d after %v, want 200 after %v to %v", status, took, test.min, test.max)
				}
			})
		})
	}
}

// Each host of the API has the app's limit.
func TestHubSpotHosts(t *testing.T) {
	for _, host := range []string{"api.hubapi.com", "api-eu1.hubapi.com", "api.hubspot.com"} {
		checkBurst(t, func() providers.Provider { return providers.HubSpot("") }, host, 100, to(t, "GET", "https://"+host+"/crm/v3/objects/contacts"))
	}
}

func ExampleHubSpot() {
	client, err := providers.HubSpot("America/New_York").Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("hubspot")) // instead of the network

	resp, err := client.Get("https://api.hubapi.com/crm/v3/objects/contacts")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.Header.Get("X-HubSpot-RateLimit-Remaining"), "of", resp.Header.Get("X-HubSpot-RateLimit-Max"), "left")
	// Output: 99 of 100 left
}
