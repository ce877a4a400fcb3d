package providers

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var googleWorkspacePreset = Preset{
	Name: "google-workspace", Constructor: "GoogleWorkspace(user func(*http.Request) string)", kind: "Clouds and office",
	call: func(arguments) Provider { return GoogleWorkspace(nil) },
}

// GoogleWorkspace is the API of Google Sheets, Gmail, Drive, Calendar and YouTube, with the limits
// of one project and of each of its users. The project is one that was created since May 2026;
// older ones have other limits, and [OldGmail] sets those of Gmail. The function user returns the user
// of a request, such as a mailbox. If it is nil, the client acts for one user, such as a service
// account.
//
//   - Sheets has 300 reads and 300 writes a minute, 60 and 60 for a user.
//   - Gmail has 1,200,000 units a minute, 6,000 for a user. Reading a message costs 20 and sending one
//     100. An unknown method costs 100. Google plans to bill for more than 80,000,000 units a day of a
//     project. That is no limit, so it isn't counted: add a Tier with a Budget to the scope "gmail".
//   - Drive has 1,000,000 units a minute, 325,000 for a user. Reading costs 5, listing 100, changing 50
//     and downloading 200.
//   - Calendar has 10,000 requests a minute, 600 for a user.
//   - YouTube has 10,000 units a day for the project, and also 100 searches and 100 uploads. Its days
//     begin at midnight Pacific Time. Reading costs 1, changing 50, and captions 50 to 450.
//
// Each part of a batch counts. Other APIs are not limited.
//
// A refusal has status 403 or 429 and pauses the user, or what the user changes alone: the sharing of
// files, or Gmail's settings. One that names the project's minute pauses the project. Only Gmail names a wait. When a day is used up, requests wait for midnight Pacific
// Time if MaxPause allows it. If not, the quota is closed with throttle.ErrBanned, and one request
// tries after each MaxPause. A full storage pauses nothing.
func GoogleWorkspace(user func(*http.Request) string) Provider {
	const sheets, gmail = "https://developers.google.com/workspace/sheets/api/limits", "https://developers.google.com/workspace/gmail/api/reference/quota"
	const drive, calendar = "https://developers.google.com/workspace/drive/api/guides/limits", "https://developers.google.com/workspace/calendar/api/guides/quota"
	const youtube = "https://developers.google.com/youtube/v3/determine_quota_cost"
	project := func(api string) func(*http.Request) (string, bool) {
		return func(req *http.Request) (string, bool) { return "", googleAPI(req) == api }
	}
	if user == nil {
		user = func(*http.Request) string { return "" }
	}
	ofUser := func(api string) func(*http.Request) (string, bool) {
		return func(req *http.Request) (string, bool) { return user(req), googleAPI(req) == api }
	}
	settings := func(req *http.Request) (string, bool) {
		return user(req), googleAPI(req) == "gmail" && googleChanges(req, "/settings/")
	}
	p := Provider{
		Name: "google-workspace",
		Scopes: []Scope{
			some("sheets.user", sheets, ofUser("sheets"), minute(60, "reads"), minute(60, "writes")),
			some("sheets", sheets, project("sheets"), minute(300, "reads"), minute(300, "writes")),
			some("gmail.settings", "https://github.com/googleapis/google-api-ruby-client/issues/20544", settings, minute(6_000, "gmail")), // has refusals of its own
			some("gmail.user", gmail, ofUser("gmail"), minute(6_000, "gmail")),
			some("gmail", gmail, project("gmail"), minute(1_200_000, "gmail")),
			some("drive.sharing", drive, when(googleSharing), minute(325_000, "drive")), // has refusals of its own
			some("drive.user", drive, ofUser("drive"), minute(325_000, "drive")),
			some("drive", drive, project("drive"), minute(1_000_000, "drive")),
			some("calendar.user", calendar, ofUser("calendar"), throttle.PerMinute(600)),
			some("calendar", calendar, project("calendar"), throttle.PerMinute(10_000)),
			some("youtube.search", youtube, when(youtubeMethod("/search", http.MethodGet)), googleDay(100, "")),
			some("youtube.upload", youtube, when(youtubeMethod("/videos", http.MethodPost)), googleDay(100, "")),
			some("youtube", youtube, when(func(req *http.Request) bool { return googleCost(req)["youtube"] > 0 }), googleDay(10_000, "youtube")),
		},
		Cost:    googleCost,
		Profile: googleProfile(),
		Hosts: []string{
			"www.googleapis.com", "sheets.googleapis.com", "gmail.googleapis.com", "drive.googleapis.com",
			"calendar-json.googleapis.com", "youtube.googleapis.com",
		},
	}
	for _, name := range []string{"gmail.settings", "gmail.user"} {
		p.Scope(name).Policy.MaxPause = time.Hour // Gmail names waits of 15 minutes and more
	}
	return p
}

// OldGmail changes p to the quotas of Gmail for a project that made any use of Gmail from November 2025
// to April 2026, because such a project keeps its quotas:
//
//	p := providers.GoogleWorkspace(user)
//	providers.OldGmail(&p)
//	client, err := p.Client(nil)
//
// A user has 15,000 units a minute, not 6,000. Reading a message or a draft costs 5 units, not 20, and
// reading a thread 10, not 40. Other methods cost what they do for new projects, or less. The Google
// Cloud console shows the quotas of a project. OldGmail panics if GoogleWorkspace did not return p.
//
// See https://developers.google.com/workspace/gmail/api/reference/quota, and its copy of before
// May 2026 at https://developers.google.com/gmail/api/v1/reference/quota, both read on 2026-11-28.
func OldGmail(p *Provider) {
	for _, name := range []string{"gmail.settings", "gmail.user"} {
		p.Scope(name).Policy.Tiers[0].Limit = 15_000
	}
	p.Cost = func(req *http.Request) throttle.Cost { return googleCostBy(req, oldGmailUnits) }
}

// pacific is the zone in which Google's days end.
const pacific = "America/Los_Angeles"

func googleDay(limit int64, unit string) throttle.Tier {
	return throttle.Tier{Limit: limit, Unit: unit, Algorithm: throttle.Calendar, Period: throttle.Day, Zone: pacific}
}

// googleChanges reports whether a request changes what has a text in its path.
func googleChanges(req *http.Request, path string) bool {
	return req.Method != http.MethodGet && strings.Contains(req.URL.Path, path)
}

// googleSharing reports whether a request shares a file.
func googleSharing(req *http.Request) bool {
	return googleAPI(req) == "drive" && googleChanges(req, "/permissions")
}

// googleProfile returns the profile of Google's APIs.
func googleProfile() (p answers.Profile) {
	const reason, message = "error.errors.*.reason", "error.message"
	retry := []answers.Field{{Path: message, After: "Retry after ", Format: answers.Timestamp}}
	p.Rules = []answers.Rule{{ // a page, because errors in JSON may repeat a name
		Status: http.StatusTooManyRequests, Header: "Content-Type", Value: "text/*", Text: "*may be sending automated queries*",
		Kind: answers.Banned, Wide: true, Reason: "automated queries",
	}}
	for _, status := range []int{http.StatusForbidden, http.StatusTooManyRequests} {
		p.Rules = append(p.Rules,
			answers.Rule{Status: status, Path: message, Text: "*per day' of service*", Kind: answers.Limited, Until: pacific, Reason: "day"},
			answers.Rule{Status: status, Path: message, Text: "Daily Limit Exceeded*", Kind: answers.Limited, Until: pacific, Wide: true, Reason: "day"},
			answers.Rule{Status: status, Path: "error.errors.*.domain", Text: "youtube.quota", Kind: answers.Limited, Until: pacific, Reason: "day"},
			answers.Rule{Status: status, Path: message, Text: "*per minute' of service*", Kind: answers.Limited, Wide: true, Reason: "project"},
		)
		p.Rules = append(p.Rules, answers.Rule{Status: status, Path: "error.errors.*.location", Text: "quota.download", Kind: answers.Other, Reason: "file"})
		for _, text := range []string{"rateLimitExceeded", "userRateLimitExceeded", "sharingRateLimitExceeded", "quotaExceeded", "dailyLimitExceeded"} {
			p.Rules = append(p.Rules, answers.Rule{Status: status, Path: reason, Text: text, Kind: answers.Limited, Delay: retry})
		}
	}
	return p
}

// googleAPI returns the API of a request, by its host or path.
func googleAPI(req *http.Request) string {
	host, _, _ := strings.Cut(hostOf(req), ".")
	switch host {
	case "sheets", "gmail", "drive", "youtube":
		return host
	case "calendar-json":
		return "calendar"
	}
	for part := range strings.SplitSeq(req.URL.Path, "/") {
		switch part {
		case "", "upload", "download", "resumable", "batch":
			continue
		case "gmail", "drive", "calendar", "youtube":
			return part
		}
		break
	}
	return ""
}

// googlePart matches the request lines of the parts of a batch.
var googlePart = regexp.MustCompile(`(?m)^(GET|POST|PUT|PATCH|DELETE) (\S+)`)

// googleCost returns the units of a request, or of the parts of a batch.
func googleCost(req *http.Request) throttle.Cost { return googleCostBy(req, gmailUnits) }

// googleCostBy is googleCost with the units of a method of Gmail.
func googleCostBy(req *http.Request, gmail func(method, path string) int64) throttle.Cost {
	api, cost := googleAPI(req), throttle.Cost{}
	if api == "" {
		return nil
	}
	add := func(method string, u *url.URL) {
		if api == "gmail" {
			cost["gmail"] += gmail(method, u.Path)
			return
		}
		googleMethods[api](method, u, cost)
	}
	if _, batch := strings.CutPrefix(req.URL.Path, "/batch"); batch {
		n := int64(0)
		for _, part := range googlePart.FindAllSubmatch(body(req), -1) {
			if u, err := url.Parse(string(part[2])); err == nil {
				add(string(part[1]), u)
				n++
			}
		}
		if n > 0 {
			cost["requests"] = n
			return cost
		}
	}
	add(req.Method, req.URL)
	return cost
}

// googleMethods add the units of one method of each API to a cost, except Gmail's.
var googleMethods = map[string]func(method string, u *url.URL, cost throttle.Cost){
	"sheets": func(method string, u *url.URL, cost throttle.Cost) {
		if method == http.MethodGet || strings.HasSuffix(u.Path, "ByDataFilter") && !strings.Contains(u.Path, "batchUpdate") && !strings.Contains(u.Path, "batchClear") || strings.HasSuffix(u.Path, ":search") {
			cost["reads"]++
		} else {
			cost["writes"]++
		}
	},
	"drive":    func(method string, u *url.URL, cost throttle.Cost) { cost["drive"] += driveUnits(method, u) },
	"calendar": func(string, *url.URL, throttle.Cost) {},
	"youtube":  func(method string, u *url.URL, cost throttle.Cost) { youtubeUnits(method, u.Path, cost) },
}

// gmailLimits are the units of Gmail's methods. A * stands for an id.
var gmailLimits = map[string]int64{
	"GET profile": 1, "GET history": 2, "POST watch": 100, "POST stop": 50,
	"GET messages": 5, "GET messages/*": 20, "POST messages": 25, "POST messages/import": 25, "POST messages/send": 100, "DELETE messages/*": 10,
	"POST messages/*/modify": 5, "POST messages/*/trash": 20, "POST messages/*/untrash": 5, "GET messages/*/attachments/*": 20,
	"POST messages/batchDelete": 50, "POST messages/batchModify": 50,
	"GET threads": 10, "GET threads/*": 40, "DELETE threads/*": 20, "POST threads/*/modify": 10, "POST threads/*/trash": 20, "POST threads/*/untrash": 10,
	"GET drafts": 5, "GET drafts/*": 20, "POST drafts": 10, "POST drafts/send": 100, "PUT drafts/*": 15, "DELETE drafts/*": 10,
	"GET labels": 1, "GET labels/*": 1, "POST labels": 5, "PUT labels/*": 5, "PATCH labels/*": 5, "DELETE labels/*": 5,
}

// oldGmailLimits are the units of methods that cost less before May 2026.
var oldGmailLimits = map[string]int64{
	"GET messages/*": 5, "GET messages/*/attachments/*": 5, "POST messages/*/trash": 5,
	"GET threads/*": 10, "POST threads/*/trash": 10, "GET drafts/*": 5,
}

// gmailUnits returns the units of a method of Gmail: where the costs before and since May 2026
// differ, the higher one.
func gmailUnits(method, path string) int64 {
	_, path, _ = strings.Cut(path, "/users/")
	_, path, _ = strings.Cut(path, "/")
	if method == http.MethodGet && strings.HasPrefix(path+"/", "settings/") {
		return 1
	}
	if units := unitsOf(gmailLimits, method+" "+path); units > 0 {
		return units
	}
	return 100
}

// oldGmailUnits returns the units of a method of Gmail before May 2026.
func oldGmailUnits(method, path string) int64 {
	_, call, _ := strings.Cut(path, "/users/")
	_, call, _ = strings.Cut(call, "/")
	if units := unitsOf(oldGmailLimits, method+" "+call); units > 0 {
		return units
	}
	return gmailUnits(method, path)
}

// unitsOf returns the number of the pattern that a path has the form of, or 0.
func unitsOf(limits map[string]int64, path string) int64 {
	for pattern, units := range limits {
		if matches(pattern, path) {
			return units
		}
	}
	return 0
}

// driveUnits returns the units of a method of Drive.
func driveUnits(method string, u *url.URL) int64 {
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	last := parts[len(parts)-1]
	switch {
	case method != http.MethodGet:
		return 50
	case u.Query().Get("alt") == "media", last == "export", last == "download":
		return 200
	case last == "files", last == "drives", last == "teamdrives", last == "permissions", last == "revisions", last == "comments",
		last == "replies", last == "changes", last == "apps", last == "listLabels", last == "accessproposals", last == "approvals":
		return 100
	}
	return 5
}

// youtubeMethod reports whether a request is of YouTube, with this method and end of its path.
func youtubeMethod(end, method string) func(*http.Request) bool {
	return func(req *http.Request) bool {
		return googleAPI(req) == "youtube" && req.Method == method && strings.HasSuffix(req.URL.Path, end)
	}
}

// youtubeUnits adds the units of a method of YouTube to a cost. Searches and uploads have none.
func youtubeUnits(method, path string, cost throttle.Cost) {
	captions := strings.Contains(path, "/captions")
	switch {
	case strings.HasSuffix(path, "/search") && method == http.MethodGet, strings.HasSuffix(path, "/videos") && method == http.MethodPost:
		return
	case captions && method == http.MethodPost:
		cost["youtube"] += 400
	case captions && method == http.MethodPut:
		cost["youtube"] += 450
	case captions && strings.Contains(path, "/captions/"):
		cost["youtube"] += 200
	case captions || method != http.MethodGet:
		cost["youtube"] += 50
	default:
		cost["youtube"]++
	}
}
