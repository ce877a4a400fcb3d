package blame_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/blame"
)

const (
	ms  = time.Millisecond
	sec = time.Second
)

// A client sends one request after the other, each of which takes 10 ms.
type client struct {
	blame.Record
	sent time.Time
}

func (c *client) send() {
	time.Sleep(ms)
	c.sent = time.Now()
	time.Sleep(10 * ms)
}

func (c *client) passes(object string) {
	c.send()
	c.Passed(func() string { return object }, c.sent)
}

func (c *client) refused(object string) (alone bool) {
	c.send()
	return c.Refused(object, c.sent, 0)
}

// refusedAlone refuses an object while another one passes, until it is refused alone.
func (c *client) refusedAlone(t *testing.T, object string) {
	t.Helper()
	for range 12 {
		c.passes("other")
		if c.refused(object) {
			return
		}
		time.Sleep(2 * sec)
	}
	t.Fatalf("%s is not refused alone", object)
}

// waits returns how long a request for an object waits.
func (c *client) waits(t *testing.T, object string) time.Duration {
	t.Helper()
	start := time.Now()
	if _, err := c.Wait(t.Context(), object); err != nil {
		t.Error(err)
	}
	return time.Since(start)
}

// What an object is blamed for, and what it is not.
func TestAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		play func(c *client) (alone bool)
		want bool
	}{
		{"while another one passes", func(c *client) (alone bool) {
			for range 6 {
				c.passes("other")
				alone = c.refused("own")
				time.Sleep(3 * sec)
			}
			return alone
		}, true},
		{"for less than ten seconds", func(c *client) (alone bool) {
			for range 100 {
				c.passes("other")
				alone = alone || c.refused("own")
			}
			return alone
		}, false},
		{"while nothing else is sent", func(c *client) (alone bool) {
			for range 100 {
				alone = alone || c.refused("own")
				time.Sleep(sec)
			}
			return alone
		}, false},
		{"while the other one is refused too", func(c *client) (alone bool) {
			c.passes("other")
			for range 100 {
				alone = c.refused("own") || c.refused("other") || alone
				time.Sleep(sec)
			}
			return alone
		}, false},
		{"as often as it passes", func(c *client) (alone bool) {
			for n := range 400 {
				c.passes("other")
				if n%2 == 0 {
					c.passes("own")
				} else {
					alone = alone || c.refused("own")
				}
				time.Sleep(sec)
			}
			return alone
		}, false},
		{"more often than it passes", func(c *client) (alone bool) {
			for n := range 20 {
				c.passes("other")
				if n%3 == 0 {
					c.passes("own")
				} else {
					alone = c.refused("own")
				}
				time.Sleep(sec)
			}
			return alone
		}, true},
		{"of requests that were in flight with those that passed", func(c *client) (alone bool) {
			c.passes("other")
			sent := time.Now()
			for range 100 {
				time.Sleep(100 * ms)
				alone = c.Refused("own", sent, 0) || alone
				c.Passed(func() string { return "other" }, sent)
			}
			time.Sleep(10 * sec)
			return c.refused("own") || alone
		}, false},
		{"again after it has passed", func(c *client) (alone bool) {
			for range 6 {
				c.passes("other")
				c.refused("own")
				time.Sleep(3 * sec)
			}
			c.passes("own")
			c.passes("other")
			return c.refused("own")
		}, true},
		{"as one of many objects", func(c *client) (alone bool) {
			for n := range 10_000 {
				c.passes("other")
				alone = alone || c.refused(fmt.Sprint(n))
			}
			return alone
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := c.play(new(client)); got != c.want {
					t.Errorf("alone: %v, want %v", got, c.want)
				}
			})
		})
	}
}

// An object that is refused alone pauses longer after each refusal, and for as long as it is told, and goes on once it
// passes.
func TestPauseOfAnObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(client)
		if c.Holds() || c.waits(t, "own") > 0 {
			t.Error("a new record holds")
		}
		c.refusedAlone(t, "own")
		if !c.Holds() || c.waits(t, "other") > 0 {
			t.Error("another object waits, or none does")
		}
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 16} {
			if got := c.waits(t, "own"); got != want*sec {
				t.Errorf("waited %v, want %v", got, want*sec)
			}
			c.passes("other")
			if !c.refused("own") {
				t.Error("not refused alone")
			}
		}
		c.send()
		c.Refused("own", c.sent, time.Hour)
		if got := c.waits(t, "own"); got != time.Hour {
			t.Errorf("waited %v, was told an hour", got)
		}
		var wg sync.WaitGroup
		start := time.Now()
		for range 1000 {
			wg.Go(func() { c.waits(t, "own") })
		}
		synctest.Wait()
		c.passes("own")
		wg.Wait()
		if took := time.Since(start); took > sec || c.Holds() || c.waits(t, "own") > 0 {
			t.Errorf("waited %v after the object has passed", took)
		}
	})
}

// Callers of an object that pauses go one at a time. Those who leave are not waited for, and those whose deadline is too
// near are refused at once.
func TestCallersOfAPausedObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(client)
		c.refusedAlone(t, "own")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if _, err := c.Wait(ctx, "own"); err != context.Canceled {
					t.Errorf("got %v, want a cancellation", err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		near, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		start := time.Now()
		if wait, err := c.Wait(near, "own"); err != context.DeadlineExceeded || wait < 900*ms || time.Since(start) > 0 {
			t.Errorf("got %v, %v after %v, want a refusal at once", wait, err, time.Since(start))
		}
		for range 5 {
			wg.Go(func() { c.waits(t, "own") })
		}
		wg.Wait()
		if took := time.Since(start); took != 5*sec {
			t.Errorf("five callers waited %v, want one a second", took)
		}
	})
}

// A record is bounded, and an object that makes room for others waits no longer.
func TestManyObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(client)
		c.refusedAlone(t, "own")
		c.send()
		c.Refused("own", c.sent, time.Hour)
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { c.waits(t, "own") })
		synctest.Wait()
		for n := 0; c.Holds() && n < 100_000; n++ {
			c.Refused(fmt.Sprint(n), time.Now(), 0)
		}
		wg.Wait()
		if took := time.Since(start); took > 0 {
			t.Errorf("waited %v, want no wait: the object is forgotten", took)
		}
	})
}

// Through a storm of refusals, passes, cancellations and attacks no caller waits longer than the longest pause.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r blame.Record
		var wg sync.WaitGroup
		for w := range uint64(50) {
			random := rand.New(rand.NewPCG(w, 1))
			wg.Go(func() {
				for range 200 {
					object, sent := fmt.Sprint(random.IntN(10)), time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(30))*sec)
					_, err := r.Wait(ctx, object)
					cancel()
					time.Sleep(time.Duration(random.IntN(1000)) * ms)
					switch {
					case err != nil:
					case object < "3":
						r.Refused(object, sent, 0)
					default:
						r.Passed(func() string { return object }, sent)
					}
				}
			})
		}
		wg.Wait()
		if !r.Holds() {
			t.Error("objects that are always refused do not pause")
		}
		time.Sleep(time.Minute)
		for n := range 10 {
			start := time.Now()
			if _, err := r.Wait(t.Context(), fmt.Sprint(n)); err != nil || time.Since(start) > 0 {
				t.Errorf("object %d waits %v, %v after a quiet minute", n, time.Since(start), err)
			}
		}
	})
}
