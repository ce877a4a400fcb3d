package throttle

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// AutoGuard is the Guard of a Policy that learns from the answers how long a
// request takes to reach the provider. It is for networks whose delays nobody
// knows, and for slow servers: an answer after seconds says that the server was
// busy, not that the request was late.
//
// It lies between 20 ms and 1 s, goes by the answers of the last five to ten minutes,
// and is 1 s while those are fewer than eight. Where three in four take longer than a
// network does, which is 50 ms and four times the longest that a connection took to be
// made, without the time to write a body, it is the server that takes its time: then it is
// twice that longest, and the time to write the longest body. (Where no
// connection was seen, or only those to a proxy on the same host, a network takes 250 ms,
// and then it is 50 ms.) Otherwise it is
// the longest round trip of n and 1/4 + 128/n of that more, since a few say little of
// the longest to come. Every refusal doubles it for as long.
//
// A Transport sees round trips and connections; a Permit round trips, if Arrived is
// called. Requests admitted by Wait and Allow teach nothing: for them alone name a
// Guard. In a fleet every process learns for itself.
const AutoGuard time.Duration = -2

const (
	leastGuard    = 20 * time.Millisecond
	mostGuard     = time.Second
	fewAnswers    = 8
	recentAnswers = 32
	guardMemory   = 5 * time.Minute
)

// A network is what answers tell of the way to the provider.
type network struct {
	bound atomic.Int64 // what has been learned: nanoseconds

	mu          sync.Mutex                   // guards all below
	recent      [recentAnswers]time.Duration // the last round trips
	next        int                          // where in recent the next one goes
	setup       time.Duration                // of the last connection
	now, before extremes
	began       time.Time // when now did
}

// Extremes are the longest of some minutes.
type extremes struct {
	answers int
	trip    time.Duration // from admission to the answer
	upload  time.Duration // of that, writing the body
	setup   time.Duration // from admission to a new connection
	raised  time.Duration // what refusals made of the guard
}

func (e extremes) with(o extremes) extremes {
	return extremes{
		e.answers + o.answers, max(e.trip, o.trip), max(e.upload, o.upload), max(e.setup, o.setup), max(e.raised, o.raised),
	}
}

func newNetwork() *network {
	n := &network{began: time.Now()}
	n.bound.Store(int64(mostGuard))
	return n
}

// learned reports whether responses of the last minutes are remembered.
func (n *network) learned() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Since(n.began) < 2*guardMemory && n.before.with(n.now).answers > 0
}

// answered takes note of a round trip, and of how much of it the body took to be written.
func (n *network) answered(trip, upload time.Duration) {
	n.learn(extremes{answers: 1, trip: trip, upload: upload})
}

// connected takes note of a connection that was made for a request.
func (n *network) connected(setup time.Duration) {
	n.learn(extremes{setup: setup})
}

// refused takes note of a refusal of a request that was admitted under a guard: it,
// or one before, came later than was thought.
func (n *network) refused(guard time.Duration) {
	n.learn(extremes{raised: 2 * guard})
}

func (n *network) learn(e extremes) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if age := time.Since(n.began); age > guardMemory {
		n.before, n.now, n.began = n.now, extremes{}, time.Now()
		if age > 2*guardMemory {
			n.before = extremes{}
		}
	}
	n.now = n.now.with(e)
	switch {
	case e.answers > 0:
		n.recent[n.next%recentAnswers] = e.trip - e.upload
		n.next++
	case e.setup > 0:
		n.setup = e.setup
	}
	n.bound.Store(int64(n.estimate()))
}

func (n *network) estimate() time.Duration {
	all := n.before.with(n.now)
	if all.answers < fewAnswers {
		return mostGuard
	}
	setup := cmp.Or(all.setup, n.setup) // it may long have been the same connection
	var estimate time.Duration
	switch quick := n.quick(); {
	case setup == 0 && quick > 250*time.Millisecond:
		estimate = defaultGuard
	case setup > 0 && quick > 4*setup+50*time.Millisecond:
		estimate = all.upload + 2*setup
	default:
		estimate = all.trip + all.trip/4 + 128*all.trip/time.Duration(all.answers)
	}
	return min(mostGuard, max(leastGuard, estimate, all.raised))
}

// quick is what three in four of the last round trips took longer than.
func (n *network) quick() time.Duration {
	trips := n.recent
	known := trips[:min(n.next, recentAnswers)]
	slices.Sort(known)
	return known[len(known)/4]
}

// A journey is what one request tells the networks of its scopes. That of no network tells
// nothing.
type journey struct {
	network  *network // of the innermost scope that learns, nil if none does
	others   []*network
	admitted time.Time
	guard    time.Duration
}

func (n *network) start() journey {
	if n == nil {
		return journey{}
	}
	return journey{network: n, admitted: time.Now(), guard: time.Duration(n.bound.Load())}
}

// each calls f for each network.
func (j journey) each(f func(*network)) {
	if j.network == nil {
		return
	}
	f(j.network)
	for _, n := range j.others {
		f(n)
	}
}

func (j journey) connected() {
	j.each(func(n *network) { n.connected(time.Since(j.admitted)) })
}

func (j journey) answered(upload time.Duration) {
	j.each(func(n *network) { n.answered(time.Since(j.admitted), upload) })
}

func (j journey) refused() { j.each(func(n *network) { n.refused(j.guard) }) }
