package main

import (
	"errors"
	"slices"
	"time"

	"github.com/apithrottle/throttle/throttletest"
)

// A Row is the result of one run: one client against one provider.
type Row struct {
	Client   string `json:"client"`
	Provider string `json:"provider"`
	Delay    string `json:"delay"`
	Policy   string `json:"policy"`
	// Guard is the client's guard. If empty, the client has none.
	Guard string `json:"guard"`

	Sent     int64 `json:"sent"`
	Accepted int64 `json:"accepted"`
	Refused  int64 `json:"refused"`

	// Utilization is the share of the upper bound that was accepted. It exceeds 1 if the
	// client's requests happened to fit better.
	Utilization float64 `json:"utilization"`

	// Fairness is the smallest number of accepted requests of a worker, or in a fleet of a
	// process, divided by the largest. It is between 0 and 1.
	Fairness float64 `json:"fairness"`

	// WorstWaitMS is the longest wait for admission, in milliseconds.
	WorstWaitMS            float64 `json:"worst_wait_ms"`
	RedisCallsPerAdmission float64 `json:"redis_calls_per_admission,omitempty"`
	Seconds                float64 `json:"seconds"`
}

// row returns the result of a run.
func (r Run) row(arrivals []throttletest.Arrival, start time.Time, tallies []Tally) (Row, error) {
	c, err := r.client()
	if err != nil {
		return Row{}, err
	}
	end := start.Add(r.Length)
	row := Row{
		Client: r.Client, Provider: r.Provider, Delay: r.Delay, Policy: r.Policy,
		Guard: c.guardText(r), Seconds: r.Length.Seconds(),
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
