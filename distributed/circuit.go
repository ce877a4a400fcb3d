package distributed

import (
	"math/rand/v2"
	"sync"
	"time"
)

// A circuit opens when Redis is away, so that not everybody waits for a connection
// to fail: one call in a while tries.
type circuit struct {
	mu    sync.Mutex // guards all below
	err   error      // why it is open
	until time.Time  // when the next call may try
	delay time.Duration
}

const (
	firstTry = 25 * time.Millisecond
	lastTry  = 400 * time.Millisecond
)

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

// report takes note of how a try ended. Not all processes try again at the same instant.
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

// open returns why nobody may try now, nil if somebody may.
func (c *circuit) open() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.until) {
		return c.err
	}
	return nil
}
