// Pool sends requests to two deployments.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/apithrottle/throttle"
)

func main() {
	pool, err := throttle.NewPool(deployment("east", 2), deployment("west", 3))
	if err != nil {
		log.Fatal(err)
	}
	for i := range 5 {
		permit, err := pool.Acquire(context.Background(), nil) // waits until one of the two has room
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("request", i, "goes to", permit.Member())
		permit.Release() // after the response
	}
	next, err := pool.Forecast(context.Background(), nil)
	fmt.Println("the next one would wait", next.Wait.Round(time.Minute), err)
}

func deployment(name string, hourly int64) throttle.Member {
	l, err := throttle.New(throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerHour(hourly)}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	return throttle.Member{Name: name, Limiter: l}
}
