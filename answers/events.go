package answers

import (
	"bytes"
	"slices"
	"strings"

	"github.com/apithrottle/throttle/internal/jsonpath"
)

// An eventReader reads a stream of server-sent events, which arrives in portions. See the section
// "Server-sent events" of the HTML standard, https://html.spec.whatwg.org/multipage/server-sent-events.html.
type eventReader struct {
	scanner  *jsonpath.Scanner // reads the data of each event
	refusals *eventFinder      // nil if no rule is of events

	name    []byte // the beginning of the line up to the colon, at most maxName bytes
	named   bool   // the colon of the line has come
	afterCR bool   // the last byte was a carriage return
}

const (
	dataField  = "data"
	eventField = "event"
	maxName    = len(eventField) + 1
)

var newline = []byte{'\n'}

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
	if !r.named {
		name, value, colon := bytes.Cut(p, []byte{':'})
		r.name = append(r.name, name[:min(len(name), maxName-len(r.name))]...)
		if r.named, p = colon, value; colon && string(r.name) == eventField {
			r.refusals.beginType()
		}
	}
	switch {
	case !r.named || len(p) == 0:
	case string(r.name) == dataField:
		r.scanner.Write(p)
		r.refusals.write(p)
	case string(r.name) == eventField:
		r.refusals.writeType(p)
	}
}

// endLine ends a line. An empty line ends the event. The data lines of an event are one text.
func (r *eventReader) endLine() {
	switch {
	case !r.named && len(r.name) == 0:
		r.scanner.Reset()
		r.refusals.end()
	case r.named && string(r.name) == dataField:
		r.scanner.Write(newline)
		r.refusals.write(newline)
	case r.named && string(r.name) == eventField:
		r.refusals.endType()
	}
	r.name, r.named = r.name[:0], false
}

// An eventFinder finds the first event of a stream that a rule takes for a refusal. It keeps the data
// of one event at a time, and passes over an event that is too long. The methods of a nil eventFinder
// do nothing.
type eventFinder struct {
	profile Profile
	event   Response // the event that was found; before that, the response that it is in
	found   bool
	marks   []eventMark

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

// An eventMark tells events apart that no rule can match.
type eventMark struct {
	kind string // Rule.Event
	key  string // the event's data has this text; no API escapes the letters of its keys
}

// finder returns an eventFinder for the stream in a response, or nil if no rule is of its events.
func (p *Profile) finder(r Response, untyped bool) *eventFinder {
	var marks []eventMark
	for i := range p.Rules {
		rule := &p.Rules[i]
		if rule.Event == "" || untyped && !jsonpath.Match(rule.Event, defaultEvent) || !rule.matchesHead(&r) {
			continue
		}
		mark := eventMark{kind: rule.Event}
		if first, _, _ := strings.Cut(strings.TrimLeft(rule.Path, "*."), "."); first != "" {
			mark.key = `"` + first + `"`
		}
		if !slices.Contains(marks, mark) {
			marks = append(marks, mark)
		}
	}
	if marks == nil {
		return nil
	}
	r.Body = nil
	return &eventFinder{profile: *p, event: r, marks: marks}
}

func (f *eventFinder) write(p []byte) {
	switch {
	case f == nil || f.found:
	case f.skip || len(f.data)+len(p) > maxEvent:
		f.lost = true
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
		f.skip = !slices.ContainsFunc(f.marks, func(m eventMark) bool { return jsonpath.Match(m.kind, f.typeName()) })
	}
}

// typeName returns the type of the event. Without allocation it can be compared only.
func (f *eventFinder) typeName() string {
	if len(f.kind) == 0 {
		return defaultEvent
	}
	return string(f.kind)
}

// end ends the event.
func (f *eventFinder) end() {
	if f == nil || f.found {
		return
	}
	if !f.lost && len(f.data) > 0 && f.isMarked() {
		event := f.event
		event.Event, event.Body = f.typeName(), f.data
		if f.profile.Read(event).Kind != Passed {
			f.event, f.found = event, true
			return
		}
	}
	f.kind, f.data, f.skip, f.lost = f.kind[:0], f.data[:0], false, false
}

// isMarked reports whether a rule may match the event.
func (f *eventFinder) isMarked() bool {
	kind := f.typeName()
	return slices.ContainsFunc(f.marks, func(m eventMark) bool {
		return jsonpath.Match(m.kind, kind) && bytes.Contains(f.data, []byte(m.key))
	})
}

// element reads a portion of an element of an array, or its end if the portion is nil.
func (f *eventFinder) element(part []byte) {
	if part == nil {
		f.end()
	} else {
		f.write(part)
	}
}
