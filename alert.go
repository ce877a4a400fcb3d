package throttle

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/admit"
)

// A Period is the unit of time that a tier of [Calendar] counts over.
type Period = algorithms.Period

// The periods. Each begins at the first instant of a date in Tier.Zone.
const (
	Day   = algorithms.Day
	Week  = algorithms.Week // begins on Monday
	Month = algorithms.Month
)

// Budget returns a Tier of limit units in every calendar period, by UTC. A request that exceeds
// what is left fails immediately with [ErrExhausted] instead of waiting for the next period.
//
// Amounts are whole numbers: count euros in millionths. [ParsePolicy] reads dollars, as in "$100/month".
func Budget(limit int64, unit string, p Period) Tier { return algorithms.Budget(limit, unit, p) }

// An Alert reports that the use of a budget has reached one of the percentages of Policy.AlertAt.
//
// Policy.Alert is called before the request that reached the percentage is sent, usually in the
// goroutine of that request. It may also be called for a request that was refused with
// ErrExhausted, or after a settlement. It must not block, and may be called from several goroutines
// at once.
//
// Each percentage is reported at most once in a period, in one process of a fleet. An alert is lost
// if the reply of the store was lost or if all callers gave up. Units that are refunded and used
// again cause no second alert. All processes of a fleet should set the same AlertAt.
type Alert struct {
	// Policy is the name of the policy.
	Policy string

	// Tier is the tier of the budget, as ParsePolicy reads it.
	Tier string

	// Percent is the percentage, one of AlertAt.
	Percent int

	// Used is how many units of the period are used.
	Used int64

	// Limit is the limit of the tier, in units.
	Limit int64

	// Until is the end of the period.
	Until time.Time
}

const maxAlerts = 8

func (p Policy) checkAlerts() error {
	if len(p.AlertAt) == 0 {
		return nil
	}
	least := 1
	for _, n := range p.AlertAt {
		if n < least || n > 100 || len(p.AlertAt) > maxAlerts {
			return fmt.Errorf("AlertAt is %v: it must be at most %d percentages from 1 to 100, ascending", p.AlertAt, maxAlerts)
		}
		least = n + 1
	}
	if !slices.ContainsFunc(p.Tiers, hasAlerts) {
		return errors.New("AlertAt is set: no tier is a budget over the calendar, so leave it empty, or see Budget")
	}
	return nil
}

// hasAlerts reports whether a tier has alerts.
func hasAlerts(t Tier) bool { return t.Algorithm == Calendar && t.Budget }

func parseAlertAt(list string) (at []int, err error) {
	for _, text := range strings.Split(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%q is not a whole number", text)
		}
		at = append(at, n)
	}
	return at, nil
}

func formatAlertAt(at []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(at), " ", ","), "[]")
}

// Crossed calls Policy.Alert for each percentage of AlertAt that was crossed.
func (e *events) Crossed(p *admit.Policy, crossed []algorithms.Crossing) {
	for _, x := range crossed {
		if x.Tier >= len(p.Plan.Tiers()) { // the policy has changed since
			continue
		}
		tier := p.Tiers[p.Plan.Declared(x.Tier)]
		for _, percent := range e.alertAt {
			if x.From < percent && percent <= x.To && hasAlerts(tier) {
				e.alert(Alert{
					Policy: e.policy, Tier: tier.String(), Percent: percent,
					Used: x.Used, Limit: tier.Limit, Until: x.Until,
				})
			}
		}
	}
}
