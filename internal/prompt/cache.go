package prompt

import (
	"sync"
	"time"
)

// A Place is the end of a block of a prompt: of a tool, or of a part of the system prompt or of a
// message. The provider may have the prompt up to there in its cache.
type Place struct {
	// hash is the hash of the prompt up to the place, and of the model.
	hash uint64
	// Tokens is the estimated number of tokens up to the place.
	Tokens int64
	// lifetime is how long the cache keeps the prompt up to the place. If zero, the place is not a
	// breakpoint.
	lifetime time.Duration
}

// A Cache knows which prompts the provider has in its cache. It is safe for concurrent use.
type Cache struct {
	mu    sync.Mutex        // guards until
	until recent[time.Time] // by the hash of a prompt's beginning, when the provider drops it
}

// Last returns the last of the places up to which the prompt is in the cache, or a zero place.
func (c *Cache) Last(places []Place) (last Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for i := len(places) - 1; i >= 0; i-- {
		if until, ok := c.until.get(places[i].hash); ok && now.Before(until) {
			return places[i]
		}
	}
	return Place{}
}

// Keep notes that the provider has just read or written the prompt up to its breakpoints.
func (c *Cache) Keep(places []Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, p := range places {
		if p.lifetime > 0 {
			c.until.put(p.hash, now.Add(p.lifetime))
		}
	}
}

// Drop notes that the provider doesn't have the prompt up to these places.
func (c *Cache) Drop(places ...Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range places {
		c.until.put(p.hash, time.Time{})
	}
}
