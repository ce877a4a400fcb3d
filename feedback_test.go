package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
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
)

// answering returns a base that answers with the texts, and then repeats the last one. A text has a
// status, header lines, and after an empty line a body.
func answering(texts ...string) http.RoundTripper {
	var mu sync.Mutex
	return roundTripper(func(*http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		head, body, _ := strings.Cut(texts[0], "\n\n")
		if len(texts) > 1 {
			texts = texts[1:]
		}
		lines := strings.Split(head, "\n")
		resp := trAnswer(0)
		_, _ = fmt.Sscan(lines[0], &resp.StatusCode)
		resp.Header.Set("Content-Type", "application/json")
		for _, line := range lines[1:] {
			name, value, _ := strings.Cut(line, ": ")
			resp.Header.Set(name, value)
		}
		resp.Body = io.NopCloser(strings.NewReader(body))
		return resp, nil
	})
}

func field(header string, f answers.Format) answers.Field {
	return answers.Field{Header: header, Format: f}
}

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

var github = &answers.Profile{Quotas: []answers.Quota{{
	Window: time.Hour, Limit: field("X-Limit", answers.Number), Remaining: field("X-Remaining", answers.Number),
	Reset: field("X-Reset", answers.Seconds),
}}}

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
