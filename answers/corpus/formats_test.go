package corpus_test

import (
	"net/http"
	"testing"

	. "github.com/apithrottle/throttle/answers"
)

func item(header string, n int, f Format) Field { return Field{Header: header, Item: n, Format: f} }

func header(name, path string, f Format) Field { return Field{Header: name, Path: path, Format: f} }

var (
	strava = Profile{Quotas: []Quota{
		{Name: "quarter", Limit: item("X-Ratelimit-Limit", 1, Number), Used: item("X-Ratelimit-Usage", 1, Number)},
		{Name: "day", Limit: item("X-Ratelimit-Limit", 2, Number), Used: item("X-Ratelimit-Usage", 2, Number)},
	}}
	riot = Profile{Quotas: []Quota{
		{Limit: item("X-App-Rate-Limit", 1, Number), Length: item("X-App-Rate-Limit", 2, Seconds), Used: item("X-App-Rate-Limit-Count", 1, Number)},
		{Limit: item("X-App-Rate-Limit", 3, Number), Length: item("X-App-Rate-Limit", 4, Seconds), Used: item("X-App-Rate-Limit-Count", 3, Number)},
	}}
	dockerHub = Profile{Quotas: []Quota{
		{Limit: item("Ratelimit-Limit", 1, Number), Remaining: item("Ratelimit-Remaining", 1, Number), Length: Field{Header: "Ratelimit-Limit", After: "w=", Format: Seconds}},
	}}
	meta = Profile{
		Quotas: []Quota{
			{Name: "app", Share: header("X-App-Usage", "call_count", Percent)},
			{Name: "account", Share: header("X-Ad-Account-Usage", "acc_id_util_pct", Percent), Reset: header("X-Ad-Account-Usage", "reset_time_duration", Seconds)},
			{Name: "business", Share: header("X-Business-Use-Case-Usage", "*.*.call_count", Percent)},
		},
		Rules: []Rule{{Status: 400, Path: "error.code", Text: "80004", Kind: Limited, Delay: []Field{header("X-Business-Use-Case-Usage", "*.*.estimated_time_to_regain_access", Minutes)}}},
	}
	amazon = Profile{
		Quotas: []Quota{{Rate: num("X-Amzn-Ratelimit-Limit")}},
		Rules:  []Rule{{Status: 429, Kind: Limited, Delay: []Field{at("X-Amzn-Ratelimit-Limit", PerSecond)}}},
	}
	duration = Profile{RetryAfter: []Field{at("R", Duration)}}
	evident  = Profile{RetryAfter: []Field{at("R", Evident)}}
)

// TestFormats has the values that a list, JSON in a header, or a unit beside the usual makes odd.
func TestFormats(t *testing.T) {
	const business = `X-Business-Use-Case-Usage: {"66782684":[{"type":"ads_management","call_count":95,"estimated_time_to_regain_access":0}],"66782684":[{"type":"ads_insights","call_count":100,"estimated_time_to_regain_access":19}]}`
	const refused = `{"error":{"code":80004}}`
	run(t, []readTest{
		{name: "Strava", profile: strava, lines: []string{"X-RateLimit-Limit: 600,30000", "X-RateLimit-Usage: 314,27536"}, want: `["quarter" limit 600 left 286 used 314] ["day" limit 30000 left 2464 used 27536]`},
		{name: "Strava with spaces", profile: strava, lines: []string{"X-RateLimit-Limit: 600 , 30000 "}, want: `["quarter" limit 600] ["day" limit 30000]`},
		{name: "a list that is too short", profile: strava, lines: []string{"X-RateLimit-Limit: 600"}, want: `["quarter" limit 600]`},
		{name: "an empty list", profile: strava, lines: []string{"X-RateLimit-Limit: ,,;:"}, want: "nothing"},
		{name: "Riot", profile: riot, lines: []string{"X-App-Rate-Limit: 20:1,100:120", "X-App-Rate-Limit-Count: 1:1,7:120"}, want: "[limit 20 left 19 used 1 window 1s] [limit 100 left 93 used 7 window 2m0s]"},
		{name: "Docker Hub", profile: dockerHub, lines: []string{"ratelimit-limit: 100;w=21600", "ratelimit-remaining: 76;w=21600"}, want: "[limit 100 left 76 window 6h0m0s]"},
		{name: "Docker Hub without a window", profile: dockerHub, lines: []string{"ratelimit-limit: 100"}, want: "[limit 100]"},

		{name: "Meta: app", profile: meta, lines: []string{`X-App-Usage: {"call_count":28,"total_time":25,"total_cputime":25}`}, want: `["app" share 280000]`},
		{name: "Meta: hundredths of a percent", profile: meta, lines: []string{`X-Ad-Account-Usage: {"acc_id_util_pct":9.67,"reset_time_duration":100}`}, want: `["account" share 96700 reset 1m40s]`},
		{name: "Meta: a part of a millionth rounds up", profile: meta, lines: []string{`X-App-Usage: {"call_count":0.00001}`}, want: `["app" share 1]`},
		{name: "Meta: business, first value", profile: meta, lines: []string{business}, want: `["business" share 950000]`},
		{name: "Meta: business, longest wait", profile: meta, status: 400, lines: []string{business}, body: refused, want: `["business" share 950000] limited for 19m0s "80004"`},
		{name: "Meta: no wait", profile: meta, status: 400, lines: []string{`X-Business-Use-Case-Usage: {"1":[{"estimated_time_to_regain_access":0}]}`}, body: refused, want: `limited "80004"`},
		{name: "Meta: single quotes are not JSON", profile: meta, lines: []string{`X-App-Usage: {'call_count':28}`}, want: "nothing"},
		{name: "Meta: cut off", profile: meta, lines: []string{`X-App-Usage: {"call_count":2`}, want: "nothing"},
		{name: "Meta: a word", profile: meta, lines: []string{`X-App-Usage: {"call_count":"many"}`}, want: "nothing"},
		{name: "Meta: absurd minutes", profile: meta, status: 400, lines: []string{`X-Business-Use-Case-Usage: {"1":[{"estimated_time_to_regain_access":99999999999999999999}]}`}, body: refused, want: `limited "80004"`},

		{name: "Amazon", profile: amazon, lines: []string{"x-amzn-RateLimit-Limit: 0.0167"}, want: "[limit 1 window 59.88023952s]"},
		{name: "Amazon: one each three minutes", profile: amazon, lines: []string{"x-amzn-RateLimit-Limit: 0.0056"}, want: "[limit 1 window 2m58.571428571s]"},
		{name: "Amazon: many a second", profile: amazon, lines: []string{"x-amzn-RateLimit-Limit: 40.0"}, want: "[limit 1 window 25ms]"},
		{name: "Amazon: refused", profile: amazon, status: 429, lines: []string{"x-amzn-RateLimit-Limit: 0.0083"}, want: "[limit 1 window 2m0.48192771s] limited for 2m0.481928s"},
		{name: "Amazon: zero", profile: amazon, status: 429, lines: []string{"x-amzn-RateLimit-Limit: 0.0"}, want: "limited"},
		{name: "Amazon: less than a millionth", profile: amazon, status: 429, lines: []string{"x-amzn-RateLimit-Limit: 0.00000001"}, want: "[limit 1 window 277h46m40s] limited for 277h46m40s"},
		{name: "Amazon: absurd", profile: amazon, status: 429, lines: []string{"x-amzn-RateLimit-Limit: 1e9"}, want: "limited"},
		{name: "a fractional rate with a limit", profile: Profile{Quotas: []Quota{{Limit: num("L"), Rate: num("R")}}}, lines: []string{"L: 40", "R: 0.5"}, want: "[limit 40 window 1m20s]"},
		{name: "a rate without its limit", profile: Profile{Quotas: []Quota{{Limit: num("L"), Rate: num("R")}}}, lines: []string{"R: 0.5"}, want: "nothing"},
		{name: "pairs with a fractional rate", profile: profiles["Qomon"], lines: []string{"X-Ratelimit-Limit: burst:10;rate:0.5"}, want: "[limit 10 window 20s]"},

		{name: "a day and two hours", profile: duration, status: 429, lines: []string{"R: 1d2h"}, want: "limited for 26h0m0s"},
		{name: "days alone", profile: duration, status: 429, lines: []string{"R: 2d"}, want: "limited for 48h0m0s"},
		{name: "days below zero", profile: duration, status: 429, lines: []string{"R: -1d2h"}, want: "limited"},
		{name: "hours below zero", profile: duration, status: 429, lines: []string{"R: 1d-2h"}, want: "limited"},
		{name: "days twice", profile: duration, status: 429, lines: []string{"R: 1d2d"}, want: "limited"},
		{name: "no days", profile: duration, status: 429, lines: []string{"R: d"}, want: "limited"},
		{name: "too many days", profile: duration, status: 429, lines: []string{"R: 512d"}, want: "limited"},
		{name: "days that overflow", profile: duration, status: 429, lines: []string{"R: 511d2562047h"}, want: "limited"},

		{name: "evident: seconds since 1970", profile: evident, status: 429, lines: []string{"R: 1777896041"}, want: "limited for 41s"},
		{name: "evident: milliseconds since 1970", profile: evident, status: 429, lines: []string{"R: 1777896041500"}, want: "limited for 41.5s"},
		{name: "evident: RFC 3339", profile: evident, status: 429, lines: []string{"R: 2026-05-04T12:00:41.5Z"}, want: "limited for 41.5s"},
		{name: "evident: RFC 3339 with an offset", profile: evident, status: 429, lines: []string{"R: 2026-05-04T14:00:41+02:00"}, want: "limited for 41s"},
		{name: "evident: without seconds", profile: evident, status: 429, lines: []string{"R: 2026-05-04T12:01Z"}, want: "limited for 1m0s"},
		{name: "evident: an HTTP date", profile: evident, status: 429, lines: []string{"R: Mon, 04 May 2026 12:00:41 GMT"}, want: "limited for 41s"},
		{name: "evident: a duration", profile: evident, status: 429, lines: []string{"R: 6m0s"}, want: "limited for 6m0s"},
		{name: "evident: a small number is not", profile: evident, status: 429, lines: []string{"R: 41"}, want: "limited"},
		{name: "evident: a fraction is not", profile: evident, status: 429, lines: []string{"R: 41.5"}, want: "limited"},
		{name: "evident: zero is not", profile: evident, status: 429, lines: []string{"R: 0"}, want: "limited"},
		{name: "evident: eight digits are not", profile: evident, status: 429, lines: []string{"R: 17778960"}, want: "limited"},
		{name: "evident: an epoch of another year", profile: evident, status: 429, lines: []string{"R: 1577896041"}, want: "limited"},
		{name: "evident: a date of another year", profile: evident, status: 429, lines: []string{"R: 2028-05-04T12:00:41Z"}, want: "limited"},
		{name: "evident: past", profile: evident, status: 429, lines: []string{"R: 1777895041"}, want: "limited"},
		{name: "evident: a date in an unknown zone", profile: evident, status: 429, lines: []string{"R: Mon, 04 May 2026 12:00:41 PST"}, want: "limited"},
		{name: "evident: a word", profile: evident, status: 429, lines: []string{"R: now"}, want: "limited"},
	})
}

// FuzzFormats reads hostile values in every format, as whole values, items, parts of a text, and
// JSON.
func FuzzFormats(f *testing.F) {
	for _, v := range []string{"600,30000", "20:1,100:120", "100;w=21600", `{"a":{"b":[28,"1d2h"]}}`, "0.0167", "1777896041", "2026-05-04T12:00:41Z", "6m0s", "d", "1d-1h", `{"*":1}`, "\x00", "99999999999999999999"} {
		f.Add(v, 2, "w=", "a.*.*")
	}
	f.Fuzz(func(t *testing.T, v string, n int, after, path string) {
		r := Response{Status: 429, Header: http.Header{"V": {v}, "Date": {monday.Format(http.TimeFormat)}}, Got: monday, Sent: monday}
		for format := Number; format <= RetryAfter; format++ {
			for _, field := range []Field{{Item: n % 8}, {After: after}, {Path: path}, {Path: path, Item: n % 8, After: after}, {}} {
				field.Header, field.Format = "V", format
				checkAnswer(t, format.String(), Profile{
					Quotas:  []Quota{{Limit: field, Remaining: field, Used: field, Share: field, Rate: field, Length: field, Reset: field}, {Rate: field}},
					Charges: []Charge{{Field: field}},
					Rules:   []Rule{{Status: 429, Kind: Limited, Delay: []Field{field}, Asked: field}},
				}.Read(r))
			}
		}
	})
}
