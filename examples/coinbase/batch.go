package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/apithrottle/throttle"
)

// run sends requests to an API for the configured duration, or until the context ends, and writes a
// report. It returns an error if no request was accepted, or if the batch gave up. It writes the
// report in either case.
func run(ctx context.Context, c config, api target, stdout, stderr io.Writer) error {
	stats := c.watched()
	client, err := newClient(c.policy, nil)
	if err != nil {
		return err
	}
	limiter := client.Transport.(*throttle.Transport).Limiter
	closePage, err := servePage(c.page, stats, limiter, stderr)
	if err != nil {
		return err
	}
	defer closePage()
	fmt.Fprintf(stderr, "%s; %v; %s\n", api.name, c.policy, c.extent())

	start := time.Now()
	count := newTally(start, c.requests)
	stop := showProgress(stderr, progressOf(ctx, c, limiter, count))
	err = send(ctx, c, client, api, count)
	stop()
	return writeReport(ctx, c, api, start, count.report(), err, stdout)
}

// send sends the requests, from the start of the tally until the end of the run.
func send(ctx context.Context, c config, client *http.Client, api target, count *tally) error {
	end := count.start.Add(c.duration)
	during, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	after, cancel := withGrace(during)
	defer cancel()

	instrument(client, c.policy, &meteredBase{base: api.base, end: end, after: after, count: count})
	if c.requests > 0 {
		return sendAll(during, c.requests, client, api.url, count)
	}
	workers, working := errgroup.WithContext(during)
	for range c.workers {
		workers.Go(func() error { return work(working, client, api.url, count) })
	}
	return workers.Wait()
}

// sendAll sends n requests. All but the last wait in the limiter's queue from the beginning, and the
// last when the others have left. Until then the limiter's Forecast, of a request that arrives now, is
// about the last.
func sendAll(ctx context.Context, n int64, client *http.Client, url string, count *tally) error {
	requests, ctx := errgroup.WithContext(ctx)
	one := func() error {
		if err := sendOne(ctx, client, url, count); !errors.Is(err, errEnded) {
			return err
		}
		return nil
	}
	for i := range n - 1 {
		if i%100 == 99 { // to start thousands at once would delay the first by more than the guard
			time.Sleep(10 * time.Millisecond)
		}
		requests.Go(one)
	}
	select {
	case <-count.oneLeft:
		requests.Go(one)
	case <-ctx.Done():
	}
	return requests.Wait()
}

// instrument sends the client's requests through base, and charges one unit of each kind that the
// policy counts. Most programs need no Cost, which is one request by default.
func instrument(client *http.Client, p throttle.Policy, base http.RoundTripper) {
	transport := client.Transport.(*throttle.Transport)
	transport.Base = base
	transport.Cost = func(*http.Request) throttle.Cost { return oneOfEach(p) }
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
}

// writeReport writes the report of a run that began at start and has just ended with err.
func writeReport(ctx context.Context, c config, api target, start time.Time, r report, err error, stdout io.Writer) error {
	seconds := c.duration
	if c.requests > 0 || err != nil || ctx.Err() != nil { // the run ended when it was done, or early
		seconds = min(seconds, max(time.Since(start), time.Microsecond))
	}
	if api.summary != nil {
		r.WorstSecond, r.observer = api.summary().WorstSecond, "the provider"
	}
	r.setRates(seconds, upperBound(c.policy, start, seconds))
	if err == nil && ctx.Err() == nil && r.Accepted == 0 {
		err = errors.New("no request was accepted")
	}
	return errors.Join(err, r.write(stdout, c.json))
}

// work sends one request after another until the run ends.
func work(ctx context.Context, client *http.Client, url string, count *tally) error {
	for ctx.Err() == nil {
		switch err := sendOne(ctx, client, url, count); {
		case errors.Is(err, errEnded):
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// sendOne sends one request and counts its result. It returns errEnded if the run has ended, and
// another error if the batch can't go on.
func sendOne(ctx context.Context, client *http.Client, url string, count *tally) error {
	status, err := call(ctx, client, url)
	var refusal *throttle.WaitError
	switch {
	case errors.Is(err, throttle.ErrDeadline), errors.Is(err, errEnded):
		return errEnded // the next request can't start before the end of the run
	case errors.As(err, &refusal):
		return refusal // the provider closed the quota, or Redis is unavailable
	case err != nil && ctx.Err() != nil:
		return errEnded // interrupted while waiting, or no response within the grace period
	}
	return count.addResult(status, err)
}

// call sends one request and reads the whole body. net/http can then reuse the connection, and a
// policy that limits concurrency admits the next request.
func call(ctx context.Context, client *http.Client, url string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req) // blocks until the limiter admits the request
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// errEnded is the error of a request that was admitted at the end of the run and not sent.
var errEnded = errors.New("the run has ended")

// A meteredBase is the Base of the Transport. It counts admitted requests as it sends them.
// Requests in flight at the end of the run may finish within the grace period, so meteredBase
// replaces their context. The request's own context ends with the run, because the limiter needs
// the deadline.
type meteredBase struct {
	base  http.RoundTripper
	end   time.Time       // the run is [start, end)
	after context.Context // ends after the grace period
	count *tally
}

func (m *meteredBase) RoundTrip(req *http.Request) (*http.Response, error) {
	if !time.Now().Before(m.end) {
		return nil, errEnded // a GET has no body to close
	}
	m.count.addSent()
	return m.base.RoundTrip(req.WithContext(m.after))
}

// grace is the time after the run in which requests in flight may finish.
const grace = 5 * time.Second

// withGrace returns a context that ends one grace period after ctx.
func withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	after, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return after, func() { stop(); cancel() }
}
