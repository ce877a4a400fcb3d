package distributed

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Flush sends Redis everything that this process still has to report, and returns when that is
// done: it returns unused reservations and released permits, gives up the turns and the places in
// queues that no caller needs any more, settles estimates, repeats reports that failed, and charges
// requests that were sent in a fallback. It returns the context's error, or the error of the first
// call that failed, which is throttle.ErrUnavailable if Redis was away.
//
// A program calls Flush at shutdown, when its callers have returned and its responses are read, and
// before it closes the client. Flush blocks for some round trips, for Options.Timeout if Redis does
// not answer, and for up to Policy.Guard behind an estimated request that failed, because such a
// request may still arrive. Other goroutines may use the store meanwhile: Flush waits for reports
// that began before it and for those that follow from them, not for later ones. Waiting callers and
// requests in flight keep their reservations and permits.
//
// Without Flush nothing is admitted twice. Unused reservations stay charged, and leases end by
// themselves.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.validate(); err != nil {
		return err
	}
	for range deepest {
		s.debtors.Range(func(q, _ any) bool {
			s.reports.background(q.(*quota).newest().repay)
			return true
		})
		s.lessees.Range(func(l, _ any) bool {
			l.(*leases).retryReport()
			return true
		})
		if err := s.reports.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// deepest is the length of the longest chain of reports that follow from each other: a call may
// reserve times that no caller needs, and another call returns them.
const deepest = 3

// Reports are the calls that goroutines and timers of a store are about to make. A report that
// follows from another begins before the other ends.
type reports struct {
	mu   sync.Mutex // guards open, and the reports until they have ended
	open map[*report]struct{}
}

type report struct {
	of    *reports
	timer *time.Timer   // makes the report after a delay; nil if it has none or waits for other reasons
	done  chan struct{} // closed when the report ends; nil while no Flush waits for it
	err   error         // set when the report ends
}

// begin begins a report. The caller must end it.
func (r *reports) begin() *report {
	p := &report{of: r}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = make(map[*report]struct{})
	}
	r.open[p] = struct{}{}
	return p
}

func (p *report) end(err error) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	delete(p.of.open, p)
	p.err = err
	if p.done != nil {
		close(p.done)
	}
}

// later makes a report after a delay, or at once if a Flush waits for it.
func (r *reports) later(delay time.Duration, report func() error) {
	p := r.begin()
	r.mu.Lock()
	defer r.mu.Unlock()
	p.timer = time.AfterFunc(delay, func() { p.end(report()) })
}

// wait waits for the open reports and returns the first error.
func (r *reports) wait(ctx context.Context) (failed error) {
	r.mu.Lock()
	open := slices.Collect(maps.Keys(r.open))
	for _, p := range open {
		if p.done == nil {
			p.done = make(chan struct{})
		}
		if p.timer != nil && p.timer.Stop() {
			p.timer.Reset(0)
		}
	}
	r.mu.Unlock()
	for _, p := range open {
		select {
		case <-p.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if failed == nil {
			failed = p.err
		}
	}
	return failed
}

// background makes a report in a goroutine that ends with the report.
func (r *reports) background(report func() error) {
	p := r.begin()
	go func() { p.end(report()) }()
}
