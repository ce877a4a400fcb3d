package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/storetest"
)

// newStore returns a store in a database of its own.
func newStore(t testing.TB, o postgres.Options) *postgres.Store {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), pgtest.Shared(t).URL())
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
	t.Parallel()
	storetest.Run(t, storetest.Config{
		Open:           func(t testing.TB) store.Store { return newStore(t, postgres.Options{Timeout: 20 * time.Second}) },
		RealTime:       true,
		Lag:            time.Second,
		LandsWithGuard: true,
		ReservedStays:  true,
	})
}
