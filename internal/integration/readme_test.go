package integration_test

import (
	"net/http"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/providers"
)

func forFleet(policy throttle.Policy) (*throttle.Limiter, error) {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	lim, err := throttle.New(policy, distributed.New(rdb, distributed.Options{}))
	return lim, err
}

func inDollars(store throttle.Store) (*http.Client, error) {
	policy, err := throttle.ParsePolicy("spending", "$500/month | alert_at=80,100")
	if err != nil {
		return nil, err
	}
	budget, err := throttle.New(policy, store)
	if err != nil {
		return nil, err
	}
	t, err := providers.OpenAI(500, 30_000).Transport(store)
	if err != nil {
		return nil, err
	}
	spending := &providers.Spending{Limiter: budget, Prices: providers.Prices()}
	err = spending.Limit(t, "openai")
	client := &http.Client{Transport: t}
	return client, err
}

// TestReadme runs the code for a fleet and for dollars. A test of the root package compares the two with the pages.
func TestReadme(t *testing.T) {
	if _, err := inDollars(nil); err != nil {
		t.Error(err)
	}
	if _, err := forFleet(throttle.Policy{Name: "coinbase", Tiers: []throttle.Tier{throttle.PerSecond(5)}}); err != nil {
		t.Error(err)
	}
}
