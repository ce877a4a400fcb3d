package redistest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/internal/servertest"
)

const keptLines = 30

// Run runs the tests of a package for its TestMain, as servertest.Run. Clients of go-redis log each
// connection that a test breaks, and Run prints this log only if a test fails.
func Run(m *testing.M) int {
	l := new(clientLog)
	redis.SetLogger(l)
	code := servertest.Run(m)
	if code != 0 {
		l.show()
	}
	return code
}

// A clientLog keeps the last lines that clients have logged.
type clientLog struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (l *clientLog) Printf(_ context.Context, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
	l.lines = l.lines[max(0, len(l.lines)-keptLines):]
}

func (l *clientLog) show() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == 0 {
		return
	}
	fmt.Fprintln(os.Stderr, "the last lines logged by clients of go-redis:")
	for _, line := range l.lines {
		fmt.Fprintln(os.Stderr, "\t"+line)
	}
}
