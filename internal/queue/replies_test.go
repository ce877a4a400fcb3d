package queue

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/store"
)

// TestAwayReplyBesideAnother tests that a caller that was away asks again by its own reply, if a caller
// behind it has been told to wait in the meantime. No call is under way when it comes back: after one, the
// first caller would ask at once, because what the other has left may have room.
func TestAwayReplyBesideAnother(t *testing.T) {
	for _, behind := range []time.Duration{700 * ms, 2 * sec, time.Minute} {
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

// TestReserverAsksForTheFirst plays replies with different waits for callers of all classes and costs, some of
// which leave, and expects that the queue asks when the wait of the first caller has passed: neither before,
// unless that caller was not the first in the last reply, nor after.
func TestReserverAsksForTheFirst(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			quota := new(reserver)
			q := New(complete(Config{Quota: quota, Aging: 5 * sec}))
			told := make(map[*waiter]time.Time) // when the first one that has to wait may ask again, by the last reply
			var callers []*caller
			asked := 0
			defer func() {
				for _, c := range callers {
					c.cancel()
				}
			}()
			for range 60 {
				switch random.IntN(4) {
				case 0:
					callers = append(callers, join(q, ticket(int64(1+random.IntN(3))).of(Class(random.IntN(3)))))
				case 1:
					if len(callers) > 0 {
						callers[random.IntN(len(callers))].cancel()
					}
				case 2:
					time.Sleep(time.Duration(random.IntN(700)) * ms)
				}
				for synctest.Wait(); quota.unanswered() > 0; synctest.Wait() {
					question := quota.next(t)
					q.mu.Lock()
					asking := slices.Clone(q.calls.asking)
					q.mu.Unlock()
					if at, ok := told[asking[0]]; ok && time.Now().Before(at) {
						t.Fatalf("seed %d: the queue asks %v before the wait has passed", seed, time.Until(at))
					}
					if asked++; asked > 1000 {
						t.Fatalf("seed %d: the queue asks again and again", seed)
					}
					if random.IntN(3) == 0 && len(callers) > 0 {
						callers[random.IntN(len(callers))].cancel()
						synctest.Wait()
					}
					n := random.IntN(len(question.requests) + 1)
					ds := quota.at(question, slices.Repeat([]time.Duration{time.Duration(random.IntN(100)) * ms}, random.IntN(2)*n)...)
					admitted := len(ds)
					clear(told)
					for i := admitted; i < max(n, admitted, 1) && i < len(question.requests); i++ {
						wait := time.Duration(1+random.IntN(2000)) * ms
						if r := question.requests[i]; len(told) == 0 && !asking[i].out.Load() {
							told[asking[i]] = time.Now().Add(wait)
							if r.YieldFor > 0 {
								told[asking[i]] = time.Now().Add(min(wait, r.YieldFor))
							}
						}
						ds = append(ds, store.Decision{Verdict: store.Later, Tier: random.IntN(3) - 1, Wait: wait})
					}
					question.done(ds, nil)
				}
				q.mu.Lock()
				w, idle := q.firstUnreserved(), len(q.calls.asking) == 0 && len(q.reserved) == 0
				q.mu.Unlock()
				if at, ok := told[w]; w != nil && idle && (!ok || time.Now().After(at)) {
					t.Fatalf("seed %d: the queue does not ask for the first caller", seed)
				}
			}
			for _, c := range callers {
				c.cancel()
				<-c.done
			}
		})
	}
}
