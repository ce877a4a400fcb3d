package queue

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/store"
)

// TestAwayReplyBesideAnother tests that a caller that was away asks again by its own reply, if a caller
// behind it has been told to wait in the meantime.
func TestAwayReplyBesideAnother(t *testing.T) {
	for _, behind := range []time.Duration{sec, 2 * sec, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			q := New(complete(Config{Quota: later(behind)}))
			var others, asked []time.Time
			ahead := join(q, stepsAside(&others, time.Hour, false, store.Decision{Verdict: store.Admitted}, nil))
			w := join(q, stepsAside(&asked, sec, false, store.Decision{Verdict: store.Later, Wait: 3 * sec}, nil))
			last := join(q, ticket())
			if ahead.ended() || w.ended() || last.ended() {
				t.Fatal("a caller has ended")
			}
			back := time.Now().Add(sec)
			<-w.done
			if len(asked) != 2 || !asked[1].Equal(back.Add(3*sec)) {
				t.Errorf("asked %v after it was back, want %v", asked[1].Sub(back), 3*sec)
			}
			last.cancel()
			<-ahead.done
			<-last.done
		})
	}
}

// TestReserverFirstHasLeft tests that those who are left ask again by the reply, if it has a wait for each of
// the requests and the first caller has left in the meantime.
func TestReserverFirstHasLeft(t *testing.T) {
	for name, leave := range map[string]func(*caller){
		"canceled":      func(c *caller) { c.cancel() },
		"past deadline": func(*caller) { time.Sleep(2 * sec) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				quota := new(reserver)
				q := New(complete(Config{Quota: quota}))
				admitted := join(q, ticket())
				ctx, cancel := context.WithTimeout(t.Context(), sec)
				defer cancel()
				first := joinCtx(ctx, q, ticket())
				join(q, ticket())
				join(q, ticket())
				question := quota.next(t)
				question.done(quota.at(question, 0), nil)
				<-admitted.done
				question = quota.next(t)
				if leave(first); !first.ended() {
					t.Fatal("the first caller waits")
				}
				question.done(slices.Repeat([]store.Decision{{Verdict: store.Later, Wait: sec}}, len(question.requests)), nil)
				if time.Sleep(sec - 1); quota.unanswered() != 0 {
					t.Error("the queue asks again before the wait has passed")
				}
				if time.Sleep(time.Nanosecond); quota.unanswered() != 1 {
					t.Error("the queue does not ask again")
				}
				question = quota.next(t)
				question.done(quota.at(question, slices.Repeat([]time.Duration{0}, len(question.requests))...), nil)
			})
		})
	}
}

// TestReserverDeadlineOfChoice tests that a caller of several queues asks again by the reply to the request of
// the caller ahead, whose deadline has passed while the queue asked.
func TestReserverDeadlineOfChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		ctx, cancel := context.WithTimeout(t.Context(), sec)
		defer cancel()
		choice := func() Ticket {
			t := ticket()
			t.Option = &Option{Of: new(Choice)}
			return t
		}
		first, second := joinCtx(ctx, q, choice()), join(q, choice())
		question := quota.next(t)
		time.Sleep(2 * sec)
		if !first.ended() {
			t.Fatal("the first caller waits past its deadline")
		}
		question.done([]store.Decision{{Verdict: store.Later, Wait: sec}}, nil)
		if time.Sleep(sec); quota.unanswered() != 1 {
			t.Error("the queue does not ask again after the wait")
			second.cancel()
			<-second.done
			return
		}
		question = quota.next(t)
		question.done(quota.at(question, 0), nil)
		if <-second.done; second.err != nil {
			t.Error(second.err)
		}
	})
}
