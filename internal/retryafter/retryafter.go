// Package retryafter reads what a provider says when it refuses a request for lack of quota.
package retryafter

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Retry-After is trusted with a bound: one seen in the wild asked for 484,289 hours.
const (
	longest       = 100 * 365 * 24 * time.Hour // no delay is longer
	LongestOutage = time.Minute                // a 503 speaks of the server's health, not of our quota
)

// A Refusal says how long the provider wants to be left alone. The zero value is a
// refusal without a usable Retry-After: the caller backs off by its own lights.
type Refusal struct {
	Delay time.Duration // from the response on, in whole microseconds; 0 if not Known
	Known bool          // Delay is the provider's word, and more than zero
}

// Read reports whether resp refuses its request for lack of quota, and for how long.
//
// A 429 always does; a 503 only with a usable Retry-After, of which at most a minute is
// believed: Jira throttles with such a 503, everyone else means an outage. Retry-After
// may be seconds, with a fraction too (Shopify sends "2.0"), or an HTTP-date, which is
// measured against the response's own Date, so that the clocks of client and server
// need not agree, or against now where there is none. Of several lines the longest
// counts. Zero and dates in the past are not usable, nor is anything else that is not
// a delay. Read neither reads nor closes the body.
func Read(resp *http.Response, now time.Time) (r Refusal, refused bool) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return Refusal{}, false
	}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		now = date
	}
	for _, line := range resp.Header.Values("Retry-After") {
		r.Delay = max(r.Delay, Delay(line, now))
	}
	r.Known = r.Delay > 0
	if resp.StatusCode == http.StatusServiceUnavailable {
		r.Delay = min(r.Delay, LongestOutage)
		return r, r.Known
	}
	return r, true
}

// Delay is what one Retry-After asks for, from 0 to a hundred years; 0 if it is not usable.
func Delay(v string, now time.Time) time.Duration {
	v = strings.Trim(v, " \t")
	if d, ok := Seconds(v); ok {
		return d
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	return Micros(min(max(at.Sub(now), 0), longest)) // Sub saturates: no overflow
}

// Micros rounds a wait up to whole microseconds; d is not negative.
func Micros(d time.Duration) time.Duration {
	if over := d % time.Microsecond; over > 0 {
		d += time.Microsecond - over
	}
	return d
}

// Seconds parses "2" and "2.05", rounded up to whole microseconds; beyond a hundred
// years it is a hundred years. It goes by the digits, not through a float: strconv's
// floats know "NaN", "1e400" and "0x1p-2" too.
func Seconds(v string) (d time.Duration, ok bool) {
	whole, fraction, point := strings.Cut(v, ".")
	if !digits(whole) || point && !digits(fraction) {
		return 0, false
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n >= int64(longest/time.Second) { // too many digits for an int64: out of range
		return longest, true
	}
	micros, _ := strconv.ParseInt((fraction + "000000")[:6], 10, 64) // six digits
	if len(fraction) > 6 && strings.Trim(fraction[6:], "0") != "" {
		micros++
	}
	return time.Duration(n)*time.Second + time.Duration(micros)*time.Microsecond, true
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
