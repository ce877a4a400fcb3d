package distributed

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// A twin computes what the script should answer, with a Ledger. It shares no code with the script
// and packs nothing.
type twin struct {
	plan *algorithms.Plan
	// ledger is the plan's, but its Concurrency tiers are never full: the leases count open requests.
	ledger     *algorithms.Ledger
	concurrent bool
	estimates  bool
	resets     bool // the provider has reported some
	changed    bool // the script keeps tiers of another plan, too

	knownUntil               int64 // nothing is reserved at this instant or later
	exists                   bool  // a state exists
	now, wall, gen, frontier int64
	guardNow                 int64 // of the requests of this call
	atFrontier               int64 // how many were reserved at the frontier
	until, epoch             int64
	level                    int64 // back-offs in a row
	ban                      int64 // when it ends
	probe, probing           bool
	isProbe                  bool  // the last call has reserved the probe
	exact                    int64 // when the request was admitted whose response last had an exact count
	pool                     []chargeRecord
	leases                   []lease
	caller                   int64 // owner of this call's lease
	waits, first             bool  // the caller has callers that wait; a place was kept for it
	turnsEnd, delayedEnd     int64 // of requests that yield
	openTurns                int64
	lineEnd, lineFront       int64 // of requests that go later than soon
	lineOpen, lineUntil      int64
	mixedUntil, mixedPace    int64            // of turns while releases call by turns
	called                   *algorithms.Plan // of the last call
	latest                   int64            // when the last lease ends
	length                   int64            // of the last caller's lease
	grantsFrom               int64            // no places are granted before
	flights                  []algorithms.Flight
	history                  []chargeRecord // all charges, which are charged again under another plan

	observed bool           // the provider has reported something
	tail     []chargeRecord // the last charges, one request each
	base     *base          // the state without the tail; nil if there is no tail
	closed   bool           // this call adds nothing to the tail
}

// A base is the state of a twin after all charges but those of the tail.
type base struct {
	ledger               algorithms.Ledger
	frontier, atFrontier int64
	flights              []algorithms.Flight
	history              []chargeRecord
}

type chargeRecord struct {
	at     int64
	cost   []int64
	guard  int64 // how long until it lands
	landed bool  // lands at once
	good   int64 // in the tail, the guard without the reply's delay
	run    int   // in the tail, the number of the script's run that holds the charge
}

// A lease contains what an owner holds, and how it waits.
type lease struct {
	owner, seq, expiry int64
	held               []int64
	queuedAt           int64 // when it entered the queue, plus one; 0 if it is not there
	keptUntil          int64 // until when a place is kept for it; 0 if none is
	yields             bool
	headroom           int64
	want               []int64 // the cost that it waits for
}

var (
	errStale  = errors.New("stale")
	errClocks = errors.New("clocks")
)

func newTwin(plan *algorithms.Plan) *twin {
	m := new(twin)
	m.adopt(plan)
	return m
}

// adopt makes a new ledger for the plan.
func (m *twin) adopt(plan *algorithms.Plan) {
	m.plan, m.concurrent, m.estimates = plan, plan.Concurrent(), plan.Estimates()
	tiers := slices.Clone(plan.Given())
	for i, t := range tiers {
		if t.Algorithm == algorithms.Concurrency {
			tiers[i].Limit = algorithms.MaxLimit
		}
	}
	p, err := algorithms.NewPlan(tiers, plan.Guard())
	if err != nil {
		panic(err)
	}
	l := p.NewLedger()
	m.ledger = &l
}

// change is adopt, and charges again what was spent. The script does the same if the states of the
// tiers do not depend on when the plan changed.
func (m *twin) change(plan *algorithms.Plan) {
	m.removeTail()
	m.adopt(plan)
	m.pool, m.changed, m.observed = nil, true, false
	for _, c := range m.history {
		m.chargeLedger(c)
	}
	m.chargeTail()
}

// removeTail removes the charges of the tail.
func (m *twin) removeTail() {
	if m.base == nil {
		return
	}
	b := *m.base
	ledger := b.ledger.Clone()
	m.ledger, m.frontier, m.atFrontier = &ledger, b.frontier, b.atFrontier
	m.flights, m.history = slices.Clone(b.flights), slices.Clone(b.history)
}

// chargeTail charges the tail again.
func (m *twin) chargeTail() {
	m.base = nil
	if len(m.tail) == 0 {
		return
	}
	m.advance(m.now)
	m.keepBase()
	for _, c := range m.tail {
		m.charge(c.at, c.guard, c.cost)
	}
}

func (m *twin) keepBase() {
	m.base = &base{m.ledger.Clone(), m.frontier, m.atFrontier, slices.Clone(m.flights), slices.Clone(m.history)}
}

// commitTail makes charges permanent whose time has come, or all charges.
func (m *twin) commitTail(all bool) {
	if all {
		m.tail, m.base = nil, nil
	}
	if len(m.tail) == 0 || m.tail[0].at > m.now {
		return
	}
	m.removeTail()
	for len(m.tail) > 0 && m.tail[0].at <= m.now {
		m.charge(m.tail[0].at, m.tail[0].guard, m.tail[0].cost)
		m.tail = m.tail[1:]
	}
	m.chargeTail()
}

func (m *twin) mayTrail() bool {
	return m.until <= m.now && !m.probe && !m.estimates && !m.observed && len(m.plan.PeriodStarts(0)) == 0
}

// reserveAt charges a request, and adds it to the tail if it can.
func (m *twin) reserveAt(at, guard, good int64, cost []int64) {
	n := len(m.tail)
	joins := n > 0 && m.tail[n-1].at == at
	switch {
	case at > m.now && (joins || at > m.frontier+good) && !m.closed && m.mayTrail():
		if m.base == nil {
			m.keepBase()
		}
		run := 0
		if n > 0 {
			run = m.tail[n-1].run
		}
		if !joins || m.tail[n-1].guard != guard || m.tail[n-1].good != good || !slices.Equal(m.tail[n-1].cost, cost) {
			run++
		}
		m.tail = append(slices.Clip(m.tail), chargeRecord{at: at, guard: guard, good: good, cost: cost, run: run})
		runs := make(map[int]bool)
		for _, c := range m.tail {
			runs[c.run] = true
		}
		if len(runs) > 64 {
			m.tail, m.base, m.closed = nil, nil, true
		}
	case n > 0:
		m.tail, m.base, m.closed = nil, nil, true
	}
	m.charge(at, guard, cost)
}

// withdraw removes a charge from the end of the tail, and then charges before it that were returned
// earlier.
func (m *twin) withdraw(at, guard int64, cost []int64) bool {
	if n := len(m.tail); n == 0 || m.tail[n-1].at != at || !m.takeFromTail(at, guard, cost) {
		return false
	}
	for len(m.tail) > 0 {
		last := m.tail[len(m.tail)-1]
		lent := slices.IndexFunc(m.pool, func(p chargeRecord) bool {
			return p.at == last.at && p.guard == last.guard && covers(p.cost, last.cost)
		})
		if lent < 0 {
			break
		}
		m.lend(lent, last.cost)
		m.takeFromTail(last.at, last.guard, last.cost)
	}
	return true
}

// takeFromTail removes a charge from the tail.
func (m *twin) takeFromTail(at, guard int64, cost []int64) bool {
	for n := len(m.tail) - 1; n >= 0; n-- {
		if c := m.tail[n]; c.at == at && c.guard == guard && slices.Equal(c.cost, cost) {
			m.tail = slices.Concat(m.tail[:n], m.tail[n+1:])
			return true
		}
	}
	return false
}

func (m *twin) moment(at int64) algorithms.Moment {
	return algorithms.Moment{At: at, Wall: at + m.wall - m.now}
}

func (m *twin) openOf(unit int) (n int64) {
	for _, l := range m.leases {
		n += l.held[unit]
		if l.keptUntil > 0 && slices.ContainsFunc(m.plan.Tiers(), func(t algorithms.Tier) bool {
			return t.Algorithm == algorithms.Concurrency && t.Unit == m.plan.Units()[unit]
		}) {
			n += l.want[unit]
		}
	}
	return n
}

// ownLease returns the caller's lease.
func (m *twin) ownLease() *lease {
	for i := range m.leases {
		if m.leases[i].owner == m.caller {
			return &m.leases[i]
		}
	}
	return nil
}

// othersWait reports whether other leases are before the caller in the queue, or nobody is granted a
// place.
func (m *twin) othersWait(yields bool) bool {
	return m.grantsFrom > m.now || !m.first && slices.ContainsFunc(m.leases, func(l lease) bool { return l.owner != m.caller && l.queuedAt > 0 && (yields || !l.yields) })
}

// queueTier returns the first tier for which a request of this cost queues, -1 if there is none.
func (m *twin) queueTier(cost []int64) int {
	for i, t := range m.plan.Tiers() {
		u := slices.Index(m.plan.Units(), t.Unit)
		if cost[u] > 0 && (t.Algorithm == algorithms.Concurrency || m.plan.Estimated(u)) {
			return i
		}
	}
	return -1
}

// before reports whether l entered the queue before other. At the same instant, the names of the
// owners decide.
func (l *lease) before(other *lease) bool {
	return cmp.Or(cmp.Compare(l.queuedAt, other.queuedAt), cmp.Compare(strconv.FormatInt(l.owner, 10), strconv.FormatInt(other.owner, 10))) < 0
}

// enterQueue puts the caller into the queue for a place.
func (m *twin) enterQueue(yields bool, headroom int64, cost []int64) {
	if !m.waits {
		return
	}
	l := m.ownLease()
	if l.queuedAt == 0 {
		l.queuedAt = m.now + 1
	}
	l.yields, l.headroom, l.want = yields, headroom, cost
}

// keepPlaces keeps places for the first leases in the queue.
func (m *twin) keepPlaces() {
	for {
		var first *lease
		for i := range m.leases {
			if l := &m.leases[i]; l.queuedAt > 0 && (first == nil || !l.yields && first.yields || l.yields == first.yields && l.before(first)) {
				first = l
			}
		}
		if first == nil || m.grantsFrom > m.now || m.fullTier(first.want, first.headroom) >= 0 {
			return
		}
		if at, _ := m.earliest(first.want, 0); m.estimates && at > 1<<52 {
			return
		}
		before := m.openUnits()
		first.queuedAt, first.keptUntil = 0, m.now+1_000_000
		if slices.Equal(before, m.openUnits()) {
			return
		}
	}
}

// openUnits returns how much is open of each unit.
func (m *twin) openUnits() (all []int64) {
	for u := range m.plan.Units() {
		all = append(all, m.openOf(u))
	}
	return all
}

// answer returns the answer to one step at an instant of TIME.
func (m *twin) answer(time int64, s step) ([]int64, error) {
	known := int64(math.MaxInt64)
	starts := m.plan.PeriodStarts(time + s.skew)
	for ; len(starts) > 0; starts = starts[5:] {
		if time < starts[0] || time >= starts[3] {
			return nil, errClocks
		}
		next, _ := slices.BinarySearch(starts[:5], time+1)
		known = min(known, starts[next+1])
	}
	if !m.exists {
		plan := m.plan
		*m = twin{exists: true, wall: time, gen: time}
		m.adopt(plan)
	}
	before := *m
	defer func() { m.called = m.plan }()
	m.keepLeases(max(0, time-m.wall))
	stepped := time < m.wall
	if stepped {
		m.pool = nil
	}
	m.now += max(0, time-m.wall)
	m.wall = time
	if m.called != nil && limitsOf(m.called) != limitsOf(m.plan) {
		m.mix(paceOf(m.called), paceOf(m.plan))
	}
	m.probing = m.probing && m.until > m.now
	m.knownUntil, m.isProbe = known, false
	if known < math.MaxInt64 {
		m.knownUntil -= m.wall - m.now
	}
	if m.leased() && !m.updateLease(s.lease, before.now) {
		*m = before
		return nil, errStale
	}
	var own []int64
	m.closed = false
	m.commitTail(stepped || !slices.Contains([]string{opReserve, opBudget, opStatus, opCancel, opRefund, opRefundOld, opLeave}, s.op) || !m.mayTrail())
	if stepped { // each call corrects the windows of a wrong date, also one that decides nothing
		m.advance(m.frontier)
	}
	m.dropExpired()
	switch s.op {
	case opReserve:
		own = m.reserve(args{s.args})
	case opBudget:
		own = m.reserve(args{s.args[1+s.args[0]:]})
	case opCancel, opRefund, opRefundOld:
		own = m.cancelReservations(args{s.args}, s.op)
	case opPause:
		own = m.pause(args{s.args})
	case opEndPause:
		own = m.end(args{s.args})
	case opStatus:
		own = m.status()
	case opCount:
		m.chargeLanded(s.args)
	case opLease:
		own = m.crossings(true)
	case opObserve:
		m.observe(args{s.args})
	case opLeave:
		m.leave(s.args[0], s.args[1])
	case opForget:
		m.ledger.Forget()
	}
	m.keepPlaces()
	if m.turnsEnd <= m.now && m.delayedEnd <= m.now { // the turns are over
		m.turnsEnd, m.delayedEnd, m.openTurns = 0, 0, 0
	}
	if m.lineOpen == 0 || max(m.lineUntil, m.until)+1_000_000 <= m.now {
		m.lineEnd, m.lineFront, m.lineOpen, m.lineUntil = 0, 0, 0, 0
	}
	head := []int64{m.now, m.gen, m.ttl(), m.epoch, 0, 0}
	switch {
	case m.ban > m.now:
		head[4], head[5] = m.ban, 1
	case m.until > m.now:
		head[4], head[5] = m.until, 2*int64(bit(m.isProbe))
	}
	head[5] += 4*int64(bit(m.mixedUntil > m.now)) + 8*m.level
	return append(head, own...), nil
}

type args struct{ rest []int64 }

func (a *args) next() int64 {
	n := a.rest[0]
	a.rest = a.rest[1:]
	return n
}

func (a *args) cost(units int) []int64 {
	c := a.rest[:units]
	a.rest = a.rest[units:]
	return c
}

func (m *twin) leased() bool { return m.concurrent || m.estimates }

// group reads one group of a reservation.
func (a *args) group(units int) (count, within int64, yields bool, headroom, soon, turn int64, cost []int64) {
	count, within = a.next(), a.next()
	if yields = count < 0; yields {
		count, headroom, soon, turn = -count, a.next(), a.next(), a.next()
	}
	return count, within, yields, headroom, soon, turn, a.cost(units)
}

// keepLeases makes all leases longer after a time without a call. A third of a lease may pass without
// one, and after twelve leases they end.
func (m *twin) keepLeases(gap int64) {
	longer := gap - m.length/3
	if longer <= 0 || gap >= 12*m.length {
		return
	}
	m.leases, m.latest = slices.Clone(m.leases), m.latest+longer
	for i := range m.leases {
		l := &m.leases[i]
		l.expiry += longer
		if l.keptUntil > 0 {
			l.keptUntil += longer
		}
	}
}

// updateLease updates the lease of the caller. The state was written before.
func (m *twin) updateLease(report []int64, before int64) bool {
	units := len(m.plan.Units())
	owner, seq, length, held := report[0], report[1], report[2], slices.Clone(report[5:5+units])
	m.caller, m.waits, m.first = owner, report[3] == 1, false
	open, settled := m.openEstimates(), make([]int64, units)
	for _, l := range m.leases {
		for u := range units {
			if l.expiry <= m.now {
				settled[u] += l.held[u]
			}
		}
	}
	m.leases = slices.DeleteFunc(slices.Clone(m.leases), func(l lease) bool { return l.expiry <= m.now })
	i := slices.IndexFunc(m.leases, func(l lease) bool { return l.owner == owner })
	seen := int64(0)
	if i >= 0 {
		seen = m.leases[i].seq
	}
	if i >= 0 && seq <= seen {
		return false
	}
	if m.estimates {
		for list := report[6+units:]; len(list) > 0; list = list[1+units:] {
			for u, n := range list[1 : 1+units] {
				if list[0] > seen && m.plan.Estimated(u) {
					settled[u] += n
				}
			}
		}
	}
	if i < 0 {
		m.leases, i = append(m.leases, lease{owner: owner, want: make([]int64, units)}), len(m.leases)
	}
	l := &m.leases[i]
	l.seq, l.expiry, l.held = seq, m.now+length, held
	m.latest, m.length = max(m.latest, l.expiry), length
	switch known := report[4]; {
	case known > m.gen+before:
		m.grantsFrom = m.now + length/3
	case known > 0 && known < m.gen:
		m.grantsFrom = max(m.grantsFrom, length/3)
	}
	if !m.waits {
		l.queuedAt, l.keptUntil = 0, 0
	}
	for i := range m.leases {
		if m.leases[i].keptUntil <= m.now {
			m.leases[i].keptUntil = 0
		}
	}
	if m.estimates {
		m.advance(m.now)
		now := m.openEstimates()
		for u := range open {
			open[u] -= now[u]
		}
		// Settled amounts may also be those of requests that got no response.
		for u := range open {
			open[u] -= settled[u]
		}
		m.ledger.Settle(m.moment(m.frontier), open, make([]int64, units))
		m.ledger.Unanswered(m.moment(m.frontier), algorithms.Landed, settled)
	}
	return true
}

// openEstimates returns how much is open of each unit that is estimated.
func (m *twin) openEstimates() []int64 {
	open := make([]int64, len(m.plan.Units()))
	for u := range open {
		if m.plan.Estimated(u) {
			open[u] = m.openOf(u)
		}
	}
	return open
}

func (m *twin) addHeld(cost []int64) {
	for i := range m.leases {
		for u, n := range cost {
			if m.leases[i].owner == m.caller {
				m.leases[i].held[u] += n
			}
		}
	}
}

// fullTier returns the first concurrency tier that has no room for the cost and the headroom, -1 if
// there is none.
func (m *twin) fullTier(cost []int64, headroom int64) int {
	for i, t := range m.plan.Tiers() {
		u := slices.Index(m.plan.Units(), t.Unit)
		if t.Algorithm == algorithms.Concurrency && cost[u] > 0 && m.openOf(u)+cost[u]+min(t.Limit*headroom/100, t.Limit-cost[u]) > t.Limit {
			return i
		}
	}
	return -1
}

func (m *twin) earliest(cost []int64, headroom int64) (at int64, tier int) {
	if at, tier = m.ledger.Earliest(m.moment(m.frontier), algorithms.Request{Cost: cost, Headroom: headroom}); tier >= 0 {
		tier++
	}
	return at, tier
}

// advance moves the frontier to an instant, and the ledger's clock with it, so that requests land
// that must have.
func (m *twin) advance(at int64) {
	if at > m.frontier {
		m.frontier, m.atFrontier = at, 0
	}
	m.earliest(make([]int64, len(m.plan.Units())), 0)
}

func (m *twin) charge(at, guard int64, cost []int64) {
	m.advance(at)
	m.atFrontier++
	m.history = append(m.history, chargeRecord{at: m.frontier, guard: guard, cost: cost})
	m.chargeLedger(m.history[len(m.history)-1])
}

// chargeLanded charges each tier with units that have landed. The generator gives tiers of the same
// unit the same amount.
func (m *twin) chargeLanded(amounts []int64) {
	m.advance(m.now)
	cost := make([]int64, len(m.plan.Units()))
	for i, t := range m.plan.Tiers() {
		cost[slices.Index(m.plan.Units(), t.Unit)] = amounts[i]
	}
	m.history = append(m.history, chargeRecord{at: m.frontier, cost: cost, landed: true})
	m.chargeLedger(m.history[len(m.history)-1])
}

// chargeLedger charges the ledger.
func (m *twin) chargeLedger(c chargeRecord) {
	if c.landed {
		m.ledger.Count(m.moment(c.at), c.cost)
	} else {
		m.flights = append(m.flights, m.ledger.Charge(m.moment(c.at), algorithms.Request{Cost: c.cost, Guard: c.guard, Held: true}))
	}
	m.ledger.Release(c.cost)
}

// resolution returns the shortest guard in µs, 0 with NoGuard.
func (m *twin) resolution() int64 {
	if m.plan.Guard() == 0 {
		return 0
	}
	return 1 << m.plan.Resolution()
}

// setBack returns how far TIME was set back since the state began.
func (m *twin) setBack() int64 { return m.gen + m.now - m.wall }

// dropExpired takes back the returned reservations whose time has passed.
func (m *twin) dropExpired() {
	isLate := func(p chargeRecord) bool { return p.at < max(m.now, m.until) }
	var late []chargeRecord
	for _, p := range m.pool {
		if isLate(p) {
			late = append(late, p)
		}
	}
	if m.pool = slices.DeleteFunc(m.pool, isLate); late == nil {
		return
	}
	slices.SortFunc(late, func(a, b chargeRecord) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.guard, b.guard)) })
	m.removeTail()
	m.advance(m.now)
	for _, p := range late {
		m.cancel(p.at+p.guard, p.cost, true)
	}
	m.chargeTail()
}

func (m *twin) reserve(a args) (out []int64) {
	turnLength, before, floor, guard, replyAt, shownAt, slack := a.next(), a.next(), a.next(), a.next(), a.next(), a.next(), a.next()
	if guard == 0 {
		guard = m.plan.Guard().Microseconds()
	}
	if m.ban > m.now {
		return nil
	}
	if shownAt > m.now {
		m.pool, m.now = nil, m.now+1
		if len(m.tail) > 0 {
			m.tail, m.base, m.closed = nil, nil, true
		}
	}
	replyAt += m.now
	m.guardNow = max(guard, m.resolution())
	line := m.enterLine(&a, replyAt, turnLength)
	defer func() { out = append(line.answer(), out...) }()
	if held := max(m.now, m.until); held >= m.knownUntil {
		return append([]int64{-1, held}, m.crossings(false)...)
	}
	soon := int64(250_000) // how long before a pause ends requests are reserved behind it
	if m.probing && m.awaitsReport() {
		soon = 0
	}
	if m.until <= m.now+soon {
		m.advance(max(m.now, m.until))
	}
	reserved, refused := false, false
	ofTurn := &turnLeft{twin: m, length: turnLength, before: before}
	if l := m.ownLease(); l != nil {
		kept := l.keptUntil
		m.first, l.keptUntil = kept > 0, 0
		defer func() {
			switch l := m.ownLease(); {
			case refused:
			case reserved:
				l.queuedAt = 0
			default: // the call only asked
				l.keptUntil = kept
			}
		}()
	}
	defer func() { out = append(out, m.crossings(reserved)...) }()
	hasTurn := false
	endTurn := func() {
		if hasTurn {
			hasTurn, m.openTurns = false, max(0, m.openTurns-1)
		}
	}
	for len(a.rest) > 0 {
		count, within, yields, headroom, nearby, turn, cost := a.group(len(m.plan.Units()))
		hasTurn = hasTurn || yields && turn > 0 && within != -2
		may, nextTurn := m.planTurn(max(turn, -turn), count, nearby, max(guard, m.resolution()), cost)
		for left := count; left > 0; left-- {
			if i := m.plan.TooLarge(cost); i >= 0 {
				out = append(out, int64(i+1), -1)
				continue
			}
			if m.until > m.now+soon {
				return append(out, -1, m.until)
			}
			i := m.fullTier(cost, headroom)
			if i < 0 && m.othersWait(yields) {
				i = m.queueTier(cost)
			}
			if i >= 0 { // the request must wait for a release
				refused = true
				m.enterQueue(yields, headroom, cost)
				if m.grantsFrom > m.now {
					return append(out, int64(i+1), m.grantsFrom)
				}
				return append(out, int64(i+1), -1)
			}
			lent, shorter := -1, int64(0)
			if !m.probe && !yields && !m.estimates {
				lent, shorter = m.findPooled(max(floor, replyAt), max(guard, m.resolution()), slack, cost)
			}
			at, tier := int64(0), -1
			if lent >= 0 {
				at = m.pool[lent].at
			} else {
				at, tier = m.earliest(cost, 0)
			}
			waits := false
			if ofTurn.first == 0 && !yields && at > replyAt+250_000 {
				waits, at, tier = line.wait(at, tier, left, cost, within, a.rest)
			}
			leaving, held := at, tier
			if yields {
				leaving, held = m.earliest(cost, headroom)
			}
			switch {
			case tier > 0 && m.plan.Exhausted(tier-1):
				if at > 1<<52 {
					at = -1
				}
				out = append(out, int64(tier), at)
				continue
			case at > 1<<52 && m.estimates:
				refused = true
				m.enterQueue(yields, headroom, cost)
				return append(out, int64(tier), -1)
			case at >= m.knownUntil:
				out = append(out, int64(tier), m.knownUntil)
				continue
			case at > 1<<52:
				out = append(out, int64(tier), -1)
				continue
			case within == -2:
				if leaving > 1<<52 {
					leaving = -1
				}
				out = append(out, int64(held), leaving)
				continue
			case within >= 0 && at-m.now > within:
				out = append(out, int64(tier), at)
				continue
			case yields && (leaving > m.now+nearby || may == count-left) && within >= 0 && leaving-m.now > within:
				if leaving > 1<<52 {
					leaving = -1
				}
				return append(out, int64(held), leaving)
			case yields && (leaving > m.now+nearby || may == count-left):
				endTurn()
				if leaving = nextTurn(min(leaving, 1<<52), left); within > 0 {
					leaving = min(leaving, m.now+within)
				}
				return append(out, int64(held), leaving)
			case waits:
				return append(out, int64(tier), at)
			case !yields && at > m.now && (ofTurn.first > 0 && line.isOver(at, ofTurn.first) || !ofTurn.admits(at, tier, cost, lent >= 0, reserved)),
				!yields && lent < 0 && at > m.now && m.mixedUntil > m.now && at > max(m.now, replyAt),
				!yields && lent < 0 && at > max(m.now, m.frontier)+m.mostApart(cost):
				if line.took = false; m.lineOpen > 0 {
					_, at, tier = line.wait(at, tier, left, cost, within, a.rest)
				}
				return append(out, int64(tier), at)
			}
			if at = leaving; at > m.now && !yields {
				ofTurn.take(cost)
			}
			if yields {
				endTurn()
			}
			if lent >= 0 {
				m.lend(lent, cost)
			} else {
				good := int64(0)
				if m.plan.Guard() > 0 {
					good = max(guard, m.resolution())
				}
				m.reserveAt(at, inFlightFor(at, guard, replyAt, m.plan), good, cost)
			}
			line.take()
			m.addHeld(cost)
			reserved, m.first = true, false
			nth := m.atFrontier
			if lent >= 0 {
				nth = 1
			}
			if shorter > 0 {
				out = append(out, -1<<32-shorter, at)
			} else {
				out = append(out, -1-nth, at)
			}
			m.probe = m.ledger.Probed() || m.probe
			if m.probe {
				good := int64(50_000)
				if guard > 0 {
					good = max(guard, 1<<m.plan.Resolution())
				}
				m.isProbe, m.probing, m.until = true, true, max(at, replyAt)+1_000_000+good
			}
		}
	}
	return out
}

// mostApart returns how far behind all reservations a request is reserved: 90 s, or the time in which
// the slowest tier admits two such requests.
func (m *twin) mostApart(cost []int64) int64 {
	most := (90 * time.Second).Microseconds()
	for i := range m.plan.Tiers() {
		limit, window := m.rateOf(i)
		if each := ceilDiv(window.Mul(window, big.NewInt(cost[m.plan.UnitOf(i)])), limit); each.IsInt64() {
			most = max(most, 2*each.Int64())
		}
	}
	return most
}

// rateOf returns the rate of a tier as a limit and a window in µs: of a calendar its longest period, and
// of a learned tier what it knows now.
func (m *twin) rateOf(tier int) (limit, window *big.Int) {
	t := m.plan.Tiers()[tier]
	switch {
	case t.Learns():
		rate := m.ledger.LearnedRates(m.moment(m.frontier))[tier].Rate
		return big.NewInt(int64(math.Round(rate * 1e6))), big.NewInt(t.Window.Microseconds() * 1e6)
	case t.Algorithm == algorithms.Calendar:
		return big.NewInt(t.Limit), big.NewInt(t.Period.Longest().Microseconds())
	}
	return big.NewInt(t.Limit), big.NewInt(t.Window.Microseconds())
}

// ceilDiv divides a by b, and rounds up.
func ceilDiv(a, b *big.Int) *big.Int { return a.Add(a, b).Sub(a, big.NewInt(1)).Div(a, b) }

// A turnLeft is what is left of the turn in which a process reserves times to come. It begins with the
// first of them. At one instant, and behind its end, the process gets what the tier that decides admits
// in a turn.
type turnLeft struct {
	*twin
	length, before int64
	first, instant int64
	taken, shared  []int64 // by unit, in the turn and at the instant
	isOver         bool    // the turn has ended before the instant
}

// admits reports whether a request may be reserved for an instant to come.
func (l *turnLeft) admits(at int64, tier int, cost []int64, pooled, reserved bool) bool {
	if l.first == 0 {
		l.first, l.taken = at, make([]int64, len(cost))
	}
	switch {
	case at == l.instant && pooled:
		return true
	case at == l.instant && l.isOver:
		return l.roomAtInstant(cost, l.taken) > 0
	case at == l.instant:
		return l.roomAtInstant(cost, l.shared) > 0
	case at-l.first < l.length:
		l.instant, l.shared, l.isOver = at, make([]int64, len(cost)), false
		return true
	case !reserved:
		return true
	}
	l.instant, l.isOver = at, true
	return tier > 0 && l.room(tier-1, cost, l.taken) > 0
}

func (l *turnLeft) take(cost []int64) {
	for u, n := range cost {
		l.taken[u] += n
		if l.shared != nil {
			l.shared[u] += n
		}
	}
}

// room returns how many more requests the tier admits in a turn.
func (l *turnLeft) room(tier int, cost, beside []int64) int64 {
	if tier < 0 || l.plan.Tiers()[tier].Algorithm == algorithms.Concurrency {
		return math.MaxInt64
	}
	u := l.plan.UnitOf(tier)
	limit, window := l.rateOf(tier)
	share := limit.Mul(limit, big.NewInt(l.length))
	share.Div(share, window)
	if !share.IsInt64() {
		return math.MaxInt64
	}
	return max(0, share.Int64()-beside[u])/cost[u] - l.before
}

// roomAtInstant returns how many more requests the tiers admit in a turn that refuse longest if one
// more comes than all tiers admit at the frontier.
func (l *turnLeft) roomAtInstant(cost, beside []int64) int64 {
	most := int64(1 << 52)
	for i, t := range l.plan.Tiers() {
		if n := cost[l.plan.UnitOf(i)]; n > 0 {
			most = min(most, t.Capacity()/n)
		}
	}
	times := func(k int64) (all []int64) {
		for _, n := range cost {
			all = append(all, k*n)
		}
		return all
	}
	fit := max(1, int64(sort.Search(int(most), func(k int) bool {
		at, _ := l.earliest(times(int64(k)+1), 0)
		return at > l.frontier
	})))
	if fit < most {
		_, tier := l.earliest(times(fit+1), 0)
		return l.room(tier-1, cost, beside)
	}
	room := int64(math.MaxInt64)
	for i, t := range l.plan.Tiers() {
		if u := l.plan.UnitOf(i); cost[u] > 0 && (fit+1)*cost[u] > t.Capacity() {
			room = min(room, l.room(i, cost, beside))
		}
	}
	return room
}

func latestOf(a, b *big.Int) *big.Int {
	if a.Cmp(b) < 0 {
		return b
	}
	return a
}

// A lineCall is what a call does in the line: that of requests which go later than soon. A turn is a place
// in the line and a length.
type lineCall struct {
	*twin
	near, turnLength int64
	lined            bool // the call takes part in the line
	place, length    int64
	has, took        bool // the caller has a turn; its requests go in it
}

// enterLine reads the caller's turn.
func (m *twin) enterLine(a *args, replyAt, turnLength int64) *lineCall {
	l := &lineCall{twin: m, near: replyAt, turnLength: turnLength}
	if len(a.rest) > 2 && a.rest[0] == 0 && a.rest[1] < 0 {
		l.lined, l.place, l.length, a.rest = true, -1-a.rest[1], a.rest[2], a.rest[3:]
		l.has = l.length > 0 && l.place < m.lineEnd && l.place >= m.lineFront-1_000_000
	}
	return l
}

// answer returns the caller's turn, zeros if it has none.
func (l *lineCall) answer() []int64 {
	switch {
	case !l.lined:
		return nil
	case l.has:
		return []int64{l.place, l.length}
	}
	return []int64{0, 0}
}

// wait reports whether a request goes later than soon, and when and because of which tier. The caller then
// has a turn for it and for the requests in rest.
func (l *lineCall) wait(at int64, tier int, left int64, cost []int64, within int64, rest []int64) (waits bool, due int64, by int) {
	if !l.lined || at >= 1<<52 || l.mixedUntil > l.now || l.frontier > l.now+4_000_000 {
		return false, at, tier
	}
	n := cost[l.plan.UnitOf(0)] // there is one tier, see the generator
	if n == 0 {
		return false, at, tier
	}
	open := l.lineOpen
	switch {
	case l.took || l.has && l.place <= l.lineFront:
		open = 0
	case l.has && l.place < l.lineEnd:
		before := new(big.Int).Mul(big.NewInt(l.place-l.lineFront), big.NewInt(l.lineOpen))
		open = before.Div(before, big.NewInt(l.lineEnd-l.lineFront)).Int64()
	}
	due, soon := l.behind(n, at, open), int64(1_500_000)
	switch {
	case l.has && l.place < l.lineFront:
		soon = 1_750_000
	case l.lineOpen > 0 && !l.has && !l.took:
		soon = 750_000
	}
	if due <= l.near+soon {
		return false, at, tier
	}
	if within == -1 || within >= 0 && due-l.now <= within {
		if l.lineOpen == 0 {
			l.lineEnd, l.lineFront, l.has = l.now, l.now, false
		}
		if !l.has {
			l.has, l.place, l.length, l.lineEnd = true, l.lineEnd, 0, l.lineEnd+1
		}
		more := max(0, l.takes(n, left, rest)-l.length)
		if l.length += more; l.place >= l.lineFront {
			l.lineOpen += more
		}
		l.lineUntil, l.took = max(l.lineUntil, due+l.length), false
	}
	return true, due, 1
}

// each returns for how long n units keep others waiting, and the length of a round of as many as the tier
// admits at once.
func (l *lineCall) each(n int64) (each, round int64) {
	t := l.plan.Tiers()[0]
	guard, window := l.guardNow, t.Window.Microseconds()
	ceil := func(a, b, c int64) int64 {
		p := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
		return p.Add(p, big.NewInt(c-1)).Div(p, big.NewInt(c)).Int64()
	}
	if t.Learns() {
		rate, window := l.rateOf(0)
		return ceilDiv(window.Mul(window, big.NewInt(n)), rate).Int64(), 0
	}
	switch t.Algorithm {
	case algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA:
		own := ceil(n, window, t.Limit)
		return max(own, ceil(own+guard, 1, max(1, t.Capacity()/n))), 0
	case algorithms.Calendar:
		window, guard = t.Period.Longest().Microseconds(), 0
	case algorithms.FixedWindow:
		guard = 0
	}
	return ceil(n, window+guard, t.Limit), window + guard
}

// behind returns when a request of n units goes behind open turns, if it would go at an instant without.
func (l *lineCall) behind(n, at, open int64) int64 {
	each, round := l.each(n)
	switch {
	case open == 0:
		return at
	case round == 0:
		return min(1<<52, at+open)
	}
	most := max(1, l.plan.Tiers()[0].Capacity()/n)
	cost := make([]int64, len(l.plan.Units()))
	cost[l.plan.UnitOf(0)] = (open/each%most + 1) * n
	first, _ := l.earliest(cost, 0)
	late := new(big.Int).Mul(big.NewInt(open/each/most), big.NewInt(round))
	if late.Add(late, big.NewInt(max(at, first))); late.BitLen() > 52 {
		return 1 << 52
	}
	return late.Int64()
}

// takes returns how long a turn has to be.
func (l *lineCall) takes(n, left int64, rest []int64) int64 {
	each, _ := l.each(n)
	length := new(big.Int).Mul(big.NewInt(each), big.NewInt(left))
	for a := (args{rest}); len(a.rest) > 0; {
		count, _, yields, _, _, _, cost := a.group(len(l.plan.Units()))
		if n := cost[l.plan.UnitOf(0)]; n > 0 && !yields {
			other, _ := l.each(n)
			length.Add(length, new(big.Int).Mul(big.NewInt(count), big.NewInt(other)))
		}
	}
	if length.Cmp(big.NewInt(l.turnLength)) > 0 {
		return max(each, l.turnLength)
	}
	return max(each, length.Int64())
}

// take ends the caller's turn, because its requests go.
func (l *lineCall) take() {
	if l.lined && l.has {
		if l.place >= l.lineFront {
			open := big.NewInt(max(0, l.lineOpen-l.length))
			open.Div(open.Mul(open, big.NewInt(l.lineEnd-l.place-1)), big.NewInt(max(1, l.lineEnd-l.lineFront-1)))
			l.lineFront, l.lineOpen = l.place+1, open.Int64()
		}
		l.has, l.took = false, true
	}
}

// isOver reports whether a request needs another turn than those before it in the call.
func (l *lineCall) isOver(at, first int64) bool {
	return l.lined && at > max(l.near+1_500_000, first)+l.turnLength
}

// leave ends a turn. When the last one has ended, no request waits behind turns. A negative number is the
// length of a turn in the line.
func (m *twin) leave(turn, number int64) {
	if number < 0 {
		if turn >= m.lineFront && turn < m.lineEnd {
			m.lineOpen = max(0, m.lineOpen+number)
		}
		return
	}
	if turn > m.turnsEnd {
		return
	}
	if m.openTurns = max(0, m.openTurns-1); m.openTurns == 0 {
		m.turnsEnd, m.delayedEnd = 0, 0
	}
}

// mix notes that a release has called whose plan is not that of the last call.
func (m *twin) mix(last, own int64) {
	if m.mixedUntil <= m.now {
		m.mixedPace, m.turnsEnd, m.delayedEnd, m.openTurns = last, 0, 0, 0
	}
	m.mixedUntil, m.mixedPace = m.now+10_000_000, min(m.mixedPace, own)
}

// limitsOf returns the text of a plan without its guard and its resolution.
func limitsOf(p *algorithms.Plan) string { return strings.SplitN(planText(p), " ", 3)[2] }

// paceOf returns for how long the fastest tier of a plan spaces requests that cost one unit.
func paceOf(p *algorithms.Plan) int64 {
	pace := int64(math.MaxInt64)
	for _, t := range p.Tiers() {
		if t.Window > 0 {
			pace = min(pace, (t.Window.Microseconds()+t.Limit-1)/t.Limit)
		}
	}
	if pace == math.MaxInt64 {
		return 1
	}
	return pace
}

// planTurn returns how many of the requests that yield may be reserved now, and a function that
// returns when to ask for the rest: at their pace, behind the turns that others have got.
func (m *twin) planTurn(turn, count, soon, guard int64, cost []int64) (may int64, next func(at, left int64) int64) {
	pace, fastest := big.NewInt(1), big.NewInt(1<<52)
	for i, t := range m.plan.Tiers() {
		n, window := cost[m.plan.UnitOf(i)], t.Window.Microseconds()
		if n == 0 || window == 0 {
			continue
		}
		limit, span := m.rateOf(i)
		own := ceilDiv(span.Mul(span, big.NewInt(n)), limit)
		if own.Cmp(fastest) < 0 {
			fastest = own
		}
		if t.Algorithm < algorithms.TokenBucket || t.Algorithm > algorithms.GCRA {
			pace = latestOf(pace, ceilDiv(new(big.Int).Mul(big.NewInt(n), big.NewInt(window+guard)), limit))
			continue
		}
		held := big.NewInt(max(1, t.Capacity()/n))
		if pace = latestOf(pace, own); !t.Learns() {
			pace = latestOf(pace, ceilDiv(new(big.Int).Add(own, big.NewInt(guard)), held))
		}
	}
	if m.mixedUntil > m.now {
		pace = new(big.Int).Mul(fastest, big.NewInt(m.mixedPace))
		pace.Div(pace, big.NewInt(2*paceOf(m.plan)))
		pace = latestOf(pace, big.NewInt(1))
	}
	length := func(n int64) int64 {
		if l := new(big.Int).Mul(pace, big.NewInt(n)); l.BitLen() <= 52 {
			return l.Int64()
		}
		return 1 << 52
	}
	together := max(1, new(big.Int).Div(big.NewInt(soon), pace).Int64())
	hasTurn := turn > 0 && turn+1_000_000 >= m.now && turn <= max(m.now, m.turnsEnd)
	may = count
	switch {
	case hasTurn && turn > m.now+soon:
		return 0, func(at, _ int64) int64 {
			m.openTurns++
			return max(at, turn)
		}
	case hasTurn && m.turnsEnd > turn+length(together):
		may = together
	case !hasTurn && m.turnsEnd > m.now+soon:
		may = 0
	}
	return min(may, count), func(at, left int64) int64 {
		m.openTurns++
		length := length(min(left, together))
		if m.mixedUntil > m.now {
			begins := max(m.now, m.turnsEnd)
			m.turnsEnd = min(1<<52, begins+length)
			return max(at, begins)
		}
		if hasTurn && left == count {
			at = max(at, m.delayedEnd)
			m.delayedEnd = min(1<<52, at+length)
			m.turnsEnd = max(m.turnsEnd, m.delayedEnd)
			return at
		}
		at = max(at, m.turnsEnd)
		m.turnsEnd = min(1<<52, at+length)
		return at
	}
}

// inFlightFor returns how long a request is in flight that is sent when its time has come and the
// reply is in.
func inFlightFor(at, guard, replyAt int64, p *algorithms.Plan) int64 {
	if guard == 0 {
		return 0
	}
	return max(0, replyAt-at) + max(guard, 1<<p.Resolution())
}

// crossings returns what the answer contains about each calendar tier.
func (m *twin) crossings(reserved bool) (out []int64) {
	byTier := make(map[int]algorithms.Crossing)
	if reserved {
		for _, c := range m.ledger.Crossings(m.moment(m.frontier)) {
			byTier[c.Tier] = c
		}
	}
	for i, t := range m.plan.Tiers() {
		if t.Algorithm != algorithms.Calendar {
			continue
		}
		if c, ok := byTier[i]; ok {
			out = append(out, int64(c.From), int64(c.To), c.Used, c.Until.UnixMicro())
		} else {
			out = append(out, 0, 0, 0, 0)
		}
	}
	return out
}

func (m *twin) cancelReservations(a args, op string) []int64 {
	gen, back, guard, taken := a.next(), a.next(), a.next(), int64(0)
	if guard == 0 {
		guard = m.plan.Guard().Microseconds()
	}
	guard = max(guard, m.resolution())
	m.removeTail()
	defer m.chargeTail()
	for len(a.rest) > 0 {
		at, cost := a.next(), a.cost(len(m.plan.Units()))
		switch {
		case gen != m.gen:
		case at <= m.now || at < m.until || back != m.setBack() || m.probe || m.estimates || op != opCancel:
			m.advance(m.now)
			if at > m.now && m.takeFromTail(at, guard, cost) || m.cancel(at+guard, cost, op != opRefundOld) {
				taken++
			}
		case m.withdraw(at, guard, cost) || m.addToPool(at, guard, cost) || m.cancel(at+guard, cost, true):
			taken++
		}
	}
	return []int64{taken}
}

// addToPool adds a returned reservation to the pool, and reports whether the pool had room.
func (m *twin) addToPool(at, guard int64, cost []int64) bool {
	i := slices.IndexFunc(m.pool, func(p chargeRecord) bool { return p.at == at && p.guard == guard })
	switch {
	case i >= 0:
		m.pool[i].cost = plus(m.pool[i].cost, cost, 1)
	default:
		m.pool = append(m.pool, chargeRecord{at: at, cost: cost, guard: guard})
	}
	return true
}

// findPooled returns the first entry of the pool that a request may take over, -1 if there is none, and by
// how much its guard is shorter than the request's. Of one instant, it prefers a guard that is not shorter,
// and then the most similar one.
func (m *twin) findPooled(from, guard, slack int64, cost []int64) (found int, shorter int64) {
	found = -1
	for i, p := range m.pool {
		shorter := max(0, guard-p.guard)
		drift := min(p.at-m.now, 5_000_000) // a thousandth of it is lost
		switch {
		case p.at < from, !covers(p.cost, cost), shorter > 0 && 1000*(slack-shorter) < drift:
			continue
		case found >= 0:
			f := m.pool[found]
			longer := func(p chargeRecord) bool { return p.guard >= guard }
			switch {
			case p.at > f.at, p.at == f.at && longer(f) && !longer(p):
				continue
			case p.at == f.at && longer(f) == longer(p) && max(p.guard-guard, guard-p.guard) > max(f.guard-guard, guard-f.guard):
				continue
			}
		}
		found = i
	}
	if found < 0 {
		return -1, 0
	}
	return found, max(0, guard-m.pool[found].guard)
}

// lend takes a cost out of an entry of the pool.
func (m *twin) lend(i int, cost []int64) {
	if m.pool[i].cost = plus(m.pool[i].cost, cost, -1); slices.Max(m.pool[i].cost) == 0 {
		m.pool = slices.Delete(m.pool, i, i+1)
	}
}

// covers reports whether large is at least small in each unit.
func covers(large, small []int64) bool {
	for u := range small {
		if small[u] > large[u] {
			return false
		}
	}
	return true
}

// plus returns a + times·b for each unit.
func plus(a, b []int64, times int64) []int64 {
	sum := slices.Clone(a)
	for u := range b {
		sum[u] += times * b[u]
	}
	return sum
}

// cancel removes a request from the requests in flight, except for its estimates, which its lease
// reports. If isOfPlan is true, it also takes back a request that has landed.
func (m *twin) cancel(lands int64, cost []int64, isOfPlan bool) bool {
	known := slices.Clone(cost)
	for u := range known {
		if m.plan.Estimated(u) {
			known[u] = 0
		}
	}
	own := algorithms.Flight(lands >> m.plan.Resolution())
	if lands > m.frontier && m.removeInFlight(own, known) {
		return true
	}
	m.ledger.Cancel(m.moment(m.frontier), algorithms.Landed, known)
	return isOfPlan && m.mixedUntil <= m.now && lands <= m.frontier && m.ledger.Cancel(m.moment(lands>>m.plan.Resolution()<<m.plan.Resolution()-1), own, known)
}

// removeInFlight removes a cost from the first flights from an instant on, if they contain it.
func (m *twin) removeInFlight(first algorithms.Flight, cost []int64) bool {
	ledger := m.ledger.Clone()
	slices.Sort(m.flights)
	for u, left := range cost {
		for _, f := range slices.Compact(slices.Clone(m.flights)) {
			some := make([]int64, len(cost))
			most := sort.Search(int(left), func(n int) bool { // as many as the flight contains
				c := ledger.Clone()
				some[u] = int64(n) + 1
				return f < first || !c.Cancel(m.moment(m.frontier), f, some)
			})
			if some[u] = int64(most); most > 0 {
				ledger.Cancel(m.moment(m.frontier), f, some)
				left -= some[u]
			}
		}
		if left > 0 {
			return false
		}
	}
	m.ledger = &ledger
	return true
}

func (m *twin) observe(a args) {
	guard := a.next()
	m.advance(m.now)
	for len(a.rest) > 0 {
		tier, used, since, cost, exact := int(a.next())-1, a.next(), a.next(), a.next(), a.next() == 1
		reset, slack := max(0, a.next()-(m.frontier-m.now)), a.next()
		m.resets = m.resets || reset > 0
		probed := m.ledger.Probing(tier)
		if t := m.plan.Tiers()[tier]; t.Algorithm != algorithms.Concurrency && !t.Learns() {
			m.observed = true
			m.ledger.Observe(m.moment(m.frontier), algorithms.Observation{
				Tier: tier, Used: used, Since: since, Cost: cost, Exact: exact && since >= m.exact, Before: m.now + 1, Guard: guard, Reset: reset, Slack: slack, Probe: true,
			})
			if probed && !m.ledger.Probing(tier) && m.probing {
				m.until, m.probe, m.probing = 0, false, false
			}
		}
		if exact {
			m.exact = max(m.exact, since)
		}
	}
}

func (m *twin) pause(a args) []int64 {
	length, ban, once, epoch, probe := a.next(), a.next(), a.next(), a.next(), a.next()
	p := store.Pause{For: time.Duration(length)}
	if len(a.rest) > 0 {
		p.Most, p.AtOnce = time.Duration(a.next()), a.next() == 1
	}
	backOff, tolerated := p.Most > 0, false
	if len(a.rest) > 0 {
		at := a.next()
		m.advance(m.now)
		tolerated = m.level == 0 && at <= m.frontier && m.ledger.Refused(m.moment(m.frontier), at, a.cost(len(m.plan.Units())))
	}
	if backOff && tolerated {
		return []int64{0}
	}
	if backOff {
		length = int64(p.Length(uint8(m.level)))
	}
	end := m.now + length
	until := m.until
	if m.probing {
		until = 0
	}
	longer := end > max(m.now, until) || probe == 1 && end == m.now && until <= m.now
	if once == 1 && epoch != m.epoch || once == 2 && epoch <= m.epoch || !longer {
		return []int64{0}
	}
	if ban == 1 {
		m.ban = end
	}
	m.until, m.probe, m.probing = end, m.probe || probe == 1, false
	if m.epoch = max(m.epoch+1, m.wall/1e6); once == 2 {
		m.epoch = epoch
	}
	if backOff {
		m.level = min(m.level+1, store.MostDoubled)
	}
	return []int64{1}
}

func (m *twin) end(a args) []int64 {
	waited := m.probing
	epoch, how, length := a.next(), a.next(), a.next()
	if how == 5 && epoch == m.epoch {
		m.level = 0
	}
	switch {
	case how == 0:
		m.until, m.ban, m.probe, m.probing, m.level = 0, 0, false, false, 0
		waited = waited && epoch == m.epoch
		m.epoch = max(m.epoch+1, epoch+1, m.wall/1e6)
	case epoch != m.epoch || !m.probing:
		waited = false
	case how == 4:
		m.until = max(m.until, m.now+length)
	default:
		m.probe = how == 2 || how == 6
		if how == 6 {
			m.ledger.ProbeAgain()
		}
		switch {
		case (how == 1 || how == 5) && m.awaitsReport():
			m.until = min(m.until, m.now+100_000)
		case how != 3:
			m.until, m.probing = 0, false
		}
	}
	return []int64{int64(bit(waited))}
}

// awaitsReport reports whether a response is awaited that shows whether a count has ended.
func (m *twin) awaitsReport() bool {
	return slices.ContainsFunc(m.plan.Tiers(), func(t algorithms.Tier) bool { return m.ledger.Probing(slices.Index(m.plan.Tiers(), t)) })
}

func instant(at int64) int64 {
	if at == algorithms.Never {
		return -1
	}
	return at
}

func (m *twin) status() []int64 {
	m.advance(m.now)
	out := make([]int64, 3*len(m.plan.Tiers()))
	for i, u := range m.ledger.Usage(m.moment(m.frontier)) {
		copy(out[3*i:], []int64{u.Used, instant(u.Next), instant(u.Fresh)})
	}
	for i, t := range m.plan.Tiers() {
		if t.Algorithm != algorithms.Concurrency {
			continue
		}
		open, next, fresh := m.openOf(slices.Index(m.plan.Units(), t.Unit)), m.frontier, m.frontier
		if open >= t.Limit {
			next = -1
		}
		if open > 0 {
			fresh = -1
		}
		copy(out[3*i:], []int64{open, next, fresh})
	}
	for i, known := range m.ledger.LearnedRates(m.moment(m.now)) {
		if m.plan.Tiers()[i].Learns() {
			out = append(out, learnedNumbers(known)...)
		}
	}
	return out
}

// learnedNumbers returns what is known of a rate as whole numbers.
func learnedNumbers(l *algorithms.LearnedRate) (out []int64) {
	for _, x := range []float64{l.Rate, l.Refused, l.Next, l.Noise} {
		out = append(out, int64(math.Round(x*1e6)))
	}
	return append(out, l.At)
}

// expandLearned returns the answer to status with the meaning of each learned tier's words instead of these.
func (s *subject) expandLearned(reply []int64) []int64 {
	words := headerLen + 3*len(s.plan.Tiers())
	head, words7 := slices.Clone(reply[:words]), reply[words:]
	for i, t := range s.plan.Tiers() {
		if t.Learns() {
			head = append(head, learnedNumbers(s.plan.LearnedRate(i, words7[:learnedWords], reply[0]))...)
			words7 = words7[learnedWords:]
		}
	}
	return append(head, words7...)
}

// freshAt returns the instant from which nothing that was ever charged matters.
func (m *twin) freshAt() int64 {
	at := max(m.now, m.frontier, m.until)
	if m.level > 0 { // the series of back-offs is remembered for a while
		at = max(at, m.now+2_000_000<<m.level)
	}
	at = max(at, m.latest)
	l := m.ledger.Clone()
	for _, u := range l.Usage(m.moment(max(m.now, m.frontier))) {
		if u.Fresh < algorithms.Never {
			at = max(at, u.Fresh)
		}
	}
	return at
}

// ttl returns when the key expires, in milliseconds: a second after freshAt.
func (m *twin) ttl() int64 { return 1000 + (m.freshAt()-m.now+999)/1000 }

// isTTL reports whether a key lives until nothing in it matters, and at most as much longer as a
// request is in flight. The script does not simulate the landings to find the exact instant.
func (m *twin) isTTL(ttl int64) bool {
	switch {
	case m.estimates: // nor does the script simulate the end of leases
		return ttl >= 1000
	case m.resets, m.changed: // nor the end of resets, nor tiers of another plan
		return ttl >= m.ttl()
	}
	longest := m.plan.Guard().Microseconds()
	for _, c := range m.history {
		longest = max(longest, c.guard)
	}
	return ttl >= m.ttl() && ttl <= m.ttl()+longest/1000+2
}

// mustBeFresh checks that a state that expires at an instant contains nothing that matters then.
func (m *twin) mustBeFresh(t testing.TB, at int64) {
	t.Helper()
	held := slices.ContainsFunc(m.leases, func(l lease) bool { return l.expiry > at })
	if held || m.until > at || m.frontier > at {
		t.Fatalf("got a state that expires at %d and is not fresh: %+v", at, m)
	}
	l := m.ledger.Clone()
	if open := m.openEstimates(); m.estimates { // estimates land when their leases have ended
		for _, lease := range m.leases {
			at := min(at, max(m.frontier, lease.expiry))
			l.Settle(m.moment(at), open, open)
			open = make([]int64, len(open))
		}
	}
	l.Earliest(m.moment(at), algorithms.Request{Cost: make([]int64, len(m.plan.Units()))})
	l.Forget() // the state lives longer if it has learned something
	if !l.Fresh(m.moment(at)) {
		t.Fatalf("got a state that expires at %d, before its tiers %v are fresh", at, m.plan.Tiers())
	}
}

// A step is one call of the script.
type step struct {
	op          string
	lease, args []int64
	skew        int64 // how far the caller's wall clock is ahead of TIME
}

func (s step) String() string {
	text := s.op + " " + numbers(s.args)
	if s.lease != nil {
		text += " lease " + numbers(s.lease)
	}
	return text
}

func numbers(list []int64) string {
	words := make([]string, len(list))
	for i, n := range list {
		words[i] = strconv.FormatInt(n, 10)
	}
	return strings.Join(words, " ")
}

// A subject is a server that runs the script with a TIME that the test chooses.
type subject struct {
	rdb  *redis.Client
	key  string
	plan *algorithms.Plan
	text string // of the plan
	// set sets the server's clock. If nil, the script gets TIME as one more argument.
	set  func(time.Time)
	eval func(keys []string, args ...any) *redis.Cmd

	even, together, shorter int64 // how many were reserved evenly, at one instant, and with a shorter guard
}

const theClock = "call('TIME')"

// clockedScript is the script with its TIME from the last argument. Its keys live an hour longer
// than it answers, because the server's own clock is not that TIME. Its rings begin so small that
// most of them grow.
var clockedScript = strings.NewReplacer(
	theClock, "(function() local now = table.remove(argv) return {string.sub(now, 1, -7), string.sub(now, -6)} end)()",
	"text(expiry)", "text(expiry + 3600000)",
	"local size = (32)", "local size = 2",
).Replace(joinScript())

func miniSubject(t testing.TB) *subject {
	s, _ := miniServer(t)
	return s
}

// miniServer returns a subject on a server in memory, and the server.
func miniServer(t testing.TB) (*subject, *miniredis.Miniredis) {
	m := redismem.New()
	rdb := redismem.Dial(m, nil)
	t.Cleanup(func() {
		_ = rdb.Close()
		m.Close()
	})
	return newSubject(t, rdb, scriptSource(), m.SetTime), m
}

// serverSubject returns a subject on a real server, for what miniSubject plays too.
func serverSubject(t testing.TB) *subject {
	t.Helper()
	soak.Long(t, inMemoryToo)
	return realSubject(t)
}

// inMemoryToo is why -short leaves out what is played on a real server, as well as on miniredis.
const inMemoryToo = "plays on a server what is played in memory"

func realSubject(t testing.TB) *subject {
	return newSubject(t, redistest.Start(t).PatientClient(), asScript(clockedScript), nil)
}

// functionSubject returns a subject on a real server that runs the script as a function of its own.
func functionSubject(t testing.TB) *subject {
	t.Helper()
	ctx := context.Background()
	rdb := redistest.Start(t).PatientClient()
	if err := rdb.FunctionLoad(ctx, asFunction("clocked", clockedScript)).Err(); err != nil {
		if strings.Contains(err.Error(), "unknown command") {
			t.Skip("the server has no functions")
		}
		t.Fatal(err)
	}
	return &subject{rdb: rdb, eval: func(keys []string, args ...any) *redis.Cmd {
		return rdb.FCall(ctx, "clocked", keys, args...)
	}}
}

func newSubject(t testing.TB, rdb *redis.Client, source string, set func(time.Time)) *subject {
	t.Helper()
	ctx := context.Background()
	hash, err := rdb.ScriptLoad(ctx, source).Result()
	if err != nil {
		t.Fatal(err)
	}
	return &subject{rdb: rdb, set: set, eval: func(keys []string, args ...any) *redis.Cmd {
		return rdb.EvalSha(ctx, hash, keys, args...)
	}}
}

// begin switches to a new quota and deletes the one before.
func (s *subject) begin(plan *algorithms.Plan) {
	if s.key != "" {
		s.rdb.Del(context.Background(), s.keys()...)
	}
	s.key = "quota:" + strconv.FormatUint(rand.Uint64(), 36)
	s.change(plan)
}

// keys returns the keys of the quota, including those of its leases.
func (s *subject) keys() []string {
	if !s.plan.Concurrent() && !s.plan.Estimates() {
		return []string{s.key}
	}
	return []string{s.key, s.key + ":leases", s.key + ":line"}
}

// change switches to another plan.
func (s *subject) change(plan *algorithms.Plan) { s.plan, s.text = plan, planText(plan) }

func (s *subject) answer(at int64, st step) ([]int64, error) {
	args := appendCost([]any{st.op, s.text}, s.plan.PeriodStarts(at+st.skew))
	for _, n := range st.lease {
		args = append(args, n)
	}
	for _, n := range st.args {
		args = append(args, n)
	}
	if s.set != nil {
		s.set(time.UnixMicro(at))
	} else {
		args = append(args, at)
	}
	reply, err := s.eval(s.keys(), args...).Int64Slice()
	if err != nil {
		return nil, err
	}
	if st.op == opReserve || st.op == opBudget {
		reply = s.expandRuns(reply, isLined(st))
	}
	if st.op == opStatus {
		reply = s.expandLearned(reply)
	}
	if reply[wallAt+1] > reply[0] {
		return nil, fmt.Errorf("now is %d and the state was written at %d", reply[0], reply[wallAt+1])
	}
	return slices.Delete(reply, wallAt, headerLen), nil // the twin's answers contain no TIME
}

// isLined reports whether a reservation takes part in the line.
func isLined(st step) bool {
	head := st.args
	if st.op == opBudget {
		head = head[1+head[0]:]
	}
	return len(head) > 8 && head[7] == 0 && head[8] < 0
}

// expandRuns returns the answer to a reservation with one pair of numbers for each request.
func (s *subject) expandRuns(reply []int64, lined bool) []int64 {
	head, own := reply[:headerLen:headerLen], reply[headerLen:]
	if len(own) == 0 { // during a ban
		return head
	}
	if lined { // the caller's turn
		head, own = append(head, own[:2]...), own[2:]
	}
	calendars := len(own) - 4*len(s.plan.PeriodStarts(0))/5
	for runs := own[:calendars]; len(runs) > 0; {
		switch {
		case runs[0] == 0:
			s.even += runs[2]
			runs = runs[4:]
		case runs[2] > 1 && runs[0] < -1:
			s.together += runs[2]
		}
		runs = runs[3:]
	}
	decided, _ := eachOf(own[:calendars], math.MaxInt, math.MaxInt)
	return slices.Concat(head, decided, own[calendars:])
}

const wallAt = headerLen - 2 // index of TIME in a reply, followed by when the state was written before

// compare runs a step on both and fails at the first difference.
func compare(t testing.TB, s *subject, m *twin, at int64, st step) []int64 {
	t.Helper()
	want, wantErr := m.answer(at, st)
	got, err := s.answer(at, st)
	if wantErr != nil {
		if err == nil || !strings.Contains(err.Error(), "THROTTLE "+wantErr.Error()) {
			t.Fatalf("at %d %v:\n got %v, %v\nwant error %v", at, st, got, err, wantErr)
		}
		return nil
	}
	if err == nil && len(got) > 2 && m.isTTL(got[2]) {
		m.mustBeFresh(t, got[0]+(got[2]-1000)*1000)
		got[2] = want[2]
	}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("at %d %v:\n got %v, %v\nwant %v\nplan %v, %v", at, st, got, err, want, m.plan.Tiers(), m.plan.Guard())
	}
	return got
}

// TestTwins plays random traces to the script and its twin. Most run on a real server, which is
// much faster.
func TestTwins(t *testing.T) {
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) { playRandom(t, miniSubject(t), soak.Times(4_000), false) })
	t.Run("redis", func(t *testing.T) { playRandom(t, serverSubject(t), soak.Times(10_000), false) })
	t.Run("function", func(t *testing.T) {
		soak.Long(t, inMemoryToo)
		playRandom(t, functionSubject(t), soak.Times(50_000), false)
	})
}

// TestTwinsOfLearnedTiers is TestTwins for plans with a tier that learns its rate.
func TestTwinsOfLearnedTiers(t *testing.T) {
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) { playRandom(t, miniSubject(t), soak.Times(4_000), true) })
	t.Run("redis", func(t *testing.T) { playRandom(t, serverSubject(t), soak.Times(20_000), true) })
}

// TestTwinsLend plays random traces to the script and its twin in which requests of several guards are
// returned and taken over.
func TestTwinsLend(t *testing.T) {
	t.Parallel()
	s := miniSubject(t)
	shorter := 0
	for n := range soak.Times(30) {
		g := &generator{Rand: rand.New(rand.NewPCG(uint64(n), 2))}
		g.plan = planOf(t, 50*time.Millisecond, pick(g, "30/s;algo=gcra", "10/s", "10/100ms;algo=sliding_log", "20/s;burst=5;algo=token_bucket"))
		m := newTwin(g.plan)
		s.begin(g.plan)
		at := int64(1_700_000_000_000_000)
		returnable := make(map[int64][]int64) // the instants of reservations, by guard
		for range 60 {
			at += g.Int64N(30_000)
			guard := pick[int64](g, 40_000, 50_000, 60_000, 80_000)
			st := step{op: opCancel, args: []int64{m.gen, m.setBack(), guard}}
			var kept []int64
			for _, instant := range returnable[guard] {
				if g.IntN(3) > 0 {
					st.args = append(st.args, instant, 1)
				} else {
					kept = append(kept, instant)
				}
			}
			if g.IntN(2) == 0 && len(st.args) > 3 {
				returnable[guard] = kept
				compare(t, s, m, at, st)
				continue
			}
			cost := pick[int64](g, 1, 1, 2)
			got := compare(t, s, m, at, step{op: opReserve, args: []int64{1_000_000, 0, 0, guard, 0, 0, pick(g, 0, g.Int64N(50_000)), 1 + g.Int64N(8), -1, cost}})
			for i := 6; i < len(got); i += 2 {
				if got[i] < -1<<32 {
					shorter++
				}
				if got[i] < -1 && got[i+1] > m.now && cost == 1 {
					own := guard - max(0, -1<<32-got[i])
					returnable[own] = append(returnable[own], got[i+1])
				}
			}
		}
	}
	if shorter < 50 {
		t.Errorf("got %d requests that took over times of a shorter guard, want 50 at least", shorter)
	}
}

var update = flag.Bool("update", false, "write the twin's answers into the traces in testdata")

// TestTraces plays the traces in testdata to the twin and the script.
func TestTraces(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.trace")
	if len(files) < 10 {
		t.Fatalf("got %d traces, want 10 at least", len(files))
	}
	m := miniSubject(t)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { playFile(t, m, file) })
	}
}

// playFile plays a trace. Its lines are
//
//	# a comment
//	plan 50ms 5/s + 10000/h    the guard and the tiers from here on
//	@1700000000000000          the time, in microseconds; @+1000 is later, @-1000 earlier
//	reserve 0 0 0 3 -1 1       a step: arguments as in script/main.lua;
//	status lease 7 1 1000000 0 0 2 with a lease, if the plan needs one
//	= 0 17 1000 0 0 0          its answer, or an error's first word
func playFile(t *testing.T, s *subject, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	var m *twin
	var at int64
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "=") {
			continue
		}
		fmt.Fprintln(&out, line)
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "" || word == "#":
		case word == "plan":
			guard, tiers, _ := strings.Cut(rest, " ")
			d, err := time.ParseDuration(guard)
			if err != nil {
				t.Fatalf("line %d: %v", i+1, err)
			}
			plan := planOf(t, d, strings.Split(tiers, "+")...)
			if m == nil {
				m = newTwin(plan)
				s.begin(plan)
			} else {
				m.change(plan)
				s.change(plan)
			}
		case word[0] == '@':
			n := integers(t, word[1:])[0]
			if word[1] == '+' || word[1] == '-' {
				n += at
			}
			at = n
		default:
			own, lease, _ := strings.Cut(rest, "lease")
			st := step{op: word, args: integers(t, own), lease: integers(t, lease)}
			switch word { // replies take no time
			case opReserve: // in one call
				st.args = slices.Insert(slices.Insert(st.args, 3, 0, 0, 0), 1, 0)
			case opBudget:
				n := int(1 + st.args[0])
				st.args = slices.Insert(slices.Insert(st.args, n+3, 0, 0, 0), n+1, 0)
			case opCancel, opRefund, opRefundOld: // the clock does not step
				st.args = slices.Insert(st.args, 1, 0)
			}
			want, err := m.answer(at, st)
			answer := "= " + numbers(want)
			if err != nil {
				answer = "= " + err.Error()
			}
			fmt.Fprintln(&out, answer)
			if *update {
				continue
			}
			if i+1 == len(lines) || lines[i+1] != answer {
				t.Errorf("line %d: %s\nthe twin answers %s\nwant the trace's next line", i+1, line, answer)
			}
			got, gotErr := s.answer(at, st)
			if len(got) > 2 && m.isTTL(got[2]) {
				got[2] = want[2]
			}
			if !slices.Equal(got, want) || err != nil && !strings.Contains(gotErr.Error(), "THROTTLE "+err.Error()) {
				t.Errorf("line %d: %s\n got %v, %v\nwant %s", i+1, line, got, gotErr, answer)
			}
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func integers(t *testing.T, text string) (list []int64) {
	t.Helper()
	for _, word := range strings.Fields(text) {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, n)
	}
	return list
}

var seed = flag.Uint64("seed", 0, "the seed of the first random trace. If 0, a fixed seed, or a random one with THROTTLE_SOAK above 1")

func playRandom(t *testing.T, s *subject, decisions int, learns bool) {
	first := *seed
	if first == 0 {
		first = 1
		if soak.Times(2) > 2 {
			first = rand.Uint64()
		}
	}
	done := 0
	n := first
	defer func() {
		t.Logf("%d decisions, %d of them reserved evenly, %d at one instant and %d with a shorter guard; the last trace is that of -seed=%d", done, s.even, s.together, s.shorter, n)
	}()
	for ; done < decisions; n++ {
		g := &generator{Rand: rand.New(rand.NewPCG(n, 1)), learns: learns}
		done += g.trace(t, s)
	}
}

// A generator makes random traces that test the difficult cases: the instants that were answered,
// batches, and clock steps.
type generator struct {
	*rand.Rand
	learns   bool // plans have a tier that learns its rate, mostly
	plan     *algorithms.Plan
	reserved []chargeRecord
	place    int64 // in the line, of the last answer
	length   int64
	seqs     [3]int64
	held     [3][]int64
	settled  [3][]int64 // and not reported yet

	unanswered [3][][]int64 // the settlements of calls without an answer
}

func pick[T any](g *generator, list ...T) T { return list[g.IntN(len(list))] }

// windowed lists all algorithms with a Window, also those that are yet to come.
var windowed = func() (list []algorithms.Algorithm) {
	for a := algorithms.SlidingLog; !strings.HasPrefix(a.String(), "algorithm("); a++ {
		if a != algorithms.Concurrency && a != algorithms.Calendar {
			list = append(list, a)
		}
	}
	return list
}()

func (g *generator) tier(a algorithms.Algorithm) algorithms.Tier {
	t := algorithms.Tier{
		Algorithm: a,
		Limit:     pick[int64](g, 1, 2, 3, 5, 10, 30),
		Window:    pick(g, time.Second, 20*time.Second, 100*time.Millisecond, 7919*time.Microsecond, time.Hour),
		Unit:      pick(g, "", "", "tokens"),
	}
	if t.Unit != "" {
		t.Limit *= pick[int64](g, 1, 7, 1000)
	}
	switch {
	case a == algorithms.Concurrency:
		t.Window = 0
	case t.Unit != "" && g.IntN(3) == 0:
		t.Estimated = true
	}
	switch {
	case a == algorithms.Calendar:
		t.Window, t.Period = 0, pick(g, algorithms.Day, algorithms.Week, algorithms.Month)
		t.Zone = pick(g, "", "Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut")
	case a == algorithms.SlidingWindow:
		t.Precision = pick[time.Duration](g, 0, t.Window/3, t.Window/100).Truncate(time.Microsecond)
	case a == algorithms.FixedWindow, a == algorithms.WeightedWindow:
		t.Phase = pick[time.Duration](g, 0, t.Window/3).Truncate(time.Microsecond)
		if a == algorithms.FixedWindow && g.IntN(3) == 0 {
			t.Phase = algorithms.UnknownPhase
		}
	case a == algorithms.TokenBucket, a == algorithms.LeakyBucket, a == algorithms.GCRA:
		t.Burst = pick[int64](g, 0, 1, t.Limit/2+1, 2*t.Limit)
		if g.IntN(8) == 0 { // products beyond 2^53
			t.Limit, t.Window, t.Burst = 999_983*pick[int64](g, 1, 1000), 30*24*time.Hour, pick[int64](g, 0, 3, 999)
		}
	}
	if isBucket := a >= algorithms.TokenBucket && a <= algorithms.GCRA; g.learns && isBucket && t.Window <= time.Hour && !t.Estimated {
		t.Learn = algorithms.Learn{Least: pick[int64](g, 0, 1), Most: t.Limit * pick[int64](g, 1, 2, 50)}
		return t
	}
	t.Budget = a != algorithms.Concurrency && g.IntN(6) == 0
	return t
}

// evenPlan returns a plan with one bucket that decides and tiers that mostly do not.
func (g *generator) evenPlan() *algorithms.Plan {
	limit := pick[int64](g, 3, 7, 30, 1000, 999_983, 3_000_000)
	tiers := []algorithms.Tier{{
		Algorithm: algorithms.TokenBucket + algorithms.Algorithm(g.IntN(3)),
		Limit:     limit,
		Window:    pick(g, time.Second, 20*time.Second, 7919*time.Microsecond),
		Burst:     pick(g, 0, 2*limit, limit/2+1),
	}}
	for range g.IntN(3) {
		t := g.tier(pick(g, windowed...))
		t.Limit, t.Burst, t.Estimated = t.Limit*pick[int64](g, 1, 100), 0, false
		tiers = append(tiers, t)
	}
	plan, err := algorithms.NewPlan(tiers, pick(g, 3*time.Microsecond, 100*time.Microsecond, time.Millisecond, 50*time.Millisecond))
	if err != nil {
		return g.evenPlan()
	}
	return plan
}

func (g *generator) newPlan() *algorithms.Plan {
	if g.IntN(4) == 0 && !g.learns {
		return g.evenPlan()
	}
	var tiers []algorithms.Tier
	if g.learns {
		tiers = append(tiers, g.tier(pick(g, algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA)))
	}
	for range g.IntN(4) + 1 - len(tiers) {
		a := pick(g, windowed...)
		switch g.IntN(10) {
		case 0:
			a = algorithms.Concurrency
		case 1:
			a = algorithms.Calendar
		}
		tiers = append(tiers, g.tier(a))
	}
	if g.IntN(3) == 0 { // a unit without other limits
		tiers = append(tiers, algorithms.Tier{Limit: pick[int64](g, 3, 30), Unit: "jobs", Algorithm: algorithms.Concurrency})
	}
	guard := pick[time.Duration](g, 0, 3*time.Microsecond, time.Millisecond, 50*time.Millisecond, 50*time.Millisecond, 2*time.Second)
	plan, err := algorithms.NewPlan(tiers, guard)
	if err != nil {
		return g.newPlan() // the plan is invalid: a unit has a Concurrency tier and is estimated
	}
	return plan
}

func (g *generator) trace(t *testing.T, s *subject) (decisions int) {
	g.plan = g.newPlan()
	m := newTwin(g.plan)
	s.begin(g.plan)
	for i := range g.held {
		g.held[i] = make([]int64, len(g.plan.Units()))
		g.settled[i] = make([]int64, len(g.plan.Units()))
	}
	at := int64(1_700_000_000_000_000) + g.Int64N(1e12)
	for range 40 {
		at += g.elapse(at, m)
		if g.IntN(8) == 0 {
			g.tryErrors(t, s, at)
		}
		st, owner := g.step(m, at)
		got := compare(t, s, m, at, st)
		if st.op != opReserve && st.op != opBudget || got == nil {
			continue
		}
		budgets := budgetsOf(g.plan)
		head := st.args[len(budgets):]
		guard, replyAt := cmp.Or(head[3], g.plan.Guard().Microseconds()), got[0]+head[4]
		groups, first := head[7:], 6
		if isLined(st) && len(got) > 6 {
			groups, first = groups[3:], 8
			g.place, g.length = got[6], got[7]
		}
		costs := costsOf(groups, len(g.plan.Units()))
		for i := first; i < len(got)-len(m.crossings(false)); i += 2 {
			decisions++
			if got[i] >= -1 {
				continue
			}
			cost := costs[(i-first)/2]
			shorter := max(0, -1<<32-got[i])
			if shorter > 0 {
				s.shorter++
			}
			g.reserved = append(g.reserved, chargeRecord{at: got[i+1], cost: cost, guard: inFlightFor(got[i+1], guard, replyAt, g.plan) - shorter})
			for u, n := range cost {
				g.held[owner][u] += n
			}
		}
	}
	return decisions
}

// tryErrors runs calls under another plan that end in an error. The next call must not be affected.
func (g *generator) tryErrors(t *testing.T, s *subject, at int64) {
	other := *s
	other.key = ""
	other.begin(g.newPlan())
	m := newTwin(other.plan)
	var lease []int64
	if units := len(other.plan.Units()); m.estimates {
		lease = append([]int64{1, 1, 1e6, 1, 0}, make([]int64, 2*units)...)
	} else if m.concurrent {
		lease = append([]int64{1, 1, 1e6, 1, 0}, make([]int64, units)...)
	}
	for _, st := range []step{
		{op: opReserve, args: []int64{5, 0, 0, 0, 0, 0, 0, 3, -1}}, // without costs
		{op: opPause, args: []int64{1000, 1}},
		{op: opObserve, args: []int64{1, 3, 0}},
		{op: opCancel, args: []int64{at}},
	} {
		st.lease = lease
		// With leases a tier may be full, and the rest is not read.
		if got, err := other.answer(at, st); err == nil && !m.leased() {
			t.Fatalf("%v: got %v, want an error", st, got)
		}
	}
	s.rdb.Set(context.Background(), other.key, "thr5 "+other.text+"\n", 0)
	_, _ = other.answer(at, step{op: opStatus})
	s.rdb.Del(context.Background(), other.keys()...)
}

// budgetsOf returns the numbers with which a reservation begins if the plan has budgets, or nil.
func budgetsOf(p *algorithms.Plan) (list []int64) {
	for i, t := range p.Tiers() {
		if t.Budget {
			list = append(list, int64(i+1))
		}
	}
	if list == nil {
		return nil
	}
	return append([]int64{int64(len(list))}, list...)
}

func costsOf(groups []int64, units int) (costs [][]int64) {
	for a := (args{groups}); len(a.rest) > 0; {
		count, _, _, _, _, _, cost := a.group(units)
		for range count {
			costs = append(costs, cost)
		}
	}
	return costs
}

func (g *generator) elapse(at int64, m *twin) int64 {
	switch g.IntN(20) {
	case 0:
		return -g.Int64N(pick[int64](g, 5_000_000, 7200e6, 3*86400e6))
	case 1:
		return g.Int64N(7200e6)
	case 2, 3, 4:
		return max(0, m.frontier-m.now+g.Int64N(3)-1)
	case 5, 6:
		return max(0, m.frontier+m.plan.Guard().Microseconds()-m.now+g.Int64N(3)-1)
	case 7, 8:
		return max(0, (m.freshAt()-m.now)/2)
	case 9:
		return 0
	default:
		return int64(math.Exp(g.Float64() * 14))
	}
}

func (g *generator) cost() []int64 {
	cost := make([]int64, len(g.plan.Units()))
	for u := range cost {
		most := int64(3)
		for _, t := range g.plan.Tiers() {
			if t.Unit == g.plan.Units()[u] && g.IntN(3) == 0 {
				most = t.Capacity() + g.Int64N(2)
			}
		}
		cost[u] = pick[int64](g, 1, 1, 1, 0, 1+g.Int64N(most))
	}
	if g.IntN(4) == 0 { // only one unit
		only := g.IntN(len(cost))
		cost = append(make([]int64, only), append([]int64{max(1, cost[only])}, make([]int64, len(cost)-only-1)...)...)
	}
	return cost
}

// overCost returns a cost that may exceed the capacity of a tier, by three times at most.
func (g *generator) overCost() []int64 {
	cost := g.cost()
	for _, t := range g.plan.Tiers() {
		u := slices.Index(g.plan.Units(), t.Unit)
		cost[u] = min(cost[u], 3*t.Capacity())
	}
	return cost
}

func (g *generator) within() int64 {
	return pick[int64](g, -1, -1, -1, -2, 0, g.Int64N(100_000), g.Int64N(10_000_000))
}

// guard returns 0 for the plan's guard, or a shorter guard for the requests.
func (g *generator) guard() int64 {
	if most := g.plan.Guard().Microseconds(); most > 0 {
		return pick(g, 0, 0, 1+g.Int64N(most))
	}
	return 0
}

// lease fills in what an owner holds, and what it has settled since its last report.
func (g *generator) lease(m *twin, at int64, s *step) (owner int) {
	owner = g.IntN(len(g.held))
	for u := range g.held[owner] {
		if n := g.held[owner][u]; n > 0 && g.IntN(2) == 0 {
			gone := 1 + g.Int64N(n)
			g.held[owner][u] -= gone
			if g.plan.Estimated(u) {
				g.settled[owner][u] += g.Int64N(2 * gone)
			}
		}
	}
	if g.seqs[owner]++; g.IntN(20) == 0 {
		g.seqs[owner] -= g.Int64N(2)
	}
	now := m.now + max(0, at-m.wall)
	then := *m
	then.keepLeases(max(0, at-m.wall))
	for _, l := range then.leases { // the end of its lease has settled its estimates
		if l.owner == int64(owner)+1<<47 && l.expiry <= now && m.estimates {
			for u := range g.held[owner] {
				if g.plan.Estimated(u) {
					g.held[owner][u] = 0
				}
			}
		}
	}
	s.lease = append([]int64{int64(owner) + 1<<47, g.seqs[owner], pick[int64](g, 1, 100_000, 30_000_000), min(1, g.Int64N(4)), 0}, g.held[owner]...)
	if m.exists && g.IntN(4) == 0 { // most of them know this state
		s.lease[4] = max(0, m.gen+m.now+pick[int64](g, -1e13, -1, 0, 0, 0, 1))
	}
	if m.estimates {
		g.unanswered[owner] = append(g.unanswered[owner], append([]int64{g.seqs[owner]}, g.settled[owner]...))
		s.lease = append(s.lease, int64(len(g.unanswered[owner])))
		s.lease = append(s.lease, slices.Concat(g.unanswered[owner]...)...)
		clear(g.settled[owner])
		if g.IntN(4) > 0 || len(g.unanswered[owner]) > 3 { // otherwise the answer is lost
			g.unanswered[owner] = nil
		}
	}
	return owner
}

func (g *generator) step(m *twin, at int64) (s step, owner int) {
	if m.leased() {
		owner = g.lease(m, at, &s)
	}
	s.skew = pick[int64](g, 0, 0, 0, g.Int64N(2*86400e6)-86400e6)
	add := func(n ...int64) { s.args = append(s.args, n...) }
	switch roll := g.IntN(22); {
	case g.plan.Learns() && g.IntN(40) == 0:
		s.op = opForget
	case g.plan.Learns() && g.IntN(6) == 0: // without a pause
		s.op = opPause
		add(0, 0, 0, 0, 0, 0, 0)
		g.refuse(m, &s)
	case roll == 21:
		s.op = opEndPause
		add(max(0, m.epoch-g.Int64N(10)/8), g.Int64N(7), g.Int64N(3_000_000))
	case roll >= 19:
		s.op = opObserve
		add(g.Int64N(2) * g.Int64N(500_000))
		for range 1 + g.IntN(2) {
			tier := g.IntN(len(g.plan.Tiers()))
			add(int64(tier)+1, g.Int64N(g.plan.Tiers()[tier].Capacity()+2), max(0, m.now-g.Int64N(1e6)), 1+g.Int64N(3), g.Int64N(2), pick(g, 0, g.Int64N(1e6), g.Int64N(20e6), g.Int64N(3600e6)), pick(g, 0, g.Int64N(2e6)))
		}
	case roll == 0:
		s.op = opStatus
	case roll == 1:
		s.op = opCount
		cost := g.overCost()
		for _, t := range g.plan.Tiers() {
			add(cost[slices.Index(g.plan.Units(), t.Unit)])
		}
	case roll == 2:
		s.op = opPause
		add(pick(g, g.Int64N(3_000_000), max(0, m.until-m.now)), g.Int64N(2)*g.Int64N(2), g.Int64N(3), max(0, m.epoch+1-g.Int64N(3)), g.Int64N(2))
		switch {
		case g.plan.Learns() && g.IntN(3) > 0:
			add(pick(g, 0, g.Int64N(20_000_000)), g.Int64N(2))
			g.refuse(m, &s)
		case g.IntN(2) == 0:
			add(1+g.Int64N(20_000_000), g.Int64N(2))
		}
	case roll == 3 && m.leased():
		s.op = opLease
	case roll == 3:
		s.op = opLeave
		if add(pick(g, 0, m.turnsEnd, m.turnsEnd+1, max(0, m.turnsEnd-g.Int64N(2_000_000))), 0); g.length > 0 {
			s.args = []int64{g.place, -g.length}
		}
	case roll <= 6 && len(g.reserved) > 0:
		s.op = pick(g, opCancel, opRefund, opRefundOld)
		add(m.gen-g.Int64N(10)/9, pick(g, m.setBack(), m.setBack(), m.setBack(), 0), g.reserved[len(g.reserved)-1].guard)
		for range 1 + g.IntN(min(8, len(g.reserved))) {
			i := len(g.reserved) - 1
			times := 1
			if s.op != opCancel {
				times += g.IntN(3) // it is no longer in flight
			}
			for range times {
				add(g.reserved[i].at)
				add(g.reserved[i].cost...)
			}
			g.reserved = g.reserved[:i]
			if i == 0 {
				break
			}
		}
	default:
		s.op = opReserve
		if list := budgetsOf(g.plan); list != nil {
			s.op = opBudget
			add(list...)
		}
		length := pick[int64](g, 0, 1000, 500_000, 500_000, 30_000_000, 3600_000_000)
		if s.op == opBudget || m.leased() { // the twin does not tell which of several tiers decides
			length = pick[int64](g, 0, 1e15)
		}
		add(length, pick[int64](g, 0, 0, 0, 1, 64), pick[int64](g, 0, 0, m.frontier), g.guard(), pick(g, 0, g.Int64N(2_000_000)), pick(g, 0, 0, 0, m.now+g.Int64N(100)), g.guard())
		if len(g.plan.Tiers()) == 1 && s.op == opReserve && !m.leased() && g.IntN(3) > 0 { // the twin does not tell what one of several tiers admits
			add(0)
			add(pick(g, [][]int64{{-1, 0}, {-1 - g.place, g.length}, {-1 - g.place, g.length}, {-1 - m.lineFront, g.Int64N(1_000_000)}}...)...)
		}
		for range 1 + g.IntN(3) {
			if count := pick[int64](g, 1, 2, 5, 30, 64); g.IntN(3) == 0 {
				add(-count, g.within(), pick(g, 0, g.Int64N(91)), pick(g, 0, g.Int64N(1_000_000)), g.turn(m))
			} else {
				add(count, g.within())
			}
			add(g.cost()...)
		}
	}
	return s, owner
}

// refuse appends the refusal of a request, most often of one that was admitted lately.
func (g *generator) refuse(m *twin, s *step) {
	at := pick(g, m.now, m.now, max(0, m.now-g.Int64N(2_000_000)), m.frontier+g.Int64N(2))
	if n := len(g.reserved); n > 0 && g.IntN(2) == 0 {
		at = g.reserved[n-1].at
	}
	s.args = append(append(s.args, at), g.cost()...)
}

// turn returns the turn of a process, which is negative if an earlier group of the round trip has it.
func (g *generator) turn(m *twin) int64 {
	turn := pick(g, 0, max(0, m.turnsEnd-g.Int64N(2_000_000)), m.now+g.Int64N(1_000_000))
	return pick(g, turn, turn, -turn)
}
