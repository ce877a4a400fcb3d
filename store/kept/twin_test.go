package kept_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/kepttwin"
)

func TestDecidesAsLedgers(t *testing.T) {
	const traces = 6000
	for name, ahead := range map[string]bool{"ahead": true, "plain": false} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(traces) {
				if t.Failed() {
					return
				}
				synctest.Test(t, func(t *testing.T) {
					m := new(kepttwin.Memory)
					kepttwin.Run(t, kepttwin.Config{Keeper: m, Memory: m, Ahead: ahead, Window: 10 * time.Second, Seed: seed, Steps: 60})
				})
			}
		})
	}
}
