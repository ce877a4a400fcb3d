package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
)

// TestExposition parses the metrics of package observe with Prometheus' own parser, under names that
// no sane policy has, and compares them with a snapshot.
func TestExposition(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	pieces := []string{`"`, `\`, "\n", "\r", "\t", "\x00", "\xff", "{", "}", ",", "=", " ", "#", "é", "世界", "n", "_OTHER"}
	names := make([]string, 300) // more than are counted apart
	names[1] = "_OTHER"
	for i := 2; i < len(names); i++ {
		for range r.IntN(9) {
			names[i] += pieces[r.IntN(len(pieces))]
		}
	}
	stats := observe.NewStats()
	o, ctx := stats.Observer(), context.Background()
	for range 20_000 {
		name, wait := names[r.IntN(len(names))], time.Duration(r.Int64N(int64(2*time.Hour)))
		class := throttle.Class(r.IntN(3))
		switch r.IntN(5) {
		case 0:
			o.Queued(ctx, throttle.QueuedInfo{Policy: name, Class: class})
			o.Admitted(ctx, throttle.AdmittedInfo{Policy: name, Class: class, Queued: true, Waited: wait, By: names[r.IntN(50)], Tier: names[r.IntN(50)], Held: true})
		case 1:
			o.Refused(ctx, throttle.RefusedInfo{Policy: name, Class: class, Err: throttle.ErrBanned, Queued: true, Waited: wait})
		case 2:
			o.Answered(ctx, throttle.AnsweredInfo{Policy: name})
		case 3:
			if r.IntN(2) == 0 {
				name = names[0]
			}
			o.Settled(throttle.SettledInfo{Policy: name, Unit: names[r.IntN(50)], Estimated: r.Int64N(9), Actual: r.Int64N(9)})
		case 4:
			o.Paused(throttle.PausedInfo{Policy: name, For: wait, Cause: "response"})
		}
	}
	for i, name := range names[:20] {
		lim, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerDay(5), throttle.PerDay(5), {Limit: 1, Window: time.Hour, Unit: "a\xffb"}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range i % 5 {
			lim.Allow()
		}
		if err := stats.Watch(name, lim); err != nil {
			t.Fatal(err)
		}
	}

	w := httptest.NewRecorder()
	stats.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(w.Body.String()))
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for name, family := range families {
		if family.GetHelp() == "" {
			t.Errorf("%s has no HELP", name)
		}
		for _, m := range family.Metric {
			addMetric(t, got, name, family.GetType(), m)
		}
	}
	snap := stats.Snapshot(t.Context())
	want := wanted(snap)
	for series, value := range want {
		if v, ok := got[series]; !ok || math.Abs(v-value) > 1e-9*value {
			t.Errorf("%s is %v (%v), want %v", series, v, ok, value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d series, want %d", len(got), len(want))
	}
	if len(snap.Policies) > 201 || len(snap.Limiters) < 15 {
		t.Errorf("%d policies, %d limiters", len(snap.Policies), len(snap.Limiters))
	}
}

// addMetric adds the values of a metric by the text of its series, which must be new.
func addMetric(t *testing.T, values map[string]float64, name string, kind dto.MetricType, m *dto.Metric) {
	t.Helper()
	var labels []string
	for _, l := range m.Label {
		if !model.LabelValue(l.GetValue()).IsValid() {
			t.Errorf("%s: label %q is not valid", name, l.GetValue())
		}
		labels = append(labels, l.GetName(), l.GetValue())
	}
	add := func(suffix string, value float64) {
		series := seriesOf(name+suffix, labels...)
		if _, twice := values[series]; twice {
			t.Errorf("%s comes twice", series)
		}
		values[series] = value
	}
	switch kind {
	case dto.MetricType_COUNTER:
		add("", m.Counter.GetValue())
	case dto.MetricType_GAUGE:
		add("", m.Gauge.GetValue())
	case dto.MetricType_HISTOGRAM:
		add(" sum", m.Histogram.GetSampleSum())
		add(" count", float64(m.Histogram.GetSampleCount()))
		var below uint64
		for _, b := range m.Histogram.Bucket {
			if b.GetCumulativeCount() < below {
				t.Errorf("%s %q: the buckets are not cumulative", name, labels)
			}
			below = b.GetCumulativeCount()
			add(fmt.Sprintf(" le %v", b.GetUpperBound()), float64(below))
		}
		if below != m.Histogram.GetSampleCount() {
			t.Errorf("%s %q: %d in the buckets of %d", name, labels, below, m.Histogram.GetSampleCount())
		}
	default:
		t.Errorf("%s is a %v", name, kind)
	}
}

func seriesOf(name string, labels ...string) string { return fmt.Sprintf("%s %q", name, labels) }

// wanted returns the series of a snapshot.
func wanted(snap observe.Snapshot) map[string]float64 {
	want := make(map[string]float64)
	histogram := func(name string, bounds []float64, h observe.Histogram, labels ...string) {
		want[seriesOf(name+" sum", labels...)], want[seriesOf(name+" count", labels...)] = h.Sum, float64(h.Count)
		below := uint64(0)
		for i, n := range h.Buckets {
			below += n
			bound := math.Inf(1)
			if i < len(bounds) {
				bound = bounds[i]
			}
			want[seriesOf(fmt.Sprintf("%s le %v", name, bound), labels...)] = float64(below)
		}
	}
	for _, p := range snap.Policies {
		for _, r := range p.Requests {
			want[seriesOf("throttle_requests_total", "policy", p.Policy, "class", r.Class, "result", r.Result)] = float64(r.Count)
		}
		for class, n := range p.Queued {
			want[seriesOf("throttle_queued_requests", "policy", p.Policy, "class", class)] = float64(n)
		}
		want[seriesOf("throttle_active_requests", "policy", p.Policy)] = float64(p.Active)
		for _, w := range p.Waits {
			histogram("throttle_request_time_in_queue_seconds", snap.WaitBounds, w.Histogram,
				"policy", p.Policy, "class", w.Class, "result", w.Result, "tier", w.Tier, "tier_policy", w.By)
		}
		for kind, n := range p.Responses {
			want[seriesOf("throttle_responses_total", "policy", p.Policy, "kind", kind)] = float64(n)
		}
		for _, c := range p.Pauses {
			want[seriesOf("throttle_pauses_total", "policy", p.Policy, "cause", c.Cause)] = float64(c.Count)
			want[seriesOf("throttle_pause_time_seconds_total", "policy", p.Policy, "cause", c.Cause)] = c.Seconds
		}
		for _, e := range p.Estimates {
			histogram("throttle_estimate_error", snap.EstimateBounds, e.Histogram, "policy", p.Policy, "unit", e.Unit)
		}
	}
	for _, l := range snap.Limiters {
		for _, tier := range l.Tiers {
			labels := []string{"policy", l.Name, "tier", tier.Tier, "unit", tier.Unit, "tier_policy", tier.Policy}
			want[seriesOf("throttle_tier_usage", labels...)] = float64(tier.Used)
			want[seriesOf("throttle_tier_limit", labels...)] = float64(tier.Limit)
			want[seriesOf("throttle_tier_utilization_ratio", labels...)] = float64(tier.Used) / float64(tier.Limit)
		}
		want[seriesOf("throttle_closed", "policy", l.Name)] = 0
		want[seriesOf("throttle_guard_seconds", "policy", l.Name)] = l.Guard
		want[seriesOf("throttle_status_failed", "policy", l.Name)] = 0
	}
	return want
}
