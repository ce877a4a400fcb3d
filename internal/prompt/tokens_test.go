package prompt_test

import (
	"strings"
	"testing"

	"github.com/apithrottle/throttle/internal/prompt"
)

func TestTokens(t *testing.T) {
	for _, test := range []struct {
		text string
		want int64
	}{
		{"", 0},
		{"a", 1},
		{"Say hello.", 3},
		{"the reading room", 4}, // "reading" is one letter longer than a short word
		{"1234567", 3},
		{"o.id, c.created_at", 8}, // a point or an underscore before a letter is half a token
		{"a._b c_1", 6},
		{`{"id":12345,"ok":true}`, 10},
		{"a\n\n    b", 3},
		{"a 12", 3}, // a space doesn't belong to a number
		{"图书馆出借的", 6},
		{strings.Repeat("图", 12_000), 11_200}, // a long text without a space is text
		{strings.Repeat("one ", 1_000), 1_000},
		{"\xff\x80\xe5", 3}, // not UTF-8
	} {
		if got := prompt.Tokens(test.text); got != test.want {
			t.Errorf("%.40q: %d tokens, want %d", test.text, got, test.want)
		}
	}
	text := strings.Repeat("Zwölf Boxkämpfer 12, 图书馆 😀\n", 100)
	if n := testing.AllocsPerRun(10, func() { prompt.Tokens(text) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzTokens checks that a text counts at most one token more than its two parts together.
func FuzzTokens(f *testing.F) {
	for _, s := range []string{"", "camelCase", "1234", "图书馆\xff", " \n\t ", `{"a":[1,2]}`} {
		f.Add(s, "Word")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		whole, parts := prompt.Tokens(a+b), prompt.Tokens(a)+prompt.Tokens(b)
		if whole < 0 || whole > int64(2*len(a+b)) || whole > parts+1 {
			t.Errorf("%q and %q: %d tokens, and %d apart", a, b, whole, parts)
		}
	})
}
