package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle/store/kept"
)

// A keeper keeps values in the rows of a table.
type keeper struct {
	pool    *pgxpool.Pool
	table   table
	timeout time.Duration
	sql     statements
	turns   chan struct{} // holds an element for each transaction under way
	// acquiring holds an element while a connection is acquired.
	acquiring chan struct{}
	journal   journal
	crowd     crowd

	// wrote reports that a transaction has written. Until then, a server that is read only is taken for
	// the wrong one, and afterwards for one that a failover is about to replace.
	wrote atomic.Bool
}

var _ kept.Keeper = (*keeper)(nil)

// newKeeper returns the keeper of options whose zero values have been replaced.
func newKeeper(pool *pgxpool.Pool, o Options) (*keeper, error) {
	t, err := parseTable(o.Table)
	if err != nil {
		return nil, err
	}
	if hasStrayAt(pool.Config().ConnString()) {
		return nil, errStrayAt
	}
	return &keeper{
		pool: pool, table: t, timeout: o.Timeout, sql: newStatements(t, o),
		turns: make(chan struct{}, o.Conns), acquiring: make(chan struct{}, 1), journal: journal{to: o.Log},
	}, nil
}

// hasStrayAt reports whether the path of a URL contains an @. Then a password contains a / that ends the host, and
// the errors of pgx would show the rest of the password as the name of the database.
func hasStrayAt(url string) bool {
	scheme, rest, _ := strings.Cut(url, "://")
	rest, _, _ = strings.Cut(rest, "?")
	_, path, _ := strings.Cut(rest, "/")
	return (scheme == "postgres" || scheme == "postgresql") && strings.Contains(path, "@")
}

// mostTries is how often Update begins a transaction before it gives up. Each connection of the pool may
// be one that a restart of the server has closed, and each row one that another process inserts first.
const mostTries = 5

// Update implements kept.Keeper. Its context, and Options.Timeout, bound the wait for a turn and a
// connection. After BEGIN, Options.Timeout alone bounds each of two or three trips: pgx closes a
// connection whose context ends within a trip.
func (k *keeper) Update(ctx context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	select {
	case k.turns <- struct{}{}:
		defer func() { <-k.turns }()
	case <-ctx.Done():
		return &unavailableError{k.table, noConnection(ctx)}
	}
	for try := 1; ; try++ {
		err := k.once(ctx, names, change)
		var again *againError
		if !errors.As(err, &again) || try == mostTries {
			return k.explain(err)
		}
	}
}

// once runs one transaction. A panic of change rolls it back, too.
func (k *keeper) once(ctx context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	conn, err := k.acquire(ctx)
	if err != nil {
		return err
	}
	defer k.release(conn)
	t := &transaction{keeper: k, conn: conn.Conn().PgConn()}
	defer t.rollback()
	view, err := t.begin(names)
	if err != nil {
		return err
	}
	writes, err := change(view)
	if err != nil {
		return &changeError{err}
	}
	return t.write(names, writes)
}

// release returns a connection to the pool. It closes it if a transaction is open, and now and then if
// other processes need it.
func (k *keeper) release(conn *pgxpool.Conn) {
	if k.crowd.isFull() && rand.N(4) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), k.timeout)
		defer cancel()
		conn.Conn().Close(ctx)
	}
	conn.Release()
}

// acquire returns a connection of the pool. It makes one connection at a time, and waits for it the next time if it
// takes longer than the context lasts: a server that is slow because many processes connect at once would be slower with
// each connection that nobody waits for any more.
func (k *keeper) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	if k.pool.Stat().IdleConns() > 0 {
		conn, err := k.pool.Acquire(ctx)
		if err != nil && ctx.Err() != nil {
			err = noConnection(ctx)
		}
		return conn, err
	}
	select {
	case k.acquiring <- struct{}{}:
	case <-ctx.Done():
		return nil, noConnection(ctx)
	}
	type result struct {
		conn *pgxpool.Conn
		err  error
	}
	got := make(chan result)
	go func() {
		defer func() { <-k.acquiring }()
		longest, cancel := context.WithTimeout(context.Background(), mostTries*k.timeout)
		defer cancel()
		conn, err := k.pool.Acquire(longest)
		select {
		case got <- result{conn, err}:
		case <-ctx.Done():
			if err == nil {
				conn.Release()
			}
		}
	}()
	select {
	case r := <-got:
		k.crowd.refused(ctx, r.err)
		return r.conn, r.err
	case <-ctx.Done():
		return nil, noConnection(ctx)
	}
}

// noConnection returns the error of a wait for a connection that the context has ended. The caller's
// deadline may be the same Options.Timeout, and end first.
func noConnection(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errNoConnection
	}
	return ctx.Err()
}
