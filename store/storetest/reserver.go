package storetest

import (
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// waiting returns the request of a caller that accepts any wait.
func waiting(r store.Request) store.Request {
	if r.WaitSpec == nil {
		r.WaitSpec = &store.WaitSpec{MaxWait: store.Forever}
	}
	return r
}

// A reserver is a quota that reserves, and the check that it is part of.
type reserver struct {
	*check
	store.Reserver
}

// reserve reserves times for some requests and waits for the decisions, of which there must be at
// least one.
func (r reserver) reserve(behind *store.Reservation, requests ...store.Request) []store.Decision {
	r.Helper()
	type answer struct {
		got []store.Decision
		err error
	}
	answers := make(chan answer, 2)
	called := time.Now()
	r.Reserve(behind, requests, func(got []store.Decision, err error) { answers <- answer{slices.Clone(got), err} })
	if took := time.Since(called); !r.RealTime && took > 0 {
		r.Errorf("Reserve blocked for %v", took)
	}
	select {
	case a := <-answers:
		if a.err != nil {
			r.Fatalf("Reserve: %v", a.err)
		}
		if len(a.got) == 0 || len(a.got) > len(requests) {
			r.Fatalf("Reserve of %d requests returned %d decisions", len(requests), len(a.got))
		}
		return a.got
	case <-time.After(timeout):
		r.Fatalf("Reserve returned nothing within %v", timeout)
		return nil
	}
}

// checkReservation checks the decision on a request to a Reserver.
func (r reserver) checkReservation(d store.Decision, request store.Request) {
	r.Helper()
	if d.Verdict != store.Admitted {
		return
	}
	a := d.Reservation
	if a == nil || a.End.Before(a.Start) || a.Again.After(a.End) || !slices.Equal(a.Cost, request.Cost) {
		r.Errorf("%+v with the reservation %+v of cost %v", d, a, request.Cost)
	}
}

// reserveAll asks for n requests of one unit, each time behind the last reservation, until all are
// reserved.
func (r reserver) reserveAll(n int) (all []store.Decision) {
	r.Helper()
	var behind *store.Reservation
	for giveUp := time.Now().Add(time.Minute); len(all) < n; {
		requests := slices.Repeat([]store.Request{waiting(held(1))}, n-len(all))
		wait := time.Duration(0)
		for _, d := range r.reserve(behind, requests...) {
			r.checkReservation(d, requests[0])
			if d.Verdict == store.Admitted && wait == 0 {
				all, behind = append(all, d), d.Reservation
			} else if wait == 0 {
				wait = max(d.Wait, time.Millisecond)
			} else if d.Verdict == store.Admitted {
				r.Fatalf("%+v is reserved behind a request that is not", d)
			}
		}
		if time.Now().After(giveUp) {
			r.Fatalf("%d of %d requests are reserved after a minute", len(all), n)
		}
		time.Sleep(wait)
	}
	return all
}

// checkOrder checks that reserved times are in order and keep a limit per window.
func (r reserver) checkOrder(all []store.Decision, limit int) {
	r.Helper()
	for i := range all {
		if i > 0 && apart(all[i-1], all[i]) < 0 {
			r.Errorf("request %d is reserved for %v, before request %d", i, all[i].Reservation.At, i-1)
		}
		if i < limit {
			continue
		}
		if d := apart(all[i-limit], all[i]); d < window {
			r.Errorf("requests %d and %d are %v apart, with a limit of %d in %v", i-limit, i, d, limit, window)
		}
	}
}

// apart returns how long after one reservation another one starts. On a slow machine the store may have forgotten
// the state of the first, which nothing depends on any more, and then its clock begins anew.
func apart(first, second store.Decision) time.Duration {
	a, b := first.Reservation, second.Reservation
	if a.State != b.State || a.Clock != b.Clock {
		return b.Start.Sub(a.Start)
	}
	return time.Duration(b.At-a.At) * time.Microsecond
}

// Reservations come in the order of the requests and keep the limit.
func reserve(c *check) {
	const limit, n = 3, 8
	guard := c.shortest()
	r := reserver{c, c.open("reserve", c.plan(guard, algorithms.Tier{Limit: limit, Window: window})).(store.Reserver)}
	began := time.Now()
	all := r.reserveAll(n)
	r.checkOrder(all, limit)
	last := all[n-1].Reservation
	after := (n - 1) / limit * (window + guard)
	c.checkBetween("the last request is reserved", last.Start.Sub(began), after, after)
}

// A reservation behind another one starts no earlier.
func reserveBehind(c *check) {
	r := reserver{c, c.open("behind", c.plan(c.shortest(), algorithms.Tier{Limit: 5, Window: window})).(store.Reserver)}
	first := r.reserveAll(6)[5].Reservation
	d := r.reserve(first, waiting(held(1)))[0]
	if r.checkReservation(d, held(1)); d.Verdict == store.Admitted && d.Reservation.At < first.At {
		c.Errorf("%+v is reserved for %v, before %v", d, d.Reservation.Start, first.Start)
	}
}

// A request whose wait would exceed its MaxWait is not reserved and charges nothing.
func reserveLate(c *check) {
	q := c.open("late", c.plan(time.Minute, perHour(2)))
	r := reserver{c, q.(store.Reserver)}
	short := func(most time.Duration) store.Request {
		request := held(2)
		request.WaitSpec = &store.WaitSpec{MaxWait: most}
		return request
	}
	if d := r.reserve(nil, short(time.Minute))[0]; d.Verdict != store.Admitted {
		c.Fatalf("%+v of a fresh quota", d)
	}
	for range 3 {
		if d := r.reserve(nil, short(time.Minute))[0]; d.Verdict != store.Late || d.Wait <= time.Minute {
			c.Errorf("%+v of a wait of an hour with a MaxWait of a minute, want Late", d)
		}
	}
	c.waitLag()
	c.eventuallyUsed(q, "after the refusals", 2)
}

// A canceled reservation is refunded.
func cancel(c *check) {
	q := c.open("cancel", c.plan(time.Minute, c.withConcurrency(4, perHour(4))...))
	r := reserver{c, q.(store.Reserver)}
	for range 3 {
		all := r.reserveAll(4)
		c.refuse(q, held(1), store.Later)
		r.Cancel(all[:3])
		c.eventually(func() bool { return c.used(q)[0] == 1 }, func() { c.Errorf("%d units are used after 3 of 4 reservations were canceled", c.used(q)[0]) })
		r.Cancel(all[3:])
		c.eventually(func() bool { return c.used(q)[0] == 0 }, func() { c.Errorf("%d units are used after all reservations were canceled", c.used(q)[0]) })
	}
	c.eventuallyAdmit(q, held(4), "after all reservations were canceled", false)
}

// A reservation that was not used in time stays charged and is never admitted twice.
func expired(c *check) {
	inFlight, _ := c.inFlight()
	q := c.open("expired", c.plan(inFlight, perHour(3)))
	r := reserver{c, q.(store.Reserver)}
	all := r.reserveAll(3)
	if a := all[0].Reservation; a.Expired(a.Start) || !a.Expired(a.End.Add(time.Second)) {
		c.Errorf("%+v is expired at its start, or not expired a second after its end", a)
	}
	last := all[2].Reservation
	time.Sleep(time.Until(last.End.Add(last.Guard)) + time.Second) // nothing is in flight anymore
	r.Cancel(all)
	c.waitLag()
	c.eventuallyUsed(q, "after the reservations have expired", 3)
	c.refuse(q, held(1), store.Later)
}

// A quota that has a successor answers Moved.
func reserveMoved(c *check) {
	q := c.open("moved", c.plan(c.shortest(), perHour(3)))
	r := reserver{c, q.(store.Reserver)}
	c.changeTo(q, c.plan(c.shortest(), perHour(4)))
	if d := r.reserve(nil, waiting(held(1)))[0]; d.Verdict != store.Moved {
		c.Errorf("%+v of a quota that has a successor, want Moved", d)
	}
}
