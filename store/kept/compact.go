package kept

import (
	"encoding/binary"

	"github.com/apithrottle/throttle/algorithms"
)

// compactible begins the encoding of a ledger whose words compact and expand know. Others stay as they are.
const compactible = -2

// compact shortens the encoding of a ledger. There, each word is the difference from the last but one. Most words are
// those of requests in flight, and the difference from the word with the same meaning takes a quarter of that.
func compact(p *algorithms.Plan, data []byte) []byte { return redo(data, 2, slotOf(p)) }

// expand is the reverse of compact, and returns nil for data that cannot be expanded.
func expand(p *algorithms.Plan, data []byte) []byte { return redo(data, slotOf(p), 2) }

// slotOf returns how many words a ledger has for the requests that land together.
func slotOf(p *algorithms.Plan) int { return 1 + 2*len(p.Units()) }

// redo encodes words that are differences from the word some places before as those from other places.
func redo(data []byte, from, to int) []byte {
	r := reader{data: data}
	form := r.number()
	if form != compactible {
		return data
	}
	b := binary.AppendVarint(binary.AppendVarint(make([]byte, 0, len(data)), form), r.number())
	n, size := binary.Uvarint(r.data)
	if size <= 0 || n > uint64(len(r.data)-size) {
		return nil
	}
	b, r.data = binary.AppendUvarint(b, n), r.data[size:]
	words := make([]int64, n)
	for i := range words {
		words[i] = r.number() + before(words, i, from)
		b = binary.AppendVarint(b, words[i]-before(words, i, to))
	}
	if r.bad {
		return nil
	}
	return append(b, r.data...)
}

// before returns the word some places before another, or zero.
func before(words []int64, i, places int) int64 {
	if i < places {
		return 0
	}
	return words[i-places]
}
