// Package postgres keeps quotas in PostgreSQL, for a fleet that has no Redis.
//
//	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
//	err = postgres.Migrate(ctx, pool, postgres.Options{})
//	store, err := postgres.New(pool, postgres.Options{})
//	lim, err := throttle.New(policy, store)
//
// A quota is a row of one table. The processes decide, and the server keeps the bytes, a lock and the clock by
// which all of them count. A transaction has two round trips: it locks the row and reads it and the clock,
// and then it writes the row and commits. While callers wait, a process reserves the times of up to a
// Horizon in one transaction, so a quota of 1,000/s needs some tens of them a second. One row takes about
// 3,000 a second on two cores. Nested quotas are rows that one transaction locks in the order of their names.
// A fleet at rest makes no transaction and holds no connection.
//
// # Rights
//
// [Migrate], or the output of `throttle postgres schema` in psql, creates the table. This needs the right to create
// tables in the schema. A store needs no more than
//
//	GRANT USAGE ON SCHEMA public TO app;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON throttle_quota TO app;
//
// DELETE is for rows of quotas that nobody uses any more: each new row removes up to two of them. The servers are
// PostgreSQL 14 and later, and must be primaries: a read replica is refused. Row-level security must not hide
// rows from the role.
//
// # Connections and PgBouncer
//
// A store uses at most Options.Conns connections of the pool at a time, each for one transaction, and takes
// one more as its own while callers wait or a pause holds, to LISTEN for pauses of other processes. It
// prepares no statement, sets nothing beyond a transaction and takes no lock of a session. So it works through
// PgBouncer in transaction mode, except that LISTEN is silent there: set Options.PollOnly. A pool keeps idle
// connections for MaxConnIdleTime, 30 minutes by default, and up to MaxConns, 4 or the number of
// processors. The pools of 200 processes may so exceed the server's max_connections: set MaxConnIdleTime and
// HealthCheckPeriod to some seconds and MaxConns to 2 or 3, or use PgBouncer. If more than half of the server's
// connections are in use, a store does not listen but asks, in the half second before its callers go.
// If more than three quarters are, it also closes some of the connections that it has used, so that
// other processes get them. A server that has none left is unavailable for the process, whose callers try
// again. Each connection takes the server some milliseconds, so set Options.Timeout to some seconds then.
//
// # What a failure may forget
//
// Without Options.Sync, a server that crashes may forget the last transactions, up to three times its
// wal_writer_delay: 0.6 s with the default of 200 ms (https://www.postgresql.org/docs/15/wal-async-commit.html, read
// 2026-11-28). What was admitted in that time may be admitted again. A failover to an asynchronous replica
// forgets what the replica had not received, with Sync too. A backup that is restored brings back the use of its day:
// later use is forgotten. Options.OnLost is called when a process finds such a loss.
//
// If the reply to COMMIT is lost, the transaction counts as failed although it may have been made. Then the quota may
// be charged for requests that nobody sent, but it is never exceeded. A process that is stopped within a
// transaction holds its row for half of Options.Timeout, until the server ends the transaction.
//
// # Bloat
//
// Each transaction writes a new version of its row into the same page, and removes old versions that no
// transaction can see. A transaction of any session that stays open for minutes keeps them all, and the table grows by
// some hundred bytes with each transaction of the store. The growth ends with that transaction, and vacuum
// makes the space free for new rows. So set idle_in_transaction_session_timeout on databases with such
// sessions. An index on expires would end the updates in place: don't add one.
package postgres
