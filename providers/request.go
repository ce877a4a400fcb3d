package providers

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/apithrottle/throttle"
)

// compiled is the day of the pages that say no other.
const compiled = "2026-11-21"

// every is the scope of all requests. How long a request takes to arrive depends on the
// caller's network, which AutoGuard learns.
func every(name, page string, tiers ...throttle.Tier) Scope {
	return Scope{
		Name: name, Page: page, Read: compiled,
		Policy: throttle.Policy{Tiers: tiers, Guard: throttle.AutoGuard},
	}
}

// some is the scope of the requests that count by key.
func some(name, page string, key func(*http.Request) (string, bool), tiers ...throttle.Tier) Scope {
	s := every(name, page, tiers...)
	s.Key = key
	return s
}

// when is the Key of a scope with one quota, in which the requests count that are so.
func when(is func(*http.Request) bool) func(*http.Request) (string, bool) {
	return func(req *http.Request) (string, bool) { return "", is(req) }
}

const mostBody = 64 << 10 // of a request's body, in bytes: what is behind is not looked at

// body is the beginning of the request's body; nil if it has none that can be read twice.
func body(req *http.Request) []byte {
	if req.GetBody == nil {
		return nil
	}
	b, err := req.GetBody()
	if err != nil {
		return nil
	}
	defer b.Close()
	text, err := io.ReadAll(io.LimitReader(b, mostBody))
	if err != nil {
		return nil
	}
	return text
}

// decode reads the request's JSON body into v; false if it is not there, not JSON, or
// longer than what is looked at.
func decode(req *http.Request, v any) bool {
	b := body(req)
	return len(b) > 0 && json.Unmarshal(b, v) == nil
}

// form is the request's parameters, of its query and of a body that is a form.
func form(req *http.Request) url.Values {
	all := req.URL.Query()
	if sent, err := url.ParseQuery(string(body(req))); err == nil {
		for name, values := range sent {
			all[name] = append(all[name], values...)
		}
	}
	return all
}

// bucket is a tier of a bucket that gains limit in each window and holds size.
func bucket(limit int64, window time.Duration, size int64) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: window, Algorithm: throttle.TokenBucket, Burst: size}
}
