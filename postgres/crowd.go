package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A crowd is what a process knows of the server's connections. If many processes share a quota, there may be fewer
// connections than processes. Those that have one must then not keep it: they poll instead of listening,
// and close a connection after each transaction.
type crowd struct {
	until atomic.Int64 // Unix time in ns; the server is crowded until then
}

var errCrowded = errors.New("the server has few connections left to listen on")

// crowdedFor is how long a process takes the server for crowded.
const crowdedFor = 10 * time.Second

// note notes that the server is crowded.
func (c *crowd) note() {
	c.until.Store(time.Now().Add(crowdedFor + rand.N(crowdedFor)).UnixNano())
}

// is reports whether the server is crowded.
func (c *crowd) is() bool { return time.Now().UnixNano() < c.until.Load() }

// see notes that the server is crowded if it has so many connections of so many at most.
func (c *crowd) see(connections, most int32) {
	if connections > most/2 {
		c.note()
	}
}

// tooMany is the code of the error of a server that has too many connections.
const tooMany = "53300"

// refused notes that the server has refused a connection, if that is the error, and waits some time: the callers of all
// processes try again, and each try starts a process of the server.
func (c *crowd) refused(ctx context.Context, err error) {
	if sqlState(err) != tooMany {
		return
	}
	c.note()
	select {
	case <-time.After(rand.N(time.Second)):
	case <-ctx.Done():
	}
}
