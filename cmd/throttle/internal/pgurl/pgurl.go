// Package pgurl reads the URLs of PostgreSQL databases that keep quotas, and names them without their secrets.
package pgurl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle/postgres"
)

// Is reports whether a URL has the scheme of PostgreSQL.
func Is(url string) bool {
	return strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://")
}

const (
	// transactions is how many connections a process uses at a time. One more may listen.
	transactions = 2
	// idle is how long a connection stays open without use, so that a fleet at rest holds none.
	idle = 5 * time.Second
	// connect bounds the time that a connection takes, which is two minutes by default.
	connect = 10 * time.Second
)

// Parse returns the pool and the options of a URL. Parameters of the URL set options: see parameters. All
// others are those of libpq and of pgxpool, such as sslmode and pool_max_conns; what a URL lacks comes from
// variables such as PGPASSWORD, and from ~/.pgpass. An error has no part of the URL but names of parameters
// and files.
func Parse(url string) (*pgxpool.Config, postgres.Options, error) {
	var o postgres.Options
	if !Is(url) {
		return nil, o, errors.New("is not the URL of a PostgreSQL database: use postgres://USER@HOST:PORT/DATABASE")
	}
	// A password with a character that ends it elsewhere would become a part of the host or of the database, which
	// errors show.
	_, rest, _ := strings.Cut(url, "://")
	if i := strings.IndexAny(rest, "@/?"); i >= 0 && rest[i] == '@' {
		rest = rest[i+1:]
	}
	if strings.Contains(rest, "@") {
		return nil, o, errors.New("has an @ behind the user and the password: write @ / ? and # in them as %40 %2F %3F and %23")
	}
	pool, err := pgxpool.ParseConfig(url)
	var file *fs.PathError
	switch {
	case errors.As(err, &file):
		return nil, o, fmt.Errorf("names a file that cannot be read: %w", file)
	case err != nil: // the error has parts of the URL
		return nil, o, errors.New("is not the URL of a PostgreSQL database: check its port and its parameters, such as sslmode")
	}
	if err := take(pool.ConnConfig.RuntimeParams, &o); err != nil {
		return nil, o, err
	}
	if _, err := postgres.Schema(o); err != nil {
		return nil, o, errors.New("has a wrong table: it must be the name of a table, or schema.table")
	}
	keepFew(pool, &o, url)
	return pool, o, nil
}

// keepFew gives a pool few connections, and none at rest, unless the URL says otherwise.
func keepFew(pool *pgxpool.Config, o *postgres.Options, url string) {
	if !strings.Contains(url, "pool_max_conns=") {
		pool.MaxConns = transactions + 1
	}
	if !strings.Contains(url, "pool_max_conn_idle_time=") {
		pool.MaxConnIdleTime = idle
	}
	pool.HealthCheckPeriod = min(pool.HealthCheckPeriod, pool.MaxConnIdleTime)
	conn := pool.ConnConfig
	conn.ConnectTimeout = cmp.Or(conn.ConnectTimeout, connect)
	if name := "application_name"; conn.RuntimeParams[name] == "" {
		conn.RuntimeParams[name] = "throttle" // for those who look at connections
	}
	if o.Conns = int(pool.MaxConns) - 1; o.Conns == 0 {
		o.Conns, o.PollOnly = 1, true // none is left to listen
	}
}

// parameters are the parameters of a URL that set options.
var parameters = map[string]func(o *postgres.Options, value string) string{
	"table":     func(o *postgres.Options, value string) string { o.Table = value; return "" },
	"timeout":   func(o *postgres.Options, value string) string { return length(&o.Timeout, value) },
	"horizon":   func(o *postgres.Options, value string) string { return length(&o.Horizon, value) },
	"lease":     func(o *postgres.Options, value string) string { return length(&o.Lease, value) },
	"poll_only": func(o *postgres.Options, value string) string { return truth(&o.PollOnly, value) },
	"sync":      func(o *postgres.Options, value string) string { return truth(&o.Sync, value) },
}

// take moves the parameters that set options out of those for the server, which refuses parameters that it does
// not know.
func take(from map[string]string, o *postgres.Options) error {
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		value, ok := from[name]
		if delete(from, name); !ok {
			continue
		}
		if wrong := parameters[name](o, value); wrong != "" {
			return fmt.Errorf("has a wrong %s: %s", name, wrong)
		}
	}
	return nil
}

func length(option *time.Duration, value string) string {
	d, err := time.ParseDuration(value)
	if *option = d; err != nil || d < time.Millisecond {
		return "it must be a length of time from 1ms, such as 500ms or 2s"
	}
	return ""
}

func truth(option *bool, value string) string {
	is, err := strconv.ParseBool(value)
	if *option = is; err != nil {
		return "it must be true or false"
	}
	return ""
}

// Where names the server of a URL.
func Where(url string) string {
	pool, _, err := Parse(url)
	if err != nil {
		return "PostgreSQL"
	}
	c := pool.ConnConfig
	if strings.HasPrefix(c.Host, "/") { // the directory of a socket
		return "PostgreSQL at " + c.Host
	}
	return "PostgreSQL at " + net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
}

// Ping opens a connection and closes it. The error has one line and no password. It has the user or the database
// only where the server names them.
func Ping(ctx context.Context, url string) error {
	pool, _, err := Parse(url)
	if err != nil {
		return err
	}
	conn, err := pgconn.ConnectConfig(ctx, &pool.ConnConfig.Config)
	if err == nil {
		return conn.Close(ctx)
	}
	var failed *pgconn.ConnectError
	if !errors.As(err, &failed) || ctx.Err() != nil {
		return cmp.Or(ctx.Err(), err)
	}
	tries := strings.Split(failed.Unwrap().Error(), "\n")              // of all addresses, the last with and without TLS
	_, dial, found := strings.Cut(tries[len(tries)-1], "dial error: ") // behind the address, which it has, too
	if !found {
		dial = tries[len(tries)-1]
	}
	return errors.New(dial)
}
