package providers

import (
	"encoding/json"
	"io"
	"net/http"
	"path"

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

// under tells whether the request's path is like pattern, as path.Match has it: a * is
// one part of it.
func under(req *http.Request, pattern string) bool {
	ok, err := path.Match(pattern, req.URL.Path)
	return ok && err == nil
}
