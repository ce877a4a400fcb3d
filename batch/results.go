package batch

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// A Result is an item that is done, and what Do returned.
type Result[K Key, R any] struct {
	Key   K
	Value R
}

// Results runs a job and returns its results, in the order of the items if Job.InOrder is set. It is Run with
// the body of the loop as Job.Result:
//
//	for result, err := range batch.Results(ctx, job) {
//		…
//	}
//
// An item that has failed comes with an *ItemError. The error of the job, if there is one, comes last, with
// an empty Result. An item is done when its iteration has ended. If the loop is left, by break, return or a
// panic, the job ends as if ctx had ended, and the last item is not done, since it may not have been saved.
func Results[K Key, T, R any](ctx context.Context, job Job[K, T, R]) iter.Seq2[Result[K, R], error] {
	return func(yield func(Result[K, R], error) bool) {
		job, left := job, false // a later loop runs the job anew
		if job.Result != nil {
			yield(Result[K, R]{}, errors.New("batch: Result is set: the results are those of the loop"))
			return
		}
		job.Result = func(key K, value R) error {
			if left = !yield(Result[K, R]{key, value}, nil); left {
				return errLeft
			}
			return nil
		}
		job.failed = func(err *ItemError) error {
			if left = !yield(Result[K, R]{}, err); left {
				return errLeft
			}
			return nil
		}
		if _, err := Run(ctx, job); err != nil && !left {
			yield(Result[K, R]{}, err)
		}
	}
}

// errLeft is the error of a job whose loop over its results was left.
var errLeft = errors.New("batch: the loop over the results was left")

// deliver passes on results until all tasks have ended.
func (r *run[K, T, R]) deliver() {
	next, early := int64(0), map[int64]*task[K, T, R]{}
	for t := range r.ended {
		if !r.job.InOrder {
			r.close(t)
			continue
		}
		early[t.seq] = t
		for t := early[next]; t != nil; t = early[next] {
			delete(early, next)
			next++
			r.close(t)
			r.undelivered.Release(1)
		}
	}
}

// close passes on the result of an item and enters it in the book.
func (r *run[K, T, R]) close(t *task[K, T, R]) {
	switch {
	case t.left || r.broken:
		r.count.leave()
	case t.err != nil:
		r.fail(t)
	default:
		err := r.result(t)
		if err == nil {
			err = r.book.finish(t.n)
		}
		if r.broken = err != nil; r.broken {
			r.end(err)
			r.count.leave()
			return
		}
		r.count.done()
	}
}

func (r *run[K, T, R]) result(t *task[K, T, R]) error {
	if r.job.Result == nil {
		return nil
	}
	return r.job.Result(t.key, t.value)
}

// fail reports that an item has failed, and ends the job if too many have.
func (r *run[K, T, R]) fail(t *task[K, T, R]) {
	failure := &ItemError{Key: fmt.Sprint(t.key), Calls: t.calls, Err: t.err}
	err := r.book.fail(t.n, failure.Key, t.err)
	if err == nil && r.job.failed != nil {
		err = r.job.failed(failure)
	}
	r.broken = err != nil
	r.job.Log.Warn("item failed", "key", failure.Key, "calls", t.calls, "err", t.err)
	failed, inARow := r.count.fail(failure)
	switch {
	case err != nil:
	case r.job.MaxFailed > 0 && failed > int64(r.job.MaxFailed):
		err = fmt.Errorf("%w: %d of at most %d, the last: %w", ErrTooManyFailed, failed, r.job.MaxFailed, failure)
	case r.job.MaxInARow > 0 && inARow > int64(r.job.MaxInARow):
		err = fmt.Errorf("%w: %d in a row, the last: %w", ErrTooManyFailed, inARow, failure)
	}
	if err != nil {
		r.end(err)
	}
}
