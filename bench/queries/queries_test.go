// Package queries checks the queries and the alert rules of docs/observe.md.
package queries

import (
	"context"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/otlptranslator"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
)

// A schema has the labels of each metric.
type schema map[string][]string

// TestQueries parses each query and each rule with Prometheus' own parser, and checks that the metrics
// and the labels that it names are among those that package observe serves.
func TestQueries(t *testing.T) {
	metrics := served(t)
	all := documented(t)
	if len(all) < 18 {
		t.Errorf("%d queries and rules", len(all))
	}
	for _, query := range all {
		expr, err := parser.ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %v", query, err)
			continue
		}
		metrics.check(t, expr)
	}
}

// TestQueriesOfOpenTelemetry checks the same under the names that Prometheus gives to the instruments of
// otelthrottle, after the changes that the page describes.
func TestQueriesOfOpenTelemetry(t *testing.T) {
	metrics := translated(t)
	for _, query := range documented(t) {
		if strings.Contains(query, "throttle_status_failed") {
			continue // there is none
		}
		expr, err := parser.ParseExpr(query)
		if err != nil {
			t.Fatal(err)
		}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			switch n := node.(type) {
			case *parser.VectorSelector:
				if n.Name == "throttle_closed" {
					n.Name = "throttle_closed_ratio"
				}
				for _, m := range n.LabelMatchers {
					m.Name = prefixed(m.Name)
					if m.Name == model.MetricNameLabel {
						m.Value = n.Name
					}
				}
			case *parser.AggregateExpr:
				n.Grouping = slices.DeleteFunc(n.Grouping, func(l string) bool { return l == "tier_policy" })
				for i, l := range n.Grouping {
					n.Grouping[i] = prefixed(l)
				}
			}
			return nil
		})
		metrics.check(t, expr)
	}
}

func prefixed(label string) string {
	if label == "le" || label == model.MetricNameLabel {
		return label
	}
	return "throttle_" + label
}

// check checks the names in an expression.
func (s schema) check(t *testing.T, expr parser.Expr) {
	t.Helper()
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			if s[n.Name] == nil {
				t.Errorf("%s: there is no metric %q", expr, n.Name)
			}
			for _, m := range n.LabelMatchers {
				if m.Name != model.MetricNameLabel && !slices.Contains(s[n.Name], m.Name) {
					t.Errorf("%s: %s has no label %q", expr, n.Name, m.Name)
				}
			}
		case *parser.AggregateExpr:
			parser.Inspect(n.Expr, func(inner parser.Node, _ []parser.Node) error {
				if v, ok := inner.(*parser.VectorSelector); ok {
					for _, label := range n.Grouping {
						if !slices.Contains(s[v.Name], label) {
							t.Errorf("%s: %s has no label %q", expr, v.Name, label)
						}
					}
				}
				return nil
			})
		case *parser.BinaryExpr:
			if n.VectorMatching != nil && len(n.VectorMatching.MatchingLabels) > 0 {
				t.Errorf("%s: labels of a match are not checked", expr)
			}
		}
		return nil
	})
}

// documented returns the queries and the expressions of the rules.
func documented(t *testing.T) (all []string) {
	page, err := os.ReadFile("../../docs/observe.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for _, line := range strings.Split(block[1], "\n") {
			if line != "" && !strings.HasPrefix(line, "#") {
				all = append(all, line)
			}
		}
	}
	for _, rule := range regexp.MustCompile(`(?m)^ +expr: (.*)$`).FindAllStringSubmatch(string(page), -1) {
		all = append(all, rule[1])
	}
	return all
}

// served returns what package observe serves after events of all kinds.
func served(t *testing.T) (s schema) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(2 * time.Hour) // of a month, so that there is a forecast
		s = servedNow(t)
	})
	return s
}

func servedNow(t *testing.T) schema {
	stats, ctx := observe.NewStats(), context.Background()
	o := stats.Observer()
	o.Queued(ctx, throttle.QueuedInfo{Policy: "api"})
	o.Admitted(ctx, throttle.AdmittedInfo{Policy: "api", Queued: true, Waited: time.Second, By: "api", Tier: "5/s", Held: true})
	o.Admitted(ctx, throttle.AdmittedInfo{Policy: "models", Member: "east"})
	o.Refused(ctx, throttle.RefusedInfo{Policy: "api", Err: throttle.ErrQueueFull})
	o.Answered(ctx, throttle.AnsweredInfo{Policy: "api"})
	o.Settled(throttle.SettledInfo{Policy: "api", Unit: "tokens", Estimated: 2, Actual: 1})
	o.Paused(throttle.PausedInfo{Policy: "api", For: time.Second, Cause: "call"})
	o.Called(throttle.CalledInfo{Policy: "api", Duration: time.Millisecond, Requests: 1})
	learns := throttle.Tier{Limit: 5, Window: time.Second, Algorithm: throttle.GCRA, Learn: throttle.Learn{Most: 1000}}
	lim, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5), learns, throttle.Budget(100, "usd", throttle.Month), throttle.Budget(5e9, "nanodollars", throttle.Month)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := stats.Watch("api", lim); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	stats.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if !strings.Contains(w.Body.String(), "budget=true") {
		t.Error("the tier of a budget has no budget=true")
	}
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	s := make(schema)
	for name, family := range families {
		names := []string{}
		for _, m := range family.Metric {
			for _, l := range m.Label {
				names = append(names, l.GetName())
			}
		}
		s.add(name, family.Metric[0].Histogram != nil, names)
	}
	return s
}

// translated returns what Prometheus makes of the instruments of otelthrottle.
func translated(t *testing.T) schema {
	text, err := os.ReadFile("../../otelthrottle/testdata/scenario.txt")
	if err != nil {
		t.Fatal(err)
	}
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	instrument := regexp.MustCompile(`^(throttle[\w.]+): (\w+)\[\w+\],(?: monotonic=(\w+),)?.* unit (\S+)$`)
	attribute := regexp.MustCompile(`(throttle\.\w+)="`)
	s := make(schema)
	for _, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		m := instrument.FindStringSubmatch(strings.Split(block, "\n")[0])
		if m == nil {
			t.Fatalf("%q is not an instrument", block)
		}
		var kind otlptranslator.MetricType = otlptranslator.MetricTypeGauge
		switch {
		case m[2] == "Histogram":
			kind = otlptranslator.MetricTypeHistogram
		case m[3] == "true":
			kind = otlptranslator.MetricTypeMonotonicCounter
		case m[2] == "Sum":
			kind = otlptranslator.MetricTypeNonMonotonicCounter
		}
		name, err := namer.Build(otlptranslator.Metric{Name: m[1], Unit: m[4], Type: kind})
		if err != nil {
			t.Fatal(err)
		}
		names := []string{}
		for _, a := range attribute.FindAllStringSubmatch(block, -1) {
			label, err := (&otlptranslator.LabelNamer{}).Build(a[1])
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, label)
		}
		s.add(name, m[2] == "Histogram", names)
	}
	return s
}

// add adds a metric, or those that a histogram consists of.
func (s schema) add(name string, histogram bool, names []string) {
	if !histogram {
		s[name] = names
		return
	}
	s[name+"_bucket"] = append(names, "le")
	s[name+"_sum"], s[name+"_count"] = names, names
}
