// Package ietf reads the RateLimit header fields of the IETF's drafts, for the profiles
// of package answers, which, but for these structured fields (RFC 9651), links only the
// standard library.
//
// The drafts of draft-ietf-httpapi-ratelimit-headers have told the same in four shapes,
// and all are read:
//
//	-03  RateLimit-Limit: 100, 100;w=60, 5000;w=3600   with RateLimit-Remaining and -Reset
//	-06  RateLimit-Limit: 100   RateLimit-Policy: 100;w=60, 5000;w=3600   and the same two
//	-07  RateLimit: limit=100, remaining=50, reset=5   RateLimit-Policy: 100;w=10
//	-08… RateLimit: "burst";r=50;t=30   RateLimit-Policy: "burst";q=100;w=60
//
// In each a reset is in seconds from now. By the drafts a malformed field is ignored as
// a whole; and a structured field with a value of another type, or out of range, is one.
package ietf

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/apithrottle/throttle/answers"
)

// Profile returns a Profile that reads every shape of the RateLimit header fields that
// the drafts have had (-01 to -10).
func Profile() answers.Profile {
	return answers.Profile{Quotas: []answers.Quota{Quota("RateLimit")}}
}

// Quota returns a Quota that reads the same under another name: with "Beta-RateLimit"
// (Jira) the headers Beta-RateLimit, Beta-RateLimit-Policy, and of the older drafts
// Beta-RateLimit-Limit, -Remaining and -Reset. Its other fields may be set, such as Unit.
func Quota(header string) answers.Quota {
	header = http.CanonicalHeaderKey(header)
	n := names{header, header + "-Policy", header + "-Limit", header + "-Remaining", header + "-Reset"}
	return answers.Quota{Read: n.read}
}

type names struct{ all, policy, limit, remaining, reset string }

const mostItems = 32 // of one header: no provider tells more, and a policy is looked for among them

// read returns what the fields tell, then the policies of which they don't speak.
func (n *names) read(r answers.Response) []answers.Reading {
	policies := policyList(r.Header.Values(n.policy))
	found := itemList(r.Header.Values(n.all))
	if found == nil {
		found, policies = n.separate(r.Header, policies)
	}
	for i := range found {
		policies = adopt(&found[i], policies)
	}
	return append(found, slices.DeleteFunc(policies, func(p answers.Reading) bool { return p.Limit == 0 })...)
}

// separate reads the shape with one value per header. The policies that stand in the
// limit come back with those of the policy header.
func (n *names) separate(h http.Header, policies []answers.Reading) (_, _ []answers.Reading) {
	var r answers.Reading
	if limits := policyList(h.Values(n.limit)); len(limits) > 0 {
		if r.Limit = limits[0].Limit; r.Limit == 0 { // as Okta says that it isn't of this quota
			return nil, policies
		}
		policies = append(policies, limits[1:]...)
	}
	left, isLeft := integer(h.Values(n.remaining))
	reset, isReset := integer(h.Values(n.reset))
	tell(&r, left, isLeft, reset, isReset)
	if r.Limit == 0 && r.Has == 0 {
		return nil, policies
	}
	return []answers.Reading{r}, policies
}

func integer(lines []string) (int64, bool) {
	item, err := httpsfv.UnmarshalItem(lines)
	n, told, ok := natural(item.Value, err == nil)
	return n, told && ok
}

// itemList parses a RateLimit: a list of named items, or, in -07, a dictionary.
func itemList(lines []string) (rs []answers.Reading) {
	if len(lines) == 0 {
		return nil
	}
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		return dictionary(lines)
	}
	for _, m := range list[:min(len(list), mostItems)] {
		item, ok := m.(httpsfv.Item)
		if !ok {
			return nil
		}
		var r answers.Reading
		left, isLeft, ok1 := natural(item.Params.Get("r"))
		reset, isReset, ok2 := natural(item.Params.Get("t"))
		if !name(&r, item.Value) || !ok1 || !ok2 || !key(&r, item.Params) {
			return nil
		}
		tell(&r, left, isLeft, reset, isReset)
		rs = append(rs, r)
	}
	return rs
}

// dictionary parses a RateLimit of draft-07.
func dictionary(lines []string) []answers.Reading {
	d, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil {
		return nil
	}
	value := func(key string) (any, bool) {
		m, there := d.Get(key)
		item, _ := m.(httpsfv.Item)
		return item.Value, there
	}
	limit, _, ok := natural(value("limit"))
	left, isLeft, ok1 := natural(value("remaining"))
	reset, isReset, ok2 := natural(value("reset"))
	if !ok || !ok1 || !ok2 || limit == 0 {
		return nil
	}
	r := answers.Reading{Limit: limit}
	tell(&r, left, isLeft, reset, isReset)
	return []answers.Reading{r}
}

// policyList parses a RateLimit-Policy, and a RateLimit-Limit.
func policyList(lines []string) (rs []answers.Reading) {
	if len(lines) == 0 {
		return nil
	}
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		return nil
	}
	for _, m := range list[:min(len(list), mostItems)] {
		item, ok := m.(httpsfv.Item)
		if !ok {
			return nil
		}
		r, ok := policy(item)
		if !ok {
			return nil
		}
		rs = append(rs, r)
	}
	return rs
}

func policy(item httpsfv.Item) (r answers.Reading, ok bool) {
	limit, told, ok := natural(item.Value, true)
	if !ok {
		if !name(&r, item.Value) {
			return r, false
		}
		limit, told, ok = natural(item.Params.Get("q"))
	}
	w, windowed, ok1 := natural(item.Params.Get("w"))
	if !ok || !told || !ok1 || windowed && w == 0 || !key(&r, item.Params) || !unit(&r, item.Params) {
		return r, false
	}
	r.Limit, r.Window = limit, seconds(w)
	return r, true
}

// adopt gives r the limit and window of the policy that it is of, and returns the
// policies that are left. An unnamed reading is of the policy with its limit, if only
// one has it.
func adopt(r *answers.Reading, policies []answers.Reading) []answers.Reading {
	mine := -1
	for i, p := range policies {
		if p.Name != r.Name || r.Key != "" && p.Key != "" && p.Key != r.Key || p.Name == "" && p.Limit != r.Limit {
			continue
		}
		if mine >= 0 {
			return policies
		}
		mine = i
	}
	if mine < 0 {
		return policies
	}
	p := policies[mine]
	r.Limit, r.Unit, r.Window, r.Key = p.Limit, p.Unit, p.Window, cmp.Or(r.Key, p.Key)
	return slices.Delete(policies, mine, mine+1)
}

// tell notes what is left and when more comes.
func tell(r *answers.Reading, left int64, isLeft bool, reset int64, isReset bool) {
	if isLeft {
		r.Remaining = left
		r.Has |= answers.HasRemaining
	}
	if isReset {
		r.Reset = seconds(reset)
		r.Has |= answers.HasReset
	}
}

// seconds is n seconds. What is beyond a hundred years is left out by Profile.Read, as
// is much that is less.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, 100*366*24*3600)) * time.Second
}

// natural is a value that must be a non-negative Integer, if it is there.
func natural(v any, there bool) (n int64, told, ok bool) {
	if !there {
		return 0, false, true
	}
	n, ok = v.(int64)
	return n, true, ok && n >= 0
}

// name takes an item's name: a String, in earlier drafts a Token.
func name(r *answers.Reading, v any) bool {
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

func key(r *answers.Reading, p *httpsfv.Params) bool {
	v, there := p.Get("pk")
	key, ok := v.([]byte)
	r.Key = string(key)
	return ok || !there
}

func unit(r *answers.Reading, p *httpsfv.Params) bool {
	v, there := p.Get("qu")
	unit, ok := v.(string)
	r.Unit = unit
	return ok || !there
}
