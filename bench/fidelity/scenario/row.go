package scenario

import (
	"errors"
	"slices"
	"time"

	"github.com/apithrottle/throttle/bench/fidelity/chart"
	"github.com/apithrottle/throttle/throttletest"
)

// row returns the result of a run.
func (r Run) row(clock string, arrivals []throttletest.Arrival, start time.Time, tallies []Tally) (chart.Row, error) {
	c, err := r.client()
	if err != nil {
		return chart.Row{}, err
	}
	end := start.Add(r.Length)
	row := chart.Row{
		Client: r.Client, Provider: r.Provider, Delay: r.Delay, Policy: r.Policy,
		Clock: clock, Guard: c.guardText(r), Seconds: r.Length.Seconds(),
	}
	for _, a := range arrivals {
		switch {
		case !a.At.Before(end):
		case a.Accepted:
			row.Accepted++
		default:
			row.Refused++
		}
	}
	row.Sent = row.Accepted + row.Refused
	from, to := r.measured(start)
	upperBound, err := r.UpperBound(start, from, to)
	row.Utilization = ratio(r.accepted(arrivals, from, to), upperBound)

	var parts []int64
	calls := int64(0)
	for _, t := range tallies {
		if t.Error != "" {
			err = errors.Join(err, errors.New(r.String()+": "+t.Error))
		}
		parts = append(parts, t.accepted())
		calls += t.Calls
		row.WorstWaitMS = max(row.WorstWaitMS, float64(t.Wait)/float64(time.Millisecond))
	}
	if len(parts) == 1 {
		parts = tallies[0].Accepted
	}
	row.Fairness = ratio(slices.Min(parts), slices.Max(parts))
	row.RedisCallsPerAdmission = ratio(calls, row.Sent)
	return row, err
}

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
