package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/apithrottle/throttle"
)

const (
	defaultAtOnce    = 1_000
	defaultRetries   = 4
	defaultMaxInARow = 100
	defaultGrace     = 10 * time.Second
	defaultEvery     = time.Second
)

// A Key names an item of a Job, the same in each run. Package fmt prints it in a Journal.
type Key interface {
	~string | ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// A Job is a function that is called once for each item, within the limits of an API. Exactly one of
// Limiter, Pool and Transport must be set.
type Job[K Key, T, R any] struct {
	// Items are the items and their keys. Run iterates in a goroutine of its own, and once. Keys must differ
	// from each other if there is a Journal.
	Items iter.Seq2[K, T]

	// Total is the number of Items, if that is known, for the time left. If zero, it is not known.
	Total int64

	// Do sends the request of an item. It is called in a goroutine of its own. If it panics, the item has
	// failed with a *PanicError. See IdempotencyKey and Permit for what its context has.
	Do func(ctx context.Context, item T) (R, error)

	// Limiter admits each call of Do, which then sends one request.
	Limiter *throttle.Limiter

	// Pool admits each call of Do, which then sends one request to the member that the Permit names.
	Pool *throttle.Pool

	// Transport sends the requests of Do, with the context that Do receives. An item has its turn when the
	// Transport has admitted its first request. Do may send any number of requests.
	Transport *throttle.Transport

	// Cost returns what the request of an item costs, as for Limiter.Acquire. If nil, one request. With a
	// Transport it counts only for the time left, because the Transport has a Cost of its own.
	Cost func(T) throttle.Cost

	// Result receives the result of each item that is done, one call at a time, in the goroutine that called
	// Run. A Journal has the item only after Result has returned. If it returns an error, that item is not
	// done, and Run ends with the error. While it is slow, at most AtOnce results wait for it; then no item is
	// started. If nil, results are dropped.
	Result func(K, R) error

	// InOrder passes results to Result in the order of Items. At most AtOnce results wait for an earlier one;
	// then no item is started. If false, results are passed on as they come.
	InOrder bool

	// AtOnce is the largest number of items at the same time, with those that wait for the limiter. Set it
	// above the rate of the limiter times the seconds that Do takes. If zero, 1,000.
	AtOnce int

	// Retries is how often Do may be called again for one item, after a *RefusedError or where Retry allows it.
	// If negative, never. If zero, 4.
	Retries int

	// Retry reports whether Do may be called again for an item after an error. A *RefusedError is always
	// followed by another call, and so are errors of the limiter that say when to try again, unless it had admitted
	// a request of the call before. If nil, no other error is; use AnyError if sending an item twice does no harm.
	Retry func(error) bool

	// MaxFailed is how many items may fail. One more ends Run with ErrTooManyFailed. If zero, any number.
	MaxFailed int

	// MaxInARow is how many items may fail with none done in between. One more ends Run with
	// ErrTooManyFailed. If negative, any number. If zero, 100.
	MaxInARow int

	// Grace is how long the calls of Do that are in flight may take to return after Run has begun to end.
	// Then their context ends. If negative, it ends at once. If zero, 10 s.
	Grace time.Duration

	// Journal keeps what is done, so that a later run of the same items leaves it out. If nil, nothing is kept.
	Journal *Journal

	// Done reports whether an item was done by an earlier run, for those who record that by themselves in
	// Result. If nil, the Journal decides alone.
	Done func(K) (bool, error)

	// Progress receives the state of the job now and then and once at the end, one call at a time, in a
	// goroutine of its own. See Bar. If nil, nothing is called.
	Progress func(Progress)

	// Every is the time between two calls of Progress. If zero, a second.
	Every time.Duration

	// Log logs the start, the end, failed items at level Warn and the progress once a minute. If nil, nothing is logged.
	Log *slog.Logger

	failed func(*ItemError) error // receives failed items in the order of results; nil if nobody does
}

// Validate returns an error that names each field that is wrong.
func (j *Job[K, T, R]) Validate() error {
	var errs []error
	if j.Items == nil {
		errs = append(errs, errors.New("Items is nil: set the items, such as slices.All of a slice"))
	}
	if j.Do == nil {
		errs = append(errs, errors.New("Do is nil: set the function that sends the request of an item"))
	}
	limits := 0
	for _, set := range []bool{j.Limiter != nil, j.Pool != nil, j.Transport != nil} {
		if set {
			limits++
		}
	}
	if limits != 1 {
		errs = append(errs, fmt.Errorf("%d of Limiter, Pool and Transport are set: set exactly one", limits))
	}
	if j.AtOnce < 0 {
		errs = append(errs, fmt.Errorf("AtOnce is %d: it must be at least 1, or 0 for %d", j.AtOnce, defaultAtOnce))
	}
	if j.MaxFailed < 0 {
		errs = append(errs, fmt.Errorf("MaxFailed is %d: it must be at least 1, or 0 for any number", j.MaxFailed))
	}
	if j.Total < 0 {
		errs = append(errs, fmt.Errorf("Total is %d: it must be at least 0", j.Total))
	}
	if j.Every < 0 {
		errs = append(errs, fmt.Errorf("Every is %v: it must be at least 0", j.Every))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("batch: %w", err)
	}
	return nil
}

// setDefaults replaces fields that are zero, and those for which a negative number stands for none.
func (j *Job[K, T, R]) setDefaults() {
	j.AtOnce = cmp.Or(j.AtOnce, defaultAtOnce)
	j.Retries = max(0, cmp.Or(j.Retries, defaultRetries))
	j.MaxInARow = cmp.Or(j.MaxInARow, defaultMaxInARow)
	j.Grace = max(0, cmp.Or(j.Grace, defaultGrace))
	j.Every = cmp.Or(j.Every, defaultEvery)
	if j.Retry == nil {
		j.Retry = func(error) bool { return false }
	}
	if j.Log == nil {
		j.Log = slog.New(slog.DiscardHandler)
	}
}
