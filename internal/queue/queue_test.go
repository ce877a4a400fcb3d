package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// TestNewcomerTakesReservedTime: a newcomer of a class that goes first comes at the
// instant of a reserved time, before the waiter that it was reserved for has woken.
func TestNewcomerTakesReservedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota, Aging: time.Hour})
		batch, do, err := q.enter(context.Background(), ticket().of(Batch), false)
		if err != nil || !do.ask {
			t.Fatalf("%+v, %v", do, err)
		}
		q.ask(context.Background(), batch, do.round)
		question := quota.next(t)
		question.done(quota.at(question, sec), nil)
		time.Sleep(sec)
		user := join(q, ticket().of(Interactive))
		if <-user.done; user.err != nil || user.decision.Reservation == nil {
			t.Errorf("the newcomer: %+v, %v", user.decision, user.err)
		}
		if batch.out.Load() || q.Len() != 1 {
			t.Errorf("the other one is out: %v; %d wait", batch.out.Load(), q.Len())
		}
	})
}

// TestReviewWakesNext: a newcomer finds that the first waiter is late, and is refused
// itself; whoever is first then must ask.
func TestReviewWakesNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{Quota: quotaOf(t, algorithms.Tier{Limit: 1, Window: sec, Algorithm: algorithms.GCRA}), Aging: 10 * sec})
		now := time.Now()
		<-join(q, ticket()).done
		late := join(q, ticket().until(now.Add(1500*ms)))
		patient := join(q, ticket())
		user := join(q, ticket().of(Interactive))
		time.Sleep(1200 * ms)
		if !user.ended() || user.err != nil || late.ended() {
			t.Fatalf("user %v, late %v", user.err, late.err)
		}
		newcomer := join(q, ticket().until(now.Add(1300*ms)))
		if !newcomer.isRefused(Late) {
			t.Fatalf("the newcomer: %v", newcomer.err)
		}
		time.Sleep(5 * sec)
		if !patient.ended() {
			t.Fatal("the patient waiter sleeps for ever")
		}
		if at := patient.end.Sub(now); patient.err != nil || at != 2*sec {
			t.Errorf("the patient waiter: %v after %v, want admitted after 2s", patient.err, at)
		}
	})
}

// TestReservedAtOnceForNobody: a reserver admits a waiter at once that has left meanwhile.
func TestReservedAtOnceForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota})
		gone := join(q, ticket())
		question := quota.next(t)
		other := join(q, ticket())
		gone.cancel()
		<-gone.done
		question.done([]store.Decision{{Verdict: store.Admitted}}, nil)
		if n := q.Len(); n != 1 {
			t.Fatalf("Len is %d, want 1", n)
		}
		question = quota.next(t)
		question.done(quota.at(question, 0), nil)
		if <-other.done; other.err != nil {
			t.Error(other.err)
		}
	})
}
