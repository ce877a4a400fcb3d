package postgres_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// sameSQL is what a transaction of a store sends, for pgbench.
const sameSQL = `
\startpipeline
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT pg_is_in_recovery(), set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '45000', true), set_config('statement_timeout', '60000', true), set_config('idle_in_transaction_session_timeout', '30000', true);
SELECT name, state FROM throttle_quota WHERE name = ANY(ARRAY['\x00'::bytea]) ORDER BY name FOR UPDATE;
SELECT clock_timestamp();
\endpipeline
\startpipeline
UPDATE throttle_quota SET state = decode(repeat('5a', 100), 'hex'), expires = clock_timestamp() + interval '1 hour' WHERE name = '\x00'::bytea;
COMMIT;
\endpipeline
`

// BenchmarkSaturated compares the transactions of processes that admit one request each, through the whole store, with
// the same SQL by pgbench, before and after.
func BenchmarkSaturated(b *testing.B) {
	s := pgtest.Start(b)
	openStore(b, &s.Database, postgres.Options{}) // creates the table
	s.Exec(`INSERT INTO throttle_quota VALUES ('\x00', '\x5a', now())`)
	for _, processes := range []int{1, 4, 16} {
		b.Run(strconv.Itoa(processes), func(b *testing.B) {
			var limiters []*throttle.Limiter
			for range processes {
				l, err := throttle.New(throttle.Policy{
					Name: "saturated", Guard: throttle.NoGuard, Tiers: []throttle.Tier{{Limit: 1e9, Window: time.Second, Algorithm: throttle.GCRA}},
				}, openStore(b, &s.Database, postgres.Options{Timeout: time.Minute}))
				if err != nil {
					b.Fatal(err)
				}
				if !l.Allow() {
					b.Fatal("refused")
				}
				limiters = append(limiters, l)
			}
			before := pgbench(b, s, processes)
			b.ResetTimer()
			var wg sync.WaitGroup
			for i, l := range limiters {
				wg.Go(func() {
					for j := i; j < b.N; j += processes {
						if !l.Allow() {
							b.Error("refused")
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			rate := float64(b.N) / b.Elapsed().Seconds()
			b.ReportMetric(rate, "tx/s")
			b.ReportMetric(2*rate/(before+pgbench(b, s, processes)), "of-pgbench")
		})
	}
}

// pgbench returns the transactions in a second of so many clients.
func pgbench(b *testing.B, s *pgtest.Server, clients int) float64 {
	n := strconv.Itoa(clients)
	cmd := s.Command("pgbench", "-n", "-M", "extended", "-c", n, "-j", n, "-T", "2", "-f", "-", s.URL())
	cmd.Stdin = strings.NewReader(sameSQL)
	out, err := cmd.CombinedOutput()
	found := regexp.MustCompile(`tps = ([0-9.]+)`).FindSubmatch(out)
	if err != nil || found == nil {
		b.Fatal(fmt.Errorf("pgbench: %w\n%s", err, out))
	}
	rate, _ := strconv.ParseFloat(string(found[1]), 64)
	return rate
}
