package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/apithrottle/throttle/cmd/throttle/config"
)

// loader returns a Loader in whose environment and files every secret is there.
func loader() config.Loader {
	return config.Loader{
		LookupEnv: func(name string) (string, bool) {
			if name == "REDIS_URL" {
				return "redis://:hunter2@127.0.0.1:1/0", true
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
	if got := len(c.Routes); got != 4 {
		t.Errorf("%d routes, want 4", got)
	}
	for prefix := range c.Routes {
		if _, err := c.Transport(prefix, nil); err != nil {
			t.Error(err)
		}
	}
	bad := "listen: 0.0.0.0:80\nroutes:\n  /x: {to: ftp://a, preset: opnai, set: {Authorization: canary}, polcy: canary}\n  /x: {}\nclients: {web: {token: canary}}\nstore: redis://canary\n"
	_, err = loader().Parse([]byte(bad), "t.yaml")
	var e *config.Error
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	t.Log("\n" + err.Error())
	_, err = loader().Parse([]byte("routes:\n  /x: {to: a\n  token: canary: x"), "t.yaml")
	t.Log("\n" + err.Error())
}
