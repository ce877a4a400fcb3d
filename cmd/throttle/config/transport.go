package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/pgurl"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/host"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/postgres"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// OpenStore opens the store of the file: Redis, PostgreSQL, a file, or without all of them the memory of
// this process. Close the closer after the last request. It returns unused reservations to the server, for
// at most five seconds. OpenStore does not connect to a server: without it, requests wait.
//
// A store outlives a Config: pass it to the Transport of the next one, and what is charged stays
// charged. See [Changes.Store].
func (c *Config) OpenStore() (throttle.Store, io.Closer, error) {
	switch {
	case !c.Store.Redis.IsZero():
		o, err := redis.ParseURL(c.Store.Redis.Reveal())
		if err != nil { // the error has the URL, and so the password
			return nil, nil, errors.New("config: store.redis is not the URL of a Redis server")
		}
		rdb := redis.NewClient(o)
		s := distributed.New(rdb, distributed.Options{
			Prefix: c.Store.Prefix, Timeout: c.Store.Timeout, Fallback: distributed.Fallback{Workers: c.Store.Fallback.Workers}, Log: c.Log,
		})
		return s, flushing{s, rdb.Close}, nil
	case !c.Store.Postgres.IsZero():
		return c.openPostgres()
	case c.Store.File != "":
		s, err := host.Open(c.Store.File)
		if err != nil {
			return nil, nil, fmt.Errorf("config: store.file: %w", err)
		}
		return s, s, nil
	}
	return &local.Store{Replan: true}, io.NopCloser(nil), nil
}

// openPostgres opens the store of a table of PostgreSQL, with a pool of its own.
func (c *Config) openPostgres() (throttle.Store, io.Closer, error) {
	of, o, err := pgurl.Parse(c.Store.Postgres.Reveal())
	if err != nil {
		return nil, nil, fmt.Errorf("config: store.postgres %w", err)
	}
	o.Table, o.Timeout = cmp.Or(c.Store.Table, o.Table), cmp.Or(c.Store.Timeout, o.Timeout)
	o.Horizon, o.Lease = cmp.Or(c.Store.Horizon, o.Horizon), cmp.Or(c.Store.Lease, o.Lease)
	o.PollOnly, o.Sync, o.Log = c.Store.PollOnly || o.PollOnly, c.Store.Sync || o.Sync, c.Log
	pool, err := pgxpool.NewWithConfig(context.Background(), of)
	if err != nil {
		return nil, nil, fmt.Errorf("config: store.postgres: %w", err)
	}
	s, err := postgres.New(pool, o)
	if err != nil {
		pool.Close()
		return nil, nil, fmt.Errorf("config: store: %w", err)
	}
	return s, flushing{s, func() error { pool.Close(); return nil }}, nil
}

// flushing is the closer of a store that has to report to its server before the connections close.
type flushing struct {
	store interface{ Flush(context.Context) error }
	close func() error
}

func (f flushing) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(f.store.Flush(ctx), f.close())
}

// Transport returns a transport that keeps to the limits of a route: those of its preset or policy,
// its budget, and the limits of the client of a request. The route is named by its prefix, such as
// "/openai". The transport takes requests to the API itself. It neither sets headers and parameters
// nor removes them: do so before, because the account of a request may be in them. Its Base is nil,
// which Base may fill, and its AttemptTimeout is the route's Timeout.
//
// Of a route with a pool, the transport takes requests to the first member. Its Base is a [*Pool], which
// sends them to the members with their credentials, and whose Base may be filled.
//
// With a nil store, the transport has quotas of its own. Then the limits of a client count the
// requests of this transport alone. A program that reads its file again uses [Config.Transports].
func (c *Config) Transport(prefix string, s throttle.Store) (*throttle.Transport, error) {
	r := c.Routes[prefix]
	if r == nil {
		return nil, fmt.Errorf("config: no route has the prefix %q: the routes are %s", prefix, list(slices.Sorted(maps.Keys(c.Routes)), "and"))
	}
	if s == nil {
		s = local.New()
	}
	q, err := c.open(r, s)
	if err != nil {
		return nil, fmt.Errorf("config: routes.%s: %w", prefix, err)
	}
	return q.transport, nil
}

// Base returns a new http.Transport with the Timeouts, for the Base of transports.
func (c *Config) Base() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	dialer := &net.Dialer{Timeout: c.Timeouts.Connect, KeepAlive: 30 * time.Second}
	t.DialContext = dialer.DialContext
	t.TLSHandshakeTimeout = c.Timeouts.Connect
	t.ResponseHeaderTimeout = c.Timeouts.ResponseHeader
	return t
}

type clientKey struct{}

// WithClient returns a context whose requests are of a client of the file, by its name. A Transport
// then counts them in the budget of the client. The class is the caller's to set; see
// throttle.WithClass.
func WithClient(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, clientKey{}, name)
}

// ClientOf returns the name that WithClient has set, or "".
func ClientOf(ctx context.Context) string {
	name, _ := ctx.Value(clientKey{}).(string)
	return name
}
