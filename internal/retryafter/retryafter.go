// Package retryafter reads from a response whether and for how long the provider refuses requests
// for lack of quota.
package retryafter

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	century       = 100 * 365 * 24 * time.Hour // the largest number of seconds
	year          = 366 * 24 * time.Hour
	maxItems      = 32
	Longest       = 31 * 24 * time.Hour // the longest delay: no limit has a longer period
	LongestOutage = time.Minute         // the longest delay of a 503, which describes the server's health and not the quota
)

// A Refusal contains how long the provider asks the client to wait. The zero value is a refusal
// without a usable Retry-After: the caller chooses its own back-off.
type Refusal struct {
	// Delay is the time to wait from the response on, in whole microseconds. It is 0 if not Known.
	Delay time.Duration
	// Known reports that the provider specified Delay.
	Known bool
}

// Read reports whether resp refuses its request for lack of quota, and for how long.
//
// A 429 always does. A 503 does only with a usable Retry-After, which counts for at most a minute:
// Jira throttles with such a 503, and for all others it is an outage. Retry-After may be seconds,
// also with a fraction (Shopify sends "2.0"), or an HTTP-date. A date is compared with the
// response's own Date, because the clocks of client and server may differ, or with now if there is
// none. Of several lines the longest delay counts. Zero seconds are a delay of a 429. Dates in the past and
// values that are no delay are not usable. Read neither reads nor closes the body.
func Read(resp *http.Response, now time.Time) (r Refusal, refused bool) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return Refusal{}, false
	}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		now = date
	}
	for _, line := range resp.Header.Values("Retry-After") {
		d, zero := Seconds(strings.TrimSpace(line))
		r.Delay, r.Known = max(r.Delay, Delay(line, now)), r.Known || zero && d == 0
	}
	if resp.StatusCode == http.StatusServiceUnavailable {
		r.Delay = min(r.Delay, LongestOutage)
		r.Known = r.Delay > 0
		return r, r.Known
	}
	r.Known = r.Known || r.Delay > 0
	return r, true
}

// Delay returns the delay of one Retry-After, from 0 to 31 days. It is 0 if the value is not
// usable, or longer. RFC 9110 has seconds and HTTP-dates. Providers also send the seconds or
// milliseconds since 1970 of a date, RFC 3339, dates with other spellings of UTC, durations such
// as "60s", values in quotes, and lists, of which the longest delay of the first 32 items counts.
func Delay(v string, now time.Time) (delay time.Duration) {
	v = strings.Trim(v, " \t\"")
	if at, ok := Date(v, now); ok {
		delay = at.Sub(now) // saturates and does not overflow
	} else if d, ok := Seconds(v); ok {
		delay = d
	} else if list := strings.SplitN(v, ",", maxItems+1); len(list) > 1 {
		for _, v := range list[:min(len(list), maxItems)] {
			delay = max(delay, Delay(v, now))
		}
	} else if d, err := time.ParseDuration(v); err == nil && strings.Trim(v[:1], "0123456789") == "" {
		delay = d
	}
	if delay <= 0 || delay > Longest {
		return 0
	}
	return Micros(delay)
}

// dates are the layouts of dates beside those of http.ParseTime.
var dates = []string{time.RFC3339, "2006-01-02T15:04Z07:00", "Mon, 2 Jan 2006 15:04:05 -0700", "Mon, 2 Jan 2006 15:04:05 MST"}

// Date returns the time of a date. A number is one if it is a time within a year of now, in
// seconds or milliseconds since 1970: no delay has nine digits.
func Date(v string, now time.Time) (at time.Time, ok bool) {
	if digits(v) && len(v) >= 9 && len(v) <= 13 {
		n, _ := strconv.ParseInt(v, 10, 64) // 13 digits fit
		for _, at := range []time.Time{time.Unix(n, 0), time.UnixMilli(n)} {
			if at.Sub(now).Abs() <= year {
				return at, true
			}
		}
		return at, false
	}
	if at, err := http.ParseTime(v); err == nil {
		return at, true
	}
	for _, layout := range dates {
		// A zone that is not known has no offset.
		if at, err := time.Parse(layout, v); err == nil {
			if zone, offset := at.Zone(); offset != 0 || zone == "" || zone == "UTC" || zone == "GMT" || zone == "Z" {
				return at, true
			}
		}
	}
	return at, false
}

// Micros rounds a wait up to whole microseconds. d is not negative.
func Micros(d time.Duration) time.Duration {
	if over := d % time.Microsecond; over > 0 {
		d += time.Microsecond - over
	}
	return d
}

// Seconds parses "2" and "2.05", rounded up to whole microseconds. The result is at most a hundred
// years. It parses digits and not a float, because strconv's floats include "NaN", "1e400" and
// "0x1p-2".
func Seconds(v string) (d time.Duration, ok bool) {
	whole, fraction, point := strings.Cut(v, ".")
	if !digits(whole) || point && !digits(fraction) {
		return 0, false
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n >= int64(century/time.Second) { // ParseInt fails if the number exceeds an int64
		return century, true
	}
	micros, _ := strconv.ParseInt((fraction + "000000")[:6], 10, 64) // six digits
	if len(fraction) > 6 && strings.Trim(fraction[6:], "0") != "" {
		micros++
	}
	return time.Duration(n)*time.Second + time.Duration(micros)*time.Microsecond, true
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// ClockAhead returns by how much the Date of a response that has just come is ahead. The request took
// that long, or -1 if that is not known.
func ClockAhead(header http.Header, took time.Duration) time.Duration {
	date, err := http.ParseTime(header.Get("Date"))
	if err != nil || header.Get("Age") != "" { // or the response is from a cache
		return 0
	}
	ahead := date.Sub(time.Now().Truncate(time.Second))
	if ahead > time.Second || took >= 0 && ahead < -time.Second-took {
		return ahead
	}
	return 0
}
