package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/apithrottle/throttle"
)

// Each request goes to the member that admits it first. A member that is full gets no more, whatever its
// Weight.
func ExamplePool() {
	pool, err := throttle.NewPool(
		throttle.Member{Name: "east", Limiter: newLimiter("east", "2/h"), Weight: 2},
		throttle.Member{Name: "west", Limiter: newLimiter("west", "3/h")},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for range 5 {
		permit, err := pool.Acquire(ctx, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(permit.Member())
		permit.Release()
	}
	_, err = pool.TryAcquire(ctx, nil)
	fmt.Println(errors.Is(err, throttle.ErrDeadline))
	// Output:
	// east
	// west
	// east
	// west
	// west
	// true
}

// Reserved capacity is used first. A request that would wait for it longer than Spill goes to the
// pay-as-you-go deployment at once.
func ExamplePool_spill() {
	pool, err := throttle.NewPool(
		throttle.Member{Name: "reserved", Limiter: newLimiter("reserved", "2/h"), Rank: 0},
		throttle.Member{Name: "pay as you go", Limiter: newLimiter("pay as you go", "100/h"), Rank: 1},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	pool.Spill = time.Minute
	for range 3 {
		permit, err := pool.Acquire(context.Background(), nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(permit.Member())
		permit.Release()
	}
	// Output:
	// reserved
	// reserved
	// pay as you go
}

// A Transport sends each request to the member that has admitted it. Rewrite sets the member's URL and
// credentials; those of the caller were removed before.
func ExampleTransport_pool() {
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(r.URL.Path, r.Header.Get("Api-Key"), r.Header.Values("Authorization"))
	}))
	defer api.Close()

	pool, err := throttle.NewPool(
		throttle.Member{Name: "east", Limiter: newLimiter("east", "1/h")},
		throttle.Member{Name: "west", Limiter: newLimiter("west", "1/h")},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	keys := map[string]string{"east": "key-of-east", "west": "key-of-west"}
	client := &http.Client{Transport: &throttle.Transport{
		Pool: pool,
		Rewrite: func(req *http.Request, member string) error {
			req.URL.Path = "/" + member + req.URL.Path
			req.Header.Set("Api-Key", keys[member])
			return nil
		},
	}}
	for range 2 {
		req, err := http.NewRequest(http.MethodGet, api.URL+"/chat", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.Header.Set("Authorization", "Bearer of-the-caller")
		resp, err := client.Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
	}
	// Output:
	// /east/chat key-of-east []
	// /west/chat key-of-west []
}
