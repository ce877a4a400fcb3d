package throttle_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
)

// TestStormOfEverything runs all methods of Limiters, Groups, Permits and Transports concurrently
// with SetPolicy, pauses, bans, Delete and Close. No caller may wait forever, nothing may panic,
// and at the end nothing may be used.
func TestStormOfEverything(t *testing.T) {
	for round := range 3 {
		stormOfEverything(t, uint64(round))
	}
}

// stormPolicies returns policies with different units and numbers of tiers.
func stormPolicies(name string, guard time.Duration) []throttle.Policy {
	const window = 20 * ms
	requests := throttle.Tier{Limit: 40, Window: window}
	tokens := throttle.Tier{Limit: 200, Window: window, Unit: "tokens", Estimated: true, Algorithm: throttle.TokenBucket, Burst: 200}
	open := throttle.Tier{Limit: 8, Algorithm: throttle.Concurrency}
	jobs := throttle.Tier{Limit: 50, Window: window, Unit: "jobs", Algorithm: throttle.SlidingWindow}
	of := func(tiers ...throttle.Tier) throttle.Policy {
		return throttle.Policy{Name: name, Tiers: tiers, Guard: guard, Headroom: 20, MaxPause: time.Second}
	}
	return []throttle.Policy{of(requests), of(requests, tokens), of(jobs, requests, open), of(tokens, requests, jobs), of(open, requests)}
}

func stormOfEverything(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	guards := []time.Duration{throttle.NoGuard, throttle.AutoGuard, ms}
	policies := make([][]throttle.Policy, 4)
	for i, name := range []string{"outer", "middle", "inner", "group"} {
		policies[i] = stormPolicies(name, guards[rnd.IntN(len(guards))])
	}
	s := local.New()
	outer, twin := mustNew(t, policies[0][1], s), mustNew(t, policies[0][1], s)
	middle, inner := mustNew(t, policies[1][0], nil), mustNew(t, policies[2][2], nil)
	group, err := throttle.NewGroup(policies[3][0], s, throttle.GroupOptions{MaxKeys: 3})
	if err != nil {
		t.Fatal(err)
	}
	account := middle.Within(outer)
	nested := inner.Within(account)
	keys := []string{"a", "b", "c", "d", "e"}
	base := roundTripper(func(req *http.Request) (*http.Response, error) {
		resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
		switch n := time.Now().UnixNano() / 100 % 20; {
		case n == 0:
			return nil, errors.New("broken")
		case n == 1:
			resp.StatusCode = 429
			resp.Header.Set("Retry-After", "0")
		case n < 10:
			resp.Body = noisy{strings.NewReader("hello")}
		}
		return resp, nil
	})

	stop := make(chan struct{})
	time.AfterFunc(time.Duration(soak.Times(350))*ms, func() { close(stop) })
	var wg sync.WaitGroup
	run := func(f func(r *rand.Rand)) {
		r := rand.New(rand.NewPCG(seed, rnd.Uint64()))
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f(r)
				}
			}
		})
	}
	pick := func(r *rand.Rand) *throttle.Limiter {
		key := keys[r.IntN(len(keys))]
		return []*throttle.Limiter{outer, twin, account, nested, group.For(key), group.Within(key, account)}[r.IntN(6)]
	}
	for range 48 {
		run(func(r *rand.Rand) { stormCall(t, r, pick(r), base) })
	}
	ctx := context.Background()
	for i, l := range []*throttle.Limiter{outer, middle, inner} {
		run(func(r *rand.Rand) {
			time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
			switch r.IntN(4) {
			case 0:
				_ = l.Pause(ctx, time.Duration(r.IntN(3))*ms)
			case 1:
				_ = l.Resume(ctx)
			default:
				if err := l.SetPolicy(ctx, policies[i][r.IntN(5)]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	run(func(r *rand.Rand) {
		time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
		switch key := keys[r.IntN(len(keys))]; r.IntN(3) {
		case 0:
			group.Delete(key)
		case 1:
			group.For(key).Close()
		default:
			if err := group.SetPolicy(ctx, policies[3][r.IntN(5)]); err != nil && !strings.Contains(err.Error(), "is open as") {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	unused(t, outer, twin, account, nested)
	group.For("z") // drops unused keys
	if n := group.Len(); n > 3 {
		t.Errorf("the group keeps %d keys, want at most 3", n)
	}
	if err := nested.WaitN(ctx, 1<<40); err == nil {
		t.Error("WaitN admitted a cost far above the capacity")
	}
	outer.Close()
	if err := nested.Wait(ctx); !errors.Is(err, throttle.ErrClosed) && !errors.Is(err, throttle.ErrNeedsPermit) {
		t.Errorf("inside a closed quota: %v, want ErrClosed or ErrNeedsPermit", err)
	}
}

// unused waits until nothing of the quotas is used.
func unused(t *testing.T, limiters ...*throttle.Limiter) {
	t.Helper()
	for i, l := range limiters {
		if err := l.Resume(t.Context()); err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * ms) {
			s, err := l.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			sum := int64(s.Waiting)
			for _, tier := range s.Tiers {
				sum += tier.Used
			}
			if sum == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("limiter %d is still used after 30s: %+v", i, s)
			}
		}
	}
}

// stormCall calls a random method of a Limiter, with a timeout of at most 3 ms.
func stormCall(t *testing.T, r *rand.Rand, l *throttle.Limiter, base http.RoundTripper) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(3000))*time.Microsecond)
	defer cancel()
	ctx = throttle.WithClass(ctx, []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}[r.IntN(3)])
	cost := []throttle.Cost{nil, {"requests": 2}, {"tokens": int64(r.IntN(50))}, {"jobs": 1, "requests": 0}}[r.IntN(4)]
	switch r.IntN(8) {
	case 0:
		l.AllowN(int64(r.IntN(3)))
	case 1:
		_ = l.Wait(ctx)
	case 2:
		_ = l.WaitN(ctx, int64(r.IntN(4)))
	case 3:
		_, _ = l.Forecast(ctx, cost)
		_, _ = l.Status(ctx)
	case 4:
		p, _ := l.TryAcquire(ctx, cost)
		endPermit(r, p)
	case 5, 6:
		p, _ := l.Acquire(ctx, cost)
		endPermit(r, p)
	default:
		tr := &throttle.Transport{Limiter: l, Base: base, Cost: func(*http.Request) throttle.Cost { return cost }}
		if r.IntN(2) == 0 {
			tr.SendBy = func(*http.Request) time.Time { return time.Now().Add(time.Duration(r.IntN(4)) * ms) }
		}
		req, err := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
		if err != nil {
			t.Error(err)
		}
		if resp, err := tr.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	}
}

// endPermit ends a permit with random methods, from two goroutines.
func endPermit(r *rand.Rand, p *throttle.Permit) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer p.Release()
	for range 2 {
		method := r.IntN(5)
		wg.Go(func() {
			switch method {
			case 0:
				_ = p.Cancel(context.Background())
			case 1:
				p.Arrived()
			case 2:
				_ = p.Settle(throttle.Cost{"tokens": 7})
			case 3:
				p.Release()
			}
		})
	}
}

type noisy struct{ *strings.Reader }

func (noisy) Close() error { return nil }

// TestStormKeepsTheLargerLimit changes the policy between two limits while requests are sent. The
// provider must never count more than the larger limit.
func TestStormKeepsTheLargerLimit(t *testing.T) {
	const window = 50 * ms
	limit := func(n int64, a throttle.Algorithm) throttle.Policy {
		return throttle.Policy{Name: "api", Tiers: []throttle.Tier{per(window, n, a)}, Guard: time.Minute}
	}
	for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow} {
		l, account := mustNew(t, limit(40, a), nil), mustNew(t, limit(1000, a), nil)
		nested := l.Within(account)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var mu sync.Mutex
		var arrivals []time.Time
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				for ctx.Err() == nil {
					p, err := []*throttle.Limiter{l, nested}[i%2].Acquire(ctx, nil)
					if err != nil {
						continue
					}
					if i%5 == 0 {
						_ = p.Cancel(ctx)
						continue
					}
					mu.Lock()
					arrivals = append(arrivals, time.Now())
					mu.Unlock()
					p.Arrived()
					p.Release()
				}
			})
		}
		wg.Go(func() {
			for n := int64(0); ctx.Err() == nil; n++ {
				if err := l.SetPolicy(context.Background(), limit(40-n%2*20, a)); err != nil {
					t.Error(err)
				}
				time.Sleep(2 * ms)
			}
		})
		wg.Wait()
		for i := 40; i < len(arrivals); i++ {
			if d := arrivals[i].Sub(arrivals[i-40]); d <= window-time.Microsecond { // a quota counts in microseconds
				t.Fatalf("%v: 41 requests within %v, want at least %v", a, d, window)
			}
		}
		if len(arrivals) < 41 {
			t.Errorf("%v: %d admitted, want at least 41", a, len(arrivals))
		}
	}
}
