// Package postgres keeps quotas in PostgreSQL, for a fleet that has no Redis.
//
//	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
//	err = postgres.Migrate(ctx, pool, postgres.Options{})
//	store, err := postgres.New(pool, postgres.Options{})
//	lim, err := throttle.New(policy, store)
//
// In a clone of the repository, the first of these commands runs a fleet on a database of yours,
// and the second one runs the tests, on servers of their own:
//
//	go -C postgres run ./examples/fleet -postgres "$DATABASE_URL"
//	make postgres && go -C postgres test ./...
//
// # What it costs
//
// A quota is a row of one table. The processes decide, and the server keeps the bytes, a lock and
// the clock by which all of them count. A transaction has two round trips: it locks the row and
// reads it and the clock, and then it writes the row and commits. Beside the server it takes 0.4
// ms. One row takes 2,300 to 2,700 transactions a second on two cores, from 1 to 16 processes, and
// with Options.Sync 1,400 to 1,800, more or less by the disk. It writes the state, 100 bytes for a
// bucket and 300 for 5/s + 60 per 20 s, and 180 bytes of WAL besides. A process holds the row for
// one round trip, so 20 ms away from the server it holds up the others for 20 ms at a time.
//
// While callers wait, a process reserves a Horizon of times in one transaction, 256
// requests at most. Nested quotas are rows that one transaction locks in the order of their names.
// A fleet at rest makes no transaction, and holds no connection but those that its pools keep.
//
// If there is a Redis already, use package distributed: a decision there is one round trip. It has
// Options.Fallback, which this package has not: while the server is away, callers wait for it until
// their context ends, and then get throttle.ErrUnavailable with the cause.
//
// # Rights
//
// [Migrate], or the output of [Schema] or of `throttle postgres schema` in psql, creates the table.
// This needs the right to create tables in the schema. A store needs no more than
//
//	GRANT USAGE ON SCHEMA public TO app;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON throttle_quota TO app;
//
// DELETE is for rows of quotas that nobody uses any more: each new row removes up to two of them. Rows
// of quotas with a learned rate, or a limit that responses have named, stay for 30 days. A
// row has a hash of the policy's name and the Group's key, and never the key. The servers are
// PostgreSQL 14 and later, tested with 15, and must be primaries: a read replica is refused.
// Row-level security must not hide rows from the role.
//
// # Connections and PgBouncer
//
// A store uses at most Options.Conns connections of the pool at a time, each for one transaction.
// While callers wait or a pause holds, it takes one more out of the pool, to LISTEN for pauses of
// other processes. It prepares no statement, sets nothing beyond a transaction and takes no lock of
// a session. So it works through PgBouncer in transaction mode, except that LISTEN is silent there:
// set Options.PollOnly.
//
// A pool has up to MaxConns connections, 4 or the number of processors if more, and keeps idle ones for
// MaxConnIdleTime, 30 minutes by default. It looks for them each HealthCheckPeriod, a minute by
// default. So the pools of 200 processes may exceed the server's max_connections, although most are
// idle. Use PgBouncer, or set all three, in the URL or in a pgxpool.Config:
//
//	postgres://…?pool_max_conns=3&pool_max_conn_idle_time=5s&pool_health_check_period=5s
//
// If more than half of the server's connections are in use, a store does not listen but asks, in the
// half second before its callers go. If more than three quarters are, it also closes some of the
// connections that it has used, so that other processes get them. A server that has none left is
// unavailable for the process, whose callers try again. Each new connection takes the server some
// milliseconds, so set Options.Timeout to some seconds with as many processes.
//
// # Pauses and fairness
//
// Callers of a process go first in, first out, by class. Processes take equal turns, but a window that
// opens for many requests at one instant goes to those that ask just before it. Pauses, bans,
// probes after them, their ends and new states of a quota are sent with NOTIFY. Waiting processes
// stop about 10 ms after a pause, or 0.15 s if they are busy; with Options.PollOnly within 500 ms.
// Nothing else is sent, because NOTIFY takes a lock that all databases of the server share
// (PreCommit_Notify in
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/commands/async.c, read
// 2026-11-28). Each process keeps a pause until its end, even if the server has lost it.
//
// # Counters
//
// The state of a quota is one value of at most 16 KB. A SlidingLog of more than 512 units is kept
// as a SlidingWindow, whose waits are up to Window/60 longer; Status names it. A request counts
// from its start for the whole of its Guard: no response ends that earlier.
//
// A process that holds places of a Concurrency tier, or estimates, holds them by a lease of
// Options.Lease, which it renews. Each such process takes 16 to 40 bytes of the state, so 400 to
// 1,000 of them fit, the more the fewer units are limited. Beyond, callers receive an error that
// says so. Quotas without such tiers have no such limit.
//
// # Clocks and releases
//
// Only the server's clock counts, and it never runs backward for a quota. After a step forward, at
// most one burst or window too much passes, because the step looks like idleness.
//
// Processes may have different policies, as while a new release replaces an old one. Each request
// then counts under all policies that have decided within the last minute. A state that a later
// release has written in a format of its own is left alone: callers of the older release receive an
// error at once that says so.
//
// # Shutdown
//
// A process that ends calls Store.Flush, which sends what it has not reported yet, and then closes
// the pool. The times that a killed process had reserved pass unused, at most a Horizon of them,
// and what it held is free when its lease ends.
//
// Set connect_timeout to some seconds. The default of pgx is two minutes, for which attempts to connect that a
// broken network has swallowed take up the pool.
//
// # What a failure may forget
//
// Without Options.Sync, a server that crashes may forget the last transactions, up to three times
// its wal_writer_delay: 0.6 s with the default of 200 ms
// (https://www.postgresql.org/docs/15/wal-async-commit.html, read 2026-11-28). What was admitted in
// that time may be admitted again. A failover to an asynchronous replica forgets what the replica
// had not received, with Sync too. A backup that is restored brings back the use of its day: later
// use is forgotten. Options.OnLost is called when a process finds such a loss.
// A process finds no loss of what only others have written. Pauses and bans are restored within two
// seconds while a process lives that knows them. The project's docs/faults.md has a table of faults
// and what each may cost.
//
// If the reply to COMMIT is lost, the transaction counts as failed although it may have been made.
// Then the quota may be charged for requests that nobody sent, but it is never exceeded. A process
// that is stopped within a transaction holds its row for half of Options.Timeout, until the server
// ends the transaction.
//
// # Bloat
//
// Each transaction writes a new version of its row into the same page, and removes old versions
// that no transaction can see. A transaction of any session that stays open for minutes keeps them
// all, and the table grows by some hundred bytes with each transaction of the store. The growth
// ends with that transaction, and vacuum makes the space free for new rows. So set
// idle_in_transaction_session_timeout on databases with such sessions. An index on expires would
// end the updates in place: don't add one.
package postgres
