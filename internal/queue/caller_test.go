package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// A quickFake is a fake that does not block.
type quickFake struct{ *fake }

func (quickFake) TryOne(bool) (algorithms.Flight, int64, int64, bool) { panic("not used by a queue") }
func (quickFake) OneArrived(algorithms.Flight) bool                   { panic("not used by a queue") }

// TestCallerIsAdmittedOnce checks that a caller which waits in several queues is admitted by the first quota
// that has room, in its own goroutine, and that the others admit the caller behind it.
func TestCallerIsAdmittedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queues := []*Queue{New(complete(Config{Quota: quickFake{every(3 * sec)}})), New(complete(Config{Quota: quickFake{every(5 * sec)}}))}
		for _, q := range queues { // the first request of each is admitted at once
			if _, err := q.Wait(t.Context(), ticket()); err != nil {
				t.Fatal(err)
			}
		}
		start, admitted := time.Now(), make(chan int, 4)
		for range 4 {
			go func() {
				c, choice := NewCaller(), new(Choice)
				var places []*Place
				for _, q := range queues {
					next := ticket()
					next.Option = &Option{Of: choice}
					p, _, err := c.Join(t.Context(), q, next)
					if err != nil {
						t.Error(err)
						return
					}
					places = append(places, p)
				}
				won, n := c.Wait(t.Context()), -1
				for i, p := range places {
					if _, err := c.Leave(p, context.Canceled); (err == nil) != (p == won) {
						t.Errorf("the wait in queue %d has ended with %v, although the caller was admitted elsewhere: %v", i, err, p != won)
					} else if err == nil {
						n = i
					}
				}
				admitted <- n
			}()
			synctest.Wait()
		}
		for i, want := range []struct {
			queue int
			after time.Duration
		}{{0, 3 * sec}, {1, 5 * sec}, {0, 6 * sec}, {0, 9 * sec}} {
			if got := <-admitted; got != want.queue || time.Since(start) != want.after {
				t.Errorf("caller %d is admitted by queue %d after %v, want %d after %v", i, got, time.Since(start), want.queue, want.after)
			}
		}
		for i, q := range queues {
			if q.Len() != 0 {
				t.Errorf("%d callers wait in queue %d", q.Len(), i)
			}
		}
	})
}

// TestCallerWakes checks what ends the wait of a caller in several queues beside an admission.
func TestCallerWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := NewCaller()
		var places []*Place
		for i := range 3 {
			q := New(complete(Config{Quota: quickFake{later(time.Hour)}}))
			p, _, err := c.Join(ctx, q, ticket().until(time.Now().Add(time.Duration(3-i)*sec)))
			if err != nil {
				t.Fatal(err)
			}
			places = append(places, p)
		}
		start := time.Now()
		if c.Wake(); c.Wait(ctx) != nil || time.Since(start) > 0 {
			t.Error("the caller waits although it was woken before")
		}
		if time.AfterFunc(500*ms, c.Wake); c.Wait(ctx) != nil || time.Since(start) != 500*ms {
			t.Errorf("the caller wakes after %v, want 500ms", time.Since(start))
		}
		if p := c.Wait(ctx); p != places[2] || time.Since(start) != sec {
			t.Errorf("place %p ends after %v, want %p after 1s", p, time.Since(start), places[2])
		}
		if _, err := c.Leave(places[2], context.Canceled); !isReason(err, Late) {
			t.Errorf("the caller that gives up leaves with %v", err)
		}
		time.AfterFunc(500*ms, func() { places[0].queue.Close() })
		if p := c.Wait(ctx); p != places[0] || time.Since(start) != 1500*ms {
			t.Errorf("place %p ends after %v, want %p after 1.5s", p, time.Since(start), places[0])
		}
		if _, err := c.Leave(places[0], context.Canceled); !isReason(err, Closed) {
			t.Errorf("the caller leaves a closed queue with %v", err)
		}
		time.AfterFunc(100*ms, cancel)
		if c.Wait(ctx) != nil || time.Since(start) != 1600*ms {
			t.Errorf("the canceled caller returns after %v, want 1.6s", time.Since(start))
		}
		if _, err := c.Leave(places[1], ctx.Err()); err != context.Canceled || places[1].queue.Len() != 0 {
			t.Errorf("the canceled caller leaves with %v, and %d wait", err, places[1].queue.Len())
		}
	})
}

func isReason(err error, reason Reason) bool {
	var r *Refusal
	return errors.As(err, &r) && r.Reason == reason
}

// TestCallerJoinsAgain checks that a caller whom one queue has dismissed, because another one has admitted it, hears
// of it when that admission is given back.
func TestCallerJoinsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(complete(Config{Quota: quickFake{every(sec)}}))
		if _, err := q.Wait(t.Context(), ticket()); err != nil {
			t.Fatal(err)
		}
		c := NewCaller()
		choice := &Choice{Returned: c.Wake}
		other, next := &Option{Of: choice}, ticket()
		next.Option = &Option{Of: choice}
		p, _, err := c.Join(t.Context(), q, next)
		if err != nil || !choice.Take(other) {
			t.Fatal("the choice is not free", err)
		}
		time.AfterFunc(2*sec, other.GiveBack)
		time.AfterFunc(sec, next.Option.GiveBack) // which does not have the choice
		start := time.Now()
		if got := c.Wait(t.Context()); got != nil || time.Since(start) != 2*sec {
			t.Errorf("the wait ended after %v, want %v", time.Since(start), 2*sec)
		}
		if got := c.Wait(t.Context()); got != p {
			t.Error("the place has not ended")
		}
		if _, err := c.Leave(p, nil); !errors.Is(err, ErrTaken) {
			t.Errorf("%v, want ErrTaken", err)
		}
		if p, _, err = c.Join(t.Context(), q, next); err != nil || c.Wait(t.Context()) != p {
			t.Errorf("%v, or it is not admitted", err)
		}
	})
}
