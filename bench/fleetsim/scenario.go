package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/apithrottle/throttle"
)

// A scenario describes a fleet, its work, its faults and the bounds that must hold.
type scenario struct {
	name, about string
	// processes is the number of processes, waiters the number of callers of each.
	processes, waiters int
	// real plays the scenario in real time on a redis-server.
	real  bool
	tiers []throttle.Tier
	// tiersOf returns the tiers of process i, for releases side by side. If nil, tiers.
	tiersOf func(i int) []throttle.Tier
	// provided are the tiers that the provider enforces. If nil, tiers.
	provided []throttle.Tier
	// guard is the guard of the policy.
	guard time.Duration
	// ways are the delays to the server. The processes take them by turns. If empty, there is none.
	ways []way
	// delay is the delay to the provider, and of its response. If zero, a request arrives at a random
	// time within the guard, and its caller does not wait for a response.
	delay way
	// batch reports whether the requests of process i yield. If nil, none do.
	batch func(i int) bool
	// keys is the number of keys, each with a quota of its own. The callers take them by turns. If
	// zero, 1.
	keys int
	// around are the tiers of one quota around those of all keys. If nil, there is none.
	around []throttle.Tier
	// rest is how long a caller pauses after a response. If delay is zero, it is the interval between
	// the requests of a caller.
	rest time.Duration
	// requests is the number of requests of each caller. If zero, callers send until the end.
	requests int
	// newcomers is the number of callers that arrive each second besides, with one request each. One
	// in 20 is urgent: it has a deadline of 1 ms.
	newcomers int
	// deadline is the deadline of the other requests. If zero, they have none.
	deadline time.Duration
	// classes gives each request a random class.
	classes bool
	// costs are the costs of requests, of which each draws one. If empty, 1.
	costs []int64
	// cancels is the share of requests that are canceled if they still wait.
	cancels float64
	// cancelWithin is the longest time until a request is canceled.
	cancelWithin time.Duration
	faults       []fault
	// warm is how long the fleet runs before goodput is measured.
	warm time.Duration
	// length is when the run ends.
	length time.Duration
	// drain is how long callers may take to use their reservations before charges are compared with
	// admissions. If zero, they are not compared.
	drain time.Duration
	// busy are the service times of the server. If zero, see service.
	busy service
	// alone puts the quota into the memory of one process, without a server.
	alone bool
	// full is how many requests a second the fleet could send if nothing went wrong.
	full   float64
	bounds bounds
	// seen, if not nil, is called for each command that the server has run.
	seen func(now int64, args []string, reply any)
	// large marks a scenario that takes long. TestScenarios plays it only with -large.
	large bool
}

// A bounds contains what must hold. Fields that are zero do not bound, except refused.
type bounds struct {
	// goodput is the least share of full.
	goodput float64
	// calls is the most calls of the script for each admission.
	calls float64
	// refused is the most requests that the provider refuses.
	refused int
	// recovery is the longest time from the end of the last fault to the full rate.
	recovery time.Duration
	// even is the least ratio of the fewest and the most admissions of a process.
	even float64
	// messages is the most messages to subscribers for each admission.
	messages float64
	// fair is the least ratio of the fewest and the most admissions at one distance.
	fair float64
	// lost is the most units that are charged and not admitted, as a share of the last tier's
	// limit.
	lost float64
	// longest is the longest wait of a caller.
	longest time.Duration
}

// service returns the service times, by default about those of one core.
func (s scenario) service() service {
	if s.busy != (service{}) {
		return s.busy
	}
	return service{
		Call: 60 * time.Microsecond, Request: 2 * time.Microsecond, Other: 5 * time.Microsecond,
		Connect: 50 * time.Microsecond, Compile: 2 * time.Millisecond,
	}
}

func (s scenario) way(i int) way {
	if i >= s.processes || len(s.ways) == 0 {
		return way{}
	}
	return s.ways[i%len(s.ways)]
}

func (s scenario) counted() []throttle.Tier {
	if s.provided != nil {
		return s.provided
	}
	return s.tiers
}

func (s scenario) policy(key int) throttle.Policy {
	return throttle.Policy{Name: fmt.Sprintf("key %d", key), Tiers: s.tiers, Guard: s.guard}
}

// calm returns when the last fault ends.
func (s scenario) calm() (at time.Duration) {
	for _, f := range s.faults {
		if f.kind != rate {
			at = max(at, f.at+f.lasts)
		}
	}
	return at
}

// A way draws how long a message takes in one direction: from least to most, evenly, or with a heavy
// tail if shape is set. Half of all messages then take less than 2^(1/shape) times the least.
type way struct {
	least, most time.Duration
	shape       float64
}

func constant(d time.Duration) way          { return way{least: d, most: d} }
func uniform(least, most time.Duration) way { return way{least: least, most: most} }
func pareto(least time.Duration, shape float64, most time.Duration) way {
	return way{least, most, shape}
}

func (w way) draw(r *rand.Rand) time.Duration {
	switch {
	case w.shape > 0:
		return min(w.most, time.Duration(float64(w.least)/math.Pow(1-r.Float64(), 1/w.shape)))
	case w.least == w.most:
		return w.least
	}
	return w.least + time.Duration(r.Int64N(int64(w.most-w.least)+1))
}

// A kind is a kind of fault.
type kind int

const (
	stall     kind = iota // the server answers no command
	slow                  // every message takes longer by fault.by in each direction
	partition             // messages from and to the processes are lost; connections stay open
	lose                  // replies are lost with probability fault.share; the script runs
	failover              // another server takes over with the state of fault.by before, or with none
	step                  // the server's clock steps by fault.by
	rate                  // the server's clock gains fault.by a second, for the whole run
	flush                 // the server loses its scripts
	kill                  // processes end and never return what their callers reserve or hold
	start                 // processes start at fault.at and do nothing before
)

// A fault goes wrong at a time since the start.
type fault struct {
	kind      kind
	at, lasts time.Duration
	by        time.Duration
	share     float64          // of the replies
	affects   func(i int) bool // reports whether process i is affected. If nil, all are
}

func (f fault) isOn(age time.Duration) bool { return f.at <= age && age < f.at+f.lasts }

func (f fault) hits(i int) bool { return f.affects == nil || f.affects(i) }

// oneIn returns a function that selects the processes 0, n, 2n and so on.
func oneIn(n int) func(int) bool { return func(i int) bool { return i%n == 0 } }
