// Package hidden plays clients against an API that does not tell its limit, in virtual time.
package hidden

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/httpmem"
	"github.com/apithrottle/throttle/throttletest"
)

// A Cell is an API with a hidden limit, and the callers that use all they get of it.
type Cell struct {
	// Tier is the limit.
	Tier algorithms.Tier
	// Then is the limit from the middle of the run on. If zero, Tier.
	Then algorithms.Tier
	// Response is the mean time until a response. Each takes 0.9 to 1.1 of it, and the API counts the
	// request after half of it.
	Response time.Duration
	// Workers is how many callers send one request after the other.
	Workers int
	// Failing is the part of responses with status 503, and Noisy the part with status 429, whatever the limit.
	Failing, Noisy float64
	// Hostile is how many more callers ask for an object that is always refused, one request after the other.
	// Those requests do not count in the limit.
	Hostile int
	// Minutes is how long the callers send.
	Minutes int
}

// Reachable reports whether the callers can reach the limit with one request after the other.
func (c Cell) Reachable() bool {
	return float64(c.Workers) >= 1.02*c.rate()*c.Response.Seconds()
}

func (c Cell) rate() float64 { return float64(c.Tier.Limit) / c.Tier.Window.Seconds() }

func (c Cell) String() string {
	return fmt.Sprintf("%v after %v, %d workers", c.Tier, c.Response, c.Workers)
}

// Cells returns limits of 1, 10 and 100 a second by each of three counters, with responses after 5 ms to 5 s
// and one or many workers.
func Cells() (list []Cell) {
	for _, limit := range []int64{1, 10, 100} {
		for _, a := range []algorithms.Algorithm{algorithms.TokenBucket, algorithms.SlidingLog, algorithms.FixedWindow} {
			for _, response := range []time.Duration{5 * time.Millisecond, 100 * time.Millisecond, time.Second, 5 * time.Second} {
				for _, workers := range []int{1, 64} {
					if limit == 100 && response == 5*time.Second && workers > 1 {
						workers = 640
					}
					tier := algorithms.Tier{Limit: limit, Window: time.Second, Algorithm: a}
					list = append(list, Cell{Tier: tier, Response: response, Workers: workers, Minutes: 20})
				}
			}
		}
	}
	return list
}

// A Result has the requests by the minute in which the API counted them.
type Result struct {
	// Good were accepted and Refused not, by the limit. Noise was refused for other reasons.
	Good, Refused, Noise []int
}

// Goodput returns the accepted requests of some minutes for each second.
func (r Result) Goodput(from, to int) float64 {
	return float64(sum(r.Good[from:to])) / float64(60*(to-from))
}

// RefusedPart returns the part of the requests of some minutes that the limit refused.
func (r Result) RefusedPart(from, to int) float64 {
	refused := float64(sum(r.Refused[from:to]))
	return refused / max(1, refused+float64(sum(r.Good[from:to])))
}

func sum(list []int) (n int) {
	for _, x := range list {
		n += x
	}
	return n
}

// An api counts requests.
type api struct {
	cell  Cell
	start time.Time

	mu      sync.Mutex // guards the fields below
	rand    *rand.Rand
	counter *throttletest.Counter
	then    bool
	result  Result
}

// hostile is the path of the object that is always refused.
const hostile = "/hostile"

// A Client opens the transport of a client, in a bubble of testing/synctest, over the transport to the API.
type Client func(base http.RoundTripper) http.RoundTripper

// Play plays the callers of a cell with a client.
func Play(t *testing.T, c Cell, seed uint64, open Client) (r Result) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(seed, 1))
		time.Sleep(time.Duration(random.Int64N(int64(time.Second)))) // windows of the clock begin at any time
		a := &api{cell: c, start: time.Now(), rand: random, counter: counter(t, c.Tier)}
		r = Result{make([]int, c.Minutes+1), make([]int, c.Minutes+1), make([]int, c.Minutes+1)}
		a.result = r
		// Not a deadline, which would refuse the last callers at once.
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(c.Minutes)*time.Minute, cancel)
		client := &http.Client{Transport: open(a)}
		var group sync.WaitGroup
		for i := range c.Workers + c.Hostile {
			path := "/"
			if i >= c.Workers {
				path = hostile
			}
			group.Go(func() { work(ctx, client, "http://api.test"+path) })
		}
		group.Wait()
	})
	return r
}

func counter(t *testing.T, tier algorithms.Tier) *throttletest.Counter {
	c, err := throttletest.NewCounter(tier)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// work sends one request after the other.
func work(ctx context.Context, client *http.Client, url string) {
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			panic(err) // the URL is a constant
		}
		if resp, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
}

// RoundTrip counts a request after half of the time that its response takes.
func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	half := a.half()
	if err := sleep(r.Context(), half); err != nil {
		return nil, err
	}
	status := a.count(r.URL.Path)
	if err := sleep(r.Context(), half); err != nil {
		return nil, err
	}
	return httpmem.Response(r, status, make(http.Header), "", func() {}), nil
}

func sleep(ctx context.Context, d time.Duration) error {
	return httpmem.Sleep(ctx, func() time.Duration { return d })
}

func (a *api) half() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Duration(float64(a.cell.Response) * (0.45 + 0.1*a.rand.Float64()))
}

// count decides on a request that arrives now.
func (a *api) count(path string) (status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	since := time.Since(a.start)
	minute := int(since / time.Minute)
	if !a.then && a.cell.Then.Limit > 0 && minute >= a.cell.Minutes/2 {
		a.then = true
		a.counter, _ = throttletest.NewCounter(a.cell.Then)
	}
	if path == hostile {
		a.result.Noise[minute]++
		return http.StatusTooManyRequests
	}
	switch x := a.rand.Float64(); {
	case x < a.cell.Noisy:
		a.result.Noise[minute]++
		return http.StatusTooManyRequests
	case x < a.cell.Noisy+a.cell.Failing:
		a.result.Noise[minute]++
		return http.StatusServiceUnavailable
	case a.counter.Arrive(time.Now().UnixMicro(), nil):
		a.result.Good[minute]++
		return http.StatusOK
	}
	a.result.Refused[minute]++
	return http.StatusTooManyRequests
}

// MostRefused is the part of requests that a careful client may be refused.
func (c Cell) MostRefused() float64 {
	if c.Response < 5*time.Second {
		return 0.01
	}
	return 0.03
}

// Knows returns the goodput of some minutes of the better of two clients that know the limit. One counts as the
// API does, but does not know when windows begin. The other sends requests evenly and does nothing about refusals;
// if more than MostRefused are refused, it is left out.
func Knows(t *testing.T, c Cell, seed uint64, from, to int) float64 {
	tier := c.Tier
	if tier.Algorithm == algorithms.FixedWindow {
		tier.Algorithm = algorithms.SlidingLog
	}
	best := Play(t, c, seed, func(base http.RoundTripper) http.RoundTripper {
		return Limited(t, base, tier, max(c.Response/10, time.Microsecond))
	}).Goodput(from, to)
	even := Play(t, c, seed, func(base http.RoundTripper) http.RoundTripper {
		return &paced{base: base, gap: c.Tier.Window / time.Duration(c.Tier.Limit)}
	})
	if even.RefusedPart(from, to) <= c.MostRefused() {
		best = max(best, even.Goodput(from, to))
	}
	return best
}

// Limited returns a transport with a tier and a guard, as in a Policy.
func Limited(t testing.TB, base http.RoundTripper, tier throttle.Tier, guard time.Duration) http.RoundTripper {
	l, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{tier}, Guard: guard}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &throttle.Transport{Limiter: l, Base: base}
}

type paced struct {
	base http.RoundTripper
	gap  time.Duration

	mu   sync.Mutex // guards next
	next time.Time
}

func (p *paced) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	at := time.Now()
	if p.next.After(at) {
		at = p.next
	}
	p.next = at.Add(p.gap)
	p.mu.Unlock()
	if err := sleep(r.Context(), time.Until(at)); err != nil {
		return nil, err
	}
	return p.base.RoundTrip(r)
}
