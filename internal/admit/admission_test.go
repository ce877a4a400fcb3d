package admit

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// TestEndOfReservations checks that a request may be sent until the first of its reservations ends, in
// whatever order its scopes are, and that a scope in which it costs nothing does not count.
func TestEndOfReservations(t *testing.T) {
	plan, err := algorithms.NewPlan([]algorithms.Tier{{Limit: 1, Window: time.Second}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	rev := &Revision{Policy: (&Policy{Plan: plan}).Compile()}
	now := time.Now()
	charge := func(end time.Duration, cost int64) Charge {
		r := &store.Reservation{Start: now, End: now.Add(end * time.Hour)}
		return Charge{Revision: rev, Decision: store.Decision{Reservation: r}, Cost: []int64{cost}}
	}
	for _, charges := range [][]Charge{
		{charge(1, 1), charge(2, 1), charge(3, 1)},
		{charge(2, 1), charge(1, 1), charge(3, 1)},
		{charge(3, 1), charge(2, 1), charge(1, 1)},
		{charge(0, 0), charge(1, 1), charge(0, 0)},
	} {
		for i := range charges {
			charges[i].Scope = new(Scope)
		}
		a := Admission{Charge: charges[0], outer: charges[1:]}
		if end := a.end(0); !end.Equal(now.Add(time.Hour)) {
			t.Errorf("got an end in %v, want 1h", end.Sub(now))
		}
		if end := a.end(time.Minute); end.After(time.Now().Add(time.Minute)) {
			t.Errorf("held for a minute, got an end in %v", end.Sub(now))
		}
	}
}
