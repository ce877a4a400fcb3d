package projection

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A Forecast is how much of a budget will be used at the end of its period.
type Forecast struct {
	Estimate

	// Text says so in words, such as "$487 expected by 30 Nov".
	Text string
}

// Meters learn from the Status of tiers how much of their budgets is used in each hour. They remember budgets
// that were read in the last Kept hours, with some 8 KB for each. The zero value has none. Meters are safe for
// concurrent use.
type Meters struct {
	mu  sync.Mutex // guards all
	all map[meterKey]*meter
}

// A meterKey is a budget whatever its limit is, which may change.
type meterKey struct {
	owner, policy, unit, zone string
	period                    algorithms.Period
	place                     int // among equal ones
}

// A meter has the hours of a budget.
type meter struct {
	hours  Hours
	period Period

	// at and used are the latest reading, and busy is what happened until then in its hour. Hours before whole
	// are not known.
	at    time.Time
	used  int64
	busy  int64
	whole int64
}

// Read reads the state of a tier, which an owner has, and returns its forecast. The place tells the tiers of an
// owner apart that differ in nothing but their limits. It returns false if the tier is no budget of a calendar's
// period, or if less than an hour is known.
//
// What was used since the last reading is spread over the hours in proportion to busy, which returns how much
// happened in an hour, and evenly if it is nil or nothing happened.
func (m *Meters) Read(owner string, place int, t store.TierStatus, now time.Time, busy func(hour int64) int64) (Forecast, bool) {
	if !t.Tier.Budget || t.Tier.Algorithm != algorithms.Calendar {
		return Forecast{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := meterKey{owner, t.Policy, t.Tier.Unit, t.Tier.Zone, t.Tier.Period, place}
	one := m.all[key]
	if one == nil {
		maps.DeleteFunc(m.all, func(_ meterKey, old *meter) bool { return now.Sub(old.at) > Kept*time.Hour })
		if m.all == nil {
			m.all = make(map[meterKey]*meter)
		}
		one = new(meter)
		m.all[key] = one
	}
	if busy == nil {
		busy = func(int64) int64 { return 0 }
	}
	if !one.read(t, now, busy) {
		return Forecast{}, false
	}
	return newForecast(&one.hours, t, now, one.period)
}

func newForecast(h *Hours, t store.TierStatus, now time.Time, p Period) (Forecast, bool) {
	e, ok := h.Estimate(now, p, t.Used)
	if !ok {
		return Forecast{}, false
	}
	text := amount(e.Total, t.Tier) + " expected by " + p.End.Add(-time.Second).In(p.Zone).Format("2 Jan")
	if e.Rough {
		text = "about " + text
	}
	switch more := round(e.Total) - t.Limit; {
	case e.Total > t.Limit && more > 0:
		text += ", " + amount(more, t.Tier) + " more than the budget"
	case e.Total > t.Limit:
		text += ", a little more than the budget"
	}
	return Forecast{e, text}, true
}

// amount returns an amount of a tier's unit, in about three digits.
func amount(n int64, t algorithms.Tier) string {
	return strings.TrimSuffix(t.FormatCost(round(n)), ".00")
}

// round returns a number with three digits that count.
func round(n int64) int64 {
	digit := int64(1)
	for n/digit >= 1000 {
		digit *= 10
	}
	return (n + digit/2) / digit * digit
}

// read takes over a reading. It returns false if the period of the tier is not known.
func (m *meter) read(t store.TierStatus, now time.Time, busy func(hour int64) int64) bool {
	switch back := m.at.Sub(now); {
	case back > time.Hour: // the clock was ahead, and so are the hours
		*m = meter{}
	case back > 0: // another reading was faster
		return true
	}
	first, before := m.at.IsZero(), m.period
	if first || now.Before(m.period.Start) || !now.Before(m.period.End) {
		p, err := PeriodOf(t.Tier, now)
		if err != nil {
			return false
		}
		m.period = p
	}
	switch hour := HourOf(now); {
	case first:
		m.whole = hour + 1
	case !before.Start.Equal(m.period.Start):
		m.begin()
		m.spread(now, t.Used, busy)
	default:
		m.spread(now, t.Used-m.used, busy)
	}
	m.at, m.used, m.busy = now, t.Used, busy(HourOf(now))
	return true
}

// begin begins a period. What was used of the one before since the latest reading is not known.
func (m *meter) begin() {
	if gap := m.period.Start.Sub(m.at); gap > 0 {
		if gap > time.Minute {
			m.hours.Forget(HourOf(m.at))
		}
		m.at, m.busy = m.period.Start, 0
	}
}

// spread spreads what was used since the latest reading over the hours since.
func (m *meter) spread(now time.Time, used int64, busy func(hour int64) int64) {
	first, last := HourOf(m.at), HourOf(now)
	first = max(first, last-Kept)
	weigh := func(hour int64) int64 {
		if n := busy(hour); hour == HourOf(m.at) {
			return n - m.busy
		} else {
			return n
		}
	}
	var total int64
	for hour := first; hour <= last; hour++ {
		total += weigh(hour)
	}
	if total <= 0 {
		total = max(1, now.Unix()-m.at.Unix())
		weigh = func(hour int64) int64 { return min((hour+1)*3600, now.Unix()) - max(hour*3600, m.at.Unix()) }
	}
	for hour := first; hour <= last; hour++ {
		part := used
		if hour < last {
			part = int64(float64(used) * float64(weigh(hour)) / float64(total))
			used -= part
			total = max(1, total-weigh(hour))
		}
		if hour >= m.whole {
			m.hours.Add(hour, part)
		}
	}
}

// PeriodOf returns the period of a Calendar tier at a time.
func PeriodOf(t algorithms.Tier, now time.Time) (Period, error) {
	plan, err := algorithms.NewPlan([]algorithms.Tier{t}, 0)
	if err != nil {
		return Period{}, err
	}
	zone, err := time.LoadLocation(t.Zone) // UTC if it is empty
	if err != nil {
		return Period{}, err
	}
	starts := plan.PeriodStarts(now.UnixMicro())
	return Period{time.UnixMicro(starts[1]), time.UnixMicro(starts[2]), zone}, nil
}
