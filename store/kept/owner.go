package kept

import (
	"encoding/binary"
	"slices"
)

// An owner is a process that holds places in Concurrency tiers or estimates, has bookings far ahead, or waits
// for places. What it holds is free again when its lease ends: the process does not live any more.
type owner struct {
	id int64
	// expires is when the lease ends.
	expires int64
	// waits is since when callers of the process have waited for places or estimates. If zero, none does.
	waits int64
	// wants are the places and estimates of the first of them.
	wants []int64
	// held are the places and open estimates of requests that have begun.
	held []int64
	// settled are the costs of settled estimates that the process has reported: a sum that only grows.
	settled []int64
}

// appendOwners appends the owners. Their instants count from one.
func appendOwners(b []byte, owners []owner, from int64) []byte {
	b = binary.AppendVarint(b, int64(len(owners)))
	for _, o := range owners {
		waits := int64(0)
		if o.waits > 0 {
			waits = from - o.waits + 1
		}
		for _, n := range []int64{o.id, o.expires - from, waits} {
			b = binary.AppendVarint(b, n)
		}
		b = appendAmounts(appendAmounts(appendAmounts(b, o.wants), o.held), o.settled)
	}
	return b
}

func (r *reader) owners(units int, from int64) (owners []owner) {
	for range r.count() {
		o := owner{id: r.number(), expires: from + r.number()}
		if waits := r.number(); waits > 0 {
			o.waits = from - waits + 1
		}
		o.wants, o.held, o.settled = r.amounts(units), r.amounts(units), r.amounts(units)
		owners = append(owners, o)
	}
	return owners
}

// nameOwners replaces the numbers of the owners in a book by their names. It returns false if one is missing.
func nameOwners(book []booking, owners []owner) bool {
	for i := range book {
		if n := book[i].owner; n > int64(len(owners)) {
			return false
		} else if n > 0 {
			book[i].owner = owners[n-1].id
		}
	}
	return true
}

// owner returns an owner, or nil.
func (s *state) owner(id int64) *owner {
	if i := slices.IndexFunc(s.owners, func(o owner) bool { return o.id == id }); i >= 0 {
		return &s.owners[i]
	}
	return nil
}
