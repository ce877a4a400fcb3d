package integration_test

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/retry"
)

// Two processes that talk to many APIs share one store. What one of them learns of a host, the other
// heeds: a quota, a refusal by a preset, and a refusal by a host that has none.
func TestAutoInAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redismem.New()
		t.Cleanup(server.Close)
		refuse := false
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: http.StatusOK, Header: make(http.Header), Body: http.NoBody, Request: req}
			if refuse {
				resp.StatusCode, refuse = http.StatusTooManyRequests, false
				resp.Header.Set("Retry-After", "7")
			}
			return resp, nil
		})
		var processes [2]*throttle.Transport
		for i := range processes {
			var err error
			if processes[i], err = (providers.Auto{}).Transport(distributed.New(nearClient(t, server), distributed.Options{})); err != nil {
				t.Fatal(err)
			}
			processes[i].Base = base
		}
		took := func(client *http.Client, url string) time.Duration {
			start := time.Now()
			resp, err := client.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			io.Copy(io.Discard, resp.Body)
			if resp.StatusCode != http.StatusOK {
				return -1
			}
			return time.Since(start)
		}
		one, other := &http.Client{Transport: processes[0]}, &http.Client{Transport: processes[1]}

		const notion, unknown = "https://api.notion.com/v1/users", "https://example.com/"
		for range 180 { // its limit of a minute
			took(one, notion)
		}
		if d := took(other, notion); d < 30*time.Second {
			t.Errorf("the next request waited %v, want most of a minute", d)
		}
		for _, url := range []string{notion, unknown} {
			refuse = true
			took(one, url)
			if d := took(other, "https://elsewhere.example.com/"); d > 100*time.Millisecond {
				t.Errorf("after a refusal of %s, another host waited %v", url, d)
			}
			if d := took(other, url); d < 6*time.Second || d > 8*time.Second {
				t.Errorf("after a refusal, %s waited %v in the other process, want about 7 s", url, d)
			}
		}
		refuse = true
		if d := took(retry.NewClient(processes[0]), unknown); d < 7*time.Second || d > 9*time.Second {
			t.Errorf("a retry came after %v, want about 7 s", d)
		}
	})
}
