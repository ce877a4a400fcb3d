package credentials

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// LeadsAway reports whether a request follows a redirect to another host than that of the request which was
// redirected first.
func LeadsAway(req *http.Request) bool {
	first := req
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	return first != req && req.URL != nil && first.URL != nil && !isSameHost(first.URL, req.URL)
}

// WithoutFields returns a copy of a request without the credentials in its header.
func WithoutFields(req *http.Request) *http.Request {
	bare := req.WithContext(req.Context())
	bare.Header = req.Header.Clone()
	removeFields(bare.Header)
	return bare
}

// LeadBack makes the response to what was sent for a request the response to that request. A redirect to the
// host of what was sent becomes one to the caller's host. If rewriting has replaced the beginning of the path, the
// redirect has the caller's instead. No redirect contains the credentials in the query of what was sent.
func LeadBack(resp *http.Response, sent, req *http.Request) {
	resp.Request = req
	location := resp.Header.Get("Location")
	if resp.StatusCode/100 != 3 || location == "" {
		return
	}
	to, err := sent.URL.Parse(location)
	if err != nil {
		return
	}
	query, secrets := to.RawQuery, strings.Split(sent.URL.RawQuery, "&")
	to.RawQuery = filter(query, func(pair string) bool { return !isParameterPair(pair) || !slices.Contains(secrets, pair) })
	switch {
	case isSameHost(sent.URL, to):
		own := *req.URL
		own.User, own.Opaque = nil, ""
		if to.Scheme != sent.URL.Scheme {
			own.Scheme = to.Scheme
		}
		own.Path, own.RawPath = to.Path, to.RawPath
		callers, members := beginnings(req.URL.EscapedPath(), sent.URL.EscapedPath())
		if rest, ok := strings.CutPrefix(to.EscapedPath(), members); ok && strings.HasPrefix(rest, "/") {
			own.RawPath = callers + rest
			own.Path, _ = url.PathUnescape(own.RawPath) // of two valid paths
		}
		own.RawQuery, own.ForceQuery, own.Fragment, own.RawFragment = to.RawQuery, to.ForceQuery, to.Fragment, to.RawFragment
		to = &own
	case to.RawQuery == query:
		return
	}
	resp.Header = resp.Header.Clone() // the Base may keep its own
	resp.Header.Set("Location", to.String())
}

// beginnings returns what stands before the segments in which two paths both end.
func beginnings(a, b string) (string, string) {
	for {
		i, j := strings.LastIndexByte(a, '/'), strings.LastIndexByte(b, '/')
		if i < 0 || j < 0 || a[i:] != b[j:] {
			return a, b
		}
		a, b = a[:i], b[:j]
	}
}

func isSameHost(a, b *url.URL) bool {
	return strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

// port returns the port of a URL, or nothing if it is that of its scheme.
func port(u *url.URL) string {
	p := u.Port()
	if p == "80" && u.Scheme == "http" || p == "443" && u.Scheme == "https" {
		return ""
	}
	return p
}
