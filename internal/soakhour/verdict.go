package main

import (
	"fmt"
	"slices"
	"time"
)

const (
	leastUse   = 0.85 // of the fullest window, outside of outages
	leastQuiet = 0.9  // at the end
	mostGrowth = 1.3  // of the memory and the goroutines of a worker
	fewMore    = 20   // goroutines more are no growth
)

// A watch prints a line each minute, and judges in the end.
type watch struct {
	fleet         *fleet
	stand         *provider
	breaker       *breaker
	length, quiet time.Duration

	ending tally // when the last part of the quiet time began
	end    tally
}

// run samples until the end. In a run of ten minutes or more, no fault has an effect any more in the last
// quarter of the quiet time.
func (w *watch) run() {
	last := w.stand.snapshot()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 1; time.Since(started) < w.length; n++ {
		<-tick.C
		w.stand.sample()
		if w.ending.seconds == 0 && time.Since(started) >= w.length-w.quiet/4 {
			w.ending = w.stand.snapshot()
		}
		if n%60 == 0 {
			now := w.stand.snapshot()
			w.line(now, last)
			last = now
		} else if n%10 == 0 {
			w.fleet.measure()
		}
	}
	w.end = w.stand.snapshot()
}

func (w *watch) line(now, last tally) {
	p50, p99 := w.fleet.waits()
	_, faults := w.breaker.counts()
	fmt.Printf("%s sent %d, %.1f/s; used %.3f, %d s of outages; refused: ordered %d, explained %v, late %d, unexplained %d; waits p50 %v p99 %v; MB/goroutines%s; faults %d\n",
		stamp(time.Now()), now.sent, float64(now.accepted-last.accepted)/float64(now.seconds-last.seconds), use(now, last), now.outages-last.outages,
		now.ordered, now.explained, now.late, len(now.unexplained), p50, p99, w.fleet.measure(), faults)
}

// use returns the mean use of the fullest window between two tallies, outside of outages.
func use(now, last tally) float64 {
	if seconds := now.seconds - now.outages - last.seconds + last.outages; seconds > 0 {
		return (now.used - last.used) / float64(seconds)
	}
	return 1
}

// verdict prints the figures of the whole run, and returns what does not hold.
func (w *watch) verdict() (failures []string) {
	fail := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	e := w.end
	faults, total := w.breaker.counts()
	c := &w.fleet.counts
	fmt.Printf("sent %d, accepted %d, %.1f/s; %d faults: %s\n", e.sent, e.accepted, float64(e.accepted)/float64(e.seconds), total, faults)
	fmt.Printf("refused: ordered %d, explained %v, unexplained %d; %d requests arrived later than the guard\n", e.ordered, e.explained, len(e.unexplained), e.late)
	fmt.Printf("canceled %d, panics %d, losses reported %d\n", c.canceled, c.panics, c.lost)
	fmt.Printf("used %.3f outside of outages, which took %d s of %d; seconds in which each window was the fullest: %v\n", use(e, tally{}), e.outages, e.seconds, e.usedBy)

	for _, text := range e.unexplained {
		fail("refused without a cause: %s", text)
	}
	if got := use(e, tally{}); got < leastUse {
		fail("used %.3f of the limits outside of outages, want %.2f", got, leastUse)
	}
	for i := range lasting {
		at := w.fleet.places[i]
		w.growth(fail, fmt.Sprintf("worker %d: MB of memory", i), at.sizes, 0)
		w.growth(fail, fmt.Sprintf("worker %d: goroutines", i), at.goroutines, fewMore)
	}
	for text, n := range w.fleet.unexpected() {
		fail("unexpected error, %d times: %s", n, text)
	}
	quiet := use(e, w.ending)
	refused := len(e.unexplained) - len(w.ending.unexplained)
	for why, n := range e.explained {
		refused += n - w.ending.explained[why]
	}
	fmt.Printf("quiet end of %d s: used %.3f, %.1f/s, refused %d\n", e.seconds-w.ending.seconds, quiet,
		float64(e.accepted-w.ending.accepted)/float64(e.seconds-w.ending.seconds), refused)
	if quiet < leastQuiet {
		fail("used %.3f of the limits in the quiet end, want %.2f", quiet, leastQuiet)
	}
	// In a short run the longer windows still have what was lost.
	if refused > 0 && w.quiet*3/4 > windows[3].span {
		fail("refused %d in the quiet end, want 0", refused)
	}
	return failures
}

// growth compares the samples of the first quarter, without the start, with the last sixth: the minutes
// 5 to 15 of an hour with the last ten.
func (w *watch) growth(fail func(string, ...any), what string, samples []float64, more float64) {
	n := len(samples)
	if n < 12 {
		return
	}
	early, late := median(samples[n/12:n/4]), median(samples[n-n/6:])
	fmt.Printf("%s: %.1f early, %.1f late\n", what, early, late)
	if late > early*mostGrowth+more {
		fail("%s grew from %.1f to %.1f", what, early, late)
	}
}

func median(samples []float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[len(sorted)/2]
}
