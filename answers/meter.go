package answers

import "bytes"

// A Meter reads, from a response's body while the caller reads it, what the request
// cost: write to it what was read, in any portions. In JSON and in a stream of
// server-sent events, whose data is JSON, of several values at one place the last
// counts, as the running totals of language models need it. It keeps no more than
// 4 KB of the body at a time. A Meter is of one response and not for concurrent use.
type Meter struct {
	charges []Charge
	scan    scanner
	stream  bool // of events

	matched  int  // so many bytes of "data:" the line has, -1 if it begins otherwise
	returned bool // the last byte was a carriage return
}

const dataLine = "data:"

// Meter returns a Meter for the body of r, of which it looks at the Header only, or nil
// if the body tells no cost that the header doesn't: no Charge has a Path, the body is
// neither JSON nor a stream of events, is compressed, or comes from a cache.
func (p Profile) Meter(r Response) *Meter {
	kind := media(r.Header)
	if encoded(r.Header) || cached(r.Header) || kind != eventStream && !isJSON(kind) {
		return nil
	}
	m := &Meter{stream: kind == eventStream}
	e := event{Response: r}
	for i := range p.Charges {
		c := &p.Charges[i]
		if _, told := c.told(&e); told {
			continue
		}
		if c.Field.inBody() || c.Or.inBody() {
			m.charges = append(m.charges, *c)
			m.scan.wants = c.Or.want(c.Field.want(m.scan.wants, true), true)
		}
	}
	if m.charges == nil {
		return nil
	}
	m.scan.reset()
	return m
}

// Write takes the next portion of the body. It never fails.
func (m *Meter) Write(p []byte) (int, error) {
	if !m.stream {
		m.scan.write(p)
		return len(p), nil
	}
	for rest := p; len(rest) > 0; {
		if m.returned && rest[0] == '\n' { // the other half of the line's end
			m.returned, rest = false, rest[1:]
			continue
		}
		end := bytes.IndexAny(rest, "\r\n")
		m.returned = end >= 0 && rest[end] == '\r'
		if end < 0 {
			m.line(rest)
			break
		}
		m.line(rest[:end])
		m.endLine()
		rest = rest[end+1:]
	}
	return len(p), nil
}

// line takes a part of a line of an event stream.
func (m *Meter) line(p []byte) {
	for len(p) > 0 && 0 <= m.matched && m.matched < len(dataLine) {
		if p[0] != dataLine[m.matched] {
			m.matched = -1 // a comment, or another field
			return
		}
		m.matched++
		p = p[1:]
	}
	if m.matched == len(dataLine) {
		m.scan.write(p)
	}
}

// endLine ends a line, and at an empty one the event. The lines of an event's data are
// one text.
func (m *Meter) endLine() {
	switch m.matched {
	case 0:
		m.scan.reset()
	case len(dataLine):
		m.scan.write([]byte{'\n'})
	}
	m.matched = 0
}

// Charged returns what was told so far, in the order of Profile.Charges, those of one
// unit added up. It may be called at any time; at the end of the body it is the cost.
func (m *Meter) Charged() (as []Amount) {
	for i := range m.charges {
		c := &m.charges[i]
		from, found := &c.Field, m.scan.at(c.Field.Path, "")
		if or := m.scan.at(c.Or.Path, ""); or.nth > found.nth {
			from, found = &c.Or, or
		}
		if n, ok := from.number(from.trimmed(string(found.value)), up); ok {
			as = charge(as, c.Unit, n)
		}
	}
	return as
}

// charge adds n units to as.
func charge(as []Amount, of string, n int64) []Amount {
	for i := range as {
		if as[i].Unit == unit(of) {
			as[i].N = min(as[i].N+n, mostCount)
			return as
		}
	}
	return append(as, Amount{unit(of), n})
}
