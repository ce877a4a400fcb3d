package throttle

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/store"
)

// A room is where callers wait for their turn, in the order in which they came. A
// place holds no tokens: who leaves gives up nothing and owes nobody anything.
//
// A quota that books ahead gives times to the room, not to callers: the first
// place has the first of them, the second the second. When somebody leaves, those
// behind move up, and a time that nobody wants goes back.
type room struct {
	mu      sync.Mutex      // guards all below
	queue   list.List       // of *waiter, by rank
	lines   [classes]line   // by class
	booked  []store.Decision // the times of the first places, in order
	asking  []*waiter       // those for whom the quota is being asked, which may have charged them already
	changed bool            // something changed since it was asked
	told    *waiter         // who was told to ask again
	toldAt  time.Time       // when the quota last answered
	askAt   time.Time       // when to ask again, if told has the first place without a time
	outage  error           // why the quota had no answer the last time
	recall  func()          // calls back who stands in an outer line, if anybody does; nil where there is none

	stop    func() // ends the watch on the quota; nil while nobody waits
	backoff backoff
	network *network // nil unless the guard is learned

	waiting atomic.Int64 // callers in the queue, for those who need not lock
}

// A line is what a room knows of those who are served before the next newcomer of a
// class.
type line struct {
	last     *list.Element  // all places up to this one are served before; nil for none known
	forecast store.Forecast // with all of them booked; nil if there is none
	made     time.Time      // when the forecast was made
	late     bool           // someone who is booked in the forecast has left, or goes ahead of others in it
}

// has tells whether a waiter is in the line.
func (l *line) has(w *waiter) bool {
	return l.last != nil && !w.rank.After(l.last.Value.(*waiter).rank)
}

// A waiter is one caller in the queue.
type waiter struct {
	request  store.Request
	class    Class
	rank     time.Time     // as if it were Interactive and had come then
	patience time.Time     // MaxWait ends; zero for never
	deadline time.Time     // the earlier of patience and the context's; zero for never
	wake     chan struct{} // holds one: look again
	place    *list.Element // nil once it is out of the queue
	out      atomic.Bool   // it is out of the queue, with one of these:
	booking  store.Decision
	refusal  error
}

const (
	refresh    = time.Second            // how old a forecast may grow: it does not see timers firing late
	retryStore = 250 * time.Millisecond // how often a store that does not answer is asked
	mostAsked  = 256                    // for how many a quota is asked at once
)

// aside returns the room, which is built when somebody first needs it.
func (g *gate) aside() *room {
	if r := g.room.Load(); r != nil {
		return r
	}
	r := new(room)
	if g.auto {
		r.network = newNetwork()
	}
	g.room.CompareAndSwap(nil, r)
	return g.room.Load()
}

// waiting is how many callers are in the queue.
func (g *gate) waiting() int {
	if r := g.room.Load(); r != nil {
		return int(r.waiting.Load())
	}
	return 0
}

// wait takes a place in the queue and blocks until the request is admitted, its
// context ends, or it is known to be late.
func (g *gate) wait(ctx context.Context, req store.Request) (store.Decision, error) {
	w, ask, nap, err := g.join(ctx, req)
	if err != nil {
		return store.Decision{}, err
	}
	for {
		if ask {
			g.ask(ctx)
		} else if err := w.sleep(ctx, nap); err != nil && !w.out.Load() {
			return g.quit(w, err)
		}
		if w.out.Load() {
			return w.booking, w.refusal
		}
		ask, nap = g.step(w)
	}
}

// sleep is the one place that does. It ends at the time, when the waiter is told
// to look again, or with the context.
func (w *waiter) sleep(ctx context.Context, d time.Duration) error {
	var rings <-chan time.Time
	if d < forever {
		t := time.NewTimer(d)
		defer t.Stop()
		rings = t.C
	}
	select {
	case <-rings:
	case <-w.wake:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// look tells the waiter to look again.
func (w *waiter) look() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// join takes the last place, unless the room is full or the wait would be too
// long, and tells what to do as step does.
func (g *gate) join(ctx context.Context, req store.Request) (w *waiter, ask bool, nap time.Duration, err error) {
	w = &waiter{request: req, class: classOf(ctx), wake: make(chan struct{}, 1)}
	if g.policy.MaxWait > 0 {
		w.patience = time.Now().Add(g.policy.MaxWait)
		w.deadline = w.patience
	}
	if d, ok := ctx.Deadline(); ok && (w.deadline.IsZero() || d.Before(w.deadline)) {
		w.deadline = d
	}
	r := g.aside()
	r.mu.Lock()
	defer r.mu.Unlock()
	if g.full(r, r.queue.Len()+1) {
		return nil, false, 0, g.refuse(ErrQueueFull, -1, 0)
	}
	now := time.Now()
	w.rank = g.policy.rank(w.class, now)
	w.request.WaitSpec = g.patience(w, now)
	overtaken := g.overtaken(r, w)
	if err := g.foresee(r, w, overtaken); err != nil {
		return nil, false, 0, err
	}
	r.enter(w, overtaken)
	if r.stop == nil {
		r.stop = g.quota.Watch(g.changed)
	}
	if overtaken != nil {
		g.settle(r, now, w) // the times of the first places move on
	}
	if r.recall != nil && w.place == r.queue.Front() {
		r.recall()
	}
	ask, nap = g.next(r, w)
	return w, ask, nap, nil
}

// patience is how a waiter's request waits from now on: a Batch one counts as a Normal
// one that came when it had waited for Ageing, and yields until then.
func (g *gate) patience(w *waiter, now time.Time) *store.WaitSpec {
	p := &store.WaitSpec{MaxWait: max(0, w.left())}
	if old := w.rank.Add(-g.policy.ageing()); w.class == Batch && old.After(now) {
		p.YieldFor, p.Headroom = old.Sub(now), int64(g.policy.Headroom)
	}
	return p
}

// overtaken is the first place that a newcomer goes ahead of, nil for none. Ranks of a
// class only grow, so that the search goes on where the last one of the class ended, and
// passes nobody twice.
//
// The times of a quota that books ahead are for what the first places cost, in their
// order: who costs something else goes behind them.
func (g *gate) overtaken(r *room, w *waiter) *list.Element {
	l := &r.lines[w.class]
	e := r.queue.Front()
	if l.last != nil {
		e = l.last.Next()
	}
	for ; e != nil && !e.Value.(*waiter).rank.After(w.rank); e = e.Next() {
		g.foretell(r, l, e)
		l.last = e
	}
	if e == nil || !g.books {
		return e
	}
	timed, passed, fits := r.queue.Front(), false, true
	for n := len(r.booked) + len(r.asking); n > 0 && timed != nil; n-- {
		passed = passed || timed == e
		fits = fits && (!passed || slices.Equal(timed.Value.(*waiter).request.Cost, w.request.Cost))
		timed = timed.Next()
	}
	if fits {
		return e
	}
	return timed
}

// enter puts a newcomer into the queue.
func (r *room) enter(w *waiter, overtaken *list.Element) {
	if overtaken != nil {
		w.place = r.queue.InsertBefore(w, overtaken)
	} else {
		w.place = r.queue.PushBack(w)
	}
	r.lines[w.class].last = w.place
	r.waiting.Add(1)
	for c := range r.lines {
		l := &r.lines[c]
		if l.forecast != nil && Class(c) != w.class && l.has(w) {
			l.forecast.Book(w.request, forever)
			l.late = true
		}
	}
}

// full tells whether n in the queue are too many, where they are known to wait: a
// caller who waits for the store to answer may be admitted by the answer.
func (g *gate) full(r *room, n int) bool {
	return g.policy.MaxQueue > 0 && n > g.policy.MaxQueue &&
		(!g.books || len(r.booked) > 0 || r.askAt.After(time.Now()))
}

// step tells a waiter that is still in the queue what to do: to ask the quota, or
// to sleep.
func (g *gate) step(w *waiter) (ask bool, nap time.Duration) {
	r := g.aside()
	r.mu.Lock()
	defer r.mu.Unlock()
	return g.next(r, w)
}

func (g *gate) next(r *room, w *waiter) (ask bool, nap time.Duration) {
	now := time.Now()
	if len(r.booked) > 0 && !r.booked[0].Reservation.Start.After(now) {
		g.settle(r, now, w)
	}
	switch {
	case w.place == nil:
		return false, forever // its wake-up is on its way
	case w.place == r.first() && len(r.asking) == 0:
		if g.prepare(r, now) {
			return true, 0
		}
		nap = time.Until(r.due(w))
		if !w.patience.IsZero() {
			nap = min(nap, time.Until(w.patience))
		}
		return false, nap
	case w.place == r.queue.Front() && len(r.booked) > 0:
		return false, time.Until(r.booked[0].Reservation.Start)
	}
	return false, forever
}

// first is the first place without a time, nil if there is none.
func (r *room) first() *list.Element {
	e := r.queue.Front()
	for range r.booked {
		e = e.Next()
	}
	return e
}

// due is when the quota is to be asked for the first waiter without a time.
func (r *room) due(first *waiter) time.Time {
	var due time.Time
	if n := len(r.booked); n > 0 {
		due = r.booked[n-1].Reservation.Again
	}
	if (first == r.told || r.outage != nil) && !r.toldAt.Before(due) { // it was asked then, in vain
		return r.askAt
	}
	return due
}

// prepare sets down for whom the quota is to be asked now, and tells whether it is
// for anybody.
func (g *gate) prepare(r *room, now time.Time) bool {
	e := r.first()
	if e == nil {
		return false
	}
	w := e.Value.(*waiter)
	if r.due(w).After(now) && (w.patience.IsZero() || w.patience.After(now)) {
		return false
	}
	most := 1
	if g.books {
		most = mostAsked
	}
	r.asking = make([]*waiter, 0, min(most, r.queue.Len()-len(r.booked)))
	for ; e != nil && len(r.asking) < most; e = e.Next() {
		w := e.Value.(*waiter)
		w.request.Guard = g.guard()
		w.request.WaitSpec = g.patience(w, now)
		r.asking = append(r.asking, w)
	}
	r.changed = false
	return true
}

// booker is the quota, which books ahead.
func (g *gate) booker() store.Reserver { return g.quota.(store.Reserver) }

// ask asks the quota, after prepare.
func (g *gate) ask(ctx context.Context) {
	r := g.aside()
	if !g.books {
		w := r.asking[0] // the caller's own: nobody else changes asking meanwhile
		b, err := g.stand(ctx, w.request)
		g.answered([]store.Decision{b}, err)
		return
	}
	r.mu.Lock()
	var behind *store.Reservation
	if n := len(r.booked); n > 0 {
		behind = r.booked[n-1].Reservation
	}
	requests := make([]store.Request, len(r.asking))
	for i, w := range r.asking {
		requests[i] = w.request
	}
	r.mu.Unlock()
	g.booker().Reserve(behind, requests, g.answered)
}

// answered is told the quota's answers for those who were first in asking.
func (g *gate) answered(got []store.Decision, err error) {
	r := g.aside()
	r.mu.Lock()
	now := time.Now()
	asked := r.asking
	r.asking, r.toldAt, r.askAt, r.outage = nil, now, time.Time{}, nil
	switch {
	case errors.Is(err, ErrUnavailable):
		r.outage, r.askAt = err, now.Add(retryStore)
		got = nil
	case err != nil:
		got = nil
		for _, w := range asked {
			g.expel(r, w, g.broken(err))
		}
	}
	for i, b := range got {
		g.answer(r, asked[i], b, now)
	}
	for _, w := range asked {
		if !w.patience.IsZero() && !w.patience.After(now) && r.outage != nil {
			g.expel(r, w, g.unavailable(r, context.DeadlineExceeded))
		}
	}
	if r.changed {
		r.askAt = time.Time{}
	}
	var self *waiter
	if !g.books {
		self = asked[0]
	}
	g.settle(r, now, self)
	more := g.books && g.prepare(r, now)
	r.mu.Unlock()
	if more {
		g.ask(context.Background())
	}
}

// answer acts on the answer for one waiter, who may have left.
func (g *gate) answer(r *room, w *waiter, b store.Decision, now time.Time) {
	switch {
	case b.Verdict == store.Admitted && g.books && b.Reservation != nil:
		r.booked = append(r.booked, b)
	case b.Verdict == store.Admitted:
		w.booking = b
		g.remove(r, w)
	case b.Verdict == store.Closed:
		g.expel(r, w, g.banned(b.Wait))
	case b.Verdict == store.Exhausted:
		g.expel(r, w, g.exhausted(b))
	case b.Verdict == store.Late,
		!w.patience.IsZero() && !w.patience.After(now),
		b.Tier == -1 && !w.deadline.IsZero() && w.deadline.Sub(now) < b.Wait: // a pause makes it late
		g.expel(r, w, g.refuse(ErrDeadline, b.Tier, b.Wait))
	default:
		if w.request.YieldFor > 0 { // then it may go where it may not now
			b.Wait = min(b.Wait, w.request.YieldFor)
		}
		r.told, r.askAt = w, now.Add(b.Wait)
	}
}

func (g *gate) banned(wait time.Duration) error {
	e := g.refuse(ErrBanned, -1, wait)
	e.Until = time.Now().Add(wait)
	return e
}

// broken is the error of a store that will not do better later.
func (g *gate) broken(err error) error {
	if err == context.Canceled || err == context.DeadlineExceeded {
		return err // the caller's own
	}
	if outer := (*WaitError)(nil); errors.As(err, &outer) {
		return err
	}
	return fmt.Errorf("throttle: policy %q: %w", g.policy.Name, err)
}

func (g *gate) unavailable(r *room, ended error) error {
	e := g.refuse(ErrUnavailable, -1, 0)
	e.Cause = fmt.Errorf("%w: %w", ended, r.outage)
	return e
}

// quit gives up the place of a waiter whose context has ended. It was charged
// nothing; a time that was booked for it goes to those behind.
func (g *gate) quit(w *waiter, err error) (store.Decision, error) {
	r := g.aside()
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.place == nil {
		return w.booking, w.refusal
	}
	if r.outage != nil {
		err = g.unavailable(r, err)
	}
	g.remove(r, w)
	r.outdate()
	g.settle(r, time.Now(), nil)
	return store.Decision{}, err
}

// expel refuses a waiter, if it is still in the queue.
func (g *gate) expel(r *room, w *waiter, err error) {
	if w.place != nil {
		w.refusal = err
		g.remove(r, w)
		r.outdate()
	}
}

// remove takes a waiter out of the queue, who then finds its booking or refusal.
func (g *gate) remove(r *room, w *waiter) {
	for c := range r.lines {
		l := &r.lines[c]
		if w.booking.Verdict == store.Admitted && !l.has(w) {
			l.forecast = nil // it does not know what was charged
		}
		if l.last == w.place {
			l.last = l.last.Prev()
		}
	}
	r.queue.Remove(w.place)
	w.place = nil
	w.out.Store(true)
	w.look()
	if r.waiting.Add(-1) == 0 {
		r.stop()
		r.stop = nil
		r.forget()
	}
}

// outdate says that the forecasts foretell longer waits than there will be.
func (r *room) outdate() {
	for c := range r.lines {
		r.lines[c].late = true
	}
}

func (r *room) forget() {
	for c := range r.lines {
		r.lines[c].forecast = nil
	}
}

// settle puts the room in order after any change: it drops times that are void,
// matches the others with the places, and lets those go whose time has come. It
// wakes whoever has to look at the clock anew, but for the caller itself.
func (g *gate) settle(r *room, now time.Time, self *waiter) {
	unused := g.match(r, now)
	for len(r.booked) > 0 && !r.booked[0].Reservation.Start.After(now) {
		w := r.queue.Front().Value.(*waiter)
		w.booking = r.booked[0]
		r.booked = r.booked[1:]
		g.remove(r, w)
	}
	for len(r.asking) < r.queue.Len() && g.full(r, r.queue.Len()) {
		g.expel(r, r.queue.Back().Value.(*waiter), g.refuse(ErrQueueFull, -1, 0))
	}
	if len(r.booked) > r.queue.Len() {
		unused = append(unused, g.match(r, now)...)
	}
	for _, e := range []*list.Element{r.queue.Front(), r.first()} {
		if e != nil && e.Value.(*waiter) != self {
			e.Value.(*waiter).look()
		}
	}
	if len(unused) > 0 {
		g.booker().Cancel(unused)
	}
}

// match keeps the times that fit: each for the first place behind the last one
// matched, if its cost is equal. It refuses whom that makes late.
func (g *gate) match(r *room, now time.Time) (unused []store.Decision) {
	kept := r.booked[:0]
	e := r.queue.Front()
	for _, b := range r.booked {
		for e != nil && e.Value.(*waiter).isLate(b.Reservation.Start) {
			late := e.Value.(*waiter)
			e = e.Next()
			g.expel(r, late, g.refuse(ErrDeadline, -1, b.Reservation.Start.Sub(now)))
		}
		if e == nil || b.Reservation.Expired(now) || !slices.Equal(b.Reservation.Cost, e.Value.(*waiter).request.Cost) {
			unused = append(unused, b)
			continue
		}
		kept = append(kept, b)
		e = e.Next()
	}
	r.booked = kept
	return unused
}

// left is the time to the deadline.
func (w *waiter) left() time.Duration {
	if w.deadline.IsZero() {
		return forever
	}
	return time.Until(w.deadline)
}

func (w *waiter) isLate(at time.Time) bool { return !w.deadline.IsZero() && at.After(w.deadline) }

// foresee books a newcomer in the forecast behind those ahead of it, and refuses it
// if even that is too late.
func (g *gate) foresee(r *room, w *waiter, overtaken *list.Element) error {
	if ahead := r.timed(overtaken); len(r.booked) > 0 {
		last := r.booked[min(ahead, len(r.booked)-1)].Reservation.Start // its own, or of the last ahead of it
		if w.isLate(last) {
			return g.refuse(ErrDeadline, -1, time.Until(last))
		}
		if ahead < len(r.booked) {
			return nil
		}
	}
	l := &r.lines[w.class]
	if time.Since(l.made) > refresh {
		l.forecast = nil
	}
	if w.deadline.IsZero() {
		if l.forecast != nil {
			l.forecast.Book(w.request, forever)
		}
		return nil
	}
	if l.forecast == nil && !g.forecast(r, l, overtaken) {
		return nil // who is at the head learns it from the quota
	}
	wait, ok := l.forecast.Book(w.request, w.left())
	if !ok && l.late && g.forecast(r, l, overtaken) {
		wait, ok = l.forecast.Book(w.request, w.left())
	}
	if !ok {
		return g.refuse(ErrDeadline, -1, wait)
	}
	return nil
}

// timed is how many of the times are those of places ahead of one, nil for the end.
func (r *room) timed(e *list.Element) (n int) {
	for ahead := r.queue.Front(); n < len(r.booked) && ahead != e; ahead = ahead.Next() {
		n++
	}
	return n
}

// forecast makes a new forecast for a line that ends before a place, nil for the last,
// and tells whether the quota can.
func (g *gate) forecast(r *room, l *line, end *list.Element) bool {
	f, ok := g.quota.(store.Forecaster)
	if !ok {
		return false
	}
	l.forecast, l.made, l.late = f.Forecast(), time.Now(), false
	for e := r.first(); e != end; e = e.Next() {
		g.foretell(r, l, e)
	}
	return true
}

// foretell books a place in the forecast of a line, if it has one.
func (g *gate) foretell(r *room, l *line, e *list.Element) {
	w := e.Value.(*waiter)
	switch {
	case l.forecast == nil:
	case slices.Contains(r.asking, w):
		l.made = time.Time{} // it may be charged already, or not: the forecast is for one look
	default:
		w.request.WaitSpec = g.patience(w, time.Now())
		l.forecast.Book(w.request, w.left()) // unless it was overtaken and will be late
	}
}

// changed is what the quota calls when something else than time has changed.
func (g *gate) changed(c store.Change, left time.Duration) {
	r := g.aside()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.changed, r.askAt = true, time.Time{}
	if r.recall != nil && c != store.Freed {
		r.recall()
	}
	if c == store.Freed {
		r.outdate()
	} else {
		r.forget()
		g.void(r, c, now.Add(left))
	}
	switch c {
	case store.Slowed:
		g.review(r)
	case store.Shut:
		g.expelAll(r, g.banned(left))
	}
	g.settle(r, now, nil)
}

// void drops the times that are worth nothing after a pause until end, or the
// loss of what they were charged to.
func (g *gate) void(r *room, c store.Change, end time.Time) {
	n := 0
	for n < len(r.booked) && (c == store.Lost || r.booked[n].Reservation.Start.Before(end)) {
		n++
	}
	if n > 0 {
		g.booker().Cancel(slices.Clone(r.booked[:n]))
		r.booked = r.booked[n:]
	}
}

// review refuses those whom a pause makes late, from the head on, so that each
// one who goes makes room for those behind.
func (g *gate) review(r *room) {
	f, ok := g.quota.(store.Forecaster)
	if !ok {
		return
	}
	forecast := f.Forecast()
	for e := r.first(); e != nil; {
		w := e.Value.(*waiter)
		e = e.Next()
		if slices.Contains(r.asking, w) {
			continue // it may be charged already; if not, the quota tells it
		}
		w.request.WaitSpec = g.patience(w, time.Now())
		if wait, ok := forecast.Book(w.request, w.left()); !ok {
			g.expel(r, w, g.refuse(ErrDeadline, -1, wait))
		}
	}
}

func (g *gate) expelAll(r *room, err error) {
	for e := r.queue.Front(); e != nil; {
		w := e.Value.(*waiter)
		e = e.Next()
		if !slices.Contains(r.asking, w) {
			g.expel(r, w, err)
		}
	}
}
