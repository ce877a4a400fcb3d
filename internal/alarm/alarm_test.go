package alarm

import (
	"sync"
	"testing"
	"time"
)

// need returns an Alarm or skips the test.
func need(t *testing.T) *Alarm {
	t.Helper()
	a := Get()
	if a == nil {
		t.Skip("no alarms here")
	}
	return a
}

// TestNeverEarly checks that Sleep takes its time, also after a Sleep that was stopped.
func TestNeverEarly(t *testing.T) {
	a := need(t)
	defer a.Put()
	for i := range 200 {
		a.Start()
		if i%3 == 0 {
			a.Stop()
			a.Sleep(time.Hour)
			continue
		}
		d, start := time.Duration(i)*10*time.Microsecond, time.Now()
		if a.Sleep(d); time.Since(start) < d {
			t.Errorf("sleep %d of %v took %v", i, d, time.Since(start))
		}
	}
}

// TestStop checks that Sleep ends with a Stop from another goroutine, whenever that comes.
func TestStop(t *testing.T) {
	a := need(t)
	defer a.Put()
	var stops sync.WaitGroup
	for i := range 200 {
		a.Start()
		stops.Go(func() {
			time.Sleep(time.Duration(i) * time.Microsecond)
			a.Stop()
		})
		a.Sleep(time.Hour)
		stops.Wait()
	}
}

// TestMost checks that there are no more than Most alarms at once, and that they come back.
func TestMost(t *testing.T) {
	need(t).Put()
	for range 3 {
		var got []*Alarm
		for a := Get(); a != nil; a = Get() {
			got = append(got, a)
		}
		if len(got) != Most {
			t.Errorf("%d alarms at once, want %d", len(got), Most)
		}
		for _, a := range got {
			a.Put()
		}
	}
}
