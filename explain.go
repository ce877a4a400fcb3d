package throttle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apithrottle/throttle/internal/admit"
)

// An Explanation is a Forecast and what is behind it, as Limiter.Explain returns it.
type Explanation struct {
	// Forecast is what Limiter.Forecast returns.
	Forecast

	// By is the policy of the tier or the pause that decides. It is that of the Limiter if the
	// request would not wait.
	By string

	// Interactive, Normal and Batch are the callers ahead by Class, Ahead in all.
	Interactive, Normal, Batch int

	// Err is the error with which Acquire would fail at once, such as a *WaitError with ErrDeadline
	// if the wait would outlast the deadline of the context. It matches ErrUnavailable if a shared
	// store does not answer, for which Acquire would wait. If nil, the request would be admitted
	// after Wait.
	Err error

	// At is when the state of the quotas held.
	At time.Time

	// Quotas are the states of the quotas that charge the request, the innermost first.
	Quotas []QuotaState
	member string // of a Pool, that would admit the request
}

// A QuotaState is the state of one quota in an Explanation.
type QuotaState struct {
	// Policy is the name of the policy. Member is the member of the Pool whose quota it is, and empty
	// for a Limiter.
	Policy, Member string

	// Tiers are the states of the tiers, as in a Status.
	Tiers []TierStatus

	// Paused is the time until a pause or ban ends. If zero, there is none. Closed reports that it
	// is a ban. Probing reports that the first request after a pause is in flight: the others wait
	// for its response, and for Paused at most.
	Paused          time.Duration
	Closed, Probing bool

	// Cause is why the quota is paused. If empty, it is not known. Status and Reason are those of
	// the response; see AnsweredInfo.
	Cause  PauseCause
	Status int
	Reason string

	// Guard is the guard interval in force. GuardLearned reports that responses teach it.
	Guard        time.Duration
	GuardLearned bool

	// Shared is what shares the quota, such as "Redis". If empty, the quota is in this process.
	Shared string

	// Unavailable is why the store does not answer. Tiers is then empty. Fallback is how many equal
	// parts the store makes of the quota meanwhile: this process decides on one of them, or callers
	// wait if it is zero.
	Unavailable error
	Fallback    int
}

// Explain returns how long a request of cost c, in the Class of ctx, would wait if it arrived now,
// and why: its String is for people, and its fields are for programs. It charges nothing. A refusal
// is in the Explanation, as Err. Explain itself returns an error only if there is nothing to
// explain: the Cost is not valid, or ctx has ended.
//
// With a shared store Explain blocks for the round trips of Forecast and Status, two for each quota,
// or three if a Batch request leaves Headroom.
func (l *Limiter) Explain(ctx context.Context, c Cost) (Explanation, error) {
	return explain(ctx, func() (Explanation, error) { return l.foretell(ctx, c, true) })
}

// explain returns a forecast as Explain does.
func explain(ctx context.Context, foretell func() (Explanation, error)) (Explanation, error) {
	if err := ctx.Err(); err != nil {
		return Explanation{}, err
	}
	e, err := foretell()
	var refused *WaitError
	switch {
	case err == nil:
	case errors.As(err, &refused) || errors.Is(err, ErrUnavailable):
		e.Err, e.Forecast, e.By, e.Interactive, e.Normal, e.Batch = err, Forecast{}, "", 0, 0, 0
	default:
		return Explanation{}, err
	}
	return e, nil
}

// foretell returns a Forecast and what is behind it and, if all is set, the states of the quotas. The
// error is that of a quota that would refuse the request.
func (l *Limiter) foretell(ctx context.Context, c Cost, all bool) (Explanation, error) {
	return foretell(func(f *admit.Forecast, d admit.Demand) error { return f.Ask(ctx, &l.path, d, all) }, c)
}

func foretell(ask func(*admit.Forecast, admit.Demand) error, c Cost) (Explanation, error) {
	f := admit.Forecast{At: time.Now()}
	err := ask(&f, admit.Demand{Cost: c, N: 1, Held: true})
	e := Explanation{
		Forecast:    Forecast{Wait: f.Wait, Ahead: f.Ahead[Interactive] + f.Ahead[Normal] + f.Ahead[Batch]},
		Interactive: f.Ahead[Interactive], Normal: f.Ahead[Normal], Batch: f.Ahead[Batch],
		Err: waitError(f.Err), At: f.At, member: f.Member,
	}
	if f.By != nil {
		e.By, e.Tier = f.By.Name, f.By.TierName(f.Tier)
	}
	for _, s := range f.Quotas {
		e.Quotas = append(e.Quotas, QuotaState{
			Policy: s.Policy.Name, Member: s.Member, Tiers: s.Tiers,
			Paused: cmp.Or(s.Closed, s.Paused), Closed: s.Closed > 0, Probing: s.Probing,
			Cause: PauseCause(s.By.Cause), Status: s.By.Status, Reason: s.By.Reason,
			Guard: s.Guard, GuardLearned: s.Policy.AutoGuard,
			Shared: s.Shared, Unavailable: s.Err, Fallback: s.Fallback,
		})
	}
	return e, waitError(err)
}

// probing returns a quota whose callers wait for the response to a probe, or nil.
func (e *Explanation) probing() *QuotaState {
	for i := range e.Quotas {
		if q := &e.Quotas[i]; q.Probing && q.Member == e.member {
			return q
		}
	}
	return nil
}

// String returns plain sentences, such as
//
//	The request would wait 1.84s for tier 10000/h, behind 41 callers (2 normal, 39 batch). 5/s has
//	room for 2: 3 of 5 used. 10000/h is full until 14:02:07Z: 10000 of 10000 used, 3 of them in
//	flight. The guard interval is 50ms. The quota is shared through Redis.
//
// Times of the day are in UTC.
func (e Explanation) String() string {
	sentences := []string{e.outcome()}
	for _, q := range e.Quotas {
		own := q.sentences(e.At)
		switch {
		case len(own) > 0 && q.Member != "":
			own[0] = fmt.Sprintf("Member %q, policy %q: %s", q.Member, q.Policy, own[0])
		case len(own) > 0 && len(e.Quotas) > 1:
			own[0] = fmt.Sprintf("Policy %q: %s", q.Policy, own[0])
		}
		sentences = append(sentences, own...)
	}
	return strings.Join(sentences, ". ") + "."
}

// outcome returns what would become of the request.
func (e *Explanation) outcome() string {
	switch {
	case errors.Is(e.Err, ErrUnavailable):
		return "The request would wait until the store answers"
	case e.Err != nil:
		return "The request would be refused: " + strings.TrimPrefix(e.Err.Error(), "throttle: ")
	case e.Wait == 0 && e.Ahead == 0 && e.Tier == "" && e.probing() == nil:
		return "The request would be sent at once"
	}
	text := "The request would wait"
	tier := " for tier " + e.Tier
	if len(e.Quotas) > 1 && e.By != "" {
		tier += fmt.Sprintf(" of policy %q", e.By)
	}
	if e.member != "" {
		tier += fmt.Sprintf(" of member %q", e.member)
	}
	switch probing := e.probing(); {
	case e.Wait > 0 && e.Tier != "":
		text += " " + short(e.Wait) + tier
	case e.Wait == 0 && e.Tier != "":
		text += tier + " until another request ends"
	case probing != nil:
		text += " for the response to another request, at most " + short(probing.Paused)
	case e.Wait == 0: // it is not known how long
	default:
		text += " " + short(e.Wait) + " for the end of a pause"
	}
	if e.Ahead == 0 {
		return text
	}
	var classes []string
	ahead := [...]int{Interactive: e.Interactive, Normal: e.Normal, Batch: e.Batch}
	for _, class := range []Class{Interactive, Normal, Batch} {
		if n := ahead[class]; n > 0 {
			classes = append(classes, fmt.Sprintf("%d %v", n, class))
		}
	}
	return fmt.Sprintf("%s, behind %s (%s)", text, plural(e.Ahead, "caller"), strings.Join(classes, ", "))
}

// sentences returns the state of the quota at a time, without the full stops.
func (q *QuotaState) sentences(now time.Time) (all []string) {
	for _, t := range q.Tiers {
		all = append(all, tierSentence(t, now))
		if origin := t.Origin(); origin != "" {
			all = append(all, origin)
		}
	}
	if q.Paused > 0 {
		all = append(all, q.pauseSentence())
	}
	if q.Guard > 0 {
		text := "The guard interval is " + short(q.Guard)
		if q.GuardLearned {
			text += ", learned from responses"
		}
		all = append(all, text)
	}
	if q.Shared != "" {
		all = append(all, "The quota is shared through "+q.Shared)
	}
	switch {
	case q.Unavailable == nil:
	case q.Fallback > 0:
		all = append(all, fmt.Sprintf("The store does not answer: this process decides on 1/%d of the quota", q.Fallback))
	default:
		all = append(all, "The store does not answer: callers wait for it")
	}
	return all
}

func (q *QuotaState) pauseSentence() string {
	text := "The quota is paused for "
	switch {
	case q.Probing:
		return "The first request after a pause is in flight, and the others wait for its response, at most " + short(q.Paused)
	case q.Closed:
		text = "The provider has closed the quota for "
	}
	text += short(q.Paused)
	switch {
	case q.Cause == PausedByResponse && q.Status > 0:
		text += fmt.Sprintf(", after a response with status %d", q.Status)
	case q.Cause == PausedByResponse:
		text += ", after a response"
	case q.Cause == PausedByCall:
		text += ", by a call of Pause"
	case q.Cause == PausedElsewhere:
		text += ", by another process or Limiter"
	}
	if q.Reason != "" {
		text += fmt.Sprintf(" (%q)", q.Reason)
	}
	return text
}

func tierSentence(t TierStatus, now time.Time) string {
	text, amount := t.Tier.String(), t.Tier.FormatAmount
	switch {
	case !t.Limited:
		text += " has room for " + amount(max(1, t.Remaining))
	case t.RetryAfter == forever:
		text += " is full until a request ends"
	case t.Tier.Budget:
		text += " is used up until " + clock(now, t.RetryAfter)
	case t.Used < t.Limit: // the pace decides
		text += " admits one more at " + clock(now, t.RetryAfter)
	default:
		text += " is full until " + clock(now, t.RetryAfter)
	}
	text += ": " + t.Tier.FormatUse(t.Used, t.Limit)
	if t.InFlight > 0 {
		text += fmt.Sprintf(", %s of them in flight", amount(t.InFlight))
	}
	if t.Others > 0 {
		text += fmt.Sprintf(", %s of them by others", amount(t.Others))
	}
	return text
}

// clock returns the time after some time, rounded up to milliseconds, with the date if that is
// another.
func clock(now time.Time, after time.Duration) string {
	at := now.Add(after).Add(time.Millisecond - 1).Truncate(time.Millisecond).UTC()
	if at.Format(time.DateOnly) == now.UTC().Format(time.DateOnly) {
		return at.Format("15:04:05.999Z")
	}
	return at.Format("2006-01-02T15:04:05.999Z")
}

func short(d time.Duration) string { return d.Round(time.Microsecond).String() }
