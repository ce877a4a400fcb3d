package answers

import (
	"time"

	"github.com/dunglas/httpsfv"
)

// The drafts of draft-ietf-httpapi-ratelimit-headers have told the same in four shapes:
//
//	-03  RateLimit-Limit: 100, 100;w=60, 5000;w=3600   with RateLimit-Remaining and -Reset
//	-06  RateLimit-Limit: 100   RateLimit-Policy: 100;w=60, 5000;w=3600   and the same two
//	-07  RateLimit: limit=100, remaining=50, reset=5   RateLimit-Policy: 100;w=10
//	-08… RateLimit: "burst";r=50;t=30   RateLimit-Policy: "burst";q=100;w=60
//
// In each a reset is in seconds from now. By the drafts a malformed field is ignored as
// a whole; and a structured field with a value of another type, or out of range, is one.

// Drafts returns a Profile that reads every shape of the RateLimit header fields that
// the IETF's drafts have had (draft-ietf-httpapi-ratelimit-headers-01 to -10).
func Drafts() Profile {
	return Profile{Quotas: []Quota{{
		Combined:  Field{Header: "Ratelimit", Format: List},
		Limit:     Field{Header: "Ratelimit-Limit", Format: List},
		Remaining: Field{Header: "Ratelimit-Remaining"},
		Reset:     Field{Header: "Ratelimit-Reset", Format: Seconds},
		Policy:    "Ratelimit-Policy",
	}}}
}

// itemList parses a RateLimit.
func itemList(lines []string, base Reading, e *event) (rs []Reading) {
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		return dictionary(lines, base, e)
	}
	for _, m := range list[:min(len(list), mostReadings)] {
		r := base
		item, ok := m.(httpsfv.Item)
		if !ok || !r.name(item.Value) {
			return nil
		}
		left, isLeft, ok1 := natural(item.Params.Get("r"))
		reset, isReset, ok2 := natural(item.Params.Get("t"))
		if !ok1 || !ok2 || !r.key(item.Params) {
			return nil
		}
		r.left(left, isLeft, reset, isReset, e)
		rs = append(rs, r)
	}
	return rs
}

// dictionary parses a RateLimit of draft-07.
func dictionary(lines []string, r Reading, e *event) []Reading {
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
	r.Limit = limit
	r.left(left, isLeft, reset, isReset, e)
	return []Reading{r}
}

// policyList parses a RateLimit-Policy, and a RateLimit-Limit.
func policyList(lines []string, base Reading) (rs []Reading) {
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		return nil
	}
	for _, m := range list[:min(len(list), mostReadings)] {
		item, ok := m.(httpsfv.Item)
		if !ok {
			return nil
		}
		r := base
		limit, told, ok := natural(item.Value, true)
		if !ok {
			if !r.name(item.Value) {
				return nil
			}
			limit, told, ok = natural(item.Params.Get("q"))
		}
		w, windowed, ok1 := natural(item.Params.Get("w"))
		if !ok || !told || !ok1 || windowed && w == 0 || !r.key(item.Params) || !r.unit(item.Params) {
			return nil
		}
		if r.Limit = limit; windowed && w < int64(farthest/time.Second) {
			r.Window = time.Duration(w) * time.Second
		}
		rs = append(rs, r)
	}
	return rs
}

// left notes what a RateLimit tells.
func (r *Reading) left(left int64, isLeft bool, reset int64, isReset bool, e *event) {
	if isLeft {
		r.Remaining = left
		r.Has |= HasRemaining
	}
	if isReset && reset < int64(farthest/time.Second) {
		r.reset(time.Duration(reset)*time.Second, false, e)
	}
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
func (r *Reading) name(v any) bool {
	switch v := v.(type) {
	case string:
		r.within(v)
	case httpsfv.Token:
		r.within(string(v))
	default:
		return false
	}
	return true
}

func (r *Reading) key(p *httpsfv.Params) bool {
	v, there := p.Get("pk")
	key, ok := v.([]byte)
	r.Key = string(key)
	return ok || !there
}

func (r *Reading) unit(p *httpsfv.Params) bool {
	v, there := p.Get("qu")
	if !there {
		return true
	}
	var ok bool
	r.Unit, ok = v.(string)
	return ok
}
