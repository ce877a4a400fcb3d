package throttle_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// changes returns an Observer that keeps what has changed.
func changes(all *[]throttle.ChangedInfo) *throttle.Observer {
	return throttle.JoinObservers(&throttle.Observer{Changed: func(i throttle.ChangedInfo) { *all = append(*all, i) }}, new(throttle.Observer))
}

// send sends a request through a transport.
func send(t *testing.T, tr *throttle.Transport) int {
	t.Helper()
	resp, err := tr.RoundTrip(httptest.NewRequestWithContext(t.Context(), "GET", "http://api.test/", nil))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// A limit that a response names is reported and explained, and the tier keeps its text.
func TestFollowedLimitIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const text = "5000/h;algo=fixed_window;follow=15000"
		p, err := throttle.ParsePolicy("api", "100/s + "+text)
		if err != nil {
			t.Fatal(err)
		}
		var changed []throttle.ChangedInfo
		p.Observer = changes(&changed)
		l, err := throttle.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		api := &namer{limit: 15000}
		tr := &throttle.Transport{Limiter: l, Base: api, Profile: namesLimit}
		for range 3 {
			send(t, tr)
		}
		api.limit = 800
		send(t, tr)
		want := "[{api " + text + " 5000 15000 limit} {api " + text + " 15000 800 limit}]"
		if got := fmt.Sprint(changed); got != want {
			t.Errorf("changed %s\nwant    %s", got, want)
		}
		e, err := l.Explain(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		explained := text + " has room for 796: 4 of 800 used. 800/h is followed: the policy says 5000/h."
		if !strings.Contains(e.String(), explained) {
			t.Errorf("explained as %q, want %q in it", e, explained)
		}
		s, err := l.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if tier := s.Tiers[1]; tier.Tier.String() != text || tier.Limit != 800 || tier.Followed != 800 || s.Tiers[0].Followed != 0 {
			t.Errorf("status %+v", s.Tiers)
		}
		_, err = l.TryAcquire(t.Context(), throttle.Cost{"requests": 900})
		if want := `throttle: policy "api": cost of 900 requests exceeds the capacity of tier 100/s`; err == nil || err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
		only := throttle.Policy{Name: "api", Tiers: p.Tiers[1:], Observer: p.Observer}
		if err := l.SetPolicy(t.Context(), only); err != nil {
			t.Fatal(err)
		}
		send(t, tr)
		_, err = l.TryAcquire(t.Context(), throttle.Cost{"requests": 900})
		if want := `throttle: policy "api": cost of 900 requests exceeds the capacity of tier ` + text + ", of which responses name 800"; err == nil || err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
		if err := l.Forget(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, err = l.Status(t.Context()); err != nil || s.Tiers[0].Followed != 0 || s.Tiers[0].Limit != 5000 {
			t.Errorf("after Forget: %v, %v", s, err)
		}
	})
}

// limited is a provider that admits a number of requests in each second of its clock.
type limited struct {
	most, sent int
	second     int64
}

func (p *limited) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(10 * time.Millisecond)
	if now := time.Now().Unix(); now != p.second {
		p.second, p.sent = now, 0
	}
	resp := &http.Response{StatusCode: 200, Header: make(http.Header), Body: http.NoBody, Request: req}
	if p.sent++; p.sent > p.most {
		resp.StatusCode = 429
		resp.Header.Set("Retry-After", "1")
	}
	return resp, nil
}

// A decrease of a learned rate is reported once, with the rate that was refused.
func TestDecreaseOfLearnedRateIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := throttle.ParsePolicy("api", "10/s;algo=gcra;burst=1;learn=1000")
		if err != nil {
			t.Fatal(err)
		}
		var changed []throttle.ChangedInfo
		p.Observer = changes(&changed)
		l, err := throttle.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		status := func() throttle.TierStatus {
			s, err := l.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s.Tiers[0]
		}
		if got := status().Origin(); !strings.HasPrefix(got, "10/s is the start: nothing is learned yet, tries up to ") {
			t.Errorf("at the start: %q", got)
		}
		tr := &throttle.Transport{Limiter: l, Base: &limited{most: 20}}
		for len(changed) == 0 {
			send(t, tr)
		}
		c, known := changed[0], status()
		if c.Policy != "api" || c.Tier != "10/s;algo=gcra;burst=1;learn=1000" || c.Cause != throttle.ChangedByRefusal || c.From < 15 || c.From > 30 || math.Abs(c.To-0.8*c.From) > 1e-5 {
			t.Errorf("changed %+v", c)
		}
		if known.Learned.Refused != c.From || known.Learned.Rate != c.To {
			t.Errorf("changed %+v, but %+v is known", c, known.Learned)
		}
		time.Sleep(2 * time.Second) // the pause ends
		for range 20 {
			send(t, tr)
		}
		want := fmt.Sprintf("%s is learned: refused at %s ", p.Tiers[0].FormatRate(status().Learned.Rate), p.Tiers[0].FormatRate(c.From))
		if got := status().Origin(); !strings.HasPrefix(got, want) || len(changed) != 1 {
			t.Errorf("%q after %d changes, want %q", got, len(changed), want)
		}
	})
}

// A decrease is reported of the member of a Pool, whose Observer needs no Answered.
func TestDecreaseOfMemberIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := throttle.ParsePolicy("east", "10/s;algo=gcra;burst=1;learn=1000")
		if err != nil {
			t.Fatal(err)
		}
		var changed []throttle.ChangedInfo
		p.Observer = changes(&changed)
		l, err := throttle.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		pool, err := throttle.NewPool(throttle.Member{Name: "east", Limiter: l})
		if err != nil {
			t.Fatal(err)
		}
		pool.Observer = new(throttle.Observer)
		asIs := func(*http.Request, string) error { return nil }
		tr := &throttle.Transport{Pool: pool, Rewrite: asIs, Base: &limited{most: 20}}
		for range 500 {
			send(t, tr)
		}
		if len(changed) == 0 || changed[0].Policy != "east" || changed[0].Cause != throttle.ChangedByRefusal {
			t.Errorf("changed %+v", changed)
		}
	})
}

// An Observer without Changed receives no change, and a limiter without an Observer follows.
func TestChangesWithoutListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, o := range []*throttle.Observer{nil, new(throttle.Observer)} {
			p, err := throttle.ParsePolicy("api", "5000/h;follow=15000")
			if err != nil {
				t.Fatal(err)
			}
			p.Observer = o
			l, err := throttle.New(p, nil)
			if err != nil {
				t.Fatal(err)
			}
			send(t, &throttle.Transport{Limiter: l, Base: &namer{limit: 1000}, Profile: namesLimit})
			if s, err := l.Status(t.Context()); err != nil || s.Tiers[0].Followed != 1000 {
				t.Error(s, err)
			}
		}
	})
}

// A named limit without a window is of the tier that can follow it, and of none if several can.
func TestNamedLimitFindsItsTier(t *testing.T) {
	for _, test := range []struct {
		policy string
		limit  int64
		want   string // the limits after two responses
	}{
		{"100/s + 5000/h;follow=15000", 15000, "[100 15000]"},
		{"5000/h;follow=15000 + 100/s + 100000/d", 15000, "[15000 100 100000]"},
		{"100/s + 20/m + 5000/h;follow=15000", 600, "[100 20 600]"},
		{"100/s + 5000/h;follow=15000", 120, "[100 5000]"}, // below a tenth, so it may be of the other
		{"100/s + 5000/h;follow=15000", 100, "[100 5000]"},
		{"5000/h;follow=15000 + 9000/d;follow=20000", 12000, "[5000 9000]"},
		{"5000/h;follow=15000 + 9000/d;follow=20000 + 1/s", 18000, "[5000 18000 1]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, err := throttle.ParsePolicy("api", test.policy)
			if err != nil {
				t.Fatal(err)
			}
			l, err := throttle.New(p, nil)
			if err != nil {
				t.Fatal(err)
			}
			tr := &throttle.Transport{Limiter: l, Base: &namer{limit: test.limit}, Profile: namesLimit}
			for range 2 {
				send(t, tr)
			}
			s, err := l.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var limits []int64
			for _, tier := range s.Tiers {
				limits = append(limits, tier.Limit)
			}
			if fmt.Sprint(limits) != test.want {
				t.Errorf("%s: %v after a limit of %d, want %s", test.policy, limits, test.limit, test.want)
			}
		})
	}
}

// A higher limit of which much is used already leaves room for the second response that confirms it.
func TestHigherLimitInUseIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := throttle.ParsePolicy("api", "5000/h;algo=fixed_window;follow=15000 | max_wait=1s")
		if err != nil {
			t.Fatal(err)
		}
		l, err := throttle.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		api := &namer{limit: 15000, sent: 6000}
		tr := &throttle.Transport{Limiter: l, Base: api, Profile: namesLimit}
		for range 3 {
			send(t, tr)
		}
		s, err := l.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Tiers[0]; got.Followed != 15000 || got.Used < 6003 || got.Used > 6004 {
			t.Errorf("%v, want 6003 of 15000 used", got)
		}
	})
}
