package postgres

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/apithrottle/throttle/store/kept"
)

// A transaction is one transaction of a keeper, on a connection that it has for that long. It prepares no
// statement and leaves no setting behind, because behind PgBouncer the next one may be on another
// connection of the server.
type transaction struct {
	*keeper
	conn  *pgconn.PgConn
	found []bool // for each name, whether there was a row, which is locked
}

// trip sends statements in one trip, and returns the results of those that succeeded.
func (t *transaction) trip(b *pgconn.Batch) ([]*pgconn.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	results, err := t.conn.ExecBatch(ctx, b).ReadAll()
	for i, r := range results {
		if r.Err != nil {
			return results[:i], r.Err
		}
	}
	return results, err
}

// begin locks the rows of the names and reads them and the clock.
func (t *transaction) begin(names [][]byte) (kept.View, error) {
	var b pgconn.Batch
	add(&b, begin)
	add(&b, t.sql.settings)
	add(&b, t.sql.lock, namesParam(names))
	// The statement before could read the clock before it has the lock of its last row.
	add(&b, "SELECT clock_timestamp()")

	v := kept.View{Values: make([][]byte, len(names)), Sent: time.Now()}
	results, err := t.trip(&b)
	v.Got = time.Now()
	if err != nil {
		return v, t.beginError(results, err)
	}
	if len(results) != 4 || len(results[3].Rows) != 1 {
		return v, fmt.Errorf("%d results of 4 statements", len(results))
	}
	if v.Wall, err = unixMicro(results[3].Rows[0][0]); err != nil {
		return v, err
	}
	t.found = make([]bool, len(names))
	rows := results[2].Rows
	for i, name := range names {
		if len(rows) > 0 && bytes.Equal(rows[0][0], name) {
			v.Values[i], t.found[i], rows = rows[0][1], true, rows[1:]
		}
	}
	return v, nil
}

// beginError says of an error of begin whether to begin again, and whether the server is a replica.
func (t *transaction) beginError(results []*pgconn.Result, err error) error {
	switch code := sqlState(err); {
	case code == readOnly && len(results) > 1 && bytes.Equal(results[1].Rows[0][0], []byte{1}):
		return fmt.Errorf("%w: %w", errReplica, err)
	case isLost(t.conn, err):
		return &againError{err}
	}
	return err
}

// write writes and commits. If there is nothing to write, the transaction is rolled back later.
func (t *transaction) write(names [][]byte, writes []kept.Write) error {
	var b pgconn.Batch
	changes, inserts := 0, 0
	for i, w := range writes {
		if w.Value == nil {
			continue
		}
		changes++
		sql := t.sql.update
		if !t.found[i] {
			sql, inserts = t.sql.insert, inserts+1
		}
		add(&b, sql, param{byteaOID, names[i]}, param{byteaOID, w.Value}, timeParam(w.Expires))
	}
	for i, w := range writes {
		if w.Value != nil && w.Urgent {
			add(&b, notify, textParam(t.table.quoted), textParam(payload(names[i])))
		}
	}
	switch {
	case changes == 0:
		return nil
	case inserts > 0 && changes > 1:
		// If another process has inserted one of them, none may be written.
		results, err := t.trip(&b)
		if err = t.written(results, changes, err); err != nil {
			return err
		}
		return t.commit(&pgconn.Batch{}, 0, true)
	}
	return t.commit(&b, changes, inserts > 0)
}

// commit sends the batch and COMMIT. After an insert, it sweeps in a transaction of its own, in the same
// trip, whose failure changes nothing.
func (t *transaction) commit(b *pgconn.Batch, changes int, sweep bool) error {
	add(b, "COMMIT")
	if sweep {
		add(b, begin)
		add(b, t.sql.settings)
		add(b, t.sql.sweep, textParam(t.table.quoted))
		add(b, "COMMIT")
	}
	results, err := t.trip(b)
	committed := false
	for _, r := range results {
		committed = committed || r.CommandTag.String() == "COMMIT"
	}
	if committed {
		t.journal.sweep(err)
		err = nil
	}
	if err = t.written(results, changes, err); err == nil {
		t.wrote.Store(true)
	}
	return err
}

// written returns the error of a trip that began with some INSERTs and UPDATEs of one row each.
func (t *transaction) written(results []*pgconn.Result, changes int, err error) error {
	if err != nil {
		if c := sqlState(err); c == serializationFailure || c == deadlockDetected {
			return &againError{err}
		}
		return err
	}
	for _, r := range results[:changes] {
		switch {
		case r.CommandTag.RowsAffected() == 1:
		case r.CommandTag.Insert():
			return &againError{errConflict}
		default:
			return errUnwritten
		}
	}
	return nil
}

// rollback ends the transaction if it is still open.
func (t *transaction) rollback() {
	if !t.conn.IsClosed() && t.conn.TxStatus() != 'I' {
		var b pgconn.Batch
		add(&b, "ROLLBACK")
		t.trip(&b) // after an error the connection is closed, and so the transaction ends, too
	}
}

// mostPayload is the longest payload of a NOTIFY, in bytes.
// https://www.postgresql.org/docs/15/sql-notify.html, read 2026-11-28
const mostPayload = 7999

// payload tells a name to the listeners. Without one, they take any value for changed.
func payload(name []byte) string {
	if base64.RawStdEncoding.EncodedLen(len(name)) > mostPayload {
		return ""
	}
	return base64.RawStdEncoding.EncodeToString(name)
}
