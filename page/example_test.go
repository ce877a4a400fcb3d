package page_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
)

// The code of docs/observe.md.
func Example() {
	stats := observe.NewStats()
	lim, err := throttle.New(throttle.Policy{
		Name: "coinbase", Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10000)}, Observer: stats.Observer(),
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := stats.Watch("coinbase", lim); err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/throttle/", page.New(page.Options{Stats: stats, Title: "Outbound limits"}))

	w := httptest.NewRecorder() // in a program: http.ListenAndServe("localhost:8080", mux)
	mux.ServeHTTP(w, httptest.NewRequest("GET", "/throttle/health", nil))
	fmt.Print(w.Code, " ", w.Body)
	// Output:
	// 200 {"ok":true,"watched":1,"problems":[]}
}
