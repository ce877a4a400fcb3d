package algorithms

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"
)

// TestUnmarshalUnsound checks that UnmarshalBinary refuses each number that a ledger cannot have.
func TestUnmarshalUnsound(t *testing.T) {
	tier := func(a Algorithm) Tier { return Tier{Limit: 9, Window: time.Second, Algorithm: a} }
	unknown := tier(FixedWindow)
	unknown.Phase = UnknownPhase
	p, err := NewPlan([]Tier{PerSecond(3), tier(SlidingWindow), tier(AnchoredWindow), tier(GCRA), tier(FixedWindow), tier(WeightedWindow),
		unknown, {Limit: 9, Algorithm: Concurrency}, {Limit: 9, Algorithm: Calendar, Period: Day}}, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	words := func(l *Ledger, tier int) []int64 { return l.words(p.rules[tier]) }
	ring := func(l *Ledger, tier int) []int64 {
		return *l.ring(p.rules[tier].place())
	}
	for name, damage := range map[string]func(l *Ledger){
		"a clock before its origin":               func(l *Ledger) { l.last = -1 },
		"half a slot":                             func(l *Ledger) { l.word = l.word[:len(l.word)-1] },
		"too few words":                           func(l *Ledger) { l.word = l.word[:p.base-1] },
		"more in flight than in slots":            func(l *Ledger) { l.word[0]++ },
		"slots out of order":                      func(l *Ledger) { l.lastSlot()[0] = 1 },
		"more held than in the slot":              func(l *Ledger) { *l.lastSlot().held(0) = 9 },
		"a negative held amount":                  func(l *Ledger) { *l.lastSlot().held(0) = -1 },
		"a log that begins outside its ring":      func(l *Ledger) { words(l, 0)[0] = 3 },
		"a log that begins at a negative index":   func(l *Ledger) { words(l, 0)[0] = -1 },
		"a log out of order":                      func(l *Ledger) { ring(l, 0)[1] = 1 },
		"groups that do not add up":               func(l *Ledger) { words(l, 1)[0]++ },
		"a group out of range":                    func(l *Ledger) { ring(l, 1)[0] = mostStored + 1 },
		"a negative bound of an anchored window":  func(l *Ledger) { words(l, 2)[1] = -1 },
		"a whole unit as a remainder of a bucket": func(l *Ledger) { words(l, 3)[1] = 9 },
		"a window number out of range":            func(l *Ledger) { words(l, 4)[0] = mostStored },
		"a negative count of a window":            func(l *Ledger) { words(l, 4)[1] = -1 },
		"a negative count of a weighted window":   func(l *Ledger) { words(l, 5)[2] = -1 },
		"a boundary out of range":                 func(l *Ledger) { words(l, 6)[1] = 1 << 62 },
		"a boundary that ends before it begins":   func(l *Ledger) { words(l, 6)[1], words(l, 6)[2] = 2, 1 },
		"a period end out of range":               func(l *Ledger) { words(l, 8)[0] = mostStored + 1 },
		"a landing out of range":                  func(l *Ledger) { words(l, 4)[2] = 1 << 62 },
		"a reported percent above 100":            func(l *Ledger) { words(l, 8)[2] = 101 },
		"a negative number of open units":         func(l *Ledger) { words(l, 7)[0] = -1 },
	} {
		l := p.NewLedger()
		for i := range int64(5) {
			at := 1e15 + i*30_000
			l.Charge(Moment{At: at, Wall: at}, Request{Cost: []int64{1}, Held: true})
		}
		read := func() error {
			data, _ := l.AppendBinary(nil)
			again := p.NewLedger()
			return again.UnmarshalBinary(data)
		}
		if err := read(); err != nil {
			t.Fatal(err)
		}
		if damage(&l); read() == nil {
			t.Errorf("UnmarshalBinary accepts %s", name)
		}
	}
}

// TestUnmarshalFirstForm checks that UnmarshalBinary reads the first form, in which windows of the
// wall clock had a word less.
func TestUnmarshalFirstForm(t *testing.T) {
	p, err := NewPlan([]Tier{
		{Limit: 9, Window: time.Second, Algorithm: FixedWindow}, PerSecond(9),
		{Limit: 9, Window: time.Minute, Algorithm: WeightedWindow}, {Limit: 9, Algorithm: Calendar, Period: Day},
	}, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	l := p.NewLedger()
	now := Moment{At: 1e15, Wall: 1e15}
	l.Count(now, []int64{4})
	l.Charge(now, Request{Cost: []int64{2}, Held: true})
	words := slices.Clone(l.word)
	for _, tier := range []int{3, 2, 0} {
		n, _ := p.rules[tier].words()
		end := p.rules[tier].place().word + n
		words = slices.Delete(words, end-1, end)
	}
	first := appendList(appendList(binary.AppendVarint(nil, l.last), words), (*l.rings)[0])
	again := p.NewLedger()
	if err := again.UnmarshalBinary(first); err != nil {
		t.Fatal(err)
	}
	if got, want := again.Usage(now), l.Usage(now); !slices.Equal(got, want) {
		t.Errorf("usage %v, want %v", got, want)
	}
}
