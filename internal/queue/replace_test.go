package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/store"
)

// TestPreparedThenReplaced replaces the configuration between the decision to ask and the call.
func TestPreparedThenReplaced(t *testing.T) {
	for name, ask := range map[string]bool{"quota": false, "ask": true} {
		t.Run(name, func(t *testing.T) {
			old, successor := later(sec), later(sec)
			q := New(Config{Quota: old})
			ticket, asked := ticket(), 0
			if ask {
				ticket.Ask = func(context.Context, store.Request) (store.Decision, error) {
					asked++
					return store.Decision{Verdict: store.Admitted}, nil
				}
			}
			w, do, err := q.enter(context.Background(), ticket, false)
			if err != nil || !do.ask {
				t.Fatalf("%+v, %v", do, err)
			}
			q.Replace(Config{Quota: successor})
			q.ask(context.Background(), w, do.generation)
			if old.asked+successor.asked+asked > 0 {
				t.Errorf("a request for the old plan is sent: %d to the old quota, %d to the new one, %d by Ask", old.asked, successor.asked, asked)
			}
			if !w.out.Load() || !isRefusal(w.refusal, Moved) {
				t.Errorf("out %v, %v, want moved", w.out.Load(), w.refusal)
			}
			if q.Leave(); q.Len() != 0 || q.moving != 0 {
				t.Errorf("%d callers wait, %d are moving", q.Len(), q.moving)
			}
		})
	}
}

// TestPreparedThenReplacedReserver does the same with a reserver. A caller that has not yet asked
// must not ask for a caller that has rejoined.
func TestPreparedThenReplacedReserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota})
		first, do, err := q.enter(context.Background(), ticket(), false)
		if err != nil || !do.ask {
			t.Fatalf("%+v, %v", do, err)
		}
		again := ticket()
		again.Version = q.Replace(Config{Quota: quota})
		second, _, err := q.enter(context.Background(), again, true)
		late, do := do, q.step(second)
		if err != nil || !do.ask {
			t.Fatalf("%+v, %v", do, err)
		}
		q.ask(context.Background(), first, late.generation)
		q.ask(context.Background(), second, do.generation)
		if quota.total != 1 {
			t.Errorf("Reserve was called %d times, want 1", quota.total)
		}
		for range quota.total {
			question := quota.next(t)
			question.done(quota.at(question, 0), nil)
		}
		if !second.out.Load() || second.refusal != nil {
			t.Errorf("out %v, %v", second.out.Load(), second.refusal)
		}
	})
}

// blocks returns a ticket whose Ask blocks until its context ends, and counts its calls.
func blocks(calls *int, n ...int64) Ticket {
	t := ticket(n...)
	t.Ask = func(ctx context.Context, r store.Request) (store.Decision, error) {
		*calls++
		<-ctx.Done()
		return store.Decision{}, ctx.Err()
	}
	return t
}

// TestReplaceUnits changes to a plan with one more unit while the queue is asking the quota.
func TestReplaceUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{Quota: later(sec)})
		reply := make(chan struct{})
		slow := ticket()
		slow.Ask = func(context.Context, store.Request) (store.Decision, error) {
			<-reply
			return store.Decision{}, context.Canceled
		}
		asked := join(q, slow)
		behind := join(q, ticket())
		version := q.Replace(Config{Quota: every(sec)})
		if !behind.isRefused(Moved) {
			t.Fatalf("%v", behind.err)
		}
		again := ticket(1, 100)
		again.Version = version
		back := joinCtx(context.Background(), q, again, true)
		if back.ended() {
			t.Fatal("admitted before all callers have come back")
		}
		close(reply)
		if !asked.isRefused(Moved) {
			t.Fatalf("%v", asked.err)
		}
		if q.Len() != 2 {
			t.Errorf("%d callers wait, want 2: one in the queue and one moving", q.Len())
		}
		if q.Leave(); !back.ended() || back.err != nil {
			t.Errorf("%v", back.err)
		}
		if q.Len() != 0 {
			t.Errorf("%d callers wait", q.Len())
		}
	})
}

// TestAskPanics tests that other callers go on if an Ask panics.
func TestAskPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Config{Quota: every(sec)})
		panics := ticket()
		panics.Ask = func(context.Context, store.Request) (store.Decision, error) {
			time.Sleep(sec)
			panic("in an alert")
		}
		recovered := make(chan any)
		go func() {
			defer func() { recovered <- recover() }()
			_, _ = q.Wait(context.Background(), panics)
		}()
		synctest.Wait()
		behind := join(q, ticket())
		if got := <-recovered; got != "in an alert" {
			t.Errorf("recovered %v", got)
		}
		if !behind.ended() || behind.err != nil || q.Len() != 0 {
			t.Errorf("behind: ended %v, %v; %d callers wait", behind.ended(), behind.err, q.Len())
			behind.cancel()
		}
	})
}

// TestRejoinOrderReserver tests that callers that rejoin in any order are served in their original
// order, and a newcomer behind them.
func TestRejoinOrderReserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota})
		begin := time.Now()
		join(q, ticket())
		join(q, ticket())
		version := q.Replace(Config{Quota: quota})
		time.Sleep(sec)
		again := func(since time.Duration, rejoins bool) *caller {
			ticket := ticket()
			if ticket.Version = version; rejoins {
				ticket.Place.Since = begin.Add(since)
			}
			return joinCtx(context.Background(), q, ticket, rejoins)
		}
		third, second, first := again(0, false), again(2*ms, true), again(1*ms, true)
		quota.next(t) // from before Replace
		question := quota.next(t)
		question.done(quota.at(question, sec, 2*sec, 3*sec), nil)
		for i, c := range []*caller{first, second, third} {
			<-c.done
			if at := c.end.Sub(begin); c.err != nil || at != time.Duration(i+2)*sec {
				t.Errorf("caller %d: %v after %v", i+1, c.err, at)
			}
		}
	})
}

// TestRejoinInTime tests that a caller that rejoins is ahead of callers that joined behind it at
// the same instant, also in the forecast.
func TestRejoinInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := quotaOf(t, bucket(1, 1))
		q := New(Config{Quota: quota})
		end := time.Now().Add(sec)
		<-join(q, ticket()).done
		first, second := join(q, ticket().until(end)), join(q, ticket())
		version := q.Replace(Config{Quota: quota})
		var again []*caller
		for _, c := range []*caller{second, first} {
			<-c.done
			back := ticket()
			back.Version, back.Place = version, c.err.(*Refusal).Place
			if c == first {
				back.GiveUp = end
			}
			again = append(again, joinCtx(context.Background(), q, back, true))
		}
		for i, c := range again {
			if <-c.done; c.err != nil {
				t.Errorf("caller %d: %v", 2-i, c.err)
			}
		}
		if !again[1].end.Equal(end) {
			t.Errorf("the first caller was admitted at %v, want %v", again[1].end, end)
		}
	})
}
