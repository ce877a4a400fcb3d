package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
)

// run sends requests to an API for the configured duration, or until the context ends, and writes a
// report, also if the batch fails.
func run(ctx context.Context, c config, api target, stdout, stderr io.Writer) error {
	t := new(tally)
	stats := observe.NewStats()
	c.policy.Observer = throttle.JoinObservers(stats.Observer(), t.observer())
	client, err := newClient(c.policy, nil)
	if err != nil {
		return err
	}
	closePage, err := servePage(c, stats, client.Transport.(*throttle.Transport).Limiter, stderr)
	if err != nil {
		return err
	}
	defer closePage()
	fmt.Fprintf(stderr, "stand-in for Coinbase at %s; %v; workers: %d; for %v\n", api.url, c.policy, c.workers, c.duration)

	start := time.Now()
	stop := showProgress(stderr, start, t.counts)
	err = send(ctx, c.workers, start.Add(c.duration), client, api, t)
	stop()
	return finish(ctx, c, api, report{result: t.counts()}, start, err, stdout)
}

// send sends requests until end.
func send(ctx context.Context, workers int, end time.Time, client *http.Client, api target, t *tally) error {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	client.Transport.(*throttle.Transport).Base = finishing{api.base, end}
	all, ctx := errgroup.WithContext(ctx)
	for range workers {
		all.Go(func() error {
			for {
				status, err := call(ctx, client, api.url)
				if err != nil && ctx.Err() != nil || errors.Is(err, throttle.ErrDeadline) || errors.Is(err, errEnded) {
					return nil // the next request can't start before the end
				}
				if err := t.add(status, err); err != nil {
					return err
				}
			}
		})
	}
	return all.Wait()
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

// errEnded is the error of a request that was admitted at the end.
var errEnded = errors.New("the batch has ended")

// A finishing transport sends nothing from the end on, and lets requests in flight finish.
type finishing struct {
	base http.RoundTripper
	end  time.Time
}

func (f finishing) RoundTrip(req *http.Request) (*http.Response, error) {
	if !time.Now().Before(f.end) {
		return nil, errEnded // a GET has no body to close
	}
	return f.base.RoundTrip(req.WithContext(context.WithoutCancel(req.Context())))
}

// A result is what the workers of a process got.
type result struct {
	Sent     int64         `json:"sent"`
	Accepted int64         `json:"accepted"`
	Rejected int64         `json:"rejected"`  // with status 429
	Waited   time.Duration `json:"waited_ns"` // all callers together, for their turn
	Longest  time.Duration `json:"longest_wait_ns"`
	Failure  string        `json:"failure,omitempty"` // the last error of a request
}

// A tally counts while the batch runs. It is safe for concurrent use.
type tally struct {
	mu       sync.Mutex // guards the fields below
	r        result
	failures int // in a row
}

// add counts the result of a request. After ten failures in a row it returns an error.
func (t *tally) add(status int, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r.Sent++
	switch {
	case err == nil && status < http.StatusBadRequest:
		t.r.Accepted++
	case err == nil && status == http.StatusTooManyRequests:
		t.r.Rejected++
	case err == nil:
		err = fmt.Errorf("status %d %s", status, http.StatusText(status))
	}
	if err == nil {
		t.failures = 0
		return nil
	}
	t.failures++
	t.r.Failure = err.Error()
	var refusal *throttle.WaitError
	if errors.As(err, &refusal) { // the provider closed the quota, or Redis is unavailable
		t.r.Sent--
		return err
	}
	if t.failures == 10 {
		return fmt.Errorf("gave up after %d failures in a row, the last: %w", t.failures, err)
	}
	return nil
}

// observer returns an Observer that adds up how long callers wait.
func (t *tally) observer() *throttle.Observer {
	return &throttle.Observer{Admitted: func(_ context.Context, i throttle.AdmittedInfo) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.r.Waited += i.Waited
		t.r.Longest = max(t.r.Longest, i.Waited)
	}}
}

func (t *tally) counts() result {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.r
}

// showProgress writes a line every five seconds until stop is called.
func showProgress(w io.Writer, start time.Time, counts func() result) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(5 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				r := counts()
				fmt.Fprintf(w, "%v: sent %d, accepted %d, refused %d\n", time.Since(start).Round(time.Second), r.Sent, r.Accepted, r.Rejected)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
