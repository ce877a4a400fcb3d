package throttle

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// A Period is what a tier of [Calendar] counts over.
type Period = algorithms.Period

// The periods. Each begins at the first instant of a date in Tier.Zone.
const (
	Day   = algorithms.Day
	Week  = algorithms.Week // begins on Monday
	Month = algorithms.Month
)

// Budget is a Tier of so much of a unit in every calendar period, by UTC. Who asks for
// more than is left gets [ErrExhausted] at once instead of waiting for the next period.
//
// Amounts are whole numbers, so count money in millionths of its unit: $100.00 a month
// is Budget(100_000_000, "usd", Month), and a request of $0.37 costs 370_000 of "usd".
func Budget(limit int64, unit string, p Period) Tier { return algorithms.Budget(limit, unit, p) }

// An Alert says that a budget has come to one of the policy's AlertAt.
//
// Each is told once in a period, to one process of a fleet, in the goroutine of a
// request that was just admitted and before that is sent: Policy.Alert must not block,
// and may be called from several goroutines at once. It is told at most once: one
// whose reply was lost, or whose callers all gave up, nobody hears of. What is given
// back and used again is not told again, and all processes should name the same AlertAt.
type Alert struct {
	Policy, Tier string    // the policy's name, and the tier as ParsePolicy reads it
	Percent      int       // of AlertAt
	Used, Limit  int64     // units
	Until        time.Time // the period ends
}

const mostAlerts = 8

func (p Policy) checkAlerts() error {
	if len(p.AlertAt) == 0 {
		return nil
	}
	least := 1
	for _, n := range p.AlertAt {
		if n < least || n > 100 || len(p.AlertAt) > mostAlerts {
			return fmt.Errorf("AlertAt is %v: it must be at most %d percentages from 1 to 100, ascending", p.AlertAt, mostAlerts)
		}
		least = n + 1
	}
	if !slices.ContainsFunc(p.Tiers, alerts) {
		return errors.New("AlertAt is set: no tier is a budget over the calendar, so leave it empty, or see Budget")
	}
	return nil
}

// alerts reports whether alerts are of a tier.
func alerts(t Tier) bool { return t.Algorithm == Calendar && t.Budget }

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
	words := make([]string, len(at))
	for i, n := range at {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}

// alert announces what a request has crossed that was settled, maybe long after the policy
// changed under which it was admitted.
func (s *scope) alert(crossed []algorithms.Crossing) { s.adopt().alert(crossed) }

// alert announces the thresholds that were crossed with a charge.
func (c *compiled) alert(crossed []algorithms.Crossing) {
	if c.policy.Alert == nil {
		return
	}
	for _, x := range crossed {
		if x.Tier >= len(c.plan.Tiers()) { // the policy has changed meanwhile
			continue
		}
		tier := c.policy.Tiers[c.plan.Declared(x.Tier)]
		for _, percent := range c.policy.AlertAt {
			if x.From < percent && percent <= x.To && alerts(tier) {
				c.policy.Alert(Alert{
					Policy: c.policy.Name, Tier: tier.String(), Percent: percent,
					Used: x.Used, Limit: tier.Limit, Until: x.Until,
				})
			}
		}
	}
}
