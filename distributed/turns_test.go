package distributed_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestTurnsAreEqualInTime checks that a process waits for a turn behind another that has many callers,
// however the tiers differ in unit and speed.
func TestTurnsAreEqualInTime(t *testing.T) {
	t.Parallel()
	ten := throttle.PerSecond(10)
	bucket := throttle.Tier{Limit: 10, Window: sec, Algorithm: throttle.GCRA}
	tokens := throttle.Tier{Limit: 200_000, Window: time.Minute, Unit: "tokens"}
	estimated := tokens
	estimated.Estimated = true
	chat := throttle.Cost{"requests": 1, "tokens": 50}
	for _, test := range []struct {
		name         string
		tiers, outer []throttle.Tier
		cost         throttle.Cost
		way          time.Duration
		want         time.Duration
	}{
		{"bucket", []throttle.Tier{bucket}, nil, nil, ms / 2, 600 * ms},
		{"log", []throttle.Tier{ten}, nil, nil, ms / 2, 1100 * ms},
		{"bucket and tokens", []throttle.Tier{bucket, tokens}, nil, chat, ms / 2, 600 * ms},
		{"bucket and estimates", []throttle.Tier{bucket, estimated}, nil, chat, ms / 2, 600 * ms},
		{"bucket and a faster tier", []throttle.Tier{bucket, throttle.PerSecond(1000)}, nil, nil, ms / 2, 600 * ms},
		{"log and a faster tier", []throttle.Tier{ten, throttle.PerSecond(1000)}, nil, nil, ms / 2, 1100 * ms},
		{"in an account", []throttle.Tier{bucket}, []throttle.Tier{bucket}, nil, ms / 2, 600 * ms},
		{"fast in an account", []throttle.Tier{throttle.PerSecond(100)}, []throttle.Tier{bucket}, nil, ms / 2, 600 * ms},
		{"faster in an account", []throttle.Tier{throttle.PerSecond(1000)}, []throttle.Tier{bucket}, nil, ms / 2, 600 * ms},
		{"a minute and tokens", []throttle.Tier{{Limit: 60, Window: time.Minute, Algorithm: throttle.TokenBucket}, tokens}, nil, chat, ms / 2, 2100 * ms},
		{"a minute and tokens, far", []throttle.Tier{{Limit: 60, Window: time.Minute, Algorithm: throttle.TokenBucket}, tokens}, nil, chat, 40 * ms, 2200 * ms},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 4)
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				open := func() *throttle.Limiter {
					redis := distributed.New(distant(t, s, func() time.Duration { return test.way }), distributed.Options{})
					l := limiter(t, throttle.Policy{Name: "{q}", Tiers: test.tiers}, redis)
					if test.outer != nil {
						l = l.Within(limiter(t, throttle.Policy{Name: "{q}outer", Tiers: test.outer}, redis))
					}
					return l
				}
				crowd, other := open(), open()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var callers sync.WaitGroup
				acquire := func(ctx context.Context, l *throttle.Limiter) error {
					p, err := l.Acquire(ctx, test.cost)
					if err == nil {
						p.Release()
					}
					return err
				}
				for range 300 {
					callers.Go(func() { _ = acquire(ctx, crowd) })
				}
				time.Sleep(3 * sec)
				var longest time.Duration
				for range 5 {
					began := time.Now()
					if err := acquire(ctx, other); err != nil {
						t.Fatal(err)
					}
					longest = max(longest, time.Since(began))
					time.Sleep(700 * ms)
				}
				if cancel(); longest > test.want {
					t.Errorf("got %v behind a process with 300 callers, want %v at most", longest, test.want)
				}
				callers.Wait()
			})
		})
	}
}

// TestTurnsEndWithPolicy checks that callers follow a faster policy at once, and wait for no turns that
// were given under the one before.
func TestTurnsEndWithPolicy(t *testing.T) {
	soak.Long(t, "many fleets in virtual time, whose code other tests run")
	soak.NoRace(t, "many fleets in virtual time, whose code other tests run")
	t.Parallel()
	policy := func(limit int64) throttle.Policy {
		return throttle.Policy{Name: "{q}", Guard: 50 * ms, Aging: time.Hour, Tiers: []throttle.Tier{{Limit: limit, Window: sec, Algorithm: throttle.GCRA}}}
	}
	for name, class := range map[string]throttle.Class{"Batch": throttle.Batch, "in an account": throttle.Normal} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
				ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), class))
				var callers sync.WaitGroup
				var admitted atomic.Int64
				var limiters []*throttle.Limiter
				for range 60 {
					redis := distributed.New(process(ms/2, ms/2), distributed.Options{})
					l := limiter(t, policy(1), redis)
					limiters = append(limiters, l)
					if class == throttle.Normal {
						l = l.Within(limiter(t, throttle.Policy{Name: "{q}outer", Tiers: []throttle.Tier{throttle.PerSecond(1000)}, Guard: 50 * ms}, redis))
					}
					for range 5 {
						callers.Go(func() {
							for l.Wait(ctx) == nil {
								admitted.Add(1)
							}
						})
					}
				}
				time.Sleep(10 * sec)
				for _, l := range limiters {
					if err := l.SetPolicy(ctx, policy(20)); err != nil {
						t.Fatal(err)
					}
				}
				was := admitted.Load()
				time.Sleep(30 * sec)
				if got := admitted.Load() - was; got < 500 {
					t.Errorf("got %d admitted in 30 s under a policy of 20/s, want 500 at least", got)
				}
				cancel()
				callers.Wait()
			})
		})
	}
}
