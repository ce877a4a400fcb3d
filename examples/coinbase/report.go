package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A report is the result of a batch. With -json it is written as a JSON object.
type report struct {
	result
	Seconds     float64 `json:"seconds"`
	PerSecond   float64 `json:"per_second"`
	WorstSecond int64   `json:"worst_second"` // the most requests within any second, measured by the provider
	// Utilization is the part of what a perfect client could have sent, from 0 to 1.
	Utilization float64 `json:"utilization"`
	// PerProcess are the requests that each process of a fleet has sent.
	PerProcess []int64 `json:"per_process,omitempty"`
}

// finish writes the report of a batch that began at start and has just ended with err.
func finish(ctx context.Context, c config, api target, r report, start time.Time, err error, stdout io.Writer) error {
	d := c.duration
	if err != nil || ctx.Err() != nil { // it ended early
		d = min(d, max(time.Since(start), time.Microsecond))
	}
	most := possible(c.policy, d)
	r.Seconds, r.PerSecond = round(d.Seconds(), 3), round(float64(r.Accepted)/d.Seconds(), 3)
	r.Utilization, r.WorstSecond = round(float64(r.Accepted)/float64(most), 4), api.summary().WorstSecond
	if err == nil && ctx.Err() == nil && r.Accepted == 0 {
		err = errors.New("no request was accepted")
	}
	return errors.Join(err, r.write(stdout, most, c.json))
}

// round rounds x down to a number of decimal digits.
func round(x float64, digits int) float64 {
	unit := math.Pow10(digits)
	return math.Floor(x*unit) / unit
}

// write writes the report as text, with a last line of JSON if asJSON.
func (r *report) write(w io.Writer, most int64, asJSON bool) error {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-13s"+format+"\n", append([]any{name}, args...)...)
	}
	row("sent", "%d in %v s", r.Sent, r.Seconds)
	row("accepted", "%d", r.Accepted)
	row("refused", "%d", r.Rejected)
	if n := r.Sent - r.Accepted - r.Rejected; n > 0 {
		row("failed", "%d, last error: %s", n, r.Failure)
	}
	row("rate", "%.2f/s", r.PerSecond)
	row("worst second", "%d, measured by the provider", r.WorstSecond)
	row("utilization", "%.1f %% of %d possible requests", 100*r.Utilization, most)
	row("waited", "%.2f s on average, %.2f s at most", r.Waited.Seconds()/float64(max(1, r.Sent)), r.Longest.Seconds())
	if r.PerProcess != nil {
		row("per process", "%s", strings.Trim(fmt.Sprint(r.PerProcess), "[]"))
	}
	if asJSON {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s\n", line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// possible returns the number of requests that a perfect client gets from the policy within d. It
// sends each request at the first instant at which it is accepted, and its requests take no time.
func possible(p throttle.Policy, d time.Duration) (n int64) {
	perfect, _ := throttletest.NewCounter(p.Tiers...) // the tiers of a policy are valid
	for at := int64(0); at < d.Microseconds(); {
		if next, _ := perfect.Earliest(at, nil); next > at {
			at = next
			continue
		}
		perfect.Arrive(at, nil)
		n++
	}
	return n
}
