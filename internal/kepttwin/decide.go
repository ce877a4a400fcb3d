package kepttwin

import (
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// take compares a decision of a quota that reserves nothing ahead.
func (x *trace) take(s *state, p int, r store.Request, got store.Decision) {
	q, own := x.processes[p], s.own(x.processes[p].plan)
	of := algorithms.Request{Cost: r.Cost, Headroom: r.Leaves(), Guard: algorithms.Micros(r.Guard), Held: r.Held}
	at, tier := own.ledger.Earliest(s.now, of)
	want := store.Decision{Tier: tier, Wait: s.now.Until(at), Epoch: s.pause.Epoch}
	switch {
	case s.pause.Banned > s.now.At:
		want.Verdict, want.Wait, want.Tier = store.Closed, s.now.Until(s.pause.Banned), -1
	case s.pause.Until > s.now.At:
		if s.pause.Probing && own.ledger.Probing(tier) { // its wait ends with the response to the probe
			at = s.now.At
		}
		if want.Wait = s.now.Until(max(at, s.pause.Until)); at <= s.pause.Until {
			if want.Tier = -1; s.pause.Probing {
				want.Tier = store.Probing
			}
		} else if q.plan.Exhausted(tier) {
			want.Verdict = store.Exhausted
		}
	case q.plan.Exhausted(tier):
		want.Verdict = store.Exhausted
	case tier >= 0:
	case r.IsDryRun():
		want.Verdict = store.Ready
	default:
		x.takes(s, p, r, got, &want)
	}
	want.Recheck, want.Crossed = want.Verdict == store.Later, got.Crossed
	if want.Verdict != store.Admitted {
		x.count.Refused++
	}
	if !equal(got, want) {
		x.errorf("request %+v: %+v, want %+v", r, got, want)
	}
}

// takes charges an admitted request to the ledgers, and sets its decision.
func (x *trace) takes(s *state, p int, r store.Request, got store.Decision, want *store.Decision) {
	q, of := x.processes[p], algorithms.Request{Guard: algorithms.Micros(r.Guard), Held: r.Held}
	x.count.Admitted++
	x.must = true
	want.Verdict, want.At, want.Wait = store.Admitted, s.now.At, 0
	for i := range s.ledgers {
		c := &s.ledgers[i]
		of.Cost = amountOf(q.plan, r.Cost).of(c.plan)
		if f := c.ledger.Charge(s.now, of); c.plan.Equal(q.plan) {
			want.Flight = f
		}
	}
	if s.pause.Probe {
		x.startProbe(s, p, r, s.now.At, 0)
		want.Probe = true
	}
	x.begun(p, r, got)
}

func equal(a, b store.Decision) bool {
	return a.Verdict == b.Verdict && a.Tier == b.Tier && a.Wait == b.Wait && a.Epoch == b.Epoch && a.At == b.At && a.Flight == b.Flight && a.Probe == b.Probe && a.Recheck == b.Recheck
}

// decide compares a decision of a quota that reserves ahead.
func (x *trace) decide(s *state, p int, r store.Request, got store.Decision, behind int64) {
	q := x.processes[p]
	if x.moved && s.pause.Probing && got.Probe { // its process waits by its own clock, which the keeper's has left
		s.pause.Until, s.pause.Probing, s.pause.Probe = 0, false, true
	}
	at, tier := s.now.At, -1
	if s.pause.Banned <= s.now.At {
		at, tier = s.earliest(q.plan, p, r, behind)
	}
	opens := max(s.now.At, s.pause.Until)
	late := at < algorithms.Latest && max(at, opens)-s.now.At > r.MaxWait.Microseconds()
	may := []store.Verdict{store.Admitted}
	switch {
	case s.pause.Banned > s.now.At:
		may[0] = store.Closed
	case q.plan.Exhausted(tier):
		may[0] = store.Exhausted
	case at >= algorithms.Latest:
		may[0] = store.Later
		x.await(s, p, r)
	case r.DryRun:
		if may[0] = store.Ready; max(at, opens) > s.now.At {
			may[0] = store.Later
		}
	case opens > s.now.At && s.pause.Probing: // until its response comes, which is not known
		may = []store.Verdict{store.Later, store.Late}
	case late && r.MaxWait == 0 && got.Verdict == store.Later:
		may[0] = store.Later
	case late && (r.YieldFor == 0 || r.YieldFor > r.MaxWait):
		may[0] = store.Late
	case opens > s.now.At+250_000:
		may[0] = store.Later
	case at > s.now.At && (r.YieldFor > 0 || q.reserved[at]): // or it has its share of that instant
		may = append(may, store.Later)
	}
	if !slices.Contains(may, got.Verdict) {
		x.errorf("request %+v of process %d: %+v, want %v", r, p, got, may)
		return
	}
	if got.Verdict != store.Admitted {
		if x.count.Refused++; got.Tier != tier && opens <= s.now.At {
			x.errorf("request %+v: tier %d decides, want %d", r, got.Tier, tier)
		}
		return
	}
	x.admit(s, p, r, got, max(at, opens))
}

// begun keeps an admitted request until it ends. The response to a probe that is not held is never reported.
func (x *trace) begun(p int, r store.Request, got store.Decision) {
	if q := x.processes[p]; r.Held || !got.Probe {
		x.opens = append(x.opens, open{quota: q.quota, plan: q.plan, process: p, Decision: got, cost: r.Cost, since: time.Now()})
	}
}

// await records that a process waits for places, and that it has asked.
func (x *trace) await(s *state, p int, r store.Request) {
	if x.processes[p].unwatch == nil || r.DryRun || r.MaxWait == 0 || !holdsAny(x.processes[p].plan, r.Cost) {
		return
	}
	wants := amountOf(x.processes[p].plan, r.Cost)
	for u, unit := range x.processes[p].plan.Units() {
		if !x.processes[p].plan.Holds(u) {
			delete(wants, unit)
		}
	}
	w, waits := s.waiters[p]
	x.must = x.must || !waits || w.missed > 0 || !w.wants.equal(wants)
	if !waits {
		w.since = s.now.At
	}
	s.waiters[p] = waiter{since: w.since, wants: wants}
}

// holder returns the process that holds something of a request.
func holder(p *algorithms.Plan, process int, cost []int64) int {
	if holdsAny(p, cost) {
		return process
	}
	return nobody
}

func (x *trace) admit(s *state, p int, r store.Request, got store.Decision, expected int64) {
	q := x.processes[p]
	b := booked{at: got.At, guard: got.Reservation.Guard.Microseconds(), cost: amountOf(q.plan, r.Cost), process: holder(q.plan, p, r.Cost), reservation: got.Reservation}
	s.forgetUnits()
	n := len(s.book)
	if err := s.reserve(q.plan, b, expected, r.YieldFor > 0); err != nil {
		x.errorf("request %+v of process %d: %v, book %v, now %v, %d plans, paused %v, takes %v", r, p, err, s.book, s.now, len(s.ledgers), s.pause, got)
		return
	}
	x.count.Admitted++
	if x.must = true; b.at > s.now.At {
		q.reserved[b.at] = true
		if x.count.Reserved++; len(s.book) == n {
			x.count.TakenOver++
		}
	}
	if holdsAny(q.plan, r.Cost) {
		delete(s.waiters, p)
	}
	if s.pause.Probe != got.Probe {
		x.errorf("request %+v: %+v, probes are due: %v", r, got, s.pause.Probe)
	}
	if s.pause.Probe {
		x.startProbe(s, p, r, got.At, b.guard)
	}
	x.begun(p, r, got)
}

// startProbe makes all others wait for a request's response, which comes before a minute has passed.
func (x *trace) startProbe(s *state, p int, r store.Request, at, guard int64) {
	s.pause.Probing, s.pause.Probe = true, r.Held
	alone := store.ProbeTime
	if r.Held {
		alone = store.ProbeTimeout + max(r.Guard, x.processes[p].plan.Guard())
	}
	s.pause.Until = at + algorithms.Micros(alone)
}

// end ends an open request.
func (x *trace) end(i int) {
	o := x.opens[i]
	x.opens = slices.Delete(x.opens, i, i+1)
	switch n := x.IntN(4); {
	case x.Ahead && (n < 2 || o.At > x.state.now.At):
		x.cancel(o)
	case n == 0 && !o.stale:
		x.giveBack(o)
	case n == 1 && !o.plan.Estimates() && !o.Probe:
		o.quota.Unanswered(o.Decision, o.cost)
		x.release(o)
	default:
		x.answer(o)
	}
	if x.reported(); x.IntN(2) == 0 {
		x.pass(6 * time.Millisecond)
	}
}

// later records a change that the process of a request reports.
func (x *trace) later(o open, f func(s *state)) {
	p := x.processes[o.process]
	p.pending = append(p.pending, f)
}

func (x *trace) endProbe(o open, answered bool) {
	if o.Probe {
		x.later(o, func(s *state) { x.must = s.pause.EndProbe(o.Decision, answered) || x.must })
	}
}

// release ends the places of a request.
func (x *trace) release(o open) {
	if !o.plan.Concurrent() {
		return
	}
	o.quota.Release(o.Decision, o.cost)
	x.ends(o, func(s *state, c *counted) {
		cost := amountOf(o.plan, o.cost).of(c.plan)
		c.ledger.Release(cost)
	})
}

// ends records places or estimates that have ended.
func (x *trace) ends(o open, f func(s *state, c *counted)) {
	p := x.processes[o.process]
	p.ended = append(p.ended, func(s *state) {
		for i := range s.ledgers {
			f(s, &s.ledgers[i])
		}
	})
}

// answer reports the response to a request.
func (x *trace) answer(o open) {
	if !x.Ahead {
		wall := x.Memory.Wall()
		if o.Flight != algorithms.Landed || o.Probe {
			x.later(o, func(s *state) {
				if x.processes[o.process].plan.Equal(o.plan) {
					wall := min(wall, s.now.Wall)
					s.own(o.plan).ledger.Arrived(algorithms.Moment{At: wall + s.offset, Wall: wall}, o.Flight, o.cost)
				}
			})
		}
	}
	if !x.Ahead || o.Probe {
		x.endProbe(o, true)
	}
	o.quota.Arrived(o.Decision, o.cost)
	x.observe(o)
	if o.plan.Estimates() {
		actual := slices.Clone(o.cost)
		for u := range actual {
			actual[u] = x.Int64N(actual[u] + 2)
		}
		o.quota.Settle(o.Decision, o.cost, actual, nil)
		x.ends(o, func(s *state, c *counted) {
			c.ledger.Settle(s.now, amountOf(o.plan, o.cost).of(c.plan), amountOf(o.plan, actual).of(c.plan))
		})
	}
	x.release(o)
}

// observe reports what the response says of a tier.
func (x *trace) observe(o open) {
	if x.IntN(4) > 0 {
		return
	}
	tier := x.IntN(len(o.plan.Tiers()))
	seen := []store.Observation{{Tier: tier, Used: x.Int64N(o.plan.Tiers()[tier].Capacity() + 2), Exact: x.IntN(2) == 0}}
	if x.IntN(3) == 0 {
		seen[0].Reset = time.Duration(x.Int64N(int64(x.window)) + 1000).Truncate(time.Microsecond)
	}
	o.quota.(store.Feedback).Observe(o.Decision, o.cost, seen)
	x.later(o, func(s *state) {
		if x.processes[o.process].plan.Equal(o.plan) {
			s.exact = store.Observe(&s.own(o.plan).ledger, s.now, o.At, o.cost, s.exact, seen)
		}
	})
}

// cancel returns a reservation that was not used.
func (x *trace) cancel(o open) {
	unused := x.IntN(2) == 0
	returned := false
	x.endHeld(o, &returned)
	x.endProbe(o, false)
	if b := (booked{at: o.At, guard: o.Reservation.Guard.Microseconds(), process: holder(o.plan, o.process, o.cost), reservation: o.Reservation}); refundable(o.Decision, unused) && !o.stale {
		x.later(o, func(s *state) {
			cost := x.processes[o.process].plan.Translate(o.plan, o.cost)
			b.cost = amountOf(x.processes[o.process].plan, cost)
			returned = s.giveBack(b)
		})
	}
	if unused {
		o.quota.(store.Reserver).Cancel([]store.Decision{o.Decision})
	} else {
		_ = o.quota.Return(x.ctx, o.Decision, o.cost)
	}
}

// endHeld ends the places and the estimates of a request that was not sent, when it has begun. It does not begin if
// its time was returned.
func (x *trace) endHeld(o open, returned *bool) {
	if !holdsAny(o.plan, o.cost) {
		return
	}
	p := x.processes[o.process]
	var end func(s *state)
	end = func(s *state) {
		switch {
		case *returned:
		case o.At > s.now.At:
			p.ended = append(p.ended, end)
		default:
			s.endHeld(o)
		}
	}
	p.ended = append(p.ended, end)
}

// endHeld ends the places and the estimates of a request in all ledgers.
func (s *state) endHeld(o open) {
	for i := range s.ledgers {
		c := &s.ledgers[i]
		cost := amountOf(o.plan, o.cost).of(c.plan)
		c.ledger.Release(cost)
		c.ledger.Settle(s.now, cost, make([]int64, len(cost)))
	}
}

// giveBack returns a request that was not sent, where nothing is reserved ahead.
func (x *trace) giveBack(o open) {
	if o.Flight == algorithms.Landed && !o.Probe && !o.plan.Concurrent() && !o.plan.Estimates() {
		return
	}
	p := x.processes[o.process]
	wall := x.Memory.Wall()
	x.ends(o, func(s *state, c *counted) {
		if !c.plan.Equal(p.plan) || !p.plan.Equal(o.plan) {
			cost := amountOf(o.plan, o.cost).of(c.plan)
			c.ledger.Release(cost)
			c.ledger.Settle(s.now, cost, make([]int64, len(cost)))
		}
	})
	x.later(o, func(s *state) {
		if p.plan.Equal(o.plan) {
			wall := min(wall, s.now.Wall)
			s.own(o.plan).ledger.Cancel(algorithms.Moment{At: wall + s.offset, Wall: wall}, o.Flight, o.cost)
		}
	})
	x.endProbe(o, false)
	x.call(o.process, false, func() error { return o.quota.Return(x.ctx, o.Decision, o.cost) }, func(*state) {})
}
