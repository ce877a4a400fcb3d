package queue

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

func bucket(limit, burst int64) algorithms.Tier {
	return algorithms.Tier{Limit: limit, Window: sec, Algorithm: algorithms.GCRA, Burst: burst}
}

// TestForecastOtherCostAdmitted admits a small request while large ones wait. The forecast must not
// count it as a large one.
func TestForecastOtherCostAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(complete(Config{Quota: quotaOf(t, bucket(1000, 100))}))
		begin := time.Now()
		<-join(q, ticket(100)).done // no token is left
		join(q, ticket(100).until(begin.Add(time.Hour)))
		small := join(q, ticket(1))
		large := join(q, ticket(100).until(begin.Add(time.Hour)))
		<-small.done // after 101 ms; large goes after 201
		newcomer := join(q, ticket(100).until(begin.Add(301*ms)))
		if <-newcomer.done; newcomer.err != nil {
			t.Errorf("the newcomer: %v", newcomer.err)
		}
		<-large.done
	})
}

// TestForecastAfterOtherCost tests a first waiter with another cost than all others. After its
// admission the queue refuses a newcomer at once if and only if it is late.
func TestForecastAfterOtherCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		window := algorithms.Tier{Limit: 2, Window: sec, Algorithm: algorithms.FixedWindow}
		q := New(complete(Config{Quota: quotaOf(t, window)}))
		time.Sleep(time.Until(time.Now().Truncate(sec).Add(sec)))
		begin := time.Now()
		<-join(q, ticket(2)).done
		other := join(q, ticket(2))
		for range 6 {
			join(q, ticket(1)) // 2, 2, 3, 3, 4, 4 s
		}
		<-other.done    // after 1 s
		synctest.Wait() // until the next waiter has asked the quota
		for at, refused := range map[time.Duration]bool{4900 * ms: true, 5 * sec: false} {
			ctx, cancel := context.WithCancel(context.Background())
			c := joinCtx(ctx, q, ticket(1).until(begin.Add(at)))
			if c.isRefused(Late) != refused {
				t.Errorf("by %v: refused at once: %v, want %v", at, !refused, refused)
			}
			cancel()
			<-c.done
		}
		time.Sleep(10 * sec)
	})
}

// TestForecastWithoutWaiters tests that a forecast for one caller is not used for another if no
// callers have waited in between. The queue does not watch the quota then.
func TestForecastWithoutWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := quotaOf(t, bucket(10, 10))
		q := New(complete(Config{Quota: quota}))
		if _, err := quota.Pause(context.Background(), store.Pause{For: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if o := q.Forecast(ticket(10)); o.Wait != time.Hour {
			t.Errorf("in a pause: %+v", o)
		}
		if err := quota.Resume(context.Background()); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		c := join(q, ticket(10).until(now.Add(sec)))
		if <-c.done; c.err != nil {
			t.Errorf("after the pause: %v", c.err)
		}
		if o := q.Forecast(ticket(10)); o.Wait != sec {
			t.Errorf("10: %+v", o)
		}
		c = join(q, ticket(1).until(now.Add(100*ms)))
		if <-c.done; c.err != nil {
			t.Errorf("1: %v", c.err)
		}
	})
}

// TestForecastWhileAsking tests a newcomer that joins while the caller ahead is asking, because the quota may
// have charged that already. If it has not, the newcomer is late, and is refused with the reply.
func TestForecastWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quota := quotaOf(t, bucket(1, 1))
		q, begin := New(complete(Config{Quota: quota})), time.Now()
		<-join(q, ticket()).done
		slow := ticket()
		slow.Ask = asks(func(ctx context.Context, turn Turn) (store.Decision, error) {
			time.Sleep(100 * ms)
			return quota.TryAcquire(ctx, turn.Request)
		})
		first := join(q, slow)
		newcomer := join(q, ticket().until(begin.Add(1500*ms)))
		if newcomer.ended() {
			t.Fatalf("refused before the reply: %v", newcomer.err)
		}
		time.Sleep(100 * ms)
		if !newcomer.isRefused(Late) {
			t.Errorf("after the reply: %v, want it refused", newcomer.err)
		}
		<-first.done
	})
}

// TestForecastAhead tests that a forecast counts the callers ahead, but not one that is asking with an Ask
// of its own, and so waits elsewhere.
func TestForecastAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		for _, c := range []struct {
			quota store.Quota
			first Ticket
			class Class
			ahead int
		}{
			{later(sec), blocks(&calls), Normal, 1},
			{later(sec), blocks(&calls), Interactive, 0},
			{later(sec), ticket(), Normal, 2},
			{new(reserver), ticket(), Normal, 2},
			{new(reserver), ticket(), Interactive, 0},
		} {
			q := New(complete(Config{Quota: c.quota, Aging: time.Minute}))
			callers := []*caller{join(q, c.first), join(q, ticket())}
			if got := q.Forecast(ticket().of(c.class)).Ahead; got != [3]int{Normal: c.ahead} {
				t.Errorf("%T, own Ask %v, class %d: %v are ahead, want %d", c.quota, c.first.Ask != nil, c.class, got, c.ahead)
			}
			for _, w := range callers {
				w.cancel()
				<-w.done
			}
		}
	})
}

// A counting quota counts the calls of its forecasts.
type counting struct {
	store.Quota
	made, next, total, soonest int
}

type countingForecast struct {
	store.Forecast
	*counting
}

func (c *counting) Forecast() store.Forecast {
	c.made++
	return countingForecast{c.Quota.Forecast(), c}
}

func (c *counting) Soonest(cost []int64, headroom int64) (time.Duration, int) {
	c.soonest++
	return c.Quota.Soonest(cost, headroom)
}

func (f countingForecast) Next(r store.Request) (time.Duration, int) {
	f.next++
	return f.Forecast.Next(r)
}

func (f countingForecast) Total(ahead, cost []int64, headroom int64) (time.Duration, int) {
	f.total++
	return f.Forecast.Total(ahead, cost, headroom)
}

// TestRefusalWork tests that the cost of a late newcomer does not grow with the queue, during many
// responses and newcomers, for any mix of classes, costs and deadlines.
func TestRefusalWork(t *testing.T) {
	const waiting, newcomers = 1 << 14, 1000
	for name, h := range map[string]benchQueue{
		"equal":   {mix: mix{deadlines: true, costs: 1}},
		"classes": {mix: mix{deadlines: true, classes: true, costs: 1}},
		"costs":   {mix: mix{deadlines: true, classes: true, costs: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				quota := &counting{Quota: quotaOf(t, bucket(5, 5))}
				h.Queue, h.random = New(complete(Config{Quota: quota, Aging: time.Minute})), rand.New(rand.NewPCG(1, 2))
				for range waiting {
					h.join(t)
				}
				h.refuse(t)
				for range 2 * waiting / leastSteps { // the forecast reaches the end of the queue
					h.refuse(t)
				}
				quota.made, quota.next, quota.total = 0, 0, 0
				for range newcomers {
					time.Sleep(ms / 2)
					h.freed(t)
					h.join(t) // in some mixes it overtakes others
					h.refuse(t)
					h.leave(t)
				}
				if quota.made > 1 || quota.next > 2*newcomers || quota.total > 10*newcomers {
					t.Errorf("%d newcomers caused %d forecasts, %d calls of Next and %d of Total", newcomers, quota.made, quota.next, quota.total)
				}
			})
		})
	}
}
