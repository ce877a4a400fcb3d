package targets_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/targets"
)

// Two deployments of a model, each with its own limit, address and key, are one client.
func Example() {
	deployment := func(region string) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s: %s with %s", region, r.URL.Path, r.Header.Get("Api-Key"))
		}))
	}
	east, west := deployment("east"), deployment("west")
	defer east.Close()
	defer west.Close()

	to, err := targets.New(map[string]targets.Target{
		"east": {URL: east.URL + "/openai/v1", Strip: "/v1", Header: http.Header{"Api-Key": {"key-of-east"}}},
		"west": {URL: west.URL + "/openai/v1", Strip: "/v1", Header: http.Header{"Api-Key": {"key-of-west"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var members []throttle.Member
	for _, name := range []string{"east", "west"} {
		lim, err := throttle.New(throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerMinute(1)}}, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		members = append(members, throttle.Member{Name: name, Limiter: lim})
	}
	pool, err := throttle.NewPool(members...)
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: &throttle.Transport{Pool: pool, Rewrite: to.Rewrite}}

	for range 2 {
		resp, err := client.Post("https://api.example/v1/chat", "text/plain", strings.NewReader("hello"))
		if err != nil {
			fmt.Println(err)
			return
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Println(string(text))
	}
	// Output:
	// east: /openai/v1/chat with key-of-east
	// west: /openai/v1/chat with key-of-west
}
