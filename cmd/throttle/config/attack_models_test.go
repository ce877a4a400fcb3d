package config_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

// Whatever limits a model has, requests to it are limited by these alone, and are sent.
func TestModelsOfOtherUnits(t *testing.T) {
	for _, test := range []struct {
		with, models string
		want         int
	}{
		{"requests: 30, tokens: 8000", "requests: 5, tokens: 0", 5},
		{"requests: 30, tokens: 0", "tokens: 1000", 2},
		{"requests: 0, tokens: 0", "requests: 5", 5},
		{"requests: 5, tokens: 0", "requests: 0", 40},
		{"requests: 0, tokens: 8000", "requests: 5", 5},
	} {
		t.Run(test.with+" then "+test.models, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, err := parse(t, "routes:\n  /a:\n    to: https://api.example.com/v1\n    preset: openai-compatible\n    with: {host: api.example.com, %s}\n    models: {m: {%s}}\n    max_wait: 1ms\n",
					test.with, test.models).Transport("/a", nil)
				if err != nil {
					t.Fatal(err)
				}
				rt.Base = new(api)
				for n := range 40 {
					req, _ := http.NewRequestWithContext(t.Context(), "POST", "https://api.example.com/v1/chat/completions", strings.NewReader(`{"model":"m","max_tokens":499,"messages":[]}`))
					resp, err := rt.RoundTrip(req)
					if err != nil {
						if n != test.want {
							t.Errorf("%d sent, want %d: %v", n, test.want, err)
						}
						return
					}
					resp.Body.Close()
				}
				if test.want < 40 {
					t.Errorf("all sent, want %d", test.want)
				}
			})
		})
	}
}
