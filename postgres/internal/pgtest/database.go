package pgtest

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A Database is one database of a server, with the right to do everything there.
type Database struct {
	t                    testing.TB
	addr                 string
	user, password, name string

	bouncer *process    // the PgBouncer that it is behind, or nil
	restart func() bool // starts it again
}

// shared is the server of Shared.
var shared struct {
	mu     sync.Mutex // guards server
	server *Server
}

// databases counts those of NewDatabase, which have their number as their name.
var databases atomic.Int64

// Shared returns an empty database in a server that all tests of the process share. What a server has once
// is shared, too: a test that creates a role gives it a name of its own, and drops it.
func Shared(t testing.TB) *Database {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		shared.server = launch(t, nil, []string{"max_connections = 500"})
	}
	postgres := shared.server.Database
	postgres.t = t
	return postgres.NewDatabase()
}

// NewDatabase returns an empty database in the same server. It is dropped with the test.
func (d *Database) NewDatabase() *Database {
	d.t.Helper()
	created := *d
	created.name = fmt.Sprintf("test%d", databases.Add(1))
	d.Exec("CREATE DATABASE " + created.name + " TEMPLATE template0")
	d.t.Cleanup(func() { _, _ = d.try("DROP DATABASE "+created.name+" WITH (FORCE)", 5*time.Second) }) // of a server that answers
	return &created
}

// As returns the database with the rights of another role.
func (d *Database) As(role, password string) *Database {
	as := *d
	as.user, as.password = role, password
	return &as
}

// URL returns the URL of the database, with a password.
func (d *Database) URL() string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(d.user, d.password),
		Host:     d.addr,
		Path:     d.name,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Addr returns the host and port of the server.
func (d *Database) Addr() string { return d.addr }

// Port returns the port of the server.
func (d *Database) Port() string {
	_, port, _ := net.SplitHostPort(d.addr)
	return port
}

// Exec executes SQL, which may be several statements, on a new connection. It returns the first value
// of the last result as text, or "" if there is none. The statements must not fail.
func (d *Database) Exec(sql string) string {
	d.t.Helper()
	value, err := d.try(sql, timeout)
	if err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func (d *Database) try(sql string, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := pgconn.Connect(ctx, d.URL())
	if err != nil {
		return "", err
	}
	defer c.Close(ctx)
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil || len(results) == 0 {
		return "", err
	}
	if last := results[len(results)-1]; len(last.Rows) > 0 && len(last.Rows[0]) > 0 {
		return string(last.Rows[0][0]), nil
	}
	return "", nil
}
