package algorithms_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
)

func TestParseTierInDollars(t *testing.T) {
	month := Tier{Limit: 500_000_000_000, Unit: Nanodollars, Algorithm: Calendar, Period: Month, Budget: true, Estimated: true}
	change := func(f func(*Tier)) Tier {
		changed := month
		f(&changed)
		return changed
	}
	for _, tc := range []struct {
		spec, text string
		want       Tier
	}{
		{"$500/month", "$500/month", month},
		{" $500.00 / month ", "$500/month", month},
		{"$0.50/day", "$0.50/day", change(func(t *Tier) { t.Limit, t.Period = 500_000_000, Day })},
		{"$0.5/day", "$0.50/day", change(func(t *Tier) { t.Limit, t.Period = 500_000_000, Day })},
		{"$0.000000001/day", "$0.000000001/day", change(func(t *Tier) { t.Limit, t.Period = 1, Day })},
		{"$12.3456/day", "$12.3456/day", change(func(t *Tier) { t.Limit, t.Period = 12_345_600_000, Day })},
		{"$10/week;zone=Europe/Berlin", "$10/week;zone=Europe/Berlin", change(func(t *Tier) { t.Limit, t.Period, t.Zone = 10_000_000_000, Week, "Europe/Berlin" })},
		{"$9000000/month", "$9000000/month", change(func(t *Tier) { t.Limit = MaxDollars })},
		{"$500/month;budget=false", "$500/month;budget=false", change(func(t *Tier) { t.Budget = false })},
		{"$500/month;estimated=false", "$500/month;estimated=false", change(func(t *Tier) { t.Estimated = false })},
		{"500000000000/month;unit=nanodollars;budget=true;estimated=true", "$500/month", month},
		{"500000000000/month;unit=nanodollars", "$500/month;estimated=false;budget=false", change(func(t *Tier) { t.Estimated, t.Budget = false, false })},
		{"$10/h", "$10/h", Tier{Limit: 10_000_000_000, Unit: Nanodollars, Window: time.Hour, Estimated: true}},
		{"$10/h;budget=true", "$10/h;budget=true", Tier{Limit: 10_000_000_000, Unit: Nanodollars, Window: time.Hour, Estimated: true, Budget: true}},
		{"$1;algo=concurrency", "$1;algo=concurrency", Tier{Limit: 1_000_000_000, Unit: Nanodollars, Algorithm: Concurrency}},
	} {
		got, err := ParseTier(tc.spec)
		if err != nil || got != tc.want || got.String() != tc.text {
			t.Errorf("%q: %+v, %v, in text %q; want %+v, %q", tc.spec, got, err, got, tc.want, tc.text)
		}
		if again, err := ParseTier(got.String()); err != nil || again != got {
			t.Errorf("%q: the text is %q, which parses to %+v, %v", tc.spec, got, again, err)
		}
	}
}

func TestBadDollars(t *testing.T) {
	const write = "is not an amount of dollars: write one from $0.000000001 to $9000000 without commas, such as $500/month or $0.50/day"
	for spec, want := range map[string]string{
		"$/month":                 `limit: "$" ` + write,
		"-$5/month":               `limit: "-$5" ` + write,
		"$-5/month":               `limit: "$-5" ` + write,
		"$1,000/month":            `limit: "$1,000" ` + write,
		"$5./month":               `limit: "$5." ` + write,
		"$.5/month":               `limit: "$.5" ` + write,
		"$5.0.0/month":            `limit: "$5.0.0" ` + write,
		"US$5/month":              `limit: "US$5" ` + write,
		"$1e3/month":              `limit: "$1e3" ` + write,
		"$0.0000000001/month":     `limit: "$0.0000000001" has 10 digits after the point: write at most nine`,
		"$99999999999999999/day":  `limit: "$99999999999999999" is too large: write at most $9000000`,
		"$0/month":                "Limit is $0: it must be from $0.000000001 to $9000000",
		"$9000000.000000001/week": "Limit is $9000000.000000001: it must be from $0.000000001 to $9000000",
		"$1000.01/h":              "Limit is $1000.01: it must be from $0.000000001 to $1000",
		"$5":                      "window: it is missing: write $5/day, $5/week or $5/month",
		"$5/year":                 `window: "year" is not a length of time`,
		"$5/day;unit=usd":         "unit: it is usd for a limit in dollars: remove the option unit, or the dollar sign",
		"x/day":                   "write limit/window, such as 5/s, 10000/h or $500/month",
	} {
		if got, err := ParseTier(spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, error %v\nwant %q in it", spec, got, err, want)
		}
	}
}

func TestTextOfDollarsIsExact(t *testing.T) {
	for seed := range uint64(soak.Times(2_000)) {
		r := rand.New(rand.NewPCG(seed, 1))
		tier := Tier{Limit: 1 + r.Int64N(MaxDollars), Unit: Nanodollars, Algorithm: Calendar, Period: Day + Period(r.IntN(3))}
		for range r.IntN(16) { // an amount of any size, often with zeros at its end
			tier.Limit = max(1, tier.Limit/10)
		}
		for range r.IntN(16) {
			tier.Limit = min(MaxDollars, tier.Limit*10)
		}
		tier.Budget, tier.Estimated = r.IntN(4) > 0, r.IntN(4) > 0
		if got, err := ParseTier(tier.String()); err != nil || got != tier || !strings.HasPrefix(tier.String(), "$") {
			t.Fatalf("seed %d: %+v has the text %q, which parses to %+v, %v", seed, tier, tier, got, err)
		}
	}
}

func TestFormatAmount(t *testing.T) {
	for n, want := range map[int64]string{
		0:                         "$0.00",
		1:                         "$0.00",
		499:                       "$0.00",
		500:                       "$0.000001",
		2_100_000:                 "$0.0021",
		120_000_000:               "$0.12",
		999_999_499:               "$0.999999",
		999_999_500:               "$1.00",
		12_344_999_999:            "$12.34",
		12_345_000_000:            "$12.35",
		500_000_000_000:           "$500.00",
		500_500_000_000:           "$500.50",
		MaxDollars:                "$9000000.00",
		-12_345_000_000:           "-$12.35",
		-2_100_000:                "-$0.0021",
		9_007_199_254_740_993_000: "$9007199254.74",
		math.MaxInt64:             "$9223372036.85",
		math.MinInt64:             "-$9223372036.85",
	} {
		if got := FormatAmount(n, Nanodollars); got != want {
			t.Errorf("%d nanodollars are %q, want %q", n, got, want)
		}
	}
	if got := FormatAmount(12_345, "tokens"); got != "12345" {
		t.Errorf("12345 tokens are %q, want 12345", got)
	}
	if got, want := FormatUse(12_340_000_000, 500_000_000_000, Nanodollars), "$12.34 of $500.00 used"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
