package config_test

import (
	"strings"
	"testing"

	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/providers"
)

// The limits of every preset can be read, and are valid.
func TestPresets(t *testing.T) {
	for _, p := range providers.Presets() {
		text := config.PresetText(p, p.Example())
		l, err := config.ParseLimits("", text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if l.String() != text {
			t.Errorf("%s: its normal form is %s", text, l)
		}
		for _, policy := range l.Policies() {
			if err := policy.Validate(); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
		if provider, ok := l.Provider(); !ok || provider.Name == "" {
			t.Errorf("%s: its provider has no name", text)
		}
	}
}

func TestParseLimits(t *testing.T) {
	for _, c := range []struct{ text, want, err string }{
		{"5/s+10000/hour", "5/s + 10000/h", ""},
		{" 5/s | guard=auto ", "5/s | guard=auto", ""},
		{"github", "github", ""},
		{"GitHub", "github", ""},
		{"BinanceFutures", "binance-futures", ""},
		{"binance_futures", "binance-futures", ""},
		{"amazonspapi", "amazon-sp-api", ""},
		{"infura", "infura:second=500,day=3000000", ""},
		{"infura:day=0", "infura:second=500,day=0", ""},
		{"openai: tokens = 30_000, requests = 500", "openai:requests=500,tokens=30000", ""},
		{"openai-compatible:host=api.groq.com,requests=30", "openai-compatible:host=api.groq.com,requests=30,tokens=0", ""},
		{"unknown", "unknown:hosts=*", ""},
		{"unknown:hosts=*.acme.example", "unknown:hosts=*.acme.example", ""},
		{"hubspot:zone=America/New_York", "hubspot:zone=America/New_York", ""},

		{"", "", `tier 1 is empty`},
		{"5", "", "window: it is missing"},
		{"5/s;algo=wish", "", "wish"},
		{"opnai", "", `no preset has the name "opnai": did you mean openai?`},
		{"git", "", "did you mean github?"},
		{"coinbas", "", "did you mean coinbase-app?"},
		{"frobnicate", "", `no preset has the name "frobnicate": throttle providers lists all presets`},
		{"five/s", "", `"five/s" is neither a policy, which begins with a number as 5/s does, nor a preset such as openai:requests=500,tokens=30000`},
		{"openai", "", "preset openai: requests is missing: give the requests a minute of a model, such as 500\npreset openai: tokens is missing"},
		{"openai:requests=500,tokns=5", "", "preset openai: tokens is missing: give the tokens a minute of a model, such as 30000\npreset openai: tokns is not a parameter of openai: did you mean tokens?"},
		{"openai:requests=0,tokens=1", "", `preset openai: requests is "0": it must be a whole number from 1 to 1000000000000, the requests a minute of a model`},
		{"openai:requests=x,tokens=-1", "", `requests is "x"`},
		{"openai:requests=99999999999999999999,tokens=1", "", "it must be a whole number"},
		{"openai:", "", `preset openai: "" is not a parameter with a value: write openai:requests=500,tokens=30000`},
		{"openai:500", "", `"500" is not a parameter with a value`},
		{"openai:requests=1,requests=2,tokens=3", "", "requests is there twice: remove one"},
		{"github:requests=5", "", "requests is not a parameter of github: it has none"},
		{"gemini:wish=5,requests=1,input_tokens=1", "", "wish is not a parameter of gemini: it has requests, input_tokens and requests_per_day"},
		{"hubspot:zone=Mars/Olympus", "", `zone is "Mars/Olympus": it must be a time zone such as Europe/Berlin`},
		{"openai-compatible:host=https://a.b", "", "without https://"},
	} {
		l, err := config.ParseLimits("", c.text)
		switch {
		case c.err == "" && err != nil:
			t.Errorf("%q: %v", c.text, err)
		case c.err == "" && l.String() != c.want:
			t.Errorf("%q is %q, want %q", c.text, l, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%q: %v, want: %s", c.text, err, c.err)
		}
	}
}

// The name names the quota: of a policy, and of the scopes of a preset.
func TestLimitsAreNamed(t *testing.T) {
	for text, want := range map[string]string{"5/s": "mine", "stripe": "mine/", "openai:requests=1,tokens=1": "mine/model"} {
		l, err := config.ParseLimits("mine", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Policies()[0].Name; !strings.HasPrefix(got, want) {
			t.Errorf("%s: the policy's name is %q, want %q", text, got, want)
		}
	}
	l, err := config.ParseLimits("", "openai:requests=1,tokens=1")
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Policies()[0].Name; got != "openai/model" {
		t.Errorf("without a name the policy's name is %q", got)
	}
}
