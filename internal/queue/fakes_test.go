package queue

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/leaktest"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

const (
	ms  = time.Millisecond
	sec = time.Second
)

func cost(n ...int64) []int64 { return n }

// A fake is a quota that replies by a function and counts the calls. It keeps watchers. A queue
// does not use the other methods of store.Quota.
type fake struct {
	reply func(context.Context, store.Request) (store.Decision, error)

	mu       sync.Mutex // guards all below
	asked    int
	watchers map[*func(store.Change, time.Duration)]struct{}
}

func (f *fake) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	f.mu.Lock()
	f.asked++
	f.mu.Unlock()
	return f.reply(ctx, r)
}

func (f *fake) questions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func (f *fake) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers == nil {
		f.watchers = make(map[*func(store.Change, time.Duration)]struct{})
	}
	f.watchers[&changed] = struct{}{}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, &changed)
	}
}

// notify calls all watchers.
func (f *fake) notify(c store.Change, left time.Duration) {
	f.mu.Lock()
	var all []func(store.Change, time.Duration)
	for w := range f.watchers {
		all = append(all, *w)
	}
	f.mu.Unlock()
	for _, changed := range all {
		changed(c, left)
	}
}

func (f *fake) watched() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watchers)
}

func (*fake) Passed(store.Decision)              { panic("not used by a queue") }
func (*fake) Arrived(store.Decision, []int64)    { panic("not used by a queue") }
func (*fake) Unanswered(store.Decision, []int64) { panic("not used by a queue") }
func (*fake) Release(store.Decision, []int64)    { panic("not used by a queue") }
func (*fake) Settle(store.Decision, []int64, []int64, func([]algorithms.Crossing)) {
	panic("not used by a queue")
}
func (*fake) Return(context.Context, store.Decision, []int64) error { panic("not used by a queue") }
func (*fake) Pause(context.Context, store.Pause) (store.Paused, error) {
	panic("not used by a queue")
}
func (*fake) Resume(context.Context) error                 { panic("not used by a queue") }
func (*fake) Status(context.Context) (store.Status, error) { panic("not used by a queue") }
func (*fake) Close()                                       { panic("not used by a queue") }
func (*fake) Forecast() store.Forecast                     { return nil }
func (*fake) Soonest([]int64, int64) (time.Duration, int)  { return 0, -1 }

// later returns a quota that never admits and returns a wait.
func later(wait time.Duration) *fake {
	return &fake{reply: func(context.Context, store.Request) (store.Decision, error) {
		return store.Decision{Verdict: store.Later, Wait: wait}, nil
	}}
}

// every returns a quota that admits one request after each interval, the first at once.
func every(interval time.Duration) *fake {
	var next time.Time
	return &fake{reply: func(context.Context, store.Request) (store.Decision, error) {
		if left := time.Until(next); left > 0 {
			return store.Decision{Verdict: store.Later, Wait: left}, nil
		}
		next = time.Now().Add(interval)
		return store.Decision{Verdict: store.Admitted}, nil
	}}
}

// A question is a call of Reserve.
type question struct {
	behind   *store.Reservation
	requests []store.Request
	done     func([]store.Decision, error)
}

var _ store.Reserver = (*reserver)(nil)

// A reserver is a fake that reserves times. The test answers its questions.
type reserver struct {
	fake
	open     []question // questions without an answer
	total    int
	reserved []store.Decision
	canceled []store.Decision
}

func (f *reserver) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total++
	f.open = append(f.open, question{behind, slices.Clone(requests), done})
}

func (f *reserver) Cancel(unused []store.Decision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.canceled = append(f.canceled, unused...)
}

func (*reserver) Leave() {}

// next returns the oldest question without an answer.
func (f *reserver) next(t *testing.T) question {
	t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.open) == 0 {
		t.Fatal("the queue does not ask the quota")
	}
	q := f.open[0]
	f.open = f.open[1:]
	return q
}

func (f *reserver) unanswered() int {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open)
}

// at reserves a time for each of the first requests of a question.
func (f *reserver) at(q question, starts ...time.Duration) (ds []store.Decision) {
	now := time.Now()
	for i, in := range starts {
		start := now.Add(in)
		ds = append(ds, store.Decision{Verdict: store.Admitted, Tier: 0, Reservation: &store.Reservation{
			Start: start, End: start.Add(50 * ms), Again: now, Cost: q.requests[i].Cost,
		}})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reserved = append(f.reserved, ds...)
	return ds
}

// A caller is one call of Wait and its result.
type caller struct {
	cancel context.CancelFunc
	done   chan struct{}
	result Result
	err    error
	end    time.Time
}

// join starts a caller in a goroutine of its own, and returns when the caller waits or has ended.
func join(q *Queue, t Ticket) *caller { return joinCtx(context.Background(), q, t) }

func joinCtx(ctx context.Context, q *Queue, t Ticket) *caller {
	ctx, cancel := context.WithCancel(ctx)
	c := &caller{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer cancel()
		c.result, c.err = q.Wait(ctx, t)
		c.end = time.Now()
	}()
	synctest.Wait()
	return c
}

func (c *caller) ended() bool {
	synctest.Wait()
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// asks returns a Ticket.Ask of a function that returns a decision.
func asks(ask func(context.Context, Turn) (store.Decision, error)) func(context.Context, Turn) (Result, error) {
	return func(ctx context.Context, t Turn) (Result, error) {
		d, err := ask(ctx, t)
		return Result{d, t.Cost, t.Owner}, err
	}
}

func ticket(n ...int64) Ticket {
	if len(n) == 0 {
		n = cost(1)
	}
	return Ticket{Request: store.Request{Cost: n}}
}

func (t Ticket) of(c Class) Ticket {
	t.Class = c
	return t
}

func (t Ticket) until(at time.Time) Ticket {
	t.GiveUp = at
	return t
}

// isRefusal reports whether an error is a refusal for a reason.
func isRefusal(err error, why Reason) bool {
	r, ok := err.(*Refusal)
	return ok && r.Reason == why
}

// isRefused reports whether the call has ended with a refusal for a reason.
func (c *caller) isRefused(why Reason) bool { return c.ended() && isRefusal(c.err, why) }

// quotaOf returns a quota of package local, whose requests arrive at the instant of their
// admission.
func quotaOf(t testing.TB, tiers ...algorithms.Tier) store.Quota {
	t.Helper()
	plan, err := algorithms.NewPlan(tiers, 0)
	if err != nil {
		t.Fatal(err)
	}
	quota, err := local.New().Open("", plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	return quota
}

func (f *reserver) Trip(context.Context) time.Duration { return 0 }

func (f *reserver) IsVoid(store.Decision) bool { return false }

// complete adds what the quota of a configuration implements.
func complete(c Config) Config {
	c.Reserver, _ = c.Quota.(store.Reserver)
	c.Fast, _ = c.Quota.(store.FastQuota)
	return c
}
