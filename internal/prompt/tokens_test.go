package prompt_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/apithrottle/throttle/internal/prompt"
)

func TestTokens(t *testing.T) {
	for _, test := range []struct {
		text                  string
		o200k, claude, llama3 int64
	}{
		{"", 0, 0, 0},
		{"a", 1, 1, 1},
		{"Say hello.", 3, 5, 3},
		{"the reading room", 3, 5, 3}, // "reading" is three letters longer than a short word
		{"1234567", 3, 3, 3},
		{"o.id, c.created_at", 7, 13, 6}, // a point or an underscore before a letter costs little
		{"getElementById", 7, 11, 7},
		{"x7Kf9Qz", 5, 8, 5}, // short words in the middle of others are not words
		{"a\n\n    b", 5, 5, 5},
		{"a 12", 3, 4, 4}, // a space doesn't belong to a number
		{"groß größer", 5, 7, 5},
		{"được", 3, 5, 3},
		{"图书馆出借的", 6, 8, 6},
		{strings.Repeat("图", 12_000), 11_400, 16_560, 11_640}, // a long text without a space is text
		{strings.Repeat("one ", 1_000), 1_000, 1_130, 1_000},
		{"\xff\x80\xe5", 1, 1, 1}, // not UTF-8
	} {
		for v, want := range map[prompt.Vocabulary]int64{prompt.O200k: test.o200k, prompt.Claude: test.claude, prompt.Llama3: test.llama3} {
			if got := v.Tokens(test.text); got != want {
				t.Errorf("%.40q in %d: %d tokens, want %d", test.text, v, got, want)
			}
		}
	}
	text := strings.Repeat("Zwölf Boxkämpfer 12, 图书馆 😀\n", 100)
	if n := testing.AllocsPerRun(10, func() { prompt.Mistral.Tokens(text) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Twice the text counts twice the tokens, whatever the text is: nothing is read again and again.
func TestTokensOfLongTexts(t *testing.T) {
	for _, part := range []string{"a", "A", "aA", "é", "aé", "e\u0301", "ợ", "ñ图", "\x80", "\xe1", "0", "_", "\n", " ", ".\n", "ខ្មែរ ქა", "a 图 9-\xff"} {
		for v := prompt.O200k; v <= prompt.Llama3; v++ {
			once, twice := v.Tokens(strings.Repeat(part, 1_000_000/len(part))), v.Tokens(strings.Repeat(part, 2*(1_000_000/len(part))))
			if twice < 2*once-20 || twice > 2*once+20 {
				t.Errorf("%q in %d: %d tokens, and %d twice", part, v, once, twice)
			}
		}
	}
}

func TestVocabularyOf(t *testing.T) {
	for want, models := range map[prompt.Vocabulary]string{
		prompt.O200k:  "gpt-4o gpt-4o-mini-2024-07-18 ft:gpt-4o:acme gpt-4.1-nano gpt-4.5-preview gpt-5.2 gpt-6 chatgpt-4o-latest o1 o3-mini openai/o4-mini openai.gpt-oss-120b-1:0 /openai/deployments/gpt4o/chat/completions",
		prompt.Cl100k: "gpt-4 gpt-4-turbo gpt-4-0613 ft:gpt-3.5-turbo:acme gpt-35-turbo gpt4 text-embedding-3-small text-embedding-ada-002 /openai/deployments/gpt-4/embeddings",
		prompt.Claude: "claude-opus-4-7 claude-opus-4-8-20260601 anthropic/claude-opus-4.7 claude-opus-5 claude-sonnet-5 claude-fable-5 claude-mythos-preview claude-opus-4-10 us.anthropic.claude-opus-4-7-v1:0",
		prompt.Claude3: `claude-2.1 claude-3-opus-20240229 claude-3-5-haiku-latest anthropic/claude-3.7-sonnet claude-opus-4-20250514 claude-opus-4@20250514 claude-sonnet-4
			claude-haiku-4-5-20251001 anthropic/claude-sonnet-4.5 claude-opus-4-6 eu.anthropic.claude-sonnet-4-6-v1:0 /model/us.anthropic.claude-opus-4-6-v1:0/converse`,
		prompt.Tekken:  "mistral-large-latest mistral-large-2512 mistral-medium-2508 mistral-small-2503 codestral-latest codestral-2508 ministral-8b-latest magistral-medium-latest devstral-small-2507 open-mistral-nemo pixtral-12b",
		prompt.Mistral: "open-mistral-7b mistral.mistral-7b-instruct-v0:2 open-mixtral-8x22b mixtral-8x7b-32768 mistral-large-2407 mistral.mistral-large-2402-v1:0 codestral-2405 mistral-embed meta.llama2-70b-chat-v1",
		prompt.Llama3:  "llama-3.3-70b-versatile llama3.1-8b meta-llama/Llama-3.3-70B-Instruct-Turbo meta.llama3-70b-instruct-v1:0 llama-4-scout deepseek-r1-distill-llama-70b",
	} {
		for model := range strings.FieldsSeq(models) {
			for _, unknown := range []prompt.Vocabulary{prompt.O200k, prompt.Tekken} {
				if got := prompt.VocabularyOf(model, unknown); got != want {
					t.Errorf("%s: vocabulary %d, want %d", model, got, want)
				}
			}
		}
	}
	for model := range strings.FieldsSeq("gemini-2.5-pro qwen3-32b deepseek-chat grok-4 amazon.nova-pro-v1:0 text-embedding-004 production /v1/chat/completions") {
		if got := prompt.VocabularyOf(model, prompt.Mistral); got != prompt.Mistral {
			t.Errorf("%s: vocabulary %d, want the one of unknown models", model, got)
		}
	}
}

// FuzzTokens checks that a text counts little more than its two parts together. In malformed UTF-8 a byte
// may belong to another character then.
func FuzzTokens(f *testing.F) {
	for _, s := range []string{"", "camelCase", "1234", "图书馆\xff", " \n\t ", `{"a":[1,2]}`, "größe\xcc\x81", "được ខ"} {
		f.Add(s, "Word")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for v := prompt.O200k; v <= prompt.Llama3; v++ {
			whole, parts := v.Tokens(a+b), v.Tokens(a)+v.Tokens(b)
			if whole < 0 || whole > int64(4*len(a+b)) || whole > parts+10 && utf8.ValidString(a) && utf8.ValidString(b) {
				t.Errorf("%q and %q in %d: %d tokens, and %d apart", a, b, v, whole, parts)
			}
		}
	})
}
