package otelthrottle

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// scope is the name of the instrumentation scope.
const scope = "github.com/apithrottle/throttle"

// Options are settings of New and Watch.
type Options struct {
	// MeterProvider makes the instruments. If nil, the global one is used.
	MeterProvider metric.MeterProvider

	// TracerProvider makes the spans. If nil, the global one is used.
	TracerProvider trace.TracerProvider

	// MinWait is the shortest wait that gets a span. If zero, 1 ms.
	MinWait time.Duration
}

func (o Options) meter() metric.Meter {
	if o.MeterProvider == nil {
		return otel.Meter(scope)
	}
	return o.MeterProvider.Meter(scope)
}

func (o Options) tracer() trace.Tracer {
	if o.TracerProvider == nil {
		return otel.Tracer(scope)
	}
	return o.TracerProvider.Tracer(scope)
}

// An observer has the instruments of New.
type observer struct {
	tracer  trace.Tracer
	minWait time.Duration
	series  seriesTable

	requests, responses, pauses metric.Int64Counter
	queued, active              metric.Int64UpDownCounter
	pauseTime                   metric.Float64Counter
	timeInQueue, estimateError  metric.Float64Histogram

	calls, decisions metric.Int64Counter
	callDuration     metric.Float64Histogram
}

// New returns an Observer, for Policy.Observer, that counts events in instruments and makes spans of
// waits. It may be the Observer of any number of policies and Pools. Policies of the same name add up to one
// series. New returns an error if the MeterProvider cannot make an instrument.
func New(o Options) (*throttle.Observer, error) {
	w := &observer{tracer: o.tracer(), minWait: cmp.Or(o.MinWait, time.Millisecond)}
	m, errs := o.meter(), [11]error{}
	w.requests, errs[0] = m.Int64Counter("throttle.requests", metric.WithUnit("{request}"),
		metric.WithDescription("Requests that were admitted or refused."))
	w.timeInQueue, errs[1] = m.Float64Histogram("throttle.request.time_in_queue", metric.WithUnit("s"),
		metric.WithDescription("How long requests that were queued have waited."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600))
	w.queued, errs[2] = m.Int64UpDownCounter("throttle.queued_requests", metric.WithUnit("{request}"),
		metric.WithDescription("Requests that wait in this process."))
	w.active, errs[3] = m.Int64UpDownCounter("throttle.active_requests", metric.WithUnit("{request}"),
		metric.WithDescription("Requests that were admitted and have got no response yet."))
	w.responses, errs[4] = m.Int64Counter("throttle.responses", metric.WithUnit("{response}"),
		metric.WithDescription("Ends of admitted requests."))
	w.pauses, errs[5] = m.Int64Counter("throttle.pauses", metric.WithUnit("{pause}"),
		metric.WithDescription("Pauses and bans of the quota."))
	w.pauseTime, errs[6] = m.Float64Counter("throttle.pause.time", metric.WithUnit("s"),
		metric.WithDescription("Length of the pauses and bans, as they began."))
	w.estimateError, errs[7] = m.Float64Histogram("throttle.estimate.error", metric.WithUnit("1"),
		metric.WithDescription("Actual cost divided by the estimate."),
		metric.WithExplicitBucketBoundaries(0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10))
	w.calls, errs[8] = m.Int64Counter("throttle.store.calls", metric.WithUnit("{call}"),
		metric.WithDescription("Calls of a shared store, and those that were not made because it is away."))
	w.callDuration, errs[9] = m.Float64Histogram("throttle.store.call.duration", metric.WithUnit("s"),
		metric.WithDescription("How long calls of a shared store took."),
		metric.WithExplicitBucketBoundaries(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5))
	w.decisions, errs[10] = m.Int64Counter("throttle.store.decisions", metric.WithUnit("{request}"),
		metric.WithDescription("Requests that calls of a shared store decided."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return &throttle.Observer{
		Queued: w.queue, Admitted: w.admit, Refused: w.refuse, Answered: w.answer, Settled: w.settle, Paused: w.pause, Called: w.call,
	}, nil
}

func (w *observer) queue(ctx context.Context, i throttle.QueuedInfo) {
	w.queued.Add(ctx, 1, w.series.of(i.Policy, labels{class: i.Class.String()}).add...)
}

func (w *observer) admit(ctx context.Context, i throttle.AdmittedInfo) {
	class := i.Class.String()
	w.requests.Add(ctx, 1, w.series.of(i.Policy, labels{class: class, result: admitted, member: i.Member}).add...)
	if i.Queued {
		w.leave(ctx, i.Policy, labels{class: class, result: admitted, member: i.Member, value: i.Tier}, i.Waited)
	}
	if i.Held {
		w.active.Add(ctx, 1, w.series.of(i.Policy, labels{member: i.Member}).add...)
	}
}

func (w *observer) refuse(ctx context.Context, i throttle.RefusedInfo) {
	l := labels{class: i.Class.String(), result: i.Outcome()}
	w.requests.Add(ctx, 1, w.series.of(i.Policy, l).add...)
	if i.Queued {
		if e, ok := i.Err.(*throttle.WaitError); ok {
			l.value = e.Tier
		}
		w.leave(ctx, i.Policy, l, i.Waited)
	}
}

// leave reports that a request has left its queue, with the tier as the value of the labels. It makes the
// span of the wait.
func (w *observer) leave(ctx context.Context, policy string, l labels, waited time.Duration) {
	l.key = tierKey
	s := w.series.of(policy, l)
	w.queued.Add(ctx, -1, w.series.of(policy, labels{class: l.class}).add...)
	w.timeInQueue.Record(ctx, waited.Seconds(), s.record...)
	if waited < w.minWait {
		return
	}
	now := time.Now()
	_, span := w.tracer.Start(ctx, "throttle wait", trace.WithTimestamp(now.Add(-waited)), trace.WithAttributes(s.attributes...))
	if l.result != admitted {
		span.SetStatus(codes.Error, l.result)
	}
	span.End(trace.WithTimestamp(now))
}

func (w *observer) answer(ctx context.Context, i throttle.AnsweredInfo) {
	w.responses.Add(ctx, 1, w.series.of(i.Policy, labels{member: i.Member, key: kindKey, value: kindOf(i)}).add...)
	w.active.Add(ctx, -1, w.series.of(i.Policy, labels{member: i.Member}).add...)
}

// settle compares an actual cost with the estimate. An estimate of zero counts as one.
func (w *observer) settle(i throttle.SettledInfo) {
	ratio := float64(i.Actual) / float64(max(1, i.Estimated))
	w.estimateError.Record(context.Background(), ratio, w.series.of(i.Policy, labels{key: unitKey, value: i.Unit}).record...)
}

func (w *observer) pause(i throttle.PausedInfo) {
	s := w.series.of(i.Policy, labels{key: causeKey, value: string(i.Cause)})
	w.pauses.Add(context.Background(), 1, s.add...)
	w.pauseTime.Add(context.Background(), i.For.Seconds(), s.add...)
}

func (w *observer) call(i throttle.CalledInfo) {
	ctx, s := context.Background(), w.series.of(i.Policy, labels{key: outcomeKey, value: i.Outcome()})
	w.calls.Add(ctx, 1, s.add...)
	if !i.Unsent {
		w.callDuration.Record(ctx, i.Duration.Seconds(), s.record...)
	}
	if i.Requests > 0 {
		w.decisions.Add(ctx, int64(i.Requests), w.series.of(i.Policy, labels{}).add...)
	}
}

// admitted is the result of admitted requests. RefusedInfo.Outcome returns the others.
const admitted = "admitted"

// kindOf returns how a request has ended.
func kindOf(i throttle.AnsweredInfo) string {
	switch {
	case i.Unsent:
		return "unsent"
	case i.Lost:
		return "lost"
	}
	switch i.Kind {
	case answers.Passed:
		return "passed"
	case answers.Limited:
		return "limited"
	case answers.Banned:
		return "banned"
	}
	return "other"
}
