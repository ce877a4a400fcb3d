package answers

import (
	"bytes"
	"cmp"
	"errors"
	"math/bits"
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle/internal/retryafter"
)

// A Kind says what a response means for the quota.
type Kind uint8

const (
	Passed  Kind = iota // not refused
	Limited             // refused for lack of quota: it will pass later
	Banned              // refused as a penalty: whatever is sent during Delay makes it worse
	Other               // refused for a reason that sending less doesn't mend, such as an unpaid bill or a locked object
)

// A Refusal says whether a request was refused, and for how long.
type Refusal struct {
	Kind   Kind
	Delay  time.Duration // from the response on, in whole microseconds; 0 if not Known
	Known  bool          // Delay is the provider's word, or its documentation's
	Wide   bool          // see Rule.Wide
	Reason string        // in the words of the rule or of the response; "" if there is none
}

// A Rule says what responses mean something, and what. It matches a response that has
// all that the rule names; a Rule without any matches every one.
type Rule struct {
	Status int    // If zero, any
	Header string // must be there, and, if Value is not empty, match it
	Value  string // a text which may begin or end in "*", or both: "*PerDay*"
	Path   string // the keys to a value in a JSON body, as Field.Path, that must match Text. If empty, Text is matched with the body as it is
	Text   string // as Value

	Kind   Kind          // what it means
	Wide   bool          // it is of a wider scope than the limit of the request's own route, such as all of the account
	Delay  []Field       // where the wait is told, the first that is usable, if Profile.RetryAfter doesn't tell
	Asked  Field         // the units asked for, where no wait is told: it is until the first of the Quotas with a Rate has so many
	Until  string        // where no wait is told and a day's quota is spent: the zone at whose next midnight there is more, as in "America/Los_Angeles" or "UTC"
	Wait   time.Duration // the wait if nothing else tells it. If zero, not known
	Reason string        // If empty, what a header of Profile.Reasons says, or else Text
}

// refusal is what the first rule that matches says, or else the standards.
func (p *Profile) refusal(e *event, told []Reading) Refusal {
	for i := range p.Rules {
		if rule := &p.Rules[i]; rule.matches(e) {
			return p.by(rule, e, told)
		}
	}
	r, refused := retryafter.Read(&http.Response{StatusCode: e.Status, Header: e.Header}, e.now)
	if !refused {
		return Refusal{}
	}
	if p.RetryAfter != nil {
		if r.Delay, r.Known = first(p.RetryAfter, e); e.Status == http.StatusServiceUnavailable {
			r.Delay = min(r.Delay, retryafter.LongestOutage)
		}
	}
	return Refusal{Kind: Limited, Delay: r.Delay, Known: r.Known, Reason: p.reason(e)}
}

// by is the refusal that the rule makes of the response.
func (p *Profile) by(rule *Rule, e *event, told []Reading) Refusal {
	r := Refusal{Kind: rule.Kind, Reason: cmp.Or(rule.Reason, p.reason(e), strings.Trim(rule.Text, "*"))}
	if r.Kind == Passed {
		return r
	}
	r.Wide = rule.Wide
	after := p.RetryAfter
	if after == nil {
		after = []Field{{Header: "Retry-After", Format: RetryAfter}}
	}
	if r.Delay, r.Known = first(after, e); !r.Known {
		r.Delay, r.Known = first(rule.Delay, e)
	}
	if asked, ok := rule.Asked.count(e, up); ok && !r.Known {
		r.Delay, r.Known = refilled(asked, told)
	}
	if !r.Known {
		r.Delay, r.Known = rule.midnight(e.now)
	}
	if !r.Known {
		r.Delay, r.Known = rule.Wait, rule.Wait > 0
	}
	return r
}

// refilled is the time until the first bucket that tells how fast it fills has asked units.
func refilled(asked int64, told []Reading) (time.Duration, bool) {
	for _, r := range told {
		if r.Has&HasRemaining == 0 || r.Limit == 0 || r.Window == 0 {
			continue
		}
		hi, lo := bits.Mul64(uint64(max(asked-r.Remaining, 0)), uint64(r.Window))
		if hi != 0 || asked > r.Limit { // absurd, or never
			return 0, false
		}
		d := time.Duration((lo + uint64(r.Limit) - 1) / uint64(r.Limit))
		return retryafter.Micros(d), d > 0
	}
	return 0, false
}

// first is the first usable wait. Zero isn't, nor is a date that is past.
func first(fields []Field, e *event) (time.Duration, bool) {
	for i := range fields {
		if d, ok := fields[i].wait(e); ok && d > 0 {
			return d, true
		}
	}
	return 0, false
}

// midnight is the time left of the day in the zone that the rule names.
func (r *Rule) midnight(now time.Time) (time.Duration, bool) {
	zone, err := location(r.Until)
	if err != nil {
		return 0, false
	}
	year, month, day := now.In(zone).Date()
	at := time.Date(year, month, day+1, 0, 0, 0, 0, zone)
	if at.Day() == day { // clocks go from 0:00 to 1:00 then, and Date has gone by those before
		at = at.Add(time.Hour)
	}
	return retryafter.Micros(at.Sub(now)), true
}

// location is the zone of a Rule.Until. That of this machine is none: an answer must not
// depend on it.
func location(zone string) (*time.Location, error) {
	if zone == "" || zone == "Local" {
		return nil, errNoZone
	}
	return time.LoadLocation(zone)
}

var errNoZone = errors.New("not a zone of the IANA")

func (p *Profile) reason(e *event) string {
	for _, name := range p.Reasons {
		if v := e.Header.Get(name); v != "" {
			return v
		}
	}
	return ""
}

func (r *Rule) matches(e *event) bool {
	switch {
	case !r.matchesHead(e.Status, e.Header):
		return false
	case r.Text == "":
		return true
	case r.Path == "":
		return bytes.Contains(e.Body, []byte(strings.Trim(r.Text, "*"))) && glob(r.Text, string(e.Body))
	}
	return e.body.at(r.Path, r.Text).nth > 0
}

// matchesHead reports whether the status and header are those of the rule.
func (r *Rule) matchesHead(status int, h http.Header) bool {
	if r.Status != 0 && r.Status != status {
		return false
	}
	v := h.Get(r.Header)
	return r.Header == "" || v != "" && (r.Value == "" || glob(r.Value, v))
}

// glob matches a text with a pattern that may begin and end in "*".
func glob(pattern, v string) bool {
	pattern, left := strings.CutPrefix(pattern, "*")
	pattern, right := strings.CutSuffix(pattern, "*")
	switch {
	case left && right:
		return strings.Contains(v, pattern)
	case left:
		return strings.HasSuffix(v, pattern)
	case right:
		return strings.HasPrefix(v, pattern)
	}
	return v == pattern
}
