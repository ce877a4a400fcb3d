package distributed

import (
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// A learnedTrace is a random trace of a quota with a tier that learns, over days.
type learnedTrace struct {
	*generator
	m    *twin
	s    *subject
	at   int64
	seen map[string]int // what has happened, and how often
}

// TestTwinsLearn plays long traces to the script and its twin, in which a rate grows up to its bound, decreases
// to the other, rests for days and is forgotten.
func TestTwinsLearn(t *testing.T) {
	t.Parallel()
	for name, seeds := range map[string]int{"miniredis": soak.Times(8), "redis": soak.Times(40)} {
		t.Run(name, func(t *testing.T) {
			s := miniSubject(t)
			if name == "redis" {
				s = serverSubject(t)
			}
			seen := make(map[string]int)
			for seed := range uint64(seeds) {
				g := &generator{Rand: rand.New(rand.NewPCG(seed, 3)), learns: true}
				trace := &learnedTrace{generator: g, s: s, at: 1_700_000_000_000_000, seen: seen}
				trace.play(t, 120)
			}
			for _, what := range []string{"decreased", "tolerated", "part of a refusal", "grown", "at most", "at least", "rested", "took back"} {
				if seen[what] == 0 && seeds > 4 {
					t.Errorf("got no trace in which a rate has %s, want some of %v", what, seen)
				}
			}
		})
	}
}

func (l *learnedTrace) newPlan(t *testing.T) *algorithms.Plan {
	limit := pick[int64](l.generator, 1, 5, 30, 1000)
	most := limit * pick[int64](l.generator, 2, 20, 1000)
	tiers := []algorithms.Tier{{
		Algorithm: pick(l.generator, algorithms.TokenBucket, algorithms.GCRA), Limit: limit,
		Window: pick(l.generator, time.Second, 7919*time.Microsecond, time.Minute, time.Hour),
		Burst:  pick[int64](l.generator, 0, 1, 3), Learn: algorithms.Learn{Least: pick(l.generator, 0, 1, limit), Most: min(1<<24-1, most)},
	}}
	switch l.IntN(4) {
	case 0:
		tiers = append(tiers, algorithms.Tier{Limit: 1000 * limit, Window: 20 * time.Second, Algorithm: pick(l.generator, algorithms.SlidingLog, algorithms.GCRA, algorithms.FixedWindow)})
	case 1:
		tiers = append(tiers, tiers[0])
		tiers[1].Unit, tiers[1].Burst = "tokens", 100
	}
	p, err := algorithms.NewPlan(tiers, pick[time.Duration](l.generator, 0, 50*time.Millisecond, 2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (l *learnedTrace) play(t *testing.T, steps int) {
	l.plan = l.newPlan(t)
	l.m = newTwin(l.plan)
	l.s.begin(l.plan)
	refusals := pick(l.generator, 1, 3, 12) // of so many steps, one is a refusal
	for range steps {
		l.at += pick(l.generator, 0, l.Int64N(20_000), l.Int64N(3_000_000), max(0, l.m.frontier-l.m.now), max(0, l.m.frontier-l.m.now))
		if l.IntN(30) == 0 {
			l.at += pick[int64](l.generator, 61e6, 3600e6, 86_400e6)
			l.seen["rested"]++
		}
		before := l.rates()
		switch roll := l.IntN(refusals + 4); {
		case roll < 3:
			l.reserve(t)
		case roll == 3 && l.IntN(3) == 0:
			compare(t, l.s, l.m, l.at, step{op: pick(l.generator, opForget, opCount), args: nil}.withAmounts(l.plan))
		case roll == 3:
			l.takeBack(t)
		default:
			if l.IntN(refusals) > 0 {
				l.reserve(t)
				continue
			}
			l.refuseOne(t, before)
		}
		compare(t, l.s, l.m, l.at, step{op: opStatus})
		l.look()
	}
}

// withAmounts adds the amounts of the operation count.
func (s step) withAmounts(p *algorithms.Plan) step {
	if s.op == opCount {
		s.args = slices.Repeat([]int64{1}, len(p.Tiers()))
	}
	return s
}

func (l *learnedTrace) rates() []*algorithms.LearnedRate {
	return l.m.ledger.LearnedRates(l.m.moment(l.m.now))
}

// look notes at which of its bounds a rate is.
func (l *learnedTrace) look() {
	for i, known := range l.rates() {
		if known == nil {
			continue
		}
		learn := l.plan.Tiers()[i].Learn
		if known.Rate > float64(l.plan.Tiers()[i].Limit) {
			l.seen["grown"]++
		}
		if known.Rate == float64(learn.Most) {
			l.seen["at most"]++
		}
		if learn.Least > 0 && known.Rate == float64(learn.Least) {
			l.seen["at least"]++
		}
	}
}

func (l *learnedTrace) reserve(t *testing.T) {
	guard := l.generator.guard()
	cost := slices.Repeat([]int64{pick[int64](l.generator, 1, 1, 1, 2)}, len(l.plan.Units()))
	args := append([]int64{pick[int64](l.generator, 500_000, 30e6, 3600e6), 0, 0, guard, 0, 0, 0, pick[int64](l.generator, 1, 5, 20, 64), -1}, cost...)
	got := compare(t, l.s, l.m, l.at, step{op: opReserve, args: args})
	for i := 6; i < len(got); i += 2 {
		if got[i] < -1 {
			if guard == 0 {
				guard = l.plan.Guard().Microseconds()
			}
			l.reserved = append(l.reserved, chargeRecord{at: got[i+1], cost: cost, guard: inFlightFor(got[i+1], guard, l.m.now, l.plan)})
		}
	}
}

func (l *learnedTrace) takeBack(t *testing.T) {
	if len(l.reserved) == 0 {
		return
	}
	last := l.reserved[len(l.reserved)-1]
	l.reserved = l.reserved[:len(l.reserved)-1]
	st := step{op: pick(l.generator, opCancel, opRefund), args: append([]int64{l.m.gen, l.m.setBack(), last.guard, last.at}, last.cost...)}
	if got := compare(t, l.s, l.m, l.at, st); got[6] > 0 {
		l.seen["took back"]++
	}
}

func (l *learnedTrace) refuseOne(t *testing.T, before []*algorithms.LearnedRate) {
	st := step{op: opPause, args: []int64{1000, 0, 0, 0, 0, pick[int64](l.generator, 0, 0, 1), 1}}
	l.refuse(l.m, &st)
	got := compare(t, l.s, l.m, l.at, st)
	if st.args[5] > 0 { // it is a back-off, whose sequence ends
		if got[6] == 0 {
			l.seen["tolerated"]++
		}
		compare(t, l.s, l.m, l.at, step{op: opEndPause, args: []int64{l.m.epoch, 5, 0}})
	}
	if was, is := before[0], l.rates()[0]; is.At > was.At {
		l.seen["decreased"]++
	} else {
		l.seen["part of a refusal"]++
	}
}

// TestLearnedConvertTwins checks that the script converts a learned tier to each other tier, and each other
// one to a learned tier, as Plan.Convert does.
func TestLearnedConvertTwins(t *testing.T) {
	t.Parallel()
	s := miniSubject(t)
	learned := []string{"10/s;algo=gcra;learn=1..100", "10/s;burst=3;algo=token_bucket;learn=5..12", "60/m;algo=leaky_bucket;learn=600"}
	others := make([]string, 0, len(windowed))
	for _, a := range windowed {
		others = append(others, "20/m;algo="+a.String())
	}
	var pairs [][2]string
	for _, from := range learned {
		for _, to := range slices.Concat(learned, others) {
			pairs = append(pairs, [2]string{from, to}, [2]string{to, from})
		}
	}
	for _, pair := range pairs {
		for seed := range uint64(soak.Times(6)) {
			for _, guard := range []time.Duration{0, 50 * time.Millisecond} {
				t.Run(strings.Join(pair[:], " to "), func(t *testing.T) {
					soak.Sample(t, 8)
					g := &generator{Rand: rand.New(rand.NewPCG(seed, 4)), plan: planOf(t, guard, pair[0])}
					after := planOf(t, guard, pair[1])
					m := newTwin(g.plan)
					s.begin(g.plan)
					at := int64(1_700_000_000_000_000)
					compare(t, s, m, at, step{op: opStatus})
					at += time.Hour.Microseconds()
					play := func() {
						for range 12 {
							at += g.Int64N(pick[int64](g, 100_000, 2_000_000, 20_000_000))
							compare(t, s, m, at, step{op: opReserve, args: []int64{0, 0, 0, 0, 0, 0, 0, 1 + g.Int64N(20), 0, 1}})
							if m.plan.Learns() && g.IntN(3) == 0 {
								compare(t, s, m, at, step{op: opPause, args: []int64{0, 0, 0, 0, 0, 0, 0, at - 1_700_000_000_000_000, 1}})
							}
						}
						compare(t, s, m, at, step{op: opStatus})
					}
					play()
					ledger := after.Convert(*m.ledger, m.moment(m.frontier))
					m.adopt(after)
					m.ledger, m.changed = &ledger, true
					s.change(after)
					compare(t, s, m, at, step{op: opStatus})
					play()
				})
			}
		}
	}
}

// askFor runs a step of a test that needs no twin, and returns the operation's own reply.
func askFor(t *testing.T, s *subject, at int64, st step) []int64 {
	t.Helper()
	got, err := s.answer(at, st)
	if err != nil {
		t.Fatalf("%v: %v", st, err)
	}
	return got[6:]
}

// learnedOf returns what a quota of one tier knows of its rate.
func learnedOf(t *testing.T, s *subject, at int64) store.Learned {
	t.Helper()
	own := askFor(t, s, at, step{op: opStatus})
	return store.Learned{Rate: float64(own[3]) / 1e6, Refused: float64(own[4]) / 1e6}
}

// refusedAt is a refusal, without a pause, of a request that was admitted at an instant of the quota's clock.
func refusedAt(at int64) step { return step{op: opPause, args: []int64{0, 0, 0, 0, 0, 0, 0, at, 1}} }

// Releases whose bounds differ share one learned rate, each within its own bounds, however they take turns.
func TestReleasesShareLearnedRate(t *testing.T) {
	const start = 1_700_000_000_000_000
	s := miniSubject(t)
	wide, narrow := planOf(t, 0, "100/s;burst=1;algo=gcra;learn=1..1000"), planOf(t, 0, "70/s;burst=1;algo=gcra;learn=60..80")
	s.begin(wide)
	askFor(t, s, start, reserveStep(1))
	askFor(t, s, start+1, refusedAt(0))
	if got := learnedOf(t, s, start+2).Rate; got >= 100 || got < 60 {
		t.Fatalf("got a rate of %v after a refusal at 100, want a lower one", got)
	}
	for turn := range int64(40) {
		at := start + 1_000_000*(1+turn)
		s.change(narrow)
		askFor(t, s, at, reserveStep(20))
		askFor(t, s, at, refusedAt(at-start))
		if got := learnedOf(t, s, at).Rate; got < 60 || got > 80 {
			t.Errorf("turn %d: got a rate of %v in the narrow release, want one from 60 to 80", turn, got)
		}
		s.change(wide)
		own := askFor(t, s, at, step{op: opStatus})
		if got := float64(own[3]) / 1e6; got > 100 || got < 1 {
			t.Errorf("turn %d: got a rate of %v in the wide release, want one from 1 to 100", turn, got)
		}
		if kept := keptTiers(t, s); kept != 0 {
			t.Fatalf("turn %d: got %d tiers kept for the other release, want none: they share a state", turn, kept)
		}
	}
}

// A learned rate outlasts 30 quiet days, and the state of a tier that has learned nothing a second.
func TestLearnedRateIsKept(t *testing.T) {
	const start = 1_700_000_000_000_000
	s := miniSubject(t)
	s.begin(planOf(t, 0, "10/s;algo=gcra;learn=1..1000"))
	check := func(what string, least, most time.Duration) {
		t.Helper()
		if got := s.rdb.PTTL(t.Context(), s.key).Val(); got < least || got > most {
			t.Errorf("%s: got an expiry of %v, want %v to %v", what, got, least, most)
		}
	}
	askFor(t, s, start, reserveStep(3))
	check("new", time.Second, 3*time.Second)
	got, err := s.answer(start+10, refusedAt(0))
	if err != nil {
		t.Fatal(err)
	}
	if kept := 30 * 24 * time.Hour; strconv.IntSize == 64 { // miniredis counts milliseconds in an int
		check("refused", kept, kept+3*time.Second)
	}
	if got[2] > 3000 {
		t.Errorf("got a least expiry of %d ms in the reply, want 3 s at most: a call of another process may shorten it", got[2])
	}
	askFor(t, s, start+20, step{op: opForget})
	check("forgotten", time.Second, 3*time.Second)
	if got := learnedOf(t, s, start+30); got != (store.Learned{Rate: 10}) {
		t.Errorf("got %+v after forget, want the tier's limit of 10", got)
	}
}

// After a quiet day the first rate is 0.9 of the last one, whatever the upper bound.
func TestLearnedRateAfterDay(t *testing.T) {
	const start = 1_700_000_000_000_000
	s := miniSubject(t)
	s.begin(planOf(t, 0, "10/s;burst=1;algo=gcra;learn=1..1000"))
	for i := range int64(5) {
		askFor(t, s, start+i*1_000_000, step{op: opReserve, args: []int64{60e6, 0, 0, 0, 0, 0, 0, 300, -1, 1}})
	}
	last := learnedOf(t, s, start+5_000_000).Rate
	if last <= 20 {
		t.Fatalf("got a rate of %v, want it grown above 20", last)
	}
	if got := learnedOf(t, s, start+86_400_000_000).Rate; got < 0.899*last || got > 0.901*last {
		t.Errorf("got a rate of %v after a day, want 0.9 of %v", got, last)
	}
}

// Of twenty refusals of one moment, which come in any order, the first decreases the rate. So does one of a
// request that was admitted a second after that, and none of a request from a state that is lost.
func TestOneRefusalOfMany(t *testing.T) {
	const start = 1_700_000_000_000_000
	s := miniSubject(t)
	s.begin(planOf(t, 50*time.Millisecond, "100/s;burst=1;algo=gcra;learn=1..1000"))
	askFor(t, s, start, step{op: opReserve, args: []int64{60e6, 0, 0, 0, 0, 0, 0, 20, -1, 1}}) // 190 ms ahead
	askFor(t, s, start+100_000, refusedAt(0))
	once := learnedOf(t, s, start+100_000)
	if once.Rate < 50 || once.Rate >= 100 {
		t.Errorf("got %+v after a refusal at 100, want a lower rate", once)
	}
	for i := range int64(19) {
		askFor(t, s, start+100_001+i, refusedAt((7*i%20)*10_000))
	}
	if got := learnedOf(t, s, start+100_100); got != once {
		t.Errorf("got %+v after twenty refusals, want %+v as after one", got, once)
	}
	for i := range int64(20) { // a later clock than this state has shown
		askFor(t, s, start+100_200+i, refusedAt(1_000_000_000+i))
	}
	if got := learnedOf(t, s, start+100_300); got != once {
		t.Errorf("got %+v after refusals of a lost state, want %+v as before", got, once)
	}
	askFor(t, s, start+1_500_000, reserveStep(1))
	askFor(t, s, start+1_510_000, refusedAt(1_500_000))
	if got := learnedOf(t, s, start+1_510_000); got.Rate > 0.9*once.Rate {
		t.Errorf("got a rate of %v after a refusal at %v, want a lower one", got.Rate, once.Rate)
	}
}

// A refusal that decreases the rate needs no pause, one soon after that does, and in a sequence of back-offs no
// refusal teaches.
func TestBackOffTeachesNothing(t *testing.T) {
	const start = 1_700_000_000_000_000
	s := miniSubject(t)
	s.begin(planOf(t, 0, "100/s;burst=1;algo=gcra;learn=1..1000"))
	rate := 100.0
	check := func(what string, after time.Duration, pauses, teaches bool) {
		t.Helper()
		at := start + after.Microseconds()
		askFor(t, s, at, reserveStep(1))
		backOff := step{op: opPause, args: []int64{100_000, 0, 0, 0, 0, 60_000_000, 0, at - start, 1}}
		if got := askFor(t, s, at, backOff)[0] == 1; got != pauses {
			t.Errorf("%s: got a pause: %v, want %v", what, got, pauses)
		}
		before := rate
		if rate = learnedOf(t, s, at).Rate; teaches == (rate > 0.9*before) || rate > 1.03*before {
			t.Errorf("%s: got a rate of %v after %v, want a decrease: %v", what, rate, before, teaches)
		}
	}
	askFor(t, s, start, reserveStep(1))
	check("the first refusal", time.Second, false, true)
	check("one soon after it", 1500*time.Millisecond, true, true)
	check("one in the sequence of back-offs", 5*time.Second, true, false)
	h, err := s.answer(start+6_000_000, step{op: opStatus})
	if err != nil {
		t.Fatal(err)
	}
	askFor(t, s, start+6_000_000, step{op: opEndPause, args: []int64{h[3], 5, 0}})
	check("one after a request passed", 7*time.Second, true, true)
}

// A release that knows no learned tiers refuses a state with one, and leaves it as it is.
//
// testdata/scripts/thr5.lua.gz is the script of the last release without learned tiers.
func TestEarlierReleaseLeavesLearnedTier(t *testing.T) {
	t.Parallel()
	file, err := os.Open("testdata/scripts/thr5.lua.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	source, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	const at = 1_700_000_000_000_000
	s, server := miniServer(t)
	earlier := newSubject(t, s.rdb, string(source), server.SetTime)
	plan := planOf(t, 50*time.Millisecond, "10/s;algo=gcra;learn=1..1000")
	s.begin(plan)
	askFor(t, s, at, reserveStep(3))
	askFor(t, s, at, refusedAt(0))
	state := s.rdb.Get(t.Context(), s.key).Val()
	earlier.begin(planOf(t, 50*time.Millisecond, "10/s;algo=gcra"))
	earlier.key = s.key
	for _, st := range []step{reserveStep(1), {op: opStatus}, {op: opCount, args: []int64{1}}, {op: opPause, args: []int64{1000, 0, 0, 0, 0}}} {
		if got, err := earlier.answer(at+1000, st); err == nil || !strings.HasPrefix(err.Error(), "THROTTLE corrupt plan in the state") {
			t.Errorf("%v: got %v, %v, want it refused", st, got, err)
		}
	}
	if now := s.rdb.Get(t.Context(), s.key).Val(); now != state {
		t.Errorf("got the state changed to %.80q, want it as it was", now)
	}

	// Once a release with learned tiers has called without one, they are guests.
	s.change(earlier.plan)
	askFor(t, s, at+2000, reserveStep(1))
	if got, err := earlier.answer(at+3000, reserveStep(1)); err == nil || !strings.HasPrefix(err.Error(), "THROTTLE corrupt plan in the state") {
		t.Errorf("got %v, %v with a learned tier as a guest, want it refused", got, err)
	}
}

// A state with an algorithm of a later release is refused with an error that says so.
func TestLaterReleaseIsNamed(t *testing.T) {
	s := miniSubject(t)
	s.begin(planOf(t, 0, "5/s"))
	state := "thr5 0 0 1 1 1722637011 11 0 5 1000000 0 0\n" + strings.Repeat("\x00", 100)
	s.rdb.Set(t.Context(), s.key, state, 0)
	_, err := s.answer(1_700_000_000_000_000, reserveStep(1))
	if text := fmt.Sprint(explain(s.key, err)); !strings.Contains(text, "algorithm 11") || !strings.Contains(text, "upgrade this program") {
		t.Errorf("got %v, want an error that names algorithm 11 and the upgrade", text)
	}
}

// TestPlanTextOfLearnedTier checks what other releases read.
func TestPlanTextOfLearnedTier(t *testing.T) {
	for spec, want := range map[string]string{
		"10/s;algo=gcra;learn=2..1000":              "10 0 10 1000000 10 33555432",
		"10/s;burst=3;algo=token_bucket;learn=1000": "10 0 10 1000000 3 1000",
		"10/s;algo=leaky_bucket;learn=10..16777215": "10 0 10 1000000 10 184549375",
	} {
		if got := planText(planOf(t, 0, spec)); !strings.HasSuffix(got, " "+want) {
			t.Errorf("%s: got %q, want it to end in %q", spec, got, want)
		}
	}
}
