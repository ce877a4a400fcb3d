package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// A farStore keeps one quota that is a round trip away and reserves ahead, as a shared store does,
// with only a ledger.
type farStore struct {
	trip    time.Duration // one round trip
	horizon time.Duration // how far ahead times are reserved for callers behind the first one
	most    int           // the highest number of requests per call
	lead    time.Duration // how long before a reserved time the next call may be made

	mu       sync.Mutex // guards all below
	plan     *algorithms.Plan
	ledger   algorithms.Ledger
	last     int64 // the time of the last reservation, µs since dayOne
	until    int64 // the end of a pause, µs since dayOne
	shut     bool
	away     error // the error of every call; nil if there is none
	full     bool  // only a release makes room
	calls    int
	returned []store.Decision
	watchers map[*func(store.Change, time.Duration)]struct{}
}

func far(trip time.Duration) *farStore {
	return &farStore{trip: trip, horizon: 500 * ms, most: 64, lead: ms + 2*trip, watchers: make(map[*func(store.Change, time.Duration)]struct{})}
}

func (s *farStore) Open(_ string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	s.plan, s.ledger = plan, plan.NewLedger()
	idle, err := local.New().Open("", plan, nil)
	return &farQuota{Quota: idle, s: s}, err
}

type farQuota struct {
	store.Quota
	s *farStore
}

var _ store.Reserver = (*farQuota)(nil)

var dayOne = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // the start of every synctest bubble

func (q *farQuota) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	go func() {
		sent := time.Now()
		time.Sleep(q.s.trip / 2)
		now := time.Now()
		got, err := q.s.reserve(sent, now, requests)
		time.Sleep(q.s.trip / 2)
		for i, b := range got {
			if b.Reservation != nil { // the time is relative to the server's, and the reply took time
				got[i].Reservation.Start = b.Reservation.Start.Add(time.Since(now))
			}
		}
		done(got, err)
	}()
}

func (s *farStore) reserve(sent, now time.Time, requests []store.Request) (got []store.Decision, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.away != nil {
		return nil, s.away
	}
	m := algorithms.Moment{At: now.Sub(dayOne).Microseconds(), Wall: now.UnixMicro()}
	first := true
	for _, r := range requests[:min(s.most, len(requests))] {
		if s.shut && s.until > m.At {
			got = append(got, store.Decision{Verdict: store.Closed, Tier: -1, Wait: m.Until(s.until)})
			continue
		}
		at, tier := s.ledger.Earliest(m.Later(max(s.until, s.last)), algorithms.Request{Cost: r.Cost})
		b := store.Decision{Tier: tier, Wait: m.Until(at)}
		switch {
		case s.full:
			b.Wait = 500 * ms // a store that may miss the release says when to ask again
			return append(got, b), nil
		case b.Wait > r.MaxWait:
			b.Verdict = store.Late
		case !first && b.Wait > s.horizon:
			return append(got, b), nil
		default:
			first, s.last = false, at
			s.ledger.Charge(m.Later(at), algorithms.Request{Cost: r.Cost})
			start := now.Add(b.Wait)
			b.Verdict = store.Admitted
			b.Reservation = &store.Reservation{Start: start, End: sent.Add(b.Wait + 50*ms), Again: start.Add(-s.lead), At: at, Cost: r.Cost}
		}
		got = append(got, b)
	}
	return got, nil
}

func (q *farQuota) Cancel(reservations []store.Decision) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.s.returned = append(q.s.returned, reservations...)
}

func (*farQuota) Leave() {}

func (q *farQuota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.s.watchers[&changed] = struct{}{}
	return func() {
		q.s.mu.Lock()
		defer q.s.mu.Unlock()
		delete(q.s.watchers, &changed)
	}
}

func (s *farStore) tell(c store.Change, left time.Duration) {
	s.mu.Lock()
	if c != store.Freed && c != store.Lost {
		s.until, s.shut = time.Now().Add(left).Sub(dayOne).Microseconds(), c == store.Shut
	}
	var tell []func(store.Change, time.Duration)
	for w := range s.watchers {
		tell = append(tell, *w)
	}
	s.mu.Unlock()
	for _, w := range tell {
		w(c, left)
	}
}

// An arrival is one caller at a far store, and how it ended.
type arrival struct {
	at     time.Duration
	n      int64         // units
	within time.Duration // its timeout; zero for none
	cancel time.Duration // when its context is canceled; zero for never
	class  throttle.Class
	ended  time.Duration
	err    error
}

// arrive runs the callers. It fills in their ends and returns the order in which they were
// admitted.
func arrive(t *testing.T, l *throttle.Limiter, callers []arrival) (order []int) {
	t.Helper()
	start := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range callers {
		c := &callers[i]
		wg.Go(func() {
			time.Sleep(c.at + time.Duration(i)) // in order
			ctx := throttle.WithClass(context.Background(), c.class)
			if c.within > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.within)
				defer cancel()
			}
			if c.cancel > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				time.AfterFunc(c.cancel-c.at, cancel)
			}
			c.err = l.WaitN(ctx, max(1, c.n))
			mu.Lock()
			defer mu.Unlock()
			c.ended = time.Since(start).Truncate(ms)
			if c.err == nil {
				order = append(order, i)
			}
		})
	}
	wg.Wait()
	return order
}

func ends(callers []arrival) (ended []time.Duration) {
	for _, c := range callers {
		ended = append(ended, c.ended)
	}
	return ended
}

// steady returns a policy that admits one unit every 100 ms, without a burst.
func steady() throttle.Policy {
	return throttle.Policy{Name: "steady", Tiers: []throttle.Tier{{Limit: 10, Window: sec, Algorithm: throttle.GCRA, Burst: 1}}, Guard: throttle.NoGuard}
}

// TestReservedInOrder checks that callers that arrive together share round trips and are admitted
// in order, each at its reserved time.
func TestReservedInOrder(t *testing.T) {
	for _, trip := range []time.Duration{0, 100 * time.Microsecond, 10 * ms} {
		synctest.Test(t, func(t *testing.T) {
			s := far(trip)
			callers := make([]arrival, 50)
			order := arrive(t, limiter(t, steady(), s), callers)
			if !slices.IsSorted(order) || len(order) != 50 {
				t.Errorf("trip %v: the order was %v, want 0 to 49", trip, order)
			}
			for i, c := range callers {
				if due := time.Duration(i) * 100 * ms; c.err != nil || c.ended < due || c.ended > due+2*trip {
					t.Errorf("trip %v: caller %d was admitted at %v, %v; want %v", trip, i, c.ended, c.err, due)
				}
			}
			if most := 15; s.calls > most { // a call reserves up to five times
				t.Errorf("trip %v: %d calls for 50, want at most %d", trip, s.calls, most)
			}
		})
	}
}

// TestOneCallForAll checks that callers that need not wait share a call, up to the most that the
// store takes.
func TestOneCallForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := far(ms)
		l := limiter(t, throttle.Policy{Name: "wide", Tiers: []throttle.Tier{throttle.PerSecond(1000)}}, s)
		arrive(t, l, make([]arrival, 1+64+64+12))
		if s.calls != 4 { // the first caller's call is its own
			t.Errorf("%d calls, want 4", s.calls)
		}
	})
}

// TestAskAgainTime checks that a quota that has no room is asked again at the time that it named,
// and not before.
func TestAskAgainTime(t *testing.T) {
	for name, fail := range map[string]func(*farStore){
		"full": func(s *farStore) { s.full = true },
		"away": func(s *farStore) { s.away = store.ErrUnavailable },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := far(ms)
			s.horizon, s.lead = 0, 900*ms
			l := limiter(t, throttle.Policy{Name: "far", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, s)
			callers := []arrival{{}, {}, {cancel: 900 * ms}}
			time.AfterFunc(50*ms, func() { s.mu.Lock(); fail(s); s.mu.Unlock() })
			arrive(t, l, callers)
			if callers[1].err != nil || callers[2].err == nil {
				t.Errorf("%s: callers %+v; want the second admitted and the third canceled", name, callers)
			}
			if s.calls > 8 {
				t.Errorf("%s: %d calls, want at most 8", name, s.calls)
			}
		})
	}
}

// TestReservedCancel checks that a canceled caller does not delay the callers behind it, and that
// unused reservations are canceled.
func TestReservedCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := far(2 * ms) // one call reserves for all but the first
		callers := make([]arrival, 6)
		callers[1].cancel = 50 * ms
		callers[3].cancel = 50 * ms
		order := arrive(t, limiter(t, steady(), s), callers)
		if want := []int{0, 2, 4, 5}; !slices.Equal(order, want) {
			t.Errorf("the order was %v, want %v", order, want)
		}
		want := []time.Duration{2 * ms, 50 * ms, 102 * ms, 50 * ms, 202 * ms, 302 * ms}
		if got := ends(callers); !slices.Equal(got, want) {
			t.Errorf("they ended at %v, want %v", got, want)
		}
		if !errors.Is(callers[1].err, context.Canceled) {
			t.Errorf("the first canceled caller got %v, want Canceled", callers[1].err)
		}
		if len(s.returned) != 2 || s.returned[0].Reservation.At < 400_000 {
			t.Errorf("canceled reservations: %+v, want those of the last two", s.returned)
		}
	})
}

// TestReservedMixedCosts checks that a free reservation goes only to a caller with the same cost,
// and is canceled if that caller would overtake another one.
func TestReservedMixedCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := far(0)
		p := steady()
		p.Tiers[0].Burst = 3
		callers := []arrival{{n: 3}, {n: 1, cancel: 50 * ms}, {n: 2}, {n: 1}}
		order := arrive(t, limiter(t, p, s), callers)
		if want := []int{0, 2, 3}; !slices.Equal(order, want) {
			t.Errorf("the order was %v, want %v", order, want)
		}
		if want := []time.Duration{0, 50 * ms, 300 * ms, 400 * ms}; !slices.Equal(ends(callers), want) {
			t.Errorf("they ended at %v, want %v", ends(callers), want)
		}
		if len(s.returned) != 1 || s.returned[0].Reservation.At != 100_000 {
			t.Errorf("canceled reservations: %v, want the one at 100ms", s.returned)
		}
	})
}

// TestReservedDeadlines checks that a late caller is refused at once, because of the store's reply
// or of earlier reservations, and is not charged.
func TestReservedDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := far(2 * ms)
		callers := []arrival{{}, {within: 50 * ms}, {}, {at: 10 * ms, within: 50 * ms}, {at: 10 * ms, within: 350 * ms}}
		order := arrive(t, limiter(t, steady(), s), callers)
		if want := []int{0, 2, 4}; !slices.Equal(order, want) {
			t.Errorf("the order was %v, want %v", order, want)
		}
		for i, at := range map[int]time.Duration{1: 4 * ms, 3: 10 * ms} {
			if c := callers[i]; !errors.Is(c.err, throttle.ErrDeadline) || c.ended > at {
				t.Errorf("caller %d: %v at %v, want ErrDeadline by %v", i, c.err, c.ended, at)
			}
		}
		if d := callers[4].ended; d > 205*ms {
			t.Errorf("the last caller was admitted at %v, want at most 205ms without charges for refused callers", d)
		}
	})
}

// TestReservedQueueFull checks that MaxQueue counts callers that wait for the tiers, not callers
// that wait for the store.
func TestReservedQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := far(10 * ms)
		p := steady()
		p.MaxQueue, p.Tiers[0].Burst = 2, 10
		callers := make([]arrival, 20)
		order := arrive(t, limiter(t, p, s), callers)
		slices.Sort(order) // the burst is admitted together
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}; !slices.Equal(order, want) {
			t.Errorf("admitted: %v, want the burst and two that waited", order)
		}
		full := 0
		for _, c := range callers {
			if errors.Is(c.err, throttle.ErrQueueFull) {
				full++
			}
		}
		if full == 0 || full+len(order) != 20 {
			t.Errorf("%d callers were refused and %d admitted, want 20 in all and some refused", full, len(order))
		}
	})
}

// TestReservedPause checks that reservations are made again, in order, after a pause or a lost
// state, and that a ban ends the wait.
func TestReservedPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := far(0)
		callers := make([]arrival, 5)
		time.AfterFunc(150*ms, func() { s.tell(store.Slowed, 100*ms) })
		order := arrive(t, limiter(t, steady(), s), callers)
		if want := []int{0, 1, 2, 3, 4}; !slices.Equal(order, want) {
			t.Errorf("the order was %v, want %v", order, want)
		}
		if callers[2].ended < 250*ms {
			t.Errorf("caller 2 was admitted at %v, in the pause", callers[2].ended)
		}
		if len(s.returned) != 3 || s.returned[0].Reservation.At != 200_000 {
			t.Errorf("canceled reservations: %+v, want those from 200ms on", s.returned)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := far(0)
		callers := make([]arrival, 5)
		time.AfterFunc(150*ms, func() { s.tell(store.Shut, hour) })
		arrive(t, limiter(t, steady(), s), callers)
		for i, c := range callers[2:] {
			if !errors.Is(c.err, throttle.ErrBanned) || c.ended != 150*ms {
				t.Errorf("caller %d: %v at %v, want ErrBanned at 150ms", i+2, c.err, c.ended)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := far(0)
		callers := make([]arrival, 5)
		time.AfterFunc(150*ms, func() { s.tell(store.Lost, 0) })
		order := arrive(t, limiter(t, steady(), s), callers)
		if len(order) != 5 || !slices.IsSorted(order) || len(s.returned) != 3 {
			t.Errorf("the order was %v and %d reservations were canceled, want 3", order, len(s.returned))
		}
	})
}

// TestStoreAway checks that callers wait for a store that is unavailable and are admitted when it
// is back. A caller whose context ends first gets the cause, and another error of the store fails
// all callers at once.
func TestStoreAway(t *testing.T) {
	cause := errors.New("connection refused")
	synctest.Test(t, func(t *testing.T) {
		s := far(ms)
		s.away = fmt.Errorf("%w: %w", store.ErrUnavailable, cause)
		time.AfterFunc(10*sec, func() { s.mu.Lock(); s.away = nil; s.mu.Unlock() })
		callers := make([]arrival, 100)
		callers[1].within = 3 * sec
		callers[2].cancel = 4 * sec
		order := arrive(t, limiter(t, steady(), s), callers)
		if len(order) != 98 || !slices.IsSorted(order) {
			t.Errorf("admitted: %v, want 98 in order", order)
		}
		if c := callers[0]; c.ended < 10*sec || c.ended > 11*sec {
			t.Errorf("the first caller was admitted at %v, want 10s to 11s", c.ended)
		}
		for i, ended := range map[int]error{1: context.DeadlineExceeded, 2: context.Canceled} {
			err := callers[i].err
			var refusal *throttle.WaitError
			if !errors.Is(err, throttle.ErrUnavailable) || !errors.Is(err, cause) || !errors.Is(err, ended) || !errors.As(err, &refusal) {
				t.Errorf("caller %d: %v, want ErrUnavailable, %v and %v", i, err, cause, ended)
			}
		}
		if s.calls > 60+40 {
			t.Errorf("%d calls, want at most 100", s.calls)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := far(ms)
		s.away = cause
		callers := make([]arrival, 100)
		arrive(t, limiter(t, steady(), s), callers)
		for i, c := range callers {
			if !errors.Is(c.err, cause) || errors.Is(c.err, throttle.ErrUnavailable) || c.ended > 10*ms {
				t.Fatalf("caller %d: %v at %v, want %v alone by 10ms", i, c.err, c.ended, cause)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := far(ms)
		s.away = store.ErrUnavailable
		p := steady()
		p.MaxWait = 2 * sec
		callers := make([]arrival, 10)
		arrive(t, limiter(t, p, s), callers)
		time.Sleep(sec) // until the last call has ended
		for i, c := range callers {
			if !errors.Is(c.err, throttle.ErrUnavailable) || c.ended > 2*sec+10*ms {
				t.Fatalf("caller %d: %v at %v, want ErrUnavailable by 2.01s", i, c.err, c.ended)
			}
		}
	})
}

func (q *farQuota) Trip(context.Context) time.Duration { return q.s.trip }

func (q *farQuota) IsVoid(store.Decision) bool { return false }
