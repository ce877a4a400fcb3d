package distributed

import (
	"math/rand/v2"
	"sync"
	"time"
)

// A circuit is a circuit breaker. It opens while Redis is away: most calls then fail at once, and
// one call per delay tries the connection.
type circuit struct {
	mu    sync.Mutex    // guards all below
	err   error         // why the circuit is open; nil while it is closed
	until time.Time     // when the next call may try
	delay time.Duration // between two tries
}

const (
	firstTry = 25 * time.Millisecond
	lastTry  = 400 * time.Millisecond
)

// allow returns nil if a call may be sent. While the circuit is open, it allows one call per delay.
func (c *circuit) allow() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return nil
	}
	now := time.Now()
	if now.Before(c.until) {
		return c.err
	}
	c.until = now.Add(c.delay)
	return nil
}

// report opens or closes the circuit after a call. A random delay spreads the tries of processes.
func (c *circuit) report(errs ...error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range errs {
		if away, ok := err.(*unavailableError); ok {
			c.err, c.delay = away, min(lastTry, max(firstTry, 2*c.delay))
			c.until = time.Now().Add(c.delay/2 + rand.N(c.delay/2))
			return
		}
	}
	c.err, c.delay = nil, 0
}

// open returns the error with which calls fail now, nil if a call may try.
func (c *circuit) open() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.until) {
		return c.err
	}
	return nil
}

// isBroken reports whether the last call failed because Redis is away.
func (c *circuit) isBroken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}
