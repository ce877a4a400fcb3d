package throttletest_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/throttletest"
)

func ExampleNewProvider() {
	api := throttletest.NewProvider(algorithms.PerHour(2))
	defer api.Close()
	api.Penalty = 30 * time.Second

	for range 3 {
		res, err := http.Get(api.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		res.Body.Close()
		fmt.Printf("%d, Retry-After: %q\n", res.StatusCode, res.Header.Get("Retry-After"))
	}
	s := api.Summary()
	fmt.Printf("%d sent, %d refused\n", s.Sent, s.Refused)
	// Output:
	// 200, Retry-After: ""
	// 200, Retry-After: ""
	// 429, Retry-After: "30"
	// 3 sent, 1 refused
}

func ExampleNew() {
	api := throttletest.New(algorithms.PerHour(1))
	client := &http.Client{Transport: api} // or set it as the Base of the transport under test

	for range 2 {
		res, err := client.Get("http://api.example.com/v1/things")
		if err != nil {
			fmt.Println(err)
			return
		}
		res.Body.Close()
		fmt.Println(res.Status)
	}
	// Output:
	// 200 OK
	// 429 Too Many Requests
}

// A token bucket of 5 a second accepts nine requests within a second: five at once, and four more
// at intervals of 200 ms. A rolling window of 5 a second accepts five.
func ExampleNewCounter() {
	for _, a := range []algorithms.Algorithm{algorithms.TokenBucket, algorithms.SlidingLog} {
		c, err := throttletest.NewCounter(algorithms.Tier{Limit: 5, Window: time.Second, Algorithm: a})
		if err != nil {
			fmt.Println(err)
			return
		}
		for t := int64(0); t <= 1_000_000; t += 1_000 { // one request a millisecond
			c.Arrive(t, nil)
		}
		fmt.Println(a, c.WorstRolling(time.Second))
	}
	// Output:
	// token_bucket 9
	// sliding_log 5
}

var noon = time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)

func ExampleRetryAfterSeconds() {
	h := http.Header{}
	throttletest.RetryAfterSeconds(h, throttletest.Refusal{At: noon, Wait: 1250 * time.Millisecond})
	fmt.Println(h.Get("Retry-After"))
	// Output: 2
}

func ExampleRetryAfterDecimal() {
	h := http.Header{}
	throttletest.RetryAfterDecimal(h, throttletest.Refusal{At: noon, Wait: 1250 * time.Millisecond})
	fmt.Println(h.Get("Retry-After"))
	// Output: 1.250
}

func ExampleRetryAfterDate() {
	h := http.Header{}
	throttletest.RetryAfterDate(h, throttletest.Refusal{At: noon, Wait: 1250 * time.Millisecond})
	fmt.Println(h.Get("Retry-After"))
	// Output: Sat, 01 Mar 2025 12:00:02 GMT
}

func ExampleNoRetryAfter() {
	h := http.Header{}
	throttletest.NoRetryAfter(h, throttletest.Refusal{At: noon, Wait: 1250 * time.Millisecond})
	fmt.Println(len(h))
	// Output: 0
}
