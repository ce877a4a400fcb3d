package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestRun: every scenario runs and ends. How fast it is depends on the machine.
func TestRun(t *testing.T) {
	for _, s := range []scenario{{}, {costs: true, classes: true, canceled: 20}} {
		t.Run(fmt.Sprintf("classes %v", s.classes), func(t *testing.T) {
			t.Parallel() // it sleeps most of the time
			s.waiting, s.time = 3000, 2500*time.Millisecond
			began := time.Now()
			r, err := s.run()
			if err != nil {
				t.Fatal(err)
			}
			if most := limit * (1 + int(time.Since(began)/time.Second)); r.units > most {
				t.Errorf("%+v: %d units, want at most %d: %v", s, r.units, most, r)
			}
			if r.rate <= 0 || len(r.tight) == 0 || !strings.Contains(r.String(), "units/s") {
				t.Errorf("%+v: %v", s, r)
			}
		})
	}
}
