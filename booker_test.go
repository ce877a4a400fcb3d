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

// A farStore keeps one quota that is a round trip away and books ahead, as a
// shared store does, with nothing in it but a ledger.
type farStore struct {
	trip    time.Duration // a round trip
	horizon time.Duration
	most    int           // callers a call
	lead    time.Duration // how long before a booked time it is to be asked for the next

	mu       sync.Mutex // guards all below
	plan     *algorithms.Plan
	ledger   algorithms.Ledger
	last     int64 // the time of the last booking
	until    int64 // a pause ends
	shut     bool
	away     error
	full     bool // only a release helps
	calls    int
	returned []store.Decision
	watchers map[*func(store.Change, time.Duration)]struct{}
}

func far(trip time.Duration) *farStore {
	return &farStore{trip: trip, horizon: 500 * ms, most: 64, lead: ms + 2*trip, watchers: make(map[*func(store.Change, time.Duration)]struct{})}
}

func (s *farStore) Open(_ string, plan *algorithms.Plan) (store.Quota, error) {
	s.plan, s.ledger = plan, plan.NewLedger()
	idle, err := local.New().Open("", plan)
	return &farQuota{Quota: idle, s: s}, err
}

type farQuota struct {
	store.Quota
	s *farStore
}

var dayOne = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // a synctest bubble begins

func (q *farQuota) Reserve(behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	go func() {
		sent := time.Now()
		time.Sleep(q.s.trip / 2)
		now := time.Now()
		got, err := q.s.book(sent, now, requests)
		time.Sleep(q.s.trip / 2)
		for i, b := range got {
			if b.Reservation != nil { // they were told from the server's time, and the reply took time
				got[i].Reservation.Start = b.Reservation.Start.Add(time.Since(now))
			}
		}
		done(got, err)
	}()
}

func (s *farStore) book(sent, now time.Time, requests []store.Request) (got []store.Decision, err error) {
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
			b.Wait = 500 * ms // as a store says that may miss it
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

func (q *farQuota) Cancel(bookings []store.Decision) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.s.returned = append(q.s.returned, bookings...)
}

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

// An arrival is one caller at a far store: when it came and went, and how.
type arrival struct {
	at     time.Duration
	n      int64         // units
	within time.Duration // of its context; zero for no end
	cancel time.Duration // when its context is canceled; zero for never
	class  throttle.Class
	ended  time.Duration
	err    error
}

// arrive plays callers against a limiter and returns them with their ends, and the
// order in which they were admitted.
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

// steady admits one unit every 100 ms, with no burst.
func steady() throttle.Policy {
	return throttle.Policy{Name: "steady", Tiers: []throttle.Tier{{Limit: 10, Window: sec, Algorithm: throttle.GCRA, Burst: 1}}, Guard: throttle.NoGuard}
}

// TestBookedInOrder: callers that come at once share round trips and go in order,
// each at its time and no sooner.
func TestBookedInOrder(t *testing.T) {
	for _, trip := range []time.Duration{0, 100 * time.Microsecond, 10 * ms} {
		synctest.Test(t, func(t *testing.T) {
			s := far(trip)
			callers := make([]arrival, 50)
			order := arrive(t, limiter(t, steady(), s), callers)
			if !slices.IsSorted(order) || len(order) != 50 {
				t.Errorf("trip %v: the order was %v", trip, order)
			}
			for i, c := range callers {
				if due := time.Duration(i) * 100 * ms; c.err != nil || c.ended < due || c.ended > due+2*trip {
					t.Errorf("trip %v: number %d went at %v, %v; it was due at %v", trip, i, c.ended, c.err, due)
				}
			}
			if most := 15; s.calls > most { // five fit into the horizon
				t.Errorf("trip %v: %d calls for 50, want at most %d", trip, s.calls, most)
			}
		})
	}
}

// TestOneCallForAll: without a wait, as many as the store takes share a call.
func TestOneCallForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := far(ms)
		l := limiter(t, throttle.Policy{Name: "wide", Tiers: []throttle.Tier{throttle.PerSecond(1000)}}, s)
		arrive(t, l, make([]arrival, 1+64+64+12))
		if s.calls != 4 { // the first one alone
			t.Errorf("%d calls, want 4", s.calls)
		}
	})
}

// TestAskedInVain: a quota that has nothing to give, where it is time to ask for more,
// is asked again when it said so, and not before.
func TestAskedInVain(t *testing.T) {
	for name, vain := range map[string]func(*farStore){
		"full": func(s *farStore) { s.full = true },
		"away": func(s *farStore) { s.away = store.ErrUnavailable },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := far(ms)
			s.horizon, s.lead = 0, 900*ms
			l := limiter(t, throttle.Policy{Name: "far", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, s)
			callers := []arrival{{}, {}, {cancel: 900 * ms}}
			time.AfterFunc(50*ms, func() { s.mu.Lock(); vain(s); s.mu.Unlock() })
			arrive(t, l, callers)
			if callers[1].err != nil || callers[2].err == nil {
				t.Errorf("%s: %+v", name, callers)
			}
			if s.calls > 8 {
				t.Errorf("%s: %d calls", name, s.calls)
			}
		})
	}
}

// TestBookedCancel: who leaves is as if it had never come for those behind it, and
// what nobody wants goes back.
func TestBookedCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := far(2 * ms) // so that all but the first are booked by one call
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
			t.Errorf("the first to leave got %v", callers[1].err)
		}
		if len(s.returned) != 2 || s.returned[0].Reservation.At < 400_000 {
			t.Errorf("given back: %+v, want the times of the last two", s.returned)
		}
	})
}

// TestBookedMixedCosts: a time is of use only to who costs the same; one that
// would let somebody overtake goes back.
func TestBookedMixedCosts(t *testing.T) {
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
			t.Errorf("given back: %v", s.returned)
		}
	})
}

// TestBookedDeadlines: who can't be served in time is told at once, by the store or
// by what is booked before it, and is charged nothing.
func TestBookedDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := far(2 * ms)
		callers := []arrival{{}, {within: 50 * ms}, {}, {at: 10 * ms, within: 50 * ms}, {at: 10 * ms, within: 350 * ms}}
		order := arrive(t, limiter(t, steady(), s), callers)
		if want := []int{0, 2, 4}; !slices.Equal(order, want) {
			t.Errorf("the order was %v, want %v", order, want)
		}
		for i, at := range map[int]time.Duration{1: 4 * ms, 3: 10 * ms} {
			if c := callers[i]; !errors.Is(c.err, throttle.ErrDeadline) || c.ended > at {
				t.Errorf("number %d: %v at %v, want ErrDeadline by %v", i, c.err, c.ended, at)
			}
		}
		if d := callers[4].ended; d > 205*ms {
			t.Errorf("the last went at %v: those refused were charged", d)
		}
	})
}

// TestBookedQueueFull: MaxQueue counts those who wait for the tiers, not those who
// wait for the store.
func TestBookedQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := far(10 * ms)
		p := steady()
		p.MaxQueue, p.Tiers[0].Burst = 2, 10
		callers := make([]arrival, 20)
		order := arrive(t, limiter(t, p, s), callers)
		slices.Sort(order) // the burst goes at once
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}; !slices.Equal(order, want) {
			t.Errorf("admitted: %v, want the burst and two who wait", order)
		}
		full := 0
		for _, c := range callers {
			if errors.Is(c.err, throttle.ErrQueueFull) {
				full++
			}
		}
		if full == 0 || full+len(order) != 20 {
			t.Errorf("%d were refused and %d admitted, of 20", full, len(order))
		}
	})
}

// TestBookedPause: what was booked before a pause is booked anew, in order, also beyond its
// end; a ban ends the wait.
func TestBookedPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := far(0)
		callers := make([]arrival, 5)
		time.AfterFunc(150*ms, func() { s.tell(store.Slowed, 100*ms) })
		order := arrive(t, limiter(t, steady(), s), callers)
		if want := []int{0, 1, 2, 3, 4}; !slices.Equal(order, want) {
			t.Errorf("the order was %v, want %v", order, want)
		}
		if callers[2].ended < 250*ms {
			t.Errorf("number 2 went at %v, inside the pause", callers[2].ended)
		}
		if len(s.returned) != 3 || s.returned[0].Reservation.At != 200_000 {
			t.Errorf("dropped: %+v, want the times from 200ms on", s.returned)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := far(0)
		callers := make([]arrival, 5)
		time.AfterFunc(150*ms, func() { s.tell(store.Shut, hour) })
		arrive(t, limiter(t, steady(), s), callers)
		for i, c := range callers[2:] {
			if !errors.Is(c.err, throttle.ErrBanned) || c.ended != 150*ms {
				t.Errorf("number %d: %v at %v, want ErrBanned at once", i+2, c.err, c.ended)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := far(0)
		callers := make([]arrival, 5)
		time.AfterFunc(150*ms, func() { s.tell(store.Lost, 0) })
		order := arrive(t, limiter(t, steady(), s), callers)
		if len(order) != 5 || !slices.IsSorted(order) || len(s.returned) != 3 {
			t.Errorf("the order was %v, and %d were dropped", order, len(s.returned))
		}
	})
}

// TestStoreAway: callers wait for the store and go on when it is back; whose context
// ends first learns why, and a broken store is not waited for.
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
			t.Errorf("admitted: %v", order)
		}
		if c := callers[0]; c.ended < 10*sec || c.ended > 11*sec {
			t.Errorf("the first went at %v", c.ended)
		}
		for i, ended := range map[int]error{1: context.DeadlineExceeded, 2: context.Canceled} {
			err := callers[i].err
			var refusal *throttle.WaitError
			if !errors.Is(err, throttle.ErrUnavailable) || !errors.Is(err, cause) || !errors.Is(err, ended) || !errors.As(err, &refusal) {
				t.Errorf("number %d: %v", i, err)
			}
		}
		if s.calls > 60+40 {
			t.Errorf("%d calls", s.calls)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := far(ms)
		s.away = cause
		callers := make([]arrival, 100)
		arrive(t, limiter(t, steady(), s), callers)
		for i, c := range callers {
			if !errors.Is(c.err, cause) || errors.Is(c.err, throttle.ErrUnavailable) || c.ended > 10*ms {
				t.Fatalf("number %d: %v at %v", i, c.err, c.ended)
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
		time.Sleep(sec) // the last answer comes
		for i, c := range callers {
			if !errors.Is(c.err, throttle.ErrUnavailable) || c.ended > 2*sec+10*ms {
				t.Fatalf("number %d: %v at %v", i, c.err, c.ended)
			}
		}
	})
}
