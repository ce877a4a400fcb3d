package batch

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

const requests = algorithms.Requests

// The stretches of time in which a rate is measured, in seconds.
const (
	usualStretch   = 20      // for people, if enough items are over in it
	longestStretch = 5 * 60  // for people
	leastMeasured  = 60      // for the time left, or half of the time so far if that is longer
	staleAfter     = 30      // a status that is older says nothing
	leastShare     = 5       // before which the share of the limits is not known
	surerShare     = 60      // after which a share replaces an earlier one
	usualShare     = 15 * 60 // after which another share is measured
	longPause      = 10      // that a share leaves out
	fewItems       = 20      // make a rate
	leastHint      = 3       // before which it is not sure what binds
)

// A status is the state of the limits at one time.
type status struct {
	sample
	time    time.Time
	members []throttle.Status
	waiting int
	known   bool // the limits have answered

	of    state   // the job, afterwards
	vague float64 // how many items have started while the limits were asked
}

// ask returns the state of the limits of a job. It blocks while a shared store does not answer, until ctx ends.
func ask(ctx context.Context, l *throttle.Limiter, p *throttle.Pool) (s status) {
	if p != nil {
		waiting, members := p.Status(ctx)
		s.waiting = waiting
		for _, m := range members {
			if m.Err == nil {
				s.members = append(s.members, m.Status)
			}
		}
	} else if l != nil {
		if one, err := l.Status(ctx); err == nil {
			s.members, s.waiting = []throttle.Status{one}, one.Waiting
		}
	}
	s.time, s.known = time.Now(), len(s.members) > 0
	return s
}

// paused returns how long no member admits anything, and whether that is a ban.
func (s *status) paused() (d time.Duration, banned bool) {
	d = math.MaxInt64
	for _, m := range s.members {
		if until := max(m.Paused, m.Closed); until < d {
			d, banned = until, m.Closed > m.Paused
		}
	}
	if len(s.members) == 0 {
		return 0, false
	}
	return d, banned
}

// isLike reports whether the limits are those of another status.
func (s *status) isLike(o *status) bool {
	if len(s.members) != len(o.members) {
		return false
	}
	for i, m := range s.members {
		if len(m.Tiers) != len(o.members[i].Tiers) {
			return false
		}
		for j, t := range m.Tiers {
			was := o.members[i].Tiers[j]
			if t.Limit != was.Limit || t.Tier.Algorithm != was.Tier.Algorithm || math.Abs(t.MaxRate-was.MaxRate) > was.MaxRate/20 {
				return false
			}
		}
	}
	return true
}

// An estimate is how long a job takes. It is not safe for concurrent use.
//
// The limits alone say how many items a job could send; see rest. The share of it that the job really got
// corrects that: others use the same limits, items need more requests than one or cost less than estimated.
type estimate struct {
	atOnce int64
	past   history
	status status
	cost   map[string]float64 // of an item, by unit
	epoch  float64            // when the last items were skipped in a row; nothing is measured before it
	skips  int64

	share float64 // of what the limits admit; 1 at first
	since status  // from which on the share is measured
	first bool    // share was not measured before since
}

func newEstimate(atOnce int) *estimate {
	return &estimate{atOnce: int64(atOnce), share: 1, first: true, past: history{{}}}
}

// sampleOf returns what a job has done.
func sampleOf(s *state, waiting int) sample {
	inFlight := float64(max(0, s.started-int64(waiting)))
	over := float64(s.Done + s.Failed)
	waits := 0.0
	if waiting > 0 {
		waits = 1
	}
	return sample{
		waits: waits,
		at:    s.Elapsed.Seconds(), over: over, inFlight: inFlight, admitted: over + float64(s.Left) + inFlight,
		atOnce: s.bound[ByAtOnce].Seconds(), other: (s.bound[ByItems] + s.bound[ByOrder]).Seconds(),
	}
}

// note adds the state of the limits and the job at one time.
func (e *estimate) note(now status, cost map[string]float64) {
	s := &now.of
	now.sample = sampleOf(s, now.waiting)
	last := e.past[len(e.past)-1]
	skipping := s.Skipped > e.skips && now.over == last.over
	e.skips = s.Skipped
	e.past.add(now.sample)
	if skipping {
		e.epoch = now.at
	}
	if !now.known {
		return
	}
	e.status, e.cost = now, cost
	paused, _ := now.paused()
	surer := now.vague < e.since.vague && now.at-e.since.at < leastShare
	if skipping || !e.since.known || surer || paused > longPause*time.Second || !now.isLike(&e.since) {
		e.since = now
	}
}

// measureShare compares what the limits admitted with what they would have admitted if the job were alone.
func (e *estimate) measureShare() {
	length := e.status.at - e.since.at
	if length < surerShare && !(e.first && length >= leastShare) {
		return
	}
	members, most := e.members(&e.since), e.most()
	could := func(in float64) float64 { return (&rest{members, math.Inf(1), in, 1, most}).play().admitted }
	// The limits may admit many at once: a little earlier or later it may be much less or more.
	unsure := 1 + length/200
	high, low := could(length+unsure), could(length-unsure)
	if did := e.status.admitted - e.since.admitted; low >= max(leastShare, 20*e.since.vague) {
		e.correctShare(did/high, did/low)
	}
	if length > max(usualShare, e.status.at/2) {
		e.since, e.first = e.status, false
	}
}

// correctShare makes the share one from low to high, if it is not. It is 1 if that is almost right.
func (e *estimate) correctShare(low, high float64) {
	if high = max(low, high); low < 1.05 && high > 0.95 {
		e.share = 1
		return
	}
	e.share = min(1_000, max(0.001, low, min(e.share, high)))
}

// measured returns what the job did in the last half of its time or minute, if that is longer.
func (e *estimate) measured() sample {
	now := e.past[len(e.past)-1]
	return e.past.last(min(now.at-e.epoch, max(leastMeasured, now.at/2)))
}

// flight returns how many seconds an item takes from its admission until it is over. If zero, it is not known.
func (e *estimate) flight() float64 {
	m := e.measured()
	if m.over < fewItems {
		m = e.past[len(e.past)-1]
	}
	return max(0, part(m.flown, m.over+m.inFlight/2)) // those that are in flight are half through
}

// most returns how many items a second AtOnce, InOrder and Items allow.
func (e *estimate) most() float64 {
	most := math.Inf(1)
	if d := e.flight(); d > 0 {
		most = float64(e.atOnce) / d
	}
	if m := e.measured(); m.other > m.at/2 && m.over > 0 {
		most = min(most, m.over/m.at)
	}
	return most
}

// rate returns how many items a second were over lately.
func (e *estimate) rate(now sample) float64 {
	stretch := float64(usualStretch)
	if now.over > 0 {
		stretch = min(longestStretch, max(usualStretch, fewItems*now.at/now.over))
	}
	d := now.minus(e.past.at(max(e.epoch, now.at-stretch)))
	return part(d.over, d.at)
}

// left returns how long n items take that are not over at a state of the job. If that is not known, it may return
// the budget that ends the job before.
func (e *estimate) left(n float64, now sample) (d time.Duration, known bool, budget string) {
	if n <= 0 {
		return 0, n == 0, ""
	}
	age := now.at - e.status.at
	if !e.status.known || age > staleAfter {
		m := e.measured()
		return seconds(n * part(m.at, m.over)), m.over > 0, ""
	}
	e.measureShare()
	n += now.over - e.status.over - e.status.inFlight // when the status held
	if n <= 0 {
		return seconds(max(0, e.flight()-(now.at-e.past.admittedAll()))), true, ""
	}
	c := (&rest{e.members(&e.status), n, math.Inf(1), e.share, e.most()}).play()
	if !c.ends {
		return 0, false, c.budget
	}
	return seconds(max(0, c.took+e.flight()-age)), true, ""
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, store.Forever.Seconds()) * float64(time.Second))
}

// members returns the limits of a status, in items.
func (e *estimate) members(s *status) []member {
	members := make([]member, len(s.members))
	for i, m := range s.members {
		members[i].opens = max(m.Paused, m.Closed).Seconds()
		for _, t := range m.Tiers {
			if cost := e.cost[unitOf(t.Tier)]; cost > 0 {
				members[i].limits = append(members[i].limits, e.limits(s, t, cost)...)
			}
		}
	}
	return members
}

func unitOf(t throttle.Tier) string {
	if t.Unit == "" {
		return requests
	}
	return t.Unit
}

// limits returns the limits that a tier has, of which an item costs so much.
func (e *estimate) limits(s *status, t throttle.TierStatus, cost float64) []limit {
	l := limit{most: float64(t.Limit) / cost, rate: t.MaxRate / cost, used: float64(t.Used) / cost}
	if t.Remaining == 0 && t.RetryAfter < store.Forever {
		l.retry = t.RetryAfter.Seconds()
	}
	if t.Tier.Budget {
		l.budget, _, _ = strings.Cut(t.Tier.String(), ";")
	}
	switch t.Tier.Algorithm {
	case throttle.Concurrency:
		if l.retry = 0; e.flight() == 0 {
			return nil
		}
		l.rate = l.most / e.flight()
	case throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA:
	case throttle.FixedWindow, throttle.AnchoredWindow, throttle.Calendar:
		if t.Tier.Phase != throttle.UnknownPhase {
			l.resets(s.time, t)
			break
		}
		fallthrough
	default:
		l.rolls(s.at, e.past, t, e.share)
	}
	all := []limit{l}
	if pace := float64(t.Tier.PaceBurst) / cost; pace > 0 {
		all = append(all, limit{most: pace, rate: l.rate})
	}
	return all
}

// rolls makes the limit a rolling window. Of what is used in it, the units of the job's own items leave it as
// the items came, and others, of which only the first and the last are known, evenly.
func (l *limit) rolls(now float64, past history, t throttle.TierStatus, share float64) {
	l.window = part(l.most, l.rate)
	begin := now - l.window
	end := past.at(now).admitted
	own := end - past.at(begin).admitted
	scale := min(1/share, part(l.used, own))
	others := l.used - own*scale
	from, to, used := l.retry, max(t.ResetAfter.Seconds(), l.retry), l.used
	l.stillUsed = func(after float64) float64 {
		if after >= to || used == 0 {
			return 0
		}
		still := others
		if after > from {
			still *= (to - after) / (to - from)
		}
		return still + scale*(end-past.at(min(now, begin+after)).admitted)
	}
}

// resets makes the limit a window that ends at certain times.
func (l *limit) resets(now time.Time, t throttle.TierStatus) {
	length := t.Tier.Window
	next := func(of time.Time) time.Time { return of.Add(length) }
	first := next(now)
	switch t.Tier.Algorithm {
	case throttle.AnchoredWindow:
		length = seconds(part(l.most, l.rate)) // with the guard
	case throttle.FixedWindow:
		phase := time.Duration(now.UnixNano()) - t.Tier.Phase
		first = now.Add(length - phase%length)
	case throttle.Calendar:
		zone, err := time.LoadLocation(t.Tier.Zone) // UTC if that is empty
		if err != nil {
			zone = time.UTC
		}
		next = func(of time.Time) time.Time {
			return endOfPeriod(of.Add(time.Millisecond).In(zone), t.Tier.Period) // the next one also if of was rounded down
		}
		first = next(now)
		l.rate = l.most / next(first).Sub(first).Seconds()
	}
	if t.Used > 0 && t.ResetAfter < store.Forever {
		first = now.Add(t.ResetAfter)
	}
	l.reset = first.Sub(now).Seconds()
	l.nextReset = func(reset float64) float64 { return next(now.Add(seconds(reset))).Sub(now).Seconds() }
}

// endOfPeriod returns when the day, week or month of a time ends.
func endOfPeriod(t time.Time, p algorithms.Period) time.Time {
	year, month, day := t.Date()
	switch p {
	case algorithms.Week:
		day += 7 - (int(t.Weekday())+6)%7
	case algorithms.Month:
		month, day = month+1, 1
	default:
		day++
	}
	return time.Date(year, month, day, 0, 0, 0, 0, t.Location())
}

// hint returns what holds the job up, for people.
func (e *estimate) hint(budget string) string {
	if paused, banned := e.status.paused(); banned {
		return "banned for " + duration(paused)
	} else if paused >= 2*time.Second {
		return "paused for " + duration(paused)
	}
	if budget != "" {
		return "budget " + budget + " is used up before the end"
	}
	lately := e.past.last(usualStretch)
	if lately.at > leastHint && lately.atOnce > lately.at/2 && lately.waited < lately.at/4 {
		return fmt.Sprintf("AtOnce %s binds: raise it", separated(e.atOnce))
	}
	return ""
}

// remaining returns how many items are not over. It is negative if that is not known.
func remaining(s *state, total int64) float64 {
	switch {
	case s.Ended:
		return float64(s.started)
	case total == 0:
		return -1
	}
	return float64(max(-1, total-s.Skipped-s.Done-s.Failed-s.Left))
}
