package timing

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
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

// TestWakesOfExpiredReservations checks that a caller that woke up too late for its reservation makes later
// reservations valid for longer, unless the answer itself came too late.
func TestWakesOfExpiredReservations(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		told, end time.Duration // before now
		want      time.Duration
	}{
		{200 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond},
		{70 * time.Millisecond, 50 * time.Millisecond, 70 * time.Millisecond},
		{200 * time.Millisecond, -time.Millisecond, 0},
		{40 * time.Millisecond, 50 * time.Millisecond, 0},
	} {
		q := newTiming(t, "1/5s")
		q.AddWake(&store.Reservation{Told: now.Add(-test.told), Start: now.Add(-100 * time.Millisecond), End: now.Add(-test.end)}, now)
		if got, _ := q.Link.Wake.Get(); got != test.want {
			t.Errorf("told %v ago, ended %v ago: got %v, want %v", test.told, test.end, got, test.want)
		}
	}
}

// TestRetryAfterLateAnswers checks that the delays after late answers are bounded, and end if answers
// usually take longer than a reservation is valid.
func TestRetryAfterLateAnswers(t *testing.T) {
	q := newTiming(t, "1/5s")
	for tries := range 20 {
		most := min(2500*time.Millisecond, 100*time.Millisecond<<min(tries, 10))
		if d, ok := q.RetryAfter(100*time.Millisecond, time.Minute, tries); !ok || d >= most {
			t.Errorf("%d tries: got %v, %v, want less than %v", tries, d, ok, most)
		}
	}
	if d, _ := q.RetryAfter(100*time.Millisecond, time.Millisecond, 9); d >= time.Millisecond {
		t.Errorf("got %v, want less than 1ms", d)
	}
	q.Link.Trip.Add(3 * time.Second)
	for tries, want := range []bool{true, true, true, false} {
		if _, ok := q.RetryAfter(3*time.Second, time.Minute, tries); ok != want {
			t.Errorf("trips of 3s, %d tries: got %v, want %v", tries, ok, want)
		}
	}
}
