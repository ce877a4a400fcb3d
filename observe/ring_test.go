package observe

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// TestRingSeconds checks that the seconds of a snapshot contain exactly the events of the last 300
// seconds, with gaps of any length between events.
func TestRingSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(3, 5))
		time.Sleep(250 * time.Millisecond) // the seconds are those of the clock, not of the Stats
		stats := NewStats()
		o := stats.Observer()
		counted := make(map[int64]map[string]uint64)
		for i := range 3000 {
			switch gap := random.IntN(100); {
			case gap == 0:
				time.Sleep(time.Duration(random.Int64N(int64(700 * time.Second))))
			case gap < 5:
				time.Sleep(299*time.Second + time.Duration(random.Int64N(3))*time.Second)
			default:
				time.Sleep(time.Duration(random.Int64N(int64(1500 * time.Millisecond))))
			}
			now := time.Now().Unix()
			if counted[now] == nil {
				counted[now] = make(map[string]uint64)
			}
			if i%3 == 0 {
				counted[now]["queue_full"]++
				o.Refused(t.Context(), throttle.RefusedInfo{Policy: "api", Err: throttle.ErrQueueFull})
			} else {
				counted[now]["admitted"]++
				o.Admitted(t.Context(), throttle.AdmittedInfo{Policy: "api"})
			}
			if i%7 == 0 {
				time.Sleep(time.Duration(random.Int64N(int64(400 * time.Second)))) // until a snapshot
			}
			got, last := make(map[int64]map[string]uint64), int64(0)
			for _, s := range stats.Snapshot(t.Context()).Policies[0].Seconds {
				if s.At <= last {
					t.Fatalf("second %d follows %d", s.At, last)
				}
				got[s.At], last = s.Requests, s.At
			}
			for at := range counted {
				if at <= time.Now().Unix()-ringSeconds {
					delete(counted, at)
				}
			}
			if !reflect.DeepEqual(got, counted) {
				t.Fatalf("event %d: %v, want %v", i, got, counted)
			}
		}
	})
}

// TestRingLate checks that an event counts in its second if another goroutine has counted in a later
// one, and in the oldest second if the ring no longer has its own.
func TestRingLate(t *testing.T) {
	var r ring
	for _, second := range []int64{1000, 1299, 1000, 1001, 1300, 1000, 5} {
		r.at(second).requests[admitted]++
	}
	var got []string
	for _, b := range r.since(1299) {
		got = append(got, fmt.Sprintf("%d: %d", b.second, b.requests[admitted]))
	}
	want := []string{"1001: 3", "1299: 1", "1300: 1"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestHistogram checks that a value at a bound counts below it, as in Prometheus.
func TestHistogram(t *testing.T) {
	var b bucket
	var h histogram
	for _, wait := range []time.Duration{-time.Second, 0, 5 * time.Millisecond, 6 * time.Millisecond, time.Hour, 3 * time.Hour} {
		b.waited(&h, wait)
	}
	got := h.export(waitBounds)
	if got.Buckets[0] != 3 || got.Buckets[1] != 1 || got.Buckets[16] != 1 || got.Buckets[17] != 1 ||
		got.Count != 6 || got.Sum != 4*3600+0.011 || got.Max != 3*3600 {
		t.Errorf("%+v", got)
	}
	if !reflect.DeepEqual(b.waits, h) {
		t.Errorf("the second has %+v, want %+v", b.waits, h)
	}
}
