// Package keptmem is a keeper in memory, for tests of package kept in virtual time. Its clients may be far
// away, and its faults are those of a server.
package keptmem

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

// A Server keeps values in memory. Create it with New. It is safe for concurrent use.
type Server struct {
	mu     sync.Mutex // guards all below
	values map[string][]byte
	// expires are when the values may be forgotten.
	expires map[string]int64
	// locks contain a value while a transaction has the lock of a name.
	locks map[string]chan struct{}
	// news are the functions that listen.
	news map[*func(name []byte)]struct{}
	// step is by how much the server's clock was set.
	step time.Duration
	// away makes every call fail, and lost every reply of a commit.
	away, lost bool
	// closed makes every call fail for good.
	closed bool
	// updates counts transactions, and writes those that wrote.
	updates, writes int
	// written counts the bytes of the values written.
	written int
}

// New returns a server without values.
func New() *Server {
	return &Server{values: make(map[string][]byte), expires: make(map[string]int64), locks: make(map[string]chan struct{}), news: make(map[*func([]byte)]struct{})}
}

// Client returns a keeper that is a way from the server. A transaction takes four ways, and has its locks for two.
func (s *Server) Client(way time.Duration) *Client { return &Client{server: s, way: way} }

// A Client is a process's keeper.
type Client struct {
	server *Server
	way    time.Duration
	cut    bool // guarded by server.mu
}

var (
	_ kept.Keeper   = (*Client)(nil)
	_ kept.Listener = (*Client)(nil)
)

// SetCut makes every call of the client fail at once, or ends that.
func (c *Client) SetCut(cut bool) { c.server.set(func() { c.cut = cut }) }

// SetAway makes every call fail at once, or ends that.
func (s *Server) SetAway(away bool) { s.set(func() { s.away = away }) }

// Close makes every call fail for good.
func (s *Server) Close() { s.set(func() { s.closed = true }) }

// SetLost makes the server write, but not answer, or ends that.
func (s *Server) SetLost(lost bool) { s.set(func() { s.lost = lost }) }

// Step sets the server's clock.
func (s *Server) Step(by time.Duration) { s.set(func() { s.step += by }) }

// Drop forgets all values.
func (s *Server) Drop() { s.set(func() { clear(s.values) }) }

// Sweep forgets the values that it may forget.
func (s *Server) Sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.values, func(name string, _ []byte) bool { return s.expires[name] <= s.wall() })
}

func (s *Server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Count returns how many transactions there were, how many of them wrote, and how many bytes.
func (s *Server) Count() (updates, writes, written int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.updates, s.writes, s.written
}

// Value returns the value of a name.
func (s *Server) Value(name []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[string(name)]
}

// Names returns the names of all values, in their order.
func (s *Server) Names() (names [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.values)) {
		names = append(names, []byte(name))
	}
	return names
}

// Put sets the value of a name.
func (s *Server) Put(name, value []byte) { s.set(func() { s.values[string(name)] = value }) }

func (c *Client) isAway() error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("keptmem: the server is closed: %w", kept.ErrClosed)
	}
	if s.away || c.cut {
		return fmt.Errorf("keptmem: the server is away: %w", store.ErrUnavailable)
	}
	return nil
}

// wall is the server's clock. It needs mu.
func (s *Server) wall() int64 { return time.Now().Add(s.step).UnixMicro() }

// Update implements kept.Keeper.
func (c *Client) Update(ctx context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	s, v := c.server, kept.View{Sent: time.Now(), Values: make([][]byte, len(names))}
	time.Sleep(c.way)
	if err := c.isAway(); err != nil {
		return err
	}
	unlock, err := s.lockAll(ctx, names)
	defer func() { unlock() }()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.updates++
	v.Wall = s.wall()
	for i, name := range names {
		if value, ok := s.values[string(name)]; ok {
			v.Values[i] = append([]byte(nil), value...)
		}
	}
	s.mu.Unlock()
	time.Sleep(c.way)
	v.Got = time.Now()
	writes, err := change(v)
	if err != nil {
		return err
	}
	time.Sleep(c.way)
	if err := c.isAway(); err != nil {
		return err
	}
	lost := s.write(names, writes)
	unlock()
	unlock = func() {}
	time.Sleep(c.way)
	if lost {
		return fmt.Errorf("keptmem: no reply: %w", store.ErrUnavailable)
	}
	return nil
}

// lockAll locks the names in their order. unlock frees those that are locked, also after an error.
func (s *Server) lockAll(ctx context.Context, names [][]byte) (unlock func(), err error) {
	locked := 0
	unlock = func() {
		for _, name := range names[:locked] {
			<-s.lock(name)
		}
	}
	for i, name := range names {
		select {
		case s.lock(name) <- struct{}{}:
			locked++
		case <-ctx.Done():
			return unlock, fmt.Errorf("keptmem: lock %d: %w: %w", i, store.ErrUnavailable, ctx.Err())
		}
	}
	return unlock, nil
}

func (s *Server) lock(name []byte) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[string(name)] == nil {
		s.locks[string(name)] = make(chan struct{}, 1)
	}
	return s.locks[string(name)]
}

func (s *Server) write(names [][]byte, writes []kept.Write) (lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wrote := false
	for i, w := range writes {
		if w.Value == nil {
			continue
		}
		wrote = true
		s.values[string(names[i])], s.expires[string(names[i])] = w.Value, w.Expires
		s.written += len(w.Value)
		if w.Urgent {
			for f := range s.news {
				go (*f)(names[i])
			}
		}
	}
	if wrote {
		s.writes++
	}
	return s.lost
}

// Listen implements kept.Listener.
func (c *Client) Listen(ctx context.Context, news func(name []byte)) error {
	time.Sleep(c.way)
	if err := c.isAway(); err != nil {
		return err
	}
	var one sync.Mutex // news come one after the other
	f := func(name []byte) {
		time.Sleep(c.way)
		one.Lock()
		defer one.Unlock()
		news(name)
	}
	c.server.set(func() { c.server.news[&f] = struct{}{} })
	defer c.server.set(func() { delete(c.server.news, &f) })
	f(nil)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
			if err := c.isAway(); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}
