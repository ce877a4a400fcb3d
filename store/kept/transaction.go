package kept

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// A transaction is one of some quotas at once.
type transaction struct {
	quotas []*quota
	// requests is the number of requests that it decides.
	requests int
	// prepare is called before the transaction is sent, and may be nil.
	prepare func(parts []*part)
	// decide decides, or does nothing if it is nil.
	decide func(parts []*part)
	// granted is called after the transaction, before another one of these quotas begins, and may be nil. It keeps
	// what the process holds now, because the next transaction reports that.
	granted func()

	parts []*part
	sent  time.Time
	view  View
	// applied are by quota how many pending changes were applied, reported what was reported of the leases,
	// and crossed the percentages that calendar tiers have reached.
	applied  []int
	reported []report
	crossed  [][]algorithms.Crossing
	// bounds are by quota those of its clock, and got is when the transaction ended.
	bounds []timing.Bounds
	got    time.Time
}

// run runs the transaction. The quotas differ in their names.
func (s *Store) run(ctx context.Context, x *transaction) (err error) {
	order := slices.SortedFunc(slices.Values(x.quotas), func(a, b *quota) int { return bytes.Compare(a.name, b.name) })
	leave, err := s.takeTurns(ctx, order)
	if err != nil {
		return err
	}
	began := x.quotas[0].calls.Begin()
	defer func() {
		for _, q := range x.quotas {
			q.renewLater(err)
		}
		leave()
		if errors.Is(err, errMoved) {
			x.quotas[0].calls.End(began, 0, nil)
		} else {
			x.quotas[0].calls.End(began, x.requests, err)
		}
		for _, q := range x.quotas {
			q.tellCrossed()
		}
	}()
	names, index := x.names(order)
	x.sent = time.Now()
	if x.prepare != nil {
		x.parts = make([]*part, len(x.quotas))
		for i := range x.parts {
			x.parts[i] = new(part)
		}
		x.prepare(x.parts)
	}
	err = s.keeper.Update(ctx, names, func(v View) ([]Write, error) { return x.change(v, index) })
	x.got = time.Now()
	if b := (*behind)(nil); errors.As(err, &b) {
		b.catchUp()
		return errMoved
	}
	for i, q := range x.quotas {
		q.dropPending(x.appliedTo(i), err != nil)
	}
	if err == nil {
		s.link.Trip.Add(x.got.Sub(x.sent)) // of no call that failed: a hanging keeper says nothing about the next one
		x.keep()
		return nil
	}
	for _, q := range x.quotas {
		q.lease.doubt()
	}
	if prefix := s.options.Name + ": "; !strings.HasPrefix(err.Error(), prefix) {
		err = fmt.Errorf("%s%w", prefix, err)
	}
	return err
}

// names returns the names of quotas in an order, and for each quota of the transaction the index of its name.
func (x *transaction) names(order []*quota) (names [][]byte, index []int) {
	index = make([]int, len(order))
	for i, q := range order {
		names = append(names, q.name)
		index[slices.Index(x.quotas, q)] = i
	}
	return names, index
}

// keep keeps the results, before another transaction of these quotas begins.
func (x *transaction) keep() {
	for i, q := range x.quotas {
		q.record(x.parts[i], x, i)
	}
	if x.granted != nil {
		x.granted()
	}
}

// takeTurns waits for the turns of quotas: a process makes one transaction of a quota at a time, and knows its result
// before the next one. Otherwise two would report the same.
func (s *Store) takeTurns(ctx context.Context, order []*quota) (leave func(), err error) {
	taken := 0
	leave = func() {
		for _, q := range order[:taken] {
			<-q.turn
		}
	}
	for ; taken < len(order); taken++ {
		select {
		case order[taken].turn <- struct{}{}:
		case <-ctx.Done():
			leave()
			if s.options.Busy != nil {
				return nil, s.options.Busy(ctx)
			}
			return nil, fmt.Errorf("%s: %w: %w", s.options.Name, store.ErrUnavailable, ctx.Err())
		}
	}
	return leave, nil
}

func (x *transaction) appliedTo(i int) int {
	if i < len(x.applied) {
		return x.applied[i]
	}
	return 0
}

// change is the body of the transaction.
func (x *transaction) change(v View, index []int) ([]Write, error) {
	x.view, x.applied, x.reported, x.crossed = v, nil, nil, nil
	parts := make([]*part, len(x.quotas))
	for i, q := range x.quotas {
		t, err := begin(v.Values[index[i]], v, q)
		if err != nil {
			return nil, err
		}
		p := &part{txn: t, lease: q.lease, leaseEnds: t.now.At + t.lease, waits: q.isWatched()}
		if x.parts != nil && x.parts[i] != nil {
			p.terms, p.slack, p.headroom = x.parts[i].terms, x.parts[i].slack, x.parts[i].headroom
		}
		if t.lost && t.grantsFrom+t.lease < t.now.At {
			t.grantsFrom = t.now.At + t.lease/3
		}
		// What the responses say comes first, because it is about the time before the requests ended.
		x.applied = append(x.applied, q.applyPending(t))
		x.reported = append(x.reported, t.apply(q.lease, p.leaseEnds, p.waits))
		parts[i] = p
	}
	x.parts = parts
	if x.decide != nil {
		x.decide(parts)
	}
	writes := make([]Write, len(index))
	for i, p := range parts {
		x.crossed = append(x.crossed, p.crossings())
		writes[index[i]] = p.finish()
		if err := p.checkSize(writes[index[i]].Value, x.quotas[i].store.options.Ahead); err != nil {
			return nil, err
		}
	}
	return writes, nil
}

// MostBytes is the size of the largest value of a quota that reserves ahead. Three quarters of it may be the processes that
// hold or wait for places or estimates, of 17 bytes each, and 4 more for each unit: some 700 if there is one unit, and 400
// if there are four.
const MostBytes = 1 << 14
