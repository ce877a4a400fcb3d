// Package reports keeps the calls that a store makes in the background, so that a flush can wait for them.
package reports

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Reports are the calls that goroutines and timers of a store are about to make. A report that
// follows from another begins before the other ends. The zero Reports has none. It is safe for concurrent use.
type Reports struct {
	mu   sync.Mutex // guards open, and the reports until they have ended
	open map[*Report]struct{}
}

// A Report is one of the calls.
type Report struct {
	of    *Reports
	timer *time.Timer   // makes the report after a delay; nil if it has none or waits for other reasons
	done  chan struct{} // closed when the report ends; nil while no Flush waits for it
	err   error         // set when the report ends
}

// Begin begins a report. The caller must end it.
func (r *Reports) Begin() *Report {
	p := &Report{of: r}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = make(map[*Report]struct{})
	}
	r.open[p] = struct{}{}
	return p
}

// End ends the report. The error is nil if it was made.
func (p *Report) End(err error) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	delete(p.of.open, p)
	p.err = err
	if p.done != nil {
		close(p.done)
	}
}

// Later makes a report after a delay, or at once if a Flush waits for it.
func (r *Reports) Later(delay time.Duration, report func() error) {
	p := r.Begin()
	r.mu.Lock()
	defer r.mu.Unlock()
	p.timer = time.AfterFunc(delay, func() { p.End(report()) })
}

// Wait waits for the open reports and returns the first error.
func (r *Reports) Wait(ctx context.Context) (failed error) {
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

// Background makes a report in a goroutine that ends with the report.
func (r *Reports) Background(report func() error) {
	p := r.Begin()
	go func() { p.End(report()) }()
}
