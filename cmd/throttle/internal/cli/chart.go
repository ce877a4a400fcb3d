package cli

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

// width returns how many columns text may have: those of the terminal, or 80.
func (c *command) width() int {
	if f, ok := c.Stdout.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			return min(max(w, 40), 160)
		}
	}
	return 80
}

// text returns the result for people, in lines of a width.
func (r *planResult) text(width int) string {
	var b strings.Builder
	b.WriteString(plural(r.Requests, "request"))
	if r.Workers > 0 {
		fmt.Fprintf(&b, ", %s", plural(r.Workers, "worker"))
	}
	fmt.Fprintf(&b, ", answers after %v, from %s\n", ofSeconds(r.Answers), clock(r.Start))
	if r.Price != nil {
		b.WriteString("\n" + r.Price.text())
	}
	scale := time.Duration(0)
	for _, p := range r.Plans {
		scale = max(scale, p.run.Length())
	}
	if p := r.Pool; p != nil {
		verb := "takes"
		if p.Refused {
			verb = "admits " + thousands(p.Admitted) + " requests in"
		}
		fmt.Fprintf(&b, "\nThe pool %s %s, until %s: %s requests per second\n", verb, length(ofSeconds(p.Seconds)), clock(p.End), strconv.FormatFloat(p.Average, 'g', 4, 64))
	}
	if len(r.Plans) > 1 {
		b.WriteString("\n" + r.table(width))
	}
	for _, p := range r.Plans {
		b.WriteString("\n" + p.text(width, scale, len(r.Plans) > 1))
	}
	return b.String()
}

// table returns the policies side by side.
func (r *planResult) table(width int) string {
	rows := [][]string{{"policy", "takes", "ends", "binds most"}}
	if r.Pool != nil {
		rows[0] = append(rows[0], "requests")
	}
	for _, p := range r.Plans {
		takes, ends := length(p.run.Length()), clock(p.End)
		if p.Refused != nil {
			takes, ends = "refused", "after "+thousands(p.Admitted)
		}
		row := []string{p.Policy, takes, ends, p.most()}
		if r.Pool != nil {
			row = append(row, thousands(p.Admitted))
		}
		rows = append(rows, row)
	}
	return fitted("  ", rows, 0, width)
}

// most returns what binds for most of the time.
func (p *plan) most() string {
	best := bound{By: "nothing"}
	for _, b := range p.Bound {
		if b.Seconds > best.Seconds {
			best = b
		}
	}
	if best.Share == 0 {
		return best.By
	}
	return p.short(best.By) + ", " + percent(best.Share)
}

// short returns a short name of a reason.
func (p *plan) short(by string) string { return shortTier(by, p.run.Tiers()) }

// fitted is aligned with the texts of a column shortened to fit into a width.
func fitted(indent string, rows [][]string, column, width int) string {
	over := widest(indent, rows) - width
	if over > 0 {
		longest := 0
		for _, row := range rows {
			longest = max(longest, len([]rune(row[column])))
		}
		for _, row := range rows {
			row[column] = cut(row[column], max(8, longest-over))
		}
	}
	return aligned(indent, rows)
}

// aligned returns rows with their columns below each other.
func aligned(indent string, rows [][]string) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, indent+strings.Join(row, "\t"))
	}
	t.Flush()
	lines := strings.Split(b.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}

func (p *plan) text(width int, scale time.Duration, several bool) string {
	var b strings.Builder
	b.WriteString(strings.Join(wrapped(p.Policy, width), "\n    ") + "\n")
	if p.Limits != "" {
		for _, line := range wrapped(p.Limits, width-4) {
			b.WriteString("    " + line + "\n")
		}
	}
	switch {
	case p.Refused != nil:
		fmt.Fprintf(&b, "\n  refused: request %s, after %s, by %s\n  until %s\n", thousands(p.Refused.Request),
			length(ofSeconds(p.Refused.After)), p.short(p.Refused.Tier), clock(p.Refused.Until))
	case p.Admitted == 0:
		b.WriteString("\n  nothing to do\n")
		return b.String()
	default:
		fmt.Fprintf(&b, "\n  takes %s, until %s: %s on average\n", length(p.run.Length()), clock(p.End), rate(p.Average))
	}
	for _, budget := range p.Budgets {
		b.WriteString(budget.text())
	}
	if p.run.Length() > 0 && len(p.Bound) > 0 {
		b.WriteString("\n" + p.chart(width, scale) + "\n" + p.legend(width))
	}
	if s := p.counts(width); s != "" {
		b.WriteString("\n" + s)
	}
	if p.Enough > 0 {
		fmt.Fprintf(&b, "\n  The workers bind: %s would be enough, and take %s.\n", thousands(p.Enough), length(ofSeconds(p.Fastest)))
	}
	return b.String()
}

const chartRows = 6

// blocks fill a cell of the chart by eighths.
var blocks = []rune(" ▁▂▃▄▅▆▇█")

// chart draws the requests a second over the time, and what binds.
func (p *plan) chart(width int, scale time.Duration) string {
	const margin = 10
	columns := width - margin - 2
	// A column of less than a second is part of a burst, or lies between two: then a sum says more.
	sums := scale < time.Duration(columns)*time.Second
	counts, strip := p.columns(columns, scale, sums)
	top := slices.Max(counts)
	unit, name := rateUnit(top)
	if sums {
		unit, name = 1, "requests"
	}
	labels := map[int]string{chartRows: number(top*unit) + " ┤", chartRows - 1: name + " │"}
	var b strings.Builder
	for row := chartRows; row > 0; row-- {
		line := fmt.Sprintf("%*s", margin+1, cmp.Or(labels[row], "│"))
		for _, n := range counts {
			eighths := int(math.Ceil(n / top * chartRows * 8))
			if n > 0.95*top && !sums { // columns differ by the requests at their ends
				eighths = chartRows * 8
			}
			line += string(blocks[min(8, max(0, eighths-8*(row-1)))])
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	ticks, times := axis(scale, columns)
	fmt.Fprintf(&b, "%*s └%s\n%*s  %s\n", margin-1, "0", ticks, margin-1, "", strings.TrimRight(times, " "))
	if len(p.Bound) > 1 {
		fmt.Fprintf(&b, "%*s  %s\n", margin-1, "binds", strings.TrimRight(strip, " "))
	}
	return b.String()
}

// columns returns for each of n columns, as far as the run goes, the requests a second, or with sums
// those until its end, and the letter of what binds.
func (p *plan) columns(n int, scale time.Duration, sums bool) (counts []float64, strip string) {
	at := func(i int) time.Duration { return time.Duration(float64(scale) * float64(i) / float64(n)) }
	done := int64(0)
	for i := 0; i < n && at(i) < p.run.Length(); i++ {
		from, to := at(i), at(i+1)
		total := p.run.Admitted(min(to-1, p.run.Length()))
		if i == n-1 {
			total = p.Admitted
		}
		count := float64(total)
		if !sums {
			count = float64(total-done) / (to - from).Seconds()
		}
		done = total
		counts = append(counts, count)
		strip += p.letter(p.run.Waited(from, min(to, p.run.Length())))
	}
	return counts, strip
}

// letter returns the letter of the reason that was waited for most.
func (p *plan) letter(waited []time.Duration) string {
	best, letter := time.Duration(0), " "
	for i, w := range waited {
		if w > best {
			by := reason(p.run, i-1)
			best, letter = w, " "
			if n := slices.IndexFunc(p.Bound, func(b bound) bool { return b.By == by }); n >= 0 {
				letter = string(rune('a' + n))
			}
		}
	}
	return letter
}

// legend lists what binds, for how long and when.
func (p *plan) legend(width int) string {
	rows := [][]string{}
	inTurns := slices.ContainsFunc(p.Bound, func(b bound) bool {
		return b.Share > 0.05 && !slices.ContainsFunc(p.Segments, func(s segment) bool { return s.By == b.By })
	})
	for i, b := range p.Bound {
		var when []string
		for _, s := range p.Segments {
			if s.By == b.By {
				when = append(when, fmt.Sprintf("%s–%s", stamp(s.From), stamp(s.To)))
			}
		}
		const shown = 2
		text := strings.Join(when, ", ")
		if len(when) > shown {
			text = fmt.Sprintf("%s and %d more", strings.Join(when[:shown], ", "), len(when)-shown)
		}
		if inTurns { // too quickly for segments
			text = "in turns"
		}
		name, binds := p.short(b.By), "binds"
		if name == "workers" {
			name, binds = "the workers", "bind"
		}
		row := []string{string(rune('a' + i)), name, binds, percent(b.Share), text}
		if len(p.Bound) == 1 {
			row = row[1:]
		}
		rows = append(rows, row)
	}
	if widest("  ", rows) > width { // the names of the tiers are long
		for i := range rows {
			rows[i] = rows[i][:len(rows[i])-1]
		}
	}
	return fitted("  ", rows, len(rows[0])-3, width)
}

// counts returns the requests in each second, minute, hour or day.
func (p *plan) counts(width int) string {
	if len(p.Counts) < 2 {
		return ""
	}
	var parts []string
	for i := 0; i < len(p.Counts); {
		n := 1
		for i+n < len(p.Counts) && p.Counts[i+n] == p.Counts[i] {
			n++
		}
		text := thousands(p.Counts[i])
		if n > 1 {
			text += " × " + thousands(int64(n))
		}
		parts = append(parts, text)
		i += n
	}
	const shown = 8
	text := strings.Join(parts, ", ")
	if len(parts) > shown {
		whole := p.Counts[:len(p.Counts)-1]
		if least, most := slices.Min(whole), slices.Max(whole); most-least <= most/20 {
			text = thousands(least) + " to " + thousands(most)
		} else {
			text = strings.Join(parts[:shown], ", ") + ", …"
		}
	}
	name := map[float64]string{1: "second", 60: "minute", 3600: "hour", 86400: "day"}[p.Every]
	lead := "  each " + name + ": "
	var b strings.Builder
	wrap(&b, width, lead, text)
	return b.String()
}

// wrapped breaks a text at spaces.
func wrapped(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.SplitAfter(text, " ") {
		if line != "" && len([]rune(strings.TrimRight(line+word, " "))) > width {
			lines, line = append(lines, strings.TrimRight(line, " ")), ""
		}
		line += word
	}
	return append(lines, line)
}

// axis returns an axis of time with its ticks, and the labels below.
func axis(scale time.Duration, columns int) (ticks, labels string) {
	const day = 24 * time.Hour
	step := scale
	for _, s := range []time.Duration{
		time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, day, 2 * day, 5 * day, 10 * day, 30 * day, 60 * day, 180 * day, 365 * day,
		730 * day, 3650 * day,
	} {
		if int64(scale/s)*10 <= int64(columns) {
			step = s
			break
		}
	}
	line, below := []rune(strings.Repeat("─", columns)), []rune(strings.Repeat(" ", columns+8))
	for at := time.Duration(0); at <= scale && step > 0; at += step {
		i := int(float64(columns) * float64(at) / float64(scale))
		if i >= columns {
			break
		}
		line[i] = '┬'
		copy(below[i:], []rune(tick(at)))
	}
	return string(line), string(below)
}

// tick returns a short length of time for an axis: 0, 30s, 5m, 1h30m, 2d.
func tick(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == 0:
		return "0"
	case d%day == 0:
		return fmt.Sprintf("%dd", d/day)
	case d > day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	}
	return withoutZeros(d)
}

// withoutZeros returns a length of time without the units at its end that are zero: 1h30m.
func withoutZeros(d time.Duration) string {
	text := d.String()
	if d%time.Minute == 0 {
		text = strings.TrimSuffix(text, "0s")
	}
	if d%time.Hour == 0 {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// stamp returns a time of the run: 0:34:59, 4d 03:00:00 or 1.2s.
func stamp(at float64) string {
	d := ofSeconds(at)
	if d == 0 {
		return "0"
	}
	if d < time.Minute {
		return strconv.FormatFloat(math.Round(d.Seconds()*10)/10, 'f', -1, 64) + "s"
	}
	d = d.Round(time.Second)
	days := ""
	if d >= 24*time.Hour {
		days = fmt.Sprintf("%dd ", d/(24*time.Hour))
		d %= 24 * time.Hour
	}
	return fmt.Sprintf("%s%d:%02d:%02d", days, d/time.Hour, d%time.Hour/time.Minute, d%time.Minute/time.Second)
}

// length returns a length of time with its two largest units: "3h 34m", "34m 59s", "4d 3h", "1.25s".
func length(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 10*365*day:
		return thousands(int64(d/(365*day))) + " years"
	case d >= day:
		d = d.Round(time.Hour)
		return fmt.Sprintf("%dd %dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dh %dm %ds", d/time.Hour, d%time.Hour/time.Minute, d%time.Minute/time.Second)
	case d >= time.Minute:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm %ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.String()
}

func clock(t time.Time) string { return t.Round(time.Second).Format("Mon 2006-01-02 15:04:05 MST") }

// rateUnit returns in which unit a rate reads well: a second, a minute, an hour or a day.
func rateUnit(perSecond float64) (factor float64, name string) {
	switch {
	case perSecond >= 1:
		return 1, "/s"
	case perSecond*60 >= 1:
		return 60, "/min"
	case perSecond*3600 >= 1:
		return 3600, "/h"
	}
	return 86400, "/day"
}

func rate(perSecond float64) string {
	unit, name := rateUnit(perSecond)
	return number(perSecond*unit) + name
}

// number returns a number with three digits, or all of those before the point.
func number(x float64) string {
	switch {
	case x >= 100:
		return thousands(int64(math.Round(x)))
	case x >= 10:
		return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64)
	}
	return strconv.FormatFloat(math.Round(x*100)/100, 'f', -1, 64)
}

func percent(share float64) string {
	switch p := 100 * share; {
	case p > 0 && p < 1:
		return "< 1 %"
	default:
		return fmt.Sprintf("%.0f %%", p)
	}
}

// thousands returns a whole number with commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(n) + " " + noun + "s"
}
