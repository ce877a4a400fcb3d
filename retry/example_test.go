package retry_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/retry"
)

func ExampleNewClient() {
	attempts := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if attempts++; attempts == 1 { // another program has used up the quota
			w.Header().Set("Retry-After", "0.01")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		io.Copy(w, r.Body)
	}))
	defer api.Close()

	lim, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client := retry.NewClient(&throttle.Transport{Limiter: lim})

	resp, err := client.Post(api.URL, "text/plain", strings.NewReader("one order"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	echo, _ := io.ReadAll(resp.Body)
	fmt.Printf("%s after %d attempts: %s\n", resp.Status, attempts, echo)
	// Output: 200 OK after 2 attempts: one order
}

func ExampleConfig_Client() {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "0.01")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer api.Close()

	lim, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	plain := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "host" {
			return slog.Attr{}
		}
		return a
	}})
	client := retry.Config{
		Transport: &throttle.Transport{Limiter: lim},
		Max:       1,
		Log:       slog.New(plain),
	}.Client()

	resp, err := client.Get(api.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.Status)
	// Output:
	// level=INFO msg="retry: sending again" wait=0s status=429 attempt=1 method=GET
	// level=WARN msg="retry: giving up" status=429 attempt=2 method=GET
	// 429 Too Many Requests
}

func ExampleHedge() {
	var requests atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 20 {
			<-r.Context().Done() // this response never comes
		}
		fmt.Fprint(w, "here")
	}))
	defer api.Close()

	lim, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	hedge := &retry.Hedge{After: 10 * time.Millisecond}
	client := retry.Config{Transport: &throttle.Transport{Limiter: lim}, Hedge: hedge}.Client()

	for range 20 {
		resp, err := client.Get(api.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
	}
	sent, won := hedge.Counts()
	fmt.Printf("20 responses to %d requests: %d hedge sent, %d won\n", requests.Load(), sent, won)
	// Output: 20 responses to 21 requests: 1 hedge sent, 1 won
}
