package kept

import (
	"encoding/binary"
	"hash/crc32"
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
