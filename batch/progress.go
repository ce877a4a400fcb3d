package batch

import (
	"sync"
	"time"
)

// A Bound is what keeps a job from being faster.
type Bound string

const (
	ByLimiter Bound = "limiter" // the limits of the API
	ByAtOnce  Bound = "at once" // Job.AtOnce: a larger one uses more of the limits
	ByOrder   Bound = "order"   // Job.InOrder: many results wait for an earlier one
	ByItems   Bound = "items"   // Job.Items does not yield them faster
)

// mostFailures is the length of Report.Failures.
const mostFailures = 1_000

// A Report is what a job has done.
type Report struct {
	// Done is how many items are done, without the Skipped ones, which an earlier run had done.
	Done, Skipped int64
	// Failed is how many items have failed, and Left how many Items has yielded that are left for a later run.
	Failed, Left int64
	// Retried is how often Do was called again for an item.
	Retried int64
	// Failures are the first 1,000 failed items. A Journal has all; see Journal.Failed.
	Failures []*ItemError
	// Ended reports that there are no more items: those that are not Left are Done, Skipped or Failed.
	Ended bool
	// Elapsed is how long the job has run.
	Elapsed time.Duration
	// Bound is what bound the job for most of that time.
	Bound Bound
	// Nanodollars is what the requests have cost, as far as their Transport has prices.
	Nanodollars int64
}

// A Progress is the state of a job.
type Progress struct {
	Report
	// Total is Job.Total.
	Total int64
	// Started is how many items are started and not over, with those that wait for the limiter.
	Started int64
	// Rate is how many items a second are over, lately.
	Rate float64
	// Left is how long the rest will take, if LeftKnown.
	TimeLeft  time.Duration
	LeftKnown bool
	// Final reports that the job has ended.
	Final bool
}

// A tally counts while a job runs. It is safe for concurrent use.
type tally struct {
	mu      sync.Mutex // guards the fields below
	r       Report
	started int64
	inARow  int64 // failed since one was done
	total   int64
	begun   time.Time

	by    Bound // what binds now
	since time.Time
	bound map[Bound]time.Duration
}

func newTally(total int64) *tally {
	now := time.Now()
	return &tally{total: total, begun: now, since: now, bound: map[Bound]time.Duration{}}
}

func (c *tally) update(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func (c *tally) start()    { c.update(func() { c.started++ }) }
func (c *tally) skip()     { c.update(func() { c.r.Skipped++ }) }
func (c *tally) retry()    { c.update(func() { c.r.Retried++ }) }
func (c *tally) done()     { c.update(func() { c.r.Done++; c.started--; c.inARow = 0 }) }
func (c *tally) leave()    { c.update(func() { c.r.Left++; c.started-- }) }
func (c *tally) allItems() { c.update(func() { c.r.Ended = true }) }

func (c *tally) spend(nanodollars int64) { c.update(func() { c.r.Nanodollars += nanodollars }) }

// fail counts a failed item, and returns how many have failed, and how many since one was done.
func (c *tally) fail(e *ItemError) (failed, inARow int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started--
	if c.r.Failed++; len(c.r.Failures) < mostFailures {
		c.r.Failures = append(c.r.Failures, e)
	}
	c.inARow++
	return c.r.Failed, c.inARow
}

// binds notes what binds from now on.
func (c *tally) binds(by Bound) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.by != "" {
		c.bound[c.by] += now.Sub(c.since)
	}
	c.by, c.since = by, now
}

// report returns what the job has done.
func (c *tally) report() Report {
	c.binds(c.by)
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.r
	r.Elapsed = time.Since(c.begun)
	most := time.Duration(-1)
	for _, by := range []Bound{ByLimiter, ByAtOnce, ByOrder, ByItems} {
		if c.bound[by] > most {
			r.Bound, most = by, c.bound[by]
		}
	}
	return r
}

// report calls Job.Progress now and then until stop is called, which calls it for the last time.
func (r *run[K, T, R]) report() (stop func()) { return func() {} }
