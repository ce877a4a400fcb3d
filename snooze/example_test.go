package snooze_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/snooze"
)

func ExampleLine() {
	limiter, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerMinute(2)}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	line := &snooze.Line{Limiter: limiter}
	for job := range 5 {
		permit, again, err := line.Acquire(context.Background(), nil, false)
		switch {
		case err != nil:
			log.Fatal(err)
		case permit == nil:
			fmt.Println("job", job, "comes back after", again.Round(time.Second))
		default:
			fmt.Println("job", job, "is sent")
			permit.Release()
		}
	}
	// Output:
	// job 0 is sent
	// job 1 is sent
	// job 2 comes back after 59s
	// job 3 comes back after 1m29s
	// job 4 comes back after 1m59s
}
