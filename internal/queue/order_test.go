package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/order"
	"github.com/apithrottle/throttle/store"
)

// queuesOf returns n queues of one quota.
func queuesOf(quota store.Quota, n int) (all []*Queue) {
	for o := new(order.Order); n > 0; n-- {
		all = append(all, New(complete(Config{Quota: quota, Order: o, Aging: sec})))
	}
	return all
}

// TestQueuesOfOneQuota plays random callers, which have costs and classes, and of which some are
// canceled, in one queue and in three queues of one quota. Each caller must end at the same time.
func TestQueuesOfOneQuota(t *testing.T) {
	for seed := range uint64(200) {
		var want, got []string
		for _, n := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				want, got = got, playCallers(t, seed, n)
			})
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("seed %d: caller %d %s in three queues, %s in one", seed, i, got[i], want[i])
			}
		}
	}
}

func playCallers(t *testing.T, seed uint64, queues int) (ends []string) {
	random := rand.New(rand.NewPCG(seed, 0))
	all := queuesOf(quotaOf(t, bucket(10, 10)), queues)
	begin := time.Now()
	var callers []*caller
	for range 60 {
		time.Sleep(time.Duration(random.IntN(150)) * ms)
		next := ticket(1 + random.Int64N(9)).of(Class(random.IntN(3)))
		ctx := context.Background()
		if random.IntN(6) == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			time.AfterFunc(time.Duration(random.IntN(3000))*ms+time.Microsecond, cancel)
		}
		callers = append(callers, joinCtx(ctx, all[random.IntN(3)%queues], next))
		if random.IntN(20) == 0 {
			q := all[0]
			q.Replace(q.config)
		}
	}
	for _, c := range callers {
		<-c.done
		ends = append(ends, fmt.Sprintf("ended after %v with admission %v", c.end.Sub(begin), c.err == nil))
	}
	for _, q := range all {
		if q.Len() != 0 || q.waiters.leader != nil {
			t.Errorf("%d callers wait, of which one has a place: %v", q.Len(), q.waiters.leader != nil)
		}
	}
	return ends
}

// TestQueueAside tests that another queue goes ahead while the first caller waits for another quota,
// and only until then.
func TestQueueAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := queuesOf(quotaOf(t, bucket(1, 1)), 2)
		<-join(all[0], ticket()).done
		chained := ticket()
		for _, wait := range []time.Duration{3 * sec, 0} {
			chained.Ask = asks(func(ctx context.Context, turn Turn) (store.Decision, error) {
				d, err := all[0].config.Quota.TryAcquire(ctx, store.Request{Cost: turn.Cost, WaitSpec: &store.WaitSpec{DryRun: true}, Queued: true})
				if err != nil || d.Verdict != store.Ready {
					return d, err
				}
				if wait > 0 {
					turn.StepAside()
					time.Sleep(wait)
				}
				return all[0].config.Quota.TryAcquire(ctx, turn.Request)
			})
			begin := time.Now()
			first := join(all[0], chained)
			time.Sleep(ms)
			second := join(all[1], ticket())
			<-first.done
			<-second.done
			if ahead := second.end.Before(first.end); ahead != (wait > 0) {
				t.Errorf("waiting %v: the first caller is admitted after %v, the second after %v", wait, first.end.Sub(begin), second.end.Sub(begin))
			}
		}
	})
}
