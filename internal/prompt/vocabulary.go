package prompt

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// A Vocabulary is the pieces of text that a model reads as tokens.
type Vocabulary uint8

const (
	O200k   Vocabulary = iota // of OpenAI since GPT-4o
	Cl100k                    // of OpenAI before: GPT-4, GPT-3.5 and the third embeddings
	Claude                    // of Anthropic since Claude Opus 4.7
	Claude3                   // of Anthropic before: Claude 3 to 4.6
	Tekken                    // of Mistral since 2025
	Mistral                   // of Mistral before; that of Llama 2 is as large
	Llama3                    // of Meta since Llama 3
	vocabularies
)

// models are the names of models by vocabulary. The first match counts.
//
// Claude: https://platform.claude.com/docs/en/build-with-claude/token-counting says which models have the
// newer vocabulary. Mistral: mistral-common has released only Tekken for recent models, see
// https://pypi.org/project/mistral-common. OpenAI: tiktoken's list of models, see
// https://github.com/openai/tiktoken/blob/main/tiktoken/model.py. All were read on 2026-11-28.
var models = []struct {
	name *regexp.Regexp
	of   Vocabulary
}{
	{regexp.MustCompile(`claude-(?:[a-z]+-)?(?:[1-3](?:\D|$)|4(?:$|[^-.]|[-.](?:[0-6](?:\D|$)|\d{3}|\D)))`), Claude3},
	{regexp.MustCompile(`claude`), Claude},
	{regexp.MustCompile(`llama-?2|mixtral|mathstral|pixtral-large|mistral-(?:7b|embed|[a-z]+-2[34])|codestral-(?:22b|24|mamba)`), Mistral},
	{regexp.MustCompile(`llama`), Llama3},
	{regexp.MustCompile(`stral|pixtral|voxtral`), Tekken},
	{regexp.MustCompile(`gpt-?(?:3|4(?:$|[^o.]))|text-embedding-(?:3|ada)|(?:babbage|davinci)-002`), Cl100k},
	{regexp.MustCompile(`gpt|\bo[1-9]\b`), O200k},
}

// VocabularyOf returns the vocabulary of a model by its name, which may stand in a path. If the name
// doesn't tell it, VocabularyOf returns unknown.
func VocabularyOf(model string, unknown Vocabulary) Vocabulary {
	model = strings.ToLower(model)
	for _, m := range models {
		if m.name.MatchString(model) {
			return m.of
		}
	}
	return unknown
}

// A class is what a part of a text is for the estimate of its tokens.
type class uint8

const (
	word             class = iota // a run of Latin letters
	letterAfter4                  // a letter after the fourth of a word
	letterAfter8                  // a letter after the eighth, besides
	capital                       // a word that begins with a capital
	moreCapitals                  // a capital after the first
	hump                          // a long word after a small letter, as in getElement
	afterMark                     // a word after a mark, without a space
	scrapAfterLetter              // a short word after a small letter, as in base64
	scrapAfterDigit               // a short word after a digit, as in hexadecimal
	accent                        // a Latin letter of two bytes
	tone                          // a Latin letter of three bytes, as in Vietnamese
	combining                     // an accent that is a character of its own
	threeDigits                   // three digits, or the rest of a number
	eachDigit                     // a digit
	spaceBeforeDigit              // a space before a number
	marks                         // a run of marks
	threeMarks                    // three marks, or the rest of a run
	joint                         // a point or an underscore before a word
	lineAfterMark                 // the end of a line after a mark
	eachBlank                     // a byte of white space, but for a single space
	eachLine                      // the end of a line in white space

	// Characters beyond ASCII.
	latinMark
	greek
	cyrillic
	hebrew
	arabic
	twoBytes // Armenian, Syriac and others
	devanagari
	thai
	india   // Bengali, Gujarati, Tamil, Telugu, Malayalam
	kannada // and Gurmukhi
	eastern // Lao, Burmese, Georgian, Khmer
	rare    // Odia, Sinhala, Tibetan, Ethiopic and others
	punctuation
	symbol
	wideMark // punctuation of Chinese and Japanese
	kana
	han
	rareHan
	hangul
	emoji
	fourBytes

	classes
)

// weights are the tokens of each class, in hundredths. They are fitted to 880 texts, in 60 languages and
// of 30 kinds of code and data, such that most texts count 1.02 to 1.12 times their tokens. None of the
// texts in bench/testdata/tokens is among them.
var weights = [classes][vocabularies]int64{
	// o200k, cl100k, claude, claude3, tekken, mistral, llama3
	word:             {100, 100, 113, 100, 100, 100, 100},
	letterAfter4:     {1, 13, 40, 10, 9, 28, 5},
	letterAfter8:     {63, 39, 78, 80, 52, 18, 95},
	capital:          {13, 22, 102, 63, 16, 29, 9},
	moreCapitals:     {1, 0, 24, 6, 19, 0, 0},
	hump:             {-42, -92, 79, -59, -61, -60, -54},
	afterMark:        {5, -18, 7, 12, -9, -6, -7},
	scrapAfterLetter: {154, 169, 54, 180, 178, 173, 177},
	scrapAfterDigit:  {11, 14, 10, 0, 0, 0, 12},
	accent:           {102, 216, 128, 142, 97, 211, 94},
	tone:             {0, 35, 143, 133, 0, 153, 0},
	combining:        {233, 305, 116, 130, 328, 244, 244},
	threeDigits:      {82, 98, 90, 104, 0, 60, 102},
	eachDigit:        {10, 1, 7, 0, 108, 79, 0},
	spaceBeforeDigit: {134, 179, 168, 191, 109, 183, 187},
	marks:            {27, 83, 0, 0, 31, 0, 68},
	threeMarks:       {75, 24, 125, 106, 72, 110, 36},
	joint:            {16, 6, 146, 125, 29, 92, 9},
	lineAfterMark:    {75, 85, 227, 198, 97, 214, 81},
	eachBlank:        {9, 7, 1, 9, 7, 5, 6},
	eachLine:         {152, 132, 146, 130, 147, 127, 134},
	latinMark:        {127, 52, 182, 167, 144, 46, 115},
	greek:            {45, 114, 83, 83, 45, 119, 46},
	cyrillic:         {36, 77, 55, 56, 43, 62, 46},
	hebrew:           {47, 129, 83, 91, 56, 120, 129},
	arabic:           {48, 109, 101, 101, 43, 122, 50},
	twoBytes:         {38, 200, 76, 82, 46, 129, 200},
	devanagari:       {46, 126, 96, 97, 56, 130, 68},
	thai:             {41, 103, 96, 102, 56, 104, 53},
	india:            {44, 189, 118, 118, 64, 216, 189},
	kannada:          {61, 224, 258, 258, 73, 278, 223},
	eastern:          {54, 216, 113, 113, 65, 152, 216},
	rare:             {150, 280, 171, 171, 300, 252, 277},
	punctuation:      {53, 50, 200, 200, 200, 183, 50},
	symbol:           {165, 173, 267, 274, 185, 217, 156},
	wideMark:         {80, 80, 80, 80, 80, 80, 80},
	kana:             {74, 103, 84, 84, 63, 114, 63},
	han:              {95, 140, 138, 136, 120, 137, 97},
	rareHan:          {300, 300, 300, 300, 300, 300, 300},
	hangul:           {76, 124, 140, 147, 70, 151, 77},
	emoji:            {240, 330, 368, 361, 391, 400, 317},
	fourBytes:        {370, 374, 400, 400, 400, 400, 372},
}

// prices are the weights of a vocabulary.
type prices struct {
	of    [classes]int64
	words [32]int64 // by the number of letters
}

var pricesOf = func() (all [vocabularies]prices) {
	for v := range all {
		for c := range classes {
			all[v].of[c] = weights[c][v]
		}
		all[v].countWords()
	}
	return all
}()

func (p *prices) countWords() {
	for n := range p.words {
		p.words[n] = p.of[word] + int64(max(0, n-4))*p.of[letterAfter4] + int64(max(0, n-8))*p.of[letterAfter8]
	}
}

// classOf returns the class of a character beyond ASCII by its first two bytes.
func classOf(first, second byte) class { return characters[first&0x3F][second&0x3F] }

// characters are the classes of the characters beyond ASCII by the last six bits of their first two bytes.
var characters = func() (of [0x40][0x40]class) {
	var b [utf8.UTFMax]byte
	r := rune(utf8.RuneSelf)
	for _, s := range scripts {
		for r <= s.last {
			size := utf8.EncodeRune(b[:], r)
			of[b[0]&0x3F][b[1]&0x3F] = s.class
			r += 1 << (6 * (size - 2)) // the next character whose second byte differs
		}
	}
	return of
}()

// scripts are the classes of the characters beyond ASCII, in order. Above the first 2,048 a script ends
// at a multiple of 64, where the second byte changes.
var scripts = []struct {
	last  rune
	class class
}{
	{0xBF, latinMark},
	{0x24F, accent},
	{0x2FF, twoBytes},
	{0x36F, combining},
	{0x3FF, greek},
	{0x52F, cyrillic},
	{0x58F, twoBytes}, // Armenian
	{0x5FF, hebrew},
	{0x6FF, arabic},
	{0x7FF, twoBytes},
	{0x8FF, rare},
	{0x97F, devanagari},
	{0x9FF, india},   // Bengali
	{0xA7F, kannada}, // Gurmukhi
	{0xAFF, india},   // Gujarati
	{0xB7F, rare},    // Odia
	{0xC7F, india},   // Tamil, Telugu
	{0xCFF, kannada},
	{0xD7F, india}, // Malayalam
	{0xDFF, rare},  // Sinhala
	{0xE7F, thai},
	{0xEFF, eastern},  // Lao
	{0xFFF, rare},     // Tibetan
	{0x10FF, eastern}, // Burmese, Georgian
	{0x177F, rare},
	{0x17FF, eastern}, // Khmer
	{0x1DFF, rare},
	{0x1EFF, tone},
	{0x1FFF, greek},
	{0x203F, punctuation},
	{0x2FFF, symbol},
	{0x303F, wideMark},
	{0x30FF, kana},
	{0x3FFF, rareHan},
	{0x9FFF, han},
	{0xABFF, rare},
	{0xD7FF, hangul},
	{0xFDFF, rare},
	{0xFE3F, symbol}, // variants of emoji
	{0xFFFF, wideMark},
	{0x1EFFF, fourBytes},
	{0x1FFFF, emoji},
	{0x10FFFF, fourBytes},
}
