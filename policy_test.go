package throttle_test

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/throttletest"
)

func TestParsePolicy(t *testing.T) {
	got, err := throttle.ParsePolicy("coinbase", "5/s + 10000/h;algo=fixed_window;phase=1m | guard=100ms; max_wait=30s; max_queue=1000; max_pause=10m")
	want := throttle.Policy{
		Name: "coinbase",
		Tiers: []throttle.Tier{
			throttle.PerSecond(5),
			{Limit: 10000, Window: time.Hour, Algorithm: throttle.FixedWindow, Phase: time.Minute},
		},
		Guard:    100 * time.Millisecond,
		MaxWait:  30 * time.Second,
		MaxQueue: 1000,
		MaxPause: 10 * time.Minute,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	const spec = "5/s + 10000/h;algo=fixed_window;phase=1m0s | guard=100ms;max_wait=30s;max_queue=1000;max_pause=10m0s"
	if got.String() != spec {
		t.Errorf("String() = %q\nwant       %q", got, spec)
	}
	for long, short := range map[string]string{
		"5/sec + 100/min + 10000/hour": "5/s + 100/m + 10000/h",
		"5/second + 100/minute":        "5/s + 100/m",
		"1000/d + 9/hr + 2/24h":        "1000/d + 9/h + 2/d",
	} {
		if p, err := throttle.ParsePolicy("", long); err != nil || p.String() != short {
			t.Errorf("%s is written as %s, %v; want %s", long, p, err, short)
		}
	}
	for _, spec := range []string{
		"5/s | aging=30s;headroom=20", "5/s | guard=none", "5/s | guard=auto", "5/s | assume_used=true", "5/s | assume_used=true;shadow=true;ignore_reports=true",
		"60/m;algo=fixed_window;phase=unknown", "10000/h;unit=tokens;algo=token_bucket;burst=500;pace_burst=20",
		"100000000/month;unit=usd;zone=Europe/Berlin;budget=true | alert_at=50,80,100", "7/week + 1/day | guard=none",
	} {
		if p, err := throttle.ParsePolicy("", spec); err != nil || p.String() != spec {
			t.Errorf("%s is written as %s, %v; want it unchanged", spec, p, err)
		}
	}
}

func TestParsePolicyRefuses(t *testing.T) {
	for spec, want := range map[string]string{
		"":                                `policy "p": tier 1 is empty: write limit/window, such as 5/s`,
		"5/s +":                           `policy "p": tier 2 is empty: write limit/window`,
		"5/s + 5/x":                       `policy "p": tier "5/x": window: "x" is not a length of time`,
		"5/s 10000/h":                     `tier "5/s 10000/h": join limits with +, such as 5/s + 10000/h`,
		"5/s;10000/h":                     `tier "5/s;10000/h": join limits with +`,
		"5/s, 100/min and 10000/h":        "join limits with +",
		"5":                               `tier "5": window: it is missing: write 5/s, 5/min, 5/h or 5/d`,
		"5/":                              `tier "5/": window`,
		"99999999999999999999/s":          `limit: "99999999999999999999" is too large: write limit/window`,
		"5 per second":                    `limit: "5 per second" is not a whole number: write limit/window, such as 5/s`,
		"5//s":                            `policy "p": tier "5//s": window: "/s"`,
		"5/s | burst=3":                   `policy "p": option "burst": is not an option of a policy: use guard`,
		"5/s | guard=fast":                `option "guard": "fast" is not a length of time`,
		"5/s | guard=-5ms":                "Guard is -5ms: it must be at least 0, NoGuard or AutoGuard",
		"5/s | max_queue=-1":              "MaxQueue is -1: it must be at least 0",
		"5/s | max_wait=-1s":              "MaxWait is -1s",
		"5/s | max_pause=-1s":             "MaxPause is -1s",
		"5/s | aging=-1s":                 "Aging is -1s: it must be from 0 to",
		"5/s | headroom=91":               "Headroom is 91: it must be from 0 to 90 percent",
		"5/s | headroom=-1":               "Headroom is -1",
		"5/s | headroom=half":             `option "headroom"`,
		"5/s | assume_used=soon":          `option "assume_used": "soon" is not a boolean: use true or false`,
		"5/s;phase=unknown":               "Phase is -1ns: sliding_log has none",
		"5/s;pace_burst=6":                "PaceBurst is 6: it must be from 1 to Limit, 5, or zero for none",
		"5;algo=concurrency;pace_burst=1": "PaceBurst is 1: concurrency has no window to pace",
		"5/s | ":                          `option "": write name=value`,
		"5/s | guard=1s | x":              "is not a length of time",
		"5/s;algo=token_bucket;burst=-3":  `option "burst": "-3" is not a whole number`,
	} {
		p, err := throttle.ParsePolicy("p", spec)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v\nwant one that contains %q", spec, err, want)
		}
		if !reflect.DeepEqual(p, throttle.Policy{}) {
			t.Errorf("%q: an error and the policy %+v, want a zero policy", spec, p)
		}
	}
}

func FuzzParsePolicy(f *testing.F) {
	for _, spec := range []string{
		"5/s + 10000/h", "100000/m;unit=tokens;algo=token_bucket;burst=20000", "10;algo=concurrency", "1/30d",
		"5/s | guard=none;max_wait=1h;assume_used=true", "5/s | shadow=true;ignore_reports=true", "5/s | aging=1m;headroom=90", "9/h;algo=fixed_window;phase=unknown;pace_burst=3", "9/h;algo=sliding_window;precision=10s",
		"9/month;zone=Asia/Beirut;budget=true + 5/day + 1/week | alert_at=50,80", "1/s;unit=usd;estimated=true", "5/x", "5//s", "+", "|", ";", "",
	} {
		f.Add(spec)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		p, err := throttle.ParsePolicy("fuzz", spec)
		if err != nil {
			return
		}
		if err := p.Validate(); err != nil {
			t.Fatalf("ParsePolicy(%q) returned a policy that is not valid: %v", spec, err)
		}
		again, err := throttle.ParsePolicy("fuzz", p.String())
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Fatalf("%q is written as %q and read as %+v, %v; was %+v", spec, p, again, err, p)
		}
		if _, err := throttle.New(p, nil); err != nil {
			t.Fatalf("New of %q: %v", spec, err)
		}
	})
}

// TestValidateReportsAll checks that Validate reports all problems at once, each with its field.
func TestValidateReportsAll(t *testing.T) {
	p := throttle.Policy{
		Name:     "bad\nname",
		Tiers:    []throttle.Tier{throttle.PerSecond(5), {Limit: 0, Window: time.Second}, {Limit: 3, Window: time.Second, Burst: -1, Algorithm: throttle.GCRA}},
		Guard:    -3,
		MaxWait:  -1,
		MaxQueue: -1,
		MaxPause: -1,
	}
	err := p.Validate()
	if err == nil {
		t.Fatal("Validate returned no error")
	}
	for _, want := range []string{
		`Name is "bad\nname"`, "Guard is -3ns", "MaxWait is -1ns", "MaxQueue is -1", "MaxPause is -1ns",
		`tier "0/s": Limit is 0: it must be from 1`, `tier "3/s;algo=gcra;burst=-1": Burst is -1`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v\nwant one that contains %q", err, want)
		}
	}
	for name, make := range map[string]func(throttle.Policy, throttle.Store) error{
		"New": func(p throttle.Policy, s throttle.Store) error { _, err := throttle.New(p, s); return err },
		"NewGroup": func(p throttle.Policy, s throttle.Store) error {
			_, err := throttle.NewGroup(p, s, throttle.GroupOptions{})
			return err
		},
	} {
		if err := make(p, nil); err == nil {
			t.Errorf("%s accepts a policy that is not valid", name)
		}
		if err := make(throttle.Policy{}, nil); err == nil || !strings.Contains(err.Error(), "Tiers is empty") {
			t.Errorf("%s of a zero policy: error %v, want one that contains Tiers is empty", name, err)
		}
		if err := make(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}}, local.New()); err == nil || !strings.Contains(err.Error(), "Name is empty") {
			t.Errorf("%s without a Name in a shared store: error %v, want one that contains Name is empty", name, err)
		}
	}
}

// TestPolicyIsCopied checks that later changes of the caller's policy do not change the Limiter.
func TestPolicyIsCopied(t *testing.T) {
	p := throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}}
	l, err := throttle.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Tiers[0].Limit = 1000
	l.Allow()
	if s, _ := l.Status(context.Background()); s.Tiers[0].Tier.Limit != 1 || l.Allow() {
		t.Errorf("the tiers are shared with the caller: %+v", s.Tiers[0])
	}
}

func TestPolicyText(t *testing.T) {
	for _, p := range []throttle.Policy{
		{Name: "mail", Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10000)}, Guard: throttle.AutoGuard},
		{Name: "a: b", Tiers: []throttle.Tier{throttle.PerSecond(5)}, MaxQueue: 3},
		{Tiers: []throttle.Tier{throttle.PerMinute(1)}},
	} {
		text, err := json.Marshal(map[string]throttle.Policy{"policy": p})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]*throttle.Policy
		if err := json.Unmarshal(text, &got); err != nil || got["policy"].Name != p.Name || got["policy"].String() != p.String() {
			t.Errorf("%s is read as %q, %v, %v", text, got["policy"].Name, got["policy"], err)
		}
	}
	observer := new(throttle.Observer)
	p := throttle.Policy{Name: "mail", Tiers: []throttle.Tier{throttle.PerSecond(5)}, Observer: observer}
	if err := p.UnmarshalText([]byte("mail: 5/fortnight")); err == nil || p.String() != "5/s" {
		t.Errorf("a text that is not valid is read as %v, %v", p, err)
	}
	if err := p.UnmarshalText([]byte("post: 6/s")); err != nil || p.Name != "post" || p.String() != "6/s" || p.Observer != observer {
		t.Errorf("got %q, %v, %v, want the policy post with its Observer", p.Name, p, err)
	}
}

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
