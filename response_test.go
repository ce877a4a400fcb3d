package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

// TestRefusals checks which responses are refusals: not only a 429, and not every 429. The caller
// must get the whole response.
func TestRefusals(t *testing.T) {
	profile := &answers.Profile{Rules: []answers.Rule{
		{Status: 403, Header: "X-Left", Value: "0", Kind: answers.Limited, Delay: []answers.Field{field("X-Reset", answers.Seconds)}},
		{Status: 418, Kind: answers.Banned, Delay: []answers.Field{{Path: "msg", After: "until ", Format: answers.Seconds}}},
		{Status: 403, Path: "code", Text: "WAF", Kind: answers.Banned},
		{Status: 529, Kind: answers.Limited},
		{Status: 400, Path: "errors.*.code", Text: "RATELIMITED", Kind: answers.Limited, Wait: 7 * time.Second},
		{Status: 402, Kind: answers.Limited, Until: "UTC"},
		{Status: 200, Path: "status", Text: "0", Kind: answers.Limited, Wait: 5 * time.Second},
		{Status: 429, Path: "error.code", Text: "lock_timeout", Kind: answers.Other},
		{Status: 403, Path: "quota", Text: "day", Kind: answers.Limited, Until: "UTC"},
		{Status: 403, Path: "quota", Text: "month", Kind: answers.Limited, Wait: 24 * time.Hour},
		{Status: 429, Kind: answers.Limited, Delay: []answers.Field{{Path: "wait", Format: answers.Seconds}, field("X-Reset", answers.Seconds)}},
	}}
	for _, tt := range []struct {
		text   string
		paused time.Duration
		closed bool
	}{
		{"200\n\n{\"status\": \"1\"}", 0, false},
		{"403\nX-Left: 3", 0, false},
		{"403\nX-Left: 0\nX-Reset: 30", 30 * time.Second, false},
		{"403\nX-Left: 0\nX-Reset: 3600", time.Hour, true}, // beyond MaxPause
		{"418\n\n{\"msg\": \"banned until 120\"}", 2 * time.Minute, true},
		{"403\n\n{\"code\": \"WAF\"}", 15 * time.Minute, true}, // without a time, MaxPause
		{"529\nRetry-After: 3", 3 * time.Second, false},
		{"503\nRetry-After: 3600", time.Minute, false},
		{"503", 0, false},
		{"400\n\n{\"errors\": [{}, {\"code\": \"RATELIMITED\"}]}", 7 * time.Second, false},
		{"400\n\n{\"errors\": [{\"code\": \"INVALID\"}]}", 0, false},
		{"402", 24 * time.Hour, true},
		{"200\n\n{\"status\": \"0\", \"result\": \"" + strings.Repeat("x", 20_000) + "\"}", 5 * time.Second, false},
		{"429\n\n{\"error\": {\"code\": \"lock_timeout\"}}", 0, false},
		{"429\nRetry-After: 9\n\n{\"error\": {\"code\": \"other\"}}", 9 * time.Second, false},

		// What a body says closes the quota for at most MaxPause, and what a header says comes first.
		{"429\n\n{\"wait\": 60}", time.Minute, false},
		{"429\n\n{\"wait\": 3600}", 15 * time.Minute, true},
		{"429\nX-Reset: 7200\n\n{\"wait\": 3600}", 2 * time.Hour, true},
		{"429\nX-Reset: 7\n\n{\"wait\": 3600}", 7 * time.Second, false},
		{"429\nRetry-After: 7200\n\n{\"wait\": 3600}", 2 * time.Hour, true},
		{"403\n\n{\"quota\": \"day\"}", 15 * time.Minute, true},
		{"403\n\n{\"quota\": \"month\"}", 15 * time.Minute, true},
		{"403\nRetry-After: 7200\n\n{\"quota\": \"day\"}", 2 * time.Hour, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
			resp, err := (&throttle.Transport{Limiter: lim, Profile: profile, Base: answering(tt.text)}).RoundTrip(httptest.NewRequest("GET", trURL, nil))
			if err != nil {
				t.Fatal(err)
			}
			_, want, _ := strings.Cut(tt.text, "\n\n")
			if body, err := io.ReadAll(resp.Body); string(body) != want || err != nil {
				t.Errorf("%.60q: body %.60q, %v; want %.60q", tt.text, body, err, want)
			}
			s, _ := lim.Status(t.Context())
			paused := s.Paused
			if tt.closed {
				paused = s.Closed
			}
			if paused != tt.paused {
				t.Errorf("%.60q: paused %v, closed %v, want %v", tt.text, s.Paused, s.Closed, tt.paused)
			}
			var e *throttle.WaitError
			if err := lim.Wait(t.Context()); tt.closed {
				if !errors.As(err, &e) || e.Err != throttle.ErrBanned || time.Until(e.Until) != tt.paused {
					t.Errorf("%.60q: %v, want ErrBanned for %v", tt.text, err, tt.paused)
				}
			} else if err != nil {
				t.Errorf("%.60q: Wait: %v", tt.text, err)
			}
		})
	}
}

// TestRefusedScope checks which of three nested scopes a refusal pauses.
func TestRefusedScope(t *testing.T) {
	limiter := func(name string, unit string) *throttle.Limiter {
		tier := throttle.PerHour(100)
		tier.Unit = unit
		return mustNew(t, throttle.Policy{Name: name, Tiers: []throttle.Tier{tier}}, nil)
	}
	for _, tt := range []struct {
		name string
		rule answers.Rule
		want []bool // whether the route, the account and the address pause
	}{
		{"the route", answers.Rule{}, []bool{true, false, false}},
		{"wide", answers.Rule{Wide: true}, []bool{false, false, true}},
		{"requests", answers.Rule{Unit: "requests"}, []bool{false, true, false}},
		{"invalid requests", answers.Rule{Unit: "invalid"}, []bool{false, false, true}},
		{"a unit that no scope counts", answers.Rule{Unit: "points"}, []bool{true, false, false}},
	} {
		scopes := []*throttle.Limiter{limiter("route", ""), limiter("account", ""), limiter("address", "invalid")}
		tt.rule.Kind, tt.rule.Wait = answers.Limited, time.Minute
		tr := &throttle.Transport{
			Limiter: scopes[0].Within(scopes[1].Within(scopes[2])),
			Profile: &answers.Profile{Rules: []answers.Rule{tt.rule}}, Base: answering("429"),
		}
		if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil {
			t.Fatal(err)
		}
		for i, l := range scopes {
			if s, _ := l.Status(t.Context()); s.Paused > 0 != tt.want[i] {
				t.Errorf("%s: scope %d paused for %v, want %v", tt.name, i, s.Paused, tt.want[i])
			}
		}
	}
}

// TestWaitInBody checks that one request is sent after a close for a wait that a body named, and that
// its refusal closes the quota again.
func TestWaitInBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		refusal := answering("429\n\n{\"wait\": 2592000}")
		tr := &throttle.Transport{
			Limiter: mustNew(t, throttle.Policy{MaxPause: time.Minute, Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil),
			Profile: &answers.Profile{RetryAfter: []answers.Field{{Path: "wait", Format: answers.Seconds}}},
			Base: roundTripper(func(req *http.Request) (*http.Response, error) {
				sent++
				time.Sleep(time.Second)
				return refusal.RoundTrip(req)
			}),
		}
		for want := 1; want < 5; want++ {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if resp, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err == nil {
						resp.Body.Close()
					} else if !errors.Is(err, throttle.ErrBanned) {
						t.Error(err)
					}
				})
				synctest.Wait()
				if want == 1 {
					wg.Wait() // there is no probe yet
				}
			}
			wg.Wait()
			if s, _ := tr.Limiter.Status(t.Context()); sent != want || s.Closed != time.Minute {
				t.Errorf("%d sent, closed for %v; want %d and 1m", sent, s.Closed, want)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestPeekOfABrokenBody checks that a body that fails while its beginning is read ahead fails at
// the same place for the caller.
func TestPeekOfABrokenBody(t *testing.T) {
	broken := errors.New("broken")
	lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
	profile := &answers.Profile{Rules: []answers.Rule{{Status: 200, Path: "status", Text: "0", Kind: answers.Limited}}}
	closed := 0
	resp, err := (&throttle.Transport{Limiter: lim, Profile: profile, Base: roundTripper(func(*http.Request) (*http.Response, error) {
		resp := trAnswer(200, "Content-Type", "application/json")
		resp.Body = &countedBody{io.MultiReader(strings.NewReader(`{"sta`), failingReader{broken}), &closed}
		return resp, nil
	})}).RoundTrip(httptest.NewRequest("GET", trURL, nil))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(resp.Body); string(text) != `{"sta` || err != broken {
		t.Errorf("read %q, %v; want the first bytes and the body's error", text, err)
	}
	if resp.Body.Close(); closed != 1 {
		t.Errorf("the body was closed %d times, want 1", closed)
	}
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

type countedBody struct {
	io.Reader
	closed *int
}

func (b *countedBody) Close() error { *b.closed++; return nil }

// TestRemaining checks that a reported remaining count lowers the limiter's own estimate, less what
// is in flight, and raises it only if the profile marks it authoritative.
func TestRemaining(t *testing.T) {
	authoritative := *github
	authoritative.Quotas = slices.Clone(authoritative.Quotas)
	authoritative.Quotas[0].Authoritative = true
	for name, tt := range map[string]struct {
		profile *answers.Profile
		answers []string
		used    []int64 // after each answer
	}{
		"equal to the estimate":    {github, []string{"X-Limit: 100\nX-Remaining: 99\nX-Reset: 60", "X-Limit: 100\nX-Remaining: 98\nX-Reset: 60"}, []int64{1, 2}},
		"others use the quota too": {github, []string{"X-Limit: 100\nX-Remaining: 60\nX-Reset: 60", "X-Limit: 100\nX-Remaining: 50\nX-Reset: 60"}, []int64{40, 50}},
		"more than the estimate":   {github, []string{"X-Limit: 5000\nX-Remaining: 4000\nX-Reset: 60"}, []int64{1}},
		"a late answer":            {github, []string{"X-Limit: 100\nX-Remaining: 50\nX-Reset: 60", "X-Limit: 100\nX-Remaining: 70\nX-Reset: 60"}, []int64{50, 51}},
		"of an earlier window":     {github, []string{"X-Limit: 100\nX-Remaining: 0\nX-Reset: 0"}, []int64{1}},
		"authoritative":            {&authoritative, []string{"X-Limit: 100\nX-Remaining: 50\nX-Reset: 60", "X-Limit: 100\nX-Remaining: 70\nX-Reset: 60"}, []int64{50, 30}},
		"not a number":             {github, []string{"X-Limit: x\nX-Remaining: -\nX-Reset: 60"}, []int64{1}},
		"none left":                {github, []string{"X-Limit: 100\nX-Remaining: 0\nX-Reset: 60"}, []int64{100}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(100), throttle.PerSecond(10)}}, nil)
				for i, text := range tt.answers {
					tr := &throttle.Transport{Limiter: lim, Profile: tt.profile, Base: answering("200\n" + text)}
					if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil {
						t.Fatal(err)
					}
					if got := used(t, lim)[0]; got != tt.used[i] {
						t.Errorf("after answer %d: %d used, want %d", i, got, tt.used[i])
					}
				}
			})
		})
	}
}

// TestReportsOfOtherLimits checks that what a provider reports does not change a budget, nor a policy with
// IgnoreReports, whose limits the provider does not know, and reaches the scope around it.
func TestReportsOfOtherLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		inner throttle.Policy
		used  int64 // of its first tier
	}{
		"a limit":        {throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(100)}}, 40},
		"ignore reports": {throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(100)}, IgnoreReports: true}, 1},
		"a budget":       {throttle.Policy{Tiers: []throttle.Tier{{Limit: 100, Window: time.Hour, Budget: true}}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.inner.Name = "inner"
				inner := mustNew(t, tt.inner, nil)
				around := mustNew(t, throttle.Policy{Name: "around", Tiers: []throttle.Tier{throttle.PerHour(100)}}, nil)
				tr := &throttle.Transport{Limiter: inner.Within(around), Profile: github, Base: answering("200\nX-Limit: 100\nX-Remaining: 60\nX-Reset: 60")}
				if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil {
					t.Fatal(err)
				}
				if got, rest := used(t, inner)[0], used(t, around)[0]; got != tt.used || got+rest != 41 {
					t.Errorf("%d are used, and %d of the limit around, want %d and %d", got, rest, tt.used, 41-tt.used)
				}
			})
		})
	}
}

// An observed store records what its quotas receive in Observe.
type observed struct {
	local.Store
	seen []store.Observation
}

type observedQuota struct {
	store.Quota
	store.Feedback
	s *observed
}

func (s *observed) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return observedQuota{q, q.(store.Feedback), s}, err
}

func (q observedQuota) Observe(_ store.Decision, _ []int64, seen []store.Observation) {
	q.s.seen = append(q.s.seen, seen...)
}

// TestObservationRefused checks that an Observation reports whether its response refused the
// request.
func TestObservationRefused(t *testing.T) {
	for status, refused := range map[string]bool{"200": false, "404": false, "500": false, "429": true} {
		synctest.Test(t, func(t *testing.T) {
			s := new(observed)
			lim := mustNew(t, throttle.Policy{Name: "a", Tiers: []throttle.Tier{throttle.PerHour(100)}}, s)
			tr := &throttle.Transport{Limiter: lim, Profile: github, Base: answering(status + "\nX-Limit: 100\nX-Remaining: 0")}
			if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil {
				t.Fatal(err)
			}
			if want := (store.Observation{Used: 100, Refused: refused}); !slices.Equal(s.seen, []store.Observation{want}) {
				t.Errorf("%s: observations %+v, want %+v", status, s.seen, want)
			}
		})
	}
}

// TestRemainingNetOfInFlight checks that a reported count may include the requests in flight, so
// other users are charged only for the rest.
func TestRemainingNetOfInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(100)}, Guard: time.Second}, nil)
		for range 7 {
			if _, err := lim.Acquire(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		tr := &throttle.Transport{Limiter: lim, Profile: github, Base: answering("200\nX-Limit: 100\nX-Remaining: 40\nX-Reset: 60")}
		if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil || used(t, lim)[0] != 60 {
			t.Errorf("error %v, %v used, want the reported 60", err, used(t, lim))
		}
	})
}

// TestAuthoritativeIsOrdered checks that the answer to an earlier request does not replace the
// authoritative count of a later one.
func TestAuthoritativeIsOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authoritative := *github
		authoritative.Quotas = slices.Clone(authoritative.Quotas)
		authoritative.Quotas[0].Authoritative = true
		lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(100)}}, nil)
		send := func(after time.Duration, text string) {
			base := answering(text)
			tr := &throttle.Transport{Limiter: lim, Profile: &authoritative, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
				time.Sleep(after)
				return base.RoundTrip(r)
			})}
			_, _ = tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
		}
		go send(time.Minute, "200\nX-Limit: 100\nX-Remaining: 99\nX-Reset: 600")
		time.Sleep(time.Second)
		send(time.Second, "200\nX-Limit: 100\nX-Remaining: 20\nX-Reset: 600")
		time.Sleep(5 * time.Minute)
		if got := used(t, lim)[0]; got != 80 {
			t.Errorf("%d used, want the 80 of the later request", got)
		}
	})
}

// TestRemainingOfNoTier checks that a reading of no tier of the policy pauses the quota until its
// reset, if nothing is left.
func TestRemainingOfNoTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(10)}}, nil)
		for _, tt := range []struct {
			text   string
			paused time.Duration
		}{
			{"200\nX-Limit: 100\nX-Remaining: 1\nX-Reset: 60", 0},
			{"200\nX-Limit: 100\nX-Remaining: 0\nX-Reset: 60", time.Minute},
			{"200\nX-Limit: 100\nX-Remaining: 0\nX-Reset: 3000000", 0}, // more than 31 days
		} {
			tr := &throttle.Transport{Limiter: lim, Profile: github, Base: answering(tt.text)}
			if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil {
				t.Fatal(err)
			}
			if s, _ := lim.Status(t.Context()); s.Paused != tt.paused {
				t.Errorf("%q: paused for %v, want %v", tt.text, s.Paused, tt.paused)
			}
		}
	})
}

// TestResetInBody checks that a reset in a body pauses the quota for at most MaxPause.
func TestResetInBody(t *testing.T) {
	profile := &answers.Profile{Quotas: []answers.Quota{{
		Window: time.Hour, Remaining: answers.Field{Path: "left"}, Reset: answers.Field{Path: "reset", Format: answers.Seconds},
	}}}
	for reset, want := range map[string]throttle.Status{
		"60":    {Paused: time.Minute},
		"86400": {Closed: 15 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			tr := &throttle.Transport{
				Limiter: mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(10)}}, nil),
				Profile: profile, Base: answering("200\n\n{\"left\": 0, \"reset\": " + reset + "}"),
			}
			if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil {
				t.Fatal(err)
			}
			if s, _ := tr.Limiter.Status(t.Context()); s.Paused != want.Paused || s.Closed != want.Closed {
				t.Errorf("reset %s: paused %v, closed %v; want %v, %v", reset, s.Paused, s.Closed, want.Paused, want.Closed)
			}
		})
	}
}

// TestProbe checks that one request is sent when a pause ends, and the others only after its
// response.
func TestProbe(t *testing.T) {
	for name, s := range map[string]throttle.Store{"in process": nil, "in a shared store": local.New()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var sent []time.Duration
				began := time.Now()
				lim := mustNew(t, throttle.Policy{Name: "probe", Tiers: []throttle.Tier{throttle.PerSecond(4)}}, s)
				tr := &throttle.Transport{Limiter: lim, Base: roundTripper(func(*http.Request) (*http.Response, error) {
					mu.Lock()
					n := len(sent)
					sent = append(sent, time.Since(began))
					mu.Unlock()
					time.Sleep(300 * time.Millisecond)
					if n < 3 { // the first request and two probes
						return trAnswer(429, "Retry-After", "2"), nil
					}
					return trAnswer(200), nil
				})}
				_, _ = tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
				var wg sync.WaitGroup
				for range 7 {
					wg.Go(func() { _, _ = tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)) })
				}
				wg.Wait()
				ms := time.Millisecond
				// 0.3 + 2, 2.6 + 2, 4.9 s. The tier still counts the last probe.
				want := []time.Duration{0, 2300 * ms, 4600 * ms, 6900 * ms, 7200 * ms, 7200 * ms, 7200 * ms}
				if len(sent) != 8 || !slices.Equal(sent[:7], want) {
					t.Errorf("sent at %v, want %v and one more", sent, want)
				}
			})
		})
	}
}

// TestProbeDeadline checks that a caller is not refused before the response to the probe, if only
// that response could make it late.
func TestProbeDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(10)}}, nil)
		slow := answering("429\nRetry-After: 1", "200")
		tr := &throttle.Transport{Limiter: lim, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(100 * time.Millisecond)
			return slow.RoundTrip(r)
		})}
		_, _ = tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
		time.Sleep(time.Second)
		go func() { _, _ = tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if err := lim.Wait(ctx); err != nil {
			t.Error(err)
		}
	})
}

// A windowsAPI counts in fixed windows, and reports in each response how much of one of them is left
// and when it ends.
type windowsAPI struct {
	windows  []countedWindow
	reported int // index of the reported window

	mu       sync.Mutex // guards all below
	random   *rand.Rand
	accepted int
	refused  int
}

type countedWindow struct {
	limit        int
	length       time.Duration
	phase, opens time.Duration // after the beginning of the test
	used         int
}

func (p *windowsAPI) RoundTrip(*http.Request) (*http.Response, error) {
	time.Sleep(p.latency())
	p.mu.Lock()
	status, now := 200, time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	for i := range p.windows {
		w := &p.windows[i]
		if opens := (now + w.length - w.phase).Truncate(w.length) + w.phase - w.length; opens != w.opens {
			w.opens, w.used = opens, 0
		}
		if w.used == w.limit {
			status = 429
		}
	}
	for i := range p.windows {
		p.windows[i].used += 1 - status/429
	}
	p.accepted, p.refused = p.accepted+1-status/429, p.refused+status/429
	w := p.windows[p.reported]
	p.mu.Unlock()
	time.Sleep(p.latency())
	return trAnswer(status, "X-Limit", strconv.Itoa(w.limit), "X-Remaining", strconv.Itoa(w.limit-w.used),
		"X-Reset", fmt.Sprintf("%.3f", (w.opens+w.length-now).Seconds())), nil
}

func (p *windowsAPI) latency() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.random.IntN(30_000)) * time.Microsecond
}

// TestReportedWindows checks that the ends of windows of unknown phase, once reported, cost neither
// requests nor refusals, however many tiers the policy has and whichever of them is reported.
func TestReportedWindows(t *testing.T) {
	profile := &answers.Profile{Quotas: []answers.Quota{{
		Limit: field("X-Limit", answers.Number), Remaining: field("X-Remaining", answers.Number), Reset: field("X-Reset", answers.Seconds),
	}}}
	const minute = time.Minute
	for _, test := range []struct {
		windows  []countedWindow
		reported int
		length   time.Duration
		least    int
	}{
		{[]countedWindow{{limit: 100, length: minute, phase: 37 * time.Second}}, 0, 20 * minute, 1_980},
		{[]countedWindow{{limit: 10, length: 10 * time.Second, phase: 7300 * time.Millisecond}}, 0, 20 * minute, 1_180},
		{[]countedWindow{{limit: 20, length: minute, phase: 37 * time.Second}, {limit: 300, length: 30 * minute, phase: 11*minute + 20*time.Second}}, 1, 120 * minute, 1_180},
		{[]countedWindow{{limit: 300, length: 30 * minute, phase: 11*minute + 20*time.Second}, {limit: 20, length: minute, phase: 37 * time.Second}}, 1, 120 * minute, 1_180},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := &windowsAPI{windows: test.windows, reported: test.reported, random: rand.New(rand.NewPCG(1, 2))}
			var tiers []throttle.Tier
			for _, w := range test.windows {
				tiers = append(tiers, throttle.Tier{Limit: int64(w.limit), Window: w.length, Algorithm: throttle.FixedWindow, Phase: throttle.UnknownPhase})
			}
			tr := &throttle.Transport{Limiter: mustNew(t, throttle.Policy{Tiers: tiers}, nil), Profile: profile, Base: api}
			until := time.Now().Add(test.length)
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					for time.Now().Before(until) {
						_, _ = tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
					}
				})
			}
			time.Sleep(test.length)
			api.mu.Lock()
			if api.refused > 0 || api.accepted < test.least {
				t.Errorf("%v: %d were refused and %d accepted, want none and %d", tiers, api.refused, api.accepted, test.least)
			}
			api.mu.Unlock()
			wg.Wait()
		})
	}
}

// A countingAPI accepts at most 100 requests in any minute, and reports in each response how many
// are left.
type countingAPI struct {
	mu       sync.Mutex // guards all below
	counted  []time.Time
	accepted int
	refused  int
}

var countingProfile = &answers.Profile{Quotas: []answers.Quota{{
	Window: time.Minute, Limit: field("X-RateLimit-Limit", answers.Number), Remaining: field("X-RateLimit-Remaining", answers.Number),
}}}

// count counts a request of the caller or of another program. It returns how many are left, or -1
// if the request is refused.
func (p *countingAPI) count(own bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for len(p.counted) > 0 && !p.counted[0].After(now.Add(-time.Minute)) {
		p.counted = p.counted[1:]
	}
	if own && len(p.counted) >= 100 {
		p.refused++
		return -1
	}
	p.counted = append(p.counted, now)
	if own {
		p.accepted++
	}
	return 100 - len(p.counted)
}

// read returns how many requests of the caller were accepted and refused.
func (p *countingAPI) read() (accepted, refused int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted, p.refused
}

func (p *countingAPI) RoundTrip(*http.Request) (*http.Response, error) {
	time.Sleep(10 * time.Millisecond)
	left := p.count(true)
	time.Sleep(15 * time.Millisecond)
	status := 200
	if left < 0 {
		status = 429
	}
	return trAnswer(status, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", strconv.Itoa(max(0, left))), nil
}

// load sends requests through a Transport with some workers for a length of time.
func (p *countingAPI) load(t *testing.T, workers int, tier throttle.Tier, length time.Duration) *sync.WaitGroup {
	lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{tier}}, nil)
	tr := &throttle.Transport{Limiter: lim, Base: p, Profile: countingProfile}
	until, wg := time.Now().Add(length), new(sync.WaitGroup)
	for range workers {
		wg.Go(func() {
			for time.Now().Before(until) {
				_, _ = tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
			}
		})
	}
	return wg
}

// TestReportsCostNothing checks that reports that agree with what was sent do not lower the
// throughput, however many requests are in flight.
func TestReportsCostNothing(t *testing.T) {
	for _, workers := range []int{1, 10, 50, 100} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p countingAPI
				wg := p.load(t, workers, throttle.PerMinute(100), 20*time.Minute)
				time.Sleep(20 * time.Minute)
				if accepted, refused := p.read(); accepted < 1980 || refused > 0 {
					t.Errorf("%d accepted and %d refused, want 1,980 of 2,000 and none", accepted, refused)
				}
				wg.Wait()
			})
		})
	}
}

// TestReportsOfOthers checks that, if another program uses 30 % of the quota, paced requests use
// the rest and are not refused.
func TestReportsOfOthers(t *testing.T) {
	for _, workers := range []int{1, 10} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p countingAPI
				tier := throttle.PerMinute(100)
				tier.PaceBurst = 1
				wg := p.load(t, workers, tier, 24*time.Minute)
				wg.Go(func() {
					for range 24 * 30 {
						p.count(false)
						time.Sleep(2 * time.Second)
					}
				})
				time.Sleep(4 * time.Minute)
				acceptedBefore, refusedBefore := p.read()
				time.Sleep(20 * time.Minute)
				accepted, refused := p.read()
				if accepted, refused = accepted-acceptedBefore, refused-refusedBefore; accepted < 1358 || refused > 0 {
					t.Errorf("%d accepted and %d refused, want 97 %% of 1,400 and none", accepted, refused)
				}
				wg.Wait()
			})
		})
	}
}

// TestReportedReset checks that the reported use of others ends at the reported reset, not a window
// after the report. The quota is used up and has room 30 seconds later, when windows are empty.
func TestReportedReset(t *testing.T) {
	const limit = 20_000
	for _, tier := range []throttle.Tier{
		throttle.PerHour(100),
		{Limit: limit, Window: time.Hour},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.SlidingWindow},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.WeightedWindow},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.FixedWindow},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.AnchoredWindow},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.TokenBucket},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.LeakyBucket},
		{Limit: 100, Window: time.Hour, Algorithm: throttle.GCRA},
	} {
		t.Run(tier.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{tier}}, nil)
				text := fmt.Sprintf("200\nX-Limit: %d\nX-Remaining: 0\nX-Reset: 30", tier.Limit)
				tr := &throttle.Transport{Limiter: lim, Profile: github, Base: answering(text)}
				if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				if got := used(t, lim)[0]; got != tier.Limit {
					t.Errorf("%d used, want %d", got, tier.Limit)
				}
				if err := lim.WaitN(t.Context(), tier.Limit-1); err != nil || time.Since(began) != 31*time.Second {
					t.Errorf("%v after %v, want 31s", err, time.Since(began))
				}
			})
		})
	}
}

// TestReportedResetRoundedUp checks that a window may end a second before its reported end, because
// the provider rounded that up. A request in this second has opened the next window.
func TestReportedResetRoundedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		profile := &answers.Profile{Quotas: []answers.Quota{{
			Window: 10 * time.Second, Remaining: field("X-Remaining", answers.Number), Reset: field("X-Reset", answers.Seconds),
		}}}
		tier := throttle.Tier{Limit: 2, Window: 10 * time.Second, Algorithm: throttle.AnchoredWindow}
		tr := &throttle.Transport{
			Limiter: mustNew(t, throttle.Policy{Tiers: []throttle.Tier{tier}}, nil), Profile: profile,
			Base: answering("200\nX-Remaining: 1\nX-Reset: 10", "200\nX-Remaining: 0\nX-Reset: 10", "200"),
		}
		start := time.Now()
		send := func(at, want time.Duration) {
			t.Helper()
			time.Sleep(time.Until(start.Add(at)))
			if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil || time.Since(start) != want {
				t.Errorf("sent at %v, %v; want %v", time.Since(start), err, want)
			}
		}
		send(0, 0)
		send(500*ms, 500*ms) // the window ends in 9.5 s
		send(10_200*ms, 10_200*ms)
		send(11_100*ms, 11_100*ms)
		send(11_200*ms, 20_200*ms)
	})
}

// TestProbeOfNestedNoGuard checks that only one request is sent as a probe after a refusal, also if
// its outer quota has no guard.
func TestProbeOfNestedNoGuard(t *testing.T) {
	for name, guard := range map[string]time.Duration{"NoGuard": throttle.NoGuard, "guard": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				outer := exact(throttle.PerHour(100))
				outer.Guard = guard
				l, o := within(t, api(throttle.PerHour(100)), outer)
				var sent []time.Time
				var mu sync.Mutex
				base := func(req *http.Request) (*http.Response, error) {
					mu.Lock()
					n := len(sent)
					sent = append(sent, time.Now())
					mu.Unlock()
					resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
					if n == 0 {
						resp.StatusCode = 429
						resp.Header.Set("Retry-After", "10")
					} else {
						time.Sleep(5 * time.Second)
					}
					return resp, nil
				}
				first := &throttle.Transport{Base: roundTripper(base), Limiter: o}
				tr := &throttle.Transport{Base: roundTripper(base), Limiter: l}
				get := func(tr *throttle.Transport) {
					req, _ := http.NewRequest("GET", "http://x.example/", nil)
					if resp, err := tr.RoundTrip(req); err != nil {
						t.Error(err)
					} else {
						resp.Body.Close()
					}
				}
				get(first)
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() { get(tr) })
				}
				wg.Wait()
				if d := sent[2].Sub(sent[1]); d != 5*time.Second {
					t.Errorf("the second request was sent %v after the probe, want 5s", d)
				}
			})
		})
	}
}

// TestProbeByNestedWait checks that a nested Wait that probes the outer quota does not block it,
// although its response is not reported.
func TestProbeByNestedWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, o := within(t, api(throttle.PerHour(100)), api(throttle.PerHour(100)))
		tr := &throttle.Transport{Limiter: o, Base: roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"10"}}, Body: http.NoBody, Request: req}, nil
		})}
		req, _ := http.NewRequest("GET", "http://x.example/", nil)
		if resp, err := tr.RoundTrip(req); err != nil {
			t.Fatal(err)
		} else {
			resp.Body.Close()
		}
		began := time.Now()
		for range 10 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d > 12*time.Second {
			t.Errorf("10 calls waited for %v in all, want at most 12s", d)
		}
	})
}

// TestWithinRefundsNoGuard checks that the charge of an outer quota is refunded if the inner one is
// used up during the wait, also without a guard and after a wait for the outer quota.
func TestWithinRefundsNoGuard(t *testing.T) {
	for name, guard := range map[string]time.Duration{"NoGuard": throttle.NoGuard, "guard": time.Second} {
		for _, depth := range []int{2, 3} {
			t.Run(name+map[int]string{2: "", 3: ", three"}[depth], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					inner := mustNew(t, api(throttle.PerHour(1)), nil)
					mid := mustNew(t, throttle.Policy{Name: "mid", Tiers: []throttle.Tier{throttle.PerDay(100)}, Guard: guard}, nil)
					outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerDay(100)}, Guard: guard}, nil)
					l := inner.Within(outer)
					if depth == 3 {
						l = inner.Within(mid.Within(outer))
					}
					outer.Pause(t.Context(), time.Minute)
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					defer cancel()
					var wg sync.WaitGroup
					wg.Go(func() {
						if err := l.Wait(ctx); err == nil {
							t.Error("the nested request was admitted")
						}
					})
					time.Sleep(30 * time.Second)
					if !inner.Allow() {
						t.Error("the inner quota refused")
					}
					wg.Wait()
					if got := used(t, outer); got[0] != 0 {
						t.Errorf("outer: %v used, want 0", got)
					}
					if got := used(t, mid); got[0] != 0 {
						t.Errorf("mid: %v used, want 0", got)
					}
				})
			})
		}
	}
}

// TestRefusalReport checks that the report on a refusal by a scripted provider names its cause, and no
// other one.
func TestRefusalReport(t *testing.T) {
	fullest := &throttle.TierCount{Policy: "api", Tier: "5/s", Unit: "requests", Used: 2, Limit: 5}
	named := &throttle.TierCount{Policy: "api", Tier: "5/s", Unit: "requests", Used: 5, Limit: 5}
	for _, tt := range []struct {
		name   string
		others int                      // requests of another program
		answer func(h http.Header)      // changes the header of the refusal
		slow   time.Duration            // how long the refusal takes
		edit   func(p *throttle.Policy) // changes the policy
		want   throttle.RefusalReport
		text   string
	}{
		{name: "calm", answer: func(h http.Header) { h.Del("L"); h.Del("R") }, want: throttle.RefusalReport{Fullest: fullest},
			text: "The fullest tier here is 5/s: 2 of 5 used."},
		{name: "foreign use", others: 4, want: throttle.RefusalReport{Fullest: fullest, Named: named, Foreign: 3},
			text: "The response names 5/s: 5 of 5 used. The provider counts 3 units that this quota has not charged: another program uses the limit, or the provider counts in another way. The fullest tier here is 5/s: 2 of 5 used."},
		{name: "something is left", others: 4, answer: func(h http.Header) { h.Set("R", "1") }, want: throttle.RefusalReport{Fullest: fullest},
			text: "The fullest tier here is 5/s: 2 of 5 used."},
		{name: "an unknown limit", others: 4, answer: func(h http.Header) { h.Set("L", "7"); h.Set("U", "minutes") },
			want: throttle.RefusalReport{Fullest: fullest, Named: &throttle.TierCount{Unit: "minutes", Used: 7, Limit: 7}},
			text: "The response names a limit of minutes that the policy does not have: 7 of 7 used. The fullest tier here is 5/s: 2 of 5 used."},
		{name: "a lower limit", answer: func(h http.Header) { h.Set("L", "2") },
			want: throttle.RefusalReport{Fullest: fullest, Named: &throttle.TierCount{Unit: "requests", Used: 2, Limit: 2}},
			text: "The response names a limit of requests that the policy does not have: 2 of 2 used. The fullest tier here is 5/s: 2 of 5 used."},
		{name: "a clock", answer: func(h http.Header) { h.Set("Date", time.Now().Add(3*sec).Format(http.TimeFormat)) },
			want: throttle.RefusalReport{Fullest: fullest, Named: named, ClockAhead: 3 * sec},
			text: "The response names 5/s: 5 of 5 used. The fullest tier here is 5/s: 2 of 5 used. The provider's clock is 3s ahead."},
		{name: "a clock behind", answer: func(h http.Header) {
			h.Set("Date", time.Now().Add(-3*sec).Format(http.TimeFormat))
			h.Del("L")
			h.Del("R")
		},
			want: throttle.RefusalReport{Fullest: fullest, ClockAhead: -3 * sec},
			text: "The fullest tier here is 5/s: 2 of 5 used. The provider's clock is 3s behind."},
		{name: "the clock's resolution", answer: func(h http.Header) {
			h.Set("Date", time.Now().Add(sec).Format(http.TimeFormat))
			h.Del("L")
			h.Del("R")
		},
			want: throttle.RefusalReport{Fullest: fullest}, text: "The fullest tier here is 5/s: 2 of 5 used."},
		{name: "a cache", answer: func(h http.Header) {
			h.Set("Date", time.Now().Add(-time.Hour).Format(http.TimeFormat))
			h.Set("Age", "3600")
			h.Del("L")
			h.Del("R")
		},
			want: throttle.RefusalReport{Fullest: fullest}, text: "The fullest tier here is 5/s: 2 of 5 used."},
		{name: "late", slow: 812 * ms, want: throttle.RefusalReport{Fullest: fullest, Named: named, Took: 812 * ms, Guard: 50 * ms},
			text: "The response names 5/s: 5 of 5 used. The fullest tier here is 5/s: 2 of 5 used. The response came 812ms after the admission, which is longer than the guard interval of 50ms: the request may have arrived in a later window."},
		{name: "in time", slow: 50 * ms, answer: func(h http.Header) { h.Del("L"); h.Del("R") }, want: throttle.RefusalReport{Fullest: fullest},
			text: "The fullest tier here is 5/s: 2 of 5 used."},
		{name: "a paced tier", answer: func(h http.Header) { h.Del("L"); h.Del("R") },
			edit: func(p *throttle.Policy) { p.Tiers[1].PaceBurst = 2 }, want: throttle.RefusalReport{Fullest: fullest},
			text: "The fullest tier here is 5/s: 2 of 5 used."},
	} {
		synctest.Test(t, func(t *testing.T) {
			provider := throttletest.New(throttle.Tier{Limit: 5, Window: time.Second, Algorithm: throttle.SlidingLog})
			observer, last := reports()
			p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(1000)}, Observer: observer}
			if tt.edit != nil {
				tt.edit(&p)
			}
			field := func(name string) answers.Field { return answers.Field{Header: name} }
			profile := &answers.Profile{Quotas: []answers.Quota{{Limit: field("L"), Remaining: field("R"), UnitIn: "U"}}}
			calls := 0
			base := trNewBase(func(_ int, r *http.Request) (*http.Response, error) {
				resp, err := provider.RoundTrip(r)
				if err != nil {
					return nil, err
				}
				if calls++; calls == 2 { // the provider refuses for a reason of its own, unless others have used it up
					time.Sleep(tt.slow)
					if tt.others > 0 && resp.StatusCode != 429 {
						t.Errorf("%s: the provider answers %d", tt.name, resp.StatusCode)
					}
					resp.StatusCode = 429
					resp.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
					resp.Header.Set("L", "5")
					resp.Header.Set("R", "0")
					if tt.answer != nil {
						tt.answer(resp.Header)
					}
				}
				return resp, nil
			})
			tr := &throttle.Transport{Limiter: mustNew(t, p, nil), Base: base, Profile: profile}
			trExpect(t, tr, 200)
			if *last != nil {
				t.Errorf("%s: a success has the report %v", tt.name, *last)
			}
			for range tt.others {
				trExpect(t, provider, 200)
			}
			trExpect(t, tr, 429)
			if *last == nil || !reflect.DeepEqual(**last, tt.want) || (*last).String() != tt.text {
				t.Errorf("%s: the report is\n%v, want\n%v", tt.name, fmt.Sprintf("%+v", *last), fmt.Sprintf("%+v\n%s", tt.want, tt.text))
			}
		})
	}
}
