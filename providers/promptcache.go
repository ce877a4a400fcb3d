package providers

import (
	"hash/maphash"
	"time"
)

// A place is the end of a block of a prompt: of a tool, or of a part of the system prompt or of a
// message. The provider may have the prompt up to there in its cache.
type place struct {
	// hash is the hash of the prompt up to the place, and of the model.
	hash uint64
	// tokens is the estimated number of tokens up to the place.
	tokens int64
	// lifetime is how long the cache keeps the prompt up to the place. If zero, the place is not a
	// breakpoint.
	lifetime time.Duration
}

const (
	cacheLifetime     = 5 * time.Minute
	longCacheLifetime = time.Hour // with "ttl": "1h"
	lookback          = 20        // blocks before a breakpoint in which the API looks for an earlier one
	maxBreakpoints    = 8         // that are kept; the API accepts 4
)

// A blockScanner finds the places of an Anthropic prompt, as a promptScanner reads it. Whether a text
// is a string or a list of one block, and what cache_control is at a block, makes no difference for
// the hashes.
type blockScanner struct {
	sections [3]section // in the order in which the API puts them together
	current  *section   // nil outside of sections
	// lifetime is that of the cache_control in the current block. If zero, there is none.
	lifetime time.Duration
	// automatic is the lifetime of the cache_control of the whole request, which stands for a
	// breakpoint at the last block. If zero, there is none.
	automatic time.Duration
}

var sectionNames = [...]string{"tools", "system", "messages"}

// A section is the part of the prompt below one key of the top level.
type section struct {
	hash   maphash.Hash
	before int64   // tokens before the section
	tokens int64   // tokens in the section, up to the last block
	last   []place // the blocks since the last breakpoint, at most lookback
	places []place // the breakpoints, and the blocks before each
	points int     // number of breakpoints
}

const cacheControl = "cache_control"

func newSection(before int64) (c section) {
	c.before = before
	c.hash.SetSeed(seed)
	return c
}

func newBlockScanner() *blockScanner {
	return &blockScanner{sections: [3]section{newSection(0), newSection(0), newSection(0)}}
}

// onKey is called after a key.
func (b *blockScanner) onKey(s *promptScanner) {
	if len(s.open) == 1 {
		b.current = nil
		for i, name := range sectionNames {
			if s.key == name {
				b.current = &b.sections[i]
				*b.current = newSection(s.total())
			}
		}
	}
	switch s.key {
	case "content", "text", "type", cacheControl:
	default:
		b.add(s, s.key)
	}
}

// onEnter is called before an object or array is entered.
func (b *blockScanner) onEnter(s *promptScanner) {
	switch {
	case !s.keyed || s.key != cacheControl:
	case len(s.open) == 1:
		b.automatic = cacheLifetime
	default:
		b.lifetime = cacheLifetime
	}
}

// onValue is called after a string, a number or another word.
func (b *blockScanner) onValue(s *promptScanner, value string) {
	switch in := s.top().name; {
	case in == cacheControl && s.keyed && s.key == "ttl" && value == "1h":
		if len(s.open) == 2 {
			b.automatic = longCacheLifetime
		} else {
			b.lifetime = longCacheLifetime
		}
	case in == cacheControl, s.keyed && s.key == cacheControl, s.keyed && s.key == "type" && value == "text":
	default:
		b.add(s, value)
		if s.keyed && (len(s.open) == 1 || len(s.open) == 3 && s.key == "content" && s.open[1].name == "messages") {
			b.endBlock(s) // a system prompt or the content of a message that is a string
		}
	}
}

// onLeave is called after an object or array was left.
func (b *blockScanner) onLeave(s *promptScanner, array bool) {
	switch {
	case array:
	case len(s.open) == 2 && s.open[1].array && s.open[1].name != "messages",
		len(s.open) == 4 && s.open[1].name == "messages" && s.open[3].array && s.open[3].name == "content":
		b.endBlock(s)
	}
}

func (b *blockScanner) add(s *promptScanner, text string) {
	if b.current != nil {
		b.current.hash.WriteString(text)
		b.current.hash.WriteByte(0)
	}
}

// endBlock ends a block of the current section.
func (b *blockScanner) endBlock(s *promptScanner) {
	c := b.current
	if c == nil {
		return
	}
	c.tokens = s.total() - c.before
	if len(c.last) == lookback {
		c.last = append(c.last[:0], c.last[1:]...)
	}
	c.last = append(c.last, place{c.hash.Sum64(), c.tokens, b.lifetime})
	if b.lifetime > 0 {
		c.keep()
	}
	b.lifetime = 0
}

// keep keeps a breakpoint and the blocks before it.
func (c *section) keep() {
	if c.points++; c.points <= maxBreakpoints {
		c.places = append(c.places, c.last...)
	}
	c.last = c.last[:0]
}

// end returns the places of the whole prompt, in order, and the hash of its model, its tools and its
// system prompt.
func (b *blockScanner) end(model string) (places []place, instructions uint64) {
	if messages := &b.sections[2]; b.automatic > 0 && len(messages.last) > 0 {
		messages.last[len(messages.last)-1].lifetime = b.automatic
		messages.keep()
	}
	hash, before := maphash.String(seed, model), int64(0)
	for i := range b.sections {
		c := &b.sections[i]
		for _, p := range c.places {
			places = append(places, place{maphash.Comparable(seed, [2]uint64{hash, p.hash}), before + p.tokens, p.lifetime})
		}
		if i < len(b.sections)-1 {
			hash = maphash.Comparable(seed, [2]uint64{hash, c.hash.Sum64()})
			before += c.tokens
		}
	}
	return places, hash
}
