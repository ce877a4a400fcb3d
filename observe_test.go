package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

// An eventCounts counts events and compares each wait with the stopwatch of its caller.
type eventCounts struct {
	mu                                               sync.Mutex
	admitted, refused, queued, answered, held, waits int
	errs                                             []error
}

func (c *eventCounts) observer(t *testing.T, l func() *throttle.Limiter) *throttle.Observer {
	callBack := func() { // an Observer may call back into the limiter
		if _, err := l().Forecast(t.Context(), nil); err != nil && !errors.As(err, new(*throttle.WaitError)) && t.Context().Err() == nil {
			t.Error(err)
		}
	}
	return &throttle.Observer{
		Queued: func(context.Context, throttle.QueuedInfo) { c.add(&c.queued, 1); callBack() },
		Admitted: func(ctx context.Context, a throttle.AdmittedInfo) {
			c.add(&c.admitted, 1)
			if a.Held {
				c.add(&c.held, 1)
			}
			c.check(ctx, a.Waited, a.Queued)
			if a.Waited > 0 && a.Tier != "" {
				c.add(&c.waits, 1)
			}
			callBack()
		},
		Refused: func(ctx context.Context, r throttle.RefusedInfo) {
			c.add(&c.refused, 1)
			c.check(ctx, r.Waited, r.Queued)
			callBack()
		},
		Answered: func(context.Context, throttle.AnsweredInfo) { c.add(&c.answered, 1); callBack() },
		Settled:  func(throttle.SettledInfo) { callBack() },
		Paused:   func(throttle.PausedInfo) { callBack() },
	}
}

func (c *eventCounts) add(n *int, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*n += by
}

type stopwatchKey struct{}

// check compares the wait with the caller's own stopwatch.
func (c *eventCounts) check(ctx context.Context, waited time.Duration, queued bool) {
	since, ok := ctx.Value(stopwatchKey{}).(time.Time)
	if !ok {
		return // a call without a context
	}
	if own := time.Since(since); own != waited || waited > 0 && !queued {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.errs = append(c.errs, fmt.Errorf("waited %v, queued %v; the caller's stopwatch shows %v", waited, queued, own))
	}
}

// TestObserverConservation checks that each call is admitted or refused once, and each admitted one
// with a permit answered once, in storms of cancellations, deadlines, classes and pauses.
func TestObserverConservation(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	for _, nested := range []bool{false, true} {
		t.Run(fmt.Sprintf("nested=%v", nested), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, 15))
				var c eventCounts
				var l *throttle.Limiter
				observer := c.observer(t, func() *throttle.Limiter { return l })
				l = mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(50), {Limit: 40, Algorithm: throttle.Concurrency, Unit: "open"}}, MaxQueue: 200, Observer: observer}, nil)
				if nested {
					outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(40)}, Guard: 10 * time.Millisecond}, nil)
					l = l.Within(outer)
				}
				var calls, permits atomic.Int64
				var wg sync.WaitGroup
				for i := range 10_000 {
					at, kind := time.Duration(r.Int64N(int64(100*time.Second))), r.IntN(6)
					within, work, end := time.Duration(r.Int64N(int64(8*time.Second))), time.Duration(r.Int64N(int64(time.Second))), r.IntN(5)
					class := throttle.Class(r.IntN(3))
					wg.Go(func() {
						time.Sleep(at)
						ctx, cancel := context.WithCancel(context.WithValue(throttle.WithClass(t.Context(), class), stopwatchKey{}, time.Now()))
						defer cancel()
						if i%3 == 0 {
							ctx, cancel = context.WithTimeout(ctx, within)
							defer cancel()
						} else if i%7 == 0 {
							defer time.AfterFunc(within, cancel).Stop()
						}
						calls.Add(1)
						var p *throttle.Permit
						var err error
						switch kind {
						case 0:
							p, err = l.TryAcquire(ctx, throttle.Cost{"open": 1})
						case 1:
							if !l.Allow() {
								return
							}
							return
						case 2:
							calls.Add(1)
							_ = l.Pause(ctx, 50*time.Millisecond)
							calls.Add(-1)
							fallthrough
						default:
							p, err = l.Acquire(ctx, throttle.Cost{"open": 1})
						}
						if err != nil {
							return
						}
						permits.Add(1)
						time.Sleep(work)
						switch end {
						case 0:
							_ = p.Cancel(ctx)
						case 1:
							_ = p.Refused(ctx, time.Millisecond)
						case 2:
							p.Passed()
						case 3:
							p.Arrived()
						}
						p.Release()
					})
				}
				wg.Wait()
				if n := calls.Load(); int64(c.admitted+c.refused) != n {
					t.Errorf("%d admitted and %d refused of %d calls", c.admitted, c.refused, n)
				}
				if n := permits.Load(); int64(c.held) != n || int64(c.answered) != n {
					t.Errorf("%d held and %d answered of %d permits", c.held, c.answered, n)
				}
				if c.queued == 0 || c.waits == 0 {
					t.Errorf("%d queued, %d waited for a tier", c.queued, c.waits)
				}
				for i, err := range c.errs {
					if i == 5 {
						t.Fatalf("and %d more", len(c.errs)-5)
					}
					t.Error(err)
				}
			})
		})
	}
}

// TestObserverTier checks that the tier of an admission is the one that was full: a microsecond before
// the admission its provider would have refused the request, and not for lack of another tier.
func TestObserverTier(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 152))
			tiers := []throttle.Tier{
				{Limit: 1 + r.Int64N(8), Window: time.Second, Algorithm: throttle.SlidingLog},
				{Limit: 5 + r.Int64N(20), Window: 5 * time.Second, Algorithm: throttle.Algorithm(r.IntN(2)) * throttle.GCRA},
			}
			counters := make([]*throttletest.Counter, len(tiers))
			byName := make(map[string]int)
			for i, tier := range tiers {
				var err error
				if counters[i], err = throttletest.NewCounter(tier); err != nil {
					t.Fatal(err)
				}
				byName[tier.String()] = i
			}
			waited := 0
			l := mustNew(t, throttle.Policy{Tiers: tiers, Guard: throttle.NoGuard, Observer: &throttle.Observer{
				Admitted: func(_ context.Context, a throttle.AdmittedInfo) {
					now := time.Now().UnixMicro()
					if a.Waited > 0 {
						waited++
						tier, ok := byName[a.Tier]
						if !ok {
							t.Fatalf("seed %d: waited %v for tier %q", seed, a.Waited, a.Tier)
						}
						if counters[tier].Admits(now-1, nil) < 0 {
							t.Fatalf("seed %d: waited %v for tier %q, which had room before", seed, a.Waited, a.Tier)
						}
					}
					for i, c := range counters {
						if !c.Arrive(now, nil) {
							t.Fatalf("seed %d: tier %v refuses", seed, tiers[i])
						}
					}
				},
			}}, nil)
			for range 150 {
				if err := l.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				if r.IntN(4) == 0 {
					time.Sleep(time.Duration(r.Int64N(int64(400 * time.Millisecond))))
				}
			}
			if waited == 0 {
				t.Errorf("seed %d: no request waited", seed)
			}
		})
	}
}

// TestObserverNestedTier checks which tier decided a wait in nested scopes: the last one that the
// request waited for.
func TestObserverNestedTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		observer := &throttle.Observer{Admitted: func(_ context.Context, a throttle.AdmittedInfo) {
			got = append(got, fmt.Sprintf("%v for %s of %s", a.Waited, a.Tier, a.By))
		}}
		account := mustNew(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerMinute(2)}, Guard: throttle.NoGuard}, nil)
		api := mustNew(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(1)}, Guard: throttle.NoGuard, Observer: observer}, nil).Within(account)
		for range 4 { // at 0 s, 1 s, 60 s and 61 s
			if err := api.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		want := []string{"0s for  of ", "1s for 1/s of api", "59s for 2/m of account", "1s for 1/s of api"}
		if !slices.Equal(got, want) {
			t.Errorf("%q\nwant %q", got, want)
		}
	})
}

// TestObserverOfRefusingLimiters checks that the refusals of a Limiter that has no quota are reported.
func TestObserverOfRefusingLimiters(t *testing.T) {
	var refused []error
	observer := &throttle.Observer{Refused: func(_ context.Context, r throttle.RefusedInfo) {
		if r.Policy != "keys" {
			t.Errorf("policy %q", r.Policy)
		}
		refused = append(refused, r.Err)
	}}
	g, err := throttle.NewGroup(throttle.Policy{Name: "keys", Tiers: []throttle.Tier{throttle.PerHour(1)}, Observer: observer}, nil, throttle.GroupOptions{MaxKeys: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !g.For("a").Allow() {
		t.Fatal("Allow is false")
	}
	l := g.For("b")
	_ = l.Wait(t.Context())
	_ = l.Allow()
	_, _ = l.TryAcquire(t.Context(), nil)
	_ = g.Within("b", mustNew(t, api(throttle.PerHour(9)), nil)).Wait(t.Context())
	if len(refused) != 4 {
		t.Fatalf("%d refusals reported, want 4", len(refused))
	}
	for _, err := range refused {
		if !errors.Is(err, throttle.ErrTooManyKeys) {
			t.Error(err)
		}
	}
}

// TestObserverOfPanics checks that a request is reported as refused if Policy.Alert panics, so that
// it doesn't stay in the queue for those who count.
func TestObserverOfPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queued, refused := 0, 0
		l := mustNew(t, throttle.Policy{
			Tiers:   []throttle.Tier{throttle.PerSecond(1), throttle.Budget(10, "usd", throttle.Month)},
			AlertAt: []int{10}, Alert: func(throttle.Alert) { panic("alert") },
			Observer: &throttle.Observer{
				Queued:   func(context.Context, throttle.QueuedInfo) { queued++ },
				Refused:  func(_ context.Context, r throttle.RefusedInfo) { refused++; t.Log(r.Err) },
				Admitted: func(_ context.Context, a throttle.AdmittedInfo) { queued += map[bool]int{true: 9}[a.Queued] },
			},
		}, nil)
		if _, err := l.Acquire(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if r := recover(); r != "alert" || queued != 1 || refused != 1 {
				t.Errorf("%v; %d queued and %d refused, want 1 and 1", r, queued, refused)
			}
		}()
		_, _ = l.Acquire(t.Context(), throttle.Cost{"usd": 5})
	})
}

// TestObserverOfLateCallers checks that a request that is refused at once was not queued.
func TestObserverOfLateCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queued := 0
		l := mustNew(t, throttle.Policy{
			Tiers: []throttle.Tier{throttle.PerMinute(1)}, MaxWait: time.Second,
			Observer: &throttle.Observer{
				Queued: func(context.Context, throttle.QueuedInfo) { queued++ },
				Refused: func(_ context.Context, r throttle.RefusedInfo) {
					if r.Queued || r.Waited != 0 || r.Outcome() != "deadline" {
						t.Errorf("%+v", r)
					}
				},
			},
		}, nil)
		_ = l.Wait(t.Context())
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrDeadline) {
			t.Error(err)
		}
		if queued != 0 {
			t.Errorf("%d requests were queued", queued)
		}
	})
}

// TestObserverStays checks that the Observer that receives an admission receives its end, also if
// SetPolicy has replaced it.
func TestObserverStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards events
		var events []string
		observer := func(name string) *throttle.Observer {
			add := func(event string) {
				mu.Lock()
				defer mu.Unlock()
				events = append(events, event+" "+name)
			}
			return &throttle.Observer{
				Queued:   func(context.Context, throttle.QueuedInfo) { add("queued") },
				Admitted: func(context.Context, throttle.AdmittedInfo) { add("admitted") },
				Answered: func(context.Context, throttle.AnsweredInfo) { add("answered") },
			}
		}
		p := throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}, Observer: observer("old")}
		l := mustNew(t, p, nil)
		first, err := l.Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var second *throttle.Permit
		go func() { second, _ = l.Acquire(t.Context(), nil) }()
		synctest.Wait()
		p.Observer = observer("new")
		if err := l.SetPolicy(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		first.Release()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		second.Release()
		third, err := l.TryAcquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		third.Release()
		want := []string{"admitted old", "queued old", "answered old", "admitted old", "answered old", "admitted new", "answered new"}
		if !slices.Equal(events, want) {
			t.Errorf("%q\nwant %q", events, want)
		}
	})
}

// TestObserverOfPanickingCallers checks that a panic of Queued leaves no trace in the queue, and that
// a panic of Alert ends a request that does not wait as refused.
func TestObserverOfPanickingCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := 0
		l := mustNew(t, throttle.Policy{
			Tiers:   []throttle.Tier{throttle.PerSecond(1), throttle.Budget(10, "usd", throttle.Month)},
			AlertAt: []int{10}, Alert: func(throttle.Alert) { panic("alert") },
			Observer: &throttle.Observer{
				Queued:  func(context.Context, throttle.QueuedInfo) { panic("queued") },
				Refused: func(context.Context, throttle.RefusedInfo) { refused++ },
			},
		}, nil)
		panics := func(call func()) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			call()
		}
		panics(func() { _, _ = l.TryAcquire(t.Context(), throttle.Cost{"usd": 5}) })
		if err := l.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		panics(func() { _ = l.Wait(t.Context()) })
		status, err := l.Status(t.Context())
		if err != nil || status.Waiting != 0 || refused != 2 {
			t.Errorf("%v waits, %d refused, %v", status, refused, err)
		}
		time.Sleep(3 * time.Second)
		if !l.Allow() {
			t.Error("the queue is stuck")
		}
	})
}

// TestObserverOfEndedContexts checks that calls whose context has ended before are refused ones, too.
func TestObserverOfEndedContexts(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		var told []string
		l := mustNew(t, throttle.Policy{
			Tiers: []throttle.Tier{throttle.PerSecond(10)}, Shadow: shadow,
			Observer: &throttle.Observer{Refused: func(_ context.Context, i throttle.RefusedInfo) { told = append(told, i.Outcome()) }},
		}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, acquired := l.Acquire(ctx, nil)
		transport := &throttle.Transport{Limiter: l}
		_, sent := transport.RoundTrip(httptest.NewRequest("GET", "/", http.NoBody).WithContext(ctx))
		for i, err := range []error{acquired, sent, l.Wait(ctx), l.WaitN(ctx, 1)} {
			if err != context.Canceled {
				t.Errorf("call %d: %v", i, err)
			}
		}
		if want := []string{"canceled", "canceled", "canceled", "canceled"}; !slices.Equal(told, want) {
			t.Errorf("shadow %v: told of %v, want %v", shadow, told, want)
		}
	}
}

// TestObserverOfPanickingAdmissions checks that a request whose Admitted panics is not sent: it occupies
// nothing, and a Group can drop its quota.
func TestObserverOfPanickingAdmissions(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var panics bool
			var admitted, refused, unsent int
			count := &throttle.Observer{
				Admitted: func(context.Context, throttle.AdmittedInfo) { admitted++ },
				Refused:  func(context.Context, throttle.RefusedInfo) { refused++ },
				Answered: func(_ context.Context, i throttle.AnsweredInfo) {
					if i.Unsent {
						unsent++
					}
				},
			}
			g, err := throttle.NewGroup(throttle.Policy{
				Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}, Shadow: shadow,
				Observer: throttle.JoinObservers(count, &throttle.Observer{Admitted: func(context.Context, throttle.AdmittedInfo) {
					if panics {
						panic("admitted")
					}
				}}),
			}, nil, throttle.GroupOptions{MaxKeys: 1})

			if err != nil {
				t.Fatal(err)
			}
			l := g.For("a")
			transport := &throttle.Transport{Limiter: l, Base: roundTripper(func(*http.Request) (*http.Response, error) {
				t.Error("the request was sent")
				return nil, errors.New("no response")
			})}
			panics = true
			for _, call := range []func(){
				func() { _, _ = l.Acquire(t.Context(), nil) },
				func() { _, _ = l.TryAcquire(t.Context(), nil) },
				func() { _, _ = transport.RoundTrip(httptest.NewRequest("GET", "/", http.NoBody)) },
			} {
				func() {
					defer func() {
						if recover() == nil {
							t.Error("no panic")
						}
					}()
					call()
				}()
			}
			panics = false
			for _, key := range []string{"a", "b"} {
				p, err := g.For(key).TryAcquire(t.Context(), nil)
				if err != nil {
					t.Error(err)
				}
				p.Release()
				time.Sleep(time.Hour)
			}
			if admitted != 5 || refused != 0 || unsent != 3 {
				t.Errorf("%d admitted, %d refused, %d unsent; want 5, 0 and 3", admitted, refused, unsent)
			}
		})
	}
}

// TestPausedFor checks that Paused receives how long the quota is paused, which doubles with each
// refusal that names no time.
func TestPausedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told time.Duration
		l := mustNew(t, throttle.Policy{
			Tiers: []throttle.Tier{throttle.PerSecond(100)}, Observer: &throttle.Observer{Paused: func(i throttle.PausedInfo) { told = i.For }},
		}, nil)
		for i := range 5 {
			p, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = p.Refused(t.Context(), 0)
			p.Release()
			if paused := status(t, l).Paused; told != paused || told < time.Second<<i {
				t.Errorf("pause %d: told of %v, paused for %v", i, told, paused)
			}
		}
	})
}

// TestObserverCallsBack checks that an Observer may call every method of its Limiter from every event,
// in storms too, and that no caller is lost.
func TestObserverCallsBack(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	limiters := map[string]func(t *testing.T, p throttle.Policy) *throttle.Limiter{
		"alone":  func(t *testing.T, p throttle.Policy) *throttle.Limiter { return mustNew(t, p, nil) },
		"shadow": func(t *testing.T, p throttle.Policy) *throttle.Limiter { p.Shadow = true; return mustNew(t, p, nil) },
		"group": func(t *testing.T, p throttle.Policy) *throttle.Limiter {
			g, err := throttle.NewGroup(p, nil, throttle.GroupOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return g.For("key")
		},
		"nested": func(t *testing.T, p throttle.Policy) *throttle.Limiter {
			outer := p
			outer.Name = "outer"
			return mustNew(t, p, nil).Within(mustNew(t, outer, nil))
		},
	}
	for name, limiter := range limiters {
		t.Run(name, func(t *testing.T) {
			for event := range 6 {
				for method := range 10 {
					synctest.Test(t, func(t *testing.T) { callsBack(t, limiter, event, method) })
				}
			}
		})
	}
}

// callsBack calls a method of a Limiter from an event, in a storm of requests.
func callsBack(t *testing.T, limiter func(*testing.T, throttle.Policy) *throttle.Limiter, event, method int) {
	var l *throttle.Limiter
	var told, ended atomic.Int64
	p := throttle.Policy{Name: "api", MaxQueue: 30, Headroom: 20, Tiers: []throttle.Tier{
		throttle.PerSecond(20), {Limit: 5, Algorithm: throttle.Concurrency}, {Limit: 1000, Window: time.Second, Unit: "tokens", Estimated: true},
	}}
	cost, short := throttle.Cost{"requests": 1, "tokens": 10}, func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), ms)
		t.Cleanup(cancel)
		return ctx
	}
	methods := []func(n int64){
		func(int64) { _, _ = l.Status(t.Context()); l.Allow(); _ = l.Within(mustNew(t, p, nil)) },
		func(int64) { _, _ = l.Explain(t.Context(), cost) },
		func(int64) { _, _ = l.Forecast(t.Context(), cost) },
		func(int64) { p, _ := l.TryAcquire(t.Context(), cost); p.Release() },
		func(int64) { p, _ := l.TryAcquire(t.Context(), cost); _ = p.Cancel(t.Context()) },
		func(int64) { p, _ := l.Acquire(short(), cost); _ = p.Refused(t.Context(), ms); p.Release() },
		func(n int64) {
			next := p
			next.Tiers = slices.Clone(p.Tiers)
			next.Tiers[0].Limit = 10 + n%10
			_ = l.SetPolicy(t.Context(), next)
		},
		func(int64) { _ = l.Pause(t.Context(), 10*ms) },
		func(int64) { _ = l.Pause(t.Context(), 10*ms); _ = l.Resume(t.Context()) },
		func(n int64) {
			if n >= 20 {
				l.Close()
			}
		},
	}
	callBack := func(of int) {
		if n := told.Add(1); of == event && n <= 300 { // the events of the methods count, too
			methods[method](n)
		}
	}
	end := func(context.Context) { ended.Add(1) }
	p.Observer = &throttle.Observer{
		Queued:   func(context.Context, throttle.QueuedInfo) { callBack(0) },
		Admitted: func(ctx context.Context, _ throttle.AdmittedInfo) { end(ctx); callBack(1) },
		Refused:  func(ctx context.Context, _ throttle.RefusedInfo) { end(ctx); callBack(2) },
		Answered: func(context.Context, throttle.AnsweredInfo) { callBack(3) },
		Settled:  func(throttle.SettledInfo) { callBack(4) },
		Paused:   func(throttle.PausedInfo) { callBack(5) },
	}
	l = limiter(t, p)
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 10 * ms)
			ctx, cancel := context.WithTimeout(throttle.WithClass(t.Context(), throttle.Class(i%3)), time.Second)
			defer cancel()
			p, err := l.Acquire(ctx, cost)
			if err != nil {
				return
			}
			time.Sleep(50 * ms)
			if i%8 == 0 {
				_ = p.Refused(ctx, 10*ms)
			}
			_ = p.Settle(throttle.Cost{"tokens": 5})
			p.Release()
		})
	}
	wg.Wait()
	time.Sleep(time.Hour)
	synctest.Wait()
	if s, err := l.Status(t.Context()); ended.Load() < 60 || err == nil && s.Waiting > 0 {
		t.Errorf("event %d, method %d: %d ended, %v, %v", event, method, ended.Load(), s, err)
	}
	l.Close()
}

// A reportingStore is a store whose quotas report one call for each TryAcquire.
type reportingStore struct{ throttle.Store }

type reportingQuota struct {
	store.Quota
	report func(store.Call)
}

func (s reportingStore) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return &reportingQuota{q, report}, err
}

func (q *reportingQuota) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	if q.report != nil {
		q.report(store.Call{Duration: time.Second, Requests: 2, Unsent: true, Err: errCall})
	}
	return q.Quota.TryAcquire(ctx, r)
}

var errCall = errors.New("call failed")

// TestObserverCalled checks what Called receives, also joined and without any.
func TestObserverCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int64
		called := &throttle.Observer{Called: func(i throttle.CalledInfo) {
			told.Add(1)
			if want := (throttle.CalledInfo{Policy: "api", Duration: time.Second, Requests: 2, Unsent: true, Err: errCall}); i != want {
				t.Errorf("%+v, want %+v", i, want)
			}
		}}
		for want, o := range []*throttle.Observer{
			throttle.JoinObservers(&throttle.Observer{}), throttle.JoinObservers(called, &throttle.Observer{}), throttle.JoinObservers(called, nil, called),
		} {
			told.Store(0)
			l := mustNew(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}, Observer: o}, reportingStore{local.New()})
			l.Allow()
			synctest.Wait()
			if n := int(told.Load()); n != want {
				t.Errorf("told %d times, want %d", n, want)
			}
		}
	})
}

// TestObserverCalledAfterSetPolicy checks that the calls of a quota are reported to the Observer of the
// policy in force.
func TestObserverCalledAfterSetPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second atomic.Int64
		observer := func(n *atomic.Int64) *throttle.Observer {
			return &throttle.Observer{Called: func(throttle.CalledInfo) { n.Add(1) }}
		}
		p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}, Observer: observer(&first)}
		l := mustNew(t, p, reportingStore{local.New()})
		for i, o := range []*throttle.Observer{p.Observer, observer(&second), nil} {
			if p.Observer = o; i > 0 {
				if err := l.SetPolicy(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			}
			l.Allow()
			synctest.Wait()
			if got, want := [2]int64{first.Load(), second.Load()}, [2]int64{1, int64(min(i, 1))}; got != want {
				t.Errorf("policy %d: the observers received %v calls, want %v", i, got, want)
			}
		}
	})
}

// TestAnsweredOfPermit checks that Answered receives the values of the context that the Permit was
// acquired with, and not its end.
func TestAnsweredOfPermit(t *testing.T) {
	type key struct{}
	var got context.Context
	l := mustNew(t, throttle.Policy{
		Tiers:    []throttle.Tier{throttle.PerSecond(100)},
		Observer: &throttle.Observer{Answered: func(ctx context.Context, _ throttle.AnsweredInfo) { got = ctx }},
	}, nil)
	for range 3 { // the first is not admitted on the fast path
		for name, end := range map[string]func(*throttle.Permit){
			"Arrived": (*throttle.Permit).Arrived, "Passed": (*throttle.Permit).Passed, "Release": (*throttle.Permit).Release,
			"Settle": func(p *throttle.Permit) { _ = p.Settle(nil) },
		} {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, name))
			p, err := l.Acquire(ctx, nil)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			got = nil
			end(p)
			if got == nil || got.Value(key{}) != name || got.Err() != nil {
				t.Errorf("%s: Answered received %v", name, got)
			}
			p.Release()
		}
	}
	p, err := l.TryAcquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.Release(); got == nil || got.Err() != nil {
		t.Errorf("TryAcquire: Answered received %v", got)
	}
}
