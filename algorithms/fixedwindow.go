package algorithms

import (
	"math"
	"slices"
	"time"
)

// aligned divides wall time into windows that begin at phase after the Unix epoch or, for a calendar,
// into the periods of a zone. A window has a number: of two windows, the later one has the larger
// number. The number of a period is its end as Unix time.
//
// A wall clock that steps back does not reopen a window. But a landed unit counts for at most one
// window, by the clock that never steps. Then the windows are those of the wall clock again. If it
// steps back by more than a window, the date was wrong, see misdated.
type aligned struct {
	limit, phase     int64
	shortest, window int64 // the length of a window, and in a calendar a bound of the length of any
	wrong            int64 // a landing in a window that ends more than this after it is misdated
	period           Period
	zone             *time.Location // nil without a period
}

func newAligned(t Tier) aligned {
	if t.Period == NoPeriod {
		window := Micros(t.Window)
		return aligned{limit: t.Limit, phase: Micros(t.Phase), shortest: window, window: window, wrong: 2 * window}
	}
	zone, err := location(t.Zone)
	if err != nil {
		panic(err) // NewPlan has validated the tier
	}
	longest := Micros(t.Period.Longest())
	return aligned{limit: t.Limit, shortest: shortestDay, window: longest, wrong: longest, period: t.Period, zone: zone}
}

// index returns the number of the window that the wall clock shows, if there is no period.
func (a *aligned) index(m Moment) int64 { return floorDiv(m.Wall-a.phase, a.window) }

// number returns the number of the window or period that the wall clock shows.
func (a *aligned) number(m Moment) int64 {
	if a.zone != nil {
		return a.periodStart(m.Wall, 1)
	}
	return a.index(m)
}

// wallEnd returns the end of a window as Unix time.
func (a *aligned) wallEnd(number int64) int64 {
	if a.zone != nil {
		return number
	}
	return (number+1)*a.window + a.phase
}

// end returns the end of a window on the clock that never steps.
func (a *aligned) end(now Moment, number int64) int64 { return a.wallEnd(number) - now.Wall + now.At }

// opened returns when the window that the wall clock shows has opened.
func (a *aligned) opened(_ *state, now Moment) int64 {
	if a.zone != nil {
		return a.periodStart(now.Wall, 0) - now.Wall + now.At
	}
	return a.end(now, a.number(now)-1)
}

// misdated reports whether the date of the last landing was wrong. It was at last, in the window
// numbered landed, and the wall clock has since stepped back to before the window before that one.
// Its units then belong in the window that the clock now shows for last. Otherwise the units of all
// windows until the wrong date would count as those of one window. If nothing has landed yet, both are zero.
func (a *aligned) misdated(now Moment, landed, last int64) bool {
	return (landed != 0 || last != 0) && a.end(now, landed) > last+a.wrong
}

// ended reports whether the window numbered landed, of a landing at last, has ended.
func (a *aligned) ended(m Moment, landed, last int64) bool {
	return m.Wall >= a.wallEnd(landed) || m.At >= last+a.window
}

// closes returns the instant from which a landing at m, in the window with that number, no longer
// counts.
func (a *aligned) closes(m Moment, number int64) int64 {
	return min(a.end(m, number), m.At+a.window)
}

// sound reports whether a state may have the words of a window: its number, its counts and the
// instant of its last landing.
func (a *aligned) sound(words []int64) bool {
	if a.zone != nil {
		return stored(words...) && words[2] <= 100
	}
	return stored(words...) && words[0] <= mostStored/a.window
}

// recurs reports whether the words of a window are those of a window that much earlier: its number, its
// counts and the instant of the last landing.
func (a *aligned) recurs(words, before []int64, by int64) bool {
	last := len(words) - 1
	return a.zone == nil && by%a.window == 0 && words[0]-before[0] == by/a.window && words[last]-before[last] == by &&
		slices.Equal(words[1:last], before[1:last])
}

var fixedWindowCounter = counter{
	name:    "fixed_window",
	newRule: newFixedWindow,
	// A unit that leaves as a window opens counts until the end of the window in which it lands.
	rate: func(limit, window, _, guard float64) float64 {
		return limit / (window * (1 + math.Floor(guard/window)))
	},
	phase:   true,
	aligned: true,
	reopens: true,
}

// fixedWindow admits at most limit units in every window of the clock. Twice the limit can pass
// around a boundary, as it can at the provider: "100 a minute" is 100 at 12:00:59 and 100 more at
// 12:01:00. A request in flight counts in every window in which it may arrive.
//
// Source: the request weights of Binance, "00:01:23 counts to the 00:01:00 minute".
//
// Memory: three words, and four for a calendar.
type fixedWindow struct {
	site
	aligned
	size int // of the state in words
}

func newFixedWindow(t Tier, s site) rule {
	r := &fixedWindow{s, newAligned(t), 3}
	if r.zone != nil {
		r.size++
	}
	return r
}

// The words are the number of the window of the last landing, the units that landed in it, in a
// calendar also the percent of the limit that Crossings has reported, and the instant of that
// landing.
func (r *fixedWindow) words() (words, rings int) { return r.size, 0 }

func (r *fixedWindow) state(s *state) []int64 { return s.word[r.word : r.word+r.size] }

// landed returns the number of the window of the last landing, and the instant of that landing.
func (r *fixedWindow) landed(s *state) (number, last int64) {
	return s.word[r.word], s.word[r.word+r.size-1]
}

func (r *fixedWindow) earliest(s *state, now Moment, n int64) int64 {
	used, inFlight := r.used(s, now), s.inFlight(r.unit)
	if used+inFlight+n <= r.limit {
		return now.At
	}
	// A boundary clears what has landed, but not what is in flight across it. After the wall clock
	// was set back, a landing before the boundary may postpone it.
	next := r.fresh(s, now)
	number, last := r.landed(s)
	for i := range s.slots() {
		at, carried := s.landing(i, r.unit)
		if inFlight+n <= r.limit && at >= next {
			break
		}
		if carried > 0 {
			m := now.on(at)
			if r.ended(m, number, last) {
				number = r.number(m)
			}
			next, last = max(next, r.closes(m, number)), at
		}
		inFlight -= carried
	}
	if inFlight+n > r.limit {
		return Never // estimates
	}
	return next
}

func (r *fixedWindow) earliestTotal(s *state, now Moment, n int64) int64 {
	full, _ := rounds(n, r.limit)
	return after(r.earliest(s, now, min(n, r.limit)), max(0, full-1), r.shortest)
}

// open opens a new window if the last one has ended.
func (r *fixedWindow) open(s *state, m Moment) {
	if number, last := r.landed(s); r.ended(m, number, last) {
		w := r.state(s)
		clear(w)
		w[0], w[r.size-1] = r.number(m), m.At
	}
}

func (r *fixedWindow) land(s *state, at Moment, n int64) {
	r.open(s, at)
	w := r.state(s)
	w[1], w[r.size-1] = w[1]+n, at.At
}

func (r *fixedWindow) used(s *state, now Moment) int64 {
	if number, last := r.landed(s); r.ended(now, number, last) {
		return 0
	}
	return s.word[r.word+1]
}

func (r *fixedWindow) correct(s *state, now Moment) {
	if number, last := r.landed(s); r.misdated(now, number, last) {
		s.word[r.word] = r.number(now.on(last))
	}
}

func (r *fixedWindow) forget(s *state, now Moment, keep int64) {
	if r.used(s, now) > keep {
		s.word[r.word+1] = keep
	}
}

func (r *fixedWindow) refund(s *state, now Moment, from, n int64) {
	if number, last := r.landed(s); !r.ended(now, number, last) && r.number(now.on(from)) == number {
		s.word[r.word+1] -= min(n, s.word[r.word+1])
	}
}

func (r *fixedWindow) fresh(s *state, now Moment) int64 {
	if r.used(s, now) == 0 {
		return now.At
	}
	number, last := r.landed(s)
	return r.closes(now.on(last), number)
}

func (r *fixedWindow) sound(s *state) bool { return r.aligned.sound(r.state(s)) }

func (r *fixedWindow) recurs(s, o *state, by int64) bool {
	return r.aligned.recurs(r.state(s), r.state(o), by)
}
