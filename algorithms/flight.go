package algorithms

// A Flight identifies the slot of a request. For a held request it is the latest instant at which the
// request lands, in units of the plan's resolution. For any other it is below Landed.
type Flight int64

// Landed is the Flight of a request that landed the instant it was admitted.
const Landed Flight = -1

// unheld turns the Flight of a held request into that of another request in the same slot, and back.
func (f Flight) unheld() Flight { return Landed - 1 - f }

// A slot is a range of a state's words: the instant at which its requests land, then for each unit
// how much they cost and how much of that is held. Requests that would land within one resolution
// of the plan share a slot and land with the last of them. A guard therefore has at most 66 slots
// at any rate. A guard is one resolution at least, because a new slot must not have the Flight of a
// slot that has landed.
type slot []int64

func (s slot) total(unit int) *int64 { return &s[1+2*unit] }
func (s slot) held(unit int) *int64  { return &s[2+2*unit] }

func (s *state) inFlight(unit int) int64 { return s.word[unit] }

// estimatesInFlight returns how many units are in flight without a slot, because they are
// estimates.
func (s *state) estimatesInFlight(unit int) int64 {
	if !s.plan.estimated[unit] {
		return 0
	}
	return s.landingFrom(unit, Never)
}

func (s *state) slots() int { return (len(s.word) - s.plan.base) / s.plan.stride() }

func (s *state) slot(i int) slot {
	start := s.plan.base + i*s.plan.stride()
	return s.word[start : start+s.plan.stride()]
}

func (s *state) lastSlot() slot {
	if len(s.word) == s.plan.base {
		return nil
	}
	return s.word[len(s.word)-s.plan.stride():]
}

// landsBy reports whether a request in flight has landed by an instant.
func (s *state) landsBy(at int64) bool {
	return len(s.word) > s.plan.base && s.word[s.plan.base] <= at
}

// landing returns the instant at which slot i lands, and how many of a unit it holds.
func (s *state) landing(i, unit int) (at, n int64) {
	in := s.slot(i)
	return in[0], *in.total(unit)
}

// add adds n units to a slot and to what is in flight.
func (s *state) add(to slot, unit int, n int64, held bool) {
	*to.total(unit) += n
	s.word[unit] += n
	if held {
		*to.held(unit) += n
	}
}

// addInFlight adds a cost to what is in flight. It lands no earlier than the requests before it.
func (s *state) addInFlight(at, guard int64, cost []int64, held bool) Flight {
	lands := at + guard
	last := s.lastSlot()
	if last != nil && last[0] > lands { // the last slot has a longer guard
		lands = last[0]
	}
	f := s.plan.flight(lands)
	if last == nil || s.plan.flight(last[0]) != f {
		for range s.plan.stride() {
			s.word = append(s.word, 0)
		}
		last = s.lastSlot()
	}
	last[0] = lands
	for u, n := range cost {
		if !held || !s.plan.estimated[u] {
			s.add(last, u, n, held)
		}
	}
	if !held {
		return f.unheld()
	}
	return f
}

// find returns the slot of a flight, or nil if the flight has landed.
func (s *state) find(f Flight) slot {
	stride := s.plan.stride()
	for i := len(s.word) - stride; i >= s.plan.base; i -= stride {
		if at := s.plan.flight(s.word[i]); at == f {
			return s.word[i : i+stride]
		} else if at < f {
			return nil
		}
	}
	return nil
}

// removeInFlight removes a cost from what is in flight, and reports whether it was still there.
func (s *state) removeInFlight(f Flight, cost []int64) bool {
	held := f > Landed
	if !held {
		f = f.unheld()
	}
	in := s.find(f)
	return in != nil && s.remove(in, cost, held)
}

// remove removes a cost from a slot, and reports whether the slot contained it.
func (s *state) remove(in slot, cost []int64, held bool) bool {
	for u, n := range cost {
		if held && !s.plan.estimated[u] && *in.held(u) < n || !held && *in.total(u)-*in.held(u) < n {
			return false // the slot does not contain it
		}
	}
	for u, n := range cost {
		if !held || !s.plan.estimated[u] {
			s.add(in, u, -n, held)
		}
	}
	return true
}

// addEstimates adds the estimated part of a held request to what is in flight, or removes it if
// sign is -1, as far as there are estimates. That part has no slot, because its landing is not bounded by the guard.
func (s *state) addEstimates(cost []int64, sign int64) {
	for u, estimated := range s.plan.estimated {
		if estimated {
			s.word[u] += max(sign*cost[u], -s.estimatesInFlight(u))
		}
	}
}

// landHeld moves all held requests to a slot that lands at an instant, and settles all estimates at
// zero.
func (s *state) landHeld(at int64) {
	stride, base := s.plan.stride(), s.plan.base
	if s.slots() > 0 {
		s.word = append(s.word, make([]int64, stride)...)
		copy(s.word[base+stride:], s.word[base:])
		answered := s.slot(0)
		clear(answered)
		answered[0] = at
		for i := 1; i < s.slots(); i++ {
			in := s.slot(i)
			for u := range s.plan.units {
				n := in.held(u)
				*answered.total(u) += *n
				*in.total(u) -= *n
				*n = 0
			}
		}
	}
	for u, estimated := range s.plan.estimated {
		if estimated {
			s.word[u] -= s.estimatesInFlight(u)
		}
	}
}

// landingFrom returns how many units in flight may land at an instant or later.
func (s *state) landingFrom(unit int, from int64) int64 {
	n := s.inFlight(unit)
	for i := range s.slots() {
		if at, carried := s.landing(i, unit); at < from {
			n -= carried
		}
	}
	return n
}

// nthLanding returns the instant at which the n-th oldest unit in flight lands.
func (s *state) nthLanding(unit int, n int64) int64 {
	for i := range s.slots() {
		at, carried := s.landing(i, unit)
		if n -= carried; n <= 0 {
			return at
		}
	}
	return Never
}

// slotsSound reports whether the slots land in order and add up to what is in flight.
func (s *state) slotsSound() bool {
	inFlight := make([]int64, len(s.plan.units))
	var before int64
	for i := range s.slots() {
		in := s.slot(i)
		if !stored(in...) || in[0] < before {
			return false
		}
		before = in[0]
		for u := range inFlight {
			if inFlight[u] += *in.total(u); *in.held(u) > *in.total(u) || !stored(inFlight[u]) {
				return false
			}
		}
	}
	for u, n := range inFlight {
		if s.word[u] != n && !(s.plan.estimated[u] && s.word[u] > n && stored(s.word[u])) {
			return false
		}
	}
	return true
}
