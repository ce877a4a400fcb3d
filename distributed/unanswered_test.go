package distributed_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/store"
)

// away returns a client of an unreachable server, and a function that closes it.
func away() (rdb *redis.Client, closing func()) {
	rdb = redis.NewClient(&redis.Options{
		Addr:       "127.0.0.1:6379", // a name would be looked up
		Dialer:     func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("away") },
		MaxRetries: -1,
	})
	return rdb, func() {
		rdb.Close()
		time.Sleep(time.Minute) // goroutines of the client end by themselves
	}
}

func admit(t *testing.T, q store.Quota, r store.Request) store.Decision {
	t.Helper()
	b, err := q.TryAcquire(t.Context(), r)
	if err != nil || b.Verdict != store.Admitted {
		t.Fatalf("got %+v, %v, want Admitted", b, err)
	}
	return b
}

// A request without a response counts as arrived when its guard has passed, and not before. From
// then on its estimate counts for a window, with Redis and without.
func TestUnansweredLandsWithItsGuard(t *testing.T) {
	t.Parallel()
	tier := throttle.Tier{Limit: 100, Window: 10 * sec, Unit: "tokens", Estimated: true}
	unanswered := func(t *testing.T, s *distributed.Store) {
		q := quota(t, s, "unanswered", plan(t, 5*sec, tier))
		began := time.Now()
		r := store.Request{Cost: []int64{100}, Held: true}
		b := admit(t, q, r)
		time.Sleep(sec)
		q.Unanswered(b, r.Cost)
		q.Release(b, r.Cost)
		for {
			time.Sleep(100 * ms)
			if b, err := q.TryAcquire(t.Context(), r); err != nil {
				t.Fatal(err)
			} else if b.Verdict == store.Admitted {
				break
			}
		}
		if took := time.Since(began); took < 15*sec || took > 17*sec {
			t.Errorf("got the window ended after %v, want 15s to 17s: the guard and a window", took)
		}
	}
	t.Run("redis", func(t *testing.T) {
		virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
			unanswered(t, distributed.New(process(0, ms), distributed.Options{}))
		})
	})
	t.Run("fallback", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rdb, closing := away()
			defer closing()
			unanswered(t, distributed.New(rdb, distributed.Options{Fallback: distributed.Fallback{Workers: 1}}))
		})
	})
}

// A quota is idle if closing it would lose nothing.
func TestIdle(t *testing.T) {
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		tiers := []throttle.Tier{per(10*sec, 100, throttle.SlidingLog), {Limit: 5, Algorithm: throttle.Concurrency}}
		check := func(q store.Quota, want bool, what string) {
			t.Helper()
			time.Sleep(100 * ms)
			if q.(store.Lifecycle).Idle() != want {
				t.Errorf("%s: got Idle = %v, want %v", what, !want, want)
			}
		}
		q := quota(t, distributed.New(process(0, ms), distributed.Options{}), "idle", plan(t, 0, tiers...))
		check(q, true, "new")
		b := admit(t, q, store.Request{Cost: []int64{1}, Held: true})
		check(q, false, "a permit is held")
		q.Release(b, []int64{1})
		check(q, true, "the permit is released")
		if _, err := q.Pause(t.Context(), store.Pause{For: sec, Probe: true}); err != nil {
			t.Fatal(err)
		}
		check(q, false, "a pause, which Redis may lose")
		time.Sleep(sec)
		check(q, true, "the pause is over")

		rdb, closing := away()
		defer closing()
		q = quota(t, distributed.New(rdb, distributed.Options{Fallback: distributed.Fallback{Workers: 1}}), "idle", plan(t, 0, tiers[0]))
		if _, err := q.Pause(t.Context(), store.Pause{For: sec}); !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
		check(q, false, "a pause that did not reach Redis")
		time.Sleep(sec)
		check(q, true, "the pause is over")
		admit(t, q, store.Request{Cost: []int64{1}})
		check(q, false, "a request was sent without Redis")
		time.Sleep(20 * sec)
		check(q, false, "the request is not charged in Redis yet")
	})
}

// A closed quota leaves nothing behind after its admitted requests have ended: no subscription, no
// timer and no call.
func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		p := plan(t, 50*ms, per(hour, 100, throttle.SlidingLog), throttle.Tier{Limit: 2, Algorithm: throttle.Concurrency})
		rdb := process(0, ms)
		q := quota(t, distributed.New(rdb, distributed.Options{}), "closed", p)
		other := quota(t, distributed.New(process(0, ms), distributed.Options{}), "closed", p)
		r := store.Request{Cost: []int64{2}, Held: true, WaitSpec: &store.WaitSpec{MaxWait: hour}}
		b := admit(t, q, r)
		answered := make(chan store.Decision, 1)
		q.(store.Reserver).Reserve(nil, []store.Request{r}, func(got []store.Decision, err error) { answered <- got[0] })
		if b := <-answered; b.Verdict != store.Later {
			t.Fatalf("got %+v, want Later", b)
		}
		q.Close()
		time.Sleep(time.Minute) // longer than a lease
		if b, err := other.TryAcquire(t.Context(), r); err != nil || b.Verdict != store.Later {
			t.Fatalf("got %+v, %v, want Later: the open permits must stay leased", b, err)
		}
		q.Release(b, r.Cost)
		time.Sleep(sec)
		other.Release(admit(t, other, r), r.Cost)
		calls := rdb.PoolStats().Hits
		time.Sleep(hour)
		if n := rdb.PoolStats().Hits - calls; n > 0 {
			t.Errorf("got %d calls after the end, want none", n)
		}
		if n := rdb.PoolStats().PubSubStats.Active; n > 0 {
			t.Errorf("got %d subscriptions after the end, want none", n)
		}
	})
}
