package batch

import (
	"encoding/binary"
	"math/bits"
)

// contents are what the frames of a journal tell.
type contents struct {
	started   int64 // how many numbers there are
	done      bitmap
	reordered bool
}

// add adds an entry. It reports false if no journal has it there.
func (c *contents) add(e *entry) bool {
	c.started += e.hashes()
	switch e.kind {
	case kindReordered:
		c.reordered = true
	case kindDone, kindFailed:
		n, ok := c.number(e)
		if ok && e.kind == kindDone {
			c.done.add(n)
		}
		return ok
	}
	return true
}

// number returns the number of the item of an entry that was added.
func (c *contents) number(e *entry) (n int64, ok bool) {
	return c.started - 1 - int64(e.back), e.back < uint64(c.started)
}

// A bitmap is a set of numbers.
type bitmap []uint64

func (b bitmap) has(n int64) bool { return n/64 < int64(len(b)) && b[n/64]>>(n%64)&1 != 0 }

func (b *bitmap) add(n int64) {
	if more := int(n/64) + 1 - len(*b); more > 0 {
		*b = append(*b, make([]uint64, more)...)
	}
	(*b)[n/64] |= 1 << (n % 64)
}

func (b bitmap) count() (n int64) {
	for _, word := range b {
		n += int64(bits.OnesCount64(word))
	}
	return n
}

// A hashSet is a set of hashes: a table with open addressing, of which a hash is the first free place from the
// one that its first bytes choose.
type hashSet []hash

// newHashSet returns a set for n hashes, which takes 23 bytes for each.
func newHashSet(n int64) hashSet { return make(hashSet, n*10/7+1) }

func (s hashSet) has(h hash) bool { return s[s.place(h)] == h }
func (s hashSet) add(h hash)      { s[s.place(h)] = h }

// place returns where a hash is or would be.
func (s hashSet) place(h hash) uint64 {
	size := uint64(len(s))
	for i := binary.LittleEndian.Uint64(h[:]) % size; ; i = (i + 1) % size {
		if s[i] == h || s[i] == (hash{}) {
			return i
		}
	}
}
