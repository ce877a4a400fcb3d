package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

func TestFaults(t *testing.T) {
	t.Parallel()
	fleets := make(chan struct{}, 6) // more at once are slowed down by each other
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"killed with Sync", func(t *testing.T) { killed(t, true, 0) }},
		{"killed", func(t *testing.T) { killed(t, false, lossy) }},
		{"stopped", stopped},
		{"process stopped in a transaction", processStopped},
		{"refused", refused},
		{"replies lost", repliesLost},
		{"far", far},
		{"clock back", func(t *testing.T) { clock(t, -30*time.Second, 0) }},
		{"clock forward", func(t *testing.T) { clock(t, 30*time.Second, lossy) }},
		{"failover", failover},
		{"PgBouncer restarts", bouncerRestarts},
		{"table dropped", tableDropped},
		{"rows truncated", func(t *testing.T) { rowsGone(t, "TRUNCATE throttle_quota") }},
		{"rows deleted", func(t *testing.T) { rowsGone(t, "DELETE FROM throttle_quota") }},
		{"older state", olderState},
		{"disk full", diskFull},
		{"statement_timeout", func(t *testing.T) { ownSetting(t, "statement_timeout = '20ms'") }},
		{"lock_timeout", func(t *testing.T) { ownSetting(t, "lock_timeout = '1ms'") }},
		{"idle in transaction", func(t *testing.T) { ownSetting(t, "idle_in_transaction_session_timeout = '1ms'") }},
		{"idle session", func(t *testing.T) { ownSetting(t, "idle_session_timeout = '20ms'") }},
		{"serializable", func(t *testing.T) { ownSetting(t, "default_transaction_isolation = 'serializable'") }},
		{"read only", readOnlyForAWhile},
		{"pool shared", poolShared},
		{"no connection free", noConnectionFree},
		{"no rights", noRights},
		{"password replaced", passwordReplaced},
		{"sessions ended", sessionsEnded},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			soak.Long(t, "takes many seconds of real time")
			fleets <- struct{}{}
			defer func() { <-fleets }()
			test.run(t)
		})
	}
}

func killed(t *testing.T, sync bool, most int) {
	s := pgtest.Start(t, "wal_writer_delay = 10s") // so that something is lost
	f := startFleet(t, &s.Database, crew{url: to(s.URL()), options: Options{Sync: sync}})
	s.Restart()
	f.finish(fmt.Sprintf("kill -9 and restart, Sync %v", sync), time.Now(), most)
	if n := f.lost.Load(); sync && n > 0 {
		t.Errorf("got %d calls of OnLost, want none", n)
	}
}

func stopped(t *testing.T) {
	s := pgtest.Start(t)
	f := startFleet(t, &s.Database, crew{url: to(s.URL())})
	s.Suspend()
	time.Sleep(2 * time.Second)
	s.Continue()
	f.finish("SIGSTOP of the server for 2 s", time.Now(), 0)
}

// The process holds the row, and its connection stays open.
func processStopped(t *testing.T) {
	db := pgtest.Shared(t)
	f := startFleet(t, db, crew{url: to(db.URL())})
	k := open(t, db.URL(), Options{Timeout: time.Second})
	var began time.Time
	err := k.Update(context.Background(), [][]byte{kept.Name("fleet")}, func(v kept.View) ([]kept.Write, error) {
		if v.Values[0] == nil {
			t.Error("the fleet has another name")
		}
		began = time.Now()
		waitUntil(t, "the others go on", func() bool {
			now := time.Now()
			return now.Sub(began) > 2*time.Second && f.between(now.Add(-time.Second/2), now) > 3
		})
		return []kept.Write{{Value: []byte("stale"), Expires: later()}}, nil
	})
	wantError(t, err, "", true)
	f.finish("SIGSTOP of a process within its transaction", began, 0)
}

func refused(t *testing.T) {
	db := pgtest.Shared(t)
	proxy := pgtest.NewProxy(t, db)
	f := startFleet(t, db, crew{url: to(proxy.URL())})
	proxy.Refuse(true)
	proxy.Cut()
	began := time.Now()
	f.checkUnavailable("connection refused", errNoConnection.Error())
	time.Sleep(time.Until(began.Add(5 * time.Second)))
	proxy.Refuse(false)
	f.finish("connections refused for 5 s", time.Now(), 0)
}

func repliesLost(t *testing.T) {
	db := pgtest.Shared(t)
	proxy := pgtest.NewProxy(t, db)
	f := startFleet(t, db, crew{url: to(proxy.URL())})
	proxy.DropReplies(3)
	began := time.Now()
	time.Sleep(5 * time.Second)
	n := f.between(began, time.Now())
	if n == 0 {
		t.Error("got no admission while each third reply was lost")
	}
	proxy.DropReplies(0)
	f.finish(fmt.Sprintf("every third reply lost (%d of %d meanwhile)", n, steady(5*time.Second)), time.Now(), 0)
}

func far(t *testing.T) {
	db := pgtest.Shared(t)
	proxy := pgtest.NewProxy(t, db)
	f := startFleet(t, db, crew{url: to(proxy.URL())})
	proxy.SetDelay(100 * time.Millisecond)
	began := time.Now()
	time.Sleep(5 * time.Second)
	n := f.between(began, time.Now())
	if n == 0 {
		t.Error("got no admission from afar")
	}
	proxy.SetDelay(0)
	f.finish(fmt.Sprintf("100 ms each way (%d of %d meanwhile)", n, steady(5*time.Second)), time.Now(), 0)
}

func clock(t *testing.T, by time.Duration, most int) {
	s, step := pgtest.StartWithClock(t)
	f := startFleet(t, &s.Database, crew{url: to(s.URL())})
	step(by)
	f.finish("the clock steps by "+by.String(), time.Now(), most)
}

// The processes know both servers, and connect to the one that writes.
func failover(t *testing.T) {
	s := pgtest.Start(t)
	r := s.Replica()
	u, _ := url.Parse(s.URL())
	u.Host += "," + r.Addr()
	u.RawQuery += "&target_session_attrs=read-write"
	f := startFleet(t, &r.Database, crew{url: to(u.String())})
	s.Kill()
	r.Promote()
	f.finish("failover to a promoted replica", time.Now(), lossy)
}

func bouncerRestarts(t *testing.T) {
	db := pgtest.Shared(t)
	b := db.PgBouncer("default_pool_size = 3", "server_login_retry = 1")
	f := startFleet(t, db, crew{url: to(b.URL()), options: Options{PollOnly: true}, pooled: true})
	b.RestartPgBouncer()
	f.finish("PgBouncer restarts", time.Now(), 0)
}

// isFinal returns a function that reports whether an error contains a text and is final.
func isFinal(text string) func(error) bool {
	return func(err error) bool {
		return strings.Contains(err.Error(), text) && !errors.Is(err, store.ErrUnavailable)
	}
}

func tableDropped(t *testing.T) {
	db := pgtest.Shared(t)
	f := startFleet(t, db, crew{url: to(db.URL()), expects: isFinal("call Migrate")})
	db.Exec("DROP TABLE throttle_quota")
	f.checkErrors()
	if err := Migrate(t.Context(), f.members[0].pool, Options{Timeout: patient}); err != nil {
		t.Fatal(err)
	}
	over := time.Now()
	f.checkLost()
	f.finish("DROP TABLE, Migrate", over, lossy)
}

func rowsGone(t *testing.T, sql string) {
	db := pgtest.Shared(t)
	f := startFleet(t, db, crew{url: to(db.URL())})
	db.Exec(sql)
	over := time.Now()
	f.checkLost()
	f.finish(sql, over, lossy)
	if n := f.lost.Load(); n != 3 {
		t.Errorf("got %d calls of OnLost, want 3, one for each process", n)
	}
}

func olderState(t *testing.T) {
	db := pgtest.Shared(t)
	f := startFleet(t, db, crew{url: to(db.URL())})
	db.Exec("CREATE TABLE backup AS SELECT * FROM throttle_quota")
	began := time.Now()
	waitUntil(t, "more is admitted", func() bool { return f.between(began, time.Now()) > 2*limit })
	db.Exec("UPDATE throttle_quota q SET state = b.state, expires = b.expires FROM backup b WHERE q.name = b.name")
	over := time.Now()
	f.checkLost()
	f.finish("an older state is restored", over, lossy)
	if n := f.lost.Load(); n != 3 {
		t.Errorf("got %d calls of OnLost, want 3, one for each process", n)
	}
}

// Nothing can be written, so that the server fails to write its log and restarts, until there is room.
func diskFull(t *testing.T) {
	s := pgtest.Start(t, "restart_after_crash = on")
	f := startFleet(t, &s.Database, crew{url: to(s.URL()), options: Options{Sync: true}})
	s.LimitFiles(0)
	began := time.Now()
	f.checkUnavailable("the database system is", "the disk of the server is full", "File too large", "connection refused", "EOF", "reset")
	s.LimitFiles(-1)
	if !s.Answers() {
		s.Restart()
	}
	f.finish(fmt.Sprintf("the disk is full for %v", time.Since(began).Round(time.Second)), time.Now(), 0)
}

// set changes a setting of the fleet's role in the database for new sessions, and ends those of the fleet.
func set(admin *pgtest.Database, role, setting string) {
	admin.Exec("ALTER ROLE " + role + " IN DATABASE " + admin.Exec("SELECT current_database()") + " " + setting)
	endSessions(admin)
}

func endSessions(admin *pgtest.Database) {
	admin.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fleet' AND datname = current_database()")
}

// ownSetting gives the role a setting, which each transaction has for itself.
func ownSetting(t *testing.T, setting string) {
	db := pgtest.Shared(t)
	name, address := role(t, db, "secret")
	f := startFleet(t, db, crew{url: to(address)})
	set(db, name, "SET "+setting)
	f.finish(setting, time.Now(), 0)
}

func readOnlyForAWhile(t *testing.T) {
	db := pgtest.Shared(t)
	name, address := role(t, db, "secret")
	f := startFleet(t, db, crew{url: to(address)})
	set(db, name, "SET default_transaction_read_only = on")
	f.checkUnavailable("the database is read only")
	set(db, name, "RESET ALL")
	f.finish("default_transaction_read_only for a while", time.Now(), 0)
}

// The application has the whole pool for some seconds.
func poolShared(t *testing.T) {
	db := pgtest.Shared(t)
	f := startFleet(t, db, crew{url: to(db.URL() + "&pool_max_conns=2")})
	var all []*pgxpool.Conn
	for _, m := range f.members {
		for range 2 {
			c, err := m.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
	}
	f.checkUnavailable("no connection of the pool within Options.Timeout")
	for _, c := range all {
		c.Release()
	}
	f.finish("the application holds both connections of the pool", time.Now(), 0)
}

func noConnectionFree(t *testing.T) {
	s := pgtest.Start(t, "max_connections = 20")
	_, address := role(t, &s.Database, "secret")
	f := startFleet(t, &s.Database, crew{url: to(address)})
	ctx, end := context.WithCancel(t.Context())
	var held sync.WaitGroup
	for range 30 { // that want the 17 connections of those who are no superusers
		held.Go(func() {
			for ctx.Err() == nil {
				if c, err := pgx.Connect(ctx, address); err == nil {
					<-ctx.Done()
					c.Close(context.Background())
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	endSessions(&s.Database)
	f.checkUnavailable("use PgBouncer")
	end()
	held.Wait()
	f.finish("no connection of the server is free", time.Now(), 0)
}

// role makes a role with the least rights for one test, and the table. It returns the URL of the role.
func role(t *testing.T, db *pgtest.Database, password string) (name, address string) {
	t.Helper()
	migrated(t, db.URL(), Options{})
	name = "role_" + db.Exec("SELECT current_database()")
	db.Exec("CREATE ROLE " + name + " LOGIN PASSWORD '" + password + "';" + grant + name)
	t.Cleanup(func() { db.Exec("DROP OWNED BY " + name + "; DROP ROLE " + name) })
	return name, db.As(name, password).URL()
}

const grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON throttle_quota TO "

func noRights(t *testing.T) {
	db := pgtest.Shared(t)
	name, address := role(t, db, "secret")
	f := startFleet(t, db, crew{url: to(address), expects: isFinal("GRANT USAGE on the schema and SELECT, INSERT, UPDATE, DELETE")})
	db.Exec("REVOKE UPDATE ON throttle_quota FROM " + name)
	f.checkErrors()
	db.Exec(grant + name)
	f.finish("the role has no right to UPDATE for a while", time.Now(), 0)
}

// The password is replaced, and all sessions end, so that each process connects with the new one.
func passwordReplaced(t *testing.T) {
	db := pgtest.Shared(t)
	var password atomic.Value
	password.Store("canary0")
	name, address := role(t, db, "canary0")
	var leaked atomic.Int64
	f := startFleet(t, db, crew{
		url: to(address),
		configure: func(c *pgxpool.Config) {
			c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
				c.Password = password.Load().(string)
				return nil
			}
		},
		expects: func(err error) bool {
			if strings.Contains(fmt.Sprintf("%v %+v", err, err), "canary") {
				leaked.Add(1)
			}
			return isFinal("the server refused the role or its password")(err)
		},
	})
	db.Exec("ALTER ROLE " + name + " PASSWORD 'canary1'")
	endSessions(db)
	f.checkErrors()
	password.Store("canary1")
	f.finish("the password is replaced", time.Now(), 0)
	if leaked.Load() > 0 {
		t.Errorf("%d of %d errors contain a password", leaked.Load(), f.expected)
	}
}

func sessionsEnded(t *testing.T) {
	db := pgtest.Shared(t)
	f := startFleet(t, db, crew{url: to(db.URL())})
	began := time.Now()
	for time.Since(began) < 4*time.Second {
		endSessions(db)
		time.Sleep(200 * time.Millisecond)
	}
	n := f.between(began, time.Now())
	if n == 0 {
		t.Error("got no admission while sessions end")
	}
	f.finish(fmt.Sprintf("all sessions end every 200 ms (%d of %d meanwhile)", n, steady(4*time.Second)), time.Now(), 0)
}
