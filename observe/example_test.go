package observe_test

import (
	"context"
	"expvar"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
)

// The code of docs/observe.md.
func Example() {
	serve := func() error {
		stats := observe.NewStats()
		lim, err := throttle.New(throttle.Policy{
			Name:     "coinbase",
			Tiers:    []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10000)},
			Observer: throttle.JoinObservers(stats.Observer(), observe.Log(slog.Default(), observe.LogOptions{})),
		}, nil)
		if err != nil {
			return err
		}
		if err := stats.Watch("coinbase", lim); err != nil { // for what its tiers have used
			return err
		}
		http.Handle("/metrics", stats.Metrics())

		return nil
	}
	_ = serve // a program calls it once
}

func ExampleLog() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "wait" || a.Key == "waited" { // they differ from run to run
				return slog.Attr{}
			}
			return a
		},
	}))
	lim, err := throttle.New(throttle.Policy{
		Name: "coinbase", Tiers: []throttle.Tier{throttle.PerHour(2)},
		MaxQueue: 1, MaxWait: 1, Observer: observe.Log(logger, observe.LogOptions{}),
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		_ = lim.Wait(context.Background())
	}
	// Output:
	// level=WARN msg="throttle: request refused" policy=coinbase class=normal reason=deadline tier=2/h ahead=0
}

func ExampleStats() {
	stats := observe.NewStats()
	lim, err := throttle.New(throttle.Policy{
		Name: "coinbase", Tiers: []throttle.Tier{throttle.PerSecond(5)}, Observer: stats.Observer(),
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := stats.Watch("coinbase", lim); err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		lim.Allow()
	}
	snap := stats.Snapshot(context.Background())
	for _, r := range snap.Policies[0].Requests {
		if r.Count > 0 {
			fmt.Println(r.Count, r.Class, r.Result)
		}
	}
	for _, t := range snap.Limiters[0].Tiers {
		fmt.Println(t.Used, "of", t.Limit, "used in", t.Tier)
	}
	// Output:
	// 3 normal admitted
	// 3 of 5 used in 5/s
}

func ExampleStats_WatchPool() {
	east, err := throttle.New(throttle.Policy{Name: "gpt east", Tiers: []throttle.Tier{throttle.PerHour(2)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	west, err := throttle.New(throttle.Policy{Name: "gpt west", Tiers: []throttle.Tier{throttle.PerHour(9)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	pool, err := throttle.NewPool(throttle.Member{Name: "east", Limiter: east}, throttle.Member{Name: "west", Limiter: west, Rank: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	stats := observe.NewStats()
	pool.Name, pool.Observer = "models", stats.Observer()
	if err := stats.WatchPool("models", pool); err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		if err := pool.Wait(context.Background()); err != nil {
			fmt.Println(err)
			return
		}
	}
	snap := stats.Snapshot(context.Background())
	for _, m := range snap.Policies[0].Members {
		fmt.Println(m.Member, "has admitted", m.Admitted["normal"])
	}
	for _, m := range snap.Pools[0].Members {
		fmt.Println(m.Name, "has room for", m.Tiers[0].Remaining)
	}
	// Output:
	// east has admitted 2
	// west has admitted 1
	// east has room for 0
	// west has room for 8
}

func ExampleStats_Metrics() {
	stats := observe.NewStats()
	lim, err := throttle.New(throttle.Policy{
		Name: "coinbase", Tiers: []throttle.Tier{throttle.PerSecond(5)}, Observer: stats.Observer(),
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	lim.Allow()

	w := httptest.NewRecorder() // in a program: http.Handle("/metrics", stats.Metrics())
	stats.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.Contains(line, `result="admitted"`) {
			fmt.Print(line)
		}
	}
	// Output:
	// throttle_requests_total{policy="coinbase",class="normal",result="admitted"} 1
}

// A snapshot is a variable of package expvar, too.
func ExampleStats_Snapshot_expvar() {
	stats := observe.NewStats()
	expvar.Publish("throttle", expvar.Func(func() any { return stats.Snapshot(context.Background()) }))
	fmt.Println(strings.Contains(expvar.Get("throttle").String(), `"policies":[]`))
	// Output:
	// true
}
