package postgres_test

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// The commands of the page about fleets run as they are, from the root of a clone. On a busy machine the
// provider of the example may refuse a request, so how many it refuses is not tested here.
func TestCommandsOfTheDocs(t *testing.T) {
	t.Parallel()
	soak.Long(t, "runs the example for 20 s")
	text, err := os.ReadFile("../docs/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^(go -C postgres run .*?) +#`).FindAllStringSubmatch(string(text), -1)
	if len(commands) == 0 {
		t.Error("docs/fleet.md has no command")
	}
	db := pgtest.Shared(t)
	for _, command := range commands {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", command[1])
		cmd.Dir, cmd.Env = "..", append(os.Environ(), "DATABASE_URL="+db.URL(), "GOWORK=")
		out, err := cmd.CombinedOutput()
		if err != nil || !regexp.MustCompile(`(?m)^sent [1-9]\d*: .*; refused \d+$`).Match(out) {
			t.Errorf("%s: %v\n%s", command[1], err, out)
		}
	}
}
