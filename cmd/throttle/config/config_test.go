package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/cmd/throttle/config"
)

// loader returns a Loader in whose environment and files every secret is there.
func loader() config.Loader {
	return config.Loader{
		LookupEnv: func(name string) (string, bool) {
			switch name {
			case "REDIS_URL":
				return "redis://:hunter2@127.0.0.1:1/0", true
			case "BROKEN":
				return "a\nb", true
			case "DOTS":
				return "..", true
			}
			return "value-of-" + name + "-0123456789", true
		},
		ReadFile: func(path string) ([]byte, error) {
			return []byte("content-of-" + filepath.Base(path) + "-0123456789\n"), nil
		},
	}
}

func readExample(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestExample(t *testing.T) {
	c, err := loader().Parse(readExample(t), "example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := len(c.Routes); got != 9 {
		t.Errorf("%d routes, want 9", got)
	}
	for prefix := range c.Routes {
		if _, err := c.Transport(prefix, nil); err != nil {
			t.Error(err)
		}
	}
}

// The example has every field.
func TestExampleIsWhole(t *testing.T) {
	text := string(readExample(t))
	for _, v := range []any{config.Config{}, config.Store{}, config.Fallback{}, config.Route{}, config.Prices{}, config.Key{}, config.Client{}, config.Timeouts{}, config.Observability{}} {
		for i := range reflect.TypeOf(v).NumField() {
			name, _, _ := strings.Cut(reflect.TypeOf(v).Field(i).Tag.Get("json"), ",")
			name = regexp.QuoteMeta(strings.TrimPrefix(name, "$"))
			if name != "schema" && name != "" && name != "-" && !regexp.MustCompile(`\b`+name+`:`).MatchString(text) {
				t.Errorf("the example lacks %s", name)
			}
		}
	}
}

// JSON is read, too, with tabs and with the line ends of Windows.
func TestJSON(t *testing.T) {
	for _, text := range []string{
		`{"$schema":"https://x","routes":{"/x":{"to":"https://a.b","policy":"5/s","set":{"A":"b\u0041\/\"c"},"remove":[],"max_queue":5}}}`,
		"{\n\t\"routes\": {\n\t\t\"/x\": {\n\t\t\t\"to\": \"https://a.b\",\n\t\t\t\"policy\": \"5/s\",\n\t\t\t\"set\": {\"A\": \"bA/\\\"c\"}\n\t\t}\n\t}\n}\n",
		"routes:\r\n  /x:\r\n    to: https://a.b\r\n    policy: 5/s\r\n    set: {A: 'bA/\"c'}\r\n",
	} {
		c, err := config.Parse([]byte(text), "t.json")
		if err != nil {
			t.Errorf("%s\n%v", text, err)
			continue
		}
		if r := c.Routes["/x"]; r.To != "https://a.b" || r.Set["A"].Reveal() != `bA/"c` || r.Limits().String() != "5/s" {
			t.Errorf("%s is read as %+v with %q", text, r, r.Set["A"].Reveal())
		}
	}
}
