package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// showProgress writes the progress of the batch until stop is called. On a terminal it rewrites one
// line; elsewhere it writes a line every five seconds.
func showProgress(w io.Writer, line func() string) (stop func()) {
	every, format := 5*time.Second, "%s\n"
	if isTerminal(w) {
		every, format = 200*time.Millisecond, "\r%s\x1b[K"
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				fmt.Fprintf(w, format, line())
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
		if isTerminal(w) {
			fmt.Fprint(w, "\r\x1b[K")
		}
	}
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
