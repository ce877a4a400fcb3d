package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

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

// survive calls f in a goroutine that recovers a panic, as the server of net/http does.
func survive(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		f()
	}()
	<-done
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
