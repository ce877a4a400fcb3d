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

// The code of the README for a fleet runs; a test of the root package finds it here.
func TestReadme(t *testing.T) {
	if _, err := forFleet(throttle.Policy{Name: "coinbase", Tiers: []throttle.Tier{throttle.PerSecond(5)}}); err != nil {
		t.Error(err)
	}
}
