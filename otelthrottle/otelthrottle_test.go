package otelthrottle_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/httptrace/otelhttptrace"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/otelthrottle"
)

var update = flag.Bool("update", false, "write testdata")

// A telemetry collects metrics and spans.
type telemetry struct {
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	otelthrottle.Options
	observer *throttle.Observer
}

func newTelemetry(t testing.TB) *telemetry {
	t.Helper()
	m := &telemetry{reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	m.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(m.reader))
	m.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(m.spans))
	var err error
	if m.observer, err = otelthrottle.New(m.Options); err != nil {
		t.Fatal(err)
	}
	return m
}

// limiter returns a Limiter that m observes.
func (m *telemetry) limiter(t testing.TB, name, spec string) *throttle.Limiter {
	t.Helper()
	return newLimiter(t, m.policy(t, name, spec))
}

func (m *telemetry) policy(t testing.TB, name, spec string) throttle.Policy {
	t.Helper()
	p, err := throttle.ParsePolicy(name, spec)
	if err != nil {
		t.Fatal(err)
	}
	p.Observer = m.observer
	return p
}

func newLimiter(t testing.TB, p throttle.Policy) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (m *telemetry) watch(t testing.TB, limiters ...*throttle.Limiter) (stop func() error) {
	t.Helper()
	stop, err := otelthrottle.Watch(m.Options, limiters...)
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

// A point is one series of an instrument. The value of a histogram is its count.
type point struct {
	attributes attribute.Set
	value, sum float64
}

// collect returns the metrics of throttle, and their series by the names of the instruments.
func (m *telemetry) collect(t testing.TB) ([]metricdata.Metrics, map[string][]point) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := m.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	points := make(map[string][]point)
	var metrics []metricdata.Metrics
	for _, scope := range all.ScopeMetrics {
		if scope.Scope.Name == "github.com/apithrottle/throttle" {
			metrics = scope.Metrics
		}
		for _, metric := range scope.Metrics {
			points[metric.Name] = pointsOf(metric.Data)
		}
	}
	return metrics, points
}

func pointsOf(data metricdata.Aggregation) (points []point) {
	switch data := data.(type) {
	case metricdata.Sum[int64]:
		return numbers(data.DataPoints)
	case metricdata.Sum[float64]:
		return numbers(data.DataPoints)
	case metricdata.Gauge[int64]:
		return numbers(data.DataPoints)
	case metricdata.Gauge[float64]:
		return numbers(data.DataPoints)
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			points = append(points, point{p.Attributes, float64(p.Count), p.Sum})
		}
	}
	return points
}

func numbers[N int64 | float64](data []metricdata.DataPoint[N]) (points []point) {
	for _, p := range data {
		points = append(points, point{p.Attributes, float64(p.Value), 0})
	}
	return points
}

// total returns the sum of the series that have an attribute. An empty key is one that all have.
func total(points []point, key attribute.Key, value string) (sum float64) {
	for _, p := range points {
		if v, ok := p.attributes.Value(key); key == "" || ok && v.AsString() == value {
			sum += p.value
		}
	}
	return sum
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answering answers requests one after the other with a status, or with an error if that is zero.
func answering(statuses ...int) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		status := statuses[0]
		if statuses = statuses[1:]; status == 0 {
			return nil, errors.New("no answer")
		}
		h := http.Header{}
		if status == 429 {
			h.Set("Retry-After", "10")
		}
		return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: r}, nil
	})
}

func get(t testing.TB, ctx context.Context, rt http.RoundTripper) error {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://api.example/secret-path", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// TestScenario compares all instruments and series after a fixed scenario with a file.
func TestScenario(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTelemetry(t)
		account := newLimiter(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerMinute(30)}})
		mail := m.limiter(t, "mail", "2/s + 100/min;unit=tokens;estimated=true | guard=100ms;max_wait=3s;max_queue=3;max_pause=1m").Within(account)
		open := m.limiter(t, "open", "1;algo=concurrency + 2/h;unit=usd")
		money := m.limiter(t, "money", "$500/month")
		m.watch(t, mail, open, m.limiter(t, "found", "120/m;algo=gcra;learn=6000"), money)
		time.Sleep(24 * time.Hour) // of a month of 31 days

		ctx := t.Context()
		acquire := func(cost throttle.Cost) *throttle.Permit {
			p, err := mail.Acquire(ctx, cost)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		for _, c := range []struct{ estimate, actual int64 }{{10, 10}, {10, 5}, {0, 2}, {10, 40}} { // two wait for 2/s
			p := acquire(throttle.Cost{"tokens": c.estimate, "requests": 1})
			if err := p.Settle(throttle.Cost{"tokens": c.actual}); err != nil {
				t.Fatal(err)
			}
			p.Release()
		}
		_ = acquire(nil).Cancel(ctx)
		mail.Allow()
		mail.Allow()
		mail.Allow() // is false
		_, _ = mail.Acquire(ctx, throttle.Cost{"requests": 3})
		var wg sync.WaitGroup
		for i := range 4 { // the first is canceled, and the batch request makes room for the last
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				ctx, cancel := context.WithCancel(throttle.WithClass(ctx, throttle.Class(i%3)))
				defer cancel()
				if i == 0 {
					time.AfterFunc(200*time.Millisecond, cancel)
				}
				_ = mail.Wait(ctx)
			})
		}
		wg.Wait()
		tr := &throttle.Transport{Limiter: mail, Base: answering(200, 0, 429, 423),
			Profile: &answers.Profile{Rules: []answers.Rule{{Status: 423, Kind: answers.Banned, Wait: time.Hour}, {Status: 429, Kind: answers.Limited}}}}
		_ = get(t, ctx, tr)
		_ = get(t, ctx, tr)
		_ = get(t, ctx, tr)
		_ = get(t, ctx, tr) // would wait for longer than 3 s
		time.Sleep(10 * time.Second)
		_ = get(t, ctx, tr) // closes the quota
		_ = get(t, ctx, tr)
		_ = mail.Pause(ctx, 2*time.Hour)

		m.observer.Admitted(ctx, throttle.AdmittedInfo{Policy: "models", Member: "east", Held: true})
		m.observer.Answered(ctx, throttle.AnsweredInfo{Policy: "models", Member: "east"})
		m.observer.Called(throttle.CalledInfo{Policy: "mail", Duration: time.Millisecond, Requests: 3})
		m.observer.Called(throttle.CalledInfo{Policy: "mail", Duration: 2 * time.Millisecond})
		for _, err := range []error{throttle.ErrUnavailable, fmt.Errorf("%w: %w", throttle.ErrUnavailable, context.DeadlineExceeded), errors.New("key-1")} {
			m.observer.Called(throttle.CalledInfo{Policy: "mail", Duration: time.Second, Err: err})
		}
		m.observer.Called(throttle.CalledInfo{Policy: "mail", Unsent: true, Err: throttle.ErrUnavailable})

		spent, err := money.Acquire(ctx, throttle.Cost{"nanodollars": 12_500_000_000})
		if err != nil {
			t.Fatal(err)
		}
		spent.Passed()
		spent.Release()

		_ = open.Wait(ctx) // needs a permit
		if _, err := open.Acquire(ctx, throttle.Cost{"usd": 1}); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { // it waits for a place
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, _ = open.Acquire(ctx, throttle.Cost{"usd": 1})
		})
		time.Sleep(time.Second)
		metrics, _ := m.collect(t)
		compare(t, "testdata/scenario.txt", formatted(metrics))
		open.Close()
		wg.Wait()
	})
}

// TestDocs checks that the documentation names exactly the instruments of the scenario.
func TestDocs(t *testing.T) {
	scenario, err := os.ReadFile("testdata/scenario.txt")
	if err != nil {
		t.Fatal(err)
	}
	instruments := names(`(?m)^(throttle\.[a-z_.]+):`, string(scenario))
	for file, pattern := range map[string]string{"doc.go": `- .*`, "../docs/observe.md": "(?m)^\\| `throttle\\..*"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Join(regexp.MustCompile(pattern).FindAllString(string(text), -1), "\n")
		if got := names(`(throttle\.[a-z_]+[a-z_.]*[a-z])`, lines); !slices.Equal(got, instruments) {
			t.Errorf("%s has\n%q, want\n%q", file, got, instruments)
		}
	}
}

// names returns what a pattern matches, each name once, in order of the alphabet.
func names(pattern, text string) (names []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// formatted returns the metrics as text.
func formatted(metrics []metricdata.Metrics) string {
	var b strings.Builder
	slices.SortFunc(metrics, func(a, b metricdata.Metrics) int { return strings.Compare(a.Name, b.Name) })
	for _, m := range metrics {
		kind, sums := strings.TrimPrefix(fmt.Sprintf("%T", m.Data), "metricdata."), false
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			kind += fmt.Sprintf(", monotonic=%t", data.IsMonotonic)
		case metricdata.Sum[float64]:
			kind += fmt.Sprintf(", monotonic=%t", data.IsMonotonic)
		case metricdata.Histogram[float64]:
			kind, sums = kind+fmt.Sprintf(", bounds %v", data.DataPoints[0].Bounds), true
		}
		fmt.Fprintf(&b, "%s: %s, unit %s\n\t%s\n", m.Name, kind, m.Unit, m.Description)
		var lines []string
		for _, p := range pointsOf(m.Data) {
			line := "\t"
			for _, a := range p.attributes.ToSlice() {
				line += fmt.Sprintf("%s=%q ", a.Key, a.Value.AsString())
			}
			if line += fmt.Sprint(p.value); sums {
				line += fmt.Sprintf(", sum %.4g", p.sum)
			}
			lines = append(lines, line+"\n")
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, "") + "\n")
	}
	return b.String()
}

func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.ReplaceAll(string(want), "\r\n", "\n"); got != want {
		t.Errorf("the metrics differ from %s: see go test -update and git diff\n%s", file, got)
	}
}

// TestResults checks the result of each error.
func TestResults(t *testing.T) {
	m, results := newTelemetry(t), map[string][]error{
		"not_now":          {nil},
		"deadline":         {&throttle.WaitError{Err: throttle.ErrDeadline}, context.DeadlineExceeded},
		"exceeds_capacity": {&throttle.WaitError{Err: throttle.ErrExceedsCapacity}},
		"exhausted":        {&throttle.WaitError{Err: throttle.ErrExhausted}},
		"queue_full":       {&throttle.WaitError{Err: throttle.ErrQueueFull}},
		"banned":           {&throttle.WaitError{Err: throttle.ErrBanned}},
		"unavailable":      {&throttle.WaitError{Err: throttle.ErrUnavailable, Cause: context.DeadlineExceeded}, fmt.Errorf("%w: %w", throttle.ErrUnavailable, context.Canceled)},
		"needs_permit":     {&throttle.WaitError{Err: throttle.ErrNeedsPermit}},
		"closed":           {&throttle.WaitError{Err: throttle.ErrClosed}},
		"too_many_keys":    {&throttle.WaitError{Err: throttle.ErrTooManyKeys}},
		"canceled":         {context.Canceled},
		"error":            {errors.New("n is -1")},
	}
	for _, errs := range results {
		for _, err := range errs {
			m.observer.Refused(t.Context(), throttle.RefusedInfo{Policy: "mail", Err: err})
		}
	}
	_, points := m.collect(t)
	for result, errs := range results {
		if got := total(points["throttle.requests"], "throttle.result", result); got != float64(len(errs)) {
			t.Errorf("%s: %v, want %d", result, got, len(errs))
		}
	}
}

// TestGroupKeys checks that ten thousand keys of a Group have as many series as one.
func TestGroupKeys(t *testing.T) {
	series := func(keys int) (n int) {
		synctest.Test(t, func(t *testing.T) {
			m := newTelemetry(t)
			g, err := throttle.NewGroup(m.policy(t, "tenant", "2/s + 5;algo=concurrency"), nil, throttle.GroupOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for i := range keys {
				key := fmt.Sprintf("key-%d", i)
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
					defer cancel()
					tr := &throttle.Transport{Base: answering(200, 200, 200, 200), Route: func(*http.Request) *throttle.Limiter { return g.For(key) }}
					for range 5 { // the third waits, and the last is refused
						_ = get(t, ctx, tr)
					}
				})
			}
			wg.Wait()
			m.watch(t, slices.Collect(func(yield func(*throttle.Limiter) bool) {
				for _, l := range g.All() {
					if !yield(l) {
						return
					}
				}
			})...)
			metrics, points := m.collect(t)
			for _, all := range points {
				n += len(all)
			}
			text := formatted(metrics)
			for _, secret := range []string{"key-", "api.example", "secret-path"} {
				if strings.Contains(text, secret) {
					t.Errorf("%q is in the metrics:\n%s", secret, text)
				}
			}
			if got := total(points["throttle.requests"], "", ""); got != float64(5*keys) {
				t.Errorf("%v requests, want %d", got, 5*keys)
			}
		})
		return n
	}
	if one, many := series(1), series(10_000); one != many || one == 0 {
		t.Errorf("one key has %d series, 10,000 have %d", one, many)
	}
}

// TestConservation compares the metrics of a storm with counts of the callers, at the end and, of what
// is never less or more, while it rages.
func TestConservation(t *testing.T) {
	for _, nested := range []bool{false, true} {
		t.Run(fmt.Sprintf("nested=%v", nested), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, m := rand.New(rand.NewPCG(7, 46)), newTelemetry(t)
				l := m.limiter(t, "storm", "50/s + 40;algo=concurrency;unit=open + 1000/s;unit=tokens;estimated=true | max_queue=200;guard=10ms")
				if nested {
					l = l.Within(newLimiter(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(40)}}))
				}
				m.watch(t, l)
				var calls, admitted, held, settled atomic.Int64
				var wg sync.WaitGroup
				for range 2_000 {
					at, kind, end := time.Duration(r.Int64N(int64(25*time.Second))), r.IntN(6), r.IntN(6)
					within, work := time.Duration(r.Int64N(int64(8*time.Second))), time.Duration(r.Int64N(int64(time.Second)))
					class := throttle.Class(r.IntN(3))
					wg.Go(func() {
						time.Sleep(at)
						ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), class))
						defer cancel()
						switch kind {
						case 0, 1:
							ctx, cancel = context.WithTimeout(ctx, within)
							defer cancel()
						case 2:
							defer time.AfterFunc(within, cancel).Stop()
						case 3:
							_ = l.Pause(ctx, 50*time.Millisecond)
						case 4:
							calls.Add(1)
							if p, err := l.TryAcquire(ctx, nil); err == nil {
								admitted.Add(1)
								held.Add(1)
								p.Release()
							}
							return
						}
						calls.Add(1)
						p, err := l.Acquire(ctx, throttle.Cost{"requests": 1, "open": 1, "tokens": 10})
						if err != nil {
							return
						}
						admitted.Add(1)
						held.Add(1)
						time.Sleep(work)
						switch end {
						case 0:
							_ = p.Cancel(ctx)
							return
						case 1:
							_ = p.Refused(ctx, time.Millisecond)
						case 2:
							p.Passed()
						case 3:
							p.Arrived()
						case 4:
							_ = p.Settle(throttle.Cost{"tokens": 5})
						}
						p.Release()
						if end != 5 {
							settled.Add(1)
						}
					})
				}
				for range 50 {
					time.Sleep(time.Second)
					synctest.Wait()
					_, points := m.collect(t)
					if queued, active := total(points["throttle.queued_requests"], "", ""), total(points["throttle.active_requests"], "", ""); queued < 0 || queued > 200 || active < 0 || active > 41 {
						t.Fatalf("%v queued and %v active, want at most 200 and 41", queued, active)
					}
				}
				wg.Wait()
				_, points := m.collect(t)
				for _, c := range []struct {
					what      string
					got, want float64
				}{
					{"requests", total(points["throttle.requests"], "", ""), float64(calls.Load())},
					{"admitted", total(points["throttle.requests"], "throttle.result", "admitted"), float64(admitted.Load())},
					{"responses", total(points["throttle.responses"], "", ""), float64(held.Load())},
					{"settled", total(points["throttle.estimate.error"], "", ""), float64(settled.Load())},
					{"queued", total(points["throttle.queued_requests"], "", ""), 0},
					{"active", total(points["throttle.active_requests"], "", ""), 0},
				} {
					if c.got != c.want {
						t.Errorf("%s: %v, want %v", c.what, c.got, c.want)
					}
				}
				if waited, all := total(points["throttle.request.time_in_queue"], "", ""), float64(calls.Load()); waited == 0 || waited >= all {
					t.Errorf("%v of %v requests were queued", waited, all)
				}
			})
		})
	}
}

// TestConcurrent uses an Observer and collects at the same time, for the race detector.
func TestConcurrent(t *testing.T) {
	m := newTelemetry(t)
	const workers, each = 8, 300
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range workers {
		l := m.limiter(t, fmt.Sprintf("policy-%d", i%3), "1000/h")
		wg.Go(func() {
			for range each {
				if p, err := l.TryAcquire(t.Context(), nil); err == nil {
					admitted.Add(1)
					p.Passed()
					p.Release()
				}
			}
		})
		wg.Go(func() {
			stop := m.watch(t, l)
			for range 10 {
				m.collect(t)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	_, points := m.collect(t)
	if got := total(points["throttle.requests"], "throttle.result", "admitted"); got != float64(admitted.Load()) || got == 0 {
		t.Errorf("%v admitted, want %d", got, admitted.Load())
	}
	if got := total(points["throttle.responses"], "throttle.kind", "passed"); got != float64(admitted.Load()) {
		t.Errorf("%v responses, want %d", got, admitted.Load())
	}
}

// TestOther checks that policies beyond 200 share one series, and that so do tiers beyond 1,000.
func TestOther(t *testing.T) {
	t.Run("policies", func(t *testing.T) {
		m := newTelemetry(t)
		var limiters []*throttle.Limiter
		for i := range 300 {
			l := m.limiter(t, fmt.Sprintf("policy-%03d", i), fmt.Sprintf("%d/h", i%10+2))
			l.Allow()
			l.Allow()
			limiters = append(limiters, l)
		}
		m.watch(t, limiters...)
		_, points := m.collect(t)
		if got, other := len(points["throttle.requests"]), total(points["throttle.requests"], "throttle.policy", "_OTHER"); got != 201 || other != 200 {
			t.Errorf("%d series, and %v requests of other policies; want 201 and 200", got, other)
		}
		if got, tiers := len(points["throttle.closed"]), len(points["throttle.tier.usage"]); got != 201 || tiers != 210 {
			t.Errorf("%d policies and %d tiers are watched, want 201 and 210", got, tiers)
		}
		for _, p := range points["throttle.tier.utilization"] {
			if p.value > 1 {
				t.Errorf("%v is used to %v", p.attributes.Encoded(attribute.DefaultEncoder()), p.value)
			}
		}
	})
	t.Run("tiers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newTelemetry(t)
			var wg sync.WaitGroup
			var limiters []*throttle.Limiter
			for i := range 1200 {
				l := m.limiter(t, "policy", fmt.Sprintf("1/%dms", i+1))
				l.Allow()
				wg.Go(func() {
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
				})
				limiters = append(limiters, l)
			}
			wg.Wait()
			_, points := m.collect(t)
			waits := points["throttle.request.time_in_queue"]
			if other := total(waits, "throttle.tier", "_OTHER"); len(waits) != 1001 || other != 200 {
				t.Errorf("%d series, and %v requests waited for other tiers; want 1,001 and 200", len(waits), other)
			}
			m.watch(t, limiters...)
			_, points = m.collect(t)
			if got := len(points["throttle.tier.limit"]); got > 1001 {
				t.Errorf("%d tiers are watched", got)
			}
		})
	})
}

// TestWatchLearns checks that a learned rate is reported in units a second, and of tiers that learn alone.
func TestWatchLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTelemetry(t)
		l := m.limiter(t, "api", "120/m;algo=gcra;burst=1;learn=6000 + 1000/h | guard=0s")
		p, err := l.Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		m.watch(t, l)
		for _, want := range [][2]float64{{2, 2}, {1, 1.8}} { // before and after a refusal
			_, points := m.collect(t)
			rates, noise := points["throttle.tier.learned_rate"], points["throttle.tier.noise"]
			got := total(rates, "throttle.tier", "120/m;algo=gcra;burst=1;learn=6000")
			if len(rates) != 1 || len(noise) != 1 || got < want[0] || got > want[1] {
				t.Errorf("rates %+v, noise %+v, want one from %v to %v", rates, noise, want[0], want[1])
			}
			if err := p.Refused(t.Context(), time.Second); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestWatch checks what is reported of several limiters of a policy, of nested ones, and of one that
// has no Status.
func TestWatch(t *testing.T) {
	m := newTelemetry(t)
	account := m.limiter(t, "account", "10/h")
	a, b, c := m.limiter(t, "orders", "10/h | guard=1s"), m.limiter(t, "orders", "10/h | guard=3s"), m.limiter(t, "orders", "10/h")
	for range 3 {
		a.Allow()
	}
	for range 7 {
		b.Within(account).Allow()
	}
	stop := m.watch(t, a, b.Within(account), c)
	want := map[string]float64{"orders": 7, "account": 7}
	_, points := m.collect(t)
	if got := len(points["throttle.tier.usage"]); got != 2 {
		t.Errorf("%d series, want 2", got)
	}
	for name, used := range want {
		if got := total(points["throttle.tier.usage"], "throttle.policy", name); got != used {
			t.Errorf("%s: %v used, want %v", name, got, used)
		}
	}
	if got := total(points["throttle.tier.utilization"], "throttle.policy", "orders"); got != 0.7 {
		t.Errorf("utilization is %v, want 0.7", got)
	}
	if got := total(points["throttle.guard.time"], "throttle.policy", "orders"); got != 3 {
		t.Errorf("guard is %v, want 3", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, points = m.collect(t); len(points["throttle.tier.usage"]) != 0 {
		t.Error("still watched")
	}

	g, err := throttle.NewGroup(m.policy(t, "keys", "10/h"), nil, throttle.GroupOptions{MaxKeys: 1})
	if err != nil {
		t.Fatal(err)
	}
	g.For("a").Allow()
	m.watch(t, g.For("b"), a)
	var all metricdata.ResourceMetrics
	if err := m.reader.Collect(t.Context(), &all); !errors.Is(err, throttle.ErrTooManyKeys) {
		t.Errorf("the collection's error is %v, want ErrTooManyKeys", err)
	}
	for _, metric := range all.ScopeMetrics[0].Metrics {
		if metric.Name == "throttle.tier.usage" && total(pointsOf(metric.Data), "throttle.policy", "orders") != 3 {
			t.Error("the other limiter is not reported")
		}
	}
	if _, err := otelthrottle.Watch(m.Options, a, nil); err == nil {
		t.Error("a nil Limiter is no error")
	}
}

// TestSpans checks which requests have a span, when it begins, and what it says.
func TestSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTelemetry(t)
		l := m.limiter(t, "mail", "1/s")
		ctx, parent := m.TracerProvider.Tracer("test").Start(throttle.WithClass(t.Context(), throttle.Batch), "parent")
		start := time.Now()
		_ = l.Wait(ctx) // at once
		_ = l.Wait(ctx)
		short, cancel := context.WithTimeout(ctx, 500*time.Microsecond)
		_ = l.Wait(short) // refused at once
		cancel()
		canceled, cancel := context.WithCancel(ctx)
		time.AfterFunc(300*time.Millisecond, cancel)
		_ = l.Wait(canceled)
		canceled, cancel = context.WithCancel(ctx)
		time.AfterFunc(999*time.Microsecond, cancel)
		_ = l.Wait(canceled) // less than 1 ms
		parent.End()

		type span struct {
			name, attributes string
			from, length     time.Duration
			status           codes.Code
		}
		var got []span
		for _, s := range m.spans.Ended() {
			if s.Name() == "parent" {
				continue
			}
			if s.Parent().SpanID() != parent.SpanContext().SpanID() || s.SpanKind() != trace.SpanKindInternal || len(s.Events()) > 0 {
				t.Errorf("%s: parent %v, kind %v, events %v", s.Name(), s.Parent().SpanID(), s.SpanKind(), s.Events())
			}
			set := attribute.NewSet(s.Attributes()...)
			got = append(got, span{s.Name(), set.Encoded(attribute.DefaultEncoder()), s.StartTime().Sub(start), s.EndTime().Sub(s.StartTime()), s.Status().Code})
		}
		want := []span{
			{"throttle wait", "throttle.class=batch,throttle.policy=mail,throttle.result=admitted,throttle.tier=1/s", 0, time.Second, codes.Unset},
			{"throttle wait", "throttle.class=batch,throttle.policy=mail,throttle.result=canceled", time.Second, 300 * time.Millisecond, codes.Error},
		}
		for i := range got { // with the guard interval of the policy
			got[i].from, got[i].length = got[i].from.Truncate(100*time.Millisecond), got[i].length.Truncate(100*time.Millisecond)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the spans are\n%+v, want\n%+v", got, want)
		}
	})
}

// TestOrder checks that otelhttp measures the provider if it is inside throttle, and the wait too, which
// is wrong, if it is outside.
func TestOrder(t *testing.T) {
	const wait = 1.0
	for name, test := range map[string]struct {
		chain func(*throttle.Limiter, http.RoundTripper, ...otelhttp.Option) http.RoundTripper
		want  float64 // seconds of three requests, of which the third waits
	}{
		"inside": {func(l *throttle.Limiter, base http.RoundTripper, o ...otelhttp.Option) http.RoundTripper {
			return &throttle.Transport{Limiter: l, Base: otelhttp.NewTransport(base, o...)}
		}, 0},
		"outside": {func(l *throttle.Limiter, base http.RoundTripper, o ...otelhttp.Option) http.RoundTripper {
			return otelhttp.NewTransport(&throttle.Transport{Limiter: l, Base: base}, o...)
		}, wait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newTelemetry(t)
				rt := test.chain(m.limiter(t, "mail", "2/s | guard=none"), answering(200, 200, 200),
					otelhttp.WithMeterProvider(m.MeterProvider), otelhttp.WithTracerProvider(m.TracerProvider))
				for range 3 {
					if err := get(t, t.Context(), rt); err != nil {
						t.Fatal(err)
					}
				}
				_, points := m.collect(t)
				var took float64
				for _, p := range points["http.client.request.duration"] {
					took += p.sum
				}
				if got := total(points["http.client.request.duration"], "", ""); got != 3 || took != test.want {
					t.Errorf("%v requests took %v s, want 3 and %v s", got, took, test.want)
				}
				var spans []string
				for _, s := range m.spans.Ended() {
					spans = append(spans, fmt.Sprintf("%s %v", s.Name(), s.EndTime().Sub(s.StartTime())))
				}
				want := []string{"HTTP GET 0s", "HTTP GET 0s", "throttle wait 1s", "HTTP GET " + map[bool]string{true: "0s", false: "1s"}[test.want == 0]}
				if !slices.Equal(spans, want) {
					t.Errorf("the spans are %q, want %q", spans, want)
				}
			})
		})
	}
}

// TestClientTrace checks that otelhttptrace, in the Base of a Transport, has the spans that it has
// without one, and that the hooks of the request's own trace are called once.
func TestClientTrace(t *testing.T) {
	spans := func(limited bool) (names []string, hooks string) {
		synctest.Test(t, func(t *testing.T) {
			m := newTelemetry(t)
			base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				client, server := net.Pipe()
				go http.Serve(&oneConn{conn: server}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
				return client, nil
			}}
			inner := otelhttp.NewTransport(base, otelhttp.WithTracerProvider(m.TracerProvider), otelhttp.WithMeterProvider(m.MeterProvider),
				otelhttp.WithClientTrace(func(ctx context.Context) *httptrace.ClientTrace {
					return otelhttptrace.NewClientTrace(ctx, otelhttptrace.WithTracerProvider(m.TracerProvider))
				}))
			var rt http.RoundTripper = inner
			if limited {
				rt = &throttle.Transport{Limiter: m.limiter(t, "mail", "2/s | guard=auto"), Base: inner}
			}
			var got, wrote, first int
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				GotConn:              func(httptrace.GotConnInfo) { got++ },
				WroteRequest:         func(httptrace.WroteRequestInfo) { wrote++ },
				GotFirstResponseByte: func() { first++ },
			})
			if err := get(t, ctx, rt); err != nil {
				t.Fatal(err)
			}
			base.CloseIdleConnections()
			synctest.Wait()
			for _, s := range m.spans.Ended() {
				names = append(names, s.Name())
			}
			slices.Sort(names)
			hooks = fmt.Sprint(got, wrote, first)
		})
		return names, hooks
	}
	bare, hooks := spans(false)
	limited, limitedHooks := spans(true)
	if !slices.Equal(bare, limited) || len(bare) < 4 || hooks != "1 1 1" || limitedHooks != hooks {
		t.Errorf("with a Transport %q and hooks %s, without %q and %s", limited, limitedHooks, bare, hooks)
	}
}

// A oneConn is a net.Listener that accepts one connection.
type oneConn struct {
	mu   sync.Mutex
	conn net.Conn
}

func (l *oneConn) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return nil, io.EOF
	}
	conn := l.conn
	l.conn = nil
	return conn, nil
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.IPAddr{} }

// TestAllocations checks that an event allocates nothing, without a provider and, if no span is made,
// with the SDK.
func TestAllocations(t *testing.T) {
	for name, o := range map[string]otelthrottle.Options{
		"noop": {MeterProvider: metricnoop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider()},
		"none": {}, // of the global ones
		"sdk":  newTelemetry(t).Options,
	} {
		o, err := otelthrottle.New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, refusal := t.Context(), &throttle.WaitError{Err: throttle.ErrQueueFull}
		n := testing.AllocsPerRun(100, func() {
			o.Queued(ctx, throttle.QueuedInfo{Policy: "mail"})
			o.Admitted(ctx, throttle.AdmittedInfo{Policy: "mail", N: 1, Held: true, Queued: true, Tier: "5/s"})
			o.Answered(ctx, throttle.AnsweredInfo{Policy: "mail", Status: 200})
			o.Refused(ctx, throttle.RefusedInfo{Policy: "mail", Err: refusal})
			o.Refused(ctx, throttle.RefusedInfo{Policy: "mail", Err: context.Canceled})
			o.Settled(throttle.SettledInfo{Policy: "mail", Unit: "tokens", Estimated: 1, Actual: 2})
			o.Paused(throttle.PausedInfo{Policy: "mail", For: time.Second, Cause: "call"})
		})
		if n != 0 {
			t.Errorf("%s: the events allocate %v times", name, n)
		}
	}
}

func BenchmarkWait(b *testing.B) {
	noop := otelthrottle.Options{MeterProvider: metricnoop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider()}
	for _, test := range []struct {
		name    string
		options *otelthrottle.Options
	}{{"none", nil}, {"noop", &noop}, {"sdk", &newTelemetry(b).Options}} {
		p := throttle.Policy{Name: "mail", Tiers: []throttle.Tier{{Limit: 1e12, Window: time.Second, Algorithm: throttle.TokenBucket}}}
		if test.options != nil {
			var err error
			if p.Observer, err = otelthrottle.New(*test.options); err != nil {
				b.Fatal(err)
			}
		}
		l, ctx := newLimiter(b, p), b.Context()
		b.Run(test.name+"/Wait", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = l.Wait(ctx)
			}
		})
		tr := &throttle.Transport{Limiter: l, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
		})}
		req, err := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(test.name+"/Transport", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = tr.RoundTrip(req)
			}
		})
		if p.Observer == nil {
			continue
		}
		b.Run(test.name+"/queued", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Observer.Queued(ctx, throttle.QueuedInfo{Policy: "mail"})
				p.Observer.Admitted(ctx, throttle.AdmittedInfo{Policy: "mail", N: 1, Queued: true, Waited: time.Microsecond, Tier: "5/s"})
			}
		})
	}
}
