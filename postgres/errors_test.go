package postgres

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle/postgres/internal/pgtest"
	"github.com/apithrottle/throttle/store/kept"
)

func TestDroppedTableIsNamedUntilMigrate(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k := migrated(t, db.URL(), Options{})
	mustPut(t, k, "a", "x")
	db.Exec("DROP TABLE throttle_quota")
	for range 2 {
		wantError(t, k.Update(t.Context(), names("a"), put("y")), "call Migrate", false)
	}
	if err := Migrate(t.Context(), k.pool, Options{}); err != nil {
		t.Fatal(err)
	}
	if got := get(t, k, "a"); got != "none" {
		t.Errorf("a is %q", got)
	}
}

func TestReplicaIsRefused(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	k := migrated(t, s.URL(), Options{})
	mustPut(t, k, "a", "x")
	r := s.Replica()
	on := open(t, r.URL(), Options{})
	wantError(t, on.Update(t.Context(), names("a"), put("y")), "the server is a read replica: connect to the primary", false)
	r.Promote()
	for end := time.Now().Add(patient); on.Update(t.Context(), names("a"), put("y")) != nil; {
		if time.Now().After(end) {
			t.Fatal("a promoted replica is refused")
		}
	}
}

func TestServerThatBecomesReadOnlyIsAway(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k, late := migrated(t, db.URL(), Options{}), open(t, db.URL(), Options{})
	mustPut(t, k, "a", "x")
	set := "ALTER DATABASE " + db.Exec("SELECT current_database()") + " SET default_transaction_read_only = "
	db.Exec(set + "on")
	k.pool.Reset()
	wantError(t, k.Update(t.Context(), names("a"), put("y")), "the database is read only", true)
	wantError(t, late.Update(t.Context(), names("a"), put("y")), "the database is read only", false)
}

func TestLeastRights(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	migrated(t, db.URL(), Options{})
	role := "least_" + db.Exec("SELECT current_database()")
	db.Exec("CREATE ROLE " + role + " LOGIN PASSWORD 'secret'")
	t.Cleanup(func() { db.Exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	u, _ := url.Parse(db.URL())
	u.User = url.UserPassword(role, "secret")
	var logged bytes.Buffer
	k := open(t, u.String(), Options{Log: slog.New(slog.NewTextHandler(&logged, nil))})
	for _, right := range []string{"SELECT", "UPDATE", "INSERT", "DELETE"} {
		if right != "DELETE" { // only the sweep deletes
			wantError(t, k.Update(t.Context(), names("a"), put("x")), "GRANT USAGE on the schema and SELECT, INSERT, UPDATE, DELETE", false)
		} else {
			mustPut(t, k, "a", "x")
			mustPut(t, k, "b", "x")
			if n := strings.Count(logged.String(), "expired rows are not deleted"); n != 1 {
				t.Errorf("%d warnings:\n%s", n, &logged)
			}
		}
		db.Exec("GRANT " + right + " ON throttle_quota TO " + role)
	}
	mustPut(t, k, "a", "y")
	if err := Migrate(t.Context(), k.pool, Options{}); err != nil {
		t.Errorf("Migrate needs no right to create a table that exists: %v", err)
	}
	wantError(t, Migrate(t.Context(), k.pool, Options{Table: "pg_catalog.more"}), "SQLSTATE 42501", false)
}

func TestRowLevelSecurityIsAnError(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	k := migrated(t, db.URL(), Options{})
	mustPut(t, k, "a", "x")
	db.Exec(`CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER nothing BEFORE UPDATE ON throttle_quota FOR EACH ROW EXECUTE FUNCTION nothing()`)
	wantError(t, k.Update(t.Context(), names("a"), put("y")), "row-level security or a trigger", false)
}

// TestPasswordThatEndsTheHost checks that a password which is not escaped in a URL, so that pgx takes a part of it
// for the name of the database, is refused without that part.
func TestPasswordThatEndsTheHost(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]error{
		"postgres://u:1/canary@h/d":                       errStrayAt,
		"postgresql://u:ca@1/canary@h/d?sslmode=disable":  errStrayAt,
		"postgres://u:ca%2F%40nary@h/d":                   nil,
		"postgres://u@h/a%40b?application_name=a@b":       nil,
		"user=u password='://a/canary@b' host=h dbname=d": nil,
	} {
		pool, err := pgxpool.New(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if _, err := New(pool, Options{}); err != want {
			t.Errorf("%s: New returns %v, want %v", address, err, want)
		}
		if err := Migrate(t.Context(), pool, Options{Timeout: time.Millisecond}); (err == errStrayAt) != (want == errStrayAt) {
			t.Errorf("%s: Migrate returns %v", address, err)
		}
	}
}

func TestPasswordsStayOutOfErrors(t *testing.T) {
	t.Parallel()
	const canary = "canary"
	db := pgtest.Shared(t)
	proxy := pgtest.NewProxy(t, db)
	var logged bytes.Buffer
	o := Options{Timeout: time.Second, Log: slog.New(slog.NewTextHandler(&logged, nil))}
	errs := func(address string) (errs []error) {
		k := open(t, address, o)
		errs = append(errs, k.Update(t.Context(), names("a"), put("x")), Migrate(t.Context(), k.pool, o))
		return append(errs, listeningKeeper{k}.Listen(t.Context(), func([]byte) {}))
	}
	with := func(user, host, path string) string {
		u := url.URL{Scheme: "postgres", User: url.UserPassword(user, canary), Host: host, Path: path, RawQuery: "sslmode=disable"}
		return u.String()
	}
	user, _ := url.Parse(db.URL())
	var got []error
	got = append(got, errs(with(user.User.Username(), db.Addr(), user.Path))...) // a wrong password
	for _, err := range got {
		wantError(t, err, "the server refused the role or its password", false)
	}
	got = append(got, errs(with("nobody", "127.0.0.1:1", "x"))...)
	got = append(got, errs(strings.Replace(with("nobody", db.Addr(), "x"), "disable", "require", 1))...)
	proxy.Hang(true)
	got = append(got, errs(with("nobody", proxy.Addr(), "x"))...)
	for _, err := range got {
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), canary) || strings.Contains(err.Error(), "://") {
			t.Errorf("error %v", err)
		}
	}
	if strings.Contains(logged.String(), canary) {
		t.Errorf("log:\n%s", &logged)
	}
	proxy.Hang(false)
}

func TestMissingDatabaseIsNamed(t *testing.T) {
	t.Parallel()
	u, _ := url.Parse(pgtest.Shared(t).URL())
	u.Path = "missing"
	k := open(t, u.String(), Options{})
	wantError(t, k.Update(t.Context(), names("a"), put("x")), "the database does not exist", false)
}

func TestServerWithTooManyConnections(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, "max_connections = 6", "superuser_reserved_connections = 0", "max_wal_senders = 0")
	k := migrated(t, s.URL(), Options{})
	err := k.Update(t.Context(), names("a"), func(v kept.View) ([]kept.Write, error) {
		other := open(t, s.URL()+"&pool_max_conns=9", Options{})
		var err error
		for err == nil {
			var c *pgxpool.Conn
			if c, err = other.pool.Acquire(t.Context()); err == nil {
				defer c.Release()
			}
		}
		wantError(t, other.explain(err), "lower MaxConns of the pools, or use PgBouncer", true)
		return put("x")(v)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestErrorsAreTransientOrNot(t *testing.T) {
	k := open(t, "postgres://nobody@127.0.0.1:1/x", Options{})
	for code, want := range map[string]bool{
		"08006": true, "08P01": true, "25P03": true, "25P04": true, "40001": true, "40P01": true, "53100": true, "53200": true,
		"53300": true, "55P03": true, "57014": true, "57P01": true, "57P02": true, "57P03": true, "58030": true, "XX000": true,
		"25006": false, "28P01": false, "28000": false, "3D000": false, "3F000": false, "42501": false, "42601": false,
		"42703": false, "42804": false, "42P01": false, "42P10": false, "55000": false, "XX001": false, "22P02": false,
	} {
		err := &pgconn.PgError{Severity: "ERROR", Message: "m", Code: code}
		for _, err := range []error{err, fmt.Errorf("more: %w", err)} {
			wantError(t, k.explain(err), "SQLSTATE "+code, want)
		}
	}
	for _, err := range []error{io.ErrUnexpectedEOF, context.DeadlineExceeded, errors.New("connection refused")} {
		wantError(t, k.explain(err), "postgres: table", true)
	}
	wantError(t, k.explain(&tls.CertificateVerificationError{Err: errors.New("unknown authority")}), "unknown authority", false)
	wantError(t, k.explain(&pgconn.PgError{Code: "53100"}), "free space", true)
}

func TestServerThatCannotWrite(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	k := migrated(t, s.URL(), Options{Sync: true})
	mustPut(t, k, "a", "x")
	s.LimitFiles(0)
	failed := 0
	for range 20 {
		if err := k.Update(t.Context(), names("a"), put("y")); err != nil {
			failed++
			wantError(t, err, "", true)
		}
	}
	if failed == 0 {
		t.Error("the server wrote")
	}
	s.LimitFiles(-1)
	s.Restart()
	mustPut(t, k, "a", "z")
}
