package corpus_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fixtures"
)

// isRate reports whether the fixture is a refusal for lack of quota, which a wait of its own mends.
func isRate(f fixtures.Response) bool {
	m := f.Means
	return m.Refused == true && m.Kind != "outage" && m.Kind != "poison" && m.Kind != "spend" && m.Kind != "lockout" && m.Of != "nothing" && m.Of != "object"
}

func TestCommonFixtures(t *testing.T) {
	files, err := filepath.Glob("../../providers/testdata/fixtures/*.json")
	if err != nil || len(files) < 40 {
		t.Fatal(len(files), err)
	}
	n := 0
	for _, file := range files {
		for _, f := range fixtures.Read(t, file).Responses {
			n++
			got, zero := Common().Read(f.Answer(monday)), Profile{}.Read(f.Answer(monday))
			why := contradicts(got, zero, f)
			if len(got.Readings)+len(got.Charged) > 0 {
				why = "which reads more than refusals"
			}
			if why != "" {
				t.Errorf("%s: %q, status %d, %+v: read %s, %s", filepath.Base(file), f.Name, f.Status, f.Means, format(got), why)
			}
		}
	}
	t.Logf("%d fixtures", n)
}

// contradicts returns how an answer contradicts the fixture beyond what the standards say, or "".
func contradicts(got, zero Answer, f fixtures.Response) string {
	switch {
	case got.Kind == Limited && !isRate(f) && f.Means.Of != "object" && zero.Kind != Limited:
		return "which is no refusal for lack of quota"
	case got.Kind != Limited && got.Kind != Passed && isRate(f):
		return "which is a refusal for lack of quota"
	case got.Kind != Limited && zero.Kind == Limited && isRate(f):
		return "which the standards read as a refusal"
	case !got.Known || got.Delay == zero.Delay:
		return ""
	}
	text := fmt.Sprint(f.Means.Wait)
	want, err := time.ParseDuration(durations.FindString(text))
	if text == "until midnight Pacific" {
		la, _ := time.LoadLocation("America/Los_Angeles")
		now := f.Answer(monday).Got.In(la)
		want, err = time.Date(now.Year(), now.Month(), now.Day()+1, 0, 0, 0, 0, la).Sub(now), nil
	}
	if _, iso, found := strings.Cut(text, "until 20"); found {
		var at time.Time
		if at, err = time.Parse(time.RFC3339, "20"+strings.Fields(iso)[0]); err == nil {
			want = at.Sub(f.Answer(monday).Got)
		}
	}
	if text == "until 00:00 UTC" {
		want, err = f.Answer(monday).Got.Truncate(24*time.Hour).Add(24*time.Hour).Sub(f.Answer(monday).Got), nil
	}
	if slack := time.Second + want/10; err != nil || got.Delay < want-slack || got.Delay > want+slack {
		return "whose wait is another"
	}
	return ""
}

var durations = regexp.MustCompile(`\b([0-9.]+(h|ms|m|s))+\b`)

// TestCommonProfiles checks Common against the profiles of the examples in testdata: what both read,
// they read alike.
func TestCommonProfiles(t *testing.T) {
	if err := Common().Validate(); err != nil {
		t.Error(err)
	}
	for _, p := range providers(t) {
		for _, c := range p.cases() {
			want, got, zero := read(profiles[p.Provider], c.Response), Common().Read(c.Response), Profile{}.Read(c.Response)
			switch {
			case got.Kind == zero.Kind && got.Delay == zero.Delay:
			case got.Kind != want.Kind, got.Known && (got.Delay-want.Delay).Abs() > time.Second:
				t.Errorf("%s, status %d, %s: read %s, the profile %s", p.Provider, c.Status, c.what, format(got), format(want))
			}
		}
	}
}

// TestCommonResets reads the resets of three families of headers. Only those that can't be mistaken
// are read, and only if a 429 reports that nothing is left.
func TestCommonResets(t *testing.T) {
	for value, want := range map[string]string{
		"1777896041":                    "41s",
		"1777896041500":                 "41.5s",
		"2026-05-04T12:00:41Z":          "41s",
		"2026-05-04T12:00:41.5Z":        "41.5s",
		"2026-05-04T14:00:41+02:00":     "41s",
		"2026-05-04T12:01Z":             "1m0s",
		"Mon, 04 May 2026 12:00:41 GMT": "41s",
		"6m0s":                          "6m0s",
		"547ms":                         "547ms",
		"1d2h":                          "26h0m0s",
		"41":                            "", // seconds left, or anything
		"41.5":                          "",
		"0":                             "",
		"60000":                         "", // milliseconds left, or seconds
		"86400":                         "",
		"100000000":                     "", // 1973
		"1577896041":                    "", // 2020
		"1777895041":                    "", // past
		"1780660800":                    "", // 32 days ahead
		"4102444800":                    "", // 2100
		"1777896041000000":              "", // microseconds
		"1777896041.5":                  "", // not in these headers
		"9223372036854775807":           "",
		"-41":                           "",
		"-41s":                          "",
		"+1777896041":                   "",
		"0x69f8a0a9":                    "",
		"1.777896041e9":                 "",
		"1,777,896,041":                 "",
		"1777896041, 1777899600":        "",
		"1777896041;w=60":               "",
		"2026-05-04":                    "",
		"2026-05-04T12:00:41":           "",
		"2026-05-04 12:00:41":           "",
		"12:00:41":                      "",
		"20260504120041":                "",
		"Mon May 04 2026 12:00:41":      "",
		"Mon, 04 May 2026 12:00:41 PST": "",
		"now":                           "",
		"soon":                          "",
		"null":                          "",
		"NaN":                           "",
		"Infinity":                      "",
		"":                              "",
		"h":                             "",
		"1y":                            "",
		"5 minutes":                     "",
		"PT41S":                         "",
	} {
		for _, family := range []string{"X-RateLimit-", "X-Rate-Limit-", "RateLimit-"} {
			for _, c := range []struct {
				status int
				left   string
				kind   string
				known  bool
			}{
				{429, "0", "limited", true}, {429, "1", "limited", false}, {429, "", "limited", false}, {429, "-1", "limited", false},
				{200, "0", "nothing", false}, {403, "0", "nothing", false}, {503, "0", "nothing", false}, {500, "0", "nothing", false},
			} {
				expect := c.kind
				if c.known && want != "" {
					expect += " for " + want
				}
				if got := format(Common().Read(response(c.status, "", family+"Remaining: "+c.left, family+"Reset: "+value))); got != expect {
					t.Errorf("%d, %q left, %sReset: %s: read %s, want %s", c.status, c.left, family, value, got, expect)
				}
			}
		}
	}
}

// TestCommon has bodies and headers that look like others.
func TestCommon(t *testing.T) {
	const left = "X-RateLimit-Remaining: 0"
	runWith(t, Common(), []readTest{
		{name: "a success", status: 200, lines: []string{left, "X-RateLimit-Reset: 1777896041", "Retry-After: 5"}, want: "nothing"},
		{name: "a success that speaks of a refusal", status: 200, body: `{"error":{"errors":[{"reason":"rateLimitExceeded"}]},"__type":"ThrottlingException"}`, want: "nothing"},
		{name: "429", status: 429, want: "limited"},
		{name: "429 with Retry-After", status: 429, lines: []string{"Retry-After: 7"}, want: "limited for 7s"},
		{name: "429 with an epoch", status: 429, lines: []string{"Retry-After: 1777896041"}, want: "limited for 41s"},
		{name: "milliseconds", status: 429, lines: []string{"Retry-After: 1", "retry-after-ms: 125.5"}, want: "limited for 125.5ms"},
		{name: "milliseconds of Azure", status: 429, lines: []string{"x-ms-retry-after-ms: 4120"}, want: "limited for 4.12s"},
		{name: "milliseconds of zero", status: 429, lines: []string{"Retry-After: 1", "retry-after-ms: 0"}, want: "limited for 1s"},
		{name: "milliseconds that are words", status: 429, lines: []string{"Retry-After: 1", "retry-after-ms: soon"}, want: "limited for 1s"},
		{name: "milliseconds of years", status: 429, lines: []string{"Retry-After: 1", "retry-after-ms: 99999999999999"}, want: "limited for 1s"},
		{name: "Retry-After before a reset", status: 429, lines: []string{left, "X-RateLimit-Reset: 1777899600", "Retry-After: 5"}, want: "limited for 5s"},
		{name: "two families", status: 429, lines: []string{left, "X-RateLimit-Reset: 1777896041", "RateLimit-Remaining: 0", "RateLimit-Reset: 1777899600"}, want: "limited for 41s"},
		{name: "the other family is spent", status: 429, lines: []string{"X-RateLimit-Remaining: 5", "X-RateLimit-Reset: 1777896041", "RateLimit-Remaining: 0", "RateLimit-Reset: 1777899600"}, want: "limited for 1h0m0s"},
		{name: "a day is spent, which this family does not count", status: 429, lines: []string{"x-rate-limit-remaining: 90", "x-rate-limit-reset: 1777896041", "x-user-limit-24hour-remaining: 0", "x-user-limit-24hour-reset: 1777982400"}, want: "limited"},
		{name: "IETF seconds", status: 429, lines: []string{"RateLimit-Remaining: 0", "RateLimit-Reset: 41"}, want: "limited"},
		{name: "Okta's other quota", status: 429, lines: []string{"X-Rate-Limit-Limit: 0", "X-Rate-Limit-Remaining: 0", "X-Rate-Limit-Reset: 1777896041"}, want: "limited"},
		{name: "full in ten minutes, OpenAI", status: 429, lines: []string{"x-ratelimit-remaining-requests: 0", "x-ratelimit-reset-requests: 10m0s"}, want: "limited"},

		{name: "503", status: 503, want: "nothing"},
		{name: "503 with minutes", status: 503, lines: []string{"Retry-After: 300"}, want: "limited for 1m0s"},
		{name: "503 with milliseconds alone", status: 503, lines: []string{"retry-after-ms: 125"}, want: "nothing"},
		{name: "S3", status: 503, lines: []string{"Content-Type: application/xml"}, body: "<Error><Code>SlowDown</Code></Error>", want: `limited "SlowDown"`},
		{name: "S3 at fault", status: 503, lines: []string{"Content-Type: application/xml"}, body: "<Error><Code>ServiceUnavailable</Code></Error>", want: "nothing"},
		{name: "529", status: 529, lines: []string{"Retry-After: 5"}, want: "nothing"},

		{name: "Google: user", status: 403, body: `{"error":{"errors":[{"domain":"usageLimits","reason":"userRateLimitExceeded"}],"code":403}}`, want: `limited "userRateLimitExceeded"`},
		{name: "Google: project", status: 403, body: `{"error":{"errors":[{"domain":"global","reason":"x"},{"reason":"rateLimitExceeded"}]}}`, want: `limited "rateLimitExceeded"`},
		{name: "Google: instant", status: 403, body: `{"error":{"message":"User-rate limit exceeded.  Retry after 2026-05-04T12:15:00.269Z","errors":[{"reason":"rateLimitExceeded"}]}}`, want: `limited for 15m0.269s "rateLimitExceeded"`},
		{name: "Google: storage", status: 403, body: `{"error":{"errors":[{"domain":"global","reason":"storageQuotaExceeded"}]}}`, want: "nothing"},
		{name: "Google: not enabled", status: 403, body: `{"error":{"errors":[{"domain":"usageLimits","reason":"accessNotConfigured"}]}}`, want: "nothing"},
		{name: "Google: not allowed", status: 403, body: `{"error":{"errors":[{"reason":"insufficientPermissions"}]}}`, want: "nothing"},
		{name: "Google: delay", status: 429, body: `{"error":{"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"34.074824224s"}]}}`, want: "limited for 34.074825s"},
		{name: "Google: delay in an array", status: 429, body: `[{"error":{"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"22s"}]}}]`, want: "limited for 22s"},
		{name: "Google: day", status: 429, body: strings.Replace(gemini, "%s", "Day", 1), want: `limited for 19h0m0s "PerDay"`},
		{name: "Google: delay without a unit", status: 429, body: `{"error":{"details":[{"retryDelay":"22"}]}}`, want: "limited"},
		{name: "Google: delay of zero", status: 429, body: `{"error":{"details":[{"retryDelay":"0s"}]}}`, want: "limited"},
		{name: "Google: delay of years", status: 429, body: `{"error":{"details":[{"retryDelay":"99999h"}]}}`, want: "limited"},
		{name: "Google: delay of a success", status: 200, body: `{"error":{"details":[{"retryDelay":"22s"}]}}`, want: "nothing"},

		{name: "AWS", status: 400, body: `{"__type":"com.amazonaws.x#ThrottlingException"}`, want: `limited "ThrottlingException"`},
		{name: "AWS: short", status: 400, body: `{"__type":"ProvisionedThroughputExceededException"}`, want: `limited "ProvisionedThroughputExceededException"`},
		{name: "AWS: header", status: 400, lines: []string{"X-Amzn-ErrorType: ThrottlingException:http://internal.amazon.com/"}, want: `limited "ThrottlingException"`},
		{name: "AWS: XML", status: 400, lines: []string{"Content-Type: text/xml"}, body: "<Response><Errors><Error><Code>RequestLimitExceeded</Code></Error></Errors></Response>", want: `limited "RequestLimitExceeded"`},
		{name: "AWS: query", status: 400, lines: []string{"Content-Type: text/xml;charset=UTF-8"}, body: "<ErrorResponse><Error><Type>Sender</Type><Code>Throttling</Code></Error></ErrorResponse>", want: `limited "Throttling"`},
		{name: "AWS: a limit of resources", status: 400, body: `{"__type":"LimitExceededException"}`, want: "nothing"},
		{name: "AWS: a quota of resources", status: 400, body: `{"__type":"ServiceQuotaExceededException"}`, want: "nothing"},
		{name: "AWS: input", status: 400, body: `{"__type":"ValidationException","message":"ThrottlingException"}`, want: "nothing"},
		{name: "AWS: an exception that ends like it", status: 400, body: `{"__type":"NotAThrottlingException"}`, want: "nothing"},
		{name: "AWS: XML in a message", status: 400, lines: []string{"Content-Type: application/json"}, body: `{"__type":"ValidationException","message":"Value '<Code>Throttling</Code>' is not valid"}`, want: "nothing"},
		{name: "AWS: XML in a text", status: 503, lines: []string{"Content-Type: text/plain"}, body: "unknown name <Code>SlowDown</Code>", want: "nothing"},
		{name: "AWS: a code in a text", status: 400, body: `{"message":"the code Throttling"}`, want: "nothing"},

		{name: "Meta: app", status: 400, body: `{"error":{"message":"(#4) Application request limit reached","code":4}}`, want: `limited "(#4) "`},
		{name: "Meta: account", status: 400, lines: []string{`X-Business-Use-Case-Usage: {"1":[{"estimated_time_to_regain_access":7}]}`}, body: `{"error":{"message":"(#80004) There have been too many calls"}}`, want: `limited for 7m0s "(#8000"`},
		{name: "Meta: token", status: 400, body: `{"error":{"message":"(#190) x","code":190}}`, want: "nothing"},
		{name: "Meta: parameter", status: 400, body: `{"error":{"message":"(#100) x (#4) ","code":100}}`, want: "nothing"},
		{name: "Meta: a code 4 of others", status: 400, body: `{"error":{"message":"bad","code":4}}`, want: "nothing"},
		{name: "Meta: usage of a success", status: 200, lines: []string{`X-Business-Use-Case-Usage: {"1":[{"estimated_time_to_regain_access":7}]}`}, want: "nothing"},

		{name: "GitHub: primary", status: 403, lines: []string{left, "X-RateLimit-Reset: 1777896041"}, body: `{"message":"API rate limit exceeded for user ID 1."}`, want: `limited for 41s "rate limit exceeded"`},
		{name: "GitHub: secondary", status: 403, lines: []string{"X-RateLimit-Remaining: 12", "X-RateLimit-Reset: 1777899600"}, body: `{"message":"You have exceeded a secondary rate limit."}`, want: `limited for 1m0s "secondary"`},
		{name: "GitHub: secondary with a wait", status: 403, lines: []string{"Retry-After: 30"}, body: `{"message":"You have exceeded a secondary rate limit."}`, want: `limited for 30s "secondary"`},
		{name: "GitHub: secondary in a name", status: 403, body: `{"message":"user \"secondary rate limit\" may not push"}`, want: "nothing"},
		{name: "GitHub: forbidden with the last request", status: 403, lines: []string{left, "X-RateLimit-Reset: 1777896041"}, body: `{"message":"Resource not accessible by integration"}`, want: "nothing"},
		{name: "forbidden with Retry-After", status: 403, lines: []string{"Retry-After: 30"}, want: "nothing"},
		{name: "Salesforce", status: 403, body: `[{"errorCode":"REQUEST_LIMIT_EXCEEDED"}]`, want: `limited "REQUEST_LIMIT_EXCEEDED"`},
		{name: "Salesforce: not allowed", status: 403, body: `[{"errorCode":"INSUFFICIENT_ACCESS"}]`, want: "nothing"},
		{name: "Linear", status: 400, lines: []string{"X-RateLimit-Requests-Reset: 1777896041000"}, body: `{"errors":[{"extensions":{"code":"RATELIMITED"}}]}`, want: `limited "RATELIMITED"`},
		{name: "GraphQL: input", status: 400, body: `{"errors":[{"extensions":{"code":"BAD_USER_INPUT"}}]}`, want: "nothing"},
		{name: "Telegram", status: 429, body: `{"ok":false,"error_code":429,"parameters":{"retry_after":35}}`, want: "limited for 35s"},
		{name: "a retry_after without a unit", status: 429, body: `{"retry_after":35}`, want: "limited"},

		{name: "OpenAI", status: 429, body: `{"error":{"message":"Rate limit reached. Please try again in 1.2s. Visit","code":"rate_limit_exceeded"}}`, want: "limited for 1.2s"},
		{name: "OpenAI: long", status: 429, body: `{"error":{"message":"Please try again in 1h2m3s."}}`, want: "limited for 1h2m3s"},
		{name: "try again in words", status: 429, body: `{"error":{"message":"Please try again in a minute"}}`, want: "limited"},
		{name: "try again in minutes", status: 429, body: `{"error":{"message":"Please try again in 20 minutes"}}`, want: "limited for 20m0s"},
		{name: "try again in a number without a unit", status: 429, body: `{"error":{"message":"Please try again in 20"}}`, want: "limited"},
		{name: "try again in fortnights", status: 429, body: `{"error":{"message":"Please try again in 3 fortnights"}}`, want: "limited"},
		{name: "retry in a second", status: 429, body: `{"message":"Slow down and retry in 1 second, please"}`, want: "limited for 1s"},
		{name: "retry after an hour", status: 429, body: `{"error":"Quota spent: Retry after 1.5 hours."}`, want: "limited for 1h30m0s"},
		{name: "a wait that is no message", status: 429, body: `{"text":"try again in 40 seconds","errors":[{"input":"retry after 40 seconds"}]}`, want: "limited"},
		{name: "Retry-After in quotes", status: 429, lines: []string{`Retry-After: "30"`}, want: "limited for 30s"},
		{name: "a header before a text", status: 429, lines: []string{"Retry-After: 5"}, body: `{"message":"Try again in 40 seconds."}`, want: "limited for 5s"},
		{name: "OpenAI: unpaid", status: 429, lines: []string{"Retry-After: 5"}, body: `{"error":{"type":"insufficient_quota"}}`, want: `other for 5s "insufficient_quota"`},
		{name: "OpenAI: too large", status: 429, body: `{"error":{"message":"Request too large for gpt-4o: Limit 30000, Requested 39143. try again in 5s"}}`, want: `other "Request too large"`},
		{name: "OpenAI: a message that names another", status: 429, body: `{"error":{"message":"not Request too large"}}`, want: "limited"},
		{name: "Anthropic: spent", status: 429, body: `{"error":{"type":"rate_limit_error","details":{"error_code":"enforced_spend_limit_reached"}}}`, want: `other "enforced_spend_limit_reached"`},
		{name: "Stripe: locked", status: 429, body: `{"error":{"code":"lock_timeout"}}`, want: `other "lock_timeout"`},
		{name: "X: cap", status: 429, lines: []string{"x-rate-limit-remaining: 880"}, body: `{"title":"UsageCapExceeded"}`, want: `other "UsageCapExceeded"`},
		{name: "do not retry", status: 429, lines: []string{"X-Should-Retry: false"}, want: `other "x-should-retry: false"`},
		{name: "HTML", status: 429, lines: []string{"Content-Type: text/html"}, body: "<title>Too many</title>", want: "limited"},
		{name: "JSON cut off", status: 429, body: `{"error":{"details":[{"retryDelay":"22`, want: "limited"},
		{name: "deep", status: 429, body: strings.Repeat(`{"error":`, 1000), want: "limited"},
		{name: "a page of errors", status: 404, body: `{"error":{"errors":[{"reason":"rateLimitExceeded"}]}}`, want: "nothing"},
		{name: "402", status: 402, body: `{"error":{"type":"insufficient_quota"}}`, want: "nothing"},
		{name: "418", status: 418, lines: []string{"Retry-After: 120"}, want: "nothing"},
		{name: "418 with another code", status: 418, body: `{"code":-1121,"msg":"banned until 1777896041000"}`, want: "nothing"},
		{name: "418 with a wait in a header", status: 418, lines: []string{"Retry-After: 120"}, body: `{"code":-1003,"msg":"banned"}`, want: `banned for 2m0s "banned"`},
		{name: "the code of a ban with status 400", status: 400, body: `{"code":-1003,"msg":"IP banned until 1777896041000"}`, want: "nothing"},
		{name: "Telegram: another 400", status: 400, body: `{"ok":false,"error_code":400,"description":"Bad Request: chat not found"}`, want: "nothing"},
		{name: "WhatsApp: another code", status: 400, body: `{"error":{"message":"(#131030) x 130429","code":131030}}`, want: "nothing"},
		{name: "xAI: a rate", status: 429, body: `{"error":"Too many requests for team x. Your team's rate limit is reached"}`, want: "limited"},
		{name: "Gemini: a limit that begins with 0", status: 429, body: `{"error":{"message":"Quota exceeded for metric: a, limit: 0.5, model: b"}}`, want: "limited"},
		{name: "Kraken: another error", status: 200, body: `{"error":["EAPI:Invalid nonce"]}`, want: "nothing"},
		{name: "Kraken: the text in a result", status: 200, body: `{"error":[],"result":["EAPI:Rate limit exceeded"]}`, want: "nothing"},
	})
}

// TestCommonCaptures reads responses that were captured, or that a client or a page shows. See their sources,
// read on 2026-11-28. None is read in a GET that has status 200.
func TestCommonCaptures(t *testing.T) {
	b, err := os.ReadFile("testdata/common.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Source, Note, Method, Body, Want string
		Status                           int
		Headers                          map[string]string
	}
	if err := json.Unmarshal(b, &all); err != nil || len(all) < 10 {
		t.Fatal(len(all), err)
	}
	for _, c := range all {
		r := Response{Method: c.Method, Status: c.Status, Header: http.Header{}, Body: []byte(c.Body), Got: monday}
		for name, v := range c.Headers {
			r.Header.Set(name, v)
		}
		if got := format(read(Common(), r)); got != c.Want {
			t.Errorf("%s: %s: read %s, want %s", c.Source, c.Note, got, c.Want)
		}
		if r.Method = http.MethodGet; r.Status == http.StatusOK && format(read(Common(), r)) != "nothing" {
			t.Errorf("%s: read in a GET", c.Source)
		}
		if r.Status == http.StatusOK && Common().Peeks(r.Status, r.Header) {
			t.Errorf("%s: a success is read before it is returned", c.Source)
		}
	}
}

// FuzzCommon puts hostile values in every place that Common reads.
func FuzzCommon(f *testing.F) {
	for _, v := range []string{"0", "1777896041", "1777896041000", "2026-05-04T12:00:41Z", "6m0s", "1d2h", "99999999999999999999", `{"1":[{"estimated_time_to_regain_access":7}]}`} {
		for _, status := range []int{200, 400, 403, 418, 429, 503} {
			f.Add(status, "0", v, shopify)
		}
	}
	for _, body := range []string{gemini, `{"error":{"message":"try again in 5s"}}`, `{"parameters":{"retry_after":1e9}}`, `[{"error":{"details":{"a":{"retryDelay":"1h"}}}}]`, "<Code>SlowDown</Code>", `{"__type":"a#Throttling"}`} {
		f.Add(429, "0", "1", body)
		f.Add(400, "0", "1", body)
	}
	headers := map[string]bool{}
	p := Common()
	for _, w := range p.RetryAfter {
		headers[w.Header] = true
	}
	for _, r := range p.Rules {
		headers[r.Header] = true
		for _, w := range r.Delay {
			headers[w.Header] = true
		}
	}
	delete(headers, "")
	f.Fuzz(func(t *testing.T, status int, left, v, body string) {
		r := Response{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(body), Got: monday, Sent: monday}
		for h := range headers {
			r.Header.Set(h, v)
			if strings.HasSuffix(h, "-Remaining") || strings.HasSuffix(h, "-Limit") {
				r.Header.Set(h, left)
			}
		}
		a := p.Read(r)
		checkAnswer(t, "Common", a)
		if len(a.Readings)+len(a.Charged) > 0 || a.Delay > 31*24*time.Hour || a.Kind == Banned && status != 418 || status < 400 && a.Kind != Passed {
			t.Fatalf("%d, %q, %q, %q: %+v", status, left, v, body, a)
		}
	})
}
