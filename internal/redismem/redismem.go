// Package redismem connects clients to a miniredis in memory, without sockets. In a bubble of
// testing/synctest, a call takes exactly the delay of its connection.
package redismem

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	lua "github.com/yuin/gopher-lua"

	"github.com/apithrottle/throttle/internal/redislua"
)

// New returns a server that has started. Close it in the bubble.
//
// Miniredis makes an interpreter for each call of a script, and the script then defines its
// functions. This server has one interpreter, where the script that decides is defined once, as on
// a server that has it as a function. Numbers in its replies have 64 bits everywhere. A test that
// wants a hook of its own passes it to [Hook], because [miniredis.Miniredis.SetError] replaces the
// server's.
func New() *miniredis.Miniredis {
	m := miniredis.NewMiniRedis()
	if c, err := m.Dial(); err == nil { // starts it
		_ = c.Close()
	}
	Hook(m, func(*server.Peer, string, ...string) bool { return false })
	return m
}

// Hook sets a hook that sees each command first, those of scripts too. It replaces the hook before
// it. The server forgets which scripts were loaded.
func Hook(m *miniredis.Miniredis, hook server.Hook) {
	s := &scripts{server: m, functions: make(map[string]*lua.LFunction)}
	s.interpreter = redislua.New(s.call)
	m.Server().SetPreHook(func(p *server.Peer, name string, args ...string) bool {
		return hook(p, name, args...) || s.serve(p, name, args...)
	})
}

// scripts runs the scripts of a server.
type scripts struct {
	server *miniredis.Miniredis // its lock guards all below, and is held while a script runs

	interpreter *redislua.Interpreter
	functions   map[string]*lua.LFunction // by hash
	inside      any                       // the context of commands of scripts
	reply       bytes.Buffer              // to the last command of a script
}

// command is a command that no server has, and caller the script that calls it.
const (
	command = "REDISMEM"
	caller  = "redis.call('" + command + "')"
)

// serve serves a command of a client, and reports false to leave it to miniredis.
func (s *scripts) serve(p *server.Peer, name string, args ...string) bool {
	switch {
	case name == command:
		s.inside = p.Ctx
		p.WriteOK()
		return true
	case name == "SCRIPT" && len(args) == 2 && strings.EqualFold(args[0], "load"):
		hash := s.load(args[1])
		if hash != "" {
			p.WriteBulk(hash)
		}
		return hash != ""
	case name == "SCRIPT":
		s.server.Lock()
		defer s.server.Unlock()
		clear(s.functions) // it may be FLUSH
	case name == "FUNCTION":
		p.WriteError("ERR unknown command 'FUNCTION'") // miniredis repeats all arguments
		return true
	case name == "EVAL" && len(args) > 1 && args[0] != caller:
		return s.run(p, s.load(args[0]), args[1:])
	case name == "EVALSHA" && len(args) > 1:
		return s.run(p, args[0], args[1:])
	}
	return false
}

// load returns the hash of a script, or "" if it doesn't compile: miniredis then says why.
func (s *scripts) load(source string) (hash string) {
	s.server.Lock()
	defer s.server.Unlock()
	sum := sha1.Sum([]byte(source))
	hash = hex.EncodeToString(sum[:])
	if s.functions[hash] != nil {
		return hash
	}
	function, err := s.interpreter.Compile(source)
	if err != nil {
		return ""
	}
	s.functions[hash] = function
	return hash
}

func (s *scripts) run(p *server.Peer, hash string, args []string) bool {
	s.server.Lock()
	function := s.functions[hash]
	learn := function != nil && s.inside == nil
	s.server.Unlock()
	n, err := strconv.Atoi(args[0])
	if function == nil {
		return false
	}
	if err != nil || n < 0 || n >= len(args) {
		p.WriteError("ERR Number of keys can't be greater than number of args")
		return true
	}
	if learn {
		s.server.Server().Dispatch(server.NewPeer(bufio.NewWriter(io.Discard)), []string{"EVAL", caller, "0"})
	}
	s.server.Lock()
	reply, err := s.interpreter.Run(function, args[1:n+1], args[n+1:])
	s.server.Unlock()
	if err != nil {
		p.WriteError(err.Error())
	} else {
		write(p, reply)
	}
	return true
}

// call runs a command of a script.
func (s *scripts) call(args []string) (any, error) {
	if last := len(args) - 1; args[0] == "PEXPIRE" || args[0] == "SET" && last > 2 {
		if n, err := strconv.ParseInt(args[last], 10, 64); err == nil && int64(int(n)) != n {
			args[last] = strconv.Itoa(math.MaxInt) // miniredis reads the expiry as an int
		}
	}
	s.reply.Reset()
	to := bufio.NewWriterSize(&s.reply, 16)
	p := server.NewPeer(to)
	p.Ctx = s.inside
	s.server.Server().Dispatch(p, args)
	_ = to.Flush()
	reply, err := server.ParseReply(bufio.NewReaderSize(&s.reply, 16))
	if status, ok := reply.(server.Simple); ok {
		return redislua.Status(status), err
	}
	return reply, err
}

func write(p *server.Peer, reply any) {
	switch reply := reply.(type) {
	case int64:
		p.WriteRaw(":" + strconv.FormatInt(reply, 10) + "\r\n") // an int may have 32 bits
	case string:
		p.WriteBulk(reply)
	case []any:
		p.WriteLen(len(reply))
		for _, one := range reply {
			write(p, one)
		}
	default:
		p.WriteNull()
	}
}

// Dial returns a client of the server. Each command takes the delay to arrive, and its reply takes
// no time. If delay is nil, a command takes no time either, and the client works outside of a bubble too:
// it then waits for each reply, however long the machine is busy, and sends each command once.
// Close the client and the server in the bubble.
func Dial(server *miniredis.Miniredis, delay func() time.Duration) *redis.Client {
	retries, timeout := 0, time.Duration(0) // the defaults
	if delay == nil {
		retries, timeout = -1, -1 // none
	}
	return redis.NewClient(&redis.Options{
		MaxRetries: retries, ReadTimeout: timeout, WriteTimeout: timeout,
		Addr:     "127.0.0.1:6379", // an IP address, because a name would be looked up
		PoolSize: 256,              // large enough to avoid a wait for a connection, whose timer would outlive the bubble
		// The race detector marks each byte of new buffers, and those of go-redis have 64 KiB in all.
		ReadBufferSize: 4 << 10, WriteBufferSize: 4 << 10,
		// To ask for notifications go-redis waits for a reply with a lock, and virtual time does not
		// advance while another connection waits for that lock.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			conn, err := server.Dial()
			if err != nil {
				return nil, err
			}
			if delay == nil {
				return conn, nil
			}
			return newConn(conn, delay), nil
		},
	})
}

// A delayed connection delivers written bytes after a delay. Write does not wait for the delivery:
// its caller may hold a lock, and virtual time does not advance while a goroutine waits for a lock.
type delayed struct {
	net.Conn
	delay   func() time.Duration
	written chan message
	closed  chan struct{}
	close   sync.Once
}

// A message contains the bytes of one Write and when they arrive. The pieces of a large command
// arrive together.
type message struct {
	bytes []byte
	due   time.Time
}

func newConn(conn net.Conn, delay func() time.Duration) *delayed {
	c := &delayed{Conn: conn, delay: delay, written: make(chan message, 1024), closed: make(chan struct{})}
	go c.deliver()
	return c
}

func (c *delayed) deliver() {
	for {
		select {
		case m := <-c.written:
			time.Sleep(time.Until(m.due))
			_, _ = c.Conn.Write(m.bytes) // the reader gets the error
		case <-c.closed:
			return
		}
	}
}

func (c *delayed) Write(b []byte) (int, error) {
	select {
	case c.written <- message{bytes.Clone(b), time.Now().Add(c.delay())}:
		return len(b), nil
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *delayed) Close() error {
	c.close.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
