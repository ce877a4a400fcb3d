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

// TestReserverUnavailable tests that the queue asks an unavailable store every 250 ms. A caller
// that gives up or is canceled in the meantime receives the store's error as the cause.
func TestReserverUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		begin := time.Now()
		impatient := join(q, ticket().until(begin.Add(500*ms)))
		canceled := join(q, ticket())
		patient := join(q, ticket())
		for i := range 3 {
			if at := time.Since(begin); quota.unanswered() != 1 || at != time.Duration(i)*250*ms {
				t.Fatalf("%d calls at %v", quota.unanswered(), at)
			}
			quota.next(t).done(nil, fmt.Errorf("connection refused: %w", store.ErrUnavailable))
			time.Sleep(250*ms - 1)
			if quota.unanswered() != 0 {
				t.Fatal("the queue asks again before 250 ms have passed")
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
			t.Errorf("Reserve was called for %d requests", len(question.requests))
		}
		question.done(quota.at(question, 10*ms), nil)
		if <-patient.done; patient.err != nil {
			t.Error(patient.err)
		}
		if quota.total != 4 || len(quota.canceled) > 0 {
			t.Errorf("%d calls, %d canceled", quota.total, len(quota.canceled))
		}
	})
}

// TestReserverLateReply tests that a late reply's reservation is used until it expires.
func TestReserverLateReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
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
		second.done(ds, nil) // the reservation has expired
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

// TestReserverPausesAll tests that the queue asks at the end of a pause and not before, if the reply has
// the pause for each of the requests.
func TestReserverPausesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		pause := func(n int) []store.Decision {
			return slices.Repeat([]store.Decision{{Verdict: store.Later, Tier: -1, Wait: sec}}, n)
		}
		for range 3 {
			join(q, ticket())
		}
		quota.next(t).done(pause(1), nil)
		time.Sleep(sec)
		for range 2 {
			question := quota.next(t)
			if len(question.requests) != 3 {
				t.Fatalf("Reserve was called for %d requests, want 3", len(question.requests))
			}
			question.done(pause(3), nil)
			if time.Sleep(sec - 1); quota.unanswered() != 0 {
				t.Fatal("the queue asks again before the pause has passed")
			}
			time.Sleep(time.Nanosecond)
		}
		question := quota.next(t)
		question.done(quota.at(question, 0, 0, 0), nil)
	})
}

// TestReserverPartial tests that the queue asks again at once for requests without a decision, and
// that an error refuses the callers.
func TestReserverPartial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		join(q, ticket())
		var all []*caller
		for range 4 {
			all = append(all, join(q, ticket()))
		}
		question := quota.next(t)
		question.done(quota.at(question, 0), nil)
		question = quota.next(t)
		if len(question.requests) != 4 {
			t.Fatalf("Reserve was called for %d requests", len(question.requests))
		}
		question.done(quota.at(question, sec, 2*sec)[:1:1], nil) // without the second decision
		quota.reserved = quota.reserved[:2]
		question = quota.next(t)
		if len(question.requests) != 3 || question.behind != quota.reserved[1].Reservation {
			t.Fatalf("Reserve was called for %d requests", len(question.requests))
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

// TestReserverCancelsOnce tests random replies, late, partial or with errors, with callers of all
// classes that cancel or give up, and with Close. Each reservation is used by one caller or
// canceled once. An expired reservation is not used.
func TestReserverCancelsOnce(t *testing.T) {
	used, canceled, seeds := 0, 0, soak.Times(70)
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 3))
			quota := new(reserver)
			q := New(complete(Config{Quota: quota, Aging: time.Duration(random.IntN(2)) * 50 * ms, MaxQueue: 10 * random.IntN(3)}))
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
					if !slices.Equal(d.Reservation.Cost, ticket.Cost) {
						t.Errorf("seed %d: %v reserved, want %v", seed, d.Reservation.Cost, ticket.Cost)
					}
				})
			}
			if random.IntN(2) == 0 {
				time.Sleep(time.Duration(random.IntN(400)) * ms)
				q.Close()
			}
			all.Wait()
			time.Sleep(time.Second) // the last replies
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
			if len(seen) != len(quota.reserved) || q.Len() != 0 || len(q.reserved)+len(q.calls.asking) > 0 || quota.watched() != 0 {
				t.Errorf("seed %d: %d of %d used or canceled, %d callers wait, %d reserved or asked for, %d watchers", seed, len(seen), len(quota.reserved), q.Len(), len(q.calls.asking), quota.watched())
			}
		})
		if t.Failed() {
			return
		}
	}
	if used < 10*seeds || canceled < 5*seeds/2 {
		t.Errorf("%d used, %d canceled: too few for a test", used, canceled)
	}
}

// serve answers each question after some time, in a random way, until stop is closed.
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
					time.Sleep(time.Duration(random.IntN(100)) * ms) // a late reply
				}
				q.done(ds, nil)
			}
		}
	}
}

// TestReserverOrder tests that the first waiters get the reserved times, regardless of class.
func TestReserverOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota, Aging: time.Minute}))
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

// TestReserverOtherCost tests that a caller of a higher class joins behind those that have times or are
// asked for, if it could not use their times, and that later callers of its class join behind it.
func TestReserverOtherCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota, Aging: time.Hour}))
		batch := join(q, ticket().of(Batch))
		asked := join(q, ticket().of(Batch))
		question := quota.next(t)
		question.done(quota.at(question, sec), nil)
		question = quota.next(t)
		other := join(q, ticket(2).of(Interactive))
		same := join(q, ticket().of(Interactive))
		last := join(q, ticket().of(Batch))
		question.done(quota.at(question, 2*sec), nil)
		question = quota.next(t)
		question.done(quota.at(question, 3*sec, 4*sec, 5*sec)[:len(question.requests)], nil)
		var ends []time.Time
		for _, c := range []*caller{batch, asked, other, same, last} {
			if <-c.done; c.err != nil {
				t.Error(c.err)
			}
			ends = append(ends, c.end)
		}
		if !slices.IsSortedFunc(ends, time.Time.Compare) || len(quota.canceled) > 0 {
			t.Errorf("Batch twice, another cost, the same cost, Batch: %v; %d times canceled", ends, len(quota.canceled))
		}
	})
}

// TestReserverRefused tests that a caller of a higher class goes first while no caller has a time or is
// asked for, whatever it costs, and that a quota may admit it without a reservation.
func TestReserverRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota, Aging: time.Hour}))
		batch := join(q, ticket().of(Batch))
		quota.next(t).done([]store.Decision{{Verdict: store.Later, Wait: sec}}, nil)
		other := join(q, ticket(2).of(Interactive))
		question := quota.next(t)
		if !slices.Equal(question.requests[0].Cost, cost(2)) {
			t.Errorf("asked for %+v first", question.requests[0])
		}
		question.done([]store.Decision{{Verdict: store.Admitted}}, nil)
		if !other.ended() || other.err != nil || batch.ended() {
			t.Errorf("ended: %v, %v; the Batch caller: %v", other.ended(), other.err, batch.ended())
		}
		batch.cancel()
	})
}

// TestReserverChanges tests that reserved times are void after a change that makes requests wait longer, or
// shorter, and stay when a request has landed.
func TestReserverChanges(t *testing.T) {
	for change, void := range map[store.Change]bool{store.Freed: false, store.Slowed: true, store.Eased: true} {
		synctest.Test(t, func(t *testing.T) {
			quota := new(reserver)
			c := join(New(complete(Config{Quota: quota})), ticket())
			question := quota.next(t)
			question.done(quota.at(question, sec), nil)
			quota.notify(change, 0)
			if asked := quota.unanswered() > 0; asked != void || (len(quota.canceled) > 0) != void {
				t.Errorf("change %d: asked again: %v, %d canceled, want void: %v", change, asked, len(quota.canceled), void)
			}
			c.cancel()
		})
	}
}

// A foreseeing quota is a reserver whose forecast is that of another quota.
type foreseeing struct {
	reserver
	quota store.Quota
}

func (f *foreseeing) Forecast() store.Forecast { return f.quota.Forecast() }

// TestReserverForecast tests that a newcomer behind the reserved times is refused at once by the
// forecast, and one that would have the last of them is not.
func TestReserverForecast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := &foreseeing{quota: quotaOf(t, bucket(1, 1))}
		if _, err := quota.quota.TryAcquire(t.Context(), ticket().Request); err != nil {
			t.Fatal(err)
		}
		q, begin := New(complete(Config{Quota: quota, Aging: time.Hour})), time.Now()
		first := join(q, ticket())
		question := quota.next(t)
		question.done(quota.at(question, sec), nil)
		behind := join(q, ticket().until(begin.Add(1500*ms)))
		if !behind.isRefused(Late) {
			t.Errorf("behind the reserved time: %v, want it refused", behind.err)
		}
		before := join(q, ticket().of(Interactive).until(begin.Add(1500*ms)))
		if before.ended() {
			t.Errorf("before it: %v, want that it waits", before.err)
		}
		before.cancel()
		first.cancel()
	})
}

// TestReserverGiveUp tests that a caller that gives up does not wait for a late reply.
func TestReserverGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		impatient := ticket()
		impatient.GiveUp = time.Now().Add(100 * ms)
		c := join(q, impatient)
		question := quota.next(t)
		time.Sleep(100 * ms)
		if r := (*Refusal)(nil); !c.ended() || !errors.As(c.err, &r) || r.Reason != Unavailable {
			t.Fatalf("ended: %v, with %v", c.ended(), c.err)
		}
		question.done(quota.at(question, 200*ms), nil)
		if len(quota.canceled) != 1 {
			t.Errorf("%d canceled, want the time of the caller that gave up", len(quota.canceled))
		}
	})
}

// A slowContext delays the goroutine that calls Err, once.
type slowContext struct {
	context.Context
	late *atomic.Int64
}

func (d slowContext) Err() error {
	time.Sleep(time.Duration(d.late.Swap(0)))
	return d.Context.Err()
}

// TestReserverMissedStart tests that a caller whose goroutine runs only after its reservation has
// expired cancels it and becomes the first waiter again.
func TestReserverMissedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		join(q, ticket()) // makes the queue ask for the others in one call
		var late atomic.Int64
		late.Store(int64(sec))
		var decision Result
		done := make(chan error)
		go func() {
			d, err := q.Wait(slowContext{t.Context(), &late}, ticket())
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
		synctest.Wait() // the second time goes to the caller that missed the first
		if len(quota.canceled) != 1 || quota.canceled[0].Reservation != first[0].Reservation {
			t.Fatalf("%d canceled", len(quota.canceled))
		}
		if err := <-done; err != nil || decision.Reservation != first[1].Reservation {
			t.Errorf("%+v, %v", decision.Reservation, err)
		}
		if last.ended() {
			t.Error("the later caller went first")
		}
		last.cancel()
	})
}

// TestReserverMissedStartAndEnded tests that such a caller whose context has ended too is not admitted.
func TestReserverMissedStartAndEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		var late atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := q.Wait(slowContext{ctx, &late}, ticket())
			done <- err
		}()
		question := quota.next(t)
		late.Store(int64(sec))
		question.done(quota.at(question, 0), nil)
		time.Sleep(sec / 2)
		cancel()
		if err := <-done; err != context.Canceled || len(quota.canceled) != 1 {
			t.Errorf("got %v and %d canceled, want its context's error and its time canceled", err, len(quota.canceled))
		}
	})
}

// TestReserverAsksForMore tests that the queue doubles the size of a call while the store admits
// all requests of a call at once. Callers then wait for the store. Once callers wait for reserved
// times, the calls are small again.
func TestReserverAsksForMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
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

// TestReserverLead tests a caller that returns before its time, and holds it from the decision on.
func TestReserverLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		begin := time.Now()
		early := ticket()
		early.Lead, early.Hold = 20*ms, 30*ms
		a := join(q, early)
		question := quota.next(t)
		if hold := question.requests[0].Hold; hold != 30*ms {
			t.Errorf("asked for a time that is held for %v", hold)
		}
		question.done(quota.at(question, 100*ms), nil)
		<-a.done
		if at := a.end.Sub(begin); a.err != nil || at != 80*ms {
			t.Errorf("Wait returned after %v, %v", at, a.err)
		}
	})
}

// A quota or a guard that panics while a reply is read leaves the queue unlocked.
func TestReserverReplyPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		var panics atomic.Bool
		q := New(complete(Config{Quota: quota, Guard: func() time.Duration {
			if panics.Load() {
				panic("guard")
			}
			return 0
		}}))
		ctx, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		join := func() {
			callers.Go(func() { _, _ = q.Wait(ctx, ticket()) })
			synctest.Wait()
		}
		join()
		question := quota.next(t)
		join() // it is to ask next
		panics.Store(true)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the guard was not called")
				}
			}()
			question.done(quota.at(question, 0), nil)
		}()
		if !q.mu.TryLock() {
			t.Error("the queue is locked")
		}
		q.mu.Unlock() // else the callers would not end
		panics.Store(false)
		cancel()
		callers.Wait()
	})
}
