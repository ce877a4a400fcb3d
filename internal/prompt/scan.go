package prompt

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/apithrottle/throttle/algorithms"
)

// A scanner reads a prompt in one pass. Unlike a jsonpath.Scanner it reads every string, and
// it takes each for text, an image, or a file.
type scanner struct {
	*Prompt
	body       string
	at         int                // the next byte of body
	vocabulary Vocabulary         // of keys and numbers
	tokens     func(string) int64 // of other text
	image      int64              // Reader.Image

	open   []container
	key    string        // the key before the next value
	keyed  bool          // key is set
	blocks *blockScanner // finds the blocks of the prompt; nil if they are of no use
}

// A container is an open object or array.
type container struct {
	name  string // its key, or the key of the array that contains it
	array bool
	ids   bool   // its numbers are token ids
	kind  string // the media type or format that it or its container names, before its data
}

// scan reads the body until the end of its first value, or until malformed text. A string that the
// body doesn't end is part of the prompt.
func (s *scanner) scan() {
	for s.at < len(s.body) {
		switch c := s.body[s.at]; c {
		case ' ', '\t', '\n', '\r', ',':
			s.at++
			continue
		case '{', '[':
			if len(s.open) == maxDepth || s.inObject() && !s.keyed {
				return
			}
			s.enter(c == '[')
			continue
		case '}', ']':
			if len(s.open) == 0 || s.inObject() != (c == '}') || s.keyed {
				return
			}
			s.open = s.open[:len(s.open)-1]
			s.at++
			s.blocks.onLeave(s, c == ']')
		case '"':
			raw := s.quoted()
			if s.inObject() && !s.keyed {
				if !s.colon() {
					return
				}
				s.key, s.keyed = unescape(raw), true
				s.blocks.onKey(s)
				s.add(s.vocabulary.Tokens(s.key))
				continue
			}
			s.value(raw)
			s.blocks.onValue(s, raw)
		default:
			start := s.at
			if s.inObject() && !s.keyed || !s.word() {
				return
			}
			s.blocks.onValue(s, s.body[start:s.at])
		}
		if s.keyed = false; len(s.open) == 0 {
			return
		}
	}
}

// add adds tokens.
func (s *scanner) add(n int64) {
	s.Tokens = min(s.Tokens+min(max(0, n), algorithms.MaxLimit), algorithms.MaxLimit)
}

// top returns the innermost open container.
func (s *scanner) top() container {
	if len(s.open) == 0 {
		return container{array: true}
	}
	return s.open[len(s.open)-1]
}

func (s *scanner) inObject() bool { return !s.top().array }

// name returns the key of the next value. In an array it is the key of the array.
func (s *scanner) name() string {
	if s.keyed {
		return s.key
	}
	return s.top().name
}

// enter enters an object or array. Numbers in the arrays of a top-level input (embeddings) or prompt
// (completions) are token ids.
func (s *scanner) enter(array bool) {
	s.blocks.onEnter(s)
	ids := s.top().ids || len(s.open) == 1 && s.keyed && (s.key == "input" || s.key == "prompt")
	s.open = append(s.open, container{name: s.name(), array: array, ids: ids && array, kind: s.top().kind})
	s.keyed = false
	s.at++
}

// colon passes the colon after a key, and reports whether there is one.
func (s *scanner) colon() bool {
	for s.at < len(s.body) && strings.IndexByte(" \t\n\r", s.body[s.at]) >= 0 {
		s.at++
	}
	s.at++
	return s.at <= len(s.body) && s.body[s.at-1] == ':'
}

// quoted passes a string and returns it without its quotes, with its escapes.
func (s *scanner) quoted() string {
	start := s.at + 1
	for end := start; ; end++ {
		n := strings.IndexByte(s.body[end:], '"')
		if n < 0 {
			s.at = len(s.body)
			return s.body[start:]
		}
		end += n
		before := strings.TrimRight(s.body[start:end], `\`)
		if (end-start-len(before))%2 == 0 {
			s.at = end + 1
			return s.body[start:end]
		}
	}
}

// word passes a number, true, false or null, and reports whether there is one.
func (s *scanner) word() bool {
	start := s.at
	for s.at < len(s.body) && (kinds[s.body[s.at]] <= digit || strings.IndexByte("+-.", s.body[s.at]) >= 0) {
		s.at++
	}
	word := s.body[start:s.at]
	if word == "true" || word == "false" || word == "null" {
		return true
	}
	if word == "" || word[0] != '-' && kinds[word[0]] != digit {
		return false
	}
	switch {
	case len(s.open) == 1 && s.keyed:
		s.keep(s.key, word)
	case len(s.open) == 2 && s.keyed && strings.HasSuffix(s.top().name, "Config"):
		s.keep(s.top().name+"."+s.key, word)
	case s.top().ids:
		s.add(1)
	case len(s.open) > 1:
		s.add(s.vocabulary.Tokens(word)) // such as an argument of a tool's call
	}
	return true
}

// keep keeps a field of fieldNames that is not long. The body is not kept in memory with it.
func (s *scanner) keep(name, value string) {
	if slices.Contains(fieldNames, name) && len(value) <= maxField {
		s.Fields[strings.Clone(name)] = strings.Clone(value)
	}
}

// fieldNames are the fields that presets read: the model, and how much it may write.
var fieldNames = strings.Fields(`model speed service_tier n best_of max_tokens max_completion_tokens max_output_tokens max_gen_len
	inferenceConfig.maxTokens inferenceConfig.max_new_tokens textGenerationConfig.maxTokenCount
	generationConfig.maxOutputTokens`)

// value counts a string: a key's value, or an element of an array.
func (s *scanner) value(raw string) {
	name, of := s.name(), ""
	if s.keyed {
		of = s.top().name
	}
	if kind, data, ok := encoded(name, of, raw); ok {
		s.addEncoded(cmp.Or(kind, s.top().kind), data)
		return
	}
	if isAddress(name, of) {
		s.add(s.image)
		return
	}
	text := unescape(raw)
	if s.add(s.tokens(text)); len(s.open) == 1 && s.keyed {
		s.keep(s.key, text)
	}
	switch name {
	case "mimeType", "mime_type", "media_type", "format":
		if s.keyed {
			s.open[len(s.open)-1].kind = text
		}
	}
}

// isAddress reports whether a string with this name is the address or the id of an image or file. The
// object that contains it has the name of. The request doesn't contain the size of the file, so each
// file counts as an image, which takes about as many tokens as a page of text.
func isAddress(name, of string) bool {
	switch name {
	case "image_url", "file_url", "file_id", "fileUri", "file_uri":
		return true
	case "url":
		return of == "image_url" || of == "source"
	case "uri":
		return of == "s3Location" || of == "input" || of == "content"
	}
	return false
}

const (
	leastData  = 1_000 // bytes of base64 that are taken for data in a field of unknown content
	sampleData = 1_024 // bytes that are checked where data is expected
)

// encoded returns the data of a string in base64 and the beginning of its media type, or "" if that
// is not known. Such a string is a data URL, or in a place for data, or long and nothing but base64
// in a place that is not known to hold text.
func encoded(name, of, raw string) (kind, data string, ok bool) {
	if url, ok := strings.CutPrefix(raw, "data:"); ok {
		if kind, _, ok := strings.Cut(url[:min(len(url), 200)], ";base64,"); ok {
			return kind, url[len(kind)+len(";base64,"):], true
		}
	}
	switch {
	case name == "data" && of == "input_audio":
		return "audio/", raw, true
	case name == "data" && (of == "source" || of == "inlineData" || of == "inline_data"),
		name == "bytes" && of == "source", name == "file_data":
		return "", raw, isBase64(raw[:min(len(raw), sampleData)])
	}
	return "", raw, len(raw) >= leastData && !holdsText(name) && isBase64(raw)
}

// holdsText reports whether the APIs read a string with this name as text, whatever it is.
func holdsText(name string) bool {
	switch name {
	case "arguments", "content", "input", "instructions", "output", "prompt", "system", "text", "thinking":
		return true
	}
	return false
}

// isBase64 reports whether s has only characters of base64, of either alphabet. A slash may be
// escaped.
func isBase64(s string) bool {
	for i := range len(s) {
		if kinds[s[i]] > digit && strings.IndexByte(`+/=-_\`, s[i]) < 0 {
			return false
		}
	}
	return true
}

// addEncoded counts data in base64.
//
// Files count one token for 50 bytes. Anthropic takes 1,500 to 3,000 tokens for the text of a page of
// a PDF, which is assumed to have 100 KB, see
// https://platform.claude.com/docs/en/build-with-claude/pdf-support. OpenAI takes one token for 100 ms
// of audio, see https://developers.openai.com/api/docs/guides/realtime-costs, read on 2026-11-22. That
// is one for 1,600 bytes of MP3 at 128 kbit/s, so audio counts one for 1,000 bytes. Encoded text counts
// one for four bytes.
func (s *scanner) addEncoded(kind, data string) {
	n, bytesPerToken := int64(len(data))/4*3, int64(50)
	switch {
	case strings.HasPrefix(kind, "audio/"):
		bytesPerToken = 1_000
	case strings.HasPrefix(kind, "text/"), kind == "txt", kind == "md", kind == "csv", kind == "html":
		bytesPerToken = 4
	case strings.HasPrefix(kind, "image/"), isImage(data):
		s.add(s.image)
		return
	}
	s.add(n/bytesPerToken + 1)
}

// isImage reports whether data in base64 begins as a PNG, JPEG, GIF or WebP file does. The media
// type may follow the data, so it is of no use here.
func isImage(data string) bool {
	for _, magic := range []string{"iVBORw0K", "/9j/", `\/9j\/`, "R0lGOD", "UklGR"} {
		if strings.HasPrefix(data, magic) {
			return true
		}
	}
	return false
}

// unescape returns the text of a string of JSON. Malformed escapes stay as they are.
func unescape(raw string) string {
	i := strings.IndexByte(raw, '\\')
	if i < 0 {
		return raw
	}
	var b strings.Builder
	b.Grow(len(raw))
	for ; i >= 0; i = strings.IndexByte(raw, '\\') {
		b.WriteString(raw[:i])
		r, n := escape(raw[i:])
		b.WriteRune(r)
		raw = raw[i+n:]
	}
	b.WriteString(raw)
	return b.String()
}

// escape returns the character of the escape at the beginning of s, and the length of the escape.
func escape(s string) (r rune, n int) {
	if len(s) < 2 {
		return '\\', 1
	}
	switch c := s[1]; c {
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case '"', '/', '\\':
		return rune(c), 2
	}
	first, ok := unit(s)
	if !ok {
		return '\\', 1
	}
	if second, ok := unit(s[6:]); ok && utf16.IsSurrogate(first) {
		if r := utf16.DecodeRune(first, second); r != utf8.RuneError {
			return r, 12
		}
	}
	return first, 6
}

// unit returns the UTF-16 code unit of an escape such as \u00e9.
func unit(s string) (rune, bool) {
	if len(s) < 6 || s[:2] != `\u` {
		return 0, false
	}
	n, err := strconv.ParseUint(s[2:6], 16, 16)
	return rune(n), err == nil
}
