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

// encoding is the number of the current form of an encoded ledger. It stands first, negated. The
// first form has no number, and begins with the clock.
const encoding = 2

// AppendBinary appends the encoding of the ledger to b. A ledger of an equal plan can decode it
// with UnmarshalBinary. The error is always nil.
//
// The encoding is the form, the clock, the words, the rings and the readings, as varints. Each
// number of a list is the difference from the last but one, because windows keep pairs. 10,000
// stamps of a log over an hour take 30 KB.
func (l *Ledger) AppendBinary(b []byte) ([]byte, error) {
	b = binary.AppendVarint(binary.AppendVarint(b, -encoding), l.last)
	b = appendList(b, l.word)
	if l.rings != nil {
		for _, ring := range *l.rings {
			b = appendList(b, ring)
		}
	}
	return appendList(b, l.encodedReadings()), nil
}

// UnmarshalBinary replaces the state of the ledger by a state that AppendBinary has encoded, in
// this form or the first. If the data is not the encoding of a ledger of an equal plan, it returns
// an error and leaves the ledger as it was. It allocates at most eight times the size of the data.
func (l *Ledger) UnmarshalBinary(data []byte) error {
	r := Ledger{plan: l.plan}
	ok := true
	first := false
	if r.last, data, ok = cutVarint(data); r.last == -encoding {
		r.last, data, ok = cutVarint(data)
		r.word, data, ok = cutList(data, ok)
	} else {
		r.word, data, ok = cutList(data, ok)
		r.fromFirst()
		first = true
	}
	if l.plan.rings > 0 {
		rings := make([][]int64, l.plan.rings)
		for i := range rings {
			rings[i], data, ok = cutList(data, ok)
		}
		r.rings = &rings
	}
	if !first {
		var readings []int64
		if readings, data, ok = cutList(data, ok); !r.setReadings(readings) {
			return errUnsound
		}
	}
	if !ok || len(data) > 0 || !r.sound() {
		return errUnsound
	}
	*l = r
	return nil
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
func (l *Ledger) encodedReadings() (list []int64) {
	if l.readings != nil {
		for _, r := range *l.readings {
			list = append(list, r.at, r.used, r.excess, r.foundAt, r.busyUntil, r.from, r.base, r.until, r.others, r.landed, r.opened, r.probeAt, r.probedAt, bit(r.hasOwn))
			list = append(list, r.own[:]...)
		}
	}
	return list
}

// setReadings decodes the readings. It reports whether the numbers may encode readings.
func (l *Ledger) setReadings(list []int64) bool {
	if len(list) == 0 {
		return true
	}
	if len(list) != readingSize*len(l.plan.rules) || !stored(list...) {
		return false
	}
	readings := make([]reading, len(l.plan.rules))
	for i := range readings {
		r := list[readingSize*i:]
		readings[i] = reading{
			at: r[0], used: r[1], excess: r[2], foundAt: r[3], busyUntil: r[4], from: r[5], base: r[6],
			reset: reset{until: r[7], others: r[8], landed: r[9], opened: r[10], probeAt: r[11], probedAt: r[12], hasOwn: r[13] != 0, own: [ownWords]int64(r[14:])},
		}
	}
	l.readings = &readings
	return true
}

// fromFirst converts words of the first form. There, windows of the wall clock did not keep the
// instant of the last landing, which was at the clock or before.
func (l *Ledger) fromFirst() {
	for i, r := range l.plan.rules {
		words, _ := r.words()
		if end := r.place().word + words - 1; l.plan.tiers[i].counter().aligned && end <= len(l.word) {
			l.word = slices.Insert(l.word, end, l.last)
		}
	}
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

func cutVarint(b []byte) (n int64, rest []byte, ok bool) {
	n, size := binary.Varint(b)
	return n, b[max(0, size):], size > 0
}

// cutList reads a list, unless ok is false because an earlier read failed.
func cutList(b []byte, ok bool) (list []int64, rest []byte, _ bool) {
	length, size := binary.Uvarint(b)
	if !ok || size <= 0 || length > uint64(len(b)-size) { // a number takes at least one byte
		return nil, nil, false
	}
	list, b = make([]int64, length), b[size:]
	for i := range list {
		if list[i], b, ok = cutVarint(b); !ok {
			return nil, nil, false
		}
		if i >= 2 {
			list[i] += list[i-2]
		}
	}
	return list, b, true
}

// sound reports whether the rules of the plan may rely on the decoded state.
func (l *Ledger) sound() bool {
	slots := len(l.word) - l.plan.base
	if slots < 0 || slots%l.plan.stride() != 0 || !stored(l.last) || !l.slotsSound() {
		return false
	}
	for _, r := range l.plan.rules {
		if !l.tierSound(r) {
			return false
		}
	}
	return l.resetsSound()
}

// resetsSound reports whether only rules that may have a state without others have one, and whether
// that state is sound.
func (l *Ledger) resetsSound() bool {
	if l.readings == nil {
		return true
	}
	for i, r := range *l.readings {
		if !r.hasOwn {
			continue
		}
		sound := false
		if words, rings := l.plan.rules[i].words(); rings == 0 && words <= ownWords && words > 0 && !l.reopens(i) {
			l.withoutOthers(i, func() { sound = l.tierSound(l.plan.rules[i]) })
		}
		if !sound {
			return false
		}
	}
	return true
}

func stored(list ...int64) bool {
	for _, n := range list {
		if n < 0 || n > mostStored {
			return false
		}
	}
	return true
}

// slotsSound reports whether the slots land in order and add up to what is in flight.
func (l *Ledger) slotsSound() bool {
	inFlight := make([]int64, len(l.plan.units))
	var before int64
	for i := range l.slots() {
		s := l.slot(i)
		if !stored(s...) || s[0] < before {
			return false
		}
		before = s[0]
		for u := range inFlight {
			if inFlight[u] += s[totalOf(u)]; s[heldOf(u)] > s[totalOf(u)] || !stored(inFlight[u]) {
				return false
			}
		}
	}
	for u, n := range inFlight {
		if l.word[u] != n && !(l.plan.estimated[u] && l.word[u] > n && stored(l.word[u])) {
			return false
		}
	}
	return true
}

// tierSound reports whether a rule may rely on its decoded state.
func (l *Ledger) tierSound(r rule) bool {
	if v, ok := r.(viewer); ok && !l.viewSound(v.boundaries()) {
		return false
	}
	return r.sound(l)
}

func (l *Ledger) viewSound(v *view) bool {
	known := l.word[v.known : v.known+v.stateWords()]
	return stored(known...) && (len(known) == 0 || known[0] <= known[1])
}
