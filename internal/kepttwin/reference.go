package kepttwin

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/pause"
	"github.com/apithrottle/throttle/store"
)

// An amount is a cost by the names of its units.
type amount map[string]int64

func amountOf(p *algorithms.Plan, cost []int64) amount {
	a := make(amount)
	for u, n := range cost {
		a[p.Units()[u]] = n
	}
	return a
}

func (a amount) of(p *algorithms.Plan) []int64 {
	cost := make([]int64, len(p.Units()))
	for u, name := range p.Units() {
		cost[u] = a[name]
	}
	return cost
}

// fits reports whether no unit of a is above that of b.
func (a amount) fits(b amount) bool {
	for unit, n := range a {
		if n > b[unit] {
			return false
		}
	}
	return true
}

func (a amount) equal(b amount) bool { return a.fits(b) && b.fits(a) }

// A counted is the ledger of one plan in use.
type counted struct {
	plan   *algorithms.Plan
	used   int64
	ledger algorithms.Ledger
}

func (c *counted) holds() bool { return c.plan.Concurrent() || c.plan.Estimates() }

// A booked is a request for an instant to come.
type booked struct {
	at, guard int64
	cost      amount
	free      bool
	// process is the one that holds places or estimates of the request, or nobody.
	process int
	// reservation identifies it.
	reservation *store.Reservation
}

// nobody is the process of requests that hold nothing.
const nobody = -1

// A waiter is a process that waits for places.
type waiter struct {
	since int64
	wants amount
	// missed is since when places have been kept for it, which it has not asked for. If zero, none are.
	missed int64
}

// mostMissed is how long places are kept for a process that does not ask.
const mostMissed = int64(2 * time.Second / time.Microsecond)

// A state is what a store keeps, as the documentation of packages store and algorithms has it: the ledgers of all
// plans in use, to which requests are charged at their instants, in their order.
type state struct {
	now algorithms.Moment
	// last is when the state was written, and offset the quota's clock minus that of the keeper.
	last, offset int64
	ledgers      []counted
	book         []booked
	pause        pause.State
	// level is the number of back-offs in a row.
	level uint8
	exact int64
	// takesFrom is the instant before which no booking is taken over: the keeper's clock was set back.
	takesFrom int64
	waiters   map[int]waiter
}

func (s *state) clone() state {
	c := *s
	c.ledgers, c.book = slices.Clone(s.ledgers), slices.Clone(s.book)
	for i := range c.ledgers {
		c.ledgers[i].ledger = c.ledgers[i].ledger.Clone()
	}
	c.waiters = maps.Clone(s.waiters)
	return c
}

// idlePlan is how long a plan without decisions has a ledger of its own beside others.
const idlePlan = int64(time.Minute / time.Microsecond)

// use makes a plan's ledger the first, and begins one if there is none.
func (s *state) use(p, replaces *algorithms.Plan) {
	i := slices.IndexFunc(s.ledgers, func(c counted) bool { return c.plan.Equal(p) })
	switch {
	case i >= 0:
	case len(s.ledgers) == 0:
		s.ledgers, i = []counted{{plan: p, ledger: p.NewLedger()}}, 0
	default:
		s.ledgers = s.convert(p, replaces)
		i = len(s.ledgers) - 1
	}
	s.ledgers[i].used = s.now.At
	s.ledgers = slices.DeleteFunc(s.ledgers, func(c counted) bool { return c.used < s.now.At-idlePlan })
	s.forgetUnits()
}

// convert returns the ledgers with one for a plan, from the one that it replaces or else the most used one.
func (s *state) convert(p, replaces *algorithms.Plan) []counted {
	from := s.ledgers
	if i := slices.IndexFunc(s.ledgers, func(c counted) bool { return replaces != nil && c.plan.Equal(replaces) }); i >= 0 {
		from = s.ledgers[i : i+1]
	}
	most, best := int64(-1), algorithms.Ledger{}
	for _, c := range from {
		l, sum := p.Convert(c.ledger, s.now), int64(0)
		for _, u := range l.Usage(s.now) {
			sum += u.Used
		}
		if sum > most {
			most, best = sum, l
		}
	}
	return append(slices.Clip(s.ledgers), counted{plan: p, ledger: best})
}

// forgetUnits takes the units that no plan has out of the costs of bookings.
func (s *state) forgetUnits() {
	for i := range s.book {
		cost := make(amount)
		for _, c := range s.ledgers {
			for _, unit := range c.plan.Units() {
				cost[unit] = s.book[i].cost[unit]
			}
		}
		s.book[i].cost = cost
	}
}

func (s *state) own(p *algorithms.Plan) *counted {
	return &s.ledgers[slices.IndexFunc(s.ledgers, func(c counted) bool { return c.plan.Equal(p) })]
}

func (s *state) moment(at int64) algorithms.Moment {
	return algorithms.Moment{At: at, Wall: s.now.Wall + at - s.now.At}
}

// begin charges the requests whose instant has come.
func (s *state) begin() (charged bool) {
	for len(s.book) > 0 && s.book[0].at <= s.now.At {
		if b := s.book[0]; !b.free {
			s.charge(b)
			charged = true
		}
		s.book = s.book[1:]
	}
	return charged
}

// charge charges a request to all ledgers at its instant.
func (s *state) charge(b booked) {
	for i := range s.ledgers {
		s.chargeTo(&s.ledgers[i].ledger, &s.ledgers[i], b)
	}
}

// chargeTo charges a request to a ledger. A returned one beside the ledgers of other plans has no places and no open
// estimates, because nobody who needs some takes its place.
func (s *state) chargeTo(l *algorithms.Ledger, c *counted, b booked) {
	isBare, cost := b.free && len(s.ledgers) > 1, b.cost.of(c.plan)
	l.Charge(s.moment(b.at), algorithms.Request{Cost: cost, Guard: b.guard, Held: c.holds() && !isBare})
	if isBare {
		l.Release(cost)
	}
}

// total returns the ledger of a plan with the requests to come, and the moment of the last one.
func (s *state) total(p *algorithms.Plan) (algorithms.Ledger, algorithms.Moment) {
	c, last := s.own(p), s.now
	l := c.ledger.Clone()
	for _, b := range s.book {
		s.chargeTo(&l, c, b)
		last = s.moment(b.at)
	}
	return l, last
}

// earliest returns the first instant for a request behind all others, and behind an instant, and the tier that
// decides. Processes that have waited longer for places come first.
func (s *state) earliest(p *algorithms.Plan, process int, r store.Request, behind int64) (at int64, tier int) {
	l, last := s.total(p)
	last = s.moment(max(last.At, behind))
	at, tier = l.Earliest(last, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves()})
	if at >= algorithms.Latest || p.Exhausted(tier) || !holdsAny(p, r.Cost) {
		return at, tier
	}
	before := s.before(process)
	all := slices.Clone(r.Cost)
	for _, q := range before {
		for u, n := range s.waiters[q].wants.of(p) {
			all[u] += n
		}
	}
	if e, t := l.Earliest(last, algorithms.Request{Cost: all}); len(before) > 0 && e >= algorithms.Latest {
		s.miss(before)
		return e, t
	}
	return at, tier
}

// before returns the processes that have waited longer for places than another one, and ask now and then.
func (s *state) before(process int) (before []int) {
	own, waits := s.waiters[process]
	for q, w := range s.waiters {
		if q != process && (!waits || w.since < own.since) && (w.missed == 0 || w.missed > s.now.At-mostMissed) {
			before = append(before, q)
		}
	}
	return before
}

// miss records that places are kept for processes.
func (s *state) miss(processes []int) {
	for _, q := range processes {
		if w := s.waiters[q]; w.missed == 0 {
			w.missed = s.now.At
			s.waiters[q] = w
		}
	}
}

func holdsAny(p *algorithms.Plan, cost []int64) bool {
	for u, n := range cost {
		if n > 0 && p.Holds(u) {
			return true
		}
	}
	return false
}

// reserve adds a request at the instant that the store has told. It takes the place of one that was returned, unless it
// yields, or the last one.
func (s *state) reserve(p *algorithms.Plan, b booked, expected int64, yields bool) error {
	open := !yields && s.pause.Until <= s.now.At && !s.pause.Probe && (b.process == nobody || len(s.ledgers) == 1)
	i := 0
	for ; i < len(s.book); i++ {
		o := s.book[i]
		if open && o.free && o.at <= b.at && o.at >= s.takesFrom && b.guard <= o.guard && b.cost.fits(o.cost) && s.keepsPace(p, i, b) {
			break
		}
	}
	switch {
	case i < len(s.book):
		n := i + 1
		for b.at > s.book[i].at && n < len(s.book) && s.book[n].free && s.book[n].at <= b.at {
			n++
		}
		s.book[i] = b
		s.book = slices.Delete(s.book, i+1, n)
	case b.at != expected:
		return fmt.Errorf("at %d, want %d", b.at, expected)
	case b.at <= s.now.At:
		s.charge(b)
	default:
		s.book = append(s.book, b)
	}
	return nil
}

// keepsPace reports whether a request may take the place of the i-th booking, at its instant. If a rate has decreased, the
// requests before and behind it must be far enough away. It may be later if there is nothing but learned rates.
func (s *state) keepsPace(p *algorithms.Plan, i int, b booked) bool {
	at, c, movable := s.book[i].at, s.own(p), len(s.ledgers) == 1
	if !p.Learns() {
		return at == b.at
	}
	for _, tier := range p.Tiers() {
		movable = movable && tier.Learns()
	}
	if at < b.at && !movable {
		return false
	}
	admits := func(l *algorithms.Ledger, from int64, cost amount) int64 {
		e, _ := l.Earliest(s.moment(from), algorithms.Request{Cost: cost.of(p)})
		return e
	}
	l := c.ledger.Clone()
	for j, o := range s.book {
		switch {
		case o.free:
		case j < i:
			s.chargeTo(&l, c, o)
		default: // the next one
			if admits(&l, at, b.cost) != b.at || b.at > o.at {
				return false
			}
			s.chargeTo(&l, c, b)
			return admits(&l, o.at, o.cost) == o.at
		}
	}
	return at == b.at && admits(&l, at, b.cost) == at
}

func (b booked) isLike(o booked) bool {
	return b.at == o.at && b.guard == o.guard && b.cost.equal(o.cost)
}

// giveBack returns a reservation. If others are behind it, its time stays booked, for others to
// take. It reports whether the time was still to come.
func (s *state) giveBack(b booked) (toCome bool) {
	i := slices.IndexFunc(s.book, func(o booked) bool {
		return !o.free && b.process != nobody && o.reservation == b.reservation
	})
	if i < 0 { // those of nobody are told apart by what they are alone
		i = slices.IndexFunc(s.book, func(o booked) bool { return !o.free && o.process == b.process && o.isLike(b) })
	}
	for j := len(s.book) - 1; j > i && i >= 0 && b.process != nobody; j-- { // one that is like it is as good
		if o := s.book[j]; !o.free && o.process == b.process && o.isLike(s.book[i]) {
			s.book[i], s.book[j], i = o, s.book[i], j
		}
	}
	if i >= 0 {
		s.book[i].free = true
		for n := len(s.book); n > 0 && s.book[n-1].free; n = len(s.book) {
			s.book = s.book[:n-1]
		}
		return true
	}
	if b.at > s.now.At { // no ledger has it yet
		return true
	}
	for i := range s.ledgers {
		c := &s.ledgers[i]
		cost := b.cost.of(c.plan)
		for u := range cost {
			if c.plan.Estimated(u) { // which the settlement ends
				cost[u] = 0
			}
		}
		c.ledger.Refund(s.now, b.at, b.guard, cost, c.holds())
	}
	return false
}

// teach passes the refusal that causes a pause to all ledgers. What is admitted for an instant of the pause that the last one
// began, or in an earlier epoch, was reserved before.
// It reports whether the plan needs no pause.
func (s *state) teach(w store.Pause, of *algorithms.Plan) (taught, decreases, void bool) {
	if w.Refused == nil {
		return false, false, false
	}
	for i := range s.ledgers {
		c, at := &s.ledgers[i], w.Refused.At
		if !c.plan.Learns() {
			continue
		}
		before := c.decreased(s.now)
		if before > 0 && at >= before && (at < s.now.At && at < s.pause.Until || w.Once && w.Epoch < s.pause.Epoch) {
			at = before - 1
		}
		if s.level == 0 && c.ledger.Refused(s.now, at, amountOf(of, w.Refused.Cost).of(c.plan)) && c.plan.Equal(of) {
			void = w.Most > 0
		}
		taught, decreases = true, decreases || c.decreased(s.now) != before
	}
	return taught, decreases, void
}

// voidReserved voids what is reserved, unless a probe is in flight: then nothing is in use.
func (s *state) voidReserved() {
	if !s.pause.Probing {
		s.pause.Epoch++
	}
}

// frontier returns the instant of the last request to come, or the present one.
func (s *state) frontier() int64 {
	if n := len(s.book); n > 0 {
		return s.book[n-1].at
	}
	return s.now.At
}

// decreased returns when a rate last decreased.
func (c *counted) decreased(now algorithms.Moment) (at int64) {
	for _, r := range c.ledger.LearnedRates(now) {
		if r != nil && r.At > at {
			at = r.At
		}
	}
	return at
}

// status returns the state of the tiers, with the requests to come.
func (s *state) status(p *algorithms.Plan) []store.TierStatus {
	own, tiers := s.own(p), []store.TierStatus(nil)
	l, last := s.total(p)
	later := l.Usage(last)
	for i, u := range own.ledger.Usage(s.now) {
		t := store.TierStatus{Used: u.Used, InFlight: u.InFlight, Others: u.Others, RetryAfter: s.now.Until(u.Next), ResetAfter: s.now.Until(u.Fresh)}
		for _, b := range s.book {
			n := b.cost[p.Tiers()[i].Unit]
			t.Used += n
			t.InFlight += n
		}
		if len(s.book) > 0 {
			t.RetryAfter = max(t.RetryAfter, s.now.Until(max(last.At, later[i].Next)))
			t.ResetAfter = max(t.ResetAfter, s.now.Until(later[i].Fresh))
		}
		t.Remaining = max(0, p.Tiers()[i].Capacity()-t.Used)
		tiers = append(tiers, t)
	}
	return tiers
}
