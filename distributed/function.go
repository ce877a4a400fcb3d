package distributed

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// loadAgain is the time between two tries to load the function on a server that refuses it.
const loadAgain = time.Minute

// A server records whether a Redis server has the script as a function. A server that has no
// functions, or refuses them to the user, runs the script with EVALSHA.
type server struct {
	mu     sync.Mutex // guards all below
	has    bool       // the function is loaded
	loadAt time.Time  // when to try to load it next, if it is not loaded
}

// server returns the server of a key, and a client of it that can load functions. In a Cluster it
// is the key's master.
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

// hasFunction reports whether the server has the function. If it is time, it loads the function
// first; concurrent callers run the script meanwhile.
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

// lacksFunction records that the server did not run the function.
func (s *server) lacksFunction(loadAt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has, s.loadAt = false, loadAt
}

// callFunction calls the function and returns the calls that were not run. It loads a function once
// if a flush or a failover has removed it.
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

// didNotRun reports whether the error means that the server ran nothing, because it has not loaded
// the script or the function, has no functions, or the user may not call them. Errors of commands
// inside a script name those commands and never the command that ran the script.
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
