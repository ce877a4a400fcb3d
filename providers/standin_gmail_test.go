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

// olderGmail returns the preset of a project that used Gmail before May 2026.
func olderGmail() providers.Provider {
	p := providers.GoogleWorkspace(nil)
	providers.OldGmail(&p)
	return p
}

// newOlderGmail is Gmail for a project that used it between November 2025 and April 2026, which keeps the
// quotas of the earlier page: developers.google.com/gmail/api/v1/reference/quota (a copy of before May
// 2026, read 2026-11-28) has 15,000 units a minute for a user, 1,200,000 for the project, and 5 for
// messages.get. The refusal is recorded in testdata/fixtures/googleworkspace.json.
func newOlderGmail() *pageAPI {
	units := func(arrivedRequest) int64 { return 5 }
	refusal := says(403, `{"error":{"code":403,"message":"Quota exceeded for quota metric 'Total Query Cost' and limit 'Units per minute per user' of service 'gmail.googleapis.com' for consumer 'project_number:1'.","errors":[{"message":"Quota exceeded","domain":"usageLimits","reason":"rateLimitExceeded"}],"status":"PERMISSION_DENIED"}}`)
	return &pageAPI{
		limits: []pageLimit{
			{name: "user", tier: tierOf("15000/m"), cost: units, refusal: refusal},
			{name: "project", tier: tierOf("1200000/m"), cost: units, refusal: refusal},
		},
		answer: func(*pageAPI, arrivedRequest) fakeapi.Reply { return fakeapi.Reply{Body: `{"id":"1"}`} },
	}
}

// A project that used Gmail before May 2026 reads 3,000 messages in a minute.
func TestOlderGmailProject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newOlderGmail()
		took := sendAll(t, over(t, olderGmail(), api), 20, 3_000, func(i int) *http.Request {
			return withBody(t, "GET", fmt.Sprint("https://gmail.googleapis.com/gmail/v1/users/me/messages/19cbf939a6b6fb", i), "", "", "Authorization: Bearer x")
		})
		checkNoneRefused(t, api)
		checkTook(t, "3,000 messages", took, time.Minute, 0.95)
	})
}
