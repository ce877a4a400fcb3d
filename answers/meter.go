package answers

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/apithrottle/throttle/internal/jsonpath"
	"github.com/apithrottle/throttle/internal/retryafter"
)

// A Meter reads the cost of a request from the response's body, while the caller reads the body.
// Write each portion to the Meter. The body is JSON, or a stream of server-sent events with JSON as
// their data, or of Amazon's messages with JSON as their payloads. The last of several values at one
// path counts, because language models send running totals. A Meter keeps at most 4 KB of the body at
// a time. It serves one response and is not safe for concurrent use.
type Meter struct {
	charges []Charge
	scanner jsonpath.Scanner
	stream  bool           // the body is an event stream
	amazon  *messageReader // of Amazon's messages; nil if the body has none

	matched int  // the line begins with this many bytes of "data:"; -1 if with other text
	afterCR bool // the last byte was a carriage return
}

const dataPrefix = "data:"

// Meter returns a Meter for the body of r. It uses only the Status and the Header of r. It returns nil
// if the body adds no cost to those in the header: if no Charge has a Path, or if the body is neither
// JSON nor a stream, is compressed, or comes from a cache.
func (p Profile) Meter(r Response) *Meter {
	kind := mediaType(r.Header)
	if encoded(r.Header) || cached(r.Header) || kind != eventStream && kind != amazonStream && !isJSON(kind) {
		return nil
	}
	m := &Meter{stream: kind == eventStream}
	if kind == amazonStream {
		m.amazon = &messageReader{scanner: &m.scanner}
	}
	e := event{Response: r}
	for i := range p.Charges {
		c := &p.Charges[i]
		if _, known := c.inHead(&e); known || len(c.ByStatus) > 0 {
			continue
		}
		if c.Field.inBody() || c.Or.inBody() {
			m.charges = append(m.charges, *c)
			m.scanner.Queries = c.Or.addQuery(c.Field.addQuery(m.scanner.Queries, true), true)
		}
	}
	if m.charges == nil {
		return nil
	}
	m.scanner.Reset()
	return m
}

// Write reads the next portion of the body. It never fails.
func (m *Meter) Write(p []byte) (int, error) {
	if m.amazon != nil {
		m.amazon.write(p)
		return len(p), nil
	}
	if !m.stream {
		m.scanner.Write(p)
		return len(p), nil
	}
	for rest := p; len(rest) > 0; {
		if m.afterCR && rest[0] == '\n' { // the second byte of a CRLF
			m.afterCR, rest = false, rest[1:]
			continue
		}
		part := rest[:min(len(rest), maxPart)]
		end := lineEnd(part)
		m.line(part[:end])
		rest = rest[end:]
		if m.afterCR = end < len(part) && part[end] == '\r'; end < len(part) {
			m.endLine()
			rest = rest[1:]
		}
	}
	return len(p), nil
}

// maxPart is how far a Meter searches for the end of a line at once. Without a bound, a stream of
// lines that end in CR would be searched to its next LF for each of them.
const maxPart = 1024

// lineEnd returns the index of the first CR or LF, or len(p) if there is none.
func lineEnd(p []byte) int {
	for _, c := range []byte{'\n', '\r'} {
		if end := bytes.IndexByte(p, c); end >= 0 {
			p = p[:end]
		}
	}
	return len(p)
}

// line reads a part of a line of an event stream.
func (m *Meter) line(p []byte) {
	for len(p) > 0 && 0 <= m.matched && m.matched < len(dataPrefix) {
		if p[0] != dataPrefix[m.matched] {
			m.matched = -1 // a comment, or another field
			return
		}
		m.matched++
		p = p[1:]
	}
	if m.matched == len(dataPrefix) {
		m.scanner.Write(p)
	}
}

// endLine ends a line. An empty line ends the event. The data lines of an event are one text.
func (m *Meter) endLine() {
	switch m.matched {
	case 0:
		m.scanner.Reset()
	case len(dataPrefix):
		m.scanner.Write([]byte{'\n'})
	}
	m.matched = 0
}

// Charged returns the costs read so far, in the order of Profile.Charges. Costs of one unit are
// added up. After the end of the body the costs are final.
func (m *Meter) Charged() (as []Amount) {
	for i := range m.charges {
		c := &m.charges[i]
		field := &c.Field
		if field.Format == Elements {
			if n, ok := m.scanner.Count(field.Path); ok {
				as = addCharge(as, c, n)
			}
			continue
		}
		value, nth := m.scanner.Find(field.Path, "")
		if or, n := m.scanner.Find(c.Or.Path, ""); n > nth {
			field, value = &c.Or, or
		}
		if n, ok := field.number(field.trim(string(value)), up); ok {
			as = addCharge(as, c, n)
		}
	}
	return as
}

// cached reports whether the response comes from a cache. Its values are out of date.
func cached(h http.Header) bool {
	age, ok := retryafter.Seconds(h.Get("Age"))
	return ok && age > 0
}

const eventStream = "text/event-stream"

// mediaType returns the media type of the body, or "" if there is no Content-Type.
func mediaType(h http.Header) string {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.Trim(kind, " \t"))
}

// isJSON reports whether a media type is JSON, such as application/json, application/problem+json
// and application/x-amz-json-1.1.
func isJSON(media string) bool {
	return strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json") || strings.Contains(media, "-json-")
}

// encoded reports whether the body is compressed.
func encoded(h http.Header) bool {
	coding := h.Get("Content-Encoding")
	return coding != "" && !strings.EqualFold(coding, "identity")
}
