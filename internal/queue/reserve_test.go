package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// TestReserverOutage: a store that does not answer is asked every 250 ms. Who gives up or
// is canceled meanwhile gets that as the cause.
func TestReserverOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota})
		begin := time.Now()
		impatient := join(q, ticket().until(begin.Add(500*ms)))
		canceled := join(q, ticket())
		patient := join(q, ticket())
		for i := range 3 {
			if at := time.Since(begin); quota.unanswered() != 1 || at != time.Duration(i)*250*ms {
				t.Fatalf("%d questions at %v", quota.unanswered(), at)
			}
			quota.next(t).done(nil, fmt.Errorf("connection refused: %w", store.ErrUnavailable))
			time.Sleep(250*ms - 1)
			if quota.unanswered() != 0 {
				t.Fatal("asked again before 250 ms have passed")
			}
			if time.Sleep(time.Nanosecond); i == 1 {
				canceled.cancel()
			}
		}
		if at := impatient.end.Sub(begin); !impatient.isRefused(Unavailable) || at != 500*ms || !errors.Is(impatient.err, store.ErrUnavailable) {
			t.Errorf("gives up: %v after %v", impatient.err, at)
		}
		if !canceled.isRefused(Unavailable) || !errors.Is(canceled.err, context.Canceled) {
			t.Errorf("canceled: %v", canceled.err)
		}
		question := quota.next(t)
		if len(question.requests) != 1 {
			t.Errorf("asked for %d", len(question.requests))
		}
		question.done(quota.at(question, 10*ms), nil)
		if <-patient.done; patient.err != nil {
			t.Error(patient.err)
		}
		if quota.total != 4 || len(quota.canceled) > 0 {
			t.Errorf("%d questions, %d canceled", quota.total, len(quota.canceled))
		}
	})
}

// TestReserverLateAnswer: a time that has come may still be used until it expires.
func TestReserverLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota})
		begin := time.Now()
		a, b := join(q, ticket()), join(q, ticket())
		first, second := quota.next(t), question{}
		ds := quota.at(first, 0)
		first.done(ds, nil)
		if !a.ended() || a.err != nil {
			t.Fatal(a.err)
		}
		second = quota.next(t)
		ds = quota.at(second, 10*ms)
		time.Sleep(60*ms + 1)
		second.done(ds, nil) // it has expired
		if b.ended() || len(quota.canceled) != 1 {
			t.Fatalf("ended: %v, %d canceled", b.ended(), len(quota.canceled))
		}
		second = quota.next(t)
		ds = quota.at(second, 10*ms)
		time.Sleep(60 * ms)
		second.done(ds, nil) // at its last instant
		if !b.ended() || b.err != nil {
			t.Errorf("%v after %v", b.err, time.Since(begin))
		}
	})
}

// TestReserverPartial: who got no answer is asked for again at once, an error refuses.
func TestReserverPartial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota})
		join(q, ticket())
		var all []*caller
		for range 4 {
			all = append(all, join(q, ticket()))
		}
		question := quota.next(t)
		question.done(quota.at(question, 0), nil)
		question = quota.next(t)
		if len(question.requests) != 4 {
			t.Fatalf("asked for %d", len(question.requests))
		}
		question.done(quota.at(question, sec, 2*sec)[:1:1], nil) // the second one is not told
		quota.reserved = quota.reserved[:2]
		question = quota.next(t)
		if len(question.requests) != 3 || question.behind != quota.reserved[1].Reservation {
			t.Fatalf("asked for %d", len(question.requests))
		}
		broken := errors.New("the store is broken")
		question.done(nil, broken)
		for i, c := range all {
			if <-c.done; c.err != nil != (i > 0) || i > 0 && c.err != broken {
				t.Errorf("caller %d: %v", i, c.err)
			}
		}
	})
}

// TestReserverCancelsOnce: whatever is answered, late, in part or with errors, and
// no matter who cancels or gives up, whatever class comes and whenever the queue is closed:
// every reservation is used by one caller or canceled once, and none when it has expired.
func TestReserverCancelsOnce(t *testing.T) {
	used, canceled, seeds := 0, 0, soak.Times(70)
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 3))
			quota := new(reserver)
			q := New(Config{Quota: quota, Aging: time.Duration(random.IntN(2)) * 50 * ms, MaxQueue: 10 * random.IntN(3)})
			stop := make(chan struct{})
			go quota.serve(rand.New(rand.NewPCG(seed, 4)), stop)
			var all sync.WaitGroup
			var mu sync.Mutex
			seen := make(map[*store.Reservation]int)
			for range 60 {
				come, stay := time.Duration(random.IntN(500))*ms, time.Duration(1+random.IntN(500))*ms
				ticket := ticket(1 + random.Int64N(2)).of(Class(random.IntN(3)))
				switch random.IntN(3) {
				case 0:
					ticket.GiveUp = time.Now().Add(come + stay)
				case 1:
					stay = time.Hour
				}
				all.Go(func() {
					time.Sleep(come)
					ctx, cancel := context.WithTimeout(context.Background(), stay)
					defer cancel()
					d, err := q.Wait(ctx, ticket)
					if err != nil {
						return
					}
					mu.Lock()
					defer mu.Unlock()
					seen[d.Reservation]++
					if now := time.Now(); d.Reservation.Expired(now) || now.Before(d.Reservation.Start) {
						t.Errorf("seed %d: admitted at %v with %+v", seed, now, d.Reservation)
					}
					if !equal(d.Reservation.Cost, ticket.Cost) {
						t.Errorf("seed %d: %v reserved, %v asked", seed, d.Reservation.Cost, ticket.Cost)
					}
				})
			}
			if random.IntN(2) == 0 {
				time.Sleep(time.Duration(random.IntN(400)) * ms)
				q.Close()
			}
			all.Wait()
			time.Sleep(time.Second) // the last answers
			close(stop)
			synctest.Wait()
			used += len(seen)
			canceled += len(quota.canceled)
			for _, d := range quota.canceled {
				seen[d.Reservation]++
			}
			for _, d := range quota.reserved {
				if n := seen[d.Reservation]; n != 1 {
					t.Errorf("seed %d: %+v was used or canceled %d times", seed, d.Reservation, n)
				}
			}
			if len(seen) != len(quota.reserved) || q.Len() != 0 || len(q.reserved)+len(q.asking) > 0 || quota.watched() != 0 {
				t.Errorf("seed %d: %d of %d used or canceled, %d wait, %d asked for, %d watch", seed, len(seen), len(quota.reserved), q.Len(), len(q.asking), quota.watched())
			}
		})
		if t.Failed() {
			return
		}
	}
	if used < 10*seeds || canceled < 5*seeds/2 {
		t.Errorf("%d used, %d canceled: this proves little", used, canceled)
	}
}

// serve answers each question after some time, in one of all ways, until stop is closed.
func (f *reserver) serve(random *rand.Rand, stop chan struct{}) {
	next := time.Now()
	for {
		select {
		case <-stop:
			return
		case <-time.After(ms):
		}
		f.mu.Lock()
		open := f.open
		f.open = nil
		f.mu.Unlock()
		for _, q := range open {
			time.Sleep(time.Duration(random.IntN(30)) * ms)
			switch random.IntN(8) {
			case 0:
				q.done(nil, store.ErrUnavailable)
			case 1:
				q.done([]store.Decision{{Verdict: store.Later, Wait: 5 * ms}}, nil)
			case 2:
				q.done(nil, nil)
			default:
				starts := make([]time.Duration, 1+random.IntN(len(q.requests)))
				for i := range starts {
					if now := time.Now(); next.Before(now) {
						next = now
					}
					next = next.Add(5 * ms)
					starts[i] = time.Until(next)
				}
				ds := f.at(q, starts...)
				if random.IntN(4) == 0 {
					time.Sleep(time.Duration(random.IntN(100)) * ms) // an answer that is late
				}
				q.done(ds, nil)
			}
		}
	}
}

// TestReserverOrder: reserved times go to the first waiters, of whatever class they are.
func TestReserverOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota, Aging: time.Minute})
		batch, normal := join(q, ticket().of(Batch)), join(q, ticket())
		question := quota.next(t)
		question.done(quota.at(question, sec), nil)
		question = quota.next(t)
		question.done(quota.at(question, 2*sec), nil)
		user := join(q, ticket().of(Interactive))
		question = quota.next(t)
		question.done(quota.at(question, 3*sec), nil)
		for _, c := range []*caller{user, normal, batch} {
			if <-c.done; c.err != nil {
				t.Error(c.err)
			}
		}
		if ends := []time.Time{user.end, normal.end, batch.end}; !slices.IsSortedFunc(ends, time.Time.Compare) {
			t.Errorf("user, normal, batch: %v", ends)
		}
		if len(quota.canceled) > 0 {
			t.Errorf("%d times canceled", len(quota.canceled))
		}
	})
}

// TestReserverGiveUp: a caller that gives up does not wait for an answer that is late.
func TestReserverGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota})
		impatient := ticket()
		impatient.GiveUp = time.Now().Add(100 * ms)
		c := join(q, impatient)
		question := quota.next(t)
		time.Sleep(100 * ms)
		if r := (*Refusal)(nil); !c.ended() || !errors.As(c.err, &r) || r.Reason != Late {
			t.Fatalf("ended: %v, with %v", c.ended(), c.err)
		}
		question.done(quota.at(question, 200*ms), nil)
		if len(quota.canceled) != 1 {
			t.Errorf("%d canceled, want the time of the caller that gave up", len(quota.canceled))
		}
	})
}

// A drowsy context makes the goroutine that looks at it run late, once.
type drowsy struct {
	context.Context
	late *atomic.Int64
}

func (d drowsy) Err() error {
	time.Sleep(time.Duration(d.late.Swap(0)))
	return d.Context.Err()
}

// TestReserverOverslept: a caller whose goroutine runs only after its time has expired gives
// that back, and is the first again.
func TestReserverOverslept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota})
		join(q, ticket()) // keeps the queue from asking for the others one by one
		var late atomic.Int64
		late.Store(int64(sec))
		var decision store.Decision
		done := make(chan error)
		go func() {
			d, err := q.Wait(drowsy{t.Context(), &late}, ticket())
			decision = d
			done <- err
		}()
		synctest.Wait()
		last := join(q, ticket())
		question := quota.next(t)
		question.done(quota.at(question, 0), nil)
		question = quota.next(t)
		first := quota.at(question, 0, 5*sec)
		question.done(first, nil)
		time.Sleep(2 * sec)
		synctest.Wait() // the second time goes to the one who has overslept
		if len(quota.canceled) != 1 || quota.canceled[0].Reservation != first[0].Reservation {
			t.Fatalf("%d canceled", len(quota.canceled))
		}
		if err := <-done; err != nil || decision.Reservation != first[1].Reservation {
			t.Errorf("%+v, %v", decision.Reservation, err)
		}
		if last.ended() {
			t.Error("who came later went first")
		}
		last.cancel()
	})
}

// TestReserverAsksForMore: as long as all who are asked for go at once, the store is what they
// wait for, and it is asked for twice as many; but for few where there are times to wait for.
func TestReserverAsksForMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 1 + 256 + 512 + 1024 + 2048 + 4096 + 4096 + 1000 {
			wg.Go(func() { _, _ = q.Wait(ctx, ticket()) })
		}
		synctest.Wait()
		for i, want := range []int{1, 256, 512, 1024, 2048, 4096, 4096, 256, 256} {
			question := quota.next(t)
			if got := len(question.requests); got != want {
				t.Errorf("question %d is for %d, want %d", i, got, want)
			}
			times := make([]time.Duration, len(question.requests))
			if i >= 6 {
				times[len(times)-1] = sec
			}
			question.done(quota.at(question, times...), nil)
			if i >= 6 {
				time.Sleep(sec)
			}
		}
		stop()
		wg.Wait()
	})
}

// TestReserverHold: a caller that holds times of other quotas goes so long before its own,
// asks when it is told to, and is given no time that ends before the others begin.
func TestReserverHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(Config{Quota: quota})
		begin := time.Now()
		first := ticket()
		first.Lead, first.Ahead = 20*ms, 30*ms
		a := join(q, first)
		question := quota.next(t)
		if at := question.requests[0].NotBefore; !at.Equal(begin.Add(30 * ms)) {
			t.Errorf("asked for a time from %v on", at.Sub(begin))
		}
		question.done(quota.at(question, 100*ms), nil)
		<-a.done
		if at := a.end.Sub(begin); a.err != nil || at != 80*ms {
			t.Errorf("it went after %v, %v", at, a.err)
		}

		second := ticket()
		second.NotBefore, second.AskAt = begin.Add(200*ms), begin.Add(90*ms)
		b := join(q, second)
		if quota.unanswered() != 0 {
			t.Error("asked before AskAt")
		}
		c := join(q, second)
		time.Sleep(10 * ms)
		question = quota.next(t)
		if len(question.requests) != 2 || !question.requests[1].NotBefore.Equal(second.NotBefore) {
			t.Errorf("asked for %+v", question.requests)
		}
		question.done(quota.at(question, 10*ms, 100*ms), nil) // the first is over before 200 ms
		<-b.done
		if at := b.end.Sub(begin); b.err != nil || at != 190*ms || len(quota.canceled) != 1 {
			t.Errorf("it went after %v, %v, %d canceled", at, b.err, len(quota.canceled))
		}
		c.cancel()
		<-c.done
	})
}
