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

// Write draws the charts that the rows suffice for into a directory, which it makes
// if need be, and returns their paths:
//
//   - fidelity-uniform.svg has every client and provider under "5/s + 60/20s", with
//     requests that arrive 5 to 50 ms late;
//   - fidelity-delays.svg has what longer delays do to a few clients, under 5/s and a
//     rolling window;
//   - fidelity-restart.svg has what becomes of a limiter made anew in mid-run.
//
// Where several rows are of one client, provider, delay and policy, those in virtual
// time count, and of them the worst one. Rows of other policies and delays are left out; it is an error if that
// leaves nothing.
func Write(dir string, rows []Row) ([]string, error) {
	charts := []struct{ file, svg string }{
		{"fidelity-uniform.svg", uniform(rows)},
		{"fidelity-delays.svg", slower(rows)},
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
		return r.Provider, r.Policy == twoTiers && r.Delay == "uniform" && !isOneOf(starts, r.Client)
	})
	t.title = "Who keeps to the limit, and who uses all of it?"
	t.about = "5/s and 60 per 20 s, every request 5 to 50 ms on its way; " + t.about
	return t.grid()
}

func slower(rows []Row) string {
	t := newTable(few, delays, rows, func(r Row) (string, bool) {
		return r.Delay, r.Policy == "5/s" && r.Provider == "rolling" && isOneOf(few, r.Client)
	})
	t.title = "What do longer delays cost?"
	t.about = "5/s, which the provider counts in a rolling window; " + t.about
	return t.panels()
}

func restart(rows []Row) string {
	t := newTable(starts, providers, rows, func(r Row) (string, bool) {
		return r.Provider, r.Policy == twoTiers && r.Delay == "uniform" && isOneOf(starts, r.Client)
	})
	t.title = "What does a restart in mid-run cost?"
	t.about = "5/s and 60 per 20 s, every request 5 to 50 ms on its way; " + t.about
	return t.grid()
}

// A table is results by client and, as the chart may be, by provider or delay.
type table struct {
	title, about  string
	rows, columns []name
	results       map[cell]Row
}

type cell struct{ row, column string }

// newTable takes the rows that column finds one for.
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
	var left, top []string
	var taken []Row
	for at, r := range t.results {
		left, top, taken = append(left, at.row), append(top, at.column), append(taken, r)
	}
	t.rows, t.columns, t.about = present(clients, left), present(columns, top), conditions(taken)
	return t
}

func worse(r, other Row) bool {
	if r.Clock != other.Clock {
		return r.Clock == "virtual"
	}
	return cmp.Or(cmp.Compare(refused(r), refused(other)), cmp.Compare(other.Utilisation, r.Utilisation)) > 0
}

// conditions says how long the runs took, and by which clock.
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

// description has the same in words.
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

// used is rounded down, so that only what was full reads as full.
func used(r Row) string { return fmt.Sprintf("%.0f %%", math.Floor(100*r.Utilisation+1e-6)) }

// percent has a decimal more where a few would else read as none.
func percent(share float64) string {
	if share > 0 && share < 0.1 {
		return fmt.Sprintf("%.2g %%", 100*share)
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}
