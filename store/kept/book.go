package kept

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// A booking is a request that is reserved for an instant to come. No ledger has it yet: if it is
// returned before, it is as if it had never come.
type booking struct {
	at, guard int64
	// cost is in the state's units.
	cost []int64
	// owner is the owner whose lease the booking has. If zero, it has none.
	owner int64
	// free reports that the booking was returned while others were behind it. A request that fits may
	// take it over.
	free bool
}

// The bounds of a book, which keep a value below 16 KB.
const (
	mostBooked = 8192 // bookings
	mostRuns   = 768  // runs of bookings that are evenly spaced
)

// appendBook appends the bookings as runs of equal ones that are evenly spaced.
func appendBook(b []byte, book []booking, owners []owner, from int64) []byte {
	b = binary.AppendVarint(b, int64(runs(book)))
	for len(book) > 0 {
		n, step := run(book)
		first := book[0]
		flags := int64(0)
		if first.free {
			flags = 1
		}
		owner := 1 + slices.IndexFunc(owners, func(o owner) bool { return o.id == first.owner })
		for _, n := range []int64{first.at - from, int64(n), step, first.guard, flags | int64(owner)<<1} {
			b = binary.AppendVarint(b, n)
		}
		b = appendAmounts(b, first.cost)
		from, book = book[n-1].at, book[n:]
	}
	return b
}

// run returns how many bookings at the beginning are alike and evenly spaced, and how far.
func run(book []booking) (n int, step int64) {
	if len(book) > 1 {
		step = book[1].at - book[0].at
	}
	for n = 1; n < len(book) && book[n].at-book[n-1].at == step && book[n].isLike(&book[0]); n++ {
	}
	return n, step
}

func runs(book []booking) (n int) {
	for ; len(book) > 0; n++ {
		length, _ := run(book)
		book = book[length:]
	}
	return n
}

func (b *booking) isLike(o *booking) bool {
	return b.guard == o.guard && b.owner == o.owner && b.free == o.free && slices.Equal(b.cost, o.cost)
}

// book reads the bookings. The owner of each is its number among the owners, from 1.
func (r *reader) book(units int, from int64) (book []booking) {
	for range r.count() {
		at, n, step, guard, flags := from+r.number(), r.number(), r.number(), r.number(), r.number()
		cost := r.amounts(units)
		if n < 1 || n > int64(mostBooked-len(book)) || step < 0 || flags < 0 || guard < 0 {
			r.bad = true
		}
		if r.bad {
			return nil
		}
		book = slices.Grow(book, int(n))
		for i := range n {
			book = append(book, booking{at: at + i*step, guard: guard, cost: cost, owner: flags >> 1, free: flags&1 > 0})
		}
		from = at + (n-1)*step
	}
	return book
}

func appendAmounts(b []byte, amounts []int64) []byte {
	for _, n := range amounts {
		b = binary.AppendVarint(b, n)
	}
	return b
}

func (r *reader) amounts(units int) []int64 {
	amounts := make([]int64, units)
	for i := range amounts {
		amounts[i] = r.number()
		r.bad = r.bad || amounts[i] < 0
	}
	return amounts
}

// bookedAt returns the number of bookings at an instant.
func (s *state) bookedAt(at int64) (n int64) {
	first, _ := slices.BinarySearchFunc(s.book, at, byInstant)
	for ; first < len(s.book) && s.book[first].at == at; first++ {
		n++
	}
	return n
}

func byInstant(b booking, at int64) int { return cmp.Compare(b.at, at) }

// trim drops the free bookings behind all others.
func trim(book []booking) []booking {
	for len(book) > 0 && book[len(book)-1].free {
		book = book[:len(book)-1]
	}
	return book
}

// giveBack returns a booking, and reports whether it was in the book. Bookings that are alike are as good as
// each other.
func (s *state) giveBack(want *booking) bool {
	first, _ := slices.BinarySearchFunc(s.book, want.at, byInstant)
	for i := first; i < len(s.book) && s.book[i].at == want.at; i++ {
		if b := &s.book[i]; b.isLike(want) {
			b.free, b.owner = true, 0
			s.book = trim(s.book)
			return true
		}
	}
	return false
}

// fits reports whether no amount of a cost is above that of another.
func fits(cost, within []int64) bool {
	for u, n := range cost {
		if n > within[u] {
			return false
		}
	}
	return true
}
