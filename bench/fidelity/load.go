package main

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/apithrottle/throttle/internal/calls"
)

// A load is the workers of one process, which together request more than the limit.
type load struct {
	transport http.RoundTripper // waits for admission, and sends
	costs     func() int64      // draws the tokens of a request. If nil, tokens are not counted
}

// A Tally is what the workers of a process measured.
type Tally struct {
	// Accepted is the number of accepted requests of each worker.
	Accepted []int64
	// Wait is the longest wait for admission, including waits that ended without one.
	Wait time.Duration
	// Calls is the number of calls of Redis.
	Calls int64
	// Error is the error that stopped a worker. If empty, none stopped.
	Error string
}

// accepted returns the accepted requests of all workers.
func (t Tally) accepted() (sum int64) {
	for _, n := range t.Accepted {
		sum += n
	}
	return sum
}

func (t *Tally) add(more Tally) {
	if t.Accepted == nil {
		t.Accepted = make([]int64, len(more.Accepted))
	}
	for i, n := range more.Accepted {
		t.Accepted[i] += n
	}
	t.Wait, t.Calls, t.Error = max(t.Wait, more.Wait), t.Calls+more.Calls, cmp.Or(t.Error, more.Error)
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
	p.base = &timestamper{base: p.base}
	transport, err := c.open(p)
	requests := p.Run
	requests.Seed += uint64(p.index) // each process sends requests of its own
	return &load{transport: transport, costs: requests.costs()}, err
}

// drainTime is how long a fleet has after a run to cancel unused reservations and to end
// its listeners, before its connections are closed.
const drainTime = 6 * time.Second

// run runs the client in this process for a time.
func (p process) run(length time.Duration) Tally {
	var redisCalls calls.Counter
	if p.rdb != nil {
		p.rdb.AddHook(&redisCalls)
		defer p.rdb.Close()
	}
	l, err := p.newLoad()
	if err != nil {
		return Tally{Error: err.Error()}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// A limiter refuses waits that outlast a context's deadline. So the context is canceled.
	defer time.AfterFunc(length, cancel).Stop()
	t := l.run(ctx, p.workers())
	t.Calls = redisCalls.Count()
	if p.rdb != nil {
		time.Sleep(drainTime)
	}
	return t
}

// run starts the workers and blocks until ctx ends.
func (l *load) run(ctx context.Context, workers int) Tally {
	t := Tally{Accepted: make([]int64, workers)}
	waits, errs := make([]time.Duration, workers), make([]error, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				status, waited, err := l.send(ctx)
				waits[i] = max(waits[i], waited)
				switch {
				case ctx.Err() != nil: // the run is over: its last request doesn't count
				case err != nil:
					errs[i] = err
				case status == http.StatusOK:
					t.Accepted[i]++
				}
			}
		})
	}
	all.Wait()
	t.Wait = slices.Max(waits)
	if err := cmp.Or(errs...); err != nil {
		t.Error = err.Error()
	}
	return t
}

// send sends one request and reads its response to the end.
func (l *load) send(ctx context.Context) (status int, waited time.Duration, err error) {
	var sent time.Time
	start := time.Now()
	req, err := http.NewRequestWithContext(context.WithValue(ctx, sentKey{}, &sent), http.MethodGet, "http://provider", nil)
	if err != nil {
		return 0, 0, err
	}
	if l.costs != nil {
		req.Header.Set(costHeader, strconv.FormatInt(l.costs(), 10))
	}
	resp, err := l.transport.RoundTrip(req)
	if sent.IsZero() {
		sent = time.Now()
	}
	if err != nil {
		return 0, sent.Sub(start), err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, sent.Sub(start), err
}

// A timestamper records in a request's context when it is handed to the network.
type timestamper struct{ base http.RoundTripper }

type sentKey struct{}

func (t *timestamper) RoundTrip(req *http.Request) (*http.Response, error) {
	if sent, ok := req.Context().Value(sentKey{}).(*time.Time); ok {
		*sent = time.Now()
	}
	return t.base.RoundTrip(req)
}
