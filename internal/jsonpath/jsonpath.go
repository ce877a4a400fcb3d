// Package jsonpath finds values in JSON text that arrives in portions. A [Scanner] keeps at most
// one key or value in memory, and stops reading once every query is settled.
package jsonpath

import (
	"bytes"
	"encoding/json"
	"strings"
)

const (
	MaxToken = 4096 // bytes of a key or value; the scanner passes over a longer one
	MaxSteps = 63   // steps of a path: the scanner has one bit for each depth
)

// A Query selects values in JSON text. The unexported fields are the Scanner's, and start at zero.
type Query struct {
	// Path is the keys to a string, number or boolean, with points between them, such as
	// "errors.*.code". A * stands for each element of an array and each value of an object.
	Path string

	// Pattern selects values, see [Match]. If empty, every value is selected.
	Pattern string

	// Last selects the last of several values, rather than the first.
	Last bool

	value []byte // the string, unescaped, or the number or boolean
	nth   int    // value was the nth value that the scanner found; 0 if there is none
	count int64  // of the values that were selected, if Last
	live  int    // the number of steps of Path that lead to the scanner's position
	rest  int    // the next step begins at Path[rest]; after the last step rest is len(Path) + 1
}

// settled reports whether no further value can change the result of q.
func (q *Query) settled() bool { return q.nth > 0 && !q.Last }

// back undoes the last step.
func (q *Query) back() {
	q.live--
	q.rest = strings.LastIndexByte(q.Path[:q.rest-1], '.') + 1
}

// A Scanner runs queries over JSON text. Set Queries and call Scan, or Reset and then Write for
// each portion. After malformed text a Scanner finds nothing more. In values that no path leads
// into, it checks strings and brackets only. A Scanner is not safe for concurrent use.
type Scanner struct {
	Queries []Query

	// Each is called with every value that a query with Last selects. It must not keep the value.
	// If nil, it is not called.
	Each func(value []byte)

	// Element is called with the text of each array and object in an outermost array, or with that of an
	// outermost object, in portions, and with nil at its end. It must not keep a portion. If nil, it is not
	// called.
	Element func(portion []byte)

	found   int // values found, over all queries
	pending int // queries that are not settled

	state   state
	depth   int    // open objects and arrays that a path leads into
	arrays  uint64 // bit i is set if the container at depth i is an array
	skipped int    // open brackets in a value that no path leads into
	whole   bool   // the text was read to its end
	here    bool   // a path ends at the next value
	deeper  bool   // a path continues in the next value

	token   []byte // the string or word so far, if keep
	keep    bool
	key     bool // the string is a key
	escaped bool // the next byte of the string follows a backslash
}

type state uint8

const (
	atValue   state = iota // before a value
	opened                 // after an opening bracket: before the first key or value, or the closing bracket
	atKey                  // before a key
	atColon                // before a colon
	valued                 // after a value: before a comma or a closing bracket
	inString               // in a string
	inWord                 // in a number, true, false or null
	inSkipped              // in a value that no path leads into
	done                   // nothing more is read
)

// Reset prepares s for a new text. Values found earlier stay.
func (s *Scanner) Reset() {
	pending := 0
	for i := range s.Queries {
		q := &s.Queries[i]
		if q.live, q.rest = 0, 0; !q.settled() {
			pending++
		}
	}
	s.pending, s.state, s.depth, s.arrays, s.skipped, s.here, s.deeper = pending, atValue, 0, 0, 0, false, true
	s.token, s.keep, s.key, s.escaped = s.token[:0], false, false, false
	if s.settled() {
		s.state = done
	}
}

// settled reports whether nothing that s may read can be of use.
func (s *Scanner) settled() bool { return s.pending == 0 && s.Element == nil }

// Scan resets s and reads a whole text, or the beginning of one.
func (s *Scanner) Scan(p []byte) {
	s.Reset()
	s.Write(p)
}

// Write reads the next portion of the text.
func (s *Scanner) Write(p []byte) {
	element := p // from the beginning of p or of the element
	for len(p) > 0 && s.state != done {
		switch s.state {
		case inString:
			p = s.text(p)
		case inWord:
			p = s.word(p)
		case inSkipped:
			p = s.skip(p)
		default:
			if c := p[0]; c != ' ' && c != '\n' && c != '\r' && c != '\t' {
				depth := s.depth
				if s.step(c); s.Element != nil && s.depth != depth {
					element = s.border(depth, element, p)
				}
			}
			p = p[1:]
		}
	}
	if s.Element != nil && s.depth > s.around() && s.state != done {
		s.Element(element)
	}
}

// around returns the depth around the elements.
func (s *Scanner) around() int { return int(s.arrays >> 1 & 1) }

// border begins or ends an element with the first byte of p, before which the depth was another. It
// returns the text from the beginning of the element on.
func (s *Scanner) border(depth int, element, p []byte) []byte {
	switch around := s.around(); {
	case s.depth == around+1 && depth == around:
		return p
	case s.depth == around && depth == around+1:
		s.Element(element[:len(element)-len(p)+1])
		s.Element(nil)
	}
	return element
}

// Find returns the value of the query with this path and pattern. The value was the nth that s
// found; n is 0 if there is none, or no such query.
func (s *Scanner) Find(path, pattern string) (value []byte, n int) {
	for i := range s.Queries {
		if q := &s.Queries[i]; q.Path == path && q.Pattern == pattern {
			return q.value, q.nth
		}
	}
	return nil, 0
}

// Count returns how many values the query with this path, no pattern and Last selected. It returns
// false if there is no such query, or if s has not read the text to its end.
func (s *Scanner) Count(path string) (n int64, ok bool) {
	for i := range s.Queries {
		if q := &s.Queries[i]; q.Path == path && q.Pattern == "" && q.Last {
			return q.count, s.whole
		}
	}
	return 0, false
}

// Match reports whether v matches a pattern: a text that may begin or end with *, or both, where *
// stands for any text.
func Match(pattern, v string) bool {
	pattern, left := strings.CutPrefix(pattern, "*")
	pattern, right := strings.CutSuffix(pattern, "*")
	switch {
	case left && right:
		return strings.Contains(v, pattern)
	case left:
		return strings.HasSuffix(v, pattern)
	case right:
		return strings.HasPrefix(v, pattern)
	}
	return v == pattern
}

// inArray reports whether the innermost open container is an array.
func (s *Scanner) inArray() bool { return s.arrays>>s.depth&1 == 1 }

// step handles a byte outside strings and words. It is not a space.
func (s *Scanner) step(c byte) {
	switch {
	case c == ':' && s.state == atColon:
		s.state = atValue
	case c == ',' && s.state == valued && s.inArray():
		s.state = atValue
	case c == ',' && s.state == valued:
		s.state = atKey
	case (c == '}' || c == ']') && (s.state == opened || s.state == valued) && s.inArray() == (c == ']'):
		s.depth--
		s.endValue()
	case c == '"' && !s.inArray() && (s.state == opened || s.state == atKey):
		s.beginToken(inString, true)
		s.key = true
	case s.state == atValue || s.state == opened && s.inArray():
		s.beginValue(c)
	default:
		s.state = done
	}
}

// beginValue begins a value with its first byte.
func (s *Scanner) beginValue(c byte) {
	if s.inArray() {
		s.enter([]byte{'*'})
	}
	switch {
	case c == '"':
		s.beginToken(inString, s.here)
	case c == '{' || c == '[':
		s.open(c == '[')
	case c == '-' || '0' <= c && c <= '9' || c == 't' || c == 'f' || c == 'n':
		s.beginToken(inWord, s.here)
		s.hold([]byte{c})
	default:
		s.state = done
	}
}

// open enters an object or array, or skips it if no path leads into it.
func (s *Scanner) open(array bool) {
	if !s.deeper && (s.Element == nil || s.depth != 1 || !s.inArray()) || s.depth == MaxSteps {
		s.state, s.skipped = inSkipped, 1
		return
	}
	s.state = opened
	s.depth++
	s.arrays &^= 1 << s.depth
	if array {
		s.arrays |= 1 << s.depth
	}
}

// enter advances the queries by one step: a key, or a star in an array. A star in a path also
// stands for every key.
func (s *Scanner) enter(step []byte) {
	s.here, s.deeper = false, false
	for i := range s.Queries {
		q := &s.Queries[i]
		if q.live != s.depth-1 || q.rest > len(q.Path) || q.settled() {
			continue
		}
		next := q.Path[q.rest:]
		if dot := strings.IndexByte(next, '.'); dot >= 0 {
			next = next[:dot]
		}
		if next != string(step) && next != "*" {
			continue
		}
		q.live++
		q.rest += len(next) + 1
		s.here = s.here || q.rest > len(q.Path)
		s.deeper = s.deeper || q.rest <= len(q.Path)
	}
}

// endValue ends a value. It takes the queries back to where they were before the value.
func (s *Scanner) endValue() {
	s.state = valued
	if s.whole = s.depth == 0; s.whole || s.settled() {
		s.state = done
		return
	}
	for i := range s.Queries {
		if s.Queries[i].live == s.depth {
			s.Queries[i].back()
		}
	}
}

// beginToken begins a string or word, and collects its bytes if keep.
func (s *Scanner) beginToken(in state, keep bool) {
	s.state, s.keep, s.key, s.token = in, keep, false, s.token[:0]
}

// hold collects bytes of a string or word, unless it is too long.
func (s *Scanner) hold(p []byte) {
	if s.keep = s.keep && len(s.token)+len(p) <= MaxToken; s.keep {
		s.token = append(s.token, p...)
	}
}

// text reads on in a string and returns the bytes after it.
func (s *Scanner) text(p []byte) []byte {
	i := bytes.IndexByte(p, '"')
	if i < 0 {
		i = len(p)
	}
	if s.escaped || bytes.IndexByte(p[:i], '\\') >= 0 {
		for i = 0; i < len(p) && (s.escaped || p[i] != '"'); i++ {
			s.escaped = !s.escaped && p[i] == '\\'
		}
	}
	if s.hold(p[:i]); i == len(p) {
		return nil
	}
	s.endText()
	return p[i+1:]
}

// endText ends a string: a key, a value, or part of a skipped value.
func (s *Scanner) endText() {
	if s.skipped > 0 {
		s.state = inSkipped
		return
	}
	v, ok := s.unescaped()
	switch {
	case !ok:
		s.state = done
	case s.key:
		if s.here, s.deeper = false, false; s.keep {
			s.enter(v)
		}
		s.state = atColon
	default:
		s.record(v)
		s.endValue()
	}
}

// unescaped returns the string in token. Most strings have no escapes and no bytes to check.
func (s *Scanner) unescaped() (v []byte, ok bool) {
	plain := true
	for _, c := range s.token {
		plain = plain && ' ' <= c && c <= '~' && c != '\\'
	}
	if !s.keep || plain {
		return s.token, true
	}
	var text string
	err := json.Unmarshal([]byte(`"`+string(s.token)+`"`), &text)
	return []byte(text), err == nil
}

// word reads on in a number, true, false or null and returns the bytes after it. Only a following
// byte ends the word, because the next portion may continue it.
func (s *Scanner) word(p []byte) []byte {
	i := 0
	for i < len(p) && p[i] > ' ' && p[i] != ',' && p[i] != ']' && p[i] != '}' {
		i++
	}
	if s.hold(p[:i]); i == len(p) {
		return nil
	}
	if s.keep && !json.Valid(s.token) {
		s.state = done
		return nil
	}
	if string(s.token) != "null" {
		s.record(s.token)
	}
	s.endValue()
	return p[i:]
}

// record stores a value in the queries that select it.
func (s *Scanner) record(v []byte) {
	for i := range s.Queries {
		q := &s.Queries[i]
		if !s.keep || q.live != s.depth || q.rest <= len(q.Path) || q.settled() || q.Pattern != "" && !Match(q.Pattern, string(v)) {
			continue
		}
		s.found++
		q.count++
		if q.value, q.nth = append(q.value[:0], v...), s.found; q.Last && s.Each != nil {
			s.Each(v)
		}
		if q.settled() {
			s.pending--
		}
	}
}

// skip reads on in a value that no path leads into and returns the bytes after it.
func (s *Scanner) skip(p []byte) []byte {
	for i, c := range p {
		switch c {
		case '"':
			s.beginToken(inString, false)
			return p[i+1:]
		case '{', '[':
			s.skipped++
		case '}', ']':
			if s.skipped--; s.skipped == 0 {
				s.endValue()
				return p[i+1:]
			}
		}
	}
	return nil
}
