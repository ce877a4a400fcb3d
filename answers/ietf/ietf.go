// Package ietf reads the RateLimit header fields of the IETF drafts, for the profiles of package
// answers. The fields are structured fields (RFC 9651), whose parser is not in the standard
// library.
//
// The versions of draft-ietf-httpapi-ratelimit-headers define four forms of the fields, and package
// ietf reads all four:
//
//	-03  RateLimit-Limit: 100, 100;w=60, 5000;w=3600   with RateLimit-Remaining and -Reset,
//	     also with the window on the first item: 100;w=21600
//	-06  RateLimit-Limit: 100   RateLimit-Policy: 100;w=60, 5000;w=3600   and the same two
//	-07  RateLimit: limit=100, remaining=50, reset=5   RateLimit-Policy: 100;w=10
//	-08… RateLimit: "burst";r=50;t=30   RateLimit-Policy: "burst";q=100;w=60
//
// In each form, a reset is in seconds from now. As the drafts require, a malformed field is ignored
// as a whole. A field with a value of another type, or out of range, is malformed.
package ietf

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/apithrottle/throttle/answers"
)

// Profile returns a Profile that reads the RateLimit header fields in every form that the drafts
// define (-01 to -10).
func Profile() answers.Profile {
	return answers.Profile{Quotas: []answers.Quota{Quota("RateLimit")}}
}

// Quota returns a Quota that reads the fields under another name. With "Beta-RateLimit" (Jira), the
// headers are Beta-RateLimit and Beta-RateLimit-Policy, and those of the older drafts are
// Beta-RateLimit-Limit, -Remaining and -Reset. The caller may set other fields of the Quota, such
// as Unit.
func Quota(header string) answers.Quota {
	header = http.CanonicalHeaderKey(header)
	n := names{header, header + "-Policy", header + "-Limit", header + "-Remaining", header + "-Reset"}
	return answers.Quota{Read: n.read}
}

// names are the names of the headers.
type names struct{ all, policy, limit, remaining, reset string }

// maxItems bounds the items read from one header, and so the time to match them with policies. No
// provider sends as many.
const maxItems = 32

// read returns the readings of the fields, then the policies without one.
func (n *names) read(r answers.Response) []answers.Reading {
	policies := policyList(r.Header.Values(n.policy))
	found := itemList(r.Header.Values(n.all))
	if found == nil {
		found, policies = n.separate(r.Header, policies)
	}
	for i := range found {
		policies = addPolicy(&found[i], policies)
	}
	return append(found, slices.DeleteFunc(policies, func(p answers.Reading) bool { return p.Limit == 0 })...)
}

// separate reads the form with one value in each header. It returns the policies, with those in the
// limit header added.
func (n *names) separate(h http.Header, policies []answers.Reading) (_, _ []answers.Reading) {
	var r answers.Reading
	if limits := policyList(h.Values(n.limit)); len(limits) > 0 {
		if r.Limit = limits[0].Limit; r.Limit == 0 { // Okta sends 0 if the response is not about this quota
			return nil, policies
		}
		r.Window = limits[0].Window // Docker Hub sends 100;w=21600
		policies = append(policies, limits[1:]...)
	}
	set(&r, func(header string) (any, bool) { return integer(h.Values(header)) }, n.remaining, n.reset)
	if r.Limit == 0 && r.Has == 0 {
		return nil, policies
	}
	return []answers.Reading{r}, policies
}

// integer parses a header that is a non-negative Integer.
func integer(lines []string) (value any, ok bool) {
	item, err := httpsfv.UnmarshalItem(lines)
	_, present, ok := natural(item.Value, err == nil)
	return item.Value, present && ok
}

// itemList parses a RateLimit header: a list of named items or, in -07, a dictionary.
func itemList(lines []string) []answers.Reading {
	rs, isList := list(lines, func(item httpsfv.Item) (r answers.Reading, ok bool) {
		ok = setName(&r, item.Value) && setKey(&r, item.Params) && set(&r, item.Params.Get, "r", "t")
		return r, ok
	})
	if !isList {
		return dictionary(lines)
	}
	return rs
}

// list parses a list of items. There are no readings if one of them is malformed.
func list(lines []string, read func(httpsfv.Item) (answers.Reading, bool)) (rs []answers.Reading, isList bool) {
	members, err := httpsfv.UnmarshalList(lines)
	for _, m := range members[:min(len(members), maxItems)] {
		item, ok := m.(httpsfv.Item)
		if !ok {
			return nil, true
		}
		r, ok := read(item)
		if !ok {
			return nil, true
		}
		rs = append(rs, r)
	}
	return rs, err == nil
}

// dictionary parses a RateLimit header of draft-07.
func dictionary(lines []string) []answers.Reading {
	d, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil {
		return nil
	}
	value := func(key string) (any, bool) {
		m, present := d.Get(key)
		item, _ := m.(httpsfv.Item)
		return item.Value, present
	}
	limit, _, ok := natural(value("limit"))
	r := answers.Reading{Limit: limit}
	if !ok || limit == 0 || !set(&r, value, "remaining", "reset") {
		return nil
	}
	return []answers.Reading{r}
}

// policyList parses a RateLimit-Policy or RateLimit-Limit header.
func policyList(lines []string) []answers.Reading {
	rs, _ := list(lines, policy)
	return rs
}

// policy parses one policy.
func policy(item httpsfv.Item) (r answers.Reading, ok bool) {
	limit, present, ok := natural(item.Value, true)
	if !ok {
		if !setName(&r, item.Value) {
			return r, false
		}
		limit, present, ok = natural(item.Params.Get("q"))
	}
	w, hasWindow, ok1 := natural(item.Params.Get("w"))
	if !ok || !present || !ok1 || hasWindow && w == 0 || !setKey(&r, item.Params) || !setUnit(&r, item.Params) {
		return r, false
	}
	r.Limit, r.Window = limit, seconds(w)
	return r, true
}

// addPolicy adds the limit and window of its policy to r, and returns the other policies. The
// policy of an unnamed reading is the one with the same limit, if there is exactly one.
func addPolicy(r *answers.Reading, policies []answers.Reading) []answers.Reading {
	match := -1
	for i, p := range policies {
		if p.Name != r.Name || r.Key != "" && p.Key != "" && p.Key != r.Key || p.Name == "" && p.Limit != r.Limit {
			continue
		}
		if match >= 0 {
			return policies
		}
		match = i
	}
	if match < 0 {
		return policies
	}
	p := policies[match]
	r.Limit, r.Unit, r.Window, r.Key = p.Limit, p.Unit, cmp.Or(p.Window, r.Window), cmp.Or(r.Key, p.Key)
	return slices.Delete(policies, match, match+1)
}

// set sets the remaining count and the reset, where present. It returns false if one is malformed.
func set(r *answers.Reading, value func(key string) (any, bool), remaining, reset string) bool {
	left, hasLeft, ok1 := natural(value(remaining))
	after, hasReset, ok2 := natural(value(reset))
	if hasLeft {
		r.Remaining = left
		r.Has |= answers.HasRemaining
	}
	if hasReset {
		r.Reset = seconds(after)
		r.Has |= answers.HasReset
	}
	return ok1 && ok2
}

// seconds returns n seconds, at most a hundred years. Profile.Read ignores times beyond a year.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, 100*366*24*3600)) * time.Second
}

// natural converts a value that must be a non-negative Integer. An absent value is ok.
func natural(v any, isPresent bool) (n int64, present, ok bool) {
	if !isPresent {
		return 0, false, true
	}
	n, ok = v.(int64)
	return n, true, ok && n >= 0
}

// setName sets the name to a String or, in earlier drafts, a Token.
func setName(r *answers.Reading, v any) bool {
	switch v := v.(type) {
	case string:
		r.Name = v
	case httpsfv.Token:
		r.Name = string(v)
	default:
		return false
	}
	return true
}

// setKey sets the partition key, if present.
func setKey(r *answers.Reading, p *httpsfv.Params) bool {
	v, present := p.Get("pk")
	key, ok := v.([]byte)
	r.Key = string(key)
	return ok || !present
}

// setUnit sets the unit, if present.
func setUnit(r *answers.Reading, p *httpsfv.Params) bool {
	v, present := p.Get("qu")
	unit, ok := v.(string)
	r.Unit = unit
	return ok || !present
}
