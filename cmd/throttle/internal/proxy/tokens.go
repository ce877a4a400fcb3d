package proxy

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"strings"
)

// A tokens finds the tokens of all clients in a text, in one pass however many there are. It hashes each
// part of the text that is as long as the shortest token (Karp and Rabin, Efficient randomized
// pattern-matching algorithms, 1987). The base of the hash is random, so the time that a text takes
// does not tell how much of a guess is right.
type tokens struct {
	width     int    // bytes that are hashed
	base, out uint64 // the base, and its power by which a byte leaves the hash
	filter    [1 << filterBits / 64]uint64
	begin     map[uint64][]token // by the hash of the first bytes
}

// filterBits is the number of bits of a hash that the filter has an entry for.
const filterBits = 12

// A token is known by its hash alone.
type token struct {
	length int
	sum    [sha256.Size]byte
}

// newTokens returns nil if there are no clients.
func newTokens(clients []Client) *tokens {
	s := &tokens{begin: make(map[uint64][]token), out: 1}
	for _, c := range clients {
		if n := len(c.Token); n > 0 && (s.width == 0 || n < s.width) {
			s.width = n
		}
	}
	if s.width == 0 {
		return nil
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	s.base = binary.NativeEndian.Uint64(random[:])<<1 | 1
	for range s.width - 1 {
		s.out *= s.base
	}
	for _, c := range clients {
		if c.Token == "" {
			continue
		}
		h := s.hash(c.Token)
		s.filter[h>>(64-filterBits)/64] |= 1 << (h >> (64 - filterBits) % 64)
		s.begin[h] = append(s.begin[h], token{len(c.Token), sha256.Sum256([]byte(c.Token))})
	}
	return s
}

// hash returns the hash of the first bytes of a text.
func (s *tokens) hash(text string) (h uint64) {
	for i := range s.width {
		h = h*s.base + uint64(text[i])
	}
	return h
}

// in reports whether a text has a token.
func (s *tokens) in(text string) bool {
	if len(text) < s.width {
		return false
	}
	h := s.hash(text)
	for i := 0; ; i++ {
		if s.filter[h>>(64-filterBits)/64]&(1<<(h>>(64-filterBits)%64)) != 0 && s.at(h, text[i:]) {
			return true
		}
		if i+s.width == len(text) {
			return false
		}
		h = (h-uint64(text[i])*s.out)*s.base + uint64(text[i+s.width])
	}
}

// at reports whether a text, whose first bytes have the hash h, begins with a token.
func (s *tokens) at(h uint64, text string) bool {
	for _, t := range s.begin[h] {
		if len(text) >= t.length && sha256.Sum256([]byte(text[:t.length])) == t.sum {
			return true
		}
	}
	return false
}

// inEncoded reports whether a text has a token, also if it is decoded up to three times, as the part of
// an address.
func (s *tokens) inEncoded(text string) bool {
	for range 4 {
		if s.in(text) {
			return true
		}
		again := text
		if strings.Contains(text, "%") {
			again = unescape(text)
		}
		if again == text {
			return false
		}
		text = again
	}
	return false
}

// removeFrom removes every header that has a token.
func (s *tokens) removeFrom(h http.Header) {
	for name, values := range h {
		for _, value := range values {
			if s.inEncoded(value) || s.in(basic(value)) {
				delete(h, name)
				break
			}
		}
	}
}
