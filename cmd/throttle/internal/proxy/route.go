package proxy

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apithrottle/throttle/cmd/throttle/config"
)

// A route is a Route with what requests need.
type route struct {
	Route
	set      http.Header
	query    string          // Query, encoded
	replaced map[string]bool // the names of Query and Drop
	pool     *config.Pool    // nil without Members
	waits    sync.Mutex      // held while a refusal asks what the members wait for
	used     atomic.Bool     // a request has had a limiter
	logged   atomic.Int64    // the second of the last line about the upstream
	counts   *upstream
}

// url returns the address of a request to the upstream. Rest is escaped, and stays as it is.
func (r *route) url(rest, query string, forceQuery bool) *url.URL {
	u := &url.URL{Scheme: r.Upstream.Scheme, Host: r.Upstream.Host, RawQuery: query, ForceQuery: forceQuery}
	escaped := r.Upstream.EscapedPath() + rest
	if escaped == "" {
		escaped = "/"
	}
	if path, err := url.PathUnescape(escaped); err == nil {
		u.Path = path
		if escaped != path {
			u.RawPath = escaped
		}
	}
	return u
}

// member returns the member of a name, nil if there is none.
func (r *route) member(name string) *Member {
	for i := range r.Members {
		if r.Members[i].Name == name {
			return &r.Members[i]
		}
	}
	return nil
}

// below returns what follows the address of the upstream, or of any member, in an address, escaped.
func (r *route) below(u *url.URL) (rest string, ok bool) {
	if rest, ok = below(r.Upstream, u); ok {
		return rest, ok
	}
	for _, m := range r.Members {
		if rest, ok = below(m.Upstream, u); ok {
			return rest, ok
		}
	}
	return "", false
}

// below returns what follows the address of an upstream in another address, escaped. A link to http leads
// to an upstream with https, too: APIs behind a balancer write such links.
func below(up, u *url.URL) (rest string, ok bool) {
	if u.Scheme != up.Scheme && up.Scheme != "https" || !strings.EqualFold(u.Hostname(), up.Hostname()) || port(u) != port(up) && (u.Scheme == up.Scheme || u.Port() != "") {
		return "", false
	}
	rest, ok = strings.CutPrefix(u.EscapedPath(), up.EscapedPath())
	return rest, ok && (rest == "" || rest[0] == '/') && isSafe(rest)
}

// withQuery returns the query of a request to the upstream: that of the client, with the parameters that
// the route sets in the place of those with the same names.
func (r *route) withQuery(query string) string {
	if len(r.replaced) == 0 {
		return query
	}
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		if part != "" && !r.replaces(part) {
			kept = append(kept, part)
		}
	}
	if r.query != "" {
		kept = append(kept, r.query)
	}
	return strings.Join(kept, "&")
}

// replaces reports whether a part of a query is a parameter that the route sets, also if the upstream takes
// a ; for a &, decodes the name again, or takes name[] for name.
func (r *route) replaces(part string) bool {
	for parameter := range strings.SplitSeq(part, ";") {
		name, _, _ := strings.Cut(parameter, "=")
		for range 3 {
			bare, _, _ := strings.Cut(strings.TrimSpace(name), "[")
			if r.replaced[bare] {
				return true
			}
			name = unescape(strings.ReplaceAll(name, "+", " "))
		}
	}
	return false
}

// hide removes the secrets of the route from the headers of a response, such as a redirect that repeats the
// address of the request.
func (r *route) hide(h http.Header) {
	if len(r.Secrets) == 0 {
		return
	}
	for _, values := range h {
		for i, value := range values {
			for _, secret := range r.Secrets {
				value = strings.ReplaceAll(value, secret, "[secret]")
			}
			values[i] = value
		}
	}
}

// encode returns parameters as they are in a query.
func encode(query map[string]string) string {
	values := make(url.Values)
	for name, value := range query {
		values.Set(name, value)
	}
	return values.Encode()
}
