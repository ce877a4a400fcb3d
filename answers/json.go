package answers

import (
	"bytes"
	"encoding/json"
	"strings"
)

const (
	mostToken = 4096 // bytes of a key or value; a longer one is passed over
	mostSteps = 63   // of a path: a scanner has a bit for each
)

// A want is a value that is looked for in JSON.
type want struct {
	path string // as Field.Path
	text string // only a value that matches it counts, as Rule.Text; if empty, any
	last bool   // of several values the last counts, not the first

	value []byte // the string, unescaped, or the number or boolean
	nth   int    // of all that a scanner found it was the nth; 0 if it was not found
	live  int    // so many steps of the path lead to where the scanner is
	rest  int    // the next step begins at path[rest]; behind the last it is len(path) + 1
}

func (w *want) settled() bool { return w.nth > 0 && !w.last }

func (w *want) back() {
	w.live--
	w.rest = strings.LastIndexByte(w.path[:w.rest-1], '.') + 1
}

// A scanner finds values in a JSON text that is written to it in portions, after reset.
// It keeps no more of it than the key or value at hand. Behind what is malformed it finds
// nothing; what no path leads to is passed over, with an eye to strings and brackets only.
type scanner struct {
	wants   []want
	found   int // so many times a value was
	pending int // wants that are not settled

	state   state
	depth   int    // objects and arrays that a path leads into, open now
	arrays  uint64 // bit i is set if the one of depth i is an array
	skipped int    // brackets open in a value that no path leads into
	here    bool   // a path ends at the next value
	deeper  bool   // one goes on in it

	token   []byte // of the string or word, if kept
	keep    bool
	key     bool // the string is a key
	escaped bool // the string's next byte follows a backslash
}

type state uint8

const (
	atValue state = iota // a value must follow
	opened               // the first key or value of an object or array, or its end
	atKey
	atColon
	valued // a value has: a comma must follow, or a bracket
	inString
	inWord // a number, true, false or null
	inSkipped
	over
)

// reset makes ready for a text; what was found stays.
func (s *scanner) reset() {
	pending := 0
	for i := range s.wants {
		w := &s.wants[i]
		if w.live, w.rest = 0, 0; !w.settled() {
			pending++
		}
	}
	*s = scanner{wants: s.wants, found: s.found, pending: pending, token: s.token, deeper: true}
	if pending == 0 {
		s.state = over
	}
}

// scan takes a whole text, or the beginning of one.
func (s *scanner) scan(p []byte) {
	s.reset()
	s.write(p)
}

func (s *scanner) write(p []byte) {
	for len(p) > 0 && s.state != over {
		switch s.state {
		case inString:
			p = s.text(p)
		case inWord:
			p = s.word(p)
		case inSkipped:
			p = s.skip(p)
		default:
			if c := p[0]; c != ' ' && c != '\n' && c != '\r' && c != '\t' {
				s.take(c)
			}
			p = p[1:]
		}
	}
}

func (s *scanner) array() bool { return s.arrays>>s.depth&1 == 1 }

// take goes on by a byte that is no space, outside of strings and words.
func (s *scanner) take(c byte) {
	switch {
	case c == ':' && s.state == atColon:
		s.state = atValue
	case c == ',' && s.state == valued && s.array():
		s.state = atValue
	case c == ',' && s.state == valued:
		s.state = atKey
	case (c == '}' || c == ']') && (s.state == opened || s.state == valued) && s.array() == (c == ']'):
		s.depth--
		s.end()
	case c == '"' && !s.array() && (s.state == opened || s.state == atKey):
		s.begin(inString, true)
		s.key = true
	case s.state == atValue || s.state == opened && s.array():
		s.value(c)
	default:
		s.state = over
	}
}

// value begins a value with its first byte.
func (s *scanner) value(c byte) {
	if s.array() {
		s.enter([]byte{'*'})
	}
	switch {
	case c == '"':
		s.begin(inString, s.here)
	case c == '{' || c == '[':
		s.open(c == '[')
	case c == '-' || '0' <= c && c <= '9' || c == 't' || c == 'f' || c == 'n':
		s.begin(inWord, s.here)
		s.hold([]byte{c})
	default:
		s.state = over
	}
}

func (s *scanner) open(array bool) {
	if !s.deeper || s.depth == mostSteps {
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

// enter follows the paths by one step: a key, or a star in an array.
func (s *scanner) enter(step []byte) {
	s.here, s.deeper = false, false
	for i := range s.wants {
		w := &s.wants[i]
		if w.live != s.depth-1 || w.rest > len(w.path) || w.settled() {
			continue
		}
		next, _, _ := strings.Cut(w.path[w.rest:], ".")
		if next != string(step) {
			continue
		}
		w.live++
		w.rest += len(next) + 1
		s.here = s.here || w.rest > len(w.path)
		s.deeper = s.deeper || w.rest <= len(w.path)
	}
}

// end follows a value: the paths are where they were before it.
func (s *scanner) end() {
	s.state = valued
	if s.depth == 0 || s.pending == 0 {
		s.state = over
		return
	}
	for i := range s.wants {
		if s.wants[i].live == s.depth {
			s.wants[i].back()
		}
	}
}

func (s *scanner) begin(in state, keep bool) {
	s.state, s.keep, s.key, s.token = in, keep, false, s.token[:0]
}

func (s *scanner) hold(p []byte) {
	if s.keep = s.keep && len(s.token)+len(p) <= mostToken; s.keep {
		s.token = append(s.token, p...)
	}
}

// text reads on in a string and returns what is behind it.
func (s *scanner) text(p []byte) []byte {
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

func (s *scanner) endText() {
	if s.skipped > 0 {
		s.state = inSkipped
		return
	}
	v, ok := s.unescaped()
	switch {
	case !ok:
		s.state = over
	case s.key:
		if s.here, s.deeper = false, false; s.keep {
			s.enter(v)
		}
		s.state = atColon
	default:
		s.note(v)
		s.end()
	}
}

// unescaped is the string in token. Most have neither escapes nor bytes to check.
func (s *scanner) unescaped() (v []byte, ok bool) {
	strange := func(r rune) bool { return r < ' ' || r == '\\' || r > '~' }
	if !s.keep || bytes.IndexFunc(s.token, strange) < 0 {
		return s.token, true
	}
	var text string
	err := json.Unmarshal([]byte(`"`+string(s.token)+`"`), &text)
	return []byte(text), err == nil
}

// word reads on in a number or name. One at the end of what is written may be half of
// one: only what follows it ends it.
func (s *scanner) word(p []byte) []byte {
	i := 0
	for i < len(p) && p[i] > ' ' && p[i] != ',' && p[i] != ']' && p[i] != '}' {
		i++
	}
	if s.hold(p[:i]); i == len(p) {
		return nil
	}
	if s.keep && !json.Valid(s.token) {
		s.state = over
		return nil
	}
	if string(s.token) != "null" {
		s.note(s.token)
	}
	s.end()
	return p[i:]
}

// note keeps a value for those who want it.
func (s *scanner) note(v []byte) {
	for i := range s.wants {
		w := &s.wants[i]
		if !s.keep || w.live != s.depth || w.rest <= len(w.path) || w.settled() || w.text != "" && !glob(w.text, string(v)) {
			continue
		}
		s.found++
		w.value, w.nth = append(w.value[:0], v...), s.found
		if w.settled() {
			s.pending--
		}
	}
}

// skip passes over what is inside brackets that no path leads into.
func (s *scanner) skip(p []byte) []byte {
	for i, c := range p {
		switch c {
		case '"':
			s.begin(inString, false)
			return p[i+1:]
		case '{', '[':
			s.skipped++
		case '}', ']':
			if s.skipped--; s.skipped == 0 {
				s.end()
				return p[i+1:]
			}
		}
	}
	return nil
}

// at is what was found of a want; one that nobody asked for was not found.
func (s *scanner) at(path, text string) (found want) {
	for i := range s.wants {
		if w := &s.wants[i]; w.path == path && w.text == text {
			return *w
		}
	}
	return found
}
