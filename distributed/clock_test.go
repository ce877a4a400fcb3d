package distributed

import (
	"math/rand/v2"
	"testing"
	"time"
)

// However long replies take, the bounds hold, and they are no wider than the quickest ways
// there and back of late allow.
func TestClock(t *testing.T) {
	const rate = 1 + 200e-6
	for range 100 {
		var c clock
		start := time.Now()
		shows := func(at time.Time) int64 { return int64(float64(at.Sub(start).Microseconds()) * rate) }
		at, set := start, int64(0)
		for i := range 2000 {
			sent := at.Add(rand.N(20 * time.Millisecond))
			read := sent.Add(time.Millisecond + time.Duration(rand.ExpFloat64()*float64(5*time.Millisecond)))
			got := read.Add(time.Millisecond + time.Duration(rand.ExpFloat64()*float64(5*time.Millisecond)))
			at = got
			if i == 1500 { // the server's clock is set back by so much that the quota's stands still for some ms
				set = 4000
			}
			now := shows(read) - set
			known, _ := c.set(header{now: now, wall: now - 100*set}, sent, got)
			from, to := known.when(now, got)
			if from.After(read) || to.Before(read.Add(-time.Microsecond)) {
				t.Fatalf("reply %d: the instant is %v after the call, not %v to %v", i, read.Sub(sent), from.Sub(sent), to.Sub(sent))
			}
			if width := to.Sub(from); i%1500 > 400 && width > 5*time.Millisecond {
				t.Fatalf("reply %d: known to %v", i, width)
			}
		}
	}
}
