// Package credentials replaces what identifies the sender of an HTTP request.
package credentials

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Replace returns a copy of a request for which rewrite has set another URL and other credentials. The copy that
// rewrite receives has none. It fails if rewrite sets none although the request had some, or only empty ones. A
// cookie of the request does not count, because a jar also keeps the cookies that responses set.
func Replace(req *http.Request, rewrite func(*http.Request) error) (*http.Request, error) {
	if req.URL == nil {
		return nil, errors.New("is not called: the request's URL is nil")
	}
	for name := range req.Trailer {
		if IsName(name) {
			return nil, fmt.Errorf("is not called: the request's Trailer announces %s, and the credentials of the caller go to no member", name)
		}
	}
	target := req.Clone(req.Context())
	target.Host = ""
	target.Trailer = req.Trailer // the reader of the body fills it in
	if target.Header == nil {
		target.Header = make(http.Header)
	}
	had := Remove(target)
	if err := rewrite(target); err != nil {
		return nil, fmt.Errorf("failed: %w", Hide(target, err))
	}
	if target.URL == nil || target.URL.Host == "" {
		return nil, errors.New("set a URL without a host")
	}
	switch has, empty := Has(target); {
	case !has && empty != "":
		return nil, fmt.Errorf("set the credentials of %s, and they are empty", empty)
	case !has && had:
		return nil, errors.New("set no credentials, and those of the caller go to no member")
	}
	if user := target.URL.User; user != nil { // net/http sends that of a Client's request only
		target.URL.User = nil
		if password, _ := user.Password(); target.Header.Get("Authorization") == "" {
			target.SetBasicAuth(user.Username(), password)
		}
	}
	return target, nil
}

// Remove removes the credentials of a request: header fields, query parameters, cookies and the user of the URL.
// It also removes the fields that name an account. It changes the request's Header and URL, and reports whether
// there were credentials other than cookies.
func Remove(req *http.Request) (any bool) {
	any = removeFields(req.Header)
	if req.URL.User != nil {
		req.URL.User, any = nil, true
	}
	return removeParameters(req.URL) || any
}

func removeFields(h http.Header) (any bool) {
	for name := range h {
		switch {
		case IsName(name):
			any = any || !strings.EqualFold(name, "Cookie")
			delete(h, name)
		case isAccount(name):
			delete(h, name)
		}
	}
	cleanReferer(h)
	return any
}

// cleanReferer removes the credentials from the URL of the page before. After a redirect, an http.Client sets it
// to the URL of the request before, with the query.
func cleanReferer(h http.Header) {
	if from := h.Get("Referer"); from != "" {
		if u, err := url.Parse(from); err != nil || u.User != nil || removeParameters(u) {
			h.Del("Referer")
		}
	}
}

// removeParameters removes query parameters, and leaves the others as they were written. It reports whether it
// removed any.
func removeParameters(u *url.URL) (any bool) {
	u.RawQuery = filter(u.RawQuery, func(pair string) bool {
		// Some servers separate parameters by semicolons, too.
		keep := !slices.ContainsFunc(strings.Split(pair, ";"), isParameterPair)
		any = any || !keep
		return keep
	})
	return any
}

// filter returns the pairs of a query for which keep returns true.
func filter(query string, keep func(pair string) bool) string {
	if query == "" {
		return ""
	}
	return strings.Join(slices.DeleteFunc(strings.Split(query, "&"), func(pair string) bool { return !keep(pair) }), "&")
}

// isParameterPair reports whether a pair of a query has credentials. A name that can't be read may have some.
func isParameterPair(pair string) bool {
	name, _, _ := strings.Cut(pair, "=")
	name, err := url.QueryUnescape(name)
	return err != nil || IsParameter(strings.TrimSpace(name))
}

// Has reports whether a request has credentials. If it has only empty ones, it returns the name of one of them.
func Has(req *http.Request) (has bool, empty string) {
	for name, values := range req.Header {
		if !IsName(name) {
			continue
		}
		for _, value := range values {
			if !isEmpty(name, value) {
				return true, ""
			}
			empty = name
		}
	}
	if user := req.URL.User; user != nil {
		if strings.Trim(user.String(), ":") != "" {
			return true, ""
		}
		empty = "the URL's user"
	}
	for pair := range strings.SplitSeq(req.URL.RawQuery, "&") {
		if pair != "" && isParameterPair(pair) {
			if name, value, _ := strings.Cut(pair, "="); value == "" {
				empty = name
			} else {
				return true, ""
			}
		}
	}
	return false, empty
}

// Hide returns err. If it is a *url.Error of a request that has a target, or of a URL for the target, it contains
// no credentials of the URL.
func Hide(target *http.Request, err error) error {
	of, ok := err.(*url.Error)
	if !ok || target == nil {
		return err
	}
	hidden := *of
	u, invalid := url.Parse(of.URL)
	if invalid != nil { // the cause may quote it
		hidden.URL, hidden.Err = "the member's URL", errors.New("invalid URL")
		return &hidden
	}
	u.User = nil
	removeParameters(u)
	hidden.URL = u.String()
	return &hidden
}
