package chart

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Write draws the charts for which there are rows into a directory, and returns their paths.
// It creates the directory if necessary. The charts are:
//
//   - fidelity-uniform.svg: every client and provider under "5/s + 60/20s", with requests
//     that arrive 5 to 50 ms late
//   - fidelity-delays.svg: the effect of longer delays on a few clients, under 5/s and a
//     rolling window
//   - fidelity-restart.svg: the effect of a restart during a run
//
// If several rows have the same client, provider, delay and policy, rows in virtual time take
// precedence, and among these the worst row. Write ignores rows of other policies and delays.
// It returns an error if no chart has a row.
func Write(dir string, rows []Row) ([]string, error) {
	charts := []struct{ file, svg string }{
		{"fidelity-uniform.svg", uniform(rows)},
		{"fidelity-delays.svg", longerDelays(rows)},
		{"fidelity-restart.svg", restart(rows)},
	}
	var paths []string
	for _, c := range charts {
		if c.svg == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return paths, err
		}
		path := filepath.Join(dir, c.file)
		if err := os.WriteFile(path, []byte(c.svg), 0o644); err != nil {
			return paths, err
		}
		paths = append(paths, path)
	}
	if paths == nil {
		return nil, errors.New("chart: no row belongs to any of the charts")
	}
	return paths, nil
}

const twoTiers = "5/s + 60/20s"

func uniform(rows []Row) string {
	t := newTable(clients, providers, rows, func(r Row) (string, bool) {
		return r.Provider, r.Policy == twoTiers && r.Delay == "uniform" && !isOneOf(restarts, r.Client)
	})
	t.title = "Which clients keep the limit, and how much of it do they use?"
	t.about = "5/s and 60 per 20 s, every request arrives 5 to 50 ms late; " + t.about
	return t.grid()
}

func longerDelays(rows []Row) string {
	t := newTable(selected, delays, rows, func(r Row) (string, bool) {
		return r.Delay, r.Policy == "5/s" && r.Provider == "rolling" && isOneOf(selected, r.Client)
	})
	t.title = "What do longer delays cost?"
	t.about = "5/s in a rolling window; " + t.about
	return t.panels()
}

func restart(rows []Row) string {
	t := newTable(restarts, providers, rows, func(r Row) (string, bool) {
		return r.Provider, r.Policy == twoTiers && r.Delay == "uniform" && isOneOf(restarts, r.Client)
	})
	t.title = "What does a restart during a run cost?"
	t.about = "5/s and 60 per 20 s, every request arrives 5 to 50 ms late; " + t.about
	return t.grid()
}

// A table has results by client and, depending on the chart, by provider or delay.
type table struct {
	title, about  string
	rows, columns []name
	results       map[cell]Row
}

type cell struct{ row, column string }

// newTable returns a table of the rows for which column returns true, each in the column
// with the returned key.
func newTable(clients, columns []name, rows []Row, column func(Row) (string, bool)) *table {
	t := &table{results: make(map[cell]Row)}
	for _, r := range rows {
		key, ok := column(r)
		if !ok {
			continue
		}
		at := cell{r.Client, key}
		if old, ok := t.results[at]; !ok || worse(r, old) {
			t.results[at] = r
		}
	}
	var rowKeys, columnKeys []string
	var included []Row
	for at, r := range t.results {
		rowKeys, columnKeys, included = append(rowKeys, at.row), append(columnKeys, at.column), append(included, r)
	}
	t.rows, t.columns, t.about = knownFirst(clients, rowKeys), knownFirst(columns, columnKeys), conditions(included)
	return t
}

// worse reports whether r takes precedence over other.
func worse(r, other Row) bool {
	if r.Clock != other.Clock {
		return r.Clock == "virtual"
	}
	return cmp.Or(cmp.Compare(refused(r), refused(other)), cmp.Compare(other.Utilization, r.Utilization)) > 0
}

// conditions describes how long the runs took, and in which time.
func conditions(rows []Row) string {
	if len(rows) == 0 {
		return ""
	}
	var clocks []string
	var lengths []float64
	for _, r := range rows {
		clocks, lengths = append(clocks, r.Clock), append(lengths, r.Seconds)
	}
	slices.Sort(clocks)
	length := fmt.Sprintf("%.0f", slices.Min(lengths))
	if longest := fmt.Sprintf("%.0f", slices.Max(lengths)); longest != length {
		length += " to " + longest
	}
	return fmt.Sprintf("%s s of %s time each", length, strings.Join(slices.Compact(clocks), " or "))
}

// description returns the table in words.
func (t *table) description() string {
	var b strings.Builder
	b.WriteString(t.about + ".")
	for _, row := range t.rows {
		separator := " " + row.String() + ": "
		for _, column := range t.columns {
			if r, ok := t.results[cell{row.key, column.key}]; ok {
				fmt.Fprintf(&b, "%s%v %d of %d refused, %s used", separator, column, r.Refused, r.Sent, used(r))
				separator = "; "
			}
		}
		b.WriteString(".")
	}
	return b.String()
}

func refused(r Row) float64 { return float64(r.Refused) / float64(max(1, r.Sent)) }

// used rounds down: only a full utilization prints as 100 %.
func used(r Row) string { return fmt.Sprintf("%.0f %%", math.Floor(100*r.Utilization+1e-6)) }

// percent adds decimals to a small share, which would otherwise print as 0 %.
func percent(share float64) string {
	if share > 0 && share < 0.1 {
		return fmt.Sprintf("%.2g %%", 100*share)
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}
