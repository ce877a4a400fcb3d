package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/store"
)

var _ store.Reserver = (*farQuota)(nil)

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
