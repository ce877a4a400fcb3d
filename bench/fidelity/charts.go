package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/apithrottle/throttle/bench/rig"
)

// A chart shows the results of some runs by client and provider, or by client and delay.
type chart struct {
	file, title, about string
	columns            []rig.Name
	total              bool
	// column returns the key of a row's column. It returns false if the row is not in the chart.
	column func(Row) (string, bool)
}

var charts = []chart{
	{"fidelity-uniform.svg", "Which clients keep the limit, and how much of it do they use?", late, providers, true, func(r Row) (string, bool) {
		return r.Provider, r.Policy == twoTiers && r.Delay == "uniform" && !restarts(r)
	}},
	{"fidelity-delays.svg", "What do longer delays cost?", "5/s in a rolling window; ", delays, false, func(r Row) (string, bool) {
		return r.Delay, r.Policy == "5/s" && r.Provider == "rolling" && slices.Contains(selected, r.Client)
	}},
	{"fidelity-restart.svg", "What does a restart during a run cost?", late, providers, true, func(r Row) (string, bool) {
		return r.Provider, r.Policy == twoTiers && r.Delay == "uniform" && restarts(r)
	}},
}

const late = "5/s and 60 per 20 s, every request arrives 5 to 50 ms late; "

// selected are the clients in the chart of delays.
var selected = []string{"throttle", "throttle-auto", "throttle-redis", "xtime-burst", "failsafe-smooth", "redis_rate"}

func restarts(r Row) bool {
	c, _ := Run{Client: r.Client}.client()
	return c.restarts
}

// writeCharts draws the charts for which there are rows into a directory, and returns their paths.
// It creates the directory if necessary. It returns an error if no chart has a row.
func writeCharts(dir string, rows []Row) (paths []string, err error) {
	for _, c := range charts {
		g, _ := c.grid(rows)
		if len(g.Rows) == 0 {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return paths, err
		}
		path := filepath.Join(dir, c.file)
		if err := os.WriteFile(path, []byte(g.SVG()), 0o644); err != nil {
			return paths, err
		}
		paths = append(paths, path)
	}
	if paths == nil {
		return nil, errors.New("no row belongs to any of the charts")
	}
	return paths, nil
}

// writeTables writes a table for each policy and provider. The cells have each client's
// refused and sent requests, and its utilization.
func writeTables(w io.Writer, rows []Row) {
	type heading struct{ policy, provider string }
	var written []heading
	fmt.Fprintln(w, "refused of sent / used of the upper bound")
	for _, r := range rows {
		h := heading{r.Policy, r.Provider}
		if slices.Contains(written, h) {
			continue
		}
		written = append(written, h)
		g, results := chart{columns: delays, column: func(r Row) (string, bool) { return r.Delay, heading{r.Policy, r.Provider} == h }}.grid(rows)
		for i, n := range g.Rows {
			g.Rows[i] = rig.Name{Key: n.Key}
		}
		for at, r := range results { // rounded down: only a full utilization prints as 100 %
			g.Cells[at] = rig.Cell{Left: fmt.Sprintf("%d of %d", r.Refused, r.Sent), Right: fmt.Sprintf("%.1f %%", math.Floor(1000*r.Utilization+1e-6)/10)}
		}
		fmt.Fprintf(w, "\n%s, %s, %s\n\n", h.policy, h.provider, g.About)
		g.Markdown(w)
	}
}

// grid returns the chart, and its rows by their cells.
func (c chart) grid(rows []Row) (g *rig.Grid, results map[[2]string]Row) {
	results = make(map[[2]string]Row)
	for _, r := range rows {
		if column, ok := c.column(r); ok {
			results[[2]string{r.Client, column}] = r
		}
	}
	var rowKeys, columnKeys []string
	var included []Row
	for at, r := range results {
		rowKeys, columnKeys, included = append(rowKeys, at[0]), append(columnKeys, at[1]), append(included, r)
	}
	var names []rig.Name
	for _, client := range clients {
		names = append(names, client.Name)
	}
	g = &rig.Grid{
		Title: c.title, About: c.about + conditions(included), Corner: "client", Heads: [2]string{"429s", "used"},
		Legend: []rig.Swatch{{Class: "none", Meaning: "none refused"}, {Class: "few", Meaning: "up to 5 % refused"}, {Class: "some", Meaning: "up to 25 %"}, {Class: "many", Meaning: "more"}},
		Note:   "Filled part: used. 429s: of 1,000 requests.",
		Rows:   knownFirst(names, rowKeys), Columns: knownFirst(c.columns, columnKeys), Cells: make(map[[2]string]rig.Cell),
	}
	for at, r := range results {
		g.Cells[at] = r.cell()
	}
	if c.total && len(g.Columns) > 1 {
		addTotals(g, results)
	}
	return g, results
}

// addTotals adds a column with the sum of the requests and the average of the utilization, for
// clients that have results in all columns: totals of fewer columns don't compare.
func addTotals(g *rig.Grid, results map[[2]string]Row) {
	const all = "all"
	for _, row := range g.Rows {
		var sum Row
		complete := true
		for _, column := range g.Columns {
			r, ok := results[[2]string{row.Key, column.Key}]
			complete = complete && ok
			sum.Sent += r.Sent
			sum.Refused += r.Refused
			sum.Utilization += r.Utilization / float64(len(g.Columns))
		}
		if complete {
			g.Cells[[2]string{row.Key, all}] = sum.cell()
		}
	}
	g.Columns, g.Total = append(g.Columns, name(all, all, "providers")), true
}

func (r Row) cell() rig.Cell {
	return rig.Cell{
		Left: perThousand(r), Right: used(r), Class: color(r), Fill: r.Utilization,
		Words: fmt.Sprintf("%d of %d refused, %s used", r.Refused, r.Sent, used(r)),
	}
}

// knownFirst returns the names of the keys: first the known names in their order, then the other
// keys.
func knownFirst(known []rig.Name, keys []string) (names []rig.Name) {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	for _, n := range known {
		if i := slices.Index(keys, n.Key); i >= 0 {
			names, keys = append(names, n), slices.Delete(keys, i, i+1)
		}
	}
	return append(names, rig.Names(keys...)...)
}

// conditions describes how long the runs took.
func conditions(rows []Row) string {
	if len(rows) == 0 {
		return ""
	}
	var lengths []float64
	for _, r := range rows {
		lengths = append(lengths, r.Seconds)
	}
	length := fmt.Sprintf("%.0f", slices.Min(lengths))
	if longest := fmt.Sprintf("%.0f", slices.Max(lengths)); longest != length {
		length += " to " + longest
	}
	return length + " s of virtual time each"
}

func refused(r Row) float64 { return float64(r.Refused) / float64(max(1, r.Sent)) }

// used rounds down: only a full utilization prints as 100 %.
func used(r Row) string { return fmt.Sprintf("%.0f %%", math.Floor(100*r.Utilization+1e-6)) }

func color(r Row) string {
	switch share := refused(r); {
	case share == 0:
		return "none"
	case share <= 0.05:
		return "few"
	case share <= 0.25:
		return "some"
	}
	return "many"
}

// perThousand returns the refusals of 1,000 requests, rounded up: only 0 refusals print as 0.
func perThousand(r Row) string { return fmt.Sprint(int64(math.Ceil(1000*refused(r) - 1e-9))) }
