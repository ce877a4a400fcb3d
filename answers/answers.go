// Package answers reads a provider's limits from its responses: how much is left, when more comes,
// what the request cost, and whether the provider refused it.
//
// Providers agree on little. A reset may be seconds left (Reddit), seconds since 1970 (GitHub),
// milliseconds since 1970 (Linear), "6m0s" (OpenAI) or a date (Anthropic). One header name has
// several meanings: RateLimit-Reset is 41 seconds in the IETF drafts and at Zendesk, and 1609844400
// at GitLab. Package answers therefore infers nothing from a name or a value. A [Profile] lists, as
// data, which header holds what in which [Format]. A value that doesn't fit its format is ignored.
// Package profiles has the profiles of fifty APIs, and [Common] reads fields that mean the same at
// every API. The page docs/unlisted.md writes a profile from an API's documentation, step by step.
//
//	github := answers.Profile{Quotas: []answers.Quota{{
//		NameIn:    "X-RateLimit-Resource",
//		Remaining: answers.Field{Header: "X-RateLimit-Remaining"},
//		Reset:     answers.Field{Header: "X-RateLimit-Reset", Format: answers.EpochSeconds},
//	}}}
//	answer := github.Read(answers.Response{Status: 200, Header: resp.Header, Sent: sent, Got: time.Now()})
//
// # Bodies
//
// Where [Profile.Peeks] reports true, a throttle.Transport reads the beginning of the body, at most
// 16 KB, before it returns the response. A profile that reads the bodies of successes therefore
// delays a stream until that much has arrived, unless its Content-Type is text/event-stream. If the
// body ends within the 16 KB, Response.Trailer is filled early. A rule for the status of a refusal
// delays only responses with that status.
//
// Some costs stand only at the end of a body, and some refusals in an event of a stream that has begun
// with status 200. A [Meter] reads both while the caller reads the body.
//
// # Trust
//
// Reading is a pure function. It uses no clock and keeps no state, and its only I/O is to look up
// the time zone of [Rule.Until]. Values come from outside, so they are bounded: a count to
// 0 … 999,999,999,999,999, and a remaining count to its limit. A reset more than 366 days from now,
// before or after, is ignored, and so is a wait of more than 31 days. Headers are the provider's own
// word, but a body may hold what others wrote. A wait from a body is marked ([Refusal.FromBody]), and
// closes a throttle.Transport's quota for at most Policy.MaxPause, unless the rule says [Banned].
//
// Package ietf reads the structured fields of the IETF drafts, with a parser that is not in the
// standard library.
package answers

import (
	"net/http"
	"time"

	"github.com/apithrottle/throttle/internal/jsonpath"
)

// A Profile describes where the responses of one provider report its limits. The zero Profile
// applies only the standards: a 429, or a 503 with Retry-After, is a refusal.
// A Profile may be copied and used concurrently. Don't change the elements of its slices.
type Profile struct {
	// Quotas are the places that report the state of quotas.
	Quotas []Quota

	// Charges are the places that report the cost of the request.
	Charges []Charge

	// Rules describe refusals. The first rule that matches decides. If none matches, a 429, or
	// a 503 with Retry-After, is a refusal.
	Rules []Rule

	// RetryAfter are the places of the wait after a refusal. The first usable value counts, and
	// headers come before the body. If nil, the header Retry-After.
	RetryAfter []Field

	// Reasons are the places of the reason of a refusal. The first usable value counts: at most 100
	// bytes that can be printed, without control characters.
	Reasons []Field
}

// A Quota describes where a response reports the state of one quota or, if Combined, of several. Set
// the Fields that the provider sends, and leave the others empty. For one of a Policy's tiers, Unit
// is the Unit of the tier.
type Quota struct {
	// Name is the name of the Readings, and may be empty. Where a Combined header names the
	// quotas, the name of a reading is "tickets", or with Name "endpoints/tickets".
	Name string

	// NameIn is the header whose value is the name. If empty, or if a response lacks the
	// header, Name.
	NameIn string

	// UnitIn is the header whose value is the unit, for providers that name the resource of a
	// request. If empty, or if a response lacks the header, Unit.
	UnitIn string

	// Unit is what the quota counts. If empty, "requests".
	Unit string

	// Window is the window of the limit, for providers that document it and don't report it.
	// If zero, unknown.
	Window time.Duration

	// Limit is the number of units allowed in each window. If the response reports 0, no field
	// is read: Okta reports 0 for responses that another quota limits.
	Limit Field

	// Remaining is the number of units left.
	Remaining Field

	// Used is the number of units used.
	Used Field

	// Share is the fraction used, such as 0.85, or with Percent 85, for providers that report
	// no units. throttle.Transport ignores it.
	Share Field

	// Rate is the number of units restored each second, such as 0.0167. Limit and Rate give the
	// window. If Limit is empty, the reading is of one unit and the time that restores it.
	Rate Field

	// Length is the length of the window, a duration.
	Length Field

	// Reset is the time when the window ends, or the bucket is full again.
	Reset Field

	// Combined is a header with several values. If it is present and well-formed, the Fields
	// above are not read.
	Combined Field

	// Read replaces all these Fields for formats that they can't describe, such as the
	// structured fields of package ietf. Its Readings need only the values that the response
	// reports. Each name is appended to Name. Counts out of range are clamped, and times out of
	// range are dropped. Read must be safe for concurrent use. If nil, the Fields are read.
	Read func(Response) []Reading

	// Full is true if all units are available again at Reset, rather than some.
	Full bool

	// Authoritative is true if reported values replace the limiter's own estimate. Otherwise a
	// reported remaining count can only lower the estimate.
	Authoritative bool
}

// A Charge describes where a response reports the cost of the request, or a part of the cost.
// Charges of one Unit are added up, such as Anthropic's input tokens and its cache-creation tokens.
type Charge struct {
	// Unit is what the charge counts. If empty, "requests".
	Unit string

	// Field is the place of the number. A Meter reads a place in the body.
	Field Field

	// Or is another place of the same number, as in a stream. The later value in a body counts.
	Or Field

	// Times is how many units a reported unit costs, such as 5 where an output token takes five
	// tokens of a quota. If zero, one.
	Times int64

	// ByStatus replaces Field and Or if the status of a response decides what the request cost.
	// With {304: 0, 0: 1} a request costs 1, or nothing if the response is 304 Not Modified. The
	// key 0 stands for every other status. Without it, other responses report no charge. If
	// empty, the Fields are read.
	ByStatus map[int]int64
}

// A Response is the input of Read.
type Response struct {
	// Method is the method of the request, such as "POST". If empty, it satisfies every Rule.Method.
	Method string

	Status int
	Header http.Header

	// Event is the type of an event in the stream of the response, such as "error". Body is then the
	// data of the event, and only the rules with an Event apply. Meter.Refused returns such events. If
	// empty, the response itself.
	Event string

	// Body is the beginning of the body, of any length. If nil, the body is not read; see
	// Profile.Peeks.
	Body []byte

	// Sent is when the request was sent. If zero, Got.
	Sent time.Time

	// Got is when the response arrived, or the event. A reset that is a date counts from the Date of
	// the response. If the response has no Date, or if it was read with an Event, it counts from Got.
	Got time.Time
}

// An Answer is the content of a response.
type Answer struct {
	// Readings are in the order of Profile.Quotas. A response from a cache, which has a
	// positive Age, has none.
	Readings []Reading

	// Charged are the costs in the status and the header, in the order of Profile.Charges, and then
	// those of Rule.Cost. A Meter reads the costs in the body. Costs of one unit are added up. A
	// response from a cache has none.
	Charged []Amount

	// Refusal has the Kind Passed if the request was not refused.
	Refusal
}

// An Amount is a number of units.
type Amount struct {
	// Unit is the Unit of the Charge, or "requests" if that is empty.
	Unit string
	N    int64
}

// Facts is the set of values that a Reading contains. Their zero values are meaningful.
type Facts uint8

// The facts of a Reading.
const (
	HasRemaining Facts = 1 << iota
	HasUsed
	HasShare
	HasReset
)

// A Reading is the state of one quota in a response.
type Reading struct {
	// Name is the name of the quota, and may be empty.
	Name string

	// Key is the partition key of the IETF drafts, as bytes, and may be empty.
	Key string

	// Unit is what the quota counts.
	Unit string

	// Has is the set of values that the response reports.
	Has Facts

	// Limit is the number of units allowed in each window. If zero, unknown.
	Limit int64

	// Remaining is the number of units left, from 0 to Limit. If the response reports only Limit
	// and Used, it is their difference.
	Remaining int64

	// Used is the number of units used, which may exceed Limit.
	Used int64

	// Share is the used part of the limit, in millionths, which may exceed 1,000,000.
	Share int64

	// Window is the length of the window. If zero, unknown.
	Window time.Duration

	// Reset is the time of the reset after Got, in whole microseconds, rounded up. If zero, the
	// reset has passed.
	Reset time.Duration

	// Slack is how much too long Reset may be: the round trip and, if the reset is a date, a
	// second, because Date has whole seconds.
	Slack time.Duration

	// Full and Authoritative come from the Quota, or from Quota.Read.
	Full, Authoritative bool

	// FromBody is true if a Field of the Quota is in the body, or if Quota.Read set it; see
	// Refusal.FromBody.
	FromBody bool
}

// Read returns the content of r, as described by the profile. It never fails: missing, malformed
// and absurd values are left out.
func (p Profile) Read(r Response) Answer {
	e := event{Response: r, profile: p, now: r.Got, slack: max(r.Got.Sub(r.Sent), 0)}
	if r.Sent.IsZero() {
		e.slack = 0
	}
	if date, err := http.ParseTime(r.Header.Get("Date")); err == nil && r.Event == "" {
		e.now, e.dated = date, true
	}
	if len(r.Body) > 0 {
		e.body.Queries, _ = p.queries(&r)
		e.body.Scan(r.Body)
	}
	var a Answer
	rule := e.rule()
	if r.Event != "" {
		if rule != nil {
			a.Refusal = e.refusalBy(rule, nil)
		}
		return a
	}
	if !cached(r.Header) {
		if len(p.Quotas) > 0 {
			a.Readings = make([]Reading, 0, len(p.Quotas))
		}
		for i := range p.Quotas {
			a.Readings = p.Quotas[i].read(&e, a.Readings)
		}
		a.Charged = e.charged(rule)
	}
	a.Refusal = e.refusal(rule, a.Readings)
	return a
}

// Peeks reports whether Read needs the beginning of the body of a response with this status and
// header. Reading a body early takes time and memory. Peeks reports false for compressed bodies,
// event streams and upgraded connections, and, if the profile reads values only by Path, for bodies
// whose Content-Type is not JSON.
func (p Profile) Peeks(status int, h http.Header) bool {
	kind := mediaType(h)
	if encoded(h) || kind == eventStream || status == http.StatusSwitchingProtocols {
		return false
	}
	qs, whole := p.queries(&Response{Status: status, Header: h})
	return whole || len(qs) > 0 && (kind == "" || isJSON(kind))
}

// queries returns the queries for the body of r. It reports in whole whether a rule matches text
// anywhere in the body.
func (p *Profile) queries(r *Response) (qs []jsonpath.Query, whole bool) {
	for i := range p.Quotas {
		for _, f := range p.Quotas[i].fields() {
			qs = f.addQuery(qs, false)
		}
	}
	refused := r.Status == http.StatusTooManyRequests || r.Status == http.StatusServiceUnavailable
	for i := range p.Rules {
		rule := &p.Rules[i]
		if rule.hasOther(r.Status) || !rule.isOf(r.Event) || !rule.matchesHead(r) {
			continue
		}
		refused = refused || rule.Kind != Passed
		for j := range rule.Delay {
			qs = rule.Delay[j].addQuery(qs, false)
		}
		qs = rule.Asked.addQuery(qs, false)
		if rule.Text == "" && rule.Method == "" {
			break // this rule matches, whatever the body: later rules don't count
		}
		switch {
		case rule.Text == "":
		case rule.Path == "":
			whole = true
		default:
			qs = append(qs, jsonpath.Query{Path: rule.Path, Pattern: rule.Text})
		}
	}
	for _, fields := range [...][]Field{p.RetryAfter, p.Reasons} {
		for i := range fields {
			if refused {
				qs = fields[i].addQuery(qs, false)
			}
		}
	}
	return qs, whole
}

// An event is a response that a profile reads, and the provider's clock.
type event struct {
	Response
	profile Profile
	body    jsonpath.Scanner // contains the values found in Body
	now     time.Time        // when the provider answered, by its clock; Got if there is no Date
	dated   bool             // now is the Date, cut to the second
	slack   time.Duration    // the longest time that the response can have been in flight
}
