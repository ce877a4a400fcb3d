package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A crowd is what a process knows of the server's connections. If many processes share a quota, there may be fewer
// connections than processes. Those that have one must then not keep it: they poll instead of listening,
// and close a connection after each transaction.
type crowd struct {
	// until is when the server is not taken for crowded any more, and full when not for full: Unix time in ns.
	until, full atomic.Int64
}

var errCrowded = errors.New("the server has few connections left to listen on")

// crowdedFor is how long a process takes the server for crowded.
const crowdedFor = 10 * time.Second

// isCrowded reports whether too few connections are left to listen, and isFull whether too few are to keep any.
func (c *crowd) isCrowded() bool { return time.Now().UnixNano() < c.until.Load() }
func (c *crowd) isFull() bool    { return time.Now().UnixNano() < c.full.Load() }

// see notes how many connections the server has, of so many at most.
func (c *crowd) see(connections, most int32) {
	until := time.Now().Add(crowdedFor + rand.N(crowdedFor)).UnixNano()
	if connections > most/2 {
		c.until.Store(until)
	}
	if connections > most/4*3 {
		c.full.Store(until)
	}
}

// tooMany is the code of the error of a server that has too many connections.
const tooMany = "53300"

// refused notes that the server has refused a connection, if that is the error, and waits some time: the callers of all
// processes try again, and each try starts a process of the server.
func (c *crowd) refused(ctx context.Context, err error) {
	var refused *pgconn.ConnectError
	if !errors.As(err, &refused) {
		return
	}
	switch sqlState(err) {
	case tooMany:
		c.see(1, 0)
	case "": // it has closed the connection, or nobody listens
	default:
		return
	}
	select {
	case <-time.After(rand.N(time.Second / 2)):
	case <-ctx.Done():
	}
}
