package prompt

// Tokens estimates the number of tokens of a text, as providers.Tokens says. It reads the text once and
// allocates nothing.
func (v Vocabulary) Tokens(text string) int64 {
	p := &pricesOf[v]
	var hundredths int64
	before := space // the kind of the byte before text[i]
	for i := 0; i < len(text); {
		var n int64
		if kind := kinds[text[i]]; kind < letter {
			i, n, before = p.ascii(text, i, before)
		} else if end, weight := p.letters(text, i, before); end > i {
			i, n, before = end, weight, lower
		} else {
			i, n = p.beyond(text, i)
			before = beyond
		}
		hundredths += n
	}
	return (hundredths + 50) / 100
}

// ascii returns the end and the weight of the text from text[i] up to a character beyond ASCII, and the
// kind of its last byte. It calls no function that isn't inlined, for speed.
func (p *prices) ascii(text string, i int, before byteKind) (end int, hundredths int64, last byteKind) {
	for i < len(text) {
		start, kind := i, kinds[text[i]]
		if kind >= letter {
			break
		}
		switch i = endOfRun(text, i+1, kind); kind {
		case lower:
			hundredths += p.word(i-start) + p.after(before, i-start, false)
			for i+1 < len(text) && text[i] == ' ' && kinds[text[i+1]] == lower { // most of the words of prose
				start, i = i+1, endOfRun(text, i+2, lower)
				hundredths += p.word(i - start)
			}
		case upper:
			hundredths += p.of[capital] + int64(i-start-1)*p.of[moreCapitals]
			i, kind = endOfRun(text, i, lower), lower
			hundredths += p.word(i-start) + p.after(before, i-start, true)
		case digit:
			n := int64(i - start)
			hundredths += (n+2)/3*p.of[threeDigits] + n*p.of[eachDigit]
		case mark:
			if c := text[start]; i-start == 1 && (c == '_' || c == '.') && i < len(text) && kinds[text[i]] <= upper {
				hundredths += p.of[joint]
				break
			}
			hundredths += p.of[marks] + int64(i-start+2)/3*p.of[threeMarks]
			if i < len(text) && text[i] == '\n' { // the end of a line belongs to the marks before it
				hundredths += p.of[lineAfterMark]
				i, kind = endOfRun(text, i, line), space
			}
		case line:
			hundredths += int64(i-start) * p.of[eachLine]
			kind = space
		case space:
			if n := int64(i - start); n > 1 { // one space belongs to the word after it
				hundredths += n * p.of[eachBlank]
			}
			if i < len(text) && kinds[text[i]] == digit && text[i-1] == ' ' { // but not to a number
				hundredths += p.of[spaceBeforeDigit]
			}
		}
		before = kind
	}
	return i, hundredths, before
}

// word returns the weight of a word of n letters.
func (p *prices) word(n int) int64 {
	if n < len(p.words) {
		return p.words[n]
	}
	return p.of[word] + int64(n-4)*p.of[letterAfter4] + int64(n-8)*p.of[letterAfter8]
}

// after returns the weight of what stands before a word of n letters.
func (p *prices) after(before byteKind, n int, capitals bool) int64 {
	switch {
	case before == mark:
		return p.of[afterMark]
	case before == digit && n < 4:
		return p.of[scrapAfterDigit]
	case before == lower && capitals && n < 4:
		return p.of[scrapAfterLetter]
	case before == lower && capitals:
		return p.of[hump]
	}
	return 0
}

// letters returns the end and the weight of the rest of a word from a Latin letter beyond ASCII on. If
// text[i] begins no such letter, it returns i.
func (p *prices) letters(text string, i int, before byteKind) (end int, weight int64) {
	known := i // the beginning of the letters before, which are counted already
	for before == lower && known > 0 && kinds[text[known-1]] <= upper {
		known--
	}
	n := i - known
	if n > 0 {
		weight = -p.word(n)
	}
	for end = i; end < len(text); {
		if kinds[text[end]] == lower {
			end++
			n++
			continue
		}
		if kinds[text[end]] != letter {
			break
		}
		class := classOf(text[end], text[min(end+1, len(text)-1)])
		if class > combining {
			break
		}
		if class < combining {
			n++
		}
		weight += p.of[class]
		for end++; end < len(text) && kinds[text[end]] == inside; {
			end++
		}
	}
	if n > 0 {
		weight += p.word(n)
	}
	return end, weight
}

// beyond returns the end and the weight of a character beyond ASCII, and of those that follow it but for
// letters of Latin.
func (p *prices) beyond(text string, i int) (end int, weight int64) {
	for first := text[i]; ; first = text[i] {
		if i+1 < len(text) {
			weight += p.of[classOf(first, text[i+1])]
		}
		switch {
		case first < 0xE0:
			i += 2
		case first < 0xF0:
			i += 3
		default:
			i += 4
		}
		if i >= len(text) {
			return len(text), weight
		}
		if kinds[text[i]] != beyond {
			return i, weight
		}
	}
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
	lower byteKind = iota
	upper
	digit
	mark
	space
	line
	letter // a letter of Latin beyond ASCII, or another character that begins as one
	beyond // another character beyond ASCII
	inside // another byte of a character beyond ASCII
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
		case c == '\n':
			k[c] = line
		case c == ' ' || '\t' <= c && c <= '\r':
			k[c] = space
		case c < 0x80:
			k[c] = mark
		case 0xC3 <= c && c <= 0xC9, c == 0xCC, c == 0xCD, c == 0xE1:
			k[c] = letter
		case c < 0xC0:
			k[c] = inside
		default:
			k[c] = beyond
		}
	}
	return k
}()
