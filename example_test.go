package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"go/format"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/throttletest"
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

// responding returns an API with one response.
func responding(status int, header ...string) http.RoundTripper {
	return roundTripper(func(*http.Request) (*http.Response, error) { return trAnswer(status, header...), nil })
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

// A tier that follows takes over the limit of the account. The second response that names 15,000 raises it.
func ExampleFollow() {
	lim := newLimiter("api", "5000/h;follow=15000")
	api := &throttle.Transport{
		Limiter: lim,
		Base:    responding(http.StatusOK, "X-RateLimit-Limit", "15000"),
		Profile: &answers.Profile{Quotas: []answers.Quota{{Limit: answers.Field{Header: "X-RateLimit-Limit"}}}},
	}
	for range 2 {
		if _, err := (&http.Client{Transport: api}).Get("http://api.example/"); err != nil {
			fmt.Println(err)
			return
		}
		status, err := lim.Status(context.Background())
		fmt.Println(status.Tiers[0].Limit, err)
	}
	// Output:
	// 5000 <nil>
	// 15000 <nil>
}

// A tier that learns starts at its Limit. When the provider refuses a request, it continues at a lower rate.
func ExampleLearn() {
	lim := newLimiter("api", "20/s;algo=gcra;burst=1;learn=1..1000")
	api := &throttle.Transport{Limiter: lim, Base: responding(http.StatusTooManyRequests)}
	if _, err := (&http.Client{Transport: api}).Get("http://api.example/"); err != nil {
		fmt.Println(err)
		return
	}
	status, err := lim.Status(context.Background())
	fmt.Println(status.Tiers[0].Learned.Rate < 20, err)
	// Output:
	// true <nil>
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

// The code of the README. The code for a fleet needs a client of Redis, so it stands in
// internal/integration.
func Example() {
	provider := throttletest.NewProvider(throttle.PerSecond(5), throttle.PerHour(10000))
	defer provider.Close()
	url := provider.URL

	// The API allows 5 requests a second and 10,000 an hour.
	lim, err := throttle.New(throttle.Policy{
		Name:  "coinbase",
		Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10000)},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &throttle.Transport{Limiter: lim}}
	resp, err := client.Get(url) // waits until both limits admit it

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
			throttle.Budget(100_000_000, "eur", throttle.Month), // 100.00 euros, in millionths
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
	for _, file := range []string{"example_test.go", "internal/integration/readme_test.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}
	blocks := strings.Split(string(pages), "```go\n")[1:]
	if len(blocks) != 8 {
		t.Fatalf("the pages have %d Go blocks, want 8", len(blocks))
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		formatted, err := format.Source([]byte("\t" + strings.ReplaceAll(strings.TrimSpace(code), "\n", "\n\t")))
		if err != nil {
			t.Errorf("%v:\n%s", err, code)
		}
		if !strings.Contains(string(source), string(formatted)) {
			t.Errorf("this block is not in example_test.go:\n%s", formatted)
		}
	}
}
