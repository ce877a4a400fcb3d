package kept

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// A reserving is a quota that reserves ahead, for a fleet. A request counts from its start for as long as
// coordination takes and for its guard: no response lands it.
type reserving struct {
	*quota
	timing timing.Timing
}

var (
	_ store.Quota     = (*reserving)(nil)
	_ store.Reserver  = (*reserving)(nil)
	_ store.Bundler   = (*reserving)(nil)
	_ store.Lifecycle = (*reserving)(nil)
	_ store.Feedback  = (*reserving)(nil)
)

// Successor returns the newest quota and its plan.
func (q *reserving) Successor() (store.Quota, *algorithms.Plan) {
	newest := q.newest()
	return newest.ahead, newest.given
}

// Idle reports whether this process knows nothing that the keeper does not have, or may lose.
func (q *reserving) Idle() bool { return q.isIdle() }

// A trip is a transaction that reserves times for requests, in one quota or in several.
type trip struct {
	quotas   []*reserving
	guards   []time.Duration // of the quotas around the first, or zero for the plan's
	floor    *store.Reservation
	requests []store.Request
	// alone reports that the request does not wait.
	alone bool
	// headroom is by quota the percentage that requests which yield leave. If nil, it is theirs.
	headroom []int

	x       transaction
	terms   []timing.Terms
	reply   time.Duration
	results []result
}

// make makes the trip and returns the decisions on the first of the requests.
func (t *trip) make(ctx context.Context) (got []store.Decision, err error) {
	s := t.quotas[0].store
	for _, q := range t.quotas {
		t.x.quotas = append(t.x.quotas, q.quota)
	}
	t.x.prepare, t.x.decide, t.x.granted = t.prepare, t.decide, func() { got = t.decisions() }
	if t.quotas[0].hasFailed() { // then a reply that is lost costs one request
		t.requests = t.requests[:1]
	}
	limited, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	err = s.run(limited, &t.x)
	return got, err
}

// prepare sets the terms, before the transaction is sent.
func (t *trip) prepare(parts []*part) {
	var way, hold, most time.Duration
	most = store.Forever
	for _, r := range t.requests {
		way, hold = max(way, cmp.Or(r.Guard, t.quotas[0].plan.Guard())), max(hold, r.Hold)
	}
	for i, q := range t.quotas {
		if i > 0 {
			way = cmp.Or(t.guards[i-1], q.plan.Guard())
		}
		terms, slack := q.timing.Terms(way, hold, 1)
		parts[i].terms, parts[i].slack, parts[i].headroom = terms, slack, -1
		if t.headroom != nil {
			parts[i].headroom = int64(t.headroom[i])
		}
		t.terms = append(t.terms, terms)
		t.reply, most = max(t.reply, terms.Reply), min(most, max(0, q.timing.Bound-terms.Good))
	}
	t.reply = min(t.reply, most)
	for i := range t.terms {
		t.terms[i].Reply = t.reply
	}
}

// decide decides on the requests within the transaction.
func (t *trip) decide(parts []*part) {
	s := t.quotas[0].store
	c := claim{parts: parts, requests: t.requests, reply: t.reply, horizon: s.options.Horizon, soon: t.quotas[0].timing.Soon()}
	if f := t.floor; f != nil && f.State == parts[0].birth {
		c.floor = f.At
	}
	t.results = c.decide()
	t.x.requests = len(t.results)
}

// decisions converts the results to decisions, and adds what is held to the leases.
func (t *trip) decisions() (got []store.Decision) {
	for i, r := range t.results {
		got = append(got, t.decision(t.requests[i], &r))
	}
	t.gather(got)
	due := span{}
	for _, d := range got {
		if r := d.Reservation; r != nil {
			due = span{first: cmp.Or(due.first, r.Start), last: r.Start}
		}
	}
	for _, q := range t.quotas {
		q.expect(due)
	}
	return got
}

// gather lets the process ask again when all of its callers have come back, if no other one waits and the times of other
// processes come first. Otherwise a few callers would need a transaction each.
func (t *trip) gather(got []store.Decision) {
	if len(got) < len(t.requests) || len(got) == 0 {
		return
	}
	first, last := got[0].Reservation, got[len(got)-1].Reservation
	if first == nil || last == nil {
		return
	}
	if wait := first.Start.Sub(t.x.got); wait > 2*last.Start.Sub(last.Again) {
		last.Again = last.Start.Add(min(wait/16, gathering))
	}
}

// gathering is how long callers take to come back at most.
const gathering = 2 * time.Millisecond

func (t *trip) decision(r store.Request, res *result) store.Decision {
	q := t.quotas[0]
	if res.verdict == store.Admitted {
		return t.admitted(r, res)
	}
	p := t.x.parts[0]
	d := store.Decision{Verdict: res.verdict, Tier: res.tier, Wait: store.Forever, Epoch: p.pause.Epoch, Level: p.level}
	if res.at < algorithms.Latest {
		a := t.answer(0)
		d.Wait = a.Wait(res.at)
	}
	switch d.Verdict {
	case store.Later:
	case store.Exhausted:
		d.Crossed = q.takeCrossed()
		return d
	case store.Closed:
		d.Wait = p.now.Until(res.at)
		return d
	default:
		return d
	}
	switch notBefore := p.pause.Until; {
	case res.at >= algorithms.Latest:
		d.Wait = max(t.pollAfter(), p.now.Until(p.grantsFrom))
	case res.at == notBefore && notBefore > p.now.At:
		d.Wait = q.timing.BeforeEnd(d.Wait)
	case r.YieldFor > 0:
		if soon := q.timing.Soon(); d.Wait > soon {
			d.Wait -= soon / 2
		}
	case t.alone:
	default:
		d.Wait = min(d.Wait, q.store.options.Horizon)
	}
	return d
}

// The bounds of the time between two looks of a process that waits for places. The longest is half of mostMissed.
const (
	leastPoll = 10 * time.Millisecond
	mostPoll  = time.Second
)

// pollAfter returns when to ask again for places or estimates: the sooner the fewer processes have waited
// longer.
func (t *trip) pollAfter() time.Duration {
	before := 1
	for _, p := range t.x.parts {
		for i := range p.owners {
			if p.before(&p.owners[i], p.lease) {
				before++
			}
		}
	}
	return min(mostPoll, max(time.Duration(before*before)*leastPoll, t.quotas[0].timing.UsualTrip()))
}

func (t *trip) answer(i int) timing.Answer {
	p := t.x.parts[i]
	return timing.Answer{
		Reading: timing.Reading{Now: p.now.At, Wall: t.x.view.Wall, Generation: p.birth, Sent: t.x.view.Sent, Got: t.x.got},
		Bounds:  t.x.bounds[i], Terms: t.terms[i],
	}
}

// admitted returns the decision on a request that has a time. In several quotas it has a part for each.
func (t *trip) admitted(r store.Request, res *result) store.Decision {
	first := t.x.parts[0]
	all := &store.Reservation{}
	d := store.Decision{Verdict: store.Admitted, Tier: -1, Probe: res.isProbe(), Epoch: first.pause.Epoch, Level: first.level, At: res.at, Flight: res.flight}
	cost := r.Cost
	for i, q := range t.quotas {
		p, n := t.x.parts[i], len(q.plan.Units())
		own := t.reservation(i, res, cost[:n:n])
		charged := slices.ContainsFunc(own.Cost, func(n int64) bool { return n > 0 })
		if charged {
			owned := p.hasOwner(p.spread(own.Cost), own.At)
			q.lease.add(begins{at: own.At, guard: own.Guard.Microseconds(), cost: own.Cost, state: own.State, owned: owned}, p.now.At)
			if owned {
				q.lease.lastsUntil(own.Start)
			}
		}
		if own.Start.After(all.Start) {
			all.Start = own.Start
		}
		if i == 0 {
			*all = own
		} else if own.End.Before(all.End) {
			all.End = own.End
		}
		if len(t.quotas) > 1 {
			part := store.Decision{Verdict: store.Ready, Tier: -1, Epoch: p.pause.Epoch, Level: p.level, At: own.At, Reservation: &own, Crossed: q.takeCrossed()}
			if charged {
				part.Verdict, part.Probe = store.Admitted, res.probes[i]
			}
			q.trackProbe(part, r)
			all.Parts = append(all.Parts, part)
		} else {
			d.Crossed = q.takeCrossed()
		}
		cost = cost[n:]
	}
	all.Cost = r.Cost
	if d.Wait, d.Reservation = max(0, all.Start.Sub(t.x.got)), all; len(t.quotas) == 1 {
		t.quotas[0].trackProbe(d, r)
	}
	return d
}

// reservation returns the part of a reservation in the i-th quota.
func (t *trip) reservation(i int, res *result, cost []int64) store.Reservation {
	q, p, a := t.quotas[i], t.x.parts[i], t.answer(i)
	at := res.at - t.x.parts[0].offset + p.offset
	guard, early := time.Duration(res.guards[i])*time.Microsecond, time.Duration(0)
	if before := p.now.At + t.reply.Microseconds() - at; before > 0 {
		early = time.Duration(before) * time.Microsecond
	}
	shorter := time.Duration(0)
	if guard > 0 {
		shorter = max(0, t.terms[i].Guard+early-guard)
	}
	own := q.timing.Reservation(&a, at, max(1, res.nth), shorter)
	own.Clock, own.Cost, own.State, own.Guard = p.offset, cost, p.birth, guard
	own.Again = own.Start.Add(-q.lead(max(0, own.Start.Sub(t.x.got)), res.nth))
	return own
}

// A process asks for its next reservations ahead before its last one comes, by the server's clock, if it has waited long
// enough, and by apart earlier for each place that it is ahead of others at one instant.
const (
	ahead = 100 * time.Millisecond
	apart = 4 * time.Millisecond
)

// lead returns how long before a reservation that is a wait away, the nth at its instant, the process asks for the
// next ones. It leaves time for the answer. The first process to ask gets the earliest times. If those that are far from
// the server asked earlier than others, they would have more turns, so all ask as early as a distant one must,
// unless their waits are short. The start of a reservation is up to a quarter of a trip late, and the request is under
// way for another quarter.
func (q *reserving) lead(wait time.Duration, nth int64) time.Duration {
	trip := q.timing.UsualTrip()
	answer := 5*trip/4 + time.Millisecond + min(wait/16, 10*time.Millisecond)
	return max(answer, trip/2+min(wait/4, ahead)) + min(wait/256, apart)*time.Duration(max(0, 8-nth))
}

// trackProbe keeps the others waiting for the response to a request, if that is a probe, for as long as this process lives,
// and lets them go on if nobody will report a response.
func (q *reserving) trackProbe(d store.Decision, r store.Request) {
	if !d.Probe || !r.Held {
		return
	}
	q.entry.mu.Lock()
	q.probes[d.Epoch] = struct{}{}
	q.entry.mu.Unlock()
	q.extendProbe(d, d.Reservation.Start.Add(d.Reservation.Guard+store.ProbeTimeout))
}

// extendProbe extends the wait for a probe until its end.
func (q *reserving) extendProbe(d store.Decision, end time.Time) {
	time.AfterFunc(store.ProbeTime, func() {
		q.entry.mu.Lock()
		_, waits := q.probes[d.Epoch]
		q.entry.mu.Unlock()
		if !waits || time.Now().After(end) {
			return
		}
		_ = q.transact(context.Background(), func(p *part) {
			if p.pause.Probing && p.pause.Epoch == d.Epoch {
				length := min(2*store.ProbeTime, max(0, time.Until(end)))
				p.pause.Until, p.changed = max(p.pause.Until, p.now.At+algorithms.Micros(length)), true
			}
		})
		q.extendProbe(d, end)
	})
}

// TryAcquire asks once and does not reserve ahead. If the context ends, it returns at once and refunds the
// grant later.
func (q *reserving) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	if !q.line.IsNewest(q.version) {
		return moved, nil
	}
	type result struct {
		store.Decision
		err error
	}
	done := make(chan result, 1)
	p := q.store.reports.Begin()
	go func() {
		defer p.End(nil)
		d, err := q.tryAcquire(r, 0)
		done <- result{d, err}
	}()
	select {
	case a := <-done:
		return a.Decision, a.err
	case <-ctx.Done():
		q.store.reports.Background(func() error {
			q.Cancel([]store.Decision{(<-done).Decision})
			return nil
		})
		return store.Decision{}, ctx.Err()
	}
}

func (q *reserving) tryAcquire(r store.Request, tries int) (store.Decision, error) {
	spec := store.WaitSpec{}
	if r.WaitSpec != nil {
		spec = *r.WaitSpec
		spec.MaxWait = 0
	}
	r.WaitSpec = &spec
	t := &trip{quotas: []*reserving{q}, requests: []store.Request{r}, alone: true}
	got, err := t.make(context.Background())
	if errors.Is(err, errMoved) {
		return moved, nil
	}
	if err != nil {
		return store.Decision{}, err
	}
	d := got[0]
	if again, delay, err := t.isLate(got, tries); again {
		q.Cancel(got)
		if err != nil {
			return store.Decision{}, err
		}
		time.Sleep(delay)
		return q.tryAcquire(r, tries+1)
	}
	if d.Verdict == store.Late {
		d.Verdict = store.Later
	}
	return d, nil
}

// isLate reports whether the reply came too late for all of its reservations, and after which delay to try again. The
// error is that of a store that is too far away.
func (t *trip) isLate(got []store.Decision, tries int) (late bool, delay time.Duration, err error) {
	if len(got) == 0 || got[0].Reservation == nil {
		return false, 0, nil
	}
	for _, d := range got {
		if r := d.Reservation; r != nil && !r.Expired(t.x.got) && !r.End.Before(r.Start) {
			return false, 0, nil
		}
	}
	q := t.quotas[0]
	took := max(time.Millisecond, t.x.got.Sub(t.x.sent))
	delay, ok := q.timing.RetryAfter(took, q.store.options.Timeout, tries)
	if !ok {
		err = fmt.Errorf("%s: a transaction usually takes %v, and a reservation under this policy is valid for %v at most: use a server that is nearer, or longer windows",
			q.store.options.Name, took.Round(time.Millisecond), q.timing.Bound)
	}
	return true, delay, err
}

// Reserve makes a trip, in a goroutine that ends with it.
func (q *reserving) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	reserveBy(func(requests []store.Request) *trip {
		return &trip{quotas: []*reserving{q}, floor: behind, requests: requests}
	}, requests, done)
}

// reserveBy reserves times for requests by trips, in a goroutine, and calls done.
func reserveBy(newTrip func([]store.Request) *trip, requests []store.Request, done func([]store.Decision, error)) {
	first := newTrip(requests).quotas[0]
	report := first.store.reports.Begin()
	go func() {
		defer report.End(nil)
		for tries := 0; ; tries++ {
			t := newTrip(requests)
			if slices.ContainsFunc(t.quotas, func(q *reserving) bool { return !q.line.IsNewest(q.version) }) {
				done(slices.Repeat([]store.Decision{moved}, len(requests)), nil)
				return
			}
			got, err := t.make(context.Background())
			if errors.Is(err, errMoved) {
				continue
			}
			if err != nil {
				done(nil, err)
				return
			}
			late, delay, err := t.isLate(got, tries)
			switch {
			case late:
				t.cancel(got)
				if err != nil {
					done(nil, err)
					return
				}
				requests = requests[:1]
				time.Sleep(delay)
			case t.overtaken(got):
				t.cancel(got)
			default:
				done(got, nil)
				if t.overtaken(got) { // the watchers were called before they had these decisions
					first.notify(store.Eased, 0)
				}
				return
			}
		}
	}()
}

// cancel returns the reservations of the trip.
func (t *trip) cancel(got []store.Decision) {
	for i, q := range t.quotas {
		q.Cancel(t.partsOf(got, i))
	}
}

// partsOf returns the decisions of the i-th quota.
func (t *trip) partsOf(got []store.Decision, i int) []store.Decision {
	if len(t.quotas) == 1 {
		return got
	}
	return partsOf(got, i)
}

func (t *trip) overtaken(got []store.Decision) bool {
	for i, q := range t.quotas {
		if slices.ContainsFunc(t.partsOf(got, i), q.IsVoid) {
			return true
		}
	}
	return false
}

// IsVoid reports whether an event that voids reservations was seen after the decision, or the plan was replaced.
func (q *reserving) IsVoid(d store.Decision) bool {
	if d.Verdict != store.Admitted || d.Reservation == nil {
		return false
	}
	q.entry.mu.Lock()
	defer q.entry.mu.Unlock()
	return d.Reservation.Told.Before(q.voided) || !q.line.IsNewest(q.version)
}

// Trip returns the usual duration of a transaction.
func (q *reserving) Trip(ctx context.Context) time.Duration {
	if took := q.timing.UsualTrip(); took > 0 {
		return took
	}
	_ = q.transact(ctx, nil)
	return q.timing.UsualTrip()
}

// Cancel returns reservations that will not be used with the next transaction, or soon.
func (q *reserving) Cancel(reserved []store.Decision) {
	now := time.Now()
	for _, d := range reserved {
		if d.Verdict == store.Admitted && d.Reservation != nil {
			q.timing.AddWake(d.Reservation, now)
			q.giveBack(d, d.Reservation.Cost, true)
		}
	}
	q.reportSoon()
}

// giveBack returns what a reservation holds and its time. unused reports that no caller has used it.
func (q *reserving) giveBack(d store.Decision, cost []int64, unused bool) {
	q.endProbe(d, false)
	r := d.Reservation
	if r == nil {
		return
	}
	booked := q.lease.giveBack(q.plan, d, cost)
	if !timing.RefundableUntil(r, unused).After(time.Now()) {
		return
	}
	q.enqueue(func(t *txn) {
		if t.birth == r.State {
			t.refund(q.plan, r, cost, booked)
		}
	})
}

// Return refunds a request that was not sent.
func (q *reserving) Return(_ context.Context, d store.Decision, cost []int64) error {
	q.giveBack(d, cost, false)
	q.reportSoon()
	return nil
}

// Arrived reports probes only: a request is in flight until its guard has passed.
func (q *reserving) Arrived(d store.Decision, _ []int64) {
	if d.Probe {
		q.endProbe(d, true)
		q.reportSoon()
	}
}

// Unanswered settles the estimates at their full amount when the guard has passed.
func (q *reserving) Unanswered(d store.Decision, cost []int64) {
	q.quota.Unanswered(d, cost)
	q.reportSoon()
}

// Leave gives up the place of this process among those that wait for places or estimates, if it has one.
func (q *reserving) Leave() {
	if q.given.Concurrent() || q.given.Estimates() {
		q.lease.doubt()
		q.reportSoon()
	}
}

// Forecast returns a forecast that assumes no other requests in the fleet and no charges.
func (q *reserving) Forecast() store.Forecast {
	if !q.line.IsNewest(q.version) {
		return nil
	}
	l, clock, from := q.idleLedger()
	return store.Foretell(&l, clock, from)
}

// Soonest makes the assumptions of Forecast.
func (q *reserving) Soonest(cost []int64, headroom int64) (wait time.Duration, tier int) {
	if !q.line.IsNewest(q.version) {
		return 0, -1
	}
	if k := q.remembers(); k.pause.Banned > 0 && q.pausedFor() > 0 {
		return 0, -1
	}
	l, clock, from := q.idleLedger()
	return store.Soonest(&l, clock(), from, cost, headroom)
}

// idleLedger returns a ledger without charges, its clock, and the instant at which a pause ends.
func (q *reserving) idleLedger() (l algorithms.Ledger, clock func() algorithms.Moment, from int64) {
	clock = func() algorithms.Moment {
		now := time.Now().UnixMicro()
		return algorithms.Moment{At: now, Wall: now}
	}
	if left := q.pausedFor(); left > 0 && !q.remembers().pause.Probing {
		from = clock().At + left.Microseconds()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !q.knowsRates():
		return fresh(q.fastest), clock, from
	case q.plan.Learns():
		return q.seen.ledger.Unused(), clock, from
	}
	return fresh(q.plan), clock, from
}
