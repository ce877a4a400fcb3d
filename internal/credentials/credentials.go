// Package credentials removes what identifies the sender of an HTTP request.
package credentials

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// words are the words of names that credentials have. Before "key" stands one of keyOf.
var (
	words = []string{"authorization", "cookie", "cookie2", "token", "secret", "password", "signature", "credential", "credentials", "apikey", "sig", "jwt", "sessionid"}
	keyOf = []string{"api", "access", "subscription", "auth", "account", "private", "function", "functions", "goog"}
)

// IsName reports whether a header field or a query parameter of a name has credentials, such as Authorization,
// X-Api-Key or access_token. A field such as Idempotency-Key has none.
func IsName(name string) bool {
	parts := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == '-' || r == '_' || r == '.' })
	for i, part := range parts {
		if slices.Contains(words, part) || part == "key" && (len(parts) == 1 || i > 0 && slices.Contains(keyOf, parts[i-1])) {
			return true
		}
	}
	return false
}

// Remove removes the credentials of a request: header fields, query parameters, cookies and the user of the
// URL. It changes the request's Header and URL, and reports whether there were any.
func Remove(req *http.Request) (any bool) {
	for name := range req.Header {
		if IsName(name) {
			delete(req.Header, name)
			any = true
		}
	}
	if req.URL.User != nil {
		req.URL.User, any = nil, true
	}
	return removeQuery(req.URL) || any
}

// removeQuery removes parameters, and leaves the others as they were written.
func removeQuery(u *url.URL) (any bool) {
	if u.RawQuery == "" {
		return false
	}
	kept := slices.DeleteFunc(strings.Split(u.RawQuery, "&"), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(name)
		remove := err != nil || IsName(name)
		any = any || remove
		return remove
	})
	u.RawQuery = strings.Join(kept, "&")
	return any
}

// Has reports whether a request has credentials.
func Has(req *http.Request) bool {
	for name := range req.Header {
		if IsName(name) {
			return true
		}
	}
	own := *req.URL
	return own.User != nil || removeQuery(&own)
}

// Replace returns a copy of a request for which rewrite has set another URL and other credentials. The copy that
// rewrite receives has none. It fails if rewrite sets none although the request had some.
func Replace(req *http.Request, rewrite func(*http.Request) error) (*http.Request, error) {
	target := req.Clone(req.Context())
	target.Host = ""
	had := Remove(target)
	switch err := rewrite(target); {
	case err != nil:
		return nil, fmt.Errorf("failed: %w", err)
	case had && !Has(target):
		return nil, errors.New("set no credentials, and those of the caller go to no member")
	}
	return target, nil
}
