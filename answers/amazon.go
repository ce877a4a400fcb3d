package answers

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math"

	"github.com/apithrottle/throttle/internal/jsonpath"
)

// amazonStream is the media type of Amazon's streams of messages.
const amazonStream = "application/vnd.amazon.eventstream"

// A messageReader reads the JSON payloads of Amazon's messages, which arrive in portions. A message is
// its length, the length of its headers, a checksum of both, the headers, the payload, and a checksum.
// See https://smithy.io/2.0/aws/amazon-eventstream.html, read on 2026-11-22. A payload such as
// {"bytes":"eyJ…"} has JSON in base64. Checksums are not verified. After lengths that are impossible
// nothing more is read.
type messageReader struct {
	scanner *jsonpath.Scanner
	part    messagePart
	left    int    // bytes of the part that are to come
	prelude []byte // the lengths and their checksum
	payload int    // the length of the payload

	form      payloadForm
	beginning []byte // of a payload of unknown form
	base64    []byte // fewer than four characters that are not decoded yet
}

// A messagePart is a part of a message.
type messagePart uint8

const (
	inChecksum messagePart = iota // or before the first message
	inPrelude
	inHeaders
	inPayload
	inGarbage
)

// A payloadForm is how a payload is written.
type payloadForm uint8

const (
	unknownForm payloadForm = iota
	plainJSON
	base64JSON
	readJSON // the base64 has ended
)

const (
	preludeSize    = 12
	checksumSize   = 4
	longestMessage = 32 << 20     // bytes
	base64Begins   = `{"bytes":"` // a payload with base64
)

// write reads the next portion of the stream.
func (r *messageReader) write(p []byte) {
	for {
		for r.left == 0 {
			r.next()
		}
		if len(p) == 0 {
			return
		}
		b := p[:min(len(p), r.left)]
		switch r.part {
		case inPrelude:
			r.prelude = append(r.prelude, b...)
		case inPayload:
			r.read(b)
		}
		r.left -= len(b)
		p = p[len(b):]
	}
}

// next begins the next part of the message, or the next message.
func (r *messageReader) next() {
	switch r.part {
	case inPrelude:
		size, headers := binary.BigEndian.Uint32(r.prelude), binary.BigEndian.Uint32(r.prelude[4:])
		if size > longestMessage || headers > size || size-headers < preludeSize+checksumSize {
			r.part, r.left = inGarbage, math.MaxInt
			return
		}
		r.part, r.left = inHeaders, int(headers)
		r.payload = int(size-headers) - preludeSize - checksumSize
	case inHeaders:
		r.part, r.left = inPayload, r.payload
		r.form, r.beginning, r.base64 = unknownForm, r.beginning[:0], r.base64[:0]
		r.scanner.Reset()
	case inPayload:
		r.part, r.left = inChecksum, checksumSize
	case inGarbage:
		r.left = math.MaxInt
	default:
		r.part, r.left, r.prelude = inPrelude, preludeSize, r.prelude[:0]
	}
}

// read reads a portion of the payload.
func (r *messageReader) read(b []byte) {
	if r.form == unknownForm {
		r.beginning = append(r.beginning, b...)
		b = r.beginning
		switch rest, ok := bytes.CutPrefix(b, []byte(base64Begins)); {
		case ok:
			r.form, b = base64JSON, rest
		case bytes.HasPrefix([]byte(base64Begins), b):
			return
		default:
			r.form = plainJSON
		}
	}
	switch r.form {
	case plainJSON:
		r.scanner.Write(b)
	case base64JSON:
		text, _, ended := bytes.Cut(b, []byte{'"'})
		r.decode(text)
		if ended {
			r.form = readJSON
		}
	}
}

// decode reads a portion of base64.
func (r *messageReader) decode(text []byte) {
	text = append(r.base64, text...)
	whole := len(text) / 4 * 4
	decoded := make([]byte, base64.StdEncoding.DecodedLen(whole))
	n, _ := base64.StdEncoding.Decode(decoded, text[:whole]) // what precedes malformed text counts
	r.scanner.Write(decoded[:n])
	r.base64 = append(r.base64[:0], text[whole:]...)
}
