package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func (c *command) top() *cobra.Command {
	var f statusFlags
	var count int
	var interval time.Duration
	cmd := &cobra.Command{
		Use:        "top NAME... --policy LIMITS [FLAG...]",
		Short:      "Show the same each second, until q is pressed",
		SuggestFor: []string{"watch", "monitor"},
		Long: `Show how much of a quota is used, anew each second, until q or Ctrl-C is pressed.
Without a terminal, or with --json, top writes a line each second.

` + statusHelp + `

Exit codes: 64 bad usage, 69 the file, server or page does not answer at the last
reading, 78 a bad policy or configuration file.`,
		Example: `  throttle top --policy '5/s + 10000/h' coinbase
  throttle top --page http://127.0.0.1:7411/_throttle/
  throttle top --page http://127.0.0.1:7411/_throttle/ --count 60 --json`,
		RunE: func(cmd *cobra.Command, names []string) error {
			switch {
			case count < 0:
				return usagef("--count is %d: it must be at least 0", count)
			case interval < 100*time.Millisecond:
				return usagef("--interval is %v: it must be at least 100ms", interval)
			}
			read, closer, err := c.statusReader(cmd.Name(), f, names)
			if err != nil {
				return err
			}
			defer closer()
			w := &watch{command: c, read: read, interval: interval, count: count}
			out, ok := c.Stdout.(*os.File)
			if ok && term.IsTerminal(int(out.Fd())) && !c.json && c.Getenv("TERM") != "dumb" {
				return w.screen(cmd.Context(), out)
			}
			return w.lines(cmd.Context())
		},
	}
	f.register(cmd)
	cmd.Flags().IntVar(&count, "count", 0, "end after so many times; 0 is never")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "the time from one reading to the next")
	return cmd
}

// A watch reads the state again and again.
type watch struct {
	*command
	read     statusReader
	interval time.Duration
	count    int
}

// each calls show with each state, until ctx or the count ends. Between states, a value from redraw
// shows the last one again.
func (w *watch) each(ctx context.Context, redraw <-chan os.Signal, show func(statusResult, error) error) error {
	tick := time.NewTicker(w.interval)
	defer tick.Stop()
	for n := 1; ; n++ {
		r, readErr := w.read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := show(r, readErr); err != nil {
			return err
		}
		if n == w.count {
			return readErr
		}
		for waits := true; waits; {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				waits = false
			case <-redraw:
				if err := show(r, readErr); err != nil {
					return err
				}
			}
		}
	}
}

// lines writes a line for each state.
func (w *watch) lines(ctx context.Context) error {
	return w.each(ctx, nil, func(r statusResult, err error) error {
		switch {
		case err != nil:
			fmt.Fprintln(w.Stderr, "throttle:", plain(err.Error()))
			return nil
		case w.json:
			return writeJSON(w.Stdout, r)
		}
		var quotas []string
		for _, q := range r.Quotas {
			quotas = append(quotas, q.Name+": "+q.text())
		}
		_, err = fmt.Fprintln(w.Stdout, r.Time.Format(time.RFC3339), plain(strings.Join(quotas, " ")))
		return err
	})
}

const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // another screen, without a cursor
	leaveScreen = "\x1b[0m\x1b[?25h\x1b[?1049l"
)

// screen draws on a terminal. The terminal is as before at the end, also after a panic.
func (w *watch) screen(ctx context.Context, out *os.File) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	if in, ok := w.Stdin.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		if before, err := term.MakeRaw(int(in.Fd())); err == nil {
			defer func() { _ = term.Restore(int(in.Fd()), before) }()
			go untilKey(in, quit)
		}
	}
	if _, err := out.WriteString(enterScreen); err != nil {
		return err
	}
	defer func() { _, _ = out.WriteString(leaveScreen) }()
	redraw, stop := resizes()
	defer stop()
	return w.each(ctx, redraw, func(r statusResult, err error) error {
		width, height, sizeErr := term.GetSize(int(out.Fd()))
		if sizeErr != nil || width <= 0 || height <= 0 {
			width, height = 80, 24
		}
		_, writeErr := out.Write(frame(r, err, width, height, w.colors(out)))
		return writeErr
	})
}

// untilKey calls quit when q, Ctrl-C or Ctrl-D is pressed.
func untilKey(in *os.File, quit func()) {
	var key [1]byte
	for {
		if n, err := in.Read(key[:]); err != nil || n > 0 && bytes.IndexByte([]byte("qQ\x03\x04"), key[0]) >= 0 {
			quit()
			return
		}
	}
}

// frame returns what shows a state on a terminal: all lines at once, each over the one before it, so
// that nothing flickers.
func frame(r statusResult, err error, width, height int, colors bool) []byte {
	lines := screenLines(r, err, width, colors)
	if len(lines) > height {
		hidden := len(lines) - height + 1
		lines = append(lines[:height-1], cut(fmt.Sprintf("%d more lines", hidden), width))
	}
	var b bytes.Buffer
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line)
		b.WriteString("\x1b[0m\x1b[K")
	}
	b.WriteString("\x1b[J")
	return b.Bytes()
}

// screenLines returns the lines of a state, none of them wider than the terminal.
func screenLines(r statusResult, err error, width int, colors bool) (lines []string) {
	styled := func(style, text string) string {
		if !colors || style == "" {
			return text
		}
		return "\x1b[" + style + "m" + text + "\x1b[0m"
	}
	title := "throttle top"
	if !r.Time.IsZero() {
		title += "  " + r.Time.Format(time.TimeOnly) + "Z"
	}
	if width >= 60 {
		title += "  q quits"
	}
	lines = append(lines, cut(title, width), "")
	if err != nil {
		return append(lines, styled("31", cut(plain(err.Error()), width)))
	}
	bar := width
	for _, q := range r.Quotas {
		for _, t := range q.Tiers {
			bar = min(bar, t.bar(width))
		}
	}
	for _, q := range r.Quotas {
		lines = append(lines, styled("1", cut(plain(q.Name), width)))
		if about := q.about(); about != "" {
			style := ""
			if q.Paused > 0 || q.Closed > 0 || q.Failure != "" {
				style = "33"
			}
			lines = append(lines, styled(style, cut("  "+plain(about), width)))
		}
		for _, t := range q.Tiers {
			lines = append(lines, t.line(width, bar, styled))
			if t.Origin != "" {
				lines = append(lines, cut("    "+plain(t.Origin), width))
			}
			if f := t.Forecast; f != nil {
				style := ""
				if f.Total > t.Limit {
					style = "33"
				}
				lines = append(lines, styled(style, cut("    "+plain(f.Text), width)))
			}
		}
		lines = append(lines, "")
	}
	if len(r.Quotas) == 0 {
		lines = append(lines, cut("No quota has this name.", width))
	}
	return lines
}

// about returns what is to be said of a quota beside its tiers.
func (q quotaResult) about() string {
	var parts []string
	if q.Failure != "" {
		return "not known: " + q.Failure
	}
	if q.Closed > 0 {
		parts = append(parts, "banned for "+shortTime(ofSeconds(q.Closed)))
	}
	if q.Paused > 0 {
		parts = append(parts, "paused for "+shortTime(ofSeconds(q.Paused)))
	}
	if q.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d waiting", q.Waiting))
	}
	if q.Admitted != nil {
		parts = append(parts, fmt.Sprintf("%d admitted in the last second", *q.Admitted))
	}
	if q.Share != nil {
		parts = append(parts, percent(*q.Share)+" of the admissions in 5 minutes")
	}
	return strings.Join(parts, ", ")
}

// bar returns how wide the bar of a tier may be.
func (t tierResult) bar(width int) int {
	count, next, _ := t.texts()
	return min(40, width-nameWidth(width)-len(count)-len(next)-9)
}

func nameWidth(width int) int { return min(28, width/3) }

// texts returns how much of a tier is used, when there is more, and in which style to say so.
func (t tierResult) texts() (count, next, style string) {
	count, next, style = t.amount(t.Used)+" of "+t.amount(t.Limit), "room for "+t.amount(t.Remaining), "32"
	switch {
	case t.RetryAfter == nil:
		style, next = "31", "more at an end"
	case *t.RetryAfter > 0:
		style, next = "31", "more in "+t.next()
	case t.Limit-t.Used <= t.Limit/5:
		style = "33"
	}
	return count, next, style
}

// line returns the line of a tier: its name, a bar, how much is used, and when there is more. Without
// room for a bar the line is short.
func (t tierResult) line(width, bar int, styled func(style, text string) string) string {
	count, next, style := t.texts()
	if bar < 4 {
		rest := fmt.Sprintf("%s/%s %s", t.amount(t.Used), t.amount(t.Limit), t.next())
		name := max(4, width-len(rest)-3)
		text := []rune(cut(fmt.Sprintf("  %-*s %s", name, cut(plain(t.Tier), name), rest), width))
		at := min(len(text), name+3)
		return string(text[:at]) + styled(style, string(text[at:]))
	}
	filled := 0
	if t.Limit > 0 {
		filled = int(min(max(float64(t.Used)/float64(t.Limit), 0), 1) * float64(bar))
	}
	name := nameWidth(width)
	return fmt.Sprintf("  %-*s [", name, cut(plain(t.Tier), name)) +
		styled(style, strings.Repeat("#", filled)) + strings.Repeat(".", bar-filled) + "]  " + count + "  " + next
}

// cut cuts a text off at a width, a column for each character.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	if width <= 1 {
		return ""
	}
	return strings.TrimRight(string([]rune(text)[:width-1]), ", ") + "…"
}
