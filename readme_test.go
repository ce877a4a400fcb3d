package throttle_test

import (
	"context"
	"fmt"
	"go/format"
	"log"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
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
	if len(blocks) != 5 {
		t.Fatalf("the pages have %d Go blocks, want 5", len(blocks))
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
