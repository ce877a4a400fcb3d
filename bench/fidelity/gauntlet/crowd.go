package gauntlet

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// A crowd is the workers of one process, who all want more than they get.
type crowd struct {
	send  http.RoundTripper // waits for admission, and sends
	url   string
	costs func() int64 // tokens of the next request. If nil, none are counted
}

// A Tally is what the workers of a process saw.
type Tally struct {
	Accepted []int64       // by each worker
	Wait     time.Duration // the longest for admission, those in vain included
	Calls    int64         // of Redis
	Error    string        // why a worker gave up, if one did
}

func (t Tally) all() (sum int64) {
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

// join opens the client in its process.
func (s seat) join(url string) (*crowd, error) {
	c, err := s.client()
	if err != nil {
		return nil, err
	}
	if c.guard != nil {
		s.guard = c.guard(s.Run)
	}
	if s.life > 0 {
		s.used = c.used
	}
	s.base = &wire{base: s.base}
	send, err := c.open(s)
	requests := s.Run
	requests.Seed += uint64(s.member) // each process has its own
	return &crowd{send: send, url: url, costs: requests.costs()}, err
}

// settling is what a fleet gets after a run to give back what it has booked in vain,
// and to end its listeners, before its connections are closed.
const settling = 6 * time.Second

// work blocks until the context ends.
func (c *crowd) work(ctx context.Context, workers int) Tally {
	t := Tally{Accepted: make([]int64, workers)}
	waits, errs := make([]time.Duration, workers), make([]error, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				status, waited, err := c.once(ctx)
				waits[i] = max(waits[i], waited)
				switch {
				case ctx.Err() != nil: // whatever came of it
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

// once sends one request and reads its answer to the end.
func (c *crowd) once(ctx context.Context) (status int, waited time.Duration, err error) {
	var sent time.Time
	begun := time.Now()
	req, err := http.NewRequestWithContext(context.WithValue(ctx, sentKey{}, &sent), http.MethodGet, c.url, nil)
	if err != nil {
		return 0, 0, err
	}
	if c.costs != nil {
		req.Header.Set(costHeader, strconv.FormatInt(c.costs(), 10))
	}
	resp, err := c.send.RoundTrip(req)
	if sent.IsZero() {
		sent = time.Now()
	}
	if err != nil {
		return 0, sent.Sub(begun), err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, sent.Sub(begun), err
}

// A wire notes when a request was handed to the network, and tells the other end.
type wire struct{ base http.RoundTripper }

type sentKey struct{}

const sentHeader = "Sent" // Unix nanoseconds

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	now := time.Now()
	if sent, ok := req.Context().Value(sentKey{}).(*time.Time); ok {
		*sent = now
	}
	req = req.Clone(req.Context())
	req.Header.Set(sentHeader, strconv.FormatInt(now.UnixNano(), 10))
	return w.base.RoundTrip(req)
}
