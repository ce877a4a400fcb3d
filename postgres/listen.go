package postgres

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/apithrottle/throttle/store/kept"
)

// A listeningKeeper is a keeper without Options.PollOnly.
type listeningKeeper struct{ *keeper }

var _ kept.Listener = listeningKeeper{}

var errAnotherTable = errors.New("the table was created anew")

// Listen implements kept.Listener. It takes a connection from the pool for good, and closes it at the end.
// It finds out within three times Options.Timeout that the server does not answer any more.
func (k listeningKeeper) Listen(ctx context.Context, news func(name []byte)) error {
	if k.crowd.isCrowded() {
		return errCrowded
	}
	l, channel, err := k.connect(ctx)
	if err != nil {
		return k.ended(ctx, err)
	}
	defer l.close()
	if err := l.exec(ctx, "LISTEN "+channel); err != nil {
		return k.ended(ctx, err)
	}
	news(nil)
	for {
		n, err := l.next(ctx)
		switch {
		case n != nil:
			news(n.name())
		case ctx.Err() != nil || !pgconn.Timeout(err):
			return k.ended(ctx, err)
		default:
			now, err := l.channel(ctx)
			if err == nil && now != channel {
				err = errAnotherTable
			}
			if err != nil {
				return k.ended(ctx, err)
			}
		}
	}
}

// ended returns the error with which Listen ends.
func (k *keeper) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return k.explain(err)
}

// connect takes a connection out of the pool, unless the server is crowded, and returns the channel to listen to.
func (k *keeper) connect(ctx context.Context) (*listening, string, error) {
	limited, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	conn, err := k.acquire(limited)
	if err != nil {
		return nil, "", err
	}
	l := &listening{k, conn.Conn()}
	channel, err := l.channel(ctx)
	if err != nil {
		k.release(conn)
		return nil, "", err
	}
	conn.Hijack()
	return l, channel, nil
}

// listening is a connection that listens.
type listening struct {
	*keeper
	conn *pgx.Conn
}

func (l *listening) close() {
	ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
	defer cancel()
	l.conn.Close(ctx)
}

func (l *listening) exec(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return l.conn.PgConn().Exec(ctx, sql).Close()
}

// channel asks the server for the name of the table's channel.
func (l *listening) channel(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	var b pgconn.Batch
	add(&b, number, textParam(l.table.quoted))
	results, err := l.conn.PgConn().ExecBatch(ctx, &b).ReadAll()
	if err != nil {
		return "", err
	}
	row := results[0].Rows[0]
	if binary.BigEndian.Uint32(row[1]) != l.conn.PgConn().PID() {
		l.journal.pooler()
	}
	k := l.keeper
	if k.crowd.see(int32(binary.BigEndian.Uint32(row[2])), int32(binary.BigEndian.Uint32(row[3]))); k.crowd.isCrowded() {
		return "", errCrowded
	}
	return fmt.Sprintf("throttle_%d", binary.BigEndian.Uint32(row[0])), nil
}

// A notice is what a process sent with a write.
type notice pgconn.Notification

// next waits for the next notice, at most for twice Options.Timeout.
func (l *listening) next(ctx context.Context) (*notice, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*l.timeout)
	defer cancel()
	n, err := l.conn.WaitForNotification(ctx)
	return (*notice)(n), err
}

// name returns the name in a notice, or nil if it was too long for one.
func (n *notice) name() []byte {
	name, err := base64.RawStdEncoding.DecodeString(n.Payload)
	if err != nil || len(name) == 0 {
		return nil
	}
	return name
}
