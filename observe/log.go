package observe

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
)

// LogOptions are settings of Log.
type LogOptions struct {
	// Wait is the shortest wait that is logged. If zero, 1 s.
	Wait time.Duration
}

// Log returns an Observer that writes refusals, pauses, rates that responses have changed, and failed calls of a shared store at
// level Warn, and long waits at level Info.
// It writes at most one line a second for each policy or Pool and level, one for the provider's refusals,
// with what a throttle.RefusalReport contains, and one for changes of each tier. A line after some that were left out
// reports their number as "suppressed". A false Allow is not logged, and neither is a context that ends,
// unless the request has waited for long. Policies beyond 200 share the name "other". If logger is nil,
// it is slog.Default().
//
// A request waits while its line is written.
func Log(logger *slog.Logger, opts LogOptions) *throttle.Observer {
	if logger == nil {
		logger = slog.Default()
	}
	l := &lines{logger: logger, wait: cmp.Or(opts.Wait, time.Second), last: make(map[string]*[3]line)}
	return &throttle.Observer{
		Admitted: l.admitted, Refused: l.refused, Paused: l.paused, Changed: l.changed, Answered: l.answered, Called: l.called,
	}
}

// lines writes lines to a logger.
type lines struct {
	logger *slog.Logger
	wait   time.Duration

	mu   sync.Mutex          // guards all below
	last map[string]*[3]line // by policy: the waits, the refusals and pauses, and the provider's refusals; changes by tier, too
}

// A line is the last line of a policy and level.
type line struct {
	at         time.Time // zero if there is none
	suppressed int       // that would have followed it
}

func (l *lines) admitted(ctx context.Context, i throttle.AdmittedInfo) {
	if i.Waited >= l.wait {
		l.waited(ctx, i, admitted)
	}
}

func (l *lines) refused(ctx context.Context, i throttle.RefusedInfo) {
	r := resultOf(i)
	var e *throttle.WaitError
	isRefusal := errors.As(i.Err, &e)
	switch {
	case r == notNow:
		return
	case r == canceled || r == deadline && !isRefusal: // the context has ended
		if i.Waited >= l.wait {
			l.waited(ctx, throttle.AdmittedInfo{Policy: i.Policy, Class: i.Class, Waited: i.Waited}, r)
		}
		return
	}
	policy, suppressed, ok := l.turn(ctx, i.Policy, slog.LevelWarn, 1)
	if !ok {
		return
	}
	attrs := append(make([]slog.Attr, 0, 10),
		slog.String("policy", policy), slog.String("class", i.Class.String()), slog.String("reason", resultNames[r]),
		slog.Duration("waited", i.Waited))
	if isRefusal {
		attrs = append(attrs, decidedBy(i.Policy, e.Policy, e.Tier)...)
		attrs = append(attrs, slog.Duration("wait", e.Wait), slog.Int("ahead", e.Ahead))
		if !e.Until.IsZero() {
			attrs = append(attrs, slog.Time("until", e.Until))
		}
	}
	l.write(ctx, slog.LevelWarn, "throttle: request refused", suppressed, attrs)
}

// waited logs a wait, which a request that was refused has as if it had been admitted.
func (l *lines) waited(ctx context.Context, i throttle.AdmittedInfo, r result) {
	policy, suppressed, ok := l.turn(ctx, i.Policy, slog.LevelInfo, 0)
	if !ok {
		return
	}
	attrs := append(quotaAttrs(policy, i.Member),
		slog.String("class", i.Class.String()), slog.String("result", resultNames[r]), slog.Duration("waited", i.Waited))
	l.write(ctx, slog.LevelInfo, "throttle: request waited", suppressed, append(attrs, decidedBy(i.Policy, i.By, i.Tier)...))
}

// quotaAttrs returns the names of a policy or a Pool and of the member, if there is one.
func quotaAttrs(policy, member string) []slog.Attr {
	attrs := append(make([]slog.Attr, 0, 16), slog.String("policy", policy))
	if member != "" {
		attrs = append(attrs, slog.String("member", member))
	}
	return attrs
}

func (l *lines) paused(i throttle.PausedInfo) {
	ctx, message := context.Background(), "throttle: quota paused"
	if i.Closed {
		message = "throttle: quota closed"
	}
	if policy, suppressed, ok := l.turn(ctx, i.Policy, slog.LevelWarn, 1); ok {
		l.write(ctx, slog.LevelWarn, message, suppressed, []slog.Attr{
			slog.String("policy", policy), slog.String("cause", causeNames[causeOf(i.Cause)]), slog.Duration("for", i.For)})
	}
}

func (l *lines) changed(i throttle.ChangedInfo) {
	ctx := context.Background()
	key := i.Policy + "\x00" + i.Tier
	policy, suppressed, ok := l.turn(ctx, key, slog.LevelWarn, 0)
	switch {
	case !ok:
		return
	case policy == key:
		policy = i.Policy
	}
	tier, _ := algorithms.ParseTier(i.Tier) // it is one
	l.write(ctx, slog.LevelWarn, "throttle: rate changed", suppressed, []slog.Attr{
		slog.String("policy", policy), slog.String("tier", i.Tier), slog.String("from", tier.FormatRate(i.From)),
		slog.String("to", tier.FormatRate(i.To)), slog.String("cause", string(i.Cause))})
}

// answered logs what is known about a refusal by the provider.
func (l *lines) answered(ctx context.Context, i throttle.AnsweredInfo) {
	r := i.Report
	if r == nil {
		return
	}
	policy, suppressed, ok := l.turn(ctx, i.Policy, slog.LevelWarn, 2)
	if !ok {
		return
	}
	attrs := append(quotaAttrs(policy, i.Member), slog.Int("status", i.Status))
	if f := r.Fullest; f != nil {
		attrs = append(attrs, decidedBy(i.Policy, f.Policy, f.Tier)...)
		attrs = append(attrs, slog.Int64("used", f.Used), slog.Int64("limit", f.Limit))
	}
	if n := r.Named; n != nil {
		attrs = append(attrs, slog.String("named", cmp.Or(n.Tier, "unknown")), slog.Int64("named_used", n.Used), slog.Int64("named_limit", n.Limit))
	}
	if r.Foreign > 0 {
		attrs = append(attrs, slog.Int64("foreign", r.Foreign))
	}
	if r.ClockAhead != 0 {
		attrs = append(attrs, slog.Duration("clock_ahead", r.ClockAhead))
	}
	if r.Took > 0 {
		attrs = append(attrs, slog.Duration("took", r.Took), slog.Duration("guard", r.Guard))
	}
	if r.Backoffs > 0 {
		attrs = append(attrs, slog.Int("backoffs", r.Backoffs))
	}
	l.write(ctx, slog.LevelWarn, "throttle: provider refused", suppressed, attrs)
}

func (l *lines) called(i throttle.CalledInfo) {
	ctx, o := context.Background(), outcomeOf(i)
	if o == callOK {
		return
	}
	if policy, suppressed, ok := l.turn(ctx, i.Policy, slog.LevelWarn, 1); ok {
		l.write(ctx, slog.LevelWarn, "throttle: call of the store failed", suppressed, []slog.Attr{
			slog.String("policy", policy), slog.String("outcome", outcomeNames[o]), slog.Duration("took", i.Duration)})
	}
}

// decidedBy returns the tier that decided, and its policy if that is another one.
func decidedBy(policy, by, tier string) (attrs []slog.Attr) {
	if tier != "" {
		attrs = append(attrs, slog.String("tier", tier))
	}
	if by != "" && by != policy {
		attrs = append(attrs, slog.String("by", by))
	}
	return attrs
}

// turn reports whether a line of a kind may be written now, with the name of its policy and the number of lines
// that were suppressed before it.
func (l *lines) turn(ctx context.Context, policy string, level slog.Level, kind int) (shown string, suppressed int, ok bool) {
	if !l.logger.Enabled(ctx, level) {
		return "", 0, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	both := l.last[policy]
	if both == nil && len(l.last) >= maxPolicies {
		policy = "other"
		both = l.last[policy]
	}
	if both == nil {
		both = new([3]line)
		l.last[policy] = both
	}
	last, now := &both[kind], time.Now()
	if !last.at.IsZero() && now.Sub(last.at) < time.Second {
		last.suppressed++
		return "", 0, false
	}
	suppressed = last.suppressed
	*last = line{at: now}
	return policy, suppressed, true
}

func (l *lines) write(ctx context.Context, level slog.Level, message string, suppressed int, attrs []slog.Attr) {
	if suppressed > 0 {
		attrs = append(attrs, slog.Int("suppressed", suppressed))
	}
	l.logger.LogAttrs(ctx, level, message, attrs...)
}
