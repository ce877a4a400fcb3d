package distributed

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/store"
)

const (
	mostTrips    = 16 // in flight to a server at most
	mostTogether = 64 // calls that travel together, of several keys
)

// A node is a server as far as this process can tell: of a Cluster, a range of slots. What
// is sent to it waits for one of a few trips, so that a crowd in this process makes nobody
// late: the keys take turns, and the more of them wait, the more of their calls travel
// together.
type node struct {
	rdb     redis.UniversalClient
	timeout time.Duration
	journal *journal
	most    int       // trips in flight
	servers *sync.Map // *server by address; by "" outside a Cluster
	circuit circuit
	trip    delay         // there and back
	wake    delay         // beyond its time, until a caller is told to go
	meeting atomic.Bool   // whether somebody makes the first trip, or has
	met     chan struct{} // closed when it is over

	mu      sync.Mutex       // guards all below
	flying  int              // trips in flight
	calls   int              // of those
	waiting map[string]*lane // by key
	turns   []*lane          // the lanes, the next one first
}

// A lane is what waits of a key, in order. While a trip is in flight that gives back and no
// more, the next one waits: another connection may be quicker, and find nothing free.
type lane struct {
	key    string
	trips  []*trip
	giving *trip
}

// A call is one run of the script.
type call struct {
	key   string
	more  []string // keys in the same slot
	args  []any
	reply []int64
	err   error
}

func (q *quota) newCall(args []any) *call {
	return &call{key: q.key, more: q.leases.keys(), args: args}
}

// keys begins a command with all of its keys.
func (c *call) keys(command, script string) []any {
	words := []any{command, script, 1 + len(c.more), c.key}
	for _, key := range c.more {
		words = append(words, key)
	}
	return words
}

// A trip is some calls of a key that travel together, in order.
type trip struct {
	calls     []*call
	lane      *lane
	givesBack bool                      // the next trip of the key travels with it, so that it is given what is free
	aim       func(int)                 // called with how many calls are in flight when the trip is sent, if not nil: it sets what follows
	at        int                       // where in the arguments the last two of these are
	good      time.Duration             // for how long what it reserves is good
	reply     time.Duration             // how long after the call what is reserved for now is good for as long, since the reply takes that
	guard     time.Duration             // that, and the requests' way to the provider; zero with NoGuard
	notBefore map[*store.WaitSpec]int64 // of requests that are not for now, when they are sent at the earliest, by the quota's clock
	sent, got time.Time
	done      func(error) // called once: when the trip is over, or after Options.Timeout with an error
	late      func()      // if not nil, told of a trip that ended well after that
}

// aimed leaves room in arguments for what aim sets.
func (t *trip) aimed(args []any, aim func(calls int)) []any {
	t.at, t.aim = len(args), aim
	return append(args, nil, nil, nil)
}

// make makes the trip, and others in turn. It blocks for as long as the client does, which
// may be longer than the timeout.
func (n *node) make(t *trip) {
	n.enter(t)
	n.run()
}

// enter has a trip wait for its turn, unless the server is away. The caller calls run then.
func (n *node) enter(t *trip) {
	if err := n.circuit.open(); err != nil {
		t.done(err)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	key := t.calls[0].key
	l := n.waiting[key]
	if l == nil {
		l = &lane{key: key}
		n.waiting[key] = l
	}
	if len(l.trips) == 0 {
		n.turns = append(n.turns, l)
	}
	t.lane = l
	l.trips = append(l.trips, t)
}

// run makes trips while it may and some wait.
func (n *node) run() {
	for batch := n.next(); batch != nil; batch = n.next() {
		n.fly(batch)
	}
}

// call makes a trip of one call and waits for it, or for the context.
func (q *quota) call(ctx context.Context, t *trip, args []any) ([]int64, error) {
	c := q.newCall(args)
	t.calls = []*call{c}
	done := make(chan error, 1)
	t.done = func(err error) { done <- err }
	t.late = func() { q.learn(parseHeader(c.reply), t) }
	go q.node.make(t)
	select {
	case err := <-done:
		if err != nil {
			return nil, err
		}
		return c.reply, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// next returns the trips whose turn it is, one of each key, behind what is given back of that;
// nil if there are none, or as many as may be are in flight.
func (n *node) next() (batch []*trip) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.flying == n.most || len(n.turns) == 0 {
		return nil
	}
	calls, again := 0, []*lane(nil)
	for len(n.turns) > 0 {
		l := n.turns[0]
		if l.giving != nil {
			n.turns, again = n.turns[1:], append(again, l)
			continue
		}
		together := 1
		for together < len(l.trips) && l.trips[together-1].givesBack {
			together++
		}
		if calls += count(l.trips[:together]); calls > mostTogether && len(batch) > 0 {
			break
		}
		batch = append(batch, l.trips[:together]...)
		n.turns, l.trips = n.turns[1:], l.trips[together:]
		if last := batch[len(batch)-1]; last.givesBack {
			l.giving = last
		}
		if len(l.trips) > 0 {
			again = append(again, l)
		} else if l.giving == nil {
			delete(n.waiting, l.key)
		}
	}
	if n.turns = append(n.turns, again...); len(batch) == 0 {
		return nil
	}
	n.flying++
	n.calls += count(batch)
	for _, t := range batch {
		if t.aim != nil {
			t.aim(n.calls)
		}
	}
	return batch
}

// given lets a lane go on that waits for what a trip gives back. It needs mu.
func (n *node) given(t *trip) {
	if l := t.lane; l.giving == t {
		l.giving = nil
		if len(l.trips) == 0 {
			delete(n.waiting, l.key)
		}
	}
}

// count returns how many calls some trips are.
func count(batch []*trip) (calls int) {
	for _, t := range batch {
		calls += len(t.calls)
	}
	return calls
}

// fly makes trips together.
func (n *node) fly(batch []*trip) {
	open := n.circuit.allow()
	var over atomic.Bool
	finish := func(why func(*trip) error) (first bool) {
		if !over.CompareAndSwap(false, true) {
			return false
		}
		errs := make([]error, len(batch))
		for i, t := range batch {
			errs[i] = why(t)
		}
		if open == nil {
			n.circuit.report(errs...)
			n.journal.trips(errs)
		}
		n.mu.Lock()
		n.flying--
		n.calls -= count(batch)
		for _, t := range batch {
			n.given(t)
		}
		n.mu.Unlock()
		for i, t := range batch {
			t.done(errs[i])
		}
		return true
	}
	if open != nil {
		finish(func(*trip) error { return open })
		return
	}
	timeout := time.AfterFunc(n.timeout, func() {
		if finish(func(*trip) error { return &unavailableError{errTimeout} }) {
			n.run()
		}
	})
	n.send(batch)
	timeout.Stop()
	if finish((*trip).err) {
		return
	}
	for _, t := range batch {
		if t.err() == nil && t.late != nil {
			t.late()
		}
	}
}

// err is that of the first call that failed.
func (t *trip) err() error {
	for _, c := range t.calls {
		if c.err != nil {
			return cmp.Or(c.apart(), explain(c.key, c.err))
		}
	}
	return nil
}

// send makes trips together, and says when.
func (n *node) send(batch []*trip) {
	ctx := context.Background()
	var calls []*call
	for _, t := range batch {
		calls = append(calls, t.calls...)
	}
	sent := time.Now()
	run := func(left []*call, command, script string) (unknown []*call) {
		if len(left) == len(calls) {
			sent = time.Now() // else some ran before
		}
		return n.call(ctx, left, command, script)
	}
	unknown := n.callFunction(ctx, calls, func(left []*call) []*call { return run(left, "fcall", functionName()) })
	if len(unknown) > 0 {
		unknown = run(unknown, "evalsha", scriptSHA())
	}
	// Loaded, the script stays; merely run, newer servers may forget it.
	if len(unknown) > 0 && n.rdb.ScriptLoad(ctx, scriptSource()).Err() == nil {
		unknown = run(unknown, "evalsha", scriptSHA())
	}
	if len(unknown) > 0 {
		run(unknown, "eval", scriptSource())
	}
	got := time.Now()
	if slices.ContainsFunc(calls, func(c *call) bool { return c.err == nil }) { // else it tells how long the client waits
		n.trip.add(min(n.timeout, got.Sub(sent)))
	}
	for _, t := range batch {
		t.sent, t.got = sent, got
	}
}

// once is a command that the client must not repeat when its reply was lost: the
// script would reserve twice.
type once struct{ *redis.IntSliceCmd }

func (once) NoRetry() bool { return true }

// answer returns what the script replied, which begins with a header.
func (c once) answer() ([]int64, error) {
	reply, err := c.Result()
	if err == nil && len(reply) < headerLen {
		err = fmt.Errorf("the server replied with %d numbers to %s, want %d or more", len(reply), c.Name(), headerLen)
	}
	return reply, err
}

// pipelined sends commands in one round trip. The client gives a command no error where the
// server refused the connection itself, so that it gets the error of them all.
func pipelined(ctx context.Context, rdb redis.UniversalClient, cmds []once) error {
	pipe := rdb.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd)
	}
	_, err := pipe.Exec(ctx)
	for _, cmd := range cmds {
		if cmd.Err() == nil && cmd.Val() == nil {
			cmd.SetErr(err)
		}
	}
	return err
}

// call runs calls in one round trip and returns those that the server says it did not run.
func (n *node) call(ctx context.Context, calls []*call, command, script string) (unknown []*call) {
	cmds := make([]once, len(calls))
	for i, c := range calls {
		cmds[i] = once{redis.NewIntSliceCmd(ctx, append(c.keys(command, script), c.args...)...)}
		cmds[i].SetFirstKeyPos(3)
	}
	if len(cmds) == 1 {
		_ = n.rdb.Process(ctx, cmds[0]) // the error is the command's too
	} else {
		_ = pipelined(ctx, n.rdb, cmds)
	}
	for i, c := range calls {
		if c.reply, c.err = cmds[i].answer(); didNotRun(c.err) {
			unknown = append(unknown, c)
		}
	}
	return unknown
}

// ranges is how many ranges of slots of a Cluster are told apart: a shard has some of them.
const ranges = 64

// newNodes returns the nodes of a client.
func newNodes(rdb redis.UniversalClient, timeout time.Duration, j *journal) []*node {
	count, most := 1, mostTrips
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		count, most = ranges, 4
	case *redis.Client:
		if c != nil {
			most = max(1, min(most, c.Options().PoolSize))
		}
	}
	nodes, servers := make([]*node, count), new(sync.Map)
	for i := range nodes {
		nodes[i] = &node{
			rdb: rdb, servers: servers, timeout: timeout, journal: j, most: most, met: make(chan struct{}), waiting: make(map[string]*lane),
		}
	}
	return nodes
}

// node returns the node of a key.
func (s *Store) node(key string) *node {
	return s.nodes[slot(key)*len(s.nodes)/slots]
}

// slots is how many a Cluster has.
const slots = 1 << 14

// slot returns that of a key: its checksum, CRC-16/XMODEM, or that of what is in its first braces.
func slot(key string) int {
	if _, tag, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok = strings.Cut(tag, "}"); ok && tag != "" {
			key = tag
		}
	}
	sum := uint16(0)
	for _, b := range []byte(key) {
		sum ^= uint16(b) << 8
		for range 8 {
			if sum&0x8000 != 0 {
				sum = sum<<1 ^ 0x1021
			} else {
				sum <<= 1
			}
		}
	}
	return int(sum) % slots
}
