package main

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// A load is the workers of one process, which together request more than the limit.
type load struct {
	transport http.RoundTripper // waits for admission, and sends
	costs     func() int64      // draws the tokens of a request. If nil, tokens are not counted
}

// newLoad opens the client in its process, and returns the workers that use it.
func (p process) newLoad() (*load, error) {
	c, err := p.client()
	if err != nil {
		return nil, err
	}
	if c.guard != nil {
		p.guard = c.guard(p.Run)
	}
	if p.life > 0 {
		p.assumeUsed = c.assumeUsed
	}
	transport, err := c.open(p)
	requests := p.Run
	requests.Seed += uint64(p.index) // each process sends requests of its own
	return &load{transport: transport, costs: requests.costs()}, err
}

// drainTime is how long a fleet has after a run to cancel unused reservations and to end
// its listeners, before its connections are closed.
const drainTime = 6 * time.Second

// run runs the client in this process for a time. The error is the first one that stopped a worker.
func (p process) run(length time.Duration) error {
	if p.rdb != nil {
		defer p.rdb.Close()
	}
	l, err := p.newLoad()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// A limiter refuses waits that outlast a context's deadline. So the context is canceled.
	defer time.AfterFunc(length, cancel).Stop()
	err = l.run(ctx, p.workers())
	if p.rdb != nil {
		time.Sleep(drainTime)
	}
	return err
}

// run starts the workers and blocks until ctx ends.
func (l *load) run(ctx context.Context, workers int) error {
	errs := make([]error, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				if err := l.send(ctx); ctx.Err() == nil { // afterwards the run is over
					errs[i] = err
				}
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

// send sends one request and reads its response to the end.
func (l *load) send(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://provider", nil)
	if err != nil {
		return err
	}
	if l.costs != nil {
		req.Header.Set(costHeader, strconv.FormatInt(l.costs(), 10))
	}
	resp, err := l.transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
