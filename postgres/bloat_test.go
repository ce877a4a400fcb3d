package postgres

import (
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// A transaction of another session that stays open keeps all old versions of a row: no update can stay in its
// page, and each has to find the row among them. Ten minutes of 40 transactions/s are 24,000, for which the
// table had 6 MB. The test makes fewer, because the size grows with their number.
func TestOpenTransactionOfAnotherSession(t *testing.T) {
	t.Parallel()
	soak.Long(t, "takes seconds of real time")
	const updates = 2000
	s := pgtest.Start(t)
	k := migrated(t, s.URL(), Options{})
	state := string(make([]byte, 200))
	run := func(n int) (perSecond int) {
		began := time.Now()
		for range n {
			mustPut(t, k, "a", state)
		}
		return int(float64(n) / time.Since(began).Seconds())
	}
	size := func() int {
		n, err := strconv.Atoi(s.Exec("SELECT pg_total_relation_size('throttle_quota')"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	run(300)
	before, sizeBefore := run(300), size()
	other, err := k.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err == nil {
		_, err = other.Exec(t.Context(), "SELECT 1")
	}
	if err != nil {
		t.Fatal(err)
	}
	run(updates - 300)
	during, sizeDuring := run(300), size()
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(300)
	after := run(300)
	s.Exec("VACUUM throttle_quota")
	vacuumed := run(300)
	t.Logf("| %d updates | %d to %d KB | %d tx/s before, %d at the end, %d after it, %d after VACUUM |",
		updates, sizeBefore/1024, sizeDuring/1024, before, during, after, vacuumed)
	if most := updates * 1000; sizeDuring > most {
		t.Errorf("the table has %d bytes, want %d at most", sizeDuring, most)
	}
	if grown := size() - sizeDuring; grown > 100_000 {
		t.Errorf("the table grows by %d bytes without the transaction", grown)
	}
}
