// Package answers reads what a provider's response tells of its limits: how much is
// left, when more comes, what the request cost, and whether it was refused.
//
// Providers agree on little. A reset may be seconds left (Reddit), seconds since 1970
// (GitHub), milliseconds since 1970 (Linear), "6m0s" (OpenAI) or a date (Anthropic), and
// the same header name means one thing here and another there: RateLimit-Reset is 41
// seconds by the drafts and at Zendesk, and 1609844400 at GitLab. So nothing is guessed
// from a name or from a value: a [Profile] says, as data, which header holds what and
// in which [Format], and a value that doesn't fit its format is not read.
//
//	github := answers.Profile{Quotas: []answers.Quota{{
//		NameIn:    "X-RateLimit-Resource",
//		Remaining: answers.Field{Header: "X-RateLimit-Remaining"},
//		Reset:     answers.Field{Header: "X-RateLimit-Reset", Format: answers.EpochSeconds},
//	}}}
//	answer := github.Read(answers.Response{Status: 200, Header: resp.Header, Sent: sent, Got: time.Now()})
//
// Where [Profile.Peeks] reports true, a throttle.Transport reads the beginning of the body, 16 KB
// at most, before it returns the response. A profile that looks into the bodies of successes
// therefore holds back a stream whose Content-Type is not text/event-stream until so much has
// come, and Response.Trailer is filled early where the body ends within it. Rules for a
// status of refusals hold back those alone.
//
// What the request cost may stand in the body only, at its end: a [Meter] reads it there
// while the caller reads the body. The structured fields of the IETF's drafts are read by
// package ietf, whose parser isn't of the standard library.
//
// Reading is a pure function: no clock, no state, and no I/O but to look up the zone of a
// [Rule] until whose midnight a wait lasts. A value is read with distrust, for it comes
// from outside: counts are clamped to 0 … 999,999,999,999,999, what is left to the limit,
// and a reset that lies more than 366 days from now, before or behind, is not believed at
// all.
package answers

import (
	"net/http"
	"time"
)

// A Profile says where the responses of one provider tell of its limits. The zero
// Profile knows only the standards: a 429, or a 503 with Retry-After, is a refusal.
// A Profile may be copied, and read with concurrently; don't change what its slices hold.
type Profile struct {
	Quotas     []Quota  // what is told of the state of quotas
	Charges    []Charge // what is told of the cost of the request
	Rules      []Rule   // what is a refusal, the first that matches. None matching, a 429, or a 503 with Retry-After
	RetryAfter []Field  // where the wait after a refusal is told, the first that is usable. If nil, Retry-After
	Reasons    []string // headers that name the reason of a refusal, the first that is there
}

// A Quota says where the state of one quota is told, or, if Combined, of several.
type Quota struct {
	// Name is the quota's, for its Readings; it may be empty. Where a Combined header tells
	// of several that it names, a reading is "tickets", or with a Name "endpoints/tickets".
	Name   string
	NameIn string        // the header whose value is the name. If empty, or the header is not there, Name
	Unit   string        // what is counted. If empty, "requests"
	Window time.Duration // the limit's window, where the documentation tells it rather than the response. If zero, not known

	Limit     Field // units allowed per window. If it is told as 0 nothing is read: Okta reports so what isn't of this quota
	Remaining Field // units left
	Used      Field // units used
	Share     Field // the fraction used, such as 0.85, where no units are told
	Rate      Field // units that come back per second, of which with Limit the window is computed
	Length    Field // the window's length, a duration
	Reset     Field // when the window ends, or the bucket is full again
	Combined  Field // a header of several values at once; if it tells something, the fields above are not read

	// Read, instead of all these Fields, reads what they can't say as data, such as the
	// structured fields of package ietf. It sets of a Reading what is told; names are
	// put behind Name, and what is out of a Reading's bounds is left out. It must be safe
	// for concurrent use. If nil, the Fields are read.
	Read func(Response) []Reading

	Full          bool // Reset is when all is available again, not when some is
	Authoritative bool // what is told is the truth: it replaces what the limiter counted beside
}

// A Charge says where the cost of the request, or a part of it, is told: Charges of one
// Unit are added up, such as Anthropic's input tokens and those that went into a cache.
type Charge struct {
	Unit  string // what is counted. If empty, "requests"
	Field Field  // in the body, if it has a Path, which then is for a Meter to read
	Or    Field  // another place of the same number, as in a stream; what a body tells later counts
}

// A Response is what Read looks at.
type Response struct {
	Status int
	Header http.Header
	Body   []byte    // its beginning, as much as the caller cares to look at; nil if it doesn't, as where Peeks says so
	Sent   time.Time // when the request was sent. If zero, Got
	Got    time.Time // when the response came; what is told as a date is measured against its own Date, or Got if there is none
}

// An Answer is what a response tells.
type Answer struct {
	Readings []Reading // in the order of Profile.Quotas; none if the response comes from a cache (a positive Age)
	Charged  []Amount  // what the header tells of the cost, a Meter telling the rest: in the order of Profile.Charges, those of one unit added up; none from a cache
	Refusal
}

// An Amount is a number of units.
type Amount struct {
	Unit string
	N    int64
}

// Facts says what is told where zero would be an answer too.
type Facts uint8

// The facts of a Reading.
const (
	HasRemaining Facts = 1 << iota
	HasUsed
	HasShare
	HasReset
)

// A Reading is what a response tells of one quota.
type Reading struct {
	Name string // of the quota, "" if it has none
	Key  string // the partition key of the drafts, its bytes; "" if it has none
	Unit string

	Has       Facts
	Limit     int64         // units per window; 0 if not told
	Remaining int64         // units, from 0 to Limit; also told by Limit and Used
	Used      int64         // units, which may be more than Limit
	Share     int64         // of the limit that is used, in millionths, which may be more than a million
	Window    time.Duration // 0 if not told
	Reset     time.Duration // from Got on, in whole microseconds, rounded up; 0 if it is past
	Slack     time.Duration // by how much sooner than Reset it may be, by the road back and the seconds that clocks were cut to

	Full          bool // see Quota.Full
	Authoritative bool // see Quota.Authoritative
}

// Read returns what r tells by the profile. It never fails: what is missing, malformed
// or absurd is left out.
func (p Profile) Read(r Response) Answer {
	e := event{Response: r, now: r.Got, slack: max(r.Got.Sub(r.Sent), 0)}
	if r.Sent.IsZero() {
		e.slack = 0
	}
	if date, err := http.ParseTime(r.Header.Get("Date")); err == nil {
		e.now, e.dated = date, true
	}
	if len(r.Body) > 0 {
		e.body.wants, _ = p.wants(r.Status, r.Header)
		e.body.scan(r.Body)
	}
	var a Answer
	if !cached(r.Header) {
		a.Readings, a.Charged = p.readings(&e), p.charged(&e)
	}
	a.Refusal = p.refusal(&e, a.Readings)
	return a
}

func (p *Profile) readings(e *event) (rs []Reading) {
	if len(p.Quotas) > 0 {
		rs = make([]Reading, 0, len(p.Quotas))
	}
	for i := range p.Quotas {
		rs = p.Quotas[i].read(e, rs)
	}
	return rs
}

func (p *Profile) charged(e *event) (as []Amount) {
	for i := range p.Charges {
		c := &p.Charges[i]
		if n, ok := c.told(e); ok {
			as = charge(as, c.Unit, n)
		}
	}
	return as
}

// told is what the header tells of the charge.
func (c *Charge) told(e *event) (n int64, ok bool) {
	if c.Field.Header != "" {
		n, ok = c.Field.count(e, up)
	}
	if c.Or.Header != "" && !ok {
		n, ok = c.Or.count(e, up)
	}
	return n, ok
}

// An event is a response and the provider's clock.
type event struct {
	Response
	body  scanner       // with what the body tells
	now   time.Time     // by the provider, when it answered
	dated bool          // now is its Date, cut to the second
	slack time.Duration // the response was on its way at most for so long
}
