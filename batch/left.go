package batch

import (
	"context"
	"fmt"
	"math"
	"sort"
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
	usualShare     = 15 * 60 // after which another share is measured
	longPause      = 10      // that a share leaves out
	fewItems       = 20      // make a rate
	leastHint      = 3       // before which it is not sure what binds
)

// A sample is what a job had done at one time. Times are in seconds since its start.
type sample struct {
	at       float64
	over     float64 // items that are done or failed
	admitted float64 // items that the limiter has admitted
	inFlight float64 // of these, those that are not over
	flown    float64 // the integral of inFlight over the time
	atOnce   float64 // how long AtOnce has bound
	other    float64 // how long Items or InOrder have bound
}

func sampleOf(s *state) sample {
	inFlight := float64(max(0, s.inFlight))
	over := float64(s.Done + s.Failed)
	return sample{
		at: s.Elapsed.Seconds(), over: over, inFlight: inFlight, admitted: over + float64(s.Left) + inFlight,
		atOnce: s.bound[ByAtOnce].Seconds(), other: (s.bound[ByItems] + s.bound[ByOrder]).Seconds(),
	}
}

// minus returns what a job has done since another sample.
func (s sample) minus(o sample) sample {
	return sample{
		s.at - o.at, s.over - o.over, s.admitted - o.admitted, s.inFlight - o.inFlight,
		s.flown - o.flown, s.atOnce - o.atOnce, s.other - o.other,
	}
}

// A history has at least one sample.
type history []sample

// mostSamples is the length of a history. If it is full, every other sample goes.
const mostSamples = 2_048

func (h history) add(s sample) history {
	last := h[len(h)-1]
	s.flown = last.flown + (last.inFlight+s.inFlight)/2*(s.at-last.at)
	if len(h) == mostSamples {
		for i := range len(h) / 2 {
			h[i] = h[2*i+1]
		}
		h = h[:len(h)/2]
	}
	return append(h, s)
}

// first returns the index of the first sample at a time or later, or of the last one.
func (h history) first(at float64) int {
	return sort.Search(len(h)-1, func(i int) bool { return h[i].at >= at })
}

// last returns what the job did in the last seconds.
func (h history) last(seconds float64) sample {
	end := h[len(h)-1]
	return end.minus(h[h.first(end.at-seconds)])
}

// A status is the state of the limits at one time.
type status struct {
	sample
	time    time.Time
	members []throttle.Status
	of      state // the job, afterwards
}

// ask returns the state of the limits of a job. It blocks while a shared store does not answer, until ctx ends.
func ask(ctx context.Context, l *throttle.Limiter, p *throttle.Pool) (s status) {
	if p != nil {
		for _, m := range p.Status(ctx).Members {
			if m.Err == nil {
				s.members = append(s.members, m.Status)
			}
		}
	} else if l != nil {
		if one, err := l.Status(ctx); err == nil {
			s.members = []throttle.Status{one}
		}
	}
	s.time = time.Now()
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

// slowness returns the sum of the seconds that each tier takes for a unit in the long run.
func (s *status) slowness() (sum float64) {
	for _, m := range s.members {
		for _, t := range m.Tiers {
			sum += part(1, t.MaxRate)
		}
	}
	return sum
}

// budget returns the text of the first budget; empty if there is none.
func (s *status) budget() (text string) {
	for _, m := range s.members {
		for _, t := range m.Tiers {
			if t.Tier.Budget {
				text, _, _ = strings.Cut(t.Tier.String(), ";")
				return text
			}
		}
	}
	return ""
}

// An estimate is how long a job takes. It is not safe for concurrent use.
//
// The limits alone say how many items a job could send; see rest. The share of it that the job really got
// corrects that: others use the same limits, items need more requests than one or cost less than estimated.
type estimate struct {
	atOnce  int64
	past    history // since the last items were skipped in a row
	skipped int64
	status  status
	cost    map[string]float64 // of an item, by unit

	share float64 // of what the limits admit; 1 at first
	since status  // from which on the share is measured
}

func newEstimate(atOnce int) *estimate {
	return &estimate{atOnce: int64(atOnce), share: 1, past: history{{}}}
}

// note adds the state of the limits and the job at one time.
func (e *estimate) note(now status, cost map[string]float64) {
	now.sample = sampleOf(&now.of)
	skipping := now.of.Skipped > e.skipped && now.over == e.past[len(e.past)-1].over
	e.skipped = now.of.Skipped
	if skipping {
		e.past = append(e.past[:0], now.sample)
	} else {
		e.past = e.past.add(now.sample)
	}
	if len(now.members) == 0 {
		return
	}
	e.status, e.cost = now, cost
	paused, _ := now.paused()
	other := math.Abs(now.slowness()-e.since.slowness()) > 0.05*now.slowness() // the policy has changed
	if skipping || e.since.at < 1 || paused > longPause*time.Second || other {
		e.since = now
	}
}

// measureShare compares what the limits admitted with what they would have admitted if the job were alone. They may
// admit many at once: a little earlier or later it may be much less or more. So the share has bounds, and stays as
// it is between them. It is 1 if that is almost right.
func (e *estimate) measureShare() {
	length := e.status.at - e.since.at
	unsure := 1 + e.status.at/200
	if length < 5*unsure {
		return
	}
	could := rest{e.members(&e.since), math.Inf(1), 1, e.most()}
	less, _, _ := could.play(length - unsure)
	more, _, _ := could.play(length + unsure)
	did := e.status.admitted - e.since.admitted
	if less < fewItems {
		return
	}
	if e.share = max(0.001, did/more, min(e.share, did/less)); did/more < 1.05 && did/less > 0.95 {
		e.share = 1
	}
	if length > max(usualShare, e.status.at/2) {
		e.since = e.status
	}
}

// measured returns what the job did in the last half of its time or minute, if that is longer.
func (e *estimate) measured() sample {
	return e.past.last(max(leastMeasured, (e.past[len(e.past)-1].at-e.past[0].at)/2))
}

// flight returns how many seconds an item takes from its admission until it is over. If zero, it is not known.
func (e *estimate) flight() float64 {
	m := e.measured()
	if m.over < fewItems {
		m = e.past.last(math.Inf(1))
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
	d := now.minus(e.past[e.past.first(now.at-stretch)])
	return part(d.over, d.at)
}

// left returns how long so many items take that are not over at a state of the job. If that is not known, it may
// return the budget that ends the job before.
func (e *estimate) left(left float64, now sample) (d time.Duration, known bool, budget string) {
	if left <= 0 {
		return 0, left == 0, ""
	}
	age := now.at - e.status.at
	if len(e.status.members) == 0 || age > staleAfter {
		m := e.measured()
		return seconds(left * part(m.at, m.over)), m.over > 0, ""
	}
	e.measureShare()
	n := left + now.over - e.status.over - e.status.inFlight // that were not admitted at the time of the status
	if n <= 0 {
		last := sort.Search(len(e.past)-1, func(i int) bool { return e.past[i].admitted >= e.status.admitted })
		return seconds(max(0, e.flight()-(now.at-e.past[last].at))), true, ""
	}
	end := (&rest{e.members(&e.status), n, e.share, e.most()}).end()
	if math.IsInf(end, 1) {
		return 0, false, e.status.budget()
	}
	return seconds(max(0, end+e.flight()-age)), true, ""
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, store.Forever.Seconds()) * float64(time.Second))
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
	if lately.at > leastHint && lately.atOnce > lately.at/2 {
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
