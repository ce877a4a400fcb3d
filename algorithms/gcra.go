package algorithms

import "math/bits"

var gcraCounter = counter{
	name:    "gcra",
	newRule: newBucketRule,
	rate:    bucketRate,
	burst:   true,
	steady:  true,
}

// bucketRate returns the rate of a bucket. A unit of the burst is in flight for the guard and then
// takes window/limit to drain, one after the other.
func bucketRate(limit, window, burst, guard float64) float64 {
	return min(limit/window, burst/(guard+window/limit))
}

// bucket is the arithmetic of the token bucket, of the leaky bucket as a meter and of the generic
// cell rate algorithm. It keeps the state of the last: the theoretical arrival time, which is the
// instant at which the bucket is unused again. It admits n units while that instant is ahead by at
// most the time in which the rest of the bucket drains. So at most burst + t·limit/window units
// pass in every interval of length t.
//
// The instant is exact, in whole microseconds and a remainder in 1/limit of one: 3 units a second
// stay 3 units a second forever.
//
// Source: ITU-T I.371 (2004), annex A, which also shows that the virtual scheduling form and the
// continuous-state leaky bucket form are equivalent.
//
// Memory: two words.
type bucket struct {
	site
	limit, window, burst int64
	step, rest           int64 // the drain time of one unit, in microseconds and 1/limit of one
}

// newBucketRule returns the rule of a bucket, whose rate may be learned.
func newBucketRule(t Tier, s site) rule {
	if t.Learns() {
		return newLearned(t, s)
	}
	return newBucket(t, s)
}

func newBucket(t Tier, s site) *bucket {
	r := &bucket{site: s, limit: t.Limit, window: Micros(t.Window), burst: t.Burst}
	r.step, r.rest = r.window/r.limit, r.window%r.limit
	return r
}

// A tat is a theoretical arrival time: at + part/limit microseconds.
type tat struct{ at, part int64 }

func (*bucket) words() (words, rings int) { return 2, 0 }

func (r *bucket) tat(s *state) tat { return tat{s.word[r.word], s.word[r.word+1]} }

// add returns the arrival time after n more units at an instant.
func (r *bucket) add(t tat, at, n int64) tat {
	if t.at < at {
		t = tat{at, 0}
	}
	step, rest := r.step, r.rest
	if n != 1 {
		step, rest = mulDiv(n, r.window, r.limit)
	}
	t.at += min(step, mostStored)
	if t.part += rest; t.part >= r.limit {
		t.part -= r.limit
		t.at++
	}
	t.at = min(t.at, at+Latest) // a wait is no longer than a pause
	return t
}

// admits returns the first instant from now on at which t is ahead by at most the time in which
// free units drain.
func (r *bucket) admits(now int64, t tat, free int64) int64 {
	if t.at < now || t.at == now && t.part == 0 {
		return now
	}
	// (t.at − now) + t.part/limit ≤ free × window/limit, without the division
	missHi, missLo := bits.Mul64(uint64(t.at-now), uint64(r.limit))
	missLo, carry := bits.Add64(missLo, uint64(t.part), 0)
	freeHi, freeLo := bits.Mul64(uint64(free), uint64(r.window))
	if _, borrow := bits.Sub64(freeLo, missLo, 0); freeHi > missHi+carry || freeHi == missHi+carry && borrow == 0 {
		return now
	}
	step, rest := mulDiv(free, r.window, r.limit)
	at := t.at - step
	if t.part > rest {
		at++
	}
	return max(now, at)
}

func (r *bucket) earliest(s *state, now Moment, n int64) int64 {
	t, free := r.tat(s), r.burst-s.inFlight(r.unit)-n
	if free >= 0 {
		if at := r.admits(now.At, t, free); at == now.At {
			return at
		}
	}
	// What is in flight begins to drain only when it lands.
	from := now.At
	for i := range s.slots() {
		lands, carried := s.landing(i, r.unit)
		if free >= 0 {
			if at := r.admits(from, t, free); at <= lands {
				return at
			}
		}
		t, free, from = r.add(t, lands, carried), free+carried, lands
	}
	if free < 0 {
		return Never // estimates
	}
	return r.admits(from, t, free)
}

// earliestTotal is exact except for what is in flight, which counts as landed.
func (r *bucket) earliestTotal(s *state, now Moment, n int64) int64 {
	t := r.tat(s)
	if t.at < now.At {
		t = tat{now.At, 0}
	}
	if n += s.inFlight(r.unit); n <= r.burst {
		return r.admits(now.At, t, r.burst-n)
	}
	step, rest := mulDiv(n-r.burst, r.window, r.limit)
	if step >= Latest-t.at {
		return Never
	}
	if t.at += step; t.part+rest > 0 {
		t.at += (t.part + rest + r.limit - 1) / r.limit
	}
	return t.at
}

func (r *bucket) land(s *state, at Moment, n int64) {
	t := r.add(r.tat(s), at.At, n)
	s.word[r.word], s.word[r.word+1] = t.at, t.part
}

func (r *bucket) used(s *state, now Moment) int64 {
	t := r.tat(s)
	if t.at < now.At {
		return 0
	}
	units, rest := mulDiv(t.at-now.At, r.limit, r.window)
	if rest+t.part > 0 {
		units += (rest + t.part + r.window - 1) / r.window
	}
	return units
}

func (r *bucket) forget(s *state, now Moment, keep int64) {
	if r.used(s, now) > keep {
		t := r.add(tat{}, now.At, keep)
		s.word[r.word], s.word[r.word+1] = t.at, t.part
	}
}

// refund takes back the time in which the units surely have not drained: without them, the bucket may
// have been empty ever since they landed.
func (r *bucket) refund(s *state, now Moment, from, n int64) {
	step, _ := mulDiv(n, r.window, r.limit)
	t := &s.word[r.word]
	*t -= max(0, min(step-(now.At-from), *t-now.At))
}

func (r *bucket) fresh(s *state, now Moment) int64 {
	t := r.tat(s)
	if t.part > 0 {
		t.at++
	}
	return max(now.At, t.at)
}

func (r *bucket) sound(s *state) bool {
	t := r.tat(s)
	return stored(t.at, t.part) && t.part < r.limit
}

func (r *bucket) recurs(s, o *state, by int64) bool {
	t, before := r.tat(s), r.tat(o)
	return t.at-before.at == by && t.part == before.part
}
