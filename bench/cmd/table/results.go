package main

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

	"github.com/apithrottle/throttle/bench/rig"
)

// results has the samples of benchmarks, by name. parse may be called for several runs, and
// adds their samples. The zero value is empty and ready to use.
type results struct {
	names   []string                        // in the order of their first sample
	samples map[string]map[string][]float64 // by benchmark and unit
}

// processors matches the suffix that go test adds to a name if GOMAXPROCS isn't 1.
var processors = regexp.MustCompile(`-\d+$`)

// parse adds the output of "go test -bench" to r. It skips all lines that are not results. It
// returns an error for a result that it can't read, and for a run that failed.
func (r *results) parse(in io.Reader) error {
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
func (r *results) add(fields []string) error {
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

// median returns the median of a benchmark's samples in a unit. It returns false if there are
// no samples.
func (r *results) median(name, unit string) (float64, bool) {
	s := slices.Sorted(slices.Values(r.samples[name][unit]))
	if len(s) == 0 {
		return 0, false
	}
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2, true
}

// write writes the tables. The table of a group has the benchmarks named group/library/case, with a
// row for each case and a column for each library. More columns have the first library's time
// divided by the time of each other library. The last table has the samples in all units that
// benchmarks report themselves.
func (r *results) write(w io.Writer, groups ...string) error {
	if len(r.names) == 0 {
		return errors.New("the input has no results of benchmarks")
	}
	tables := []*rig.Grid{r.scaling()}
	for _, group := range groups {
		tables = append(tables, r.compare(group))
	}
	separator := ""
	for _, t := range append(tables, r.list()) {
		if len(t.Rows) > 0 {
			fmt.Fprint(w, separator)
			separator = "\n"
			t.Markdown(w)
		}
	}
	return nil
}

func (r *results) compare(group string) *rig.Grid {
	libraries, cases := r.axes(group)
	g := &rig.Grid{Corner: "ns per call", Rows: rig.Names(cases...), Columns: rig.Names(libraries...), Cells: make(map[[2]string]rig.Cell)}
	for i, library := range libraries {
		ratio := libraries[0] + "/" + library
		if i > 0 {
			g.Columns = append(g.Columns, rig.Name{Key: ratio})
		}
		for _, c := range cases {
			name := r.find(group, library, c)
			g.Cells[[2]string{c, library}] = rig.Cell{Left: r.time(name)}
			g.Cells[[2]string{c, ratio}] = rig.Cell{Left: r.ratio(r.find(group, libraries[0], c), name)}
		}
	}
	return g
}

// axes returns the libraries and cases of a group, in the order of their first samples.
func (r *results) axes(group string) (libraries, cases []string) {
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
func (r *results) find(group, library, c string) string {
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
		ns, ok := r.median(other, "ns/op")
		if ok && ns < fastest && strings.HasPrefix(other, group+"/floor/") && strings.HasSuffix(other, "/"+callers) {
			name, fastest = other, ns
		}
	}
	return name
}

// time returns the nanoseconds of a call. If a call allocates or uses the server, time also
// returns the allocations and the server's processor time.
func (r *results) time(name string) string {
	ns, ok := r.median(name, "ns/op")
	if !ok {
		return ""
	}
	var others []string
	if allocs, _ := r.median(name, "allocs/op"); allocs > 0 {
		others = append(others, fmt.Sprintf("%.0f allocs", allocs))
	}
	if server, ok := r.median(name, "server-µs/op"); ok {
		others = append(others, fmt.Sprintf("%.1f server-µs", server))
	}
	if len(others) == 0 {
		return fmt.Sprintf("%.0f", ns)
	}
	return fmt.Sprintf("%.0f (%s)", ns, strings.Join(others, ", "))
}

func (r *results) ratio(name, other string) string {
	a, ok1 := r.median(name, "ns/op")
	b, ok2 := r.median(other, "ns/op")
	if !ok1 || !ok2 || b == 0 {
		return ""
	}
	if a/b < 0.1 {
		return fmt.Sprintf("%.3f", a/b)
	}
	return fmt.Sprintf("%.2f", a/b)
}

func (r *results) list() *rig.Grid {
	g := &rig.Grid{Corner: "measured", Columns: rig.Names("median", "unit"), Cells: make(map[[2]string]rig.Cell)}
	for _, name := range r.names {
		var units []string
		for unit := range r.samples[name] {
			if !strings.HasSuffix(unit, "/op") && !strings.HasPrefix(name, scalingPrefix) {
				units = append(units, unit)
			}
		}
		slices.Sort(units)
		for _, unit := range units {
			key := name + " " + unit
			m, _ := r.median(name, unit)
			g.Rows = append(g.Rows, rig.Name{Key: key, Label: name})
			g.Cells[[2]string{key, "median"}], g.Cells[[2]string{key, "unit"}] = rig.Cell{Left: significant(m)}, rig.Cell{Left: unit}
		}
	}
	return g
}

// scalingPrefix begins the names of the benchmarks Scaling/mix/number of waiting callers, which report
// nanoseconds of each operation.
const scalingPrefix = "Scaling/"

// scaling returns how long an operation takes while others wait.
func (r *results) scaling() *rig.Grid {
	g := &rig.Grid{
		Title: "Time per event while others wait", About: "Time in proportion to the number of waiting callers would grow tenfold from column to column.",
		Note:   "µs. Filled part: the time on a logarithmic scale from 0.1 µs to 1 ms.",
		Corner: "µs per event", Cells: make(map[[2]string]rig.Cell),
	}
	var mixes, sizes []string
	for _, name := range r.names {
		rest, ok := strings.CutPrefix(name, scalingPrefix)
		mix, n, found := strings.Cut(rest, "/")
		if !ok || !found {
			continue
		}
		if !slices.Contains(mixes, mix) {
			mixes = append(mixes, mix)
		}
		if !slices.Contains(sizes, n) {
			sizes = append(sizes, n)
			g.Columns = append(g.Columns, rig.Name{Key: n, Note: "waiting"})
		}
		for _, operation := range []string{"join", "leave", "refuse", "freed"} {
			if ns, ok := r.median(name, operation+"-ns"); ok {
				g.Cells[[2]string{operation + ", " + mix, n}] = rig.Cell{Left: fmt.Sprintf("%.2f", ns/1000), Class: "none", Fill: (math.Log10(ns) - 2) / 4}
			}
		}
	}
	for _, operation := range []string{"join", "leave", "refuse", "freed"} {
		for _, mix := range mixes {
			g.Rows = append(g.Rows, rig.Name{Key: operation + ", " + mix})
		}
	}
	return g
}

// significant formats a number below 10 with two decimals, and a larger one with one.
func significant(f float64) string {
	if math.Abs(f) < 10 {
		return fmt.Sprintf("%.2f", f)
	}
	return fmt.Sprintf("%.1f", f)
}
