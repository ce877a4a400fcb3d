package postgres

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/apithrottle/throttle/postgres/internal/pgtest"
	"github.com/apithrottle/throttle/store/kept"
)

func TestUpdateWritesAllOrNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k := migrated(t, db.URL(), Options{})
	mustPut(t, k, "a", "old")
	calls := 0
	err := k.Update(t.Context(), names("a", "b", "c"), func(v kept.View) ([]kept.Write, error) {
		if got := string(v.Values[0]); got != "old" {
			t.Errorf("call %d finds %q", calls, got)
		}
		if calls++; calls == 1 { // another process inserts a row after this one found none
			db.Exec(`INSERT INTO throttle_quota VALUES ('b', 'theirs', 'infinity')`)
		} else if got := string(v.Values[1]); got != "theirs" || v.Values[2] != nil {
			t.Errorf("the second call finds %q and %v", got, v.Values[2])
		}
		return put("new", "mine", "new")(v)
	})
	if err != nil || calls != 2 {
		t.Fatalf("%d calls, %v", calls, err)
	}
	for name, want := range map[string]string{"a": "new", "b": "mine", "c": "new"} {
		if got := get(t, k, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestNewRowOfAnotherProcessIsFound(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k := migrated(t, db.URL(), Options{})
	calls := 0
	err := k.Update(t.Context(), names("a"), func(v kept.View) ([]kept.Write, error) {
		if calls++; calls == 1 {
			db.Exec(`INSERT INTO throttle_quota VALUES ('a', '\x0000000000000005', 'infinity')`)
		}
		return increment(v)
	})
	if got := counter(t, k, "a"); err != nil || calls != 2 || got != 6 {
		t.Errorf("%d calls, counter %d, %v", calls, got, err)
	}
}

func TestErrorOfChangeWritesNothing(t *testing.T) {
	t.Parallel()
	k := migrated(t, pgtest.Shared(t).URL(), Options{})
	mine := errors.New("mine")
	err := k.Update(t.Context(), names("a"), func(v kept.View) ([]kept.Write, error) {
		writes, _ := put("x")(v)
		return writes, mine
	})
	if err != mine {
		t.Errorf("error %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = k.Update(t.Context(), names("a"), func(kept.View) ([]kept.Write, error) { panic("mine") })
	}()
	if got := get(t, k, "a"); got != "none" {
		t.Errorf("a is %q", got)
	}
	if n := k.pool.Stat().TotalConns(); n != 1 {
		t.Errorf("%d connections: the open transactions were not rolled back", n)
	}
}

func TestProcessesLoseNoUpdate(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	// The application may have made its transactions strict.
	db.Exec("ALTER DATABASE " + db.Exec("SELECT current_database()") + " SET default_transaction_isolation = 'serializable'")
	keepers := []*keeper{migrated(t, db.URL(), Options{}), open(t, db.URL(), Options{Sync: true}), open(t, db.URL(), Options{Conns: 1})}
	const callers, each = 12, 25
	all(callers, func(i int) {
		of := [][][]byte{names("a", "b"), names("b", "c"), names("a", "b", "c"), names("b")}[i%4]
		for range each {
			if err := keepers[i%3].Update(t.Context(), of, increment); err != nil {
				t.Error(err)
				return
			}
		}
	})
	a, b, c := counter(t, keepers[0], "a"), counter(t, keepers[0], "b"), counter(t, keepers[0], "c")
	if a != callers/2*each || b != callers*each || c != callers/2*each {
		t.Errorf("counters %d, %d, %d", a, b, c)
	}
}

func TestViewHasTheTimeAfterTheLock(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k, other := migrated(t, db.URL(), Options{}), open(t, db.URL(), Options{})
	mustPut(t, k, "a", "x")
	held, free := make(chan struct{}), make(chan struct{})
	var freed time.Time
	go func() {
		<-held
		for db.Exec("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") == "0" {
			time.Sleep(time.Millisecond)
		}
		freed = time.Now()
		close(free)
	}()
	done := make(chan error)
	go func() {
		done <- k.Update(t.Context(), names("a"), func(v kept.View) ([]kept.Write, error) {
			close(held)
			<-free
			return put("y")(v)
		})
	}()
	<-held
	err := other.Update(t.Context(), names("a"), func(v kept.View) ([]kept.Write, error) {
		at := time.UnixMicro(v.Wall) // the server has this machine's clock
		if string(v.Values[0]) != "y" || at.Before(freed.Truncate(time.Microsecond)) || v.Sent.After(freed) || v.Got.Before(freed) {
			t.Errorf("%q at %v, sent %v, got %v: the row was free at %v", v.Values[0], at, v.Sent, v.Got, freed)
		}
		return nil, nil
	})
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
}

func TestWaitForALockEnds(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k, other := migrated(t, db.URL(), Options{}), open(t, db.URL(), Options{Timeout: 300 * time.Millisecond})
	mustPut(t, k, "a", "x")
	mustPut(t, other, "b", "x")
	err := k.Update(t.Context(), names("a"), func(v kept.View) ([]kept.Write, error) {
		wantError(t, other.Update(t.Context(), names("a"), put("y")), "SQLSTATE 55P03", true)
		return put("z")(v)
	})
	if got := get(t, other, "a"); err != nil || got != "z" {
		t.Errorf("a is %q, %v", got, err)
	}
	if n := other.pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were made, want 1: the server must answer before the client gives up", n)
	}
}

func TestStoppedProcessFreesItsRow(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k, stopped := migrated(t, db.URL(), Options{}), open(t, db.URL(), Options{Timeout: time.Second})
	mustPut(t, k, "a", "x")
	err := stopped.Update(t.Context(), names("a"), func(v kept.View) ([]kept.Write, error) {
		mustPut(t, k, "a", "y") // waits until the server has ended the transaction
		return put("z")(v)
	})
	wantError(t, err, "", true)
	if got := get(t, k, "a"); got != "y" {
		t.Errorf("a is %q", got)
	}
	mustPut(t, stopped, "a", "again")
}

func TestLostReplyOfCommit(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	proxy := pgtest.NewProxy(t, db)
	k := migrated(t, proxy.URL(), Options{})
	mustPut(t, k, "a", "x")
	proxy.DropReplies(2) // of a transaction's two
	wantError(t, k.Update(t.Context(), names("a"), put("y")), "", true)
	proxy.DropReplies(0)
	if got := get(t, k, "a"); got != "y" {
		t.Errorf("a is %q: the server has committed", got)
	}
}

func TestDeadConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	k := migrated(t, s.URL(), Options{})
	for _, restart := range []func(){s.Restart, func() { s.Stop(); s.Restart() }} {
		all(2, func(int) { mustPut(t, k, "a", "x") })
		restart()
		mustPut(t, k, "a", "y")
	}
}

func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	proxy := pgtest.NewProxy(t, db)
	migrated(t, proxy.URL(), Options{})
	k := open(t, proxy.URL(), Options{Timeout: 300 * time.Millisecond})
	proxy.Hang(true)
	wantError(t, k.Update(t.Context(), names("a"), put("y")), "", true)
	proxy.Hang(false)
	for end := time.Now().Add(patient); k.Update(t.Context(), names("a"), put("y")) != nil; {
		if time.Now().After(end) {
			t.Fatal("the keeper does not recover")
		}
	}
	proxy.Refuse(true)
	proxy.Cut()
	wantError(t, k.Update(t.Context(), names("a"), put("y")), "", true)
}

func TestStoreTakesItsConnectionsOnly(t *testing.T) {
	t.Parallel()
	k := migrated(t, pgtest.Shared(t).URL()+"&pool_max_conns=4", Options{})
	inside, free := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	for _, name := range []string{"a", "b", "c", "d"} {
		go func() {
			done <- k.Update(context.Background(), names(name), func(v kept.View) ([]kept.Write, error) {
				inside <- struct{}{}
				<-free
				return put("x")(v)
			})
		}()
	}
	<-inside
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := k.Update(ctx, names("e"), put("x"))
	if wantError(t, err, "canceled", true); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if n := k.pool.Stat().AcquiredConns(); n != 2 {
		t.Errorf("%d connections in use, want 2", n)
	}
	close(free)
	for range 2 {
		<-inside
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestPoolOfTheApplicationIsExhausted(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	migrated(t, db.URL(), Options{})
	k := open(t, db.URL()+"&pool_max_conns=1", Options{Timeout: 50 * time.Millisecond})
	c, err := k.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, k.Update(t.Context(), names("a"), put("x")), "no connection of the pool within Options.Timeout", true)
	c.Release()
	k.pool.Close()
	wantError(t, k.Update(t.Context(), names("a"), put("x")), "closed pool", false)
}

func TestTransactionIsTwoTrips(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	proxy := pgtest.NewProxy(t, db)
	k := migrated(t, proxy.URL(), Options{})
	for _, tt := range []struct {
		what              string
		names             [][]byte
		change            func(kept.View) ([]kept.Write, error)
		trips, statements int
	}{
		{"a new row", names("a"), put("x"), 2, 10}, // with a sweep
		{"a row", names("a"), put("x"), 2, 6},
		{"nothing to write", names("a"), func(kept.View) ([]kept.Write, error) { return nil, nil }, 2, 5},
		{"two new rows", names("b", "c"), put("x", "y"), 3, 11},
		{"three rows", names("a", "b", "c"), put("x", "y", "z"), 2, 8},
	} {
		trips, statements := proxy.Sent("QS"), proxy.Sent("QE")
		if err := k.Update(t.Context(), tt.names, tt.change); err != nil {
			t.Fatal(err)
		}
		trips, statements = proxy.Sent("QS")-trips, proxy.Sent("QE")-statements
		if trips != tt.trips || statements != tt.statements {
			t.Errorf("%s: %d trips of %d statements, want %d of %d", tt.what, trips, statements, tt.trips, tt.statements)
		}
	}
}

func TestPgBouncerThatPoolsTransactions(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	b := db.PgBouncer("default_pool_size = 2")
	keepers := []*keeper{migrated(t, b.URL(), Options{}), open(t, b.URL(), Options{}), open(t, b.URL(), Options{})}
	all(12, func(i int) {
		for range 25 {
			if err := keepers[i%3].Update(t.Context(), names("a", "b"), increment); err != nil {
				t.Error(err)
			}
		}
	})
	if a, b := counter(t, keepers[0], "a"), counter(t, keepers[0], "b"); a != 300 || b != 300 {
		t.Errorf("counters %d and %d, want 300", a, b)
	}
	if got := b.Exec("SELECT current_setting('synchronous_commit') || current_setting('lock_timeout')"); got != "on0" {
		t.Errorf("settings that stay behind: %q", got)
	}
}

func TestSweepDeletesExpiredRows(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k := migrated(t, db.URL(), Options{})
	mustPut(t, k, "alive", "x")
	db.Exec(`INSERT INTO throttle_quota VALUES ('recent', 'x', now() + interval '1 s')`)
	db.Exec(`INSERT INTO throttle_quota SELECT ('old' || i)::bytea, 'x', now() - interval '61 s' FROM generate_series(1, 60) i`)
	left := func() string {
		return db.Exec("SELECT count(*) FROM throttle_quota WHERE name::text LIKE '\\\\x6f6c64%'")
	}
	// A row that another transaction uses is left alone, and not waited for. The transaction lasts for some dozen
	// others, and the server would end it after half of the Timeout.
	err := k.Update(t.Context(), names("old7"), func(v kept.View) ([]kept.Write, error) {
		for i := 0; left() != "1"; i++ {
			if i > 5000 {
				t.Fatalf("%s rows are left", left())
			}
			mustPut(t, k, string([]byte{'n', byte(i >> 8), byte(i)}), "x")
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if get(t, k, "alive") != "x" || get(t, k, "recent") != "x" || get(t, k, "old7") != "x" {
		t.Error("a row is missing")
	}
}

func TestUpdatesStayInTheirPage(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t) // the transactions of other databases keep old versions, too
	k := migrated(t, db.URL(), Options{})
	state := string(make([]byte, 3900))
	mustPut(t, k, "a", state)
	const updates = 300
	for range updates {
		mustPut(t, k, "a", state)
	}
	for end := time.Now().Add(patient); db.Exec("SELECT n_tup_upd FROM pg_stat_user_tables") != "300"; {
		if time.Now().After(end) {
			t.Fatal("the server does not count the updates")
		}
		time.Sleep(10 * time.Millisecond)
		k.pool.Reset() // a session that ends reports what it counted
	}
	if got := db.Exec("SELECT n_tup_hot_upd >= 297 AND pg_total_relation_size('throttle_quota') < 100000 FROM pg_stat_user_tables"); got != "t" {
		t.Errorf("HOT updates: %s, bytes: %s", db.Exec("SELECT n_tup_hot_upd FROM pg_stat_user_tables"),
			db.Exec("SELECT pg_total_relation_size('throttle_quota')"))
	}
}

func TestExpiryIsKept(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k := migrated(t, db.URL(), Options{})
	mustPut(t, k, "a", "x")
	for unix, want := range map[int64]string{
		1_700_000_000_123_456: "2023-11-14 22:13:20.123456", -1: "1970-01-01 00:00:00.000000",
		math.MaxInt64: "294247-01-10 04:00:54.775807",
	} {
		err := k.Update(t.Context(), names("a"), func(kept.View) ([]kept.Write, error) {
			return []kept.Write{{Value: []byte{}, Expires: unix}}, nil
		})
		if got := db.Exec("SELECT to_char(expires AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') FROM throttle_quota WHERE name = 'a'"); err != nil || got != want {
			t.Errorf("%d is %s, want %s, %v", unix, got, want, err)
		}
		if got := get(t, k, "a"); got != "" {
			t.Errorf("the empty value is %q", got)
		}
	}
}
