package otelthrottle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/observe"
)

// A watch has the instruments of Watch.
type watch struct {
	limiters                []*throttle.Limiter
	usage, limit            metric.Int64ObservableGauge
	closed                  metric.Int64ObservableGauge
	utilization, guardTime  metric.Float64ObservableGauge
	learnedRate, noise      metric.Float64ObservableGauge
	budget, spent, forecast metric.Float64ObservableGauge // of budgets in dollars

	budgets observe.Budgets
}

// Watch reads the Status of limiters at each collection of metrics, with the context of the collection:
// of all at the same time, so that with a shared store it takes one round trip. It reports the tiers of
// nested limiters with the names of their own policies. Calling stop ends that.
//
// Limiters may have tiers of the same policy and text: because they share a quota, as all limiters inside
// one account do, or because they are keys of a Group. Such tiers are reported once, as the one that is
// used most. Likewise throttle.closed is 1 if any limiter of the policy is closed, and throttle.guard.time
// is the longest. So watch all limiters of a policy in one call, and give the policies of a Pool's members names
// of their own. A limiter whose Status has an error is
// left out, as far as its state is not known, and the collection reports the error. What will be spent of a budget
// is known from an hour on, and as observe.Forecast says.
func Watch(o Options, limiters ...*throttle.Limiter) (stop func() error, err error) {
	if i := slices.Index(limiters, nil); i >= 0 {
		return nil, fmt.Errorf("otelthrottle: limiter %d is nil", i)
	}
	w := &watch{limiters: slices.Clone(limiters)}
	m, errs := o.meter(), [10]error{}
	w.usage, errs[0] = m.Int64ObservableGauge("throttle.tier.usage", metric.WithUnit("{unit}"),
		metric.WithDescription("Units charged, including those in flight."))
	w.limit, errs[1] = m.Int64ObservableGauge("throttle.tier.limit", metric.WithUnit("{unit}"),
		metric.WithDescription("The capacity of the tier in force, in units."))
	w.utilization, errs[2] = m.Float64ObservableGauge("throttle.tier.utilization", metric.WithUnit("1"),
		metric.WithDescription("Usage divided by the limit."))
	w.closed, errs[3] = m.Int64ObservableGauge("throttle.closed", metric.WithUnit("1"),
		metric.WithDescription("1 while the provider's ban is in force."))
	w.guardTime, errs[4] = m.Float64ObservableGauge("throttle.guard.time", metric.WithUnit("s"),
		metric.WithDescription("The guard interval in force."))
	w.learnedRate, errs[5] = m.Float64ObservableGauge("throttle.tier.learned_rate", metric.WithUnit("{unit}"), // a second, which would become a part of the name in Prometheus
		metric.WithDescription("The rate that the tier has learned, in units a second."))
	w.noise, errs[6] = m.Float64ObservableGauge("throttle.tier.noise", metric.WithUnit("1"),
		metric.WithDescription("The part of the requests that is refused at any rate, as the tier has learned it."))
	w.budget, errs[7] = m.Float64ObservableGauge("throttle.budget.limit", metric.WithUnit(dollars),
		metric.WithDescription("The budget of the period."))
	w.spent, errs[8] = m.Float64ObservableGauge("throttle.budget.spent", metric.WithUnit(dollars),
		metric.WithDescription("Dollars spent in the period, including those of requests in flight."))
	w.forecast, errs[9] = m.Float64ObservableGauge("throttle.budget.forecast", metric.WithUnit(dollars),
		metric.WithDescription("Dollars that will be spent at the end of the period, as expected."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	r, err := m.RegisterCallback(w.collect, w.usage, w.limit, w.utilization, w.closed, w.guardTime, w.learnedRate, w.noise, w.budget, w.spent, w.forecast)
	if err != nil {
		return nil, err
	}
	return r.Unregister, nil
}

// dollars is the unit of money, which Prometheus appends to the names. There is none in UCUM.
const dollars = "dollars"

// collectDollars observes the state of a budget in dollars.
func (w *watch) collectDollars(o metric.Observer, key watchedTier, t throttle.TierStatus, set metric.ObserveOption) {
	if t.Tier.Unit != algorithms.Nanodollars || !t.Tier.Budget {
		return
	}
	o.ObserveFloat64(w.budget, float64(t.Limit)/1e9, set)
	o.ObserveFloat64(w.spent, float64(t.Used)/1e9, set)
	if f := w.budgets.Read("", t); f != nil {
		o.ObserveFloat64(w.forecast, float64(f.Total)/1e9, set)
	}
}

// A watchedTier identifies the series of a tier.
type watchedTier struct{ policy, tier, unit string }

// A watchedPolicy is the state of the limiters of a policy.
type watchedPolicy struct {
	closed bool
	guard  float64 // in seconds
}

// utilization returns which part of its limit a tier has used.
func utilization(t throttle.TierStatus) float64 { return float64(t.Used) / float64(max(1, t.Limit)) }

// collect observes the state of the limiters.
func (w *watch) collect(ctx context.Context, o metric.Observer) error {
	statuses, errs := make([]throttle.Status, len(w.limiters)), make([]error, len(w.limiters))
	var wg sync.WaitGroup
	for i, l := range w.limiters {
		wg.Go(func() { statuses[i], errs[i] = l.Status(ctx) })
	}
	wg.Wait()

	tiers, policies := make(map[watchedTier]throttle.TierStatus), make(map[string]watchedPolicy)
	policyNames, tierNames := newNames(maxPolicies), newNames(maxTiers)
	for i, status := range statuses {
		for _, t := range status.Tiers {
			key := watchedTier{policyNames.bounded(t.Policy), tierNames.bounded(t.Tier.String()), tierNames.bounded(cmp.Or(t.Tier.Unit, algorithms.Requests))}
			if was, ok := tiers[key]; !ok || utilization(t) > utilization(was) {
				tiers[key] = t
			}
		}
		if errs[i] == nil {
			name := policyNames.bounded(status.Policy)
			p := policies[name]
			policies[name] = watchedPolicy{p.closed || status.Closed > 0, max(p.guard, status.Guard.Seconds())}
		}
	}
	for key, t := range tiers {
		set := metric.WithAttributeSet(attribute.NewSet(policyKey.String(key.policy), tierKey.String(key.tier), unitKey.String(key.unit)))
		o.ObserveInt64(w.usage, t.Used, set)
		o.ObserveInt64(w.limit, t.Limit, set)
		o.ObserveFloat64(w.utilization, utilization(t), set)
		w.collectDollars(o, key, t, set)
		if l := t.Learned; l != nil {
			o.ObserveFloat64(w.learnedRate, l.Rate/t.Tier.Window.Seconds(), set)
			o.ObserveFloat64(w.noise, l.Noise, set)
		}
	}
	for name, p := range policies {
		set := metric.WithAttributeSet(attribute.NewSet(policyKey.String(name)))
		closed := int64(0)
		if p.closed {
			closed = 1
		}
		o.ObserveInt64(w.closed, closed, set)
		o.ObserveFloat64(w.guardTime, p.guard, set)
	}
	return errors.Join(errs...)
}
