package answers

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/apithrottle/throttle/internal/jsonpath"
)

// An eventReader reads a stream of server-sent events, which arrives in portions. See the section
// "Server-sent events" of the HTML standard, https://html.spec.whatwg.org/multipage/server-sent-events.html.
type eventReader struct {
	scanner  *jsonpath.Scanner // reads the data of each event
	refusals *eventFinder      // nil if no rule is of events

	field   fieldKind
	name    []byte // the beginning of a line inName, at most maxName bytes
	afterCR bool   // the last byte was a carriage return
}

// A fieldKind is what a line of a stream is.
type fieldKind uint8

const (
	inName fieldKind = iota // before the colon of the line
	inData
	inType
	inOther // a comment, or another field
)

// maxName is the length of the longest name that is read, and one more.
const maxName = len("event") + 1

var (
	newline  = []byte{'\n'}
	dataName = []byte("data:")
)

// maxPart is how far an eventReader searches for the end of a line at once. Without a bound, a stream
// of lines that end in CR would be searched to its next LF for each of them.
const maxPart = 1024

// write reads the next portion of the stream.
func (r *eventReader) write(p []byte) {
	for len(p) > 0 {
		if r.afterCR && p[0] == '\n' { // the second byte of a CRLF
			r.afterCR, p = false, p[1:]
			continue
		}
		part := p[:min(len(p), maxPart)]
		end := lineEnd(part)
		r.line(part[:end])
		p = p[end:]
		if r.afterCR = end < len(part) && part[end] == '\r'; end < len(part) {
			r.endLine()
			p = p[1:]
		}
	}
}

// lineEnd returns the index of the first CR or LF, or len(p) if there is none.
func lineEnd(p []byte) int {
	for _, c := range []byte{'\n', '\r'} {
		if end := bytes.IndexByte(p, c); end >= 0 {
			p = p[:end]
		}
	}
	return len(p)
}

// line reads a part of a line.
func (r *eventReader) line(p []byte) {
	if r.field == inName {
		if p = r.readName(p); r.field == inName {
			return
		}
	}
	switch r.field {
	case inData:
		r.scanner.Write(p)
		r.refusals.write(p)
	case inType:
		r.refusals.writeType(p)
	}
}

// readName reads the name of a line's field, and returns what follows it.
func (r *eventReader) readName(p []byte) []byte {
	if value, ok := bytes.CutPrefix(p, dataName); ok && len(r.name) == 0 { // as most
		r.field = inData
		return value
	}
	colon := bytes.IndexByte(p[:min(len(p), maxName)], ':')
	if colon < 0 {
		r.name = append(r.name, p[:min(len(p), maxName-len(r.name))]...)
		if len(r.name) == maxName {
			r.field = inOther
		}
		return nil
	}
	switch r.name = append(r.name, p[:colon]...); string(r.name) {
	case "data":
		r.field = inData
	case "event":
		r.field = inType
		r.refusals.beginType()
	default:
		r.field = inOther
	}
	return p[colon+1:]
}

// endLine ends a line. An empty line ends the event. The data lines of an event are one text.
func (r *eventReader) endLine() {
	switch {
	case r.field == inName && len(r.name) == 0:
		r.scanner.Reset()
		r.refusals.end()
	case r.field == inData:
		r.scanner.Write(newline)
		r.refusals.write(newline)
	case r.field == inType:
		r.refusals.endType()
	}
	r.field, r.name = inName, r.name[:0]
}

// An eventFinder finds the first event of a stream that a rule takes for a refusal. It keeps the data
// of one event at a time, and passes over an event that is too long. The methods of a nil eventFinder
// do nothing.
type eventFinder struct {
	profile Profile
	event   Response // the event that was found; before that, the response that it is in
	found   bool
	kinds   []string // the types of events that rules are of
	keys    [][]byte // an event without a type that a rule matches has one of these texts

	kind []byte // the type of the event that is being read
	data []byte // its data
	skip bool   // nothing more of its data is needed
	lost bool   // a part of its data was not kept
}

const (
	maxEvent     = 16 << 10 // bytes of data
	maxEventType = 100      // bytes

	// defaultEvent is the type of an event that names none.
	defaultEvent = "message"
)

// newEventFinder returns an eventFinder for the stream in a response, or nil if no rule is of its events. The
// events of an untyped stream have no type.
func newEventFinder(p *Profile, r Response, untyped bool) *eventFinder {
	r.Body = nil
	var keys []string
	f := &eventFinder{profile: *p, event: r}
	for i := range p.Rules {
		rule := &p.Rules[i]
		isDefault := jsonpath.Match(rule.Event, defaultEvent)
		if rule.Event == "" || untyped && !isDefault || !rule.matchesHead(&r) {
			continue
		}
		if f.kinds = appendNew(f.kinds, rule.Event); isDefault {
			keys = appendNew(keys, firstKey(rule.Path))
		}
	}
	if f.kinds == nil {
		return nil
	}
	for _, key := range keys {
		f.keys = append(f.keys, []byte(key))
	}
	return f
}

// appendNew appends s to all, unless it is there.
func appendNew(all []string, s string) []string {
	if slices.Contains(all, s) {
		return all
	}
	return append(all, s)
}

// firstKey returns what each JSON text has in which there is a value at the path: the first key, because no
// API writes the letters of keys with escapes.
func firstKey(path string) string {
	first, _, _ := strings.Cut(strings.TrimLeft(path, "*."), ".")
	if first == "" {
		return ""
	}
	return `"` + first + `"`
}

func (f *eventFinder) write(p []byte) {
	switch {
	case f == nil || f.found:
	case f.skip || f.lost:
		f.lost = true
	case len(f.data)+len(p) > maxEvent:
		f.lost, f.data = true, nil
	default:
		f.data = append(f.data, p...)
	}
}

// beginType begins the type of the event, which may come before the data or after it. The last one counts.
func (f *eventFinder) beginType() {
	if f != nil {
		f.kind = f.kind[:0]
	}
}

func (f *eventFinder) writeType(p []byte) {
	if f != nil {
		f.kind = append(f.kind, p[:min(len(p), maxEventType-len(f.kind))]...)
	}
}

func (f *eventFinder) endType() {
	if f != nil {
		f.kind = append(f.kind[:0], bytes.TrimPrefix(f.kind, []byte{' '})...)
		f.skip = len(f.kind) > 0 && !slices.ContainsFunc(f.kinds, func(k string) bool { return jsonpath.Match(k, string(f.kind)) })
	}
}

// end ends the event.
func (f *eventFinder) end() {
	if f == nil || f.found {
		return
	}
	if !f.lost && len(f.data) > 0 && f.isLikely() {
		event := f.event
		event.Event, event.Body = cmp.Or(string(f.kind), defaultEvent), f.data
		if f.profile.Read(event).Kind != Passed {
			f.event, f.found = event, true
			return
		}
	}
	f.kind, f.data, f.skip, f.lost = f.kind[:0], f.data[:0], false, false
}

// isLikely reports whether a rule may match the event. Most events are told apart by a search for a text.
func (f *eventFinder) isLikely() bool {
	if len(f.kind) > 0 {
		return true
	}
	for _, key := range f.keys {
		// Among many quotes bytes.Contains is several times as fast in 64 bytes as in more.
		for rest := f.data; len(rest) >= len(key); rest = rest[min(len(rest), max(1, 65-len(key))):] {
			if bytes.Contains(rest[:min(len(rest), max(64, len(key)))], key) {
				return true
			}
		}
	}
	return false
}

// element reads a portion of an event in a body of JSON, or its end if the portion is nil.
func (f *eventFinder) element(part []byte) {
	if part == nil {
		f.end()
	} else {
		f.write(part)
	}
}
