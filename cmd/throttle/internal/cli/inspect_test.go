package cli

import (
	"encoding/json"
	"testing"
)

// FuzzInspect checks that no input makes inspect panic or write what is not JSON.
func FuzzInspect(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nRateLimit: \"a\";r=50;t=30\r\nRateLimit-Policy: \"a\";q=100;w=60\r\n\r\n", "api.github.com")
	f.Add("HTTP/2 429\nretry-after: 3\nx-ratelimit-limit: 5000\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1700000000\n", "")
	f.Add(`{"log":{"entries":[{"response":{"status":200,"headers":[{"name":"X-RateLimit-Limit","value":"1"}]}}]}}`, "[")
	f.Fuzz(func(t *testing.T, text, host string) {
		r, err := inspectText([]byte(text), host)
		if err != nil {
			return
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
		_ = r.text()
	})
}
