package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"
)

// learnedTier is a tier that starts at 5/s.
var learnedTier = Tier{Limit: 5, Window: time.Second, Algorithm: GCRA, Burst: 1, Learn: Learn{Most: 1000}}

func learnedLedger(t testing.TB, tier Tier) (*Ledger, *learned) {
	p := planOf(t, tier)
	l := p.NewLedger()
	return &l, p.learned[0]
}

var one = Request{Cost: []int64{1}}

// takeAll takes units, each as soon as it is admitted, and returns the instant of the last.
func takeAll(l *Ledger, at int64, units int) int64 {
	for range units {
		at, _ = l.Earliest(Moment{At: at}, one)
		l.Take(Moment{At: at}, one)
	}
	return at
}

// perSecond returns the present rate of a tier with a Window of a second.
func perSecond(l *Ledger, at int64) float64 { return l.LearnedRates(Moment{At: at})[0].Rate }

// The rate grows with the units, falls once for all refusals of a moment, and grows again to what was refused.
func TestLearnedGrowth(t *testing.T) {
	l, _ := learnedLedger(t, learnedTier)
	at, last := int64(1e6), 0.0
	for range 400 {
		at = takeAll(l, at, 1)
		if now := perSecond(l, at); now < last {
			t.Fatalf("the rate falls from %v to %v", last, now)
		} else {
			last = now
		}
	}
	for i := range 5 {
		if !l.Refused(Moment{At: at + 100_000}, at-int64(i), one.Cost) {
			t.Errorf("refusal %d causes a pause", i)
		}
	}
	if fell := perSecond(l, at+100_000) / last; fell < 0.765 || fell > 0.768 {
		t.Errorf("after five refusals of one moment the rate is %.4f of what it was, want 0.766", fell)
	}
	low := perSecond(l, at)
	at += 100_000
	for range 3000 {
		at = takeAll(l, at, 1)
		if now := perSecond(l, at); now < low {
			t.Fatalf("the rate falls from %v to %v", low, now)
		} else {
			low = now
		}
	}
	if low < last*0.95 {
		t.Errorf("after 3,000 units the rate is %v, want %v", low, last)
	}
}

// The first units after a decrease share the provider's window with those before it, so their refusals decrease
// nothing. A refusal of one of the next makes callers pause.
func TestLearnedRefusedSoon(t *testing.T) {
	l, _ := learnedLedger(t, learnedTier)
	at := takeAll(l, 1e6, 50)
	l.Refused(Moment{At: at}, at, one.Cost)
	before := perSecond(l, at)
	for range 2 {
		at = takeAll(l, at, 1)
		if !l.Refused(Moment{At: at}, at, one.Cost) || perSecond(l, at) < before {
			t.Error("a refusal of the first units after a decrease is another one")
		}
	}
	at = takeAll(l, at, 1)
	if l.Refused(Moment{At: at}, at, one.Cost) {
		t.Error("a refusal of the third unit causes no pause")
	}
	if fell := perSecond(l, at) / before; fell < 0.68 || fell > 0.71 {
		t.Errorf("a refusal of the third unit leaves %.2f of the rate, want 0.7", fell)
	}
}

// At a high rate, the units that follow a decrease within the shadow do not hide that the next ones are refused.
func TestLearnedRefusedSoonAtHighRates(t *testing.T) {
	fast := learnedTier
	fast.Limit = 1000
	l, _ := learnedLedger(t, fast)
	at := takeAll(l, 1e6, 500)
	l.Refused(Moment{At: at}, at, one.Cost)
	for done := true; done; {
		next := takeAll(l, at, 1)
		if done = l.Refused(Moment{At: next}, next, one.Cost); next > at+60_000 {
			t.Fatal("refusals for 60 ms after a decrease cause no pause")
		}
	}
}

// A refusal that comes late decreases the rate at which its request was sent, before others follow. The refusals of
// those that were sent meanwhile, and soon after, decrease nothing.
func TestLearnedRefusedLate(t *testing.T) {
	for _, late := range []float64{1, 5, 20} {
		l, _ := learnedLedger(t, learnedTier)
		sent := takeAll(l, 1e6, 100)
		then, at := perSecond(l, sent), sent
		for at < sent+int64(late*1e6) {
			at = takeAll(l, at, 1)
		}
		before := perSecond(l, at)
		l.Refused(Moment{At: at}, sent, one.Cost)
		low := perSecond(l, at)
		if fell := low / then; fell < 0.73 || fell > 0.8 {
			t.Errorf("a refusal after %v s, at %.1f/s, leaves %.3f of the rate of %.1f/s at which it was sent, want 0.77", late, before, fell, then)
		}
		for end := at + 500_000; before > 1.5*then && at < end; {
			at = takeAll(l, at, 1)
			if !l.Refused(Moment{At: at}, at, one.Cost) {
				t.Fatalf("a refusal after %v s: another one causes a pause", late)
			}
		}
	}
}

// A trial sends all that a ledger admits to a provider that counts some units of each request, and pauses as a quota
// does.
type trial struct {
	counts             func(at, n int64) bool
	cost, ahead, takes int64 // in units and µs; the provider counts after half of what a response takes
	passed, refused    int   // of what is sent in the second half

	sent        []sentRequest
	arrived     int   // of those in sent
	resumes     int64 // when a pause ends, in µs
	paused      uint  // pauses in a row
	last, begin int64
}

type sentRequest struct {
	at     int64 // in µs
	passed bool
}

// play sends for some time, in µs.
func (f *trial) play(l *Ledger, lasts int64) {
	f.begin = 1e9
	f.last = f.begin
	request := Request{Cost: []int64{f.cost}}
	for now := f.begin; now < f.begin+lasts; now += 1000 {
		for now >= f.resumes {
			at, _ := l.Earliest(Moment{At: max(f.last, now)}, request)
			if at > now+f.ahead {
				break
			}
			l.Charge(Moment{At: at}, request)
			f.last, f.sent = at, append(f.sent, sentRequest{at: at})
		}
		f.arrive(now, now >= f.begin+lasts/2)
		for ; len(f.sent) > 0 && f.sent[0].at+f.takes <= now; f.sent, f.arrived = f.sent[1:], f.arrived-1 {
			f.respond(l, now, f.sent[0])
		}
	}
}

func (f *trial) arrive(now int64, measured bool) {
	for ; f.arrived < len(f.sent) && f.sent[f.arrived].at+f.takes/2 <= now; f.arrived++ {
		r := &f.sent[f.arrived]
		switch r.passed = f.counts(r.at+f.takes/2, f.cost); {
		case !measured:
		case r.passed:
			f.passed++
		default:
			f.refused++
		}
	}
}

func (f *trial) respond(l *Ledger, now int64, r sentRequest) {
	switch {
	case r.passed && r.at >= f.resumes:
		f.paused = 0
	case r.passed || f.paused == 0 && l.Refused(Moment{At: max(f.last, now)}, r.at, []int64{f.cost}):
	case r.at >= f.resumes:
		f.resumes = now + 1_500_000<<f.paused
		f.paused++
	}
}

// inAnySecond returns the count of a provider that accepts a limit in any second.
func inAnySecond(limit int) func(at, n int64) bool {
	var accepted []int64
	return func(at, _ int64) bool {
		for len(accepted) > 0 && at-accepted[0] >= 1e6 {
			accepted = accepted[1:]
		}
		if len(accepted) == limit {
			return false
		}
		accepted = append(accepted, at)
		return true
	}
}

// bucketOf returns the count of a provider with a bucket that drains at a rate per second.
func bucketOf(rate, burst int64) func(at, n int64) bool {
	var level, last int64 // millionths of a unit, and µs
	return func(at, n int64) bool {
		level, last = max(0, level-(at-last)*rate), at
		if level+n*million > burst*million {
			return false
		}
		level += n * million
		return true
	}
}

// A fleet sends what was reserved a second before, at the rate before a decrease, and the responses take a second.
// It uses nearly all of a limit that is counted in any second, also if its rate has fallen far below before.
func TestLearnedRateOfAFleet(t *testing.T) {
	for _, limit := range []int{5, 10, 40, 100} {
		for _, bad := range []int64{0, int64(limit) * million * 2 / 3} {
			l, r := learnedLedger(t, learnedTier)
			r.state(&l.state)[badWord] = bad
			f := trial{counts: inAnySecond(limit), cost: 1, ahead: 1e6, takes: 1e6}
			f.play(l, 10*60e6)
			if share := float64(f.passed) / float64(300*limit); share < 0.9 || f.refused*50 > f.passed {
				t.Errorf("%d/s, from %d/s: %.2f of the second half of 10 minutes is used, and %d of %d are refused", limit, bad/million, share, f.refused, f.passed+f.refused)
			}
		}
	}
}

// Responses that take 20 s let a rate grow far beyond the limit before the first refusal is known. A few decreases
// find it again.
func TestLearnedRateOfSlowResponses(t *testing.T) {
	for limit, counts := range map[int64]func(at, n int64) bool{1: inAnySecond(1), 5: bucketOf(5, 50), 100: bucketOf(100, 1000)} {
		l, _ := learnedLedger(t, learnedTier)
		f := trial{counts: counts, cost: 1, takes: 20e6}
		f.play(l, 10*60e6)
		if share := float64(f.passed) / float64(300*limit); share < 0.85 || f.refused*10 > f.passed {
			t.Errorf("%d/s: %.2f of the second half of 10 minutes is used, and %d of %d are refused", limit, share, f.refused, f.passed+f.refused)
		}
	}
}

// A refused request is one refusal, and follows a decrease as one request, whatever it costs.
func TestLearnedCosts(t *testing.T) {
	five := learnedTier
	five.Burst = 5
	l, _ := learnedLedger(t, five)
	f := trial{counts: bucketOf(5, 50), cost: 5, takes: 100_000}
	f.play(l, 40*60e6)
	if f.passed < 1100 || f.refused*20 > f.passed {
		t.Errorf("%d requests of 1,200 are used, and %d are refused", f.passed, f.refused)
	}
}

// Idle callers, and callers that are slower than the rate, do not raise it.
func TestLearnedIdleEarnsNothing(t *testing.T) {
	l, _ := learnedLedger(t, learnedTier)
	at := int64(1e6)
	for range 1000 {
		at += 500_000 // 2/s of 5/s
		l.Take(Moment{At: at}, one)
	}
	if now := perSecond(l, at); now != 5 {
		t.Errorf("the rate of callers that use 2/s is %v, want 5", now)
	}
	if now := perSecond(l, at+24*3600e6); now != 5 {
		t.Errorf("after a day it is %v, want 5", now)
	}
}

// After a minute or a day of quiet, the rate is 0.9 of the last good rate, however often that happens.
func TestLearnedRest(t *testing.T) {
	for _, quiet := range []time.Duration{time.Minute + 5*time.Second, 24 * time.Hour} {
		l, _ := learnedLedger(t, learnedTier)
		at := takeAll(l, 1e6, 300)
		l.Refused(Moment{At: at}, at, one.Cost)
		at = takeAll(l, at, 2000)
		good := perSecond(l, at)
		for session := range 100 {
			at = takeAll(l, at+Micros(quiet), 20)
			if now := perSecond(l, at) / good; now < 0.85 || now > 1.05 {
				t.Fatalf("in session %d after %v the rate is %.2f of the last good rate, want 0.9", session, quiet, now)
			}
		}
	}
}

// Refusals that are as frequent at low rates are tolerated. Others soon are not.
func TestLearnedNoise(t *testing.T) {
	l, _ := learnedLedger(t, Tier{Limit: 100, Window: time.Second, Algorithm: GCRA, Burst: 1, Learn: Learn{Most: 1000}})
	r := rand.New(rand.NewPCG(1, 1))
	play := func(units int, noise float64) (paused, decreased int) {
		at := l.last + 1e6
		for range units {
			if at = takeAll(l, at, 1); r.Float64() >= noise {
				continue
			}
			before := perSecond(l, at)
			if !l.Refused(Moment{At: at}, at, one.Cost) {
				paused++
			}
			if perSecond(l, at) < before {
				decreased++
			}
		}
		return paused, decreased
	}
	for _, noise := range []float64{0.03, 0.01} {
		play(100_000, noise)
		if _, decreased := play(100_000, noise); float64(decreased) > noise*1_000 {
			t.Errorf("%d of about %.0f refusals decrease the rate, want at most %.0f", decreased, noise*100_000, noise*1_000)
		}
	}
	if noise := l.LearnedRates(Moment{At: l.last})[0].Noise; noise < 0.003 || noise > 0.03 {
		t.Errorf("noise is %.3f, want 0.01", noise)
	}
	if _, decreased := play(100, 1); decreased < 5 {
		t.Errorf("%d of 100 refusals decrease the rate, want 5 at least", decreased)
	}
}

// A canceled unit leaves the schedule as it was, within the time of a unit.
func TestLearnedCancel(t *testing.T) {
	p, err := NewPlan([]Tier{learnedTier}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	l := p.NewLedger()
	at := takeAll(&l, 1e6, 100)
	before, rate := l.Clone(), perSecond(&l, at)
	for range 1000 {
		now, _ := l.Earliest(Moment{At: at}, one)
		held := one
		held.Held = true
		f, _, _ := l.Take(Moment{At: now}, held)
		l.Cancel(Moment{At: now}, f, one.Cost)
		at = now
	}
	if now := perSecond(&l, at); now > rate*1.01 || now < rate*0.99 {
		t.Errorf("1,000 canceled units change the rate from %v to %v", rate, now)
	}
	want, _ := before.Earliest(Moment{At: at}, one)
	got, _ := l.Earliest(Moment{At: at}, one)
	if unit := int64(1e6 / rate); got < want-unit || got > want+unit {
		t.Errorf("after 1,000 canceled units the next goes at %d, want %d", got, want)
	}
}

// playLearned uses a ledger in random ways: units, refusals, cancellations and quiet.
func playLearned(l *Ledger, r *rand.Rand, most int64, check func(at int64)) {
	at := l.last
	for range 200 {
		n := 1 + r.Int64N(most)
		request := Request{Cost: []int64{n}, Held: true}
		switch r.IntN(6) {
		case 0:
			at = min(at+r.Int64N(200e6), Latest)
		case 1:
			l.Refused(Moment{At: at}, max(0, at-r.Int64N(5e6)), request.Cost)
		case 2:
			l.Charge(Moment{At: at}, request)
		case 3:
			f := l.Charge(Moment{At: at}, request)
			l.Cancel(Moment{At: at}, f, request.Cost)
		default:
			if next, _ := l.Earliest(Moment{At: at}, request); next < Latest {
				at = next
			}
			l.Take(Moment{At: at}, request)
		}
		check(at)
	}
}

// extremeTier returns a tier with bounds that are often extreme.
func extremeTier(r *rand.Rand) Tier {
	limits := []int64{1, 2, 5, 1000, mostLearned - 1, mostLearned}
	windows := []time.Duration{time.Microsecond, 7 * time.Microsecond, time.Second, time.Minute, longLearned}
	t := Tier{Limit: limits[r.IntN(len(limits))], Window: windows[r.IntN(len(windows))], Algorithm: GCRA}
	t.Burst = []int64{1, 3, t.Limit, min(MaxLimit, t.Limit*1000)}[r.IntN(4)]
	t.Learn.Most = t.Limit + r.Int64N(mostLearned-t.Limit+1)
	t.Learn.Least = r.Int64N(t.Limit + 1)
	return t
}

// The words of all tiers that Validate allows stay whole numbers from 0 to 2^53, the rate stays in its bounds, and
// no unit may go before now. The state survives its encoding.
func TestLearnedExtremes(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 3))
		tier := extremeTier(r)
		l, rule := learnedLedger(t, tier)
		l.last = 1e6
		playLearned(l, r, tier.Burst, func(at int64) {
			for i, w := range rule.state(&l.state) {
				if w < 0 || w > 1<<53 {
					t.Fatalf("%v: word %d is %d", tier, i, w)
				}
			}
			if rate := rule.now(&l.state); rate < rule.least || rate > rule.most {
				t.Fatalf("%v: the rate is %d, want %d to %d", tier, rate, rule.least, rule.most)
			}
			if next, _ := l.Earliest(Moment{At: at}, Request{Cost: []int64{tier.Burst}}); next < at {
				t.Fatalf("%v: the next may go at %d, before %d", tier, next, at)
			}
		})
		b, _ := l.AppendBinary(nil)
		o := l.plan.NewLedger()
		if err := o.UnmarshalBinary(b); err != nil {
			t.Fatalf("%v: %v", tier, err)
		}
		if c, _ := o.AppendBinary(nil); string(c) != string(b) {
			t.Fatalf("%v: the state differs after encoding", tier)
		}
	}
}

// A forecast of many units is no later than the last of them goes.
func TestLearnedForecastIsALowerBound(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4))
		l, rule := learnedLedger(t, learnedTier)
		l.last = 1e6
		playLearned(l, r, 1, func(int64) {})
		now, units := l.last, 1+r.IntN(3000)
		forecast := rule.earliestTotal(&l.state, Moment{At: now}, int64(units))
		if last := takeAll(l, now, units); forecast > last {
			t.Fatalf("seed %d: %d units are forecast for %d, and the last goes at %d", seed, units, forecast, last)
		}
	}
}

// Other bounds keep what a tier has learned, within them. A bucket and a learned tier take over the use.
func TestLearnedConvert(t *testing.T) {
	l, _ := learnedLedger(t, learnedTier)
	at := takeAll(l, 1e6, 500)
	l.Refused(Moment{At: at}, at, one.Cost)
	rate := perSecond(l, at)
	for _, most := range []int64{10, 2000} {
		narrow := learnedTier
		narrow.Learn.Most = most
		_, rule := learnedLedger(t, narrow)
		c := l.Clone()
		converted := planOf(t, narrow).Convert(c, Moment{At: at})
		if got, want := perSecond(&converted, at), min(rate, float64(most)); got != want {
			t.Errorf("with Most %d the rate is %v, want %v", most, got, want)
		}
		b, _ := converted.AppendBinary(nil)
		if o := converted.plan.NewLedger(); o.UnmarshalBinary(b) != nil || !rule.sound(&converted.state) {
			t.Errorf("with Most %d the state is not sound", most)
		}
	}
	plain := Tier{Limit: 5, Window: time.Second, Algorithm: GCRA}
	full := planOf(t, plain).NewLedger()
	for range 5 {
		full.Take(Moment{At: 1e6}, one)
	}
	learning := plain
	learning.Learn.Most = 100
	learnt := planOf(t, learning).Convert(full, Moment{At: 1e6})
	if next, _ := learnt.Earliest(Moment{At: 1e6}, one); next != 1e6+200_000 {
		t.Errorf("a learned tier after a full bucket admits at %d, want %d", next, int64(1e6+200_000))
	}
	back := planOf(t, plain).Convert(learnt, Moment{At: 1e6})
	if next, _ := back.Earliest(Moment{At: 1e6}, one); next != 1e6+200_000 {
		t.Errorf("a bucket after a full learned tier admits at %d, want %d", next, int64(1e6+200_000))
	}
}

func planOf(t testing.TB, tier Tier) *Plan {
	p, err := NewPlan([]Tier{tier}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
