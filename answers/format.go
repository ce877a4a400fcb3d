package answers

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/internal/retryafter"
)

// A Format says how a value is written.
type Format uint8

// The formats, each with examples.
const (
	Number Format = iota // a count: "59"; "588.0" (Reddit), what is left being rounded down; "-27689" (Azure), which is 0

	// Times, of a Reset, a Length and a wait.
	Seconds      // from now: "41", "64.57" (Discord), "2.0" (Shopify)
	Millis       // from now, in milliseconds: "4120" (Azure), "600000"
	Duration     // from now, as Go writes it: "6m0s", "547ms" (OpenAI), "22s" (Gemini)
	EpochSeconds // since 1970: "1372700873" (GitHub), "1470173023.123" (Discord)
	EpochMillis  // since 1970, in milliseconds: "1790000000000" (Linear)
	Timestamp    // RFC 3339: "2025-08-21T12:40:59Z" (Anthropic), without seconds too (Jira)
	HTTPDate     // as in Date: "Tue, 05 Jan 2021 11:00:00 GMT" (GitLab)
	JSDate       // as JavaScript's Date.toString (Lemlist)
	RetryAfter   // Seconds or HTTPDate, RFC 9110 section 10.2.3; of several lines the longest

	// Combined values. Those with names make a Reading of each.
	UsedOfLimit   // "32/40" (Shopify)
	NamedUses     // "api-usage=25/5000; per-app-api-usage=17/250(appName=a)" (Salesforce)
	UsedPerWindow // a number used, the window being in the header's name: 1M in X-MBX-USED-WEIGHT-1M (Binance)
	Pairs         // "total=100; remaining=99; resets=41" (Zendesk), "b=per_hour;q=10;r=9;t=774,b=per_day;…" (Auth0), "burst:100;rate:10" (Qomon)
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

// A Field says where a value is and how it is written. The zero Field is nowhere.
type Field struct {
	// Header is a name in any case; in net/http's, such as X-Ratelimit-Limit, it is found
	// without allocating. Of several lines the first counts. In Quota.Combined it may end
	// in "*", for every header that begins so; the rest of its name is then the quota's.
	Header string

	// Path, instead of Header, is the keys to a string or number in a JSON body, as in
	// "error.details.*.retryDelay": a * is each of an array's. The first that is there
	// counts, for a Meter the last; one longer than 4 KB is not there.
	Path string

	After  string // the number after this text is the value. If empty, all of it is
	Format Format
}

const (
	mostCount = 999_999_999_999_999  // as in structured fields, RFC 9651 section 3.3.1
	farthest  = 366 * 24 * time.Hour // no quota's window is longer, so a reset farther away is in another format
)

type rounding bool

const (
	down rounding = false // what may be spent
	up   rounding = true  // what has been
)

// text is the value as it is written, "" if there is none.
func (f *Field) text(e *event) string {
	switch {
	case f.Header != "":
		return f.trimmed(e.Header.Get(f.Header))
	case f.Path != "":
		return f.trimmed(string(e.body.at(f.Path, "").value))
	}
	return ""
}

// trimmed is what of a value counts.
func (f *Field) trimmed(v string) string {
	if f.After != "" {
		_, v, _ = strings.Cut(v, f.After)
		v = strings.TrimLeft(v, " ")
		v = strings.TrimRight(v[:numberLength(v)], ".")
	}
	return strings.Trim(v, " \t")
}

func (f *Field) inBody() bool { return f.Header == "" && f.Path != "" }

// want adds the field's place in the body, if it is there, to what is looked for.
func (f *Field) want(to []want, last bool) []want {
	if !f.inBody() || slices.ContainsFunc(to, func(w want) bool { return w.path == f.Path && w.text == "" }) {
		return to
	}
	return append(to, want{path: f.Path, last: last})
}

func numberLength(v string) int {
	for i := range len(v) {
		if (v[i] < '0' || v[i] > '9') && v[i] != '.' {
			return i
		}
	}
	return len(v)
}

func (f *Field) count(e *event, r rounding) (int64, bool) { return f.number(f.text(e), r) }

func (f *Field) number(text string, r rounding) (int64, bool) {
	if f.Format != Number {
		return 0, false
	}
	return count(text, r)
}

// count parses a decimal number, clamped to 0 … mostCount.
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
	return min(n, mostCount), true
}

// share parses a fraction, in millionths, rounded up.
func share(v string) (int64, bool) {
	d, ok := retryafter.Seconds(v)
	return d.Microseconds(), ok
}

// decimal splits "12.50" into 12 and "50". A number of too many digits is mostCount.
func decimal(v string) (n int64, fraction string, ok bool) {
	whole, fraction, point := strings.Cut(v, ".")
	if !digits(whole) || point && !digits(fraction) {
		return 0, "", false
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		n = mostCount
	}
	return n, fraction, true
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// wait is the time from now to what the field tells, not negative, in whole
// microseconds.
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
	d := at.Sub(now) // it saturates
	return retryafter.Micros(max(d, 0)), -farthest < d && d < farthest
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

// absolute reports whether the format is a date rather than a distance.
func (f Format) absolute() bool { return EpochSeconds <= f && f <= JSDate }
