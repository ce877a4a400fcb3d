package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestRun checks that every scenario runs and ends. Its speed depends on the machine.
func TestRun(t *testing.T) {
	for _, s := range []scenario{{}, {costs: true, classes: true, canceled: 20}} {
		t.Run(fmt.Sprintf("classes %v", s.classes), func(t *testing.T) {
			t.Parallel() // mostly sleeps
			s.waiting, s.time = 3000, 2500*time.Millisecond
			start := time.Now()
			r, err := s.run()
			if err != nil {
				t.Fatal(err)
			}
			if maximum := limit * (1 + int(time.Since(start)/time.Second)); r.units > maximum {
				t.Errorf("%+v: %d units were admitted, want at most %d: %v", s, r.units, maximum, r)
			}
			if r.rate <= 0 || len(r.refusals) == 0 || !strings.Contains(r.String(), "units/s") {
				t.Errorf("%+v: the result is %v, want a rate and refusals", s, r)
			}
		})
	}
}
