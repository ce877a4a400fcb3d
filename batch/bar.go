package batch

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bar returns a Job.Progress that writes the progress to w, which is usually os.Stderr. On a terminal it redraws
// one line, which fits the width of the terminal, and leaves a line with the result at the end:
//
//	████████▍             42%  421,300 of 1,000,000  2,000/s  3 failed  4m49s left  $1.24 of $2.94
//
// Anything else receives plain ASCII lines: the first state, one a minute, and the result. So does a terminal if
// TERM is "dumb".
//
// There is no color if NO_COLOR is set. There is ASCII alone if none of LC_ALL, LC_CTYPE and LANG names UTF-8. If the
// system does not report the width of the terminal, COLUMNS does; without it, 80 columns. What others write to
// the terminal should end with a newline. Errors of w are ignored.
func Bar(w io.Writer) func(Progress) {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" || !isTerminal(f) {
		return (&bar{w: w}).call
	}
	return (&bar{w: w, width: func() int { return widthOf(f) }, utf8: writesUTF8(), color: os.Getenv("NO_COLOR") == "", plain: runtime.GOOS == "windows"}).call
}

// A bar writes progress.
type bar struct {
	w     io.Writer
	width func() int // of the terminal; nil if w is none
	utf8  bool
	color bool
	plain bool // the terminal may not know escape codes

	begun bool
	next  time.Duration // when another plain line is due
}

func (b *bar) call(p Progress) {
	switch {
	case b.width != nil:
		b.draw(&p)
	case p.Final:
		b.write(toASCII(resultOf(&p).fit(plainWidth)) + "\n")
	case !b.begun || p.Elapsed >= b.next:
		b.begun, b.next = true, p.Elapsed.Truncate(time.Minute)+time.Minute
		b.write(toASCII(lineOf(&p, nil).fit(plainWidth)) + "\n")
	}
}

// plainWidth is the width of a line that is not bound by a terminal.
const plainWidth = 1 << 16

func (b *bar) write(s string) { _, _ = io.WriteString(b.w, s) }

const (
	eraseLine = "\x1b[K"
	red       = "\x1b[31m"
	noColor   = "\x1b[0m"
)

// draw draws a line in place of the one before. It erases that and what others have written beside it. The
// cursor then is at the beginning of the line, so that a line of others overwrites it.
func (b *bar) draw(p *Progress) {
	line, end := lineOf(p, b.cells), "\r"
	if p.Final {
		line, end = resultOf(p), "\n"
	}
	width := b.width() - 1 // a character in the last column would wrap the line
	text, erase := line.fit(width), eraseLine
	if !b.utf8 {
		text = toASCII(text)
	}
	if failed := failedOf(p); b.plain {
		erase = strings.Repeat(" ", max(0, width)) + "\r"
	} else if b.color && failed != "" {
		text = strings.Replace(text, failed, red+failed+noColor, 1)
	}
	b.write("\r" + erase + text + end)
}

// cells returns a bar of n cells of which a part is full.
func (b *bar) cells(part float64, n int) string {
	eighths := int(part * float64(8*n))
	if !b.utf8 {
		return strings.Repeat("#", eighths/8) + strings.Repeat("-", n-eighths/8)
	}
	text := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		text += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return text + strings.Repeat(" ", n-utf8.RuneCountInString(text))
}

// A line has parts, each in several forms, the longest first.
type line struct {
	parts   [][]string
	shorten []int // the parts that take their next form, one after the other, until the line fits
}

// fit returns a line of at most so many characters.
func (l line) fit(width int) string {
	forms := make([]int, len(l.parts))
	for next := 0; ; next++ {
		var shown []string
		for i, form := range forms {
			if text := l.parts[i][form]; text != "" {
				shown = append(shown, text)
			}
		}
		text := printable(strings.Join(shown, "  "))
		switch {
		case utf8.RuneCountInString(text) <= width:
			return text
		case next == len(l.shorten):
			return string([]rune(text)[:max(0, width)])
		}
		if i := l.shorten[next]; forms[i]+1 < len(l.parts[i]) {
			forms[i]++
		}
	}
}

// lineOf returns the line of a job that runs. If cells is nil, it has no bar.
func lineOf(p *Progress, cells func(part float64, n int) string) line {
	const ( // the parts
		bar = iota
		percent
		count
		rates
		failed
		left
		cost
		hint
	)
	over := p.Done + p.Failed + p.Skipped
	parts := [][]string{bar: {""}, percent: {""}, count: {separated(over) + " done", separated(over)}, rates: {rate(p.Rate), ""},
		failed: {failedOf(p), ""}, left: {"", ""}, cost: {"", ""}, hint: {p.Hint, p.Hint, ""}}
	if total := totalOf(p); total > 0 {
		part := min(1, float64(over)/float64(total))
		parts[percent] = []string{fmt.Sprintf("%d%%", int(100*part))}
		parts[count] = []string{separated(over) + " of " + separated(total), separated(over), ""}
		if cells != nil {
			parts[bar] = []string{cells(part, 20), cells(part, 10), ""}
		}
	}
	if p.TimeLeftKnown {
		parts[left][0] = duration(p.TimeLeft) + " left"
	}
	if p.Nanodollars > 0 {
		spent := dollars(p.Nanodollars)
		parts[cost] = []string{spent, spent, ""}
	}
	if p.NanodollarsLeft > 0 {
		parts[cost][0] += " of " + dollars(p.Nanodollars+p.NanodollarsLeft)
	}
	if short, _, found := strings.Cut(p.Hint, ":"); found {
		parts[hint][1] = short
	}
	return line{parts, []int{bar, hint, cost, count, bar, cost, hint, count, rates, failed, left}}
}

// totalOf returns how many items there are, or 0 if that is not known.
func totalOf(p *Progress) int64 {
	if p.Ended {
		return p.Done + p.Failed + p.Skipped + p.Report.Left + p.Started
	}
	return p.Total
}

func failedOf(p *Progress) string {
	if p.Failed == 0 {
		return ""
	}
	return separated(p.Failed) + " failed"
}

// resultOf returns the line of a job that has ended.
func resultOf(p *Progress) line {
	l := line{}
	if !p.Ended {
		l.parts = append(l.parts, []string{"stopped", ""})
	}
	for _, count := range p.counts() {
		l.parts = append(l.parts, []string{count, ""})
	}
	l.parts = append(l.parts, []string{"in " + duration(p.Elapsed), ""}, []string{rate(p.Rate), ""})
	if p.Nanodollars > 0 {
		l.parts = append(l.parts, []string{dollars(p.Nanodollars), ""})
	}
	for i := len(l.parts) - 1; i > 0; i-- {
		l.shorten = append(l.shorten, i)
	}
	return l
}

// toASCII replaces other characters.
func toASCII(text string) string {
	return strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII {
			return '?'
		}
		return r
	}, text)
}

// writesUTF8 reports whether the terminal shows characters beside ASCII.
func writesUTF8() bool {
	if runtime.GOOS == "windows" {
		return os.Getenv("WT_SESSION") != "" // the Windows Terminal does
	}
	locale := strings.ToLower(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}

// columns returns the width of a terminal that does not report it.
func columns() int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return 80
}
