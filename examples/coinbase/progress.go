package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/apithrottle/throttle"
)

// A progress is how far a batch is.
type progress struct {
	Elapsed, Duration        time.Duration // a Duration of 0 has no end
	Sent, Accepted, Rejected int64
	Total                    int64         // the most requests that can be accepted; 0 if not known
	InFlight                 int64         // negative if not known
	Left                     time.Duration // until the last request may be sent; negative if not known
	Tier                     string        // what decides about Left, if a tier does
	Failure                  error         // nil if the last request succeeded
}

// until sets what follows from the end of a batch that sends requests for a duration.
func (p *progress) until(duration time.Duration, possible func() int64) {
	p.Duration, p.Left, p.Total = duration, max(0, duration-p.Elapsed), possible()
}

// progressOf returns a function that returns the progress of a batch.
func progressOf(ctx context.Context, c config, l *throttle.Limiter, count *tally) func() progress {
	possible := sync.OnceValue(func() int64 { return upperBound(c.policy, count.start, c.duration) })
	last := forecast{limiter: l, cost: oneOfEach(c.policy)}
	return func() progress {
		p := count.progress()
		if c.requests > 0 {
			p.Left, p.Tier = last.left(ctx, count)
		} else {
			p.until(c.duration, possible)
		}
		return p
	}
}

// A forecast foretells when the last request of a batch may be sent. An estimate from the rate so far
// would not contain a slower tier that is yet to decide, nor a pause.
type forecast struct {
	limiter *throttle.Limiter
	cost    throttle.Cost
	at      time.Time
	tier    string
}

// left returns the time until then, and the tier that decides. If the time is not known it is negative.
func (f *forecast) left(ctx context.Context, count *tally) (time.Duration, string) {
	next, err := f.limiter.Forecast(ctx, f.cost)
	select {
	case <-count.oneLeft: // the Forecast is of one request too many
	default:
		switch {
		case err != nil:
			f.at = time.Time{}
		case (next.Wait > 0 || next.Tier == "") && count.allJoined(next.Ahead): // it is not known when a full tier of Concurrency has room
			f.at, f.tier = time.Now().Add(next.Wait), next.Tier
		}
	}
	return max(-1, time.Until(f.at)), f.tier
}

// showProgress writes the progress of the batch until stop is called. On a terminal it rewrites one
// line; elsewhere, and on a dumb terminal, it writes a line every five seconds. It uses no colors.
func showProgress(w io.Writer, now func() progress) (stop func()) {
	every, show, clear := 5*time.Second, func() { fmt.Fprintln(w, now().line()) }, func() {}
	if columns := columnsOf(w); columns != nil {
		s := screen{w: w, columns: columns}
		every, show, clear = 200*time.Millisecond, func() { s.write(now().bar(s.width())) }, s.clear
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				show()
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
		clear()
	}
}

// line returns the progress for a log.
func (p progress) line() string {
	var b strings.Builder
	fmt.Fprint(&b, p.Elapsed.Round(time.Second))
	if p.Duration > 0 {
		fmt.Fprintf(&b, " of %v: sent %d", p.Duration, p.Sent)
	} else {
		fmt.Fprintf(&b, ": sent %d of %d", p.Sent, p.Total)
	}
	fmt.Fprintf(&b, ", accepted %d, refused %d, %.1f/s", p.Accepted, p.Rejected, p.rate())
	if p.Duration == 0 && p.Left >= 0 {
		fmt.Fprintf(&b, ", %s", p.left(true))
	}
	if p.Failure != nil {
		fmt.Fprintf(&b, ", failing: %v", p.Failure)
	}
	return b.String()
}

// The bar has 8, 16, 24, 32 or 40 cells, so it seldom changes its length with the text.
const minCells, maxCells = 8, 40

// bar returns the progress in one line of at most some columns. In fewer columns it contains less.
func (p progress) bar(columns int) string {
	if p.Failure != nil {
		return cut(p.text(false, false, false)+" · failing: "+p.Failure.Error(), columns)
	}
	for _, text := range []string{p.text(true, true, true), p.text(true, true, false), p.text(true, false, false), p.text(false, false, false)} {
		if cells := columns - utf8.RuneCountInString(text) - len("[] "); cells >= minCells {
			cells = min(cells-cells%minCells, maxCells)
			full := int(p.part() * float64(cells))
			return "[" + strings.Repeat("#", full) + strings.Repeat("-", cells-full) + "] " + text
		}
	}
	return cut(p.text(false, false, false), columns)
}

// text returns the progress in words, with some of them or without.
func (p progress) text(rate, inFlight, tier bool) string {
	words := []string{fmt.Sprint(p.Accepted)}
	if p.Total > 0 {
		words[0] += fmt.Sprintf(" of %d", p.Total)
	}
	if p.Rejected > 0 {
		words = append(words, fmt.Sprintf("%d refused", p.Rejected))
	}
	if rate {
		words = append(words, fmt.Sprintf("%.1f/s", p.rate()))
	}
	if inFlight && p.InFlight >= 0 {
		words = append(words, fmt.Sprintf("%d in flight", p.InFlight))
	}
	if p.Left >= 0 {
		words = append(words, p.left(tier))
	}
	return strings.Join(words, " · ")
}

// left returns how much time is left, rounded up, and for which tier.
func (p progress) left(tier bool) string {
	up := func(unit time.Duration) int64 { return int64((p.Left + unit - 1) / unit) }
	var s string
	switch {
	case p.Left <= 10*time.Second:
		s = fmt.Sprintf("%.1f s left", float64(up(100*time.Millisecond))/10)
	case p.Left <= 100*time.Second:
		s = fmt.Sprintf("%d s left", up(time.Second))
	case p.Left <= 100*time.Minute:
		s = fmt.Sprintf("%d min left", up(time.Minute))
	default:
		s = fmt.Sprintf("%d h %d min left", up(time.Minute)/60, up(time.Minute)%60)
	}
	if tier && p.Tier != "" {
		s += " (" + p.Tier + ")"
	}
	return s
}

// rate returns the accepted requests per second.
func (p progress) rate() float64 {
	return float64(p.Accepted) / max(p.Elapsed, time.Millisecond).Seconds()
}

// part returns how much of the batch is done, from 0 to 1: of its requests or, if their number is
// not known, of its time.
func (p progress) part() float64 {
	done, total := float64(p.Accepted), float64(p.Total)
	if p.Total == 0 {
		done, total = float64(p.Elapsed), float64(p.Duration)
	}
	return max(0, min(1, done/max(1, total)))
}

// cut returns the beginning of a text in one line, with an ellipsis if that is not all.
func cut(text string, columns int) string {
	runes := []rune(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text))
	if len(runes) > columns {
		runes = append(runes[:columns-1], '…')
	}
	return string(runes)
}

// A screen is the line of a terminal that shows the progress. Spaces, and no escape sequence, erase
// what was there.
type screen struct {
	w       io.Writer
	columns func() int
	used    int // columns
}

// width returns how many columns of the line can be written. A terminal may wrap after its last.
func (s *screen) width() int { return max(1, s.columns()-1) }

// write replaces the line.
func (s *screen) write(line string) {
	n := utf8.RuneCountInString(line)
	fmt.Fprint(s.w, "\r", line, strings.Repeat(" ", max(0, min(s.used, s.width())-n)))
	s.used = n
}

// clear erases the line.
func (s *screen) clear() {
	s.write("")
	fmt.Fprint(s.w, "\r")
}

// columnsOf returns a function that returns the width of a terminal. It returns nil if w is not a
// terminal, or one that can't go back to the beginning of a line.
func columnsOf(w io.Writer) func() int {
	switch w := w.(type) {
	case interface{ Columns() int }:
		return w.Columns
	case *os.File:
		if _, ok := windowColumns(w); ok && os.Getenv("TERM") != "dumb" {
			return func() int {
				n, _ := windowColumns(w)
				return n
			}
		}
	}
	return nil
}
