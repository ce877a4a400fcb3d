package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
)

// TestCancelStorm cancels up to two thirds of many callers at random times. The others must be
// admitted at the same microsecond as in a run without the canceled callers.
func TestCancelStorm(t *testing.T) {
	for _, a := range counters {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			left, seeds := 0, soak.Times(6)
			for seed := range uint64(seeds) {
				p, all := randomCallers(rand.New(rand.NewPCG(seed, uint64(a))), a, 300)
				if seed%2 == 1 {
					p.Guard = 0
				}
				name := fmt.Sprintf("seed %d, %v", seed, p)
				stormy := runCallers(t, p, all)
				stayed := slices.DeleteFunc(slices.Clone(stormy), func(c randomCaller) bool { return c.end == gone })
				left += len(all) - len(stayed)
				calm := slices.Clone(stayed)
				for i := range calm {
					calm[i].leaves = never
				}
				compareEnds(t, name, stayed, runCallers(t, p, calm))
				if p.Guard == throttle.NoGuard {
					compareEnds(t, name+", by the counter", stormy, referenceRun(t, p, all))
				}
			}
			if left < 16*seeds {
				t.Errorf("%d callers were canceled, want at least %d", left, 16*seeds)
			}
		})
	}
}

// A bomb stops the goroutine in which a callback runs, while it is armed.
type bomb struct {
	exits bool // by runtime.Goexit, and not by a panic
	armed atomic.Bool
	calls atomic.Int32 // while armed
}

func (b *bomb) explode() {
	if !b.armed.Load() {
		return
	}
	b.calls.Add(1)
	if b.exits {
		runtime.Goexit()
	}
	panic("callback")
}

// A bombMeter is a Meter with two callbacks.
type bombMeter struct{ write, cost *bomb }

func (m bombMeter) Write(p []byte) (int, error) { m.write.explode(); return len(p), nil }
func (m bombMeter) Cost() throttle.Cost         { m.cost.explode(); return throttle.Cost{"tokens": 7} }

// A callbackCase is a request with a callback that stops its goroutine.
type callbackCase struct {
	callback, door, kind  string
	nested, exits, shadow bool
}

func (c callbackCase) String() string {
	return fmt.Sprintf("%s in %s, %s, nested %v, Goexit %v, shadow %v", c.callback, c.door, c.kind, c.nested, c.exits, c.shadow)
}

func (c callbackCase) estimates() bool { return c.kind == "estimated" || c.kind == "both" }

// policies returns the policies of a case, the inner one first, with the callbacks of an Observer and
// of Alert.
func (c callbackCase) policies(at func(string) func()) []throttle.Policy {
	policy := throttle.Policy{
		Name: "inner", Guard: 50 * time.Millisecond, MaxPause: time.Hour, Shadow: c.shadow,
		Tiers:   []throttle.Tier{throttle.PerSecond(1000), throttle.Budget(1000, "requests", throttle.Month)},
		AlertAt: []int{1}, Alert: func(throttle.Alert) { at("Alert")() },
		Observer: &throttle.Observer{
			Admitted: func(context.Context, throttle.AdmittedInfo) { at("Admitted")() },
			Refused:  func(context.Context, throttle.RefusedInfo) { at("Refused")() },
			Answered: func(context.Context, throttle.AnsweredInfo) { at("Answered")() },
			Settled:  func(throttle.SettledInfo) { at("Settled")() },
			Paused:   func(throttle.PausedInfo) { at("Paused")() },
		},
	}
	switch c.kind {
	case "concurrency":
		policy.Tiers = append(policy.Tiers, throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency})
	case "estimated", "both":
		budget := throttle.Budget(100, "tokens", throttle.Month)
		budget.Estimated = true
		policy.Tiers = append(policy.Tiers, budget, throttle.Tier{Limit: 5000, Window: time.Hour, Unit: "tokens", Estimated: true, Algorithm: throttle.TokenBucket})
		policy.AlertAt = []int{20} // which a settlement reaches
	}
	if c.kind == "both" {
		policy.Tiers = append(policy.Tiers, throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency})
	}
	if c.callback == "Alert" && !c.estimates() {
		policy.Tiers[1] = throttle.Budget(10, "requests", throttle.Month)
	}
	outer := policy
	outer.Name = "outer"
	if c.nested {
		return []throttle.Policy{policy, outer}
	}
	return []throttle.Policy{policy}
}

// transport returns a Transport all of whose functions are callbacks. Its Base answers according to the
// path.
func (c callbackCase) transport(l *throttle.Limiter, at func(string) func(), meter throttle.Meter) *throttle.Transport {
	tr := &throttle.Transport{
		Route:      func(*http.Request) *throttle.Limiter { at("Route")(); return l },
		SendBy:     func(*http.Request) time.Time { at("SendBy")(); return time.Time{} },
		ProfileFor: func(*http.Request) *answers.Profile { at("ProfileFor")(); return nil },
		Settle: func(*http.Request) func(throttle.Cost) throttle.Cost {
			at("Settle")()
			return func(c throttle.Cost) throttle.Cost { at("settler")(); return c }
		},
		Meter: func(*http.Response) throttle.Meter { at("Meter")(); return meter },
		Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			at("Base")()
			if err := r.Context().Err(); err != nil { // a panic after the context's end would be in no caller's goroutine
				return nil, err
			}
			switch r.URL.Path {
			case "/refused":
				return trAnswer(http.StatusTooManyRequests, "Retry-After", "60"), nil
			case "/lost":
				return nil, errors.New("connection reset by peer")
			case "/empty":
				resp := trAnswer(http.StatusOK)
				resp.Body = http.NoBody
				return resp, nil
			}
			return trAnswer(http.StatusOK), nil
		}),
	}
	if c.estimates() {
		tr.Cost = func(*http.Request) throttle.Cost { at("Cost")(); return throttle.Cost{"tokens": 5} }
	}
	return tr
}

// doors are the ways to send a request. Each leaves nothing behind if its callbacks return.
var doors = map[string]func(*throttle.Limiter, *throttle.Transport, throttle.Cost){
	"Wait":   func(l *throttle.Limiter, _ *throttle.Transport, _ throttle.Cost) { _ = l.Wait(context.Background()) },
	"Allow":  func(l *throttle.Limiter, _ *throttle.Transport, _ throttle.Cost) { l.Allow() },
	"AllowN": func(l *throttle.Limiter, _ *throttle.Transport, _ throttle.Cost) { l.AllowN(2) },
	"Acquire and release": func(l *throttle.Limiter, _ *throttle.Transport, c throttle.Cost) {
		withPermit(l, c, func(*throttle.Permit) {})
	},
	"Acquire and settle": func(l *throttle.Limiter, _ *throttle.Transport, c throttle.Cost) {
		withPermit(l, c, func(p *throttle.Permit) {
			if c != nil {
				c = throttle.Cost{"tokens": 25}
			}
			_ = p.Settle(c)
		})
	},
	"Acquire and cancel": func(l *throttle.Limiter, _ *throttle.Transport, c throttle.Cost) {
		withPermit(l, c, func(p *throttle.Permit) { _ = p.Cancel(context.Background()) })
	},
	"Acquire and report a refusal": func(l *throttle.Limiter, _ *throttle.Transport, c throttle.Cost) {
		withPermit(l, c, func(p *throttle.Permit) { _ = p.Refused(context.Background(), time.Minute) })
	},
	"TryAcquire": func(l *throttle.Limiter, _ *throttle.Transport, c throttle.Cost) {
		if p, err := l.TryAcquire(context.Background(), c); err == nil {
			defer p.Release()
			p.Passed()
		}
	},
	"RoundTrip":            func(_ *throttle.Limiter, tr *throttle.Transport, _ throttle.Cost) { roundTripTo(tr, "/") },
	"RoundTrip, refused":   func(_ *throttle.Limiter, tr *throttle.Transport, _ throttle.Cost) { roundTripTo(tr, "/refused") },
	"RoundTrip, lost":      func(_ *throttle.Limiter, tr *throttle.Transport, _ throttle.Cost) { roundTripTo(tr, "/lost") },
	"RoundTrip, no body":   func(_ *throttle.Limiter, tr *throttle.Transport, _ throttle.Cost) { roundTripTo(tr, "/empty") },
	"RoundTrip, ctx ended": func(_ *throttle.Limiter, tr *throttle.Transport, _ throttle.Cost) { roundTripCanceled(tr) },
}

func withPermit(l *throttle.Limiter, c throttle.Cost, f func(*throttle.Permit)) {
	p, err := l.Acquire(context.Background(), c)
	if err != nil {
		return
	}
	defer p.Release()
	f(p)
}

func roundTripTo(tr *throttle.Transport, path string) {
	req, _ := http.NewRequest("GET", "http://provider.test"+path, nil)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}

// roundTripCanceled sends a request whose context ends when the request is admitted.
func roundTripCanceled(tr *throttle.Transport) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	settle := *tr
	settle.Settle = func(r *http.Request) func(throttle.Cost) throttle.Cost { cancel(); return tr.Settle(r) }
	req, _ := http.NewRequestWithContext(ctx, "GET", trURL, nil)
	if resp, err := settle.RoundTrip(req); err == nil {
		resp.Body.Close()
	}
}

// TestCallbacksThatPanic checks that a panic or a runtime.Goexit of any callback leaves no place, no
// estimate, no waiter and no probe behind, that nothing stays charged for a request that was not sent,
// and that others are admitted at once.
func TestCallbacksThatPanic(t *testing.T) {
	callbacks := []string{
		"Alert", "Admitted", "Answered", "Settled", "Paused",
		"Route", "Cost", "SendBy", "ProfileFor", "Settle", "settler", "Meter", "Meter.Write", "Meter.Cost", "Base",
	}
	unsent := []string{"Admitted", "Route", "Cost", "SendBy", "ProfileFor", "Settle"}
	for _, callback := range callbacks {
		t.Run(callback, func(t *testing.T) {
			soak.Sample(t, 4)
			calls := 0
			for door := range doors {
				for _, kind := range []string{"plain", "concurrency", "estimated", "both"} {
					for variant := range 6 {
						c := callbackCase{callback, door, kind, variant/2 == 1, variant%2 == 1, variant/2 == 2}
						synctest.Test(t, func(t *testing.T) {
							calls += c.run(t, slices.Contains(unsent, callback) || callback == "Alert" && !c.estimates())
						})
					}
				}
			}
			if calls == 0 {
				t.Error("the callback was never called")
			}
		})
	}
}

// run sends three requests whose callback stops the goroutine, and returns how often it did.
func (c callbackCase) run(t *testing.T, unsent bool) (calls int) {
	b, none := &bomb{exits: c.exits}, new(bomb)
	at := func(callback string) func() {
		if callback == c.callback {
			return b.explode
		}
		return none.explode
	}
	var l *throttle.Limiter
	for _, p := range slices.Backward(c.policies(at)) {
		if inner := mustNew(t, p, nil); l == nil {
			l = inner
		} else {
			l = inner.Within(l)
		}
	}
	meter := bombMeter{none, none}
	switch c.callback {
	case "Meter.Write":
		meter.write = b
	case "Meter.Cost":
		meter.cost = b
	}
	tr := c.transport(l, at, meter)
	var cost throttle.Cost
	if c.estimates() {
		cost = throttle.Cost{"tokens": 5}
	}
	for range 3 {
		b.armed.Store(true)
		before := used(t, l)
		called := b.calls.Load()
		survive(func() { doors[c.door](l, tr, cost) })
		b.armed.Store(false)
		if after := used(t, l); unsent && b.calls.Load() > called && !slices.Equal(after, before) {
			t.Errorf("%v: %v used after a request that was not sent, %v before it", c, after, before)
		}
		if err := l.Resume(context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := status(t, l); s.Waiting != 0 || slices.ContainsFunc(s.Tiers, func(t throttle.TierStatus) bool {
			return t.Tier.Algorithm == throttle.Concurrency && t.Used != 0
		}) {
			t.Errorf("%v: a place is taken: %v", c, s)
		}
		p, err := l.TryAcquire(t.Context(), cost)
		if err != nil {
			t.Errorf("%v: the next request is not admitted at once: %v", c, err)
			break
		}
		p.Passed()
		_ = p.Settle(nil)
		p.Release()
		time.Sleep(time.Second)
	}
	for _, tier := range status(t, l).Tiers {
		if tier.InFlight != 0 {
			t.Errorf("%v: %d %s are in flight", c, tier.InFlight, tier.Tier)
		}
	}
	return int(b.calls.Load())
}

// TestRecostThatPanics checks that a panic or a runtime.Goexit of Transport.Cost during the wait leaves
// no waiter behind.
func TestRecostThatPanics(t *testing.T) {
	for _, exits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{
				throttle.PerSecond(1), {Limit: 100, Window: time.Hour, Unit: "tokens", Estimated: true},
			}}, nil)
			b := &bomb{exits: exits}
			tr := &throttle.Transport{
				Limiter: l, Base: trNewBase(nil),
				Cost:   func(*http.Request) throttle.Cost { b.explode(); return throttle.Cost{"tokens": 5} },
				Settle: func(*http.Request) func(throttle.Cost) throttle.Cost { return nil },
			}
			roundTripTo(tr, "/")
			go survive(func() { roundTripTo(tr, "/") })
			synctest.Wait()
			b.armed.Store(true)
			time.Sleep(5 * time.Second)
			b.armed.Store(false)
			synctest.Wait()
			if s := status(t, l); b.calls.Load() == 0 || s.Waiting != 0 || s.Tiers[1].InFlight != 0 {
				t.Errorf("Goexit %v: after %d calls of Cost: %v", exits, b.calls.Load(), s)
			}
			if _, err := l.TryAcquire(t.Context(), throttle.Cost{"tokens": 5}); err != nil {
				t.Errorf("Goexit %v: %v", exits, err)
			}
		})
	}
}

// TestStormOfEverything runs all methods of Limiters, Groups, Permits and Transports concurrently
// with SetPolicy, pauses, bans, Delete and Close. No caller may wait forever, nothing may panic,
// and at the end nothing may be used.
func TestStormOfEverything(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	for round := range 3 {
		stormOfEverything(t, uint64(round))
	}
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

type noisy struct{ *strings.Reader }

func (noisy) Close() error { return nil }

// TestStormKeepsTheLargerLimit changes the policy between two limits while requests are sent. The
// provider must never count more than the larger limit.
func TestStormKeepsTheLargerLimit(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	const window = 50 * ms
	limit := func(n int64, a throttle.Algorithm) throttle.Policy {
		return throttle.Policy{Name: "api", Tiers: []throttle.Tier{per(window, n, a)}, Guard: time.Minute}
	}
	for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow} {
		l, account := mustNew(t, limit(40, a), nil), mustNew(t, limit(1000, a), nil)
		nested := l.Within(account)
		ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
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
