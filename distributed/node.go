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

	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

const (
	mostTrips    = 16 // the most batches in flight to a server
	mostTogether = 64 // the most calls of several keys in a batch
)

// A node is a server, or a range of slots of a Cluster. It limits how many round trips are in
// flight to the server, so that many callers in this process don't delay each other's calls: keys
// take turns, and the more of them wait, the more of their calls share a round trip.
type node struct {
	rdb       redis.UniversalClient
	timeout   time.Duration
	journal   *journal
	most      int       // the most batches in flight
	servers   *sync.Map // *server by address; by "" outside a Cluster
	circuit   circuit
	link      timing.Link
	measuring atomic.Bool   // whether the first trip was begun
	measured  chan struct{} // closed when the first trip has ended

	mu       sync.Mutex       // guards all below
	inFlight int              // batches
	calls    int              // the calls in these batches
	waiting  map[string]*lane // by key
	turns    []*lane          // the lanes with trips, the next one first
}

// A lane is the queue of trips of a key. While a trip that only refunds is in flight, the next trip
// waits: on another connection it might be faster and miss the refunded times.
type lane struct {
	key       string
	trips     []*trip
	refunding *trip
}

// A call is one run of the script.
type call struct {
	quota *quota // that reports the call
	key   string
	more  []string // further keys in the same slot
	// around are the quotas around it, whose calls these are too.
	around []*quota
	args   []any
	reply  []int64
	err    error

	requests int // that the reply decides
}

func newCall(q *quota, args []any) *call {
	return &call{quota: q, key: q.key, more: q.leases.keys(), args: args}
}

// keys returns the beginning of a command, with all of its keys.
func (c *call) keys(command, script string) []any {
	words := []any{command, script, 1 + len(c.more), c.key}
	for _, key := range c.more {
		words = append(words, key)
	}
	return words
}

// garbled returns the error of a reply that is not the script's.
func (c *call) garbled() error {
	return &unavailableError{fmt.Errorf("the server replied with %d, which the script does not", c.reply)}
}

// A trip is calls of one key that share a round trip, in order.
type trip struct {
	calls []*call
	lane  *lane
	// refunds makes the next trip of the key share the round trip, so that it can use the refunded
	// times.
	refunds bool
	// onSend is called with the number of calls in flight when the trip is sent, and may set arguments.
	// If nil, the trip reserves nothing.
	onSend    func(calls int)
	sent, got time.Time
	// done is called once: when the trip has ended, or after Options.Timeout with an error.
	done func(error)
	// late is called when a trip succeeds after done was called with a timeout. If nil, the reply
	// is ignored.
	late func()
}

// isLate reports whether the trip reserved something and all of it has expired.
func (t *trip) isLate(got []store.Decision) bool {
	admitted := false
	for _, d := range got {
		if d.Verdict == store.Admitted {
			if !d.Reservation.Expired(t.got) {
				return false
			}
			admitted = true
		}
	}
	return admitted
}

// make makes the trip, and then trips of other keys in turn. It blocks for as long as the client
// does, which may be longer than the timeout.
func (n *node) make(t *trip) {
	n.enter(t)
	n.run()
}

// enter queues a trip, or ends it with an error if the server is away. The caller calls run next.
func (n *node) enter(t *trip) {
	if err := n.circuit.open(); err != nil {
		t.done(err)
		t.report(store.Call{Unsent: true}, err)
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

// run makes trips until the queue is empty or the most are in flight.
func (n *node) run() {
	for batch := n.next(); batch != nil; batch = n.next() {
		n.makeTogether(batch)
	}
}

// next returns the trips to send together: one of each key and the refunds before it. It returns
// nil if no trip waits, or if the most are in flight.
func (n *node) next() (batch []*trip) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.inFlight == n.most || len(n.turns) == 0 {
		return nil
	}
	calls, again := 0, []*lane(nil)
	for len(n.turns) > 0 {
		l := n.turns[0]
		if l.refunding != nil {
			n.turns, again = n.turns[1:], append(again, l)
			continue
		}
		together := 1
		for together < len(l.trips) && l.trips[together-1].refunds {
			together++
		}
		if calls += count(l.trips[:together]); calls > mostTogether && len(batch) > 0 {
			break
		}
		batch = append(batch, l.trips[:together]...)
		n.turns, l.trips = n.turns[1:], l.trips[together:]
		if last := batch[len(batch)-1]; last.refunds {
			l.refunding = last
		}
		if len(l.trips) > 0 {
			again = append(again, l)
		} else if l.refunding == nil {
			delete(n.waiting, l.key)
		}
	}
	if n.turns = append(n.turns, again...); len(batch) == 0 {
		return nil
	}
	n.inFlight++
	n.calls += count(batch)
	for _, t := range batch {
		if t.onSend != nil {
			t.onSend(n.calls)
		}
	}
	return batch
}

// refundDone lets the lane of a trip go on if it waits for the trip's refunds. It needs mu.
func (n *node) refundDone(t *trip) {
	if l := t.lane; l.refunding == t {
		l.refunding = nil
		if len(l.trips) == 0 {
			delete(n.waiting, l.key)
		}
	}
}

// count returns the number of calls in a batch.
func count(batch []*trip) (calls int) {
	for _, t := range batch {
		calls += len(t.calls)
	}
	return calls
}

// makeTogether makes trips in one round trip and calls their done. If the circuit is open, it sends
// nothing.
func (n *node) makeTogether(batch []*trip) {
	open := n.circuit.allow()
	var over atomic.Bool
	finish := func(why func(*trip) error, made store.Call) (first bool) {
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
		n.inFlight--
		n.calls -= count(batch)
		for _, t := range batch {
			n.refundDone(t)
		}
		n.mu.Unlock()
		for i, t := range batch {
			t.done(errs[i])
		}
		for i, t := range batch {
			t.report(made, errs[i])
		}
		return true
	}
	if open != nil {
		finish(func(*trip) error { return open }, store.Call{Unsent: true})
		return
	}
	timeout := time.AfterFunc(n.timeout, func() {
		if finish(func(*trip) error { return &unavailableError{errTimeout} }, store.Call{Duration: n.timeout}) {
			n.run()
		}
	})
	n.send(batch)
	timeout.Stop()
	if finish((*trip).err, store.Call{Duration: batch[0].got.Sub(batch[0].sent)}) {
		return
	}
	for _, t := range batch {
		if t.err() == nil && t.late != nil {
			t.late()
		}
	}
}

// report reports the calls of a trip that has ended. If one of them failed, all count as failed:
// their decisions are lost.
func (t *trip) report(made store.Call, err error) {
	if err != errFollowed {
		made.Err = err
	}
	for _, c := range t.calls {
		if err == nil {
			made.Requests = c.requests
		}
		c.quota.calls.Made(made)
	}
}

// err returns the error of the first call that failed.
func (t *trip) err() error {
	for _, c := range t.calls {
		if c.err != nil {
			return cmp.Or(c.apart(), explain(c.key, c.err))
		}
	}
	return nil
}

// send sends the calls of a batch, by the cheapest way that the server supports, and sets sent and
// got.
func (n *node) send(batch []*trip) {
	ctx := context.Background()
	var calls []*call
	for _, t := range batch {
		calls = append(calls, t.calls...)
	}
	sent := time.Now()
	run := func(left []*call, command, script string) (unknown []*call) {
		if len(left) == len(calls) {
			sent = time.Now() // otherwise some calls ran earlier
		}
		return n.call(ctx, left, command, script)
	}
	unknown := n.callFunction(ctx, calls, func(left []*call) []*call { return run(left, "fcall", functionName()) })
	if len(unknown) > 0 {
		unknown = run(unknown, "evalsha", scriptSHA())
	}
	// Newer servers keep a script that was loaded, and may forget one that only ran.
	if len(unknown) > 0 && n.rdb.ScriptLoad(ctx, scriptSource()).Err() == nil {
		unknown = run(unknown, "evalsha", scriptSHA())
	}
	if len(unknown) > 0 {
		run(unknown, "eval", scriptSource())
	}
	got := time.Now()
	if slices.ContainsFunc(calls, func(c *call) bool { return c.err == nil }) { // otherwise it measures how long the client waits
		n.link.Trip.Add(min(n.timeout, got.Sub(sent)))
	}
	for _, t := range batch {
		t.sent, t.got = sent, got
	}
	for _, c := range calls {
		c.heed()
	}
}

// A once is a command that the client must not repeat after a lost reply, because the script would
// reserve twice.
type once struct{ *redis.IntSliceCmd }

func (once) NoRetry() bool { return true }

// answer returns the reply of the script, which begins with a header.
func (c once) answer() ([]int64, error) {
	reply, err := c.Result()
	if err == nil && len(reply) < headerLen {
		err = fmt.Errorf("the server replied with %d numbers to %s, want %d or more", len(reply), c.Name(), headerLen)
	}
	return reply, err
}

// pipelined sends commands in one round trip. If the server refuses the connection, the client sets
// no error on the commands, so pipelined sets the error of the pipeline.
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

// call runs calls in one round trip. It returns the calls that the server refused to run.
func (n *node) call(ctx context.Context, calls []*call, command, script string) (unknown []*call) {
	cmds := make([]once, len(calls))
	for i, c := range calls {
		cmds[i] = once{redis.NewIntSliceCmd(ctx, append(c.keys(command, script), c.args...)...)}
		cmds[i].SetFirstKeyPos(3)
	}
	if len(cmds) == 1 {
		_ = n.rdb.Process(ctx, cmds[0]) // the command has the error too
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

// ranges is the number of ranges into which the slots of a Cluster are divided. A shard has some of
// them.
const ranges = 64

// Nodes are the nodes of a client.
type nodes []*node

func newNodes(rdb redis.UniversalClient, timeout time.Duration, j *journal) nodes {
	count, most := 1, mostTrips
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		count, most = ranges, 4
	case *redis.Client:
		if c != nil {
			most = max(1, min(most, c.Options().PoolSize))
		}
	}
	all, servers := make(nodes, count), new(sync.Map)
	for i := range all {
		all[i] = &node{
			rdb: rdb, servers: servers, timeout: timeout, journal: j, most: most, measured: make(chan struct{}), waiting: make(map[string]*lane),
		}
	}
	return all
}

// of returns the node of a key.
func (n nodes) of(key string) *node { return n[slot(key)*len(n)/slots] }

// slots is the number of slots of a Cluster.
const slots = 1 << 14

// slot returns the slot of a key: the CRC-16/XMODEM checksum of the key, or of the text in its
// first braces.
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
