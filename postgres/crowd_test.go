package postgres_test

import (
	"context"
	"fmt"
	"github.com/apithrottle/throttle/internal/soak"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// patience is a Timeout of transactions that wait behind many others.
const patience = 5 * time.Second

// A crowd is many processes with a pool each.
type crowd struct {
	pools    []*pgxpool.Pool
	limiters []*throttle.Limiter
	// calls and failed count transactions.
	calls, failed atomic.Int64
}

// newCrowd returns n processes. Their pools close idle connections at once.
func newCrowd(t testing.TB, n int, url string, p throttle.Policy) *crowd {
	t.Helper()
	c := new(crowd)
	p.Observer = &throttle.Observer{Called: func(i throttle.CalledInfo) {
		if c.calls.Add(1); i.Err != nil {
			c.failed.Add(1)
		}
	}}
	for range n {
		config, err := pgxpool.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		config.MaxConns, config.MaxConnIdleTime, config.HealthCheckPeriod = 3, time.Second, time.Second
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		s, err := postgres.New(pool, postgres.Options{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		l, err := throttle.New(p, s)
		if err != nil {
			t.Fatal(err)
		}
		c.pools, c.limiters = append(c.pools, pool), append(c.limiters, l)
	}
	if err := postgres.Migrate(t.Context(), c.pools[0], postgres.Options{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// dials returns how many connections the pools have made.
func (c *crowd) dials() (n int64) {
	for _, p := range c.pools {
		n += p.Stat().NewConnsCount()
	}
	return n
}

// run lets each process wait again and again, and returns the number of admissions.
func (c *crowd) run(t testing.TB, length time.Duration) int64 {
	var admissions atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var wg sync.WaitGroup
	for _, l := range c.limiters {
		wg.Go(func() {
			for l.Wait(ctx) == nil {
				admissions.Add(1)
			}
		})
	}
	wg.Wait()
	return admissions.Load()
}

// TestCrowd has twice as many processes waiting for one quota as the server has connections. How many of them are admitted
// depends on how fast the machine makes connections. At rest they hold no connection and send no statement.
func TestCrowd(t *testing.T) {
	soak.NoRace(t, "measures real time")
	for _, c := range []struct{ processes, connections, rate, least int }{{20, 13, 10, 10}, {200, 100, 20, 1}} {
		t.Run(fmt.Sprintf("%d processes, %d connections", c.processes, c.connections), func(t *testing.T) {
			if c.processes > 100 {
				soak.Long(t, "needs many processes of the server")
			}
			s := pgtest.Start(t, fmt.Sprint("max_connections = ", c.connections))
			proxy := pgtest.NewProxy(t, &s.Database)
			crowd := newCrowd(t, c.processes, proxy.URL(), throttle.Policy{
				Name: "crowd", Guard: throttle.NoGuard, Tiers: []throttle.Tier{{Limit: int64(c.rate), Window: time.Second, Algorithm: throttle.GCRA, Burst: 1}},
			})
			const length = 6 * time.Second
			n := crowd.run(t, length)
			calls, failed := crowd.calls.Load(), crowd.failed.Load()
			t.Logf("%d admissions of %d, %d transactions, %d failed, %d dialed", n, 6*c.rate, calls, failed, crowd.dials())
			if n < int64(c.least) {
				t.Errorf("%d admissions, want %d", n, c.least)
			}
			wantRest(t, proxy)
		})
	}
}

// wantRest waits for five seconds in which there are no connections and no statements.
func wantRest(t *testing.T, p *pgtest.Proxy) {
	for range 20 {
		before, conns := p.Sent("QE"), 0
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			conns = max(conns, p.Conns())
		}
		if conns == 0 && p.Sent("QE") == before {
			return
		}
	}
	t.Error("processes that do nothing do not come to rest")
}
