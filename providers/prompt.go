package providers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
)

const (
	maxPrompt = 16 << 20 // bytes of a prompt that are read: the model often stands after the prompt
	maxField  = 256      // bytes of a string of the top level that is kept
	maxDepth  = 1_000    // open objects and arrays of a prompt
)

// A prompt is the content of the JSON body of a request to a model.
type prompt struct {
	// text is the estimated number of tokens of all strings, keys and token ids.
	text int64
	// images is the number of images.
	images int64
	// fields are the numbers and short strings of promptFields, which are keys of the top level and, as
	// in "inferenceConfig.maxTokens", keys in objects there.
	fields map[string]string
	// places are the ends of the blocks that the provider may have in its cache, and instructions is
	// the hash of the model, the tools and the system prompt. Only prompts of Anthropic have them.
	places       []place
	instructions uint64
}

// tokens returns the estimated number of tokens, with each image as the given number.
func (p prompt) tokens(image int64) int64 { return p.text + p.images*image }

// number returns the number in the first field that has one, or 0.
func (p prompt) number(fields ...string) int64 {
	for _, name := range fields {
		if n, err := strconv.ParseInt(p.fields[name], 10, 64); err == nil && n > 0 {
			return min(n, algorithms.MaxLimit)
		}
	}
	return 0
}

// promptOf reads a request's body, as far as it is well-formed. Without GetBody only the length is
// known: four bytes count as one token. A form with files has no prompt.
func promptOf(req *http.Request, tokens func(string) int64, blocks *blockScanner) prompt {
	p := prompt{fields: map[string]string{}}
	if strings.HasPrefix(strings.ToLower(req.Header.Get("Content-Type")), "multipart/") {
		return p
	}
	if p.text = (max(0, req.ContentLength) + 3) / 4; req.GetBody == nil {
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
	p.text = 0
	s := promptScanner{prompt: &p, body: read.text.String(), tokens: tokens, blocks: blocks}
	s.scan()
	if blocks != nil {
		p.places, p.instructions = blocks.end(p.fields["model"])
	}
	return p
}

// A beginning is the first maxPrompt bytes of a body. After them its methods return an error.
type beginning struct{ text strings.Builder }

var errLong = errors.New("providers: the body is longer than what is read of it")

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

// A counter counts the tokens of a request's text. Provider.Transport passes it to Key and Cost.
type counter struct {
	request *http.Request // as the caller of the Transport has it
	tokens  func(string) int64
}

type counterKey struct{} // of a counter in a request's context

// withTokens returns a copy of req whose context has a function that counts tokens. If the function is
// nil, withTokens returns req.
func withTokens(req *http.Request, tokens func(string) int64) *http.Request {
	if tokens == nil {
		return req
	}
	return req.WithContext(context.WithValue(req.Context(), counterKey{}, counter{req, tokens}))
}

// counterOf returns the counter in the request's context. If there is none, its tokens are Tokens.
func counterOf(req *http.Request) counter {
	if c, ok := req.Context().Value(counterKey{}).(counter); ok {
		return c
	}
	return counter{req, Tokens}
}

// prompts carries the prompt of a request from Key to Cost, and to Settle where there is one. A
// Transport calls them one after the other, so the body is read once. It is safe for concurrent use.
type prompts struct {
	blocks bool // the prompts have places

	mu   sync.Mutex // guards read
	read map[weak.Pointer[http.Request]]prompt
}

// maxPrompts is the number of prompts that are kept. Above it they are read again.
const maxPrompts = 1_000

// key reads the prompt of a request.
func (c *prompts) key(req *http.Request) prompt {
	of, blocks := counterOf(req), (*blockScanner)(nil)
	if c.blocks {
		blocks = newBlockScanner()
	}
	p := promptOf(req, of.tokens, blocks)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read == nil || len(c.read) >= maxPrompts {
		c.read = map[weak.Pointer[http.Request]]prompt{}
	}
	c.read[weak.Make(of.request)] = p
	return p
}

// same returns the prompt that key has read for the Key of an outer scope, or for an earlier Cost. If
// there is none, same reads it.
func (c *prompts) same(req *http.Request) prompt {
	c.mu.Lock()
	p, ok := c.read[weak.Make(counterOf(req).request)]
	c.mu.Unlock()
	if !ok {
		p = c.key(req)
	}
	return p
}

// cost returns the prompt as same does, and forgets it.
func (c *prompts) cost(req *http.Request) prompt {
	p := c.same(req)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.read, weak.Make(counterOf(req).request))
	return p
}

// minute returns a tier of a rolling minute.
func minute(limit int64, unit string) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: time.Minute, Unit: unit}
}
