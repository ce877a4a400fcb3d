package cli

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/apithrottle/throttle/batch"
)

// A screen lets the progress, what commands write and messages take turns.
type screen struct {
	c      *command
	mu     sync.Mutex // held during a write
	redraw bool       // the progress stands in the line of a terminal
}

func newScreen(c *command) *screen { return &screen{c: c} }

// progress returns what shows the progress, in a line of a terminal or else now and then. The summary follows it.
func (s *screen) progress() func(batch.Progress) {
	s.redraw = isTerminal(s.c.Stderr) && s.c.Getenv("TERM") != "dumb"
	bar := batch.Bar(s.c.Stderr)
	return func(p batch.Progress) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !p.Final {
			bar(p)
		}
	}
}

// out returns the standard output.
func (s *screen) out() io.Writer { return turnWriter{s, s.c.Stdout} }

// say writes a message.
func (s *screen) say(format string, args ...any) {
	_, _ = fmt.Fprintf(turnWriter{s, s.c.Stderr}, "throttle: "+format+"\n", args...)
}

// failed shows what a command wrote to its standard error, each line behind the key of its item, and why it
// has failed.
func (s *screen) failed(key, reason string, e *commandError) {
	var b bytes.Buffer
	prefix := shorten(key) + ": "
	if e != nil && len(e.stderr) > 0 {
		reason = e.how // the last line stands above
		for line := range bytes.Lines(e.stderr) {
			b.WriteString(prefix)
			b.Write(bytes.TrimRight(line, "\r\n"))
			b.WriteByte('\n')
		}
	}
	fmt.Fprintf(&b, "throttle: %s%s\n", prefix, reason)
	_, _ = turnWriter{s, s.c.Stderr}.Write(b.Bytes())
}

// A turnWriter writes to a writer when the screen is free, in place of the progress.
type turnWriter struct {
	s *screen
	w io.Writer
}

func (t turnWriter) Write(p []byte) (int, error) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if t.s.redraw && isTerminal(t.w) {
		_, _ = io.WriteString(t.s.c.Stderr, "\r\x1b[K")
	}
	return t.w.Write(p)
}
