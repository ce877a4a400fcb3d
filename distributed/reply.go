package distributed

import (
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// A header is the beginning of every reply, see main.lua. shut is one of the constants below.
type header struct {
	now, generation, ttl, epoch, until, shut, wall, written int64

	mixed bool  // releases with other plans call, too
	level uint8 // back-offs in a row
	saved int64 // when this call wrote the state; the next reply has it in written
}

// The kinds of what is in force until header.until.
const (
	isPause = iota
	isBan
	isProbe // the wait for the response to the probe that this call has reserved
)

const headerLen = 8

func parseHeader(reply []int64) header {
	return header{
		now: reply[0], generation: reply[1], ttl: reply[2], epoch: reply[3], until: reply[4], shut: reply[5] % 4, mixed: reply[5]/4%2 == 1, level: uint8(reply[5] / 8),
		wall: reply[6], written: reply[7], saved: reply[0],
	}
}

func (h header) left() time.Duration { return microseconds(max(0, h.until-h.now)) }

// setBack returns how far TIME was set back since the state began.
func (h header) setBack() int64 { return h.generation + h.now - h.wall }

func (h header) after(at int64) time.Duration {
	if at == never {
		return store.Forever
	}
	return algorithms.Moment{At: h.now}.Until(max(h.now, at))
}

// An answer is a reply that decides on requests.
type answer struct {
	header
	timing.Answer
	state int64 // identifies the state of its reservations
}

// admitted returns the decision on a request that has a reservation, for two numbers of the reply: what
// is how the quota reserved it, and at is the time. It sets the reservation.
func (a *answer) admitted(t *timing.Timing, what, at int64, cost []int64, reserved *store.Reservation) store.Decision {
	shorter := microseconds(max(0, lent-what)) // by which a returned reservation is valid
	if shorter > 0 {
		what = -2
	}
	*reserved = t.Reservation(&a.Answer, at, -1-what, shorter)
	reserved.Clock, reserved.Cost, reserved.State = a.setBack(), cost, a.state
	return store.Decision{
		Verdict: store.Admitted, Tier: -1, Wait: a.Wait(at), Epoch: a.epoch, Level: a.level, Flight: algorithms.Flight(at), At: at, Order: a.generation + at, Reservation: reserved,
		Probe: a.shut == isProbe, // a probe is the only reservation of its call
	}
}

// later returns the decision on a request that has no reservation: what is the tier that decided, from
// 1, and at is when it admits the request, or never.
func (a *answer) later(what, at int64) store.Decision {
	d := store.Decision{Tier: int(max(what, 0) - 1), Wait: store.Forever, Epoch: a.epoch, Level: a.level}
	if at != never {
		d.Wait = a.Wait(at)
	}
	return d
}

// closed returns the decision during a ban, if one is in force.
func (a *answer) closed() (store.Decision, bool) {
	return store.Decision{Verdict: store.Closed, Tier: -1, Wait: a.left(), Epoch: a.epoch}, a.shut == isBan && a.left() > 0
}

// eachOf expands runs of what, time and count into what and time of each request. The requests of a
// run are reserved one after the other at the same time, or refused alike. It returns false if the
// script can't have sent the runs for this number of requests and tiers.
func eachOf(runs []int64, most, tiers int) (decided []int64, ok bool) {
	for len(runs) > 0 {
		if len(runs) < 3 || runs[0] > int64(tiers) || runs[2] < 1 || runs[2] > int64(most-len(decided)/2) || runs[0] == 0 && len(runs) < 7 {
			return nil, false
		}
		what, at, count := runs[0], runs[1], runs[2]
		if what == 0 {
			decided, runs = appendEven(decided, at, count, runs[3:7]), runs[7:]
			continue
		}
		for range count {
			decided = append(decided, what, at)
			if what < -1 {
				what--
			}
		}
		runs = runs[3:]
	}
	return decided, true
}

// appendEven appends what and time of requests that are spaced evenly. Instants are in µs plus a
// fraction part/limit, rounded up. The first is at + part/limit, and the interval is
// step + rest/limit.
func appendEven(decided []int64, at, count int64, even []int64) []int64 {
	part, limit, step, rest := even[0], even[1], even[2], even[3]
	what, last := int64(-2), int64(never)
	for range count {
		t := at
		if part > 0 {
			t++
		}
		if what--; t != last {
			what, last = -2, t
		}
		decided = append(decided, what, t)
		at += step
		if part += rest; part >= limit {
			at, part = at+1, part-limit
		}
	}
	return decided
}

// Crossings are the percentages of calendar tiers that were reported to callers that were not
// admitted after all. The next caller receives them.
type crossings struct {
	mu         sync.Mutex // guards unreported
	unreported []algorithms.Crossing
}

func (c *crossings) add(crossed []algorithms.Crossing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unreported = append(c.unreported, crossed...)
}

// take returns the crossings and clears them.
func (c *crossings) take() []algorithms.Crossing {
	c.mu.Lock()
	defer c.mu.Unlock()
	unreported := c.unreported
	c.unreported = nil
	return unreported
}

// splitCrossed splits a reply into the decisions and the crossings of calendar tiers.
func splitCrossed(p *algorithms.Plan, own []int64) (decided []int64, crossed []algorithms.Crossing) {
	at := len(own)
	for i := len(p.Tiers()) - 1; i >= 0; i-- {
		if p.Tiers()[i].Algorithm != algorithms.Calendar {
			continue
		}
		if at -= 4; at < 0 { // the reply is not the script's
			return own, nil
		}
		if c := own[at:]; c[1] > 0 {
			crossed = append(crossed, algorithms.Crossing{Tier: i, From: int(c[0]), To: int(c[1]), Used: c[2], Until: time.UnixMicro(c[3])})
		}
	}
	return own[:at], crossed
}
