package pgtest

import (
	"fmt"
	"os"
	"testing"

	"github.com/apithrottle/throttle/internal/servertest"
)

// Run runs the tests of a package for its TestMain, as servertest.Run, and ends the servers that the
// tests share.
func Run(m *testing.M) int { return servertest.Run(tests{m}) }

type tests struct{ *testing.M }

func (m tests) Run() int {
	code := m.M.Run()
	if h := current.Load(); h != nil {
		if err := h.close(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			return 1
		}
	}
	return code
}
