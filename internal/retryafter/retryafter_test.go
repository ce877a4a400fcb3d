package retryafter

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, time.May, 4, 12, 0, 0, 0, time.UTC)

func response(status int, date string, retryAfter ...string) *http.Response {
	h := http.Header{}
	if date != "" {
		h.Set("Date", date)
	}
	for _, v := range retryAfter {
		h.Add("Retry-After", v)
	}
	return &http.Response{StatusCode: status, Header: h}
}

func TestRead(t *testing.T) {
	known := func(d time.Duration) Refusal { return Refusal{Delay: d, Known: true} }
	in := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		name       string
		status     int
		date       string
		retryAfter []string
		now        time.Time // if zero, now
		want       Refusal
		refused    bool
	}{
		{name: "429 alone", status: 429, refused: true},
		{name: "429 with seconds", status: 429, retryAfter: []string{"7"}, want: known(7 * time.Second), refused: true},
		{name: "leading zeros", status: 429, retryAfter: []string{"007"}, want: known(7 * time.Second), refused: true},
		{name: "Shopify", status: 429, retryAfter: []string{"2.0"}, want: known(2 * time.Second), refused: true},
		{name: "a fraction", status: 429, retryAfter: []string{"1.25"}, want: known(1250 * time.Millisecond), refused: true},
		{name: "rounded up", status: 429, retryAfter: []string{"0.0000010001"}, want: known(2 * time.Microsecond), refused: true},
		{name: "rounded up over a second", status: 429, retryAfter: []string{"0.99999900001"}, want: known(time.Second), refused: true},
		{name: "trailing zeros", status: 429, retryAfter: []string{"0.50000000000"}, want: known(500 * time.Millisecond), refused: true},
		{name: "space", status: 429, retryAfter: []string{" \t3 "}, want: known(3 * time.Second), refused: true},
		{name: "quotes", status: 429, retryAfter: []string{`"30"`}, want: known(30 * time.Second), refused: true},
		{name: "a date in quotes", status: 429, date: "Mon, 04 May 2026 12:00:00 GMT", retryAfter: []string{`"Mon, 04 May 2026 12:00:41 GMT"`}, want: known(41 * time.Second), refused: true},
		{name: "zero", status: 429, retryAfter: []string{"0"}, refused: true, want: Refusal{Known: true}},
		{name: "zero with a point", status: 429, retryAfter: []string{"0.000"}, refused: true, want: Refusal{Known: true}},
		{name: "empty", status: 429, retryAfter: []string{""}, refused: true},
		{name: "junk", status: 429, retryAfter: []string{"soon"}, refused: true},
		{name: "negative", status: 429, retryAfter: []string{"-5"}, refused: true},
		{name: "signed", status: 429, retryAfter: []string{"+5"}, refused: true},
		{name: "NaN", status: 429, retryAfter: []string{"NaN"}, refused: true},
		{name: "Inf", status: 429, retryAfter: []string{"Inf"}, refused: true},
		{name: "exponent", status: 429, retryAfter: []string{"1e400"}, refused: true},
		{name: "hex", status: 429, retryAfter: []string{"0x10"}, refused: true},
		{name: "underscore", status: 429, retryAfter: []string{"1_000"}, refused: true},
		{name: "point alone", status: 429, retryAfter: []string{"."}, refused: true},
		{name: "nothing after the point", status: 429, retryAfter: []string{"5."}, refused: true},
		{name: "nothing before the point", status: 429, retryAfter: []string{".5"}, refused: true},
		{name: "two points", status: 429, retryAfter: []string{"1.2.3"}, refused: true},
		{name: "other digits", status: 429, retryAfter: []string{"٣"}, refused: true},
		{name: "a Go duration", status: 429, retryAfter: []string{"6m0s"}, want: known(6 * time.Minute), refused: true},
		{name: "31 days", status: 429, retryAfter: []string{"2678400"}, want: known(31 * 24 * time.Hour), refused: true},
		{name: "more than 31 days", status: 429, retryAfter: []string{"2678401"}, refused: true},
		{name: "seconds since 1970", status: 429, retryAfter: []string{"1777896060"}, want: known(time.Minute), refused: true},
		{name: "milliseconds since 1970", status: 429, retryAfter: []string{"1777896060500"}, want: known(60500 * time.Millisecond), refused: true},
		{name: "seconds since 1970, in the past", status: 429, retryAfter: []string{"1777895999"}, refused: true},
		{name: "seconds since 1970, of another year", status: 429, retryAfter: []string{"1743440400"}, refused: true},
		{name: "RFC 3339", status: 429, retryAfter: []string{"2026-05-04T12:01:00Z"}, want: known(time.Minute), refused: true},
		{name: "RFC 3339 with an offset", status: 429, retryAfter: []string{"2026-05-04T14:01:00+02:00"}, want: known(time.Minute), refused: true},
		{name: "a date in UTC", status: 429, retryAfter: []string{"Mon, 4 May 2026 12:01:00 UTC"}, want: known(time.Minute), refused: true},
		{name: "a date with an offset", status: 429, retryAfter: []string{"Mon, 04 May 2026 12:01:00 +0000"}, want: known(time.Minute), refused: true},
		{name: "a date in a zone that is not known", status: 429, retryAfter: []string{"Mon, 04 May 2026 12:01:00 PST"}, refused: true},
		{name: "a duration", status: 429, retryAfter: []string{"60s"}, want: known(time.Minute), refused: true},
		{name: "a list", status: 429, retryAfter: []string{"30, 60"}, want: known(time.Minute), refused: true},
		{name: "2^63 seconds", status: 429, retryAfter: []string{"9223372036854775808"}, refused: true},
		{name: "a hundred nines", status: 429, retryAfter: []string{strings.Repeat("9", 100)}, refused: true},
		{name: "a hundred zeros and one", status: 429, retryAfter: []string{strings.Repeat("0", 100) + "1"}, want: known(time.Second), refused: true},
		{name: "a date", status: 429, retryAfter: []string{in(time.Minute)}, want: known(time.Minute), refused: true},
		{name: "a date within the second", status: 429, retryAfter: []string{in(time.Second)}, now: now.Add(time.Nanosecond), want: known(time.Second), refused: true},
		{name: "a date by the server's clock", status: 429, date: in(-time.Hour), retryAfter: []string{in(time.Minute - time.Hour)}, want: known(time.Minute), refused: true},
		{name: "a date, and a Date that is none", status: 429, date: "yesterday", retryAfter: []string{in(time.Minute)}, want: known(time.Minute), refused: true},
		{name: "a date in the past", status: 429, retryAfter: []string{in(-time.Second)}, refused: true},
		{name: "a date that is now", status: 429, retryAfter: []string{in(0)}, refused: true},
		{name: "the last date", status: 429, retryAfter: []string{"Fri, 31 Dec 9999 23:59:59 GMT"}, refused: true},
		{name: "dates 9998 years apart", status: 429, date: "Mon, 01 Jan 0001 00:00:00 GMT", retryAfter: []string{"Fri, 31 Dec 9999 23:59:59 GMT"}, refused: true},
		{name: "RFC 850", status: 429, retryAfter: []string{now.Add(time.Minute).Format("Monday, 02-Jan-06 15:04:05 GMT")}, want: known(time.Minute), refused: true},
		{name: "several lines", status: 429, retryAfter: []string{"3", "junk", in(time.Minute), "5"}, want: known(time.Minute), refused: true},
		{name: "503 alone", status: 503},
		{name: "503 with junk", status: 503, retryAfter: []string{"soon"}},
		{name: "503 with zero", status: 503, retryAfter: []string{"0"}},
		{name: "503 with seconds", status: 503, retryAfter: []string{"7"}, want: known(7 * time.Second), refused: true},
		{name: "503 with hours", status: 503, retryAfter: []string{"7200"}, want: known(time.Minute), refused: true},
		{name: "200", status: 200, retryAfter: []string{"7"}},
		{name: "403", status: 403, retryAfter: []string{"7"}},
		{name: "502", status: 502, retryAfter: []string{"7"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := c.now
			if at.IsZero() {
				at = now
			}
			got, refused := Read(response(c.status, c.date, c.retryAfter...), at)
			if refused != c.refused {
				t.Fatalf("refused = %v, want %v", refused, c.refused)
			}
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// A long list takes no more work than a short one.
func TestReadLongList(t *testing.T) {
	of := func(items int) float64 {
		resp := response(429, "", strings.Repeat("soon,", items)+"60")
		return testing.AllocsPerRun(10, func() { Read(resp, now) })
	}
	if short, long := of(100), of(10_000); long > 2*short {
		t.Errorf("%v allocations for 10,000 items, and %v for 100", long, short)
	}
}

func TestReadWithoutHeader(t *testing.T) {
	if r, refused := Read(&http.Response{StatusCode: 429}, now); !refused || r != (Refusal{}) {
		t.Errorf("got %+v, %v", r, refused)
	}
}

func FuzzRead(f *testing.F) {
	for _, v := range []string{"", "0", "7", "2.0", "-5", "NaN", "1e400", "0x1p4", "9223372036854775808", "0.0000001", "Mon, 04 May 2026 12:00:01 GMT"} {
		f.Add(429, "", v, "1", int64(0))
		f.Add(503, "Mon, 04 May 2026 12:00:00 GMT", v, "", int64(-1))
	}
	f.Fuzz(func(t *testing.T, status int, date, first, second string, nanos int64) {
		r, refused := Read(response(status, date, first, second), time.Unix(0, nanos))
		most := century
		if status == http.StatusServiceUnavailable {
			most = LongestOutage
		}
		switch {
		case r.Delay < 0 || r.Delay > most:
			t.Errorf("delay %v, most %v", r.Delay, most)
		case r.Delay%time.Microsecond != 0:
			t.Errorf("delay %v is not a whole number of microseconds", r.Delay)
		case r.Known != (r.Delay > 0):
			t.Errorf("known %v, delay %v", r.Known, r.Delay)
		case r.Known && !refused:
			t.Error("a delay without a refusal")
		case refused != (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable && r.Known):
			t.Errorf("status %d, known %v: refused = %v", status, r.Known, refused)
		}
	})
}
