package algorithms

import "slices"

// A state is what a ledger keeps of the past, and all that its encoding contains.
//
// It is a list of words: for each unit how much is in flight, then the words of each tier, then the
// slots of the requests in flight, the oldest first. A tier that keeps stamps has a ring beside the
// list.
type state struct {
	plan     *Plan
	word     []int64
	rings    *[][]int64 // nil if no tier needs one
	readings *[]reading // of each tier; nil before the first report
	last     int64      // the latest instant of a call
}

func newState(p *Plan) state {
	s := state{plan: p}
	oneSlot := p.stride()
	if p.guard == 0 {
		oneSlot = 0
	}
	s.word = make([]int64, p.base, p.base+oneSlot)
	if p.rings > 0 {
		rings := make([][]int64, p.rings)
		s.rings = &rings
	}
	return s
}

// clone returns a copy. It shares only the plan with s.
func (s *state) clone() state {
	c := *s
	c.word = slices.Clone(s.word)
	if s.rings != nil {
		rings := make([][]int64, len(*s.rings))
		for i, r := range *s.rings {
			rings[i] = slices.Clone(r)
		}
		c.rings = &rings
	}
	if s.readings != nil {
		readings := slices.Clone(*s.readings)
		c.readings = &readings
	}
	return c
}

func (s *state) ring(at site) *[]int64 { return &(*s.rings)[at.ring] }

func (s *state) words(r rule) []int64 {
	start := r.place().word
	words, _ := r.words()
	return s.word[start : start+words]
}
