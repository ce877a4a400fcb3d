// Overload measures a limiter of 1,000/s, in real time, while far more callers wait than it
// may admit: its admissions, and how soon it refuses a caller whose deadline is too near.
//
//	go run ./overload                        27,000 units wait, deadlines of 30 s
//	go run ./overload -waiting 200000        deadlines that the waiting callers can meet
//	go run ./overload -costs                 requests of 1, 2 and 5 units
//	go run ./overload -classes -canceled 20  all classes, one caller in five cancels
//
// Newcomers arrive at 2,000/s. Each calls Acquire and, once admitted, Arrived and Release.
// One newcomer in 20 has a deadline of 1 ms.
//
// The floor is the time that a goroutine without work takes to start on the same machine.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	var s scenario
	flag.IntVar(&s.waiting, "waiting", 27_000, "`units` that wait from the start")
	flag.DurationVar(&s.deadline, "deadline", 0, "deadline of callers that can wait. If zero, 11 % more than the time that -waiting units take")
	flag.DurationVar(&s.time, "time", 10*time.Second, "length of the measurement")
	flag.BoolVar(&s.costs, "costs", false, "make requests of 1, 2 and 5 units instead of 1")
	flag.BoolVar(&s.classes, "classes", false, "make requests of all classes")
	flag.IntVar(&s.canceled, "canceled", 0, "`percent` of the callers that cancel at a random time before their deadline")
	flag.Parse()
	r, err := s.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "overload:", err)
		os.Exit(1)
	}
	fmt.Println(r)
}
