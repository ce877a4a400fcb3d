package main_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/internal/published"
)

func TestPublished(t *testing.T) { published.Check(t) }

// TestWithoutClone runs the command as users without a clone do: by "go run" and by "go install".
func TestWithoutClone(t *testing.T) {
	const command, version = "github.com/apithrottle/throttle/cmd/throttle", "v0.1.1"
	u := published.NewUser(t, version)
	if got := u.Go("run", command+"@latest", "version"); !strings.HasPrefix(got, "throttle "+version+", go") {
		t.Errorf("version prints %q", got)
	}
	u.Go("install", command+"@"+version)
	out, err := exec.Command(filepath.Join(u.Bin, "throttle"), "validate", "5/s + 10000/h").Output()
	if err != nil || string(out) != "5/s + 10000/h\n" {
		t.Errorf("validate prints %q, %v", out, err)
	}
}
