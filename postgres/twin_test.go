package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle/internal/kepttwin"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// TestDecidesAsLedgers compares each step of random traces with ledgers that are driven directly, at the instants of the
// server's clock.
func TestDecidesAsLedgers(t *testing.T) {
	t.Parallel()
	traces := 500
	if testing.Short() {
		traces = 50
	}
	pool, err := pgxpool.New(t.Context(), pgtest.Shared(t).NewDatabase().URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := Migrate(t.Context(), pool, Options{}); err != nil {
		t.Fatal(err)
	}
	k, err := newKeeper(pool, Options{Conns: 8, Timeout: 20 * time.Second}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	const lanes = 8
	counts := make(chan kepttwin.Count, traces)
	t.Run("traces", func(t *testing.T) {
		for lane := range lanes {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				for i := lane; i < traces && !t.Failed(); i += lanes {
					seed := uint64(1000 + i) // package store/kept plays the others in memory
					counts <- kepttwin.Run(t, kepttwin.Config{Keeper: k, Ahead: true, Window: 2 * time.Second, Seed: seed, Steps: 20})
				}
			})
		}
	})
	close(counts)
	var sum kepttwin.Count
	torn := 0
	for c := range counts {
		if sum.Add(c); c.Torn {
			torn++
		}
	}
	t.Logf("%+v, %d torn", sum, torn)
	if sum.Admitted == 0 || sum.Reserved == 0 || sum.Changes == 0 || sum.Refused == 0 || torn > traces/2 {
		t.Errorf("%+v, and %d traces ended early", sum, torn)
	}
}
