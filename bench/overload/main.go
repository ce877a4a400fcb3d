// Overload measures what becomes of a limiter of 1,000/s that far more callers want than
// it may admit, in real time: what is still admitted, and how fast a caller is refused
// whose deadline is too near.
//
//	go run ./overload                        27,000 wait, 30 s deadlines
//	go run ./overload -waiting 200000        deadlines that they can meet
//	go run ./overload -costs                 requests of 1, 2 and 5 units
//	go run ./overload -classes -canceled 20  all classes, one in five cancels
//
// Newcomers arrive at 2,000/s all the while. Each calls Acquire, and when it is admitted
// Arrived and Release. One newcomer in 20 has a deadline of 1 ms.
//
// The floor is what the machine alone takes: a goroutine that does nothing.
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
	flag.DurationVar(&s.deadline, "deadline", 0, "of those who can wait. If zero, 11 % beyond the time that the waiting take")
	flag.DurationVar(&s.time, "time", 10*time.Second, "to measure")
	flag.BoolVar(&s.costs, "costs", false, "requests of 1, 2 and 5 units instead of 1")
	flag.BoolVar(&s.classes, "classes", false, "requests of all classes")
	flag.IntVar(&s.canceled, "canceled", 0, "`percent` of the callers that cancel at some time before their deadline")
	flag.Parse()
	r, err := s.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "overload:", err)
		os.Exit(1)
	}
	fmt.Println(r)
}
