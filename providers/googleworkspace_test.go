package providers_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

const (
	sheets      = "https://sheets.googleapis.com/v4/spreadsheets/1"
	gmail       = "https://gmail.googleapis.com/gmail/v1/users/me/"
	googleFiles = "https://www.googleapis.com/drive/v3/files"
	calendar    = "https://www.googleapis.com/calendar/v3/calendars/primary/events"
	youtube     = "https://www.googleapis.com/youtube/v3/"
)

func TestGoogleWorkspaceScopes(t *testing.T) {
	soak.Long(t, "it plays minutes at the full rate")
	preset := func() providers.Provider { return providers.GoogleWorkspace(nil) }
	checkBurst(t, preset, "reading a sheet", 60, to(t, "GET", sheets+"/values/A1"))
	checkBurst(t, preset, "writing a sheet", 60, to(t, "PUT", sheets+"/values/A1", "{}"))
	checkBurst(t, preset, "reading and writing apart", 120, alternate(to(t, "GET", sheets), to(t, "POST", sheets+":batchUpdate", "{}")))
	checkBurst(t, preset, "a POST that reads", 60, alternate(to(t, "POST", sheets+"/values:batchGetByDataFilter", "{}"), to(t, "GET", sheets)))
	checkBurst(t, preset, "reading mail", 300, to(t, "GET", gmail+"messages/1"))
	checkBurst(t, preset, "reading an attachment", 300, to(t, "GET", gmail+"messages/1/attachments/2"))
	checkBurst(t, preset, "deleting mail to the trash", 300, alternate(to(t, "POST", gmail+"messages/1/trash"), to(t, "POST", gmail+"threads/1/trash")))
	checkBurst(t, preset, "listing mail", 1_200, to(t, "GET", gmail+"messages"))
	checkBurst(t, preset, "sending mail", 60, alternate(to(t, "POST", gmail+"messages/send", "{}"), to(t, "POST", "https://gmail.googleapis.com/upload/gmail/v1/users/me/messages/send", "{}")))
	checkBurst(t, preset, "labels", 6_000, to(t, "GET", gmail+"labels/1"))
	checkBurst(t, preset, "a new method of mail", 60, to(t, "POST", gmail+"new", "{}"))
	checkBurst(t, preset, "a batch of three messages", 100, to(t, "POST", "https://gmail.googleapis.com/batch/gmail/v1", strings.Repeat("--b\r\nContent-Type: application/http\r\n\r\nGET /gmail/v1/users/me/messages/1\r\n\r\n", 3)))
	checkBurst(t, preset, "listing files", 3_250, to(t, "GET", googleFiles))
	checkBurst(t, preset, "downloading files", 1_625, alternate(to(t, "GET", googleFiles+"/1?alt=media"), to(t, "GET", googleFiles+"/1/export")))
	checkBurst(t, preset, "changing files", 6_500, to(t, "PATCH", googleFiles+"/1", "{}"))
	checkBurst(t, preset, "events", 600, alternate(to(t, "GET", calendar), to(t, "POST", calendar, "{}")))
	checkBurst(t, preset, "searching videos", 100, to(t, "GET", youtube+"search?q=a"))
	checkBurst(t, preset, "uploading videos", 100, to(t, "POST", "https://www.googleapis.com/upload/youtube/v3/videos", "{}"))
	checkBurst(t, preset, "changing playlists", 200, to(t, "POST", youtube+"playlistItems", "{}"))
	checkBurst(t, preset, "captions", 25, to(t, "POST", "https://www.googleapis.com/upload/youtube/v3/captions", "{}"))
	checkUnlimited(t, preset, "another API", to(t, "GET", "https://www.googleapis.com/oauth2/v3/userinfo"))
}

// A project that used Gmail before May 2026 keeps its quotas.
func TestOldGmail(t *testing.T) {
	preset := func() providers.Provider {
		p := providers.GoogleWorkspace(nil)
		providers.OldGmail(&p)
		return p
	}
	checkBurst(t, preset, "reading mail", 3_000, to(t, "GET", gmail+"messages/1"))
	checkBurst(t, preset, "reading threads", 1_500, to(t, "GET", gmail+"threads/1"))
	checkBurst(t, preset, "reading drafts and attachments", 3_000, alternate(to(t, "GET", gmail+"drafts/1"), to(t, "GET", gmail+"messages/1/attachments/2")))
	checkBurst(t, preset, "sending mail", 150, to(t, "POST", gmail+"messages/send", "{}"))
	checkBurst(t, preset, "a batch of three messages", 1_000, to(t, "POST", "https://gmail.googleapis.com/batch/gmail/v1", strings.Repeat("--b\r\nContent-Type: application/http\r\n\r\nGET /gmail/v1/users/me/messages/1\r\n\r\n", 3)))
	checkBurst(t, preset, "reading a sheet", 60, to(t, "GET", sheets+"/values/A1"))
}

// Users share the project's limits.
func TestGoogleWorkspaceUsers(t *testing.T) {
	preset := func() providers.Provider {
		return providers.GoogleWorkspace(func(req *http.Request) string { return req.Header.Get("User") })
	}
	n := 0
	checkBurst(t, preset, "a hundred users", 300, func() *http.Request {
		req := to(t, "GET", sheets)()
		n++
		req.Header.Set("User", string(rune('A'+n%26)))
		return req
	})
}

func TestGoogleWorkspaceRefusals(t *testing.T) {
	sheet, write, mail, files, event, search := to(t, "GET", sheets), to(t, "PUT", sheets+"/values/A1", "{}"), to(t, "GET", gmail+"messages"), to(t, "GET", googleFiles), to(t, "GET", calendar), to(t, "GET", youtube+"search")
	refused := func(status int, reason, message string) fakeapi.Reply {
		domain := "usageLimits"
		if i := strings.Index(reason, "/"); i > 0 {
			domain, reason = reason[:i], reason[i+1:]
		}
		return fakeapi.Reply{Status: status, Header: map[string]string{"Content-Type": "application/json"},
			Body: `{"error":{"message":"` + message + `","errors":[{"domain":"` + domain + `","reason":"` + reason + `"}]}}`}
	}
	p := func() providers.Provider {
		p := providers.GoogleWorkspace(func(req *http.Request) string { return req.Header.Get("User") })
		for i := range p.Scopes {
			p.Scopes[i].Policy.MaxPause = 25 * time.Hour
		}
		return p
	}
	someone := func(next func() *http.Request) func() *http.Request {
		return func() *http.Request {
			req := next()
			req.Header.Set("User", "someone else")
			return req
		}
	}
	const minute = "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute%s' of service 'sheets.googleapis.com' for consumer 'project_number:1'."
	user, project := strings.Replace(minute, "%s", " per user", 1), strings.Replace(minute, "%s", "", 1)
	checkRefusals(t, p, []refusalTest{
		{name: "the user's minute", reply: refused(429, "rateLimitExceeded", user), first: sheet, want: backoff},
		{name: "other users go on", reply: refused(429, "rateLimitExceeded", user), next: someone(sheet)},
		{name: "other APIs go on", reply: refused(429, "rateLimitExceeded", user), next: mail},
		{name: "the project's minute", reply: refused(429, "rateLimitExceeded", project), next: someone(write), want: backoff},
		{name: "Gmail names an instant", reply: refused(403, "rateLimitExceeded", "User-rate limit exceeded.  Retry after 2000-01-01T00:15:00.269Z"), first: mail, want: 15 * time.Minute},
		{name: "the same as 429", reply: refused(429, "global/rateLimitExceeded", "User-rate limit exceeded.  Retry after 2000-01-01T00:15:00.269Z"), want: 15 * time.Minute},
		{name: "rules for forwarding", reply: refused(403, "rateLimitExceeded", "User-rate limit exceeded.  Retry after 2000-01-01T00:15:00.269Z (Forwarding rules)"), first: to(t, "POST", gmail+"settings/filters", "{}"), want: 15 * time.Minute},
		{name: "mail goes on while rules for forwarding are refused", reply: refused(403, "rateLimitExceeded", "User-rate limit exceeded.  Retry after 2000-01-01T00:15:00.269Z (Forwarding rules)"), next: mail},
		{name: "the day's mails", first: mail, reply: refused(403, "dailyLimitExceeded", "Daily user sending limit exceeded."), want: backoff},
		{name: "the day's requests, at 16:00 Pacific Time", reply: refused(403, "dailyLimitExceeded", "Daily Limit Exceeded"), first: files, want: 8 * time.Hour},
		{name: "Drive, user", reply: refused(403, "userRateLimitExceeded", "User Rate Limit Exceeded"), want: backoff},
		{name: "sharing", reply: refused(403, "global/sharingRateLimitExceeded", ""), first: to(t, "POST", googleFiles+"/1/permissions", "{}"), want: backoff},
		{name: "reading goes on while sharing is refused", reply: refused(403, "global/sharingRateLimitExceeded", ""), next: files},
		{name: "storage is full", reply: refused(403, "global/storageQuotaExceeded", "The user's Drive storage quota has been exceeded."), first: files},
		{name: "not allowed", reply: refused(403, "global/insufficientFilePermissions", "")},
		{name: "not enabled", reply: refused(403, "accessNotConfigured", "")},
		{name: "Calendar", reply: refused(403, "quotaExceeded", "Calendar usage limits exceeded."), first: event, want: backoff},
		{name: "YouTube's day", reply: refused(403, "youtube.quota/quotaExceeded", "you have exceeded your quota"), first: search, want: 8 * time.Hour},
		{name: "searches leave other methods alone", reply: refused(403, "youtube.quota/quotaExceeded", ""), next: to(t, "GET", youtube+"videos")},
		{name: "YouTube's minute", reply: refused(403, "rateLimitExceeded", "Quota exceeded for quota metric 'Queries'"), want: backoff},
		{name: "a robot", reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Content-Type": "text/html"}, Body: "your computer or network may be sending automated queries."}, first: files, want: closed},
	})
	checkRefusals(t, func() providers.Provider { return providers.GoogleWorkspace(nil) }, []refusalTest{
		{name: "a day closes the quota", reply: refused(403, "youtube.quota/quotaExceeded", ""), first: search, want: closed},
		{name: "an instant in days closes the quota", reply: refused(403, "rateLimitExceeded", "Retry after 2000-01-05T00:00:00Z"), first: mail, want: closed},
	})
}

func ExampleGoogleWorkspace() {
	client, err := providers.GoogleWorkspace(nil).Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://sheets.googleapis.com/v4/spreadsheets/1/values/A1")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
