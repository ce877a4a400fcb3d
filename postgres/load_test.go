package postgres_test

import (
	"context"
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
	transactions.Store(0)
	ctx, cancel := context.WithTimeout(t.Context(), l.length)
	defer cancel()
	before, start := s.WALBytes(), time.Now()
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
	wg.Wait()
	return usage{float64(admissions.Load()), float64(transactions.Load()), float64(failed.Load()), float64(s.WALBytes() - before), time.Since(start)}
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
