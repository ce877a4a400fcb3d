package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/goccy/go-yaml"
)

// canary is the value of all secrets in these tests. It is so long that a part of it remains
// recognizable whatever happens to one of its characters.
const canary = "CANARYCANARYCANARY"

// planted is a file with a canary wherever a secret belongs.
const planted = `# CANARYCANARYCANARY
store: {redis: "redis://:CANARYCANARYCANARY@localhost:6379"}
clients:
  web: {token: CANARYCANARYCANARY, class: batch}
  job:
    token: "${env:CANARY}"
routes:
  /x:
    to: https://api.example.com # CANARYCANARYCANARY
    policy: 5/s
    max_wait: 30s
    set: {Authorization: Bearer CANARYCANARYCANARY, X-Key: 'CANARYCANARYCANARY'}
  /y:
    to: https://api.github.com
    preset: github
    set:
      Authorization: "Bearer ${file:/run/secrets/y}"
      X-Key: |
        CANARYCANARYCANARY
    remove: [Cookie, X-Other]
  /z:
    to: "https://api.example.com/bot${env:CANARY}/x"
    policy: 5/s
    query: {key: CANARYCANARYCANARY, other: "${env:CANARY}"}
`

func plantedLoader() config.Loader {
	return config.Loader{
		LookupEnv: func(name string) (string, bool) { return canary + "env", name == "CANARY" },
		ReadFile:  func(string) ([]byte, error) { return []byte(canary + "file\n"), nil },
	}
}

// everything returns all ways in which a Config, or the error of a file, may be shown.
func everything(c *config.Config, err error) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%v %s %q %+v %#v", err, err, err, err, err)
	var e *config.Error
	if errors.As(err, &e) {
		text, _ := json.Marshal(e)
		b.Write(text)
	}
	log := slog.New(slog.NewTextHandler(&b, nil))
	log.Error("loading", "err", err, "config", c)
	if c == nil {
		return b.String()
	}
	fmt.Fprintf(&b, "%v %+v %#v", c, *c, *c)
	for _, r := range c.Routes {
		fmt.Fprintf(&b, "%v %+v %#v", *r, *r, *r)
		fmt.Fprintf(&b, "%v %+v %#v %s", r.Secrets(), r.Secrets(), r.Secrets(), r.To)
		for _, s := range r.Set {
			fmt.Fprintf(&b, "%v %+v %#v %s %q %x %d", s, s, s, s, s, s, s)
			log.Info("secret", "value", s)
		}
	}
	for _, client := range c.Clients {
		fmt.Fprintf(&b, "%v %+v %#v", *client, *client, *client)
	}
	fmt.Fprintf(&b, "%v %+v", c.Since(new(config.Config)), c.Since(new(config.Config)))
	asJSON, _ := json.Marshal(c)
	asYAML, _ := yaml.Marshal(c)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("loaded", "config", c)
	return b.String() + string(asJSON) + string(asYAML)
}

func leaks(text string) bool {
	return strings.Contains(text, "CANARYC") || strings.Contains(text, "YCANARY")
}

// Secrets are shown nowhere: not in the Config, nor in the errors of any file that differs from a
// valid one by a character.
func TestSecretsStaySecret(t *testing.T) {
	c, err := plantedLoader().Parse([]byte(planted), "t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if text := everything(c, err); leaks(text) {
		t.Errorf("the Config shows a secret: %s", text)
	}
	if got := c.Routes["/z"].Upstream().String(); got != "https://api.example.com/bot"+canary+"env/x" {
		t.Errorf("the address is %q", got)
	}
	if got := c.Clients["web"].Token.Reveal(); got != canary {
		t.Errorf("the token is %q", got)
	}
	try := func(text string) {
		if _, err := plantedLoader().Parse([]byte(text), "t.yaml"); err != nil && leaks(err.Error()) {
			t.Errorf("a secret is shown: %s\n%v", text, err)
		}
	}
	step := len(planted) / soak.Times(len(planted)) // 1, or more to leave some out
	for i := 0; i < len(planted); i += max(1, step) {
		try(planted[:i])
		try(planted[:i] + planted[i+1:])
		if t.Failed() {
			break
		}
		for _, insert := range []string{"\n", "\t", ": ", ", ", "{", "]", "\"", "'", " #", "- ", "\\", "\xff"} {
			try(planted[:i] + insert + planted[i:])
		}
	}
}

// A value in the wrong place, and a value of the wrong type, may be a secret, too.
func TestMisplacedSecretsStaySecret(t *testing.T) {
	for _, text := range []string{
		canary,
		"[" + canary + "]",
		"store: redis://:" + canary + "@host\n" + minimal,
		"store: {redis: [" + canary + "]}\n" + minimal,
		"store: {redis: \"http://:" + canary + "@host\"}\n" + minimal,
		"store: {redis: \"redis://:" + canary + "@host:port/x\"}\n" + minimal,
		"store: {postgres: \"postgres://u:" + canary + "@h:port/d\"}\n" + minimal,
		"store: {postgres: \"postgres://u:" + canary + "/x@h/d\"}\n" + minimal,
		"store: {postgres: \"postgres://u:" + canary + "@x@h/d\"}\n" + minimal,
		"store: {postgres: \"postgres://u:1?" + canary + "@h/d\"}\n" + minimal,
		"store: {postgres: \"postgres://u:%zz" + canary + "@h/d\"}\n" + minimal,
		"store: {postgres: \"postgres://u@h/d?sslmode=wish&password=" + canary + "\"}\n" + minimal,
		"store: {postgres: \"postgres://u:" + canary + "@h/d?lease=" + canary + "\"}\n" + minimal,
		"store: {postgres: \"" + canary + "\"}\n" + minimal,
		"clients: " + canary + "\n" + minimal,
		"clients: {a: " + canary + "}\n" + minimal,
		"clients: {a: {tokn: " + canary + "}}\n" + minimal,
		"clients: {a: {token: [" + canary + "]}}\n" + minimal,
		"clients: {a: {token: {a: " + canary + "}}}\n" + minimal,
		"clients: {a: {token: " + canary + "}, b: {token: " + canary + "}}\n" + minimal,
		"clients: {a: {token: \"a " + canary + "\"}}\n" + minimal,
		"clients: {a: {token: " + canary + ", class: wish}}\n" + minimal,
		"clients: {a: {token: " + canary + ", token: " + canary + "}}\n" + minimal,
		"password: " + canary + "\n" + minimal,
		"routes: {/x: {to: https://" + canary + "@a.b, policy: 5/s}}",
		"routes: {/x: {to: https://u:" + canary + "@a.b, policy: 5/s}}",
		"routes: {/x: {to: \"https://u:" + canary + "@a.b:port\", policy: 5/s}}",
		"routes: {/x: {to: https://a.b?key=" + canary + ", policy: 5/s}}",
		"routes: {/x: {to: \"https://a.b#" + canary + "\", policy: 5/s}}",
		"routes: {/x: {to: https://a.b, policy: 5/s, set: {Authorization: \"" + canary + "\\nx\"}}}",
		"routes: {/x: {to: https://a.b, policy: 5/s, set: {\"Bearer " + canary + "\": x}}}",
		"routes: {/x: {to: https://a.b, policy: 5/s, set: [" + canary + "]}}",
		"routes: {/x: {to: https://a.b, policy: 5/s, set: {A: {B: " + canary + "}}}}",
		"routes: {/x: {to: https://a.b, policy: 5/s, set: {A: \"${" + canary + "\"}}}",
		"routes: {/x: {to: https://a.b, policy: 5/s, set: {A: \"${" + canary + "}\"}}}",
		"routes: {/x: {to: https://a.b, policy: 5/s, set: {A: \"${env:" + canary + "-}\"}}}",
		"routes: {/x: {to: \"https://a.b/${" + canary + "}\", policy: 5/s}}",
		"routes: {/x: {to: \"https://a.b/${env:" + canary + "-}\", policy: 5/s}}",
		"routes: {/x: {to: \"https://${env:CANARY}/x\", policy: 5/s}}",
		"routes: {/x: {to: \"ftp://a.b/${env:CANARY}\", policy: 5/s}}",
		"routes: {/x: {to: \"https://a.b//${env:CANARY}\", policy: 5/s}}",
		"routes: {/x: {to: \"https://a.b/${env:CANARY}?x\", policy: 5/s}}",
		"routes: {/x: {to: \"https://a.b/${env:CANARY}\", preset: github}}",
		"routes: {/x: {to: https://a.b, policy: 5/s, query: {a: [" + canary + "]}}}",
		"routes: {/x: {to: https://a.b, policy: 5/s, query: " + canary + "}}",
		"routes: {/x: {to: https://a.b, policy: 5/s, query: {a: \"${" + canary + "}\"}}}",
		"routes: {/x: {to: https://a.b, policy: 5/s, key: {header: [" + canary + "]}}}",
		"routes: {/x: {to: [" + canary + "], policy: {a: " + canary + "}}}",
	} {
		c, err := plantedLoader().Parse([]byte(text), "t.yaml")
		if err == nil {
			t.Errorf("valid: %s", text)
		}
		if shown := everything(c, err); leaks(shown) {
			t.Errorf("a secret is shown: %s\n%v", text, err)
		}
	}
}

func TestSecret(t *testing.T) {
	s := config.NewSecret(canary)
	if s.Reveal() != canary || s.IsZero() || s.String() != "[secret]" || fmt.Sprintf("%v %d", s, s) != "[secret] [secret]" {
		t.Errorf("%v", s)
	}
	if !s.Equal(config.NewSecret(canary)) || s.Equal(config.Secret{}) || s.Equal(config.NewSecret("")) || (config.Secret{}).Equal(config.NewSecret("")) {
		t.Error("Equal compares not the values")
	}
	if (config.Secret{}).Reveal() != "" || (config.Secret{}).String() != "" {
		t.Error("the zero Secret has a value")
	}
	text, err := json.Marshal(map[string]config.Secret{"a": s})
	if err != nil || string(text) != `{"a":"[secret]"}` {
		t.Errorf("%s, %v", text, err)
	}
}

// FuzzParse checks that Parse does not panic, that problems have positions inside the file, and that
// secrets don't show.
func FuzzParse(f *testing.F) {
	f.Add(planted)
	f.Add(minimal)
	f.Add(`{"routes": {"/x": {"to": "https://a.b", "policy": "5/s"}}}`)
	f.Add("routes:\n  /x: {to: a\n  token: CANARYCANARYCANARY: x")
	f.Add("? a\n: - - - b\n...\n---\n%YAML 1.2\n")
	f.Add("a: |\n  b\n\tc: \"\\x41\" 'd' # e")
	f.Fuzz(func(t *testing.T, text string) {
		defer time.AfterFunc(5*time.Second, func() { panic("Parse takes too long") }).Stop()
		c, err := plantedLoader().Parse([]byte(text), "t.yaml")
		if err == nil {
			if again, err := json.Marshal(c); err != nil {
				t.Errorf("%s: %v", again, err)
			}
			return
		}
		var e *config.Error
		if !errors.As(err, &e) || len(e.Problems) == 0 {
			t.Fatalf("%v has no problems", err)
		}
		for _, p := range e.Problems {
			if p.Line < 1 || p.Column < 1 || p.Line > strings.Count(text, "\n")+strings.Count(text, "\r")+2 {
				t.Errorf("%v has the position %d:%d in %q", p, p.Line, p.Column, text)
			}
		}
		// A variable's and a file's contents are not in the text, so they may not show at all.
		if shown := err.Error(); strings.Contains(shown, canary+"env") && !strings.Contains(text, canary+"env") ||
			strings.Contains(shown, canary+"file") && !strings.Contains(text, canary+"file") {
			t.Errorf("a secret is shown: %v", err)
		}
	})
}
