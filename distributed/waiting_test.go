package distributed_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// A crowd is processes with callers that wait for one quota.
type crowd struct {
	t        *testing.T
	process  func(least, most time.Duration) *redis.Client
	all      sync.WaitGroup
	admitted atomic.Int64
}

// A member is a process of a crowd.
type member struct {
	*throttle.Limiter
	leave func()        // cancels its callers
	redis *redis.Client // closed, the process calls no more, as one that was killed
}

var fifty = throttle.Tier{Limit: 50, Window: sec, Algorithm: throttle.GCRA}

// join starts processes under a tier, each with eight callers whose requests cost 1 to 4.
func (c *crowd) join(processes int, tier throttle.Tier) (members []member) {
	for i := range processes {
		ctx, cancel := context.WithCancel(c.t.Context())
		rdb := c.process(ms/2, ms)
		l := limiter(c.t, throttle.Policy{Name: "q", Guard: 50 * ms, Tiers: []throttle.Tier{tier}}, distributed.New(rdb, distributed.Options{}))
		members = append(members, member{l, cancel, rdb})
		for j := range 8 {
			c.all.Go(func() {
				for n := int64(1 + (i+j)%4); l.WaitN(ctx, n) == nil; n = n%4 + 1 {
					c.admitted.Add(n)
				}
			})
		}
	}
	return members
}

// units returns how many units are admitted from now on for a time.
func (c *crowd) units(length time.Duration) int64 {
	was := c.admitted.Load()
	time.Sleep(length)
	return c.admitted.Load() - was
}

// TestWaitingProcesses checks that a quota is used while 100 processes wait in line, whatever happens to
// them.
func TestWaitingProcesses(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(c *crowd, members []member) (got, want int64){
		"wait": func(c *crowd, _ []member) (got, want int64) { return c.units(20 * sec), 1000 },
		"half leave": func(c *crowd, members []member) (got, want int64) {
			for i := range members {
				if i%2 == 0 {
					members[i].leave()
				}
			}
			time.Sleep(2 * sec)
			return c.units(20 * sec), 1000
		},
		"half are killed": func(c *crowd, members []member) (got, want int64) {
			for i := range members {
				if i%2 == 0 {
					members[i].redis.Close()
				}
			}
			time.Sleep(3 * sec)
			return c.units(20 * sec), 1000
		},
		"a pause ends": func(c *crowd, members []member) (got, want int64) {
			if err := members[0].Pause(c.t.Context(), 5*sec); err != nil {
				c.t.Fatal(err)
			}
			time.Sleep(6 * sec)
			return c.units(20 * sec), 1000
		},
		"a pause is ended": func(c *crowd, members []member) (got, want int64) {
			if err := members[0].Pause(c.t.Context(), time.Minute); err != nil {
				c.t.Fatal(err)
			}
			time.Sleep(2 * sec)
			if err := members[1].Resume(c.t.Context()); err != nil {
				c.t.Fatal(err)
			}
			time.Sleep(2 * sec)
			return c.units(20 * sec), 1000
		},
		"all get a faster policy": func(c *crowd, members []member) (got, want int64) {
			faster := fifty
			faster.Limit = 200
			for _, m := range members {
				if err := m.SetPolicy(c.t.Context(), throttle.Policy{Name: "q", Guard: 50 * ms, Tiers: []throttle.Tier{faster}}); err != nil {
					c.t.Fatal(err)
				}
			}
			time.Sleep(15 * sec) // until then, other releases may call
			return c.units(20 * sec), 4000
		},
		"another release calls": func(c *crowd, _ []member) (got, want int64) {
			slower := fifty
			slower.Limit = 40
			c.join(1, slower)
			time.Sleep(10 * sec)
			return c.units(20 * sec), 900
		},
		"a lone process comes later": func(c *crowd, members []member) (got, want int64) {
			for _, m := range members {
				m.leave()
			}
			time.Sleep(2 * sec)
			c.join(1, fifty)
			return c.units(20 * sec), 1000
		},
	} {
		t.Run(name, func(t *testing.T) {
			soak.Sample(t, 4)
			virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
				c := &crowd{t: t, process: process}
				members := c.join(100, fifty)
				time.Sleep(10 * sec)
				n := len(members)
				got, want := play(c, members)
				t.Logf("%d of %d units", got, want)
				if 10*got < 9*want {
					t.Errorf("%d processes: got %d units admitted, want 0.9 of %d at least", n, got, want)
				}
				for _, m := range members {
					m.leave()
					m.Close()
				}
			})
		})
	}
}

// TestNewcomerWaitsATurn checks that a process that comes waits for about a turn behind each process that
// waits, and is refused at once if its deadline is before that.
func TestNewcomerWaitsATurn(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
		c := &crowd{t: t, process: process}
		members := c.join(40, fifty)
		time.Sleep(20 * sec)
		l := limiter(t, throttle.Policy{Name: "q", Guard: 50 * ms, Tiers: []throttle.Tier{fifty}}, distributed.New(process(ms/2, ms), distributed.Options{}))
		began := time.Now()
		soon, cancel := context.WithTimeout(t.Context(), 5*sec)
		defer cancel()
		if err := l.Wait(soon); err == nil || time.Since(began) > sec {
			t.Errorf("got %v after %v for a deadline in 5 s, want a refusal at once", err, time.Since(began))
		}
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < 6*sec || waited > 22*sec {
			t.Errorf("waited %v behind 40 processes, want a turn behind each: a third of half a second to half a second", waited)
		}
		for _, m := range members {
			m.leave()
			m.Close()
		}
	})
}

// TestForecastCountsTheLine checks that a newcomer's forecast, and the wait in the error of a call that does
// not wait, count the turns of the processes that wait, and are at most a turn longer than what the newcomer then waits.
func TestForecastCountsTheLine(t *testing.T) {
	t.Parallel()
	for name, tier := range map[string]throttle.Tier{
		"bucket": fifty,
		"log":    throttle.PerSecond(50),
		"window": {Limit: 50, Window: sec, Algorithm: throttle.FixedWindow},
	} {
		t.Run(name, func(t *testing.T) {
			soak.Sample(t, 3)
			virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
				c := &crowd{t: t, process: process}
				members := c.join(30, tier)
				time.Sleep(20 * sec)
				l := limiter(t, throttle.Policy{Name: "q", Guard: 50 * ms, Tiers: []throttle.Tier{tier}}, distributed.New(process(ms/2, ms), distributed.Options{}))
				var late *throttle.WaitError
				err := error(nil)
				for range 50 { // a window may have room that its reservations have left
					if _, err = l.TryAcquire(t.Context(), nil); err != nil {
						break
					}
				}
				if !errors.As(err, &late) {
					t.Fatalf("got %v, want a WaitError", err)
				}
				forecast, err := l.Forecast(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				if err := l.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				waited := time.Since(began)
				t.Logf("forecast %v, error %v, waited %v", forecast.Wait, late.Wait, waited)
				for from, got := range map[string]time.Duration{"Forecast": forecast.Wait, "TryAcquire": late.Wait} {
					if got < waited/2 || got > waited+sec { // a process may leave a turn, which is a second, unused
						t.Errorf("%s: got a wait of %v, want half of the %v that the caller then waited at least, and at most a turn more", from, got, waited)
					}
				}
				for _, m := range members {
					m.leave()
					m.Close()
				}
			})
		})
	}
}
