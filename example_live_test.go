package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
)

// newLimiter returns a Limiter of a policy that must be valid.
func newLimiter(name, spec string) *throttle.Limiter {
	p, err := throttle.ParsePolicy(name, spec)
	if err != nil {
		panic(err)
	}
	l, err := throttle.New(p, nil)
	if err != nil {
		panic(err)
	}
	return l
}

// A Forecast reports how long a batch's next request would wait, and for which tier.
func ExampleLimiter_Forecast() {
	lim := newLimiter("mail", "2/h + 100/d | guard=none")
	lim.AllowN(2)
	f, err := lim.Forecast(context.Background(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("about %v for %s, %d ahead\n", f.Wait.Round(time.Hour), f.Tier, f.Ahead)

	_, err = lim.Forecast(context.Background(), throttle.Cost{"requests": 3})
	fmt.Println(err)
	// Output:
	// about 1h0m0s for 2/h, 0 ahead
	// throttle: policy "mail": cost of 3 requests exceeds the capacity of tier 2/h
}

// TryAcquire suits callers that have other work to do meanwhile.
func ExampleLimiter_TryAcquire() {
	lim := newLimiter("model", "1000/h;unit=tokens | guard=none")
	for range 2 {
		p, err := lim.TryAcquire(context.Background(), throttle.Cost{"tokens": 600})
		var late *throttle.WaitError
		if errors.As(err, &late) {
			fmt.Println("later, in about", late.Wait.Round(time.Hour))
			continue
		}
		fmt.Println("now")
		p.Release()
	}
	// Output:
	// now
	// later, in about 1h0m0s
}

// SetPolicy adopts a limit that the provider has raised. What was charged stays charged.
func ExampleLimiter_SetPolicy() {
	lim := newLimiter("maps", "2/h")
	lim.AllowN(2)
	fmt.Println(lim.Allow())

	p, err := throttle.ParsePolicy("maps", "3/h")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := lim.SetPolicy(context.Background(), p); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lim.Allow(), lim.Allow())
	// Output:
	// false
	// true false
}

// Resume ends a pause early, for example after the provider has lifted a block.
func ExampleLimiter_Resume() {
	lim := newLimiter("maps", "5/s")
	ctx := context.Background()
	if err := lim.Pause(ctx, time.Hour); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lim.Allow())
	if err := lim.Resume(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lim.Allow())
	// Output:
	// false
	// true
}

func ExampleLimiter_Close() {
	lim := newLimiter("maps", "5/s")
	lim.Close()
	fmt.Println(lim.Wait(context.Background()))
	// Output:
	// throttle: policy "maps": limiter is closed
}

// All returns the accounts that are in use.
func ExampleGroup_All() {
	g, err := throttle.NewGroup(throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerHour(5)}}, nil, throttle.GroupOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	g.For("ann").AllowN(3)
	g.For("bob").Allow()
	var lines []string
	for key, lim := range g.All() {
		s, err := lim.Status(context.Background())
		if err != nil {
			fmt.Println(err)
			return
		}
		lines = append(lines, fmt.Sprintf("%s: %d used", key, s.Tiers[0].Used))
	}
	slices.Sort(lines)
	for _, line := range lines {
		fmt.Println(line)
	}
	// Output:
	// ann: 3 used
	// bob: 1 used
}

func ExampleGroup_Delete() {
	g, err := throttle.NewGroup(throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerHour(1)}}, nil, throttle.GroupOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ann := g.For("ann")
	fmt.Println(ann.Allow(), ann.Allow())
	g.Delete("ann")
	fmt.Println(ann.Allow(), g.For("ann").Allow())
	// Output:
	// true false
	// false true
}

func ExampleGroup_SetPolicy() {
	policy := throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerHour(1)}}
	g, err := throttle.NewGroup(policy, nil, throttle.GroupOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(g.For("ann").Allow(), g.For("ann").Allow())
	policy.Tiers = []throttle.Tier{throttle.PerHour(2)}
	if err := g.SetPolicy(context.Background(), policy); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(g.For("ann").Allow(), g.For("ann").Allow())
	// Output:
	// true false
	// true false
}

// An SDK signs orders that are valid for five minutes. The Transport refuses an order that would
// wait longer. It is not sent and not charged.
func ExampleTransport_sendBy() {
	client := &http.Client{Transport: &throttle.Transport{
		Limiter: newLimiter("orders", "1/h"),
		Base: roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}),
		SendBy: func(r *http.Request) time.Time {
			signed, err := time.Parse(time.RFC3339, r.Header.Get("X-Signed"))
			if err != nil {
				return time.Time{} // not signed
			}
			return signed.Add(5 * time.Minute)
		},
	}}
	for range 2 {
		req, err := http.NewRequest("POST", "https://exchange.example/orders", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.Header.Set("X-Signed", time.Now().Format(time.RFC3339))
		resp, err := client.Do(req)
		if err != nil {
			fmt.Println("not in time:", errors.Is(err, throttle.ErrDeadline))
			continue
		}
		resp.Body.Close()
		fmt.Println(resp.StatusCode)
	}
	// Output:
	// 200
	// not in time: true
}

// A Status prints as sentences.
func ExampleStatus() {
	lim := newLimiter("maps", "5/h + 3/h;unit=tiles | guard=none")
	p, err := lim.Acquire(context.Background(), throttle.Cost{"requests": 2, "tiles": 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	p.Release()
	s, err := lim.Status(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s)
	// Output:
	// 5/h: 2 of 5 used, room for 3. 3/h;unit=tiles: 1 of 3 used, room for 2.
}
