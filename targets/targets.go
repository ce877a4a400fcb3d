// Package targets directs the requests of a [throttle.Transport] with a Pool to its members: it tells, as data,
// which URL and which credentials each member has.
//
//	to, err := targets.New(map[string]targets.Target{
//		"east": {URL: "https://east.example/openai/v1", Header: http.Header{"Api-Key": {eastKey}}},
//		"west": {URL: "https://west.example/openai/v1", Header: http.Header{"Api-Key": {westKey}}},
//	})
//	…
//	transport := &throttle.Transport{Pool: pool, Rewrite: to.Rewrite}
//
// Members whose credentials change, such as those of a cloud, need a Rewrite or a Base of their own.
package targets

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/apithrottle/throttle/internal/credentials"
)

// A Target is where the requests of one member go, and with which credentials.
type Target struct {
	// URL is the scheme, the host and the beginning of the path of the member's requests, such as
	// https://east.example/openai/v1. It has no query. Its user, if any, is a credential.
	URL string

	// Strip is the beginning of the request's path that the path of URL replaces, such as /v1 or
	// /openai/deployments/*, where * is any one segment. A request whose path begins otherwise fails. If
	// empty, the path of URL is put before the whole path of the request.
	Strip string

	// Header has the fields that replace those of the request. It, Query or URL must have a credential.
	Header http.Header

	// Query has the parameters that replace those of the request with the same names. The request's other
	// parameters stay as they were written.
	Query url.Values
}

// A Map has the targets of members. It is safe for concurrent use.
type Map struct{ targets map[string]target }

type target struct {
	base   *url.URL
	path   string   // of base, escaped, without its last slash
	strip  []string // segments
	header http.Header
	query  url.Values
}

// New returns the Map of members, by their names in the Pool. It returns an error, which contains no credentials,
// for each URL, Strip or Header that is not valid, and for each member without a credential or with an empty one.
func New(members map[string]Target) (*Map, error) {
	m := &Map{make(map[string]target, len(members))}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(members)) {
		t, err := members[name].compile()
		if err != nil {
			errs = append(errs, fmt.Errorf("targets: member %q: %w", name, err))
		}
		m.targets[name] = t
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return m, nil
}

// nameCharacters are those of the names of fields: RFC 9110, section 5.6.2.
const nameCharacters = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// isControl reports whether a character may not be in the value of a field.
func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// unsent are the fields of a Request.Header that net/http does not send.
var unsent = []string{"Host", "Content-Length", "Transfer-Encoding", "Trailer"}

func (t Target) compile() (target, error) {
	base, err := url.Parse(t.URL)
	switch {
	case t.URL == "":
		return target{}, errors.New("URL is empty: set it, such as https://east.example/v1")
	case err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "":
		return target{}, errors.New("URL is not valid: write it as https://host/path")
	case base.RawQuery != "" || base.ForceQuery || base.Fragment != "":
		return target{}, errors.New("URL has a query or a fragment: set Query")
	case t.Strip != "" && (t.Strip[0] != '/' || strings.HasSuffix(t.Strip, "/")):
		return target{}, fmt.Errorf("Strip is %q: write it as /path, without a slash at its end", t.Strip)
	}
	header := make(http.Header, len(t.Header))
	for name, values := range t.Header {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case name == "" || strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(nameCharacters, r) }):
			return target{}, fmt.Errorf("Header %q is not the name of a field: use letters, digits and hyphens", name)
		case slices.Contains(unsent, canonical):
			return target{}, fmt.Errorf("Header %s is not sent, because net/http writes it from the request itself: remove it", name)
		case header[canonical] != nil:
			return target{}, fmt.Errorf("Header has %s twice, in two spellings: remove one", canonical)
		case slices.ContainsFunc(values, func(v string) bool { return strings.ContainsFunc(v, isControl) }):
			return target{}, fmt.Errorf("Header %s has a line break or another control character: trim it", name)
		}
		header[canonical] = slices.Clone(values)
	}
	c := target{base: base, path: strings.TrimSuffix(base.EscapedPath(), "/"), header: header, query: maps.Clone(t.Query)}
	if t.Strip != "" {
		c.strip = strings.Split(t.Strip[1:], "/")
	}
	has, empty := credentials.Has(&http.Request{Header: header, URL: &url.URL{User: base.User, RawQuery: t.Query.Encode()}})
	switch {
	case !has && empty != "":
		return target{}, fmt.Errorf("the credential %s is empty: set the member's key", empty)
	case !has:
		return target{}, errors.New("Header and Query have no credential: set the member's key, such as Header Authorization")
	}
	return c, nil
}

// Rewrite directs a request to a member, as [throttle.Transport].Rewrite. The path becomes that of the member's
// URL, without its last slash, and then that of the request, after Strip. It returns an error for an unknown
// member, and for a path that does not begin with Strip or has a segment "." or "..".
func (m *Map) Rewrite(req *http.Request, member string) error {
	t, ok := m.targets[member]
	if !ok {
		return fmt.Errorf("targets: member %q is not known: add it to the Map of %q", member, slices.Sorted(maps.Keys(m.targets)))
	}
	rest, err := t.rest(req.URL.EscapedPath())
	if err != nil {
		return fmt.Errorf("targets: member %q: %w", member, err)
	}
	u := *t.base
	u.RawPath = t.path + rest
	u.Path, _ = url.PathUnescape(u.RawPath) // of two escaped paths
	u.RawQuery = t.replace(req.URL.RawQuery)
	req.URL, req.Host = &u, ""
	for name, values := range t.header {
		req.Header[name] = slices.Clone(values)
	}
	return nil
}

// replace returns a query with the parameters of the target.
func (t *target) replace(query string) string {
	if len(t.query) == 0 {
		return query
	}
	pairs := slices.DeleteFunc(strings.Split(query, "&"), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(name)
		return pair == "" || err != nil || t.query.Has(name)
	})
	return strings.Join(append(pairs, t.query.Encode()), "&")
}

// rest returns what follows Strip in a path.
func (t *target) rest(path string) (string, error) {
	for segment := range strings.SplitSeq(strings.ReplaceAll(strings.ToLower(path), "%2e", "."), "/") {
		if segment == "." || segment == ".." {
			return "", errors.New(`the request's path has a segment "." or "..": remove it`)
		}
	}
	if path != "" && path[0] != '/' {
		path = "/" + path
	}
	for _, want := range t.strip {
		segment, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if segment == "" || want != "*" && segment != want {
			return "", fmt.Errorf("the request's path does not begin with Strip, /%s", strings.Join(t.strip, "/"))
		}
		path = path[1+len(segment):]
	}
	return path, nil
}
