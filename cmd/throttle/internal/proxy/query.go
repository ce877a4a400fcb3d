package proxy

import (
	"net/http"
	"net/url"
	"strings"
)

// encode returns parameters as they are in a query.
func encode(query map[string]string) string {
	values := make(url.Values)
	for name, value := range query {
		values.Set(name, value)
	}
	return values.Encode()
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
