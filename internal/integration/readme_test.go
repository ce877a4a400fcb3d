package integration_test

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net/http"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
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

type (
	Order   string
	Receipt string
)

func inABatch(ctx context.Context, orders iter.Seq2[string, Order], transport *throttle.Transport, journal *batch.Journal) error {
	send := func(context.Context, Order) (Receipt, error) { return "sent", nil }
	save := func(string, Receipt) error { return nil }
	report, err := batch.Run(ctx, batch.Job[string, Order, Receipt]{
		Items: orders, Transport: transport, Do: send, Result: save, Journal: journal, Progress: batch.Bar(os.Stderr),
	})
	if err == nil && report.Done != 1 {
		err = errors.New(report.String())
	}
	return err
}

// TestReadme runs the code for a fleet, for dollars and for a batch. A test of the root package compares the two with the pages.
func TestReadme(t *testing.T) {
	if _, err := inDollars(nil); err != nil {
		t.Error(err)
	}
	if err := inABatch(t.Context(), maps.All(map[string]Order{"1": "one"}), &throttle.Transport{}, nil); err != nil {
		t.Error(err)
	}
	if _, err := forFleet(throttle.Policy{Name: "coinbase", Tiers: []throttle.Tier{throttle.PerSecond(5)}}); err != nil {
		t.Error(err)
	}
}
