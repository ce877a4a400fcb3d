package proxy

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
)

// tokenHeaders are the headers in which a client sends its token, as SDKs send the key of an API.
var tokenHeaders = []string{"X-Throttle-Token", "Authorization", "X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Private-Token"}

// hash returns what a token is looked up by: a comparison of tokens would take longer the more of a
// guess is right.
func hash(token string) [32]byte { return sha256.Sum256([]byte(token)) }

// identify returns the client of a request, nil if the proxy has no clients.
func (tab *table) identify(r *http.Request) (*Client, *problem) {
	if len(tab.clients) == 0 {
		if fromElsewhere(r.Header) {
			return nil, badRequest(http.StatusForbidden, "origin", "The request comes from a web page. Give the proxy clients with tokens to allow that.")
		}
		return nil, nil
	}
	for _, name := range tokenHeaders {
		for _, value := range r.Header[name] {
			for _, token := range credentials(value) {
				if c := tab.clients[hash(token)]; c != nil {
					if strings.Contains(r.URL.RawQuery, c.Token) || strings.Contains(r.URL.Path, c.Token) {
						return nil, badRequest(http.StatusBadRequest, "token", "The address has the token of the client: send it in a header alone.")
					}
					return c, nil
				}
			}
		}
	}
	p := badRequest(http.StatusUnauthorized, "token", "The request lacks the token of a client: send it as Authorization: Bearer TOKEN, as X-Throttle-Token, or as the key of the API.")
	p.authenticate = `Bearer realm="throttle"`
	return nil, p
}

// credentials returns what may be a token in the value of a header: the value, what follows its scheme,
// and the user and password of Basic.
func credentials(value string) []string {
	scheme, rest, ok := strings.Cut(value, " ")
	if !ok {
		return []string{value}
	}
	rest = strings.TrimSpace(rest)
	if strings.EqualFold(scheme, "basic") {
		if text, err := base64.StdEncoding.DecodeString(rest); err == nil {
			user, password, _ := strings.Cut(string(text), ":")
			return []string{user, password}
		}
	}
	return []string{rest}
}

// removeToken removes every header that has the token of a client.
func removeToken(h http.Header, token string) {
	for name, values := range h {
		for _, value := range values {
			if strings.Contains(value, token) || strings.Contains(strings.Join(credentials(value), "\n"), token) {
				delete(h, name)
				break
			}
		}
	}
}

// fromElsewhere reports whether a browser sends the request for a web page of another host.
func fromElsewhere(h http.Header) bool {
	if first(h, "Sec-Fetch-Site") == "cross-site" {
		return true
	}
	origin := first(h, "Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host == "" || !isLocalHost(u.Host)
}
