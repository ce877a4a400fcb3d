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

// A new quota knows what others have told of the server's clock, until that is set back.
func TestClockOfAServer(t *testing.T) {
	server, at := new(clock), time.Now()
	told := func(c *clock, now, wall int64, there, back time.Duration) time.Duration {
		at = at.Add(time.Second)
		b, _ := c.set(header{now: now, wall: at.Sub(beginning).Microseconds() + wall}, at.Add(-there), at.Add(back))
		return b.most - b.least
	}
	now := func() int64 { return at.Add(time.Second).Sub(beginning).Microseconds() }
	first := &clock{server: server}
	told(first, now(), 0, time.Millisecond, time.Millisecond)
	second := &clock{server: server}
	if width := told(second, now()-5e6, 0, time.Second, time.Second); width > 4*time.Millisecond {
		t.Errorf("a second quota's is known to %v", width)
	}
	if width := told(first, now(), -5000, 20*time.Millisecond, 20*time.Millisecond); width != 40*time.Millisecond {
		t.Errorf("set back, it is known to %v", width)
	}
	third := &clock{server: server}
	if width := told(third, now(), -5000, 20*time.Millisecond, 20*time.Millisecond); width != 40*time.Millisecond {
		t.Errorf("set back, a new quota's is known to %v", width)
	}
}
