package gauntlet

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/apithrottle/throttle/bench/fidelity/chart"
)

// writeTables writes a table for each policy and provider: what each client was refused,
// and the share of the possible that it was accepted.
func writeTables(w io.Writer, rows []chart.Row) error {
	type course struct{ clock, policy, provider string }
	var courses []course
	tables := make(map[course][]chart.Row)
	for _, r := range rows {
		c := course{r.Clock, r.Policy, r.Provider}
		if tables[c] == nil {
			courses = append(courses, c)
		}
		tables[c] = append(tables[c], r)
	}
	fmt.Fprintln(w, "refused / used of what is possible")
	for _, c := range courses {
		longest := slices.MaxFunc(tables[c], func(a, b chart.Row) int { return int(a.Seconds - b.Seconds) })
		fmt.Fprintf(w, "\n%s, %s, %.0f s of %s time\n", c.policy, c.provider, longest.Seconds, c.clock)
		if err := writeTable(w, tables[c], longest.Seconds); err != nil {
			return err
		}
	}
	return nil
}

// writeTable has a line for each client, with its own seconds where they are fewer.
func writeTable(w io.Writer, rows []chart.Row, seconds float64) error {
	var columns, lines []string
	cells := make(map[[2]string]string)
	for _, r := range rows {
		client := r.Client
		if r.Seconds < seconds {
			client = fmt.Sprintf("%s (%.0f s)", client, r.Seconds)
		}
		if !slices.Contains(columns, r.Delay) {
			columns = append(columns, r.Delay)
		}
		if !slices.Contains(lines, client) {
			lines = append(lines, client)
		}
		// Rounded down, so that only what was full reads as full.
		cells[[2]string{client, r.Delay}] = fmt.Sprintf("%d / %.1f %%", r.Refused, math.Floor(1000*r.Utilisation+1e-6)/10)
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	for _, name := range columns {
		fmt.Fprint(t, "\t", name)
	}
	fmt.Fprintln(t, "\t")
	for _, client := range lines {
		fmt.Fprintf(t, "%-28s", client)
		for _, delay := range columns {
			fmt.Fprint(t, "\t", cells[[2]string{client, delay}])
		}
		fmt.Fprintln(t, "\t")
	}
	return t.Flush()
}
