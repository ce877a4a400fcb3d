package gauntlet

import (
	"context"
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

	"github.com/apithrottle/throttle/bench/fidelity/chart"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/throttletest"
)

// Virtual makes a run in virtual time: hours of it take a second or two, and nothing
// is late that the run does not make late. t is for testing/synctest.
func (r Run) Virtual(t *testing.T) (row chart.Row, err error) {
	synctest.Test(t, func(*testing.T) {
		// Virtual time begins at a full hour: off it, by whole microseconds as providers count them.
		time.Sleep(time.Duration(r.random("beginning").Int64N(time.Hour.Microseconds())) * time.Microsecond)
		row, err = r.inBubble()
	})
	return row, err
}

// A bubble is what there is besides the client.
type bubble struct {
	api   *throttletest.Provider
	redis *miniredis.Miniredis
	dir   string // for files
}

func (r Run) inBubble() (chart.Row, error) {
	c, err := r.client()
	if err != nil {
		return chart.Row{}, err
	}
	dir, err := os.MkdirTemp("", "fidelity")
	if err != nil {
		return chart.Row{}, err
	}
	defer os.RemoveAll(dir)
	b := bubble{api: r.provider(), redis: miniredis.NewMiniRedis(), dir: dir}
	defer b.redis.Close()
	tallies := make([]Tally, 1)
	if c.redis {
		tallies = make([]Tally, fleet)
	}
	start := time.Now()
	for life, length := range r.lives() {
		var all sync.WaitGroup
		for i := range tallies {
			all.Go(func() {
				tallies[i].add(r.live(i, life, length, b))
			})
		}
		all.Wait()
	}
	return r.row("virtual", b.api.Arrivals(), start, tallies)
}

// lives are the times for which the client runs: several where it is made anew
// meanwhile, at different points of a window of 20 s.
func (r Run) lives() (lives []time.Duration) {
	c, _ := r.client()
	left := r.Length
	for c.restarts && left > aLife {
		lives, left = append(lives, aLife), left-aLife
	}
	return append(lives, left)
}

const aLife = 107 * time.Second

// live runs the client in one process.
func (r Run) live(member, life int, length time.Duration, b bubble) (t Tally) {
	c, _ := r.client()
	s := seat{Run: r, member: member, life: life, base: &connections{api: b.api}}
	if c.saves {
		s.file = filepath.Join(b.dir, "quotas")
	}
	var asked calls.Counter
	if c.redis {
		s.rdb = dial(b.redis)
		s.rdb.AddHook(&asked)
	}
	crowd, err := s.join("http://provider")
	if err != nil {
		return Tally{Error: err.Error()}
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(length, cancel)
	t = crowd.work(ctx, r.workers())
	t.Calls = asked.Count()
	if s.rdb != nil {
		time.Sleep(settling)
		_ = s.rdb.Close()
	}
	return t
}

// Connections are what net/http has to a provider: one that nobody uses is used
// again, and else one is made, which the request's trace is told of.
type connections struct {
	api  http.RoundTripper
	idle atomic.Int64
}

const setup = time.Millisecond

func (c *connections) RoundTrip(req *http.Request) (*http.Response, error) {
	reused := c.idle.Add(-1) >= 0
	if !reused {
		c.idle.Add(1)
		time.Sleep(setup)
	}
	defer c.idle.Add(1)
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{Reused: reused})
	}
	return c.api.RoundTrip(req)
}

// dial connects to a server in memory, half a millisecond away.
func dial(server *miniredis.Miniredis) *redis.Client {
	return redismem.Dial(server, func() time.Duration { return 500 * time.Microsecond })
}
