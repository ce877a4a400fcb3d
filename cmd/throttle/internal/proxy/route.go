package proxy

import (
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
)

// A route is a Route with what requests need.
type route struct {
	Route
	set    http.Header
	query  string       // Query, encoded
	used   atomic.Bool  // a request has had a limiter
	logged atomic.Int64 // the second of the last line about the upstream
	counts *upstream
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

// below returns what follows the address of the upstream in an address, escaped. A link to http leads
// to an upstream with https, too: APIs behind a balancer write such links.
func (r *route) below(u *url.URL) (rest string, ok bool) {
	up := r.Upstream
	if u.Scheme != up.Scheme && up.Scheme != "https" || !strings.EqualFold(u.Hostname(), up.Hostname()) || port(u) != port(up) && (u.Scheme == up.Scheme || u.Port() != "") {
		return "", false
	}
	rest, ok = strings.CutPrefix(u.EscapedPath(), up.EscapedPath())
	return rest, ok && (rest == "" || rest[0] == '/') && isSafe(rest)
}

// withQuery returns the query of a request to the upstream: that of the client, with the parameters that
// the route sets in the place of those with the same names.
func (r *route) withQuery(query string) string {
	if r.query == "" {
		return query
	}
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		if part != "" && !r.replaces(part) {
			kept = append(kept, part)
		}
	}
	return strings.Join(append(kept, r.query), "&")
}

// replaces reports whether a part of a query is a parameter that the route sets, also if the upstream takes
// a ; for a &, decodes the name again, or takes name[] for name.
func (r *route) replaces(part string) bool {
	for parameter := range strings.SplitSeq(part, ";") {
		name, _, _ := strings.Cut(parameter, "=")
		for range 3 {
			bare, _, _ := strings.Cut(strings.TrimSpace(name), "[")
			if _, set := r.Query[bare]; set {
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
