package config_test

import (
	"fmt"
	"strings"
	"testing"
)

// The limits of a model have the units of those of all models, because a request costs these.
func TestModelsOfOtherUnits(t *testing.T) {
	for _, test := range []struct {
		with, models, problem string
	}{
		{"requests: 30, tokens: 8000", "requests: 5, tokens: 0", `"m" has tiers of requests, and the Policy of requests, tokens`},
		{"requests: 30, tokens: 0", "tokens: 1000", `"m" has tiers of requests, tokens, and the Policy of requests`},
		{"requests: 0, tokens: 0", "requests: 5", `"m" has tiers of requests, and the Policy of nothing`},
		{"requests: 5, tokens: 0", "requests: 0", `"m" has tiers of nothing, and the Policy of requests`},
		{"requests: 30, tokens: 8000", "tokens: 1000", ""},
	} {
		file := fmt.Sprintf("routes:\n  /a:\n    to: https://api.example.com/v1\n    preset: openai-compatible\n    with: {host: api.example.com, %s}\n    models: {m: {%s}}\n", test.with, test.models)
		_, err := loader().Parse([]byte(file), "t.yaml")
		if want := "routes./a.models is not possible: " + test.problem; (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s, then %s: %v, want %s", test.with, test.models, err, want)
		}
	}
}
