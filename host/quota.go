package host

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/lineage"
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

	line    *lineage.Line
	version int64 // of the plan, in the line

	mu    sync.Mutex // guards all below
	seen  turn       // the last one
	level uint8      // back-offs in a row of this process
	next  *quota     // under a plan that replaced its own; nil while nobody needed it
}

// A turn is what a transaction finds in the file, and changes.
type turn struct {
	state
	text   string // of the quota's plan
	now    algorithms.Moment
	ledger algorithms.Ledger
}

var (
	_ store.Quota      = (*quota)(nil)
	_ store.Forecaster = (*quota)(nil)
	_ store.Aligner    = (*quota)(nil)
	_ store.Observer   = (*quota)(nil)
	_ store.Changer    = (*quota)(nil)
	_ store.Learner    = (*quota)(nil)
)

func newQuota(s *Store, name []byte, plan *algorithms.Plan, line *lineage.Line, version int64) *quota {
	q := &quota{store: s, name: name, plan: plan, text: planText(plan), line: line, version: version}
	q.seen = turn{state: state{plan: q.text}, ledger: fresh(plan)}
	return q
}

// newest is the quota, or its successor under the newest plan.
func (q *quota) newest() *quota {
	for !q.line.IsNewest(q.version) {
		q = q.successor()
	}
	return q
}

func (q *quota) successor() *quota {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next == nil {
		plan, version := q.line.Newest()
		q.next = newQuota(q.store, q.name, plan, q.line, version)
		q.next.seen, q.next.level = q.seen, q.level
		q.next.seen.ledger = plan.Convert(q.seen.ledger, q.seen.now)
	}
	return q.next
}

func (q *quota) Change(ctx context.Context, plan *algorithms.Plan) error {
	if err := validate(plan); err != nil {
		return err
	}
	// The file is told all news under the old plan, and converted. If it can't be had now, what is
	// in flight lands with its guard, and the next admission converts it.
	_ = q.newest().take(ctx, func(*turn) bool { return false })
	q.line.Change(plan)
	_ = q.newest().take(ctx, func(*turn) bool { return true })
	q.store.tell(q.name, store.Replanned, 0)
	return nil
}

func (q *quota) Successor() (store.Quota, *algorithms.Plan) {
	q = q.newest()
	return q, q.plan
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

// take takes a turn: decide is given what the file has, and reports whether it has
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
		told = q.store.tellNews(q.name, &t)
		if decide(&t) || told > 0 || healed {
			write = q.write(&t)
		}
		t.state.ledger = nil // it is the file's
		return write, nil
	})
	q.store.dropNews(q.name, told)
	paused := q.remember(t, err)
	leave()
	if c, left := t.change(); paused && left > 0 {
		q.store.tell(q.name, c, left)
	}
	return err
}

// remember keeps what a turn has found, and reports whether there was a pause since
// the last.
func (q *quota) remember(t turn, err error) (paused bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
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
	t.text = q.text
	t.now, healed = t.state.now(q.store.wall(), known)
	switch {
	case value == nil:
		t.ledger = fresh(q.plan)
	case t.plan == q.text:
		t.ledger, err = t.decode(q.plan)
	default:
		t.ledger, err = t.decodeAny()
		if err == nil {
			t.ledger = q.plan.Convert(t.ledger, t.now)
		}
	}
	return t, healed, err
}

// write is what a turn makes of the file's value.
func (q *quota) write(t *turn) []byte {
	t.last = t.now.At
	t.plan = q.text
	t.state.ledger, _ = t.ledger.AppendBinary(nil)
	return t.encode()
}

// hear keeps news for the next turn of any quota of the key, whatever its plan.
func (q *quota) hear(news func(t *turn)) {
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	q.store.news[string(q.name)] = append(q.store.news[string(q.name)], news)
}

// tellNews brings the news of a key to a turn, and returns how many there were.
func (s *Store) tellNews(name []byte, t *turn) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, news := range s.news[string(name)] {
		news(t)
	}
	return len(s.news[string(name)])
}

// dropNews forgets those that were told. They are told once: of a turn that failed nobody
// knows what became.
func (s *Store) dropNews(name []byte, told int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if news := s.news[string(name)]; len(news) > told {
		s.news[string(name)] = news[told:]
	} else {
		delete(s.news, string(name))
	}
}

// at is the moment at which the wall clock showed a time, no later than now: it may
// have stepped back since.
func (t *turn) at(wall int64) algorithms.Moment {
	wall = min(wall, t.now.Wall)
	return algorithms.Moment{At: wall + t.offset, Wall: wall}
}

func (q *quota) TryAcquire(ctx context.Context, r store.Request) (b store.Decision, err error) {
	if !q.line.IsNewest(q.version) {
		return store.Decision{Verdict: store.Moved, Tier: -1}, nil
	}
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
	q.mu.Lock()
	b.Level = q.level
	q.mu.Unlock()
	return b, nil
}

func (t *turn) reserve(r store.Request) store.Decision {
	b := store.Decision{Tier: -1, Epoch: t.epoch}
	switch from := t.until; {
	case t.banned > t.now.At:
		b.Verdict, b.Wait = store.Closed, t.now.Until(t.banned)
	case from > t.now.At:
		if t.shut&probing > 0 {
			b.Tier = store.Probing
		}
		at, tier := t.ledger.Earliest(t.now, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves()})
		if b.Wait = t.now.Until(max(at, from)); at > from {
			b.Tier = tier
		} else if r.WaitSpec != nil && b.Wait > r.MaxWait {
			b.Verdict = store.Late
		}
	case r.IsDryRun():
		var at int64
		if at, b.Tier = t.ledger.Earliest(t.now, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves()}); b.Tier < 0 {
			b.Verdict = store.Ready
		}
		b.Wait = t.now.Until(at)
	default:
		var at int64
		if b.Flight, at, b.Tier = t.ledger.Take(t.now, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves(), Guard: algorithms.Micros(r.Guard), Held: r.Held}); b.Tier < 0 {
			b.Verdict, b.At, b.Crossed = store.Admitted, t.now.At, t.ledger.Crossings(t.now)
			if t.shut&probe > 0 {
				t.startProbe(&b, r)
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

// startProbe has the others wait for the response to the request. A held one that gets
// none within its time is followed by another probe.
func (t *turn) startProbe(b *store.Decision, r store.Request) {
	b.Probe = true
	alone := store.ProbeTime
	t.shut = probing
	if r.Held {
		alone = store.ProbeTimeout + max(r.Guard, t.ledger.Plan().Guard())
		t.shut |= probe
	}
	t.until = t.now.At + algorithms.Micros(alone)
}

// endProbe ends the wait for the response to the probe, if that is what the decision
// admitted. Without one the next request probes.
func (t *turn) endProbe(b store.Decision, answered bool) {
	if !b.Probe || t.shut&probing == 0 || b.Epoch != t.epoch {
		return
	}
	t.until, t.shut = 0, probe
	if answered {
		t.shut = 0
	}
}

// Arrived is told to the file with the next transaction: those who wait here make one
// at once. Until then the request counts as on its way, for its guard at most.
func (q *quota) Arrived(b store.Decision, cost []int64) {
	if b.Flight == algorithms.Landed && !b.Probe {
		return
	}
	wall := q.store.wall()
	q.hear(func(t *turn) {
		if t.text == q.text { // else it lands with its guard
			t.ledger.Land(t.at(wall), b.Flight, cost)
		}
		t.endProbe(b, true)
	})
	q.store.tell(q.name, store.Freed, 0)
}

// Release does nothing: there are no tiers that count what is open.
func (q *quota) Release(store.Decision, []int64) {}

// Settle does nothing: there are no estimates.
func (q *quota) Settle(store.Decision, []int64, []int64, func([]algorithms.Crossing)) {}

// Observe is told to the file with the next transaction.
func (q *quota) Observe(b store.Decision, cost []int64, seen []store.Observation) {
	q.hear(func(t *turn) {
		if t.text == q.text { // else the readings are of other tiers
			t.exact = store.Observe(&t.ledger, t.now, b.At, cost, t.exact, seen)
		}
	})
}

// Unanswered leaves the request in flight. Of a probe it is told to the file with the next
// transaction.
func (q *quota) Unanswered(b store.Decision, _ []int64) {
	if b.Probe {
		q.hear(func(t *turn) { t.endProbe(b, false) })
		q.store.tell(q.name, store.Freed, 0)
	}
}

// row sets how many back-offs there were in a row.
func (q *quota) row(level uint8) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.level = level
}

// Passed ends the row of back-offs of this process: each counts its own.
func (q *quota) Passed(b store.Decision) {
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	if b.Epoch == q.seen.epoch {
		q.level = 0
	}
}

// Learned reports whether there are back-offs in a row, which are not in the file.
func (q *quota) Learned() bool {
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.level > 0
}

// Resume is seen by other processes when they ask.
func (q *quota) Resume(ctx context.Context) error {
	q.newest().row(0)
	err := q.newest().take(ctx, func(t *turn) bool {
		t.until, t.banned, t.shut = 0, 0, 0
		return true
	})
	if err == nil {
		q.store.tell(q.name, store.Eased, 0)
	}
	return err
}

func (q *quota) Return(ctx context.Context, b store.Decision, cost []int64) error {
	if b.Flight == algorithms.Landed && !b.Probe {
		return nil
	}
	wall := q.store.wall()
	q.hear(func(t *turn) {
		if t.text == q.text { // else it lands with its guard
			t.ledger.Cancel(t.at(wall), b.Flight, cost)
		}
		t.endProbe(b, false)
	})
	err := q.newest().take(ctx, func(*turn) bool { return false })
	q.store.tell(q.name, store.Eased, 0)
	return err
}

// Align is told to the file with the next transaction.
func (q *quota) Align(from, to time.Time) {
	wall, later := q.store.wall(), to.Add(time.Microsecond-1).UnixMicro()
	q.hear(func(t *turn) {
		if t.text == q.text { // else it is of other tiers
			t.ledger.Boundary(t.at(wall), from.UnixMicro()+t.offset, later+t.offset)
		}
	})
	q.store.tell(q.name, store.Freed, 0)
}

// Pause is told to the file with the next transaction if others have it.
func (q *quota) Pause(ctx context.Context, p store.Pause) (done store.Paused, err error) {
	q = q.newest()
	q.mu.Lock()
	level := q.level
	q.mu.Unlock()
	p.For = p.Length(level)
	end := time.Now().Add(p.For)
	err = q.take(ctx, func(t *turn) bool {
		done.Applied = t.pause(p)
		done.Epoch = t.epoch
		return done.Applied
	})
	switch {
	case errors.Is(err, store.ErrUnavailable):
		q.hear(func(t *turn) {
			if p.For = time.Until(end); p.For > 0 {
				t.pause(p)
			}
		})
	case done.Applied && err == nil:
		q.row(p.Next(level))
	}
	return done, err
}

func (t *turn) pause(p store.Pause) (applied bool) {
	end := min(t.now.At+algorithms.Micros(p.For), algorithms.Latest)
	until := t.until
	if t.shut&probing > 0 {
		until = 0
	}
	longer := end > max(t.now.At, until) || p.Probe && p.For == 0 && until <= t.now.At
	if p.Once && p.Epoch != t.epoch || !longer {
		return false
	}
	if p.Probe || t.shut&probing > 0 && t.until > t.now.At {
		t.shut |= probe
	}
	t.shut &= probe
	t.until = max(end, until)
	if p.Close {
		t.banned = max(t.banned, end)
	}
	t.epoch++
	return true
}

// change is what a pause is to those who wait, and how long it lasts.
func (t *turn) change() (store.Change, time.Duration) {
	if t.banned > t.now.At {
		return store.Shut, t.now.Until(t.banned)
	}
	return store.Slowed, t.now.Until(t.until)
}

func (q *quota) Status(ctx context.Context) (s store.Status, err error) {
	err = q.newest().take(ctx, func(t *turn) bool {
		s = t.status()
		return false
	})
	return s, err
}

func (t *turn) status() (s store.Status) {
	if s.Closed = max(0, t.now.Until(t.banned)); s.Closed == 0 {
		s.Paused = max(0, t.now.Until(t.until))
	}
	s.Tiers = store.Tiers(&t.ledger, t.now)
	return s
}

func (q *quota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	w := watcher(changed)
	return q.store.watch(q.name, &w)
}

// Close leaves the quota in the file until it equals a fresh one.
func (q *quota) Close() {
	if q.line.Close() { // what is in flight lands with its guard
		q.store.mu.Lock()
		defer q.store.mu.Unlock()
		delete(q.store.news, string(q.name))
	}
}

// Forecast foretells from what the file had the last time.
func (q *quota) Forecast() store.Forecast {
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	seen := q.seen
	from := seen.until
	if now, _ := seen.state.now(q.store.wall(), seen.now.At); seen.banned > now.At || seen.shut&probing > 0 { // nobody will wait: they are refused, or it is not known for how long
		from = 0
	}
	return store.Foretell(&seen.ledger, func() algorithms.Moment {
		now, _ := seen.state.now(q.store.wall(), seen.now.At)
		return now
	}, from)
}
