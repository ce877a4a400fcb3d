package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/leaktest"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func limiter(t testing.TB, p throttle.Policy) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ownCounts are what the callers themselves count.
type ownCounts struct {
	mu        sync.Mutex     // guards all below
	requests  map[string]int // by class and result
	responses map[string]int // by kind
}

// called counts the result of a call.
func (c *ownCounts) called(class throttle.Class, err error) {
	name := "error"
	for _, r := range []struct {
		name string
		err  error
	}{
		{"canceled", context.Canceled}, {"deadline", context.DeadlineExceeded}, {"deadline", throttle.ErrDeadline},
		{"exceeds_capacity", throttle.ErrExceedsCapacity}, {"exhausted", throttle.ErrExhausted}, {"queue_full", throttle.ErrQueueFull},
		{"banned", throttle.ErrBanned}, {"needs_permit", throttle.ErrNeedsPermit}, {"closed", throttle.ErrClosed},
	} {
		if errors.Is(err, r.err) {
			name = r.name
		}
	}
	if err == nil {
		name = "admitted"
	}
	c.add(c.requests, class.String()+" "+name)
}

func (c *ownCounts) add(m map[string]int, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m[name]++
}

// nonzero returns the counts of a snapshot as ownCounts has them.
func nonzero(p PolicySnapshot) (requests, responses map[string]int) {
	requests, responses = make(map[string]int), make(map[string]int)
	for _, r := range p.Requests {
		if r.Count > 0 {
			requests[r.Class+" "+r.Result] = int(r.Count)
		}
	}
	for kind, n := range p.Responses {
		if n > 0 {
			responses[kind] = int(n)
		}
	}
	return requests, responses
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestConservation compares the counts with those of 10,000 random callers, and the number of queued
// requests with the limiter's.
func TestConservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(7, 16))
		stats := NewStats()
		l := limiter(t, throttle.Policy{
			Name: "api", MaxQueue: 15, MaxWait: 6 * time.Second, MaxPause: time.Second, Observer: stats.Observer(),
			Tiers: []throttle.Tier{
				throttle.PerSecond(60), {Limit: 50, Algorithm: throttle.Concurrency, Unit: "open"},
				{Limit: 300, Algorithm: throttle.Calendar, Period: algorithms.Day, Unit: "points", Budget: true, Estimated: true},
			},
		})
		// Its callers need no permits, and count under the same name.
		plain := limiter(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(9)}, Observer: stats.Observer()})
		own := ownCounts{requests: make(map[string]int), responses: make(map[string]int)}
		errLost := errors.New("reset")
		var wg sync.WaitGroup
		for i := range 10_000 {
			at, kind, end := time.Duration(random.Int64N(int64(200*time.Second))), random.IntN(8), random.IntN(6)
			within, work := time.Duration(random.Int64N(int64(8*time.Second))), time.Duration(random.Int64N(int64(time.Second)))
			class := throttle.Class(random.IntN(3))
			wg.Go(func() {
				time.Sleep(at)
				ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), class))
				defer cancel()
				if i%3 == 0 {
					ctx, cancel = context.WithTimeout(ctx, within)
					defer cancel()
				} else if i%5 == 0 {
					defer time.AfterFunc(within, cancel).Stop()
				}
				cost := throttle.Cost{"open": 1}
				if i%4 == 0 {
					cost["points"] = int64(i % 3)
				}
				switch kind {
				case 0: // the class of calls without a context is Normal
					if plain.Allow() {
						own.called(throttle.Normal, nil)
					} else {
						own.add(own.requests, "normal not_now")
					}
					return
				case 1:
					if i%2 == 0 {
						own.called(class, l.Wait(ctx)) // needs a permit
						return
					}
					own.called(class, plain.Wait(ctx))
					return
				case 2:
					own.called(class, l.WaitN(ctx, -1))
					return
				case 3: // a Transport
					transport := &throttle.Transport{Limiter: l, Cost: func(*http.Request) throttle.Cost { return cost }, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
						own.called(class, nil)
						time.Sleep(work)
						header := make(http.Header)
						status := http.StatusOK
						switch {
						case end == 0 && i%20 == 3:
							status = http.StatusTooManyRequests
							header.Set("Retry-After", fmt.Sprint(i%3)) // 2 is longer than MaxPause
							own.add(own.responses, "limited")
						case end == 1:
							own.add(own.responses, "lost")
							return nil, errLost
						default:
							own.add(own.responses, "passed")
						}
						return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader("ok")), Request: r}, nil
					})}
					resp, err := transport.RoundTrip(httptest.NewRequestWithContext(context.WithoutCancel(ctx), "GET", "https://api.example/", nil))
					if err == nil {
						_ = resp.Body.Close()
					} else if err != errLost {
						own.called(class, err)
					}
					return
				case 4:
					cost["open"] = 51 // never
				case 5:
					if i%50 == 0 {
						_ = l.Pause(ctx, 500*time.Millisecond)
					}
				}
				var p *throttle.Permit
				var err error
				if kind == 6 {
					p, err = l.TryAcquire(ctx, cost)
				} else {
					p, err = l.Acquire(ctx, cost)
				}
				own.called(class, err)
				if err != nil {
					return
				}
				time.Sleep(work)
				switch end {
				case 0:
					own.add(own.responses, "unsent")
					_ = p.Cancel(ctx)
				case 1:
					own.add(own.responses, "limited")
					_ = p.Refused(ctx, time.Millisecond)
				case 2:
					own.add(own.responses, "passed")
					_ = p.Settle(throttle.Cost{"points": 1})
				case 3:
					own.add(own.responses, "passed")
					p.Passed()
				default:
					own.add(own.responses, "lost")
				}
				p.Release()
			})
		}
		for range 200 {
			time.Sleep(time.Second + 7*time.Millisecond)
			synctest.Wait()
			waiting := 0
			for _, l := range []*throttle.Limiter{l, plain} {
				status, err := l.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				waiting += status.Waiting
			}
			var queued int64
			for _, n := range stats.Snapshot(t.Context()).Policies[0].Queued {
				queued += n
			}
			if queued != int64(waiting) {
				t.Errorf("%d queued, %d wait", queued, waiting)
			}
		}
		wg.Wait()
		l.Close()
		own.called(throttle.Normal, l.Wait(t.Context()))

		p := stats.Snapshot(t.Context()).Policies[0]
		requests, responses := nonzero(p)
		if !reflect.DeepEqual(requests, own.requests) {
			t.Errorf("requests are\n%v, want\n%v", requests, own.requests)
		}
		if !reflect.DeepEqual(responses, own.responses) {
			t.Errorf("responses are %v, want %v", responses, own.responses)
		}
		for _, name := range []string{"admitted", "canceled", "deadline", "exceeds_capacity", "exhausted", "queue_full", "banned", "needs_permit", "closed", "not_now", "error"} {
			if requests["normal "+name] == 0 {
				t.Errorf("no request of class normal was %s", name)
			}
		}
		if p.Active != 0 || !reflect.DeepEqual(p.Queued, map[string]int64{"normal": 0, "interactive": 0, "batch": 0}) {
			t.Errorf("%d active, queued %v at the end", p.Active, p.Queued)
		}
		checkRing(t, p)
	})
}

// checkRing checks that the seconds of a run shorter than the ring add up to the totals.
func checkRing(t *testing.T, p PolicySnapshot) {
	t.Helper()
	requests, responses := make(map[string]uint64), make(map[string]uint64)
	wantRequests, wantResponses := make(map[string]uint64), make(map[string]uint64)
	var waits, wantWaits uint64
	for _, s := range p.Seconds {
		for name, n := range s.Requests {
			requests[name] += n
		}
		for name, n := range s.Responses {
			responses[name] += n
		}
		waits += s.Waits.Count
	}
	for _, r := range p.Requests {
		if r.Count > 0 {
			wantRequests[r.Result] += r.Count
		}
	}
	for kind, n := range p.Responses {
		if n > 0 {
			wantResponses[kind] = n
		}
	}
	for _, w := range p.Waits {
		wantWaits += w.Count
	}
	if !reflect.DeepEqual(requests, wantRequests) || !reflect.DeepEqual(responses, wantResponses) || waits != wantWaits {
		t.Errorf("the seconds have %v, %v and %d waits, want %v, %v and %d", requests, responses, waits, wantRequests, wantResponses, wantWaits)
	}
}

// TestWaits checks that waits are counted by what decided them, exactly.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := NewStats()
		account := limiter(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerMinute(2)}, Guard: throttle.NoGuard})
		l := limiter(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(1)}, Guard: throttle.NoGuard, Observer: stats.Observer()}).Within(account)
		for range 3 { // at 0 s, 1 s and 60 s
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), throttle.Batch))
		time.AfterFunc(250*time.Millisecond, cancel)
		if err := l.Wait(ctx); err != context.Canceled {
			t.Fatal(err)
		}
		type wait struct {
			class, result, by, tier string
			count                   uint64
			sum, max                float64
			bucket                  int
		}
		want := []wait{
			{"normal", "admitted", "api", "1/s", 1, 1, 1, 7},
			{"normal", "admitted", "account", "2/m", 1, 59, 59, 12},
			{"batch", "canceled", "", "", 1, 0.25, 0.25, 5},
		}
		var got []wait
		for _, w := range stats.Snapshot(t.Context()).Policies[0].Waits {
			for i, n := range w.Buckets {
				if n > 0 {
					got = append(got, wait{w.Class, w.Result, w.By, w.Tier, w.Count, w.Sum, w.Max, i})
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

func TestResultOf(t *testing.T) {
	refusal := func(err error) error { return &throttle.WaitError{Policy: "api", Err: err} }
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, "not_now"},
		{context.Canceled, "canceled"},
		{context.DeadlineExceeded, "deadline"},
		{fmt.Errorf("wrapped: %w", context.Canceled), "canceled"},
		{refusal(throttle.ErrDeadline), "deadline"},
		{refusal(throttle.ErrExceedsCapacity), "exceeds_capacity"},
		{refusal(throttle.ErrExhausted), "exhausted"},
		{refusal(throttle.ErrQueueFull), "queue_full"},
		{refusal(throttle.ErrBanned), "banned"},
		{&throttle.WaitError{Err: throttle.ErrUnavailable, Cause: context.Canceled}, "unavailable"},
		{fmt.Errorf("wrapped: %w", refusal(throttle.ErrUnavailable)), "unavailable"},
		{refusal(throttle.ErrNeedsPermit), "needs_permit"},
		{refusal(throttle.ErrClosed), "closed"},
		{refusal(throttle.ErrTooManyKeys), "too_many_keys"},
		{refusal(nil), "error"},
		{errors.New("n is -1"), "error"},
	} {
		if got := resultNames[resultOf(throttle.RefusedInfo{Err: tt.err})]; got != tt.want {
			t.Errorf("%v: %s, want %s", tt.err, got, tt.want)
		}
	}
}

// TestCalled checks the counts of calls of the store, by outcome.
func TestCalled(t *testing.T) {
	stats := NewStats()
	o := stats.Observer()
	away := fmt.Errorf("%w: refused", throttle.ErrUnavailable)
	for _, c := range []throttle.CalledInfo{
		{Duration: time.Millisecond, Requests: 3},
		{Duration: 2 * time.Millisecond},
		{Duration: time.Second, Err: fmt.Errorf("%w: %w", throttle.ErrUnavailable, context.DeadlineExceeded)},
		{Duration: 4 * time.Millisecond, Err: away},
		{Unsent: true, Err: away},
		{Unsent: true, Err: away},
		{Duration: -time.Second, Requests: -1, Err: errors.New("NOPERM")},
	} {
		c.Policy = "api"
		o.Called(c)
	}
	p := stats.Snapshot(t.Context()).Policies[0]
	got := fmt.Sprint(p.Decided)
	for _, c := range p.Calls {
		got += fmt.Sprintf(", %s %d of %d, %.3f s", c.Outcome, c.Time.Count, c.Count, c.Time.Sum)
	}
	if want := "3, ok 2 of 2, 0.003 s, timeout 1 of 1, 1.000 s, unavailable 1 of 1, 0.004 s, error 1 of 1, 0.000 s, unsent 0 of 2, 0.000 s"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var calls, longest = make(map[string]uint64), 0.0
	var took time.Duration
	for _, s := range p.Seconds {
		for outcome, n := range s.Calls {
			calls[outcome] += n
		}
		took += time.Duration(s.CallTime * float64(time.Second)).Round(time.Microsecond)
		longest = max(longest, s.CallMax)
	}
	if want := (map[string]uint64{"ok": 2, "timeout": 1, "unavailable": 1, "error": 1, "unsent": 2}); !reflect.DeepEqual(calls, want) || took != 1007*time.Millisecond || longest != 1 {
		t.Errorf("the seconds have %v in %v, the longest %v, want %v", calls, took, longest, want)
	}
}

// TestBounds checks that a great number of policies, tiers and units, and values that do not exist,
// take bounded memory.
func TestBounds(t *testing.T) {
	stats := NewStats()
	o := stats.Observer()
	o.Settled(throttle.SettledInfo{Policy: "api", Unit: "_OTHER"}) // counts with the others
	o.Admitted(t.Context(), throttle.AdmittedInfo{Policy: "api", Queued: true, By: "api", Tier: "_OTHER"})
	for i := range 1000 {
		name := fmt.Sprintf("policy %d", i)
		o.Queued(t.Context(), throttle.QueuedInfo{Policy: name, Class: 9})
		o.Admitted(t.Context(), throttle.AdmittedInfo{Policy: name, Class: 9, Queued: true, Waited: -time.Second, Held: true, By: name, Tier: "\xff"})
		o.Answered(t.Context(), throttle.AnsweredInfo{Policy: name, Kind: answers.Kind(77)})
		o.Admitted(t.Context(), throttle.AdmittedInfo{Policy: "api", Queued: true, By: "api", Tier: fmt.Sprintf("%d/s", i)})
		o.Settled(throttle.SettledInfo{Policy: "api", Unit: fmt.Sprintf("unit %d", i), Actual: 3})
		o.Paused(throttle.PausedInfo{Policy: "api", For: store.Forever, Closed: true, Cause: throttle.PauseCause(name)})
	}
	snap := stats.Snapshot(t.Context())
	if len(snap.Policies) != maxPolicies+1 {
		t.Errorf("%d policies", len(snap.Policies))
	}
	for _, p := range snap.Policies {
		switch p.Policy {
		case "_OTHER":
			if n := p.Requests[0].Count; n != 1000-maxPolicies+1 || p.Responses["other"] != n {
				t.Errorf("%d requests and %v of other policies", n, p.Responses)
			}
		case "api":
			if p.Waits[0].Tier == "_OTHER" || p.Estimates[0].Unit == "_OTHER" {
				t.Error("_OTHER comes twice")
			}
			if len(p.Waits) != maxTiers+1 || p.Waits[maxTiers].Tier != "_OTHER" || p.Waits[maxTiers].Count != 1001-maxTiers {
				t.Errorf("%d waits, the last of %+v", len(p.Waits), p.Waits[len(p.Waits)-1])
			}
			if len(p.Estimates) != maxTiers+1 || p.Estimates[maxTiers].Unit != "_OTHER" || p.Estimates[maxTiers].Count != 1001-maxTiers {
				t.Errorf("%d estimates, the last of %+v", len(p.Estimates), p.Estimates[len(p.Estimates)-1])
			}
			if c := p.Pauses[2]; c.Cause != "other" || c.Count != 1000 || c.Closed != 1000 {
				t.Errorf("%+v", c)
			}
		default:
			if p.Active != 0 || p.Queued["normal"] != 0 || p.Requests[0].Count != 1 {
				t.Errorf("%+v", p)
			}
		}
	}
	if _, err := json.Marshal(snap); err != nil {
		t.Error(err)
	}
}

// TestNoAllocations checks that an event allocates nothing, except the first of its kind.
func TestNoAllocations(t *testing.T) {
	stats := NewStats()
	o := stats.Observer()
	refusal := &throttle.WaitError{Policy: "api", Err: throttle.ErrDeadline}
	for name, event := range map[string]func(){
		"admitted at once": func() { o.Admitted(t.Context(), throttle.AdmittedInfo{Policy: "api", N: 1}) },
		"admitted": func() {
			o.Queued(t.Context(), throttle.QueuedInfo{Policy: "api"})
			o.Admitted(t.Context(), throttle.AdmittedInfo{Policy: "api", Queued: true, Waited: time.Second, By: "api", Tier: "5/s", Held: true})
		},
		"admitted by a member": func() {
			o.Admitted(t.Context(), throttle.AdmittedInfo{Policy: "models", Member: "east", Queued: true, Waited: time.Second, By: "gpt", Tier: "5/s", Held: true})
			o.Answered(t.Context(), throttle.AnsweredInfo{Policy: "models", Member: "east"})
		},
		"refused":  func() { o.Refused(t.Context(), throttle.RefusedInfo{Policy: "api", Err: refusal, Queued: true}) },
		"answered": func() { o.Answered(t.Context(), throttle.AnsweredInfo{Policy: "api"}) },
		"settled":  func() { o.Settled(throttle.SettledInfo{Policy: "api", Unit: "tokens", Estimated: 2, Actual: 3}) },
		"paused":   func() { o.Paused(throttle.PausedInfo{Policy: "api", Cause: "call"}) },
		"called":   func() { o.Called(throttle.CalledInfo{Policy: "api", Duration: time.Millisecond, Requests: 2}) },
	} {
		event()
		if n := testing.AllocsPerRun(1000, event); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestRace counts in eight goroutines, and reads beside them.
func TestRace(t *testing.T) {
	stats := NewStats()
	var wg sync.WaitGroup
	const events = 2000
	for g := range 8 {
		o := stats.Observer()
		wg.Go(func() {
			for i := range events {
				name := fmt.Sprintf("policy %d", i%3)
				o.Queued(t.Context(), throttle.QueuedInfo{Policy: name})
				member := []string{"", "east", "west"}[i%3]
				o.Admitted(t.Context(), throttle.AdmittedInfo{Policy: name, Member: member, Queued: true, By: name, Tier: fmt.Sprint(i % 40), Held: true})
				o.Answered(t.Context(), throttle.AnsweredInfo{Policy: name, Member: member})
				o.Settled(throttle.SettledInfo{Policy: name, Unit: fmt.Sprint(i % 40)})
				o.Called(throttle.CalledInfo{Policy: name, Duration: time.Millisecond})
				if i%500 == g {
					stats.Snapshot(t.Context())
				}
			}
		})
	}
	wg.Wait()
	var admitted, answered uint64
	for _, p := range stats.Snapshot(t.Context()).Policies {
		admitted, answered = admitted+p.Requests[0].Count, answered+p.Responses["passed"]
		if p.Active != 0 || p.Queued["normal"] != 0 {
			t.Errorf("%s: %d active, %v queued", p.Policy, p.Active, p.Queued)
		}
	}
	if admitted != 8*events || answered != 8*events {
		t.Errorf("%d admitted and %d answered, want %d", admitted, answered, 8*events)
	}
}

// TestWatch checks the state of watched limiters, and that a store that does not answer delays a
// snapshot by no more than Timeout.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := NewStats()
		account := limiter(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerSecond(5), {Limit: 9, Algorithm: throttle.Concurrency, Unit: "open"}}, Guard: time.Second})
		l := limiter(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}}).Within(account)
		if _, err := l.Acquire(t.Context(), throttle.Cost{"open": 9}); err != nil {
			t.Fatal(err)
		}
		stuck, err := throttle.New(throttle.Policy{Name: "stuck", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, stuckStore{})
		if err != nil {
			t.Fatal(err)
		}
		for name, l := range map[string]*throttle.Limiter{"api": l, "stuck": stuck, "gone": stuck} {
			if err := stats.Watch(name, l); err != nil {
				t.Fatal(err)
			}
		}
		if err := stats.Watch("gone", nil); err != nil {
			t.Fatal(err)
		}
		if err := l.Pause(t.Context(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		got := stats.Snapshot(t.Context()).Limiters
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v, want the Timeout", took)
		}
		want := []LimiterSnapshot{
			{Name: "api", Policy: "api", Paused: 10, Guard: 0.05, Tiers: []TierSnapshot{
				{Policy: "api", Tier: "5/s", Unit: "requests", Limit: 5, Used: 1, Remaining: 4},
				{Policy: "account", Tier: "5/s", Unit: "requests", Limit: 5, Used: 1, Remaining: 4},
				{Policy: "account", Tier: "5/s (2)", Unit: "requests", Limit: 5, Used: 1, Remaining: 4},
				{Policy: "account", Tier: "9;unit=open;algo=concurrency", Unit: "open", Limit: 9, Used: 9, Remaining: 0, RetryAfter: -1},
			}},
			{Name: "stuck", Failed: true, Failure: "unavailable", Tiers: []TierSnapshot{}},
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%+v\nwant %+v", got, want)
		}
		for i := range 2 * maxPolicies {
			if err := stats.Watch(fmt.Sprint(i), l); (err == nil) != (i < maxPolicies-2) {
				t.Fatalf("limiter %d: %v", i, err)
			}
		}
	})
}

// TestWatchBudget checks the period of a budget, and why the state of a limiter is not known.
func TestWatchBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // at midnight UTC of 1 January 2000, which is 31 December in New York
		stats := NewStats()
		l := limiter(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{
			throttle.PerSecond(5), {Limit: 100, Algorithm: throttle.Calendar, Period: throttle.Month, Zone: "America/New_York", Budget: true},
		}})
		if err := stats.Watch("api", l); err != nil {
			t.Fatal(err)
		}
		time.Sleep(90 * time.Second)
		snap := stats.Snapshot(t.Context())
		if snap.Second != snap.Time.Unix() {
			t.Errorf("second %d at %v", snap.Second, snap.Time)
		}
		for i, want := range []string{"false <nil> <nil>", "true 1999-12-01 05:00:00 +0000 UTC 2000-01-01 05:00:00 +0000 UTC"} {
			tier := snap.Limiters[0].Tiers[i]
			if got := fmt.Sprint(tier.Budget, tier.PeriodStart, tier.PeriodEnd); got != want {
				t.Errorf("%s: %s, want %s", tier.Tier, got, want)
			}
		}
		g, err := throttle.NewGroup(throttle.Policy{Name: "keys", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil, throttle.GroupOptions{MaxKeys: 1})
		if err != nil {
			t.Fatal(err)
		}
		g.For("held").Allow()
		if err := stats.Watch("api", g.For("refused")); err != nil {
			t.Fatal(err)
		}
		if got := stats.Snapshot(t.Context()).Limiters[0]; !got.Failed || got.Failure != "too_many_keys" {
			t.Errorf("refused key: %+v", got)
		}
	})
}

// A stuckStore has quotas whose Status does not return before its context ends.
type stuckStore struct{}

type stuckQuota struct{ store.Quota }

func (stuckStore) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := new(local.Store).Open(key, plan, nil)
	return stuckQuota{q}, err
}

func (stuckQuota) Status(ctx context.Context) (store.Status, error) {
	<-ctx.Done()
	return store.Status{}, ctx.Err()
}

// BenchmarkStats measures what an event costs.
func BenchmarkStats(b *testing.B) {
	ctx := context.Background()
	for _, bm := range []struct {
		name  string
		event func(o *throttle.Observer)
	}{
		{"admitted at once", func(o *throttle.Observer) { o.Admitted(ctx, throttle.AdmittedInfo{Policy: "bench", N: 1}) }},
		{"admitted", func(o *throttle.Observer) {
			o.Admitted(ctx, throttle.AdmittedInfo{Policy: "bench", N: 1, Queued: true, Waited: time.Second, By: "bench", Tier: "5/s"})
		}},
		{"answered", func(o *throttle.Observer) { o.Answered(ctx, throttle.AnsweredInfo{Policy: "bench"}) }},
	} {
		b.Run(bm.name, func(b *testing.B) {
			o := NewStats().Observer()
			b.ReportAllocs()
			for b.Loop() {
				bm.event(o)
			}
		})
	}
}

// TestShadowMode checks that the requests of a policy in shadow mode are counted apart, and that all of
// them end.
func TestShadowMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		stats := NewStats()
		p := throttle.Policy{
			Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(1)}, Guard: throttle.NoGuard, MaxWait: 2 * time.Second,
			Observer: throttle.JoinObservers(stats.Observer(), Log(newLogger(&text, slog.LevelInfo), LogOptions{})),
		}
		limiter(t, p)
		p.Shadow = true
		l := limiter(t, p)
		for range 4 {
			permit, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			permit.Passed()
			permit.Release()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		const policy = "api (shadow)"
		s := *stats.policy(policy)
		if len(*stats.policies.Load()) != 1 || len(s.members) != 1 || s.members[0].active != 0 || s.counts.queued[0] != 0 || s.requests[0][admitted] != 3 || s.requests[0][deadline] != 1 || s.members[0].responses[0] != 3 {
			t.Errorf("%+v, want 3 admitted, 1 late, 3 responses and nothing else", s.counts)
		}
		for _, want := range []string{
			`level=WARN msg="throttle: request refused" policy="api (shadow)" class=normal reason=deadline waited=0s tier=1/s wait=3s ahead=2`,
			`level=INFO msg="throttle: request waited" policy="api (shadow)" class=normal result=admitted waited=1s tier=1/s`,
		} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("the log lacks %q:\n%s", want, &text)
			}
		}
	})
}
