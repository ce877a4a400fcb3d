package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// busyFor sends requests to an object, one after the other, until the context ends.
func busyFor(ctx context.Context, rt http.RoundTripper, method string, path func(n int) string) {
	for n := 0; ctx.Err() == nil; n++ {
		req, err := http.NewRequestWithContext(ctx, method, "http://api.test"+path(n), nil)
		if err != nil {
			panic(err) // the URL is a constant
		}
		if resp, err := rt.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	}
}

// Callers of an endpoint with a limit of its own back off from it, and those of the rest of the account go on.
func TestEndpointWithALimitOfItsOwn(t *testing.T) {
	fixed, learned := throttle.Tier{Limit: 50, Window: sec, Algorithm: throttle.GCRA, Burst: 2}, learns(20, 2)
	for _, c := range []struct {
		account, own throttle.Tier
		refused      int64 // at most, in 10 minutes
		others       int64 // a second, at least
	}{
		{fixed, per(time.Minute, 1, throttle.FixedWindow), 400, 10},
		{fixed, per(hour, 1000, throttle.FixedWindow), 200, 20},
		{learned, per(hour, 1000, throttle.FixedWindow), 200, 20},
		{learned, per(time.Minute, 1, throttle.FixedWindow), 400, 10},
		{fixed, throttle.PerSecond(5), 1000, 8},
		{learned, throttle.PerSecond(5), 50, 10},
	} {
		t.Run(fmt.Sprint(c.account, " ", c.own), func(t *testing.T) {
			soak.Sample(t, 12)
			synctest.Test(t, func(t *testing.T) {
				l := mustNew(t, exact(c.account), nil)
				account, orders := throttletest.New(throttle.Tier{Limit: 50, Window: sec, Algorithm: throttle.GCRA, Burst: 50}), throttletest.New(c.own)
				for _, api := range []*throttletest.Provider{account, orders} {
					api.Header, api.Hold = throttletest.NoRetryAfter, func() time.Duration { return 20 * ms }
				}
				tr := &throttle.Transport{Limiter: l, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
					if r.Method == "POST" {
						return orders.RoundTrip(r)
					}
					return account.RoundTrip(r)
				})}
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(10*time.Minute, cancel)
				var wg sync.WaitGroup
				for i := range 25 {
					method, path := "GET", func(n int) string { return fmt.Sprint("/", (n*25+i)%200) }
					if i < 5 {
						method, path = "POST", func(int) string { return "/orders" }
					}
					wg.Go(func() { busyFor(ctx, tr, method, path) })
				}
				wg.Wait()
				others, own := account.Summary(), orders.Summary()
				if own.Refused > c.refused || others.Accepted < c.others*600 {
					t.Errorf("%d of %d orders were refused, want %d at most; the others had %.1f/s, want %d", own.Refused, own.Sent, c.refused, float64(others.Accepted)/600, c.others)
				}
			})
		})
	}
}

// ownObject returns a Limiter, and a Transport whose object /own is refused alone, with a header.
func ownObject(t *testing.T, p throttle.Policy, profile *answers.Profile, header ...string) (*throttle.Limiter, *throttle.Transport, *int) {
	t.Helper()
	l, sent := mustNew(t, p, nil), new(int)
	tr := &throttle.Transport{Limiter: l, Profile: profile, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		time.Sleep(ms)
		if r.URL.Path == "/own" {
			*sent++
			return trAnswer(429, header...), nil
		}
		return trAnswer(200), nil
	})}
	for range 30 {
		for _, path := range []string{"/", "/own"} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*sec)
			_ = getOne(ctx, tr, path)
			cancel()
			time.Sleep(sec)
		}
	}
	return l, tr, sent
}

func getOne(ctx context.Context, rt http.RoundTripper, path string) error {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://api.test"+path, nil)
	if err != nil {
		return err
	}
	resp, err := rt.RoundTrip(req)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

// A request for an object that pauses waits within its bounds, and charges nothing meanwhile.
func TestObjectPauses(t *testing.T) {
	for _, bound := range []throttle.Bound{throttle.BoundContext, throttle.BoundMaxWait, throttle.BoundSendBy} {
		synctest.Test(t, func(t *testing.T) {
			p := exact(throttle.PerSecond(50), throttle.Tier{Limit: 2, Algorithm: throttle.Concurrency})
			l, tr, sent := ownObject(t, p, nil, "Retry-After", "9")
			before, ctx := *sent, t.Context()
			switch bound {
			case throttle.BoundMaxWait:
				p.MaxWait = sec
				if err := l.SetPolicy(ctx, p); err != nil {
					t.Fatal(err)
				}
			case throttle.BoundContext:
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, sec)
				defer cancel()
			case throttle.BoundSendBy:
				tr.SendBy = func(*http.Request) time.Time { return time.Now().Add(sec) }
			}
			start := time.Now()
			err := getOne(ctx, tr, "/own")
			var refused *throttle.WaitError
			if !errors.Is(err, throttle.ErrDeadline) || !errors.As(err, &refused) || refused.Bound != bound || refused.Wait < sec || time.Since(start) > 0 {
				t.Errorf("%v: got %#v after %v, want a refusal at once", bound, err, time.Since(start))
			}
			if err := getOne(ctx, tr, "/"); err != nil || *sent != before {
				t.Errorf("%v: another object: %v, and %d were sent to its own", bound, err, *sent-before)
			}
			for i, tier := range status(t, l).Tiers {
				if tier.InFlight != 0 || i == 1 && tier.Used != 0 {
					t.Errorf("%v: %v", bound, tier)
				}
			}
			tr.SendBy = nil
			if bound != throttle.BoundMaxWait {
				if err := getOne(t.Context(), tr, "/own"); err != nil || *sent != before+1 || time.Since(start) > 16*sec {
					t.Errorf("%v: %v, sent %d after %v", bound, err, *sent-before, time.Since(start))
				}
			}
		})
	}
}

// A refusal that says that it is about the account pauses the account, whatever its object was refused before.
func TestNamedRefusalIsNotTheObjects(t *testing.T) {
	for name, rule := range map[string]answers.Rule{
		"wide": {Status: 429, Kind: answers.Limited, Wide: true}, "unit": {Status: 429, Kind: answers.Limited, Unit: "requests"},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, tr, _ := ownObject(t, exact(throttle.PerSecond(50)), &answers.Profile{Rules: []answers.Rule{rule}}, "Retry-After", "5")
			time.Sleep(time.Minute)
			if err := getOne(t.Context(), tr, "/own"); err != nil {
				t.Fatal(err)
			}
			if s := status(t, l); s.Paused != 5*sec {
				t.Errorf("%s: paused for %v, want 5s", name, s.Paused)
			}
		})
	}
}

// MaxWait is the time for the object and for the quota together.
func TestObjectPausesWithinMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := exact(per(30*sec, 100, throttle.SlidingLog))
		p.MaxWait = 20 * sec
		l, tr, _ := ownObject(t, p, nil)
		time.Sleep(time.Minute)
		if err := getOne(t.Context(), tr, "/own"); err != nil { // it pauses for 16 seconds again
			t.Fatal(err)
		}
		if err := l.WaitN(t.Context(), 99); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		err := getOne(t.Context(), tr, "/own")
		if took := time.Since(start); !errors.Is(err, throttle.ErrDeadline) || took > 20*sec {
			t.Errorf("%v after %v, want ErrDeadline after 20s at most", err, took)
		}
	})
}
