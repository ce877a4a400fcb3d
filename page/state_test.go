package page_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
	"github.com/apithrottle/throttle/store"
)

// A countingStore counts the calls of Status. While away, its quotas do not answer.
type countingStore struct {
	local.Store
	status atomic.Int64
	away   atomic.Bool
}

type countingQuota struct {
	store.Quota
	store *countingStore
}

func (s *countingStore) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return countingQuota{q, s}, err
}

func (q countingQuota) Status(ctx context.Context) (store.Status, error) {
	q.store.status.Add(1)
	if q.store.away.Load() {
		<-ctx.Done()
		return store.Status{}, ctx.Err()
	}
	return q.Quota.Status(ctx)
}

// stateOf returns the body of state.json.
func stateOf(t *testing.T, h http.Handler) page.State {
	t.Helper()
	return decode[page.State](t, get(h, "GET", "/state.json").Body.String())
}

// TestHealth checks what health reports, and that probes don't reach the store more than once in five
// seconds.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats, s := observe.NewStats(), new(countingStore)
		l := watched(t, stats, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, s)
		h := page.New(page.Options{Stats: stats})
		expect := func(when string, status int, body string) {
			t.Helper()
			time.Sleep(5 * time.Second)
			if w := get(h, "GET", "/health"); w.Code != status || strings.TrimSpace(w.Body.String()) != body {
				t.Errorf("%s: %d %s, want %d %s", when, w.Code, w.Body, status, body)
			}
		}
		const open = `{"ok":true,"watched":1,"problems":[]}`
		expect("open", 200, open)
		if err := l.Pause(t.Context(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		expect("paused", 200, open)
		time.Sleep(10 * time.Second)
		p, err := l.Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Refused(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		p.Release()
		expect("banned", 503, `{"ok":false,"watched":1,"problems":[{"policy":"api","problem":"banned","seconds":3595}]}`)
		time.Sleep(time.Hour)
		expect("open again", 200, open)
		s.away.Store(true)
		expect("away", 503, `{"ok":false,"watched":1,"problems":[{"policy":"api","problem":"unavailable"}]}`)
		s.away.Store(false)
		expect("back", 200, open)

		time.Sleep(5 * time.Second)
		before := s.status.Load()
		s.away.Store(true) // the slowest case
		var probes sync.WaitGroup
		for range 1000 {
			probes.Go(func() {
				if w := get(h, "GET", "/health"); w.Code != 503 {
					t.Errorf("while away: %d", w.Code)
				}
			})
		}
		probes.Wait()
		if n := s.status.Load() - before; n != 1 {
			t.Errorf("1000 probes made %d calls", n)
		}
	})
}

// TestHealthChecksStore checks that health asks the store itself while no limiter is watched.
func TestHealthChecksStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats, asked, away := observe.NewStats(), 0, true
		h := page.New(page.Options{Stats: stats, Store: "Redis at 10.0.0.5:6379", Check: func(ctx context.Context) error {
			if asked++; away {
				<-ctx.Done()
			}
			return ctx.Err()
		}})
		expect := func(when string, calls, status int, body string) {
			t.Helper()
			for range 10 {
				if w := get(h, "GET", "/health"); w.Code != status || strings.TrimSpace(w.Body.String()) != body {
					t.Errorf("%s: %d %s, want %d %s", when, w.Code, w.Body, status, body)
				}
			}
			if asked != calls {
				t.Errorf("%s: the store was asked %d times, want %d", when, asked, calls)
			}
			time.Sleep(5 * time.Second)
		}
		expect("away", 1, 503, `{"ok":false,"watched":0,"store":"Redis at 10.0.0.5:6379","problems":[{"policy":"","problem":"unavailable"}]}`)
		away = false
		expect("back", 2, 200, `{"ok":true,"watched":0,"store":"Redis at 10.0.0.5:6379","problems":[]}`)
		watched(t, stats, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
		expect("watched", 2, 200, `{"ok":true,"watched":1,"store":"Redis at 10.0.0.5:6379","problems":[]}`)
	})
}

// TestCondition checks that a policy's condition is the worst of what callers meet.
func TestCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats, s := observe.NewStats(), new(countingStore)
		notes := map[string]string{"": "about all", "quiet": "about one"}
		h := page.New(page.Options{Stats: stats, Subtitle: "version 1", Notes: func([]page.Policy) map[string]string { return notes }})
		l := watched(t, stats, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(10), throttle.Budget(20, "", throttle.Day)}}, s)
		expect := func(want page.Condition) {
			t.Helper()
			time.Sleep(time.Second)
			state := stateOf(t, h)
			if p := state.Policies[0]; p.Name != "api" || p.Condition != want {
				t.Errorf("%s is %s, want %s", p.Name, p.Condition, want)
			}
			if p := state.Policies[1]; p.Name != "quiet" || p.Condition != page.Unwatched || p.Note != "about one" || state.Note != "about all" || state.Subtitle != "version 1" {
				t.Errorf("%+v", state)
			}
		}
		send := func(n int) {
			for range n {
				l.Allow()
			}
		}
		expect(page.Open)
		send(10)
		expect(page.Full)
		stats.Observer().Answered(t.Context(), throttle.AnsweredInfo{Policy: "api", Kind: answers.Limited, Status: 429})
		expect(page.Limited)
		send(1)
		expect(page.Refusing)
		if err := l.Pause(t.Context(), 2*time.Second); err != nil {
			t.Fatal(err)
		}
		expect(page.Paused)
		time.Sleep(2 * time.Hour)
		expect(page.Open)
		send(10)
		expect(page.Spent)
		if err := l.Pause(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		expect(page.Spent)
		s.away.Store(true)
		expect(page.Unknown)
	})
}

// TestProbeGoesAway checks that a client that leaves while a state is made neither waits nor spoils it
// for others.
func TestProbeGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats, s := observe.NewStats(), new(countingStore)
		watched(t, stats, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, s)
		s.away.Store(true)
		h := page.New(page.Options{Stats: stats})
		var wg sync.WaitGroup
		for i := range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			wg.Go(func() {
				began := time.Now()
				w := newRecorder()
				h.ServeHTTP(w, request(ctx, "/health"))
				if took := time.Since(began); i == 1 && (took != time.Millisecond || w.body() != "") {
					t.Errorf("the client that left had %q after %v", w.body(), took)
				}
			})
			synctest.Wait()
			if i == 1 {
				time.AfterFunc(time.Millisecond, cancel)
			}
			defer cancel()
		}
		wg.Wait()
		if got := stateOf(t, h); !slices.Equal(got.Health.Problems, []page.Problem{{Policy: "api", Problem: "unavailable"}}) {
			t.Errorf("%+v", got.Health)
		}
	})
}

// TestState checks what state.json contains after some traffic.
func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := observe.NewStats()
		l := watched(t, stats, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(2), throttle.PerHour(100)}, MaxQueue: 3}, nil)
		h := page.New(page.Options{Stats: stats, Title: "My limits"})
		time.Sleep(time.Minute)
		var callers sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 6 { // two go, three wait, one is refused
			callers.Go(func() {
				class := []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}[i%3]
				if p, err := l.Acquire(throttle.WithClass(ctx, class), nil); err == nil {
					defer p.Release()
					<-ctx.Done()
				}
			})
			synctest.Wait()
		}
		state := stateOf(t, h)
		if state.Title != "My limits" || !state.Time.Equal(time.Now()) || state.Second != time.Now().Unix() || len(state.Policies) != 1 {
			t.Fatalf("%+v", state)
		}
		p := state.Policies[0]
		if !p.Watched || !p.Counted || p.Active != 2 || p.Waiting != 3 || fmt.Sprint(p.Queued) != "map[batch:1 interactive:1 normal:1]" || p.Guard != .05 {
			t.Errorf("%+v", p)
		}
		if len(p.Tiers) != 2 || p.Tiers[0].Used != 2 || p.Tiers[0].Remaining != 0 || p.Tiers[0].RetryAfter <= 0 || p.Tiers[1].Remaining != 98 {
			t.Errorf("%+v", p.Tiers)
		}
		time.Sleep(2500 * time.Millisecond) // all have gone
		cancel()
		callers.Wait()
		stats.Observer().Answered(t.Context(), throttle.AnsweredInfo{Policy: "api", Kind: answers.Limited, Status: 429})
		stats.Observer().Refused(t.Context(), throttle.RefusedInfo{Policy: "api", Err: context.Canceled})
		stats.Observer().Admitted(t.Context(), throttle.AdmittedInfo{Policy: "other", Queued: true, Waited: time.Second}) // after a pause
		time.Sleep(time.Second)
		state = stateOf(t, h)
		p = state.Policies[0]
		n := len(p.History.Admitted)
		if n != 300 || p.History.Start+int64(n)-1 != state.Second {
			t.Errorf("%d seconds from %d at %d", n, p.History.Start, state.Second)
		}
		if got := fmt.Sprint(p.History.Admitted[n-4:], p.History.Refused[n-4:], p.History.Limited[n-4:]); got != "[2 2 1 0] [1 0 0 0] [0 0 1 0]" &&
			got != "[0 2 2 1] [0 1 0 0] [0 0 0 1]" {
			t.Errorf("history %s", got)
		}
		if len(p.Decided) != 1 || p.Decided[0].Tier != "2/s" || p.Decided[0].Waits != 3 || p.Decided[0].Share != 1 || p.LongestWait < 2 {
			t.Errorf("%+v, longest %v", p.Decided, p.LongestWait)
		}
		if other := state.Policies[1]; other.Name != "other" || other.Watched || other.Decided[0].Tier != "" || fmt.Sprint(other.Decided[0].Causes) != "[callers]" || len(state.Health.Problems) != 0 {
			t.Errorf("%+v", other)
		}
	})
}

// TestOrigins checks what is shown of a rate that is learned, and that an idle policy then stays the same.
func TestOrigins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := observe.NewStats()
		tier := throttle.Tier{Limit: 5, Window: time.Second, Algorithm: throttle.GCRA, Learn: throttle.Learn{Most: 1000}}
		l := watched(t, stats, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(1000), tier}, Guard: throttle.NoGuard}, nil)
		h := page.New(page.Options{Stats: stats})
		tiers := stateOf(t, h).Policies[0].Tiers
		if tiers[0].Origin != "" || tiers[0].Learned != nil {
			t.Errorf("a tier that does not learn: %+v", tiers[0])
		}
		if want := "5/s is the start: nothing is learned yet, tries up to "; !strings.HasPrefix(tiers[1].Origin, want) {
			t.Errorf("at the start: %q", tiers[1].Origin)
		}
		p, err := l.Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Refused(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		at := time.Now().UTC()
		time.Sleep(30 * time.Minute)
		learned := stateOf(t, h).Policies[0].Tiers[1].Learned
		if learned == nil || learned.Refused != 4.8 || learned.Rate != 3.84 || learned.PerSecond != 3.84 || learned.RefusedAt == nil || !learned.RefusedAt.Equal(at.Truncate(time.Second)) {
			t.Errorf("learned %+v", learned)
		}
		const origin = "3.84/s is learned: refused at 4.8/s 30m ago, tries up to "
		if body := get(h, "GET", "/").Body.String(); !strings.Contains(body, "<bdi>5/s;algo=gcra;learn=1000</bdi>: 0 of 5 used. "+origin) {
			t.Errorf("without JavaScript the page has\n%s", body)
		}
		state := get(h, "GET", "/state.json").Body.String()
		time.Sleep(20 * time.Second)
		if again := get(h, "GET", "/state.json").Body.String(); state == again || decode[page.State](t, again).Policies[0].Tiers[1].Origin != decode[page.State](t, state).Policies[0].Tiers[1].Origin {
			t.Errorf("an idle policy has changed: %s", again)
		}
	})
}

// TestStoreCalls checks what is shown of the calls of a shared store.
func TestStoreCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := observe.NewStats()
		called, h := stats.Observer().Called, page.New(page.Options{Stats: stats})
		stats.Observer().Admitted(t.Context(), throttle.AdmittedInfo{Policy: "api"})
		called(throttle.CalledInfo{Policy: "outer", Duration: time.Hour}) // has no requests of its own
		called(throttle.CalledInfo{Policy: "api", Duration: time.Hour})
		time.Sleep(time.Minute)
		if got := stateOf(t, h).Policies[0].Store; got != nil {
			t.Errorf("no call in a minute: %+v", *got)
		}
		called(throttle.CalledInfo{Policy: "api", Duration: time.Second})
		called(throttle.CalledInfo{Policy: "api", Duration: 3 * time.Second, Err: throttle.ErrUnavailable})
		called(throttle.CalledInfo{Policy: "api", Unsent: true, Err: throttle.ErrUnavailable})
		time.Sleep(time.Second)
		if got, want := stateOf(t, h).Policies[0].Store, (page.Calls{Count: 3, Failed: 2, Mean: 2, Max: 3}); got == nil || *got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// TestNames checks under which name counts are shown.
func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats, s := observe.NewStats(), new(countingStore)
		for _, test := range []struct{ policy, name string }{
			{"same", "same"}, {"one", "renamed"}, {"two", "two a"}, {"two", "two b"},
		} {
			p := throttle.Policy{Name: test.policy, Tiers: []throttle.Tier{throttle.PerSecond(5)}, Observer: stats.Observer()}
			l, err := throttle.New(p, s)
			if err != nil {
				t.Fatal(err)
			}
			if err := stats.Watch(test.name, l); err != nil {
				t.Fatal(err)
			}
			l.Allow()
		}
		h := page.New(page.Options{Stats: stats})
		for _, away := range []bool{false, true} {
			s.away.Store(away)
			time.Sleep(2 * time.Second)
			var got []string
			for _, p := range stateOf(t, h).Policies {
				got = append(got, fmt.Sprintf("%s: %v %v %s", p.Name, p.Watched, p.Counted, p.Failure))
			}
			failure := map[bool]string{true: " unavailable", false: " "}[away]
			want := []string{"renamed: true true" + failure, "same: true true" + failure, "two: false true ", "two a: true false" + failure, "two b: true false" + failure}
			if strings.Join(got, "|") != strings.Join(want, "|") {
				t.Errorf("away %v: %q, want %q", away, got, want)
			}
		}
	})
}

// TestProjection checks when a budget will be spent.
func TestProjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // from midnight UTC of 1 January 2000
		stats := observe.NewStats()
		l := watched(t, stats, throttle.Policy{Name: "llm", Tiers: []throttle.Tier{throttle.Budget(2400, "usd", throttle.Day)}}, nil)
		h := page.New(page.Options{Stats: stats})
		spend := func(n int64) {
			t.Helper()
			if _, err := l.TryAcquire(t.Context(), throttle.Cost{"usd": n}); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(when, want string) {
			t.Helper()
			p, got := stateOf(t, h).Policies[0].Tiers[0].Projection, "unknown"
			if p != nil {
				got = fmt.Sprint("lasts, ", p.Over)
				if p.SpentAt != nil {
					got = p.SpentAt.Format("15:04:05") + fmt.Sprint(", ", p.Over)
				}
			}
			if got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		expect("at the beginning", "unknown")
		time.Sleep(30 * time.Second)
		spend(10)
		expect("half a minute later", "unknown")
		time.Sleep(30*time.Second + time.Hour - time.Minute)
		spend(190)
		expect("200 in the first hour", "12:00:00, 3600")
		time.Sleep(time.Minute)
		expect("while nothing is spent", "12:12:00, 3660")
		time.Sleep(2 * time.Hour)
		expect("first look after hours", "lasts, 7200")
		for range 150 { // somebody looks all the time
			time.Sleep(time.Minute)
			stateOf(t, h)
		}
		spend(100)
		time.Sleep(time.Minute)
		expect("100 in the last hour", "lasts, 3600")
		spend(100)
		time.Sleep(time.Second)
		expect("200 in the last hour", "15:32:11, 3601")
		time.Sleep(time.Minute)
		spend(2000)
		expect("spent", "unknown")
		time.Sleep(20 * time.Hour)
		expect("the next day", "lasts, 5581")
	})
}

// TestManyPolicies checks 200 policies, and that a budget or a tier of each is no burden.
func TestManyPolicies(t *testing.T) {
	stats := observe.NewStats()
	for i := range 250 {
		name := fmt.Sprintf("policy %03d", i)
		l, err := throttle.New(throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerSecond(5)}, Observer: stats.Observer()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := stats.Watch(name, l); (err == nil) != (i < 200) {
			t.Fatal(i, err)
		}
		l.Allow()
	}
	h := page.New(page.Options{Stats: stats})
	state := stateOf(t, h)
	if n := len(state.Policies); n != 201 || !state.Policies[17].Counted || !state.Policies[17].Watched || state.Policies[0].Name != "_OTHER" {
		t.Errorf("%d policies, %+v", n, state.Policies[0].Name)
	}
	if body := get(h, "GET", "/").Body.String(); strings.Count(body, "5/s") != 200 {
		t.Errorf("%d tiers in the page", strings.Count(body, "5/s"))
	}
}
