package postgres

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

const defaultTable = "throttle_quota"

// Options configure a Store. The zero value is ready to use.
type Options struct {
	// Table is the name of the table, or of its schema and the table as in "limits.quota". It is quoted,
	// so that it may contain capitals and spaces, but no other dot. If zero, "throttle_quota", which the
	// server finds by its search_path.
	Table string

	// Timeout is the longest time that a transaction waits for a connection of the pool, and then for
	// each of its two round trips, with the locks of its rows. Beyond it the Store treats the server as
	// away. It must be longer than four round trips: the server ends a transaction from which it has
	// heard nothing for half of Timeout, so that a process that is stopped does not stop the others. If
	// zero, 1 s.
	Timeout time.Duration

	// Horizon is how long the turn of a process is: of the times to come it reserves as many as the tier
	// that decides admits in a Horizon, at least one. If zero, 500 ms.
	Horizon time.Duration

	// Lease is how long a process holds permits of a Concurrency tier, and estimates, after its last
	// call. It should be the same in all processes. If zero, 10 s.
	Lease time.Duration

	// Conns is the greatest number of connections of the pool that the Store uses at a time for
	// transactions, so that the application has the others. One more is its own while it listens. If
	// zero, 2.
	Conns int

	// PollOnly makes the Store learn of other processes' pauses by asking for them, instead of by LISTEN. It
	// is needed behind a pooler that pools transactions, such as PgBouncer. Then a pause is known within
	// 500 ms.
	PollOnly bool

	// Sync makes the server write each transaction to its disk before it answers. If false, a server that
	// crashes forgets the transactions of up to three times wal_writer_delay, 0.6 s by default, and
	// answers sooner.
	Sync bool

	// OnLost is called with the name of a quota whose state was lost, or is older than the one that this
	// process has seen, as after a crash, a failover or a restored backup. The name is the one of the row in
	// hexadecimal digits, a hash of the key. OnLost must not block. If nil, losses are only logged.
	OnLost func(name string)

	// Log receives warnings for an operator. The store logs each kind of warning at most once a minute. If
	// nil, nothing is logged.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Table, o.Timeout = cmp.Or(o.Table, defaultTable), cmp.Or(o.Timeout, time.Second)
	o.Horizon, o.Lease = cmp.Or(o.Horizon, 500*time.Millisecond), cmp.Or(o.Lease, 10*time.Second)
	o.Conns = cmp.Or(o.Conns, 2)
	return o
}

// check returns an error if a field has a value that it can't have.
func (o Options) check() error {
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"Timeout", o.Timeout}, {"Horizon", o.Horizon}, {"Lease", o.Lease}} {
		if f.value < time.Millisecond {
			return fmt.Errorf("postgres: Options.%s is %v: it must be 1 ms or longer", f.name, f.value)
		}
	}
	if o.Conns < 1 {
		return fmt.Errorf("postgres: Options.Conns is %d: it must be 1 or greater", o.Conns)
	}
	return nil
}

// A Store keeps quotas in a table of PostgreSQL for all processes that use it. It is safe for concurrent
// use.
type Store struct {
	*kept.Store
}

var _ store.Store = (*Store)(nil)

// mostStamps is the largest limit of a SlidingLog. A state is written anew with each transaction, and that of
// an exact log of 512 fits into a page.
const mostStamps = 512

// New returns a Store in the database of a pool. It sends nothing: the first quota that is used finds out
// whether the table exists. The pool must stay open while the Store is in use. New returns an error for an
// option out of its range, and for a URL of the pool whose password is not escaped.
func New(pool *pgxpool.Pool, o Options) (*Store, error) {
	if pool == nil {
		return nil, errors.New("postgres: pool is nil")
	}
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	k, err := newKeeper(pool, o)
	if err != nil {
		return nil, err
	}
	var keeper kept.Keeper = listeningKeeper{k}
	if o.PollOnly {
		keeper = k
	}
	of := kept.Options{
		Name: "postgres", Shared: "a table of PostgreSQL", Ahead: true, Horizon: o.Horizon, Lease: o.Lease,
		Timeout: o.Timeout, MostStamps: mostStamps, Log: o.Log,
	}
	if o.OnLost != nil {
		of.OnLost = func(name []byte) { o.OnLost(hex.EncodeToString(name)) }
	}
	return &Store{kept.New(keeper, of)}, nil
}
