package postgres_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/storetest"
)

// openStore returns a store in a database.
func openStore(t testing.TB, db *pgtest.Database, o postgres.Options) *postgres.Store {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), db.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := postgres.Migrate(t.Context(), pool, o); err != nil {
		t.Fatal(err)
	}
	s, err := postgres.New(pool, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStore tests the contract of package store.
func TestStore(t *testing.T) {
	for name, o := range map[string]postgres.Options{"listens": {}, "polls": {PollOnly: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Shared(t)
			var tables atomic.Int64
			if o.PollOnly {
				db = db.PgBouncer()
			}
			storetest.Run(t, storetest.Config{
				Open: func(t testing.TB) store.Store {
					of := o
					of.Table = fmt.Sprintf("quota%d", tables.Add(1))
					return openStore(t, db, of)
				},
				RealTime:       true,
				Lag:            500 * time.Millisecond,
				LandsWithGuard: true,
				ReservedStays:  true,
			})
		})
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/x")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := postgres.New(nil, postgres.Options{}); err == nil {
		t.Error("no pool is accepted")
	}
	for field, o := range map[string]postgres.Options{
		"Table": {Table: "a.b.c"}, "Timeout": {Timeout: -1}, "Horizon": {Horizon: time.Microsecond}, "Lease": {Lease: -1}, "Conns": {Conns: -1},
	} {
		if _, err := postgres.New(pool, o); err == nil || !strings.Contains(err.Error(), "Options."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if n := pool.Stat().NewConnsCount(); n != 0 {
		t.Errorf("New made %d connections", n)
	}
}
