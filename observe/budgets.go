package observe

import (
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/projection"
)

// Budgets learn from the states of tiers how much of their budgets is used in each hour, and forecast the
// use at the end of the period, as [Stats] do for the limiters that they watch. They are for exporters of
// metrics. They remember the hours of 38 days, some 8 KB for each budget. The zero value has
// read nothing. Budgets are safe for concurrent use.
type Budgets struct {
	meters projection.Meters
}

// Read reads the state of a tier, as Status has returned it just now, and returns the forecast. It returns
// nil if the tier is no Budget of a calendar's period, or if less than an hour is known. The owner is any
// text that tells the tiers of a policy apart that count the same unit in the same period, such as the keys
// of a Group.
func (b *Budgets) Read(owner string, t throttle.TierStatus) *Forecast {
	return newForecast(&b.meters, owner, 0, t, time.Now(), nil)
}

// newForecast returns the forecast of a tier, or nil if there is none. See [projection.Meters.Read].
func newForecast(m *projection.Meters, owner string, place int, t throttle.TierStatus, now time.Time, busy func(hour int64) int64) *Forecast {
	f, ok := m.Read(owner, place, t, now, busy)
	if !ok {
		return nil
	}
	return &Forecast{f.Total, f.Rough, f.Text}
}
