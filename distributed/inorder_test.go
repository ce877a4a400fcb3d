package distributed_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestTurnsInOrder checks that no process waits for longer than the turns of all others while each has
// more callers than go in one turn, and that a turn takes few calls. Then most callers of a process come
// behind its turn, which is too short for them. Releases that differ in the guard stand in one line, a lost
// state puts all processes in a new one, and a new guard leaves them where they are.
func TestTurnsInOrder(t *testing.T) {
	soak.Long(t, "fleets play for minutes, and TestTurnsAreEqualInTime plays some")
	t.Parallel()
	for _, name := range []string{"one release", "two releases", "a state is lost", "the guard changes"} {
		t.Run(name, func(t *testing.T) {
			soak.Sample(t, 8)
			virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
				const processes, length = 60, 100 * sec
				asked := new(calls.Counter)
				ctx, cancel := context.WithCancel(t.Context())
				var callers sync.WaitGroup
				var mu sync.Mutex // guards last and longest
				var last [processes]time.Time
				var longest time.Duration
				var limiters []*throttle.Limiter
				var rdb *redis.Client
				other := throttle.Policy{Name: "q", Guard: 60 * ms, Tiers: []throttle.Tier{fifty}}
				for i := range processes {
					last[i] = time.Now()
					rdb = process(ms/2, ms)
					rdb.AddHook(asked)
					p := other
					if i%2 == 0 || name != "two releases" {
						p.Guard = 50 * ms
					}
					l := limiter(t, p, distributed.New(rdb, distributed.Options{}))
					limiters = append(limiters, l)
					for range 30 {
						callers.Go(func() {
							for l.Wait(ctx) == nil {
								mu.Lock()
								longest, last[i] = max(longest, time.Since(last[i])), time.Now()
								mu.Unlock()
							}
						})
					}
				}
				time.Sleep(40 * sec)
				switch name {
				case "a state is lost":
					rdb.FlushAll(t.Context())
					time.Sleep(30 * sec)
				case "the guard changes":
					for _, l := range limiters {
						if err := l.SetPolicy(t.Context(), other); err != nil {
							t.Fatal(err)
						}
					}
				}
				mu.Lock()
				longest = 0
				for i := range last {
					last[i] = time.Now()
				}
				mu.Unlock()
				before := asked.Count()
				time.Sleep(length)
				mu.Lock()
				for i := range last {
					longest = max(longest, time.Since(last[i]))
				}
				perTurn := float64(asked.Count()-before) / (2 * length.Seconds())
				t.Logf("waited %v at most, %.1f calls a turn", longest, perTurn)
				if longest > 35*sec || perTurn > 7 {
					t.Errorf("waited %v behind 60 turns of half a second, with %.1f calls a turn, want 35s and 7 at most", longest, perTurn)
				}
				mu.Unlock()
				cancel()
				callers.Wait()
			})
		})
	}
}
