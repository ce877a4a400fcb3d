package distributed_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// A stall that no answer outlives in time is no reason to refuse those who can wait for it.
func TestRedisStalls(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		w := &world{dice: &dice{src: rand.New(rand.NewPCG(1, 1))}, server: s, began: time.Now(), rate: 1}
		var delay atomic.Int64
		delay.Store(int64(ms))
		l := limiter(t, throttle.Policy{Name: "stall", Tiers: []throttle.Tier{throttle.PerSecond(5)}},
			distributed.New(w.process(t, func() time.Duration { return ms }, func() time.Duration { return time.Duration(delay.Load()) }), distributed.Options{Timeout: 10 * sec}))
		for range 5 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * sec)
		delay.Store(int64(1300 * ms))
		time.AfterFunc(500*ms, func() { delay.Store(int64(ms)) })
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if err := l.Wait(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}
