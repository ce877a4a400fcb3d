package algorithms

import "time"

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
