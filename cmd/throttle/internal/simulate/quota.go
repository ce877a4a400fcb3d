// Package simulate plays a policy in virtual time: a batch of requests by some workers, or the
// traffic of a log. It decides with the ledger that a throttle.Limiter decides with, in the order of
// its queue, and so it says what a program with that Limiter would do.
package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/rtt"
)

// never is an instant after all others.
const never = int64(1<<63 - 1)

// A quota is the quota of a policy in virtual time. Its clock shows nanoseconds since the Unix epoch.
// As in package local, decisions use whole microseconds, and a wait counts from the exact instant.
type quota struct {
	plan   *algorithms.Plan
	ledger algorithms.Ledger
	most   []int64 // the largest cost of each unit that the tiers ever admit
	auto   bool
	guard  *rtt.Estimator // learns the guard from the first request on, if auto is set
}

func newQuota(p throttle.Policy, start time.Time) (*quota, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	l, err := throttle.New(throttle.Policy{Tiers: p.Tiers, Guard: p.Guard}, nil)
	if err != nil {
		return nil, err
	}
	status, err := l.Status(context.Background()) // for the guard by default
	if err != nil {
		return nil, err
	}
	plan, err := algorithms.NewPlan(p.Tiers, status.Guard)
	if err != nil {
		return nil, err
	}
	q := &quota{plan: plan, ledger: plan.NewLedger(), most: plan.MaxCost(), auto: p.Guard == throttle.AutoGuard}
	if p.AssumeUsed {
		q.ledger.AssumeUsed(moment(start.UnixNano()))
	}
	return q, nil
}

func moment(now int64) algorithms.Moment {
	return algorithms.Moment{At: floorMicro(now), Wall: floorMicro(now)}
}

func floorMicro(ns int64) int64 {
	us := ns / 1000
	if ns%1000 < 0 {
		us--
	}
	return us
}

// amounts returns a cost in the units of the plan. Units that it does not count are left out.
func (q *quota) amounts(c throttle.Cost) []int64 {
	amounts := make([]int64, len(q.plan.Units()))
	for u, unit := range q.plan.Units() {
		if unit == algorithms.Requests {
			amounts[u] = 1
		}
		for name, n := range c {
			if cmp.Or(name, algorithms.Requests) == unit {
				amounts[u] = n
			}
		}
		amounts[u] = q.estimated(u, amounts[u])
	}
	return amounts
}

// estimated returns an amount of a unit. An estimate is at most what the tiers ever admit.
func (q *quota) estimated(u int, n int64) int64 {
	if q.plan.Estimated(u) {
		return min(n, q.most[u])
	}
	return n
}

// cost is like amounts. The error is that of a cost which no tier ever admits, or that no tier counts.
func (q *quota) cost(c throttle.Cost) ([]int64, error) {
	cost := q.amounts(c)
	if tier := q.plan.TooLarge(cost); tier >= 0 {
		unit := q.plan.Units()[q.plan.UnitOf(tier)]
		return nil, &NeverError{fmt.Sprintf("a request of %d %s never passes: it exceeds the capacity of %s", cost[q.plan.UnitOf(tier)], unit, q.Tiers()[q.plan.Declared(tier)])}
	}
	if !slices.ContainsFunc(cost, func(n int64) bool { return n != 0 }) {
		return nil, &NeverError{fmt.Sprintf("the policy counts no request, but %s: name its cost", strings.Join(q.plan.Units(), ", "))}
	}
	return cost, nil
}

// A NeverError is the error of a cost that no policy admits, or of a batch that is too long to play.
type NeverError struct{ message string }

func (e *NeverError) Error() string { return e.message }

// Tiers returns the texts of the tiers as the policy declares them.
func (q *quota) Tiers() (texts []string) {
	for _, t := range q.plan.Given() {
		texts = append(texts, t.String())
	}
	return texts
}

func (q *quota) request(now int64, cost []int64) algorithms.Request {
	r := algorithms.Request{Cost: cost, Held: true}
	if q.auto {
		if q.guard == nil {
			q.guard = rtt.NewAt(time.Unix(0, now))
		}
		r.Guard = algorithms.Micros(q.guard.Estimate())
	}
	return r
}

// take charges a request if all tiers admit it. Otherwise it returns when to ask again, and the tier
// that decides.
func (q *quota) take(now int64, cost []int64) (f algorithms.Flight, again int64, tier int) {
	m := moment(now)
	f, at, tier := q.ledger.Take(m, q.request(now, cost))
	return f, wake(now, m, at), tier
}

// earliest is like take, but charges nothing.
func (q *quota) earliest(now int64, cost []int64) (again int64, tier int) {
	m := moment(now)
	at, tier := q.ledger.Earliest(m, q.request(now, cost))
	return wake(now, m, at), tier
}

// wake returns when a wait ends that a quota has asked for.
func wake(now int64, m algorithms.Moment, at int64) int64 { return later(now, m.Until(at)) }

// answered reports the responses to n requests that were admitted together, at their end. The cost is
// that of all.
func (q *quota) answered(now, admitted int64, f algorithms.Flight, cost []int64, n int64) {
	m := moment(now)
	if q.auto {
		for range n {
			q.guard.AddAt(time.Unix(0, now), rtt.Sample{RoundTrip: max(1, time.Duration(now-admitted))})
		}
	}
	q.ledger.Arrived(m, f, cost)
	if q.plan.Estimates() {
		q.ledger.Settle(m, cost, cost)
	}
	if q.plan.Concurrent() {
		q.ledger.Release(cost)
	}
}

// later returns the instant a while after another one.
func later(at int64, d time.Duration) int64 {
	if int64(d) > never-at {
		return never
	}
	return at + int64(d)
}

// mostLength bounds a batch: nanoseconds since 1970 are in range until 2262.
const mostLength = 80 * 365 * 24 * time.Hour

var errLong = &NeverError{"the batch takes longer than 80 years"}

var errStuck = errors.New("the policy admits nothing more, whatever the time")
