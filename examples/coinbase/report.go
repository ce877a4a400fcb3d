package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/throttletest"
)

// A tally counts while the batch runs. It is safe for concurrent use.
type tally struct {
	start time.Time

	mu       sync.Mutex // guards the fields below
	r        report
	sends    *throttletest.Counter // without tiers, as a record of send times
	ended    int64                 // requests with a result
	failures int                   // consecutive failures
	failure  error                 // the last failure

	requests int64         // of the batch; 0 if it sends for a duration
	oneLeft  chan struct{} // closed when at most one request of the batch was not sent
	once     sync.Once     // closes oneLeft
}

func newTally(start time.Time, requests int64) *tally {
	sends, _ := throttletest.NewCounter() // never fails without tiers
	t := &tally{start: start, sends: sends, requests: requests, oneLeft: make(chan struct{})}
	t.checkOneLeft()
	return t
}

// checkOneLeft closes oneLeft if it is time. A request that failed before it was sent counts too.
func (t *tally) checkOneLeft() {
	if max(t.r.Sent, t.ended) >= t.requests-1 {
		t.once.Do(func() { close(t.oneLeft) })
	}
}

// allJoined reports whether, with some requests in the queue, all but the last have joined it.
func (t *tally) allJoined(queued int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.r.Sent+int64(queued) >= t.requests-1
}

// addSent counts a request that is sent now.
func (t *tally) addSent() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r.Sent++
	t.sends.Arrive(time.Since(t.start).Microseconds(), nil)
	t.checkOneLeft()
}

// addResult counts the result of a request. After ten consecutive failures it returns an error, and
// the batch ends.
func (t *tally) addResult(status int, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended++
	t.checkOneLeft()
	switch {
	case err == nil && status < http.StatusBadRequest:
		t.r.Accepted++
	case err == nil && status == http.StatusTooManyRequests:
		t.r.Rejected++
	case err == nil:
		err = fmt.Errorf("status %d %s", status, http.StatusText(status))
	}
	if err == nil {
		t.failures = 0
		return nil
	}
	t.failures, t.failure = t.failures+1, err
	if t.failures >= 10 {
		return fmt.Errorf("gave up after %d failures in a row, the last: %w", t.failures, err)
	}
	return nil
}

// report returns the numbers so far.
func (t *tally) report() report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.r
	r.WorstSecond, r.observer = t.sends.WorstRolling(time.Second), "this program"
	if r.failure = t.failure; r.failure == nil {
		r.failure = fmt.Errorf("no response within %v after the end", grace)
	}
	return r
}

// progress returns how far the batch is.
func (t *tally) progress() progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := progress{
		Elapsed: time.Since(t.start), Sent: t.r.Sent, Accepted: t.r.Accepted, Rejected: t.r.Rejected,
		Total: t.requests, InFlight: max(0, t.r.Sent-t.ended), Left: -1,
	}
	if t.failures > 0 {
		p.Failure = t.failure
	}
	return p
}

// A report is the result of a run. With -json it is written as a JSON object.
type report struct {
	Sent        int64   `json:"sent"`
	Accepted    int64   `json:"accepted"`
	Rejected    int64   `json:"rejected"` // with status 429
	Seconds     float64 `json:"seconds"`
	PerSecond   float64 `json:"per_second"`
	WorstSecond int64   `json:"worst_second"` // the most requests within any second

	// Utilization is the part of the upper bound that was accepted, from 0 to 1. It is nil if the
	// tiers set no bound.
	Utilization *float64 `json:"utilization"`

	// For a fleet only: the number of processes, the requests sent by each, the ratio of the least
	// to the most of these, and the runs of the script in Redis. The last two are nil if no request
	// was sent.
	Fleet       int      `json:"fleet,omitempty"`
	PerWorker   []int64  `json:"per_worker,omitempty"`
	LeastToMost *float64 `json:"least_to_most,omitempty"`
	RedisCalls  *float64 `json:"redis_calls_per_admission,omitempty"`

	upperBound int64  // see upperBound
	observer   string // the program that measured the worst second
	failure    error  // the last error of a request that was neither accepted nor refused
}

// setRates computes the rates of a run of length d.
func (r *report) setRates(d time.Duration, upperBound int64) {
	r.Seconds = round(d.Seconds(), 3)
	r.PerSecond = round(float64(r.Accepted)/d.Seconds(), 3)
	if r.upperBound = upperBound; upperBound > 0 {
		used := round(float64(r.Accepted)/float64(upperBound), 4)
		r.Utilization = &used
	}
}

// round rounds x down to a number of decimal digits.
func round(x float64, digits int) float64 {
	unit := math.Pow10(digits)
	return math.Floor(x*unit) / unit
}

// write writes the report as text, with a last line of JSON if asJSON.
func (r *report) write(w io.Writer, asJSON bool) error {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-13s"+format+"\n", append([]any{name}, args...)...)
	}
	row("sent", "%d in %v s", r.Sent, r.Seconds)
	row("accepted", "%d", r.Accepted)
	row("refused", "%d", r.Rejected)
	if n := r.Sent - r.Accepted - r.Rejected; n > 0 {
		row("failed", "%d, last error: %v", n, r.failure)
	}
	row("rate", "%.2f/s", r.PerSecond)
	row("worst second", "%d, measured by %s", r.WorstSecond, r.observer)
	if r.Utilization != nil {
		row("utilization", "%.1f %% of %d possible requests", 100**r.Utilization, r.upperBound)
	}
	if r.Fleet > 0 {
		row("per process", "%s", strings.Trim(fmt.Sprint(r.PerWorker), "[]"))
	}
	if r.LeastToMost != nil {
		row("least ÷ most", "%.2f", *r.LeastToMost)
		row("Redis calls", "%.2f per request", *r.RedisCalls)
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

// upperBound returns the number of requests that a perfect client gets from the tiers within d. A
// perfect client sends each request at the first instant at which it is accepted, and its requests
// take no time. upperBound returns 0 if the tiers set no bound: Concurrency doesn't limit such a
// client.
func upperBound(p throttle.Policy, start time.Time, d time.Duration) (n int64) {
	var tiers []throttle.Tier
	for _, t := range p.Tiers {
		if t.Algorithm != throttle.Concurrency {
			tiers = append(tiers, exact(t))
		}
	}
	plan, err := algorithms.NewPlan(tiers, 0)
	if err != nil {
		return 0 // no tier is left, because the tiers of a policy are valid
	}
	cost := make([]int64, len(plan.Units()))
	for i := range cost {
		cost[i] = 1
	}
	ledger := plan.NewLedger()
	begin := algorithms.Moment{Wall: start.UnixMicro()}
	for now := begin; time.Duration(now.At)*time.Microsecond < d; {
		_, at, tier := ledger.Take(now, algorithms.Request{Cost: cost})
		if tier < 0 {
			n++
			continue
		}
		now = begin.Later(at)
	}
	return n
}

// exact returns the tier with the finest record of a rolling window that the library has. By
// default a limiter keeps large windows in coarser sub-buckets.
func exact(t throttle.Tier) throttle.Tier {
	if t.Algorithm != throttle.SlidingLog && t.Algorithm != throttle.SlidingWindow {
		return t
	}
	t.Algorithm, t.Precision = throttle.SlidingLog, 0
	if t.Limit > algorithms.MaxLog {
		t.Algorithm = throttle.SlidingWindow
		t.Precision = (t.Window/10_000 + time.Microsecond).Truncate(time.Microsecond)
	}
	return t
}
