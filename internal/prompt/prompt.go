// Package prompt estimates what a request to a language model costs before the model has answered: the
// tokens of its text, images and files, the part of it that the provider has in its cache, and the
// length of the answer.
package prompt

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"weak"

	"github.com/apithrottle/throttle/algorithms"
)

const (
	maxPrompt = 16 << 20 // bytes of a prompt that are read: the model often stands after the prompt
	maxField  = 256      // bytes of a string of the top level that is kept
	maxDepth  = 1_000    // open objects and arrays of a prompt
)

// A Prompt is the content of the JSON body of a request to a model.
type Prompt struct {
	// Tokens is the estimated number of tokens of all strings, keys, token ids, images and files.
	Tokens int64
	// Fields are the numbers and short strings of fieldNames, which are keys of the top level and, as in
	// "inferenceConfig.maxTokens", keys in objects there.
	Fields map[string]string
	// Places are the ends of the blocks that the provider may have in its cache, and Instructions is
	// the hash of the model, the tools and the system prompt. Only a Reader with Blocks finds them.
	Places       []Place
	Instructions uint64
}

// Number returns the number in the first field that has one, or 0.
func (p Prompt) Number(fields ...string) int64 {
	for _, name := range fields {
		if n, err := strconv.ParseInt(p.Fields[name], 10, 64); err == nil && n > 0 {
			return min(n, algorithms.MaxLimit)
		}
	}
	return 0
}

// A beginning is the first maxPrompt bytes of a body. After them its methods return an error.
type beginning struct{ text strings.Builder }

var errLong = errors.New("prompt: the body is longer than what is read of it")

func (b *beginning) Write(p []byte) (int, error) {
	n, _ := b.text.Write(p[:min(len(p), maxPrompt-b.text.Len())])
	return n, b.check(n, len(p))
}

// WriteString is for a strings.Reader, which would otherwise copy the body once more.
func (b *beginning) WriteString(s string) (int, error) {
	n, _ := b.text.WriteString(s[:min(len(s), maxPrompt-b.text.Len())])
	return n, b.check(n, len(s))
}

func (b *beginning) check(written, of int) error {
	if written < of {
		return errLong
	}
	return nil
}

// A counter counts the tokens of a request's text.
type counter struct {
	request *http.Request      // as the caller of WithTokens has it
	tokens  func(string) int64 // nil: by the vocabulary of the model
}

type counterKey struct{} // of a counter in a request's context

// WithTokens returns a copy of req, of which a Reader counts the tokens with a function. If the function
// is nil, WithTokens returns req, and a Reader estimates the tokens by the vocabulary of the model.
func WithTokens(req *http.Request, tokens func(string) int64) *http.Request {
	if tokens == nil {
		return req
	}
	return req.WithContext(context.WithValue(req.Context(), counterKey{}, counter{req, tokens}))
}

func counterOf(req *http.Request) counter {
	if c, ok := req.Context().Value(counterKey{}).(counter); ok {
		return c
	}
	return counter{req, nil}
}

// A Reader carries the prompt of a request from the Key of a scope to Cost, and to Settle where there is
// one. A Transport calls them one after the other, so the body is read once. A Reader is safe for
// concurrent use.
type Reader struct {
	// Image is the number of tokens of an image, and of a file that the request names.
	Image int64
	// Blocks makes the Reader find the blocks of Anthropic's prompts. If false, prompts have no Places.
	Blocks bool
	// Unknown is the vocabulary of models whose names don't tell it.
	Unknown Vocabulary

	mu   sync.Mutex // guards read and last
	read map[weak.Pointer[http.Request]]Prompt
	last Vocabulary // of the last prompt
}

// maxPrompts is the number of prompts that are kept. Above it they are read again.
const maxPrompts = 1_000

// Read reads the prompt of a request, for the first function that needs it.
func (r *Reader) Read(req *http.Request) Prompt {
	of := counterOf(req)
	p := r.parse(req, of.tokens)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.read == nil || len(r.read) >= maxPrompts {
		r.read = map[weak.Pointer[http.Request]]Prompt{}
	}
	r.read[weak.Make(of.request)] = p
	return p
}

// Peek returns the prompt that Read has returned for the same request. If there is none, Peek reads it.
func (r *Reader) Peek(req *http.Request) Prompt {
	r.mu.Lock()
	p, ok := r.read[weak.Make(counterOf(req).request)]
	r.mu.Unlock()
	if !ok {
		p = r.Read(req)
	}
	return p
}

// Take returns the prompt as Peek does, and forgets it.
func (r *Reader) Take(req *http.Request) Prompt {
	p := r.Peek(req)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.read, weak.Make(counterOf(req).request))
	return p
}

// parse reads a request's body, as far as it is well-formed. Without GetBody only the length is known:
// four bytes count as one token. A form with files has no prompt.
func (r *Reader) parse(req *http.Request, tokens func(string) int64) Prompt {
	p := Prompt{Fields: map[string]string{}}
	if strings.HasPrefix(strings.ToLower(req.Header.Get("Content-Type")), "multipart/") {
		return p
	}
	if p.Tokens = (max(0, req.ContentLength) + 3) / 4; req.GetBody == nil {
		return p
	}
	b, err := req.GetBody()
	if err != nil {
		return p
	}
	defer b.Close()
	var read beginning
	read.text.Grow(int(min(max(0, req.ContentLength), maxPrompt)))
	_, _ = io.Copy(&read, b) // what was read before an error counts
	body := read.text.String()
	if tokens != nil {
		return r.scan(body, req.URL.Path, r.Unknown, tokens)
	}
	return r.estimate(body, req.URL.Path)
}

// estimate scans a body with the vocabulary of its model, which often stands after the prompt. So it
// takes the model of the last prompt for this one's, and scans once more if that was wrong.
func (r *Reader) estimate(body, path string) Prompt {
	r.mu.Lock()
	v := r.last
	r.mu.Unlock()
	p := r.scan(body, path, v, v.Tokens)
	is := VocabularyOf(cmp.Or(p.Fields["model"], path), r.Unknown)
	if is == v {
		return p
	}
	r.mu.Lock()
	r.last = is
	r.mu.Unlock()
	return r.scan(body, path, is, is.Tokens)
}

// scan scans a body. If it names no model, the model is what stands before the action in the path, as in
// "publishers/anthropic/models/claude-sonnet-4-5:rawPredict".
func (r *Reader) scan(body, path string, v Vocabulary, tokens func(string) int64) Prompt {
	p := Prompt{Fields: map[string]string{}}
	s := scanner{Prompt: &p, body: body, vocabulary: v, tokens: tokens, image: r.Image}
	if r.Blocks {
		s.blocks = newBlockScanner()
	}
	s.scan()
	if r.Blocks {
		model, _, _ := strings.Cut(path, ":")
		p.Places, p.Instructions = s.blocks.end(cmp.Or(p.Fields["model"], model))
	}
	return p
}
