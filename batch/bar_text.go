package batch

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// separated returns a number with a comma between each three digits.
func separated(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// duration returns the two largest units of d, such as "4m49s" or "2d4h".
func duration(d time.Duration) string {
	const day = 24 * time.Hour
	s, m := d.Round(time.Second), d.Round(time.Minute)
	switch {
	case s < time.Minute:
		return fmt.Sprintf("%ds", s/time.Second)
	case s < time.Hour:
		return fmt.Sprintf("%dm%02ds", s/time.Minute, s%time.Minute/time.Second)
	case m < day:
		return fmt.Sprintf("%dh%02dm", m/time.Hour, m%time.Hour/time.Minute)
	}
	h := d.Round(time.Hour)
	return fmt.Sprintf("%dd%dh", h/day, h%day/time.Hour)
}

// rate returns a number of items a second, with three digits, or one a minute or an hour if it is small.
func rate(a float64) string {
	unit := "s"
	if a > 0 && a < 0.5 {
		a, unit = 60*a, "min"
		if a < 0.5 {
			a, unit = 60*a, "h"
		}
	}
	if a >= 100 {
		return separated(int64(a+0.5)) + "/" + unit
	}
	return strconv.FormatFloat(a, 'g', 3, 64) + "/" + unit
}

// dollars returns an amount in cents, or smaller parts of a dollar if it is less than ten cents.
func dollars(nano int64) string {
	if nano < 100_000_000 {
		return fmt.Sprintf("$%.4f", float64(nano)/1e9)
	}
	cents := (nano + 5_000_000) / 10_000_000
	return fmt.Sprintf("$%s.%02d", separated(cents/100), cents%100)
}

// mostGroups is how many different reasons a Report names, and mostKeys how many keys for each.
const (
	mostGroups = 5
	mostKeys   = 3
)

// String returns a summary of a few lines for people, with the most frequent reasons of Failures:
//
//	999,985 done, 3 failed, 12 skipped in 8m20s, 2,000/s, $2.95
//	The job was bound by the limits of the API.
//	2 failed: 404 Not Found (items 17, 23)
//	1 failed: timeout (item 99)
//	Run the job again to do the rest. With the same Journal it leaves out what is done.
func (r Report) String() string {
	lines := []string{strings.Join(r.counts(), ", ")}
	if r.Elapsed > 0 {
		lines[0] += " in " + duration(r.Elapsed)
		if n := r.Done + r.Failed; n > 0 {
			lines[0] += ", " + rate(float64(n)/r.Elapsed.Seconds())
		}
	}
	if r.Nanodollars > 0 {
		lines[0] += ", " + dollars(r.Nanodollars)
	}
	if !r.Ended {
		lines = append(lines, "The job ended before its last item.")
	}
	if r.Bound != "" {
		lines = append(lines, fmt.Sprintf("The job was bound by %s.", r.Bound))
	}
	lines = append(lines, r.reasons()...)
	if !r.Ended || r.Failed+r.Left > 0 {
		lines = append(lines, "Run the job again to do the rest. With the same Journal it leaves out what is done.")
	}
	return strings.Join(lines, "\n")
}

// counts returns how many items are done, and those of which there are any.
func (r *Report) counts() []string {
	all := []string{separated(r.Done) + " done"}
	for _, c := range []struct {
		n    int64
		text string
	}{{r.Failed, "failed"}, {r.Skipped, "skipped"}, {r.Left, "left"}} {
		if c.n > 0 {
			all = append(all, separated(c.n)+" "+c.text)
		}
	}
	return all
}

// A group are failed items with the same reason, but for their keys in it.
type group struct {
	reason string
	n      int64
	keys   []string
}

// reasons returns a line for each of the most frequent reasons.
func (r *Report) reasons() (lines []string) {
	groups := map[string]*group{}
	var all []*group
	for _, f := range r.Failures {
		reason := fmt.Sprint(f.Err)
		alike := withoutKey(reason, f.Key)
		g := groups[alike]
		if g == nil {
			g = &group{reason: reason}
			groups[alike], all = g, append(all, g)
		}
		if g.n++; len(g.keys) < mostKeys {
			g.keys = append(g.keys, f.Key)
		}
	}
	slices.SortStableFunc(all, func(a, b *group) int { return cmp.Compare(b.n, a.n) })
	for i, g := range all {
		if i == mostGroups {
			lines = append(lines, fmt.Sprintf("%s more reasons", separated(int64(len(all)-i))))
			break
		}
		lines = append(lines, g.String())
	}
	if n := int64(len(r.Failures)); n > 0 && n < r.Failed {
		lines = append(lines, fmt.Sprintf("The reasons are those of the first %s failed items.", separated(n)))
	}
	return lines
}

func (g *group) String() string {
	items := "item " + g.keys[0]
	if g.n > 1 {
		items = "items " + strings.Join(g.keys, ", ")
	}
	if g.n > int64(len(g.keys)) {
		items += ", ..."
	}
	return fmt.Sprintf("%s failed: %s (%s)", separated(g.n), oneLine(g.reason), items)
}

// oneLine returns the beginning of the first line of a text.
func oneLine(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	text = printable(text)
	if runes := []rune(text); len(runes) > 200 {
		return string(runes[:200]) + "..."
	}
	return text
}

// printable replaces what moves the cursor of a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// withoutKey removes the first occurrence of a key that is a word of its own from a text.
func withoutKey(text, key string) string {
	for from := 0; key != ""; {
		at := strings.Index(text[from:], key)
		if at < 0 {
			break
		}
		before, after := text[:from+at], text[from+at+len(key):]
		last, _ := utf8.DecodeLastRuneInString(before)
		next, _ := utf8.DecodeRuneInString(after)
		if !isWord(last) && !isWord(next) {
			return before + after
		}
		from = len(before) + len(key)
	}
	return text
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
