package throttle_test

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/throttletest"
)

// reports returns an Observer that keeps the last report, and the reports' place.
func reports() (*throttle.Observer, **throttle.RefusalReport) {
	last := new(*throttle.RefusalReport)
	return &throttle.Observer{Answered: func(_ context.Context, i throttle.AnsweredInfo) { *last = i.Report }}, last
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

// TestRefusalReportOfAPermit checks the report on a refusal that a Permit reports, in nested quotas and
// again and again.
func TestRefusalReportOfAPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		observer, last := reports()
		inner, outer := exact(throttle.PerSecond(5)), exact(throttle.PerMinute(2))
		inner.Name, outer.Name, inner.Observer = "inner", "outer", observer
		l := mustNew(t, inner, nil).Within(mustNew(t, outer, nil))
		for n := range 3 {
			p, _ := acquireTimed(t, l)
			if err := p.Refused(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			p.Release()
			want := throttle.RefusalReport{Backoffs: n, Fullest: &throttle.TierCount{Policy: "outer", Tier: "2/m", Unit: "requests", Used: min(2, int64(n+1)), Limit: 2}}
			if n == 2 {
				want.Fullest.Used = (*last).Fullest.Used // the window rolls
			}
			if !reflect.DeepEqual(**last, want) {
				t.Errorf("refusal %d: %+v, want %+v", n, **last, want)
			}
		}
		p, _ := acquireTimed(t, l)
		p.Passed()
		if *last != nil {
			t.Errorf("a success has the report %v", *last)
		}
		p.Release()
	})
}
