package batch

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// A journal is a header and frames. The header is the magic, a byte with the version, the id of the job and a
// CRC-32C of these. A frame is
//
//	kind     a byte
//	length   of the payload, a uvarint
//	payload
//	sum      4 bytes, little-endian: the CRC-32C of the bytes above, which begins with the sum of the id and the
//	         offset of the frame, so that bytes of another journal or place are no frame
//
// The items of a job are numbered in the order in which the frames have the hashes of their keys. The payloads:
//
//	started    hashes
//	done       a uvarint, the number of items with a hash since the one that is done; before that, more hashes,
//	           which count, follow in the payload
//	failed     the same uvarint, the length of the key as a uvarint, the key and the reason
//	reordered  nothing: from here on, items came in another order, and a key may have several numbers
//	synced     a uvarint, the number of bytes before the frame that may not be on the disk yet
const (
	kindStarted   = 'S'
	kindDone      = 'D'
	kindFailed    = 'F'
	kindReordered = 'R'
	kindSynced    = 'Y'
)

const (
	magic     = "throttle batch journal\n"
	version   = 1
	headerLen = len(magic) + 1 + 16 + sumLen

	hashLen    = 16
	sumLen     = 4
	maxKey     = 64 << 10 // bytes of a key
	maxPayload = 96 << 10 // more than any frame has
	maxFrame   = 1 + binary.MaxVarintLen32 + maxPayload + sumLen
	maxStarts  = 4_096 // hashes of a frame
)

// A hash is the begin of the SHA-256 of a key.
type hash [hashLen]byte

func hashOf(key string) hash {
	sum := sha256.Sum256([]byte(key))
	return hash(sum[:])
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// newHeader returns the header of the journal of a job.
func newHeader(id [16]byte) []byte {
	h := append([]byte(magic), version)
	h = append(h, id[:]...)
	return binary.LittleEndian.AppendUint32(h, crc32.Checksum(h, castagnoli))
}

// sum returns the sum of a frame at an offset. The seed is the one of the id.
func sum(seed uint32, at int64, frame []byte) uint32 {
	return crc32.Update(seed^uint32(at^at>>32), castagnoli, frame)
}

// A frameWriter appends frames to buf.
type frameWriter struct {
	seed uint32
	at   int64 // the offset of buf in the file
	buf  []byte
}

func (w *frameWriter) add(kind byte, payload ...[]byte) {
	begin, length := len(w.buf), 0
	for _, part := range payload {
		length += len(part)
	}
	w.buf = append(w.buf, kind)
	w.buf = binary.AppendUvarint(w.buf, uint64(length))
	for _, part := range payload {
		w.buf = append(w.buf, part...)
	}
	w.buf = binary.LittleEndian.AppendUint32(w.buf, sum(w.seed, w.at+int64(begin), w.buf[begin:]))
}

// An entry is what a frame has. Its slices are those of the reader, until it reads the next frame.
type entry struct {
	kind        byte
	at          int64 // the offset of the frame
	starts      []byte
	back        uint64 // the uvarint of done, failed and synced
	key, reason []byte
}

// hashes returns how many items have started.
func (e *entry) hashes() int64 { return int64(len(e.starts) / hashLen) }

// errBadFrame is the error of a reader at bytes that are no frame.
var errBadFrame = errors.New("no frame")

// parse returns the entry of a frame.
func parse(kind byte, at int64, payload []byte) (e entry, err error) {
	e = entry{kind: kind, at: at}
	if kind == kindDone || kind == kindFailed || kind == kindSynced {
		var n int
		if e.back, n = binary.Uvarint(payload); n <= 0 {
			return e, errBadFrame
		}
		payload = payload[n:]
	}
	switch kind {
	case kindStarted, kindDone:
		e.starts, payload = payload, payload[:len(payload)%hashLen]
	case kindFailed:
		length, n := binary.Uvarint(payload)
		if n <= 0 || length > uint64(len(payload)-n) {
			return e, errBadFrame
		}
		e.key, e.reason, payload = payload[n:n+int(length)], payload[n+int(length):], nil
	case kindReordered, kindSynced:
	default:
		return e, errBadFrame
	}
	if len(payload) > 0 {
		return e, errBadFrame
	}
	return e, nil
}

// A frameReader reads the frames of a file.
type frameReader struct {
	r    *bufio.Reader
	seed uint32
	at   int64 // the offset of the next frame
}

func newFrameReader(f io.ReaderAt, seed uint32, at, end int64) *frameReader {
	return &frameReader{bufio.NewReaderSize(io.NewSectionReader(f, at, end-at), maxFrame), seed, at}
}

// next returns the next entry. After errBadFrame, the reader is still where it was.
func (r *frameReader) next() (entry, error) {
	head, err := r.r.Peek(1 + binary.MaxVarintLen32)
	if len(head) == 0 || err != nil && err != io.EOF {
		return entry{}, err
	}
	if bytes.IndexByte([]byte{kindStarted, kindDone, kindFailed, kindReordered, kindSynced}, head[0]) < 0 {
		return entry{}, errBadFrame
	}
	length, n := binary.Uvarint(head[1:])
	if n <= 0 || length > maxPayload {
		return entry{}, errBadFrame
	}
	begin, end := 1+n, 1+n+int(length)
	frame, err := r.r.Peek(end + sumLen)
	switch {
	case err == io.EOF:
		return entry{}, errBadFrame
	case err != nil:
		return entry{}, err
	case binary.LittleEndian.Uint32(frame[end:]) != sum(r.seed, r.at, frame[:end]):
		return entry{}, errBadFrame
	}
	e, err := parse(frame[0], r.at, frame[begin:end])
	if err == nil {
		r.skip(len(frame))
	}
	return e, err
}

// written is next for frames that were written or read before.
func (r *frameReader) written() (entry, error) {
	e, err := r.next()
	if err == errBadFrame {
		err = damaged(r.at)
	}
	return e, err
}

// skip goes on by n bytes, which were read.
func (r *frameReader) skip(n int) {
	_, _ = r.r.Discard(n)
	r.at += int64(n)
}
