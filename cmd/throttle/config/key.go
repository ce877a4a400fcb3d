package config

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
)

// of returns the key of a request: a hash of the header's value, or "" if the request has none. In the
// value neither the number of spaces nor the case of a scheme such as Bearer counts. Only the first
// value of a header counts.
func (k Key) of(req *http.Request) string {
	words := strings.Fields(req.Header.Get(k.Header))
	if len(words) == 0 {
		return ""
	}
	if len(words) > 1 {
		words[0] = strings.ToLower(words[0])
	}
	sum := sha256.Sum256([]byte("throttle key\n" + strings.Join(words, " ")))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
