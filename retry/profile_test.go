package retry_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/retry"
)

type scriptedBase func() (status int, body string)

func (f scriptedBase) RoundTrip(*http.Request) (*http.Response, error) {
	status, body := f()
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

// The client retries responses that the Profile classifies as a lack of quota, whatever their
// status. It does not retry responses that the Profile classifies otherwise.
func TestProfile(t *testing.T) {
	profile := &answers.Profile{Rules: []answers.Rule{
		{Status: 429, Path: "code", Text: "insufficient_quota", Kind: answers.Other},
		{Status: 418, Kind: answers.Banned},
		{Status: 200, Path: "code", Text: "THROTTLED", Kind: answers.Limited, Wait: 3 * time.Second},
	}}
	for _, tt := range []struct {
		status   int
		body     string
		attempts int
		took     time.Duration
	}{
		{429, `{"code": "insufficient_quota"}`, 1, 0},
		{418, `{}`, 1, 0},
		{200, `{"code": "THROTTLED"}`, 2, 3 * time.Second},
		{200, `{"code": "OK"}`, 1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			attempts := 0
			lim, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(10)}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			client := retry.NewClient(&throttle.Transport{Limiter: lim, Profile: profile, Base: scriptedBase(func() (int, string) {
				if attempts++; attempts == 1 {
					return tt.status, tt.body
				}
				return 200, `{"code": "OK"}`
			})})
			began := time.Now()
			resp, err := client.Post("http://api.test/", "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if attempts != tt.attempts || time.Since(began) != tt.took {
				t.Errorf("%d %s: %d attempts in %v, want %d in %v", tt.status, tt.body, attempts, time.Since(began), tt.attempts, tt.took)
			}
			if attempts == 1 && (resp.StatusCode != tt.status || string(body) != tt.body) {
				t.Errorf("returned %d %s, want %d %s", resp.StatusCode, body, tt.status, tt.body)
			}
		})
	}
}
