package timing

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The bounds of the clock hold however long replies take. They are as narrow as the quickest recent
// messages in each direction allow.
func TestClock(t *testing.T) {
	const rate = 1 + 200e-6
	for range 100 {
		var c Clock
		start := time.Now()
		serverMicros := func(at time.Time) int64 { return int64(float64(at.Sub(start).Microseconds()) * rate) }
		at, set := start, int64(0)
		for i := range 2000 {
			sent := at.Add(rand.N(20 * time.Millisecond))
			read := sent.Add(time.Millisecond + time.Duration(rand.ExpFloat64()*float64(5*time.Millisecond)))
			got := read.Add(time.Millisecond + time.Duration(rand.ExpFloat64()*float64(5*time.Millisecond)))
			at = got
			// The server's clock is set back so far that the quota's clock stands still for some
			// ms.
			if i == 1500 {
				set = 4000
			}
			now := serverMicros(read) - set
			known, _ := c.Update(Reading{Now: now, Wall: now - 100*set, Sent: sent, Got: got})
			from, to := known.When(now, got)
			if from.After(read) || to.Before(read.Add(-time.Microsecond)) {
				t.Fatalf("reply %d: got %v to %v after the call, want bounds around %v", i, from.Sub(sent), to.Sub(sent), read.Sub(sent))
			}
			if width := to.Sub(from); i%1500 > 400 && width > 5*time.Millisecond {
				t.Fatalf("reply %d: got bounds %v apart, want 5ms at most", i, width)
			}
		}
	}
}

// A new quota starts with what other quotas have learned of the server's clock, until the clock is
// set back.
func TestClockOfAServer(t *testing.T) {
	server, at := new(Clock), time.Now()
	learn := func(c *Clock, now, wall int64, there, back time.Duration) time.Duration {
		at = at.Add(time.Second)
		b, _ := c.Update(Reading{Now: now, Wall: Monotonic(at) + wall, Sent: at.Add(-there), Got: at.Add(back)})
		return b.most - b.least
	}
	now := func() int64 { return Monotonic(at.Add(time.Second)) }
	first := &Clock{Server: server}
	learn(first, now(), 0, time.Millisecond, time.Millisecond)
	second := &Clock{Server: server}
	if width := learn(second, now()-5e6, 0, time.Second, time.Second); width > 4*time.Millisecond {
		t.Errorf("second quota: got bounds %v apart, want 4ms at most", width)
	}
	if width := learn(first, now(), -5000, 20*time.Millisecond, 20*time.Millisecond); width != 40*time.Millisecond {
		t.Errorf("clock set back: got bounds %v apart, want 40ms", width)
	}
	third := &Clock{Server: server}
	if width := learn(third, now(), -5000, 20*time.Millisecond, 20*time.Millisecond); width != 40*time.Millisecond {
		t.Errorf("clock set back, new quota: got bounds %v apart, want 40ms", width)
	}
}
