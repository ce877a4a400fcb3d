package observe

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// parse returns the policy of a text, with an observer.
func parse(t testing.TB, stats *Stats, text string) throttle.Policy {
	t.Helper()
	p, err := throttle.ParsePolicy("money", text)
	if err != nil {
		t.Fatal(err)
	}
	p.Observer = stats.Observer()
	return p
}

// watch watches a limiter.
func watch(t testing.TB, stats *Stats, l *throttle.Limiter) {
	t.Helper()
	if err := stats.Watch("money", l); err != nil {
		t.Fatal(err)
	}
}

// spend spends some nanodollars.
func spend(t testing.TB, l *throttle.Limiter, n int64) {
	t.Helper()
	p, err := l.Acquire(t.Context(), throttle.Cost{"nanodollars": n})
	if err != nil {
		t.Fatal(err)
	}
	p.Passed()
	p.Release()
}

// forecast returns the forecast of the only tier.
func forecast(t testing.TB, stats *Stats) *Forecast {
	t.Helper()
	return stats.Snapshot(t.Context()).Limiters[0].Tiers[0].Forecast
}

// TestForecastOfAMonth spends a dollar in each hour of a weekday, and nothing on weekends, from the beginning of a
// Saturday and a month of 31 days on: in 21 of its days.
func TestForecastOfAMonth(t *testing.T) {
	for name, every := range map[string]time.Duration{"page that is open": time.Hour, "page that is opened once": 12 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stats := NewStats()
				l := limiter(t, parse(t, stats, "$500/month"))
				watch(t, stats, l)
				if f := forecast(t, stats); f != nil {
					t.Errorf("forecast %+v before anything is known, want none", f)
				}
				for read := time.Now().Add(every); time.Now().Day() < 13; time.Sleep(time.Hour) {
					if day := time.Now().Weekday(); day != time.Saturday && day != time.Sunday {
						spend(t, l, 1_000_000_000)
					}
					if !time.Now().Before(read) {
						stats.Snapshot(t.Context())
						read = time.Now().Add(every)
					}
				}
				f := forecast(t, stats)
				if off := float64(f.Total)/504e9 - 1; off < -0.02 || off > 0.02 || f.Rough || !strings.HasSuffix(f.Text, " expected by 31 Jan, "+strings.TrimPrefix(amountOver(f.Total), "-")) {
					t.Errorf("forecast %+v, want about $504, and how much more than $500", f)
				}
			})
		})
	}
}

// amountOver returns how the text of a forecast ends that exceeds $500.
func amountOver(total int64) string {
	return map[bool]string{true: "$4 more than the budget", false: "a little more than the budget"}[total >= 503_500_000_000]
}

// TestBudgetsTellOwnersApart reads the budgets of two keys, whose policy and tier are the same.
func TestBudgetsTellOwnersApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Budgets
		var limiters []*throttle.Limiter
		for range 2 {
			limiters = append(limiters, limiter(t, parse(t, NewStats(), "$500/month")))
		}
		read := func() (got []*Forecast) {
			for i, l := range limiters {
				s, err := l.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, b.Read(strconv.Itoa(i), s.Tiers[0]))
			}
			return got
		}
		if got := read(); got[0] != nil || got[1] != nil {
			t.Errorf("forecasts %v before anything is known, want none", got)
		}
		for range 10 * 24 {
			spend(t, limiters[0], 1_000_000_000)
			spend(t, limiters[1], 500_000_000)
			time.Sleep(time.Hour)
			read()
		}
		for i, want := range []string{"$744 expected by 31 Jan, $244 more than the budget", "$372 expected by 31 Jan"} {
			if got := read()[i]; got == nil || got.Text != want || got.Rough {
				t.Errorf("budget %d: forecast %+v, want %q", i, got, want)
			}
		}
	})
}

// TestForecastAfterARestart tests that another Stats begins with what the quota has used.
func TestForecastAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := NewStats()
		l := limiter(t, parse(t, stats, "$500/month"))
		time.Sleep(10 * 24 * time.Hour)
		spend(t, l, 100_000_000_000)
		restarted := NewStats()
		watch(t, restarted, l)
		if f := forecast(t, restarted); f == nil || f.Total != 310_000_000_000 || f.Text != "about $310 expected by 31 Jan" {
			t.Errorf("forecast %+v, want $310 at $10 a day", f)
		}
	})
}

// TestForecastStaysWithAnotherBudget changes the amount, which forgets no hour.
func TestForecastStaysWithAnotherBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := NewStats()
		l := limiter(t, parse(t, stats, "$500/month"))
		watch(t, stats, l)
		for range 8 * 24 {
			spend(t, l, 1_000_000_000)
			time.Sleep(time.Hour)
			stats.Snapshot(t.Context())
		}
		if err := l.SetPolicy(t.Context(), parse(t, stats, "$700/month")); err != nil {
			t.Fatal(err)
		}
		if f := forecast(t, stats); f == nil || f.Rough || f.Text != "$744 expected by 31 Jan, $44 more than the budget" {
			t.Errorf("forecast %+v, want $744, from 8 days", f)
		}
	})
}

// TestOtherTiersHaveNoForecast tests tiers that are no budget of a period, and that their JSON stays as it is.
func TestOtherTiersHaveNoForecast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := NewStats()
		watch(t, stats, limiter(t, parse(t, stats, "5/s + 100/day + $10/h")))
		time.Sleep(3 * time.Hour)
		snap := stats.Snapshot(t.Context())
		for _, tier := range snap.Limiters[0].Tiers {
			text, err := json.Marshal(tier)
			if err != nil || strings.Contains(string(text), "forecast") {
				t.Errorf("%s, %v: want no forecast", text, err)
			}
		}
	})
}

func TestMetricsInDollars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := NewStats()
		l := limiter(t, parse(t, stats, "$500.50/month + 100/month;unit=tokens;budget=true"))
		watch(t, stats, l)
		spend(t, l, 1_250_000_000)
		text := func() string {
			var e exposition
			e.snapshot(stats.Snapshot(t.Context()))
			return e.String()
		}
		const labels = `{policy="money",tier="$500.50/month",tier_policy="money"} `
		for _, want := range []string{"throttle_budget_limit_dollars" + labels + "500.5\n", "throttle_budget_spent_dollars" + labels + "1.25\n"} {
			if got := text(); strings.Count(got, want) != 1 || strings.Contains(got, "\nthrottle_budget_forecast_dollars") {
				t.Errorf("%s\nwant %q once, and no forecast", got, want)
			}
		}
		time.Sleep(24 * time.Hour)
		total := float64(forecast(t, stats).Total) / 1e9
		want := "throttle_budget_forecast_dollars" + labels + strconv.FormatFloat(total, 'g', -1, 64) + "\n"
		if got := text(); strings.Count(got, "\nthrottle_budget_forecast_dollars") != 1 || !strings.Contains(got, want) {
			t.Errorf("%s\nwant %q", got, want)
		}
	})
}
