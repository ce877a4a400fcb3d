package algorithms_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
)

// instant parses a time.
func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// wall returns the moment at which both clocks show a time.
func wall(at time.Time) Moment { return Moment{At: at.UnixMicro(), Wall: at.UnixMicro()} }

// TestCalendarPeriods checks that a period ends at the first instant of a date, also when clocks
// are set.
func TestCalendarPeriods(t *testing.T) {
	for _, tc := range []struct {
		zone   string
		period Period
		in     string // an instant of the period
		ends   string // the end of the period
	}{
		{"", Day, "2023-11-14T22:13:20Z", "2023-11-15T00:00:00Z"},
		{"", Week, "2023-11-14T22:13:20Z", "2023-11-20T00:00:00Z"},
		{"", Week, "2023-11-19T23:59:59Z", "2023-11-20T00:00:00Z"},
		{"", Week, "2023-11-20T00:00:00Z", "2023-11-27T00:00:00Z"},
		{"", Month, "2023-12-31T23:59:59Z", "2024-01-01T00:00:00Z"},
		{"", Month, "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"},

		{"Europe/Berlin", Day, "2024-03-31T00:00:00+01:00", "2024-04-01T00:00:00+02:00"}, // 23 hours
		{"Europe/Berlin", Day, "2024-10-27T00:00:00+02:00", "2024-10-28T00:00:00+01:00"}, // 25 hours
		{"Europe/Berlin", Week, "2024-03-25T00:00:00+01:00", "2024-04-01T00:00:00+02:00"},
		{"Europe/Berlin", Week, "2024-10-27T23:59:59+01:00", "2024-10-28T00:00:00+01:00"},
		{"Europe/Berlin", Month, "2024-03-01T00:00:00+01:00", "2024-04-01T00:00:00+02:00"},
		{"Europe/Berlin", Month, "2024-10-31T23:59:59+01:00", "2024-11-01T00:00:00+01:00"},

		{"America/New_York", Day, "2024-03-10T00:00:00-05:00", "2024-03-11T00:00:00-04:00"},
		{"America/New_York", Day, "2024-11-03T01:30:00-05:00", "2024-11-04T00:00:00-05:00"},
		{"America/New_York", Week, "2024-11-03T00:00:00-04:00", "2024-11-04T00:00:00-05:00"},
		{"America/New_York", Month, "2024-11-01T00:00:00-04:00", "2024-12-01T00:00:00-05:00"},

		{"Europe/Berlin", Month, "2044-12-22T00:00:00+01:00", "2045-01-01T00:00:00+01:00"}, // after the zone's table, in a leap year

		{"Australia/Lord_Howe", Day, "2024-04-07T00:00:00+11:00", "2024-04-08T00:00:00+10:30"}, // clocks are set by half an hour
		{"Australia/Lord_Howe", Day, "2024-10-06T00:00:00+10:30", "2024-10-07T00:00:00+11:00"},
		{"Australia/Lord_Howe", Month, "2024-04-30T23:59:59+10:30", "2024-05-01T00:00:00+10:30"},

		{"America/Sao_Paulo", Day, "2018-11-03T12:00:00-03:00", "2018-11-04T01:00:00-02:00"}, // the 4th has no midnight
		{"America/Sao_Paulo", Day, "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"},
		{"America/Sao_Paulo", Day, "2018-02-17T23:30:00-02:00", "2018-02-18T00:00:00-03:00"}, // 23:30 comes twice
		{"America/Sao_Paulo", Day, "2018-02-17T23:30:00-03:00", "2018-02-18T00:00:00-03:00"},
		{"America/Sao_Paulo", Week, "2018-11-04T12:00:00-02:00", "2018-11-05T00:00:00-02:00"},
		{"America/Sao_Paulo", Month, "2018-11-01T00:00:00-03:00", "2018-12-01T00:00:00-02:00"},

		{"Asia/Beirut", Day, "2022-03-26T12:00:00+02:00", "2022-03-27T01:00:00+03:00"}, // the 27th has no midnight
		{"Asia/Beirut", Day, "2022-10-29T23:30:00+03:00", "2022-10-30T00:00:00+02:00"},
		{"Asia/Beirut", Week, "2022-03-27T12:00:00+03:00", "2022-03-28T00:00:00+03:00"},
		{"Asia/Beirut", Month, "2022-03-31T23:00:00+03:00", "2022-04-01T00:00:00+03:00"},

		{"America/Havana", Day, "2024-11-02T12:00:00-04:00", "2024-11-03T00:00:00-04:00"}, // midnight comes twice
		{"America/Havana", Day, "2024-11-03T00:30:00-04:00", "2024-11-04T00:00:00-05:00"},
		{"America/Havana", Day, "2024-11-03T00:30:00-05:00", "2024-11-04T00:00:00-05:00"},
		{"America/St_Johns", Day, "2010-11-07T00:00:30-02:30", "2010-11-08T00:00:00-03:30"}, // then 23:01 of the 6th
		{"America/St_Johns", Day, "2010-11-06T23:30:00-03:30", "2010-11-08T00:00:00-03:30"},
		{"Pacific/Apia", Day, "2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00"}, // there was no 30th
		{"Pacific/Apia", Day, "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
	} {
		in, ends := instant(t, tc.in), instant(t, tc.ends)
		tier := Tier{Limit: 1, Algorithm: Calendar, Period: tc.period, Zone: tc.zone}
		l := ledger(t, 0, tier)
		l.Charge(wall(in), Request{Cost: []int64{1}})
		if at, _ := l.Earliest(wall(in), Request{Cost: []int64{1}}); !time.UnixMicro(at).Equal(ends) {
			t.Errorf("%v at %s: the period ends at %v, want %s", tier, tc.in, time.UnixMicro(at).UTC(), tc.ends)
		}
		if at, _ := l.Earliest(wall(ends.Add(-time.Microsecond)), Request{Cost: []int64{1}}); at != ends.UnixMicro() {
			t.Errorf("%v at %s: a microsecond before the end, one more may go at %d, want %d", tier, tc.in, at, ends.UnixMicro())
		}
		starts := l.Plan().PeriodStarts(in.UnixMicro())
		if i := next(starts, in.UnixMicro()); i < 2 || i > 3 || starts[i] != ends.UnixMicro() {
			t.Errorf("%v at %s: Starts returns %d, want %d as third or fourth", tier, tc.in, starts, ends.UnixMicro())
		}
	}
}

// next returns the index of the first instant after at, or -1 if the instants are not in order.
func next(starts []int64, at int64) int {
	found := -1
	for i, s := range starts {
		if i > 0 && s <= starts[i-1] {
			return -1
		}
		if s > at && found < 0 {
			found = i
		}
	}
	return found
}

// TestCalendarAcrossTheBoundary checks that requests in flight across the end of a month count in
// both months.
func TestCalendarAcrossTheBoundary(t *testing.T) {
	l := ledger(t, time.Second, Tier{Limit: 2, Algorithm: Calendar, Period: Month})
	end := instant(t, "2024-03-01T00:00:00Z")
	l.Charge(wall(end.Add(-500*time.Millisecond)), Request{Cost: []int64{2}})
	april := instant(t, "2024-04-01T00:00:00Z").UnixMicro()
	for _, ahead := range []time.Duration{-400 * time.Millisecond, 0, time.Second} { // the requests land in March
		if at, _ := l.Earliest(wall(end.Add(ahead)), Request{Cost: []int64{1}}); at != april {
			t.Errorf("%v after the end of February: one more may go at %v, want April", ahead, time.UnixMicro(at).UTC())
		}
	}
}

// TestExhaustedDecides checks that a used-up budget decides, even before a tier with a longer wait.
func TestExhaustedDecides(t *testing.T) {
	day := Tier{Limit: 3, Algorithm: Calendar, Period: Day}
	budget := day
	budget.Budget = true
	month := Tier{Limit: 2, Algorithm: Calendar, Period: Month}
	for _, tc := range []struct {
		tiers []Tier
		used  int64
		tier  int
	}{
		{[]Tier{budget}, 2, -1},
		{[]Tier{budget}, 3, 0},
		{[]Tier{day}, 3, 0},
		{[]Tier{month, budget}, 3, 1},
		{[]Tier{budget, month}, 3, 0},
		{[]Tier{budget, month}, 2, 1}, // the budget has one left
		{[]Tier{month, day}, 3, 0},
		{[]Tier{month, {Limit: 3, Window: time.Hour, Budget: true}}, 3, 1},
	} {
		l := ledger(t, 0, tc.tiers...)
		l.Charge(at(0), Request{Cost: []int64{tc.used}})
		_, tier := l.Earliest(at(time.Second), Request{Cost: []int64{1}})
		if tier != tc.tier {
			t.Errorf("%v with %d used: tier %d decides, want %d", tc.tiers, tc.used, tier, tc.tier)
		}
		if got, want := l.Plan().Exhausted(tier), tier >= 0 && tc.tiers[tier].Budget; got != want {
			t.Errorf("%v with %d used: exhausted is %v, want %v", tc.tiers, tc.used, got, want)
		}
	}
}

// TestCrossings checks that Crossings returns each percent of a period once, even if a tier reaches
// it again after a refund.
func TestCrossings(t *testing.T) {
	l := ledger(t, time.Second, Tier{Limit: 200, Algorithm: Calendar, Period: Day}, Tier{Limit: 9, Window: time.Second, Unit: "other"})
	now := at(0)
	crossed := func(from, to int, used int64) {
		t.Helper()
		got := l.Crossings(now)
		switch {
		case to == 0 && got == nil:
		case len(got) != 1 || got[0].From != from || got[0].To != to || got[0].Used != used || got[0].Tier != 0:
			t.Errorf("after %d µs: Crossings returns %+v, want from %d to %d with %d used", now.At-at(0).At, got, from, to, used)
		case now.Wall >= got[0].Until.UnixMicro() || now.Wall < got[0].Until.Add(-24*time.Hour).UnixMicro():
			t.Errorf("after %d µs: the period ends at %v, want less than a day later", now.At-at(0).At, got[0].Until)
		}
	}
	crossed(0, 0, 0)
	l.Charge(now, Request{Cost: []int64{1, 0}})
	crossed(0, 0, 0) // half a percent
	f := l.Charge(now, Request{Cost: []int64{100, 0}, Held: true})
	crossed(0, 50, 101)
	crossed(0, 0, 0)
	l.Cancel(now, f, []int64{100, 0})
	l.Charge(now, Request{Cost: []int64{100, 0}})
	crossed(0, 0, 0) // reported before
	now = at(5 * time.Second)
	l.Charge(now, Request{Cost: []int64{99, 0}})
	crossed(50, 100, 200)
	l.Charge(now, Request{Cost: []int64{99, 0}})
	crossed(0, 0, 0)
	now = at(26 * time.Hour)
	l.Charge(now, Request{Cost: []int64{20, 0}})
	crossed(0, 10, 20)
}

// TestConvertCalendar checks that a tier of another zone or period is charged with the use of the
// old one.
func TestConvertCalendar(t *testing.T) {
	berlin := Tier{Limit: 10, Algorithm: Calendar, Period: Month, Zone: "Europe/Berlin"}
	l := ledger(t, 0, berlin)
	l.Charge(at(0), Request{Cost: []int64{7}})
	l.Crossings(at(0))
	higher, london, day := berlin, berlin, berlin
	higher.Limit, higher.Budget, london.Zone, day.Period = 20, true, "Europe/London", Day
	for _, tc := range []struct {
		tier     Tier
		reported int    // percent that Crossings has reported of the new tier
		ends     string // the end of the use
	}{
		{higher, 70, "2023-12-01T00:00:00+01:00"},
		{london, 0, "2023-12-01T00:00:00Z"},
		{day, 0, "2023-11-15T00:00:00+01:00"},
	} {
		got := ledger(t, 0, tc.tier).Plan().Convert(*l, at(time.Minute))
		u := got.Usage(at(time.Minute))[0]
		if u.Used != 7 || u.Fresh != instant(t, tc.ends).UnixMicro() {
			t.Errorf("%v: %d used until %v, want 7 until %s", tc.tier, u.Used, time.UnixMicro(u.Fresh).UTC(), tc.ends)
		}
		got.Charge(at(time.Minute), Request{Cost: []int64{tc.tier.Limit - 7}})
		if c := got.Crossings(at(time.Minute)); len(c) != 1 || c[0].From != tc.reported || c[0].To != 100 {
			t.Errorf("%v: Crossings returns %+v, want from %d to 100", tc.tier, c, tc.reported)
		}
	}
}

func TestBudget(t *testing.T) {
	const text = "100000000/month;unit=usd;budget=true"
	if got := Budget(100_000_000, "usd", Month).String(); got != text {
		t.Errorf("the text is %s, want %s", got, text)
	}
	p, err := NewPlan([]Tier{Budget(100_000_000, "usd", Month)}, 0)
	if err != nil || p.Tiers()[0].Zone != "UTC" || p.TooLarge([]int64{100_000_001}) != 0 {
		t.Errorf("tiers %+v and error %v, want the zone UTC and a cost above the limit too large", p.Tiers(), err)
	}
	if !strings.HasPrefix(Period(9).String(), "period(9)") {
		t.Errorf("Period(9) is %q, want period(9)", Period(9))
	}
}
