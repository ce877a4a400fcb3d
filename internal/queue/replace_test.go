package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/store"
)

// TestPreparedThenReplaced replaces the configuration between the decision to ask and the call.
func TestPreparedThenReplaced(t *testing.T) {
	for name, ask := range map[string]bool{"quota": false, "ask": true} {
		t.Run(name, func(t *testing.T) {
			old, successor := later(sec), every(sec)
			q := New(complete(Config{Quota: old}))
			ticket, asked := ticket(), 0
			if ask {
				ticket.Ask = asks(func(_ context.Context, _ Turn) (store.Decision, error) {
					asked++
					return store.Decision{Verdict: store.Admitted}, nil
				})
			}
			w, do, _, err := q.enter(context.Background(), ticket)
			if err != nil || !do.ask {
				t.Fatalf("%+v, %v", do, err)
			}
			q.Replace(complete(Config{Quota: successor}))
			q.ask(context.Background(), w, do.generation)
			if old.asked+successor.asked+asked > 0 || w.out.Load() {
				t.Errorf("a request for the old plan is sent: %d to the old quota, %d to the new one, %d by Ask", old.asked, successor.asked, asked)
			}
			if do = q.step(w); !do.ask {
				t.Fatalf("%+v, want to ask the new quota", do)
			}
			if q.ask(context.Background(), w, do.generation); !w.out.Load() || w.refusal != nil || q.Len() != 0 {
				t.Errorf("out %v, %v, %d callers wait", w.out.Load(), w.refusal, q.Len())
			}
		})
	}
}

// TestPreparedThenReplacedReserver does the same with a reserver. A caller that has not yet asked
// must not ask a second time for the others.
func TestPreparedThenReplacedReserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota, next := new(reserver), new(reserver)
		q := New(complete(Config{Quota: quota}))
		one, two := ticket(), ticket()
		first, late, _, err := q.enter(context.Background(), one)
		if err != nil || !late.ask {
			t.Fatalf("%+v, %v", late, err)
		}
		q.Replace(complete(Config{Quota: next}))
		second, _, _, err := q.enter(context.Background(), two)
		do := q.step(first)
		if err != nil || !do.ask {
			t.Fatalf("%+v, %v", do, err)
		}
		q.ask(context.Background(), first, late.generation)
		q.ask(context.Background(), first, do.generation)
		if quota.total != 0 || next.total != 1 {
			t.Errorf("Reserve was called %d times for the old quota and %d times for the new one, want 0 and 1", quota.total, next.total)
		}
		for range next.total {
			question := next.next(t)
			question.done(next.at(question, 0, 0), nil)
		}
		for _, w := range []*waiter{first, second} {
			if !w.out.Load() || w.refusal != nil {
				t.Errorf("out %v, %v", w.out.Load(), w.refusal)
			}
		}
	})
}

// blocks returns a ticket whose Ask blocks until its context ends, and counts its calls.
func blocks(calls *int, n ...int64) Ticket {
	t := ticket(n...)
	t.Ask = asks(func(ctx context.Context, turn Turn) (store.Decision, error) {
		*calls++
		<-ctx.Done()
		return store.Decision{}, ctx.Err()
	})
	return t
}

// units returns a ticket that costs one unit of each unit of the configuration, whose Owner is their
// number.
func units() Ticket {
	return Ticket{Renew: func(owner any) (r store.Request, free bool, err error) {
		for range owner.(int) {
			r.Cost = append(r.Cost, 1)
		}
		if len(r.Cost) == 0 {
			err = errNoUnits
		}
		return r, false, err
	}}
}

var errNoUnits = errors.New("no units")

// TestReplaceUnits changes the number of units while callers wait and the first one is asking.
func TestReplaceUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(complete(Config{Owner: 1, Quota: later(sec)}))
		reply := make(chan struct{})
		var asked []int
		slow := units()
		slow.Ask = asks(func(_ context.Context, turn Turn) (store.Decision, error) {
			if asked = append(asked, len(turn.Cost)); turn.Owner == 1 {
				<-reply
				return store.Decision{}, context.Canceled
			}
			return store.Decision{Verdict: store.Admitted}, nil
		})
		first := join(q, slow)
		second := join(q, units())
		q.Replace(complete(Config{Owner: 3, Quota: every(sec)}))
		third := join(q, units())
		if first.ended() || second.ended() || third.ended() {
			t.Fatal("a caller ended before the first one had its reply")
		}
		close(reply)
		for i, c := range []*caller{first, second, third} {
			<-c.done
			if c.err != nil || len(c.result.Cost) != 3 || c.result.Owner != 3 {
				t.Errorf("caller %d: %+v, %v", i+1, c.result, c.err)
			}
		}
		if !second.end.Before(third.end) || len(asked) != 2 || asked[1] != 3 {
			t.Errorf("the second caller was admitted at %v, the third at %v; the first asked for %v units", second.end, third.end, asked)
		}
	})
}

// TestReplaceRefuses tests that Replace refuses the callers that the new configuration cannot count,
// and only those.
func TestReplaceRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := later(sec)
		q := New(complete(Config{Owner: 1, Quota: old}))
		all := []*caller{join(q, units()), join(q, ticket()), join(q, units())}
		q.Replace(complete(Config{Owner: 0, Quota: every(sec)}))
		if n := old.watched(); n != 0 {
			t.Errorf("the old quota has %d watchers", n)
		}
		for i, want := range []error{errNoUnits, nil, errNoUnits} {
			if <-all[i].done; all[i].err != want {
				t.Errorf("caller %d: %v, want %v", i+1, all[i].err, want)
			}
		}
		if q.Len() != 0 || q.waiters.len() != 0 {
			t.Errorf("%d callers wait", q.Len())
		}
	})
}

// TestReplaceWhileAdmitted tests that a caller that the old quota has admitted meanwhile returns with
// that admission, and that nobody else has it.
func TestReplaceWhileAdmitted(t *testing.T) {
	for name, replace := range map[string]func(*Queue){
		"replaced": func(q *Queue) { q.Replace(complete(Config{Owner: 2, Quota: later(sec)})) },
		"closed":   func(q *Queue) { q.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := New(complete(Config{Owner: 1, Quota: later(sec)}))
				slow := units()
				slow.Ask = asks(func(_ context.Context, _ Turn) (store.Decision, error) {
					time.Sleep(sec)
					return store.Decision{Verdict: store.Admitted, At: 7}, nil
				})
				c := join(q, slow)
				replace(q)
				<-c.done
				if c.err != nil || c.result.At != 7 || len(c.result.Cost) != 1 || c.result.Owner != 1 || q.Len() != 0 {
					t.Errorf("%+v, %v; %d callers wait", c.result, c.err, q.Len())
				}
			})
		})
	}
}

// TestAskPanics tests that other callers go on if an Ask panics.
func TestAskPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(complete(Config{Quota: every(sec)}))
		panics := ticket()
		panics.Ask = asks(func(_ context.Context, _ Turn) (store.Decision, error) {
			time.Sleep(sec)
			panic("in an alert")
		})
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

// TestReplaceOrder tests that callers keep their order and their deadlines, also with another Aging,
// which ranks their classes anew.
func TestReplaceOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := quotaOf(t, bucket(1, 1))
		q := New(complete(Config{Quota: quota}))
		end := time.Now().Add(sec)
		<-join(q, ticket()).done
		var want []*caller
		for i := range 20 {
			next := ticket()
			if i == 0 {
				next.GiveUp = end
			}
			if i%2 == 1 {
				next.Class = Batch
			}
			want = append(want, join(q, next))
		}
		q.Replace(complete(Config{Quota: quota}))
		for i, c := range want[:10] {
			<-c.done
			if at := end.Add(time.Duration(i) * sec); c.err != nil || !c.end.Equal(at) {
				t.Errorf("caller %d: %v at %v, want %v", i, c.err, c.end, at)
			}
		}
		q.Replace(complete(Config{Quota: quota, Aging: time.Minute}))
		for i, n := range []int{10, 12, 14, 16, 18, 11, 13, 15, 17, 19} {
			<-want[n].done
			if at := end.Add(time.Duration(i+10) * sec); want[n].err != nil || !want[n].end.Equal(at) {
				t.Errorf("caller %d: %v at %v, want %v", n, want[n].err, want[n].end, at)
			}
		}
	})
}

// panicsInJoined starts a caller whose Joined panics after a second.
func panicsInJoined(q *Queue) (recovered chan any) {
	panics := ticket()
	panics.Joined = func(int) {
		time.Sleep(sec)
		panic("in an observer")
	}
	recovered = make(chan any, 1)
	go func() {
		defer func() { recovered <- recover() }()
		_, _ = q.Wait(context.Background(), panics)
	}()
	synctest.Wait()
	return recovered
}

// TestJoinedPanics tests that a caller whose Joined panics leaves as if it had been canceled, also
// while the configuration is replaced.
func TestJoinedPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := every(sec)
		q := New(complete(Config{Quota: quota}))
		recovered := panicsInJoined(q)
		behind := join(q, ticket())
		q.Replace(complete(Config{Quota: quota}))
		last := join(q, ticket())
		if behind.ended() || last.ended() {
			t.Error("a caller has overtaken the first")
		}
		if got := <-recovered; got != "in an observer" {
			t.Errorf("recovered %v", got)
		}
		for _, c := range []*caller{behind, last} {
			if <-c.done; c.err != nil {
				t.Error(c.err)
			}
		}
		if q.Len() != 0 || q.waiters.len() != 0 || len(q.calls.asking) > 0 {
			t.Errorf("%d callers wait, asking for %d", q.Len(), len(q.calls.asking))
		}
	})
}

// TestJoinedPanicsReserver tests that the reserved time of such a caller goes to the one behind.
func TestJoinedPanicsReserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		first := join(q, ticket())
		recovered := panicsInJoined(q)
		behind := join(q, ticket())
		question := quota.next(t)
		question.done(quota.at(question, 0), nil)
		question = quota.next(t)
		question.done(quota.at(question, sec, sec), nil)
		if !first.ended() || behind.ended() {
			t.Errorf("the first caller has ended: %v, the one behind: %v", first.ended(), behind.ended())
		}
		<-recovered
		if <-behind.done; behind.err != nil || q.Len() != 0 || len(q.reserved) > 0 || len(quota.canceled) != 1 {
			t.Errorf("%v; %d callers wait, %d times are reserved, %d were returned", behind.err, q.Len(), len(q.reserved), len(quota.canceled))
		}
	})
}

// TestReplaceKeepsTimes checks that callers keep the times that the same quota has reserved, or is about
// to reserve, for them.
func TestReplaceKeepsTimes(t *testing.T) {
	for name, same := range map[string]bool{"same quota": true, "another quota": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				quota := new(reserver)
				next := quota
				if !same {
					next = new(reserver)
				}
				q, start := New(complete(Config{Owner: 1, Quota: quota})), time.Now()
				first := join(q, units().until(start.Add(time.Hour)))
				question := quota.next(t)
				question.done(quota.at(question, sec), nil)
				second := join(q, units().until(start.Add(time.Hour)))
				question = quota.next(t)
				q.Replace(complete(Config{Owner: 1, Quota: next, MaxQueue: 5}))
				if same {
					question.done([]store.Decision{{Verdict: store.Later, Wait: sec}}, nil)
					time.Sleep(sec)
					question = quota.next(t)
				}
				question.done(quota.at(question, sec), nil)
				if same {
					time.Sleep(2 * sec)
					if !first.ended() || !second.ended() || first.end.Sub(start) != sec || second.end.Sub(start) != 2*sec || quota.total != 3 || len(quota.canceled) > 0 {
						t.Errorf("admitted after %v and %v, asked %d times, canceled %d", first.end.Sub(start), second.end.Sub(start), quota.total, len(quota.canceled))
					}
					return
				}
				if len(quota.canceled) != 2 || next.unanswered() != 1 {
					t.Errorf("%d reservations are canceled, want 2; %d questions, want 1", len(quota.canceled), next.unanswered())
				}
				first.cancel()
				second.cancel()
				next.next(t).done(nil, nil)
			})
		})
	}
}

// TestReplanned tests that a queue reports a successor of its quota, if its owner wants to know.
func TestReplanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, want := range []int{0, 1} {
			quota, calls := later(sec), 0
			c := Config{Quota: quota}
			if want > 0 {
				c.Replanned = func() { calls++ }
			}
			w := join(New(c), ticket())
			quota.notify(store.Replanned, 0)
			if w.cancel(); calls != want {
				t.Errorf("Replanned was called %d times, want %d", calls, want)
			}
		}
	})
}
