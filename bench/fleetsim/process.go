package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/internal/redislua"
)

// The defaults of go-redis.
const (
	poolSize    = 10 * 2 // connections, on two cores
	readTimeout = 3 * time.Second
	poolTimeout = readTimeout + time.Second
	dialTimeout = 5 * time.Second
	retries     = 3
)

// A process is a client of the server: a real *redis.Client whose hooks hand the commands to the
// model instead of a connection.
//
// It has as many connections as go-redis has by default, and waits for one as go-redis does. A new
// connection costs two round trips. A connection is closed if the server does not answer a command
// within the client's timeout. Messages to subscribers use a connection of their own, a conn, which
// opens at once.
type process struct {
	index  int
	server *server
	way    way
	rdb    *redis.Client
	slots  chan struct{}
	killed atomic.Bool
	closed atomic.Bool // the client is closed, which hooks do not see

	mu     sync.Mutex // guards all below
	random *rand.Rand
	open   int // idle connections
}

func newProcess(index int, s *server, w way, seed uint64) *process {
	p := &process{index: index, server: s, way: w, random: rand.New(rand.NewPCG(seed, uint64(index))), slots: make(chan struct{}, poolSize)}
	p.rdb = redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", // a name would be looked up
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			if p.isCut() {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
			}
			return newConn(p), nil
		},
		Protocol:        2,
		DisableIdentity: true,
		PoolSize:        poolSize, // it bounds the trips in flight
		ReadBufferSize:  1024,
		WriteBufferSize: 1024,
	})
	p.rdb.AddHook(p)
	return p
}

// kill makes the process send nothing more.
func (p *process) kill() { p.killed.Store(true) }

func (p *process) close() {
	p.closed.Store(true)
	_ = p.rdb.Close()
}

func (p *process) redis() *redis.Client { return p.rdb }

// DialHook implements redis.Hook.
func (p *process) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (p *process) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return p.process(ctx, []redis.Cmder{cmd}) }
}

// ProcessPipelineHook implements redis.Hook.
func (p *process) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return p.process
}

// process sends commands, and retries as often as go-redis does.
func (p *process) process(ctx context.Context, cmds []redis.Cmder) error {
	if p.closed.Load() {
		for _, cmd := range cmds {
			cmd.SetErr(redis.ErrClosed)
		}
		return redis.ErrClosed
	}
	if name := cmds[0].Name(); name == "hello" {
		return redislua.Error("ERR unknown command 'hello'") // the client then uses RESP2
	}
	repeat := retries
	for _, cmd := range cmds {
		if once, ok := cmd.(interface{ NoRetry() bool }); ok && once.NoRetry() {
			repeat = 0
		}
	}
	for try := 0; ; try++ {
		replies, err := p.trip(ctx, cmds)
		if err == nil {
			return setReplies(cmds, replies)
		}
		if try == repeat || ctx.Err() != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		time.Sleep(8 * time.Millisecond << try)
	}
}

// setReplies sets the commands' values or errors, and returns the first error.
func setReplies(cmds []redis.Cmder, replies []any) (first error) {
	for i, cmd := range cmds {
		err := setReply(cmd, replies[i])
		cmd.SetErr(err)
		if first == nil {
			first = err
		}
	}
	return first
}

func setReply(cmd redis.Cmder, reply any) error {
	switch r := reply.(type) {
	case error:
		return r
	case nil:
		return redis.Nil
	}
	ok := true
	switch c := cmd.(type) {
	case interface{ SetVal([]int64) }:
		list, isList := reply.([]any)
		numbers := make([]int64, len(list))
		ok = isList
		for i, v := range list {
			n, isNumber := v.(int64)
			numbers[i], ok = n, ok && isNumber
		}
		c.SetVal(numbers)
	case interface{ SetVal(string) }:
		var text string
		text, ok = reply.(string)
		c.SetVal(text)
	case interface{ SetVal([]any) }:
		var list []any
		list, ok = reply.([]any)
		c.SetVal(list)
	case interface{ SetVal(any) }:
		c.SetVal(reply)
	default:
		ok = false
	}
	if !ok {
		return fmt.Errorf("fleetsim: the model has no reply %T for %T", reply, cmd)
	}
	return nil
}

// trip makes one round trip, on a connection of the pool.
func (p *process) trip(ctx context.Context, cmds []redis.Cmder) ([]any, error) {
	if err := p.acquireSlot(ctx); err != nil {
		return nil, err
	}
	defer func() { <-p.slots }()
	if !p.reuseConn() {
		if p.isCut() {
			time.Sleep(dialTimeout)
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
		}
		time.Sleep(p.drawDelay() + p.drawDelay())
		if _, err := p.sendCommands([][]string{{"hello"}}); err != nil {
			return nil, err
		}
	}
	commands := make([][]string, len(cmds))
	for i, cmd := range cmds {
		for _, arg := range cmd.Args() {
			commands[i] = append(commands[i], fmt.Sprint(arg))
		}
	}
	replies, err := p.sendCommands(commands)
	if err == nil {
		p.mu.Lock()
		p.open++
		p.mu.Unlock()
	}
	return replies, err
}

// acquireSlot waits for a free connection of the pool.
func (p *process) acquireSlot(ctx context.Context) error {
	select {
	case p.slots <- struct{}{}:
		return nil
	default:
	}
	timeout := time.NewTimer(poolTimeout)
	defer timeout.Stop()
	select {
	case p.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return redis.ErrPoolTimeout
	}
}

// reuseConn takes an idle connection, and reports whether there was one.
func (p *process) reuseConn() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == 0 {
		return false
	}
	p.open--
	return true
}

// sendCommands sends commands and waits for the replies.
func (p *process) sendCommands(commands [][]string) ([]any, error) {
	v := &visit{commands: commands, epoch: p.server.epoch.Load()}
	replied := make(chan []any, 1)
	v.done = func(replies []any) {
		if !p.isCut() && !p.losesReply() {
			replied <- replies
		}
	}
	deadline := time.NewTimer(readTimeout)
	defer deadline.Stop()
	sent := time.Now()
	if !p.isCut() {
		time.Sleep(p.drawDelay())
		if !p.isCut() {
			p.server.enqueue(v)
		}
	}
	select {
	case replies := <-replied:
		back := p.drawDelay()
		if time.Since(sent)+back < readTimeout {
			time.Sleep(back)
			for _, reply := range replies {
				if reply == io.EOF {
					return nil, io.EOF
				}
			}
			return replies, nil
		}
		<-deadline.C
	case <-deadline.C:
	}
	return nil, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
}

// drawDelay draws how long a message takes now.
func (p *process) drawDelay() time.Duration {
	p.mu.Lock()
	d := p.way.draw(p.random)
	p.mu.Unlock()
	for _, f := range p.server.faults {
		if f.kind == slow && f.isOn(p.server.age()) && f.hits(p.index) {
			d += f.by
		}
	}
	return d
}

// isCut reports whether messages of the process are lost now.
func (p *process) isCut() bool { return p.killed.Load() || p.cutFor() > 0 }

func (p *process) cutFor() (left time.Duration) {
	for _, f := range p.server.faults {
		if age := p.server.age(); f.kind == partition && f.isOn(age) && f.hits(p.index) {
			left = max(left, f.at+f.lasts-age)
		}
	}
	return left
}

// losesReply draws whether a reply is lost.
func (p *process) losesReply() bool {
	for _, f := range p.server.faults {
		if f.kind == lose && f.isOn(p.server.age()) && f.hits(p.index) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.random.Float64() < f.share
		}
	}
	return false
}
