package answers

import (
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/internal/jsonpath"
	"github.com/apithrottle/throttle/internal/retryafter"
)

// A Format is how a value is written.
type Format uint8

// The formats, each with examples.
const (
	// Number is a count: "59", "588.0" (Reddit). A negative count, such as "-27689" (Azure), is
	// read as 0. A remaining count rounds down, a used count up.
	Number Format = iota

	// Percent is a share of the limit in hundredths: "28" (Meta), "9.67".
	Percent

	// The formats of a Reset, a Length and a wait.
	Seconds      // from now: "41", "64.57" (Discord), "2.0" (Shopify)
	Millis       // from now, in milliseconds: "4120" (Azure), "600000"
	Minutes      // from now, in minutes: "19" (Meta)
	Duration     // from now, as in Go, also with days: "6m0s", "547ms" (OpenAI), "22s" (Gemini), "1d2h"; with After also in words: "40 seconds"
	PerSecond    // the time of one unit at a rate, in units a second: "0.0167" (Amazon) is 59.88 s
	EpochSeconds // since 1970: "1372700873" (GitHub), "1470173023.123" (Discord)
	EpochMillis  // since 1970, in milliseconds: "1790000000000" (Linear)
	Timestamp    // RFC 3339: "2025-08-21T12:40:59Z" (Anthropic), also without seconds (Jira)
	HTTPDate     // as in Date: "Tue, 05 Jan 2021 11:00:00 GMT" (GitLab)
	JSDate       // as JavaScript's Date.toString (Lemlist)
	Evident      // any of these that can't be mistaken: an epoch within a year of now, a date, a Duration with its unit
	RetryAfter   // Seconds or HTTPDate, RFC 9110 section 10.2.3; the longest of several lines

	// The formats of combined values.

	// UsedOfLimit is a number used and the limit: "32/40" (Shopify).
	UsedOfLimit

	// NamedUses makes a Reading of each name:
	// "api-usage=25/5000; per-app-api-usage=17/250(appName=a)" (Salesforce).
	NamedUses

	// UsedPerWindow is a number used, with the window in the header's name: 1M in
	// X-MBX-USED-WEIGHT-1M (Binance).
	UsedPerWindow

	// Pairs makes a Reading of each list of pairs: "total=100; remaining=99; resets=41"
	// (Zendesk), "b=per_hour;q=10;r=9;t=774,b=per_day;…" (Auth0), "burst:100;rate:10" (Qomon).
	Pairs

	// The formats of a Charge, besides Number.

	// Elements is how many values are at the Path, whatever they are: with "issues.*.id" one for
	// each issue that a search returned (Jira). A Meter counts them once it has read all of the
	// body.
	Elements

	// Hash is any text: "80c17d2f203122d936070c88c8d10f33" (Discord). Its number, at least 1, stands
	// for the text: two texts have the same number once in 10¹⁵ pairs. It is no cost, but tells the
	// function of Transport.Settle which quota counted the request.
	Hash
)

var formatNames = [...]string{
	"Number", "Percent",
	"Seconds", "Millis", "Minutes", "Duration", "PerSecond", "EpochSeconds", "EpochMillis", "Timestamp", "HTTPDate", "JSDate", "Evident", "RetryAfter",
	"UsedOfLimit", "NamedUses", "UsedPerWindow", "Pairs",
	"Elements", "Hash",
}

// String returns the constant's name.
func (f Format) String() string {
	if int(f) < len(formatNames) {
		return formatNames[f]
	}
	return strconv.Itoa(int(f))
}

// A Field is the place of a value and its format. The zero Field has no value.
type Field struct {
	// Header is the name of a header, in small or capital letters. A name in canonical form,
	// such as X-Ratelimit-Limit, needs no allocation. If a response has several lines of it, the
	// first counts. In Quota.Combined the name may end in "*", for every header with this
	// prefix. The rest of such a header's name is then the name of the quota.
	Header string

	// Path is the place of a string or number in JSON: in the value of Header or, without a
	// Header, in the body. It is the keys to the value, with points between them, as in
	// "error.details.*.retryDelay", where * stands for each element of an array and each value
	// of an object. If there are several values, the first counts. In a Meter the last counts,
	// and of waits in a header the longest. A value longer than 4 KB is ignored.
	Path string

	// Item is the position of the value in a list, counted from 1: the 30000 of "600,30000"
	// (Strava) is Item 2. Commas, semicolons and colons separate items: "20:1,100:120" (Riot)
	// has four. If zero, the value is not a list.
	Item int

	// After is text within the value, such as "try again in ". Only the number, Duration or
	// Timestamp that follows it is read, according to Format. If empty, the whole value is read.
	After string

	// Format is how the value is written. If zero, Number.
	Format Format
}

const (
	maxCount = 999_999_999_999_999  // as in structured fields, RFC 9651 section 3.3.1
	maxTime  = 366 * 24 * time.Hour // a window is shorter; a later reset is in another format
)

type rounding bool

const (
	down rounding = false // for units that may be spent
	up   rounding = true  // for units that have been spent
)

// text returns the value as written, or "" if there is none.
func (f *Field) text(e *event) string {
	switch {
	case f.Header != "" && f.Path != "":
		s := jsonpath.Scanner{Queries: []jsonpath.Query{{Path: f.Path}}}
		s.Scan([]byte(e.Header.Get(f.Header)))
		value, _ := s.Find(f.Path, "")
		return f.trim(string(value))
	case f.Header != "":
		return f.trim(e.Header.Get(f.Header))
	case f.Path != "":
		value, _ := e.body.Find(f.Path, "")
		return f.trim(string(value))
	}
	return ""
}

// trim returns the part of the value that the field reads.
func (f *Field) trim(v string) string {
	for i := 1; i <= f.Item; i++ {
		at := strings.IndexAny(v, ",;:")
		switch {
		case i == f.Item && at >= 0:
			v = v[:at]
		case i < f.Item && at < 0:
			return ""
		case i < f.Item:
			v = v[at+1:]
		}
	}
	if f.After != "" {
		_, v, _ = strings.Cut(v, f.After)
		v = strings.TrimLeft(v, " ")
		rest := strings.TrimLeft(v, f.Format.characters())
		v = strings.TrimRight(v[:len(v)-len(rest)], ".")
		if f.Format == Duration && digits(strings.Replace(v, ".", "", 1)) {
			v += unitIn(rest)
		}
	}
	return strings.Trim(v, " \t")
}

// units are the units of a Duration in words.
var units = map[string]string{"millisecond": "ms", "second": "s", "sec": "s", "minute": "m", "min": "m", "hour": "h", "day": "d"}

// unitIn returns the unit that a text such as " seconds, or more" begins with, or "" if there is none.
func unitIn(text string) string {
	text, ok := strings.CutPrefix(text, " ")
	if end := strings.IndexFunc(text, func(r rune) bool { return r < 'a' || 'z' < r }); end >= 0 {
		text = text[:end]
	}
	if !ok {
		return ""
	}
	return units[strings.TrimSuffix(text, "s")]
}

func (f *Field) inBody() bool { return f.Header == "" && f.Path != "" }

// addQuery appends a query for the field to qs, if the field is in the body.
func (f *Field) addQuery(qs []jsonpath.Query, last bool) []jsonpath.Query {
	same := func(q jsonpath.Query) bool { return q.Path == f.Path && q.Pattern == "" }
	if !f.inBody() || slices.ContainsFunc(qs, same) {
		return qs
	}
	return append(qs, jsonpath.Query{Path: f.Path, Last: last})
}

// characters returns the characters of values in the format, for values within text.
func (f Format) characters() string {
	const number = "0123456789."
	switch f {
	case Duration:
		return number + "dhmsuµn"
	case Timestamp:
		return number + "-:TZ+"
	case Evident:
		return number + "dhmsuµn" + "-:TZ+"
	}
	return number
}

func (f *Field) count(e *event, r rounding) (int64, bool) { return f.number(f.text(e), r) }

func (f *Field) number(text string, r rounding) (int64, bool) {
	switch f.Format {
	case Number:
		return count(text, r)
	case Hash:
		h := fnv.New64a()
		h.Write([]byte(text))
		return int64(h.Sum64()%maxCount) + 1, text != ""
	}
	return 0, false
}

// count parses a decimal number, clamped to 0 … maxCount.
func count(v string, r rounding) (int64, bool) {
	v = strings.Trim(v, " \t")
	positive, negative := strings.CutPrefix(v, "-")
	n, fraction, ok := decimal(positive)
	switch {
	case !ok:
		return 0, false
	case negative:
		return 0, true
	case r == up && strings.Trim(fraction, "0") != "":
		n++
	}
	return min(n, maxCount), true
}

// share parses the share of a limit and returns it in millionths, rounded up.
func (f Format) share(v string) (millionths int64, ok bool) {
	millionths, ok = fraction(v)
	switch f {
	case Number:
		return millionths, ok
	case Percent:
		return (millionths + 99) / 100, ok
	}
	return 0, false
}

// fraction parses a decimal number and returns it in millionths, rounded up.
func fraction(v string) (int64, bool) {
	d, ok := retryafter.Seconds(v)
	return d.Microseconds(), ok
}

// decimal splits "12.50" into 12 and "50". A number with too many digits becomes maxCount.
func decimal(v string) (n int64, fraction string, ok bool) {
	whole, fraction, point := strings.Cut(v, ".")
	if !digits(whole) || point && !digits(fraction) {
		return 0, "", false
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		n = maxCount
	}
	return n, fraction, true
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// wait returns the time from now until the time in the field, at least 0, in whole microseconds.
func (f *Field) wait(e *event) (d time.Duration, ok bool) {
	switch {
	case f.Header != "" && f.Path != "":
		return longest(*f, e.Header.Get(f.Header), e.now)
	case f.Format == RetryAfter && f.Header != "" && f.Item == 0 && f.After == "":
		for _, line := range e.Header.Values(f.Header) {
			d = max(d, retryafter.Delay(line, e.now))
		}
		return d, d > 0
	}
	return f.Format.wait(f.text(e), e.now)
}

// longest returns the longest of the waits in a header of JSON. The field is a copy, because what
// the function below uses is allocated.
func longest(f Field, v string, now time.Time) (d time.Duration, ok bool) {
	s := jsonpath.Scanner{Queries: []jsonpath.Query{{Path: f.Path, Last: true}}}
	s.Each = func(value []byte) {
		if each, is := f.Format.wait(f.trim(string(value)), now); is {
			d, ok = max(d, each), true
		}
	}
	s.Scan([]byte(v))
	return d, ok
}

func (f Format) wait(v string, now time.Time) (time.Duration, bool) {
	switch f {
	case Seconds:
		return retryafter.Seconds(v)
	case Millis:
		d, ok := retryafter.Seconds(v)
		return retryafter.Micros(d / 1000), ok
	case Minutes:
		d, ok := retryafter.Seconds(v)
		return min(d, maxTime) * 60, ok
	case Duration:
		return duration(v)
	case PerSecond:
		rate, ok := fraction(v)
		return oneUnit(rate), ok && rate > 0
	case RetryAfter:
		d := retryafter.Delay(v, now)
		return d, d > 0
	}
	at, ok := f.date(v)
	if f == Evident {
		at, ok = retryafter.Date(v, now)
		if !ok && v != "" && strings.Trim(v[len(v)-1:], "0123456789.") != "" {
			return duration(v)
		}
	}
	if !ok {
		return 0, false
	}
	d := at.Sub(now) // saturates
	return retryafter.Micros(max(d, 0)), -maxTime < d && d < maxTime
}

// duration parses a Duration: whole days, and what time.ParseDuration reads.
func duration(v string) (d time.Duration, ok bool) {
	if days, rest, found := strings.Cut(v, "d"); found && digits(days) {
		n, err := strconv.ParseUint(days, 10, 9)
		if d = time.Duration(n) * 24 * time.Hour; rest == "" || err != nil {
			return d, err == nil
		}
		v = rest
	}
	rest, err := time.ParseDuration(v)
	return retryafter.Micros(max(d+rest, 0)), err == nil && rest >= 0 && d+rest >= 0
}

// oneUnit returns the time of one unit at a rate, in millionths of a unit a second.
func oneUnit(rate int64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return time.Duration((1_000_000_000_000+rate-1)/rate) * time.Microsecond
}

func (f Format) date(v string) (at time.Time, ok bool) {
	var err error
	switch f {
	case EpochSeconds:
		d, ok := retryafter.Seconds(v)
		return time.Unix(0, int64(d)), ok
	case EpochMillis:
		n, _, ok := decimal(v)
		return time.UnixMilli(n), ok
	case Timestamp:
		if at, err = time.Parse(time.RFC3339, v); err != nil {
			at, err = time.Parse("2006-01-02T15:04Z07:00", v)
		}
	case HTTPDate:
		at, err = http.ParseTime(v)
	case JSDate:
		v, _, _ = strings.Cut(v, " (")
		at, err = time.Parse("Mon Jan 02 2006 15:04:05 GMT-0700", v)
	default:
		return at, false
	}
	return at, err == nil
}

// absolute reports whether the format is an instant rather than a time from now.
func (f Format) absolute() bool { return EpochSeconds <= f && f <= Evident }
