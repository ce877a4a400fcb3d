package main

import "time"

// A kind is what goes wrong.
type kind int

const (
	stall     kind = iota // the server answers nobody
	slow                  // every message takes longer by so much, each way
	partition             // what the processes send and what is sent to them is lost; connections stay open
	lose                  // replies are lost with some probability; the script ran
	failover              // another server takes over that has the state of some time ago, or none
	step                  // the server's clock steps
	rate                  // the server's clock gains so much a second, all the time
	flush                 // the server forgets its scripts
	kill                  // processes end: what their callers wait for and what they hold is never given back
	start                 // processes start so late; until then they do nothing
)

// A fault is something that goes wrong, at a time since the start.
type fault struct {
	kind      kind
	at, lasts time.Duration
	by        time.Duration
	share     float64          // of the replies
	who       func(i int) bool // the processes. If nil, all
}

func (f fault) isOn(age time.Duration) bool { return f.at <= age && age < f.at+f.lasts }

func (f fault) hits(i int) bool { return f.who == nil || f.who(i) }

// oneIn returns the processes 0, n, 2n and so on.
func oneIn(n int) func(int) bool { return func(i int) bool { return i%n == 0 } }
