package algorithms

import (
	"math"
	"math/bits"
	"time"
)

// Never is the instant of an event that time alone does not bring about.
const Never = math.MaxInt64

// Latest is the last instant to which a quota can be paused: 142 years from the origin.
const Latest = 1 << 52

// A Moment is one instant on two clocks, in microseconds.
type Moment struct {
	// At is the time of a clock that never runs backwards, from any origin.
	At int64

	// Wall is Unix time, which may step. Only tiers whose windows follow the wall clock use it.
	Wall int64
}

// on returns the moment at which the first clock shows at.
func (m Moment) on(at int64) Moment { return Moment{at, m.Wall + at - m.At} }

// Later returns the moment at which the first clock shows at, or m if that has passed.
func (m Moment) Later(at int64) Moment { return m.on(max(m.At, at)) }

// Until returns the time from m to an instant, limited to the largest Duration.
func (m Moment) Until(at int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Microsecond)
	if at == Never || at-m.At > most {
		return 1<<63 - 1
	}
	return time.Duration(at-m.At) * time.Microsecond
}

// mulDiv returns a×b÷c and the remainder, for a, b ≥ 0 and c > 0. The quotient is Never if an
// int64 cannot hold it.
func mulDiv(a, b, c int64) (quotient, remainder int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return Never, 0
	}
	q, r := bits.Div64(hi, lo, uint64(c))
	if q > math.MaxInt64 {
		return Never, 0
	}
	return int64(q), int64(r)
}

func ceilMulDiv(a, b, c int64) int64 {
	q, r := mulDiv(a, b, c)
	if r > 0 {
		q++
	}
	return q
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// rounds returns how many times the limit fits into n before the last unit, and the rest of n.
func rounds(n, limit int64) (full, rest int64) {
	full = (n - 1) / limit
	return full, n - full*limit
}

// after returns the instant that many windows later, or Never if that is after Latest.
func after(at, windows, window int64) int64 {
	switch {
	case windows == 0 || window == 0:
		return at
	case at >= Latest || windows > (Latest-at)/window:
		return Never
	}
	return at + windows*window
}
