package queue

import (
	"math"
	"slices"
	"time"

	"github.com/apithrottle/throttle/store"
)

// forecasts are used to refuse newcomers whose deadline is too near. They are kept while callers
// wait, because only then the queue watches the quota. A caller that finds no queue needs none: see
// Config.soonest.
//
// A forecast is a lower bound and remains one while callers join and leave, because it depends on
// the quota and not on the callers. How long a total cost takes, in requests of any size, is a sum
// that the quota computes at once. If all waiters have the same cost, the forecast simulates the
// admissions once, and the n-th waiter gets the exact time of the n-th admission. Late responses
// and timers make the actual times later than the forecast, never earlier.
type forecasts struct {
	current    *forecast // nil if there is none
	next       *forecast // replaces current when it reaches as far; nil if there is none
	extendedAt time.Time
	// early reports that a forecast was made while a quota that does not reserve was asked. It then
	// takes the request for charged, which it may not have been.
	early bool
}

// A forecast is a forecast of one copy of the quota.
type forecast struct {
	store.Forecast
	config *Config
	made   time.Time
	// admitted is the number of this queue's admissions since made.
	admitted int
	// cost is the cost of those admissions, by unit.
	cost []int64
	// each is the cost of each request of the simulation. If nil, any.
	each []int64
	// mixed reports that admitted requests had different costs. The times below are then not valid.
	mixed bool
	// at are the times of the simulated admissions, counted from made.
	at []time.Duration
	// tier are the tiers that decide about the times.
	tier []int16
}

const (
	// A forecast is renewed after this time, and in long queues after a time for each waiter,
	// because it ignores that responses take time and timers fire late.
	renewAfter    = time.Second
	renewPerPlace = 20 * time.Microsecond
	// A newcomer may simulate leastSteps admissions, or one for each timePerStep since the last
	// simulation if that is more. This uses a small part of a processor. mostSteps limits how long
	// other callers wait.
	leastSteps  = 256
	timePerStep = 3 * time.Microsecond
	mostSteps   = 1 << 12
	// After a review that visited up to reviewAlways places, another may follow at once. After a
	// longer one, the next waits for reviewPerPlace a place, which limits reviews to a small part
	// of a processor.
	reviewAlways   = 4096
	reviewPerPlace = 4 * time.Microsecond
)

// admitted counts an admission, which the copies of the quota do not contain.
func (f *forecasts) admitted(w *waiter) {
	for _, known := range []*forecast{f.current, f.next} {
		if known != nil {
			known.admitted++
			add(known.cost, w.Request.Cost)
			known.noteCost(w.Request.Cost)
		}
	}
}

// charged notes that the copies of the quota may contain the charge of a waiter.
func (f *forecasts) charged(w *waiter) {
	for _, known := range []*forecast{f.current, f.next} {
		if known != nil {
			known.noteCharged(w)
		}
	}
}

// drop forgets the forecasts. It is called after a change that admits requests sooner, or much
// later.
func (f *forecasts) drop() { f.current, f.next = nil, nil }

// makeForecast returns a new forecast for newcomers of a cost, or nil if the quota has none. It
// counts waiters that are asked for as already charged.
func (q *Queue) makeForecast(cost []int64, now time.Time) *forecast {
	f := &forecast{Forecast: q.config.outlook().Forecast(), config: &q.config, made: now, cost: make([]int64, len(cost))}
	if f.Forecast == nil {
		return nil
	}
	q.forecasts.early = q.forecasts.early || len(q.calls.asking) > 0 && q.config.Reserver == nil || len(q.calls.stale) > 0
	for _, asked := range [][]*waiter{q.calls.asking, q.calls.stale} {
		for _, w := range asked {
			if !w.out.Load() { // else its cost may have other units
				f.noteCharged(w)
			}
		}
	}
	if q.config.Quota == nil {
		q.noteElsewhere(f)
	}
	return f
}

// noteElsewhere notes the waiters that other queues have admitted and that have not left yet. They are among
// the first ones.
func (q *Queue) noteElsewhere(f *forecast) {
	for w, others := q.waiters.first(), 0; w != nil && others < leastSteps; w = w.next() {
		if w.Elsewhere != nil && w.Elsewhere.mayBeTaken() {
			f.noteCharged(w)
		} else {
			others++
		}
	}
}

// noteCharged notes that the copy of the quota may contain the charge of a waiter.
func (f *forecast) noteCharged(w *waiter) {
	f.admitted--
	for u, n := range w.Request.Cost {
		f.cost[u] -= n
	}
	f.noteCost(w.Request.Cost)
}

// noteCost notes that the forecast has a request of a cost, and reports whether all its requests
// have the same cost.
func (f *forecast) noteCost(cost []int64) bool {
	if f.each == nil {
		f.each = cost
	}
	f.mixed = f.mixed || !slices.Equal(f.each, cost)
	return !f.mixed
}

// forecastNow returns the forecast to use while callers wait, or nil. It simulates up to steps more
// admissions. A new forecast replaces the old one when it covers reach admissions.
func (q *Queue) forecastNow(cost []int64, reach, steps int, now time.Time) *forecast {
	f := &q.forecasts
	uniform := q.waiters.costs(cost)
	if f.next != nil && uniform && !f.next.noteCost(cost) {
		f.next = nil
	}
	switch {
	case f.current == nil:
		f.current = q.makeForecast(cost, now)
	case f.next == nil && (uniform && !f.current.noteCost(cost) || now.Sub(f.current.made) > max(renewAfter, renewPerPlace*time.Duration(q.waiters.len()))):
		f.next = q.makeForecast(cost, now)
	}
	if uniform {
		for _, known := range []*forecast{f.next, f.current} {
			if known != nil && known.noteCost(cost) {
				known.extend(cost, min(reach+known.admitted, len(known.at)+steps))
			}
		}
	}
	if f.next != nil && (!uniform || f.current.mixed || reach+f.next.admitted < len(f.next.at)) {
		f.current, f.next = f.next, nil
	}
	f.extendedAt = now
	return f.current
}

// extend simulates admissions up to the n-th, counted from 0.
func (f *forecast) extend(cost []int64, n int) {
	for len(f.at) <= n {
		r := store.Request{Cost: cost, Held: true}
		if guard := f.config.Guard; guard != nil {
			r.Guard = guard()
		}
		at, tier := f.Next(r)
		if n := len(f.tier); tier < 0 && n > 0 { // it is admitted together with the one ahead
			tier = int(f.tier[n-1])
		}
		f.at, f.tier = append(f.at, at), append(f.tier, int16(tier))
	}
}

// steps returns how many admissions one newcomer may simulate.
func (f *forecasts) steps(now time.Time) int {
	return int(min(mostSteps, max(leastSteps, now.Sub(f.extendedAt)/timePerStep)))
}

// expected returns a lower bound of a request's wait behind ahead waiters of the total cost sum,
// and the tier that decides.
func (q *Queue) expected(w *newcomer, ahead int, sum []int64, steps int, now time.Time) (wait time.Duration, tier int) {
	if q.unwatch == nil {
		return q.config.soonest(w, now)
	}
	f := q.forecastNow(w.Request.Cost, ahead, steps, now)
	if f == nil {
		return 0, -1
	}
	return f.expected(w, ahead, sum, q.waiters.costs(w.Request.Cost), now)
}

// behind returns the total cost ahead of a request behind waiters of the total cost sum, counted
// from made.
func (f *forecast) behind(sum []int64) []int64 {
	ahead := make([]int64, len(sum))
	for u := range ahead {
		ahead[u] = max(0, f.cost[u]+sum[u])
	}
	return ahead
}

// expected is Queue.expected with a given forecast. It is uniform if all waiters have the cost of w.
func (f *forecast) expected(w *newcomer, ahead int, sum []int64, uniform bool, now time.Time) (wait time.Duration, tier int) {
	cost, before := w.Request.Cost, f.behind(sum)
	at, tier := f.Total(before, cost, 0)
	if n := ahead + f.admitted; n >= 0 && n < len(f.at) && !f.mixed && uniform && f.at[n] > at {
		at, tier = f.at[n], int(f.tier[n])
	}
	at, tier = f.config.yielding(w, f.made, at, tier, func(headroom int64) (time.Duration, int) {
		return f.Total(before, cost, headroom)
	})
	return max(0, at-now.Sub(f.made)), tier
}

// refuseIfLate refuses a newcomer that is known to be late. Overtaken waiters ahead of it may be
// late too. They must not lengthen its wait: a review refuses them first, or the newcomer joins.
func (q *Queue) refuseIfLate(w *newcomer, now time.Time) error {
	if w.deadline.IsZero() {
		return nil
	}
	if late := q.outlook(w, now).Refusal; late != nil {
		return late
	}
	return nil
}

// outlook returns what a newcomer would meet, without MaxQueue.
func (q *Queue) outlook(w *newcomer, now time.Time) (o Prospects) {
	var ahead int
	o.Wait, o.Tier, ahead = q.forecast(w, now)
	if o.Wait > w.timeLeft(now) && q.reviews.mayBeOvertaken(w.rank) && q.review(now, q.forecasts.steps(now)) {
		o.Wait, o.Tier, ahead = q.forecast(w, now)
	}
	if o.Wait > w.timeLeft(now) && !q.reviews.mayBeOvertaken(w.rank) {
		o.Refusal = &Refusal{Reason: Late, Tier: o.Tier, Wait: o.Wait, Ahead: ahead}
	}
	return o
}

// forecast returns a lower bound of a newcomer's wait.
func (q *Queue) forecast(w *newcomer, now time.Time) (wait time.Duration, tier, ahead int) {
	firm, sum := q.waiters.firmAhead(w.rank, w.number, len(w.Request.Cost))
	ahead = q.waiters.ahead(w.rank, w.number, nil)
	tier = -1
	if n := len(q.reserved); n > 0 {
		d := q.reserved[min(firm, n-1)] // its own time, or the last one ahead of it
		wait, tier = d.Reservation.Start.Sub(now), d.Tier
		if firm < n || wait > w.timeLeft(now) {
			return max(0, wait), tier, ahead
		}
	}
	if retry := q.calls.retry; firm > len(q.reserved) && retry == q.firstUnreserved() && q.calls.retryAt.After(now) && retry.Option == nil {
		if ready := q.calls.readyAt.Sub(now); ready > wait {
			wait, tier = ready, q.calls.decider-1
		}
	}
	if least, decides := q.expected(w, firm, sum, q.forecasts.steps(now), now); least > wait {
		wait, tier = least, decides
	}
	return wait, tier, ahead
}

// Prospects are what a caller would meet that joined now.
type Prospects struct {
	// Wait is a lower bound of the wait.
	Wait time.Duration
	// Tier is the tier that decides, or -1 if none does.
	Tier int
	// Ahead is how many callers are ahead, by class. It leaves out a caller that is asking with
	// Ticket.Ask, and so waits elsewhere.
	Ahead [3]int
	// Refusal is the refusal that the caller would get at once. If nil, it would join.
	Refusal *Refusal
}

// Forecast returns the prospects of a caller whose deadline is t.GiveUp. It uses the request, the Class
// and the GiveUp of t, whose Renew returns no error.
func (q *Queue) Forecast(t Ticket) Prospects {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	w := &newcomer{Ticket: t, deadline: t.GiveUp}
	w.Since = now
	_ = w.renew(q.config.Owner)
	w.rank = q.rank(w)
	o := q.outlook(w, now)
	if n := q.Len(); o.Refusal == nil && q.isLimited(n+1, now) {
		if q.waiters.ahead(w.rank, w.number, nil)+q.away.ahead(w.rank, math.MaxUint64, nil) == n {
			o.Refusal = &Refusal{Reason: Full, Tier: -1, Ahead: n}
		}
	}
	o.Ahead = q.waiters.aheadByClass(w.rank)
	for _, asked := range q.calls.asking {
		if asked.Ask != nil && !asked.out.Load() && asked.before(w.rank, math.MaxUint64) {
			o.Ahead[asked.Class]--
		}
	}
	return o
}

// DropForecast makes the queue forget what it expects, after a change of another quota that admits its
// callers sooner.
func (q *Queue) DropForecast() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forecasts.drop()
	if first := q.waiters.first(); first != nil && q.sitsOut(first) { // the end of a ban, perhaps
		q.calls.changedNow()
		q.reconcile(time.Now(), nil)
	}
}

// Ahead returns how many callers are ahead of a request that came now, by class.
func (q *Queue) Ahead(c Class) [3]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiters.aheadByClass(q.config.rank(&newcomer{Ticket: Ticket{Class: c, Since: time.Now()}}))
}

// reviews are the searches for waiters that are late.
type reviews struct {
	// nextAt is when the next review may run, after a long one.
	nextAt time.Time
	// overtakenFrom is the rank from which on waiters have been overtaken since the last review. If
	// zero, none have.
	overtakenFrom time.Time
}

// mayBeOvertaken reports whether waiters up to a rank have been overtaken and may be late.
func (r *reviews) mayBeOvertaken(rank time.Time) bool {
	return !r.overtakenFrom.IsZero() && !rank.Before(r.overtakenFrom)
}

// noteOvertaken notes that w has overtaken the waiters behind it.
func (r *reviews) noteOvertaken(w *waiter) {
	if next := w.next(); next != nil && (r.overtakenFrom.IsZero() || next.rank.Before(r.overtakenFrom)) {
		r.overtakenFrom = next.rank
	}
}

// review refuses the waiters that are late because of a pause or because they were overtaken, from
// the first on. Each refusal shortens the waits behind it. It returns false, without a review, if
// the last one was long and recent.
func (q *Queue) review(now time.Time, steps int) bool {
	if now.Before(q.reviews.nextAt) {
		return false
	}
	q.reviews.overtakenFrom = time.Time{}
	root := q.waiters.root
	if root == nil {
		return true
	}
	r := reviewer{queue: q, now: now, forecast: q.forecastNow(root.Request.Cost, q.waiters.len(), steps, now)}
	if r.forecast == nil {
		return true
	}
	none := make([]int64, len(root.Request.Cost))
	for w := r.late(root, 0, none); w != nil; w = r.late(q.waiters.root, 0, none) {
		q.expel(w, r.refusal)
	}
	if r.visited > reviewAlways {
		q.reviews.nextAt = now.Add(time.Duration(r.visited) * reviewPerPlace)
	}
	q.reconcile(now, nil)
	return true
}

// reviewEarly reviews the waiters after the reply to a request that a forecast took for charged: a
// newcomer may have joined that is late.
func (q *Queue) reviewEarly(now time.Time) {
	if q.forecasts.early {
		q.forecasts = forecasts{}
		q.review(now, q.forecasts.steps(now))
	}
}

// A reviewer searches for waiters that are late. It counts those ahead that do not wait elsewhere.
type reviewer struct {
	queue    *Queue
	forecast *forecast
	now      time.Time
	// from is the number of waiters that were checked and stay.
	from int
	// visited is the number of visited subtrees.
	visited int
	// refusal is the refusal of the waiter that was found.
	refusal *Refusal
}

// late returns the first waiter in a subtree that is late, or nil if there is none. It skips a
// subtree if its last waiter is admitted before the soonest deadline in it.
func (r *reviewer) late(at *waiter, ahead int, sum []int64) *waiter {
	if at == nil || at.soonest.IsZero() || ahead+at.firm() <= r.from {
		return nil
	}
	r.visited++
	if r.bound(at, ahead, sum) <= at.soonest.Sub(r.now) {
		return nil
	}
	if w := r.late(at.left, ahead, sum); w != nil {
		return w
	}
	ahead += at.left.firm()
	sum = append([]int64(nil), sum...)
	at.left.addFirm(sum)
	if at.Option != nil {
		return r.late(at.right, ahead, sum)
	}
	if ahead >= r.from {
		if r.from = ahead; r.isLate(at, ahead, sum) {
			return at
		}
	}
	add(sum, at.Request.Cost)
	return r.late(at.right, ahead+1, sum)
}

func (r *reviewer) isLate(w *waiter, ahead int, sum []int64) bool {
	if w.deadline.IsZero() || r.queue.calls.includes(w) {
		return false
	}
	wait, tier := r.forecast.expected(&w.newcomer, ahead, sum, r.queue.waiters.costs(w.Request.Cost), r.now)
	r.refusal = &Refusal{Reason: Late, Tier: tier, Wait: wait, Ahead: ahead}
	return wait > w.timeLeft(r.now)
}

// bound returns an upper bound of the forecast for all waiters in a subtree.
func (r *reviewer) bound(at *waiter, ahead int, sum []int64) time.Duration {
	f := r.forecast
	cost := make([]int64, len(sum))
	at.addFirm(cost)
	latest, _ := f.Total(f.behind(sum), cost, int64(f.config.Headroom))
	if last := min(ahead+at.firm()-1+f.admitted, len(f.at)-1); last >= 0 {
		latest = max(latest, f.at[last])
	}
	if latest == forever {
		return forever
	}
	return latest - r.now.Sub(f.made)
}
