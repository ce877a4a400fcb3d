package answers

import (
	"bytes"
	"cmp"
	"errors"
	"math/bits"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/apithrottle/throttle/internal/jsonpath"
	"github.com/apithrottle/throttle/internal/retryafter"
)

// A Kind is the meaning of a response for the quota. A throttle.Transport pauses the quota after a
// response that is Limited, closes it after one that is Banned, and goes on after one that is Other.
type Kind uint8

const (
	Passed  Kind = iota // not refused
	Limited             // refused for lack of quota: a later request succeeds
	Banned              // refused as a penalty: requests during Delay extend it
	Other               // refused for another reason, such as an unpaid bill or a locked object
)

// A Refusal reports whether a request was refused, why, and for how long.
type Refusal struct {
	Kind Kind

	// Delay is the wait after the response, in whole microseconds. If zero and Known, one request may try at once.
	Delay time.Duration

	// Known is true if Delay comes from the response or from the rule.
	Known bool

	// FromBody is true if Delay is Known and depends on the body: it was read there, or a text in
	// the body chose the rule. Others may have written the body, so a throttle.Transport then pauses
	// the quota for at most Policy.MaxPause.
	FromBody bool

	// Wide and Unit are Rule.Wide and Rule.Unit.
	Wide bool
	Unit string

	// Reason comes from the rule or the response, and may be empty.
	Reason string
}

// A Rule matches responses and gives them a meaning. A response matches if it satisfies every
// condition of the rule: Method, Status, Header with Value, and Path with Text. A Rule without conditions
// matches every response.
//
// A Rule with Event matches no response, but an event of the stream in its body: the data of the event
// is then the body that Path and Text are about.
type Rule struct {
	// Event is the type of an event in a stream of server-sent events, as a text in Value. An event
	// without a type has the type "message". A body of JSON is such an event, or if it is an array each of its
	// elements. An event of more than 16 KB matches nothing. A model may write any text in its events, so
	// choose a type or a Path that only errors have. If empty, the rule is of responses.
	Event string

	// Method is the method of the request. The body of a success that a GET returns may be a file
	// that anyone wrote, so a rule for the answers of GraphQL or JSON-RPC needs "POST". If empty,
	// any.
	Method string

	// Status is the status of the response. If zero, any.
	Status int

	// Header must be present and match Value. If empty, any response.
	Header string

	// Value is a text that may begin or end with "*", or both: "*PerDay*". If empty, any value.
	Value string

	// Path is the place of a value in a JSON body, as in Field.Path, that must match Text. If
	// empty, the whole body must match Text.
	Path string

	// Text is a text as in Value. If empty, any body.
	Text string

	// Kind is the meaning of the response. If zero, Passed: the response is not a refusal, and
	// later rules don't apply to it.
	Kind Kind

	// Wide is true if the outermost scope pauses, such as the whole account, and not the scope of
	// the request's own route.
	Wide bool

	// Unit is what the quota counts that refused. The outermost scope that counts it pauses, such as
	// the account's inside the address's. If empty, or if no scope counts it, as Wide says.
	Unit string

	// Cost is what such a request costs, by unit. It replaces what the Charges read of these units
	// in the status and the header. If nil, the Charges count.
	Cost map[string]int64

	// Delay are the places of the wait, if it is in none of Profile.RetryAfter. The first
	// usable value counts, and headers come before the body.
	Delay []Field

	// Asked is the number of units requested. If no wait is known yet, the wait lasts until the
	// first Quota with a Rate has this many.
	Asked Field

	// Until is a time zone, such as "America/Los_Angeles" or "UTC", for daily quotas. If no wait
	// is known yet, the wait lasts until the next midnight of the zone.
	Until string

	// Wait is the wait if none is known from the other fields. If zero, unknown.
	Wait time.Duration

	// Reason is the reason of the Refusal. If empty, the value at one of Profile.Reasons, or else
	// Text.
	Reason string
}

// rule returns the first rule that matches, or nil if none does.
func (e *event) rule() *Rule {
	for i := range e.profile.Rules {
		if r := &e.profile.Rules[i]; !r.hasOther(e.Status) && r.matches(e) {
			return r
		}
	}
	return nil
}

// refusal returns the refusal of the rule that matches, or of the standards if that is nil.
func (e *event) refusal(rule *Rule, known []Reading) Refusal {
	if rule != nil {
		return e.refusalBy(rule, known)
	}
	r, refused := retryafter.Read(&http.Response{StatusCode: e.Status, Header: e.Header}, e.now)
	if !refused {
		return Refusal{}
	}
	limited := Refusal{Kind: Limited, Delay: r.Delay, Known: r.Known, Reason: e.reason()}
	if after := e.profile.RetryAfter; after != nil {
		limited.readDelay(e, after)
		if e.Status == http.StatusServiceUnavailable {
			limited.Delay = min(limited.Delay, retryafter.LongestOutage)
		} else if r.Known && r.Delay == 0 && slices.ContainsFunc(after, func(f Field) bool { return f.Header == "Retry-After" }) {
			limited.Known = true
		}
	}
	return limited
}

// refusalBy returns the refusal of a rule that matches.
func (e *event) refusalBy(rule *Rule, known []Reading) Refusal {
	r := Refusal{Kind: rule.Kind, Reason: cmp.Or(rule.Reason, e.reason(), strings.Trim(rule.Text, "*"))}
	if r.Kind == Passed {
		return r
	}
	r.Wide, r.Unit = rule.Wide, rule.Unit
	after := e.profile.RetryAfter
	if after == nil {
		after = []Field{{Header: "Retry-After", Format: RetryAfter}}
	}
	if r.readDelay(e, after, rule.Delay); r.Known {
		return r
	}
	if asked, ok := rule.Asked.count(e, up); ok {
		r.Delay, r.Known = refillTime(asked, known)
	}
	if !r.Known {
		r.Delay, r.Known = rule.midnight(e.now)
	}
	if !r.Known {
		r.Delay, r.Known = rule.Wait, rule.Wait > 0
	}
	r.FromBody = r.Known && (rule.Text != "" || rule.Asked != Field{})
	return r
}

// refillTime returns the time until the first quota with a known rate has the units asked for.
func refillTime(asked int64, known []Reading) (time.Duration, bool) {
	for _, r := range known {
		if r.Has&HasRemaining == 0 || r.Limit == 0 || r.Window == 0 {
			continue
		}
		hi, lo := bits.Mul64(uint64(max(asked-r.Remaining, 0)), uint64(r.Window))
		if hi != 0 || asked > r.Limit { // overflow, or more than the quota ever has
			return 0, false
		}
		d := time.Duration((lo + uint64(r.Limit) - 1) / uint64(r.Limit))
		return retryafter.Micros(d), d > 0
	}
	return 0, false
}

// readDelay sets Delay, Known and FromBody to the first usable wait. Places in headers come before
// places in the body. A wait of zero, a date in the past, and a wait beyond retryafter.Longest are not
// usable.
func (r *Refusal) readDelay(e *event, places ...[]Field) {
	r.Delay, r.Known, r.FromBody = 0, false, false
	for _, inBody := range [...]bool{false, true} {
		for _, fields := range places {
			for i := range fields {
				if fields[i].inBody() != inBody {
					continue
				}
				if d, ok := fields[i].wait(e); ok && d > 0 && d <= retryafter.Longest {
					r.Delay, r.Known, r.FromBody = d, true, inBody
					return
				}
			}
		}
	}
}

// midnight returns the time until the end of the day in the rule's zone.
func (r *Rule) midnight(now time.Time) (time.Duration, bool) {
	zone, err := location(r.Until)
	if err != nil {
		return 0, false
	}
	year, month, day := now.In(zone).Date()
	at := time.Date(year, month, day+1, 0, 0, 0, 0, zone)
	if at.Day() == day { // clocks go from 0:00 to 1:00, and Date used the offset before the change
		at = at.Add(time.Hour)
	}
	return retryafter.Micros(at.Sub(now)), true
}

// location returns the time zone of a Rule.Until. "Local" is an error: an answer must not depend on
// the machine's zone.
func location(zone string) (*time.Location, error) {
	if zone == "" || zone == "Local" {
		return nil, errNoZone
	}
	return time.LoadLocation(zone)
}

var errNoZone = errors.New("not an IANA time zone")

func (e *event) reason() string {
	for i := range e.profile.Reasons {
		if v := e.profile.Reasons[i].text(e); len(v) <= maxReason && utf8.ValidString(v) && strings.IndexFunc(v, unprintable) < 0 && v != "" {
			return v
		}
	}
	return ""
}

const maxReason = 100 // bytes

// unprintable reports whether r is a control character or of no glyph.
func unprintable(r rune) bool { return !unicode.IsPrint(r) }

func (r *Rule) matches(e *event) bool {
	switch {
	case !r.isOf(e.Event) || !r.matchesHead(&e.Response):
		return false
	case r.Text == "":
		return true
	case r.Path == "":
		return bytes.Contains(e.Body, []byte(strings.Trim(r.Text, "*"))) && jsonpath.Match(r.Text, string(e.Body))
	}
	_, nth := e.body.Find(r.Path, r.Text)
	return nth > 0
}

// isOf reports whether the rule is of events of a type, or of responses if the type is empty.
func (r *Rule) isOf(event string) bool {
	return r.Event == event || r.Event != "" && event != "" && jsonpath.Match(r.Event, event)
}

// hasOther reports whether the rule is for another status. Most rules of a long profile are, so this is asked
// before all else.
func (r *Rule) hasOther(status int) bool { return r.Status != 0 && r.Status != status }

// matchesHead reports whether the method, the status and the header satisfy the rule.
func (r *Rule) matchesHead(of *Response) bool {
	if r.hasOther(of.Status) || r.Method != "" && of.Method != "" && r.Method != of.Method {
		return false
	}
	v := of.Header.Get(r.Header)
	return r.Header == "" || v != "" && (r.Value == "" || jsonpath.Match(r.Value, v))
}
