package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/postgres/internal/pgtest"
)

// A teacher is a provider that refuses what comes faster than 80/s, and names a limit in each response.
type teacher struct {
	mu      sync.Mutex
	free    time.Time // when the next request is accepted
	limit   int
	refused int
}

func (p *teacher) RoundTrip(req *http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	resp := &http.Response{StatusCode: 200, Header: make(http.Header), Body: http.NoBody, Request: req}
	now := time.Now()
	if p.free = later(p.free, now.Add(-250*time.Millisecond)); p.free.After(now) {
		resp.StatusCode = 429
		p.refused++
	} else {
		p.free = p.free.Add(time.Second / 80)
	}
	resp.Header.Set("X-RateLimit-Limit", fmt.Sprint(p.limit))
	return resp, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Three processes learn a rate that no response contains, and follow a limit that responses name.
func TestFleetLearnsAndFollows(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	policy := throttle.Policy{Name: "teacher", Tiers: []throttle.Tier{
		{Limit: 40, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 10_000}},
		{Limit: 1000, Window: time.Hour, Algorithm: throttle.FixedWindow, Unit: "calls", Follow: throttle.Follow{Least: 100, Most: 9_000}},
	}}
	profile := &answers.Profile{Quotas: []answers.Quota{{Unit: "calls", Limit: answers.Field{Header: "X-RateLimit-Limit"}}}}
	api := &teacher{limit: 9_000}
	ctx, cancel := context.WithCancel(t.Context())
	var all []*throttle.Limiter
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range 3 {
		l, err := throttle.New(policy, openStore(t, db, postgres.Options{Table: "teacher", PollOnly: i == 2}))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
		client := &http.Client{Transport: &throttle.Transport{Limiter: l, Base: api, Profile: profile}}
		for range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/", nil)
					resp, err := client.Do(req)
					if err == nil {
						resp.Body.Close()
					} else if !errors.Is(err, context.Canceled) && !errors.Is(err, throttle.ErrUnavailable) {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	eventually := func(what string, ok func(tiers []throttle.TierStatus) bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			met := 0
			var last []throttle.TierStatus
			for _, l := range all {
				s, err := l.Status(t.Context())
				if last = s.Tiers; err == nil && ok(s.Tiers) {
					met++
				}
			}
			if met == len(all) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d of %d processes, one has %+v, %+v", what, met, len(all), last[0].Learned, last[1])
			}
		}
	}
	eventually("a higher limit", func(tiers []throttle.TierStatus) bool { return tiers[1].Limit == 9_000 })
	eventually("a refusal", func(tiers []throttle.TierStatus) bool { return tiers[0].Learned.Refused > 40 })
	api.mu.Lock()
	api.limit = 200
	api.mu.Unlock()
	eventually("a lower limit", func(tiers []throttle.TierStatus) bool { return tiers[1].Limit == 200 })
	s, err := all[0].Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Tiers[0].Learned; r.Refused < 40 || r.Refused > 1000 {
		t.Errorf("learned %+v", r)
	}
	t.Logf("learned %+v, %d refused", s.Tiers[0].Learned, api.refused)
}
