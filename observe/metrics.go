package observe

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"

	"github.com/apithrottle/throttle/algorithms"
)

// Metrics returns a handler that serves the counts and the state of the watched limiters to
// Prometheus, in its text format 0.0.4. A policy has at most some 3,500 series, and usually some 300. Each
// member of a Pool adds at most some 2,000, and usually some 100.
func (s *Stats) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e exposition
		e.snapshot(s.Snapshot(r.Context()))
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(e.Bytes())
	})
}

// An exposition is a text in the format of Prometheus.
type exposition struct{ bytes.Buffer }

// snapshot writes the metrics of a snapshot.
func (e *exposition) snapshot(snap Snapshot) {
	e.requests(snap)
	e.inUse(snap)
	e.pauses(snap)
	e.calls(snap)
	e.states(snap)
}

// requests writes what the policies have admitted and refused, and how long the requests have waited.
func (e *exposition) requests(snap Snapshot) {
	e.family("throttle_requests_total", "counter", "Requests that were admitted or refused.")
	for _, p := range snap.Policies {
		for _, r := range p.Requests {
			if r.Result != resultNames[admitted] || p.Members == nil {
				e.sample("throttle_requests_total", float64(r.Count), "policy", p.Policy, "class", r.Class, "result", r.Result)
				continue
			}
			for _, m := range p.Members {
				e.sample("throttle_requests_total", float64(m.Admitted[r.Class]), of(m.Member, "policy", p.Policy, "class", r.Class, "result", r.Result)...)
			}
		}
	}
	e.family("throttle_request_time_in_queue_seconds", "histogram", "How long requests that were queued have waited, and for which tier.")
	for _, p := range snap.Policies {
		for _, w := range p.Waits {
			if w.Result != resultNames[admitted] || p.Members == nil {
				e.wait(snap, p.Policy, "", w)
			}
		}
		for _, m := range p.Members {
			for _, w := range m.Waits {
				e.wait(snap, p.Policy, m.Member, w)
			}
		}
	}
}

// inUse writes the requests that wait and those that were admitted, and how these have ended.
func (e *exposition) inUse(snap Snapshot) {
	e.family("throttle_queued_requests", "gauge", "Requests that wait in this process.")
	for _, p := range snap.Policies {
		for _, class := range []string{"normal", "interactive", "batch"} {
			e.sample("throttle_queued_requests", float64(p.Queued[class]), "policy", p.Policy, "class", class)
		}
	}
	e.family("throttle_active_requests", "gauge", "Requests that were admitted and have not ended.")
	for _, p := range snap.Policies {
		for _, m := range membersOf(p) {
			e.sample("throttle_active_requests", float64(m.Active), of(m.Member, "policy", p.Policy)...)
		}
	}
	e.family("throttle_responses_total", "counter", "Ends of admitted requests.")
	for _, p := range snap.Policies {
		for _, m := range membersOf(p) {
			for _, kind := range kindNames {
				e.sample("throttle_responses_total", float64(m.Responses[kind]), of(m.Member, "policy", p.Policy, "kind", kind)...)
			}
		}
	}
}

// pauses writes the pauses of the quotas and the errors of estimates.
func (e *exposition) pauses(snap Snapshot) {
	e.family("throttle_pauses_total", "counter", "Pauses and bans of the quota.")
	for _, p := range snap.Policies {
		for _, c := range p.Pauses {
			e.sample("throttle_pauses_total", float64(c.Count), "policy", p.Policy, "cause", c.Cause)
		}
	}
	e.family("throttle_pause_time_seconds_total", "counter", "Length of the pauses and bans, as they began.")
	for _, p := range snap.Policies {
		for _, c := range p.Pauses {
			e.sample("throttle_pause_time_seconds_total", c.Seconds, "policy", p.Policy, "cause", c.Cause)
		}
	}
	e.family("throttle_estimate_error", "histogram", "Actual cost divided by the estimate.")
	for _, p := range snap.Policies {
		for _, c := range p.Estimates {
			e.histogram("throttle_estimate_error", snap.EstimateBounds, c.Histogram, "policy", p.Policy, "unit", c.Unit)
		}
	}
}

// wait writes the histogram of some waits.
func (e *exposition) wait(snap Snapshot, policy, member string, w WaitCount) {
	e.histogram("throttle_request_time_in_queue_seconds", snap.WaitBounds, w.Histogram,
		of(member, "policy", policy, "class", w.Class, "result", w.Result, "tier", w.Tier, "tier_policy", w.By)...)
}

// membersOf returns the counts of a policy by the members of the Pool, or as those of one member without a
// name.
func membersOf(p PolicySnapshot) []MemberCount {
	if p.Members == nil {
		return []MemberCount{{Active: p.Active, Responses: p.Responses}}
	}
	return p.Members
}

// of returns labels with that of a member, unless it is empty.
func of(member string, labels ...string) []string {
	if member != "" {
		labels = append(labels, "member", member)
	}
	return labels
}

// calls writes the calls of shared stores.
func (e *exposition) calls(snap Snapshot) {
	e.family("throttle_store_calls_total", "counter", "Calls of a shared store, and those that were not made because it is away.")
	for _, p := range snap.Policies {
		for _, c := range p.Calls {
			e.sample("throttle_store_calls_total", float64(c.Count), "policy", p.Policy, "outcome", c.Outcome)
		}
	}
	e.family("throttle_store_call_duration_seconds", "histogram", "How long calls of a shared store took.")
	for _, p := range snap.Policies {
		for _, c := range p.Calls {
			if c.Time.Count > 0 {
				e.histogram("throttle_store_call_duration_seconds", snap.CallBounds, c.Time, "policy", p.Policy, "outcome", c.Outcome)
			}
		}
	}
	e.family("throttle_store_decisions_total", "counter", "Requests that calls of a shared store decided.")
	for _, p := range snap.Policies {
		if len(p.Calls) > 0 {
			e.sample("throttle_store_decisions_total", float64(p.Decided), "policy", p.Policy)
		}
	}
}

// A watchedState is the state of a watched limiter, or of a member of a watched Pool.
type watchedState struct {
	policy, member string
	LimiterSnapshot
}

// states writes the state of the watched limiters and of the members of the watched pools.
func (e *exposition) states(snap Snapshot) {
	var all []watchedState
	for _, l := range snap.Limiters {
		all = append(all, watchedState{l.Name, "", l})
	}
	for _, p := range snap.Pools {
		for _, m := range p.Members {
			all = append(all, watchedState{p.Name, m.Name, m.LimiterSnapshot})
		}
	}
	e.tiers(all)
	e.dollars(all)
	for _, m := range []struct {
		name, help string
		value      func(watchedState) float64
	}{
		{"throttle_closed", "1 while the provider's ban is in force.", func(l watchedState) float64 { return oneIf(l.Closed > 0) }},
		{"throttle_guard_seconds", "The guard interval in force.", func(l watchedState) float64 { return l.Guard }},
	} {
		e.family(m.name, "gauge", m.help)
		for _, l := range all {
			if !l.Failed {
				e.sample(m.name, m.value(l), of(l.member, "policy", l.policy)...)
			}
		}
	}
	e.family("throttle_status_failed", "gauge", "1 if the state of the limiter was not known in time.")
	for _, l := range all {
		e.sample("throttle_status_failed", oneIf(l.Failed), of(l.member, "policy", l.policy)...)
	}
}

// tiers writes the state of tiers.
func (e *exposition) tiers(all []watchedState) {
	for _, m := range []struct {
		name, help string
		value      func(TierSnapshot) float64
		learned    bool // of tiers with Learn only
	}{
		{"throttle_tier_usage", "Units charged, including those in flight.", func(t TierSnapshot) float64 { return float64(t.Used) }, false},
		{"throttle_tier_limit", "The capacity of the tier in force, in units.", func(t TierSnapshot) float64 { return float64(t.Limit) }, false},
		{"throttle_tier_utilization_ratio", "Usage divided by the limit.", func(t TierSnapshot) float64 { return float64(t.Used) / float64(max(1, t.Limit)) }, false},
		{"throttle_tier_learned_rate", "The rate that the tier has learned, in units a second.", func(t TierSnapshot) float64 { return t.Learned.PerSecond }, true},
		{"throttle_tier_noise_ratio", "The part of the requests that is refused at any rate, as the tier has learned it.", func(t TierSnapshot) float64 { return t.Learned.Noise }, true},
	} {
		e.family(m.name, "gauge", m.help)
		for _, l := range all {
			for _, t := range l.Tiers {
				if !m.learned || t.Learned != nil {
					e.sample(m.name, m.value(t), of(l.member, "policy", l.policy, "tier", t.Tier, "unit", t.Unit, "tier_policy", t.Policy)...)
				}
			}
		}
	}
}

// dollars writes the state of budgets in dollars.
func (e *exposition) dollars(all []watchedState) {
	for _, m := range []struct {
		name, help string
		value      func(TierSnapshot) (nanodollars int64, known bool)
	}{
		{"throttle_budget_limit_dollars", "The budget of the period.", func(t TierSnapshot) (int64, bool) { return t.Limit, true }},
		{"throttle_budget_spent_dollars", "Dollars spent in the period, including those of requests in flight.", func(t TierSnapshot) (int64, bool) { return t.Used, true }},
		{"throttle_budget_forecast_dollars", "Dollars that will be spent at the end of the period, as expected.", func(t TierSnapshot) (int64, bool) {
			if t.Forecast == nil {
				return 0, false
			}
			return t.Forecast.Total, true
		}},
	} {
		e.family(m.name, "gauge", m.help)
		for _, l := range all {
			for _, t := range l.Tiers {
				if value, known := m.value(t); known && t.Budget && t.Unit == algorithms.Nanodollars {
					e.sample(m.name, float64(value)/1e9, of(l.member, "policy", l.policy, "tier", t.Tier, "tier_policy", t.Policy)...)
				}
			}
		}
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// family begins a metric.
func (e *exposition) family(name, kind, help string) {
	e.WriteString("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
}

// labelEscaper escapes what the format reserves in the value of a label.
var labelEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// sample writes one sample. Labels are names and values.
func (e *exposition) sample(name string, value float64, labels ...string) {
	e.WriteString(name)
	separator := byte('{')
	for i := 0; i < len(labels); i += 2 {
		e.WriteByte(separator)
		e.WriteString(labels[i] + `="` + labelEscaper.Replace(labels[i+1]) + `"`)
		separator = ','
	}
	e.WriteString("} ")
	e.Write(strconv.AppendFloat(e.AvailableBuffer(), value, 'g', -1, 64))
	e.WriteByte('\n')
}

// histogram writes the samples of one histogram.
func (e *exposition) histogram(name string, bounds []float64, h Histogram, labels ...string) {
	withBound := append(labels[:len(labels):len(labels)], "le", "")
	var below uint64
	for i, n := range h.Buckets {
		below += n
		withBound[len(labels)+1] = "+Inf"
		if i < len(bounds) {
			withBound[len(labels)+1] = strconv.FormatFloat(bounds[i], 'g', -1, 64)
		}
		e.sample(name+"_bucket", float64(below), withBound...)
	}
	e.sample(name+"_sum", h.Sum, labels...)
	e.sample(name+"_count", float64(h.Count), labels...)
}
