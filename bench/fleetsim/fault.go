package main

import "time"

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
