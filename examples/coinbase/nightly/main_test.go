package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// Five requests leave at once. Each may take up to the policy's Guard of 50 ms to reach the
// provider, so the next five leave 1.05 s later.
func TestSaveAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		if err := saveAll(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		const want = `0.00 s  BTC
0.00 s  ETH
0.00 s  SOL
0.00 s  XRP
0.00 s  ADA
1.05 s  DOT
1.05 s  LTC
1.05 s  BCH
1.05 s  UNI
1.05 s  ETC
2.10 s  XLM
2.10 s  EUR
`
		if out.String() != want {
			t.Errorf("got\n%swant\n%s", out.String(), want)
		}
	})
}

func TestSaveAllStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		var out strings.Builder
		err := saveAll(ctx, &out)
		if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "5 of 12 accounts saved: ") {
			t.Errorf("canceled after a second: %v", err)
		}
	})
}

func TestSaveAllDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		var out strings.Builder
		err := saveAll(ctx, &out)
		if !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("with a deadline in a second: %v", err)
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("waited %v, want an error without a wait", waited)
		}
	})
}
