package observe

import (
	"context"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var update = flag.Bool("update", false, "write the golden files")

// TestMetrics compares the text of all metrics with a file.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := NewStats()
		o := stats.Observer()
		l := limiter(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(1000)}, Observer: o, Guard: throttle.NoGuard})
		if err := stats.Watch("api", l); err != nil {
			t.Fatal(err)
		}
		learning := limiter(t, throttle.Policy{Name: "learning", Tiers: []throttle.Tier{
			{Limit: 120, Window: time.Minute, Algorithm: throttle.GCRA, Learn: throttle.Learn{Most: 6000}},
		}, Observer: o})
		if err := stats.Watch("learning", learning); err != nil {
			t.Fatal(err)
		}
		stuck, err := throttle.New(throttle.Policy{Name: "stuck", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, stuckStore{})
		if err != nil {
			t.Fatal(err)
		}
		if err := stats.Watch("stuck", stuck); err != nil {
			t.Fatal(err)
		}
		for range 7 { // two wait for a second
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		_ = l.WaitN(t.Context(), 6)
		ctx := throttle.WithClass(t.Context(), throttle.Batch)
		o.Queued(ctx, throttle.QueuedInfo{Policy: "api", Class: throttle.Batch})
		o.Admitted(ctx, throttle.AdmittedInfo{Policy: "api", Class: throttle.Batch, Held: true})
		o.Admitted(ctx, throttle.AdmittedInfo{Policy: "api", Queued: true, Waited: 2 * time.Hour, By: "account", Tier: "9/d"})
		o.Answered(ctx, throttle.AnsweredInfo{Policy: "hostile \"quoted\" \\n\n\xff\xfe {}", Kind: answers.Limited})
		o.Answered(ctx, throttle.AnsweredInfo{Policy: "hostile \"quoted\" \\n\n\xfe {}"}) // the same as UTF-8
		o.Settled(throttle.SettledInfo{Policy: "api", Unit: "tokens", Estimated: 100, Actual: 125})
		o.Called(throttle.CalledInfo{Policy: "api", Duration: 400 * time.Microsecond, Requests: 3})
		o.Called(throttle.CalledInfo{Policy: "api", Duration: time.Second, Err: throttle.ErrUnavailable})
		o.Called(throttle.CalledInfo{Policy: "api", Unsent: true, Err: throttle.ErrUnavailable})
		_ = l.Pause(t.Context(), 90*time.Second)

		w := httptest.NewRecorder()
		stats.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if got := w.Header().Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" || w.Code != http.StatusOK {
			t.Errorf("status %d, Content-Type %q", w.Code, got)
		}
		compareGolden(t, "testdata/metrics.txt", w.Body.String())
	})
}

// TestDocs checks that docs/observe.md has the code of the example and names exactly the metrics that there
// are.
func TestDocs(t *testing.T) {
	page, example := read(t, "../docs/observe.md"), read(t, "example_test.go")
	_, code, _ := strings.Cut(page, "```go\n")
	code, _, _ = strings.Cut(code, "```\n")
	if code == "" || !strings.Contains(example, strings.ReplaceAll("\n"+strings.TrimSuffix(code, "\n"), "\n", "\n\t\t")+"\n") {
		t.Errorf("the example does not have this code:\n%s", code)
	}
	metrics := make(map[string]bool)
	for _, m := range regexp.MustCompile(`# TYPE (\w+)`).FindAllStringSubmatch(read(t, "testdata/metrics.txt"), -1) {
		if metrics[m[1]] = true; !strings.Contains(page, "`"+m[1]+"`") {
			t.Errorf("the page does not have %s", m[1])
		}
	}
	for _, name := range regexp.MustCompile(`throttle_\w+`).FindAllString(page, -1) {
		name = strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_ratio") // OpenTelemetry appends _ratio
		if !metrics[name] && !metrics[name+"_ratio"] {
			t.Errorf("the page has %s, which is not a metric", name)
		}
	}
}

// TestUtilizationOfPacedTiers checks that the metrics of a tier with a pace are those of the whole tier:
// the documented alert on a used-up quota stays silent.
func TestUtilizationOfPacedTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := NewStats()
		tier := throttle.Tier{Limit: 500, Window: time.Minute, PaceBurst: 5}
		l := limiter(t, throttle.Policy{Name: "paced", Tiers: []throttle.Tier{tier}, Guard: throttle.NoGuard})
		if err := stats.Watch("paced", l); err != nil {
			t.Fatal(err)
		}
		for range 250 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w := httptest.NewRecorder()
		stats.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		labels := `{policy="paced",tier="500/m;pace_burst=5",unit="requests",tier_policy="paced"} `
		for _, want := range []string{"throttle_tier_usage" + labels + "250", "throttle_tier_limit" + labels + "500", "throttle_tier_utilization_ratio" + labels + "0.5"} {
			if !strings.Contains(w.Body.String(), want+"\n") {
				t.Errorf("the metrics do not have %s:\n%s", want, w.Body)
			}
		}
	})
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(read(t, file), "\n")
	for i, line := range gotLines {
		if i >= len(wantLines) || line != wantLines[i] {
			t.Fatalf("%s, line %d: %s\nIf the change is meant: go test ./observe -update", file, i+1, line)
		}
	}
	if len(gotLines) < len(wantLines) {
		t.Fatalf("%s: %d lines are missing", file, len(wantLines)-len(gotLines))
	}
}

// TestMetricsEmpty checks that Stats without events have an exposition, also if the scraper has gone.
func TestMetricsEmpty(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	NewStats().Metrics().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "# HELP throttle_") && !strings.HasPrefix(line, "# TYPE throttle_") {
			t.Errorf("line %q", line)
		}
	}
}
