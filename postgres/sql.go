package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A table is the name of a table, or of a schema and a table.
type table struct{ quoted string }

// mostName is the longest name of a table or a schema, in bytes. The server would cut a longer one.
// https://www.postgresql.org/docs/15/sql-syntax-lexical.html, read 2026-11-28
const mostName = 63

func parseTable(s string) (table, error) {
	parts := strings.Split(s, ".")
	if len(parts) > 2 {
		return table{}, fmt.Errorf("postgres: Options.Table is %q: it must be the name of a table, or schema.table", s)
	}
	for _, p := range parts {
		if p == "" || len(p) > mostName || !utf8.ValidString(p) || strings.Contains(p, "\x00") {
			return table{}, fmt.Errorf("postgres: Options.Table is %q: a name must have 1 to %d bytes of UTF-8", s, mostName)
		}
	}
	return table{pgx.Identifier(parts).Sanitize()}, nil
}

func (t table) String() string { return t.quoted }

// Statements that are the same for all tables. The application may have changed the isolation, and a
// stricter one would fail where this waits for a lock. Another process reads the channel's table by
// its number, because it may write its name in another way.
const (
	begin  = "BEGIN ISOLATION LEVEL READ COMMITTED"
	notify = "SELECT pg_notify('throttle_' || $1::regclass::oid, $2)"
	number = "SELECT $1::regclass::oid, pg_backend_pid()," +
		" (SELECT coalesce(sum(numbackends), 0)::int FROM pg_stat_database), current_setting('max_connections')::int"
)

// statements are the statements about one table.
type statements struct{ settings, lock, update, insert, sweep string }

// newStatements returns the statements. If a client is stopped within a transaction, or is gone without a
// word, the server ends the transaction while others still wait for the row: idle is shorter than lock.
// And lock is shorter than the timeout of a trip, after which the connection would have to be closed.
func newStatements(t table, o Options) statements {
	commit := "off"
	if o.Sync {
		commit = "on"
	}
	ms := func(d time.Duration) int64 { return max(d.Milliseconds(), 1) }
	return statements{
		settings: fmt.Sprintf("SELECT pg_is_in_recovery(), set_config('synchronous_commit', '%s', true),"+
			" set_config('lock_timeout', '%d', true), set_config('statement_timeout', '%d', true),"+
			" set_config('idle_in_transaction_session_timeout', '%d', true)",
			commit, ms(o.Timeout*3/4), ms(o.Timeout), ms(o.Timeout/2)),
		lock:   fmt.Sprintf("SELECT name, state FROM %s WHERE name = ANY($1) ORDER BY name FOR UPDATE", t),
		update: fmt.Sprintf("UPDATE %s SET state = $2, expires = $3 WHERE name = $1", t),
		insert: fmt.Sprintf("INSERT INTO %s (name, state, expires) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING", t),
		sweep:  strings.ReplaceAll(sweep, "{table}", t.quoted),
	}
}

// sweep deletes up to two rows of a random page that expired a minute ago and that no transaction has
// locked. A row that is soon used again is better updated than deleted and inserted. Each new row sweeps
// two, so that expired rows become few and a call never does much. There is no index on expires, with
// which no update of a row could stay in its page.
const sweep = `
WITH page AS MATERIALIZED (
	SELECT floor(random() * pg_relation_size($1::regclass) / current_setting('block_size')::int)::bigint AS n
), old AS MATERIALIZED (
	SELECT name FROM {table}
	WHERE ctid >= (SELECT format('(%s,0)', n)::tid FROM page)
	AND ctid < (SELECT format('(%s,0)', n + 1)::tid FROM page)
	AND expires < clock_timestamp() - interval '1 minute'
	LIMIT 2 FOR UPDATE SKIP LOCKED
)
DELETE FROM {table} WHERE name = ANY (ARRAY(SELECT name FROM old))`

// The numbers of types that the server has in all versions.
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/include/catalog/pg_type.dat
const (
	byteaOID       = 17
	textOID        = 25
	byteaArrayOID  = 1001
	timestamptzOID = 1184
)

// A param is a parameter of a statement in the binary format.
type param struct {
	oid   uint32
	value []byte
}

func textParam(s string) param { return param{textOID, []byte(s)} }

// namesParam returns names as an array.
func namesParam(names [][]byte) param {
	var b []byte
	for _, n := range []int{1, 0, byteaOID, len(names), 1} { // dimensions, nulls, type, length, first index
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	for _, name := range names {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(name))), name...)
	}
	return param{byteaArrayOID, b}
}

// epoch is the server's zero time, 2000-01-01, in µs of Unix time. The server has all later times.
// https://www.postgresql.org/docs/15/datatype-datetime.html, read 2026-11-28
const epoch = 946_684_800_000_000

// timeParam returns a Unix time in µs.
func timeParam(unix int64) param {
	return param{timestamptzOID, binary.BigEndian.AppendUint64(nil, uint64(max(unix, 0)-epoch))}
}

// unixMicro returns the Unix time in µs of a timestamptz.
func unixMicro(b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, errors.New("the server's clock is not a timestamptz")
	}
	return int64(binary.BigEndian.Uint64(b)) + epoch, nil
}

var binaryFormat = []int16{pgx.BinaryFormatCode}

// add adds a statement to a batch.
func add(b *pgconn.Batch, sql string, params ...param) {
	values, oids := make([][]byte, len(params)), make([]uint32, len(params))
	for i, p := range params {
		values[i], oids[i] = p.value, p.oid
	}
	b.ExecParams(sql, values, oids, binaryFormat, binaryFormat)
}
