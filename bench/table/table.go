// Package table turns the output of "go test -bench" into tables in Markdown. Some compare
// libraries case by case. The last one has all other measurements.
package table

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Results has the samples of benchmarks, by name. Parse may be called for several runs, and
// adds their samples. The zero value is empty and ready to use.
type Results struct {
	names   []string                        // in the order of their first sample
	samples map[string]map[string][]float64 // by benchmark and unit
}

// processors matches the suffix that go test adds to a name if GOMAXPROCS isn't 1.
var processors = regexp.MustCompile(`-\d+$`)

// Parse adds the output of "go test -bench" to r. It skips all lines that are not results. It
// returns an error for a result that it can't read, and for a run that failed.
func (r *Results) Parse(in io.Reader) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "FAIL") || strings.HasPrefix(line, "--- FAIL") {
			return fmt.Errorf("the benchmarks failed: %q", line)
		}
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		if err := r.add(fields); err != nil {
			return fmt.Errorf("reading the result %q: %w", line, err)
		}
	}
	return lines.Err()
}

// add adds a result. Its fields are a name, a number of iterations, and pairs of a value and
// a unit.
func (r *Results) add(fields []string) error {
	if len(fields)%2 != 0 {
		return errors.New("a value has no unit")
	}
	name := processors.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
	if r.samples == nil {
		r.samples = make(map[string]map[string][]float64)
	}
	if r.samples[name] == nil {
		r.samples[name] = make(map[string][]float64)
		r.names = append(r.names, name)
	}
	for pair := range slices.Chunk(fields[2:], 2) {
		value, err := strconv.ParseFloat(pair[0], 64)
		if err != nil {
			return err
		}
		r.samples[name][pair[1]] = append(r.samples[name][pair[1]], value)
	}
	return nil
}

// Median returns the median of a benchmark's samples in a unit. It returns false if there are
// no samples.
func (r *Results) Median(name, unit string) (float64, bool) {
	s := slices.Sorted(slices.Values(r.samples[name][unit]))
	if len(s) == 0 {
		return 0, false
	}
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2, true
}

// Markdown writes the tables. The table of a group has the benchmarks named
// group/library/case, with a row for each case and a column for each library. More columns
// have the first library's time divided by the time of each other library. The last table has
// the samples in all units that benchmarks report themselves.
func (r *Results) Markdown(w io.Writer, groups ...string) error {
	if len(r.names) == 0 {
		return errors.New("the input has no results of benchmarks")
	}
	var b strings.Builder
	for _, group := range groups {
		r.compare(&b, group)
	}
	r.list(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Results) compare(b *strings.Builder, group string) {
	libraries, cases := r.axes(group)
	if len(libraries) == 0 {
		return
	}
	first, others := libraries[0], libraries[1:]
	header := append([]string{"ns per call"}, libraries...)
	for _, other := range others {
		header = append(header, first+"/"+other)
	}
	begin(b, header, append([]string{"---"}, slices.Repeat([]string{"---:"}, len(header)-1)...))
	for _, c := range cases {
		cells := []string{c}
		for _, library := range libraries {
			cells = append(cells, r.time(r.find(group, library, c)))
		}
		for _, other := range others {
			cells = append(cells, r.ratio(r.find(group, first, c), r.find(group, other, c)))
		}
		row(b, cells)
	}
}

// axes returns the libraries and cases of a group, in the order of their first samples.
func (r *Results) axes(group string) (libraries, cases []string) {
	for _, name := range r.names {
		rest, ok := strings.CutPrefix(name, group+"/")
		library, c, isCase := strings.Cut(rest, "/")
		if !ok || !isCase {
			continue
		}
		if !slices.Contains(libraries, library) {
			libraries = append(libraries, library)
		}
		if !slices.Contains(cases, c) {
			cases = append(cases, c)
		}
	}
	return libraries, cases
}

// find returns the name of the benchmark of a library's case. The floor may have other cases,
// such as ping/c64. Then find returns its fastest case with the same number of callers.
func (r *Results) find(group, library, c string) string {
	name := group + "/" + library + "/" + c
	if _, ok := r.samples[name]; ok || library != "floor" {
		return name
	}
	_, callers, ok := strings.Cut(c, "/")
	if !ok {
		return name
	}
	fastest := math.Inf(1)
	for _, other := range r.names {
		ns, ok := r.Median(other, "ns/op")
		if ok && ns < fastest && strings.HasPrefix(other, group+"/floor/") && strings.HasSuffix(other, "/"+callers) {
			name, fastest = other, ns
		}
	}
	return name
}

// time returns the nanoseconds of a call. If a call allocates or uses the server, time also
// returns the allocations and the server's processor time.
func (r *Results) time(name string) string {
	ns, ok := r.Median(name, "ns/op")
	if !ok {
		return ""
	}
	var others []string
	if allocs, _ := r.Median(name, "allocs/op"); allocs > 0 {
		others = append(others, fmt.Sprintf("%.0f allocs", allocs))
	}
	if server, ok := r.Median(name, "server-µs/op"); ok {
		others = append(others, fmt.Sprintf("%.1f server-µs", server))
	}
	if len(others) == 0 {
		return fmt.Sprintf("%.0f", ns)
	}
	return fmt.Sprintf("%.0f (%s)", ns, strings.Join(others, ", "))
}

func (r *Results) ratio(name, other string) string {
	a, ok1 := r.Median(name, "ns/op")
	b, ok2 := r.Median(other, "ns/op")
	if !ok1 || !ok2 || b == 0 {
		return ""
	}
	if a/b < 0.1 {
		return fmt.Sprintf("%.3f", a/b)
	}
	return fmt.Sprintf("%.2f", a/b)
}

func (r *Results) list(b *strings.Builder) {
	hasHeader := false
	for _, name := range r.names {
		var units []string
		for unit := range r.samples[name] {
			if !strings.HasSuffix(unit, "/op") {
				units = append(units, unit)
			}
		}
		slices.Sort(units)
		for _, unit := range units {
			if !hasHeader {
				begin(b, []string{"measured", "median", "unit"}, []string{"---", "---:", "---"})
				hasHeader = true
			}
			m, _ := r.Median(name, unit)
			row(b, []string{name, significant(m), unit})
		}
	}
}

// significant formats a number below 10 with two decimals, and a larger one with one.
func significant(f float64) string {
	if math.Abs(f) < 10 {
		return fmt.Sprintf("%.2f", f)
	}
	return fmt.Sprintf("%.1f", f)
}

// begin begins a table. An empty line separates it from the table before.
func begin(b *strings.Builder, header, rule []string) {
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	row(b, header)
	row(b, rule)
}

func row(b *strings.Builder, cells []string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
