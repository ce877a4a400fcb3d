package main

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lua "github.com/yuin/gopher-lua"

	"github.com/apithrottle/throttle/internal/redislua"
)

// A server is a model of Redis, with the commands that the script and its clients use. It has one
// thread. Commands wait in order of arrival, and each takes its service time. TIME returns the
// instant at which the command begins.
type server struct {
	service service
	faults  []fault
	began   time.Time
	queue   chan *visit
	lua     *redislua.Interpreter
	epoch   atomic.Int64                              // counts failovers
	seen    func(now int64, args []string, reply any) // called for each command that was served, for tests

	mu       sync.Mutex // guards all below
	keys     map[string]*value
	replica  map[string]*value // the state to which a failover falls back
	scripts  map[string]*lua.LFunction
	channels map[string]map[*conn]struct{}
	tally    tally
}

// A service contains how long the server is busy with its work.
type service struct {
	Call    time.Duration // with a call of the script
	Request time.Duration // and with each request that it decides
	Other   time.Duration // with any other command
	Connect time.Duration // with a new connection
	Compile time.Duration // with a new script
}

// A tally counts what the server has done.
type tally struct {
	Calls, Reserves, Returns, Others int           // calls of the script
	Connections, Commands            int           // opened, other commands
	Published                        int           // messages, one for each subscriber
	Lost                             int           // replies to calls of the script
	Busy, Used                       time.Duration // by the server; by the clients, in real time
	Longest                          time.Duration // wait of a command for earlier commands
}

type value struct {
	bytes   []byte
	fields  map[string]string // of a hash
	order   sortedSet
	expires int64 // by the server's clock, in µs; 0 is never
}

// A visit contains the commands that a connection sent at once. The server's goroutine calls done
// with the replies, or with none if the connection broke.
type visit struct {
	commands [][]string
	epoch    int64
	arrived  time.Time
	conn     *conn // if not nil, a connection for messages
	done     func(replies []any)
}

// A model is the backend of a scenario in virtual time.
type model struct {
	*server
	scenario scenario
	seed     uint64
}

func (m *model) connect(i int) client { return newProcess(i, m.server, m.scenario.way(i), m.seed) }

func (m *model) counted() (tally, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tally, nil
}

func (m *model) close(all []client) {
	time.Sleep(10 * time.Second) // canceled reservations are returned
	for _, c := range all {
		c.close()
	}
	time.Sleep(time.Minute) // goroutines of go-redis end by themselves
	m.queue <- nil
}

func newServer(s service, faults []fault) *server {
	r := &server{
		service:  s,
		faults:   faults,
		began:    time.Now(),
		queue:    make(chan *visit, 1<<20), // a smaller queue would make the order depend on the scheduler
		keys:     make(map[string]*value),
		scripts:  make(map[string]*lua.LFunction),
		channels: make(map[string]map[*conn]struct{}),
	}
	r.lua = redislua.New(r.execute)
	for _, f := range faults {
		switch f.kind {
		case failover:
			time.AfterFunc(max(0, f.at-f.by), func() { r.saveReplica() })
			time.AfterFunc(f.at, func() { r.failOver(f.by >= f.at) })
		case flush:
			time.AfterFunc(f.at, r.flush)
		}
	}
	return r
}

// run serves until it receives nil from the queue.
func (s *server) run() {
	for v := <-s.queue; v != nil; {
		visits := []*visit{v}
		replies := [][]any{s.answer(v)}
		// As Redis does, serve all commands that arrived meanwhile, once, and then reply.
		for range len(s.queue) {
			if v = <-s.queue; v == nil {
				break
			}
			visits, replies = append(visits, v), append(replies, s.answer(v))
		}
		for i, r := range replies {
			visits[i].done(r)
		}
		if v != nil {
			v = <-s.queue
		}
	}
}

// answer runs the commands of a visit.
func (s *server) answer(v *visit) []any {
	for _, f := range s.faults {
		if f.kind == stall && f.isOn(s.age()) {
			time.Sleep(f.at + f.lasts - s.age())
		}
	}
	waited := time.Since(v.arrived)
	replies := make([]any, 0, len(v.commands))
	for _, c := range v.commands {
		now := s.micros()
		reply, took := s.serve(v, c)
		if s.seen != nil {
			s.seen(now, c, reply)
		}
		time.Sleep(took)
		replies = append(replies, reply)
		s.mu.Lock()
		s.tally.Busy += took
		s.tally.Longest = max(s.tally.Longest, waited)
		s.mu.Unlock()
	}
	return replies
}

func (s *server) age() time.Duration { return time.Since(s.began) }

// enqueue adds a visit to the queue.
func (s *server) enqueue(v *visit) {
	v.arrived = time.Now()
	s.queue <- v
}

// micros returns the server's clock in µs, with its steps and its gain.
func (s *server) micros() int64 {
	age := s.age()
	offset := time.Duration(0)
	for _, f := range s.faults {
		switch {
		case f.kind == step && age >= f.at:
			offset += f.by
		case f.kind == rate:
			offset += age * f.by / time.Second
		}
	}
	return s.began.Add(age + offset).UnixMicro()
}

// serve runs a command and returns how long it takes. A reply is an int64, a string, a list of
// them, nil, or an error.
func (s *server) serve(v *visit, args []string) (reply any, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.epoch != s.epoch.Load() {
		return io.EOF, 0
	}
	switch name := strings.ToLower(args[0]); name {
	case "evalsha", "eval":
		return s.script(name, args[1:])
	case "script":
		s.tally.Commands++
		return s.load(args[1], args[2])
	case "subscribe", "unsubscribe":
		for _, channel := range args[1:] {
			s.subscribe(v.conn, channel, name == "subscribe")
		}
	case "ping":
		v.conn.deliver("*2\r\n$4\r\npong\r\n$0\r\n\r\n")
	case "hello":
		s.tally.Connections++
		return int64(0), s.service.Connect
	default:
		reply, err := s.execute(args)
		if err != nil {
			return err, s.service.Other
		}
		return reply, s.service.Other
	}
	s.tally.Commands++
	return nil, s.service.Other
}

func (s *server) load(what, source string) (any, time.Duration) {
	sum := sha1.Sum([]byte(source))
	sha := hex.EncodeToString(sum[:])
	if s.scripts[sha] != nil {
		return sha, s.service.Call // the server must hash it
	}
	script, err := s.lua.Compile(source)
	if err != nil || !strings.EqualFold(what, "load") {
		return redislua.Error(fmt.Sprintf("ERR SCRIPT %s: %v", what, err)), s.service.Other
	}
	s.scripts[sha] = script
	return sha, s.service.Compile
}

func (s *server) script(how string, args []string) (any, time.Duration) {
	script := s.scripts[args[0]]
	if how == "eval" {
		var err error
		if script, err = s.lua.Compile(args[0]); err != nil {
			return redislua.Error("ERR " + err.Error()), s.service.Compile
		}
	}
	if script == nil {
		return redislua.Error("NOSCRIPT No matching script. Please use EVAL."), s.service.Other
	}
	n, err := strconv.Atoi(args[1])
	if err != nil || n > len(args)-2 {
		return redislua.Error("ERR Number of keys can't be greater than number of args"), s.service.Other
	}
	keys, args := args[2:2+n], args[2+n:]
	reply, err := s.lua.Run(script, keys, args)
	took := s.service.Call
	s.tally.Calls++
	op := "" // empty for a script that only reads
	if len(args) > 0 {
		op = args[0]
	}
	switch op {
	case "reserve", "budget":
		s.tally.Reserves++
		if numbers, ok := reply.([]any); ok {
			took += s.service.Request * time.Duration((len(numbers)-8)/3) // of runs of equal requests
		}
	case "bundle":
		s.tally.Reserves++
		took += s.service.Call * time.Duration(n-1) // of each quota around
	case "cancel", "refund":
		s.tally.Returns++
	default:
		s.tally.Others++
	}
	if err != nil {
		return err, took
	}
	return reply, took
}

// execute runs one of the commands that the script uses. The caller must hold mu.
func (s *server) execute(args []string) (any, error) {
	name, args := strings.ToUpper(args[0]), args[1:]
	var key string
	var v *value
	if len(args) > 0 {
		key = args[0]
		if v = s.keys[key]; v != nil && v.expires > 0 && v.expires <= s.micros() {
			delete(s.keys, key)
			v = nil
		}
	}
	number := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			panic(err) // a mistake in the script
		}
		return n
	}
	switch {
	case name == "TIME" && len(args) == 0:
		now := s.micros()
		return []string{strconv.FormatInt(now/1e6, 10), strconv.FormatInt(now%1e6, 10)}, nil
	case name == "GET" && len(args) == 1:
		if v == nil {
			return nil, nil
		}
		return string(v.bytes), nil
	case name == "SET" && len(args) == 4 && strings.ToUpper(args[2]) == "PX":
		s.keys[key] = &value{bytes: []byte(args[1]), expires: s.micros() + 1000*int64(number(3))}
		return "OK", nil
	case name == "GETRANGE" && len(args) == 3:
		if v == nil {
			return "", nil
		}
		from, to := number(1), min(number(2)+1, len(v.bytes))
		if from < 0 || number(2) < 0 {
			return nil, redislua.Error("ERR the model of GETRANGE counts from the start only")
		}
		if from >= to {
			return "", nil
		}
		return string(v.bytes[from:to]), nil
	case name == "SETRANGE" && len(args) == 3:
		if v == nil {
			v = new(value)
			s.keys[key] = v
		}
		if end := number(1) + len(args[2]); end > len(v.bytes) {
			v.bytes = append(v.bytes, make([]byte, end-len(v.bytes))...)
		}
		copy(v.bytes[number(1):], args[2])
		return int64(len(v.bytes)), nil
	case name == "PEXPIRE" && len(args) == 2:
		if v == nil {
			return int64(0), nil
		}
		v.expires = s.micros() + 1000*int64(number(1))
		return int64(1), nil
	case name == "DEL":
		for _, key := range args {
			delete(s.keys, key)
		}
		return int64(len(args)), nil
	case strings.HasPrefix(name, "H") || strings.HasPrefix(name, "Z"):
		if v == nil {
			v = &value{fields: make(map[string]string), order: sortedSet{scores: make(map[string]float64)}}
			s.keys[key] = v
		}
		return v.execute(name, args[1:])
	case name == "PUBLISH" && len(args) == 2:
		for c := range s.channels[key] {
			c.deliver(fmt.Sprintf("*3\r\n$7\r\nmessage\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(key), key, len(args[1]), args[1]))
			s.tally.Published++
		}
		return int64(len(s.channels[key])), nil
	}
	return nil, redislua.Error(fmt.Sprintf("ERR unknown command '%s', with args beginning with: %.80q", name, args))
}

// subscribe adds or removes a subscription. The caller must hold mu.
func (s *server) subscribe(c *conn, channel string, to bool) {
	kind := "unsubscribe"
	if all := s.channels[channel]; !to {
		delete(all, c)
		c.channels--
	} else {
		if all == nil {
			all = make(map[*conn]struct{})
			s.channels[channel] = all
		}
		kind = "subscribe"
		all[c] = struct{}{}
		c.channels++
	}
	c.deliver(fmt.Sprintf("*3\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n:%d\r\n", len(kind), kind, len(channel), channel, c.channels))
}

// unsubscribeAll ends the subscriptions of a connection.
func (s *server) unsubscribeAll(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.channels {
		delete(all, c)
	}
}

// saveReplica copies the state for a failover.
func (s *server) saveReplica() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replica = make(map[string]*value, len(s.keys))
	for key, v := range s.keys {
		s.replica[key] = v.copy()
	}
}

// failOver makes another server take over: with the earlier state or none, without scripts, and
// without connections.
func (s *server) failOver(empty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch.Add(1)
	s.keys = s.replica
	if empty {
		s.keys = make(map[string]*value)
	}
	clear(s.scripts)
	for _, all := range s.channels {
		for c := range maps.Clone(all) {
			go c.Close()
		}
	}
	clear(s.channels)
}

// flush deletes all scripts.
func (s *server) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.scripts)
}
