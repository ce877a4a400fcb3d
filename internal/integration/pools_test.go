package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/retry"
)

// The code of docs/pools.md.

func overflowing(reserved, payAsYouGo *throttle.Limiter) (*throttle.Pool, error) {
	pool, err := throttle.NewPool(
		throttle.Member{Name: "reserved", Limiter: reserved},
		throttle.Member{Name: "pay-as-you-go", Limiter: payAsYouGo, Rank: 1},
	)
	if err != nil {
		return nil, err
	}
	pool.Spill = time.Second
	return pool, nil
}

func sticking(ctx context.Context, pool *throttle.Pool, conversation string) (*throttle.Permit, error) {
	ctx = throttle.WithStickyKey(ctx, conversation)
	permit, err := pool.Acquire(ctx, nil)
	return permit, err
}

func directing(pool *throttle.Pool, hosts, keys map[string]string) (*http.Client, *throttle.Transport) {
	transport := &throttle.Transport{
		Pool: pool,
		Rewrite: func(req *http.Request, member string) error {
			req.URL.Scheme, req.URL.Host = "https", hosts[member]
			req.Header.Set("Api-Key", keys[member])
			return nil
		},
		StickyKey: func(req *http.Request) string { return req.Header.Get("X-Conversation") },
	}
	client := retry.NewClient(transport)
	return client, transport
}

func nesting(east, west, account *throttle.Limiter) (*throttle.Pool, error) {
	pool, err := throttle.NewPool(
		throttle.Member{Name: "east", Limiter: east.Within(account)},
		throttle.Member{Name: "west", Limiter: west.Within(account)},
	)
	return pool, err
}

func perTenant(east, west *throttle.Group, tenant string) (*throttle.Pool, error) {
	pool, err := throttle.NewPool(
		throttle.Member{Name: "east", Limiter: east.For(tenant)},
		throttle.Member{Name: "west", Limiter: west.For(tenant)},
	)
	return pool, err
}

func observing(pool *throttle.Pool, stats *observe.Stats) {
	pool.Name, pool.Observer = "chat", stats.Observer() // before the first request
}

// limited returns a Limiter of a policy as ParsePolicy reads it.
func limited(t *testing.T, name, text string) *throttle.Limiter {
	t.Helper()
	p, err := throttle.ParsePolicy(name, text)
	if err != nil {
		t.Fatal(err)
	}
	return mustNew(t, p, nil)
}

// poolOf returns a Pool whose members a, b … have policies.
func poolOf(t *testing.T, policies ...string) (pool *throttle.Pool, members []*throttle.Limiter) {
	t.Helper()
	pool = new(throttle.Pool)
	for i, text := range policies {
		name := string(rune('a' + i))
		members = append(members, limited(t, name, text))
		if err := pool.Add(throttle.Member{Name: name, Limiter: members[i]}); err != nil {
			t.Fatal(err)
		}
	}
	return pool, members
}

// TestPoolsPage checks that the code of docs/pools.md is code that runs.
func TestPoolsPage(t *testing.T) {
	program, snippets := readText(t, "../../examples/pool/main.go"), readText(t, "pools_test.go")
	_, program, _ = strings.Cut(program, "\n") // without the package comment
	blocks := strings.Split(readText(t, "../../docs/pools.md"), "```go\n")[1:]
	if len(blocks) != 7 {
		t.Errorf("the page has %d blocks of Go, want 7", len(blocks))
	}
	for i, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		switch {
		case i == 0 && code != program:
			t.Errorf("the page's program is not examples/pool/main.go:\n%s", code)
		case i > 0 && !strings.Contains(snippets, "\t"+strings.ReplaceAll(strings.TrimSpace(code), "\n", "\n\t")+"\n"):
			t.Errorf("this block is not in pools_test.go:\n%s", code)
		}
	}
}

func readText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// hasRow checks that docs/pools.md has a row of a table.
func hasRow(t *testing.T, row string) {
	t.Helper()
	if !strings.Contains(readText(t, "../../docs/pools.md"), "\n"+row+"\n") {
		t.Errorf("the page does not have the row\n%s", row)
	}
}

// TestPoolsPageHTTP checks that what one member refuses goes to the other, with that one's key only.
func TestPoolsPageHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, _ := poolOf(t, "5/s", "5/s")
		client, transport := directing(pool, map[string]string{"a": "a.test", "b": "b.test"}, map[string]string{"a": "key-a", "b": "key-b"})
		var sent []string
		transport.Base = trip(func(req *http.Request) *http.Response {
			sent = append(sent, fmt.Sprint(req.URL, req.Header["Api-Key"], req.Header["Authorization"]))
			status := http.StatusOK
			if len(sent) == 1 {
				status = http.StatusTooManyRequests
			}
			return &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {"30"}}, Body: http.NoBody}
		})
		start := time.Now()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://model.test/chat", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer of-the-caller")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		want := "https://a.test/chat [key-a] [] https://b.test/chat [key-b] []"
		if got := strings.Join(sent, " "); got != want || resp.StatusCode != http.StatusOK || time.Since(start) > 0 {
			t.Errorf("sent %s, status %d after %v; want %s at once", got, resp.StatusCode, time.Since(start), want)
		}
	})
}

// members returns the members to which a pool sends requests that have room at once, and the error of the next one.
func members(ctx context.Context, acquire func(context.Context) (*throttle.Permit, error)) (names string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for range 100 {
		permit, err := acquire(ctx)
		if err != nil {
			return names, err
		}
		names += permit.Member()[:1]
		permit.Release()
	}
	return names, nil
}

// TestPoolsPageMembers checks the page's pools.
func TestPoolsPageMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nested, err := nesting(limited(t, "east", "2/h"), limited(t, "west", "2/h"), limited(t, "account", "3/h"))
		if err != nil {
			t.Fatal(err)
		}
		group := unguarded("tenants", throttle.PerHour(2))
		east, west := mustGroup(t, group), mustGroup(t, group)
		first, err := perTenant(east, west, "first")
		if err != nil {
			t.Fatal(err)
		}
		second, err := perTenant(east, west, "second")
		if err != nil {
			t.Fatal(err)
		}
		sticky, _ := poolOf(t, "2/h", "3/h")
		stats := observe.NewStats()
		observing(sticky, stats)
		sticky.Spill = time.Minute
		for what, c := range map[string]struct {
			acquire func(context.Context) (*throttle.Permit, error)
			want    string
		}{
			"within an account": {func(ctx context.Context) (*throttle.Permit, error) { return nested.Acquire(ctx, nil) }, "ewe"},
			"the first tenant":  {func(ctx context.Context) (*throttle.Permit, error) { return first.Acquire(ctx, nil) }, "ewew"},
			"the second tenant": {func(ctx context.Context) (*throttle.Permit, error) { return second.Acquire(ctx, nil) }, "ewew"},
			"a conversation":    {func(ctx context.Context) (*throttle.Permit, error) { return sticking(ctx, sticky, "one") }, "bbbaa"},
		} {
			if got, err := members(t.Context(), c.acquire); got != c.want || !errors.Is(err, throttle.ErrDeadline) {
				t.Errorf("%s: %s, then %v; want %s", what, got, err, c.want)
			}
		}
		if p := stats.Snapshot(t.Context()).Policies; len(p) != 1 || p[0].Policy != "chat" {
			t.Errorf("the Stats have %+v, want those of the pool", p)
		}
	})
}

// TestPoolsPageSpill computes the table of the reserved capacity.
func TestPoolsPageSpill(t *testing.T) {
	soak.Long(t, "it computes a table of the documentation")
	for _, load := range []struct {
		text    string
		rate    float64
		poisson bool
	}{{"8/s, evenly", 8, false}, {"8/s, at random", 8, true}, {"15/s, evenly", 15, false}, {"15/s, at random", 15, true}} {
		row := "| " + load.text
		for _, spill := range []time.Duration{0, time.Second} {
			synctest.Test(t, func(t *testing.T) {
				pool, err := overflowing(limited(t, "reserved", "10/s"), limited(t, "pay-as-you-go", "10/s"))
				if err != nil {
					t.Fatal(err)
				}
				pool.Spill = spill
				over, mean := loadPool(t, pool, load.rate, load.poisson)
				row += fmt.Sprintf(" | %.0f %%, %.1f s", over, mean)
			})
		}
		hasRow(t, row+" |")
	}
}

// loadPool sends requests at a rate for ten minutes. It returns the share of pay-as-you-go, in percent, and the mean
// wait in seconds.
func loadPool(t *testing.T, pool *throttle.Pool, rate float64, poisson bool) (over, mean float64) {
	r := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	var wg sync.WaitGroup
	start, n := time.Now(), 0.0
	for ; time.Since(start) < 10*time.Minute; n++ {
		gap := 1 / rate
		if poisson {
			gap *= r.ExpFloat64()
		}
		time.Sleep(time.Duration(gap * 1e9))
		wg.Go(func() {
			asked := time.Now()
			permit, err := pool.Acquire(t.Context(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if mean += time.Since(asked).Seconds(); permit.Member() == "pay-as-you-go" {
				over++
			}
			permit.Arrived()
			permit.Release()
		})
	}
	wg.Wait()
	return 100 * over / n, mean / n
}

// TestPoolsPageErrors checks the table of errors, by its first column.
func TestPoolsPageErrors(t *testing.T) {
	hours := func(limits ...float64) (policies []string) {
		for _, n := range limits {
			policies = append(policies, fmt.Sprintf("%v/h | max_pause=1s", n))
		}
		return policies
	}
	for what, c := range map[string]struct {
		policies []string
		err      error
		ask      func(context.Context, *throttle.Pool, []*throttle.Limiter) error
	}{
		"no member has room before the deadline of the context": {hours(1, 2), throttle.ErrDeadline, func(ctx context.Context, p *throttle.Pool, _ []*throttle.Limiter) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			return errors.Join(p.Wait(ctx), p.Wait(ctx), p.Wait(ctx), p.Wait(ctx))
		}},
		"`TryAcquire`, and none has room now": {hours(1, 1), throttle.ErrDeadline, func(ctx context.Context, p *throttle.Pool, _ []*throttle.Limiter) error {
			_, err := p.TryAcquire(ctx, throttle.Cost{"requests": 1})
			_, second := p.TryAcquire(ctx, nil)
			_, third := p.TryAcquire(ctx, nil)
			return errors.Join(err, second, third)
		}},
		"the providers of all have banned the caller": {hours(5, 5), throttle.ErrBanned, func(ctx context.Context, p *throttle.Pool, _ []*throttle.Limiter) error {
			tr := &throttle.Transport{
				Pool: p, Rewrite: func(req *http.Request, member string) error { req.URL.Host = member; return nil },
				Base: trip(func(req *http.Request) *http.Response {
					wait := map[string]string{"a": "7200", "b": "3600"}[req.URL.Host]
					return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {wait}}, Body: http.NoBody}
				}),
			}
			for range 3 {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/", nil)
				if err != nil {
					return err
				}
				if _, err = tr.RoundTrip(req); err != nil {
					var refused *throttle.WaitError
					if errors.As(err, &refused) && time.Until(refused.Until) != time.Hour {
						return fmt.Errorf("until %v, want the earlier end", refused.Until)
					}
					return err
				}
			}
			return nil
		}},
		"the cost exceeds a tier of each member": {hours(5, 6), throttle.ErrExceedsCapacity, func(ctx context.Context, p *throttle.Pool, _ []*throttle.Limiter) error {
			_, fits := p.Acquire(ctx, throttle.Cost{"requests": 6})
			_, err := p.Acquire(ctx, throttle.Cost{"requests": 7})
			return errors.Join(fits, err)
		}},
		"a budget of each is used up": {[]string{"5/d;budget=true", "5/d;budget=true"}, throttle.ErrExhausted, func(ctx context.Context, p *throttle.Pool, _ []*throttle.Limiter) (err error) {
			for range 11 {
				err = errors.Join(err, p.Wait(ctx))
			}
			return err
		}},
		"all Limiters are closed": {hours(5, 5), throttle.ErrClosed, func(ctx context.Context, p *throttle.Pool, l []*throttle.Limiter) error {
			l[0].Close()
			served := p.Wait(ctx)
			l[1].Close()
			return errors.Join(served, p.Wait(ctx))
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, l := poolOf(t, c.policies...)
			err := c.ask(t.Context(), p, l)
			if !errors.Is(err, c.err) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, want one error of the kind: %v", what, err, c.err)
			}
		})
		if !regexp.MustCompile("(?m)^\\| " + regexp.QuoteMeta(what) + ` \| .*`).MatchString(readText(t, "../../docs/pools.md")) {
			t.Errorf("the page does not have the row of %q", what)
		}
	}
}

type trip func(*http.Request) *http.Response

func (f trip) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := f(req)
	resp.Request = req
	return resp, nil
}

// TestPoolsPageExplain checks that the page has what Explain prints.
func TestPoolsPageExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, members := poolOf(t, "2/s", "3/s")
		for range 4 {
			if err := pool.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := members[1].Pause(t.Context(), 30*time.Second); err != nil {
			t.Fatal(err)
		}
		e, err := pool.Explain(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := "```\n" + strings.ReplaceAll(e.String(), ". Member", ".\nMember") + "\n```"; !strings.Contains(readText(t, "../../docs/pools.md"), want) {
			t.Errorf("the page does not have\n%s", want)
		}
	})
}

// TestPoolsPageCosts checks that a member ignores the units that it does not count, and that a request goes where
// its cost fits.
func TestPoolsPageCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, _ := poolOf(t, "9/h + 100/h;unit=tokens", "9/h")
		for _, want := range []string{"a", "b", "b"} {
			permit, err := pool.Acquire(t.Context(), throttle.Cost{"tokens": 60})
			if err != nil {
				t.Fatal(err)
			}
			if permit.Member() != want {
				t.Errorf("admitted by %s, want %s", permit.Member(), want)
			}
		}
		permit, err := pool.Acquire(t.Context(), throttle.Cost{"tokens": 101})
		if err != nil || permit.Member() != "b" {
			t.Errorf("more than a tier of a: %s, %v; want b", permit.Member(), err)
		}
		want := `throttle: pool: cost names the unit "token": the members count requests, tokens`
		if _, err := pool.Acquire(t.Context(), throttle.Cost{"token": 1}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	})
}
