package batch

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
)

// A Bound is what keeps a job from being faster.
type Bound string

const (
	ByLimiter Bound = "limiter" // the limits of the API
	ByAtOnce  Bound = "at once" // Job.AtOnce: a larger one uses more of the limits
	ByOrder   Bound = "order"   // Job.InOrder: many results wait for an earlier one
	ByItems   Bound = "items"   // Job.Items does not yield them faster
)

// String returns a text for people that continues "The job is bound by", such as "the limits of the API".
func (b Bound) String() string {
	switch b {
	case ByLimiter:
		return "the limits of the API"
	case ByAtOnce:
		return "AtOnce"
	case ByOrder:
		return "InOrder"
	case ByItems:
		return "the iteration over Items"
	}
	return string(b)
}

// mostFailures is the length of Report.Failures.
const mostFailures = 1_000

// A Report is what a job has done. Its String is for people.
type Report struct {
	// Done is how many items are done, without the Skipped items, which an earlier run had done.
	Done, Skipped int64
	// Failed is how many items have failed, and Left how many Items has yielded that are left for a later run.
	Failed, Left int64
	// Retried is how often Do was called again for an item.
	Retried int64
	// Failures are the first 1,000 failed items. A Journal has all; see Journal.Failed.
	Failures []*ItemError
	// Ended reports that Items has yielded all items. Those that are not Left are Done, Skipped or Failed
	// when Run returns.
	Ended bool
	// Elapsed is how long the job has run.
	Elapsed time.Duration
	// Bound is what bound the job for most of that time.
	Bound Bound
	// Nanodollars is what the requests have cost, in billionths of a dollar, as far as their Transport has prices.
	Nanodollars int64
}

// A Progress is the state of a job. Its Report counts from the start of the job; Failures is shared with later
// calls and must not be changed.
type Progress struct {
	Report
	// Total is Job.Total. If zero, it is not known.
	Total int64
	// Started is how many items are started and not over, with those that wait for the limiter.
	Started int64
	// Rate is how many items a second are over: done or failed. It is the mean of the last 20 s, or of up to
	// five minutes if few items are over, and of the whole job if Final.
	Rate float64
	// TimeLeft is how long the rest will take, if TimeLeftKnown. It follows from the limits and what they
	// have admitted so far, so it includes the waits for an hour or a day to end.
	TimeLeft      time.Duration
	TimeLeftKnown bool
	// NanodollarsLeft is what the rest will cost, in billionths of a dollar, if its items cost what those that
	// are over did. If zero, it is not known.
	NanodollarsLeft int64
	// Hint is what holds the job up now, or what would make it faster, in a few words for people, such as
	// "AtOnce 1,000 binds: raise it" or "paused for 43s". If empty, nothing is to be said.
	Hint string
	// Final reports that the job has ended. No other call follows.
	Final bool
}

// A tally counts while a job runs. It is safe for concurrent use.
type tally struct {
	mu      sync.Mutex // guards the fields below
	r       Report
	started int64
	waiting int64 // of started, for the limiter, which then binds instead of AtOnce and InOrder
	inARow  int64 // failed since one was done
	total   int64
	begun   time.Time

	by    Bound // why no item is started now
	since time.Time
	bound map[Bound]time.Duration

	costs  throttle.Cost // the sums of costed requests
	costed int64
}

func newTally(total int64) *tally {
	now := time.Now()
	return &tally{total: total, begun: now, since: now, bound: map[Bound]time.Duration{}, costs: throttle.Cost{}}
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

// cost notes the cost of a request.
func (c *tally) cost(of throttle.Cost) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.costed++
	for unit, n := range of {
		c.costs[unit] += n
	}
	if _, named := of[requests]; !named {
		c.costs[requests]++
	}
}

// meanCost returns the mean cost of a request in each unit: one request if no cost is known.
func (c *tally) meanCost() map[string]float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.costed == 0 {
		return map[string]float64{requests: 1}
	}
	mean := map[string]float64{}
	for unit, n := range c.costs {
		mean[unit] = float64(n) / float64(c.costed)
	}
	return mean
}

// binds notes what binds from now on.
func (c *tally) binds(by Bound) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addBound()
	c.by = by
}

// wait notes how many items wait for the limiter from now on.
func (c *tally) wait(n int) {
	c.update(func() {
		if n == 0 || c.waiting == 0 {
			c.addBound()
		}
		c.waiting = int64(n)
	})
}

// addBound adds the time since the last call to what has bound. The caller holds c.mu.
func (c *tally) addBound() {
	now, by := time.Now(), c.by
	if c.waiting > 0 && (by == ByAtOnce || by == ByOrder) {
		by = ByLimiter
	}
	if by != "" {
		c.bound[by] += now.Sub(c.since)
	}
	c.since = now
}

// report returns what the job has done.
func (c *tally) report() Report { return c.state().Report }

// A state is what a tally has counted.
type state struct {
	Report
	started  int64
	inFlight int64 // of these, those that the limiter has admitted
	bound    map[Bound]time.Duration
}

func (c *tally) state() state {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addBound()
	s := state{c.r, c.started, c.started - c.waiting, maps.Clone(c.bound)}
	if c.by != "" && c.by != ByItems {
		s.inFlight-- // one is started, but does not wait for the limiter yet
	}
	s.Elapsed = c.since.Sub(c.begun)
	most := time.Duration(-1)
	for _, by := range []Bound{ByLimiter, ByAtOnce, ByOrder, ByItems} {
		if c.bound[by] > most {
			s.Bound, most = by, c.bound[by]
		}
	}
	return s
}

// A reporter calls Job.Progress and logs the progress, in a goroutine of its own.
type reporter struct {
	progress func(Progress)
	log      *slog.Logger
	ended    func() error // why the job ends early; nil if it does not
	ask      func(context.Context) status
	count    *tally
	left     *estimate

	answers  chan status
	asking   bool
	stop     chan struct{}
	stopped  chan struct{}
	panicked func(error) // ends the job
	cause    error       // the panic of Job.Progress; nil if there was none
}

// mostAsking is how long the limits may take to report their state.
const mostAsking = 10 * time.Second

// report calls Job.Progress now and then until stop is called, which calls it for the last time. If it has
// panicked, stop panics.
func (r *run[K, T, R]) report() (stop func()) {
	if r.job.Progress == nil && !r.job.Log.Enabled(context.Background(), slog.LevelInfo) {
		return func() {}
	}
	limiter, pool := r.job.Limiter, r.job.Pool
	if t := r.job.Transport; t != nil {
		limiter, pool = t.Limiter, t.Pool
	}
	p := &reporter{
		progress: r.job.Progress, log: r.job.Log, count: r.count, left: newEstimate(r.job.AtOnce),
		ask:   func(ctx context.Context) status { return ask(ctx, limiter, pool) },
		ended: func() error { return context.Cause(r.starting) }, panicked: func(err error) { r.end(err) },
		answers: make(chan status, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	go p.run(r.job.Every)
	return func() {
		close(p.stop)
		if <-p.stopped; p.cause != nil {
			panic(p.cause)
		}
	}
}

// run reports until p.stop is closed.
func (p *reporter) run(every time.Duration) {
	defer close(p.stopped)
	defer func() {
		if v := recover(); v != nil {
			p.cause = fmt.Errorf("batch: Progress panicked: %v\n\n%s", v, debug.Stack())
			p.panicked(p.cause)
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tick, minute, look := time.NewTicker(every), time.NewTicker(time.Minute), time.NewTimer(0)
	defer tick.Stop()
	defer minute.Stop()
	defer look.Stop()
	p.log.Info("batch starts", "total", p.count.total)
	for looks := 0; ; {
		select {
		case s := <-p.answers:
			p.asking = false
			p.left.note(s, p.count.meanCost())
		case <-look.C:
			p.look(ctx)
			looks++
			look.Reset(untilLook(looks, time.Since(p.count.begun)))
		case <-tick.C:
			p.call(p.state(false))
		case <-minute.C:
			if p.log.Enabled(ctx, slog.LevelInfo) {
				p.logState("batch goes on", p.state(false))
			}
		case <-p.stop:
			last := p.state(true)
			p.logEnd(last)
			p.call(last)
			return
		}
	}
}

// untilLook returns the time between two looks at the state of the limits, a second in the mean, and up to 10 s if
// the job runs for hours. The times differ, or looks might always see the beginning of a second in which the
// limits admit all at once.
func untilLook(n int, elapsed time.Duration) time.Duration {
	_, part := math.Modf(float64(n) * math.Phi)
	return time.Duration((0.5 + part) * float64(min(10*time.Second, max(time.Second, elapsed/1_000))))
}

// look asks for the state of the limits, and does not wait for it. While they do not answer, it notes the state of
// the job alone.
func (p *reporter) look(ctx context.Context) {
	if p.asking {
		p.left.note(status{of: p.count.state()}, nil)
		return
	}
	p.asking = true
	go func() {
		ctx, cancel := context.WithTimeout(ctx, mostAsking)
		defer cancel()
		s := p.ask(ctx)
		s.of = p.count.state()
		p.answers <- s
	}()
}

// state returns the state of the job.
func (p *reporter) state(final bool) Progress {
	s := p.count.state()
	now := Progress{Report: s.Report, Total: p.count.total, Started: s.started, Final: final}
	if final {
		now.Rate = part(float64(s.Done+s.Failed), s.Elapsed.Seconds())
		return now
	}
	at := sampleOf(&s)
	now.Rate = p.left.rate(at)
	var budget string
	now.TimeLeft, now.TimeLeftKnown, budget = p.left.left(remaining(&s, now.Total), at)
	now.Hint = p.left.hint(budget)
	now.NanodollarsLeft = int64(max(0, remaining(&s, now.Total)) * part(float64(s.Nanodollars), float64(s.Done+s.Failed)))
	return now
}

func (p *reporter) call(s Progress) {
	if p.progress != nil {
		p.progress(s)
	}
}

// logState logs the state of the job.
func (p *reporter) logState(message string, s Progress, more ...any) {
	attrs := append([]any{
		"done", s.Done, "failed", s.Failed, "skipped", s.Skipped, "left", s.Report.Left, "total", s.Total,
		"rate", math.Round(1000*s.Rate) / 1000, "bound", string(s.Bound),
	}, more...)
	if s.TimeLeftKnown {
		attrs = append(attrs, "time_left", s.TimeLeft.Round(time.Second))
	}
	if s.Nanodollars > 0 {
		attrs = append(attrs, "dollars", float64(s.Nanodollars)/1e9)
	}
	if s.Hint != "" {
		attrs = append(attrs, "hint", s.Hint)
	}
	p.log.Info(message, attrs...)
}

// logEnd logs how the job has ended.
func (p *reporter) logEnd(s Progress) {
	more := []any{"elapsed", s.Elapsed.Round(time.Millisecond)}
	if err := p.ended(); err != nil {
		more = append(more, "err", err)
	}
	p.logState("batch ends", s, more...)
}
