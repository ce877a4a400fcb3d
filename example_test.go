package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apithrottle/throttle"
)

// A policy of 5 a second and 10,000 an hour. Both tiers decide together.
func ExampleNew() {
	lim, err := throttle.New(throttle.Policy{
		Name:  "orders",
		Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10_000)},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lim.Allow())

	_, err = throttle.New(throttle.Policy{Name: "orders"}, nil)
	fmt.Println(err)
	// Output:
	// true
	// throttle: policy "orders": Tiers is empty: it must have at least one tier, such as PerSecond(5)
}

// Without a guard requests count when they are admitted: after two requests, the third waits for
// the rest of 20 ms.
func ExampleLimiter_Wait() {
	lim, err := throttle.New(throttle.Policy{
		Tiers: []throttle.Tier{{Limit: 2, Window: 20 * time.Millisecond}},
		Guard: throttle.NoGuard,
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	start := time.Now()
	for range 3 {
		if err := lim.Wait(context.Background()); err != nil {
			fmt.Println(err)
			return
		}
		// send the request
	}
	fmt.Println("it took 20ms or more:", time.Since(start) >= 20*time.Millisecond)
	// Output: it took 20ms or more: true
}

// A budget of $1.00 a day, in millionths, with an alert when half of it is spent. A request that
// exceeds what is left is refused at once.
func ExampleBudget() {
	lim, err := throttle.New(throttle.Policy{
		Name:    "llm",
		Tiers:   []throttle.Tier{throttle.Budget(1_000_000, "usd", throttle.Day)},
		AlertAt: []int{50},
		Alert:   func(a throttle.Alert) { fmt.Printf("%d %% of %s is spent\n", a.Percent, a.Policy) },
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		_, err := lim.Acquire(context.Background(), throttle.Cost{"usd": 370_000})
		fmt.Println("exhausted:", errors.Is(err, throttle.ErrExhausted))
	}
	// Output:
	// exhausted: false
	// 50 % of llm is spent
	// exhausted: false
	// exhausted: true
}

// A cost that exceeds the capacity of a tier is refused at once.
func ExampleLimiter_WaitN() {
	lim, err := throttle.New(throttle.Policy{Name: "mail", Tiers: []throttle.Tier{throttle.PerHour(100)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lim.WaitN(context.Background(), 100))
	err = lim.WaitN(context.Background(), 101)
	fmt.Println(errors.Is(err, throttle.ErrExceedsCapacity))
	fmt.Println(err)
	// Output:
	// <nil>
	// true
	// throttle: policy "mail": cost of 101 requests exceeds the capacity of tier 100/h
}

func ExampleLimiter_Allow() {
	lim, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerMinute(3)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 4 {
		fmt.Println(lim.Allow())
	}
	// Output:
	// true
	// true
	// true
	// false
}

// AllowN charges all n requests or none.
func ExampleLimiter_AllowN() {
	lim, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerMinute(3)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lim.AllowN(2), lim.AllowN(2), lim.AllowN(1))
	// Output: true false true
}

// A batch job leaves a fifth of the tier to the other classes, and Interactive requests go before
// it.
func ExampleWithClass() {
	policy, err := throttle.ParsePolicy("search", "5/m | headroom=20")
	if err != nil {
		fmt.Println(err)
		return
	}
	lim, err := throttle.New(policy, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	job, cancel := context.WithTimeout(throttle.WithClass(context.Background(), throttle.Batch), time.Second)
	defer cancel()
	for range 4 {
		fmt.Println(lim.Wait(job))
	}
	fmt.Println("the fifth is too late:", errors.Is(lim.Wait(job), throttle.ErrDeadline))
	fmt.Println(lim.Wait(throttle.WithClass(context.Background(), throttle.Interactive)))
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// <nil>
	// the fifth is too late: true
	// <nil>
}

// A policy that counts requests, tokens and open requests.
func ExampleLimiter_Acquire() {
	policy, err := throttle.ParsePolicy("chat", "60/m + 10000/m;unit=tokens;algo=token_bucket + 4;algo=concurrency")
	if err != nil {
		fmt.Println(err)
		return
	}
	lim, err := throttle.New(policy, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	permit, err := lim.Acquire(context.Background(), throttle.Cost{"tokens": 1200}) // and one request
	if err != nil {
		fmt.Println(err)
		return
	}
	// send the request
	permit.Arrived() // the response is in
	// read its body to the end
	permit.Release()

	s, err := lim.Status(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Tiers[0].Used, "request,", s.Tiers[2].Used, "open")
	// Output: 1 request, 0 open
}

// A request that was not sent is refunded.
func ExamplePermit_Cancel() {
	lim, err := throttle.New(throttle.Policy{
		Tiers: []throttle.Tier{throttle.PerHour(1)},
		Guard: time.Minute, // a canceled request is refunded within this time
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	permit, err := lim.Acquire(context.Background(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lim.Allow())
	fmt.Println(permit.Cancel(context.Background()))
	fmt.Println(lim.Allow())
	// Output:
	// false
	// <nil>
	// true
}

// A pause holds for all callers that share the quota. A caller that cannot wait so long is refused
// at once.
func ExampleLimiter_Pause() {
	lim, err := throttle.New(throttle.Policy{Name: "maps", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := lim.Pause(context.Background(), time.Hour); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lim.Allow())

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(errors.Is(lim.Wait(ctx), throttle.ErrDeadline))
	// Output:
	// false
	// true
}

func ExampleLimiter_Status() {
	lim, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerMinute(5), throttle.PerHour(100)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	lim.AllowN(5)
	s, err := lim.Status(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range s.Tiers {
		fmt.Printf("%v: %d used, %d remain, limited: %v\n", t.Tier, t.Used, t.Remaining, t.Limited)
	}
	// Output:
	// 5/m: 5 used, 0 remain, limited: true
	// 100/h: 5 used, 95 remain, limited: false
}

// A WaitError reports how long the wait would have been. The caller can do other work meanwhile.
func ExampleWaitError() {
	lim, err := throttle.New(throttle.Policy{Name: "reports", Tiers: []throttle.Tier{throttle.PerHour(1)}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	lim.Allow()

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err = lim.Wait(ctx)
	var refusal *throttle.WaitError
	if errors.As(err, &refusal) {
		fmt.Println(refusal.Policy, refusal.Wait.Round(time.Minute))
	}
	fmt.Println(errors.Is(err, throttle.ErrDeadline), errors.Is(err, context.DeadlineExceeded))
	// Output:
	// reports 1h0m0s
	// true true
}

// An hour's quota that must last the hour: three requests at once, then one each second.
func Example_pacing() {
	p, err := throttle.ParsePolicy("reports", "3600/h;pace_burst=3")
	if err != nil {
		fmt.Println(err)
		return
	}
	lim, err := throttle.New(p, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 4 {
		fmt.Println(lim.Allow())
	}
	// Output:
	// true
	// true
	// true
	// false
}

// A restarted program does not know what it sent a moment ago.
func Example_assumeUsed() {
	p := throttle.Policy{Name: "reports", Tiers: []throttle.Tier{throttle.PerMinute(60)}, AssumeUsed: true}
	lim, err := throttle.New(p, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(errors.Is(lim.Wait(ctx), throttle.ErrDeadline))
	// Output:
	// true
}

// Explain tells a person, or a program, why a request has to wait.
func ExampleLimiter_Explain() {
	lim, err := throttle.New(throttle.Policy{
		Name:  "coinbase",
		Tiers: []throttle.Tier{throttle.PerSecond(5), {Limit: 3, Algorithm: throttle.Concurrency}},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		p, err := lim.Acquire(context.Background(), nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer p.Release()
		p.Arrived()
	}
	e, err := lim.Explain(context.Background(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e)
	fmt.Println(e.Tier, e.Quotas[0].Tiers[0].Remaining)
	// Output:
	// The request would wait for tier 3;algo=concurrency until another request ends. 5/s has room for 2: 3 of 5 used. 3;algo=concurrency is full until a request ends: 3 of 3 used. The guard interval is 50ms.
	// 3;algo=concurrency 2
}

// A policy is tried on the program's traffic before it is enforced: the second report is not refused,
// but the Observer receives that it would have been.
func Example_shadow() {
	lim, err := throttle.New(throttle.Policy{
		Name: "reports", Tiers: []throttle.Tier{throttle.PerHour(1)}, MaxWait: time.Minute, Shadow: true,
		Observer: &throttle.Observer{
			Admitted: func(_ context.Context, i throttle.AdmittedInfo) { fmt.Println("would wait", i.Waited) },
			Refused:  func(_ context.Context, i throttle.RefusedInfo) { fmt.Println(errors.Is(i.Err, throttle.ErrDeadline)) },
		},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		fmt.Println(lim.Wait(context.Background()))
	}
	// Output:
	// would wait 0s
	// <nil>
	// true
	// <nil>
}
