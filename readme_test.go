package throttle_test

import (
	"context"
	"fmt"
	"go/format"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/throttletest"
)

// The code of the README. The code for a fleet needs a client of Redis, so it stands in
// internal/integration.
func Example() {
	provider := throttletest.NewProvider(throttle.PerSecond(5), throttle.PerHour(10000))
	defer provider.Close()
	url := provider.URL

	lim, err := throttle.New(throttle.Policy{
		Name:  "coinbase",
		Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10000)},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &throttle.Transport{Limiter: lim}}
	resp, err := client.Get(url) // waits its turn, in all tiers

	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	fmt.Println(beforeBatch(context.Background(), lim))
	fmt.Println(forGitHub())
	_ = inMoney(context.Background())
	// Output:
	// 200 OK
	// <nil>
	// <nil>
}

func forGitHub() error {
	client, err := providers.GitHub().Client(nil) // or (store), for a fleet
	_ = client
	return err
}

func inMoney(ctx context.Context) context.Context {
	policy := throttle.Policy{
		Name: "model",
		Tiers: []throttle.Tier{
			{Limit: 90_000, Window: time.Minute, Algorithm: throttle.TokenBucket, Unit: "tokens", Estimated: true},
			throttle.Budget(100_000_000, "usd", throttle.Month), // $100.00, in millionths
		},
		AlertAt:  []int{80, 100}, // percent; once a month, in one process of a fleet
		Alert:    func(a throttle.Alert) { log.Printf("%d %% of %s are spent", a.Percent, a.Tier) },
		Headroom: 20, // percent of every tier but budgets that batch jobs leave to others
	}
	ctx = throttle.WithClass(ctx, throttle.Batch)
	if err := policy.Validate(); err != nil {
		log.Fatal(err)
	}
	return ctx
}

func learning(lim *throttle.Limiter) *throttle.Transport {
	var typical atomic.Int64 // points of a query, as learned
	typical.Store(1_000)
	transport := &throttle.Transport{
		Limiter: lim, // with an Estimated tier of points
		Profile: &answers.Profile{Charges: []answers.Charge{{Unit: "points", Field: answers.Field{Path: "extensions.cost"}}}},
		Cost:    func(*http.Request) throttle.Cost { return throttle.Cost{"points": typical.Load()} },
		Settle: func(*http.Request) func(throttle.Cost) throttle.Cost {
			return func(reported throttle.Cost) throttle.Cost {
				if points := reported["points"]; points > 0 {
					typical.Store((7*typical.Load() + points) / 8)
				}
				return reported
			}
		},
	}
	return transport
}

// TestLearning checks that the code of docs/costs.md learns what requests cost.
func TestLearning(t *testing.T) {
	lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 10_000, Window: time.Hour, Unit: "points", Estimated: true}}}, nil)
	tr := learning(lim)
	for i, cost := range []string{"200", "0", "200"} {
		if got, want := tr.Cost(nil)["points"], []int64{1_000, 900, 900}[i]; got != want {
			t.Errorf("request %d is charged %d points, want %d", i, got, want)
		}
		tr.Base = roundTripper(func(*http.Request) (*http.Response, error) {
			resp := trAnswer(http.StatusOK, "Content-Type", "application/json")
			resp.Body = io.NopCloser(strings.NewReader(`{"extensions": {"cost": ` + cost + `}}`))
			return resp, nil
		})
		resp, err := tr.RoundTrip(httptest.NewRequest(http.MethodPost, trURL, nil))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	if got := used(t, lim)[0]; got != 400 {
		t.Errorf("%d points are used, want 400", got)
	}
}

func beforeBatch(ctx context.Context, lim *throttle.Limiter) error {
	if err := lim.Wait(ctx); err != nil {
		return err // the context's own error, or a *throttle.WaitError
	}
	return nil
}

// TestReadme checks that each Go block of the README and of docs/costs.md is in this file or in the
// one in internal/integration, where it compiles and runs.
func TestReadme(t *testing.T) {
	var pages []byte
	for _, file := range []string{"README.md", "docs/costs.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, text...)
	}
	var source []byte
	for _, file := range []string{"readme_test.go", "internal/integration/readme_test.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}
	blocks := strings.Split(string(pages), "```go\n")[1:]
	if len(blocks) != 6 {
		t.Fatalf("the pages have %d Go blocks, want 6", len(blocks))
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		formatted, err := format.Source([]byte("\t" + strings.ReplaceAll(strings.TrimSpace(code), "\n", "\n\t")))
		if err != nil {
			t.Errorf("%v:\n%s", err, code)
		}
		if !strings.Contains(string(source), string(formatted)) {
			t.Errorf("this block is not in readme_test.go:\n%s", formatted)
		}
	}
}
