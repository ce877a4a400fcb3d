package algorithms_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/throttletest"
)

// encode returns the encoding of a ledger, and checks that another ledger decodes it to the same.
func encode(t *testing.T, l *Ledger) []byte {
	t.Helper()
	data, err := l.AppendBinary(nil)
	again := l.Plan().NewLedger()
	if err == nil {
		err = again.UnmarshalBinary(data)
	}
	if err != nil || !again.SameAs(l) {
		t.Fatalf("%v: the encoding decodes to another ledger, error %v", l.Plan().Tiers(), err)
	}
	return data
}

// TestEncodeLaws checks that the laws hold for a ledger that is encoded and decoded after each step
// of a random game.
func TestEncodeLaws(t *testing.T) {
	for _, a := range all {
		for seed := range uint64(20) {
			g := newGame(t, rand.New(rand.NewPCG(uint64(a), seed)), a)
			for range 100 {
				g.step()
				data := encode(t, &g.l)
				g.l = g.plan.NewLedger()
				if err := g.l.UnmarshalBinary(data); err != nil {
					t.Fatal(err)
				}
			}
			g.land(len(g.open))
			g.judge()
		}
	}
}

// FuzzUnmarshal decodes what the fuzzer makes of sound encodings. A ledger must refuse it or stay
// usable.
func FuzzUnmarshal(f *testing.F) {
	for _, a := range all {
		f.Add(uint64(a), uint64(1), encodingOfGame(f, uint64(a), 1))
	}
	f.Fuzz(func(t *testing.T, a, seed uint64, data []byte) { useDecoded(t, a, seed, data) })
}

// TestUnmarshalDamaged checks that UnmarshalBinary refuses most damaged encodings, and that a
// ledger stays usable after the others.
func TestUnmarshalDamaged(t *testing.T) {
	const seeds = 1000
	refused := 0
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 2))
		data := encodingOfGame(t, seed, seed)
		switch at := r.IntN(len(data)); r.IntN(3) {
		case 0:
			data = data[:at]
		case 1:
			data = append(data, byte(r.Uint32()))
		case 2:
			for range 1 + r.IntN(3) {
				data[r.IntN(len(data))] ^= 1 << r.IntN(8)
			}
		}
		if !useDecoded(t, seed, seed, data) {
			refused++
		}
	}
	if refused < seeds*8/10 {
		t.Errorf("%d of %d damaged encodings are refused, want at least 8 of 10", refused, seeds)
	}
}

// encodingOfGame returns the encoding of the ledger of a random game.
func encodingOfGame(t testing.TB, a, seed uint64) []byte {
	g := newGame(t, rand.New(rand.NewPCG(a, seed)), all[a%uint64(len(all))])
	for range 30 {
		g.step()
	}
	data, _ := g.l.AppendBinary(nil)
	return data
}

// useDecoded decodes data to the ledger of the same game, and uses the ledger if it accepts the
// data.
func useDecoded(t *testing.T, a, seed uint64, data []byte) (taken bool) {
	g := newGame(t, rand.New(rand.NewPCG(a, seed)), all[a%uint64(len(all))])
	before := encode(t, &g.l)
	if g.l.UnmarshalBinary(data) != nil {
		if !slices.Equal(encode(t, &g.l), before) {
			t.Fatal("a ledger that refused the data has changed")
		}
		return false
	}
	encode(t, &g.l)
	cost := slices.Repeat([]int64{1}, len(g.plan.Units()))
	for range 3 {
		g.l.Usage(g.now)
		f, at, tier := g.l.Take(g.now, Request{Cost: cost, Held: true})
		if tier < 0 {
			g.l.Arrived(g.now, f, cost)
		} else if at < math.MaxInt64 {
			g.now = g.now.Later(at)
		}
		g.l.Fresh(g.now)
	}
	return true
}

// TestConvertNeverForgets checks that two policies that take turns on one ledger, with different
// limits of the same tiers, together send at most what the larger limits allow.
func TestConvertNeverForgets(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		a := Algorithm(seed % uint64(Concurrency))
		window, guard := time.Second, time.Duration(seed%3)*20*time.Millisecond
		limits := [2]int64{1 + r.Int64N(20), 1 + r.Int64N(20)}
		plans := [2]*Plan{}
		for i, limit := range limits {
			tier := Tier{Limit: limit, Window: window, Algorithm: a}
			plans[i] = ledger(t, guard+time.Duration(i)*guard, tier).Plan()
		}
		provider, err := throttletest.NewCounter(Tier{Limit: max(limits[0], limits[1]), Window: window, Algorithm: a})
		if err != nil {
			t.Fatal(err)
		}
		now := Moment{At: 1e15, Wall: 1e15}
		l := plans[0].NewLedger()
		for range 300 {
			l = plans[r.IntN(2)].Convert(l, now)
			if at, _ := l.Earliest(now, Request{Cost: []int64{1}}); at > now.At {
				now = now.Later(now.At + r.Int64N(100_000))
				continue
			}
			// The request arrives when it is admitted, and lands at once or with the guard.
			f := l.Charge(now, Request{Cost: []int64{1}, Held: true})
			if r.IntN(2) == 0 {
				l.Arrived(now, f, []int64{1})
			}
			encode(t, &l)
			if !provider.Arrive(now.Wall, nil) {
				t.Fatalf("seed %d: %v, limits %v: the provider refuses a request", seed, a, limits)
			}
			now = now.Later(now.At + r.Int64N(20_000))
		}
	}
}

func TestConvert(t *testing.T) {
	hour := func(limit int64, a Algorithm) Tier { return Tier{Limit: limit, Window: time.Hour, Algorithm: a} }
	tokens := hour(100, SlidingLog)
	tokens.Unit = "tokens"
	for _, test := range []struct {
		name     string
		from, to Tier
		used     int64 // want, after 6 of 10
	}{
		{"another limit", hour(10, SlidingLog), hour(20, SlidingLog), 6},
		{"a smaller limit", hour(10, SlidingLog), hour(4, SlidingLog), 6},
		{"a bucket of another limit", hour(10, TokenBucket), hour(20, TokenBucket), 6},
		{"another algorithm", hour(10, SlidingLog), hour(10, GCRA), 6},
		{"a log that becomes a sliding window", hour(10, SlidingLog), hour(20_000, SlidingLog), 6},
		{"another window", hour(10, SlidingLog), PerDay(10), 6},
		{"a smaller capacity", hour(10, SlidingLog), PerMinute(3), 6},
		{"an anchored window", hour(10, SlidingLog), hour(10, AnchoredWindow), 6},
		{"another unit", hour(10, SlidingLog), tokens, 0},
		{"another phase", Tier{Limit: 10, Window: time.Hour, Algorithm: FixedWindow, Phase: 50 * time.Minute}, hour(10, FixedWindow), 6},
		{"concurrency", Tier{Limit: 10, Algorithm: Concurrency}, Tier{Limit: 20, Algorithm: Concurrency}, 6},
	} {
		old := ledger(t, 0, test.from)
		now := Moment{At: 1e15, Wall: 1e15}
		old.Charge(now, Request{Cost: []int64{6}})
		l := ledger(t, time.Second, test.to).Plan().Convert(*old, now)
		encode(t, &l)
		if used := l.Usage(now)[0].Used; used != test.used {
			t.Errorf("%s: %d used, want %d", test.name, used, test.used)
		}
	}
}

// TestConvertInFlight checks that requests in flight stay in flight, by the names of the units, and
// may still arrive.
func TestConvertInFlight(t *testing.T) {
	tokens := Tier{Limit: 1000, Window: time.Second, Unit: "tokens"}
	old := ledger(t, 64*time.Millisecond, PerSecond(5))
	now := Moment{At: 1e15}
	f := old.Charge(now, Request{Cost: []int64{2}, Held: true})
	l := ledger(t, 64*time.Millisecond, tokens, PerSecond(5)).Plan().Convert(*old, now)
	l.Arrived(now.Later(now.At+10_000), f, []int64{0, 2})
	if at, _ := l.Earliest(now.Later(now.At+20_000), Request{Cost: []int64{0, 5}}); at != now.At+1_010_000 {
		t.Errorf("five more may go after %d µs, want 1010000", at-now.At)
	}
}

// TestConvertEstimates checks that estimates of a unit that is no longer estimated land with the
// guard: a log keeps them all, whatever its limit, and they take no place for ever.
func TestConvertEstimates(t *testing.T) {
	tokens := func(limit int64, a Algorithm) Tier {
		return Tier{Limit: limit, Window: time.Minute, Unit: "tokens", Algorithm: a}
	}
	estimated := tokens(100, WeightedWindow)
	estimated.Estimated = true
	for _, rest := range []Tier{tokens(5, SlidingLog), {Limit: 50, Unit: "tokens", Algorithm: Concurrency}} {
		old := ledger(t, time.Second, estimated)
		old.Charge(at(0), Request{Cost: []int64{40}, Held: true})
		l := ledger(t, time.Second, rest).Plan().Convert(*old, at(0))
		if l.Advance(at(2 * time.Second)); rest.Algorithm == Concurrency {
			if !l.Fresh(at(time.Hour)) {
				t.Errorf("%v: the ledger is never fresh after estimates", rest)
			}
			continue
		}
		l = ledger(t, time.Second, tokens(100, SlidingLog)).Plan().Convert(l, at(2*time.Second))
		if used := l.Usage(at(2 * time.Second))[0].Used; used != 40 {
			t.Errorf("%v: %d used when the limit is larger again, want 40", rest, used)
		}
	}
}

// TestUnusedAfterClockSetBack checks that a ledger is encoded in a form that can be decoded if the wall clock was
// set back before anything landed.
func TestUnusedAfterClockSetBack(t *testing.T) {
	for _, spec := range []string{"5/s;algo=fixed_window", "5/s;algo=weighted_window;phase=300ms", "5/day", "5/month;zone=America/Havana"} {
		tier, err := ParseTier(spec)
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPlan([]Tier{tier}, 0)
		if err != nil {
			t.Fatal(err)
		}
		l, back := p.NewLedger(), p.NewLedger()
		l.Earliest(Moment{At: 1e15, Wall: 1e15 - 90*24*3600*1e6}, Request{Cost: []int64{1}})
		data, _ := l.AppendBinary(nil)
		if err := back.UnmarshalBinary(data); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
}
