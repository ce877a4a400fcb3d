package main

import (
	"testing"
	"time"
)

func TestUpperBound(t *testing.T) {
	halfPast := time.Unix(1_700_000_000, 500_000_000)
	for _, test := range []struct {
		spec string
		d    time.Duration
		want int64
	}{
		{"5/s", time.Nanosecond, 5},
		{"5/s", time.Second, 5}, // the run is [start, end), and the next five come at its end
		{"5/s", time.Second + 1, 10},
		{"5/s", 15 * time.Second, 75},
		{"5/s + 10000/h", time.Hour, 10000},
		{"5/s + 10000/h", time.Hour + time.Second, 10005},
		{"5/s | max_wait=1s", 15 * time.Second, 75},
		{"5/s;algo=token_bucket", 15 * time.Second, 5 + 74}, // the 75th comes at the end
		{"5/s;algo=fixed_window", 15 * time.Second, 16 * 5},
		{"20000/h", time.Minute, 20000},
		{"20000/h;algo=sliding_window;precision=1h", time.Hour + time.Second, 40000}, // the bound doesn't depend on precision
		{"10/s;unit=tokens + 5/s", time.Second, 5},
		{"2;algo=concurrency + 5/s", time.Second, 5},
		{"2;algo=concurrency", time.Second, 0},
	} {
		if got := upperBound(parsed(t, test.spec), halfPast, test.d); got != test.want {
			t.Errorf("%s in %v: %d, want %d", test.spec, test.d, got, test.want)
		}
	}
}
