package prompt

import (
	"hash/maphash"
	"time"
)

const (
	cacheLifetime     = 5 * time.Minute
	longCacheLifetime = time.Hour // with "ttl": "1h"
	lookback          = 20        // blocks before a breakpoint in which the API looks for an earlier one
	maxBreakpoints    = 8         // that are kept; the API accepts 4
)

// A blockScanner finds the places of an Anthropic prompt, as a scanner reads it. Whether a text
// is a string or a list of one block, and what cache_control is at a block, makes no difference for
// the hashes. A nil blockScanner finds nothing.
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
	last   []Place // the blocks since the last breakpoint, at most lookback
	places []Place // the breakpoints, and the blocks before each
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
func (b *blockScanner) onKey(s *scanner) {
	if b == nil {
		return
	}
	if len(s.open) == 1 {
		b.current = nil
		for i, name := range sectionNames {
			if s.key == name {
				b.current = &b.sections[i]
				*b.current = newSection(s.Tokens)
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
func (b *blockScanner) onEnter(s *scanner) {
	switch {
	case b == nil, !s.keyed, s.key != cacheControl:
	case len(s.open) == 1:
		b.automatic = cacheLifetime
	default:
		b.lifetime = cacheLifetime
	}
}

// onValue is called after a string, a number or another word.
func (b *blockScanner) onValue(s *scanner, value string) {
	switch in := s.top().name; {
	case b == nil:
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
func (b *blockScanner) onLeave(s *scanner, array bool) {
	switch {
	case b == nil, array:
	case len(s.open) == 2 && s.open[1].array && s.open[1].name != "messages",
		len(s.open) == 4 && s.open[1].name == "messages" && s.open[3].array && s.open[3].name == "content":
		b.endBlock(s)
	}
}

func (b *blockScanner) add(s *scanner, text string) {
	if b.current != nil {
		b.current.hash.WriteString(text)
		b.current.hash.WriteByte(0)
	}
}

// endBlock ends a block of the current section.
func (b *blockScanner) endBlock(s *scanner) {
	c := b.current
	if c == nil {
		return
	}
	c.tokens = s.Tokens - c.before
	if len(c.last) == lookback {
		c.last = append(c.last[:0], c.last[1:]...)
	}
	c.last = append(c.last, Place{c.hash.Sum64(), c.tokens, b.lifetime})
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
func (b *blockScanner) end(model string) (places []Place, instructions uint64) {
	if messages := &b.sections[2]; b.automatic > 0 && len(messages.last) > 0 {
		messages.last[len(messages.last)-1].lifetime = b.automatic
		messages.keep()
	}
	hash, before := maphash.String(seed, model), int64(0)
	for i := range b.sections {
		c := &b.sections[i]
		for _, p := range c.places {
			places = append(places, Place{maphash.Comparable(seed, [2]uint64{hash, p.hash}), before + p.Tokens, p.lifetime})
		}
		if i < len(b.sections)-1 {
			hash = maphash.Comparable(seed, [2]uint64{hash, c.hash.Sum64()})
			before += c.tokens
		}
	}
	return places, hash
}
