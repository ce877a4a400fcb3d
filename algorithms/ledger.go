package algorithms

import "math"

// A Ledger is the state of one quota. It decides over all tiers of its plan at once. Its methods
// take the present moment. A moment before that of an earlier call counts as the latest one, and
// so a ledger's time never runs backwards. A Ledger is not safe for concurrent use.
type Ledger struct {
	state
	credit int32 // see GiveCredit
	probed bool  // see Probed

	// forecasting: the ledger forecasts. Groups of stamps leave with their first stamp, and every
	// request may be a probe after a reset.
	forecasting bool
}

// Clone returns a copy. It shares only the plan with l.
func (l *Ledger) Clone() Ledger {
	c := *l
	c.state = l.state.clone()
	return c
}

// Plan returns the ledger's plan.
func (l *Ledger) Plan() *Plan { return l.plan }

// AppendBinary appends the encoding of the ledger to b. A ledger of an equal plan can decode it
// with UnmarshalBinary. The error is always nil. 10,000 stamps of a log over an hour take 30 KB.
func (l *Ledger) AppendBinary(b []byte) ([]byte, error) { return l.state.append(b), nil }

// UnmarshalBinary replaces the state of the ledger by a state that AppendBinary has encoded, in
// this form or the first. If the data is not the encoding of a ledger of an equal plan, it returns
// an error and leaves the ledger as it was. It allocates at most eight times the size of the data.
func (l *Ledger) UnmarshalBinary(data []byte) error {
	s, d := state{plan: l.plan}, decoder{data: data}
	if s.decode(&d); d.bad || len(d.data) > 0 || !s.sound() {
		return errUnsound
	}
	*l = Ledger{state: s}
	return nil
}

// A Request is a cost that a ledger decides on.
type Request struct {
	// Cost is an amount of each unit of the plan.
	Cost []int64

	// Headroom is the percentage of every tier's capacity, rounded down, that must remain for
	// others, as far as the cost itself leaves it. Budgets have no headroom: a request that a
	// budget refuses is not served later.
	Headroom int64

	// Guard is how long the request is in flight, in microseconds: a resolution at least and
	// MaxWindow at most. If zero, the plan's.
	Guard int64

	// Held is true if the request may be landed or canceled before its guard has passed.
	Held bool
}

// Earliest returns the first instant from now on at which every tier admits the request,
// behind everything that has landed or is in flight, and the tier that decides, or -1 if the
// instant is now. A budget without room decides before all others. The instant is Never if
// only a release can help. Earliest changes nothing but the ledger's clock.
func (l *Ledger) Earliest(now Moment, r Request) (at int64, tier int) {
	return l.earliest(l.advance(now), r.Cost, r.Headroom)
}

func (l *Ledger) earliest(now Moment, cost []int64, headroom int64) (at int64, tier int) {
	at, tier = now.At, -1
	for i := range l.plan.rules {
		n := cost[l.plan.unit[i]]
		if n == 0 {
			continue
		}
		if e := l.admits(i, now, l.withHeadroom(i, n, headroom)); e > at {
			at, tier = e, i
		}
	}
	if tier >= 0 && l.plan.budgets {
		tier = l.exhausted(now, cost, tier)
	}
	return at, tier
}

// exhausted returns the first budget that cannot admit the cost now, or else the tier that
// decides.
func (l *Ledger) exhausted(now Moment, cost []int64, tier int) int {
	for i, t := range l.plan.tiers {
		if n := cost[l.plan.unit[i]]; t.Budget && n > 0 && l.admits(i, now, n) > now.At {
			return i
		}
	}
	return tier
}

// withHeadroom returns n units of a tier plus the headroom of the request.
func (l *Ledger) withHeadroom(tier int, n, headroom int64) int64 {
	if headroom == 0 || l.plan.tiers[tier].Budget {
		return n
	}
	capacity := l.plan.tiers[tier].Capacity()
	return n + max(0, min(capacity*headroom/100, capacity-n))
}

// Take charges the cost of a request if every tier admits the request now, and otherwise
// changes nothing. It returns the instant and the tier of Earliest. If the cost was charged,
// the tier is -1.
func (l *Ledger) Take(now Moment, r Request) (f Flight, at int64, tier int) {
	now = l.advance(now)
	if at, tier = l.earliest(now, r.Cost, r.Headroom); tier < 0 {
		f = l.charge(now, r.Cost, r.Guard, r.Held)
	}
	return f, at, tier
}

// Charge charges the cost of a request, whether or not the tiers admit it.
func (l *Ledger) Charge(now Moment, r Request) Flight {
	return l.charge(l.advance(now), r.Cost, r.Guard, r.Held)
}

func (l *Ledger) charge(now Moment, cost []int64, guard int64, held bool) Flight {
	l.DropCredit()
	if l.readings != nil {
		l.probe(now, cost)
	}
	l.start(now, cost)
	if held {
		l.addEstimates(cost, 1)
	}
	if guard == 0 {
		guard = l.plan.guard
	}
	if guard == 0 {
		l.landCost(now, cost, held)
		l.proveArrival(now.At, cost, held)
		return Landed
	}
	return l.addInFlight(now.At, min(max(guard, 1<<l.plan.resolution), maxWindowUS), cost, held)
}

// Count charges a cost that the provider has already counted. It lands now.
func (l *Ledger) Count(now Moment, cost []int64) {
	now = l.advance(now)
	l.DropCredit()
	l.start(now, cost)
	l.landCost(now, cost, false)
}

// AssumeUsed charges every tier with all its remaining units, as if the caller had sent them until
// now and they landed a guard later. Concurrency tiers stay as they are, because the ledger has the
// exact number of open units.
func (l *Ledger) AssumeUsed(now Moment) {
	now = l.advance(now.on(now.At + l.plan.guard))
	l.DropCredit()
	for i, r := range l.plan.rules {
		if _, ok := r.(releaser); ok {
			continue
		}
		left := max(0, l.plan.tiers[i].Capacity()-r.used(&l.state, now))
		if d, ok := r.(sender); ok {
			d.send(&l.state, now, left)
		}
		l.land(i, now, left)
	}
}

// start lets the senders of the plan record a cost, before it is in flight.
func (l *Ledger) start(now Moment, cost []int64) {
	for _, d := range l.plan.senders {
		if n := cost[d.place().unit]; n > 0 {
			d.send(&l.state, now, n)
		}
	}
}

// proveArrival records in the anchored windows that a request has arrived by now. If its estimates
// are open, windows that count estimates are left out.
func (l *Ledger) proveArrival(now int64, cost []int64, open bool) {
	for _, r := range l.plan.anchored {
		if cost[r.unit] > 0 && !(open && l.plan.estimated[r.unit]) {
			r.proveOpen(&l.state, now, now)
		}
	}
}

// Settle replaces the estimates in the cost of a held request by the actual cost. The actual cost
// lands now, and proves that the request arrived. It may exceed what the tiers admit.
func (l *Ledger) Settle(now Moment, cost, actual []int64) {
	now = l.advance(now)
	l.settle(now, cost, actual)
	for _, r := range l.plan.anchored {
		if l.plan.estimated[r.unit] && actual[r.unit] > 0 {
			r.proveOpen(&l.state, now.At, now.At)
		}
	}
}

func (l *Ledger) settle(now Moment, cost, actual []int64) {
	l.addEstimates(cost, -1)
	for i, u := range l.plan.unit {
		if l.plan.estimated[u] && actual[u] > 0 {
			l.land(i, now, actual[u])
		}
	}
}

// Unanswered records that a held request gets no response. Its estimates become its cost, and
// land with the rest of it when the guard has passed.
func (l *Ledger) Unanswered(now Moment, f Flight, cost []int64) {
	now = l.advance(now)
	if !l.plan.estimates {
		return
	}
	s := l.find(f)
	if s == nil {
		l.settle(now, cost, cost)
		return
	}
	for u, estimated := range l.plan.estimated {
		if estimated {
			*s.total(u) += cost[u]
		}
	}
}

// Arrived records that the provider has counted the request by now, all but its estimates. After
// the guard it only proves that the request had arrived.
func (l *Ledger) Arrived(now Moment, f Flight, cost []int64) {
	now = l.advance(now)
	if f == Landed {
		return
	}
	if l.removeInFlight(f, cost) {
		l.landCost(now, cost, true)
		l.proveArrival(now.At, cost, true)
		return
	}
	first := int64(f) << l.plan.resolution // of the instants at which it may have landed
	for _, r := range l.plan.anchored {
		if cost[r.unit] > 0 && !l.plan.estimated[r.unit] {
			r.proveLanded(&l.state, first, first+1<<l.plan.resolution-1)
		}
	}
}

// Cancel refunds a request that was never sent, and reports whether its guard had not passed by now. If
// the guard has passed, the provider may have counted the request, and Cancel refunds only its
// estimates and its places in concurrency tiers. The request may have landed before, because a charge
// of a later moment has moved the ledger's clock.
func (l *Ledger) Cancel(now Moment, f Flight, cost []int64) (inTime bool) {
	called := now.At
	now = l.advance(now)
	if inTime = l.removeInFlight(f, cost); inTime {
		l.unsend(now, cost)
	}
	if lands := int64(f) << l.plan.resolution; !inTime && f > Landed && called < lands && lands <= now.At {
		l.refundLanded(now, lands, cost)
		inTime = true
	}
	if f == Landed && l.plan.guard == 0 { // its arrival was assumed
		for _, r := range l.plan.anchored {
			if cost[r.unit] > 0 {
				r.doubtOpen(&l.state)
			}
		}
	}
	if f >= Landed {
		l.addEstimates(cost, -1)
	}
	l.Release(cost)
	return inTime
}

// Refund takes back a request that was charged for an instant and never sent. guard is that of the charge, in
// microseconds, or zero for the plan's, and held reports whether the request was held. Refund leaves its estimates
// and its places as they are. It reports whether the request was in flight. If it was not, the tiers take back
// what they still count of it, as far as they can tell.
func (l *Ledger) Refund(now Moment, at, guard int64, cost []int64, held bool) (inFlight bool) {
	now = l.advance(now)
	if guard == 0 {
		guard = l.plan.guard
	}
	lands := at
	if guard > 0 {
		lands += min(max(guard, 1<<l.plan.resolution), maxWindowUS)
	}
	for i := range l.slots() { // if its own has landed, the others contain other requests
		if in := l.slot(i); in[0] >= lands && lands > now.At && l.remove(in, cost, held) {
			l.DropCredit()
			l.unsend(now, cost)
			return true
		}
	}
	if lands <= now.At {
		l.refundLanded(now, lands>>l.plan.resolution<<l.plan.resolution, cost)
	}
	for _, r := range l.plan.anchored {
		if guard == 0 && cost[r.unit] > 0 { // its arrival was assumed
			r.doubtOpen(&l.state)
		}
	}
	return false
}

// unsend takes back from the learned tiers what they have counted at its admission.
func (l *Ledger) unsend(now Moment, cost []int64) {
	for _, r := range l.plan.learned {
		r.refund(&l.state, now, now.At, cost[r.unit])
	}
}

// refundLanded takes back a request that has landed at from or later. A tier with a report keeps the
// units, because the report was compared with them.
func (l *Ledger) refundLanded(now Moment, from int64, cost []int64) {
	l.DropCredit()
	for i, rule := range l.plan.rules {
		n := cost[l.plan.unit[i]]
		r, ok := rule.(refunder)
		if !ok || n == 0 || l.plan.estimated[l.plan.unit[i]] || l.readings != nil && (*l.readings)[i].at > 0 {
			continue
		}
		r.refund(&l.state, now, from, n)
	}
}

// Hold adds places in concurrency tiers and estimates of requests that another ledger has charged. It is
// the reverse of Release, and of Settle for the estimates.
func (l *Ledger) Hold(cost []int64) {
	l.DropCredit()
	l.addEstimates(cost, 1)
	for i, r := range l.plan.rules {
		if r, ok := r.(*concurrency); ok {
			r.send(&l.state, Moment{}, cost[l.plan.unit[i]])
		}
	}
}

// Release frees the places of a request in concurrency tiers.
func (l *Ledger) Release(cost []int64) {
	for i, r := range l.plan.rules {
		if r, ok := r.(releaser); ok {
			r.release(&l.state, cost[l.plan.unit[i]])
		}
	}
}

// advance moves the clock forward to now, lands the requests whose guard has passed, and returns
// the present moment.
func (l *Ledger) advance(now Moment) Moment {
	if now.At < l.last {
		now = now.on(l.last)
	}
	l.last = now.At
	if l.plan.aligned {
		l.correctDates(now)
	}
	if l.landsBy(now.At) {
		l.landUntil(now)
	}
	if l.readings != nil {
		for i := range *l.readings {
			if until := (*l.readings)[i].until; until != 0 && until <= now.At {
				reported(&l.state, i).applyReset(now)
			}
		}
	}
	return now
}

// correctDates corrects the state of the tiers that count by the wall clock, if its date was wrong.
func (l *Ledger) correctDates(now Moment) {
	for i, r := range l.plan.rules {
		if c, ok := r.(corrector); ok {
			c.correct(&l.state, now)
			if l.readings != nil {
				reported(&l.state, i).withoutOthers(func() { c.correct(&l.state, now) })
			}
		}
	}
}

// landUntil lands the slots whose guard has passed.
func (l *Ledger) landUntil(now Moment) {
	l.DropCredit()
	done := 0
	for ; done < l.slots() && l.slot(done)[0] <= now.At; done++ {
		s := l.slot(done)
		for i, u := range l.plan.unit {
			if n := *s.total(u); n > 0 {
				l.land(i, now.on(s[0]), n)
			}
		}
		for u := range l.plan.units {
			l.word[u] -= *s.total(u)
		}
	}
	l.word = append(l.word[:l.plan.base], l.word[l.plan.base+done*l.plan.stride():]...)
}

// landCost lands a cost in every tier. If its estimates are open, they are left out.
func (l *Ledger) landCost(at Moment, cost []int64, open bool) {
	for i, u := range l.plan.unit {
		if n := cost[u]; n > 0 && !(open && l.plan.estimated[u]) {
			l.land(i, at, n)
		}
	}
}

// GiveCredit computes the credit anew, and reports whether there is any. Credit is how many requests
// of the usual cost, which is one request and nothing else, the tiers are sure to admit from now on.
// Time only adds to that number in counters that are steady, so a ledger need not ask its tiers
// again until the credit is used up or something else was charged. What is charged on credit is the
// same to the bit as what Take charges.
func (l *Ledger) GiveCredit(now Moment) bool {
	if !l.plan.Quick() || l.readings != nil || l.lastSlot() == nil {
		return false
	}
	credit := int64(math.MaxInt32)
	for i, r := range l.plan.rules {
		if u := l.plan.unit[i]; u == l.plan.usualUnit {
			credit = min(credit, l.plan.tiers[i].Capacity()-r.used(&l.state, now)-l.inFlight(u))
		}
	}
	l.credit = int32(max(0, credit))
	return credit > 0
}

// DropCredit makes TakeOne fail until GiveCredit is called.
func (l *Ledger) DropCredit() { l.credit = 0 }

// TakeOne is Take for the usual cost. It fails, and changes nothing, if there is no credit, or if the
// request does not share the last slot.
func (l *Ledger) TakeOne(at int64, held bool) (f Flight, ok bool) {
	if l.credit == 0 {
		return Landed, false
	}
	at = max(at, l.last)
	s, lands := l.lastSlot(), at+l.plan.guard
	if f = l.plan.flight(s[0]); f != l.plan.flight(lands) {
		return Landed, false
	}
	s[0] = max(s[0], lands)
	l.add(s, l.plan.usualUnit, 1, held)
	l.last = at
	l.credit--
	if !held {
		f = f.unheld()
	}
	return f, true
}

// ArriveOne is Arrived for a held request of the usual cost. It fails, and changes nothing, if the
// ledger has more to do than to land that request.
func (l *Ledger) ArriveOne(at int64, f Flight) bool {
	at = max(at, l.last) // which TakeOne may have moved beyond the end of a guard
	if !l.plan.Quick() || l.readings != nil || l.landsBy(at) {
		return false
	}
	s, u := l.find(f), l.plan.usualUnit
	if s == nil || *s.held(u) == 0 {
		return false
	}
	l.add(s, u, -1, true)
	l.last = at
	for _, r := range l.plan.usual {
		r.land(&l.state, Moment{At: at}, 1)
	}
	return true
}
