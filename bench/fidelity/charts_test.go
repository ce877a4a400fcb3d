package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/apithrottle/throttle/bench/rig"
)

// drawings have the charts with a row for each of their cells.
var drawings = []struct {
	chart
	rows []Row
}{
	{charts[0], every(keys(func(c client) bool { return !c.restarts && c.Key != "throttle-paced" }), twoTiers, measured, []rig.Name{{Key: "uniform"}})},
	{charts[1], every(keys(func(c client) bool { return slices.Contains(selected, c.Key) }), "5/s", []rig.Name{{Key: "rolling"}}, delays)},
	{charts[2], every(keys(func(c client) bool { return c.restarts }), twoTiers, providers[:2], []rig.Name{{Key: "uniform"}})},
}

// measured are the providers but for one that only the hourly policy has.
var measured = slices.DeleteFunc(slices.Clone(providers), func(n rig.Name) bool { return n.Key == "bucket-100" })

// keys returns the names of the clients in a chart.
func keys(in func(client) bool) (names []rig.Name) {
	for _, c := range clients {
		if in(c) {
			names = append(names, c.Name)
		}
	}
	return names
}

func draw(c chart, rows []Row) string {
	g, _ := c.grid(rows)
	return g.SVG()
}

// drawn returns the numbers of a row that a chart must contain.
func drawn(r Row) []string { return []string{perThousand(r), used(r)} }

// every returns a row for each client, provider and delay. All rows have different numbers.
func every(clients []rig.Name, policy string, providers, delays []rig.Name) (rows []Row) {
	for _, c := range clients {
		for _, p := range providers {
			for _, d := range delays {
				n := int64(len(rows))
				rows = append(rows, Row{
					Client: c.Key, Provider: p.Key, Delay: d.Key, Policy: policy,
					Sent: 2500 + n, Accepted: 2500 - 20*n, Refused: 21 * n,
					Utilization: 1 - float64(n)/101, Seconds: 60,
				})
			}
		}
	}
	return rows
}

func TestWriteCharts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "directory")
	var rows []Row
	var want []string
	for _, c := range drawings {
		rows, want = append(rows, c.rows...), append(want, filepath.Join(dir, c.file))
	}
	if paths, err := writeCharts(dir, rows); err != nil || !slices.Equal(paths, want) {
		t.Fatalf("all rows: wrote %q, %v, want %q", paths, err, want)
	}
	for i, path := range want {
		got, err := os.ReadFile(path)
		if err != nil || string(got) != draw(charts[i], drawings[i].rows) {
			t.Errorf("%s differs from the chart of its own rows: %v", path, err)
		}
	}
	if paths, err := writeCharts(filepath.Join(want[0], "below"), rows); err == nil {
		t.Errorf("a directory below a file: wrote %q, want an error", paths)
	}
}

func TestWriteChartsWithoutRows(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "charts")
	other := Row{Client: "throttle", Provider: "fixed", Delay: "none", Policy: "60/m"}
	for _, rows := range [][]Row{nil, {other}} {
		if paths, err := writeCharts(dir, rows); err == nil {
			t.Errorf("%v: wrote %q, want an error", rows, paths)
		}
	}
	for _, c := range drawings {
		paths, err := writeCharts(dir, append(c.rows[:1:1], other))
		if want := []string{filepath.Join(dir, c.file)}; err != nil || !slices.Equal(paths, want) {
			t.Errorf("one row: wrote %q, %v, want %q", paths, err, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range drawings {
		d := parse(t, draw(c.chart, c.rows))
		for _, r := range c.rows {
			for _, s := range drawn(r) {
				if !slices.ContainsFunc(d.Texts, func(t text) bool { return t.S == s }) {
					t.Errorf("%s does not contain the text %q of %+v", c.file, s, r)
				}
			}
			if s := fmt.Sprintf("%d of %d refused, %s used", r.Refused, r.Sent, used(r)); !strings.Contains(d.Desc, s) {
				t.Errorf("the description of %s does not contain %q", c.file, s)
			}
		}
	}
}

// TestCells checks that the numbers are in the cells of their rows and columns.
func TestCells(t *testing.T) {
	d := parse(t, draw(charts[0], drawings[0].rows))
	rowNames := keys(func(c client) bool { return !c.restarts && c.Key != "throttle-paced" })
	heads := d.of("column middle")
	heads = slices.DeleteFunc(heads, func(t text) bool { return t.Y < heads[1].Y }) // keeps the second line
	sides := d.of("name")
	if len(heads) != len(measured)+1 || len(sides) != len(rowNames) {
		t.Fatalf("%d columns and %d rows, want %d and %d", len(heads), len(sides), len(measured)+1, len(rowNames))
	}
	for i, r := range drawings[0].rows {
		head, side := heads[i%len(measured)], sides[i/len(measured)]
		for _, s := range []string{perThousand(r), used(r)} {
			in := func(t text) bool {
				return t.S == s && math.Abs(t.X-head.X) < 40 && math.Abs(t.Y-side.Y) < 10
			}
			if !slices.ContainsFunc(d.Texts, in) {
				t.Errorf("%s, %s: %q is not in its cell", r.Client, r.Provider, s)
			}
		}
	}
}

// TestLayout checks with long names and numbers that all elements are inside the picture and
// that texts don't overlap.
func TestLayout(t *testing.T) {
	for _, c := range drawings {
		long := slices.Clone(c.rows)
		for i := range long {
			long[i].Sent, long[i].Refused, long[i].Utilization = 99_999, 99_999-int64(i), 1.5
			if c.file == "fidelity-uniform.svg" && i%2 == 0 {
				long[i].Client = strings.Repeat(`<"&é`, 50+i/14)
			}
			if c.file == "fidelity-restart.svg" && i%2 == 0 {
				long[i].Provider = strings.Repeat("a", 500)
			}
		}
		for _, rows := range [][]Row{c.rows, c.rows[:1], long} {
			parse(t, draw(c.chart, rows)).check(t, c.file)
		}
	}
}

func TestUsed(t *testing.T) {
	for u, want := range map[float64]string{0.29: "29 %", 0.9999: "99 %", 1: "100 %"} {
		if got := used(Row{Utilization: u}); got != want {
			t.Errorf("used of %v = %q, want %q", u, got, want)
		}
	}
}

func TestColor(t *testing.T) {
	for refusals, want := range map[int64]string{0: "none", 1: "few", 50: "few", 51: "some", 250: "some", 251: "many"} {
		if got := color(Row{Sent: 1000, Refused: refusals}); got != want {
			t.Errorf("%d of 1000 refused: color = %q, want %q", refusals, got, want)
		}
	}
}

type drawing struct {
	ViewBox string `xml:"viewBox,attr"`
	Title   string `xml:"title"`
	Desc    string `xml:"desc"`
	Texts   []text `xml:"text"`
	Rects   []box  `xml:"rect"`
}

type text struct {
	Class string  `xml:"class,attr"`
	X     float64 `xml:"x,attr"`
	Y     float64 `xml:"y,attr"`
	S     string  `xml:",chardata"`
}

type box struct {
	X float64 `xml:"x,attr"`
	Y float64 `xml:"y,attr"`
	W float64 `xml:"width,attr"`
	H float64 `xml:"height,attr"`
}

func parse(t *testing.T, svg string) (d drawing) {
	t.Helper()
	if err := xml.Unmarshal([]byte(svg), &d); err != nil {
		t.Fatalf("%v in %s", err, svg)
	}
	if d.Title == "" || d.Desc == "" || len(d.Texts) == 0 {
		t.Fatalf("no title, description or text in %s", svg)
	}
	return d
}

func (d drawing) of(class string) (all []text) {
	for _, t := range d.Texts {
		if t.Class == class {
			all = append(all, t)
		}
	}
	return all
}

// box estimates the bounds of a text, in a font of usual width.
func (t text) box() box {
	size := 12.0
	for class, other := range map[string]float64{"title": 19, "name": 13, "big": 15} {
		if strings.Contains(t.Class, class) {
			size = other
		}
	}
	b := box{t.X, t.Y - 0.75*size, 0.55 * size * float64(utf8.RuneCountInString(t.S)), size}
	switch {
	case strings.Contains(t.Class, "end"):
		b.X -= b.W
	case strings.Contains(t.Class, "middle"):
		b.X -= b.W / 2
	}
	return b
}

func (d drawing) check(t *testing.T, file string) {
	t.Helper()
	var sheet box
	if _, err := fmt.Sscan(d.ViewBox, &sheet.X, &sheet.Y, &sheet.W, &sheet.H); err != nil {
		t.Fatal(err)
	}
	inside := func(b box) bool {
		return b.X >= 0 && b.Y >= 0 && b.W >= 0 && b.H >= 0 && b.X+b.W <= sheet.W && b.Y+b.H <= sheet.H
	}
	for _, r := range d.Rects {
		if !inside(r) {
			t.Errorf("%s: %+v is not inside %+v", file, r, sheet)
		}
	}
	for i, a := range d.Texts {
		p := a.box()
		if !inside(p) {
			t.Errorf("%s: %+v is not inside %+v", file, a, sheet)
		}
		for _, b := range d.Texts[:i] {
			q := b.box()
			if p.X < q.X+q.W && q.X < p.X+p.W && p.Y < q.Y+q.H && q.Y < p.Y+p.H {
				t.Errorf("%s: %+v overlaps %+v", file, a, b)
			}
		}
	}
}
