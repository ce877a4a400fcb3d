package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
)

// TestNewcomerTakesReservedTime tests that a newcomer of a higher class joins at the instant of a
// reserved time, before the waiter with that time has woken. The newcomer goes at that time.
func TestNewcomerTakesReservedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota, Aging: time.Hour}))
		last := ticket().of(Batch)
		batch, do, _, err := q.enter(context.Background(), last)
		if err != nil || !do.ask {
			t.Fatalf("%+v, %v", do, err)
		}
		q.ask(context.Background(), batch, do.generation)
		question := quota.next(t)
		question.done(quota.at(question, sec), nil)
		time.Sleep(sec)
		user := join(q, ticket().of(Interactive))
		if <-user.done; user.err != nil || user.result.Reservation == nil {
			t.Errorf("the newcomer: %+v, %v", user.result, user.err)
		}
		if batch.out.Load() || q.Len() != 1 {
			t.Errorf("the Batch caller is out: %v; %d callers wait", batch.out.Load(), q.Len())
		}
	})
}

// TestRecost tests that a waiter that is first asks for what it costs by then, and that a panic of
// Recost leaves a queue that works.
func TestRecost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(complete(Config{Quota: quotaOf(t, algorithms.Tier{Limit: 10, Window: 10 * sec, Algorithm: algorithms.GCRA, Burst: 10})}))
		<-join(q, ticket(10)).done
		var price atomic.Int64
		price.Store(10)
		priced := func() Ticket {
			t := ticket(10)
			t.Recost = func(any) []int64 { return cost(price.Load()) }
			return t
		}
		first, second, fixed := join(q, priced()), join(q, priced()), join(q, ticket(10))
		price.Store(1)
		time.Sleep(10 * sec)
		if !first.ended() || !second.ended() || fixed.ended() || !slices.Equal(first.result.Cost, cost(1)) {
			t.Errorf("after 10 s the first two ended: %v, %v; the third: %v; the first was charged %v", first.ended(), second.ended(), fixed.ended(), first.result.Cost)
		}
		time.Sleep(2 * sec)
		if !fixed.ended() {
			t.Error("the third waits for what the others no longer cost")
		}
		broken := ticket(10)
		broken.Recost = func(any) []int64 { panic("recost") }
		ended := make(chan any)
		go func() {
			defer func() { ended <- recover() }()
			_, _ = q.Wait(t.Context(), broken)
		}()
		if v := <-ended; v != "recost" {
			t.Errorf("recovered %v", v)
		}
		next := join(q, ticket(10))
		if time.Sleep(10 * sec); !next.ended() || next.err != nil || q.Len() != 0 {
			t.Errorf("after a panic the next caller ended: %v, %v; %d wait", next.ended(), next.err, q.Len())
		}
	})
}

// TestReviewWakesNext tests a newcomer that finds that the first waiter is late, and that is
// refused itself. The next waiter must then ask.
func TestReviewWakesNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(complete(Config{Quota: quotaOf(t, algorithms.Tier{Limit: 1, Window: sec, Algorithm: algorithms.GCRA}), Aging: 10 * sec}))
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
			t.Fatal("the patient waiter sleeps forever")
		}
		if at := patient.end.Sub(now); patient.err != nil || at != 2*sec {
			t.Errorf("the patient waiter: %v after %v, want admitted after 2s", patient.err, at)
		}
	})
}

// TestReservedAtOnceForCanceled tests that a reserver admits at once a waiter that has left in the
// meantime.
func TestReservedAtOnceForCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := new(reserver)
		q := New(complete(Config{Quota: quota}))
		gone := join(q, ticket())
		question := quota.next(t)
		other := join(q, ticket())
		gone.cancel()
		<-gone.done
		question.done([]store.Decision{{Verdict: store.Admitted}}, nil)
		if n := q.Len(); n != 1 || len(quota.canceled) != 1 {
			t.Fatalf("Len is %d, %d canceled, want 1 and 1", n, len(quota.canceled))
		}
		question = quota.next(t)
		question.done(quota.at(question, 0), nil)
		if <-other.done; other.err != nil {
			t.Error(other.err)
		}
	})
}

// TestGiveUpOvertaken tests that an overtaken waiter is refused when it gives up, and not when its
// turn comes.
func TestGiveUpOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(complete(Config{Quota: later(20 * sec), Aging: time.Hour}))
		begin := time.Now()
		batch := join(q, ticket().of(Batch).until(begin.Add(sec)))
		users := []*caller{join(q, ticket().of(Interactive)), join(q, ticket().of(Interactive))}
		<-batch.done
		if at := batch.end.Sub(begin); at != sec || !batch.isRefused(Late) {
			t.Errorf("%v after %v", batch.err, at)
		}
		for _, u := range users {
			u.cancel()
			<-u.done
		}
	})
}

// TestGiveUpWithContext tests a caller whose context ends at the instant at which it gives up and
// at which its wait ends. The queue asks the quota only a few times.
func TestGiveUpWithContext(t *testing.T) {
	for name, wait := range map[string]time.Duration{"late": sec + 1, "in time": sec, "freed": store.Forever} {
		for range 100 {
			synctest.Test(t, func(t *testing.T) {
				quota := later(wait)
				q := New(complete(Config{Quota: quota}))
				end := time.Now().Add(sec)
				ctx, cancel := context.WithDeadline(context.Background(), end)
				defer cancel()
				c := joinCtx(ctx, q, ticket().until(end))
				if name == "freed" {
					time.AfterFunc(sec, func() { quota.notify(store.Freed, 0) })
				}
				<-c.done
				if !time.Now().Equal(end) || c.err == nil {
					t.Errorf("%s: %v at %v, want %v", name, c.err, time.Now(), end)
				}
				if n := quota.questions(); n > 3 {
					t.Errorf("%s: asked %d times", name, n)
				}
			})
		}
	}
}

// TestMaxQueue tests that the last waiter leaves a full queue, be it the newcomer or a waiter
// behind it.
func TestMaxQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(complete(Config{Quota: later(store.Forever), Aging: time.Minute, MaxQueue: 3}))
		var batch, users []*caller
		for range 5 {
			batch = append(batch, join(q, ticket().of(Batch)))
		}
		for i, c := range batch {
			if full := c.isRefused(Full); full != (i >= 3) {
				t.Errorf("batch %d: full: %v, %v", i, full, c.err)
			}
		}
		// The queue no longer asks for the first caller, which can be expelled too.
		for i := range 4 {
			users = append(users, join(q, ticket().of(Interactive)))
			for j, c := range batch[:3] {
				if full := c.isRefused(Full); full != (j >= 2-i) {
					t.Errorf("%d users: batch %d: full: %v", i+1, j, full)
				}
			}
			if q.Len() != 3 {
				t.Errorf("%d callers wait", q.Len())
			}
		}
		if !users[3].isRefused(Full) {
			t.Errorf("user 4: %v", users[3].err)
		}
		for _, c := range users[:3] {
			c.cancel()
			<-c.done
		}
	})
}

// TestMaxQueueWhileAsking tests that a queue counts its callers while a call is under way. A queue whose
// quota reserves times does not: the reply may admit all of them at once.
func TestMaxQueueWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, quota := 0, new(reserver)
		for _, c := range []struct {
			quota store.Quota
			first Ticket
			full  bool
		}{{later(sec), blocks(&calls), true}, {quota, ticket(), false}} {
			q := New(complete(Config{Quota: c.quota, MaxQueue: 1}))
			first, second := join(q, c.first), join(q, ticket())
			if r := (*Refusal)(nil); errors.As(second.err, &r) && r.Ahead != 1 {
				t.Errorf("%d callers are ahead, want 1", r.Ahead)
			}
			if first.ended() || second.isRefused(Full) != c.full {
				t.Errorf("%T: the first caller ended: %v; the second is refused: %v, want %v", c.quota, first.ended(), second.err, c.full)
			}
			first.cancel()
			second.cancel()
		}
	})
}

// TestOvertakeAtOtherCost tests that a caller of a higher class goes before one that is asking,
// whatever they cost.
func TestOvertakeAtOtherCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		q := New(complete(Config{Quota: every(sec), Aging: time.Hour}))
		batch := join(q, blocks(&calls).of(Batch))
		if user := join(q, ticket(2).of(Interactive)); !user.ended() || user.err != nil || batch.ended() {
			t.Errorf("the user has ended: %v, %v; the Batch caller: %v", user.ended(), user.err, batch.ended())
		}
		batch.cancel()
	})
}

// TestPauseRefusesLate tests that a pause refuses at once the callers that it makes late, and nobody
// else: every other caller would be late by a millisecond, behind those that stay.
func TestPauseRefusesLate(t *testing.T) {
	for late := range 2 { // the first caller that is
		synctest.Test(t, func(t *testing.T) {
			quota := quotaOf(t, bucket(1, 1))
			q, begin := New(complete(Config{Quota: quota})), time.Now()
			<-join(q, ticket()).done
			var all []*caller
			for i := range 13 {
				end := begin.Add(time.Duration(8+i/2) * sec)
				if i%2 == late {
					end = begin.Add(time.Duration(8+(i+late)/2)*sec - ms)
				}
				all = append(all, join(q, ticket().until(end)))
			}
			if _, err := quota.Pause(t.Context(), store.Pause{For: 8 * sec}); err != nil {
				t.Fatal(err)
			}
			for i, c := range all {
				if refused := c.isRefused(Late); refused != (i%2 == late) || !refused && c.ended() {
					t.Errorf("caller %d has ended: %v, %v", i, c.ended(), c.err)
				}
			}
			for i, c := range all {
				if <-c.done; c.err != nil && i%2 != late {
					t.Errorf("caller %d: %v", i, c.err)
				}
			}
		})
	}
}

// TestVerdicts tests that a caller is refused for the reason that the quota gives.
func TestVerdicts(t *testing.T) {
	for verdict, reason := range map[store.Verdict]Reason{store.Closed: Banned, store.Exhausted: Exhausted, store.Late: Late} {
		synctest.Test(t, func(t *testing.T) {
			q := New(Config{Quota: &fake{reply: func(context.Context, store.Request) (store.Decision, error) {
				return store.Decision{Verdict: verdict, Wait: sec, Tier: 1}, nil
			}}})
			c := join(q, ticket())
			var r *Refusal
			if !c.isRefused(reason) || !errors.As(c.err, &r) || r.Wait != sec || r.Tier != 1 || r.Ahead != 0 {
				t.Errorf("verdict %d: %v, want reason %d", verdict, c.err, reason)
			}
			c.cancel()
		})
	}
}

// TestAdmittedNamesTier tests that the admission of a caller that had to wait names the tier it waited for.
func TestAdmittedNamesTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replies := []store.Decision{{Wait: sec, Tier: 1}, {Verdict: store.Admitted, Tier: -1}}
		q := New(Config{Quota: &fake{reply: func(context.Context, store.Request) (store.Decision, error) {
			d := replies[0]
			replies = replies[1:]
			return d, nil
		}}})
		c := join(q, ticket())
		if <-c.done; c.err != nil || c.result.Tier != 1 {
			t.Errorf("tier %d, %v, want tier 1", c.result.Tier, c.err)
		}
	})
}

// TestReviewAfterAdmissions tests that a caller that was overtaken is refused once a newcomer is late
// because of it, also by a forecast that was made before the last admissions.
func TestReviewAfterAdmissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := quotaOf(t, algorithms.Tier{Limit: 5, Window: 100 * ms, Algorithm: algorithms.FixedWindow})
		q, begin := New(complete(Config{Quota: quota, Aging: time.Minute})), time.Now()
		for range 7 { // one in each window
			join(q, ticket(3).until(begin.Add(time.Hour)))
		}
		time.Sleep(350 * ms)
		overtaken := join(q, ticket(3).until(begin.Add(750*ms)))
		join(q, ticket(3).of(Interactive))
		if overtaken.ended() {
			t.Fatal("refused before a newcomer is late")
		}
		newcomer := join(q, ticket(3).until(begin.Add(760*ms)))
		if !overtaken.isRefused(Late) || !newcomer.isRefused(Late) {
			t.Errorf("the overtaken caller: %v; the newcomer: %v, want both late", overtaken.err, newcomer.err)
		}
		time.Sleep(sec)
	})
}

// TestCloseRefusesAll tests that Close refuses the waiting callers, the caller that asks, and
// newcomers.
func TestCloseRefusesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		q := New(complete(Config{Quota: later(sec)}))
		all := []*caller{join(q, blocks(&calls)), join(q, ticket()), join(q, ticket())}
		q.Close()
		for i, c := range append(all, join(q, ticket()), joinCtx(context.Background(), q, ticket())) {
			if !c.isRefused(Closed) {
				t.Errorf("caller %d: ended %v, %v", i, c.ended(), c.err)
			}
		}
		if q.Len() != 0 || calls != 1 || q.unwatch != nil {
			t.Errorf("%d callers wait, %d calls, watched: %v", q.Len(), calls, q.unwatch != nil)
		}
	})
}

// TestCancelStorm cancels nine of ten callers at any time. The others are admitted as if the nine
// had not come.
func TestCancelStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		quota := &noisy{Quota: quotaOf(t, bucket(10, 1))}
		q := New(complete(Config{Quota: quota}))
		begin := time.Now()
		first := join(q, ticket())
		var stay []*caller
		for i := range n {
			c := join(q, ticket())
			if i%10 == 0 {
				stay = append(stay, c)
			} else {
				time.AfterFunc(time.Duration(i%97)*ms, c.cancel) // before the second admission
			}
		}
		for i, c := range stay {
			<-c.done
			if at := c.end.Sub(begin); c.err != nil || at != time.Duration(i+1)*100*ms {
				t.Fatalf("caller %d: %v after %v", i, c.err, at)
			}
		}
		if <-first.done; quota.asked > 3*n {
			t.Errorf("the quota was asked %d times", quota.asked)
		}
	})
}

// TestRecall tests an Ask that blocks, as in the queue of an outer quota, with random callers,
// cancellations and pauses. After all events the queue is asking the quota for the first waiter
// only, and it has not asked without reason.
func TestRecall(t *testing.T) {
	for seed := range uint64(soak.Times(200)) {
		synctest.Test(t, func(t *testing.T) {
			r := &blockingCallers{random: rand.New(rand.NewPCG(seed, 5)), quota: later(store.Forever)}
			r.queue = New(complete(Config{Quota: r.quota, Aging: time.Duration(r.random.IntN(3)) * 10 * ms}))
			for range 30 {
				for range 1 + r.random.IntN(3) { // at the same time
					r.act()
				}
				r.check(t)
				time.Sleep(time.Duration(r.random.IntN(3)) * ms)
			}
			for r.queue.Len() > 0 {
				r.admit()
				r.check(t)
			}
			if r.asked > 3*r.acts+r.waited {
				t.Errorf("seed %d: %d calls for %d events", seed, r.asked, r.acts)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// blockingCallers are callers whose Ask blocks until it is answered or canceled.
type blockingCallers struct {
	random *rand.Rand
	quota  *fake
	queue  *Queue
	acts   int // events of the test

	mu      sync.Mutex // guards all below
	asking  map[int]chan struct{}
	asked   int
	waited  int // callers
	cancels []context.CancelFunc
}

func (r *blockingCallers) act() {
	r.acts++
	switch r.random.IntN(8) {
	case 0:
		r.admit()
	case 1:
		go r.quota.notify(store.Change(r.random.IntN(2)), ms) // Freed or Slowed
	case 2, 3:
		if len(r.cancels) > 0 {
			go r.cancels[r.random.IntN(len(r.cancels))]()
		}
	default:
		r.join()
	}
}

func (r *blockingCallers) join() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancels = append(r.cancels, cancel)
	me := len(r.cancels)
	ticket := ticket().of(Class(r.random.IntN(3)))
	ticket.Ask = asks(func(ctx context.Context, _ Turn) (store.Decision, error) {
		admitted := make(chan struct{})
		r.mu.Lock()
		if r.asking == nil {
			r.asking = make(map[int]chan struct{})
		}
		r.asking[me] = admitted
		r.asked++
		r.mu.Unlock()
		defer func() {
			r.mu.Lock()
			delete(r.asking, me)
			r.mu.Unlock()
		}()
		select {
		case <-admitted:
			return store.Decision{Verdict: store.Admitted}, nil
		case <-ctx.Done():
			return store.Decision{}, ctx.Err()
		}
	})
	r.waited++
	go func() { _, _ = r.queue.Wait(ctx, ticket) }()
}

// admit admits the callers whose Ask blocks.
func (r *blockingCallers) admit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for me, admitted := range r.asking {
		close(admitted)
		delete(r.asking, me)
	}
}

func (r *blockingCallers) check(t *testing.T) {
	t.Helper()
	synctest.Wait()
	q := r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	want := min(1, q.waiters.len())
	if len(r.asking) != want || len(q.calls.asking) != want || want == 1 && q.calls.asking[0] != q.waiters.first() {
		t.Fatalf("of %d waiters %d ask, want only the first", q.waiters.len(), len(r.asking))
	}
	if (q.calls.cancel != nil) != (want == 1) || q.Len() != q.waiters.len() {
		t.Fatalf("%d in the queue, Len is %d, the call can be canceled: %v", q.waiters.len(), q.Len(), q.calls.cancel != nil)
	}
}

// TestLeavingWakesNobody checks that a caller that leaves wakes another only if that is then first.
func TestLeavingWakesNobody(t *testing.T) {
	q := New(complete(Config{Quota: later(time.Hour)}))
	var all []*waiter
	for range 3 {
		t1 := ticket()
		w, _, _, err := q.enter(context.Background(), t1)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	for _, c := range []struct{ leaves, wakes int }{{1, 0}, {0, 1}} {
		for _, w := range all {
			for len(w.wake) > 0 {
				<-w.wake
			}
		}
		if _, err := q.quit(all[c.leaves], context.Canceled); err != context.Canceled {
			t.Fatal(err)
		}
		woken := 0
		for _, w := range all {
			woken += len(w.wake)
		}
		if woken != c.wakes {
			t.Errorf("caller %d has left: %d are woken, want %d", c.leaves, woken, c.wakes)
		}
	}
}

// TestBurstInOnePass checks that the waiters that a new window admits are released by the first one
// that asks. A caller whose context has ended is not charged, and one with an Ask of its own is woken to
// ask.
func TestBurstInOnePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := quotaOf(t, algorithms.Tier{Limit: 10, Window: sec, Algorithm: algorithms.FixedWindow})
		q := New(complete(Config{Quota: quota}))
		if d, err := quota.TryAcquire(t.Context(), ticket(10).Request); err != nil || d.Verdict != store.Admitted {
			t.Fatal(d, err)
		}
		canceled, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all []*waiter
		enter := func(ctx context.Context, t Ticket) *waiter {
			w, do, _, _ := q.enter(ctx, t)
			if do.ask {
				q.ask(ctx, w, do.generation)
			}
			all = append(all, w)
			return w
		}
		enter(t.Context(), ticket())
		enter(t.Context(), ticket(2).of(Batch))
		enter(t.Context(), ticket())
		leaver := enter(canceled, ticket())
		enter(t.Context(), ticket().of(Interactive))
		own := ticket(5)
		own.Ask = asks(func(ctx context.Context, turn Turn) (store.Decision, error) {
			return quota.TryAcquire(ctx, turn.Request)
		})
		asks := enter(t.Context(), own)
		enter(t.Context(), ticket())
		time.Sleep(sec)
		cancel()
		for len(asks.wake) > 0 {
			<-asks.wake
		}
		ask := func(w *waiter) {
			do := q.step(w)
			if !do.ask {
				t.Fatalf("the first waiter does not ask: %+v", do)
			}
			q.ask(t.Context(), w, do.generation)
		}
		check := func(released int) {
			for i, w := range all {
				if out := w.out.Load(); out != (i < released) {
					t.Errorf("waiter %d is out: %v, want the first %d", i, out, released)
				}
			}
		}
		ask(all[0])
		check(3)
		if _, err := q.quit(leaver, canceled.Err()); err != context.Canceled || len(all[4].wake) != 1 {
			t.Errorf("the canceled caller: %v; the one behind it is woken: %v", err, len(all[4].wake) == 1)
		}
		ask(all[4])
		check(5)
		if len(asks.wake) != 1 {
			t.Error("the caller that asks itself is not woken")
		}
		ask(asks)
		check(6)
		if s, err := quota.Status(t.Context()); err != nil || s.Tiers[0].Used != 10 {
			t.Errorf("%+v, %v, want 10 used", s, err)
		}
	})
}
