package timing

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// newTiming returns the Timing of a quota with a guard of a second.
func newTiming(t *testing.T, specs ...string) Timing {
	t.Helper()
	var tiers []algorithms.Tier
	for _, spec := range specs {
		tier, err := algorithms.ParseTier(spec)
		if err != nil {
			t.Fatal(err)
		}
		tiers = append(tiers, tier)
	}
	plan, err := algorithms.NewPlan(tiers, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return New(new(Link), new(Clock), plan)
}

// TestSpareOfShortestWindow checks that reservations are valid longer by a part of the shortest window.
func TestSpareOfShortestWindow(t *testing.T) {
	for _, tiers := range [][]string{{"1/5s", "9/h"}, {"9/h", "1/5s"}, {"3;algo=concurrency", "9/h", "1/5s"}} {
		if got := newTiming(t, tiers...).spare; got != 10*time.Millisecond {
			t.Errorf("%v: got %v, want 10ms", tiers, got)
		}
	}
}

// TestReservationForNow checks that a reservation for an instant before the end of the reply is valid, and
// counts, for as much longer.
func TestReservationForNow(t *testing.T) {
	const ms = time.Millisecond
	q, sent := newTiming(t, "1/5s"), time.Now()
	a := Answer{Reading: Reading{Now: 9_000_000, Wall: 9_000_000, Sent: sent, Got: sent.Add(8 * ms)}, Terms: Terms{Good: 40 * ms, Reply: 16 * ms, Guard: 140 * ms}}
	a.Bounds, _ = q.Clock.Update(a.Reading)
	now, later := q.Reservation(&a, a.Now, 1, 0), q.Reservation(&a, a.Now+16_000, 1, 0)
	if now.Start.Sub(a.Got) != 0 || a.Wait(now.At) != 0 || later.Start.Sub(a.Got).Round(ms) != 16*ms || a.Wait(later.At).Round(ms) != 16*ms {
		t.Errorf("got starts %v and %v after the reply, want 0s and 16ms", now.Start.Sub(a.Got), later.Start.Sub(a.Got))
	}
	if now.End.Sub(sent) != 56*ms || later.End.Sub(sent).Round(ms) != 56*ms {
		t.Errorf("got ends %v and %v after the call, want 56ms", now.End.Sub(sent), later.End.Sub(sent))
	}
	if now.Guard != 156*ms || later.Guard != 140*ms {
		t.Errorf("got guards of %v and %v, want 156ms and 140ms", now.Guard, later.Guard)
	}
	if short := q.Reservation(&a, a.Now, 1, 10*ms); now.End.Sub(short.End) != 10*ms || now.Guard-short.Guard != 10*ms {
		t.Errorf("got an end %v earlier and a guard shorter by %v, want 10ms", now.End.Sub(short.End), now.Guard-short.Guard)
	}
	if a.Guard = 0; q.Reservation(&a, a.Now, 1, 0).Guard != 0 {
		t.Error("got a guard, want none with NoGuard")
	}
}
