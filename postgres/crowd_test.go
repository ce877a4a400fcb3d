package postgres_test

import (
	"context"
	"sync"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// A crowd is many processes with a pool each.
type crowd struct {
	pools    []*pgxpool.Pool
	limiters []*throttle.Limiter
	// calls and failed count transactions.
	calls, failed atomic.Int64
	mu sync.Mutex
	errs map[string]int
}

// newCrowd returns n processes. Their pools close idle connections at once.
func newCrowd(t testing.TB, n int, url string, p throttle.Policy) *crowd {
	t.Helper()
	c := &crowd{errs: map[string]int{}}
	p.Observer = &throttle.Observer{Called: func(i throttle.CalledInfo) {
		if c.calls.Add(1); i.Err != nil {
			c.failed.Add(1)
			m := i.Err.Error()
			if len(m) > 400 { m = m[:400] }
			m = regexp.MustCompile("127[.0-9]*:[0-9]*|[0-9]+[.0-9]*m?s").ReplaceAllString(m, "#")
			c.mu.Lock()
			c.errs[m]++
			c.mu.Unlock()
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
		s, err := postgres.New(pool, postgres.Options{})
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

func TestCrowd(t *testing.T) {
	s := pgtest.Start(t, "max_connections = 100", "log_connections = on")
	proxy := pgtest.NewProxy(t, &s.Database)
	c := newCrowd(t, 200, proxy.URL(), throttle.Policy{Name: "crowd", Guard: throttle.NoGuard, Tiers: []throttle.Tier{throttle.PerSecond(50)}})
	done := make(chan bool)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(time.Second):
			}
			t.Logf("%d s: %d connections, %d dialed, %d transactions, %d failed, %d statements", i+1, proxy.Conns(), c.dials(), c.calls.Load(), c.failed.Load(), proxy.Sent("QE"))
		}
	}()
	n := c.run(t, 12*time.Second)
	t.Logf("%d admissions in 12 s", n)
	time.Sleep(10 * time.Second)
	close(done)
	for m, n := range c.errs { t.Log(n, m) }
	before := proxy.Sent("QE")
	time.Sleep(5 * time.Second)
	t.Logf("%d connections, %d statements", proxy.Conns(), proxy.Sent("QE")-before)
}
