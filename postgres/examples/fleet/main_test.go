package main

import (
	"bytes"
	"context"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// The tests start the test binary as the processes of a fleet.
func TestMain(m *testing.M) {
	if os.Getenv(providerEnv) != "" {
		main()
		return
	}
	os.Exit(pgtest.Run(m))
}

// The next request of each policy would come long after the end of the run. The guard is longer than a busy
// machine delays a request.
func TestFleetSendsWhatThePolicyAllows(t *testing.T) {
	for limits, want := range map[string]string{"9/h | guard=1m": "9", "20/s + 7/h | guard=1m": "7"} {
		t.Run(limits, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			err := run(t.Context(), []string{"-postgres", pgtest.Shared(t).URL(), "-processes", "3", "-policy", limits, "-for", "30s"}, &out)
			line := regexp.MustCompile(`(?m)^sent ` + want + `: \d \+ \d \+ \d; refused 0$`)
			if err != nil || !line.MatchString(out.String()) {
				t.Errorf("%s%v; want %s", &out, err, line)
			}
		})
	}
}

func TestFleetWithoutADatabase(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	db := pgtest.Shared(t)
	wrong, err := url.Parse(db.URL())
	if err != nil {
		t.Fatal(err)
	}
	wrong.User = url.UserPassword("nobody", "geheim")
	for of, want := range map[string]string{
		"": "no database: set -postgres", wrong.String(): "the server refused the role or its password",
		"postgres://u:geheim@127.0.0.1:1/x": "127.0.0.1:1", "postgres://u:geheim@host:no/x": "cannot parse",
	} {
		var out bytes.Buffer
		err := run(context.Background(), []string{"-postgres", of}, &out)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") || out.Len() > 0 {
			t.Errorf("%s: %v, %s; want %q", of, err, &out, want)
		}
	}
}
