package kept

import (
	"encoding/binary"
	"slices"
)

// A sharer is a process that has lately reserved times to come. Windows open for many requests at one instant, which the
// processes share equally, so that a near process does not take all of it before the others ask.
type sharer struct {
	id int64
	// seen is when the process reserved last.
	seen int64
	// took is what it has reserved at the instant that is shared, in the tier that decides.
	took int64
}

// shareMemory is for how long a process is a sharer, beyond the time that it waits, in µs.
const shareMemory = 1_000_000

func sharerID(l *lease) int64 { return l.id & (1<<20 - 1) }

// sharer returns the sharer of a lease, or nil.
func (s *state) sharer(l *lease) *sharer {
	if i := slices.IndexFunc(s.sharers, func(o sharer) bool { return o.id == sharerID(l) }); i >= 0 {
		return &s.sharers[i]
	}
	return nil
}

// review begins to share an instant, if it is a later one, and forgets those who have reserved no time since the last
// one.
func (t *txn) review(at int64) {
	if at <= t.shared {
		return
	}
	before := min(t.shared, t.now.At) - shareMemory
	t.sharers = slices.DeleteFunc(t.sharers, func(s sharer) bool { return s.seen < before-(at-t.shared) })
	for i := range t.sharers {
		t.sharers[i].took = 0
	}
	t.shared = at
}

// took notes that the process of the part has reserved an amount for an instant.
func (p *part) took(at, amount int64) {
	p.review(at)
	s := p.sharer(p.lease)
	if s == nil {
		p.sharers = append(p.sharers, sharer{id: sharerID(p.lease)})
		s = &p.sharers[len(p.sharers)-1]
	}
	if s.seen = p.now.At; at == p.shared {
		s.took += amount
	}
}

func (s *state) appendSharers(b []byte) []byte {
	b = binary.AppendVarint(binary.AppendVarint(b, s.shared-s.last), int64(len(s.sharers)))
	for _, o := range s.sharers {
		for _, n := range []int64{o.id, s.last - o.seen, o.took} {
			b = binary.AppendVarint(b, n)
		}
	}
	return b
}

func (s *state) readSharers(r *reader) {
	s.shared = s.last + r.number()
	for range r.count() {
		s.sharers = append(s.sharers, sharer{r.number(), s.last - r.number(), r.number()})
	}
}
