package algorithms

import (
	"fmt"
	"time"
)

// Learn makes a tier find a rate that its provider does not document, by the provider's refusals.
//
// The rate starts at Limit. While callers use all of it, it grows by the factor e in about 10 seconds.
// When the provider refuses a request, it falls to 0.77 of what it was when the request was sent. Then it
// takes about 45 seconds of full use, or 100 units if those take longer, to come near the refused rate again,
// stays there for some time, and tries more. Requests that were sent before a decrease, or are among the
// first two after it, cause no other: the provider still counts those before. A refusal pauses callers only
// if the response asks for a wait, or if one of the next requests, up to the tenth, is refused.
//
// The rate never leaves Least and Most, and never grows beyond twice what callers use at a steady pace.
// Bursts, which it spaces out, let it grow further. After a minute without requests it is at most 0.9 of
// what it was. The provider refuses about 0.2 to 1 % of the requests. Callers see these refusals, and
// package retry sends the requests again.
//
// Burst is how many units may be sent at once, and Limit if zero. Set it to 1 unless the provider is
// known to allow more, because a refused burst looks like too high a rate.
type Learn struct {
	// Least and Most bound the learned rate, in units per Window, from 1 to 16,777,215. If Most is
	// zero, the tier learns nothing. If Least is zero, a hundredth of Limit.
	Least, Most int64
}

// A learned rule is a bucket whose rate is learned. Rates are millionths of a unit per window.
//
// Before the first refusal the rate starts at limit and grows by a unit of rate for each unit that 10
// seconds of that rate admit, which is exponential in time. After a refusal the bad rate is 0.96 of the
// rate at which the request was sent, which may be much lower than the present one if responses take
// long, and the rate falls to 0.8 of the bad rate. From there it grows as in CUBIC: fast at first, slowly
// around the bad rate, then faster again. With x = 1 where it reaches the bad rate,
//
//	rate = bad × (1 + 0.2 × (x−1)³)
//
// x does not grow with time but with the units that were admitted while the rate was what limited them:
// within one unit's time of the first instant at which the bucket could admit them. So the rate is
// never above twice what callers use at a steady pace, and idle time earns nothing. x is 1 after as
// many units as the bad rate admits in 45 seconds, and at least 100.
//
// Units count from their admission, and do not wait for responses: there is no known counter that a
// response could confirm. Refusals of requests that were admitted before the last decrease are part of
// the refusal that caused it. So are those of the first two requests after it, and of what is admitted in
// another 25 ms: a window that the provider counts is full of requests before the decrease, and as many
// as it has refused there are refused again. If the rate has grown since the request was sent, they last
// until any second contains no more requests than the seconds before that request, and a second at most. A
// decrease takes the place of the pause that other refusals cause. If one of the next requests, up to the
// tenth, or what is admitted in their time, is refused, the limit is much lower, or the window much longer: the
// rate decreases more, and callers pause.
//
// Some refusals have nothing to do with the rate: they are as frequent at lower rates. So the rule counts
// requests and refusals while x is below 0.4, without those first 10. It tolerates refusals that
// are no more than three times as frequent as those, and one in 10 at most: if what it took for noise was due to
// the rate, only so many are refused until the next decrease. A single refusal is not counted.
//
// After a minute without units, the rate is at most 0.9 of what it was.
//
// Source: RFC 9438 for the curve. Memory: seven words.
type learned struct {
	site
	limit, least, most int64 // millionths of a unit per window
	burst, window      int64 // units, and millionths of a microsecond
	faster             int64 // by how much one unit raises the rate before the first refusal
	rest               int64 // after so long without units, the rate rests
}

const (
	million     = 1_000_000
	mostLearned = 1<<24 - 1    // the highest Most
	longLearned = time.Hour    // the longest Window of a learned tier
	recovery    = 45 * million // how long the rate takes to reach the bad rate again, in µs
	fewest      = 100          // the units that it takes at least
	refused     = 96           // the bad rate after a refusal, in percent of the rate
	refusedSoon = 86           // the same after one of the first requests
	shadowUnits = 2            // how many requests after a decrease the provider may refuse for those before it
	shadow      = 25_000       // and for how long beside, in µs
	mostShadow  = million      // by how much longer, in µs, if the rate has grown since the request
	backSteps   = 8            // how many steps it takes to find the rate at which the request was sent
	leastGap    = 10           // how many requests after a decrease are the first
	fall        = 5 * million  // the rate falls to 1 − million/fall of the bad rate
	eFold       = 10 * million // how long the rate takes to grow by the factor e before the first refusal, in µs
	farthest    = 20 * million // the largest x, in millionths
	lowPart     = 400_000      // the x below which the rate is low, 0.957 of the bad rate
	restPart    = 206_299      // the x at which it is 0.9 of the bad rate
	restAfter   = 60 * million // a quiet minute, in µs
	enoughUnits = 2_000        // of requests at low rates, so many are remembered
	priorUnits  = 20           // how many requests at low rates without a refusal are assumed
	mostNoise   = million / 10 // which part of requests may be tolerated as noise, in millionths
	mostCredit  = 3 * million  // how many refusals in a row are tolerated, in millionths
)

// The words of a learned rule.
const (
	tatWord         = iota // when the bucket is unused again
	badWord                // the bad rate; zero before the first refusal
	unitsWord              // units admitted since then at the limit of the rate
	sinceWord              // until when requests were sent at the rate before the decrease; zero if the bad rate was not refused
	creditWord             // refusals to tolerate, in millionths
	lowUnitsWord           // requests at low rates
	lowRefusalsWord        // refusals at low rates, in millionths
	learnedWords
)

// check reports the problems of the Learn of a tier.
func (l Learn) check(t Tier, bad func(format string, args ...any)) {
	c := t.counter()
	switch {
	case l == Learn{}:
	case !c.burst:
		bad("Learn is %v: a rate can only be learned of a bucket, because %v admits its units at once: use one of %s", l, t.Algorithm, namesOf(func(c counter) bool { return c.burst }))
	case l.Most < 1 || l.Most > mostLearned:
		bad("Learn.Most is %d: it must be from 1 to %d: use a shorter Window for more", l.Most, mostLearned)
	case l.Least < 0 || l.Least > l.Most:
		bad("Learn.Least is %d: it must be from 1 to Most, %d, or zero for a hundredth of Limit", l.Least, l.Most)
	case t.Limit < max(1, l.Least) || t.Limit > l.Most:
		bad("Limit is %d: the rate at which a learned tier starts must be from Least, %d, to Most, %d", t.Limit, max(1, l.Least), l.Most)
	case t.Window > longLearned:
		bad("Window is %v: of a learned tier it must be at most %v", t.Window, longLearned)
	case t.Budget:
		bad("Budget is true: the rate of a budget can't be learned, leave it false")
	case t.Estimated:
		bad("Estimated is true: a learned tier counts units as they are admitted, leave it false")
	case t.PaceBurst != 0:
		bad("PaceBurst is %d: a learned tier spaces its units by itself, set Burst instead", t.PaceBurst)
	}
}

// String returns the bounds as ParseTier reads them, such as "1..1000".
func (l Learn) String() string { return formatBounds(l.Least, l.Most) }

func formatBounds(least, most int64) string {
	if least == 0 {
		return fmt.Sprint(most)
	}
	return fmt.Sprintf("%d..%d", least, most)
}

func newLearned(t Tier, s site) *learned {
	r := &learned{
		site: s, limit: t.Limit * million, least: t.Learn.Least * million, most: t.Learn.Most * million,
		burst: t.Burst, window: Micros(t.Window) * million,
	}
	if r.least == 0 {
		r.least = max(1, r.limit/100)
	}
	window := Micros(t.Window)
	r.faster = max(1, min(window/(eFold/million), r.limit/8))
	r.rest = max(restAfter, 4*window)
	return r
}

func (*learned) words() (words, rings int) { return learnedWords, 0 }

func (r *learned) state(s *state) []int64 { return s.word[r.word : r.word+learnedWords] }

// toRecover returns how many units it takes to reach a bad rate again.
func (r *learned) toRecover(bad int64) int64 {
	n, _ := mulDiv(bad, recovery, r.window)
	return max(fewest, min(n, MaxLimit))
}

// rate returns the rate after so many units at the limit of the rate since the bad rate.
func (r *learned) rate(bad, units int64) int64 {
	if bad == 0 {
		more, _ := mulDiv(units, r.faster, 1)
		return min(r.most, r.limit+min(r.most, more))
	}
	x := r.progress(bad, units) - million
	cube := x * x / million * x / million
	change, _ := mulDiv(bad, max(cube, -cube), fall)
	if cube < 0 {
		change = -change
	}
	return max(r.least, min(r.most, bad+change))
}

// progress returns x in millionths.
func (r *learned) progress(bad, units int64) int64 {
	x, _ := mulDiv(units, million, r.toRecover(bad))
	return min(x, farthest)
}

// now returns the present rate.
func (r *learned) now(s *state) int64 {
	w := r.state(s)
	return r.rate(w[badWord], w[unitsWord])
}

// drain returns how long n units take at a rate, in microseconds.
func (r *learned) drain(n, rate int64) int64 { return min(ceilMulDiv(n, r.window, rate), Latest) }

func (r *learned) earliest(s *state, now Moment, n int64) int64 {
	w := r.state(s)
	if n > r.burst {
		return Never
	}
	return max(now.At, w[tatWord]-r.drain(r.burst-n, r.rested(w, now.At)))
}

// rested returns the rate at an instant at which the rule may have been at rest.
func (r *learned) rested(w []int64, now int64) int64 {
	bad, units := r.atRest(w, now)
	return r.rate(bad, units)
}

// atRest returns the bad rate and the units since as they are at an instant, after a rest if there was one.
func (r *learned) atRest(w []int64, now int64) (bad, units int64) {
	bad, units = w[badWord], w[unitsWord]
	if w[tatWord] == 0 || now-w[tatWord] < r.rest {
		return bad, units
	}
	rate := r.rate(bad, units)
	if bad == 0 && rate == r.limit {
		return bad, units
	}
	bad = max(bad, rate)
	if most, _ := mulDiv(r.toRecover(bad), restPart, million); rate > bad/10*9 {
		units = most
	}
	return bad, units
}

// earliestTotal uses the rate after all n units, the highest on the way.
func (r *learned) earliestTotal(s *state, now Moment, n int64) int64 {
	w := r.state(s)
	if n <= r.burst {
		return r.earliest(s, now, n)
	}
	bad, units := r.atRest(w, now.At)
	wait := r.drain(n-r.burst, max(r.rate(bad, units), r.rate(bad, units+n)))
	if wait >= Latest {
		return Never
	}
	return max(w[tatWord], now.At) + wait
}

// send counts units as they are admitted.
func (r *learned) send(s *state, now Moment, n int64) {
	w := r.state(s)
	if bad, units := r.atRest(w, now.At); bad != w[badWord] || units != w[unitsWord] {
		if bad != w[badWord] {
			w[sinceWord] = 0
		}
		w[badWord], w[unitsWord] = bad, units
	}
	rate := r.rate(w[badWord], w[unitsWord])
	limited := n <= r.burst && w[tatWord] > 0 && now.At <= w[tatWord]-r.drain(r.burst-n, rate)+r.drain(n, rate)
	w[tatWord] = min(max(w[tatWord], now.At)+r.drain(n, rate), now.At+Latest)
	r.tolerate(w)
	if r.isLow(w, n) {
		if w[lowUnitsWord]++; w[lowUnitsWord] > enoughUnits {
			w[lowUnitsWord] /= 2
			w[lowRefusalsWord] /= 2
		}
	}
	if limited && r.grows(w, rate) {
		w[unitsWord] += n
	}
}

// grows reports whether more units may raise the rate.
func (r *learned) grows(w []int64, rate int64) bool {
	if w[badWord] == 0 {
		return rate < r.most
	}
	return r.progress(w[badWord], w[unitsWord]) < farthest
}

// noise returns how many refusals at low rates count, in millionths, and which part of requests that is.
func (r *learned) noise(w []int64) (refusals, part int64) {
	refusals = max(0, w[lowRefusalsWord]-million)
	return refusals, min(million, refusals/(w[lowUnitsWord]+priorUnits))
}

// tolerate adds what a request lets tolerate.
func (r *learned) tolerate(w []int64) {
	refusals, part := r.noise(w)
	w[creditWord] = min(mostCredit, refusals, w[creditWord]+min(3*part, mostNoise))
}

// isLow reports whether the rate is so much below the bad rate that refusals must have other reasons.
func (r *learned) isLow(w []int64, n int64) bool {
	return w[badWord] > 0 && w[unitsWord] >= leastGap*n && r.progress(w[badWord], w[unitsWord]) < lowPart
}

// refuse decreases the rate after the refusal of a request of n units that was admitted at an instant. It
// reports whether callers need no pause: the rate has not caused the refusal, or its decrease is enough. In a fleet,
// requests are admitted ahead, up to the instant of the decrease.
func (r *learned) refuse(s *state, now Moment, admitted, n int64) (done bool) {
	w := r.state(s)
	since, lowest := w[sinceWord], r.rate(w[badWord], 0)
	if since > 0 && admitted-since <= r.drain(shadowUnits*n, lowest)+shadow {
		return true
	}
	// The units between the decrease and the request, if callers sent them evenly.
	between, _ := mulDiv(w[unitsWord], admitted-since, max(1, now.At-since))
	soon := since > 0 && (between < leastGap*n || admitted-since <= r.drain(leastGap*n, lowest)+shadow)
	if r.isLow(w, n) && !soon {
		w[lowRefusalsWord] += million
	}
	if w[creditWord] >= million {
		w[creditWord] -= million
		return true
	}
	if soon {
		r.decrease(w, now.At, admitted, refusedSoon)
	} else {
		r.decrease(w, now.At, admitted, refused)
	}
	return !soon
}

// decrease makes a part, in percent, of the rate at which a request was admitted the bad rate.
func (r *learned) decrease(w []int64, now, admitted, part int64) {
	rate := r.rate(w[badWord], w[unitsWord])
	then := r.rate(w[badWord], r.unitsAt(w[badWord], w[unitsWord], max(0, min(now, w[tatWord])-admitted)))
	bad := max(r.least, then/100*part)
	lower := r.rate(bad, 0)
	w[badWord], w[unitsWord], w[sinceWord] = bad, 0, now
	if rate > then && rate > lower {
		more, _ := mulDiv(mostShadow, rate-then, rate-lower)
		w[sinceWord] += min(more, mostShadow)
	}
	refusals, _ := r.noise(w)
	w[creditWord] = min(mostCredit, refusals)
	// The units that were sent take longer now, and a burst would be refused again.
	used := max(ceilMulDiv(max(0, w[tatWord]-now), rate, lower), r.drain(r.burst, lower))
	w[tatWord] = now + min(used, Latest)
}

// unitsAt returns how many units had been admitted some time ago, if callers have used all of the rate since.
func (r *learned) unitsAt(bad, units, ago int64) int64 {
	step, rest := ago/backSteps, int64(0) // in µs, and parts of a unit
	for range backSteps {
		half, _ := mulDiv(r.rate(bad, units), step/2, r.window)
		sent, part := mulDiv(r.rate(bad, max(0, units-half)), step, r.window)
		if rest += part; rest >= r.window {
			sent, rest = sent+1, rest-r.window
		}
		units = max(0, units-sent)
	}
	return units
}

// A LearnedRate is what a learned tier knows. Rates are in units per Window.
type LearnedRate struct {
	// Rate is the present rate.
	Rate float64

	// Refused is a little less than the rate at which the last refusal came that decreased the rate. If
	// zero, none has come since the tier started, or the rate has been higher since.
	Refused float64

	// At is the instant of that refusal, or up to a second later if requests before the decrease had an effect
	// for so long.
	At int64

	// Next is the rate in a minute if callers use all of it and nothing is refused.
	Next float64

	// Noise is the part of requests that are refused at any rate, from 0 to 1, as far as it is known.
	Noise float64
}

// report describes the words of the rule.
func (r *learned) report(w []int64, now int64) *LearnedRate {
	bad, units := r.atRest(w, now)
	rate := r.rate(bad, units)
	more, _ := mulDiv(rate, 60*million, r.window)
	_, noise := r.noise(w)
	known := &LearnedRate{
		Rate: float64(rate) / million, Next: float64(r.rate(bad, units+more)) / million, Noise: float64(noise) / million,
	}
	if w[sinceWord] > 0 && bad == w[badWord] {
		known.Refused, known.At = float64(bad)/million, w[sinceWord]
	}
	return known
}

// hasLearned reports whether the rate is another one than that of a new tier.
func (r *learned) hasLearned(s *state) bool {
	w := r.state(s)
	return w[badWord] > 0 || w[unitsWord] > 0
}

// land does nothing: the units count since they were admitted.
func (r *learned) land(*state, Moment, int64) {}

func (r *learned) used(s *state, now Moment) int64 {
	w := r.state(s)
	if w[tatWord] <= now.At {
		return 0
	}
	return min(r.burst, ceilMulDiv(w[tatWord]-now.At, r.now(s), r.window))
}

func (r *learned) forget(s *state, now Moment, keep int64) {
	if w := r.state(s); r.used(s, now) > keep {
		w[tatWord] = now.At + r.drain(keep, r.now(s))
	}
}

// refund takes back units that were admitted at from or later, as a bucket does. If the rate limited them, they no
// longer raise it.
func (r *learned) refund(s *state, now Moment, from, n int64) {
	w := r.state(s)
	if now.At <= w[tatWord]-r.drain(max(0, r.burst-n), r.now(s)) {
		w[unitsWord] = max(0, w[unitsWord]-n)
	}
	w[tatWord] -= max(0, min(r.drain(n, r.now(s))-max(0, now.At-from), w[tatWord]-now.At))
}

func (r *learned) fresh(s *state, now Moment) int64 { return max(now.At, r.state(s)[tatWord]) }

func (r *learned) sound(s *state) bool {
	w := r.state(s)
	return stored(w...) && w[badWord] <= mostLearned*million && w[creditWord] <= mostCredit && w[lowUnitsWord] <= enoughUnits
}

func (r *learned) recurs(s, o *state, by int64) bool { return false }
