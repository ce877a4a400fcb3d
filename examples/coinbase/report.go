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

	mu      sync.Mutex // guards all below
	r       report
	sends   *throttletest.Counter // without tiers: it only remembers
	inARow  int                   // failures since the last answer
	failure error                 // the last one
}

func newTally(start time.Time) *tally {
	sends, _ := throttletest.NewCounter() // no tier, no error
	return &tally{start: start, sends: sends}
}

// send counts a request that leaves now.
func (t *tally) send() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r.Sent++
	t.sends.Arrive(time.Since(t.start).Microseconds(), nil)
}

// answer counts what became of a request. After ten failures in a row it returns
// an error: there is no point in going on.
func (t *tally) answer(status int, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil && status < http.StatusBadRequest:
		t.r.Accepted++
	case err == nil && status == http.StatusTooManyRequests:
		t.r.Rejected++
	case err == nil:
		err = fmt.Errorf("status %d %s", status, http.StatusText(status))
	}
	if err == nil {
		t.inARow = 0
		return nil
	}
	t.inARow, t.failure = t.inARow+1, err
	if t.inARow >= 10 {
		return fmt.Errorf("gave up after %d failures in a row, the last: %w", t.inARow, err)
	}
	return nil
}

// report is the numbers so far.
func (t *tally) report() report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.r
	r.WorstSecond, r.seenBy = t.sends.WorstRolling(time.Second), "this program"
	if r.failure = t.failure; r.failure == nil {
		r.failure = fmt.Errorf("no answer until %v after the end", grace)
	}
	return r
}

// line says how far the batch is.
func (t *tally) line(duration time.Duration) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.r.line(time.Since(t.start), duration)
	if t.inARow > 0 {
		s += fmt.Sprintf(", failing: %v", t.failure)
	}
	return s
}

// A report is the outcome of a run, and one JSON object.
type report struct {
	Sent        int64    `json:"sent"`
	Accepted    int64    `json:"accepted"`
	Rejected    int64    `json:"rejected"` // with status 429
	Seconds     float64  `json:"seconds"`
	PerSecond   float64  `json:"per_second"`
	WorstSecond int64    `json:"worst_second"` // the most within any second
	Utilisation *float64 `json:"utilisation"`  // of what was possible, 0 to 1; null if the tiers set no bound

	// Of a fleet only.
	Fleet       int      `json:"fleet,omitempty"`                     // processes
	PerWorker   []int64  `json:"per_worker,omitempty"`                // what each of them sent
	LeastToMost *float64 `json:"least_to_most,omitempty"`             // of PerWorker, 0 to 1; none if nothing was sent
	RedisCalls  *float64 `json:"redis_calls_per_admission,omitempty"` // runs of the script; none if nothing was sent

	possible int64
	seenBy   string // who saw the worst second
	failure  error  // the last one, of the requests that were neither accepted nor refused
}

// line says how far the batch is.
func (r report) line(elapsed, duration time.Duration) string {
	return fmt.Sprintf("%v of %v: sent %d, accepted %d, refused %d, %.1f/s", elapsed.Round(time.Second), duration,
		r.Sent, r.Accepted, r.Rejected, float64(r.Accepted)/elapsed.Seconds())
}

// over works out the rates.
func (r *report) over(d time.Duration, possible int64) {
	r.Seconds = round(d.Seconds(), 3)
	r.PerSecond = round(float64(r.Accepted)/d.Seconds(), 3)
	if r.possible = possible; possible > 0 {
		share := round(float64(r.Accepted)/float64(possible), 4)
		r.Utilisation = &share
	}
}

// round cuts x after so many digits.
func round(x float64, digits int) float64 {
	unit := math.Pow10(digits)
	return math.Floor(x*unit) / unit
}

func (r *report) write(w io.Writer, asJSON bool) error {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-13s"+format+"\n", append([]any{name}, args...)...)
	}
	row("sent", "%d in %v s", r.Sent, r.Seconds)
	row("accepted", "%d", r.Accepted)
	row("refused", "%d", r.Rejected)
	if n := r.Sent - r.Accepted - r.Rejected; n > 0 {
		row("failed", "%d, last: %v", n, r.failure)
	}
	row("rate", "%.2f/s", r.PerSecond)
	row("worst second", "%d, as %s saw it", r.WorstSecond, r.seenBy)
	if r.Utilisation != nil {
		row("utilisation", "%.1f %% of the %d that were possible", 100**r.Utilisation, r.possible)
	}
	if r.Fleet > 0 {
		row("per process", "%s", strings.Trim(fmt.Sprint(r.PerWorker), "[]"))
	}
	if r.LeastToMost != nil {
		row("least ÷ most", "%.2f", *r.LeastToMost)
		row("Redis calls", "%.2f for each that was sent", *r.RedisCalls)
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

// possible is how many requests a client gets from the tiers within d that sends
// each at the first instant at which it is accepted, and whose requests take no
// time. It is 0 if the tiers set no bound, as Concurrency does for such a client.
func possible(p throttle.Policy, start time.Time, d time.Duration) (n int64) {
	var tiers []throttle.Tier
	for _, t := range p.Tiers {
		if t.Algorithm != throttle.Concurrency {
			tiers = append(tiers, exact(t))
		}
	}
	plan, err := algorithms.NewPlan(tiers, 0)
	if err != nil {
		return 0 // no tier is left: those of a policy are valid
	}
	cost := make([]int64, len(plan.Units()))
	for i := range cost {
		cost[i] = 1
	}
	ledger := plan.NewLedger()
	begin := algorithms.Moment{Wall: start.UnixMicro()}
	for now := begin; time.Duration(now.At)*time.Microsecond < d; {
		_, at, tier := ledger.Take(now, cost, 0, false)
		if tier < 0 {
			n++
			continue
		}
		now = begin.Later(at)
	}
	return n
}

// exact is a rolling window as close to the provider's as the library keeps it:
// a limiter remembers large ones in coarser sub-buckets.
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
