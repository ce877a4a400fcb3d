package distributed_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/store"
)

var tenASecond = throttle.Policy{Name: "remembered", Tiers: []throttle.Tier{per(sec, 10, throttle.SlidingLog)}}

// A pause or a ban continues after Redis has lost it: at once in a process that has received it,
// and soon in all processes. A Resume ends it in all of them.
func TestPauseSurvivesLoss(t *testing.T) {
	for name, p := range map[string]store.Pause{"pause": {For: hour}, "ban": {For: hour, Close: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				open := func() store.Quota {
					return quota(t, distributed.New(near(t, s), distributed.Options{}), "remembered", plan(t, 50*ms, tenASecond.Tiers...))
				}
				acquire := func(q store.Quota) store.Decision {
					t.Helper()
					d, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{1}})
					if err != nil {
						t.Fatal(err)
					}
					return d
				}
				checkPaused := func(what string, q store.Quota) {
					t.Helper()
					if d := acquire(q); d.Verdict == store.Admitted || p.Close != (d.Verdict == store.Closed) || d.Wait < hour-time.Minute {
						t.Errorf("%s: got %+v, want a refusal for about an hour", what, d)
					}
				}
				one, two := open(), open()
				if _, err := one.Pause(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				checkPaused("received by both", two)
				s.FlushAll()
				checkPaused("lost", two)
				time.Sleep(200 * ms)
				if status, err := two.Status(t.Context()); err != nil || status.Tiers[0].Used != 0 {
					t.Errorf("after a refused request got %+v, %v, want nothing used", status.Tiers, err)
				}
				time.Sleep(sec)
				checkPaused("restored", one)
				checkPaused("new process", open())
				s.FlushAll()
				if err := open().Resume(t.Context()); err != nil { // which has not received the pause
					t.Fatal(err)
				}
				time.Sleep(sec)
				for _, q := range []store.Quota{one, two, open()} {
					if d := acquire(q); d.Verdict != store.Admitted {
						t.Errorf("after Resume: got %+v, want Admitted", d)
					}
				}
			})
		})
	}
}

// A pause that did not reach Redis because it was unavailable reaches it later.
func TestPauseReachesRedisLater(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		rdb := near(t, s)
		if err := rdb.Ping(t.Context()).Err(); err != nil { // starts the server
			t.Fatal(err)
		}
		var away atomic.Bool
		redismem.Hook(s, func(c *server.Peer, cmd string, _ ...string) bool {
			if away.Load() {
				c.WriteError("LOADING Redis is loading the dataset in memory")
			}
			return away.Load()
		})
		l := limiter(t, tenASecond, distributed.New(rdb, distributed.Options{}))
		away.Store(true)
		if err := l.Pause(t.Context(), time.Minute); !errors.Is(err, throttle.ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(5 * sec)
		away.Store(false)
		time.Sleep(20 * sec)
		status, err := limiter(t, tenASecond, distributed.New(near(t, s), distributed.Options{})).Status(t.Context())
		if err != nil || status.Paused < 30*sec {
			t.Errorf("got %v, %v, want paused for 30s at least", status, err)
		}
	})
}

// A caller with a deadline is not refused because of a pause that has ended early, even if its
// process cannot subscribe.
func TestEndOfPauseWithoutSubscription(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		if err := near(t, s).Ping(t.Context()).Err(); err != nil { // starts the server
			t.Fatal(err)
		}
		redismem.Hook(s, func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd == "SUBSCRIBE" {
				c.WriteError("NOPERM No permissions to access a channel")
			}
			return cmd == "SUBSCRIBE"
		})
		one := limiter(t, tenASecond, distributed.New(near(t, s), distributed.Options{}))
		two := limiter(t, tenASecond, distributed.New(near(t, s), distributed.Options{}))
		if err := one.Pause(t.Context(), hour); err != nil {
			t.Fatal(err)
		}
		wait := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), sec)
			defer cancel()
			return two.Wait(ctx)
		}
		if err := wait(); !errors.Is(err, throttle.ErrDeadline) {
			t.Fatal(err)
		}
		if err := one.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * sec)
		if err := wait(); err != nil {
			t.Error(err)
		}
	})
}

// A state that is older than the state that a process has seen is reported as lost, once.
func TestOlderStateIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var lost atomic.Int64
		rdb := near(t, s)
		l := limiter(t, tenASecond, distributed.New(rdb, distributed.Options{OnLost: func(string) { lost.Add(1) }}))
		wait := func() {
			t.Helper()
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		wait()
		key := onlyKey(t, rdb)
		old := rdb.Get(t.Context(), key).Val()
		wait()
		rdb.Set(t.Context(), key, old, time.Minute)
		wait()
		wait()
		if n := lost.Load(); n != 1 {
			t.Errorf("got %d calls of OnLost, want 1", n)
		}
	})
}
