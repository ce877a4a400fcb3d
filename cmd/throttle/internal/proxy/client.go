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
					if tab.tokens.inEncoded(r.URL.EscapedPath()) || tab.tokens.inEncoded(r.URL.RawQuery) {
						return nil, badRequest(http.StatusBadRequest, "token", "The address has the token of a client: send it in a header alone.")
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
	_, rest, ok := strings.Cut(value, " ")
	if !ok {
		return []string{value}
	}
	if text := basic(value); text != "" {
		user, password, _ := strings.Cut(text, ":")
		return []string{user, password}
	}
	return []string{strings.TrimSpace(rest)}
}

// basic returns the user and the password of Basic credentials, decoded as leniently as some APIs do. It
// returns "" for other values.
func basic(value string) string {
	scheme, rest, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "basic") {
		return ""
	}
	rest = strings.TrimRight(strings.TrimSpace(rest), "=")
	text, err := base64.RawStdEncoding.DecodeString(urlAlphabet.Replace(rest))
	if err != nil {
		return ""
	}
	return string(text)
}

var urlAlphabet = strings.NewReplacer("-", "+", "_", "/")

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
