package kept

import (
	"encoding/binary"
	"slices"

	"github.com/apithrottle/throttle/algorithms"
)

// An owner is a process that holds places in Concurrency tiers or estimates, has bookings far ahead, or waits
// for places. What it holds is free again when its lease ends: the process does not live any more.
type owner struct {
	id int64
	// expires is when the lease ends.
	expires int64
	// waits is since when callers of the process have waited for places or estimates. If zero, none does.
	waits int64
	// missed is since when places have been kept for the process, which has not asked. If zero, none are.
	missed int64
	// kinds are how its plan holds each unit: not, as places, or as estimates.
	kinds []int64
	// wants are the places and estimates of the first of them.
	wants []int64
	// held are the places and open estimates of requests that have begun.
	held []int64
	// settled are the costs of settled estimates that the process has reported: a sum that only grows.
	settled []int64
}

// The kinds of a unit.
const (
	places = 1 + iota
	estimates
)

// kindOf returns how a plan holds a unit.
func kindOf(p *algorithms.Plan, u int) int64 {
	switch {
	case p.Estimated(u):
		return estimates
	case p.Holds(u):
		return places
	}
	return 0
}

// kindIn returns how a plan holds the unit of a name, which it may not have.
func kindIn(p *algorithms.Plan, unit string) int64 {
	if u := slices.Index(p.Units(), unit); u >= 0 {
		return kindOf(p, u)
	}
	return 0
}

// appendOwners appends the owners. Their instants count from one.
func appendOwners(b []byte, owners []owner, from int64) []byte {
	b = binary.AppendVarint(b, int64(len(owners)))
	for _, o := range owners {
		for _, n := range []int64{o.id, o.expires - from, since(o.waits, from), since(o.missed, from)} {
			b = binary.AppendVarint(b, n)
		}
		for _, amounts := range [][]int64{o.kinds, o.wants, o.held, o.settled} {
			b = appendAmounts(b, amounts)
		}
	}
	return b
}

// since encodes an instant that has passed, or zero.
func since(at, now int64) int64 {
	if at > 0 {
		at = now - at + 1
	}
	return at
}

func (r *reader) owners(units int, from int64) (owners []owner) {
	for range r.count() {
		o := owner{id: r.number(), expires: from + r.number()}
		o.waits, o.missed = since(r.number(), from), since(r.number(), from)
		o.kinds, o.wants, o.held, o.settled = r.amounts(units), r.amounts(units), r.amounts(units), r.amounts(units)
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

// add adds the places and estimates of a request to the held ones.
func (o *owner) add(cost []int64) {
	for u, n := range cost {
		if o.kinds[u] != 0 {
			o.held[u] += n
		}
	}
}

// estimates returns the open estimates.
func (o *owner) estimates() []int64 {
	open := make([]int64, len(o.held))
	for u, n := range o.held {
		if o.kinds[u] == estimates {
			open[u] = n
		}
	}
	return open
}
