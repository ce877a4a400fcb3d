package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

var (
	errNoConnection = fmt.Errorf("no connection of the pool within Options.Timeout: %w", context.DeadlineExceeded)
	errConflict     = errors.New("another process inserted the row first")
	errUnwritten    = errors.New("the server did not write a row: row-level security or a trigger hides it")
	errReplica      = errors.New("the server is a read replica: connect to the primary")
	errStrayAt      = errors.New("postgres: the URL of the pool has an @ behind the host: write @ / ? and # in a password as %40 %2F %3F and %23")
	errAnotherShape = errors.New("the table has other columns: use another Options.Table, or drop it and call Migrate")
)

// An unavailableError is an error that may not occur again with the next call. It matches
// store.ErrUnavailable.
type unavailableError struct {
	table table
	cause error
}

func (e *unavailableError) Error() string {
	return fmt.Sprintf("postgres: table %s: %v%s", e.table, e.cause, fix(e.cause))
}
func (e *unavailableError) Unwrap() error        { return e.cause }
func (e *unavailableError) Is(target error) bool { return target == store.ErrUnavailable }

// A changeError is the error of the function that Update calls.
type changeError struct{ error }

// An againError ends a transaction that has written nothing, and that may succeed if it begins again.
type againError struct{ cause error }

func (e *againError) Error() string { return e.cause.Error() }
func (e *againError) Unwrap() error { return e.cause }

// Codes of errors. https://www.postgresql.org/docs/15/errcodes-appendix.html, read 2026-11-28
const (
	readOnly             = "25006"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	noTable              = "42P01"
)

// transient lists codes, and classes of codes, of errors after which a later call may succeed: connection
// exceptions, exhausted resources, locks that were not available, operators that interfere, and errors of
// the system such as those of a disk, which has no code of its own if a file must not grow.
var transient = []string{"08", "25P03", "25P04", "40", "53", "55P03", "57", "58", "XX000"}

// fixes lists what an operator can do about an error.
var fixes = []struct{ code, fix string }{
	{noTable, "call Migrate, or run the output of `throttle postgres schema`"},
	{"3F000", "the schema does not exist: create it"},
	{"42501", "the role lacks a right: GRANT USAGE on the schema and SELECT, INSERT, UPDATE, DELETE on the table, or for Migrate CREATE on the schema"},
	{"42703", "the table has other columns: use another Options.Table"},
	{"42804", "the table has columns of other types: use another Options.Table"},
	{"42883", "the table has columns of other types: use another Options.Table"},
	{"42P10", "the table has no primary key on its name: create it by Migrate"},
	{readOnly, "the database is read only: connect to the primary, or see default_transaction_read_only"},
	{"3D000", "the database does not exist: correct the configuration of the pool"},
	{"28", "the server refused the role or its password: correct the configuration of the pool"},
	{"53100", "the disk of the server is full: free space on it"},
	{tooMany, "the server has too many connections: lower MaxConns of the pools, or use PgBouncer"},
}

func fix(err error) string {
	code := sqlState(err)
	for _, f := range fixes {
		if code != "" && strings.HasPrefix(code, f.code) {
			return " (" + f.fix + ")"
		}
	}
	return ""
}

// sqlState returns the code of an error of the server, or "".
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// explain turns an error of a transaction into the error that callers receive: an unavailableError if a
// later call may succeed, and otherwise an error that names the table and the fix.
func (k *keeper) explain(err error) error {
	var change *changeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &change):
		return change.error
	case errors.Is(err, puddle.ErrClosedPool):
		err = fmt.Errorf("%w: %w", kept.ErrClosed, err)
	case k.isTransient(err):
		return &unavailableError{k.table, err}
	}
	return fmt.Errorf("postgres: table %s: %w%s", k.table, err, fix(err))
}

func (k *keeper) isTransient(err error) bool {
	var certificate *tls.CertificateVerificationError
	switch code := sqlState(err); {
	case code == readOnly:
		return k.wrote.Load()
	case code != "":
		return slices.ContainsFunc(transient, func(t string) bool { return strings.HasPrefix(code, t) })
	}
	return !errors.Is(err, errUnwritten) && !errors.Is(err, errAnotherShape) && !errors.As(err, &certificate)
}

// isLost reports whether the server closed the connection, as it does when it is restarted, or undid the
// transaction in favor of another. Both may be over. A server that did not answer in time is likely not
// to answer the next time, either.
func isLost(conn *pgconn.PgConn, err error) bool {
	code := sqlState(err)
	if code == serializationFailure || code == deadlockDetected {
		return true
	}
	return conn.IsClosed() && !pgconn.Timeout(err) && (code == "" || strings.HasPrefix(code, "57P"))
}

// A journal logs what an operator should know, once each.
type journal struct {
	to              *slog.Logger // nil if Options.Log is
	sweeps, poolers sync.Once
}

// sweep reports that expired rows could not be deleted, if err is an error of the server.
func (j *journal) sweep(err error) {
	if j.to != nil && sqlState(err) != "" {
		j.sweeps.Do(func() { j.to.Warn("postgres: expired rows are not deleted"+fix(err), "err", err) })
	}
}

// pooler reports that LISTEN does not reach the server itself.
func (j *journal) pooler() {
	if j.to != nil {
		j.poolers.Do(func() {
			j.to.Warn("postgres: a pooler is in front of the server: if it pools transactions, set Options.PollOnly")
		})
	}
}
