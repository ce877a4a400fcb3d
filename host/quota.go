package host

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// horizon is how long who waits does so before it is told to look at the file anew:
// another process may have given something back.
const horizon = 500 * time.Millisecond

// A quota is what one limiter sees of a key.
type quota struct {
	store *Store
	name  []byte
	plan  *algorithms.Plan
	text  string // of the plan

	mu   sync.Mutex      // guards all below
	news []func(t *turn) // what has happened since, for the next turn
	seen turn            // the last one
}

// A turn is what a transaction finds in the file, and changes.
type turn struct {
	state
	now    algorithms.Moment
	ledger algorithms.Ledger
	ready  int64 // the ledger, of another plan before, is not to be used until then
}

var (
	_ store.Quota      = (*quota)(nil)
	_ store.Forecaster = (*quota)(nil)
	_ store.Aligner    = (*quota)(nil)
	_ store.Observer   = (*quota)(nil)
)

func newQuota(s *Store, key string, plan *algorithms.Plan) *quota {
	q := &quota{store: s, name: name(key), plan: plan, text: planText(plan)}
	q.seen = turn{state: state{plan: q.text}, ledger: fresh(plan)}
	return q
}

// fresh is the ledger of a quota that is not in the file: nothing is used, but for
// what is unknown.
func fresh(p *algorithms.Plan) algorithms.Ledger {
	l := p.NewLedger()
	if start := p.Start(); !start.IsZero() {
		l.Spend(algorithms.Moment{At: start.UnixMicro(), Wall: start.UnixMicro()})
	}
	return l
}

// take takes a turn: decide is given what the file has, and tells whether it has
// changed that.
func (q *quota) take(ctx context.Context, decide func(t *turn) (changed bool)) error {
	limited, leave, err := q.store.enter(ctx)
	if err != nil {
		return err
	}
	var t turn
	told := 0
	err = q.store.update(limited, q.name, func(value []byte) (write []byte, err error) {
		var healed bool
		if t, healed, err = q.read(value); err != nil {
			return nil, err
		}
		if t.ready <= t.now.At {
			told = q.tell(&t)
		}
		if decide(&t) || told > 0 || healed {
			write = q.write(&t)
		}
		t.state.ledger = nil // it is the file's
		return write, nil
	})
	paused := q.remember(t, told, err)
	leave()
	if left := t.now.Until(t.until); paused && left > 0 {
		q.store.tell(q.name, t.change(), left)
	}
	return err
}

// remember keeps what a turn has found, and tells whether there was a pause since
// the last. News are told once: of a turn that failed nobody knows what became.
func (q *quota) remember(t turn, told int, err error) (paused bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.news = q.news[told:]
	if err != nil {
		return false
	}
	paused = t.epoch != q.seen.epoch
	q.seen = t
	return paused
}

// read makes a turn of what the file has.
func (q *quota) read(value []byte) (t turn, healed bool, err error) {
	t.state = state{plan: q.text}
	if value != nil {
		if t.state, err = parse(value); err != nil {
			return t, false, err
		}
	}
	q.mu.Lock()
	known := q.seen.now.At
	q.mu.Unlock()
	t.now, healed = t.state.now(q.store.wall(), known)
	t.ready = t.now.At
	switch {
	case value == nil:
		t.ledger = fresh(q.plan)
	case t.plan == q.text:
		t.ledger, err = t.decode(q.plan)
	default:
		t.ledger, err = t.decodeAny()
		if err == nil {
			t.ledger, t.ready = q.plan.Convert(t.ledger, t.now)
		}
	}
	return t, healed, err
}

// write is what a turn makes of the file's value. A ledger that is not ready
// stays as it is.
func (q *quota) write(t *turn) []byte {
	t.last = t.now.At
	if t.ready <= t.now.At {
		t.plan = q.text
		t.state.ledger, _ = t.ledger.AppendBinary(nil)
	}
	return t.encode()
}

// tell brings the news to the ledger, and returns how many there were.
func (q *quota) tell(t *turn) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, news := range q.news {
		news(t)
	}
	return len(q.news)
}

// hear keeps news for the next turn.
func (q *quota) hear(news func(t *turn)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.news = append(q.news, news)
}

// at is the moment at which the wall clock showed a time, no later than now: it may
// have stepped back since.
func (t *turn) at(wall int64) algorithms.Moment {
	wall = min(wall, t.now.Wall)
	return algorithms.Moment{At: wall + t.offset, Wall: wall}
}

func (q *quota) TryAcquire(ctx context.Context, r store.Request) (b store.Decision, err error) {
	err = q.take(ctx, func(t *turn) bool {
		b = t.reserve(r)
		return b.Verdict == store.Admitted
	})
	if err != nil {
		return store.Decision{}, err
	}
	if b.Verdict == store.Later {
		b.Wait = min(b.Wait, horizon)
	}
	return b, nil
}

func (t *turn) reserve(r store.Request) store.Decision {
	b := store.Decision{Tier: -1, Epoch: t.epoch}
	switch from := max(t.until, t.ready); {
	case t.shut&ban > 0 && t.until > t.now.At:
		b.Verdict, b.Wait = store.Closed, t.now.Until(t.until)
	case from > t.now.At:
		if t.shut&probing > 0 {
			b.Tier = store.Probing
		}
		at, tier := t.ledger.EarliestLeaving(t.now, r.Cost, r.Leaves())
		if b.Wait = t.now.Until(max(at, from)); at > from {
			b.Tier = tier
		} else if r.WaitSpec != nil && b.Wait > r.MaxWait {
			b.Verdict = store.Late
		}
	case r.IsDryRun():
		var at int64
		if at, b.Tier = t.ledger.EarliestLeaving(t.now, r.Cost, r.Leaves()); b.Tier < 0 {
			b.Verdict = store.Ready
		}
		b.Wait = t.now.Until(at)
	default:
		var at int64
		if b.Flight, at, b.Tier = t.ledger.TakeLeaving(t.now, r.Cost, r.Leaves(), algorithms.Micros(r.Guard), r.Held); b.Tier < 0 {
			b.Verdict, b.At, b.Crossed = store.Admitted, t.now.At, t.ledger.Crossings(t.now)
			if t.shut&probe > 0 {
				t.until, t.shut = t.now.At+algorithms.Micros(store.ProbeTime), probing
			}
		} else {
			b.Wait = t.now.Until(at)
		}
	}
	if b.Verdict != store.Admitted && t.ledger.Plan().Exhausted(b.Tier) {
		b.Verdict = store.Exhausted
	}
	return b
}

// Arrived is told to the file with the next transaction: those who wait here make one
// at once. Until then the request counts as on its way, for its guard at most.
func (q *quota) Arrived(b store.Decision, cost []int64) {
	if b.Flight != algorithms.Landed {
		wall := q.store.wall()
		q.hear(func(t *turn) { t.ledger.Land(t.at(wall), b.Flight, cost) })
		q.store.tell(q.name, store.Freed, 0)
	}
}

// Release does nothing: there are no tiers that count what is open.
func (q *quota) Release(store.Decision, []int64) {}

// Settle does nothing: there are no estimates.
func (q *quota) Settle(store.Decision, []int64, []int64, func([]algorithms.Crossing)) {}

// Observe is told to the file with the next transaction.
func (q *quota) Observe(b store.Decision, _ []int64, seen []store.Observation) {
	q.hear(func(t *turn) {
		t.exact = store.Observe(&t.ledger, t.now, b.At, t.exact, seen)
	})
}

// Unanswered leaves the request in flight.
func (q *quota) Unanswered(store.Decision, []int64) {}

// Resume ends the pause or ban.
func (q *quota) Resume(context.Context) error { return errors.ErrUnsupported }

func (q *quota) Return(ctx context.Context, b store.Decision, cost []int64) error {
	if b.Flight == algorithms.Landed {
		return nil
	}
	wall := q.store.wall()
	q.hear(func(t *turn) { t.ledger.Cancel(t.at(wall), b.Flight, cost) })
	err := q.take(ctx, func(*turn) bool { return false })
	q.store.tell(q.name, store.Freed, 0)
	return err
}

// Align is told to the file with the next transaction.
func (q *quota) Align(from, to time.Time) {
	wall, later := q.store.wall(), to.Add(time.Microsecond-1).UnixMicro()
	q.hear(func(t *turn) { t.ledger.Boundary(t.at(wall), from.UnixMicro()+t.offset, later+t.offset) })
	q.store.tell(q.name, store.Freed, 0)
}

func (q *quota) Pause(ctx context.Context, p store.Pause) (done store.Paused, err error) {
	err = q.take(ctx, func(t *turn) bool {
		end := t.now.At + algorithms.Micros(p.For)
		until, shut := t.until, t.shut
		if shut&probing > 0 {
			until, shut = 0, probe
		}
		if (!p.Once || p.Epoch == t.epoch) && end > max(t.now.At, until) {
			t.until, t.shut = end, shut&probe
			if p.Close {
				t.shut |= ban
			}
			if p.Probe {
				t.shut |= probe
			}
			t.epoch++
			done.Applied = true
		}
		done.Epoch = t.epoch
		return done.Applied
	})
	return done, err
}

// change is what a pause is to those who wait.
func (t *turn) change() store.Change {
	if t.shut&ban > 0 {
		return store.Shut
	}
	return store.Slowed
}

func (q *quota) Status(ctx context.Context) (s store.Status, err error) {
	err = q.take(ctx, func(t *turn) bool {
		s = t.status()
		return false
	})
	return s, err
}

func (t *turn) status() (s store.Status) {
	if left := max(0, t.now.Until(t.until)); t.shut&ban > 0 {
		s.Closed = left
	} else {
		s.Paused = left
	}
	s.Tiers = store.Tiers(&t.ledger, t.now)
	return s
}

func (q *quota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	w := watcher(changed)
	return q.store.watch(q.name, &w)
}

// Close has nothing to do: the quota stays in the file until it equals a fresh one.
func (q *quota) Close() {}

// Forecast foretells from what the file had the last time.
func (q *quota) Forecast() store.Forecast {
	q.mu.Lock()
	defer q.mu.Unlock()
	seen := q.seen
	from := max(seen.until, seen.ready)
	if seen.shut&(ban|probing) > 0 { // nobody will wait: they are refused, or it is not known for how long
		from = seen.ready
	}
	return store.Foretell(&seen.ledger, func() algorithms.Moment {
		now, _ := seen.state.now(q.store.wall(), seen.now.At)
		return now
	}, from)
}
