package integration_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

func forFleet(policy throttle.Policy) (*throttle.Limiter, error) {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	lim, err := throttle.New(policy, distributed.New(rdb, distributed.Options{}))
	return lim, err
}

// TestReadme runs the README's code for a fleet. A test of the root package compares the two.
func TestReadme(t *testing.T) {
	if _, err := forFleet(throttle.Policy{Name: "coinbase", Tiers: []throttle.Tier{throttle.PerSecond(5)}}); err != nil {
		t.Error(err)
	}
}
