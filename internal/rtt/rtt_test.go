package rtt_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/rtt"
)

const ms, sec = time.Millisecond, time.Second

func TestEstimate(t *testing.T) {
	response := func(trip, upload time.Duration) rtt.Sample { return rtt.Sample{RoundTrip: trip, Upload: upload} }
	for _, test := range []struct {
		name    string
		samples []rtt.Sample // each is added 32 times
		want    time.Duration
	}{
		{"nothing", nil, rtt.Most},
		{"connections alone", []rtt.Sample{{Connect: ms}}, rtt.Most},
		{"a quick network", []rtt.Sample{response(ms, 0)}, rtt.Least},
		{"an ordinary network: a quarter and 128/32 more", []rtt.Sample{response(40*ms, 0)}, 210 * ms},
		{"a slow network", []rtt.Sample{response(400*ms, 0), {Connect: 390 * ms}}, rtt.Most},
		{"a slow server, connections of 10 ms", []rtt.Sample{{Connect: 10 * ms}, response(3*sec, 0)}, rtt.Least},
		{"a slow server, connections of 30 ms, uploads of 100 ms", []rtt.Sample{{Connect: 30 * ms}, response(3*sec, 100*ms)}, 160 * ms},
		{"a slow server, no connection seen", []rtt.Sample{response(3*sec, 0)}, 50 * ms},
		{"a refusal", []rtt.Sample{response(ms, 0), {AtLeast: 300 * ms}}, 300 * ms},
	} {
		e := rtt.New()
		for range 32 {
			for _, s := range test.samples {
				e.Add(s)
			}
		}
		if got := e.Estimate(); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// TestForgets tests that a peak counts for five to ten minutes.
func TestForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := rtt.New()
		if e.Fresh() {
			t.Error("an estimate without samples is fresh")
		}
		for range 1000 {
			e.Add(rtt.Sample{RoundTrip: 500 * ms})
		}
		for minute := 1; minute <= 12; minute++ {
			time.Sleep(time.Minute)
			for range 1000 {
				e.Add(rtt.Sample{RoundTrip: ms})
			}
			if long := e.Estimate() > 500*ms; minute <= 5 && !long || minute > 11 && long {
				t.Errorf("after %d minutes the estimate is %v", minute, e.Estimate())
			}
		}
		if !e.Fresh() {
			t.Error("an estimate from responses of the last minutes is not fresh")
		}
		time.Sleep(11 * time.Minute)
		if e.Fresh() {
			t.Error("an estimate from old responses is fresh")
		}
	})
}
