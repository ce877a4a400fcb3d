package postgres_test

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// A load is a quota whose callers in some processes want more than there is.
type load struct {
	processes, callers int
	policy             throttle.Policy
	length             time.Duration
}

// A usage is what a load takes of the server.
type usage struct {
	admissions, transactions, failed, wal float64
	elapsed                               time.Duration
}

func (u usage) String() string {
	s := u.elapsed.Seconds()
	return fmt.Sprintf("%.0f admissions/s, %.1f transactions/s (%.0f failed), %.0f B of WAL a transaction, %.1f B an admission",
		u.admissions/s, u.transactions/s, u.failed, u.wal/u.transactions, u.wal/u.admissions)
}

// run puts the load on a server for some time.
func (l load) run(t testing.TB, s *pgtest.Server) (u usage) {
	t.Helper()
	var admissions, transactions, failed atomic.Int64
	l.policy.Observer = &throttle.Observer{Called: func(i throttle.CalledInfo) {
		if transactions.Add(1); i.Err != nil {
			failed.Add(1)
		}
	}}
	var limiters []*throttle.Limiter
	for range l.processes {
		limiter, err := throttle.New(l.policy, openStore(t, &s.Database, postgres.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := limiter.Status(t.Context()); err != nil { // connects
			t.Fatal(err)
		}
		limiters = append(limiters, limiter)
	}
	s.Exec("CHECKPOINT")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for _, limiter := range limiters {
		for range l.callers {
			wg.Go(func() {
				for limiter.Wait(ctx) == nil {
					admissions.Add(1)
				}
			})
		}
	}
	time.Sleep(2 * time.Second) // while they use the burst
	for _, n := range []*atomic.Int64{&admissions, &transactions, &failed} {
		n.Store(0)
	}
	before, start := s.WALBytes(), time.Now()
	time.Sleep(l.length)
	u = usage{float64(admissions.Load()), float64(transactions.Load()), float64(failed.Load()), float64(s.WALBytes() - before), time.Since(start)}
	cancel()
	wg.Wait()
	return u
}

// busy are policies of 1,000 requests a second, by what keeps them.
func busy() map[string]throttle.Policy {
	policies := make(map[string]throttle.Policy)
	for _, a := range []throttle.Algorithm{throttle.GCRA, throttle.TokenBucket} {
		policies[fmt.Sprint(a)] = throttle.Policy{
			Name: fmt.Sprint("busy ", a), Guard: throttle.NoGuard,
			Tiers: []throttle.Tier{{Limit: 1000, Window: time.Second, Algorithm: a}},
		}
	}
	return policies
}

var tableFor = flag.Duration("table", 10*time.Second, "how long TestTableStaysSmall runs")

// TestTableStaysSmall has several quotas of four processes that together admit 500 requests a second, some of them in
// a transaction each.
func TestTableStaysSmall(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	var wg sync.WaitGroup
	for i := range 5 {
		policy := throttle.Policy{Name: fmt.Sprint("quota ", i), Guard: throttle.NoGuard, Tiers: []throttle.Tier{throttle.PerSecond(100)}}
		wg.Go(func() { load{processes: 4, callers: 1 + i, policy: policy, length: *tableFor}.run(t, s) })
	}
	wg.Wait()
	size, _ := strconv.Atoi(s.Exec("SELECT pg_total_relation_size('throttle_quota')"))
	updates := s.Exec("SELECT n_tup_upd || ' updates, of which ' || n_tup_hot_upd || ' in their pages, ' || autovacuum_count || ' times vacuumed' FROM pg_stat_user_tables")
	t.Logf("%d bytes after %v: %s", size, *tableFor, updates)
	if size > 1<<20 {
		t.Errorf("the table has %d bytes", size)
	}
}

// BenchmarkBusyQuota measures what a quota of 1,000/s takes of the server, for so many processes and callers in each.
func BenchmarkBusyQuota(b *testing.B) {
	s := pgtest.Start(b, "full_page_writes = off")
	for name, policy := range busy() {
		for _, l := range []load{{1, 64, policy, 5 * time.Second}, {16, 4, policy, 5 * time.Second}} {
			b.Run(name+"/"+strconv.Itoa(l.processes)+"x"+strconv.Itoa(l.callers), func(b *testing.B) {
				u := l.run(b, s)
				b.Log(u)
			})
		}
	}
}
