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
	if got := u.Go("run", command+"@latest", "plan", "5/s + 10000/h", "10000"); !strings.Contains(got, "takes 34m 59s") {
		t.Errorf("plan prints %s", got)
	}
	u.Go("install", command+"@"+version)
	out, err := exec.Command(filepath.Join(u.Bin, "throttle"), "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "throttle "+version+", go") {
		t.Errorf("version prints %q, %v", out, err)
	}
}

// TestTimeZones checks that the command has time zones of its own, which an image from scratch lacks.
func TestTimeZones(t *testing.T) {
	list := exec.Command("go", "list", "-deps", ".")
	out, err := list.Output()
	if err != nil || !strings.Contains(string(out), "\ntime/tzdata\n") {
		t.Errorf("the command does not link time/tzdata: %v", err)
	}
}
