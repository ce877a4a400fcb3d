package scenario

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/apithrottle/throttle/bench/fidelity/chart"
)

// writeTables writes a table for each policy and provider. The cells have each client's
// refused requests and utilization.
func writeTables(w io.Writer, rows []chart.Row) error {
	type heading struct{ clock, policy, provider string }
	var headings []heading
	tables := make(map[heading][]chart.Row)
	for _, r := range rows {
		h := heading{r.Clock, r.Policy, r.Provider}
		if tables[h] == nil {
			headings = append(headings, h)
		}
		tables[h] = append(tables[h], r)
	}
	fmt.Fprintln(w, "refused / used, of the upper bound")
	for _, h := range headings {
		longest := slices.MaxFunc(tables[h], func(a, b chart.Row) int { return int(a.Seconds - b.Seconds) })
		fmt.Fprintf(w, "\n%s, %s, %.0f s of %s time\n", h.policy, h.provider, longest.Seconds, h.clock)
		if err := writeTable(w, tables[h], longest.Seconds); err != nil {
			return err
		}
	}
	return nil
}

// writeTable writes a line for each client. A client that ran for fewer seconds than the
// table's heading has its own in parentheses.
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
		// Rounded down: only a full utilization prints as 100 %.
		cells[[2]string{client, r.Delay}] = fmt.Sprintf("%d / %.1f %%", r.Refused, math.Floor(1000*r.Utilization+1e-6)/10)
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
