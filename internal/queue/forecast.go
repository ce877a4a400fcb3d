package queue

import (
	"time"

	"github.com/apithrottle/throttle/store"
)

// Forecasts are what newcomers are refused by whose deadline is too near.
//
// A forecast is a lower bound, and stays one while callers join and leave: it is not of
// the callers, but of the quota. How long some amounts take, in requests of any size, is a
// sum that the quota answers at once. If all waiters cost the same, the exact time of the
// n-th admission is played forward once, and who has the n-th place gets that time. A
// response that comes late, or a timer, makes both earlier than what happens, never later.
type forecasts struct {
	current    *forecast // nil if there is none
	next       *forecast // that replaces an old one when it reaches as far; nil if there is none
	extendedAt time.Time
}

// A forecast is the future as one copy of the quota has it.
type forecast struct {
	store.Forecast
	made     time.Time
	admitted int             // of this queue since
	cost     []int64         // of those, by unit
	each     []int64         // what a request costs of which this is a forecast; nil for any
	mixed    bool            // some that were admitted cost something else: the times below don't hold
	at       []time.Duration // when the n-th request is admitted since it was made
	tier     []int16         // that decides that
}

const (
	// A forecast is renewed after this time, and in long queues after a time for each
	// waiter: it does not see that responses take time and timers fire late.
	renewAfter    = time.Second
	renewPerPlace = 20 * time.Microsecond
	// So many admissions are played forward at once, or one for each of these times since
	// the last ones, if that is more: a small part of what a processor does. But never so
	// many that others wait for long.
	leastSteps  = 256
	timePerStep = 3 * time.Microsecond
	mostSteps   = 1 << 12
	// A review that looked at so many places may be followed by another one at once, and one
	// of more not earlier than takes a small part of a processor.
	reviewAlways   = 4096
	reviewPerPlace = 4 * time.Microsecond
)

// admitted counts what the copies of the quota do not contain.
func (f *forecasts) admitted(w *waiter) {
	for _, known := range []*forecast{f.current, f.next} {
		if known != nil {
			known.admitted++
			add(known.cost, w.request.Cost)
			known.isOf(w.request.Cost)
		}
	}
}

// drop forgets the forecasts after a change that lets requests go sooner, or much later.
func (f *forecasts) drop() { f.current, f.next = nil, nil }

// makeForecast returns a new forecast for newcomers of a cost, nil if the quota can't be
// foretold. Who is being asked for counts as charged already.
func (q *Queue) makeForecast(cost []int64, now time.Time) *forecast {
	quota, ok := q.config.Quota.(store.Forecaster)
	if !ok {
		return nil
	}
	f := &forecast{Forecast: quota.Forecast(), made: now, admitted: -len(q.asking), cost: make([]int64, len(cost))}
	if f.Forecast == nil {
		return nil
	}
	for _, w := range q.asking {
		for u, n := range w.request.Cost {
			f.cost[u] -= n
		}
		f.isOf(w.request.Cost)
	}
	return f
}

// isOf reports whether the forecast is one of requests that each cost that.
func (f *forecast) isOf(cost []int64) bool {
	if f.each == nil {
		f.each = cost
	}
	f.mixed = f.mixed || !equal(f.each, cost)
	return !f.mixed
}

// forecastNow returns the forecast to go by, with up to so many more admissions played
// forward, or nil. A new one takes over when it reaches as far as is asked for.
func (q *Queue) forecastNow(cost []int64, reach, steps int, now time.Time) *forecast {
	f := &q.forecasts
	if q.unwatch == nil { // nobody has waited, and the quota may have changed in any way
		f.drop()
	}
	uniform := q.waiters.costs(cost)
	if f.next != nil && uniform && !f.next.isOf(cost) {
		f.next = nil
	}
	switch {
	case f.current == nil:
		f.current = q.makeForecast(cost, now)
	case f.next == nil && (uniform && !f.current.isOf(cost) || now.Sub(f.current.made) > max(renewAfter, renewPerPlace*time.Duration(q.waiters.len()))):
		f.next = q.makeForecast(cost, now)
	}
	if uniform {
		for _, known := range []*forecast{f.next, f.current} {
			if known != nil && known.isOf(cost) {
				known.extend(cost, min(reach+known.admitted, len(known.at)+steps), q.config.Guard)
			}
		}
	}
	if f.next != nil && (!uniform || f.current.mixed || reach+f.next.admitted < len(f.next.at)) {
		f.current, f.next = f.next, nil
	}
	f.extendedAt = now
	return f.current
}

// extend plays admissions forward until the n-th, counted from 0.
func (f *forecast) extend(cost []int64, n int, guard func() time.Duration) {
	for len(f.at) <= n {
		r := store.Request{Cost: cost, Held: true}
		if guard != nil {
			r.Guard = guard()
		}
		at, tier := f.Next(r)
		if n := len(f.tier); tier < 0 && n > 0 { // it goes with the one ahead
			tier = int(f.tier[n-1])
		}
		f.at, f.tier = append(f.at, at), append(f.tier, int16(tier))
	}
}

// steps returns how many admissions may be played forward for one newcomer.
func (q *Queue) steps(now time.Time) int {
	return int(min(mostSteps, max(leastSteps, now.Sub(q.forecasts.extendedAt)/timePerStep)))
}

// expected returns a lower bound of a request's wait behind so many waiters that cost sum,
// and the tier that decides.
func (q *Queue) expected(w *waiter, ahead int, sum []int64, steps int, now time.Time) (wait time.Duration, tier int) {
	f := q.forecastNow(w.request.Cost, ahead, steps, now)
	if f == nil {
		return 0, -1
	}
	return q.expectedBy(f, w, ahead, sum, now)
}

// behind returns what is ahead of a request that so much waits ahead of.
func (f *forecast) behind(sum []int64) []int64 {
	ahead := make([]int64, len(sum))
	for u := range ahead {
		ahead[u] = max(0, f.cost[u]+sum[u])
	}
	return ahead
}

// expectedBy is expected by one forecast.
func (q *Queue) expectedBy(f *forecast, w *waiter, ahead int, sum []int64, now time.Time) (wait time.Duration, tier int) {
	cost, before := w.request.Cost, f.behind(sum)
	at, tier := f.Total(before, cost, 0)
	if n := ahead + f.admitted; n >= 0 && n < len(f.at) && !f.mixed && q.waiters.costs(cost) && f.at[n] > at {
		at, tier = f.at[n], int(f.tier[n])
	}
	if old := w.came.Add(q.config.Aging).Sub(f.made); w.class == Batch && q.config.Headroom > 0 && at < old {
		if leaving, decides := f.Total(before, cost, int64(q.config.Headroom)); leaving > at {
			at, tier = min(leaving, old), decides
		}
	}
	if at == forever {
		return 0, tier // only a release helps, and that may come at once
	}
	return max(0, at-now.Sub(f.made)), tier
}

// foresee refuses a newcomer that is known to be late. Of waiters that were overtaken some
// may be late, too, and take no place from it: they are refused first, or the newcomer is
// let in.
func (q *Queue) foresee(w *waiter, now time.Time) error {
	if w.deadline.IsZero() {
		return nil
	}
	wait, tier, ahead := q.forecast(w, now)
	if wait > w.timeLeft(now) && q.isDoubtful(w.rank) && q.review(now, q.steps(now)) {
		wait, tier, ahead = q.forecast(w, now)
	}
	if wait <= w.timeLeft(now) || q.isDoubtful(w.rank) {
		return nil
	}
	return &Refusal{Reason: Late, Tier: tier, Wait: wait, Ahead: ahead}
}

// isDoubtful reports whether somebody ahead of that rank may be late.
func (q *Queue) isDoubtful(rank time.Time) bool {
	return !q.doubtful.IsZero() && !rank.Before(q.doubtful)
}

// overtook notes that the waiters behind w have been overtaken.
func (q *Queue) overtook(w *waiter) {
	if next := w.next(); next != nil && (q.doubtful.IsZero() || next.rank.Before(q.doubtful)) {
		q.doubtful = next.rank
	}
}

// forecast returns a lower bound of a newcomer's wait.
func (q *Queue) forecast(w *waiter, now time.Time) (wait time.Duration, tier, ahead int) {
	sum := make([]int64, len(w.request.Cost))
	ahead, _ = q.waiters.ahead(w.rank, w.number, sum)
	tier = -1
	if n := len(q.reserved); n > 0 {
		d := q.reserved[min(ahead, n-1)] // its own time, or the last of those ahead of it
		wait, tier = d.Reservation.Start.Sub(now), d.Tier
		if ahead < n || wait > w.timeLeft(now) {
			return max(0, wait), tier, ahead
		}
	}
	if least, decides := q.expected(w, ahead, sum, q.steps(now), now); least > wait {
		wait, tier = least, decides
	}
	return wait, tier, ahead
}

// Forecast returns a lower bound of how long a request that came now would wait behind
// those in the queue, the tier that decides, and how many are ahead of it.
func (q *Queue) Forecast(r store.Request, c Class) (wait time.Duration, tier, ahead int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	w := &waiter{request: r, class: c, came: now}
	w.rank = q.rank(w)
	return q.forecast(w, now)
}

// review refuses the waiters that a pause or others that overtook them make late, from the
// first on: each that goes makes room for those behind it. It reports whether it did: not
// if it took long a moment ago.
func (q *Queue) review(now time.Time, steps int) bool {
	if now.Before(q.reviewAgainAt) {
		return false
	}
	q.doubtful = time.Time{}
	root := q.waiters.root
	if root == nil {
		return true
	}
	r := reviewer{queue: q, now: now, forecast: q.forecastNow(root.request.Cost, q.waiters.len(), steps, now)}
	if r.forecast == nil {
		return true
	}
	none := make([]int64, len(root.request.Cost))
	for w := r.late(root, 0, none); w != nil; w = r.late(q.waiters.root, 0, none) {
		q.expel(w, r.refusal)
	}
	if r.looked > reviewAlways {
		q.reviewAgainAt = now.Add(time.Duration(r.looked) * reviewPerPlace)
	}
	q.settle(now, nil)
	return true
}

// A reviewer looks for waiters that are late.
type reviewer struct {
	queue    *Queue
	forecast *forecast
	now      time.Time
	from     int      // waiters that are not late, or stay nevertheless
	looked   int      // at subtrees
	refusal  *Refusal // of the waiter found
}

// late returns the first waiter in a subtree that is late, nil if there is none. It does
// not look into a subtree whose last waiter goes before the soonest deadline in it.
func (r *reviewer) late(at *waiter, ahead int, sum []int64) *waiter {
	if at == nil || at.soonest.IsZero() || ahead+at.size <= r.from {
		return nil
	}
	r.looked++
	if r.bound(at, ahead, sum) <= at.soonest.Sub(r.now) {
		return nil
	}
	if w := r.late(at.left, ahead, sum); w != nil {
		return w
	}
	ahead += at.left.count()
	sum = append([]int64(nil), sum...)
	at.left.addTo(sum)
	if ahead >= r.from {
		if r.from = ahead; r.isLate(at, ahead, sum) {
			return at
		}
	}
	add(sum, at.request.Cost)
	return r.late(at.right, ahead+1, sum)
}

func (r *reviewer) isLate(w *waiter, ahead int, sum []int64) bool {
	if w.deadline.IsZero() || r.queue.isAsked(w) {
		return false
	}
	wait, tier := r.queue.expectedBy(r.forecast, w, ahead, sum, r.now)
	r.refusal = &Refusal{Reason: Late, Tier: tier, Wait: wait, Ahead: ahead}
	return wait > w.timeLeft(r.now)
}

// bound returns an upper bound of what the forecast says of any waiter in a subtree.
func (r *reviewer) bound(at *waiter, ahead int, sum []int64) time.Duration {
	f := r.forecast
	latest, _ := f.Total(f.behind(sum), at.sum, int64(r.queue.config.Headroom))
	if last := min(ahead+at.size-1+f.admitted, len(f.at)-1); last >= 0 {
		latest = max(latest, f.at[last])
	}
	if latest == forever {
		return forever
	}
	return latest - r.now.Sub(f.made)
}
