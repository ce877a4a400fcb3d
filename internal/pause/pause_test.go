package pause_test

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/pause"
	"github.com/apithrottle/throttle/store"
)

// TestProbeInFlight checks what holds while the response to a probe is to come: forecasts know no end of
// the wait, and a pause that begins makes another request a probe.
func TestProbeInFlight(t *testing.T) {
	plan, err := algorithms.NewPlan([]algorithms.Tier{algorithms.PerSecond(5)}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	l, now := plan.NewLedger(), algorithms.Moment{At: 1_000_000}
	request := store.Request{Cost: []int64{1}}
	d := store.Decision{Tier: -1}
	if !pause.Take(&d, now, &l, request) {
		t.Fatalf("not admitted: %+v", d)
	}
	var s pause.State
	s.StartProbe(&d, now, &l, request)
	if at := s.Opens(now); at != 0 || s.Probe || !d.Probe {
		t.Errorf("opens at %d, next probes: %v, is the probe: %v; want 0, false and true", at, s.Probe, d.Probe)
	}
	if !s.Apply(store.Pause{For: time.Millisecond}, now) || !s.Probe || s.Probing || s.Opens(now) != now.At+1_000 {
		t.Errorf("after a pause: %+v", s)
	}
	if s.EndProbe(d, true) || !s.Probe {
		t.Errorf("a response from before the pause ended it: %+v", s)
	}
}
