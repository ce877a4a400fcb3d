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

func TestSpotify(t *testing.T) {
	me, search := to(t, "GET", "https://api.spotify.com/v1/me"), to(t, "GET", "https://api.spotify.com/v1/search?q=a")
	app := func() providers.Provider { return providers.Spotify(100) }
	synctest.Test(t, func(t *testing.T) {
		rt := over(t, app(), accepting{})
		for range 100 {
			send(t, rt, me().WithContext(t.Context()))
		}
		if _, _, took := send(t, rt, search().WithContext(t.Context())); took < 30*time.Second || took > 31*time.Second {
			t.Errorf("the 101st request waited %v, want 30 s", took)
		}
	})
	refused := func(wait string) fakeapi.Reply {
		return fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": wait}, Body: `{"error":{"status":429,"message":"API rate limit exceeded"}}`}
	}
	checkRefusals(t, app, []refusalTest{
		{name: "the app waits", first: me, next: search, reply: refused("5"), want: 5 * time.Second},
		{name: "hours close the quota", next: search, reply: refused("13749"), want: closed},
		{name: "no wait named", reply: fakeapi.Reply{Status: 429}, want: backoff},
		{name: "a used-up quota of the developer", reply: fakeapi.Reply{Status: 429, Body: `{"error":{"status":429,"message":"Too many requests","reason":"QUOTA_EXCEEDED"}}`}},
	})
}

func ExampleSpotify() {
	client, err := providers.Spotify(100).Client(nil) // 100 in 30 seconds
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://api.spotify.com/v1/me")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
