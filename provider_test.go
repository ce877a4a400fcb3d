package throttle_test

import (
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/throttletest"
)

// TestAssumeUsed checks that requests of a restarted program, which does not know what it sent
// before, are not refused with AssumeUsed, and are refused without.
func TestAssumeUsed(t *testing.T) {
	tiers := []throttle.Tier{throttle.PerSecond(5), {Limit: 60, Window: 20 * time.Second}}
	for _, algorithm := range []throttle.Algorithm{throttle.SlidingLog, throttle.FixedWindow, throttle.TokenBucket} {
		for _, used := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				policy := throttle.Policy{AssumeUsed: used}
				for _, tier := range tiers {
					tier.Algorithm = algorithm
					policy.Tiers = append(policy.Tiers, tier)
				}
				api := throttletest.New(policy.Tiers...)
				api.Delay = uniform(5*time.Millisecond, 50*time.Millisecond)
				for range 3 {
					saturate(t, policy, api, 8, 45*time.Second)
				}
				refused, _ := outcome(api)
				if (refused > 0) == used {
					t.Errorf("%v, AssumeUsed %t: %v requests were refused", algorithm, used, refused)
				}
			})
		}
	}
}

// TestAssumeUsedInAGroup checks that the quotas of a group's keys count as used from NewGroup on. A
// key that is first used a window later is unused.
func TestAssumeUsedInAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := throttle.NewGroup(throttle.Policy{Tiers: []throttle.Tier{throttle.PerMinute(5)}, AssumeUsed: true}, nil, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if g.For("a").Allow() {
			t.Error("a key was admitted at once")
		}
		time.Sleep(time.Minute)
		if g.For("b").Allow() {
			t.Error("a key was admitted after a minute, when earlier requests may just have arrived")
		}
		time.Sleep(50 * time.Millisecond)
		if !g.For("a").Allow() || !g.For("b").Allow() || !g.For("c").Allow() {
			t.Error("a key was not admitted after a window")
		}
	})
}

// TestPaceBurst checks that a paced tier sends evenly enough for a provider that requires equal
// spacing.
func TestPaceBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.New(throttle.Tier{Limit: 36000, Window: time.Hour, Algorithm: throttle.GCRA, Burst: 1})
		api.Delay = uniform(5*time.Millisecond, 50*time.Millisecond)
		paced := throttle.Tier{Limit: 36000, Window: time.Hour, PaceBurst: 1}
		saturate(t, throttle.Policy{Tiers: []throttle.Tier{paced}}, api, 8, 10*time.Minute)
		refused, accepted := outcome(api)
		// One request each tenth of a second plus the delay, which is 27.5 ms on average.
		if upperBound := 600 / 0.1275; refused > 0 || accepted < 0.95*upperBound {
			t.Errorf("%v refused, %v accepted, want 0 and at least 95 %% of %v", refused, accepted, upperBound)
		}
	})
}

func TestStatusOfAPacedTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hour := throttle.Tier{Limit: 3600, Window: time.Hour, PaceBurst: 4}
		lim, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{hour, throttle.PerMinute(100)}, Guard: throttle.NoGuard}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := lim.WaitN(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		s, err := lim.Status(t.Context())
		if err != nil || len(s.Tiers) != 2 {
			t.Fatalf("%+v, %v", s, err)
		}
		want := throttle.TierStatus{
			Tier: hour, Limited: true, Limit: 3600, Used: 4, Remaining: 0, RetryAfter: time.Second, ResetAfter: time.Hour, MaxRate: 1,
		}
		if s.Tiers[0] != want {
			t.Errorf("%+v, want %+v", s.Tiers[0], want)
		}
		if got := s.Tiers[1]; got.Tier != throttle.PerMinute(100) || got.Remaining != 96 {
			t.Errorf("the other tier: %+v, want 96 remaining", got)
		}
		err = lim.WaitN(t.Context(), 5)
		if want := `throttle: cost of 5 requests exceeds the capacity of tier 3600/h;pace_burst=4`; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	})
}

// A headed API reports in each response when its window ends, by a clock that is an hour fast.
type headed struct {
	api           *throttletest.Provider
	window, phase time.Duration
}

const fast = time.Hour

func (h headed) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := h.api.RoundTrip(req)
	if err == nil {
		now := time.Now()
		ends := now.Add(-h.phase).Truncate(h.window).Add(h.window + h.phase)
		resp.Header.Set("Date", now.Add(fast).UTC().Format(http.TimeFormat))
		resp.Header.Set("X-Reset", strconv.FormatInt(ends.Add(fast).Unix(), 10))
	}
	return resp, err
}

// TestUnknownPhase checks that a fixed window of unknown phase is rolling until its end is known,
// and that requests then wait no longer than until that end.
func TestUnknownPhase(t *testing.T) {
	reset := func(header string) *answers.Profile {
		return &answers.Profile{Quotas: []answers.Quota{{Reset: answers.Field{Header: header, Format: answers.EpochSeconds}}}}
	}
	for _, tt := range []struct {
		reset       *answers.Profile
		least, most time.Duration // until the 61st request
	}{
		{nil, time.Minute, time.Minute + 50*time.Millisecond},
		{reset("X-Reset"), 37 * time.Second, 41 * time.Second},
		{reset("X-Other"), time.Minute, time.Minute + 50*time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			const phase = 37 * time.Second // a bubble's clock starts at a full minute
			api := throttletest.New(throttle.Tier{Limit: 60, Window: time.Minute, Algorithm: throttle.FixedWindow, Phase: phase})
			api.Delay = uniform(5*time.Millisecond, 50*time.Millisecond)
			lim, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{
				{Limit: 60, Window: time.Minute, Algorithm: throttle.FixedWindow, Phase: throttle.UnknownPhase},
			}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			client := &http.Client{Transport: &throttle.Transport{Base: headed{api, time.Minute, phase}, Limiter: lim, Profile: tt.reset}}
			began := time.Now()
			for i := range 300 {
				resp, err := client.Get("http://api.test/")
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if took := time.Since(began); i == 60 && (took < tt.least || took > tt.most+50*time.Millisecond) {
					t.Errorf("request 61 was answered after %v, want %v to %v", took, tt.least, tt.most)
				}
			}
			if refused, _ := outcome(api); refused > 0 {
				t.Errorf("%v requests were refused, want 0", refused)
			}
		})
	}
}
