package answers

import (
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
	// Number is a count: "59", "588.0" (Reddit), "-27689" (Azure), which is 0. A remaining
	// count rounds down, a used count up.
	Number Format = iota

	// The formats of a Reset, a Length and a wait.
	Seconds      // from now: "41", "64.57" (Discord), "2.0" (Shopify)
	Millis       // from now, in milliseconds: "4120" (Azure), "600000"
	Duration     // from now, as in Go: "6m0s", "547ms" (OpenAI), "22s" (Gemini)
	EpochSeconds // since 1970: "1372700873" (GitHub), "1470173023.123" (Discord)
	EpochMillis  // since 1970, in milliseconds: "1790000000000" (Linear)
	Timestamp    // RFC 3339: "2025-08-21T12:40:59Z" (Anthropic), also without seconds (Jira)
	HTTPDate     // as in Date: "Tue, 05 Jan 2021 11:00:00 GMT" (GitLab)
	JSDate       // as JavaScript's Date.toString (Lemlist)
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
)

var formatNames = [...]string{
	"Number", "Seconds", "Millis", "Duration", "EpochSeconds", "EpochMillis", "Timestamp", "HTTPDate", "JSDate", "RetryAfter",
	"UsedOfLimit", "NamedUses", "UsedPerWindow", "Pairs",
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
	// Header is the name of a header, in any case. A name in canonical form, such as
	// X-Ratelimit-Limit, needs no allocation. The first of several lines counts. In
	// Quota.Combined the name may end in "*", for every header with this prefix; the rest of
	// such a header's name is the name of the quota.
	Header string

	// Path replaces Header for a string or number in a JSON body. It is the keys to the value,
	// with points between them, as in "error.details.*.retryDelay", where * stands for each
	// element of an array. The first value found counts, in a Meter the last. A value longer
	// than 4 KB is ignored.
	Path string

	// After is text within the value, such as "try again in ". Only what follows it in the Format
	// is read: a number, a Duration or a Timestamp. If empty, the whole value is read.
	After string

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
	if f.After != "" {
		_, v, _ = strings.Cut(v, f.After)
		v = strings.TrimLeft(v, " ")
		rest := strings.TrimLeft(v, f.Format.characters())
		v = strings.TrimRight(v[:len(v)-len(rest)], ".")
	}
	return strings.Trim(v, " \t")
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
		return number + "hmsuµn"
	case Timestamp:
		return number + "-:TZ+"
	}
	return number
}

func (f *Field) count(e *event, r rounding) (int64, bool) { return f.number(f.text(e), r) }

func (f *Field) number(text string, r rounding) (int64, bool) {
	if f.Format != Number {
		return 0, false
	}
	return count(text, r)
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

// share parses a fraction and returns it in millionths, rounded up.
func share(v string) (int64, bool) {
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
	if f.Format == RetryAfter && f.Header != "" {
		for _, line := range e.Header.Values(f.Header) {
			d = max(d, retryafter.Delay(line, e.now))
		}
		return d, d > 0
	}
	return f.Format.wait(f.text(e), e.now)
}

func (f Format) wait(v string, now time.Time) (time.Duration, bool) {
	switch f {
	case Seconds:
		return retryafter.Seconds(v)
	case Millis:
		d, ok := retryafter.Seconds(v)
		return retryafter.Micros(d / 1000), ok
	case Duration:
		d, err := time.ParseDuration(v)
		return retryafter.Micros(max(d, 0)), err == nil && d >= 0
	case RetryAfter:
		d := retryafter.Delay(v, now)
		return d, d > 0
	}
	at, ok := f.date(v)
	if !ok {
		return 0, false
	}
	d := at.Sub(now) // saturates
	return retryafter.Micros(max(d, 0)), -maxTime < d && d < maxTime
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
func (f Format) absolute() bool { return EpochSeconds <= f && f <= JSDate }
