package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed schema.sql
var schema string

// Schema returns the SQL that creates the table of the options, for an operator who runs it with psql. It
// may run again.
func Schema(o Options) (string, error) {
	t, err := parseTable(o.withDefaults().Table)
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(schema, defaultTable, t.quoted), nil
}

// Migrate creates the table of the options if it does not exist. Then it needs the right to create tables
// in the schema, and otherwise only the rights of a store. Many processes may call it at once, and while
// others use the table: it takes no lock of a table that has the columns it needs. A table of a later
// version of this module that still has them is left alone.
//
// Migrate blocks until the context ends at most. It tries a few times if others hold locks, each time for
// four times Options.Timeout at most. An error wraps store.ErrUnavailable if a later call may succeed.
func Migrate(ctx context.Context, pool *pgxpool.Pool, o Options) error {
	o = o.withDefaults()
	sql, err := Schema(o)
	if err != nil {
		return err
	}
	k, err := newKeeper(pool, o)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := k.migrate(ctx, sql)
		if !slices.Contains(migrateAgain, sqlState(err)) || try == mostTries {
			return k.explain(err)
		}
	}
}

// migrateAgain lists the errors of a process that found an operator at work on the same table: a lock was
// not available, or the table or its type were created meanwhile.
var migrateAgain = []string{"55P03", deadlockDetected, "23505", "42P07"}

// migrateLock is the number of the lock under which processes create tables, one after the other. Without
// it, CREATE TABLE IF NOT EXISTS fails in one of two processes that call it at once.
const migrateLock = 0x7468726f74746c65 // "throttle"

func (k *keeper) migrate(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, 4*k.timeout)
	defer cancel()
	pooled, err := k.acquire(ctx)
	if err != nil {
		return err
	}
	defer pooled.Release() // closes the connection after an error within a transaction
	conn := pooled.Conn().PgConn()
	if err := k.check(ctx, conn); sqlState(err) != noTable {
		return err
	}
	err = conn.Exec(ctx, fmt.Sprintf("BEGIN; SET LOCAL lock_timeout = %d; SELECT pg_advisory_xact_lock(%d);\n%s\nCOMMIT",
		max(k.timeout.Milliseconds(), 1), int64(migrateLock), sql)).Close()
	if err != nil {
		return err
	}
	return k.check(ctx, conn)
}

// check returns an error if the table does not have the columns of schema.sql.
func (k *keeper) check(ctx context.Context, conn *pgconn.PgConn) error {
	sql := fmt.Sprintf("SELECT name, state, expires FROM %s LIMIT 0", k.table)
	r := conn.ExecParams(ctx, sql, nil, nil, nil, nil)
	r.NextRow() // reads the description
	var oids []uint32
	for _, f := range r.FieldDescriptions() {
		oids = append(oids, f.DataTypeOID)
	}
	if _, err := r.Close(); err != nil {
		return err
	}
	if !slices.Equal(oids, []uint32{byteaOID, byteaOID, timestamptzOID}) {
		return errAnotherShape
	}
	return nil
}
