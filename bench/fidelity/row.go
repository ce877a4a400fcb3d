package main

import (
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

	Seconds float64 `json:"seconds"`
}

// row returns the result of a run.
func (r Run) row(arrivals []throttletest.Arrival, start time.Time) (Row, error) {
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
	if upperBound > 0 {
		row.Utilization = float64(r.accepted(arrivals, from, to)) / float64(upperBound)
	}
	return row, err
}
