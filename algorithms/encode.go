package algorithms

import (
	"encoding/binary"
	"errors"
	"slices"
)

// errUnsound is the error for data that no ledger of the plan has written.
var errUnsound = errors.New("not the encoding of a ledger of this plan")

// mostStored is more than any instant or amount in a ledger.
const mostStored = 1 << 54

// encoding is the number of the current form of an encoded state. It stands first, negated. The
// first form has no number, and begins with the clock.
const encoding = 2

// append appends the encoding of the state to b: the form, the clock, the words, the rings and the
// readings, as varints. Each number of a list is the difference from the last but one, because
// windows keep pairs.
func (s *state) append(b []byte) []byte {
	b = binary.AppendVarint(binary.AppendVarint(b, -encoding), s.last)
	b = appendList(b, s.word)
	if s.rings != nil {
		for _, ring := range *s.rings {
			b = appendList(b, ring)
		}
	}
	return appendList(b, s.encodedReadings())
}

// decode sets all but the plan to what d contains, in this form or the first.
func (s *state) decode(d *decoder) {
	s.last = d.varint()
	first := s.last != -encoding
	if !first {
		s.last = d.varint()
	}
	s.word = d.list()
	if first {
		s.fromFirst()
	}
	if s.plan.rings > 0 {
		rings := make([][]int64, s.plan.rings)
		for i := range rings {
			rings[i] = d.list()
		}
		s.rings = &rings
	}
	if !first {
		s.readings = d.readings(len(s.plan.rules))
	}
}

// fromFirst converts words of the first form. There, windows of the wall clock did not keep the
// instant of the last landing, which was at the clock or before.
func (s *state) fromFirst() {
	for i, r := range s.plan.rules {
		words, _ := r.words()
		if end := r.place().word + words - 1; s.plan.tiers[i].counter().aligned && end <= len(s.word) {
			s.word = slices.Insert(s.word, end, s.last)
		}
	}
}

// readingSize is how many numbers encode a reading.
const readingSize = 14 + ownWords

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// encodedReadings returns the numbers that encode the readings of all tiers.
func (s *state) encodedReadings() (list []int64) {
	if s.readings != nil {
		for _, r := range *s.readings {
			list = append(list, r.at, r.used, r.excess, r.foundAt, r.busyUntil, r.from, r.base, r.until, r.others, r.landed, r.opened, r.probeAt, r.probedAt, bit(r.hasOwn))
			list = append(list, r.own[:]...)
		}
	}
	return list
}

func appendList(b []byte, list []int64) []byte {
	b = slices.Grow(b, 4*len(list)+binary.MaxVarintLen64) // most numbers take less
	b = binary.AppendUvarint(b, uint64(len(list)))
	for i, n := range list {
		if i >= 2 {
			n -= list[i-2]
		}
		b = binary.AppendVarint(b, n)
	}
	return b
}

// A decoder reads numbers from the front of its data. After a number that is not there, it is bad
// and reads zeros and empty lists.
type decoder struct {
	data []byte
	bad  bool
}

func (d *decoder) varint() int64 {
	n, size := binary.Varint(d.data)
	if size <= 0 {
		d.bad = true
		return 0
	}
	d.data = d.data[size:]
	return n
}

func (d *decoder) list() []int64 {
	length, size := binary.Uvarint(d.data)
	if size <= 0 || length > uint64(len(d.data)-size) { // a number takes at least one byte
		d.bad = true
	}
	if d.bad {
		return nil
	}
	rest := d.data[size:]
	list := make([]int64, length)
	for i := range list {
		n, size := binary.Varint(rest)
		if d.bad = size <= 0; d.bad {
			return nil
		}
		if rest = rest[size:]; i >= 2 {
			n += list[i-2]
		}
		list[i] = n
	}
	d.data = rest
	return list
}

// readings reads the readings of all tiers, or nil if there are none.
func (d *decoder) readings(tiers int) *[]reading {
	list := d.list()
	if len(list) == 0 {
		return nil
	}
	if len(list) != readingSize*tiers || !stored(list...) {
		d.bad = true
		return nil
	}
	readings := make([]reading, tiers)
	for i := range readings {
		r := list[readingSize*i:]
		readings[i] = reading{
			at: r[0], used: r[1], excess: r[2], foundAt: r[3], busyUntil: r[4], from: r[5], base: r[6],
			reset: reset{until: r[7], others: r[8], landed: r[9], opened: r[10], probeAt: r[11], probedAt: r[12], hasOwn: r[13] != 0, own: [ownWords]int64(r[14:])},
		}
	}
	return &readings
}

func stored(list ...int64) bool {
	for _, n := range list {
		if n < 0 || n > mostStored {
			return false
		}
	}
	return true
}

// sound reports whether the rules of the plan may rely on the decoded state.
func (s *state) sound() bool {
	slots := len(s.word) - s.plan.base
	if slots < 0 || slots%s.plan.stride() != 0 || !stored(s.last) || !s.slotsSound() {
		return false
	}
	for i, r := range s.plan.rules {
		if !r.sound(s) || s.readings != nil && !reported(s, i).sound() {
			return false
		}
	}
	return true
}
