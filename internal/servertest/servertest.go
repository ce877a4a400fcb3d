// Package servertest contains what the packages that start real servers for tests share: it ends tests
// whose server is missing, steps the clock of a server, and has a proxy that breaks connections.
package servertest

import (
	"flag"
	"os"
	"testing"

	"github.com/apithrottle/throttle/internal/leaktest"
)

const atOnce = "16" // parallel tests; most of them wait

// Run runs the tests of a package for its TestMain and returns the exit code of leaktest.Run. Without
// -parallel, 16 tests run in parallel on any number of processors, because they mostly wait for servers.
func Run(m leaktest.Tests) int {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", atOnce)
	}
	return leaktest.Run(m)
}

// SkipOrFail ends a test for which something is missing. The test is skipped, or fails if the
// environment variable is 1.
func SkipOrFail(t testing.TB, variable, why string) {
	t.Helper()
	if os.Getenv(variable) == "1" {
		t.Fatalf("%s, but %s=1 requires it", why, variable)
	}
	note(t.Name() + ": " + why)
	t.Skip(why)
}

// note adds a line to the file that $THROTTLE_SKIPPED names, if any. go test does not list skipped
// tests.
func note(line string) {
	f, err := os.OpenFile(os.Getenv("THROTTLE_SKIPPED"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteString(line + "\n")
}
