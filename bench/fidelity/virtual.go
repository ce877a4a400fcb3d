package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/throttletest"
)

// Virtual makes a run in virtual time, in which an hour takes a second or two and the
// machine adds no delay. testing/synctest requires t.
func (r Run) Virtual(t *testing.T) (row Row, err error) {
	synctest.Test(t, func(*testing.T) {
		// Virtual time begins at a full hour. A random number of whole microseconds, the
		// unit of providers, moves the run off it.
		time.Sleep(time.Duration(r.random("beginning").Int64N(time.Hour.Microseconds())) * time.Microsecond)
		row, err = r.runInBubble()
	})
	return row, err
}

// An environment is what a virtual run has besides its client.
type environment struct {
	api   *throttletest.Provider
	redis *miniredis.Miniredis
	dir   string // for saved quotas
}

func (r Run) runInBubble() (Row, error) {
	c, err := r.client()
	if err != nil {
		return Row{}, err
	}
	dir, err := os.MkdirTemp("", "fidelity")
	if err != nil {
		return Row{}, err
	}
	defer os.RemoveAll(dir)
	env := environment{api: r.provider(), redis: redismem.New(), dir: dir}
	defer env.redis.Close()
	errs := make([]error, 1)
	if c.redis {
		errs = make([]error, fleet)
	}
	start := time.Now()
	for life, length := range r.lifetimes() {
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() {
				errs[i] = errors.Join(errs[i], r.runProcess(i, life, length, env))
			})
		}
		all.Wait()
	}
	row, err := r.row(env.api.Arrivals(), start)
	if err := errors.Join(append(errs, err)...); err != nil {
		return row, fmt.Errorf("%v: %w", r, err)
	}
	return row, nil
}

// lifetimes returns how long the client runs between restarts. A client that doesn't
// restart has one lifetime, the whole run.
func (r Run) lifetimes() (lengths []time.Duration) {
	c, _ := r.client()
	left := r.Length
	for c.restarts && left > lifetime {
		lengths, left = append(lengths, lifetime), left-lifetime
	}
	return append(lengths, left)
}

// lifetime is not a multiple of 20 s: restarts come at different points of such a window.
const lifetime = 107 * time.Second

// runProcess runs the client in one process until it restarts or the run ends.
func (r Run) runProcess(index, life int, length time.Duration, env environment) error {
	c, _ := r.client()
	p := process{Run: r, index: index, life: life, base: &connections{api: env.api}}
	if c.saves {
		p.file = filepath.Join(env.dir, "quotas")
	}
	if c.redis {
		p.rdb = dial(env.redis)
	}
	return p.run(length)
}

// connections models the connections of net/http to a provider. A request takes an idle
// connection or opens one. The request's trace reports which.
type connections struct {
	api  http.RoundTripper
	idle atomic.Int64
}

const connectTime = time.Millisecond

func (c *connections) RoundTrip(req *http.Request) (*http.Response, error) {
	reused := c.idle.Add(-1) >= 0
	if !reused {
		c.idle.Add(1)
		time.Sleep(connectTime)
	}
	defer c.idle.Add(1)
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{Reused: reused})
	}
	return c.api.RoundTrip(req)
}

// dial connects to an in-memory server. A command takes half a millisecond.
func dial(server *miniredis.Miniredis) *redis.Client {
	return redismem.Dial(server, func() time.Duration { return 500 * time.Microsecond })
}
