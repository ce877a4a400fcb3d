package distributed

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Flush tells Redis what this process has to tell it, and returns when that is done: it gives
// back the times that were reserved and not used and the permits that were released, settles
// estimates, repeats what could not be told before, and charges what was sent without Redis.
// It returns the context's error, or the first of the calls that failed, then as
// throttle.ErrUnavailable if Redis was away.
//
// A program calls it at shutdown, when its callers have returned and its responses are read,
// and before it closes the client. It blocks for some round trips, for Options.Timeout if Redis
// does not answer, and for up to Policy.Guard behind an estimated request that failed, because
// such a request may still arrive. It is safe to go on using the store meanwhile: Flush waits
// for what began before it and for what follows from that, not for what comes later. What
// callers still wait for, and what requests in flight hold, stays as it is.
//
// Without Flush nothing is admitted twice. Times not given back stay charged, and leases end by
// themselves.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.validate(); err != nil {
		return err
	}
	for range deepest {
		s.debtors.Range(func(q, _ any) bool {
			s.background(q.(*quota).newest().repay)
			return true
		})
		s.lessees.Range(func(l, _ any) bool {
			l.(*leases).tellAgain()
			return true
		})
		if err := s.reports.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// deepest is how many reports follow from each other: what is reserved for nobody is given
// back in turn, with a call.
const deepest = 3

// Reports are what goroutines and timers of a store are about to tell Redis. What follows from
// one of them begins before that ends.
type reports struct {
	mu   sync.Mutex // guards open, and the reports until they are over
	open map[*report]struct{}
}

type report struct {
	of   *reports
	over chan struct{} // closed when it is over; nil while nobody waits for that
	err  error         // once it is over
}

// begin begins a report. The caller ends it.
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
	if p.over != nil {
		close(p.over)
	}
}

// wait waits for the reports that are open, and returns the first error of any.
func (r *reports) wait(ctx context.Context) (failed error) {
	r.mu.Lock()
	open := slices.Collect(maps.Keys(r.open))
	for _, p := range open {
		if p.over == nil {
			p.over = make(chan struct{})
		}
	}
	r.mu.Unlock()
	for _, p := range open {
		select {
		case <-p.over:
		case <-ctx.Done():
			return ctx.Err()
		}
		if failed == nil {
			failed = p.err
		}
	}
	return failed
}

// background makes a report in a goroutine that ends with it.
func (s *Store) background(report func() error) {
	p := s.reports.begin()
	go func() { p.end(report()) }()
}
