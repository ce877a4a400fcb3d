package prompt

// Tokens estimates the number of tokens of a text, as providers.Tokens says. It reads the text once and
// allocates nothing. The weights are fitted to the texts of bench/tokens_test.go.
func Tokens(text string) int64 {
	var parts int64 // of a token
	for i := 0; i < len(text); {
		start, kind := i, kinds[text[i]]
		switch i = endOfRun(text, i+1, kind); kind {
		case lower:
			parts += wordParts(i-start, 0)
		case upper:
			capitals := i - start
			i = endOfRun(text, i, lower)
			if parts += wordParts(i-start, capitals); start > 0 && kinds[text[start-1]]&(lower|digit) != 0 {
				parts += token * 3 / 5 // a name such as readAll, or base64
			}
		case digit:
			parts += thirds(i - start)
		case mark:
			if c := text[start]; i-start == 1 && (c == '_' || c == '.') && i < len(text) && kinds[text[i]]&(lower|upper) != 0 {
				parts += token / 2 // created_at, o.id: the mark often shares a token with the word
				break
			}
			for i < len(text) && text[i] == '\n' { // the end of a line belongs to the marks before it
				i++
			}
			parts += thirds(i - start)
		case space:
			if i-start > 1 || text[start] == '\n' { // one space belongs to the word after it
				parts += token
			}
			if i < len(text) && kinds[text[i]] == digit && text[i-1] == ' ' { // but not to a number
				parts += token
			}
		case beyond:
			for j := start; j < i; j++ {
				parts += byFirstByte[text[j]]
			}
		}
	}
	return (parts + token - 1) / token
}

// token is one token in the unit in which Tokens counts.
const token = 60

// thirds returns the parts of n digits or marks: one token for every three.
func thirds(n int) int64 { return int64(n+2) / 3 * token }

// wordParts returns the parts of a word of n letters that begins with a number of capitals.
func wordParts(n, capitals int) int64 {
	if capitals > 1 {
		return token + token*int64(capitals-2)/5 + token*int64(max(0, n-capitals-1))/5
	}
	return token + token*int64(max(0, n-6))/4
}

// endOfRun returns the end of the bytes of one kind from text[i] on.
func endOfRun(text string, i int, kind byteKind) int {
	for i < len(text) && kinds[text[i]] == kind {
		i++
	}
	return i
}

// A byteKind is what a byte is part of.
type byteKind uint8

const (
	lower byteKind = 1 << iota
	upper
	digit
	mark
	space
	beyond // a character beyond ASCII
)

// kinds are the kinds of all bytes.
var kinds = func() (k [256]byteKind) {
	for c := range k {
		switch {
		case 'a' <= c && c <= 'z':
			k[c] = lower
		case 'A' <= c && c <= 'Z':
			k[c] = upper
		case '0' <= c && c <= '9':
			k[c] = digit
		case c == ' ' || '\t' <= c && c <= '\r':
			k[c] = space
		case c < 0x80:
			k[c] = mark
		default:
			k[c] = beyond
		}
	}
	return k
}()

// byFirstByte are the parts of a character beyond ASCII, by its first byte in UTF-8.
var byFirstByte = func() (parts [256]int64) {
	for c := range parts {
		switch {
		case c < 0xC0: // not a first byte
		case c < 0xCC: // Latin
			parts[c] = token / 2
		case c < 0xE0: // Greek, Cyrillic, Hebrew, Arabic
			parts[c] = token * 9 / 20
		case c == 0xE0: // the scripts of India, Thai
			parts[c] = token * 11 / 20
		case c < 0xE3: // letters of Vietnamese, punctuation, symbols
			parts[c] = token * 2 / 3
		case c == 0xE3: // Japanese syllables
			parts[c] = token * 23 / 30
		case c < 0xEA: // Chinese
			parts[c] = token * 14 / 15
		case c < 0xEE: // Korean
			parts[c] = token * 3 / 4
		case c < 0xF0: // wide punctuation
			parts[c] = token * 5 / 6
		default: // emoji
			parts[c] = token * 2
		}
	}
	return parts
}()
