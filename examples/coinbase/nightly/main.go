// Nightly is a minimal batch job. It calls Wait before each call to the API.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/apithrottle/throttle"
)

var accounts = []string{"BTC", "ETH", "SOL", "XRP", "ADA", "DOT", "LTC", "BCH", "UNI", "ETC", "XLM", "EUR"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := saveAll(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// saveAll saves every account, at most 5 a second and 10,000 an hour.
func saveAll(ctx context.Context, w io.Writer) error {
	limiter, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10_000)}}, nil)
	if err != nil {
		return err
	}
	start := time.Now()
	for done, account := range accounts {
		if err := limiter.Wait(ctx); err != nil {
			return fmt.Errorf("%d of %d accounts saved: %w", done, len(accounts), err)
		}
		fmt.Fprintf(w, "%4.2f s  %s\n", time.Since(start).Seconds(), account) // replace this line with the call to the API
	}
	return nil
}
