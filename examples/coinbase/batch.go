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

// run sends requests to an API for as long as the config says, or until the
// context ends, and reports on it. It is an error if nothing was accepted, or if
// the batch gave up; the report is written all the same.
func run(ctx context.Context, c config, api target, stdout, stderr io.Writer) error {
	limiter, err := throttle.New(c.policy, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%s; %v; workers: %d; for %v\n", api.name, c.policy, c.workers, c.duration)

	start := time.Now()
	count := newTally(start)
	stop := showProgress(stderr, func() string { return count.line(c.duration) })
	err = send(ctx, c, limiter, api, count)
	stop()
	return conclude(ctx, c, api, start, count.report(), err, stdout)
}

// send runs the workers from the start of the tally on.
func send(ctx context.Context, c config, limiter *throttle.Limiter, api target, count *tally) error {
	end := count.start.Add(c.duration)
	during, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	after, cancel := afterwards(during)
	defer cancel()

	client := newClient(limiter, c.policy, &wire{base: api.base, end: end, after: after, count: count})
	workers, working := errgroup.WithContext(during)
	for range c.workers {
		workers.Go(func() error { return work(working, client, api.url, count) })
	}
	return workers.Wait()
}

// conclude writes the report on a run that began at start and ended now, with err.
func conclude(ctx context.Context, c config, api target, start time.Time, r report, err error, stdout io.Writer) error {
	seconds := c.duration
	if err != nil || ctx.Err() != nil {
		seconds = min(seconds, max(time.Since(start), time.Microsecond)) // it ended early
	}
	if api.seen != nil {
		r.WorstSecond, r.seenBy = api.seen().WorstSecond, "the provider"
	}
	r.over(seconds, possible(c.policy, start, seconds))
	if err == nil && ctx.Err() == nil && r.Accepted == 0 {
		err = errors.New("nothing was accepted")
	}
	return errors.Join(err, r.write(stdout, c.json))
}

// newClient is all that a program needs of the library: a client whose requests
// wait for the limiter. Most do without the Cost, which is one request then.
func newClient(limiter *throttle.Limiter, p throttle.Policy, base http.RoundTripper) *http.Client {
	return &http.Client{
		Transport: &throttle.Transport{
			Base:    base,
			Limiter: limiter,
			Cost:    func(*http.Request) throttle.Cost { return oneOfEach(p) },
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// work sends one request after another until the run is over.
func work(ctx context.Context, client *http.Client, url string, count *tally) error {
	for ctx.Err() == nil {
		status, err := call(ctx, client, url)
		var refusal *throttle.WaitError
		switch {
		case errors.Is(err, throttle.ErrDeadline), errors.Is(err, errOver):
			return nil // the next one could start only when the run is over
		case errors.As(err, &refusal):
			return refusal // the provider closed the quota, or Redis is away
		case err != nil && ctx.Err() != nil:
			return nil // interrupted while it waited, or on its way for too long
		}
		if err := count.answer(status, err); err != nil {
			return err
		}
	}
	return nil
}

// call sends one request and reads the answer to its end: so the connection is
// used again, and a policy that limits concurrency has its place back.
func call(ctx context.Context, client *http.Client, url string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req) // blocks until the limiter admits it
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// errOver says that a request was admitted at the very end, and not sent.
var errOver = errors.New("the run is over")

// A wire is the Base of the Transport: what comes here has been admitted. It
// counts that, and lets what is on its way at the end of the run come home: the
// request's own context, which the limiter has to know, ends with the run.
type wire struct {
	base  http.RoundTripper
	end   time.Time       // the run is [start, end)
	after context.Context // ends some time after the run
	count *tally
}

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	if !time.Now().Before(w.end) {
		return nil, errOver // a GET: there is no body to close
	}
	w.count.send()
	return w.base.RoundTrip(req.WithContext(w.after))
}

// grace is how long what is on its way at the end of the run may take.
const grace = 5 * time.Second

// afterwards returns a context that ends some time after ctx.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	after, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return after, func() { stop(); cancel() }
}
