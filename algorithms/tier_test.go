package algorithms_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
)

func TestTierValidate(t *testing.T) {
	second := time.Second
	for _, tc := range []struct {
		name string
		tier Tier
		want []string // parts of the error; nil if the tier is valid
	}{
		{"default", Tier{Limit: 5, Window: second}, nil},
		{"zero", Tier{}, []string{"Limit is 0", "Window is 0s"}},
		{"limit", Tier{Limit: -1, Window: second}, []string{"Limit is -1: it must be from 1 to 1000000000000"}},
		{"limit too large", Tier{Limit: MaxLimit + 1, Window: second}, []string{"Limit is 1000000000001"}},
		{"window", Tier{Limit: 1, Window: -second}, []string{"Window is -1s: it must be from 1µs"}},
		{"window too long", Tier{Limit: 1, Window: MaxWindow + time.Microsecond}, []string{"Window is 876000h0m0.000001s"}},
		{"window not whole", Tier{Limit: 1, Window: 1500 * time.Nanosecond}, []string{"Window is 1.5µs: it must be whole microseconds"}},
		{"concurrency", Tier{Limit: 1, Algorithm: Concurrency}, nil},
		{"concurrency with window", Tier{Limit: 1, Window: second, Algorithm: Concurrency}, []string{"Window is 1s: concurrency has none"}},
		{"algorithm", Tier{Limit: 1, Window: second, Algorithm: 99}, []string{"Algorithm is 99: it must be one of sliding_log, "}},
		{"burst", Tier{Limit: 1, Window: second, Algorithm: GCRA, Burst: 15}, nil},
		{"burst negative", Tier{Limit: 1, Window: second, Algorithm: GCRA, Burst: -1}, []string{"Burst is -1: it must be from 1"}},
		{"burst too slow", Tier{Limit: 1, Window: 24 * time.Hour, Algorithm: TokenBucket, Burst: 40_000}, []string{"Burst is 40000: refilling it at 1 per 24h0m0s takes longer"}},
		{"burst of a log", Tier{Limit: 1, Window: second, Burst: 3}, []string{"Burst is 3: sliding_log has none"}},
		{"precision", Tier{Limit: 1, Window: second, Algorithm: SlidingWindow, Precision: time.Millisecond}, nil},
		{"precision of a log", Tier{Limit: 1, Window: second, Precision: time.Millisecond}, []string{"Precision is 1ms: sliding_log has none"}},
		{"precision too fine", Tier{Limit: 1, Window: time.Hour, Algorithm: SlidingWindow, Precision: time.Millisecond}, []string{"Precision is 1ms: it must be from 360ms to 1h0m0s"}},
		{"phase", Tier{Limit: 1, Window: second, Algorithm: FixedWindow, Phase: second - time.Microsecond}, nil},
		{"phase of a whole window", Tier{Limit: 1, Window: second, Algorithm: FixedWindow, Phase: second}, []string{"Phase is 1s: it must be from 0s to 999.999ms"}},
		{"phase of a bucket", Tier{Limit: 1, Window: second, Algorithm: GCRA, Phase: 1000}, []string{"Phase is 1µs: gcra has none"}},
		{"unit", Tier{Limit: 1, Window: second, Unit: "a b"}, []string{`Unit is "a b"`}},
		{"calendar", Tier{Limit: 1, Algorithm: Calendar, Period: Month, Zone: "Europe/Berlin", Budget: true}, nil},
		{"calendar with window", Tier{Limit: 1, Window: second, Algorithm: Calendar, Period: Day, PaceBurst: 1}, []string{"Window is 1s: calendar has a Period instead", "PaceBurst is 1: the periods"}},
		{"calendar without period", Tier{Limit: 1, Algorithm: Calendar}, []string{"Period is 0: it must be Day, Week or Month"}},
		{"period of a log", Tier{Limit: 1, Window: second, Period: Day, Zone: "UTC"}, []string{"Period is day: sliding_log has none", `Zone is "UTC": sliding_log has none`}},
		{"zone", Tier{Limit: 1, Algorithm: Calendar, Period: Day, Zone: "Mars/Olympus"}, []string{`Zone is "Mars/Olympus": unknown time zone Mars/Olympus: use a name of the IANA database`, "import time/tzdata"}},
		{"zone of the machine", Tier{Limit: 1, Algorithm: Calendar, Period: Day, Zone: "Local"}, []string{`Zone is "Local": it must be the name of a place`}},
		{"zone with a plus", Tier{Limit: 1, Algorithm: Calendar, Period: Day, Zone: "Etc/GMT+5"}, []string{`Zone is "Etc/GMT+5": it must be the name of a place`}},
		{"budget", Tier{Limit: 1, Window: second, Budget: true}, nil},
		{"budget of permits", Tier{Limit: 1, Algorithm: Concurrency, Budget: true}, []string{"Budget is true: requests that exceed concurrency wait"}},
		{"everything", Tier{Limit: 0, Window: 0, Burst: 1, Phase: 1, Unit: "+"}, []string{"Limit", "Window", "Burst", "Phase", "Unit"}},
	} {
		err := tc.tier.Validate()
		if len(tc.want) == 0 {
			if err != nil {
				t.Errorf("%s: error %v, want none", tc.name, err)
			}
			continue
		}
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v\nwant %q in it", tc.name, err, want)
			}
		}
	}
}

func TestParseTier(t *testing.T) {
	for _, tc := range []struct {
		spec string
		want Tier
	}{
		{"5/s", Tier{Limit: 5, Window: time.Second}},
		{" 60 / 20s ", Tier{Limit: 60, Window: 20 * time.Second}},
		{"10000/h", Tier{Limit: 10000, Window: time.Hour}},
		{"1/30d", Tier{Limit: 1, Window: 30 * 24 * time.Hour}},
		{"100000/m;unit=tokens;algo=token_bucket;burst=20000", Tier{Limit: 100000, Window: time.Minute, Unit: "tokens", Algorithm: TokenBucket, Burst: 20000}},
		{"10;algo=concurrency", Tier{Limit: 10, Algorithm: Concurrency}},
		{"6000/m;algo=fixed_window;phase=500ms", Tier{Limit: 6000, Window: time.Minute, Algorithm: FixedWindow, Phase: 500 * time.Millisecond}},
		{"100000000/month;unit=usd;zone=Europe/Berlin;budget=true", Tier{Limit: 100_000_000, Unit: "usd", Algorithm: Calendar, Period: Month, Zone: "Europe/Berlin", Budget: true}},
		{"7/ week ;algo=calendar", Tier{Limit: 7, Algorithm: Calendar, Period: Week}},
		{"5/s;budget=true", Tier{Limit: 5, Window: time.Second, Budget: true}},
		{"9/h;algo=sliding_window; precision = 10s", Tier{Limit: 9, Window: time.Hour, Algorithm: SlidingWindow, Precision: 10 * time.Second}},
	} {
		got, err := ParseTier(tc.spec)
		if err != nil || got != tc.want {
			t.Errorf("%q: %+v, %v; want %+v", tc.spec, got, err, tc.want)
		}
		if again, err := ParseTier(got.String()); err != nil || again != got {
			t.Errorf("%q: the text is %q, which parses to %+v, %v", tc.spec, got, again, err)
		}
	}
	for spec, want := range map[string]string{
		"":                       `limit: "" is not a whole number`,
		"x/s":                    `limit: "x" is not a whole number`,
		"-5/s":                   `limit: "-5" is not a whole number`,
		"5":                      "window: it is missing: write 5/s, 5/min, 5/h or 5/d",
		"5/":                     `window: "" is not a length of time`,
		"5/x":                    `window: "x" is not a length of time: use s, min, h, d`,
		"5//s":                   `window: "/s" is not a length of time`,
		"5/s;":                   `option "": write name=value`,
		"5/s;algo":               `option "algo": write name=value`,
		"5/s;algo=magic":         `option "algo": algorithm "magic" is not known: use one of sliding_log`,
		"5/s;speed=3":            `option "speed": is not an option of a tier`,
		"5/s;unit=a;unit=b":      `option "unit" is given twice`,
		"5/s;burst=3":            "Burst is 3: sliding_log has none",
		"5/day;budget=yes":       `option "budget": "yes" is not a boolean: use true or false`,
		"5/day;algo=gcra":        "Period is day: gcra has none",
		"5/s;algo=calendar":      "Window is 1s: calendar has a Period instead",
		"5/s;algo=concurrency":   "Window is 1s: concurrency has none",
		"99999999999999999999/s": "is too large: write limit/window",
		"5/9999999999d":          "is not a length of time",
	} {
		if _, err := ParseTier(spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v\nwant %q in it", spec, err, want)
		}
	}
}
