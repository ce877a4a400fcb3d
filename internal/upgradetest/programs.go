package upgradetest

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
)

// settled is how long a program waits before its values are copied, so that all is reported.
const settled = time.Second

// lasts reports whether the program can play with windows of a hundred years.
func (p *program) lasts() bool {
	for _, tiers := range p.tiers {
		if !strings.Contains(strings.Join(tiers, " "), "/h") {
			return false
		}
	}
	return p.outer == nil && !p.holds && !strings.Contains(p.name, "weighted")
}

func centuries(tiers []string) (long []string) {
	for _, spec := range tiers {
		long = append(long, strings.Replace(spec, "/h", "/876000h", 1))
	}
	return long
}

func programs() (all []program) {
	for _, algorithm := range []string{
		"sliding_log", "sliding_window", "fixed_window", "weighted_window", "anchored_window", "token_bucket", "leaky_bucket", "gcra",
	} {
		all = append(all, program{
			name: algorithm, tiers: [][]string{{"10/h;algo=" + algorithm}},
			calls: "seven requests arrive and end", play: seven,
		})
	}
	return append(all, []program{
		{name: "calendar", tiers: [][]string{{"10/day"}}, calls: "seven requests arrive and end", play: seven},
		{name: "budget", tiers: [][]string{{"10/day;budget=true"}}, calls: "seven requests arrive and end", play: seven},
		{
			name: "units", tiers: [][]string{{"10/h", "1000/h;unit=tokens;algo=fixed_window", "100/h;algo=gcra"}},
			calls: "four requests of 249 tokens each arrive and end",
			play: func(t testing.TB, s *State, all []*throttle.Limiter) {
				pass(s.admit(t, all[0], 4, throttle.Cost{"tokens": 249}))
				time.Sleep(settled)
			},
		},
		{
			name: "group", key: "customer 7", tiers: [][]string{{"10/h", "100/day"}},
			calls: "seven requests of a key of a Group arrive and end", play: seven,
		},
		{
			name: "nested", tiers: [][]string{{"10/h"}}, outer: []string{"8/h;algo=fixed_window"},
			calls: "seven requests inside an outer quota arrive and end", play: seven,
		},
		{
			name: "releases", tiers: [][]string{{"10/h"}, {"20/h", "200/h;algo=gcra"}},
			calls: "two limiters with different policies admit four and three requests by turns",
			play: func(t testing.TB, s *State, all []*throttle.Limiter) {
				for i := range 7 {
					pass(s.admit(t, all[i%2], 1, nil))
				}
				time.Sleep(settled)
			},
		},
		{
			name: "waiting", tiers: [][]string{{"5/min;algo=fixed_window"}},
			calls: "five requests arrive and end, and a caller waits, which is admitted 100 ms after the values were copied", play: waiting,
		},
		{
			name: "pause", tiers: [][]string{{"10/h"}}, calls: "seven requests arrive and end, then Pause for 40 m",
			play: func(t testing.TB, s *State, all []*throttle.Limiter) {
				seven(t, s, all)
				s.Closed = time.Now().Add(pauseFor(s)).UnixMicro()
				if err := all[0].Pause(t.Context(), pauseFor(s)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(settled)
			},
		},
		{
			name: "ban", tiers: [][]string{{"10/h"}},
			calls: "six requests arrive and end, and the provider refuses the seventh for 40 m, which exceeds MaxPause",
			play: func(t testing.TB, s *State, all []*throttle.Limiter) {
				pass(s.admit(t, all[0], 6, nil))
				p := s.admit(t, all[0], 1, nil)[0]
				s.Closed, s.Banned = time.Now().Add(pauseFor(s)).UnixMicro(), true
				if err := p.Refused(t.Context(), pauseFor(s)); err != nil {
					t.Fatal(err)
				}
				p.Release()
				time.Sleep(settled)
			},
		},
		{
			name: "concurrency", holds: true, tiers: [][]string{{"5;algo=concurrency", "100/h"}},
			calls: "seven requests are admitted, of which four arrive and end, and three stay open",
			play: func(t testing.TB, s *State, all []*throttle.Limiter) {
				pass(s.admit(t, all[0], 4, nil))
				s.admit(t, all[0], 3, nil)
				s.Open = 3
				time.Sleep(settled)
			},
		},
		{
			name: "estimates", holds: true, tiers: [][]string{{"20/h", "1000/h;unit=tokens;estimated=true;algo=gcra"}},
			calls: "two requests of 300 estimated tokens cost 100 and 450; one of 440 stays open",
			play: func(t testing.TB, s *State, all []*throttle.Limiter) {
				for i, p := range s.admit(t, all[0], 2, throttle.Cost{"tokens": 300}) {
					actual := []int64{100, 450}[i]
					if err := p.Settle(throttle.Cost{"tokens": actual}); err != nil {
						t.Fatal(err)
					}
					p.Release()
					s.Admitted["tokens"] += actual - 300
				}
				time.Sleep(settled)
				s.admit(t, all[0], 1, throttle.Cost{"tokens": 440})
				time.Sleep(settled)
			},
		},
		{
			name: "follow", teaches: true, tiers: [][]string{{"50/h;algo=fixed_window;follow=5..100"}},
			calls: "seven requests arrive and end, and responses name the limit 20", play: follow,
		},
		{
			name: "learn", teaches: true, tiers: [][]string{{"60/min;algo=gcra;burst=1;learn=1..1000"}},
			calls: "the provider refuses the eighth request", play: learn,
		},
	}...)
}

// pauseFor is the length of a pause.
func pauseFor(s *State) time.Duration {
	if strings.Contains(s.Tiers[0][0], "876000h") {
		return 80 * 365 * 24 * time.Hour
	}
	return 40 * time.Minute
}

func seven(t testing.TB, s *State, all []*throttle.Limiter) {
	pass(s.admit(t, all[0], 7, nil))
	time.Sleep(settled)
}

func waiting(t testing.TB, s *State, all []*throttle.Limiter) {
	pass(s.admit(t, all[0], 5, nil))
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- all[0].Wait(ctx) }()
	time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute - 100*time.Millisecond)))
	s.copy(t)
	if err := <-done; err != nil {
		t.Fatalf("%s: %v", s.Name, err)
	}
	s.Reserved = 1
}

// A namer is an API whose responses name a limit.
type namer struct{ limit string }

func (n namer) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{"X-Ratelimit-Limit": {n.limit}}, Body: http.NoBody, Request: req}, nil
}

func follow(t testing.TB, s *State, all []*throttle.Limiter) {
	client := &http.Client{Transport: &throttle.Transport{
		Limiter: all[0], Base: namer{"20"},
		Profile: &answers.Profile{Quotas: []answers.Quota{{Limit: answers.Field{Header: "X-RateLimit-Limit"}}}},
	}}
	for range 7 {
		resp, err := client.Get("http://api.test/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		s.Admitted[algorithms.Requests]++
	}
	s.Limits = []int64{20}
	time.Sleep(settled)
}

func learn(t testing.TB, s *State, all []*throttle.Limiter) {
	for i := range 8 {
		p := s.admit(t, all[0], 1, nil)[0]
		if i == 7 {
			if err := p.Refused(t.Context(), time.Second); err != nil {
				t.Fatal(err)
			}
		} else {
			p.Passed()
		}
		p.Release()
	}
	time.Sleep(settled)
	s.Limits = []int64{limitOf(tiers(t, all[0])[0])}
}
