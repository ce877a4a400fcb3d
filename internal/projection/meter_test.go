package projection_test

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	. "github.com/apithrottle/throttle/internal/projection"
	"github.com/apithrottle/throttle/store"
)

// status returns the state of a budget of $500 a month.
func status(t testing.TB, used int64) store.TierStatus {
	t.Helper()
	tier, err := algorithms.ParseTier("$500/month;zone=Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	return store.TierStatus{Tier: tier, Limit: tier.Limit, Used: used}
}

// TestMetersKnowTheMonthBefore reads a budget each hour, of which a dollar is spent in each hour of a weekday, and
// a quarter on weekends, for 33 days. The second month, of 31 days, has 23 weekdays and 8 days of a weekend.
func TestMetersKnowTheMonthBefore(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	var m Meters
	used, ok := int64(0), false
	var f Forecast
	month := time.November
	for now := time.Date(2026, 11, 1, 0, 0, 0, 0, zone); now.Day() < 3 || now.Month() == time.November; now = now.Add(time.Hour) {
		if now.Month() != month {
			month, used = now.Month(), 0
		}
		f, ok = m.Read("api", 0, status(t, used), now, nil)
		if used += 1_000_000_000; now.Weekday() == time.Saturday || now.Weekday() == time.Sunday {
			used -= 750_000_000
		}
	}
	const want = (23 + 8.0/4) * 24 * 1e9
	if off := float64(f.Total)/want - 1; !ok || off < -0.01 || off > 0.01 || f.Rough || f.Text != "$600 expected by 31 Dec, $100 more than the budget" {
		t.Errorf("forecast %+v, %v, want %v", f, ok, want)
	}
}

// TestMetersReadGaps reads a budget after ten days in which the process has seen only its own requests, at night.
func TestMetersReadGaps(t *testing.T) {
	night := func(hour int64) int64 {
		if h := time.Unix(hour*3600, 0).UTC().Hour(); h < 6 {
			return 10
		}
		return 0
	}
	for name, tt := range map[string]struct {
		busy func(int64) int64
		want int64
	}{
		"busy at night": {night, 310_000_000_000},                                        // for 31 nights
		"not busy":      {func(int64) int64 { return 0 }, 110_000_000_000 * 31 * 4 / 41}, // of 41 quarters of a day
	} {
		var m Meters
		start := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
		day := status(t, 0)
		day.Tier.Zone = ""
		m.Read("api", 0, day, start, tt.busy)
		day.Used = 110_000_000_000 // 10 days and a night
		now := start.AddDate(0, 0, 10).Add(6 * time.Hour)
		f, ok := m.Read("api", 0, day, now, tt.busy)
		if off := float64(f.Total)/float64(tt.want) - 1; !ok || off < -0.02 || off > 0.02 {
			t.Errorf("%s: forecast %+v, %v, want about %d", name, f, ok, tt.want)
		}
		if again, _ := m.Read("api", 0, day, now.Add(-time.Hour), tt.busy); again.Total <= 0 {
			t.Errorf("%s: forecast %+v of an earlier reading that comes later", name, again)
		}
	}
}

// TestMetersForgetNoHourWithAnotherLimit tests that the history of a budget doesn't depend on its limit, but on its
// owner.
func TestMetersForgetNoHourWithAnotherLimit(t *testing.T) {
	var m Meters
	start := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for hour := range int64(8*24 + 1) {
		m.Read("api", 0, status(t, hour*1_000_000_000), start.Add(time.Duration(hour)*time.Hour), nil)
	}
	raised := status(t, 8*24*1_000_000_000)
	raised.Tier.Limit *= 2
	raised.Limit *= 2
	now := start.AddDate(0, 0, 8)
	if f, ok := m.Read("api", 0, raised, now, nil); !ok || f.Rough || f.Text != "$719 expected by 30 Nov" {
		t.Errorf("forecast %+v, %v, want $719, from 8 days", f, ok)
	}
	if f, ok := m.Read("other", 0, raised, now, nil); !ok || !f.Rough {
		t.Errorf("forecast %+v, %v of another owner, want a rough one", f, ok)
	}
}

// After a clock that was ahead is set right, the forecast is as good as that of a new process. A reading that is
// overtaken at the end of a period counts nothing twice.
func TestMetersFollowAClockThatIsSetBack(t *testing.T) {
	at := time.Date(2026, time.November, 10, 0, 0, 0, 0, time.UTC)
	var m, fresh Meters
	for hour := range 5 {
		m.Read("", 0, status(t, int64(hour)*100), at.AddDate(1, 0, 0).Add(time.Duration(hour)*time.Hour), nil)
	}
	for hour := range 100 {
		now := at.Add(time.Duration(hour) * time.Hour)
		got, ok := m.Read("", 0, status(t, int64(hour)*100), now, nil)
		want, known := fresh.Read("", 0, status(t, int64(hour)*100), now, nil)
		if got != want || ok != known {
			t.Fatalf("after %d hours the forecast is %v, %v; want %v, %v", hour, got, ok, want, known)
		}
	}
	end := time.Date(2026, time.November, 30, 23, 0, 0, 0, time.UTC) // midnight in the zone of the budget
	var overtaken, ordered Meters
	for hour := range 5 {
		for _, m := range []*Meters{&overtaken, &ordered} {
			m.Read("", 0, status(t, int64(hour)*100), end.Add(time.Duration(hour-5)*time.Hour), nil)
		}
	}
	overtaken.Read("", 0, status(t, 50), end.Add(time.Second), nil)
	ordered.Read("", 0, status(t, 50), end.Add(time.Second), nil)
	overtaken.Read("", 0, status(t, 500), end.Add(-time.Second), nil)
	got, _ := overtaken.Read("", 0, status(t, 60), end.Add(2*time.Hour), nil)
	if want, _ := ordered.Read("", 0, status(t, 60), end.Add(2*time.Hour), nil); got != want {
		t.Errorf("the forecast after a reading that was overtaken is %v, want %v", got, want)
	}
}

// What was reserved at the end of an hour and is given back in the next one counts in neither.
func TestMetersForgetWhatIsGivenBack(t *testing.T) {
	var reserving, spending Meters
	start := time.Date(2026, time.October, 1, 0, 0, 0, 0, time.UTC)
	for hour := range int64(10 * 24) {
		now := start.Add(time.Duration(hour) * time.Hour)
		reserved := (hour % 2) * 50_000_000_000
		reserving.Read("", 0, status(t, hour*1_000_000_000), now.Add(30*time.Minute), nil)
		reserving.Read("", 0, status(t, hour*1_000_000_000+reserved), now.Add(59*time.Minute), nil)
		spending.Read("", 0, status(t, hour*1_000_000_000), now.Add(30*time.Minute), nil)
		spending.Read("", 0, status(t, hour*1_000_000_000), now.Add(59*time.Minute), nil)
	}
	got, _ := reserving.Read("", 0, status(t, 240_000_000_000), start.Add(240*time.Hour+30*time.Minute), nil)
	want, _ := spending.Read("", 0, status(t, 240_000_000_000), start.Add(240*time.Hour+30*time.Minute), nil)
	if got.Total < want.Total*9/10 || got.Total > want.Total*11/10 {
		t.Errorf("%v, want about %v", got, want)
	}
}

// After a jump less than a week of the new use is known, however long the old one was.
func TestForecastAfterAJumpIsRough(t *testing.T) {
	var m Meters
	start := time.Date(2026, time.October, 1, 0, 0, 0, 0, time.UTC)
	var used int64
	for hour := range 25 * 24 {
		used += 100_000_000
		if hour > 23*24 {
			used += 1_000_000_000
		}
		f, ok := m.Read("", 0, status(t, used), start.Add(time.Duration(hour)*time.Hour), nil)
		if ok && f.Rough != (hour < 7*24+1) && hour < 23*24 || hour == 25*24-1 && !f.Rough {
			t.Errorf("after %d hours: %+v", hour, f)
		}
	}
}
