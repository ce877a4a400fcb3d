package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
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

// tellings are what an Observer is told of requests, by their numbers.
type tellings struct {
	shadow bool
	mu     sync.Mutex // guards all below
	all    map[int]told
	wrong  int // events that are not of the kind, or are of a request that is known
}

type requestNumber struct{}

func (ts *tellings) add(ctx context.Context, shadow bool, t told) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	n := ctx.Value(requestNumber{}).(int)
	if _, known := ts.all[n]; known || shadow != ts.shadow {
		ts.wrong++
	}
	ts.all[n] = t
}

// of returns what was told of a request.
func (ts *tellings) of(n int) told {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.all[n]
}

func (ts *tellings) observer() *throttle.Observer {
	ts.all = make(map[int]told)
	return &throttle.Observer{
		Admitted: func(ctx context.Context, i throttle.AdmittedInfo) {
			ts.add(ctx, i.Shadow, told{waited: i.Waited, tier: i.Tier})
		},
		Refused: func(ctx context.Context, i throttle.RefusedInfo) {
			t := told{waited: i.Waited, err: "false"}
			var e *throttle.WaitError
			if errors.As(i.Err, &e) {
				t.tier, t.err = e.Tier, fmt.Sprint(e.Err, e.Wait, e.Ahead)
			} else if i.Err != nil {
				t.err = i.Err.Error()
			}
			ts.add(ctx, i.Shadow, t)
		},
	}
}

// A tracedRequest is a request of a random trace, and what becomes of it once it is sent.
type tracedRequest struct {
	gap      time.Duration // since the request before
	cost     throttle.Cost
	class    throttle.Class
	held     bool
	deadline time.Duration // after the arrival; zero if there is none
	cancel   time.Duration // of its context, after the arrival; zero if there is none
	steps    [3]time.Duration
	outcome  int
	actual   throttle.Cost
}

// context returns the context of the request, which arrives now.
func (q *tracedRequest) context(t *testing.T, n int) context.Context {
	ctx := throttle.WithClass(context.WithValue(t.Context(), requestNumber{}, n), q.class)
	cancel := context.CancelFunc(func() {})
	if q.deadline > 0 {
		ctx, cancel = context.WithTimeout(ctx, q.deadline)
	} else if q.cancel > 0 {
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(q.cancel, cancel)
	}
	t.Cleanup(cancel)
	return ctx
}

// send sends the request, and reports its outcome in another goroutine.
func (q *tracedRequest) send(ctx context.Context, l *throttle.Limiter) error {
	if !q.held {
		return l.Wait(ctx)
	}
	p, err := l.Acquire(ctx, q.cost)
	if err == nil {
		go q.respond(p)
	}
	return err
}

func (q *tracedRequest) respond(p *throttle.Permit) {
	time.Sleep(q.steps[0])
	switch q.outcome {
	case 0: // no response
		p.Release()
		return
	case 1: // not sent
		_ = p.Cancel(context.Background())
		return
	case 2:
		_ = p.Settle(q.actual)
	case 3:
		p.Arrived()
		time.Sleep(q.steps[1])
		_ = p.Settle(q.actual)
	default:
		p.Passed()
	}
	time.Sleep(q.steps[2])
	p.Release()
}

// upTo returns a random length of time, in nanoseconds, so that no two events coincide.
func upTo(r *rand.Rand, d time.Duration) time.Duration { return 1 + time.Duration(r.Int64N(int64(d))) }

// randomTrace returns a valid policy of tiers of all kinds, and requests under it.
func randomTrace(r *rand.Rand) (throttle.Policy, []tracedRequest) {
	var p throttle.Policy
	for ok := false; !ok; ok = p.Validate() == nil {
		p = throttle.Policy{
			Name: "api", Guard: pick(r, 0, throttle.NoGuard, 5*ms, 300*ms), AssumeUsed: r.IntN(8) == 0,
			MaxWait: pick(r, 0, 0, upTo(r, 3*time.Second)), MaxQueue: pick(r, 0, 0, 1+r.IntN(10)),
		}
		estimated := r.IntN(2) == 0
		for range 1 + r.IntN(3) {
			tier := throttle.Tier{
				Limit: 1 + r.Int64N(12), Window: time.Duration(1+r.IntN(2000)) * ms,
				Algorithm: throttle.Algorithm(r.IntN(int(throttle.Calendar) + 1)), Unit: pick(r, "", "", "tokens"),
			}
			switch tier.Algorithm {
			case throttle.Concurrency:
				tier.Window = 0
			case throttle.Calendar:
				tier.Window, tier.Period, tier.Limit = 0, throttle.Day, 3*tier.Limit
				tier.Budget = r.IntN(3) > 0
			case throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA:
				tier.Burst = r.Int64N(2) * (1 + r.Int64N(12))
			}
			if tier.Unit == "tokens" {
				tier.Limit *= 10
				tier.Estimated = estimated && tier.Algorithm != throttle.Concurrency
			} else if tier.Algorithm != throttle.Concurrency && r.IntN(6) == 0 {
				tier.PaceBurst = 1 + r.Int64N(3)
			}
			p.Tiers = append(p.Tiers, tier)
		}
	}
	tokens, requests, open, estimated := false, false, false, false
	for _, tier := range p.Tiers {
		tokens, requests = tokens || tier.Unit == "tokens", requests || tier.Unit == ""
		open, estimated = open || tier.Algorithm == throttle.Concurrency, estimated || tier.Estimated
	}
	trace := make([]tracedRequest, 10+r.IntN(50))
	rate := upTo(r, time.Second)
	for i := range trace {
		q := &trace[i]
		*q = tracedRequest{
			gap: pick(r, upTo(r, 2*time.Microsecond), upTo(r, rate), upTo(r, rate)), held: open || !requests || r.IntN(3) > 0,
			steps: [3]time.Duration{upTo(r, 600*ms), upTo(r, 300*ms), upTo(r, 500*ms)}, outcome: pick(r, 0, 1, 2, 3, 4, 4, 4),
		}
		if r.IntN(6) == 0 {
			q.deadline = upTo(r, 4*time.Second)
		}
		if !requests || q.held && r.IntN(2) == 0 {
			q.cost = throttle.Cost{"requests": r.Int64N(4)}
			if tokens {
				q.cost["tokens"] = r.Int64N(60)
			}
		}
		if estimated {
			q.actual = throttle.Cost{"tokens": r.Int64N(90)}
		}
	}
	return p, trace
}

// playTrace plays a trace against a limiter and one in shadow mode, side by side. It returns what the
// Observers were told.
func playTrace(t *testing.T, p throttle.Policy, trace []tracedRequest) (limited, shadow *tellings) {
	limited, shadow = new(tellings), &tellings{shadow: true}
	p.Observer = limited.observer()
	real := mustNew(t, p, nil)
	p.Observer, p.Shadow = shadow.observer(), true
	l := mustNew(t, p, nil)
	for i, q := range trace {
		time.Sleep(q.gap)
		go func() { _ = q.send(q.context(t, i), real) }()
		began := time.Now()
		if err := q.send(q.context(t, i), l); err != nil || !time.Now().Equal(began) {
			t.Fatalf("%v: request %d in shadow mode: %v after %v", p, i, err, time.Since(began))
		}
		synctest.Wait()
	}
	time.Sleep(400 * 24 * time.Hour)
	synctest.Wait()
	for _, of := range []*throttle.Limiter{real, l} {
		for _, tier := range status(t, of).Tiers {
			if tier.Used != 0 {
				t.Errorf("%v: %d of %v are used at last", p, tier.Used, tier.Tier)
			}
		}
	}
	for _, ts := range []*tellings{limited, shadow} {
		if len(ts.all) != len(trace) || ts.wrong != 0 {
			t.Errorf("%v, %+v: told of %d requests, %d wrong; want %d", p, trace, len(ts.all), ts.wrong, len(trace))
		}
	}
	return limited, shadow
}

// checkTrace plays a trace and checks that the shadows were told what a limiter does.
func checkTrace(t *testing.T, p throttle.Policy, trace []tracedRequest) (waited, refused int) {
	limited, shadow := playTrace(t, p, trace)
	for i, q := range trace {
		got, want := shadow.of(i), limited.of(i)
		if got != want {
			t.Fatalf("%v, request %d %+v: shadow %+v, limiter %+v", p, i, q, got, want)
		}
		if want.waited > 0 {
			waited++
		}
		if want.err != "" {
			refused++
		}
	}
	return waited, refused
}

// TestShadowTellsTheWaits checks that the waits and refusals that are told in shadow mode are those of
// a limiter, if each response comes after the same time from its own start.
func TestShadowTellsTheWaits(t *testing.T) {
	soak.Slow(t, "it plays many policies")
	waited, refused, seeds := 0, 0, soak.Times(1000)
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			p, trace := randomTrace(r)
			time.Sleep(24*time.Hour - upTo(r, 10*time.Second)) // the day ends during the trace
			w, n := checkTrace(t, p, trace)
			waited, refused = waited+w, refused+n
		})
	}
	if waited < 5*seeds || refused < 5*seeds {
		t.Errorf("%d waited and %d were refused, want at least %d of each", waited, refused, 5*seeds)
	}
}

// TestShadowOfClassesAndCancellations checks the same with classes, and with contexts that are canceled
// before the response is in. When a caller is refused that others have overtaken depends on the order
// in which callers wake, so the traces have no deadlines.
func TestShadowOfClassesAndCancellations(t *testing.T) {
	for seed := range uint64(soak.Times(200)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			p, trace := randomTrace(r)
			p.MaxWait, p.Headroom, p.Aging = 0, pick(r, 0, 30), upTo(r, time.Second)
			for i := range trace {
				q := &trace[i]
				q.class, q.deadline = throttle.Class(r.IntN(3)), 0
				if q.held && r.IntN(4) == 0 {
					q.cancel = upTo(r, q.steps[0]) // less than the time of the response
				}
			}
			checkTrace(t, p, trace)
		})
	}
}

// inShadow returns a limiter in shadow mode, and what its Observer is told.
func inShadow(t *testing.T, p throttle.Policy) (*throttle.Limiter, *tellings) {
	ts := &tellings{shadow: true}
	p.Name, p.Shadow, p.Observer = "api", true, ts.observer()
	return mustNew(t, p, nil), ts
}

func numbered(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, requestNumber{}, n)
}

// TestShadowKeepsTheOrder checks that requests of one goroutine are queued in their order, although
// none of its calls waits.
func TestShadowKeepsTheOrder(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			l, ts := inShadow(t, exact(throttle.PerSecond(5)))
			for i := range 50 {
				if err := l.Wait(numbered(t.Context(), i)); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait() // the first shadow has asked the quota
			if s := status(t, l); s.Waiting != 45 || s.Policy != "api (shadow)" {
				t.Errorf("%d wait for %q, want 45 for api (shadow)", s.Waiting, s.Policy)
			}
			if f, err := l.Forecast(t.Context(), nil); err != nil || f.Wait != 10*time.Second || f.Ahead != 45 {
				t.Errorf("%+v, %v; want a forecast of 10s", f, err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			for i := range 50 {
				if got, want := ts.of(i).waited, time.Duration(i/5)*time.Second; got != want {
					t.Errorf("request %d: told %v, want %v", i, got, want)
				}
			}
		})
	}
}

// TestShadowRefusesNothing checks that what a limiter would refuse is sent, and that the Observer is
// told why it would be refused.
func TestShadowRefusesNothing(t *testing.T) {
	ended, cancel := context.WithCancel(numbered(context.Background(), 1))
	cancel()
	var l *throttle.Limiter
	for name, test := range map[string]struct {
		policy throttle.Policy
		before int
		call   func(ctx context.Context) error
		told   string // the text of the refusal
		want   error  // what the call returns
	}{
		"capacity":     {exact(throttle.PerSecond(5)), 0, func(ctx context.Context) error { return l.WaitN(ctx, 6) }, "capacity", nil},
		"needs permit": {exact(throttle.Tier{Limit: 5, Algorithm: throttle.Concurrency}), 0, func(ctx context.Context) error { return l.Wait(ctx) }, "concurrency", nil},
		"queue": {throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}, MaxQueue: 2}, 3,
			func(ctx context.Context) error { return l.Wait(ctx) }, "queue is full", nil},
		"max wait": {throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}, MaxWait: ms}, 1,
			func(ctx context.Context) error { return l.Wait(ctx) }, "outlast", nil},
		"budget": {exact(throttle.Budget(1, "", throttle.Day)), 1, func(ctx context.Context) error { return l.Wait(ctx) }, "budget", nil},
		"try":    {exact(throttle.PerHour(1)), 1, func(ctx context.Context) error { return release(l.TryAcquire(ctx, nil)) }, "outlast", nil},
		"allow": {exact(throttle.PerHour(1)), 1, func(context.Context) error {
			if !l.Allow() || !l.AllowN(7) {
				return errors.New("not allowed")
			}
			return nil
		}, "", nil},
		"pause": {throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}, MaxWait: ms}, 0, func(ctx context.Context) error {
			if err := l.Pause(ctx, time.Minute); err != nil {
				return err
			}
			return l.Wait(ctx)
		}, "outlast", nil},
		"context":  {exact(throttle.PerHour(1)), 0, func(context.Context) error { return l.Wait(ended) }, "", context.Canceled},
		"context2": {exact(throttle.PerHour(1)), 0, func(context.Context) error { return l.WaitN(ended, 1) }, "canceled", context.Canceled},
		"closed": {exact(throttle.PerHour(1)), 0, func(ctx context.Context) error {
			l.Close()
			if l.Allow() {
				return errors.New("allowed")
			}
			return l.Wait(ctx)
		}, "closed", throttle.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var refused []throttle.RefusedInfo
				p := test.policy
				p.Shadow, p.Name, p.Guard = true, "api", throttle.NoGuard
				p.Observer = &throttle.Observer{Refused: func(_ context.Context, i throttle.RefusedInfo) {
					mu.Lock()
					defer mu.Unlock()
					refused = append(refused, i)
				}}
				l = mustNew(t, p, nil)
				for range test.before {
					if err := l.Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if err := test.call(numbered(t.Context(), 1)); !errors.Is(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
				if test.told != "" {
					if len(refused) == 0 {
						t.Fatal("the Observer was told of no refusal")
					}
					last := refused[len(refused)-1]
					if !last.Shadow || last.Policy != "api (shadow)" || !strings.Contains(last.Err.Error(), test.told) {
						t.Errorf("told %+v, want a refusal that contains %q", last, test.told)
					}
				}
				l.Close()
			})
		})
	}
	l, _ = inShadow(t, exact(throttle.PerHour(1)))
	for i, err := range []error{l.WaitN(numbered(t.Context(), 1), -1), release(l.Acquire(numbered(t.Context(), 2), throttle.Cost{"tokens": 1}))} {
		if err == nil || !strings.Contains(err.Error(), `policy "api (shadow)"`) {
			t.Errorf("bad argument %d: %v, want an error", i, err)
		}
	}
}

// TestShadowUnsupported checks that what has no shadow mode is an error that names the field and the
// remedy.
func TestShadowUnsupported(t *testing.T) {
	p := exact(throttle.PerSecond(5))
	p.Name = "api"
	plain := mustNew(t, p, nil)
	shadowed := p
	shadowed.Shadow = true
	shadow := mustNew(t, shadowed, nil)
	group, err := throttle.NewGroup(shadowed, nil, throttle.GroupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		call func() error
		want string
	}{
		"New":             {func() error { _, err := throttle.New(shadowed, local.New()); return err }, "pass a nil Store"},
		"NewGroup":        {func() error { _, err := throttle.NewGroup(shadowed, local.New(), throttle.GroupOptions{}); return err }, "pass a nil Store"},
		"outside":         {func() error { return plain.Within(shadow).Wait(t.Context()) }, "set Shadow to false in both"},
		"inside":          {func() error { return shadow.Within(plain).Wait(t.Context()) }, "set Shadow to false in both"},
		"key":             {func() error { return group.Within("a", plain).Wait(t.Context()) }, "set Shadow to false in both"},
		"SetPolicy":       {func() error { return plain.SetPolicy(t.Context(), shadowed) }, "make another Limiter"},
		"SetPolicy back":  {func() error { return shadow.SetPolicy(t.Context(), p) }, "make another Limiter"},
		"Group.SetPolicy": {func() error { return group.SetPolicy(t.Context(), p) }, "make another Limiter"},
	} {
		if err := test.call(); err == nil || !strings.Contains(err.Error(), "Shadow is ") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an error that contains %q", name, err, test.want)
		}
	}
	shadowed.Tiers = []throttle.Tier{throttle.PerSecond(6)}
	if err := shadow.SetPolicy(t.Context(), shadowed); err != nil {
		t.Errorf("other tiers in shadow mode: %v", err)
	}
	if err := group.SetPolicy(t.Context(), shadowed); err != nil {
		t.Errorf("other tiers of a group in shadow mode: %v", err)
	}
}

// TestShadowTransport checks that a Transport in shadow mode sends all requests at once, to a strict
// provider, and that neither refusals nor readings of it have an effect.
func TestShadowTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, sent = 5, 40
		provider := counter(t, throttle.PerSecond(limit))
		var mu sync.Mutex
		var answered, paused, admitted, other int
		l := mustNew(t, throttle.Policy{
			Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(limit)}, Guard: throttle.AutoGuard, Shadow: true,
			Observer: &throttle.Observer{
				Admitted: func(_ context.Context, i throttle.AdmittedInfo) {
					mu.Lock()
					defer mu.Unlock()
					admitted++
				},
				Answered: func(_ context.Context, i throttle.AnsweredInfo) {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case answered >= admitted || i.Policy != "api (shadow)":
						other++ // each response comes after its admission
					case i.Status == 429 && (i.Report == nil || i.Report.Named == nil || i.Report.Named.Tier != "5/s" || i.Report.Foreign != 0):
						other++ // the report names the tier, and blames nobody
					case i.Kind == answers.Limited && i.Status == 429, i.Status == 200:
						answered++
					}
				},
				Paused: func(throttle.PausedInfo) { paused++ },
			},
		}, nil)
		tr := &throttle.Transport{
			Limiter: l, Profile: github, SendBy: func(*http.Request) time.Time { return time.Now().Add(ms) },
			Base: roundTripper(func(*http.Request) (*http.Response, error) {
				time.Sleep(20 * ms)
				status := 200
				mu.Lock()
				defer mu.Unlock()
				if !provider.Arrive(time.Now().UnixMicro(), nil) {
					status = 429
				}
				return trAnswer(status, "X-Limit", "5", "X-Remaining", "0", "X-Reset", "3600", "Retry-After", "3600"), nil
			}),
		}
		began, refused := time.Now(), 0
		var wg sync.WaitGroup
		for range sent {
			wg.Go(func() {
				resp, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
				mu.Lock()
				defer mu.Unlock()
				if err != nil || time.Since(began) != 20*ms {
					t.Errorf("%v after %v, want a response after 20ms", err, time.Since(began))
				} else if resp.StatusCode == 429 {
					refused++
				}
			})
		}
		wg.Wait()
		if s := status(t, l); refused != sent-limit || s.Paused != 0 || s.Closed != 0 || s.Guard > time.Second {
			t.Errorf("%d of %d refused, status %+v; want %d, and no pause", refused, sent, s, sent-limit)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := status(t, l); s.Waiting != 0 || s.Tiers[0].Used != 0 || paused != 0 || other != 0 || answered != admitted {
			t.Errorf("status %+v, %d pauses, %d admitted, %d answered, %d wrong", s, paused, admitted, answered, other)
		}
	})
}

// TestShadowSendBy checks that SendBy does not end an attempt in shadow mode, although nothing of it was
// written by then.
func TestShadowSendBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := inShadow(t, exact(throttle.PerSecond(5)))
		tr := &throttle.Transport{
			Limiter: l, SendBy: func(*http.Request) time.Time { return time.Now().Add(time.Second) },
			Base: roundTripper(func(req *http.Request) (*http.Response, error) {
				httptrace.ContextClientTrace(req.Context()).GetConn("provider.test:80")
				time.Sleep(time.Minute)
				return trAnswer(200), req.Context().Err()
			}),
		}
		req := httptest.NewRequestWithContext(numbered(t.Context(), 1), "GET", trURL, nil)
		if _, err := tr.RoundTrip(req); err != nil {
			t.Error(err)
		}
	})
}

// TestShadowSettles checks that Answered and Settled receive the response of a request later by as long as
// its shadow has waited, and that Settle returns the errors of bad arguments, whatever became of the shadow.
func TestShadowSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var events []string
		began := time.Now()
		add := func(event string) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, fmt.Sprint(event, " after ", time.Since(began)))
		}
		l := mustNew(t, throttle.Policy{
			Name: "api", Shadow: true, Guard: throttle.NoGuard, MaxWait: 2 * time.Second,
			Tiers: []throttle.Tier{throttle.PerSecond(1), {Limit: 100, Window: time.Hour, Unit: "tokens", Estimated: true}},
			Observer: &throttle.Observer{
				Admitted: func(_ context.Context, i throttle.AdmittedInfo) { add(fmt.Sprint("admitted ", i.Cost["tokens"])) },
				Refused:  func(context.Context, throttle.RefusedInfo) { add("refused") },
				Answered: func(context.Context, throttle.AnsweredInfo) { add("answered") },
				Settled:  func(i throttle.SettledInfo) { add(fmt.Sprint("settled ", i.Estimated, " ", i.Actual)) },
			},
		}, nil)
		var permits []*throttle.Permit
		for range 4 { // at once, after 1 s, after 2 s, never
			cost := throttle.Cost{"tokens": 5}
			p, err := l.Acquire(t.Context(), cost)
			if err != nil {
				t.Fatal(err)
			}
			permits, cost["tokens"] = append(permits, p), 50 // which concerns no shadow that waits
		}
		time.Sleep(100 * ms)
		for i, p := range permits {
			if err := p.Settle(throttle.Cost{"words": 1}); err == nil {
				t.Errorf("request %d: no error for a unit that no tier counts", i)
			}
			if err := p.Settle(throttle.Cost{"tokens": 8}); err != nil {
				t.Error(err)
			}
			p.Release()
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		want := []string{
			"admitted 5 after 0s", "refused after 0s", "answered after 100ms", "settled 5 8 after 100ms",
			"admitted 5 after 1s", "answered after 1.1s", "settled 5 8 after 1.1s",
			"admitted 5 after 2s", "answered after 2.1s", "settled 5 8 after 2.1s",
		}
		if !slices.Equal(events, want) {
			t.Errorf("events %q, want %q", events, want)
		}
	})
}

// TestShadowContext checks which ends of a caller's context concern its shadow.
func TestShadowContext(t *testing.T) {
	for name, test := range map[string]struct {
		deadline, cancel, response time.Duration
		want                       string // the error of the shadow
		waited                     time.Duration
	}{
		"deadline": {deadline: 10 * time.Second, response: ms, want: throttle.ErrDeadline.Error()},
		"canceled before the response": {cancel: time.Second, response: 2 * time.Second,
			want: context.Canceled.Error(), waited: time.Second},
		"canceled after the response": {cancel: 2 * time.Second, response: time.Second, waited: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, ts := inShadow(t, exact(throttle.PerHour(1)))
				q := tracedRequest{held: true, deadline: test.deadline, cancel: test.cancel, outcome: 4}
				q.steps[0] = test.response
				for i := range 2 {
					if err := q.send(q.context(t, i), l); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(3 * time.Hour)
				synctest.Wait()
				if got := ts.of(1); got.waited != test.waited || !strings.HasPrefix(got.err, test.want) || test.want == "" && got.err != "" {
					t.Errorf("told %+v, want %q after %v", got, test.want, test.waited)
				}
			})
		})
	}
}

// TestShadowAlert checks that a shadow alerts nobody.
func TestShadowAlert(t *testing.T) {
	l := mustNew(t, throttle.Policy{
		Tiers: []throttle.Tier{throttle.Budget(2, "", throttle.Month)}, AlertAt: []int{50, 100}, Shadow: true,
		Alert: func(a throttle.Alert) { t.Errorf("alert %+v", a) },
	}, nil)
	for range 3 {
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShadowBound checks that at most 10,000 shadows wait.
func TestShadowBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, ts := inShadow(t, exact(throttle.PerHour(1)))
		for i := range 10_101 {
			if err := l.Wait(numbered(t.Context(), i)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		full := 0
		for _, told := range ts.all {
			if strings.HasPrefix(told.err, throttle.ErrQueueFull.Error()) {
				full++
			}
		}
		if n := status(t, l).Waiting; n != 10_000 || full != 100 {
			t.Errorf("%d wait and %d are refused, want 10,000 and 100", n, full)
		}
		l.Close()
	})
}

// TestShadowOfGroup checks that a Group keeps a key until the last report has reached its shadow, and
// that keys beyond MaxKeys are sent too.
func TestShadowOfGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := &tellings{shadow: true}
		g, err := throttle.NewGroup(throttle.Policy{
			Name: "api", Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}, Guard: throttle.NoGuard, Shadow: true, Observer: ts.observer(),
		}, nil, throttle.GroupOptions{MaxKeys: 1})

		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			q := tracedRequest{held: true, outcome: 4, steps: [3]time.Duration{time.Second, 0, time.Second}}
			if err := q.send(q.context(t, i), g.For("a")); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 60 { // the last shadow ends after 6 s
			time.Sleep(90 * ms)
			if err := release(g.For("b").Acquire(numbered(t.Context(), 10+i), nil)); err != nil {
				t.Fatal(err)
			}
			if got := ts.of(10 + i).err; !strings.HasPrefix(got, throttle.ErrTooManyKeys.Error()) {
				t.Fatalf("another key after %v: told %q, want ErrTooManyKeys", time.Duration(i)*90*ms, got)
			}
		}
		time.Sleep(time.Second)
		if err := release(g.For("b").Acquire(numbered(t.Context(), 3), nil)); err != nil {
			t.Fatal(err)
		}
		for i, want := range []time.Duration{0, 2 * time.Second, 4 * time.Second, 0} {
			if got := ts.of(i); got.waited != want || got.err != "" {
				t.Errorf("request %d: told %+v, want %v", i, got, want)
			}
		}
	})
}

// TestShadowUnderAnotherPolicy checks that shadows whose policy changes while they wait are settled and
// released, although their requests were sent under a policy without estimates and Concurrency.
func TestShadowUnderAnotherPolicy(t *testing.T) {
	policies := stormPolicies("api", ms)
	for from := range policies {
		for to := range policies {
			synctest.Test(t, func(t *testing.T) {
				p := policies[from]
				p.Shadow = true
				l := mustNew(t, p, nil)
				for i := range 200 {
					q := tracedRequest{held: true, cost: throttle.Cost{"requests": 1}, outcome: []int{0, 1, 4}[i%3], steps: [3]time.Duration{ms, 0, ms}}
					if err := q.send(t.Context(), l); err != nil {
						t.Fatal(err)
					}
				}
				p = policies[to]
				p.Shadow = true
				if err := l.SetPolicy(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				s := status(t, l)
				for _, tier := range s.Tiers {
					if tier.Used != 0 || s.Waiting != 0 {
						t.Errorf("from %v to %v: %+v at last, want nothing used", policies[from], p, s)
					}
				}
			})
		}
	}
}

// TestShadowStorm runs all calls concurrently in shadow mode, with a Close in the middle. Each request
// is told of once, and no goroutine is left.
func TestShadowStorm(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	for seed := range uint64(3) {
		var queued, ended, held, answered atomic.Int64
		p := throttle.Policy{
			Name: "api", Shadow: true, Guard: ms, MaxQueue: 1000,
			Tiers: []throttle.Tier{{Limit: 50, Window: 10 * ms}, {Limit: 20, Algorithm: throttle.Concurrency}, {Limit: 500, Window: 10 * ms, Unit: "tokens", Estimated: true}},
			Observer: &throttle.Observer{
				Queued: func(context.Context, throttle.QueuedInfo) { queued.Add(1) },
				Admitted: func(_ context.Context, i throttle.AdmittedInfo) {
					ended.Add(1)
					if i.Queued {
						queued.Add(-1)
					}
					if i.Held {
						held.Add(1)
					}
				},
				Refused: func(_ context.Context, i throttle.RefusedInfo) {
					ended.Add(1)
					if i.Queued {
						queued.Add(-1)
					}
				},
				Answered: func(context.Context, throttle.AnsweredInfo) { answered.Add(1) },
			},
		}
		l := mustNew(t, p, nil)
		base := roundTripper(func(*http.Request) (*http.Response, error) { return trAnswer(200), nil })
		const callers, calls = 2000, 5
		var made atomic.Int64
		var wg sync.WaitGroup
		for i := range uint64(callers) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, i))
				for range calls {
					if made.Add(1) == callers*calls/2 {
						l.Close()
					}
					stormCall(t, r, l, base)
				}
			})
		}
		wg.Wait()
		for end := time.Now().Add(time.Minute); (queued.Load() != 0 || held.Load() != answered.Load()) && time.Now().Before(end); {
			time.Sleep(ms)
		}
		if queued.Load() != 0 || held.Load() != answered.Load() || ended.Load() == 0 || status(t, l).Waiting != 0 {
			t.Errorf("%d are still queued, %d were admitted and %d answered, status %+v", queued.Load(), held.Load(), answered.Load(), status(t, l))
		}
	}
}

// TestShadowOfExitingObserver checks that runtime.Goexit of an Observer in the goroutine of a shadow
// leaves no place and no estimate behind: the reports that follow are passed on.
func TestShadowOfExitingObserver(t *testing.T) {
	for _, callback := range []string{"Queued", "Admitted", "Answered"} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int32
			var armed atomic.Bool
			exit := func(name string) {
				if armed.Load() && name == callback {
					calls.Add(1)
					runtime.Goexit()
				}
			}
			l := mustNew(t, throttle.Policy{
				Name: "api", Shadow: true, Tiers: []throttle.Tier{
					{Limit: 1, Algorithm: throttle.Concurrency},
					{Limit: 100, Window: time.Hour, Unit: "tokens", Estimated: true},
				},
				Observer: &throttle.Observer{
					Queued:   func(context.Context, throttle.QueuedInfo) { exit("Queued") },
					Admitted: func(context.Context, throttle.AdmittedInfo) { exit("Admitted") },
					Answered: func(context.Context, throttle.AnsweredInfo) { exit("Answered") },
				},
			}, nil)
			cost := throttle.Cost{"tokens": 5}
			first, err := l.Acquire(t.Context(), cost)
			if err != nil {
				t.Fatal(err)
			}
			armed.Store(true)
			second, err := l.Acquire(t.Context(), cost)
			if err != nil {
				t.Fatal(err)
			}
			second.Passed()
			second.Release()
			survive(first.Release)
			synctest.Wait()
			armed.Store(false)
			time.Sleep(time.Second)
			if s := status(t, l); calls.Load() == 0 || s.Waiting != 0 || s.Tiers[0].Used != 0 || s.Tiers[1].InFlight != 0 {
				t.Errorf("%s: %d calls, %v", callback, calls.Load(), s)
			}
		})
	}
}

// TestShadowOfPanickingObserver checks that a caller can recover a panic of its Observer, and that the
// shadow then receives the reports that follow.
func TestShadowOfPanickingObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, throttle.Policy{
			Name: "api", Shadow: true, Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}},
			Observer: &throttle.Observer{Answered: func(_ context.Context, i throttle.AnsweredInfo) {
				if !i.Lost {
					panic("answered")
				}
			}},
		}, nil)
		first, err := l.Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		second, err := l.Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		first.Release()
		synctest.Wait() // the second is admitted, and has waited for no time
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			second.Passed()
		}()
		second.Release()
		if used := status(t, l).Tiers[0].Used; used != 0 {
			t.Errorf("%d in use", used)
		}
	})
}

// TestShadowOfRefusalsUnderAutoGuard checks that a refusal of a request which no quota has charged is reported
// although there is no guard that was learned.
func TestShadowOfRefusalsUnderAutoGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}, Guard: throttle.AutoGuard, Shadow: true}, nil)
		tr := &throttle.Transport{Limiter: l, Base: trNewBase(func(int, *http.Request) (*http.Response, error) {
			return trAnswer(http.StatusTooManyRequests, "Retry-After", "1"), nil
		})}
		for range 3 {
			trExpect(t, tr, http.StatusTooManyRequests)
			permit := acquire(t, l, nil)
			if err := permit.Refused(t.Context(), time.Second); err != nil {
				t.Error(err)
			}
			permit.Release()
		}
		time.Sleep(time.Minute)
	})
}
