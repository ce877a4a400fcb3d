package postgres_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// TestCalled checks that each transaction is told once, with the requests that it decides, and one that fails.
func TestCalled(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	openStore(t, db, postgres.Options{})
	pool, err := pgxpool.New(t.Context(), db.URL())
	if err != nil {
		t.Fatal(err)
	}
	s, err := postgres.New(pool, postgres.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan throttle.CalledInfo, 100)
	stats := observe.NewStats()
	l, err := throttle.New(throttle.Policy{
		Name: "told", Tiers: []throttle.Tier{throttle.PerHour(2)}, Guard: throttle.NoGuard,
		Observer: throttle.JoinObservers(stats.Observer(), &throttle.Observer{Called: func(i throttle.CalledInfo) { told <- i }}),
	}, s)
	if err != nil {
		t.Fatal(err)
	}
	want := func(requests int, failed bool) {
		t.Helper()
		select {
		case i := <-told:
			if i.Policy != "told" || i.Duration <= 0 || i.Unsent || i.Requests != requests || (i.Err != nil) != failed {
				t.Errorf("%+v, want %d requests, failed %v", i, requests, failed)
			}
		case <-time.After(patience):
			t.Fatal("a transaction is not told")
		}
	}
	for i := range 3 {
		if got := l.Allow(); got != (i < 2) {
			t.Fatalf("Allow is %v", got)
		}
		want(1, false)
	}
	if _, err := l.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(0, false)
	pool.Close()
	if _, err := l.TryAcquire(t.Context(), nil); err == nil {
		t.Fatal("admitted without a pool")
	}
	want(0, true)
	if len(told) > 0 {
		t.Errorf("%d more: %+v", len(told), <-told)
	}
	shows := httptest.NewRecorder()
	stats.Metrics().ServeHTTP(shows, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{`throttle_store_decisions_total{policy="told"} 3`, `outcome="ok"} 4`} {
		if !strings.Contains(shows.Body.String(), line) {
			t.Errorf("no %s in the metrics:\n%s", line, shows.Body)
		}
	}
}
