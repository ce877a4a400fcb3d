package distributed

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server that refused the function is asked again after so long.
const loadAgain = time.Minute

// A server is what a store has learned of a Redis server: whether that has the script as a
// function. A server without functions, or that refuses them to the user, runs it as a script.
type server struct {
	mu     sync.Mutex // guards all below
	has    bool
	loadAt time.Time // unless it has, it is not asked to load before
}

// server is the one that keeps a key: of a Cluster the key's master.
func (n *node) server(ctx context.Context, key string) (*server, redis.Cmdable) {
	var loader redis.Cmdable = n.rdb
	address := ""
	if c, ok := n.rdb.(*redis.ClusterClient); ok {
		master, err := c.MasterForKey(ctx, key)
		if err != nil {
			return nil, nil
		}
		loader, address = master, master.Options().Addr
	}
	found, _ := n.servers.LoadOrStore(address, new(server))
	return found.(*server), loader
}

// hasFunction reports whether the server has the function. If it may, the function is loaded
// first; meanwhile others run the script.
func (s *server) hasFunction(ctx context.Context, loader redis.Cmdable) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	now := time.Now()
	if s.has || now.Before(s.loadAt) {
		defer s.mu.Unlock()
		return s.has
	}
	s.loadAt = now.Add(loadAgain)
	s.mu.Unlock()
	err := loader.FunctionLoad(ctx, functionSource()).Err()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has = err == nil || strings.Contains(err.Error(), "already exists")
	return s.has
}

// lacksFunction takes note that the server did not run the function.
func (s *server) lacksFunction(loadAt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has, s.loadAt = false, loadAt
}

// callFunction calls the function and returns the calls that were not run. A function that
// was flushed or is not there after a failover is loaded once.
func (n *node) callFunction(ctx context.Context, calls []*call, send func([]*call) (unknown []*call)) []*call {
	var loadAt time.Time // at once
	for range 2 {
		s, loader := n.server(ctx, calls[0].key)
		if !s.hasFunction(ctx, loader) {
			break
		}
		if calls = send(calls); len(calls) == 0 {
			break
		}
		if s, _ = n.server(ctx, calls[0].key); s != nil {
			s.lacksFunction(loadAt)
		}
		loadAt = time.Now().Add(loadAgain)
	}
	return calls
}

// didNotRun reports whether a server says that it ran nothing, because it doesn't know the
// script, or the function, or commands that run functions, or the user may not use them.
// Errors of commands in a script name these, never the command that ran it.
func didNotRun(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return redis.HasErrorPrefix(err, "NOSCRIPT") ||
		text == "ERR Function not found" ||
		strings.HasPrefix(text, "ERR unknown command") && strings.Contains(strings.ToLower(text), "fcall") ||
		redis.HasErrorPrefix(err, "NOPERM") && strings.Contains(text, "'fcall' command")
}
