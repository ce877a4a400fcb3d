package main

import (
	"strings"
	"testing"
	"time"
)

// TestRun: every scenario runs and ends. How fast it is depends on the machine.
func TestRun(t *testing.T) {
	for _, s := range []scenario{{}, {costs: true, classes: true, canceled: 20}} {
		s.waiting, s.time = 3000, 2500*time.Millisecond
		r, err := s.run()
		if err != nil {
			t.Fatal(err)
		}
		if r.rate <= 0 || r.rate > limit+1 || len(r.tight) == 0 || !strings.Contains(r.String(), "units/s") {
			t.Errorf("%+v: %v", s, r)
		}
	}
}
