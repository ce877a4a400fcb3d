package proxy

import (
	"net/http"
	"net/url"
	"strings"
)

// linkHeaders are the headers of responses that are one reference: redirects, results of operations that
// go on (Azure's documentation of asynchronous operations), and sessions for uploads (Google's of its
// resumable protocol). Programs follow them.
var linkHeaders = []string{"Location", "Content-Location", "Operation-Location", "Azure-Asyncoperation", "X-Goog-Upload-Url"}

// leadBack makes the links of a response lead to the route. A client that follows a link elsewhere would
// leave the queue and send its token to the API, or send the credentials of this API to another route.
func (t *trip) leadBack(h http.Header) {
	for _, name := range linkHeaders {
		for i, ref := range h[name] {
			h[name][i] = t.link(ref)
		}
	}
	for i, value := range h["Link"] {
		h["Link"][i] = replaceLinks(value, t.link)
	}
}

// link returns the reference with which a client reaches what a reference in a response of the upstream
// means: below the address of the upstream, the path of the route, and else the absolute address. What
// is no reference to HTTP stays as it is.
func (t *trip) link(ref string) string {
	parsed, err := url.Parse(strings.TrimSpace(ref))
	if err != nil {
		return ref
	}
	to := t.sent.ResolveReference(parsed)
	if to.Scheme != "http" && to.Scheme != "https" || to.Host == "" {
		return ref
	}
	rest, below := t.route.below(to)
	switch {
	case below:
	case parsed.Host == "" || parsed.Scheme == "":
		return to.String()
	default:
		return ref
	}
	back := &url.URL{RawQuery: to.RawQuery, ForceQuery: to.ForceQuery, Fragment: to.Fragment, RawFragment: to.RawFragment}
	origin, path := "", strings.TrimSuffix(t.route.Prefix, "/")+rest
	if public := t.table.public; public != nil {
		origin, path = public.Scheme+"://"+public.Host, public.EscapedPath()+path
	} else if t.incoming.Host != "" {
		origin = "http://" + t.incoming.Host
	}
	if path == "" {
		path = "/"
	}
	if parsed.Host == "" { // the client resolves it as it would have done at the upstream
		origin = ""
	}
	return origin + path + back.String()
}

// port returns the port of an address.
func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// replaceLinks replaces the references in the value of a Link header (RFC 8288, section 3):
//
//	<https://api.example/x?page=2>; rel="next"; title="a, <b>", <https://api.example/x?page=9>; rel="last"
//
// What is no link stays as it is.
func replaceLinks(value string, replace func(ref string) string) string {
	var b strings.Builder
	for value != "" {
		begin := len(value) - len(strings.TrimLeft(value, " \t,"))
		b.WriteString(value[:begin])
		value = value[begin:]
		if ref, rest, ok := strings.Cut(value, ">"); ok && strings.HasPrefix(ref, "<") {
			b.WriteString("<" + replace(ref[1:]) + ">")
			value = rest
		}
		end := endOfLink(value)
		b.WriteString(value[:end])
		value = value[end:]
	}
	return b.String()
}

// endOfLink returns the index of the first comma outside of quoted strings, or the length of the text.
func endOfLink(s string) int {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case !quoted && s[i] == ',':
			return i
		}
	}
	return len(s)
}
