package kept

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/apithrottle/throttle/store"
)

// Reencode decodes a value and encodes it again.
func Reencode(value []byte) ([]byte, error) {
	s, err := parse(value)
	if err == nil {
		err = s.decode()
	}
	if err != nil {
		return nil, err
	}
	return s.encode(), nil
}

// sign makes the checksum of a value right.
func sign(b []byte) {
	switch {
	case len(b) <= headLen:
	case b[0] == format:
		binary.BigEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], crcTable))
	default:
		binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[headLen:], crcTable))
	}
}

// Sign makes the checksum of a value right, and returns the value.
func Sign(b []byte) []byte {
	sign(b)
	return b
}

// Entries returns of how many keys the store knows something.
func (s *Store) Entries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

// Successors returns how many quotas a quota keeps that have replaced it.
func Successors(q store.Quota) (n int) {
	for of := q.(*reserving).next; of != nil; of = of.next {
		n++
	}
	return n
}
