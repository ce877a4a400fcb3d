package batch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/outcome"
)

// Run calls Do for each item and returns when all calls have ended. It starts another item whenever the limiter
// admits one, up to Job.AtOnce, so it uses the limit before it knows how long a call takes. As many items wait
// for the limiter as it admits in a quarter of a second, and at least 16.
//
// Run begins to end when ctx ends, too many items have failed, Result, the Journal or Done return
// an error, or the limiter is closed, banned or has used up a budget. Then it starts no other item, gives up
// those that wait, and cancels the calls of Do that have not returned within Job.Grace. Its error is the reason,
// and the Report tells how many items are left. Calls that return because they were canceled have not failed:
// their items are left for a later run.
//
// Items are started in their order. Those that wait at the same time may be sent in another order.
//
// An error of a job with wrong fields names them, and nothing was done. Failed items alone cause no error: see
// Report.Failed.
func Run[K Key, T, R any](ctx context.Context, job Job[K, T, R]) (Report, error) {
	if err := job.Validate(); err != nil {
		return Report{}, err
	}
	job.setDefaults()
	book, err := openBook(job.Journal)
	if err != nil {
		return Report{}, err
	}
	defer book.leave()
	return newRun(ctx, job, book).run(ctx)
}

// A run is a Job that runs.
type run[K Key, T, R any] struct {
	job   Job[K, T, R]
	book  book
	gate  *gate
	count *tally

	// starting ends when no other item may start and those that wait give up. Its cause is the error of Run.
	starting context.Context
	end      context.CancelCauseFunc
	// calling ends when calls of Do must return.
	calling context.Context
	cancel  context.CancelFunc

	atOnce *semaphore.Weighted
	// undelivered are the items that are started and whose results were not passed on.
	undelivered *semaphore.Weighted
	ended       chan *task[K, T, R]
	broken      bool // Result or the Journal has failed; used by deliver alone
}

// A task is an item that is started.
type task[K Key, T, R any] struct {
	key    K
	item   T
	n      int64 // in the book
	seq    int64 // among those that were started
	place  *place
	calls  int
	permit *throttle.Permit // of the last call; nil with a Transport

	value R
	err   error
	left  bool // the item is not over: a later run may do it
}

func newRun[K Key, T, R any](ctx context.Context, job Job[K, T, R], book book) *run[K, T, R] {
	r := &run[K, T, R]{
		job: job, book: book, count: newTally(job.Total),
		atOnce: semaphore.NewWeighted(int64(job.AtOnce)), undelivered: semaphore.NewWeighted(2 * min(int64(job.AtOnce), math.MaxInt32)),
		ended: make(chan *task[K, T, R]),
	}
	r.gate = newGate(r.count.wait)
	// Neither has the deadline of ctx: the limiter would refuse the last items one by one.
	detached := context.WithoutCancel(ctx)
	r.starting, r.end = context.WithCancelCause(detached)
	r.calling, r.cancel = context.WithCancel(detached)
	return r
}

func (r *run[K, T, R]) run(ctx context.Context) (Report, error) {
	defer r.cancel()
	defer r.end(errOver)
	if ctx.Err() != nil { // AfterFunc alone would let the first items start meanwhile
		r.end(context.Cause(ctx))
	}
	defer context.AfterFunc(ctx, func() { r.end(context.Cause(ctx)) })()
	defer context.AfterFunc(r.starting, func() {
		grace := time.AfterFunc(r.job.Grace, r.cancel)
		context.AfterFunc(r.calling, func() { grace.Stop() }) // else it would keep the job in memory
	})()
	stopReporting := r.report()
	defer stopReporting()
	items := make(chan *task[K, T, R])
	panicked := make(chan any, 1)
	go r.pull(ctx, items, panicked)
	go r.start(items)
	defer func() { // if Result has panicked
		go func() {
			for range r.ended {
			}
		}()
	}()
	r.deliver()
	r.awaitItems(items)
	select {
	case p := <-panicked:
		panic(p)
	default:
	}
	report, err := r.count.report(), context.Cause(r.starting)
	if report.Ended && report.Left == 0 && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		err = nil
	}
	return report, err
}

// errOver is the cause of the end of a job's contexts when the job is over.
var errOver = errors.New("batch: the job is over")

// pull passes on the items that no earlier run has done until the job ends. It passes on a panic of Items.
func (r *run[K, T, R]) pull(ctx context.Context, items chan<- *task[K, T, R], panicked chan<- any) {
	defer close(items)
	returned := false
	defer func() {
		switch p := recover(); {
		case p != nil:
			panicked <- p
			r.end(fmt.Errorf("batch: Items panicked: %v", p))
		case !returned:
			r.end(errors.New("batch: Items called runtime.Goexit"))
		}
	}()
	for key, item := range r.job.Items {
		if !r.pass(key, item, items) {
			returned = true
			return
		}
	}
	switch returned = true; {
	case ctx.Err() != nil: // Items may have returned for that
		r.end(context.Cause(ctx))
	case r.starting.Err() == nil:
		r.count.allItems()
	}
}

// pass passes on an item, unless an earlier run has done it. It reports false if the job ends.
func (r *run[K, T, R]) pass(key K, item T, items chan<- *task[K, T, R]) bool {
	if r.starting.Err() != nil {
		return false
	}
	n, done, err := r.begin(key)
	if err != nil {
		r.end(err)
		return false
	}
	if done {
		r.count.skip()
		return true
	}
	select {
	case items <- &task[K, T, R]{key: key, item: item, n: n}:
		return true
	case <-r.starting.Done():
		return false
	}
}

// awaitItems waits until Items has returned, unless that takes longer than Job.Grace.
func (r *run[K, T, R]) awaitItems(items <-chan *task[K, T, R]) {
	for {
		select {
		case _, more := <-items:
			if !more {
				return
			}
			r.count.start()
			r.count.leave()
		case <-r.calling.Done():
			return
		}
	}
}

// start starts the items, and closes r.ended when all have ended.
func (r *run[K, T, R]) start(items <-chan *task[K, T, R]) {
	var calls errgroup.Group
	defer func() {
		_ = calls.Wait() // the calls return no errors
		close(r.ended)
	}()
	for seq := int64(0); ; {
		p := r.next(items)
		if p == nil {
			return
		}
		r.count.start()
		if p.place = r.room(); p.place == nil {
			r.count.leave()
			return
		}
		p.seq = seq
		seq++
		calls.Go(func() error {
			defer func() { // also if Do calls runtime.Goexit
				p.place.leave(false)
				r.ended <- p // blocks while Result is slow, so that few results wait
				r.atOnce.Release(1)
			}()
			r.do(p)
			return nil
		})
	}
}

// next returns the next item, or nil if there is none or the job ends.
func (r *run[K, T, R]) next(items <-chan *task[K, T, R]) *task[K, T, R] {
	r.count.binds(ByItems)
	select {
	case t, ok := <-items:
		if !ok {
			r.count.binds("")
		}
		return t
	case <-r.starting.Done():
		return nil
	}
}

// begin enters an item in the book. It reports whether an earlier run has done it.
func (r *run[K, T, R]) begin(key K) (n int64, done bool, err error) {
	if n, done, err = r.book.begin(fmt.Sprint(key)); err == nil && !done && r.job.Done != nil {
		done, err = r.job.Done(key)
	}
	return n, done, err
}

// room blocks until another item may start. It returns nil if the job ends.
func (r *run[K, T, R]) room() *place {
	if r.job.InOrder && !r.acquire(r.undelivered, ByOrder) || !r.acquire(r.atOnce, ByAtOnce) {
		return nil
	}
	r.count.binds(ByLimiter)
	return r.gate.enter(r.starting)
}

func (r *run[K, T, R]) acquire(s *semaphore.Weighted, by Bound) bool {
	if s.TryAcquire(1) {
		return true
	}
	r.count.binds(by)
	return s.Acquire(r.starting, 1) == nil
}

// do calls Do for an item until it succeeds or is not to be called again.
func (r *run[K, T, R]) do(t *task[K, T, R]) {
	for tries := 1; ; tries++ {
		wait, verdict := r.try(t, tries)
		ends := r.starting.Err() != nil
		admitted := t.place.left.Load()
		gaveUp := ends && (!admitted || errors.Is(t.err, context.Canceled)) || r.calling.Err() != nil
		switch {
		case t.err == nil:
			return
		case verdict == endJob:
			r.end(t.err)
			t.left = true
			return
		case gaveUp, verdict == again && !r.sleep(wait):
			t.left = true
			return
		case verdict == fail:
			return
		}
		if isLater(t.err) && !admitted {
			tries-- // the API knows nothing of it
		}
		if admitted { // else it has kept its place, so that few items ask a limiter that refuses for now
			t.place = r.gate.enterAgain()
		}
	}
}

// try waits for the limiter, calls Do once and returns what follows. A panic of a function of the job fails the item.
func (r *run[K, T, R]) try(t *task[K, T, R], tries int) (wait time.Duration, v verdict) {
	returned := false
	defer func() {
		if p := recover(); !returned { // also after runtime.Goexit
			t.err, wait, v = &PanicError{p, debug.Stack()}, 0, fail
		}
	}()
	t.err = r.tryOnce(t)
	wait, v = r.judge(t.err, tries, t.place.left.Load())
	returned = true
	return wait, v
}

func (r *run[K, T, R]) tryOnce(t *task[K, T, R]) (err error) {
	var cost throttle.Cost
	if r.job.Cost != nil {
		cost = r.job.Cost(t.item)
		r.count.cost(cost)
	}
	if r.job.Transport != nil {
		return r.tryByTransport(t)
	}
	if r.job.Pool != nil {
		t.permit, err = r.job.Pool.Acquire(r.starting, cost)
	} else {
		t.permit, err = r.job.Limiter.Acquire(r.starting, cost)
	}
	if err != nil {
		return err
	}
	t.place.leave(true)
	defer t.permit.Release()
	err = r.call(r.calling, t)
	var refused *RefusedError
	switch {
	case err == nil:
		t.permit.Passed()
	case errors.As(err, &refused):
		_ = t.permit.Refused(r.calling, refused.Wait) // after an error the pause holds for this process
	}
	return err
}

// tryByTransport calls Do, which waits for the Transport itself. Until that has admitted a request, the end of
// r.starting ends the call.
func (r *run[K, T, R]) tryByTransport(t *task[K, T, R]) error {
	ctx, cancel := context.WithCancel(r.calling)
	defer cancel()
	stop := context.AfterFunc(r.starting, cancel)
	defer stop()
	place := t.place
	return r.call(outcome.OnAdmitted(ctx, func() {
		stop()
		place.leave(true)
	}), t)
}

// call calls Do.
func (r *run[K, T, R]) call(ctx context.Context, t *task[K, T, R]) (err error) {
	if t.calls++; t.calls > 1 {
		r.count.retry()
	}
	ctx = outcome.Spending(ctx, r.count.spend)
	t.value, err = r.job.Do(withItem(ctx, &item{r.book, fmt.Sprint(t.key), t.permit}), t.item)
	return err
}

// A verdict is what follows an error.
type verdict int

const (
	fail verdict = iota
	again
	endJob
)

// judge returns what follows an error after some tries, and how long to wait before another one. What was admitted
// may have sent a request before a limiter refused the next.
func (r *run[K, T, R]) judge(err error, tries int, admitted bool) (wait time.Duration, v verdict) {
	var refused *RefusedError
	var limiters *throttle.WaitError
	isLimiters := errors.As(err, &limiters)
	mayTry := tries <= r.job.Retries
	switch {
	case err == nil:
	case isLimiters && endsJob(err), errors.Is(err, throttle.ErrUnavailable) && !mayTry:
		return 0, endJob
	case isLimiters && isLater(err) && !admitted:
		return max(limiters.Wait, 10*time.Millisecond), again
	case isLimiters && !isLater(err) && !errors.Is(err, throttle.ErrUnavailable), !mayTry:
	case errors.As(err, &refused):
		return 0, again // the quota pauses
	case isLimiters && !admitted || r.job.Retry(err):
		if isLimiters && isLater(err) {
			wait = limiters.Wait
		}
		return max(wait, backoff(tries)), again
	}
	return 0, fail
}

// backoff returns the wait after some tries: 1, 2, 4 … 30 s.
func backoff(tries int) time.Duration { return min(30*time.Second, time.Second<<min(tries-1, 5)) }

// sleep blocks for d. It reports false if the job ends before.
func (r *run[K, T, R]) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.starting.Done():
	}
	return r.starting.Err() == nil
}
